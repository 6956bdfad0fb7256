//! Both machines with several connections between them, stepped by hand: connections are made, and cut at either end or both; tasks are
//! ended; PDUs move one at a time, and can be changed on the way. Without such changes, at error recovery level 2, every command that was not
//! ended is carried out once, completes, and moves the right data: what a step shows of that is asserted by it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::{Buffer, StoreSequence};

use crate::initiator::{self, Command, ConnectionId, TaskFunction, WriteSource};
use crate::target::{self, Login, LoginEvent, MayAdd, Response, TaskManagementResult};
use crate::{CloseReason, LoginStatus, Lun, Offer, Pdu};
use strongroom_scsi::transport::Written;

const TSIH: u16 = 7;
/// Commands that may be in flight, and PDUs on one way.
const IN_FLIGHT_MAX: usize = 48;
/// Connections that there may be, with those that are cut.
const LINES_MAX: usize = 64;
/// Most that a command moves.
const READ_BYTES_MAX: u32 = 20_000;
/// Turns that the end may take: many times what the longest takes.
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
    bytes: usize,
    is_write: bool,
    read: Vec<u8>,
}

/// The two machines, what is on its way between them, and what should come of it.
pub struct Joined {
    now: Instant,
    /// Half of the time for which a target keeps tasks after the beginning.
    forgets_at: Instant,
    offer: Offer,
    in_channel: bool,
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
    unasked: usize,
}

fn content(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u64).wrapping_mul(31).wrapping_add(number.wrapping_mul(7)) as u8).collect()
}

fn cut_off() -> CloseReason {
    CloseReason::ConnectionLost("cut".into())
}

impl Joined {
    /// Logged in by one connection; both ends offer `offer`.
    pub fn new(now: Instant, offer: Offer, in_channel: bool) -> Joined {
        let kind = initiator::SessionKind::Normal { target_name: "t".into() };
        let mut config = initiator::Config::new("i", [0x80, 0, 0, 0, 0, 1], kind);
        (config.offer, config.in_channel) = (offer.clone(), in_channel);
        // Longer than any run: silence is tested elsewhere.
        (config.ping_after, config.login_timeout) = (Duration::from_secs(100_000), Duration::from_secs(100_000));
        let mut joined = Joined {
            now,
            forgets_at: now + Duration::from_secs(1800),
            offer,
            in_channel,
            initiator: initiator::Session::new(now, config),
            target: None,
            lines: Vec::new(),
            wanted: HashMap::new(),
            held: VecDeque::new(),
            carried_out: HashSet::new(),
            next_number: 0,
            may_be_unknown: false,
            is_tampered: false,
            unasked: 0,
        };
        joined.dial(ConnectionId::LEADING);
        while !joined.lines.is_empty() && joined.target.is_none() {
            joined.turn();
        }
        joined
    }

