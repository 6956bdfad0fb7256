//! One run: initiators, network and target in virtual time, and what goes wrong.

use std::time::{Duration, Instant};

use strongroom_channel::{ChannelKeys, Role};
use strongroom_net::{Link, LinkOptions};
use strongroom_store::StoreError;

use super::association::exporter;
use super::checker;
use super::client::Setup;
use super::clock::{Clock, MICRO, MILLI, SECOND, Time};
use super::contents::Contents;
use super::datagrams::{Arrived, End, PathConditions};
use super::fencing::Fencing;
use super::history::{Action, History, Operation, Value};
use super::initiators::Initiators;
use super::keys::KeyServer;
use super::layout;
use super::leases::LeaseUse;
use super::lifecycle::{Lifecycle, Transition};
use super::liveness::AnswerWatch;
use super::network::{Arrival, Network};
use super::profile::{Planted, Profile, Transport};
use super::seen::Seen;
use super::setup::choose_setup;
use super::target::{Output, PlantedRouting, Settings, Target};
use super::troubles::{Trouble, TroubleSchedule, Troubles};
use crate::{Faults, Random, SimDisk};

/// Every request must be answered after this much virtual time without faults: an initiator gives up a connection over which nothing is
/// answered after 60 s.
const PATIENCE: Time = 200 * SECOND;
/// Things go wrong for this long.
const TROUBLED: Time = 400 * MILLI;
/// The same where exclusive leases lapse.
const TROUBLED_WITH_LEASES: Time = 3 * SECOND;
/// The same, after sending enough packets to move the first ones out of the replay window.
const TROUBLED_WITH_REPLAYS: Time = 100 * SECOND;
/// Names who writes what initiators of ours do not.
const FORGER: u64 = u64::MAX - 1;
/// Blocks of a large volume that initiators discard and do not look at.
const MORE_BLOCKS: u64 = 64 << 10;

pub(super) struct World {
    profile: Profile,
    random: Random,
    clock: Clock,
    disk: SimDisk,
    network: Network,
    target: Target,
    lifecycle: Lifecycle,
    initiators: Initiators,
    history: History,
    schedule: TroubleSchedule,
    /// When the store is polled next.
    tick_at: Option<Time>,
    seen: Seen,
    fencing: Fencing,
    contents: Contents,
    answers: AnswerWatch,
}

/// The target of a run.
fn target(profile: Profile, disk: &SimDisk, setup: &Setup, planted: Planted, random: Random) -> Target {
    let settings = Settings {
        blocks: setup.blocks,
        more_blocks: if profile == Profile::Large { MORE_BLOCKS } else { 0 },
        planted: planted.store,
        key_server: setup.key_server.clone(),
        forgets_reservations: planted.forgets_reservations,
        forgets_leases: planted.forgets_leases,
    };
    let Planted { loses_messages, exchanges_responses, .. } = planted;
    let routing = PlantedRouting { loses_messages, exchanges_responses };
    Target::new(disk.clone(), settings, routing, setup.associations, random)
}

impl World {
    pub(super) fn new(seed: u64, profile: Profile, transport: Transport, planted: Planted) -> World {
        let mut random = Random::new(seed);
        let blocks = match profile {
            Profile::Flushes => 30,
            Profile::ReplayedHalves => 3,
            _ => 2 + random.below(8),
        };
        let disk = SimDisk::new(random.number());
        let delay_max = match profile {
            Profile::Flushes => 500 * MICRO,
            _ => [50 * MICRO, 150 * MICRO, 500 * MICRO][random.below(3) as usize],
        };
        let conditions = PathConditions::choose(&mut random, profile, delay_max);
        let network = Network::new(random.fork(), delay_max, conditions);
        let troubles = Troubles::choose(&mut random, profile);
        let setup = choose_setup(&mut random, (profile, transport), planted, blocks, KeyServer::new());
        let target = target(profile, &disk, &setup, planted, random.fork());
        if planted.directory_not_synced {
            disk.leave_out_directory_sync();
        }
        disk.set_faults(Faults { wrong_resumption: planted.wrong_resumption, ..Faults::default() });
        let mut world = World {
            profile,
            random,
            clock: Clock::new(),
            disk,
            network,
            target,
            lifecycle: Lifecycle::new(),
            history: History { has_halves: setup.halves, ..History::default() },
            initiators: Initiators::new(setup, troubles.lends_keys()),
            schedule: TroubleSchedule::default(),
            tick_at: None,
            seen: Seen::default(),
            fencing: Fencing::new(),
            contents: Contents::default(),
            answers: AnswerWatch::default(),
        };
        world.begin(troubles);
        world
    }

