//! Status and sense: how a command ended, in fixed and descriptor format (SPC-4 §4.5).

use std::fmt;

use strongroom_block::Lba;

use crate::bytes::{be32, be64};

/// SAM-5 §5.3.1 status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Good = 0x00,
    /// See the sense data.
    CheckCondition = 0x02,
    /// PRE-FETCH only.
    ConditionMet = 0x04,
    /// Try again later.
    Busy = 0x08,
    /// Another nexus holds a reservation.
    ReservationConflict = 0x18,
    /// No room for another task.
    TaskSetFull = 0x28,
    /// Aborted by another nexus (TAS=1).
    TaskAborted = 0x40,
}

impl Status {
    /// From its byte; `None` for obsolete and reserved codes.
    pub fn from_byte(byte: u8) -> Option<Status> {
        Some(match byte {
            0x00 => Status::Good,
            0x02 => Status::CheckCondition,
            0x04 => Status::ConditionMet,
            0x08 => Status::Busy,
            0x18 => Status::ReservationConflict,
            0x28 => Status::TaskSetFull,
            0x40 => Status::TaskAborted,
            _ => return None,
        })
    }
}

/// SPC-4 table 53.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SenseKey {
    /// Nothing to report.
    NoSense = 0x0,
    /// Done, with help.
    RecoveredError = 0x1,
    /// Not accessible.
    NotReady = 0x2,
    /// Data is lost or not authentic.
    MediumError = 0x3,
    /// The target cannot go on.
    HardwareError = 0x4,
    /// The command is wrong.
    IllegalRequest = 0x5,
    /// Something changed that the initiator must know first.
    UnitAttention = 0x6,
    /// Writing (or reading) is not allowed or not possible.
    DataProtect = 0x7,
    /// Blank medium.
    BlankCheck = 0x8,
    /// Vendor specific.
    VendorSpecific = 0x9,
    /// EXTENDED COPY failed.
    CopyAborted = 0xa,
    /// Aborted by the target; retry.
    AbortedCommand = 0xb,
    /// Not used here.
    Reserved = 0xc,
    /// Not used here.
    VolumeOverflow = 0xd,
    /// The data compared unequal.
    Miscompare = 0xe,
    /// Completed.
    Completed = 0xf,
}

impl SenseKey {
    /// From the low four bits of its byte.
    pub fn from_bits(bits: u8) -> SenseKey {
        use SenseKey as K;
        const ALL: [SenseKey; 16] = [
            K::NoSense,
            K::RecoveredError,
            K::NotReady,
            K::MediumError,
            K::HardwareError,
            K::IllegalRequest,
            K::UnitAttention,
            K::DataProtect,
            K::BlankCheck,
            K::VendorSpecific,
            K::CopyAborted,
            K::AbortedCommand,
            K::Reserved,
            K::VolumeOverflow,
            K::Miscompare,
            K::Completed,
        ];
        ALL[usize::from(bits & 0xf)]
    }
}

/// Where in a CDB (or parameter list) the mistake is: sense-key specific data of ILLEGAL REQUEST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// In the CDB (true) or in the parameter data (false).
    pub in_cdb: bool,
    /// The byte.
    pub byte: u16,
    /// The highest bit of the field, if one is meant.
    pub bit: Option<u8>,
}

/// Why a command did not end in GOOD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// The sense key.
    pub key: SenseKey,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
    /// The INFORMATION field: the LBA of the first block concerned, or the offset of a miscompare.
    pub information: Option<u64>,
    /// Where the mistake is.
    pub field: Option<FieldPointer>,
    /// NOT READY: how far what makes it so is, in 65536ths (the progress indication). Instead of `field`.
    pub progress: Option<u16>,
}

impl Sense {
    /// Length of fixed-format sense as made here, in bytes.
    pub const FIXED_BYTES: usize = 18;

