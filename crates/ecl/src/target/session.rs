//! The machine: packets in, commands out, and back. Without sockets, clock and randomness.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strongroom_scsi::transport::target::{Event, ManagementId, Response, TaskId};
use strongroom_scsi::transport::{Lun, TaskManagementResult};

use super::task_set::{TaskContent, TaskSet};
use crate::config::Config;
use crate::connection::{Connection, Datagram, Fault, Outgoing, Packet, Role, SILENCE_MAX, Settled, Transmit};
use crate::error::{CloseReason, PeerMisbehaved};
use crate::header::{Header, Operation};
use crate::mtu::PathReduction;
use crate::statistics::Statistics;
use crate::tag::SinkTag;

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Task(TaskContent),
    Drain,
}

/// One association, as the target has it: one I_T nexus.
#[derive(Debug)]
pub struct Session {
    connection: Connection<Content>,
    quantum_bytes: u32,
    /// The time of the last call that gave one.
    now: Instant,
    is_closed: bool,
    tasks: TaskSet,
    /// What was lost.
    resending: VecDeque<Content>,
    /// The end of the session, behind the events of its tasks.
    closed: Option<Event<PathReduction>>,
    close_reason: Option<CloseReason>,
    drain: Option<(Instant, Duration)>,
    /// The last packet, once the session is over.
    goodbye: Option<Transmit>,
}

impl Session {
    /// The login has succeeded.
    pub fn new(now: Instant, config: &Config) -> Session {
        Session {
            connection: Connection::new(now, Role::Target, config),
            quantum_bytes: config.quantum_bytes,
            now,
            is_closed: false,
            tasks: TaskSet::new(config),
            resending: VecDeque::new(),
            closed: None,
            close_reason: None,
            drain: None,
            goodbye: None,
        }
    }

