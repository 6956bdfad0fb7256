//! A worker: one thread with its runtime, the connections and sessions that belong to it, and the volumes that it owns.
//!
//! Every iteration: wait, take what has happened, let every ready connection and session advance, poll every ready unit, send. Nothing here
//! blocks: volumes are opened and closed in threads of their own, which report back by [`Message`]. The one exception is reading a small
//! description file at a login.
//!
//! [`Worker`] only connects its parts: connections ([`connections`]), who may log in ([`login_policy`]), sessions and units with the routing
//! between them and to other workers ([`routing`]), opening and closing of units ([`unit_lifecycle`]), timers ([`timers`]), and
//! administrative orders ([`orders`]).

pub(crate) mod connection;
mod connections;
mod cross_unit;
mod cross_worker;
mod datagrams;
mod ecl_session;
mod eviction;
mod grant;
mod handed_over;
mod handover;
mod login;
mod login_machine;
mod login_policy;
pub(crate) mod machine;
pub(crate) mod message;
pub(crate) mod network;
mod open_unit;
mod opened_unit;
mod opening;
pub(crate) mod order;
mod order_slices;
mod orders;
mod report;
mod routing;
mod scrubbing;
mod session;
mod session_commands;
mod session_driver;
mod session_end;
mod session_machine;
mod sessions;
mod slot_allocator;
mod stream_sender;
mod targets;
mod timers;
mod unit_lifecycle;
mod units;

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_iscsi::target::LoginEvent;
use strongroom_iscsi::{CloseReason, target::ConnectionId};
use strongroom_net::{Event, LinkEvent, LinkPacket, NetError, UdpPacket, Waker};

use crate::config::Limits;
use crate::connection_handlers::ConnectionHandlers;
use crate::iterations::IterationClock;
use crate::services::TargetServices;
use crate::stats::Counters;
use connection::{Connection, ConnectionKey, Disposition};
use connections::Connections;
use cross_unit::send_request;
use login::{LoginContext, Logins};
use message::{Message, WorkerMail};
use network::{Network, PortalSockets};
use order_slices::{OrderContext, OrderQueue};
use routing::{CommandBounds, Routing};
use session_machine::SessionMachine;
use timers::{Timer, Timers};
use unit_lifecycle::UnitLifecycle;
use units::UnitRequest;

/// How many sessions are driven, or events taken, between two looks at the clock. For a connection that logs in, the clock is read each
/// time: a step of its handshake, or reading the description of its volume, takes a good part of a millisecond.
const DRIVEN_PER_LOOK: usize = 16;
/// The longest wait without any deadline.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A stop in progress.
struct Stop {
    deadline: Instant,
    /// The last connections are being closed.
    is_forced: bool,
}

pub(crate) struct Worker {
    index: usize,
    services: Arc<TargetServices>,
    handlers: Arc<ConnectionHandlers>,
    logins: Logins,
    network: Network,
    mail: WorkerMail,
    connections: Connections,
    routing: Routing,
    lifecycle: UnitLifecycle,
    timers: Timers,
    orders: OrderQueue,
    unit_requests: Vec<UnitRequest>,
    /// The last iteration left something that could go on.
    is_unfinished: bool,
    now: Instant,
    stop: Option<Stop>,
}

impl Worker {
    /// A worker for the calling thread.
    pub(crate) fn new(
        index: usize,
        (services, handlers): (Arc<TargetServices>, Arc<ConnectionHandlers>),
        sockets: PortalSockets,
        mail: WorkerMail,
        waker: Waker,
    ) -> Result<Worker, NetError> {
        let settings = services.settings();
        let bounds = CommandBounds::new(Arc::clone(&services.budget), &settings.config.limits);
        let (loads, counters) = (Arc::clone(&services.workers.loads), Arc::clone(&services.metrics.counters));
        let portals = (services.endpoint.portals(), (index, mail.links.len()));
        let network = Network::new(services.runtime_options(), waker.clone(), sockets, portals)?;
        Ok(Worker {
            index,
            logins: Logins::new(index, Arc::clone(&services)),
            network,
            connections: Connections::default(),
            routing: Routing::new((index, mail.links.len()), bounds, loads, counters),
            mail,
            lifecycle: UnitLifecycle::new(index, Arc::clone(&services), waker),
            services,
            handlers,
            timers: Timers::default(),
            orders: OrderQueue::default(),
            unit_requests: Vec::new(),
            is_unfinished: false,
            now: Instant::now(),
            stop: None,
        })
    }

