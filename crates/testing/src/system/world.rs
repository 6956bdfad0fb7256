//! One run: initiators, network and target in virtual time, and what goes wrong.

use std::time::{Duration, Instant};

use strongroom_channel::{ChannelKeys, Role};
use strongroom_handshake::PublicKey;
use strongroom_initiator::Scheme;
use strongroom_net::{Link, LinkOptions};
use strongroom_store::StoreError;

use super::checker;
use super::client::{Client, Setup};
use super::contents::Contents;
use super::fencing::Fencing;
use super::history::{Action, History, Operation, Value};
use super::keys::{KeyServer, Lease};
use super::network::{Arrival, End, MICRO, MILLI, Network, Time};
use super::target::{Output, Settings, Target};
use super::troubles::{Trouble, Troubles};
use super::{Planted, Profile, Seen};
use crate::{Faults, Random, SimDisk};

/// After so much virtual time without faults every request must have been answered: an initiator takes a command for lost after 600 s.
const PATIENCE: Time = 1_300_000 * MILLI;
/// So long things go wrong.
const TROUBLED: Time = 400 * MILLI;
/// Names who writes what initiators of ours do not.
const FORGER: u64 = u64::MAX - 1;
/// Blocks of a large volume that initiators discard and do not look at.
const MORE_BLOCKS: u64 = 16 << 10;

/// Where the target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// It ends its sessions, and then its store.
    Stopping,
    /// It begins at this time; after a crash its blocks are looked at.
    Down {
        until: Time,
        crashed: bool,
    },
}

pub(super) struct World {
    random: Random,
    base: Instant,
    now: Time,
    disk: SimDisk,
    network: Network,
    target: Target,
    phase: Phase,
    clients: Vec<Client>,
    next_client: u64,
    history: History,
    next_write: u64,
    setup: Setup,
    troubles: Troubles,
    due: Vec<(Time, Trouble)>,
    /// When the store is polled next.
    tick_at: Option<Time>,
    closes_when_idle_at: Option<Time>,
    seen: Seen,
    blocks: u64,
    more_blocks: u64,
    key_server: KeyServer,
    /// Keys are lent for a time only.
    lends_keys: bool,
    /// Nothing goes wrong any more.
    is_healed: bool,
    /// The disk was damaged anywhere: the store need not open.
    is_damaged: bool,
    /// It did not.
    is_over: bool,
    fencing: Fencing,
    contents: Contents,
}

impl World {
    pub(super) fn new(seed: u64, profile: Profile, planted: Planted) -> World {
        let mut random = Random::new(seed);
        let blocks = if profile == Profile::Flushes { 30 } else { 2 + random.below(8) };
        let disk = SimDisk::new(random.number());
        let key_server = KeyServer::new();
        let more_blocks = if profile == Profile::Large { MORE_BLOCKS } else { 0 };
        let settings = Settings {
            blocks,
            more_blocks,
            planted: planted.store,
            key_server: key_server.clone(),
            forgets_reservations: planted.forgets_reservations,
        };
        let target = Target::new(disk.clone(), settings, random.fork());
        let delay_max = match profile {
            Profile::Flushes => 500 * MICRO,
            _ => [50 * MICRO, 150 * MICRO, 500 * MICRO][random.below(3) as usize],
        };
        let network = Network::new(random.fork(), delay_max);
        let troubles = Troubles::choose(&mut random, profile);
        let scheme = Scheme::ALL[random.below(Scheme::ALL.len() as u64) as usize];
        if planted.directory_not_synced {
            disk.leave_out_directory_sync();
        }
        let flushes = if profile == Profile::Flushes { 4 } else { 1 + random.below(6) };
        let halves = match profile {
            Profile::Halves => true,
            Profile::Everything | Profile::OneInitiator => random.once_in(4),
            _ => false,
        };
        disk.set_faults(Faults { wrong_resumption: planted.wrong_resumption, ..Faults::default() });
        let mut world = World {
            random,
            base: Instant::now(),
            now: 0,
            disk,
            network,
            target,
            phase: Phase::Serving,
            clients: Vec::new(),
            next_client: 1,
            history: History { has_halves: halves, ..History::default() },
            next_write: 0,
            setup: Setup {
                scheme,
                flushes,
                halves,
                late_flush_marks: planted.late_flush_marks,
                forgets_operations: planted.forgets_operations,
                key_server: key_server.clone(),
            },
            troubles: Troubles::default(),
            due: Vec::new(),
            tick_at: None,
            closes_when_idle_at: None,
            seen: Seen::default(),
            blocks,
            more_blocks,
            key_server,
            lends_keys: troubles.lends_keys(),
            is_healed: false,
            is_damaged: false,
            is_over: false,
            fencing: Fencing::new(),
            contents: Contents::default(),
        };
        world.target.open().expect("nothing goes wrong yet");
        world.begin(troubles, profile);
        world
    }