    /// NO SENSE.
    pub const NONE: Sense = Sense::new(SenseKey::NoSense, 0x00, 0x00);
    /// INVALID COMMAND OPERATION CODE.
    pub const INVALID_OPCODE: Sense = Sense::new(SenseKey::IllegalRequest, 0x20, 0x00);
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE.
    pub const LBA_OUT_OF_RANGE: Sense = Sense::new(SenseKey::IllegalRequest, 0x21, 0x00);
    /// Vendor: READ VERSION found no older version of the block.
    pub const NO_OLDER_VERSION: Sense = Sense::new(SenseKey::IllegalRequest, 0x21, 0x80);
    /// INVALID FIELD IN CDB.
    pub const INVALID_FIELD_IN_CDB: Sense = Sense::new(SenseKey::IllegalRequest, 0x24, 0x00);
    /// LOGICAL UNIT NOT SUPPORTED.
    pub const LUN_NOT_SUPPORTED: Sense = Sense::new(SenseKey::IllegalRequest, 0x25, 0x00);
    /// INVALID FIELD IN PARAMETER LIST.
    pub const INVALID_FIELD_IN_PARAMETERS: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x00);
    /// Vendor: the seal records are missing, malformed, or not of this unit's length, suite or mode.
    pub const INVALID_SEAL_RECORD: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x80);
    /// A target that opens what arrives could not open the block in the information field: nothing of the command was written.
    pub const DOES_NOT_OPEN: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x81);
    /// Vendor: the attach id of the operation is not registered (never, or not any more). The command was not executed by this
    /// request; whether it was by an earlier one is unknown.
    pub const UNKNOWN_ATTACHMENT: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x82);
    /// Vendor: an operation that has stamps in common with another one, or a replay of a write that this unit never acknowledged.
    /// The command was not executed.
    pub const INVALID_OPERATION: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x83);
    /// Vendor: a replay, and the block in the information field is lost: what is there now is newer, but was written on condition of what was
    /// there before. The other blocks of the command were written.
    pub const REPLAY_LOST: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x84);
    /// PARAMETER LIST LENGTH ERROR.
    pub const PARAMETER_LIST_LENGTH: Sense = Sense::new(SenseKey::IllegalRequest, 0x1a, 0x00);
    /// PARAMETER VALUE INVALID: a field that cannot be changed, or not to that.
    pub const PARAMETER_VALUE_INVALID: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x02);
    /// INVALID RELEASE OF PERSISTENT RESERVATION.
    pub const INVALID_RELEASE: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x04);
    /// TOO MANY TARGET DESCRIPTORS.
    pub const TOO_MANY_TARGETS: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x06);
    /// UNSUPPORTED TARGET DESCRIPTOR TYPE CODE.
    pub const UNSUPPORTED_TARGET_DESCRIPTOR: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x07);
    /// TOO MANY SEGMENT DESCRIPTORS.
    pub const TOO_MANY_SEGMENTS: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x08);
    /// UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE.
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR: Sense = Sense::new(SenseKey::IllegalRequest, 0x26, 0x09);
    /// INSUFFICIENT REGISTRATION RESOURCES.
    pub const INSUFFICIENT_REGISTRATION_RESOURCES: Sense = Sense::new(SenseKey::IllegalRequest, 0x55, 0x04);
    /// COPY TARGET DEVICE NOT REACHABLE: a descriptor names another unit than this.
    pub const COPY_TARGET_NOT_REACHABLE: Sense = Sense::new(SenseKey::CopyAborted, 0x0d, 0x02);
    /// COPY ABORTED without more to say: a segment lies outside the unit, or could not be moved.
    pub const COPY_ABORTED: Sense = Sense::new(SenseKey::CopyAborted, 0x00, 0x00);
    /// COMMAND SEQUENCE ERROR: something must be done first.
    pub const COMMAND_SEQUENCE: Sense = Sense::new(SenseKey::IllegalRequest, 0x2c, 0x00);
    /// SANITIZE IN PROGRESS.
    pub const SANITIZE_IN_PROGRESS: Sense = Sense::new(SenseKey::NotReady, 0x04, 0x1b);
    /// SANITIZE COMMAND FAILED: until another SANITIZE works, or EXIT FAILURE MODE.
    pub const SANITIZE_FAILED: Sense = Sense::new(SenseKey::MediumError, 0x31, 0x03);
    /// LOGICAL UNIT SOFTWARE WRITE PROTECTED: SWP in the control mode page.
    pub const SOFTWARE_WRITE_PROTECTED: Sense = Sense::new(SenseKey::DataProtect, 0x27, 0x02);
    /// MEDIUM REMOVAL PREVENTED.
    pub const REMOVAL_PREVENTED: Sense = Sense::new(SenseKey::IllegalRequest, 0x53, 0x02);
    /// SAVING PARAMETERS NOT SUPPORTED.
    pub const SAVING_NOT_SUPPORTED: Sense = Sense::new(SenseKey::IllegalRequest, 0x39, 0x00);
    /// WRITE PROTECTED.
    pub const WRITE_PROTECTED: Sense = Sense::new(SenseKey::DataProtect, 0x27, 0x00);
    /// Ours: sessions see the image before a received snapshot, and nobody can claim a writer lease until they have let go.
    pub const IMAGE_PINNED: Sense = Sense::new(SenseKey::DataProtect, 0x27, 0x80);
    /// SPACE ALLOCATION FAILED WRITE PROTECT: the store is full.
    pub const NO_SPACE: Sense = Sense::new(SenseKey::DataProtect, 0x27, 0x07);
    /// UNRECOVERED READ ERROR.
    pub const UNRECOVERED_READ: Sense = Sense::new(SenseKey::MediumError, 0x11, 0x00);
    /// WRITE ERROR.
    pub const WRITE_ERROR: Sense = Sense::new(SenseKey::MediumError, 0x0c, 0x00);
    /// INTERNAL TARGET FAILURE.
    pub const INTERNAL_FAILURE: Sense = Sense::new(SenseKey::HardwareError, 0x44, 0x00);
    /// MISCOMPARE DURING VERIFY OPERATION.
    pub const MISCOMPARE: Sense = Sense::new(SenseKey::Miscompare, 0x1d, 0x00);
    /// PROTOCOL SERVICE CRC ERROR: the keyless checksum did not fit what arrived; send it again.
    pub const CHECKSUM_ON_ARRIVAL: Sense = Sense::new(SenseKey::AbortedCommand, 0x47, 0x05);
    /// Data-Out was shorter than the command needs (UNEXPECTED UNSOLICITED DATA has 0x0c/0x0c; this is SPC's NOT ENOUGH
    /// UNSOLICITED DATA 0x0c/0x0d).
    pub const NOT_ENOUGH_DATA: Sense = Sense::new(SenseKey::AbortedCommand, 0x0c, 0x0d);
    /// LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED: stopped by START STOP UNIT.
    pub const STOPPED: Sense = Sense::new(SenseKey::NotReady, 0x04, 0x02);

    /// Key, code and qualifier.
    pub const fn new(key: SenseKey, asc: u8, ascq: u8) -> Sense {
        Sense { key, asc, ascq, information: None, field: None, progress: None }
    }

    /// The same, saying how far it is.
    #[must_use]
    pub const fn so_far(self, progress: u16) -> Sense {
        Sense { progress: Some(progress), ..self }
    }

    /// The same, about the block `lba`.
    #[must_use]
    pub const fn at(self, lba: Lba) -> Sense {
        Sense { information: Some(lba.0), ..self }
    }

    /// The same, pointing into the CDB.
    #[must_use]
    pub const fn in_cdb(self, byte: u16, bit: Option<u8>) -> Sense {
        Sense { field: Some(FieldPointer { in_cdb: true, byte, bit }), ..self }
    }

    /// The same, pointing into the parameter data.
    #[must_use]
    pub const fn in_parameters(self, byte: u16) -> Sense {
        Sense { field: Some(FieldPointer { in_cdb: false, byte, bit: None }), ..self }
    }

    /// Whether key, code and qualifier are the same; what they are about may differ.
    pub fn is(&self, other: &Sense) -> bool {
        (self.key, self.asc, self.ascq) == (other.key, other.asc, other.ascq)
    }

    /// Fixed format, or descriptor format where the INFORMATION field needs more than 32 bits (SPC-4 §4.5.3 leaves VALID
    /// at zero there, and the address would be lost).
    pub fn encode(&self) -> Vec<u8> {
        match self.information {
            Some(information) if information > u64::from(u32::MAX) => self.encode_descriptor(),
            _ => self.encode_fixed(),
        }
    }

    /// Fixed format (SPC-4 §4.5.3), 18 bytes.
    pub fn encode_fixed(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::FIXED_BYTES];
        bytes[0] = 0x70;
        bytes[2] = self.key as u8;
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = (Self::FIXED_BYTES - 8) as u8;
        bytes[12] = self.asc;
        bytes[13] = self.ascq;
        bytes[15..18].copy_from_slice(&self.sense_key_specific());
        bytes
    }

    /// Descriptor format (SPC-4 §4.5.2) with information and sense-key specific descriptors as needed.
    pub fn encode_descriptor(&self) -> Vec<u8> {
        let mut bytes = vec![0x72, self.key as u8, self.asc, self.ascq, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend_from_slice(&[0x00, 0x0a, 0x80, 0]);
            bytes.extend_from_slice(&information.to_be_bytes());
        }
        if self.field.is_some() || self.progress.is_some() {
            bytes.extend_from_slice(&[0x02, 0x06, 0, 0]);
            bytes.extend_from_slice(&self.sense_key_specific());
            bytes.push(0);
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }

    /// Reads either format; `None` if it is neither, or too short to hold key and code.
    pub fn parse(bytes: &[u8]) -> Option<Sense> {
        match bytes.first()? & 0x7f {
            0x70 | 0x71 => {
                let mut sense = Sense::new(
                    SenseKey::from_bits(*bytes.get(2)?),
                    bytes.get(12).copied().unwrap_or(0),
                    bytes.get(13).copied().unwrap_or(0),
                );
                if bytes[0] & 0x80 != 0 {
                    sense.information = be32(bytes, 3).map(u64::from);
                }
                sense.take_specific(bytes.get(15..18));
                Some(sense)
            }
            0x72 | 0x73 => {
                let mut sense = Sense::new(SenseKey::from_bits(*bytes.get(1)?), *bytes.get(2)?, *bytes.get(3)?);
                let mut rest = bytes.get(8..).unwrap_or(&[]);
                while let [kind, len, ..] = *rest {
                    let whole = 2 + usize::from(len);
                    let Some(descriptor) = rest.get(..whole) else { break };
                    match kind {
                        0x00 => sense.information = be64(descriptor, 4),
                        0x02 => sense.take_specific(descriptor.get(4..7)),
                        _ => {}
                    }
                    rest = &rest[whole..];
                }
                Some(sense)
            }
            _ => None,
        }
    }

    /// What they mean hangs on the sense key (SPC-4 §4.5.2.4).
    fn take_specific(&mut self, specific: Option<&[u8]>) {
        match (self.key, specific) {
            (SenseKey::NotReady | SenseKey::NoSense, Some(&[0x80..=0xff, high, low])) => {
                self.progress = Some(u16::from_be_bytes([high, low]));
            }
            (SenseKey::NotReady | SenseKey::NoSense, _) => {}
            (_, specific) => self.field = specific.and_then(field_pointer),
        }
    }

    fn sense_key_specific(&self) -> [u8; 3] {
        if let Some(progress) = self.progress {
            let [high, low] = progress.to_be_bytes();
            return [0x80, high, low];
        }
        let Some(field) = self.field else { return [0; 3] };
        let mut flags = 0x80;
        if field.in_cdb {
            flags |= 0x40;
        }
        if let Some(bit) = field.bit {
            flags |= 0x08 | (bit & 7);
        }
        let [high, low] = field.byte.to_be_bytes();
        [flags, high, low]
    }
}

