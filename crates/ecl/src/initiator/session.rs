//! The machine: commands in, packets out, and back. Without sockets, clock and randomness.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use strongroom_scsi::transport::initiator::{Command, Event, SubmitError, TaskId};
use strongroom_scsi::transport::{Lun, TaskFunction, TaskManagementResult};

use super::functions::Functions;
use super::numbering::{Numbering, is_free};
use super::task::{Task, TaskContent};
use crate::body::{self, ResponseBody};
use crate::config::Config;
use crate::connection::{Connection, Datagram, Fault, Outgoing, Packet, Role, SILENCE_MAX, Settled, Transmit};
use crate::credit::UsableCredits;
use crate::error::{CloseReason, PeerMisbehaved};
use crate::header::{Flags, Header, Operation, Segment, u32_at};
use crate::mtu::PathReduction;
use crate::parity::Parity;
use crate::planted::{Planted, PlantedFault};
use crate::quantum;
use crate::statistics::Statistics;
use crate::tag::{SinkTable, SinkTag};

/// A target that answers no packet for so long after the login cannot be reached by UDP.
pub(super) const UDP_ANSWER_MAX: Duration = Duration::from_secs(3);
/// How long a logout waits for its answer.
const LOGOUT_MAX: Duration = Duration::from_secs(5);

/// What concerns the driver of an association alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EclEvent {
    /// The target has answered a packet: commands can be sent.
    Established,
    /// Packets to the target have to be shorter from now on.
    PathReduced(PathReduction),
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Task(SinkTag, TaskContent),
    Manage(TaskId),
    Logout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has come back by UDP.
    Opening,
    Open,
    LoggingOut {
        until: Instant,
    },
    Closed,
}

/// One association, as the initiator has it: one I_T nexus.
#[derive(Debug)]
pub struct Session {
    connection: Connection<Content>,
    quantum_bytes: u32,
    queue_depth: usize,
    parity: Option<Parity>,
    planted: Planted,
    phase: Phase,
    tasks: SinkTable<Task>,
    /// Tasks with something that was never sent, in the order of their submission.
    sending: VecDeque<SinkTag>,
    /// What was lost.
    resending: VecDeque<Content>,
    /// Commands that were sent and are not completed.
    outstanding: usize,
    numbering: Numbering,
    functions: Functions,
    credits: UsableCredits,
    events: VecDeque<Event<EclEvent>>,
    /// The last packet, once the session is over.
    goodbye: Option<Transmit>,
}

impl Session {
    /// The login has succeeded.
    pub fn new(now: Instant, config: &Config) -> Session {
        Session {
            connection: Connection::new(now, Role::Initiator, config),
            quantum_bytes: config.quantum_bytes,
            queue_depth: config.queue_depth.into(),
            parity: config.parity,
            planted: config.planted,
            phase: Phase::Opening,
            tasks: SinkTable::default(),
            sending: VecDeque::new(),
            resending: VecDeque::new(),
            outstanding: 0,
            numbering: Numbering::default(),
            functions: Functions::default(),
            credits: UsableCredits::new(config.window_bytes),
            events: VecDeque::new(),
            goodbye: None,
        }
    }

