//! Fuzzing of whole exchanges after the login: arbitrary bytes are a script that steps two joined machines, with PDUs lost, doubled,
//! reordered, changed and damaged on the way. As long as nothing was tampered with, every byte must arrive where it belongs.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;

use super::Source;
use crate::initiator::{self, Command, TaskFunction, WriteSource};
use crate::pdu::Opcode;
use crate::target::{self, Response, TaskManagementResult};
use crate::{CloseReason, DigestOffer, Digests, Lun, Offer, Pdu, PeerMisbehaved, PlainFramer};

/// Commands and PDUs that a script may have in flight.
const IN_FLIGHT_MAX: usize = 64;
/// Most that a command of a script moves.
const READ_BYTES_MAX: u32 = 255 * 100;

/// Two machines and what lies between them.
struct Stage {
    now: Instant,
    initiator: initiator::Session,
    target: target::Session,
    id: target::ConnectionId,
    digests: Digests,
    to_target: VecDeque<Pdu>,
    to_initiator: VecDeque<Pdu>,
    /// With the application.
    held: VecDeque<target::Command>,
    /// Sent and not answered; what a read brought so far.
    open: HashMap<initiator::TaskId, Vec<u8>>,
    /// What came may be anything from here on.
    is_tampered: bool,
}

/// Runs a script.
pub fn fuzz_sequences(now: Instant, bytes: &[u8]) {
    let mut source = Source(bytes);
    let Some(mut stage) = source.byte().map(|shape| Stage::logged_in(now, shape)) else { return };
    while let Some(step) = source.byte() {
        if stage.step(step, &mut source).is_none() {
            break;
        }
        stage.look();
    }
    stage.finish();
}

/// What a write of `len` bytes sends, and a read brings: the length tells the content.
fn content(len: usize) -> Buffer {
    Buffer::from(Bytes::from((0..len).map(|at| (at * 31 + len) as u8).collect::<Vec<u8>>()))
}

impl Stage {
    fn logged_in(now: Instant, shape: u8) -> Stage {
        let digest = if shape & 1 != 0 { DigestOffer::Prefer } else { DigestOffer::Never };
        let offer = Offer {
            recv_segment_bytes_max: 512 << (shape >> 1 & 3),
            first_burst_bytes: 1024,
            max_burst_bytes: 2048 << (shape >> 3 & 1),
            initial_r2t: shape & 0x10 != 0,
            immediate_data: shape & 0x20 != 0,
            max_outstanding_r2t: 1 + u16::from(shape >> 6),
            header_digest: digest,
            data_digest: digest,
            protocol_level: 2,
            error_recovery_level: shape & 1,
            ..Offer::default()
        };
        let kind = initiator::SessionKind::Normal { target_name: "t".into() };
        let mut config = initiator::Config::new("i", [0x80, 0, 0, 0, 0, 1], kind);
        config.offer = offer.clone();
        let target = target::Config {
            offer,
            queue_depth: 4,
            write_memory_bytes_max: 64 << 10,
            transfer_bytes_max: 32_768,
            ..target::Config::default()
        };
        let mut initiator = initiator::Session::new(now, config);
        let mut login = target::Login::new(now, target);
        while let Some(pdu) = initiator.poll_transmit() {
            login.handle_pdu(&pdu);
            if let Some(target::LoginEvent::Requested(_)) = login.poll_event() {
                login.accept(1);
            }
            while let Some(pdu) = login.poll_transmit() {
                initiator.handle_pdu(now, pdu);
            }
        }
        assert!(login.agreed().is_some(), "both sides are sound");
        let (target, id) = target::Session::new(now, login);
        let mut stage = Stage {
            now,
            initiator,
            target,
            id,
            digests: Digests::default(),
            to_target: VecDeque::new(),
            to_initiator: VecDeque::new(),
            held: VecDeque::new(),
            open: HashMap::new(),
            is_tampered: false,
        };
        let Some(initiator::Event::LoggedIn { agreed, .. }) = stage.initiator.poll_event() else {
            unreachable!("both sides are sound");
        };
        stage.digests = agreed.digests;
        stage
    }

