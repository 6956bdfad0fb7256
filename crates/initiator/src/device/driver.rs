//! The thread that owns the sockets: connects, reconnects, and moves bytes between runtime, nexus and engine.
//!
//! While the session is down, requests wait in the engine. It is tried again with growing pauses; after the time-out
//! `give_up` the requests fail with `Unreachable`, and so do new ones, until a try succeeds. A *refusal* (an unknown key, a
//! login turned down, another volume than before) is final and not tried again. Name resolution blocks this thread, which
//! has nothing else to do at that moment: its session is gone. Further connections of a session go to the first one's address.

mod admit;
mod claim;
mod datagrams;
mod keys;
mod logout;
mod pace;
mod reconnection;

use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use strongroom_block::{DeviceError, DeviceErrorKind};
use strongroom_net::{
    Event, PollCounters, Runtime, RuntimeOptions, SendState, StreamFailure, StreamId, Waker, resolve,
};
use strongroom_scsi::vendor::lease::Writer;

use crate::completion::{device_error, lock};
use crate::device::attachment::Attachment;
use crate::device::intake::{Intake, abandoned, detached};
use crate::pipeline::engine::{Engine, EngineCounters};
use crate::pipeline::sealing::Sealing;
use crate::pipeline::unit::UnitDescription;
use crate::session::nexus::{Nexus, Notice};
use crate::session::transport::{InitiatorPort, PacketStatus, SessionTransport, Wire};
use crate::{AttachError, AttachOptions, FenceReport, FenceRequest, PipelineStatus};
use datagrams::DatagramSocket;
use logout::hang_up;
use pace::Pace;
use reconnection::Reconnection;

/// Connections of one session, and their successors while they linger.
const STREAMS_MAX: usize = 64;
/// What the first connection gave.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) unit: Arc<UnitDescription>,
    pub(super) sealing: Option<Arc<Sealing>>,
    /// Who writes, if that was asked.
    pub(super) writers: Vec<Writer>,
    /// What came of a request about reservations.
    pub(super) report: FenceReport,
}

impl Attached {
    /// A unit that was asked something, and is not used.
    fn unused(unit: Arc<UnitDescription>) -> Attached {
        Attached { unit, sealing: None, writers: Vec::new(), report: FenceReport::default() }
    }
}

/// How the connection is doing, for people and metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionStatus {
    /// Commands can flow now.
    pub is_connected: bool,
    /// Sessions made so far.
    pub connections: u64,
    /// TCP connections of the session now.
    pub wires: usize,
    /// How its packets do, over ECL; as they did last, while the connection is lost.
    pub packets: Option<PacketStatus>,
    /// How often we have changed the keys of these connections' channels.
    pub rekeys: u64,
    /// How often the target has.
    pub peer_rekeys: u64,
    /// Bytes that the target has acknowledged and not made durable: kept here to be sent again should it forget them.
    pub unflushed_bytes: usize,
    /// Versions that opened and of which the target was not told yet.
    pub feedback_pending: usize,
    /// It was given up ([`crate::RemoteDevice::abandon`]).
    pub is_abandoned: bool,
    /// Why the last one ended.
    pub last_loss: Option<String>,
    /// Why nothing more may be written, if somebody else has the volume by now.
    pub lease_lost: Option<String>,
    /// What the engine did.
    pub engine: EngineCounters,
    /// What busy polling came to in the device's thread.
    pub busy_poll: PollCounters,
    /// What busy polling came to for threads that wait for completions.
    pub busy_poll_completions: PollCounters,
    /// What the pipeline is at.
    pub pipeline: PipelineStatus,
}

/// What the thread is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Ask what the unit is, then leave.
    Inquire,
    /// Ask who writes to it, then leave.
    AskWriters,
    /// Carry out a request about reservations, then leave.
    Fence(Arc<FenceRequest>),
    Attach,
}

enum SessionState<T> {
    Idle {
        retry_at: Instant,
    },
    Active(Box<Nexus<T>>),
    /// Refused for good.
    Refused,
}

