//! Fuzzing of sessions with several connections: arbitrary bytes are a script that steps two joined machines, while connections are made,
//! cut at either end or both, and tasks are ended; with PDUs changed on the way, too. Without such changes, at error recovery level 2, every
//! command that nobody ended is carried out once, completes, and moves the right data.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;

use super::Source;
use crate::initiator::{self, Command, ConnectionId, TaskFunction, WriteSource};
use crate::target::{self, Login, LoginEvent, MayAdd, Response, TaskManagementResult};
use crate::{CloseReason, LoginStatus, Lun, Offer, Pdu};

const TSIH: u16 = 7;
/// Commands that a script may have in flight, and PDUs on one way.
const IN_FLIGHT_MAX: usize = 48;
/// Connections that a script may make; a line that was cut is not used again.
const LINES_MAX: usize = 64;
/// Most that a command of a script moves.
const READ_BYTES_MAX: u32 = 255 * 50;
/// Turns that the end of a script may take: many times what the longest takes.
const TURNS_MAX: usize = 4096;

/// One TCP connection: what is on its way, and both ends.
struct Line {
    to_target: VecDeque<Pdu>,
    to_initiator: VecDeque<Pdu>,
    initiator: Option<ConnectionId>,
    login: Option<Login>,
    is_asked: bool,
    target: Option<target::ConnectionId>,
}

struct Wanted {
    number: u64,
    is_write: bool,
    read: Vec<u8>,
}

struct World {
    now: Instant,
    /// Half of the time for which a target keeps tasks after the beginning.
    forgets_at: Instant,
    offer: Offer,
    initiator: initiator::Session,
    target: Option<target::Session>,
    lines: Vec<Line>,
    wanted: HashMap<initiator::TaskId, Wanted>,
    /// With the application.
    held: VecDeque<target::Command>,
    carried_out: HashSet<u64>,
    next_number: u64,
    /// Tasks were to be ended, and by a connection that was lost with the answer; or so much time went by that the target does not wait for
    /// a lost one: what became of tasks may be unknown.
    may_be_unknown: bool,
    is_tampered: bool,
}

/// Runs a script.
pub fn fuzz_connections(now: Instant, bytes: &[u8]) {
    let mut source = Source(bytes);
    let Some(shape) = source.byte() else { return };
    let mut world = World::new(now, shape);
    while let Some(step) = source.byte() {
        if world.step(step, &mut source).is_none() {
            break;
        }
        world.look();
    }
    world.finish();
}

fn content(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u64).wrapping_mul(31).wrapping_add(number * 7) as u8).collect()
}

fn cut_off() -> CloseReason {
    CloseReason::ConnectionLost("cut".into())
}

impl World {
    fn new(now: Instant, shape: u8) -> World {
        let offer = Offer {
            recv_segment_bytes_max: 512 << (shape >> 4 & 1),
            first_burst_bytes: 1024,
            max_burst_bytes: 2048,
            initial_r2t: shape & 0x20 != 0,
            immediate_data: shape & 0x40 != 0,
            error_recovery_level: if shape & 0x0c == 0 { 0 } else { 2 },
            connections_max: 1 + u16::from(shape & 3),
            protocol_level: 2,
            time2retain_s: 3600,
            ..Offer::default()
        };
        let kind = initiator::SessionKind::Normal { target_name: "t".into() };
        let mut config = initiator::Config::new("i", [0x80, 0, 0, 0, 0, 1], kind);
        config.offer = offer.clone();
        // Longer than any script: what is silent is tested elsewhere.
        (config.ping_after, config.login_timeout) = (Duration::from_secs(100_000), Duration::from_secs(100_000));
        let mut world = World {
            now,
            forgets_at: now + Duration::from_secs(1800),
            offer,
            initiator: initiator::Session::new(now, config),
            target: None,
            lines: Vec::new(),
            wanted: HashMap::new(),
            held: VecDeque::new(),
            carried_out: HashSet::new(),
            next_number: 0,
            may_be_unknown: false,
            is_tampered: false,
        };
        world.dial(ConnectionId::LEADING);
        while !world.lines.is_empty() && world.target.is_none() {
            world.turn();
        }
        world
    }