    /// The first initiator formats the volume; then everybody begins, and so do the troubles.
    fn begin(&mut self, troubles: Troubles) {
        let requests = match self.profile {
            // Many requests of few blocks between many crashes have more explanations than can be tried.
            Profile::ReplayedHalves => 6 + self.random.below(12),
            Profile::Replays => 28_000,
            _ => 20 + self.random.below(120),
        };
        self.initiators.add(0, 0, 0, &mut self.random);
        self.run_until(|world| world.initiators.are_attached());
        self.initiators.clients[0].format(self.clock.now(), &mut self.history);
        self.run_until(|world| world.initiators.are_quiet());
        self.initiators.clients[0].flush(self.clock.now(), &mut self.history);
        self.run_until(|world| world.initiators.are_quiet());
        if self.profile == Profile::Large {
            self.target.volume.store.fill();
            self.initiators.clients[0].discard_all(self.clock.now(), MORE_BLOCKS, &mut self.history);
        }
        self.initiators.clients[0].set_requests(requests);
        let others = match self.profile {
            Profile::OneInitiator | Profile::Flushes | Profile::Replays | Profile::Large => 0,
            Profile::Everything => self.random.below(3),
            Profile::Clones => 1,
            Profile::ReplayedHalves => 2,
            _ => 1 + self.random.below(2),
        };
        let cloned = match self.profile {
            Profile::Clones => true,
            _ => self.profile == Profile::Everything && self.random.once_in(3),
        };
        if cloned {
            self.make_clone();
        }
        if self.profile == Profile::Everything {
            self.forge();
        }
        for at in 0..others {
            let view = usize::from(cloned && (at == 0 || self.random.once_in(2)));
            self.initiators.add(view, requests, self.clock.now(), &mut self.random);
        }
        self.initiators.begin();
        self.target.volume.close_when_idle(troubles.idle_close);
        self.schedule.begin(troubles, self.clock.now(), &mut self.random);
    }

    /// A clone is made while the volume is written to.
    fn make_clone(&mut self) {
        let until = self.clock.now() + self.random.below(10 * MILLI);
        self.run_until(|world| world.clock.now() >= until);
        let invoked = self.history.now();
        self.target.volume.store.make_clone();
        let returned = self.history.now();
        self.contents.note_clone((invoked, returned), &mut self.target.volume.store, &mut self.history);
        self.seen.clones += 1;
    }

