//! A worker: one thread with its runtime, the connections and sessions that belong to it, and the volumes that it owns.
//!
//! Every turn: wait, take what happened in, let every touched connection move forward, let every store move forward, send.
//! Nothing here blocks: volumes are opened and closed in threads of their own, which report back by [`Message`]. The one exception is
//! reading a small description file at a login.

mod connection;
mod crossing;
mod errands;
mod held;
mod login;
mod memory;
mod opening;
mod orders;
mod places;
mod scrubbing;
mod session;
mod sessions;
mod sliced;
mod targets;
mod tasks;
mod transfer;
mod units;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use strongroom_iscsi::target::{ConnectionId, Login, LoginEvent, SessionKind, TargetEntry};
use strongroom_iscsi::{CloseReason, Offer, target as iscsi};
use strongroom_net::{Event, LinkEvent, Listener, ListenerId, NetError, Runtime, StreamId, Waker};

use crate::access::Identity;
use crate::config::Portal;
use crate::iterations::IterationClock;
use crate::names::{VolumeName, for_log};
use crate::neighbours::Errand;
use crate::places::PlaceNeed;
use crate::server::{Settings, Shared};
use crate::stats::Counters;
use crate::unit::{Finished, Job, SessionKey};
pub(crate) use connection::ConnectionKey;
use connection::{Connection, Moved, Stage};
use crossing::Crossing;
pub(crate) use crossing::Road;
use errands::ErrandBack;
use opening::OpenedUnit;
pub(crate) use orders::{Order, Which, WorkerReport};
use session::Session;
use sliced::SlicedOrder;
use units::{Slot, UnitPass};

/// How long streams may take to hand over their last bytes when the target stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// How many sessions are driven, or events taken, between two looks at the clock. Of a connection that logs in it is looked at each time:
/// a step of its handshake, or reading what its volume is, takes a good part of a millisecond.
const DRIVEN_PER_LOOK: usize = 16;

/// What a worker is told from outside.
pub(crate) enum Message {
    /// A connection whose volume this worker owns, or whose session is to be here.
    Adopt(Box<Moved>),
    /// What sessions and units of another worker say to units and sessions here.
    Crossings { from: usize, crossings: Vec<Crossing> },
    /// A volume was opened, or could not be.
    Opened { volume: VolumeName, outcome: Box<Result<OpenedUnit, crate::CatalogueError>> },
    /// A volume's store was closed.
    Closed { volume: VolumeName },
    /// The keeper of the target wants something.
    Order(Order),
    /// Another unit asks something of one that this worker has.
    Errand(Box<Errand>),
    /// The answer to one of ours.
    ErrandBack(Box<ErrandBack>),
    /// Somebody needs a place among the connections, and this worker has somebody who makes way.
    PlaceNeeded(PlaceNeed),
    /// The answer to a session's SendTargets.
    TargetsFound { session: SessionKey, connection: ConnectionId, targets: Vec<TargetEntry> },
    /// Another worker has ended, with all that it had.
    Ended { worker: usize },
    /// Stop: initiators have `grace` to finish.
    Stop { grace: Duration },
}

/// Whether a connection stays with this worker.
enum Flow {
    Stay,
    /// Its volume belongs to another worker, or its session does.
    Move(usize),
    /// It is for a transfer, which is no worker's.
    Transfer,
    Over,
}

/// Whose time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Connection(ConnectionKey),
    Session(SessionKey),
}

/// A stop in progress.
struct Stopping {
    deadline: Instant,
    /// The last connections are being closed.
    forced: bool,
}

pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    /// What holds now; replaced by a reload.
    settings: Arc<Settings>,
    runtime: Runtime,
    waker: Waker,
    inbox: Receiver<Message>,
    /// To every worker, by number.
    roads: Vec<Road>,
    listeners: Vec<(ListenerId, Portal)>,
    connections: HashMap<ConnectionKey, Box<Connection>>,
    sessions: HashMap<SessionKey, Box<Session>>,
    by_stream: HashMap<StreamId, ConnectionKey>,
    /// Connections that have proven nothing and have no session yet, the oldest first.
    arrivals: BTreeSet<ConnectionKey>,
    /// Discovery sessions that have proven nothing, the oldest first.
    discoveries: BTreeSet<SessionKey>,
    units: HashMap<VolumeName, Slot>,
    /// Sessions of units here that other workers have, and which.
    abroad: HashMap<SessionKey, usize>,
    /// Logins that waited for something that has happened.
    retries: VecDeque<ConnectionKey>,
    /// What the keeper of the target wants of volumes that are being opened.
    waiting_jobs: HashMap<VolumeName, Vec<Job>>,
    timers: BTreeSet<(Instant, Timer)>,
    touched: VecDeque<ConnectionKey>,
    touched_sessions: VecDeque<SessionKey>,
    /// The last iteration left something that could go on.
    is_unfinished: bool,
    /// Goes through all units that have something to do.
    unit_pass: UnitPass,
    /// Orders that take many iterations, the oldest first.
    sliced_orders: VecDeque<SlicedOrder>,
    finished: Vec<Finished>,
    /// When stores were last asked what they hold.
    stores_bounded_at: Instant,
    now: Instant,
    stopping: Option<Stopping>,
}