    /// One step of the script; `None` at its end.
    fn step(&mut self, step: u8, source: &mut Source<'_>) -> Option<()> {
        match step % 16 {
            0 | 1 => self.submit(source.byte()?, source.byte()?),
            2 | 3 => drop(self.make_to_target()),
            4 | 5 => drop(self.make_to_initiator()),
            6 | 7 => self.deliver(true),
            8 | 9 => self.deliver(false),
            10 => self.complete(usize::from(source.byte()?)),
            11 => self.manage(source.byte()?),
            12 => self.advance(Duration::from_millis(u64::from(source.byte()?) * 100)),
            13 => self.tamper(source.byte()?, source.byte()?, source.byte()?),
            14 => self.settle(),
            _ => match source.byte()? {
                0..8 => self.initiator.logout(self.now),
                8..16 => self.target.request_logout(self.now, Duration::from_secs(2)),
                16..24 => self.target.close("a fuzzer's whim"),
                24..32 => drop(self.initiator.send_targets(&initiator::SendTargets::ThisTarget)),
                _ => {}
            },
        }
        Some(())
    }

    fn submit(&mut self, kind: u8, size: u8) {
        if self.open.len() >= IN_FLIGHT_MAX {
            return;
        }
        let (lun, len) = (Lun::single_level(u16::from(kind >> 6)), usize::from(size) * 100);
        let command = match kind % 3 {
            0 => Command::without_data(lun, [0; 16]),
            1 => Command::read(lun, [1; 16], len as u32),
            _ => Command::write(lun, [2; 16], WriteSource::plain(content(len))),
        };
        if let Ok(task) = self.initiator.submit(command) {
            self.open.insert(task, Vec::new());
        }
    }

    fn make_to_target(&mut self) -> bool {
        let pdu = if self.to_target.len() < IN_FLIGHT_MAX { self.initiator.poll_transmit() } else { None };
        pdu.map(|pdu| self.to_target.push_back(pdu)).is_some()
    }

    fn make_to_initiator(&mut self) -> bool {
        let pdu = if self.to_initiator.len() < IN_FLIGHT_MAX { self.target.poll_transmit(self.id) } else { None };
        pdu.map(|pdu| self.to_initiator.push_back(pdu)).is_some()
    }

    /// A PDU crosses as bytes.
    fn deliver(&mut self, towards_target: bool) {
        let queue = if towards_target { &mut self.to_target } else { &mut self.to_initiator };
        let Some(pdu) = queue.pop_front() else { return };
        let mut framer = PlainFramer::new(65_536);
        framer.set_digests(self.digests);
        let mut parts = Vec::new();
        PlainFramer::encode(pdu, self.digests, &mut parts);
        for part in &parts {
            if framer.handle_input(part).is_err() {
                assert!(self.is_tampered, "we make sound PDUs");
                return;
            }
        }
        let Some(pdu) = framer.poll_pdu() else { return };
        match towards_target {
            true => self.target.handle_pdu(self.now, self.id, pdu),
            false => self.initiator.handle_pdu(self.now, pdu),
        }
    }

    fn complete(&mut self, at: usize) {
        let index = at % self.held.len().max(1);
        let Some(command) = self.held.remove(index) else { return };
        let response = match command.direction {
            // A length that was changed on the way may be anything.
            target::Direction::Read => {
                Response::good_data(content(command.expected_bytes.min(READ_BYTES_MAX) as usize))
            }
            _ => Response::good(),
        };
        self.target.complete(command.task, response);
    }