/// The thread's state. `T` carries the session.
pub(super) struct Driver<T: SessionTransport> {
    options: Arc<AttachOptions>,
    port: InitiatorPort,
    intake: Arc<Intake>,
    status: Arc<Mutex<ConnectionStatus>>,
    runtime: Runtime,
    purpose: Purpose,
    state: SessionState<T>,
    /// For a transport that has datagrams, while there is a session.
    datagrams: Option<DatagramSocket>,
    /// They were sent for long enough, and there are more.
    has_more: bool,
    attachment: Attachment,
    pace: Pace,
    first: Option<SyncSender<Result<Attached, AttachError>>>,
    reconnection: Reconnection,
    logout_deadline: Option<Instant>,
}

impl<T: SessionTransport> Driver<T> {
    pub(super) fn new(
        options: Arc<AttachOptions>,
        intake: Arc<Intake>,
        status: Arc<Mutex<ConnectionStatus>>,
        waker: Waker,
        purpose: Purpose,
        first: SyncSender<Result<Attached, AttachError>>,
    ) -> Result<Driver<T>, AttachError> {
        let runtime_options = RuntimeOptions {
            streams_max: STREAMS_MAX,
            connect_timeout: options.timeouts.connect,
            busy_poll: options.busy_poll,
            ..RuntimeOptions::default()
        };
        let pace = Pace::new(waker.clone());
        let runtime = Runtime::with_waker(runtime_options, waker)
            .map_err(|error| AttachError::System(std::io::Error::other(error.to_string())))?;
        let port = InitiatorPort::random();
        Ok(Driver {
            attachment: Attachment::new(&options, port, Arc::clone(&intake.meter)),
            port,
            intake,
            status,
            runtime,
            purpose,
            state: SessionState::Idle { retry_at: Instant::now() },
            datagrams: None,
            has_more: false,
            pace,
            first: Some(first),
            reconnection: Reconnection::new(options.timeouts.backoff_min),
            logout_deadline: None,
            options,
        })
    }

    /// Runs until detached (or, before the first success, until the first failure).
    pub(super) fn run(mut self) {
        while self.step() {}
        if let Some(engine) = &mut self.attachment.engine {
            engine.fail_all(&detached());
        }
        // Requests that were pushed and not yet taken end as well.
        self.take_requests();
        if let Some(engine) = &mut self.attachment.engine {
            engine.fail_all(&detached());
        }
        self.publish();
        self.leave();
    }

    fn step(&mut self) -> bool {
        let now = Instant::now();
        if let SessionState::Idle { retry_at } = self.state {
            let is_due = if self.intake.is_detaching() { self.waits_to_ask(now) } else { retry_at <= now };
            if is_due {
                self.call(now);
            }
        }
        if let Some(engine) = &mut self.attachment.engine {
            engine.table.now = Some(now);
        }
        self.take_requests();
        self.look_at_keys(now);
        if self.intake.is_abandoned() {
            self.abandon();
        }
        self.handle_timeouts(now);
        self.process(now);
        if let (None, SessionState::Active(nexus)) = (&self.datagrams, &self.state) {
            match DatagramSocket::open(&mut self.runtime, nexus) {
                Ok(opened) => self.datagrams = opened,
                Err(error) => self.lose(now, error),
            }
        }
        self.check_lease(now);
        self.call_further(now);
        self.adapt(now);
        self.seal();
        self.transmit(now);
        self.publish();
        if self.is_over(now) {
            return false;
        }
        if let Err(error) = self.runtime.poll(self.pause()) {
            tracing::error!(%error, "the network runtime failed");
            self.lose(Instant::now(), AttachError::System(std::io::Error::other(error.to_string())));
            return false;
        }
        self.receive();
        true
    }

    /// Nobody waits any longer, for good.
    fn abandon(&mut self) {
        lock(&self.status).is_abandoned = true;
        if let Some(engine) = self.attachment.engine.as_mut().filter(|engine| engine.table.has_waiting_callers()) {
            engine.abandon(&abandoned());
            self.lose(Instant::now(), AttachError::Unreachable("the attachment was given up".into()));
        }
    }

