//! Bodies of packets and the fields that depend on the operation, as bytes. `docs/ecl.md` is the specification.

use bytes::Bytes;
use strongroom_block::{HoleRecord, Stamp, StoreSequence};
use strongroom_scsi::transport::{
    Operation as WriteOperation, Parameters, Residual, TaskFunction, TaskManagementResult, Written,
};

use crate::error::PeerMisbehaved;
use crate::header::u32_at;

const EXPECTED_STAMP: u8 = 1;
const OLDER_THAN: u8 = 2;
const KEYS_DESTROYED: u8 = 4;
const OPERATION: u8 = 8;

/// Appends parameters: a byte that says which there are, then each of them.
pub(crate) fn push_parameters(out: &mut Vec<u8>, parameters: &Parameters) {
    let operation = parameters.operation.and_then(Result::ok);
    let present = |is_present: bool, bit: u8| if is_present { bit } else { 0 };
    out.push(
        present(parameters.expected_stamp.is_some(), EXPECTED_STAMP)
            | present(parameters.older_than.is_some(), OLDER_THAN)
            | present(parameters.keys_destroyed.is_some(), KEYS_DESTROYED)
            | present(operation.is_some(), OPERATION),
    );
    if let Some(stamp) = &parameters.expected_stamp {
        out.extend_from_slice(stamp);
    }
    if let Some(sequence) = parameters.older_than {
        out.extend_from_slice(&sequence.0.to_be_bytes());
    }
    if let Some(epoch) = parameters.keys_destroyed {
        out.extend_from_slice(&epoch.to_be_bytes());
    }
    if let Some(WriteOperation { id, replay }) = operation {
        out.extend_from_slice(&id.to_bytes());
        out.extend_from_slice(&replay.unwrap_or_default().0.to_be_bytes());
    }
}

/// Reads parameters from the start of a body; returns them and how long they are.
///
/// # Errors
/// [`PeerMisbehaved::Body`].
pub(crate) fn parameters(body: &[u8]) -> Result<(Parameters, usize), PeerMisbehaved> {
    let short = PeerMisbehaved::Body("parameters that are cut short");
    let (&present, mut rest) = body.split_first().ok_or(short)?;
    if present & !(EXPECTED_STAMP | OLDER_THAN | KEYS_DESTROYED | OPERATION) != 0 {
        return Err(PeerMisbehaved::Body("unknown parameters; a newer Strongroom may have sent them"));
    }
    let mut take = |bit: u8, len: usize| -> Result<Option<&[u8]>, PeerMisbehaved> {
        if present & bit == 0 {
            return Ok(None);
        }
        let (taken, after) = rest.split_at_checked(len).ok_or(short)?;
        rest = after;
        Ok(Some(taken))
    };
    let sequence = |bytes: &[u8]| StoreSequence(u64::from_be_bytes(bytes.try_into().expect("8 bytes")));
    let parameters = Parameters {
        expected_stamp: take(EXPECTED_STAMP, Stamp::BYTES)?.map(|stamp| stamp.try_into().expect("24 bytes")),
        older_than: take(OLDER_THAN, 8)?.map(sequence),
        keys_destroyed: take(KEYS_DESTROYED, 4)?.map(|epoch| u32_at(epoch, 0)),
        operation: take(OPERATION, Stamp::BYTES + 8)?.map(|operation| {
            let (stamp, replay) = operation.split_at(Stamp::BYTES);
            let replay = Some(sequence(replay)).filter(|sequence| sequence.0 != 0);
            Ok(WriteOperation { id: Stamp::from_bytes(stamp.try_into().expect("24 bytes")), replay })
        }),
    };
    Ok((parameters, body.len() - rest.len()))
}

/// The end of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseBody {
    /// SCSI status.
    pub(crate) status: u8,
    /// Expected against wanted length.
    pub(crate) residual: Residual,
    /// How much of a read all its parts cover, in bytes: the command is over when so much has arrived.
    pub(crate) covered_bytes: u32,
    /// Where a write was stored.
    pub(crate) written: Option<Written>,
    /// Sense data.
    pub(crate) sense: Vec<u8>,
}

impl ResponseBody {
    /// Of a read that succeeded and whose data covers all that was asked for.
    pub(crate) fn good(covered_bytes: u32) -> ResponseBody {
        ResponseBody { covered_bytes, ..ResponseBody::default() }
    }

