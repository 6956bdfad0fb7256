//! One connection: its link, its session, and what it holds of memory. Moves between workers before its login is answered.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::Buffer;
use strongroom_iscsi::pdu::Opcode;
use strongroom_iscsi::target::{self as iscsi, Direction, LoginRequested, Response, TaskId};
use strongroom_iscsi::{CloseReason, Pdu};
use strongroom_net::{DetachedStream, Link, Runtime, SendState, StreamId};
use strongroom_scsi::opcode;

use crate::TRANSFER_BYTES_MAX;
use crate::access::Identity;
use crate::config::Portal;
use crate::names::VolumeName;
use crate::server::Settings;
use crate::stats::Counters;
use crate::unit::{ConnectionKey, SLICE_BYTES};

/// PDUs handed to the runtime together.
const BATCH_PDUS: usize = 32;

/// Commands that wait for memory; the session's queue depth bounds them too.
const QUEUED_MAX: usize = strongroom_iscsi::target::TASKS_MAX;

pub(super) struct Connection {
    pub(super) key: ConnectionKey,
    pub(super) stream: StreamId,
    pub(super) peer: SocketAddr,
    /// Where it reached us.
    pub(super) portal: Portal,
    pub(super) link: Link,
    pub(super) identity: Identity,
    pub(super) session: Option<iscsi::Session>,
    pub(super) stage: Stage,
    /// When the login was over.
    pub(super) since: Option<Instant>,
    pub(super) touched: bool,
    pub(super) send_full: bool,
    pub(super) armed: Option<Instant>,
    /// Commands that wait until reads before them have been sent.
    pub(super) queued: VecDeque<iscsi::Command>,
    /// Reads that the store is working on, with the bytes they may bring.
    reading: HashMap<TaskId, u64>,
    reading_bytes: u64,
    /// Bytes that were read and not sent yet.
    unsent_bytes: u64,
    receiving: bool,
    /// The stream is gone: nothing can be sent.
    stream_lost: bool,
    counted: iscsi::Statistics,
    out: Vec<Buffer>,
}

/// How far the login has come.
pub(super) enum Stage {
    /// Nothing was asked yet.
    Before,
    /// It has to prove who it is, by the secrets of these settings.
    Proving { request: LoginRequested, asked_under: Arc<Settings> },
    /// The login waits: for the volume to be opened, or for the tasks of the session that it replaces.
    /// `store`: the volume that has the store; another one for a clone or a snapshot.
    Waiting { request: LoginRequested, target_name: String, store: VolumeName },
    /// In full-feature phase, or on the way there with the login answered; `volume` is `None` for discovery.
    LoggedIn { initiator_name: String, volume: Option<VolumeName>, read_only: bool },
}

impl Stage {
    /// The volume that it uses.
    pub(super) fn volume(&self) -> Option<&VolumeName> {
        match self {
            Stage::LoggedIn { volume, .. } => volume.as_ref(),
            _ => None,
        }
    }
}

/// A connection between two workers.
pub(crate) struct Moved {
    pub(super) stream: DetachedStream,
    pub(super) connection: Box<Connection>,
}

impl Connection {
    pub(super) fn new(
        key: ConnectionKey,
        stream: StreamId,
        peer: SocketAddr,
        portal: Portal,
        link: Link,
    ) -> Connection {
        Connection {
            key,
            stream,
            peer,
            portal,
            link,
            identity: Identity::Plain,
            session: None,
            stage: Stage::Before,
            since: None,
            touched: false,
            send_full: false,
            armed: None,
            queued: VecDeque::new(),
            reading: HashMap::new(),
            reading_bytes: 0,
            unsent_bytes: 0,
            receiving: true,
            stream_lost: false,
            counted: iscsi::Statistics::default(),
            out: Vec::new(),
        }
    }

    /// Has it driven in this turn.
    pub(super) fn touch(&mut self, touched: &mut Vec<ConnectionKey>) {
        if !self.touched {
            self.touched = true;
            touched.push(self.key);
        }
    }

    pub(super) fn receive(&mut self, now: Instant, bytes: &[u8]) {
        self.link.handle_input(bytes);
        if let Some(session) = &mut self.session {
            session.handle_progress(now);
        }
    }

    /// The peer took what waited for it: it is alive, and there is room again.
    pub(super) fn send_low(&mut self, now: Instant) {
        self.send_full = false;
        if let Some(session) = &mut self.session {
            session.handle_progress(now);
        }
    }

    /// The stream failed underneath.
    pub(super) fn lost(&mut self, reason: String) {
        self.stream_lost = true;
        match &mut self.session {
            Some(session) => session.handle_closed(CloseReason::ConnectionLost(reason)),
            None => self.link.handle_eof(),
        }
    }

    /// The target's grace is over.
    pub(super) fn lost_to_stop(&mut self) {
        match &mut self.session {
            Some(session) => session.close("the target stops"),
            None => self.link.handle_eof(),
        }
    }