impl Worker {
    /// A worker for the calling thread.
    pub(crate) fn new(
        index: usize,
        shared: Arc<Shared>,
        listeners: Vec<Listener>,
        (inbox, roads): (Receiver<Message>, Vec<Road>),
        waker: Waker,
    ) -> Result<Worker, NetError> {
        let mut runtime = Runtime::with_waker(shared.runtime_options(), waker.clone())?;
        let listeners = listeners
            .into_iter()
            .zip(&shared.portals)
            .map(|(listener, portal)| Ok((runtime.listen(listener)?, *portal)))
            .collect::<Result<Vec<_>, NetError>>()?;
        Ok(Worker {
            index,
            settings: shared.settings(),
            shared,
            runtime,
            waker,
            inbox,
            roads,
            listeners,
            connections: HashMap::new(),
            sessions: HashMap::new(),
            by_stream: HashMap::new(),
            arrivals: BTreeSet::new(),
            discoveries: BTreeSet::new(),
            units: HashMap::new(),
            abroad: HashMap::new(),
            retries: VecDeque::new(),
            waiting_jobs: HashMap::new(),
            timers: BTreeSet::new(),
            touched: VecDeque::new(),
            touched_sessions: VecDeque::new(),
            is_unfinished: false,
            unit_pass: UnitPass::default(),
            sliced_orders: VecDeque::new(),
            finished: Vec::new(),
            stores_bounded_at: Instant::now(),
            now: Instant::now(),
            stopping: None,
        })
    }

    /// Works until told to stop and everything is closed.
    pub(crate) fn run(mut self) {
        let mut clock = IterationClock::start();
        loop {
            if let Err(error) = self.runtime.poll(Some(self.time_to_wait())) {
                tracing::error!(worker = self.index, %error, "a worker's runtime failed; its volumes are closed");
                break;
            }
            self.now = Instant::now();
            self.take_events(&clock);
            while let Ok(message) = self.inbox.try_recv() {
                self.take_message(message);
            }
            self.expire();
            self.tend_units();
            self.advance_orders(&clock);
            self.move_forward(&clock);
            self.bound_stores();
            self.depart();
            clock.lap(&self.shared.iterations[self.index]);
            if self.stopping.is_some() && self.has_stopped() {
                break;
            }
        }
        self.leave_everything();
        self.close_units_now();
        self.say_farewell();
    }

    /// Lets touched connections, sessions and stores move until nothing is left to do now, or until this iteration has taken its time:
    /// what is left goes on in the next one, in the order in which it was touched.
    fn move_forward(&mut self, clock: &IterationClock) {
        loop {
            let mut driven = 0;
            self.is_unfinished = loop {
                let mut logs_in = false;
                if let Some(key) = self.touched.pop_front() {
                    logs_in = self.logs_in(key);
                    self.drive(key);
                } else if let Some(key) = self.touched_sessions.pop_front() {
                    self.drive_session(key);
                } else if let Some(key) = self.retries.pop_front() {
                    logs_in = true;
                    self.login_again(key);
                } else {
                    break false;
                }
                driven += 1;
                if (logs_in || driven % DRIVEN_PER_LOOK == 0) && clock.is_over() {
                    break true;
                }
            };
            self.is_unfinished |= !self.poll_units(clock);
            let is_quiet = self.touched.is_empty() && self.touched_sessions.is_empty() && self.retries.is_empty();
            let is_done = is_quiet && !self.has_mail();
            if is_done || self.is_unfinished {
                return;
            }
        }
    }

    fn logs_in(&self, key: ConnectionKey) -> bool {
        self.connections.get(&key).is_some_and(|connection| connection.stage.session().is_none())
    }