    /// The operation's fields of the header, and the body.
    pub(crate) fn encode(&self) -> ([u8; 16], Vec<u8>) {
        let mut specific = [0; 16];
        specific[0] = self.status;
        let (kind, residual) = match self.residual {
            Residual::None => (0, 0),
            Residual::Underflow(bytes) => (1, bytes),
            Residual::Overflow(bytes) => (2, bytes),
        };
        specific[1] = kind;
        specific[4..8].copy_from_slice(&residual.to_be_bytes());
        specific[8..12].copy_from_slice(&self.covered_bytes.to_be_bytes());
        let mut body = Vec::with_capacity(8 + self.sense.len());
        if let Some(written) = &self.written {
            specific[2] = 1 + u8::from(written.is_repeat);
            specific[12..16].copy_from_slice(&written.superseded.to_be_bytes());
            body.extend_from_slice(&written.first.0.to_be_bytes());
        }
        body.extend_from_slice(&self.sense);
        (specific, body)
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`PeerMisbehaved::Body`].
    pub(crate) fn decode(specific: &[u8; 16], body: &[u8]) -> Result<ResponseBody, PeerMisbehaved> {
        let bytes = u32_at(specific, 4);
        let residual = match specific[1] {
            0 => Residual::None,
            1 => Residual::Underflow(bytes),
            2 => Residual::Overflow(bytes),
            _ => return Err(PeerMisbehaved::Body("a residual of an unknown kind")),
        };
        let (written, sense) = match specific[2] {
            0 => (None, body),
            repeat @ (1 | 2) => {
                let (first, sense) = body.split_at_checked(8).ok_or(PeerMisbehaved::Body("a response is cut short"))?;
                let first = StoreSequence(u64::from_be_bytes(first.try_into().expect("8 bytes")));
                (Some(Written { is_repeat: repeat == 2, first, superseded: u32_at(specific, 12) }), sense)
            }
            _ => return Err(PeerMisbehaved::Body("a response whose store sequence is of an unknown kind")),
        };
        let (status, covered_bytes) = (specific[0], u32_at(specific, 8));
        Ok(ResponseBody { status, residual, covered_bytes, written, sense: sense.to_vec() })
    }
}

/// The body of absent blocks: how many, when they were stored, and the range with its record.
///
/// Allocated once, because a record may hold a block key.
pub(crate) fn hole_body(covered_blocks: u32, sequence: StoreSequence, hole: &HoleRecord) -> Vec<u8> {
    let record = hole.record.as_bytes();
    let mut body = Vec::with_capacity(4 + 8 + HoleRecord::PREFIX_BYTES + record.len());
    body.extend_from_slice(&covered_blocks.to_be_bytes());
    body.extend_from_slice(&sequence.0.to_be_bytes());
    hole.encode(&mut body);
    body
}

/// Reads it: blocks, store sequence, and the record, which nobody has looked at.
///
/// # Errors
/// [`PeerMisbehaved::Body`].
pub(crate) fn hole_of(body: &Bytes) -> Result<(u32, StoreSequence, Bytes), PeerMisbehaved> {
    let fixed = body.first_chunk::<12>().ok_or(PeerMisbehaved::Body("a hole is cut short"))?;
    let blocks = u32_at(fixed, 0);
    if blocks == 0 {
        return Err(PeerMisbehaved::Body("a hole that covers nothing"));
    }
    let sequence = StoreSequence(u64::from_be_bytes(fixed[4..].try_into().expect("8 bytes")));
    Ok((blocks, sequence, body.slice(12..)))
}

const FUNCTIONS: [TaskFunction; 11] = [
    TaskFunction::AbortTask,
    TaskFunction::AbortTaskSet,
    TaskFunction::ClearAca,
    TaskFunction::ClearTaskSet,
    TaskFunction::LogicalUnitReset,
    TaskFunction::TargetWarmReset,
    TaskFunction::TargetColdReset,
    TaskFunction::QueryTask,
    TaskFunction::QueryTaskSet,
    TaskFunction::NexusReset,
    TaskFunction::QueryAsyncEvent,
];