    /// The first initiator formats the volume; then everybody begins, and so do the troubles.
    fn begin(&mut self, troubles: Troubles, profile: Profile) {
        let requests = 20 + self.random.below(120);
        let client = self.client(0, 0);
        self.clients.push(client);
        self.run_until(|world| world.clients[0].machine.is_attached());
        self.clients[0].format(&mut self.history);
        self.run_until(|world| world.clients[0].is_quiet());
        self.clients[0].flush(&mut self.history);
        self.run_until(|world| world.clients[0].is_quiet());
        if self.more_blocks > 0 {
            self.target.fill();
            self.clients[0].discard_all(self.more_blocks, &mut self.history);
        }
        self.clients[0].requests_left = requests;
        let others = match profile {
            Profile::OneInitiator | Profile::Flushes | Profile::Large => 0,
            Profile::Everything => self.random.below(3),
            Profile::Clones => 1,
            _ => 1 + self.random.below(2),
        };
        let cloned = match profile {
            Profile::Clones => true,
            _ => profile == Profile::Everything && self.random.once_in(3),
        };
        if cloned {
            // While the volume is written to.
            let until = self.now + self.random.below(10 * MILLI);
            self.run_until(|world| world.now >= until);
            let invoked = self.history.now();
            self.target.make_clone();
            let returned = self.history.now();
            self.contents.note_clone((invoked, returned), &mut self.target, &mut self.history);
            self.seen.clones += 1;
        }
        if profile == Profile::Everything {
            self.forge();
        }
        for at in 0..others {
            let view = usize::from(cloned && (at == 0 || self.random.once_in(2)));
            let client = self.client(view, requests);
            self.clients.push(client);
        }
        self.troubles = troubles;
        for (trouble, every) in troubles.timed() {
            let at = self.now + self.random.below(2 * every);
            self.due.push((at, trouble));
        }
    }

    /// Somebody names a write as if it were another one; see [`Target::write_overlapping`].
    fn forge(&mut self) {
        let writes = [self.next_write + 1, self.next_write + 2];
        self.next_write += 2;
        let invoked = [self.history.now(), self.history.now()];
        let answered = self.target.write_overlapping(writes);
        assert!(answered[0], "the first one is like any other");
        for at in 0..2 {
            let returned = Some(self.history.now()).filter(|_| answered[at]);
            for register in 0..self.history.registers_of(at as u64).end {
                let action = Action::Write(Value::Written(writes[at]));
                let invoked = invoked[at];
                let (initiator, durable) = (FORGER, false);
                let forger = Operation { initiator, view: 0, register, action, durable, invoked, returned };
                self.history.operations.push(forger);
            }
        }
    }

    fn client(&mut self, view: usize, requests: u64) -> Client {
        let number = self.next_client;
        self.next_client += 1;
        let mut client = Client::new(number, view, self.random.fork(), self.blocks, self.setup.clone());
        client.requests_left = requests;
        client.retry_at = self.now + self.random.below(MILLI);
        client
    }

    /// Runs to the end and checks everything. What was seen on the way.
    pub(super) fn run(mut self) -> Seen {
        let until = self.now + TROUBLED;
        self.run_until(|world| world.clients.iter().all(Client::is_done) || world.now >= until);
        self.heal();
        self.run_until(|world| world.clients.iter().all(Client::is_done) && world.fencing.is_free());
        if !self.is_over {
            self.look_last();
        }
        for client in &mut self.clients {
            client.die(&mut self.history);
        }
        self.seen.requests += self.history.operations.len() as u64;
        self.seen.commands += self.target.commands;
        self.seen.histories += 1;
        self.seen.registers += self.history.registers_of(self.blocks).start;
        self.seen.steps_of_a_call_max = self.target.steps_max;
        self.seen.snapshots_checked += self.contents.snapshots_checked;
        self.seen.fences += self.fencing.fences;
        self.seen.failed_reads += self.history.failed_reads.len() as u64;
        self.seen.halves += u64::from(self.history.has_halves);
        for client in &self.clients {
            let counters = client.machine.counters();
            self.seen.resent += counters.commands_resent;
            self.seen.replayed += counters.blocks_replayed;
        }
        match checker::check(&self.history) {
            Ok(undecided) => self.seen.undecided += undecided,
            Err(violation) => panic!("{violation}"),
        }
        self.seen
    }