    fn manage(&mut self, which: u8) {
        let functions = [
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
        let function = functions[usize::from(which) % functions.len()];
        let task = self.open.keys().copied().min();
        let _ = self.initiator.manage_task(function, Lun::single_level(u16::from(which >> 6)), task);
    }

    fn advance(&mut self, by: Duration) {
        self.now += by;
        if self.initiator.poll_timeout().is_some_and(|at| at <= self.now) {
            self.initiator.handle_timeout(self.now);
        }
        if self.target.poll_timeout().is_some_and(|at| at <= self.now) {
            self.target.handle_timeout(self.now);
        }
    }

    /// Loses, doubles, reorders, changes or damages a PDU on its way.
    fn tamper(&mut self, how: u8, at: u8, value: u8) {
        let towards_target = how & 0x80 != 0;
        let queue = if towards_target { &mut self.to_target } else { &mut self.to_initiator };
        let Some(mut pdu) = queue.pop_front() else { return };
        if how % 5 == 4 {
            // A digest tells, and what it tells is recovered or ends the session. Without data there is nothing to damage.
            return match (towards_target, pdu.data.is_empty()) {
                (_, true) => queue.push_front(pdu),
                (true, _) => self.target.handle_corrupt_pdu(self.now, self.id, &pdu),
                (false, _) => self.initiator.handle_corrupt_pdu(self.now, &pdu),
            };
        }
        self.is_tampered = true;
        match how % 5 {
            0 => {}
            1 => {
                queue.push_back(pdu.clone());
                queue.push_front(pdu);
            }
            2 => queue.push_back(pdu),
            _ => {
                // Not the lengths: a framer sees to those.
                let at = usize::from(at) % 48;
                if !(4..8).contains(&at) {
                    pdu.bhs.0[at] = value;
                }
                queue.push_front(pdu);
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..4096 {
            let moved = self.make_to_target() | self.make_to_initiator();
            let waits = !self.to_target.is_empty() || !self.to_initiator.is_empty();
            if !moved && !waits {
                return;
            }
            self.deliver(true);
            self.deliver(false);
        }
    }

    /// Takes every event and looks at what came.
    fn look(&mut self) {
        while let Some(event) = self.target.poll_event() {
            match event {
                target::Event::Command(command) => {
                    if command.direction == target::Direction::Write {
                        let data: Vec<u8> = command.data.iter().flat_map(|part| part.data.to_vec()).collect();
                        assert_eq!(data.len(), command.expected_bytes as usize, "all of a write, and no more");
                        assert!(self.is_tampered || data == content(data.len())[..], "what was sent is what came");
                    }
                    self.held.push_back(command);
                }
                target::Event::TaskManagement(request) => {
                    self.held.retain(|command| !request.tasks.contains(&command.task));
                    self.target.answer_task_management(request.id, TaskManagementResult::Complete);
                }
                target::Event::SendTargets(id, _) => self.target.send_targets(id, &[]),
                target::Event::Closed(reason) => {
                    self.held.clear();
                    self.check_end(&reason);
                }
                target::Event::ConnectionClosed { .. } => unreachable!("there is one connection"),
            }
        }
        while let Some(event) = self.initiator.poll_event() {
            match event {
                initiator::Event::DataIn(part) => {
                    let read = self.open.get_mut(&part.task).expect("data is for a task that is open");
                    assert_eq!(part.offset as usize, read.len(), "in order and without gaps");
                    read.extend_from_slice(part.data());
                }
                initiator::Event::Completed(completed) => {
                    let read = self.open.remove(&completed.task).expect("a task is completed once");
                    let is_whole = self.is_tampered || completed.status != 0 || read == content(read.len())[..];
                    assert!(is_whole, "what was read is what is there");
                }
                initiator::Event::TaskManagementDone { ended, .. } => {
                    for task in ended {
                        assert!(self.open.remove(&task).is_some(), "only open tasks end");
                    }
                }
                initiator::Event::Closed(reason) => {
                    self.open.clear();
                    self.check_end(&reason);
                }
                _ => {}
            }
        }
    }

    /// Neither side takes the other for a liar. What cannot be recovered is a question that was damaged, and anything at level 0.
    fn check_end(&self, reason: &CloseReason) {
        let is_recovered = self.target.session_keys().error_recovery_level > 0;
        let is_sound = match reason {
            CloseReason::Misbehaved(PeerMisbehaved::Rejected { opcode, .. }) => {
                !is_recovered || *opcode == Opcode::TextRequest as u8
            }
            CloseReason::Misbehaved(_) => false,
            _ => true,
        };
        assert!(self.is_tampered || is_sound, "{reason:?}");
    }

    /// An untouched session that is still there answers everything.
    fn finish(mut self) {
        if self.is_tampered {
            return;
        }
        for _ in 0..IN_FLIGHT_MAX * 4 {
            self.settle();
            self.look();
            if self.open.is_empty() || self.initiator.is_closed() || self.target.is_closed() {
                break;
            }
            while !self.held.is_empty() {
                self.complete(0);
            }
        }
        let is_over = self.initiator.is_closed() || self.target.is_closed();
        assert!(is_over || self.open.is_empty(), "every command of a sound session is answered");
    }
}
