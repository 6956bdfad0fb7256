//! All initiators of a run: what they have in common, what they do by themselves, and who replaces whom.

use super::client::{Client, Setup};
use super::clock::{Clock, MILLI, SECOND, Time};
use super::history::History;
use super::keys::Lease;
use super::leases::{ExclusiveLeases, LeaseUse};
use crate::Random;

/// How long an initiator waits before it tries again to attach a volume that another one has.
const WAIT_MIN: Time = 20 * MILLI;
const WAIT_MAX: Time = 200 * MILLI;
/// How long an initiator is away whose writer lease may end meanwhile.
const AWAY_MAX: Time = 3 * SECOND;

/// The initiators of a run.
pub(super) struct Initiators {
    pub(super) clients: Vec<Client>,
    last_client: u64,
    last_write: u64,
    setup: Setup,
    /// Keys are lent for a time only.
    lends_keys: bool,
    exclusive: ExclusiveLeases,
    /// All have been given their requests: those that are done may leave.
    may_leave: bool,
}

impl Initiators {
    pub(super) fn new(setup: Setup, lends_keys: bool) -> Initiators {
        let exclusive = ExclusiveLeases::default();
        Initiators {
            clients: Vec::new(),
            last_client: 0,
            last_write: 0,
            setup,
            lends_keys,
            exclusive,
            may_leave: false,
        }
    }

    /// One more initiator of a view, which makes this many requests.
    pub(super) fn add(&mut self, view: usize, requests: u64, now: Time, random: &mut Random) {
        let client = self.next_client(view, requests, now, random);
        self.clients.push(client);
    }

    fn next_client(&mut self, view: usize, requests: u64, now: Time, random: &mut Random) -> Client {
        self.last_client += 1;
        let mut client = Client::new(self.last_client, view, random.fork(), self.setup.clone());
        client.set_requests(requests);
        client.connection.retry_at = now + random.below(MILLI);
        client
    }

    /// All have been given their requests.
    pub(super) fn begin(&mut self) {
        self.may_leave = true;
    }

    /// What all have in common.
    pub(super) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Names the next write.
    pub(super) fn next_write(&mut self) -> u64 {
        self.last_write += 1;
        self.last_write
    }

    /// One of them, by chance.
    pub(super) fn any(&mut self, random: &mut Random) -> usize {
        random.below(self.clients.len() as u64) as usize
    }

    /// The one that has this connection.
    pub(super) fn of_connection(&mut self, id: u64) -> Option<&mut Client> {
        self.clients.iter_mut().find(|client| client.connection.id == Some(id))
    }

    /// Whether everything that they wanted was answered.
    pub(super) fn are_done(&self) -> bool {
        self.clients.iter().all(Client::is_done)
    }

    /// Whether they wait for nothing.
    pub(super) fn are_quiet(&self) -> bool {
        self.clients.iter().all(Client::is_quiet)
    }

    /// Whether requests can be submitted to all that have not left.
    pub(super) fn are_attached(&self) -> bool {
        self.clients.iter().all(|client| client.is_leaving() || client.machine.is_attached())
    }

    /// Those that have not left.
    pub(super) fn present(&mut self) -> impl Iterator<Item = &mut Client> {
        self.clients.iter_mut().filter(|client| !client.is_leaving())
    }

    /// When one of them has something to do by itself.
    pub(super) fn next(&self, clock: &Clock) -> Option<Time> {
        self.clients.iter().filter_map(|client| client.poll_timeout(clock)).min()
    }

    /// Initiators that were let in after a lease had lapsed, and those that took the volume over.
    pub(super) fn let_in(&self) -> (u64, u64) {
        (self.exclusive.lapsed, self.exclusive.taken_over)
    }