    fn dial(&mut self, id: ConnectionId) {
        let config = target::Config {
            offer: self.offer.clone(),
            queue_depth: 8,
            login_timeout: Duration::from_secs(100_000),
            ping_after: Duration::from_secs(100_000),
            ..target::Config::default()
        };
        self.lines.push(Line {
            to_target: VecDeque::new(),
            to_initiator: VecDeque::new(),
            initiator: Some(id),
            login: Some(Login::new(self.now, config)),
            is_asked: false,
            target: None,
        });
    }

    /// One more connection, if there is a place for it.
    fn redial(&mut self) {
        let is_due = self.initiator.continues_at().is_none_or(|at| at <= self.now);
        if self.lines.len() < LINES_MAX
            && is_due
            && let Ok(id) = self.initiator.add_connection(self.now, None)
        {
            self.dial(id);
        }
    }

    /// One step of the script; `None` at its end.
    fn step(&mut self, step: u8, source: &mut Source<'_>) -> Option<()> {
        match step % 16 {
            0..3 => self.submit(source.byte()?, source.byte()?),
            3..9 => {
                let (at, way) = (source.byte()?, step);
                self.carry(usize::from(at) % self.lines.len().max(1), way);
            }
            9 => self.complete(usize::from(source.byte()?)),
            10 => self.redial(),
            11 => self.cut(source.byte()?),
            12 => self.manage(source.byte()?),
            13 => self.pass(Duration::from_millis(u64::from(source.byte()?) * 50)),
            14 => self.turn(),
            _ => match source.byte()? {
                value @ 0..32 => self.tamper(value, source.byte()?, source.byte()?),
                32..40 => self.initiator.logout(self.now),
                _ => {}
            },
        }
        Some(())
    }

    fn submit(&mut self, kind: u8, size: u8) {
        if self.wanted.len() >= IN_FLIGHT_MAX {
            return;
        }
        let (number, bytes) = (self.next_number, usize::from(size) * 50);
        let (lun, mut cdb) = (Lun::single_level(u16::from(kind >> 7)), [0; 16]);
        cdb[2..10].copy_from_slice(&number.to_be_bytes());
        let is_write = kind & 1 != 0 && bytes > 0;
        let command = match (is_write, bytes) {
            (true, _) => {
                let data = Buffer::from(Bytes::from(content(number, bytes)));
                Command::write(lun, cdb, WriteSource::plain(data))
            }
            (false, 0) => Command::without_data(lun, cdb),
            (false, _) => Command::read(lun, cdb, bytes as u32),
        };
        if let Ok(task) = self.initiator.submit(command) {
            self.next_number += 1;
            self.wanted.insert(task, Wanted { number, is_write, read: Vec::new() });
        }
    }

    /// Moves what there is by a step on a line, one of the ways.
    fn carry(&mut self, at: usize, way: u8) {
        let Some(line) = self.lines.get_mut(at) else { return };
        match way % 4 {
            0 if line.to_target.len() < IN_FLIGHT_MAX => {
                let pdu = line.initiator.and_then(|id| self.initiator.poll_transmit_on(id));
                line.to_target.extend(pdu);
            }
            1 => self.deliver_to_target(at),
            2 => self.hear_target(at),
            3 => {
                if let (Some(id), Some(pdu)) = (line.initiator, line.to_initiator.pop_front()) {
                    self.initiator.handle_pdu_on(self.now, id, pdu);
                }
            }
            _ => {}
        }
        self.target_events();
    }

    /// Moves everything that can be moved once.
    fn turn(&mut self) {
        for at in 0..self.lines.len() {
            (0..4).for_each(|way| self.carry(at, way));
        }
        self.forget_lines();
    }

    fn forget_lines(&mut self) {
        self.lines.retain(|line| line.initiator.is_some() || line.login.is_some() || line.target.is_some());
    }

    fn deliver_to_target(&mut self, at: usize) {
        let line = &mut self.lines[at];
        if let Some(login) = &mut line.login {
            if let Some(pdu) = line.to_target.pop_front() {
                login.handle_pdu(&pdu);
            }
            return self.log_in(at);
        }
        let (Some(id), Some(target)) = (line.target, &mut self.target) else { return };
        if target.accepts_input(id)
            && let Some(pdu) = line.to_target.pop_front()
        {
            target.handle_pdu(self.now, id, pdu);
        }
    }