    /// Everybody reads everything, and then the target crashes once more.
    fn look_last(&mut self) {
        self.run_until(|world| world.clients.iter().all(|client| client.machine.is_attached()));
        if self.is_over {
            return;
        }
        for client in &mut self.clients {
            client.read_all(&mut self.history);
        }
        self.run_until(|world| world.clients.iter().all(Client::is_quiet));
        for client in &mut self.clients {
            client.flush(&mut self.history);
        }
        self.run_until(|world| world.clients.iter().all(Client::is_quiet));
        self.crash();
        self.run_until(|world| world.phase == Phase::Serving);
    }

    /// Nothing goes wrong from now on.
    fn heal(&mut self) {
        self.is_healed = true;
        for lease in self.clients.iter_mut().filter_map(|client| client.lease.as_mut()) {
            lease.goes_away(0);
        }
        self.troubles = Troubles::default();
        self.due.clear();
        self.disk.set_failing_reads(0);
        self.due.push((self.now, Trouble::Reservations));
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_nanos(self.now)
    }

    fn run_until(&mut self, done: impl Fn(&World) -> bool) {
        let begun = self.now;
        while !self.is_over && !done(self) {
            self.step();
            if self.now - begun > PATIENCE {
                let waiting: Vec<_> = self.clients.iter().map(|one| (one.number, one.machine.last_loss())).collect();
                panic!("requests are not answered: {:?}, {waiting:?}", self.phase);
            }
        }
    }

    /// When something happens next.
    fn next(&self) -> Time {
        let nanoseconds = |at: Instant| at.saturating_duration_since(self.base).as_nanos() as Time;
        let clients = self.clients.iter().filter_map(|client| client.poll_timeout(self.base)).min();
        let phase = match self.phase {
            Phase::Down { until, .. } => Some(until),
            Phase::Stopping => Some(self.now + 20 * MICRO),
            Phase::Serving => self.closes_when_idle_at,
        };
        let target = self.target.poll_timeout().map(nanoseconds);
        let trouble = self.due.iter().map(|(at, _)| *at).min();
        let all = [self.network.next_arrival(), clients, phase, target, trouble, self.tick_at];
        all.into_iter().flatten().min().unwrap_or(self.now + MILLI)
    }

    fn step(&mut self) {
        self.now = self.next().max(self.now + MICRO);
        self.seen.steps += 1;
        self.move_phase();
        self.make_trouble();
        self.fencing.drive(&mut self.target, &mut self.history);
        let now = self.instant();
        for (id, end, arrival) in self.network.arrived(self.now) {
            self.arrive(now, id, end, arrival);
        }
        for at in 0..self.clients.len() {
            self.drive_client(now, at);
        }
        self.target.handle_timeout(now);
        for output in self.target.drive(now) {
            match output {
                Output::Bytes(id, bytes) => self.network.send(self.now, id, End::Target, bytes),
                Output::Close(id) => self.network.close(self.now, id, End::Target),
            }
        }
        self.contents.take_snapshots(&mut self.target, &mut self.history);
        self.tick_at = self.target.is_working().then(|| self.now + 5 * MICRO + self.random.below(200 * MICRO));
    }

    fn arrive(&mut self, now: Instant, id: u64, end: End, arrival: Arrival) {
        match (end, arrival) {
            (End::Target, Arrival::Bytes(bytes)) => self.target.handle_input(now, id, &bytes),
            (End::Target, Arrival::Closed) => self.target.handle_closed(now, id),
            (End::Initiator, arrival) => {
                let Some(client) = self.clients.iter_mut().find(|client| client.connection == Some(id)) else { return };
                match arrival {
                    Arrival::Bytes(bytes) => client.machine.handle_input(now, &bytes),
                    Arrival::Closed => client.machine.connection_lost(now),
                }
            }
        }
    }