    /// Somebody names a write as if it were another one; see `ServedStore::write_overlapping`.
    fn forge(&mut self) {
        let writes = [self.initiators.next_write(), self.initiators.next_write()];
        let invoked = [self.history.now(), self.history.now()];
        let answered = self.target.volume.store.write_overlapping(writes);
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

    /// Runs to the end and checks everything. What was seen on the way.
    pub(super) fn run(mut self) -> Seen {
        let troubled = match self.profile {
            Profile::Leases => TROUBLED_WITH_LEASES,
            Profile::Replays => TROUBLED_WITH_REPLAYS,
            _ => TROUBLED,
        };
        let until = self.clock.now() + troubled;
        self.run_until(|world| world.initiators.are_done() || world.clock.now() >= until);
        self.heal();
        self.run_until(|world| world.initiators.are_done() && world.fencing.is_free());
        self.look_last();
        for client in &mut self.initiators.clients {
            client.die(&mut self.history);
        }
        self.count();
        match checker::check(&self.history) {
            Ok(undecided) => self.seen.undecided += undecided,
            Err(violation) => panic!("{violation}"),
        }
        self.seen
    }

    /// Counts what is known at the end only.
    fn count(&mut self) {
        self.seen.requests += self.history.operations.len() as u64;
        self.seen.commands += self.target.commands();
        self.seen.messages += self.target.messages();
        self.seen.remote_sessions += self.target.remote_sessions();
        let counts = self.network.datagrams.counts;
        self.seen.datagrams_lost += counts.lost;
        self.seen.datagrams_repeated += counts.repeated;
        self.seen.datagrams_damaged += counts.damaged;
        self.seen.datagrams_too_long += counts.too_long;
        self.seen.datagrams_repaired += self.target.quanta_repaired();
        self.seen.histories += 1;
        self.seen.registers += self.history.registers_of(self.initiators.setup().blocks).start;
        self.seen.steps_of_a_call_max = self.target.steps_max();
        self.seen.longest_wait_us = self.answers.longest / MICRO;
        self.seen.snapshots_checked += self.contents.snapshots_checked;
        self.seen.fences += self.fencing.fences;
        self.seen.failed_reads += self.history.failed_reads.len() as u64;
        self.seen.halves += u64::from(self.history.has_halves);
        self.seen.shared_leases += u64::from(self.initiators.setup().lease_use == LeaseUse::Shared);
        (self.seen.leases_passed_on, self.seen.leases_taken_over) = self.initiators.let_in();
        for client in &self.initiators.clients {
            let counters = client.machine.counters();
            self.seen.resent += counters.commands_resent;
            self.seen.replayed += counters.blocks_replayed;
            let is_damaged = self.seen.rotten_blocks > 0 || self.initiators.setup().transport == Transport::Iscsi;
            assert!(
                is_damaged || counters.blocks_refetched == 0,
                "an association handed on a block that does not open"
            );
        }
    }

    /// Everybody who is still there reads everything, and then the target crashes once more.
    fn look_last(&mut self) {
        self.run_until(|world| world.initiators.are_attached());
        if self.lifecycle.is_over() {
            return;
        }
        for client in self.initiators.present() {
            client.read_all(self.clock.now(), &mut self.history);
        }
        self.run_until(|world| world.initiators.are_quiet());
        for client in self.initiators.present() {
            client.flush(self.clock.now(), &mut self.history);
        }
        self.run_until(|world| world.initiators.are_quiet());
        self.crash();
        self.run_until(|world| world.lifecycle.is_serving());
    }

    /// Nothing goes wrong from now on.
    fn heal(&mut self) {
        self.initiators.heal(self.clock.now());
        self.schedule.heal();
        self.network.datagrams.heal();
        self.target.volume.close_when_idle(false);
        self.disk.set_failing_reads(0);
        self.schedule.add(self.clock.now(), Trouble::Reservations);
    }

    fn run_until(&mut self, done: impl Fn(&World) -> bool) {
        let begun = self.clock.now();
        while !self.lifecycle.is_over() && !done(self) {
            self.step();
            if self.clock.now() - begun > PATIENCE {
                let clients = self.initiators.clients.iter();
                let waiting: Vec<_> = clients.map(|one| (one.number, one.machine.last_loss())).collect();
                panic!("requests are not answered: {:?}, {waiting:?}", self.lifecycle);
            }
        }
    }

    /// When something happens next.
    fn next(&self) -> Time {
        let now = self.clock.now();
        let target = self.target.poll_timeout().map(|at| self.clock.time_of(at));
        let all = [
            self.network.next_arrival(),
            self.initiators.next(&self.clock),
            self.lifecycle.next(now),
            target,
            self.schedule.next(),
            self.tick_at,
        ];
        all.into_iter().flatten().min().unwrap_or(now + MILLI)
    }

    fn step(&mut self) {
        self.clock.advance(self.next());
        let (now, instant) = (self.clock.now(), self.clock.instant());
        self.seen.steps += 1;
        self.go_on_with_the_target();
        self.make_trouble();
        self.fencing.drive(instant, &mut self.target, &mut self.history);
        for (id, end, arrival) in self.network.arrived(now) {
            self.arrive(instant, id, end, arrival);
        }
        for arrived in self.network.datagrams.arrived(now) {
            self.take_datagram(instant, arrived);
        }
        for at in 0..self.initiators.clients.len() {
            self.drive_client(instant, at);
        }
        if self.target.handle_timeout(instant) && self.lifecycle.is_serving() {
            self.close_store();
        }
        if self.target.volume.is_opening_due(instant) {
            self.open_store();
        }
        for output in self.target.drive(instant) {
            match output {
                Output::Bytes(id, bytes) => self.network.send(now, id, End::Target, bytes),
                Output::Datagram(id, packet) => self.network.datagrams.send(now, (id, 0), End::Target, packet),
                Output::Close(id) => self.network.close(now, id, End::Target),
            }
        }
        self.contents.take_snapshots(&mut self.target.volume.store, &mut self.history);
        self.watch_answers();
        let is_working = self.target.is_working();
        self.tick_at = is_working.then(|| now + 5 * MICRO + self.random.below(200 * MICRO));
    }

    /// Requests are answered unless a connection, the target, its store or keys are missing.
    fn watch_answers(&mut self) {
        let is_up = self.lifecycle.is_serving() && self.target.volume.store.is_open();
        for client in &self.initiators.clients {
            let connection = client.connection.id.filter(|id| is_up && client.has_keys() && self.network.is_sound(*id));
            self.answers.look(self.clock.now(), client.number, connection, client.oldest_request());
        }
    }

    fn arrive(&mut self, now: Instant, id: u64, end: End, arrival: Arrival) {
        match (end, arrival) {
            (End::Target, Arrival::Bytes(bytes)) => self.target.handle_input(now, id, &bytes),
            (End::Target, Arrival::Closed) => self.target.handle_closed(now, id),
            (End::Initiator, arrival) => {
                let Some(client) = self.initiators.of_connection(id) else { return };
                match arrival {
                    Arrival::Bytes(bytes) => client.handle_input(&self.clock, id, &bytes),
                    Arrival::Closed => client.connection_lost(&self.clock),
                }
            }
        }
    }

    /// A packet of an association has arrived, perhaps not for the first time.
    fn take_datagram(&mut self, now: Instant, arrived: Arrived) {
        let Arrived { association: id, at, number, datagram } = arrived;
        let is_used = match (at, self.initiators.of_connection(id)) {
            (End::Target, _) => self.target.handle_datagram(now, id, datagram),
            (End::Initiator, Some(client)) => client.machine.handle_datagram(now, datagram),
            (End::Initiator, None) => false,
        };
        if is_used {
            self.network.datagrams.used(number);
        }
    }

    fn drive_client(&mut self, instant: Instant, at: usize) {
        let now = self.clock.now();
        let is_ended = self.initiators.work(at, &self.clock, &mut self.history, &mut self.random);
        self.seen.leases_ended += u64::from(is_ended);
        if self.initiators.has_lost(at) {
            return self.replace_client(at);
        }
        let client = &self.initiators.clients[at];
        if let Some(id) = client.connection.id.filter(|_| !client.is_connected()) {
            self.initiators.disconnected(at, now, &mut self.random);
            self.network.close(now, id, End::Initiator);
        }
        let client = &mut self.initiators.clients[at];
        if client.connection.id.is_none() && !client.is_leaving() && client.connection.retry_at <= now {
            client.connection.retry_at = now + 200 * MICRO + self.random.below(3 * MILLI);
            if self.lifecycle.is_serving() {
                self.connect(instant, at);
            }
        }
        let client = &mut self.initiators.clients[at];
        client.take_answers(&mut self.history);
        let bytes = client.take_bytes(&self.clock);
        let Some(id) = client.connection.id else { return };
        if !bytes.is_empty() {
            self.network.send(now, id, End::Initiator, bytes);
        }
        while let Some(packet) = client.machine.poll_datagram(instant) {
            self.network.datagrams.send(now, (id, client.number), End::Initiator, packet);
        }
    }

    fn connect(&mut self, now: Instant, at: usize) {
        let id = self.network.connect();
        self.seen.connections += 1;
        let (scheme, transport) = (self.initiators.setup().scheme, self.initiators.setup().transport);
        let client = &mut self.initiators.clients[at];
        client.connection.id = Some(id);
        if transport == Transport::Ecl {
            client.log_in(self.clock.now(), id);
            return self.target.accept_login(id, client.number);
        }
        let keys = || ChannelKeys::new(exporter(id), scheme);
        let options = LinkOptions { setup_timeout: Duration::from_millis(200), ..LinkOptions::default() };
        let ours = Link::simulated(Role::Initiator, keys(), layout::node(layout::OPERATOR), options.clone(), now);
        let client_node = layout::node(client.number);
        let theirs = Link::simulated(Role::Target, keys(), client_node, options, now);
        client.machine.connected(now, ours);
        self.target.accept(id, theirs, client_node);
    }

    /// The target opens its store at the first login.
    fn open_store(&mut self) {
        match self.target.open(self.clock.instant()) {
            Ok(()) => self.set_disk_faults(false),
            Err(error) => self.not_opened(&error),
        }
    }

    /// The store does not open now: the disk fails to read, or it is damaged and never will.
    fn not_opened(&mut self, error: &StoreError) {
        if self.schedule.troubles().failing_reads {
            self.seen.openings_failed += 1;
            return;
        }
        assert!(self.lifecycle.refused(), "the store does not open: {error}");
        self.seen.refused_openings += 1;
    }

    fn set_disk_faults(&mut self, opening: bool) {
        let failing = opening && self.schedule.troubles().failing_reads && self.random.once_in(2);
        self.disk.set_failing_reads(if failing { 8 + self.random.below(60) } else { 0 });
    }

    /// The target closes its store, or begins again, if it is time to.
    fn go_on_with_the_target(&mut self) {
        if self.lifecycle.is_stopping() {
            self.target.end_all();
        }
        let now = self.clock.now();
        match self.lifecycle.due(now, &self.target) {
            Some(Transition::Stop) => {
                self.close_store();
                self.target.restart();
                self.lifecycle.stopped(now, &mut self.random);
            }
            Some(Transition::Begin { crashed }) => self.begin_again(crashed),
            None => {}
        }
    }

    /// The target begins again.
    fn begin_again(&mut self, crashed: bool) {
        self.set_disk_faults(true);
        if crashed {
            if let Err(error) = self.target.open(self.clock.instant()) {
                self.not_opened(&error);
                return self.lifecycle.not_begun(self.clock.now());
            }
            self.set_disk_faults(false);
            self.contents.look_around(&mut self.target.volume.store, &self.disk, &mut self.history);
        }
        self.lifecycle.begun();
    }

    fn close_store(&mut self) {
        let is_whole = self.target.close(self.clock.instant());
        self.seen.orderly_closes += 1;
        if is_whole && self.schedule.troubles().rots_anywhere && self.random.once_in(4) {
            let blocks = self.initiators.setup().blocks;
            self.contents.rot_anywhere(blocks, &self.disk, &mut self.history, &mut self.random);
            self.seen.rotten_blocks += 1;
            self.lifecycle.damage();
        }
        self.set_disk_faults(true);
    }

    fn crash(&mut self) {
        if self.lifecycle.is_crashed() {
            return;
        }
        let at = self.history.now();
        self.history.crashes.push(at);
        self.target.crash();
        self.fencing.target_crashed();
        self.disk.crash();
        self.network.target_crashed(self.clock.now());
        self.seen.crashes += 1;
        self.lifecycle.crash(self.clock.now(), &mut self.random);
    }

    fn make_trouble(&mut self) {
        let now = self.clock.now();
        for trouble in self.schedule.take_due(now) {
            match trouble {
                Trouble::Cut | Trouble::Silence | Trouble::Damage => self.disturb_network(trouble),
                Trouble::Death | Trouble::Partition | Trouble::KeyServerAway => self.disturb_initiator(trouble),
                _ => self.disturb_target(trouble),
            }
            self.schedule.repeat(trouble, now, &mut self.random);
        }
    }

    fn disturb_network(&mut self, trouble: Trouble) {
        let open = self.network.open();
        if open.is_empty() {
            return;
        }
        let id = open[self.random.below(open.len() as u64) as usize];
        match trouble {
            Trouble::Cut => {
                self.network.cut(self.clock.now(), id);
                self.seen.cuts += 1;
            }
            Trouble::Silence => {
                self.network.silence(id);
                self.seen.silences += 1;
            }
            _ => {
                self.network.damage(id);
                self.seen.damages += 1;
            }
        }
    }

    fn disturb_initiator(&mut self, trouble: Trouble) {
        let now = self.clock.now();
        if trouble == Trouble::KeyServerAway {
            return self.initiators.lose_key_server(now, &mut self.random);
        }
        let at = self.initiators.any(&mut self.random);
        if trouble == Trouble::Death {
            return self.replace_client(at);
        }
        self.initiators.partition(at, now, &mut self.random);
        if let Some(id) = self.initiators.clients[at].connection.id {
            self.network.cut(now, id);
        }
        self.seen.partitions += 1;
    }

    /// An initiator dies, and another one takes its place.
    fn replace_client(&mut self, at: usize) {
        if let Some(id) = self.initiators.clients[at].connection.id {
            self.network.cut(self.clock.now(), id);
        }
        self.initiators.replace(at, self.clock.now(), &mut self.history, &mut self.random);
        self.seen.deaths += 1;
    }

    fn disturb_target(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Crash => self.crash(),
            Trouble::Restart if self.lifecycle.is_serving() => {
                self.target.end_all();
                self.lifecycle.stop();
                self.seen.restarts += 1;
            }
            Trouble::Reset => {
                self.target.reset(self.clock.instant(), self.random.once_in(4));
                self.seen.resets += 1;
            }
            Trouble::Abort => {
                self.target.clear_task_set(self.clock.instant());
                self.seen.aborts += 1;
            }
            Trouble::EndSession => self.target.end_one(&mut self.random),
            Trouble::KeyEpoch => {
                self.seen.key_epochs += u64::from(self.initiators.setup().key_server.begin_epoch());
            }
            Trouble::Idle => self.target.volume.store.idle(),
            Trouble::Path => self.network.datagrams.change_path(),
            Trouble::Snapshots => {
                let store = &mut self.target.volume.store;
                let changed = self.contents.change_snapshots(store, &mut self.history, &mut self.random);
                self.seen.snapshot_changes += u64::from(changed);
            }
            Trouble::Reservations => self.change_reservations(),
            Trouble::Rot => {
                let hit = self.contents.rot(&self.disk, &mut self.history, &mut self.random);
                self.seen.rotten_blocks += u64::from(hit);
            }
            _ => {}
        }
    }

    /// The users of the volume fence one another, or lets them in again.
    fn change_reservations(&mut self) {
        let of_volume = self.initiators.clients.iter().filter(|client| client.view == 0).map(|client| client.number);
        let users: Vec<u64> = of_volume.filter(|number| self.target.has_session(*number)).collect();
        let ends = self.schedule.is_healed();
        self.fencing.change(&users, ends, &mut self.random);
        if ends && !self.fencing.is_free() {
            self.schedule.add(self.clock.now() + MILLI, Trouble::Reservations);
        }
    }
}
