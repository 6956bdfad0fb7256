//! Proves that both machines together keep a session of several connections whole: whatever is cut, whenever, and whoever notices
//! it, at error recovery level 2 every command is carried out once, completes once, and moves the right data. One seed, one run.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::pair::{Random, epoch, initiator_config};

use strongroom_block::Buffer;
use strongroom_iscsi::initiator::{self, ConnectionId, WriteSource};
use strongroom_iscsi::target::{self, Login, LoginEvent, MayAdd, Response};
use strongroom_iscsi::{CloseReason, LoginStatus, Lun, Offer, Pdu};

const TSIH: u16 = 7;
/// Long enough for every retry, short enough for no ping.
const STEP: Duration = Duration::from_millis(1);

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

struct World {
    random: Random,
    now: Instant,
    initiator: initiator::Session,
    target: Option<target::Session>,
    lines: Vec<Line>,
    connections: usize,
    wanted: HashMap<initiator::TaskId, Wanted>,
    pending: Vec<target::Command>,
    carried_out: HashSet<u64>,
    next_number: u64,
    cuts: u32,
}

fn content(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u64).wrapping_mul(31).wrapping_add(number * 7) as u8).collect()
}

impl World {
    fn new(seed: u64, in_channel: bool) -> World {
        let mut random = Random::new(seed);
        let connections = 1 + random.below(4) as usize;
        let offer = Offer {
            recv_segment_bytes_max: 512 + random.below(4000) as u32,
            first_burst_bytes: 512 + random.below(4000) as u32,
            max_burst_bytes: 4512,
            initial_r2t: random.one_in(2),
            immediate_data: random.one_in(2),
            error_recovery_level: 2,
            connections_max: connections as u16,
            time2retain_s: 3600,
            ..Offer::default()
        };
        let mut config = initiator_config();
        (config.offer, config.in_channel) = (offer.clone(), in_channel);
        (config.ping_after, config.login_timeout) = (Duration::from_secs(3000), Duration::from_secs(3000));
        let now = epoch();
        let mut world = World {
            now,
            initiator: initiator::Session::new(now, config),
            target: None,
            lines: Vec::new(),
            connections,
            wanted: HashMap::new(),
            pending: Vec::new(),
            carried_out: HashSet::new(),
            next_number: 0,
            cuts: 0,
            random,
        };
        world.dial(ConnectionId::LEADING, offer, in_channel);
        while !matches!(world.initiator.poll_event(), Some(initiator::Event::LoggedIn { .. })) {
            world.carry();
        }
        world
    }

    fn dial(&mut self, id: ConnectionId, offer: Offer, in_channel: bool) {
        let config = target::Config {
            offer,
            in_channel,
            queue_depth: 8,
            login_timeout: Duration::from_secs(3000),
            ping_after: Duration::from_secs(3000),
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

    /// Fills up the connections of the session.
    fn redial(&mut self, offer: &Offer, in_channel: bool) {
        let at_work = self.lines.iter().filter(|line| line.initiator.is_some()).count();
        let is_due = self.initiator.continues_at().is_none_or(|at| at <= self.now);
        if at_work < self.connections
            && is_due
            && let Ok(id) = self.initiator.add_connection(self.now, None)
        {
            self.dial(id, offer.clone(), in_channel);
        }
    }

    /// Moves what there is by a step on some line, either way.
    fn carry(&mut self) {
        let at = self.random.below(self.lines.len().max(1) as u64) as usize;
        if at < self.lines.len() {
            match self.random.below(4) {
                0 => {
                    let line = &mut self.lines[at];
                    let pdu = line.initiator.and_then(|id| self.initiator.poll_transmit_on(id));
                    line.to_target.extend(pdu);
                }
                1 => self.deliver_to_target(at),
                2 => self.hear_target(at),
                _ => {
                    let line = &mut self.lines[at];
                    if let (Some(id), Some(pdu)) = (line.initiator, line.to_initiator.pop_front()) {
                        self.initiator.handle_pdu_on(self.now, id, pdu);
                    }
                }
            }
        }
        self.target_events();
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
                Some(target) => {
                    // Whichever connection it is: the CID is what the initiator says.
                    let cid = line.initiator.map_or(0, |id| id.0);
                    match target.may_add(self.now, cid) {
                        MayAdd::Yes => login.accept_into(target),
                        MayAdd::Later => return,
                        MayAdd::TooMany | MayAdd::Over => login.reject(LoginStatus::TOO_MANY_CONNECTIONS),
                    }
                }
            }
            line.is_asked = false;
        }
        if login.agreed().is_some() {
            let login = line.login.take().expect("just looked at");
            line.target = Some(match &mut self.target {
                Some(target) => target.add_connection(self.now, login),
                None => {
                    let (session, id) = target::Session::new(self.now, login);
                    self.target = Some(session);
                    id
                }
            });
        }
    }

    fn hear_target(&mut self, at: usize) {
        self.log_in(at);
        let line = &mut self.lines[at];
        let pdu = match (&mut line.login, line.target, &mut self.target) {
            (Some(login), ..) => login.poll_transmit(),
            (None, Some(id), Some(target)) => target.poll_transmit(id),
            _ => None,
        };
        line.to_initiator.extend(pdu);
        if line.login.as_ref().is_some_and(Login::is_closed) && line.to_initiator.is_empty() {
            self.cut(at, true);
        }
    }

    fn target_events(&mut self) {
        while let Some(event) = self.target.as_mut().and_then(target::Session::poll_event) {
            match event {
                target::Event::Command(command) => self.pending.push(command),
                target::Event::ConnectionClosed { connection, .. } => {
                    for line in self.lines.iter_mut().filter(|line| line.target == Some(connection)) {
                        line.target = None;
                    }
                }
                other => panic!("nothing else was asked for: {other:?}"),
            }
        }
    }