    fn take_requests(&mut self) {
        let requests = self.intake.take();
        if let Some(engine) = &mut self.attachment.engine {
            for request in requests {
                engine.submit(request);
            }
        }
    }

    fn publish(&mut self) {
        let Some(engine) = &mut self.attachment.engine else { return };
        let finished = engine.table.take_finished();
        let (wires, rekeys, packets) = match &self.state {
            SessionState::Active(nexus) => {
                let wires = nexus.wires().iter().filter(|wire| wire.is_in_session).count();
                (wires, nexus.rekeys(), nexus.packet_status())
            }
            SessionState::Idle { .. } | SessionState::Refused => (0, (0, 0), None),
        };
        let mut status = lock(&self.status);
        status.engine = engine.counters;
        status.unflushed_bytes = engine.unflushed_bytes();
        status.feedback_pending = engine.feedback_pending();
        status.wires = wires;
        status.busy_poll = self.runtime.counters().busy_poll;
        (status.rekeys, status.peer_rekeys) = rekeys;
        status.packets = packets.or(status.packets);
        drop(status);
        // Published before the completions: their consumer finds a status that includes them.
        self.intake.finish(finished);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let state = match &self.state {
            SessionState::Idle { retry_at } => Some(*retry_at),
            SessionState::Active(nexus) => {
                // Timers of packets mean nothing while none can leave.
                let blocked_until = self.datagrams.as_ref().and_then(DatagramSocket::blocked_until);
                blocked_until.max(nexus.poll_timeout())
            }
            SessionState::Refused => None,
        };
        let give_up = self.give_up_at();
        let engine = self.attachment.engine.as_ref().and_then(Engine::poll_timeout);
        let check = self.attachment.next_check();
        [state, give_up, engine, check, self.logout_deadline].into_iter().flatten().min()
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.reconnection.give_up_at(self.options.timeouts.give_up).filter(|_| !self.reconnection.gave_up)
    }

    fn handle_timeouts(&mut self, now: Instant) {
        if let SessionState::Active(nexus) = &mut self.state {
            nexus.handle_timeout(now);
        }
        if let Some(engine) = &mut self.attachment.engine {
            engine.handle_timeout(now);
            if let Some(why) = engine.needs_new_connection(now) {
                self.lose(now, AttachError::Unreachable(why.to_owned()));
            }
        }
        if self.give_up_at().is_some_and(|at| at <= now) {
            self.give_up();
        }
    }

    /// The connection has been lost for too long: nobody waits any longer, but it is still tried.
    fn give_up(&mut self) {
        self.reconnection.gave_up = true;
        let seconds = self.options.timeouts.give_up.as_secs();
        let why = lock(&self.status).last_loss.clone().unwrap_or_default();
        tracing::error!(seconds, why, "the target stays away: waiting requests fail now");
        let error = device_error(
            DeviceErrorKind::Unreachable,
            None,
            format!("no connection to the target for {seconds} s ({why}); requests fail until it is back"),
        );
        self.intake.refuse(Some(error.clone()));
        if matches!(&self.state, SessionState::Active(nexus) if nexus.is_suspended()) {
            // What it would continue with is given up.
            self.lose(Instant::now(), AttachError::Unreachable(why));
        }
        if let Some(engine) = &mut self.attachment.engine {
            engine.fail_all(&error);
        }
    }

    /// Begins a try.
    fn call(&mut self, now: Instant) {
        let url = &self.options.url;
        let (host, port) = self.reconnection.detour().unwrap_or_else(|| (url.host(), url.port()));
        let addresses = match resolve(host, port) {
            Ok(addresses) => addresses,
            Err(error) => return self.lose(now, AttachError::Unreachable(error.to_string())),
        };
        let mut others = addresses;
        others.reverse();
        let Some(address) = others.pop() else {
            let nowhere = format!("the host of {} has no address", self.options.url);
            return self.lose(now, AttachError::Unreachable(nowhere));
        };
        match self.dial(now, address) {
            Ok(wire) => {
                let nexus = Nexus::new(now, &self.options, Wire { others, ..wire });
                self.state = SessionState::Active(Box::new(nexus));
            }
            Err(error) => self.lose(now, error),
        }
    }

