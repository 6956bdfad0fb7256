//! The fields of basic header segments: where each one is, how wide it is, and what RFC 7143 §11 calls it. Requests and answers are
//! encoded and decoded from this table; no other file knows an offset.

use std::marker::PhantomData;

use strongroom_scsi::transport::{Lun, Residual, TaskAttribute};

use super::answer_codes::{AsyncEvent, LogoutResult, TaskManagementResult};
use super::bhs::Bhs;
use super::error::PduError;
use super::request_codes::{attribute_code, attribute_of};
use crate::error::LoginStatus;
use crate::sequence::Serial;

/// A field that can hold any value of its width.
pub(crate) trait Field {
    /// What it holds.
    type Value;
    /// Reads it.
    fn get(&self, bhs: &Bhs) -> Self::Value;
    /// Writes it, and leaves every other bit as it is.
    fn put(&self, bhs: &mut Bhs, value: Self::Value);
}

/// A field of which some values have no meaning.
pub(crate) trait CheckedField {
    /// What it holds.
    type Value;
    /// Reads it.
    fn check(&self, bhs: &Bhs) -> Result<Self::Value, PduError>;
    /// Writes it, and leaves every other bit as it is.
    fn put(&self, bhs: &mut Bhs, value: Self::Value);
}

/// One bit.
pub(crate) struct Flag {
    offset: usize,
    mask: u8,
}

/// Several bits of one byte.
pub(crate) struct Bits {
    offset: usize,
    mask: u8,
}

/// Whole bytes; numbers are big-endian.
pub(crate) struct Octets<T> {
    offset: usize,
    value: PhantomData<T>,
}

/// Several bits of one byte that hold one of a list of codes.
pub(crate) struct Code<T> {
    bits: Bits,
    name: &'static str,
    decode: fn(u8) -> Option<T>,
    encode: fn(T) -> u8,
}

// Byte 0 and 1: flags. The same bit has a different name in different PDUs.
pub(crate) const IMMEDIATE: Flag = Flag { offset: 0, mask: 0x40 };
pub(crate) const FINAL: Flag = Flag { offset: 1, mask: 0x80 };
pub(crate) const TRANSIT: Flag = FINAL;
pub(crate) const CONTINUE: Flag = Flag { offset: 1, mask: 0x40 };
pub(crate) const READ: Flag = Flag { offset: 1, mask: 0x40 };
pub(crate) const WRITE: Flag = Flag { offset: 1, mask: 0x20 };
/// The A bit of a Data-In.
pub(crate) const ACKNOWLEDGE: Flag = Flag { offset: 1, mask: 0x40 };
const OVERFLOW: Flag = Flag { offset: 1, mask: 0x04 };
const UNDERFLOW: Flag = Flag { offset: 1, mask: 0x02 };
/// The S bit of a Data-In: it carries the status of its command.
pub(crate) const HAS_STATUS: Flag = Flag { offset: 1, mask: 0x01 };
pub(crate) const ATTR: Code<TaskAttribute> = code(1, 0x07, "ATTR", attribute_of, attribute_code);
pub(crate) const FUNCTION: Bits = Bits { offset: 1, mask: 0x7f };
pub(crate) const LOGOUT_REASON: Bits = Bits { offset: 1, mask: 0x7f };
pub(crate) const SNACK_TYPE: Bits = Bits { offset: 1, mask: 0x0f };
pub(crate) const CSG: Bits = Bits { offset: 1, mask: 0x0c };
pub(crate) const NSG: Bits = Bits { offset: 1, mask: 0x03 };

// Bytes 2 and 3.
pub(crate) const VERSION_MAX: Octets<u8> = at(2);
pub(crate) const VERSION_MIN: Octets<u8> = at(3);
pub(crate) const RESPONSE: Octets<u8> = at(2);
pub(crate) const REJECT_REASON: Octets<u8> = at(2);
pub(crate) const TASK_MANAGEMENT_RESULT: Code<TaskManagementResult> =
    code(2, 0xff, "Response", TaskManagementResult::from_code, |result| result as u8);