const RESULTS: [TaskManagementResult; 7] = [
    TaskManagementResult::Complete,
    TaskManagementResult::Succeeded,
    TaskManagementResult::TaskDoesNotExist,
    TaskManagementResult::LunDoesNotExist,
    TaskManagementResult::NotSupported,
    TaskManagementResult::AuthorizationFailed,
    TaskManagementResult::Rejected,
];

/// The operation's fields of a task management function: which, and the number of the task that it names.
pub(crate) fn function_fields(function: TaskFunction, task: u32) -> [u8; 16] {
    let mut specific = [0; 16];
    let at = FUNCTIONS.iter().position(|other| *other == function).expect("all of them are listed");
    specific[0] = at as u8 + 1;
    specific[4..8].copy_from_slice(&task.to_be_bytes());
    specific
}

/// Reads them.
///
/// # Errors
/// [`PeerMisbehaved::Body`] for a function that this version does not have.
pub(crate) fn function_of(specific: &[u8; 16]) -> Result<(TaskFunction, u32), PeerMisbehaved> {
    let function = FUNCTIONS.get(usize::from(specific[0]).wrapping_sub(1));
    let function = function.ok_or(PeerMisbehaved::Body("an unknown task management function"))?;
    Ok((*function, u32_at(specific, 4)))
}

/// The operation's fields of the result of a function.
pub(crate) fn result_fields(result: TaskManagementResult, found: [u8; 3]) -> [u8; 16] {
    let mut specific = [0; 16];
    specific[0] = RESULTS.iter().position(|other| *other == result).expect("all of them are listed") as u8;
    specific[1..4].copy_from_slice(&found);
    specific
}

/// Reads the result.
///
/// # Errors
/// [`PeerMisbehaved::Body`] for a result that this version does not have.
pub(crate) fn result_of(specific: &[u8; 16]) -> Result<TaskManagementResult, PeerMisbehaved> {
    let result = RESULTS.get(usize::from(specific[0]));
    result.copied().ok_or(PeerMisbehaved::Body("an unknown result of a task management function"))
}

#[cfg(test)]
mod tests {
    use strongroom_block::AttachId;

    use super::*;

    #[test]
    fn parameters_decode_as_encoded() {
        let id = Stamp { attach_id: AttachId([3; 16]), counter: 4 };
        for bits in 0..16u8 {
            let has = |bit: u8| bits & bit != 0;
            let sent = Parameters {
                expected_stamp: has(1).then_some([7; 24]),
                older_than: has(2).then_some(StoreSequence(9)),
                keys_destroyed: has(4).then_some(5),
                operation: has(8).then_some(Ok(WriteOperation { id, replay: Some(StoreSequence(6)) })),
            };
            let mut bytes = Vec::new();
            push_parameters(&mut bytes, &sent);
            bytes.push(0xee);
            assert_eq!(parameters(&bytes), Ok((sent, bytes.len() - 1)));
            assert!(bits == 0 || parameters(&bytes[..bytes.len() - 2]).is_err());
        }
        assert!(parameters(&[]).is_err() && parameters(&[16]).is_err());
    }

    #[test]
    fn responses_decode_as_encoded() {
        let written = Written { is_repeat: false, first: StoreSequence(7), superseded: 2 };
        for (residual, written) in [
            (Residual::None, None),
            (Residual::Underflow(3), Some(written)),
            (Residual::Overflow(4), Some(Written { is_repeat: true, ..written })),
        ] {
            let sent = ResponseBody { status: 2, residual, covered_bytes: 11, written, sense: vec![1, 2, 3] };
            let (specific, body) = sent.encode();
            assert_eq!(ResponseBody::decode(&specific, &body), Ok(sent));
        }
        assert!(ResponseBody::decode(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]).is_err());
        assert!(ResponseBody::decode(&[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[1]).is_err());
    }

    #[test]
    fn every_function_and_result_has_its_code() {
        for function in FUNCTIONS {
            assert_eq!(function_of(&function_fields(function, 77)), Ok((function, 77)));
        }
        for result in RESULTS {
            assert_eq!(result_of(&result_fields(result, [1, 2, 3])), Ok(result));
        }
        assert!(function_of(&[0; 16]).is_err() && function_of(&[12; 16]).is_err() && result_of(&[7; 16]).is_err());
    }
}
