//! Proves, without sockets and in virtual time, that commands reach the unit of another worker and responses return in order, that a session
//! that ends withdraws what it asked for, and that a worker that ends releases what its sessions held and what its units served.
//!
//! Two workers' routing objects are connected by queues. The test is every initiator: it hands PDUs to the session machines.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use strongroom_block::{Buffer, Lba};
use strongroom_iscsi::pdu::{Answer, Attribute, LoginRequest, ScsiCommand, TaskManagementRequest};
use strongroom_iscsi::target::{self as iscsi, ConnectionId, Login, LoginEvent};
use strongroom_iscsi::{CloseReason, Lun, Pdu, Serial};
use strongroom_scsi::cdb;
use strongroom_store::{OpenOptions, Store};

use super::super::grant::LoginGrant;
use super::super::open_unit::OpenUnit;
use super::super::units::UnitEntry;
use super::*;
use crate::access::Identity;
use crate::budget::MemoryClass;
use crate::store_handle::StoreHandle;
use crate::unit::{BlockCodec, TargetEnvironment, Unit, UnitFiles};
use crate::{Catalogue, VolumeSpec};

/// The worker of the unit.
const UNIT: usize = 0;
/// The worker of the sessions that are not the unit's first.
const OTHER: usize = 1;
const BLOCK: u32 = 512;
const ALICE: &str = "iqn.2026-11.org.example:alice";
/// More rounds than any of these tests needs.
const ROUNDS: usize = 1000;
const DELAY: Duration = Duration::from_millis(3);

/// Two workers, and the messages between them that have not arrived.
struct Workers {
    routing: [Routing; 2],
    /// From, to, when they arrive, and what.
    queue: VecDeque<(usize, usize, Instant, Vec<CrossWorkerMessage>)>,
    loads: Arc<SessionLoads>,
    budget: Arc<MemoryBudget>,
    volume: VolumeName,
    now: Instant,
    _dir: tempfile::TempDir,
}

/// An initiator with one connection.
struct Initiator {
    worker: usize,
    key: SessionKey,
    connection: ConnectionId,
    cmd_sn: u32,
    /// Tags of the commands that were answered, with their status.
    answered: Vec<(u32, u8)>,
}

impl Workers {
    fn new() -> Workers {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        let spec = VolumeSpec { block_size: BLOCK.into(), ..VolumeSpec::plain("disk", 1 << 20) };
        let described = catalogue.create(&spec).unwrap();
        let volume = described.name.clone();
        let options = OpenOptions::default();
        let store = Store::open_in_memory(&described.create_options(), &options, Arc::new(|| {})).unwrap();
        let config = crate::Config::new(dir.path());
        let environment = Arc::new(TargetEnvironment::of(&config));
        let handle = StoreHandle::new(store);
        let unit = Unit::new(
            Arc::new(described),
            "iqn.a:disk".to_owned(),
            handle,
            BlockCodec::default(),
            UnitFiles::discarded(),
            environment,
        );
        let (loads, counters) = (Arc::new(SessionLoads::new(2)), Arc::new(Counters::default()));
        let budget = Arc::new(MemoryBudget::new(1 << 30));
        let routing = [UNIT, OTHER].map(|worker| {
            let bounds = CommandBounds::new(Arc::clone(&budget), &config.limits);
            Routing::new((worker, 2), bounds, Arc::clone(&loads), Arc::clone(&counters))
        });
        let now = Instant::now();
        let mut workers = Workers { routing, queue: VecDeque::new(), loads, budget, volume, now, _dir: dir };
        let open = OpenUnit::new(unit, Arc::new(AtomicBool::new(true)), None, None, now);
        workers.routing[UNIT].units.insert(workers.volume.clone(), UnitEntry::Open(Box::new(open)));
        workers
    }