    fn drive_client(&mut self, now: Instant, at: usize) {
        let is_serving = self.phase == Phase::Serving;
        let client = &mut self.clients[at];
        client.machine.handle_timeout(now);
        client.take_answers(&mut self.history);
        if self.lends_keys && client.machine.is_attached() {
            let lease =
                client.lease.get_or_insert_with(|| Lease::new(self.key_server.clone(), self.now, &mut self.random));
            self.seen.leases_ended += u64::from(lease.handle_timeout(self.now, &mut client.machine));
        }
        while client.next_request().is_some_and(|at| at <= self.now) {
            client.request(self.now, &mut self.history, &mut self.next_write);
        }
        if let Some(id) = client.connection.filter(|_| !client.machine.is_connected()) {
            assert!(!client.machine.is_refused(), "initiator {}: {:?}", client.number, client.machine.last_loss());
            client.connection = None;
            client.retry_at = self.now + 50 * MICRO + self.random.below(3 * MILLI);
            self.network.close(self.now, id, End::Initiator);
        }
        if client.connection.is_none() && client.retry_at <= self.now {
            client.retry_at = self.now + 200 * MICRO + self.random.below(3 * MILLI);
            if is_serving {
                self.connect(now, at);
            }
        }
        let client = &mut self.clients[at];
        client.take_answers(&mut self.history);
        let mut bytes = Vec::new();
        loop {
            let made = client.machine.poll_transmit(now);
            if made.is_empty() {
                break;
            }
            bytes.extend(made.iter().flat_map(|buffer| buffer.iter().copied()));
        }
        if let Some(id) = client.connection
            && !bytes.is_empty()
        {
            self.network.send(self.now, id, End::Initiator, bytes);
        }
    }

    fn connect(&mut self, now: Instant, at: usize) {
        // The target opens its volume at the first login.
        if let Err(error) = self.target.open() {
            self.not_opened(&error);
            return;
        }
        self.set_disk_faults(false);
        self.closes_when_idle_at = None;
        let id = self.network.connect();
        let mut exporter = [0; 32];
        exporter[..8].copy_from_slice(&id.to_be_bytes());
        let keys = || ChannelKeys::new(exporter, self.setup.scheme);
        let node = |number: u64| {
            let mut bytes = [0; PublicKey::BYTES];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            PublicKey::from_bytes(bytes)
        };
        let client = &mut self.clients[at];
        let options = LinkOptions { setup_timeout: Duration::from_millis(200), ..LinkOptions::default() };
        let ours = Link::simulated(Role::Initiator, keys(), node(0), options.clone(), now);
        let theirs = Link::simulated(Role::Target, keys(), node(client.number), options, now);
        client.connection = Some(id);
        client.machine.connected(now, ours);
        self.target.accept(id, theirs, node(client.number));
        self.seen.connections += 1;
    }

    /// The store does not open now: the disk fails to read, or it is damaged and never will.
    fn not_opened(&mut self, error: &StoreError) {
        if self.troubles.failing_reads {
            self.seen.openings_failed += 1;
            return;
        }
        assert!(self.is_damaged, "the store does not open: {error}");
        self.seen.refused_openings += 1;
        self.is_over = true;
    }

    fn set_disk_faults(&mut self, opening: bool) {
        let failing = opening && self.troubles.failing_reads && self.random.once_in(2);
        self.disk.set_failing_reads(if failing { 8 + self.random.below(60) } else { 0 });
    }

    fn move_phase(&mut self) {
        if self.phase == Phase::Stopping {
            // Those too that were logging in.
            self.target.end_all_sessions();
        }
        match self.phase {
            Phase::Stopping if self.target.is_idle() || !self.target.is_open() => {
                self.close_store();
                let until = self.now + self.random.below(2 * MILLI);
                self.phase = Phase::Down { until, crashed: false };
            }
            Phase::Down { until, crashed } if until <= self.now => {
                self.set_disk_faults(true);
                if crashed {
                    if let Err(error) = self.target.open() {
                        self.not_opened(&error);
                        self.phase = Phase::Down { until: self.now + MILLI, crashed };
                        return;
                    }
                    self.set_disk_faults(false);
                    self.contents.look_around(&mut self.target, &self.disk, &mut self.history);
                }
                self.phase = Phase::Serving;
            }
            Phase::Serving if self.closes_when_idle_at.is_some_and(|at| at <= self.now) => {
                self.closes_when_idle_at = None;
                if self.target.is_idle() {
                    self.close_store();
                }
            }
            Phase::Serving
                if self.troubles.idle_close && self.target.is_idle() && self.closes_when_idle_at.is_none() =>
            {
                self.closes_when_idle_at = Some(self.now + self.random.below(MILLI));
            }
            _ => {}
        }
    }

