//! One run: initiators, network and target in virtual time, and what goes wrong.

use std::time::{Duration, Instant};

use strongroom_channel::{ChannelKeys, Role};
use strongroom_handshake::PublicKey;
use strongroom_initiator::Scheme;
use strongroom_net::{Link, LinkOptions};

use super::checker;
use super::client::{Client, Setup};
use super::history::{Action, Crash, History, Operation, Value};
use super::network::{Arrival, End, MICRO, MILLI, Network, Time};
use super::target::{Output, Settings, Target, VIEWS};
use super::{Planted, Profile, Seen};
use crate::{Faults, Random, SimDisk};

/// After so much virtual time without faults every request must have been answered.
const PATIENCE: Time = 600_000 * MILLI;
/// So long things go wrong.
const TROUBLED: Time = 400 * MILLI;
/// Names whoever looks at the blocks after a crash.
const INSPECTOR: u64 = u64::MAX;
/// Names who writes what initiators of ours do not.
const FORGER: u64 = u64::MAX - 1;

/// How often what goes wrong, in nanoseconds on average; `None`: never.
#[derive(Clone, Copy, Debug, Default)]
struct Troubles {
    cut: Option<Time>,
    silence: Option<Time>,
    damage: Option<Time>,
    crash: Option<Time>,
    /// The target closes its store in order, as soon as no session uses it, and opens it at the next login.
    idle_close: bool,
    /// The target ends all sessions, closes its store and begins again.
    restart: Option<Time>,
    reset: Option<Time>,
    end_session: Option<Time>,
    death: Option<Time>,
    keys_lost: Option<Time>,
    snapshots: Option<Time>,
    failing_reads: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Cut,
    Silence,
    Damage,
    Crash,
    Restart,
    Reset,
    EndSession,
    Death,
    KeysLost,
    Snapshots,
    Idle,
}

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
}