    /// A session of the unit, placed as a login would be.
    fn log_in(&mut self, number: u8) -> Initiator {
        let key = SessionKey(u64::from(number));
        let nexus = NexusId { initiator_name: ALICE.into(), isid: [0, 0, 0, 0, 0, number], target_portal_group: 1 };
        let origin = Origin { identity: Identity::Plain, from: std::net::Ipv4Addr::LOCALHOST.into(), scheme: None };
        let worker = self.routing[UNIT].worker_for_session(&self.volume);
        let rights = (nexus.clone(), origin, false);
        let unit = self.routing[UNIT].attach(&self.volume, key, rights, worker);
        let (initiator_name, volume) = (ALICE.to_owned(), Some(self.volume.clone()));
        let grant = LoginGrant { nexus, initiator_name, volume, unit, read_only: false };
        let (machine, connection) = iscsi::Session::new(self.now, logged_in(number, self.now));
        let proven = (Identity::Plain, std::net::Ipv4Addr::LOCALHOST.into(), None);
        let charge = |class| self.budget.charge(class, 0);
        let memory = (charge(MemoryClass::Sessions), charge(MemoryClass::Commands));
        let session = Session::new(key, machine, grant, proven, self.now, memory);
        self.routing[worker].sessions.insert(Box::new(session), false);
        let mut initiator = Initiator { worker, key, connection, cmd_sn: 1, answered: Vec::new() };
        // The first command reports POWER ON.
        let first = self.send(&mut initiator, cdb::test_unit_ready(), &[], 0);
        self.run(&mut [&mut initiator]);
        assert_eq!(std::mem::take(&mut initiator.answered), [(first, 2)]);
        initiator
    }

    /// Sends a command; returns its tag. `expected`: bytes to read.
    fn send(&mut self, initiator: &mut Initiator, cdb: [u8; 16], data: &[u8], expected: u32) -> u32 {
        let tag = initiator.cmd_sn;
        initiator.cmd_sn += 1;
        let command = ScsiCommand {
            immediate: false,
            is_final: true,
            read: expected > 0,
            write: !data.is_empty(),
            attribute: Attribute::Simple,
            lun: Lun::single_level(0),
            initiator_task_tag: tag,
            expected_data_transfer_bytes: expected.max(data.len() as u32),
            cmd_sn: Serial(tag),
            exp_stat_sn: Serial(0),
            cdb,
        };
        self.deliver(initiator, Pdu::new(command.encode(), Bytes::new(), Buffer::copy_from(data), false));
        tag
    }

    fn deliver(&mut self, initiator: &Initiator, pdu: Pdu) {
        let session = self.routing[initiator.worker].sessions.get_mut_ready(initiator.key).expect("it is logged in");
        session.machine.iscsi_mut().unwrap().handle_pdu(self.now, initiator.connection, pdu);
    }

    /// What the event loop of a worker does with its sessions, without connections. Sessions that are over leave their unit.
    fn drive(&mut self, worker: usize) {
        let (routing, now) = (&mut self.routing[worker], self.now);
        while let Some(key) = routing.sessions.pop_ready() {
            let Some(mut session) = routing.sessions.check_out(key) else { continue };
            session.is_ready = false;
            let mut is_over = false;
            while let Some(event) = routing.next_event(now, &mut session) {
                is_over |= matches!(event, SessionEvent::Closed(_));
            }
            if is_over {
                let address = session.unit.clone().expect("every session has a unit");
                routing.leave_unit(now, &address, key);
                continue;
            }
            routing.advance(now, &mut session);
            routing.sessions.check_in(session);
        }
        let mut requests = Vec::new();
        assert!(routing.poll_units(|| false, &mut requests) && requests.is_empty());
    }

