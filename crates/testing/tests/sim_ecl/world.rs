//! Both ends of an association, the network between them, and time, from one seed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strongroom_block::{AttachId, Buffer, SealRecord, Stamp, Suite};
use strongroom_ecl::{Config, CongestionAlgorithm, Datagram, EclKeys, Parity, Planted, RekeyLimits, Scheme, Transmit};
use strongroom_ecl::{initiator, target};
use strongroom_scsi::transport::initiator::{Command, Event, TaskId, WriteRecords, WriteSource};
use strongroom_scsi::transport::{Lun, Operation, Parameters, target as scsi_target};
use strongroom_testing::Random;

use crate::model::{BLOCKS, Expectation, Unit, content, record};
use crate::network::{Conditions, End, Flying, Micros, Network};

const SECOND: Micros = 1_000_000;
/// Once the network is good, everything under way is over within this time, or something hangs.
const CALM_MAX: Micros = 60 * SECOND;

/// Longer than any run takes that does not hang.
const RUN_MAX: Micros = 3600 * SECOND;

/// What happens in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Everything at once, a little of each.
    Everything,
    /// Much is lost, and credits are short.
    Loss,
    /// Packets come again, up to seconds later, while slots are used again and again.
    Repeats,
    /// Ends crash and log in again.
    Crashes,
    /// The path takes ever shorter packets, then longer ones.
    Mtu,
}

/// What a run came across.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) completed: u64,
    pub(crate) crashes: u64,
    pub(crate) lost: u64,
    pub(crate) damaged: u64,
    pub(crate) checksum: u64,
    pub(crate) not_authentic: u64,
    pub(crate) replayed: u64,
    pub(crate) stale: u64,
    pub(crate) too_long: u64,
    pub(crate) black_holes: u64,
    pub(crate) reductions: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) placed_bytes: u64,
    pub(crate) rekeys: u64,
    pub(crate) repaired: u64,
}

impl Seen {
    pub(crate) fn merge(&mut self, other: Seen) {
        self.completed += other.completed;
        self.crashes += other.crashes;
        self.lost += other.lost;
        self.damaged += other.damaged;
        self.checksum += other.checksum;
        self.not_authentic += other.not_authentic;
        self.replayed += other.replayed;
        self.stale += other.stale;
        self.too_long += other.too_long;
        self.black_holes += other.black_holes;
        self.reductions += other.reductions;
        self.copied_bytes += other.copied_bytes;
        self.placed_bytes += other.placed_bytes;
        self.rekeys += other.rekeys;
        self.repaired += other.repaired;
    }
}

fn address(end: End) -> SocketAddr {
    SocketAddr::from(match end {
        End::Initiator => ([10, 0, 0, 1], 5000),
        End::Target => ([10, 0, 0, 2], 3260),
    })
}

struct World {
    random: Random,
    profile: Profile,
    planted: Planted,
    base: Instant,
    now: Micros,
    network: Network,
    initiator: initiator::Session,
    target: target::Session,
    /// The number of the present one, which says what its login has settled.
    association: u32,
    quantum_bytes: u32,
    unit: Unit,
    /// Commands that the unit has, by when it executes them.
    executing: Vec<(Micros, scsi_target::Command)>,
    expectation: Expectation,
    names: HashMap<TaskId, u64>,
    seen: Seen,
}

/// Runs one seed; panics when a promise is broken.
pub(crate) fn simulate(seed: u64, profile: Profile, planted: Planted) -> Seen {
    let mut world = World::new(seed, profile, planted);
    let operations = 120 + world.random.below(120);
    let mut begun = 0;
    while begun < operations {
        world.disturb();
        while world.expectation.under_way() < 8 && begun < operations && world.begin() {
            begun += 1;
        }
        assert!(world.now < RUN_MAX, "hangs: nothing begins any more");
        world.step();
    }
    world.calm();
    world.count_association();
    world.seen
}

fn conditions(profile: Profile, random: &mut Random) -> Conditions {
    let usual = Conditions {
        lost: random.below(60),
        repeated: random.below(60),
        damaged: random.below(30),
        delay_max: 100 + random.below(2000),
        repeat_delay_max: 1 + random.below(2 * SECOND),
        packet_bytes_max: 9000,
    };
    match profile {
        Profile::Everything | Profile::Crashes => usual,
        Profile::Loss => Conditions { lost: 100 + random.below(200), ..usual },
        Profile::Repeats => Conditions { repeated: 400, lost: random.below(100), ..usual },
        Profile::Mtu => Conditions { packet_bytes_max: 1300, damaged: 0, ..usual },
    }
}