    /// Takes what has happened, until this iteration has taken its time. The runtime keeps the rest, and does not wait then.
    fn take_events(&mut self, clock: &IterationClock) {
        let mut taken = 0;
        while let Some(event) = self.runtime.next_event() {
            let mut logs_in = false;
            match event {
                Event::Received { stream, bytes } => {
                    let Some(key) = self.by_stream.get(&stream) else { continue };
                    if let Some(connection) = self.connections.get_mut(key) {
                        logs_in = connection.stage.session().is_none();
                        connection.receive(bytes);
                        connection.touch(&mut self.touched);
                    }
                }
                Event::PeerFinished { stream } => self.on_stream(stream, |connection| connection.link.handle_eof()),
                Event::SendLow { stream } => {
                    self.on_stream(stream, Connection::send_low);
                }
                Event::Closed { stream, failure } => {
                    let reason = failure.to_string();
                    self.on_stream(stream, |connection| connection.lost(reason));
                    self.by_stream.remove(&stream);
                }
                Event::Accepted { listener, stream, peer } => self.accept_stream(listener, stream, peer),
                Event::Connected { .. } | Event::Woken => {}
            }
            taken += 1;
            if (logs_in || taken % DRIVEN_PER_LOOK == 0) && clock.is_over() {
                return;
            }
        }
    }

    fn on_stream(&mut self, stream: StreamId, change: impl FnOnce(&mut Connection)) {
        let Some(key) = self.by_stream.get(&stream) else { return };
        if let Some(connection) = self.connections.get_mut(key) {
            change(connection);
            connection.touch(&mut self.touched);
        }
    }

    /// Takes a connection among its own and has it driven.
    fn insert(&mut self, mut connection: Box<Connection>) {
        self.by_stream.insert(connection.stream, connection.key);
        self.note_arrival(&mut connection);
        connection.touch(&mut self.touched);
        self.connections.insert(connection.key, connection);
    }

    fn take_message(&mut self, message: Message) {
        match message {
            Message::Adopt(moved) => self.adopt(*moved),
            Message::Crossings { from, crossings } => self.arrive(from, crossings),
            Message::Opened { volume, outcome } => self.opened(volume, *outcome),
            Message::Closed { volume } => self.closed(&volume),
            Message::Order(order) => self.order(order),
            Message::Errand(errand) => self.errand(*errand),
            Message::ErrandBack(back) => self.errand_back(*back),
            Message::PlaceNeeded(need) => self.make_way(need),
            Message::TargetsFound { session, connection, targets } => self.targets_found(session, connection, &targets),
            Message::Ended { worker } => self.worker_ended(worker),
            Message::Stop { grace } => self.begin_stop(grace),
        }
    }

    /// Moves one connection forward as far as it goes.
    fn drive(&mut self, key: ConnectionKey) {
        let Some(mut connection) = self.connections.remove(&key) else { return };
        connection.touched = false;
        match self.advance(&mut connection) {
            Flow::Move(worker) => return self.hand_over(connection, worker),
            Flow::Transfer => return self.hand_to_transfer(connection),
            Flow::Over => return self.finish(connection, None),
            Flow::Stay => {}
        }
        match connection.stage.session().and_then(|(session, _)| self.sessions.get_mut(&session)) {
            // It sends for all of its connections.
            Some(session) => session.touch(&mut self.touched_sessions),
            None => connection.transmit(&mut self.runtime, None),
        }
        self.arm(&mut connection);
        self.connections.insert(key, connection);
    }

    fn advance(&mut self, connection: &mut Connection) -> Flow {
        loop {
            if let Some(event) = connection.login.as_mut().and_then(|login| login.poll_event()) {
                match self.on_login_event(connection, event) {
                    Flow::Stay => continue,
                    flow => return flow,
                }
            }
            let Some(event) = connection.link.poll_event() else { break };
            match self.on_link_event(connection, event) {
                Flow::Stay => {}
                flow => return flow,
            }
        }
        if let Some((key, id)) = connection.stage.session() {
            let Some(session) = self.sessions.get_mut(&key) else { return Flow::Over };
            if std::mem::take(&mut connection.moved) {
                session.machine.handle_progress(self.now, id);
            }
            if let Some(reason) = &connection.stream_lost {
                session.machine.handle_closed(self.now, id, CloseReason::ConnectionLost(reason.clone()));
            }
            return Flow::Stay;
        }
        if connection.link.is_ended() { Flow::Over } else { Flow::Stay }
    }

    fn on_login_event(&mut self, connection: &mut Connection, event: LoginEvent) -> Flow {
        match event {
            LoginEvent::Requested(request) => self.login_requested(connection, request),
            LoginEvent::Authenticated { user } => self.authenticated(connection, user),
            LoginEvent::Done => self.logged_in(connection),
            LoginEvent::Closed(reason) => {
                self.login_failed(connection, &reason);
                Flow::Over
            }
        }
    }