    /// Lets both workers take their turns until nothing happens any more; `initiators` take their answers.
    fn run(&mut self, initiators: &mut [&mut Initiator]) {
        for _ in 0..ROUNDS {
            self.step(initiators);
            let is_quiet = self.queue.is_empty() && self.routing.iter().all(|routing| !routing.sessions.has_ready());
            if is_quiet && self.in_flight() == 0 {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn in_flight(&self) -> usize {
        self.routing[UNIT].units.iter_open().map(|(_, open)| open.unit.in_flight()).sum()
    }

    /// One iteration of each worker, a moment later.
    fn step(&mut self, initiators: &mut [&mut Initiator]) {
        self.now += Duration::from_millis(1);
        while self.queue.front().is_some_and(|(_, _, at, _)| *at <= self.now) {
            let (from, to, _, messages) = self.queue.pop_front().expect("it was there");
            self.routing[to].receive(self.now, from, messages);
        }
        for worker in [UNIT, OTHER] {
            self.drive(worker);
            for to in [UNIT, OTHER] {
                let messages = self.routing[worker].take_outgoing(to);
                self.queue.extend(messages.map(|messages| (worker, to, self.now + DELAY, messages)));
            }
        }
        for initiator in initiators {
            self.take_answers(initiator);
        }
    }

    fn take_answers(&mut self, initiator: &mut Initiator) {
        let Some(session) = self.routing[initiator.worker].sessions.get_mut(initiator.key) else { return };
        while let Some(pdu) = session.machine.iscsi_mut().unwrap().poll_transmit(initiator.connection) {
            match Answer::decode(&pdu.bhs).expect("a target's PDU") {
                Answer::ScsiResponse(response) => {
                    initiator.answered.push((response.initiator_task_tag, response.status));
                }
                Answer::DataIn(data) if data.status.is_some() => initiator.answered.push((data.initiator_task_tag, 0)),
                Answer::TaskManagement(response) => initiator.answered.push((response.initiator_task_tag, 0)),
                _ => {}
            }
        }
    }

    fn session(&self, initiator: &Initiator) -> Option<&Session> {
        self.routing[initiator.worker].sessions.get(initiator.key)
    }

    /// Sessions that the unit has.
    fn users(&self) -> usize {
        self.routing[UNIT].units.iter_open().map(|(_, open)| open.unit.users().len()).sum()
    }
}

/// A login that is over, answered as the target does.
fn logged_in(number: u8, now: Instant) -> Login {
    let request = LoginRequest::one_step([0, 0, 0, 0, 0, number]);
    let text = format!("InitiatorName={ALICE}\0TargetName=iqn.a:disk\0SessionType=Normal\0ImmediateData=Yes\0");
    let mut login = Login::new(now, iscsi::Config::default());
    login.handle_pdu(&Pdu::new(request.encode(), Bytes::new(), Buffer::copy_from(text.as_bytes()), false));
    assert!(matches!(login.poll_event(), Some(LoginEvent::Requested(_))));
    login.accept(u16::from(number));
    while login.poll_transmit().is_some() {}
    assert!(matches!(login.poll_event(), Some(LoginEvent::Done)));
    login
}

fn write(lba: u64) -> [u8; 16] {
    cdb::write_16(Lba(lba), 1, false)
}

fn read(lba: u64) -> [u8; 16] {
    cdb::read_16(Lba(lba), 1)
}

#[test]
fn commands_reach_the_unit_of_another_worker_and_responses_return_in_order() {
    let mut workers = Workers::new();
    let mut near = workers.log_in(1);
    let mut far = workers.log_in(2);
    assert_eq!((near.worker, far.worker), (UNIT, OTHER), "the first session is placed at the unit");
    let block = [7; BLOCK as usize];
    let mut sent: [Vec<u32>; 2] = Default::default();
    for lba in 0..8 {
        for (initiator, sent) in [&mut near, &mut far].into_iter().zip(&mut sent) {
            sent.push(workers.send(initiator, write(lba), &block, 0));
        }
        workers.step(&mut []);
    }
    workers.run(&mut [&mut near, &mut far]);
    for (initiator, sent) in [&mut near, &mut far].into_iter().zip(&sent) {
        let expected: Vec<(u32, u8)> = sent.iter().map(|tag| (*tag, 0)).collect();
        assert_eq!(std::mem::take(&mut initiator.answered), expected, "in the order of the commands");
    }
    let tag = workers.send(&mut far, read(3), &[], BLOCK);
    workers.run(&mut [&mut far]);
    assert_eq!(far.answered, [(tag, 0)]);
    // What was sent is given back when the session is driven the next time.
    workers.send(&mut far, cdb::test_unit_ready(), &[], 0);
    workers.run(&mut [&mut far]);
    assert_eq!(workers.budget.report().commands_bytes, 0, "nothing is held for commands that are over");
}

#[test]
fn a_reset_reaches_the_sessions_of_other_workers() {
    let mut workers = Workers::new();
    let mut near = workers.log_in(1);
    let mut far = workers.log_in(2);
    let reset = TaskManagementRequest {
        immediate: true,
        function: 5, // LOGICAL UNIT RESET
        lun: Lun::single_level(0),
        initiator_task_tag: 1000,
        referenced_task_tag: u32::MAX,
        cmd_sn: Serial(far.cmd_sn),
        exp_stat_sn: Serial(0),
        ref_cmd_sn: Serial(0),
        exp_data_sn: 0,
    };
    workers.deliver(&far, Pdu::header_only(reset.encode()));
    workers.run(&mut [&mut near, &mut far]);
    assert_eq!(far.answered, [(1000, 0)]);
    // Both are told by a unit attention, wherever they are.
    for initiator in [&mut near, &mut far] {
        initiator.answered.clear();
        let tag = workers.send(initiator, cdb::test_unit_ready(), &[], 0);
        workers.run(&mut [initiator]);
        assert_eq!(initiator.answered, [(tag, 2)]);
    }
}

#[test]
fn a_session_that_ends_withdraws_its_commands() {
    let mut workers = Workers::new();
    let mut near = workers.log_in(1);
    let mut far = workers.log_in(2);
    for lba in 0..4 {
        workers.send(&mut far, read(lba), &[], BLOCK);
    }
    // They are on their way.
    workers.step(&mut []);
    assert!(workers.budget.report().commands_bytes > 0);
    let session = workers.routing[OTHER].sessions.get_mut_ready(far.key).expect("it is logged in");
    session.machine.handle_closed(workers.now, far.connection, CloseReason::ConnectionLost("gone".to_owned()));
    session.machine.close("the test ends it");
    workers.run(&mut [&mut near]);
    assert!(workers.session(&far).is_none());
    assert_eq!((workers.users(), workers.in_flight()), (1, 0));
    assert_eq!(workers.budget.report().commands_bytes, 0, "what its reads held is given back");
    assert!(!workers.routing[UNIT].has_remote_sessions());
    // A new session is placed there again, and the other one goes on.
    let tag = workers.send(&mut near, read(0), &[], BLOCK);
    workers.run(&mut [&mut near]);
    assert_eq!(near.answered, [(tag, 0)]);
    assert_eq!(workers.log_in(3).worker, OTHER);
}

#[test]
fn a_worker_that_ends_releases_what_its_sessions_held() {
    let mut workers = Workers::new();
    let mut near = workers.log_in(1);
    let mut far = workers.log_in(2);
    workers.send(&mut far, read(0), &[], BLOCK);
    workers.step(&mut []);
    // In order: it tells the unit's worker.
    let ended = workers.routing[OTHER].end(workers.now);
    assert_eq!(ended, [far.key]);
    workers.run(&mut [&mut near]);
    assert_eq!((workers.users(), workers.in_flight()), (1, 0));
    assert_eq!(workers.budget.report().commands_bytes, 0);
    assert!(!workers.routing[UNIT].has_remote_sessions());

    // By a panic: the others are told that it has ended.
    let lost = workers.log_in(4);
    assert_eq!((lost.worker, workers.users()), (OTHER, 2));
    workers.loads.worker_ended(OTHER);
    workers.routing[UNIT].worker_ended(workers.now, OTHER, std::iter::empty());
    assert_eq!(workers.users(), 1);
    assert_eq!(workers.log_in(5).worker, UNIT, "no session is placed at a worker that has ended");
}

#[test]
fn sessions_end_with_the_worker_of_their_unit() {
    let mut workers = Workers::new();
    let _near = workers.log_in(1);
    let far = workers.log_in(2);
    workers.routing[UNIT].end(workers.now);
    for _ in 0..10 {
        workers.step(&mut []);
    }
    assert!(workers.session(&far).is_none(), "it is told, and ends");

    let mut workers = Workers::new();
    let _near = workers.log_in(1);
    let far = workers.log_in(2);
    workers.routing[OTHER].worker_ended(workers.now, UNIT, std::iter::empty());
    workers.drive(OTHER);
    assert!(workers.session(&far).is_none(), "likewise after a panic");
}