impl World {
    pub(super) fn new(seed: u64, profile: Profile, planted: Planted) -> World {
        let mut random = Random::new(seed);
        let blocks = 2 + random.below(8);
        let disk = SimDisk::new(random.number());
        let settings = Settings { blocks, planted: planted.store };
        let target = Target::new(disk.clone(), settings, random.fork());
        let delay_max = [50 * MICRO, 150 * MICRO, 500 * MICRO][random.below(3) as usize];
        let network = Network::new(random.fork(), delay_max);
        let troubles = Troubles::choose(&mut random).within(profile);
        let scheme = Scheme::ALL[random.below(Scheme::ALL.len() as u64) as usize];
        if planted.directory_not_synced {
            disk.leave_out_directory_sync();
        }
        let flushes = 1 + random.below(6);
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
            history: History::default(),
            next_write: 0,
            setup: Setup { scheme, flushes, late_flush_marks: planted.late_flush_marks },
            troubles: Troubles::default(),
            due: Vec::new(),
            tick_at: None,
            closes_when_idle_at: None,
            seen: Seen::default(),
            blocks,
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
        self.clients[0].requests_left = requests;
        let others = match profile {
            Profile::OneInitiator => 0,
            Profile::Everything => self.random.below(3),
            Profile::Clones => 1,
            Profile::Cuts | Profile::Closes | Profile::Crashes => 1 + self.random.below(2),
        };
        let cloned = match profile {
            Profile::Clones => true,
            _ => profile == Profile::Everything && self.random.once_in(3),
        };
        if cloned {
            self.target.make_clone();
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
        for (trouble, every) in troubles.all() {
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
            for block in 0..=at as u64 {
                let action = Action::Write(Value::Written(writes[at]));
                let invoked = invoked[at];
                let forger = Operation { initiator: FORGER, view: 0, block, action, durable: false, invoked, returned };
                self.history.operations.push(forger);
            }
        }
    }

    fn client(&mut self, view: usize, requests: u64) -> Client {
        let number = self.next_client;
        self.next_client += 1;
        let mut client = Client::new(number, view, self.random.fork(), self.blocks, self.setup);
        client.requests_left = requests;
        client.retry_at = self.now + self.random.below(MILLI);
        client
    }

    /// Runs to the end and checks everything. What was seen on the way.
    pub(super) fn run(mut self) -> Seen {
        let until = self.now + TROUBLED;
        self.run_until(|world| world.clients.iter().all(Client::is_done) || world.now >= until);
        self.heal();
        self.run_until(|world| world.clients.iter().all(Client::is_done));
        self.run_until(|world| world.clients.iter().all(|client| client.machine.is_attached()));
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
        self.seen.requests += self.history.operations.len() as u64;
        self.seen.commands += self.target.commands;
        self.seen.histories += 1;
        self.seen.blocks += self.blocks;
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

    /// Nothing goes wrong from now on.
    fn heal(&mut self) {
        self.troubles = Troubles::default();
        self.due.clear();
        self.disk.set_failing_reads(0);
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_nanos(self.now)
    }

    fn run_until(&mut self, done: impl Fn(&World) -> bool) {
        let begun = self.now;
        while !done(self) {
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
        if client.keys_back_at.is_some_and(|at| at <= self.now) {
            client.keys_back_at = None;
            client.machine.lease_renewed().expect("there is a key");
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
        if self.target.open().is_err() {
            assert!(self.troubles.failing_reads, "the store does not open");
            self.seen.openings_failed += 1;
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
                    if self.target.open().is_err() {
                        assert!(self.troubles.failing_reads, "the store does not open after a crash");
                        self.seen.openings_failed += 1;
                        self.phase = Phase::Down { until: self.now + MILLI, crashed };
                        return;
                    }
                    self.set_disk_faults(false);
                    self.look_around();
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
        self.target.close_store();
        self.seen.orderly_closes += 1;
        self.set_disk_faults(true);
    }

    /// What the blocks hold after a crash is the last word of the store, and is checked like what initiators read.
    fn look_around(&mut self) {
        for view in 0..VIEWS.len() {
            let invoked = self.history.now();
            let found = self.target.look(view);
            let returned = self.history.now();
            for (block, value) in (0..).zip(&found) {
                let value = value.expect("the store reads what it has after a crash");
                self.history.operations.push(Operation {
                    initiator: INSPECTOR,
                    view,
                    block,
                    action: Action::Read(value),
                    durable: false,
                    invoked,
                    returned: Some(returned),
                });
            }
            self.history.crashes.last_mut().expect("there was one").found.push(found);
        }
    }

    fn crash(&mut self) {
        if matches!(self.phase, Phase::Down { crashed: true, .. }) {
            return;
        }
        let at = self.history.now();
        self.history.crashes.push(Crash { at, found: Vec::new() });
        self.target.crash();
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
            if let Some((_, every)) = self.troubles.all().find(|(one, _)| *one == trouble) {
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
            (Trouble::EndSession, _) => self.target.end_session(),
            (Trouble::Death, _) => self.replace_client(),
            (Trouble::KeysLost, _) => self.lose_keys(),
            (Trouble::Idle, _) => self.target.idle(),
            (Trouble::Snapshots, _) => {
                self.target.change_snapshots();
                self.seen.snapshot_changes += 1;
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

    /// The lease of an initiator's keys ends; they come back later.
    fn lose_keys(&mut self) {
        let back = self.now + self.random.below(5 * MILLI);
        let at = self.random.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[at];
        if client.machine.is_attached() && client.keys_back_at.is_none() {
            client.machine.lease_ends();
            client.keys_back_at = Some(back);
            self.seen.leases_ended += 1;
        }
    }
}

impl Troubles {
    /// Some of everything.
    fn choose(random: &mut Random) -> Troubles {
        let mut every = |once_in: u64, least: Time, most: Time| {
            let chosen = random.once_in(once_in);
            let average = least + random.below(most - least);
            chosen.then_some(average)
        };
        let cut = every(2, 3 * MILLI, 20 * MILLI);
        let silence = every(6, 20 * MILLI, 100 * MILLI);
        let damage = every(6, 3 * MILLI, 30 * MILLI);
        let crash = every(2, 10 * MILLI, 80 * MILLI);
        let restart = every(5, 10 * MILLI, 60 * MILLI);
        let reset = every(6, 5 * MILLI, 50 * MILLI);
        let end_session = every(6, 5 * MILLI, 50 * MILLI);
        let death = every(6, 10 * MILLI, 80 * MILLI);
        let keys_lost = every(8, 10 * MILLI, 80 * MILLI);
        let snapshots = every(4, 2 * MILLI, 20 * MILLI);
        let idle_close = random.once_in(2);
        let failing_reads = random.once_in(5);
        Troubles {
            cut,
            silence,
            damage,
            crash,
            idle_close,
            restart,
            reset,
            end_session,
            death,
            keys_lost,
            snapshots,
            failing_reads,
        }
    }

    /// Those of a profile, which has them in every run.
    fn within(self, profile: Profile) -> Troubles {
        let cut = Some(self.cut.unwrap_or(8 * MILLI));
        match profile {
            Profile::Everything | Profile::OneInitiator => self,
            Profile::Clones => Troubles { snapshots: Some(4 * MILLI), ..Troubles::default() },
            Profile::Cuts => Troubles { cut, ..Troubles::default() },
            Profile::Closes => Troubles { cut, restart: Some(15 * MILLI), idle_close: true, ..Troubles::default() },
            Profile::Crashes => Troubles { crash: Some(self.crash.unwrap_or(20 * MILLI)), ..Troubles::default() },
        }
    }

    fn all(&self) -> impl Iterator<Item = (Trouble, Time)> + use<> {
        let all = [
            (Trouble::Cut, self.cut),
            (Trouble::Silence, self.silence),
            (Trouble::Damage, self.damage),
            (Trouble::Crash, self.crash),
            (Trouble::Restart, self.restart),
            (Trouble::Reset, self.reset),
            (Trouble::EndSession, self.end_session),
            (Trouble::Death, self.death),
            (Trouble::KeysLost, self.keys_lost),
            (Trouble::Snapshots, self.snapshots),
            (Trouble::Idle, Some(30 * MILLI)),
        ];
        all.into_iter().filter_map(|(trouble, every)| Some((trouble, every?)))
    }
}