    fn on_link_event(&mut self, connection: &mut Connection, event: LinkEvent) -> Flow {
        let session = connection.stage.session();
        let session = session.and_then(|(key, id)| Some((&mut self.sessions.get_mut(&key)?.machine, id)));
        match (event, &mut connection.login, session) {
            (LinkEvent::Established { peer }, _, _) => {
                connection.identity = peer.map_or(Identity::Plain, Identity::Channel);
                if peer.is_some() && !self.settle_proven(connection) {
                    connection.link.close();
                    return Flow::Over;
                }
                if connection.link.is_for_transfer() {
                    return Flow::Transfer;
                }
                let config = self.session_config(peer.is_some(), connection.portal.group);
                connection.login = Some(Box::new(Login::new(self.now, config)));
            }
            (LinkEvent::Pdu(pdu), Some(login), _) => login.handle_pdu(&pdu),
            (LinkEvent::Pdu(pdu), None, Some((session, id))) => session.handle_pdu(self.now, id, pdu),
            (LinkEvent::Corrupt(pdu), _, Some((session, id))) => session.handle_corrupt_pdu(self.now, id, &pdu),
            (LinkEvent::Pdu(_) | LinkEvent::Corrupt(_), ..) => {}
            (LinkEvent::Ended(end), Some(login), _) => {
                login.handle_closed(CloseReason::ConnectionLost(end.to_string()));
            }
            (LinkEvent::Ended(end), None, Some((session, id))) => {
                session.handle_closed(self.now, id, CloseReason::ConnectionLost(end.to_string()));
            }
            (LinkEvent::Ended(end), None, None) => {
                if !end.is_orderly() {
                    Counters::count(&self.shared.counters.setups_failed);
                    tracing::warn!(peer = %connection.peer, reason = %end, "a connection was not established");
                }
                return Flow::Over;
            }
        }
        Flow::Stay
    }

    fn session_config(&self, in_channel: bool, portal_group_tag: u16) -> iscsi::Config {
        let limits = &self.settings.config.limits;
        let ping = Duration::from_secs(limits.ping_after_s);
        let digests = self.settings.config.digests.offer();
        iscsi::Config {
            in_channel,
            portal_group_tag,
            queue_depth: limits.queue_depth,
            login_timeout: limits.login_timeout(),
            ping_after: ping,
            ping_timeout: ping,
            transfer_bytes_max: crate::TRANSFER_BYTES_MAX,
            write_memory_bytes_max: limits.write_memory_bytes,
            send_targets_all_in_normal_session: self.settings.config.send_targets_all,
            offer: Offer {
                header_digest: digests,
                data_digest: digests,
                error_recovery_level: 2,
                connections_max: limits.session_connections_max,
                time2wait_s: 0,
                time2retain_s: limits.time2retain_s,
                ..Offer::default()
            },
        }
    }

    /// A login came to nothing.
    fn login_failed(&self, connection: &Connection, reason: &CloseReason) {
        let (peer, initiator) = (connection.peer, connection.initiator_name());
        match (&connection.stage, reason) {
            (Stage::Proving { request, .. }, CloseReason::Misbehaved(why)) => {
                Counters::count(&self.shared.counters.logins_refused);
                let target = match &request.kind {
                    SessionKind::Normal { target_name } => for_log(target_name),
                    SessionKind::Discovery => "discovery".into(),
                };
                let user =
                    connection.login.as_ref().and_then(|login| login.chap_name()).map(for_log).unwrap_or_default();
                let initiator = for_log(initiator);
                tracing::warn!(%peer, initiator, target, user, reason = %why, "refused a login: CHAP failed");
            }
            (_, CloseReason::Misbehaved(_)) => {
                Counters::count(&self.shared.counters.misbehaved);
                tracing::warn!(%peer, initiator = %for_log(initiator), %reason, "a login ended");
            }
            // Refused logins were told where they were refused.
            (_, CloseReason::LoginRefused(_)) => {}
            (_, reason) => {
                Counters::count(&self.shared.counters.setups_failed);
                tracing::warn!(%peer, initiator = %for_log(initiator), %reason, "a login was not finished");
            }
        }
    }