    /// Takes a packet.
    pub fn handle_datagram(&mut self, now: Instant, datagram: Datagram) {
        if self.phase == Phase::Closed {
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
                if self.phase == Phase::Opening {
                    self.phase = Phase::Open;
                    self.events.push_back(Event::Transport(EclEvent::Established));
                }
                if packet.header.operation == Operation::Close {
                    let is_answer = matches!(self.phase, Phase::LoggingOut { .. });
                    self.end(if is_answer { CloseReason::LoggedOut } else { CloseReason::ClosedByPeer });
                }
            }
            Err(Fault::Dropped(why)) if self.connection.is_broken_by(why) => self.end(CloseReason::StreamDamaged),
            Err(Fault::Dropped(_)) => {}
            Err(Fault::Misbehaved(why)) => self.end(CloseReason::Misbehaved(why)),
        }
        self.settle();
    }

    /// Acts on a packet. Nothing has changed if it returns that the packet was dropped.
    fn take(&mut self, packet: &Packet) -> Result<(), Fault> {
        let operation = packet.header.operation;
        if !matches!(operation, Operation::Acknowledge | Operation::Ping | Operation::Probe | Operation::Close) {
            self.credits.update(packet.header.credits);
        }
        match operation {
            Operation::DataIn | Operation::PlainIn | Operation::HoleIn | Operation::Parity => self.take_data(packet),
            Operation::Response => {
                let response = ResponseBody::decode(&packet.header.specific, &packet.body)?;
                let tag = self.named(packet.sink);
                match self.tasks.get_mut(tag) {
                    Some(task) => task.take_response(response),
                    None => self.connection.statistics.stale += 1,
                }
                self.advance(tag);
                Ok(())
            }
            Operation::Managed => Ok(self.take_managed(packet)?),
            Operation::Drain => {
                let within = Duration::from_millis(u32_at(&packet.header.specific, 0).into());
                self.events.push_back(Event::LogoutRequested { within });
                Ok(())
            }
            Operation::Acknowledge | Operation::Ping | Operation::Probe | Operation::Close => Ok(()),
            operation @ (Operation::Command
            | Operation::DataOut
            | Operation::PlainOut
            | Operation::Manage
            | Operation::Logout) => Err(PeerMisbehaved::WrongWay(operation as u8).into()),
        }
    }

    /// The tag of the transfer that a packet means.
    fn named(&self, tag: SinkTag) -> SinkTag {
        match self.planted.has(PlantedFault::TagWithoutGeneration) {
            true => self.tasks.current(tag),
            false => tag,
        }
    }

    fn take_data(&mut self, packet: &Packet) -> Result<(), Fault> {
        let tag = self.named(packet.sink);
        let Some(task) = self.tasks.get_mut(tag) else {
            // Of a transfer that is over: a late duplicate.
            self.connection.statistics.stale += 1;
            return Ok(());
        };
        match packet.header.operation {
            Operation::DataIn => {
                let record = packet.body.get(8..).unwrap_or_default();
                quantum::check(packet, record, self.quantum_bytes, self.planted)?;
                let repaired = task.take_quantum(packet, self.quantum_bytes)?;
                self.connection.statistics.quanta_repaired += repaired;
                if packet.header.flags.has(Flags::STATUS) {
                    task.take_status(packet, self.quantum_bytes)?;
                }
                if packet.header.segment != Segment::WHOLE && packet.is_placed {
                    self.connection.statistics.copied_bytes += packet.payload.len() as u64;
                    self.connection.statistics.placed_bytes -= packet.payload.len() as u64;
                }
            }
            Operation::Parity => {
                let repaired = task.take_parity(packet, self.quantum_bytes)?;
                self.connection.statistics.quanta_repaired += repaired;
            }
            Operation::PlainIn => task.take_plain(packet)?,
            _ => task.take_hole(packet, self.quantum_bytes)?,
        }
        self.advance(tag);
        Ok(())
    }

    /// Hands on what a task has received, and its end.
    fn advance(&mut self, tag: SinkTag) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        while let Some(data) = task.next_data(tag) {
            self.events.push_back(Event::DataIn(data));
        }
        if let Some(completed) = task.completed(tag) {
            self.forget(tag);
            self.events.push_back(Event::Completed(completed));
        }
    }

    fn forget(&mut self, tag: SinkTag) {
        let Some(task) = self.tasks.remove(tag) else { return };
        if task.number.is_some() {
            self.outstanding -= 1;
        }
        if !task.is_sent() {
            self.sending.retain(|sending| *sending != tag);
        }
    }

    fn take_managed(&mut self, packet: &Packet) -> Result<(), PeerMisbehaved> {
        let result = body::result_of(&packet.header.specific)?;
        let Some(pending) = self.functions.answered(packet.header.task) else { return Ok(()) };
        let mut ended = Vec::new();
        if result == TaskManagementResult::Complete {
            let ends = self
                .tasks
                .iter()
                .filter(|(tag, task)| pending.ends(*tag, task.number.map(|number| number.number), task.command.lun));
            ended.extend(ends.map(|(tag, _)| tag));
        }
        ended.iter().for_each(|tag| self.forget(*tag));
        let ended = ended.into_iter().map(|tag| TaskId(tag.0)).collect();
        self.events.push_back(Event::TaskManagementDone { id: pending.id, result, ended });
        Ok(())
    }

    /// Takes what the connection has settled: what was lost is sent again.
    fn settle(&mut self) {
        while let Some(settled) = self.connection.poll_settled() {
            match settled {
                Settled::Acknowledged(Content::Task(tag, content)) => {
                    if let Some(task) = self.tasks.get_mut(tag) {
                        task.acknowledged(content);
                    }
                }
                Settled::Acknowledged(Content::Manage(_) | Content::Logout) => {}
                Settled::Lost(content) => self.resending.push_back(content),
            }
        }
        while let Some(reduction) = self.connection.mtu.poll_reduction() {
            self.events.push_back(Event::Transport(EclEvent::PathReduced(reduction)));
        }
    }

    /// The next packet to send; `None`: nothing may be sent before a packet arrives or the time of `poll_timeout` has come.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if self.phase == Phase::Closed {
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

    /// Whether something waits for the path alone, and for no credits and no other command.
    fn wants_to_send(&self) -> bool {
        let next = self.sending.front().and_then(|tag| self.tasks.get(*tag));
        let may_go = |task: &Task| {
            task.number.is_some() || self.outstanding < self.queue_depth && self.credits.has(task.write_bytes())
        };
        !self.resending.is_empty() || self.functions.has_unsent() || next.is_some_and(may_go)
    }

    /// What is to be sent next.
    fn next_content(&mut self) -> Option<Content> {
        if let Some(content) = self.resending.pop_front() {
            return Some(content);
        }
        if let Some(pending) = self.functions.unsent() {
            pending.number = Some(self.numbering.assign(false).number);
            return Some(Content::Manage(pending.id));
        }
        let (packet_bytes, segment_bytes) = (self.connection.mtu.packet_bytes(), self.connection.mtu.segment_bytes());
        let tag = *self.sending.front()?;
        let task = self.tasks.get_mut(tag).expect("a task leaves the queue with its end");
        let content = if task.number.is_some() {
            task.next_content(self.quantum_bytes, segment_bytes).expect("it is not sent")
        } else {
            if self.outstanding >= self.queue_depth || !self.credits.take(task.write_bytes()) {
                return None;
            }
            self.outstanding += 1;
            let number = self.numbering.assign(is_free(&task.command));
            task.start(number, self.quantum_bytes, packet_bytes);
            TaskContent::Command
        };
        if task.is_sent() {
            self.sending.pop_front();
        }
        Some(Content::Task(tag, content))
    }

    /// Makes the packet of a content; `None` if it is not wanted any more.
    fn packet(&mut self, content: Content) -> Option<Outgoing> {
        match content {
            Content::Task(tag, content) => {
                let mtu = &self.connection.mtu;
                let task = self.tasks.get_mut(tag).filter(|task| task.is_waiting_for(content))?;
                let contents = task.cut_further(content, self.quantum_bytes, mtu.packet_bytes(), mtu.segment_bytes());
                if contents != [content] {
                    // Packets have become smaller.
                    let instead = contents.into_iter().rev();
                    instead.for_each(|content| self.resending.push_front(Content::Task(tag, content)));
                    return None;
                }
                Some(task.packet(tag, content, self.quantum_bytes))
            }
            Content::Manage(id) => {
                let pending = self.functions.get(id)?;
                let number = pending.number? as u32;
                let header = Header {
                    task: number,
                    order_epoch: number,
                    lun: pending.lun,
                    specific: body::function_fields(pending.function, pending.task_number as u32),
                    ..Header::new(Operation::Manage)
                };
                Some(Outgoing::message(header, SinkTag::NONE, Vec::new()))
            }
            Content::Logout => Some(Outgoing::message(Header::new(Operation::Logout), SinkTag::NONE, Vec::new())),
        }
    }

    /// Takes a command, to be sent when credits and the window allow; answered by `Completed`.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn submit(&mut self, command: Command) -> Result<TaskId, SubmitError> {
        if self.phase != Phase::Open {
            return Err(SubmitError::NotLoggedIn);
        }
        let task = Task::new(command, self.quantum_bytes, self.parity)?;
        if !self.credits.is_possible(task.write_bytes()) {
            return Err(SubmitError::Malformed("a write longer than all the data that the target takes at once"));
        }
        let tag = self.tasks.insert(task).ok_or(SubmitError::QueueFull)?;
        self.sending.push_back(tag);
        Ok(TaskId(tag.0))
    }

    /// Sends a task management function. It concerns commands that were sent before it.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn manage_task(
        &mut self,
        function: TaskFunction,
        lun: Lun,
        task: Option<TaskId>,
    ) -> Result<TaskId, SubmitError> {
        if self.phase != Phase::Open {
            return Err(SubmitError::NotLoggedIn);
        }
        let tag = task.map(|TaskId(tag)| SinkTag(tag));
        let number = tag.and_then(|tag| self.tasks.get(tag)).map(|task| task.number.map(|number| number.number));
        if let (TaskFunction::AbortTask, Some(None), Some(tag)) = (function, number, tag) {
            // Its command was not sent: there is nothing that the target could end.
            let id = self.functions.name();
            self.forget(tag);
            let (result, ended) = (TaskManagementResult::Complete, vec![TaskId(tag.0)]);
            self.events.push_back(Event::TaskManagementDone { id, result, ended });
            return Ok(id);
        }
        // A task that is over has a number that no task has.
        let number = number.flatten().unwrap_or_else(|| self.numbering.next() + u64::from(u32::MAX / 2));
        self.functions.add(function, lun, tag.map(|tag| (tag, number)))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<EclEvent>> {
        self.events.pop_front()
    }

    /// Logs out; `Closed` follows.
    pub fn logout(&mut self, now: Instant) {
        match self.phase {
            Phase::Open => {
                self.phase = Phase::LoggingOut { until: now + LOGOUT_MAX };
                self.resending.push_back(Content::Logout);
            }
            Phase::Opening => self.end(CloseReason::LoggedOut),
            Phase::LoggingOut { .. } | Phase::Closed => {}
        }
    }

    /// The TCP connection of the login has ended, or something else that the driver knows ends the association.
    pub fn close(&mut self, now: Instant, why: &str) {
        if self.phase != Phase::Closed {
            let goodbye = Outgoing::message(Header::new(Operation::Close), SinkTag::NONE, Vec::new());
            self.goodbye = Some(self.connection.transmit_once(now, goodbye));
            self.end(CloseReason::ClosedHere(why.to_owned()));
        }
    }

    fn end(&mut self, reason: CloseReason) {
        if self.phase == Phase::Closed {
            return;
        }
        self.phase = Phase::Closed;
        self.tasks.clear();
        self.functions.clear();
        self.sending.clear();
        self.resending.clear();
        self.events.push_back(Event::Closed { reason: reason.to_string() });
    }

    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.phase == Phase::Closed {
            return;
        }
        self.connection.handle_timeout(now);
        self.settle();
        if self.udp_blocked_at().is_some_and(|at| at <= now) {
            self.end(CloseReason::UdpBlocked(UDP_ANSWER_MAX.as_secs()));
        } else if matches!(self.phase, Phase::LoggingOut { until } if until <= now) {
            self.end(CloseReason::LogoutTimedOut);
        } else if self.connection.silent_at().is_some_and(|at| at <= now) {
            self.end(CloseReason::PeerSilent(SILENCE_MAX.as_secs()));
        }
    }

    fn udp_blocked_at(&self) -> Option<Instant> {
        self.connection.unheard_since().map(|since| since + UDP_ANSWER_MAX)
    }

    /// When `handle_timeout` wants to be called next, and `poll_transmit` after it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let logout = match self.phase {
            Phase::Closed => return None,
            Phase::LoggingOut { until } => Some(until),
            Phase::Opening | Phase::Open => None,
        };
        let connection = self.connection.poll_timeout(self.wants_to_send());
        [connection, self.udp_blocked_at(), logout].into_iter().flatten().min()
    }

    /// What it has done so far.
    pub fn statistics(&self) -> Statistics {
        self.connection.measured()
    }
}