    fn dial(&mut self, id: ConnectionId) {
        let config = target::Config {
            offer: self.offer.clone(),
            in_channel: self.in_channel,
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
    pub fn redial(&mut self) {
        let is_due = self.initiator.continues_at().is_none_or(|at| at <= self.now);
        if self.lines.len() < LINES_MAX
            && is_due
            && let Ok(id) = self.initiator.add_connection(self.now, None)
        {
            self.dial(id);
        }
    }

    /// One more command, if there is a place for it.
    pub fn submit(&mut self, lun: Lun, is_write: bool, bytes: usize) {
        if self.wanted.len() >= IN_FLIGHT_MAX {
            return;
        }
        let (number, is_write) = (self.next_number, is_write && bytes > 0);
        let mut cdb = [0; 16];
        cdb[2..10].copy_from_slice(&number.to_be_bytes());
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
            self.wanted.insert(task, Wanted { number, bytes, is_write, read: Vec::new() });
        }
    }

    /// Moves what there is by a step on a line, one of the ways: out of the initiator, into the target, out of that, into the initiator.
    pub fn carry(&mut self, at: usize, way: u8) {
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
    pub fn turn(&mut self) {
        for at in 0..self.lines.len() {
            (0..4).for_each(|way| self.carry(at, way));
        }
        self.forget_lines();
    }

    /// Lets go of the lines that are cut at both ends.
    pub fn forget_lines(&mut self) {
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
            self.cut(at, true, true);
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
            self.cut(at, true, true);
        }
    }

    fn target_events(&mut self) {
        while let Some(event) = self.target.as_mut().and_then(target::Session::poll_event) {
            match event {
                target::Event::Command(command) => self.held.push_back(command),
                target::Event::TaskManagement(request) => {
                    self.unasked += 1;
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
                target::Event::Closed(_) => {
                    self.unasked += 1;
                    self.held.clear();
                }
            }
        }
    }

    /// The application carries out the `at`-th command that it has, counted round.
    pub fn complete(&mut self, at: usize) {
        let Some(command) = self.held.remove(at % self.held.len().max(1)) else { return };
        let number = command.cdb[2..10].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        assert!(self.carried_out.insert(number) || self.is_tampered, "command {number} came twice");
        // What a script can ask for, unless the length was changed on the way.
        let bytes = command.expected_bytes.min(READ_BYTES_MAX) as usize;
        let response = match command.direction {
            target::Direction::Write => {
                let data: Vec<u8> = command.data.iter().flat_map(|part| part.data.to_vec()).collect();
                assert!(self.is_tampered || data == content(number, bytes), "command {number} wrote something else");
                let written = self.in_channel.then(|| written(number));
                Response { written, ..Response::good() }
            }
            target::Direction::Read => Response::good_data(Buffer::from(Bytes::from(content(number, bytes)))),
            target::Direction::None => Response::good(),
        };
        if let Some(target) = &mut self.target {
            target.complete(command.task, response);
        }
    }

    /// Ends a task, or many.
    pub fn manage(&mut self, which: u8) {
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

    /// Cuts a line. One of the ends may not notice, until it tries.
    pub fn cut(&mut self, at: usize, target_notices: bool, initiator_notices: bool) {
        let Some(line) = self.lines.get_mut(at) else { return };
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

    /// Lets time go by.
    pub fn pass(&mut self, by: Duration) {
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

    /// Changes a byte of a header on its way.
    pub fn tamper(&mut self, which: u8, at: u8, value: u8) {
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

    /// What the initiator asked for and has no answer to.
    pub fn unanswered(&self) -> usize {
        self.wanted.len()
    }

    /// How many commands the application carried out.
    pub fn carried_out(&self) -> usize {
        self.carried_out.len()
    }

    /// Lines that are not cut at both ends.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Events that a session which only moves data over connections that come and go does not bring about, at either end.
    pub fn unasked(&self) -> usize {
        self.unasked
    }

    fn is_open(&self) -> bool {
        !self.initiator.is_closed() && !self.target.as_ref().is_none_or(target::Session::is_closed)
    }

    /// Asks for the end of the session.
    pub fn log_out(&mut self) {
        self.initiator.logout(self.now);
    }

    /// Takes every event of the initiator and looks at what came.
    pub fn look(&mut self) {
        while let Some(event) = self.initiator.poll_event() {
            match event {
                initiator::Event::DataIn(part) => {
                    let wanted = self.wanted.get_mut(&part.task).expect("data is for a task that is open");
                    assert_eq!(part.offset as usize, wanted.read.len(), "in order and without gaps");
                    wanted.read.extend_from_slice(part.data());
                }
                initiator::Event::Completed(done) => {
                    let wanted = self.wanted.remove(&done.task).expect("a task is completed once");
                    let is_good = (done.response, done.status) == (0, 0);
                    if self.is_tampered || (self.may_be_unknown && !is_good) {
                        continue;
                    }
                    assert!(is_good, "command {}: {done:?}", wanted.number);
                    assert!(self.carried_out.contains(&wanted.number), "command {} was not executed", wanted.number);
                    assert!(
                        wanted.is_write || wanted.read == content(wanted.number, wanted.bytes),
                        "command {}",
                        wanted.number
                    );
                    let told = (wanted.is_write && self.in_channel).then(|| written(wanted.number));
                    assert_eq!(done.written, told, "command {}", wanted.number);
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
                    self.unasked += 1;
                    self.wanted.clear();
                    let is_sound = !matches!(reason, CloseReason::Misbehaved(_));
                    assert!(self.is_tampered || is_sound, "{reason:?}");
                }
                initiator::Event::LoggedIn { .. } | initiator::Event::ConnectionJoined { .. } => {}
                _ => self.unasked += 1,
            }
        }
    }

    /// A session that was not tampered with, and is still there, answers everything.
    pub fn finish(mut self) {
        for _ in 0..TURNS_MAX {
            self.look();
            if self.is_tampered || !self.is_open() || self.wanted.is_empty() {
                return;
            }
            // A stream of which one end is gone ends at the other.
            for at in 0..self.lines.len() {
                let line = &self.lines[at];
                let is_half = line.target.is_none() && line.login.is_none() && line.to_initiator.is_empty();
                if is_half || line.initiator.is_none() {
                    self.cut(at, true, true);
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

/// What a target says of a command that wrote.
fn written(number: u64) -> Written {
    Written { first: StoreSequence(number + 1), ..Written::default() }
}