    /// Works until told to stop and everything is closed.
    pub(crate) fn run(mut self) {
        strongroom_handshake::seed_thread();
        let mut clock = IterationClock::start();
        loop {
            if let Err(error) = self.network.runtime.poll(Some(self.time_to_wait())) {
                tracing::error!(worker = self.index, %error, "a worker's runtime failed; its volumes are closed");
                break;
            }
            self.now = Instant::now();
            clock.except(self.network.looked(&self.services.metrics.polls[self.index]));
            self.take_events(&clock);
            while let Ok(message) = self.mail.inbox.try_recv() {
                self.take_message(message);
            }
            self.expire();
            self.close_unused();
            let context = OrderContext {
                routing: &mut self.routing,
                connections: &self.connections,
                policy: &self.logins.policy,
                catalogue: &self.services.catalogue,
                worker: self.index,
                now: self.now,
            };
            self.orders.advance(&clock, context);
            self.advance_ready(&clock);
            let (limits, metrics) = (self.logins.policy.limits(), &self.services.metrics);
            self.routing.units.bound_memory(self.now, &self.services.budget, limits, &metrics.counters);
            self.flush();
            clock.lap(&self.services.metrics.iterations[self.index]);
            if self.has_stopped() {
                break;
            }
        }
        self.leave();
        self.lifecycle.close_all(&mut self.routing.units);
        self.network.drain();
    }

    fn login_parts(&mut self) -> (&mut Logins, LoginContext<'_>) {
        let (routing, lifecycle) = (&mut self.routing, &mut self.lifecycle);
        (&mut self.logins, LoginContext { routing, lifecycle, now: self.now })
    }

    /// Lets ready connections, sessions and units advance until nothing is left to do now, or until this iteration has taken its time:
    /// what is left goes on in the next one, in the same order.
    fn advance_ready(&mut self, clock: &IterationClock) {
        loop {
            let mut driven = 0;
            self.is_unfinished = loop {
                self.evict();
                self.refuse_ended_logins();
                let mut logs_in = false;
                if let Some(key) = self.connections.pop_ready() {
                    logs_in = self.connections.get(key).is_some_and(|connection| connection.stage.session().is_none());
                    self.drive(key);
                } else if let Some(key) = self.routing.sessions.pop_ready() {
                    self.drive_session(key);
                } else if let Some(key) = self.routing.pop_ready_login() {
                    logs_in = true;
                    self.retry_login(key);
                } else {
                    break false;
                }
                driven += 1;
                if (logs_in || driven % DRIVEN_PER_LOOK == 0) && clock.is_over() {
                    break true;
                }
            };
            self.is_unfinished |= !self.routing.poll_units(|| clock.is_over(), &mut self.unit_requests);
            for request in self.unit_requests.drain(..) {
                send_request(request, &self.services, self.index);
            }
            let is_quiet =
                !self.connections.has_ready() && !self.routing.sessions.has_ready() && !self.routing.has_ready_logins();
            if self.is_unfinished || is_quiet && !self.routing.units.have_mail() {
                return;
            }
        }
    }