    /// Where packets go; `None` before the first authentic packet.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.connection.peer()
    }

    /// Takes a packet.
    pub fn handle_datagram(&mut self, now: Instant, datagram: Datagram) {
        self.now = now;
        if self.is_closed {
            return;
        }
        let taken = self.connection.open(now, datagram).and_then(|packet| match self.take(&packet) {
            Ok(()) => Ok(packet),
            Err(Fault::Dropped(why)) => {
                self.connection.discard(why);
                Err(Fault::Dropped(why))
            }
            Err(misbehaved) => Err(misbehaved),
        });
        match taken {
            Ok(packet) => {
                self.connection.accept(now, &packet);
                match packet.header.operation {
                    Operation::Close => self.end(CloseReason::ClosedByPeer),
                    Operation::Logout => {
                        self.say_goodbye();
                        self.end(CloseReason::LoggedOut);
                    }
                    _ => {}
                }
            }
            Err(Fault::Dropped(why)) if self.connection.is_broken_by(why) => self.end(CloseReason::StreamDamaged),
            Err(Fault::Dropped(_)) => {}
            Err(Fault::Misbehaved(why)) => {
                self.say_goodbye();
                self.end(CloseReason::Misbehaved(why));
            }
        }
        self.settle();
    }

    /// Acts on a packet. Nothing has changed if it returns that the packet was dropped.
    fn take(&mut self, packet: &Packet) -> Result<(), Fault> {
        match packet.header.operation {
            Operation::Command => self.tasks.take_command(packet),
            Operation::DataOut | Operation::PlainOut | Operation::Parity => self.tasks.take_data(packet),
            Operation::Manage => self.tasks.take_function(packet),
            Operation::Acknowledge | Operation::Ping | Operation::Probe | Operation::Logout | Operation::Close => {
                Ok(())
            }
            operation @ (Operation::DataIn
            | Operation::PlainIn
            | Operation::HoleIn
            | Operation::Response
            | Operation::Managed
            | Operation::Drain) => Err(PeerMisbehaved::WrongWay(operation as u8).into()),
        }
    }

    /// Takes what the connection has settled.
    fn settle(&mut self) {
        while let Some(settled) = self.connection.poll_settled() {
            match settled {
                Settled::Acknowledged(Content::Task(content)) => self.tasks.acknowledged(content),
                Settled::Acknowledged(Content::Drain) => {}
                Settled::Lost(Content::Task(content)) if !self.tasks.lost(content) => {}
                Settled::Lost(content) => self.resending.push_back(content),
            }
        }
    }

    /// The next packet to send; `None`: nothing may be sent before a packet arrives or the time of `poll_timeout` has come.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.now = now;
        if self.is_closed {
            return self.goodbye.take();
        }
        if let Some(transmit) = self.connection.poll_own(now) {
            return Some(transmit);
        }
        while self.connection.may_send(now) {
            let probe = self.connection.probe_content();
            let is_probe = probe.is_some();
            let Some(content) = probe.or_else(|| self.next_content()) else { break };
            match self.packet(content) {
                Some(outgoing) => {
                    let is_app_limited = !self.wants_to_send();
                    return Some(self.connection.transmit(now, outgoing, content, is_app_limited));
                }
                // Its task is over: anything that is acknowledged will do.
                None if is_probe => return self.connection.ping(now),
                None => {}
            }
        }
        self.connection.poll_acknowledgement(now)
    }

    fn wants_to_send(&self) -> bool {
        !self.resending.is_empty() || self.tasks.wants_to_send()
    }

    fn next_content(&mut self) -> Option<Content> {
        let segment_bytes = self.connection.mtu.segment_bytes();
        let resent = self.resending.pop_front();
        resent.or_else(|| self.tasks.next_content(segment_bytes).map(Content::Task))
    }

    /// Makes the packet of a content; `None` if it is not wanted any more.
    fn packet(&mut self, content: Content) -> Option<Outgoing> {
        match content {
            Content::Task(content) => match self.tasks.packet(content, self.connection.mtu.segment_bytes()) {
                Ok(outgoing) => Some(outgoing),
                Err(instead) => {
                    instead.into_iter().rev().for_each(|content| self.resending.push_front(Content::Task(content)));
                    None
                }
            },
            Content::Drain => {
                let (_, grace) = self.drain?;
                let mut specific = [0; 16];
                let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
                specific[..4].copy_from_slice(&grace_ms.to_be_bytes());
                let header = Header { specific, credits: self.tasks.credits(), ..Header::new(Operation::Drain) };
                Some(Outgoing::message(header, SinkTag::NONE, Vec::new()))
            }
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<PathReduction>> {
        if self.is_closed {
            return self.closed.take();
        }
        let reduction = self.connection.mtu.poll_reduction();
        reduction.map(Event::Transport).or_else(|| self.tasks.poll_event())
    }

    /// Answers a command. False when the task is gone: nothing will be sent.
    ///
    /// # Panics
    /// If the task was completed before: a command has one answer.
    pub fn complete(&mut self, task: TaskId, response: Response) -> bool {
        self.tasks.complete(task, response)
    }

    /// Answers a task management request. With `Complete`, the tasks that it named are forgotten.
    pub fn answer_task_management(&mut self, id: ManagementId, result: TaskManagementResult) {
        self.tasks.answer_task_management(id, result);
    }

    /// Answers a query with `Succeeded` and what was found.
    pub fn answer_query(&mut self, id: ManagementId, found: [u8; 3]) {
        self.tasks.answer_query(id, found);
    }

    /// Another session ends the tasks on a logical unit (`None`: on all). Returns those that the logical unit is executing.
    pub fn abort_tasks(&mut self, lun: Option<Lun>) -> Vec<TaskId> {
        self.tasks.abort_tasks(lun).unwrap_or_else(|why| {
            self.end(CloseReason::Misbehaved(why));
            Vec::new()
        })
    }

    /// Bytes of read data that have not left yet.
    pub fn unsent_bytes(&self) -> u64 {
        self.tasks.unsent_bytes()
    }

    /// Memory that the session's commands occupy, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.tasks.memory_bytes()
    }

    /// Bytes in a quantum.
    pub(super) fn quantum_bytes(&self) -> u32 {
        self.quantum_bytes
    }

    /// Asks the initiator to log out within `grace`, for a drain; then ends the session.
    pub fn request_logout(&mut self, now: Instant, grace: Duration) {
        self.now = now;
        if !self.is_closed {
            self.drain = Some((now + grace, grace));
            self.resending.push_back(Content::Drain);
        }
    }

    /// Ends the session now. `why` is for the log.
    pub fn close(&mut self, why: String) {
        self.say_goodbye();
        self.end(CloseReason::ClosedHere(why));
    }

    fn say_goodbye(&mut self) {
        if !self.is_closed && self.connection.peer().is_some() {
            let goodbye = Outgoing::message(Header::new(Operation::Close), SinkTag::NONE, Vec::new());
            self.goodbye = Some(self.connection.transmit_once(self.now, goodbye));
        }
    }

    fn end(&mut self, reason: CloseReason) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.tasks.clear();
        self.resending.clear();
        let misbehaved = matches!(reason, CloseReason::Misbehaved(_));
        self.closed = Some(Event::Closed { misbehaved, reason: reason.to_string() });
        self.close_reason = Some(reason);
    }

    /// Why it is over, once it is.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.close_reason.as_ref()
    }

    /// How many commands the logical unit executes.
    pub fn executing(&self) -> usize {
        self.tasks.executing()
    }

    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.is_closed {
            return;
        }
        self.connection.handle_timeout(now);
        self.settle();
        if self.drain.is_some_and(|(until, _)| until <= now) {
            self.say_goodbye();
            self.end(CloseReason::DrainTimedOut);
        } else if self.connection.silent_at().is_some_and(|at| at <= now) {
            self.end(CloseReason::PeerSilent(SILENCE_MAX.as_secs()));
        }
    }

    /// When `handle_timeout` wants to be called next, and `poll_transmit` after it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_closed {
            return None;
        }
        let connection = self.connection.poll_timeout(self.wants_to_send());
        [connection, self.drain.map(|(until, _)| until)].into_iter().flatten().min()
    }

    /// What it has done so far.
    pub fn statistics(&self) -> Statistics {
        let measured = self.connection.measured();
        let transfers = &self.tasks.transfers;
        Statistics {
            stale: transfers.stale,
            quanta_repaired: transfers.repaired,
            placed_bytes: measured.placed_bytes - transfers.joined_bytes.min(measured.placed_bytes),
            copied_bytes: measured.copied_bytes + transfers.joined_bytes,
            ..measured
        }
    }
}