    fn close_store(&mut self) {
        let is_whole = self.target.close_store();
        self.seen.orderly_closes += 1;
        if is_whole && self.troubles.rots_anywhere && self.random.once_in(4) {
            self.contents.rot_anywhere(self.blocks, &self.disk, &mut self.history, &mut self.random);
            self.seen.rotten_blocks += 1;
            self.is_damaged = true;
        }
        self.set_disk_faults(true);
    }

    fn crash(&mut self) {
        if matches!(self.phase, Phase::Down { crashed: true, .. }) {
            return;
        }
        let at = self.history.now();
        self.history.crashes.push(at);
        self.target.crash();
        self.fencing.target_crashed();
        self.disk.crash();
        self.network.target_crashed(self.now);
        self.seen.crashes += 1;
        let until = self.now + self.random.below(3 * MILLI);
        self.phase = Phase::Down { until, crashed: true };
    }

    fn make_trouble(&mut self) {
        let (due, later): (Vec<_>, Vec<_>) = self.due.iter().partition(|(at, _)| *at <= self.now);
        self.due = later;
        for (_, trouble) in due {
            self.cause(trouble);
            if let Some((_, every)) = self.troubles.timed().find(|(one, _)| *one == trouble) {
                self.due.push((self.now + self.random.below(2 * every), trouble));
            }
        }
    }

    fn cause(&mut self, trouble: Trouble) {
        let open = self.network.open();
        let connection = (!open.is_empty()).then(|| open[self.random.below(open.len() as u64) as usize]);
        match (trouble, connection) {
            (Trouble::Cut, Some(id)) => {
                self.network.cut(self.now, id);
                self.seen.cuts += 1;
            }
            (Trouble::Silence, Some(id)) => {
                self.network.silence(id);
                self.seen.silences += 1;
            }
            (Trouble::Damage, Some(id)) => {
                self.network.damage(id);
                self.seen.damages += 1;
            }
            (Trouble::Crash, _) => self.crash(),
            (Trouble::Restart, _) if self.phase == Phase::Serving => {
                self.target.end_all_sessions();
                self.phase = Phase::Stopping;
                self.seen.restarts += 1;
            }
            (Trouble::Reset, _) => {
                self.target.reset();
                self.seen.resets += 1;
            }
            (Trouble::Abort, _) => {
                self.target.clear_task_set();
                self.seen.aborts += 1;
            }
            (Trouble::EndSession, _) => self.target.end_session(),
            (Trouble::Death, _) => self.replace_client(),
            (Trouble::KeyServerAway, _) => self.lose_key_server(),
            (Trouble::KeyEpoch, _) => self.seen.key_epochs += u64::from(self.key_server.begin_epoch()),
            (Trouble::Idle, _) => self.target.idle(),
            (Trouble::Snapshots, _) => {
                let changed = self.contents.change_snapshots(&mut self.target, &mut self.history, &mut self.random);
                self.seen.snapshot_changes += u64::from(changed);
            }
            (Trouble::Reservations, _) => self.change_reservations(),
            (Trouble::Rot, _) => {
                let hit = self.contents.rot(&self.disk, &mut self.history, &mut self.random);
                self.seen.rotten_blocks += u64::from(hit);
            }
            _ => {}
        }
    }

    /// An initiator dies, and another one takes its place.
    fn replace_client(&mut self) {
        let at = self.random.below(self.clients.len() as u64) as usize;
        self.clients[at].die(&mut self.history);
        if let Some(id) = self.clients[at].connection {
            self.network.cut(self.now, id);
        }
        let Client { requests_left, view, .. } = self.clients[at];
        self.clients[at] = self.client(view, requests_left);
        self.seen.deaths += 1;
    }

    /// An initiator does not reach the key server for a while.
    fn lose_key_server(&mut self) {
        let until = self.now + self.random.below(40 * MILLI);
        let at = self.random.below(self.clients.len() as u64) as usize;
        if let Some(lease) = &mut self.clients[at].lease {
            lease.goes_away(until);
        }
    }

    /// Who uses the volume keeps others out, or lets them in again.
    fn change_reservations(&mut self) {
        let users = self.clients.iter().filter(|client| client.view == 0 && self.target.has_session(client.number));
        let users: Vec<u64> = users.map(|client| client.number).collect();
        let ends = self.is_healed;
        self.fencing.change(&users, ends, &mut self.random);
        if ends && !self.fencing.is_free() {
            self.due.push((self.now + MILLI, Trouble::Reservations));
        }
    }
}