    /// The end of a connection: what can still be sent goes out.
    fn finish(&mut self, mut connection: Box<Connection>, session: Option<(&mut iscsi::Session, iscsi::ConnectionId)>) {
        connection.say_goodbye(&mut self.runtime, session);
        self.by_stream.remove(&connection.stream);
        self.forget_arrival(connection.key);
        self.disarm(&mut connection);
        // A session that never began.
        if let Stage::Admitted { key, joins: false, admitted } = &connection.stage
            && let Some(place) = &admitted.place
        {
            self.leave_unit(place, *key);
        }
    }

    fn arm(&mut self, connection: &mut Connection) {
        let (timer, wanted) = (Timer::Connection(connection.key), connection.poll_timeout());
        set_timer(&mut self.timers, timer, &mut connection.armed, wanted);
    }

    fn disarm(&mut self, connection: &mut Connection) {
        set_timer(&mut self.timers, Timer::Connection(connection.key), &mut connection.armed, None);
    }

    fn expire(&mut self) {
        while let Some(&(at, timer)) = self.timers.first() {
            if at > self.now {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::Connection(key) => {
                    let Some(connection) = self.connections.get_mut(&key) else { continue };
                    connection.armed = None;
                    connection.handle_timeout(self.now);
                    connection.touch(&mut self.touched);
                }
                Timer::Session(key) => {
                    let Some(session) = self.sessions.get_mut(&key) else { continue };
                    session.armed = None;
                    session.machine.handle_timeout(self.now);
                    if session.ends_at.is_some_and(|at| at <= self.now) {
                        session.ends_at = None;
                        session.machine.close("a discovery session lasts no longer than limits.discovery_timeout_s");
                    }
                    session.touch(&mut self.touched_sessions);
                }
            }
        }
        self.expire_stop();
    }

    fn time_to_wait(&self) -> Duration {
        let is_waiting =
            !self.touched_sessions.is_empty() || !self.retries.is_empty() || !self.sliced_orders.is_empty();
        if self.is_unfinished || is_waiting {
            return Duration::ZERO;
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let stop = self.stopping.as_ref().map(|stopping| stopping.deadline);
        let earliest = [timer, stop, self.unit_deadline()].into_iter().flatten().min();
        let longest = Duration::from_secs(60);
        earliest.map_or(longest, |at| at.saturating_duration_since(Instant::now()).min(longest))
    }

    fn begin_stop(&mut self, grace: Duration) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(Stopping { deadline: self.now + grace, forced: false });
        for (listener, _) in self.listeners.drain(..) {
            self.runtime.stop_listening(listener);
        }
        for session in self.sessions.values_mut() {
            match session.connections.is_empty() {
                true => session.machine.close("the target stops"),
                false => session.machine.request_logout(self.now, grace),
            }
            session.touch(&mut self.touched_sessions);
        }
        for connection in self.connections.values_mut() {
            connection.refuse();
            connection.touch(&mut self.touched);
        }
    }

    fn expire_stop(&mut self) {
        let Some(stopping) = &mut self.stopping else { return };
        if stopping.forced || self.now < stopping.deadline {
            return;
        }
        stopping.forced = true;
        stopping.deadline = self.now + Duration::from_secs(3600); // Nothing more is waited for but the stores.
        for session in self.sessions.values_mut() {
            session.machine.close("the target stops");
            session.touch(&mut self.touched_sessions);
        }
        for connection in self.connections.values_mut() {
            connection.refuse();
            connection.touch(&mut self.touched);
        }
    }

    fn has_stopped(&mut self) -> bool {
        // Sessions that other workers have say when they are over; after the deadline that is not waited for.
        let is_forced = self.stopping.as_ref().is_some_and(|stopping| stopping.forced);
        let is_alone = self.abroad.is_empty() || is_forced;
        self.connections.is_empty() && self.sessions.is_empty() && is_alone && !self.units.values().any(Slot::is_busy)
    }

    /// The last bytes of every stream go out.
    fn say_farewell(&mut self) {
        let until = Instant::now() + FAREWELL;
        while self.runtime.streams_count() > 0 && Instant::now() < until {
            if self.runtime.poll(Some(Duration::from_millis(20))).is_err() {
                return;
            }
            while self.runtime.next_event().is_some() {}
        }
    }
}

/// Replaces the time for which a timer is set.
fn set_timer(
    timers: &mut BTreeSet<(Instant, Timer)>,
    timer: Timer,
    armed: &mut Option<Instant>,
    wanted: Option<Instant>,
) {
    if *armed == wanted {
        return;
    }
    if let Some(at) = armed.take() {
        timers.remove(&(at, timer));
    }
    if let Some(at) = wanted {
        timers.insert((at, timer));
        *armed = wanted;
    }
}

#[cfg(test)]
mod tests;