    pub(super) fn request_logout(&mut self, now: Instant, grace: Duration) {
        match &mut self.session {
            Some(session) => session.request_logout(now, grace),
            None => self.link.handle_eof(),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let session = self.session.as_ref().and_then(iscsi::Session::poll_timeout);
        [self.link.poll_timeout(), session].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.link.handle_timeout(now);
        if let Some(session) = &mut self.session {
            session.handle_timeout(now);
        }
    }

    pub(super) fn initiator_name(&self) -> &str {
        match &self.stage {
            Stage::Before => "",
            Stage::Proving { request, .. } | Stage::Waiting { request, .. } => &request.initiator_name,
            Stage::LoggedIn { initiator_name, .. } => initiator_name,
        }
    }

    /// Sends what the session and the link have, as far as the stream takes it.
    pub(super) fn transmit(&mut self, runtime: &mut Runtime) {
        while !self.send_full && !self.stream_lost {
            let mut pdus = 0;
            if let Some(session) = &mut self.session {
                while pdus < BATCH_PDUS
                    && let Some(pdu) = session.poll_transmit()
                {
                    pdus += 1;
                    self.unsent_bytes = self.unsent_bytes.saturating_sub(read_bytes(&pdu));
                    self.link.send_pdu(pdu);
                }
            }
            if pdus < BATCH_PDUS {
                // Everything that was read has been sent, or belonged to tasks that are no more.
                self.unsent_bytes = 0;
            }
            self.link.poll_transmit(&mut self.out);
            if !self.out.is_empty() {
                self.send_full = runtime.send(self.stream, &mut self.out) == SendState::Full;
            }
            if pdus < BATCH_PDUS {
                return;
            }
        }
    }

    /// The last words, then the end of the stream.
    pub(super) fn say_goodbye(&mut self, runtime: &mut Runtime) {
        if self.stream_lost {
            return;
        }
        if let Some(session) = &mut self.session {
            // After `Closed` only small answers are left.
            while let Some(pdu) = session.poll_transmit() {
                self.link.send_pdu(pdu);
            }
        }
        self.link.close();
        self.link.poll_transmit(&mut self.out);
        let _ = runtime.send(self.stream, &mut self.out);
        runtime.close(self.stream);
    }

    /// Stops reading from a peer that does not take its answers.
    pub(super) fn hold_back(&mut self, runtime: &mut Runtime) {
        let accepts = self.session.as_ref().is_none_or(iscsi::Session::accepts_input) && self.queued.len() < QUEUED_MAX;
        if accepts != self.receiving {
            self.receiving = accepts;
            runtime.set_receiving(self.stream, accepts);
        }
    }

    /// Adds what the session did to the target's counters.
    pub(super) fn count(&mut self, counters: &Counters) {
        if let Some(session) = &self.session {
            let now = session.statistics();
            if now != self.counted {
                counters.add_session(&self.counted, &now);
                self.counted = now;
            }
        }
    }

    /// Whether a read must wait until others have been sent.
    pub(super) fn must_wait(&self, command: &iscsi::Command, limit: u64) -> bool {
        let held = self.reading_bytes + self.unsent_bytes;
        !self.queued.is_empty() || held > 0 && held + cost(command) > limit
    }

    /// Whether the first command that waits need not wait any more.
    pub(super) fn may_start_queued(&self, limit: u64) -> bool {
        let held = self.reading_bytes + self.unsent_bytes;
        self.queued.front().is_some_and(|command| held == 0 || held + cost(command) <= limit)
    }

    /// The store works on it.
    pub(super) fn started(&mut self, task: TaskId, cost: u64) {
        if cost > 0 {
            self.reading.insert(task, cost);
            self.reading_bytes += cost;
        }
    }

    /// The store has done with it; answers the initiator if there is an answer and a task.
    pub(super) fn finished(&mut self, task: TaskId, response: Option<Response>) {
        if let Some(cost) = self.reading.remove(&task) {
            self.reading_bytes -= cost;
        }
        let (Some(session), Some(response)) = (&mut self.session, response) else { return };
        let bytes: u64 = response.data.iter().map(|segment| segment.data.len() as u64).sum();
        if session.complete(task, response) {
            self.unsent_bytes += bytes;
        }
    }
}

/// Bytes that a command may make the target hold until they are sent, or until the store has done with them.
pub(super) fn cost(command: &iscsi::Command) -> u64 {
    let moved = match command.direction {
        Direction::Read => u64::from(command.expected_bytes.min(TRANSFER_BYTES_MAX)),
        Direction::None | Direction::Write => 0,
    };
    // These read a slice of the medium at a time, however little the initiator expects.
    let reads_slices = match command.cdb[0] {
        opcode::VERIFY_10 | opcode::VERIFY_16 => true,
        opcode::SERVICE_ACTION_IN_16 => command.cdb[1] & 0x1f == opcode::SA_GET_LBA_STATUS,
        _ => false,
    };
    if reads_slices { moved.max(SLICE_BYTES.into()) } else { moved }
}

fn read_bytes(pdu: &Pdu) -> u64 {
    if pdu.bhs.opcode() == Some(Opcode::DataIn) { pdu.data.len() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    //! Proves that what a command makes the target hold is counted, whatever the initiator says that it expects.
    use strongroom_block::Lba;
    use strongroom_iscsi::Lun;
    use strongroom_iscsi::pdu::Attribute;
    use strongroom_scsi::cdb;

    use super::*;

    fn command(cdb: [u8; 16], direction: Direction, expected_bytes: u32) -> iscsi::Command {
        iscsi::Command {
            task: TaskId(1),
            lun: Lun::single_level(0),
            cdb,
            ahs: bytes::Bytes::new(),
            attribute: Attribute::Simple,
            direction,
            expected_bytes,
            immediate: false,
            data: Vec::new(),
        }
    }

    #[test]
    fn what_reads_the_medium_costs_memory() {
        let mut verify = [0; 16];
        for opcode in [opcode::VERIFY_10, opcode::VERIFY_16] {
            verify[0] = opcode;
            assert_eq!(cost(&command(verify, Direction::None, 0)), u64::from(SLICE_BYTES));
        }
        let status = cdb::get_lba_status(Lba(0), 24);
        assert_eq!(cost(&command(status, Direction::Read, 24)), u64::from(SLICE_BYTES));
        assert_eq!(cost(&command(cdb::read_16(Lba(0), 3), Direction::Read, 12288)), 12288);
        assert_eq!(cost(&command(cdb::write_16(Lba(0), 3, false), Direction::Write, 12288)), 0);
    }
}