fn field_pointer(specific: &[u8]) -> Option<FieldPointer> {
    let [flags, high, low] = *specific else { return None };
    (flags & 0x80 != 0).then(|| FieldPointer {
        in_cdb: flags & 0x40 != 0,
        byte: u16::from_be_bytes([high, low]),
        bit: (flags & 0x08 != 0).then_some(flags & 7),
    })
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:02x}h/{:02x}h", self.key, self.asc, self.ascq)?;
        if let Some(information) = self.information {
            write!(f, " at {information}")?;
        }
        if let Some(progress) = self.progress {
            write!(f, ", {} % done", u32::from(progress) * 100 / 65536)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_fixed() {
        let sense = Sense::UNRECOVERED_READ.at(Lba(0x0102_0304));
        assert_eq!(sense.encode(), [0xf0, 0, 3, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0]);
        let sense = Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(7));
        assert_eq!(sense.encode(), [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcf, 0, 1]);
        let sense = Sense::SANITIZE_IN_PROGRESS.so_far(0x8001);
        assert_eq!(sense.encode(), [0x70, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 4, 0x1b, 0, 0x80, 0x80, 1]);
    }

    #[test]
    fn an_address_beyond_32_bits_goes_in_a_descriptor() {
        let sense = Sense::UNRECOVERED_READ.at(Lba(0x1_0000_0000));
        assert_eq!(sense.encode(), [0x72, 3, 0x11, 0, 0, 0, 0, 12, 0, 0x0a, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(Sense::parse(&sense.encode()), Some(sense));
    }

    #[test]
    fn both_formats_parse_as_encoded() {
        for sense in [
            Sense::NO_SPACE,
            Sense::MISCOMPARE.at(Lba(17)),
            Sense::INVALID_FIELD_IN_CDB.in_cdb(9, Some(3)),
            Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(300),
            Sense::SANITIZE_IN_PROGRESS.so_far(77),
            Sense::SANITIZE_IN_PROGRESS,
        ] {
            assert_eq!(Sense::parse(&sense.encode_fixed()), Some(sense));
            assert_eq!(Sense::parse(&sense.encode_descriptor()), Some(sense));
        }
    }

    #[test]
    fn truncated_and_foreign_sense_is_none_or_less() {
        assert_eq!(Sense::parse(&[]), None);
        assert_eq!(Sense::parse(&[0x70, 0]), None);
        assert_eq!(Sense::parse(&[0x7f; 18]), None);
        let short = Sense::parse(&[0x72, 3, 0x11, 0, 0, 0, 0, 12, 0, 0x0a, 0x80]).unwrap();
        assert_eq!(short.information, None);
    }
}