pub(crate) const LOGOUT_RESULT: Code<LogoutResult> =
    code(2, 0xff, "Response", LogoutResult::from_code, |result| result as u8);
pub(crate) const STATUS: Octets<u8> = at(3);

// Bytes 8 to 15.
pub(crate) const LUN: Octets<Lun> = at(8);
pub(crate) const ADDITIONAL_RESPONSE: Octets<[u8; 3]> = at(8);
pub(crate) const ISID: Octets<[u8; 6]> = at(8);
pub(crate) const TSIH: Octets<u16> = at(14);

// From byte 16: tags.
pub(crate) const INITIATOR_TASK_TAG: Octets<u32> = at(16);
pub(crate) const TARGET_TRANSFER_TAG: Octets<u32> = at(20);
pub(crate) const REFERENCED_TASK_TAG: Octets<u32> = at(20);
pub(crate) const SNACK_TAG: Octets<u32> = at(20);
pub(crate) const EXPECTED_DATA_TRANSFER_LENGTH: Octets<u32> = at(20);
pub(crate) const CID: Octets<u16> = at(20);

// From byte 24: sequence numbers of requests.
pub(crate) const CMD_SN: Octets<Serial> = at(24);
pub(crate) const EXP_STAT_SN: Octets<Serial> = at(28);
pub(crate) const REF_CMD_SN: Octets<Serial> = at(32);
pub(crate) const CDB: Octets<[u8; 16]> = at(32);

// From byte 24: sequence numbers of answers.
pub(crate) const STAT_SN: Octets<Serial> = at(24);
const EXP_CMD_SN: Octets<Serial> = at(28);
const MAX_CMD_SN: Octets<Serial> = at(32);
pub(crate) const SEQUENCE: SequenceField = SequenceField;

// From byte 36.
pub(crate) const DATA_SN: Octets<u32> = at(36);
pub(crate) const EXP_DATA_SN: Octets<u32> = at(36);
pub(crate) const R2T_SN: Octets<u32> = at(36);
pub(crate) const LOGIN_STATUS: Octets<LoginStatus> = at(36);
pub(crate) const ASYNC_EVENT: Code<AsyncEvent> =
    code(36, 0xff, "AsyncEvent", AsyncEvent::from_code, |event| event as u8);
pub(crate) const ASYNC_PARAMETERS: Octets<[u16; 3]> = at(38);
pub(crate) const BUFFER_OFFSET: Octets<u32> = at(40);
pub(crate) const BEGIN_RUN: Octets<u32> = at(40);
pub(crate) const TIME2WAIT: Octets<u16> = at(40);
pub(crate) const TIME2RETAIN: Octets<u16> = at(42);
pub(crate) const RUN_LENGTH: Octets<u32> = at(44);
pub(crate) const DESIRED_DATA_TRANSFER_LENGTH: Octets<u32> = at(44);
const RESIDUAL_COUNT: Octets<u32> = at(44);
pub(crate) const RESIDUAL: ResidualField = ResidualField;
pub(crate) const DATA_IN_STATUS: DataInStatusField = DataInStatusField;

const fn at<T>(offset: usize) -> Octets<T> {
    Octets { offset, value: PhantomData }
}

const fn code<T>(
    offset: usize,
    mask: u8,
    name: &'static str,
    decode: fn(u8) -> Option<T>,
    encode: fn(T) -> u8,
) -> Code<T> {
    Code { bits: Bits { offset, mask }, name, decode, encode }
}

impl Field for Flag {
    type Value = bool;

    fn get(&self, bhs: &Bhs) -> bool {
        bhs.0[self.offset] & self.mask != 0
    }

    fn put(&self, bhs: &mut Bhs, value: bool) {
        bhs.0[self.offset] = (bhs.0[self.offset] & !self.mask) | if value { self.mask } else { 0 };
    }
}

impl Field for Bits {
    type Value = u8;

    fn get(&self, bhs: &Bhs) -> u8 {
        (bhs.0[self.offset] & self.mask) >> self.mask.trailing_zeros()
    }