    /// Takes what has happened on streams, until this iteration has taken its time. The runtime keeps the rest, and does not wait then.
    fn take_events(&mut self, clock: &IterationClock) {
        let mut taken = 0;
        while let Some(event) = self.network.runtime.next_event() {
            let mut logs_in = false;
            match event {
                Event::Received { stream, bytes } => {
                    let received = self.connections.on_stream(stream, |connection| {
                        connection.receive(bytes);
                        connection.stage.session().is_none()
                    });
                    match received {
                        Some(is_login) => logs_in = is_login,
                        None => continue,
                    }
                }
                Event::PeerFinished { stream } => {
                    self.connections.on_stream(stream, |connection| connection.link.handle_eof());
                }
                Event::SendLow { stream } => {
                    self.connections.on_stream(stream, Connection::send_low);
                }
                Event::Closed { stream, failure } => {
                    let reason = failure.to_string();
                    self.connections.on_stream(stream, |connection| connection.lost(reason));
                    self.connections.forget_stream(stream);
                }
                Event::Accepted { listener, stream, peer } => self.accept_stream(listener, stream, peer),
                Event::DatagramsReady { socket } => {
                    let (datagrams, sessions) = (&mut self.network.datagrams, &mut self.routing.sessions);
                    datagrams.receive(self.now, socket, sessions, &self.services.metrics.counters);
                }
                Event::Connected { .. } | Event::Woken => {}
            }
            taken += 1;
            if (logs_in || taken % DRIVEN_PER_LOOK == 0) && clock.is_over() {
                return;
            }
        }
    }

    fn take_message(&mut self, message: Message) {
        match message {
            Message::Adopt(detached) => self.adopt(*detached),
            Message::CrossWorker { from, messages } => self.routing.receive(self.now, from, messages),
            Message::Opened { volume, outcome } => {
                match self.lifecycle.opened(&mut self.routing.units, &volume, *outcome, self.now) {
                    Ok(logins) => self.routing.retry_logins(logins),
                    Err(failed) => self.reject_waiting(&failed),
                }
            }
            Message::Closed { volume } => self.lifecycle.closed(&mut self.routing.units, &volume),
            Message::Order(order) => self.order(order),
            Message::CrossUnit(request) => {
                if let Some(may_write) = self.logins.policy.cross_unit_may_write(&request) {
                    self.routing.units.cross_unit_request(self.now, *request, may_write);
                }
            }
            Message::CrossUnitOutcome(outcome) => self.routing.units.cross_unit_outcome(*outcome),
            Message::SlotNeeded(need) => self.evict_for(need),
            Message::TargetsFound { session, connection, targets } => {
                let session = self.routing.sessions.get_mut_ready(session);
                if let Some(machine) = session.and_then(|session| session.machine.iscsi_mut()) {
                    machine.send_targets(connection, &targets);
                }
            }
            Message::Ended { worker } => {
                let logins = self.connections.iter().filter_map(Connection::new_unit_session);
                self.routing.worker_ended(self.now, worker, logins);
            }
            Message::Stop { grace } => self.begin_stop(grace),
        }
        self.refuse_ended_logins();
    }

    /// Lets one connection advance as far as it can.
    fn drive(&mut self, key: ConnectionKey) {
        let Some(mut connection) = self.connections.check_out(key) else { return };
        connection.is_ready = false;
        match self.advance(&mut connection) {
            Disposition::HandOver(worker) => return self.hand_over(connection, worker),
            Disposition::HandToHandler => return self.hand_to_handler(connection),
            Disposition::End => return self.finish(connection, None),
            Disposition::Keep => {}
        }
        let session = connection.stage.session();
        if session.is_none_or(|(session, _)| self.routing.sessions.get_mut_ready(session).is_none()) {
            // A session sends for all of its connections.
            connection.transmit(self.now, &mut self.network.runtime, None);
        }
        let wanted = connection.poll_timeout();
        self.timers.set(Timer::Connection(key), &mut connection.armed, wanted);
        self.connections.check_in(connection);
    }

    fn advance(&mut self, connection: &mut Connection) -> Disposition {
        loop {
            if let Some(event) = connection.login.as_mut().and_then(|login| login.poll_event()) {
                let disposition = self.on_login_event(connection, event);
                self.connections.settle(connection);
                match disposition {
                    Disposition::Keep => continue,
                    disposition => return disposition,
                }
            }
            let Some(event) = connection.link.poll_event() else { break };
            match self.on_link_event(connection, event) {
                Disposition::Keep => {}
                disposition => return disposition,
            }
        }
        if let Some((key, id)) = connection.stage.session() {
            let Some(session) = self.routing.sessions.get_mut(key) else { return Disposition::End };
            if std::mem::take(&mut connection.has_progressed) {
                session.machine.handle_progress(self.now, id);
            }
            if let Some(reason) = connection.stream.failure() {
                session.machine.handle_closed(self.now, id, CloseReason::ConnectionLost(reason.to_owned()));
            }
            return Disposition::Keep;
        }
        if connection.link.is_ended() { Disposition::End } else { Disposition::Keep }
    }