    fn submit(&mut self) {
        let (number, bytes) = (self.next_number, self.random.below(20_000) as usize);
        let is_write = self.random.one_in(2) && bytes > 0;
        let mut cdb = [0; 16];
        cdb[2..10].copy_from_slice(&number.to_be_bytes());
        let command = match is_write {
            true => {
                let source = WriteSource::plain(Buffer::copy_from(&content(number, bytes)));
                initiator::Command::write(Lun(0), cdb, source)
            }
            false if bytes > 0 => initiator::Command::read(Lun(0), cdb, bytes as u32),
            false => initiator::Command::without_data(Lun(0), cdb),
        };
        if let Ok(task) = self.initiator.submit(command) {
            self.next_number += 1;
            let fresh = self.wanted.insert(task, Wanted { number, bytes, is_write, read: Vec::new() });
            assert!(fresh.is_none());
        }
    }

    fn carry_out(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let at = self.random.below(self.pending.len() as u64) as usize;
        let command = self.pending.swap_remove(at);
        let number = u64::from_be_bytes(command.cdb[2..10].try_into().expect("8 bytes"));
        assert!(self.carried_out.insert(number), "command {number} came twice");
        let bytes = command.expected_bytes as usize;
        let response = match command.direction {
            target::Direction::Write => {
                let data: Vec<u8> = command.data.iter().flat_map(|part| part.data.to_vec()).collect();
                assert!(data == content(number, bytes), "command {number} wrote something else");
                Response::good()
            }
            target::Direction::Read => Response::good_data(Buffer::copy_from(&content(number, bytes))),
            _ => Response::good(),
        };
        self.target.as_mut().expect("it has commands").complete(command.task, response);
    }

    fn hear_events(&mut self) {
        while let Some(event) = self.initiator.poll_event() {
            match event {
                initiator::Event::DataIn(part) => {
                    let wanted = self.wanted.get_mut(&part.task).expect("data of a task that is over");
                    assert_eq!(part.offset as usize, wanted.read.len());
                    wanted.read.extend_from_slice(&part.data);
                }
                initiator::Event::Completed(done) => {
                    let wanted = self.wanted.remove(&done.task).expect("it completes once");
                    assert_eq!((done.response, done.status), (0, 0), "command {}", wanted.number);
                    assert!(self.carried_out.contains(&wanted.number));
                    if !wanted.is_write {
                        assert!(wanted.read == content(wanted.number, wanted.bytes), "command {}", wanted.number);
                    }
                }
                initiator::Event::ConnectionJoined { .. } => {}
                initiator::Event::ConnectionLost { id, .. } => {
                    for line in self.lines.iter_mut().filter(|line| line.initiator == Some(id)) {
                        line.initiator = None;
                    }
                }
                other => panic!("the session was to go on: {other:?}"),
            }
        }
    }

    /// Cuts a line. The target may not notice.
    fn cut(&mut self, at: usize, is_noticed: bool) {
        let reason = || CloseReason::ConnectionLost("cut".into());
        let line = &mut self.lines[at];
        line.to_target.clear();
        line.to_initiator.clear();
        if let Some(id) = line.initiator.take() {
            self.initiator.handle_closed_on(self.now, id, reason());
        }
        if line.login.take().is_some() {
            return;
        }
        if is_noticed && let (Some(id), Some(target)) = (line.target.take(), &mut self.target) {
            target.handle_closed(self.now, id, reason());
        }
    }

    fn pass(&mut self) {
        self.now += STEP;
        if self.initiator.poll_timeout().is_some_and(|at| at <= self.now) {
            self.initiator.handle_timeout(self.now);
        }
        if let Some(target) = &mut self.target
            && target.poll_timeout().is_some_and(|at| at <= self.now)
        {
            target.handle_timeout(self.now);
        }
    }
}

fn run(seed: u64, in_channel: bool, steps: u32) -> (u32, usize) {
    let mut world = World::new(seed, in_channel);
    let agreed = world.initiator.agreed().expect("in").clone();
    let offer = Offer {
        recv_segment_bytes_max: agreed.send_segment_bytes_max,
        connections_max: agreed.connections_max,
        error_recovery_level: 2,
        time2retain_s: 3600,
        ..Offer::default()
    };
    for step in 0.. {
        let is_ending = step > steps;
        if is_ending && world.wanted.is_empty() {
            break;
        }
        assert!(step < steps + 400_000, "seed {seed}: {} commands hang", world.wanted.len());
        match world.random.below(64) {
            0..4 if !is_ending => world.submit(),
            4..8 => world.carry_out(),
            8 => world.redial(&offer, in_channel),
            9 => world.pass(),
            10 if !is_ending && world.random.one_in(8) && !world.lines.is_empty() => {
                let at = world.random.below(world.lines.len() as u64) as usize;
                let is_noticed = world.random.one_in(2);
                world.cut(at, is_noticed);
                world.cuts += 1;
            }
            _ => world.carry(),
        }
        world.hear_events();
    }
    (world.cuts, world.carried_out.len())
}

#[test]
fn a_session_of_several_connections_keeps_its_commands() {
    let (mut cuts, mut commands) = (0, 0);
    for seed in 0..60 {
        let (cut, carried_out) = run(seed, seed % 2 == 1, 6000);
        (cuts, commands) = (cuts + cut, commands + carried_out);
    }
    assert!(cuts > 200 && commands > 2000, "too little happened to prove anything: {cuts} cuts, {commands} commands");
}
