//! What EXTENDED COPY leaves behind and needs from outside: results for RECEIVE COPY RESULTS, and operations that other units are asked for.
//! The running copies are not here (`commands::extended_copy`).

use std::collections::VecDeque;

use strongroom_block::Token;
use strongroom_scsi::copy::{self, CopyStatus};
use strongroom_scsi::{NexusId, Sense, opcode};
use strongroom_store::Op;

use crate::names::VolumeName;
use crate::open_units::{CrossUnitResult, Requester};

/// Results of copies that are kept for RECEIVE COPY RESULTS.
const COPY_RESULTS_MAX: usize = 64;
/// Copies that a unit executes at once; each holds a slice in memory. More are answered with BUSY.
pub(super) const COPIES_MAX: usize = 16;

/// An operation that another unit is asked to execute.
pub(crate) struct OutgoingRequest {
    pub(crate) token: Token,
    pub(crate) to: VolumeName,
    pub(crate) requester: Requester,
    pub(crate) op: Op,
}

/// Results of copies, and operations on other units.
#[derive(Default)]
pub(super) struct ThirdPartyCopies {
    /// Oldest first.
    results: VecDeque<(NexusId, CopyStatus)>,
    outgoing: Vec<OutgoingRequest>,
    returned: Vec<(Token, CrossUnitResult)>,
}

impl ThirdPartyCopies {
    /// Asks another unit.
    pub(super) fn send(&mut self, request: OutgoingRequest) {
        self.outgoing.push(request);
    }

    /// The operations that other units are to be asked for.
    pub(super) fn take_outgoing(&mut self) -> Vec<OutgoingRequest> {
        std::mem::take(&mut self.outgoing)
    }

    /// Another unit has replied.
    pub(super) fn receive(&mut self, token: Token, result: CrossUnitResult) {
        self.returned.push((token, result));
    }

    /// The replies since the last call.
    pub(super) fn poll(&mut self) -> Vec<(Token, CrossUnitResult)> {
        std::mem::take(&mut self.returned)
    }

    /// A copy has ended, whole or not: keeps its result.
    pub(super) fn record(&mut self, nexus: &NexusId, result: CopyStatus) {
        self.results.retain(|(its, status)| its != nexus || status.list_id != result.list_id);
        self.results.push_back((nexus.clone(), result));
        if self.results.len() > COPY_RESULTS_MAX {
            self.results.pop_front();
        }
    }

    /// RECEIVE COPY RESULTS. `shift`: the block size as a power of two.
    pub(super) fn report(
        &self,
        nexus: &NexusId,
        service_action: u8,
        list_id: u8,
        shift: u32,
    ) -> Result<Vec<u8>, Sense> {
        if service_action == opcode::SA_COPY_OPERATING_PARAMETERS {
            let most = (u64::from(u16::MAX) << shift).min(u32::MAX.into()) as u32;
            return Ok(copy::operating_parameters(most, COPIES_MAX as u8, shift as u8));
        }
        let found = self.results.iter().find(|(its, status)| its == nexus && status.list_id == list_id);
        found.map(|(_, status)| status.encode()).ok_or(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, None))
    }
}
