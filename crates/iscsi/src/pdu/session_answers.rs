//! What a target sends about the session itself: answers to login, text and logout (RFC 7143 §11.11, §11.13, §11.15).

use super::answer_codes::LogoutResult;
use super::bhs::{Bhs, Opcode};
use super::error::PduError;
use super::fields::{self, CheckedField, Field, Sequence, header};
use crate::error::LoginStatus;

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

header! {
    LoginResponse = LoginResponse
    fixed {}
    fields {
        transit = TRANSIT,
        continues = CONTINUE,
        current_stage = CSG,
        next_stage = NSG,
        isid = ISID,
        tsih = TSIH,
        initiator_task_tag = INITIATOR_TASK_TAG,
        sequence = SEQUENCE,
        status = LOGIN_STATUS,
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

header! {
    TextResponse = TextResponse
    fixed {}
    fields {
        is_final = FINAL,
        continues = CONTINUE,
        initiator_task_tag = INITIATOR_TASK_TAG,
        target_transfer_tag = TARGET_TRANSFER_TAG,
        sequence = SEQUENCE,
    }
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

header! {
    LogoutResponse = LogoutResponse
    fixed { FINAL = true }
    fields {
        initiator_task_tag = INITIATOR_TASK_TAG,
        sequence = SEQUENCE,
        time2wait_s = TIME2WAIT,
        time2retain_s = TIME2RETAIN,
    }
    checked { result = LOGOUT_RESULT }
}