    fn log_in(&mut self, at: usize) {
        let line = &mut self.lines[at];
        let Some(login) = &mut line.login else { return };
        let event = login.poll_event();
        line.is_asked |= matches!(event, Some(LoginEvent::Requested(_)));
        if line.is_asked {
            match &mut self.target {
                None => login.accept(TSIH),
                Some(target) => match target.may_add(self.now, line.initiator.map_or(0, |id| id.0)) {
                    MayAdd::Yes => login.accept_into(target),
                    MayAdd::Later => return,
                    MayAdd::TooMany | MayAdd::Over => login.reject(LoginStatus::TOO_MANY_CONNECTIONS),
                },
            }
            line.is_asked = false;
        }
        if login.agreed().is_none() {
            return;
        }
        let Some(login) = line.login.take() else { return };
        line.target = match &mut self.target {
            Some(target) if target.has_place_for(&login) => Some(target.add_connection(self.now, login)),
            Some(_) => None,
            None => {
                let (session, id) = target::Session::new(self.now, login);
                self.target = Some(session);
                Some(id)
            }
        };
        if self.lines[at].target.is_none() {
            self.cut_line(at, true, true);
        }
    }

    fn hear_target(&mut self, at: usize) {
        self.log_in(at);
        let line = &mut self.lines[at];
        if line.to_initiator.len() >= IN_FLIGHT_MAX {
            return;
        }
        let pdu = match (&mut line.login, line.target, &mut self.target) {
            (Some(login), ..) => login.poll_transmit(),
            (None, Some(id), Some(target)) => target.poll_transmit(id),
            _ => None,
        };
        line.to_initiator.extend(pdu);
        if line.login.as_ref().is_some_and(Login::is_closed) && line.to_initiator.is_empty() {
            self.cut_line(at, true, true);
        }
    }

    fn target_events(&mut self) {
        while let Some(event) = self.target.as_mut().and_then(target::Session::poll_event) {
            match event {
                target::Event::Command(command) => self.held.push_back(command),
                target::Event::TaskManagement(request) => {
                    self.held.retain(|command| !request.tasks.contains(&command.task));
                    if let Some(target) = &mut self.target {
                        target.answer_task_management(request.id, TaskManagementResult::Complete);
                    }
                }
                target::Event::ConnectionClosed { connection, .. } => {
                    for line in self.lines.iter_mut().filter(|line| line.target == Some(connection)) {
                        // Its last words are on their way; then the stream ends.
                        while let Some(pdu) = self.target.as_mut().and_then(|target| target.poll_transmit(connection)) {
                            line.to_initiator.push_back(pdu);
                        }
                        line.target = None;
                    }
                }
                target::Event::SendTargets(id, _) => {
                    if let Some(target) = &mut self.target {
                        target.send_targets(id, &[]);
                    }
                }
                target::Event::Closed(_) => self.held.clear(),
            }
        }
    }

    fn complete(&mut self, at: usize) {
        let Some(command) = self.held.remove(at % self.held.len().max(1)) else { return };
        let number = command.cdb[2..10].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        assert!(self.carried_out.insert(number) || self.is_tampered, "command {number} came twice");
        // What a script can ask for, unless the length was changed on the way.
        let bytes = command.expected_bytes.min(READ_BYTES_MAX) as usize;
        let response = match command.direction {
            target::Direction::Write => {
                let data: Vec<u8> = command.data.iter().flat_map(|part| part.data.to_vec()).collect();
                assert!(self.is_tampered || data == content(number, bytes), "command {number} wrote something else");
                Response::good()
            }
            target::Direction::Read => Response::good_data(Buffer::from(Bytes::from(content(number, bytes)))),
            target::Direction::None => Response::good(),
        };
        if let Some(target) = &mut self.target {
            target.complete(command.task, response);
        }
    }

    fn manage(&mut self, which: u8) {
        let functions = [
            TaskFunction::AbortTask,
            TaskFunction::AbortTaskSet,
            TaskFunction::ClearTaskSet,
            TaskFunction::LogicalUnitReset,
            TaskFunction::QueryTaskSet,
            TaskFunction::NexusReset,
        ];
        let task = self.wanted.keys().copied().min();
        let function = functions[usize::from(which) % functions.len()];
        self.may_be_unknown = true;
        let _ = self.initiator.manage_task(function, Lun::single_level(u16::from(which >> 7)), task);
    }

    fn cut(&mut self, how: u8) {
        let at = usize::from(how >> 2) % self.lines.len().max(1);
        if at < self.lines.len() {
            self.cut_line(at, how & 1 == 0, how & 2 == 0);
        }
    }

