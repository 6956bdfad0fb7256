//! Sense data that the session itself gives (RFC 7143 §11.4.7.2), fixed format (SPC-4 §4.5.3).

/// Sense key, additional sense code and qualifier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sense(u8, u8, u8);

pub(super) const UNEXPECTED_UNSOLICITED_DATA: Sense = Sense(0x0b, 0x0c, 0x0c);
pub(super) const INCORRECT_AMOUNT_OF_DATA: Sense = Sense(0x0b, 0x0c, 0x0d);
/// Parameter value invalid: MaxRecvDataSegmentLength is less than a sealed block.
pub(super) const SEGMENT_TOO_SHORT: Sense = Sense(0x05, 0x26, 0x02);
pub(super) const INVALID_FIELD_IN_CDB: Sense = Sense(0x05, 0x24, 0x00);
/// What has to be sent again is no longer stored.
pub(super) const RETRANSMISSION_FAILED: Sense = Sense(0x0b, 0x11, 0x13);

impl Sense {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = vec![0; 18];
        bytes[0] = 0x70;
        bytes[2] = self.0;
        bytes[7] = 10;
        bytes[12] = self.1;
        bytes[13] = self.2;
        bytes
    }
}