    fn put(&self, bhs: &mut Bhs, value: u8) {
        let value = (value << self.mask.trailing_zeros()) & self.mask;
        bhs.0[self.offset] = (bhs.0[self.offset] & !self.mask) | value;
    }
}

impl<T> CheckedField for Code<T> {
    type Value = T;

    fn check(&self, bhs: &Bhs) -> Result<T, PduError> {
        let code = self.bits.get(bhs);
        (self.decode)(code).ok_or(PduError::Field { field: self.name, value: u32::from(code) })
    }

    fn put(&self, bhs: &mut Bhs, value: T) {
        self.bits.put(bhs, (self.encode)(value));
    }
}

/// A value that takes whole bytes of a header.
pub(crate) trait OctetValue<const WIDTH: usize> {
    fn from_octets(octets: [u8; WIDTH]) -> Self;
    fn octets(self) -> [u8; WIDTH];
}

macro_rules! octet_values {
    ($($value:ty, $width:literal, $from:expr, $to:expr;)*) => {
        $(
            impl OctetValue<$width> for $value {
                fn from_octets(octets: [u8; $width]) -> $value {
                    $from(octets)
                }

                fn octets(self) -> [u8; $width] {
                    $to(self)
                }
            }

            impl Field for Octets<$value> {
                type Value = $value;

                fn get(&self, bhs: &Bhs) -> $value {
                    let octets = bhs.0[self.offset..self.offset + $width].try_into();
                    <$value>::from_octets(octets.expect("the field has this width"))
                }

                fn put(&self, bhs: &mut Bhs, value: $value) {
                    bhs.0[self.offset..self.offset + $width].copy_from_slice(&value.octets());
                }
            }
        )*
    };
}

octet_values! {
    u8, 1, |[octet]: [u8; 1]| octet, |value: u8| [value];
    u16, 2, u16::from_be_bytes, u16::to_be_bytes;
    u32, 4, u32::from_be_bytes, u32::to_be_bytes;
    Serial, 4, |octets| Serial(u32::from_be_bytes(octets)), |value: Serial| value.0.to_be_bytes();
    Lun, 8, |octets| Lun(u64::from_be_bytes(octets)), |value: Lun| value.0.to_be_bytes();
    LoginStatus, 2, |octets| LoginStatus(u16::from_be_bytes(octets)), |value: LoginStatus| value.0.to_be_bytes();
    [u8; 3], 3, |octets| octets, |value| value;
    [u8; 6], 6, |octets| octets, |value| value;
    [u8; 16], 16, |octets| octets, |value| value;
    [u16; 3], 6,
        |[a, b, c, d, e, f]: [u8; 6]| [[a, b], [c, d], [e, f]].map(u16::from_be_bytes),
        |[a, b, c]: [u16; 3]| { let ([a, d], [b, e], [c, f]) = (a.to_be_bytes(), b.to_be_bytes(), c.to_be_bytes()); [a, d, b, e, c, f] };
}

/// The three numbers that every answer carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Number of this answer.
    pub stat_sn: Serial,
    /// The CmdSN that the target expects next.
    pub exp_cmd_sn: Serial,
    /// The last CmdSN that it accepts.
    pub max_cmd_sn: Serial,
}

impl Sequence {
    /// Writes the numbers into an answer's header.
    pub fn put(self, bhs: &mut Bhs) {
        SEQUENCE.put(bhs, self);
    }

    /// Reads them from an answer's header.
    pub fn of(bhs: &Bhs) -> Sequence {
        SEQUENCE.get(bhs)
    }
}

/// StatSN, ExpCmdSN and MaxCmdSN.
pub(crate) struct SequenceField;

impl Field for SequenceField {
    type Value = Sequence;

    fn get(&self, bhs: &Bhs) -> Sequence {
        Sequence { stat_sn: STAT_SN.get(bhs), exp_cmd_sn: EXP_CMD_SN.get(bhs), max_cmd_sn: MAX_CMD_SN.get(bhs) }
    }

    fn put(&self, bhs: &mut Bhs, value: Sequence) {
        STAT_SN.put(bhs, value.stat_sn);
        EXP_CMD_SN.put(bhs, value.exp_cmd_sn);
        MAX_CMD_SN.put(bhs, value.max_cmd_sn);
    }
}