    /// What one of them does by itself: it takes answers, looks after its keys and makes requests. Whether the lease of its keys ended.
    pub(super) fn work(&mut self, at: usize, clock: &Clock, history: &mut History, random: &mut Random) -> bool {
        let client = &mut self.clients[at];
        let was_attached = client.machine.is_attached();
        client.expire_login(clock.now());
        client.machine.handle_timeout(clock.instant());
        client.take_answers(history);
        let mut is_ended = false;
        if self.lends_keys && client.machine.is_attached() {
            let server = &self.setup.key_server;
            let lease = client.lease.get_or_insert_with(|| Lease::new(server.clone(), clock.now(), random));
            is_ended = lease.handle_timeout(clock.now(), &mut client.machine);
        }
        self.watch_lease(at, clock, history);
        let client = &mut self.clients[at];
        while client.next_request().is_some_and(|at| at <= clock.now()) {
            client.request(clock.now(), history, &mut self.last_write);
        }
        debug_assert!(!was_attached || client.machine.is_attached(), "an attachment stays one");
        is_ended
    }

    /// Notes what an initiator knows of its exclusive lease, and has it leave when it wants nothing more.
    fn watch_lease(&mut self, at: usize, clock: &Clock, history: &mut History) {
        let client = &mut self.clients[at];
        if self.setup.lease_use == LeaseUse::Shared {
            let lost = client.machine.lease_lost();
            assert!(lost.is_none(), "initiator {} lost its shared lease: {lost:?}", client.number);
        }
        if self.setup.lease_use != LeaseUse::Exclusive || !client.machine.is_attached() {
            return;
        }
        let number = client.number;
        if !self.exclusive.is_known(number) {
            self.exclusive.let_in(clock.now(), (number, client.view), client.takes_over(), history);
        }
        self.exclusive.wrote(number, client.wrote_at);
        if self.may_leave && client.leave_if_done(clock) {
            self.exclusive.released(number);
        }
    }

    /// Whether an initiator has lost its exclusive lease and waits for nothing any more: its application attaches the volume again.
    pub(super) fn has_lost(&self, at: usize) -> bool {
        let client = &self.clients[at];
        self.setup.lease_use == LeaseUse::Exclusive
            && !client.is_leaving()
            && client.is_quiet()
            && client.machine.lease_lost().is_some()
    }

    /// The connection of an initiator is over: it makes another one later.
    pub(super) fn disconnected(&mut self, at: usize, now: Time, random: &mut Random) {
        let client = &mut self.clients[at];
        client.forget_connection();
        let is_refused = client.machine.is_refused();
        assert!(
            !is_refused || client.machine.is_in_use() && self.setup.lease_use == LeaseUse::Exclusive,
            "initiator {}: {:?}",
            client.number,
            client.machine.last_loss()
        );
        let pause = match is_refused {
            true => {
                client.attach_again(random.once_in(6));
                WAIT_MIN + random.below(WAIT_MAX - WAIT_MIN)
            }
            false => 50 * super::clock::MICRO + random.below(3 * MILLI),
        };
        client.connection.retry_at = client.connection.retry_at.max(now + pause);
    }

    /// An initiator dies, and another one takes its place.
    pub(super) fn replace(&mut self, at: usize, now: Time, history: &mut History, random: &mut Random) {
        self.clients[at].die(history);
        let (view, requests) = (self.clients[at].view, self.clients[at].requests_left());
        self.clients[at] = self.next_client(view, requests, now, random);
    }

    /// An initiator does not reach the target for a while.
    pub(super) fn partition(&mut self, at: usize, now: Time, random: &mut Random) {
        self.clients[at].connection.retry_at = now + random.below(AWAY_MAX);
    }

    /// An initiator does not reach the key server for a while.
    pub(super) fn lose_key_server(&mut self, now: Time, random: &mut Random) {
        let until = now + random.below(40 * MILLI);
        let at = self.any(random);
        if let Some(lease) = &mut self.clients[at].lease {
            lease.goes_away(until);
        }
    }

    /// Everything can be reached from now on.
    pub(super) fn heal(&mut self, now: Time) {
        for client in &mut self.clients {
            if let Some(lease) = &mut client.lease {
                lease.goes_away(0);
            }
            client.connection.retry_at = client.connection.retry_at.min(now + 3 * MILLI);
        }
    }
}
