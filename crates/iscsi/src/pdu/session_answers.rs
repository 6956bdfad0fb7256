//! What a target sends about the session itself: answers to login, text and logout (RFC 7143 §11.11, §11.13, §11.15).

use super::answers::Sequence;
use super::requests::stage_flags;
use super::{Bhs, Opcode, PduError};
use crate::LoginStatus;

const FINAL: u8 = 0x80;
const CONTINUE: u8 = 0x40;

/// Login Response, §11.13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// The target moves on to `next_stage` too.
    pub transit: bool,
    /// The key text goes on in the next response.
    pub continues: bool,
    /// 0 security, 1 operational, 3 full feature.
    pub current_stage: u8,
    /// Where `transit` leads.
    pub next_stage: u8,
    /// As the request had it.
    pub isid: [u8; 6],
    /// The target's part of the session's name, in the last response.
    pub tsih: u16,
    /// The login.
    pub initiator_task_tag: u32,
    /// Numbers.
    pub sequence: Sequence,
    /// Success, or why not.
    pub status: LoginStatus,
}

impl LoginResponse {
    /// Writes the header; the version is always 0.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::LoginResponse);
        bhs.0[1] = stage_flags(self.transit, self.continues, self.current_stage, self.next_stage);
        bhs.0[8..14].copy_from_slice(&self.isid);
        bhs.set_u16(14, self.tsih);
        bhs.set_u32(16, self.initiator_task_tag);
        self.sequence.put(&mut bhs);
        bhs.set_u16(36, self.status.0);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> LoginResponse {
        LoginResponse {
            transit: bhs.0[1] & FINAL != 0,
            continues: bhs.0[1] & CONTINUE != 0,
            current_stage: bhs.0[1] >> 2 & 3,
            next_stage: bhs.0[1] & 3,
            isid: bhs.0[8..14].try_into().expect("6 bytes"),
            tsih: bhs.u16_at(14),
            initiator_task_tag: bhs.initiator_task_tag(),
            sequence: Sequence::of(bhs),
            status: LoginStatus(bhs.u16_at(36)),
        }
    }
}

/// Text Response, §11.11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextResponse {
    /// The exchange is over.
    pub is_final: bool,
    /// The key text goes on in the next response.
    pub continues: bool,
    /// The exchange.
    pub initiator_task_tag: u32,
    /// To be copied into the next request; [`super::TAG_NONE`] when the exchange is over.
    pub target_transfer_tag: u32,
    /// Numbers.
    pub sequence: Sequence,
}

impl TextResponse {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::TextResponse);
        bhs.0[1] = u8::from(self.is_final) << 7 | u8::from(self.continues) << 6;
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, self.target_transfer_tag);
        self.sequence.put(&mut bhs);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> TextResponse {
        TextResponse {
            is_final: bhs.0[1] & FINAL != 0,
            continues: bhs.0[1] & CONTINUE != 0,
            initiator_task_tag: bhs.initiator_task_tag(),
            target_transfer_tag: bhs.u32_at(20),
            sequence: Sequence::of(bhs),
        }
    }
}

/// The answer to a logout (§11.15.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LogoutResult {
    /// Closed.
    Closed = 0,
    /// No such connection.
    CidNotFound = 1,
    /// Connections are not recovered here.
    RecoveryNotSupported = 2,
    /// It could not be cleaned up.
    CleanupFailed = 3,
}

/// Logout Response, §11.15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutResponse {
    /// What became of it.
    pub result: LogoutResult,
    /// The request.
    pub initiator_task_tag: u32,
    /// Numbers.
    pub sequence: Sequence,
    /// How long to wait before tasks are reassigned, in seconds.
    pub time2wait_s: u16,
    /// For how long after that they are kept, in seconds.
    pub time2retain_s: u16,
}

impl LogoutResponse {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::LogoutResponse);
        bhs.0[1] = FINAL;
        bhs.0[2] = self.result as u8;
        bhs.set_u32(16, self.initiator_task_tag);
        self.sequence.put(&mut bhs);
        bhs.set_u16(40, self.time2wait_s);
        bhs.set_u16(42, self.time2retain_s);
        bhs
    }

    /// Reads the header.
    ///
    /// # Errors
    /// [`PduError::Field`] for a reserved response code.
    pub fn decode(bhs: &Bhs) -> Result<LogoutResponse, PduError> {
        let result = match bhs.0[2] {
            0 => LogoutResult::Closed,
            1 => LogoutResult::CidNotFound,
            2 => LogoutResult::RecoveryNotSupported,
            3 => LogoutResult::CleanupFailed,
            other => return Err(PduError::Field { field: "Response", value: u32::from(other) }),
        };
        Ok(LogoutResponse {
            result,
            initiator_task_tag: bhs.initiator_task_tag(),
            sequence: Sequence::of(bhs),
            time2wait_s: bhs.u16_at(40),
            time2retain_s: bhs.u16_at(42),
        })
    }
}