/// The O and U bits and the residual count (RFC 7143 §11.4.5).
pub(crate) struct ResidualField;

impl CheckedField for ResidualField {
    type Value = Residual;

    fn check(&self, bhs: &Bhs) -> Result<Residual, PduError> {
        let count = RESIDUAL_COUNT.get(bhs);
        match (OVERFLOW.get(bhs), UNDERFLOW.get(bhs)) {
            (false, false) => Ok(Residual::None),
            (false, true) => Ok(Residual::Underflow(count)),
            (true, false) => Ok(Residual::Overflow(count)),
            (true, true) => {
                Err(PduError::Field { field: "residual flags", value: u32::from(OVERFLOW.mask | UNDERFLOW.mask) })
            }
        }
    }

    fn put(&self, bhs: &mut Bhs, value: Residual) {
        let (overflow, underflow, count) = match value {
            Residual::None => (false, false, 0),
            Residual::Underflow(count) => (false, true, count),
            Residual::Overflow(count) => (true, false, count),
        };
        OVERFLOW.put(bhs, overflow);
        UNDERFLOW.put(bhs, underflow);
        RESIDUAL_COUNT.put(bhs, count);
    }
}

/// The S bit of a Data-In and what it announces: status and residual (RFC 7143 §11.7.3).
pub(crate) struct DataInStatusField;

impl CheckedField for DataInStatusField {
    type Value = Option<(u8, Residual)>;

    fn check(&self, bhs: &Bhs) -> Result<Self::Value, PduError> {
        match HAS_STATUS.get(bhs) {
            true => Ok(Some((STATUS.get(bhs), RESIDUAL.check(bhs)?))),
            false => Ok(None),
        }
    }

    fn put(&self, bhs: &mut Bhs, value: Self::Value) {
        HAS_STATUS.put(bhs, value.is_some());
        if let Some((status, residual)) = value {
            STATUS.put(bhs, status);
            RESIDUAL.put(bhs, residual);
        }
    }
}

impl Bhs {
    /// The initiator task tag.
    pub fn initiator_task_tag(&self) -> u32 {
        INITIATOR_TASK_TAG.get(self)
    }
}

/// Gives a header its `encode` and `decode` from one list of fields. `fixed` fields have the same value in every PDU of this kind and are
/// not read. `decode` fails only where there are `checked` fields.
macro_rules! header {
    (
        $header:ident = $opcode:ident
        fixed { $($fixed:ident = $value:expr),* }
        fields { $($name:ident = $field:ident),* $(,)? }
    ) => {
        impl $header {
            /// Writes the header.
            pub fn encode(&self) -> Bhs {
                let mut bhs = Bhs::new(Opcode::$opcode);
                $(fields::$fixed.put(&mut bhs, $value);)*
                $(fields::$field.put(&mut bhs, self.$name);)*
                bhs
            }

            /// Reads the header.
            pub fn decode(bhs: &Bhs) -> $header {
                $header { $($name: fields::$field.get(bhs)),* }
            }
        }
    };
    (
        $header:ident = $opcode:ident
        fixed { $($fixed:ident = $value:expr),* }
        fields { $($name:ident = $field:ident),* $(,)? }
        checked { $checked:ident = $code:ident }
    ) => {
        impl $header {
            /// Writes the header.
            pub fn encode(&self) -> Bhs {
                let mut bhs = Bhs::new(Opcode::$opcode);
                $(fields::$fixed.put(&mut bhs, $value);)*
                $(fields::$field.put(&mut bhs, self.$name);)*
                fields::$code.put(&mut bhs, self.$checked);
                bhs
            }

            /// Reads the header.
            ///
            /// # Errors
            /// [`PduError::Field`] for a code or a combination of flags that has no meaning.
            pub fn decode(bhs: &Bhs) -> Result<$header, PduError> {
                Ok($header { $($name: fields::$field.get(bhs),)* $checked: fields::$code.check(bhs)? })
            }
        }
    };
}
pub(super) use header;