impl World {
    #[allow(clippy::disallowed_methods)]
    fn new(seed: u64, profile: Profile, planted: Planted) -> World {
        let mut random = Random::new(seed);
        let quantum_bytes = 512 << random.below(4);
        let conditions = conditions(profile, &mut random);
        let base = Instant::now();
        let network = Network::new(random.fork(), conditions);
        let association = 1 + random.below(12) as u32;
        let (initiator, target) = pair(base, association, quantum_bytes, profile, planted);
        World {
            random,
            profile,
            planted,
            base,
            now: 0,
            network,
            initiator,
            target,
            association,
            quantum_bytes,
            unit: Unit::default(),
            executing: Vec::new(),
            expectation: Expectation::default(),
            names: HashMap::new(),
            seen: Seen::default(),
        }
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    /// Something that is not packets happens now and then.
    fn disturb(&mut self) {
        let may_crash = matches!(self.profile, Profile::Everything | Profile::Crashes);
        if may_crash && self.random.once_in(if self.profile == Profile::Crashes { 150 } else { 2000 }) {
            self.crash();
        }
        let changes_mtu = matches!(self.profile, Profile::Everything | Profile::Mtu);
        if changes_mtu && self.random.once_in(500) {
            self.network.conditions.packet_bytes_max =
                [700, 1300, 1472, 2300, 4300, 9000][self.random.below(6) as usize];
        }
    }

    /// One of the ends crashes: both have to begin again. What was on its way stays on its way.
    fn crash(&mut self) {
        self.seen.crashes += 1;
        self.count_association();
        // The unit has executed some of what it had, and never executes the rest.
        for (_, command) in std::mem::take(&mut self.executing) {
            if self.random.once_in(2) {
                self.unit.execute(&command, self.quantum_bytes as usize);
            }
        }
        self.expectation.forget();
        self.names.clear();
        self.association += 1;
        (self.initiator, self.target) =
            pair(self.instant(), self.association, self.quantum_bytes, self.profile, self.planted);
    }

    fn count_association(&mut self) {
        for statistics in [self.initiator.statistics(), self.target.statistics()] {
            self.seen.lost += statistics.packets_lost;
            self.seen.checksum += statistics.dropped.checksum;
            self.seen.not_authentic += statistics.dropped.not_authentic;
            self.seen.replayed += statistics.dropped.replayed;
            self.seen.stale += statistics.stale;
            self.seen.black_holes += statistics.black_holes;
            self.seen.copied_bytes += statistics.copied_bytes;
            self.seen.placed_bytes += statistics.placed_bytes;
            self.seen.rekeys += statistics.rekeys;
            self.seen.repaired += statistics.quanta_repaired;
        }
        self.seen.damaged = self.network.damaged;
        self.seen.too_long = self.network.too_long;
    }

    /// Begins a command; false if the session takes none now.
    fn begin(&mut self) -> bool {
        let count = 1 + self.random.below(8);
        let lba = self.random.below(BLOCKS - count);
        let kind = self.random.below(10);
        if kind == 0 {
            let flush = Command::without_data(Lun(0), [0x91, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            return self.initiator.submit(flush).is_ok();
        }
        let is_write = kind < 6;
        if is_write && self.expectation.overlaps_a_write(lba, count) {
            return false;
        }
        let name = self.expectation.begin(lba, count, is_write);
        let command = self.command(name, lba, count, is_write);
        match self.initiator.submit(command) {
            Ok(task) => {
                self.names.insert(task, name);
                true
            }
            Err(_) => {
                // Not sent: it has no outcome. What it may have written it has not.
                self.expectation.withdraw(name);
                false
            }
        }
    }

    fn command(&self, name: u64, lba: u64, count: u64, is_write: bool) -> Command {
        let mut cdb = [0; 16];
        cdb[0] = if is_write { 0x8a } else { 0x88 };
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&(count as u32).to_be_bytes());
        let block_bytes = self.quantum_bytes as usize;
        if !is_write {
            let read = Command::read(Lun(0), cdb, count as u32 * self.quantum_bytes);
            return Command { sealed_block_bytes: Some(self.quantum_bytes), ..read };
        }
        let blocks: Vec<Vec<u8>> = (lba..lba + count).map(|lba| content(name, lba, block_bytes)).collect();
        let records: Vec<u8> = blocks.iter().flat_map(|block| record(name, block).as_bytes().to_vec()).collect();
        let records = WriteRecords {
            block_bytes: self.quantum_bytes,
            record_bytes: SealRecord::BASE_BYTES as u32,
            bytes: records.into(),
        };
        let data = Buffer::copy_from(&blocks.concat());
        let write = Command::write(Lun(0), cdb, WriteSource { data, records: Some(records) });
        let id = Stamp { attach_id: AttachId([7; 16]), counter: name };
        let operation = Some(Ok(Operation { id, replay: None }));
        Command { parameters: Parameters { operation, ..Parameters::default() }, ..write }
    }

    /// Time moves to what happens next, and it happens.
    fn step(&mut self) {
        self.pump();
        let micros = |at: Instant| at.saturating_duration_since(self.base).as_micros() as Micros + 1;
        let timers = [self.initiator.poll_timeout(), self.target.poll_timeout()].into_iter().flatten().map(micros);
        let executions = self.executing.iter().map(|(at, _)| *at);
        let next = timers.chain(self.network.next_at()).chain(executions).min().unwrap_or(self.now + 1000);
        self.now = next.max(self.now + 1);
        let now = self.instant();
        while let Some(flying) = self.network.arrival(self.now) {
            let (from, to) = match flying.to {
                End::Initiator => (End::Target, End::Initiator),
                End::Target => (End::Initiator, End::Target),
            };
            // As a driver receives it: in two pieces where it was sent in two.
            let rest = Buffer::copy_from(&flying.payload);
            let datagram = Datagram { rest, ..Datagram::whole(address(from), flying.head) };
            match to {
                End::Initiator => self.initiator.handle_datagram(now, datagram),
                End::Target => self.target.handle_datagram(now, datagram),
            }
        }
        self.initiator.handle_timeout(now);
        self.target.handle_timeout(now);
        self.execute();
        self.events();
        let is_over = self.initiator.is_closed() || self.target.is_closed();
        if is_over {
            // Half a minute of silence, or a goodbye: the initiator logs in again.
            self.crash();
        }
    }

    fn execute(&mut self) {
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.executing).into_iter().partition(|(at, _)| *at <= now);
        self.executing = later;
        let due: Vec<(Micros, scsi_target::Command)> = due;
        for (_, command) in due {
            let response = self.unit.execute(&command, self.quantum_bytes as usize);
            self.target.complete(command.task, response);
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.target.poll_event() {
            match event {
                scsi_target::Event::Command(command) => {
                    let delay = 10 + self.random.below(500);
                    self.executing.push((self.now + delay, command));
                }
                scsi_target::Event::Closed { misbehaved, reason } => {
                    assert!(!misbehaved, "the target says: {reason}");
                }
                scsi_target::Event::Transport(_) => self.seen.reductions += 1,
                other => panic!("nothing else was asked for: {other:?}"),
            }
        }
        while let Some(event) = self.initiator.poll_event() {
            match event {
                Event::DataIn(part) => {
                    let name = self.names[&part.task];
                    self.expectation.returned(name, part.offset, &part.content, self.quantum_bytes as usize);
                }
                Event::Completed(completed) => {
                    assert_eq!((completed.status, completed.response), (0, 0));
                    self.seen.completed += 1;
                    if let Some(name) = self.names.remove(&completed.task) {
                        self.expectation.completed(name);
                    }
                }
                Event::Transport(initiator::EclEvent::Established) => {}
                Event::Transport(initiator::EclEvent::PathReduced(_)) => self.seen.reductions += 1,
                Event::Closed { reason } => assert!(!reason.contains("broke the protocol"), "{reason}"),
                other => panic!("nothing else was asked for: {other:?}"),
            }
        }
    }

    fn pump(&mut self) {
        let now = self.instant();
        let fly = |to, Transmit { head, payload }: Transmit| Flying { to, head, payload: payload.to_vec() };
        while let Some(transmit) = self.initiator.poll_transmit(now) {
            self.network.send(self.now, fly(End::Target, transmit));
        }
        while let Some(transmit) = self.target.poll_transmit(now) {
            self.network.send(self.now, fly(End::Initiator, transmit));
        }
    }

    /// The network becomes good: everything has to come to an end.
    fn calm(&mut self) {
        self.network.conditions = Conditions::GOOD;
        let until = self.now + CALM_MAX;
        while self.expectation.under_way() > 0 {
            assert!(self.now < until, "hangs: {} commands after a minute of calm", self.expectation.under_way());
            self.step();
        }
    }
}

fn pair(
    now: Instant,
    association: u32,
    quantum_bytes: u32,
    profile: Profile,
    planted: Planted,
) -> (initiator::Session, target::Session) {
    let config = |peer| {
        let scheme = if association.is_multiple_of(2) { Scheme::LazyAuth } else { Scheme::Lazy };
        let mut exporter = [7; 32];
        exporter[..4].copy_from_slice(&association.to_be_bytes());
        let keys = EclKeys::new(exporter, scheme, Suite::Aes256Gcm);
        let mut config = Config::new(keys, association, peer, quantum_bytes);
        config.window_bytes = if profile == Profile::Loss { 8 * u64::from(quantum_bytes) } else { 1 << 20 };
        config.queue_depth = 16;
        config.rekey = RekeyLimits { packets: 100, ..RekeyLimits::default() };
        let is_cubic = association.is_multiple_of(3);
        config.congestion = if is_cubic { CongestionAlgorithm::Cubic } else { CongestionAlgorithm::Bbr };
        let parities = [None, Parity::new(2, 1), Parity::new(4, 2), Parity::new(8, 1)];
        config.parity = parities[association as usize % parities.len()];
        config.planted = planted;
        config
    };
    let target_peer = SocketAddr::new(address(End::Initiator).ip(), 0);
    (initiator::Session::new(now, &config(address(End::Target))), target::Session::new(now, &config(target_peer)))
}