    fn on_login_event(&mut self, connection: &mut Connection, event: LoginEvent) -> Disposition {
        match event {
            LoginEvent::Requested(request) => {
                let (logins, mut context) = self.login_parts();
                logins.requested(&mut context, connection, request)
            }
            LoginEvent::Authenticated { user } => {
                let (logins, mut context) = self.login_parts();
                logins.authenticated(&mut context, connection, user)
            }
            LoginEvent::Done => self.logged_in(connection),
            LoginEvent::Closed(reason) => {
                self.logins.policy.login_failed(connection, &reason);
                Disposition::End
            }
        }
    }

    fn on_link_event(&mut self, connection: &mut Connection, event: LinkEvent) -> Disposition {
        let session = connection.stage.session();
        let session = session.and_then(|(key, id)| Some((&mut self.routing.sessions.get_mut(key)?.machine, id)));
        match (event, &mut connection.login, session) {
            (LinkEvent::Established { peer }, _, _) => {
                let disposition = self.logins.established(connection, peer, self.now);
                self.connections.settle(connection);
                return disposition;
            }
            (LinkEvent::Pdu(pdu), Some(login), _) => login.handle_pdu(&pdu),
            (LinkEvent::Pdu(pdu), None, Some((session, id))) => {
                if let Some(machine) = session.iscsi_mut() {
                    machine.handle_pdu(self.now, id, pdu);
                }
            }
            (LinkEvent::Corrupt(pdu), _, Some((session, id))) => {
                if let Some(machine) = session.iscsi_mut() {
                    machine.handle_corrupt_pdu(self.now, id, &pdu);
                }
            }
            (LinkEvent::Packet(LinkPacket { head, payload }), None, Some((session, _))) => {
                if let Some(association) = session.ecl_mut() {
                    association
                        .handle_packet(self.now, UdpPacket { source: connection.peer, ecn: 0, head, rest: payload });
                }
            }
            (LinkEvent::Message(message), Some(login), _) => login.handle_message(&message),
            (LinkEvent::Message(_), None, Some((session, _))) => session.close("a message behind an ECL login"),
            (LinkEvent::Pdu(_) | LinkEvent::Corrupt(_) | LinkEvent::Message(_) | LinkEvent::Packet(_), ..) => {}
            (LinkEvent::Ended(end), Some(login), _) => {
                login.handle_closed(CloseReason::ConnectionLost(end.to_string()));
            }
            (LinkEvent::Ended(end), None, Some((session, id))) => {
                session.handle_closed(self.now, id, CloseReason::ConnectionLost(end.to_string()));
            }
            (LinkEvent::Ended(end), None, None) => {
                if !end.is_orderly() {
                    Counters::count(&self.services.metrics.counters.setups_failed);
                    tracing::warn!(peer = %connection.peer, reason = %end, "a connection was not established");
                }
                return Disposition::End;
            }
        }
        Disposition::Keep
    }

    /// The end of a connection: what can still be sent is sent.
    fn finish(&mut self, mut connection: Box<Connection>, session: Option<(&mut SessionMachine, ConnectionId)>) {
        connection.close(self.now, &mut self.network.runtime, session);
        self.release(&mut connection);
        // A session that never began.
        if let Some((key, address)) = connection.new_unit_session() {
            self.routing.logged_out(&address, key);
            self.routing.leave_unit(self.now, &address, key);
            self.flush_to(address.unit_worker);
        }
    }

    /// A connection that is checked out leaves this worker.
    fn release(&mut self, connection: &mut Connection) {
        self.connections.forget(connection);
        self.timers.set(Timer::Connection(connection.key), &mut connection.armed, None);
    }