    fn dial(&mut self, now: Instant, address: SocketAddr) -> Result<Wire<T::Connection>, AttachError> {
        let stream = self.runtime.connect(address).map_err(|error| AttachError::Unreachable(error.to_string()))?;
        let connection = T::connection(now, &self.options).inspect_err(|_| self.runtime.close(stream))?;
        Ok(Wire::new(stream, address, connection))
    }

    /// Calls the further connections of a session.
    fn call_further(&mut self, now: Instant) {
        while let SessionState::Active(nexus) = &mut self.state
            && nexus.wants_wire(now)
            && (nexus.is_suspended() || !self.intake.is_detaching())
            && let Some(address) = self.reconnection.address
        {
            let wire = self.dial(now, address);
            let SessionState::Active(nexus) = &mut self.state else { return };
            match wire {
                Ok(wire) => nexus.add_wire(wire),
                Err(error) => {
                    tracing::debug!(%error, "a further connection could not be made");
                    nexus.delay_wires(now, &self.options);
                }
            }
        }
    }

    /// Takes what happened on the sockets.
    fn receive(&mut self) {
        let mut failed: Option<(StreamId, StreamFailure)> = None;
        while let Some(event) = self.runtime.next_event() {
            let now = Instant::now();
            let SessionState::Active(nexus) = &mut self.state else { continue };
            match event {
                Event::Received { stream, bytes } => {
                    nexus.handle_input(now, stream, bytes);
                    let engine = self.attachment.engine.as_mut();
                    // Nothing may be lent from the runtime while a notice is acted upon.
                    if let Some(notice) = nexus.process(now, &self.options, &self.port, engine) {
                        self.act(now, notice);
                    }
                }
                Event::PeerFinished { stream } => nexus.handle_eof(stream),
                Event::DatagramsReady { .. } => {
                    if let Some(datagrams) = &mut self.datagrams {
                        datagrams.receive(now, nexus);
                    }
                }
                Event::SendLow { stream } => {
                    if let Some(at) = nexus.wire_of(stream) {
                        nexus.wire(at).is_blocked = false;
                    }
                }
                Event::Connected { stream } => {
                    if let Some(at) = nexus.wire_of(stream) {
                        nexus.wire(at).is_connected = true;
                        self.reconnection.address = Some(nexus.wire(at).address);
                    }
                }
                Event::Closed { stream, failure } => {
                    failed = Some((stream, failure));
                    break;
                }
                _ => {}
            }
        }
        if let Some((stream, failure)) = failed {
            self.stream_failed(Instant::now(), stream, &failure);
        }
    }

    fn stream_failed(&mut self, now: Instant, stream: StreamId, failure: &StreamFailure) {
        let SessionState::Active(nexus) = &mut self.state else { return };
        let Some(at) = nexus.wire_of(stream) else { return };
        // Another address of the same host may answer.
        let wire = nexus.wire(at);
        if !wire.is_connected
            && let Some(address) = wire.others.pop()
            && let Ok(next) = self.runtime.connect(address)
        {
            (wire.stream, wire.address) = (next, address);
            return;
        }
        if let Some(notice) = nexus.wire_failed(now, &self.options, stream, failure.to_string()) {
            self.act(now, notice);
        }
    }

    fn process(&mut self, now: Instant) {
        if let SessionState::Active(nexus) = &mut self.state
            && let Some(notice) = nexus.process(now, &self.options, &self.port, self.attachment.engine.as_mut())
        {
            self.act(now, notice);
        }
        if let SessionState::Active(nexus) = &mut self.state {
            for stream in nexus.take_ended() {
                self.runtime.close(stream);
            }
        }
    }