    /// Cuts a line. One of the ends may not notice, until it tries.
    fn cut_line(&mut self, at: usize, target_notices: bool, initiator_notices: bool) {
        let line = &mut self.lines[at];
        line.to_target.clear();
        line.to_initiator.clear();
        if initiator_notices && let Some(id) = line.initiator.take() {
            self.initiator.handle_closed_on(self.now, id, cut_off());
        }
        let had_login = line.login.take().is_some();
        if !had_login
            && (target_notices || line.initiator.is_some())
            && let (Some(id), Some(target)) = (line.target.take(), &mut self.target)
        {
            target.handle_closed(self.now, id, cut_off());
        }
    }

    fn pass(&mut self, by: Duration) {
        self.now += by;
        self.may_be_unknown |= self.now > self.forgets_at;
        if self.initiator.poll_timeout().is_some_and(|at| at <= self.now) {
            self.initiator.handle_timeout(self.now);
        }
        if let Some(target) = &mut self.target
            && target.poll_timeout().is_some_and(|at| at <= self.now)
        {
            target.handle_timeout(self.now);
        }
    }

    fn tamper(&mut self, which: u8, at: u8, value: u8) {
        self.is_tampered = true;
        let index = usize::from(which >> 1) % self.lines.len().max(1);
        let Some(line) = self.lines.get_mut(index) else { return };
        let queue = if which & 1 == 0 { &mut line.to_target } else { &mut line.to_initiator };
        if let Some(pdu) = queue.front_mut() {
            let at = usize::from(at) % 48;
            if !(4..8).contains(&at) {
                pdu.bhs.0[at] = value;
            }
        }
    }

    /// Takes every event of the initiator and looks at what came.
    fn look(&mut self) {
        while let Some(event) = self.initiator.poll_event() {
            match event {
                initiator::Event::DataIn(part) => {
                    let wanted = self.wanted.get_mut(&part.task).expect("data is for a task that is open");
                    assert_eq!(part.offset as usize, wanted.read.len(), "in order and without gaps");
                    wanted.read.extend_from_slice(&part.data);
                }
                initiator::Event::Completed(done) => {
                    let wanted = self.wanted.remove(&done.task).expect("a task is completed once");
                    if self.is_tampered || done.status != 0 || (done.response != 0 && self.may_be_unknown) {
                        continue;
                    }
                    assert_eq!(done.response, 0, "command {}", wanted.number);
                    assert!(self.carried_out.contains(&wanted.number), "nobody did command {}", wanted.number);
                    let bytes = wanted.read.len();
                    assert!(
                        wanted.is_write || wanted.read == content(wanted.number, bytes),
                        "command {}",
                        wanted.number
                    );
                }
                initiator::Event::TaskManagementDone { ended, .. } => {
                    ended.iter().for_each(|task| assert!(self.wanted.remove(task).is_some(), "only open tasks end"));
                }
                initiator::Event::ConnectionLost { id, .. } => {
                    for line in self.lines.iter_mut().filter(|line| line.initiator == Some(id)) {
                        line.initiator = None;
                    }
                }
                initiator::Event::Closed(reason) => {
                    self.wanted.clear();
                    let is_sound = !matches!(reason, CloseReason::Misbehaved(_));
                    assert!(self.is_tampered || is_sound, "{reason:?}");
                }
                _ => {}
            }
        }
    }

    /// A session that was not tampered with, and is still there, answers everything.
    fn finish(mut self) {
        for _ in 0..TURNS_MAX {
            self.look();
            let is_over = self.initiator.is_closed() || self.target.as_ref().is_none_or(target::Session::is_closed);
            if self.is_tampered || is_over || self.wanted.is_empty() {
                return;
            }
            // A stream of which one end is gone ends at the other.
            for at in 0..self.lines.len() {
                let line = &self.lines[at];
                let is_half = line.target.is_none() && line.login.is_none() && line.to_initiator.is_empty();
                if is_half || line.initiator.is_none() {
                    self.cut_line(at, true, true);
                }
            }
            self.target_events();
            self.look();
            self.forget_lines();
            self.redial();
            self.turn();
            while !self.held.is_empty() {
                self.complete(0);
            }
            self.pass(Duration::from_millis(20));
        }
        panic!("{} commands of a sound session are not answered", self.wanted.len());
    }
}