    fn expire(&mut self) {
        while let Some(timer) = self.timers.pop_expired(self.now) {
            match timer {
                Timer::Connection(key) => {
                    let now = self.now;
                    self.connections.change(key, |connection| {
                        connection.armed = None;
                        connection.handle_timeout(now);
                    });
                }
                Timer::Session(key) => {
                    let Some(session) = self.routing.sessions.get_mut_ready(key) else { continue };
                    session.armed = None;
                    session.handle_timeout(self.now);
                }
            }
        }
        self.force_stop();
    }

    /// Lets idle stores do their work, and closes those that nobody uses.
    fn close_unused(&mut self) {
        let (bounds, is_awaited) = (unit_bounds(self.logins.policy.limits()), self.routing.has_ready_logins());
        for volume in self.routing.units.tend(self.now, bounds, is_awaited) {
            self.lifecycle.close(&mut self.routing.units, &volume);
        }
    }

    fn time_to_wait(&self) -> Duration {
        let is_waiting =
            self.routing.sessions.has_ready() || self.routing.has_ready_logins() || !self.orders.is_empty();
        if self.is_unfinished || is_waiting {
            return Duration::ZERO;
        }
        let (idle_close, scrub_share) = unit_bounds(self.logins.policy.limits());
        let units = self.routing.units.deadline(idle_close, scrub_share);
        let stop = self.stop.as_ref().map(|stop| stop.deadline);
        let earliest = [self.timers.next(), stop, units].into_iter().flatten().min();
        earliest.map_or(WAIT_MAX, |at| at.saturating_duration_since(Instant::now()).min(WAIT_MAX))
    }

    /// Sends what sessions and units said in this iteration.
    fn flush(&mut self) {
        (0..self.mail.links.len()).for_each(|worker| self.flush_to(worker));
    }

    fn flush_to(&mut self, worker: usize) {
        if let Some(messages) = self.routing.take_outgoing(worker) {
            self.mail.links[worker].send(self.index, messages);
        }
    }

    fn begin_stop(&mut self, grace: Duration) {
        if self.stop.is_some() {
            return;
        }
        self.logins.stop();
        self.stop = Some(Stop { deadline: self.now + grace, is_forced: false });
        self.network.stop_listening();
        let now = self.now;
        self.routing.sessions.change_all(|session| match session.connections.is_empty() {
            true => session.machine.close("the target stops"),
            false => session.machine.request_logout(now, grace),
        });
        self.connections.refuse_all();
    }

    /// After the grace of a stop, what is left is closed.
    fn force_stop(&mut self) {
        let Some(stop) = &mut self.stop else { return };
        if stop.is_forced || self.now < stop.deadline {
            return;
        }
        stop.is_forced = true;
        stop.deadline = self.now + Duration::from_secs(3600); // Nothing more is waited for but the stores.
        self.routing.sessions.change_all(|session| session.machine.close("the target stops"));
        self.connections.refuse_all();
    }

    fn has_stopped(&self) -> bool {
        let Some(stop) = &self.stop else { return false };
        // Sessions of other workers say when they are over; after the deadline that is not waited for.
        let is_alone = !self.routing.has_remote_sessions() || stop.is_forced;
        self.connections.is_empty() && self.routing.sessions.is_empty() && is_alone && !self.routing.units.are_busy()
    }

    /// This worker ends: units and sessions of other workers are told.
    fn leave(&mut self) {
        let ended = self.routing.end(self.now);
        self.flush();
        for key in ended {
            self.services.metrics.counters.session_ends(key);
        }
        let mut logins: Vec<Box<Connection>> = self.connections.take_all().collect();
        while let Ok(message) = self.mail.inbox.try_recv() {
            if let Message::Adopt(detached) = message {
                logins.push(detached.connection);
            }
        }
        for connection in logins {
            if let Some((key, address)) = connection.new_unit_session().filter(|(_, address)| address.is_remote()) {
                self.routing.leave_unit(self.now, &address, key);
            }
        }
        self.flush();
    }
}

/// After which time unused units are closed, and the share of time for scrubbing, in percent.
fn unit_bounds(limits: &Limits) -> (Duration, u8) {
    (Duration::from_secs(limits.idle_close_s), limits.scrub_share)
}

#[cfg(test)]
mod tests;