    fn act(&mut self, now: Instant, notice: Notice) {
        match notice {
            Notice::Lost(error) => self.lose(now, error),
            Notice::Suspended(reason) => {
                tracing::warn!(%reason, "every connection of the session is lost; its commands wait for a new one");
                let mut status = lock(&self.status);
                (status.is_connected, status.last_loss) = (false, Some(reason));
                self.reconnection.lost(now);
            }
            Notice::Continued => {
                lock(&self.status).is_connected = true;
                self.found(false);
            }
            Notice::Probed(unit) => {
                if let Err(error) = self.probed(now, *unit) {
                    self.lose(now, error);
                }
            }
            Notice::Reservation(outcome) => {
                let answer = self.attachment.reservation_answered(outcome);
                self.lease_answered(now, Ok(answer));
            }
            Notice::Lease(outcome) => {
                let answer = self.attachment.lease_answered(outcome);
                self.lease_answered(now, answer);
            }
        }
    }

    fn transmit(&mut self, now: Instant) {
        self.has_more = false;
        let SessionState::Active(nexus) = &mut self.state else { return };
        for at in 0..nexus.wires().len() {
            while nexus.wires()[at].is_connected && !nexus.wires()[at].is_blocked {
                let mut buffers = nexus.transmit(at, self.attachment.engine.as_mut());
                if buffers.is_empty() {
                    break;
                }
                let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
                let wire = nexus.wire(at);
                wire.is_blocked = self.runtime.send(wire.stream, &mut buffers) == SendState::Full;
                if let Some(engine) = &mut self.attachment.engine {
                    engine.in_flight.transmitted(now, bytes);
                }
            }
        }
        if let Some(datagrams) = &mut self.datagrams {
            self.has_more = datagrams.transmit(now, nexus, self.attachment.engine.as_mut());
        }
    }

    /// The connection (or a try) has ended.
    fn lose(&mut self, now: Instant, error: AttachError) {
        let mut pause = self.reconnection.pause();
        if let SessionState::Active(nexus) = &mut self.state {
            pause = pause.max(nexus.reconnect_after());
            hang_up(&mut self.runtime, nexus, self.datagrams.take());
        }
        self.state = SessionState::Idle { retry_at: now + pause };
        self.attachment.disconnected();
        let moved = match &error {
            AttachError::Moved { address, is_permanent } => Some((address.as_str(), *is_permanent)),
            _ => None,
        };
        if self.reconnection.follows(moved) {
            lock(&self.status).is_connected = false;
            self.state = SessionState::Idle { retry_at: now };
            return;
        }
        let mut status = lock(&self.status);
        let was_connected = std::mem::replace(&mut status.is_connected, false);
        status.last_loss = Some(error.to_string());
        drop(status);
        if self.first.is_some() {
            return self.tell_first(Err(error));
        }
        if self.intake.is_detaching() {
            self.logout_deadline = Some(now);
            return;
        }
        if !error.is_temporary() {
            return self.refused(error);
        }
        if was_connected {
            tracing::warn!(%error, "the connection is lost; requests wait until it is back");
            self.reconnection.lost(now);
        } else {
            tracing::debug!(%error, "the target is not back yet");
        }
        self.reconnection.failed(self.options.timeouts.backoff_max);
    }

    /// Trying again would not help.
    fn refused(&mut self, error: AttachError) {
        tracing::error!(%error, "the target refuses us now: every request fails");
        let error: DeviceError = device_error(DeviceErrorKind::Refused, None, error.to_string());
        self.state = SessionState::Refused;
        self.intake.refuse(Some(error.clone()));
        self.take_requests();
        if let Some(engine) = &mut self.attachment.engine {
            engine.fail_all(&error);
        }
    }

    fn tell_first(&mut self, result: Result<Attached, AttachError>) {
        if let Some(first) = self.first.take() {
            // The caller waits for exactly this.
            let _ = first.send(result);
        }
    }
}
