//! The session with the target as an I_T nexus: the questions after the login, the writer lease, and then the engine's commands. It knows
//! the session in SCSI terms, and the connections that carry it by [`SessionTransport`]; which transport that is, is chosen where the device's
//! thread is started.
//!
//! A machine like its parts: bytes and time in, buffers and [`Notice`]s out. The sockets are the driver's.

mod lease;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use strongroom_block::{Buffer, Custody};
use strongroom_net::{PacketSplit, StreamId};
use strongroom_scsi::transport::initiator::{Completed, DataIn, Event, Session, SubmitError, TaskId};

use crate::pipeline::engine::{CommandId, Engine};
use crate::pipeline::unit::UnitDescription;
use crate::session::probe::{Probe, ProbeStep};
use crate::session::reservation::ReservationOutcome;
use crate::session::transport::{InitiatorPort, PacketStatus, SessionChange, SessionTransport, Wire, WireFailure};
use crate::session::writer_lease::LeaseOutcome;
use crate::{AttachError, AttachOptions};
pub(crate) use lease::AccessTalk;

/// From how many bytes on what was made is handed to the socket before more is made.
const TRANSMIT_BYTES: usize = 256 << 10;

/// What the driver must know.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The unit has answered all questions; commands may flow once [`Nexus::open`] is called.
    Probed(Box<UnitDescription>),
    /// What was to be said about the writer lease was answered.
    Lease(LeaseOutcome),
    /// What was to be said about reservations was answered.
    Reservation(ReservationOutcome),
    /// The last connection is gone and the session is not: the tasks wait for a new one. With the reason.
    Suspended(String),
    /// The session goes on.
    Continued,
    /// The session is over.
    Lost(AttachError),
}

#[derive(Debug)]
enum Task {
    Probe,
    Lease,
    Engine(CommandId),
}

/// Questions of which each follows from the answer to the one before.
#[derive(Debug)]
struct Dialog<T> {
    of: T,
    /// When the next one is due, if the unit or the command window makes it wait.
    at: Option<Instant>,
}

impl<T> Dialog<T> {
    fn new(of: T) -> Dialog<T> {
        Dialog { of, at: None }
    }

    /// Whether the next question is due now.
    fn take_due(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }
}

#[derive(Debug)]
pub(crate) struct Nexus<T> {
    transport: T,
    probe: Option<Dialog<Probe>>,
    /// What is being said about the writer lease, or about reservations.
    lease: Option<Dialog<AccessTalk>>,
    tasks: FxHashMap<TaskId, Task>,
    /// Until the unit has answered.
    deadline: Option<Instant>,
    connect_timeout: Duration,
    is_open: bool,
    is_logging_out: bool,
}

impl<T: SessionTransport> Nexus<T> {
    /// A nexus whose first wire is being connected.
    pub(crate) fn new(now: Instant, options: &AttachOptions, wire: Wire<T::Connection>) -> Nexus<T> {
        Nexus {
            transport: T::new(options, wire),
            probe: None,
            lease: None,
            tasks: FxHashMap::default(),
            deadline: Some(now + options.timeouts.connect),
            connect_timeout: options.timeouts.connect,
            is_open: false,
            is_logging_out: false,
        }
    }

    /// Bytes from the target.
    pub(crate) fn handle_input(&mut self, now: Instant, stream: StreamId, bytes: &[u8]) {
        self.transport.handle_input(now, stream, bytes);
    }

    /// What carries the session: datagrams go past the nexus.
    pub(crate) fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// The target sends no more.
    pub(crate) fn handle_eof(&mut self, stream: StreamId) {
        if let Some(at) = self.wire_of(stream) {
            self.transport.handle_eof(at);
        }
    }

    /// Which wire has a socket.
    pub(crate) fn wire_of(&self, stream: StreamId) -> Option<usize> {
        self.wires().iter().position(|wire| wire.stream == stream)
    }

    pub(crate) fn wires(&self) -> &[Wire<T::Connection>] {
        self.transport.wires()
    }

    pub(crate) fn wire(&mut self, at: usize) -> &mut Wire<T::Connection> {
        self.transport.wire(at)
    }

    /// How often we and the target have changed the keys of the wires that there are.
    pub(crate) fn rekeys(&self) -> (u64, u64) {
        self.transport.rekeys()
    }

    /// Where datagrams go, once that is known, and if there are any.
    pub(crate) fn datagram_peer(&self) -> Option<SocketAddr> {
        self.transport.datagram_peer()
    }

    /// How most datagrams are split.
    pub(crate) fn packet_split(&self) -> Option<PacketSplit> {
        self.transport.packet_split()
    }

    /// How datagrams do.
    pub(crate) fn packet_status(&self) -> Option<PacketStatus> {
        self.transport.packet_status()
    }

    /// Whether the socket of some wire stands.
    pub(crate) fn is_connected(&self) -> bool {
        self.wires().iter().any(|wire| wire.is_connected)
    }

    /// Whether the session stands without a connection.
    pub(crate) fn is_suspended(&self) -> bool {
        self.transport.is_suspended()
    }

    /// Whether a further wire is to be connected now.
    pub(crate) fn wants_wire(&self, now: Instant) -> bool {
        self.next_wire_at().is_some_and(|at| at <= now)
    }

    fn next_wire_at(&self) -> Option<Instant> {
        self.transport.next_wire_at().filter(|_| self.is_open)
    }

    /// A further wire is being connected.
    pub(crate) fn add_wire(&mut self, wire: Wire<T::Connection>) {
        self.transport.add_wire(wire);
    }

    /// A further wire could not be connected: the next try waits.
    pub(crate) fn delay_wires(&mut self, now: Instant, options: &AttachOptions) {
        self.transport.delay_wires(now, options);
    }

    /// Sockets that are to be closed.
    pub(crate) fn take_ended(&mut self) -> Vec<StreamId> {
        self.transport.take_ended()
    }

    /// How long the target wants to be left alone after this session.
    pub(crate) fn reconnect_after(&self) -> Duration {
        self.transport.session().map_or(Duration::ZERO, Session::reconnect_after)
    }

    /// The socket of a wire failed.
    pub(crate) fn wire_failed(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        stream: StreamId,
        failure: String,
    ) -> Option<Notice> {
        let at = self.wire_of(stream)?;
        self.transport.wire_ended(now, options, at, AttachError::Unreachable(failure)).map(Notice::Lost)
    }

    /// Commands of the engine may flow from now on. `custody`: who holds the unit's keys, if it is sealed.
    pub(crate) fn open(&mut self, now: Instant, custody: Option<Custody>) {
        self.transport.protect(custody);
        self.is_open = true;
        self.deadline = None;
        self.transport.allow_wires(now);
    }

    /// Starts a logout; [`Notice::Lost`] follows.
    pub(crate) fn log_out(&mut self, now: Instant) {
        self.is_logging_out = true;
        self.is_open = false;
        if let Some(session) = self.transport.session_mut() {
            session.logout(now);
        }
    }

    /// Says goodbye on the wires: what [`Nexus::transmit`] then has is the last.
    pub(crate) fn close(&mut self) {
        self.transport.close();
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.transport.handle_timeout(now);
        if let Some(session) = self.transport.session_mut()
            && session.poll_timeout().is_some_and(|at| at <= now)
        {
            session.handle_timeout(now);
        }
        if self.probe.as_mut().is_some_and(|probe| probe.take_due(now)) {
            self.ask();
        }
        if self.lease.as_mut().is_some_and(|lease| lease.take_due(now)) {
            self.say(now);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let session = self.transport.session().and_then(Session::poll_timeout);
        let wires = self.transport.poll_timeout();
        let probe = self.probe.as_ref().and_then(|probe| probe.at);
        let lease = self.lease.as_ref().and_then(|lease| lease.at);
        [wires, session, probe, lease, self.deadline, self.next_wire_at()].into_iter().flatten().min()
    }

    /// Moves everything that has arrived upwards.
    pub(crate) fn process(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        port: &InitiatorPort,
        engine: Option<&mut Engine>,
    ) -> Option<Notice> {
        let mut engine = engine;
        loop {
            for at in (0..self.wires().len()).rev() {
                // One that ends may take others with it.
                if !self.wires().get(at).is_some_and(|wire| wire.is_connected) {
                    continue;
                }
                if let Some(notice) = self.process_wire(now, options, port, at, engine.as_deref_mut()) {
                    return Some(notice);
                }
            }
            if let Some(notice) = self.session_events(now, options, engine.as_deref_mut()) {
                return Some(notice);
            }
            // What had come behind the end of a login.
            if !self.transport.has_input() {
                break;
            }
        }
        // How long connecting may take is the runtime's to say.
        if self.is_connected() && self.deadline.is_some_and(|deadline| deadline <= now) {
            let doing = match (self.transport.session(), &self.probe) {
                (None, _) => "making the channel",
                (Some(_), None) => "logging in",
                _ if self.lease.is_some() => "claiming the writer lease, or registering",
                _ => "asking the unit what it is",
            };
            let seconds = self.connect_timeout.as_secs();
            return Some(Notice::Lost(AttachError::TimedOut { seconds, doing }));
        }
        None
    }

    /// Moves what a wire has upwards.
    fn process_wire(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        port: &InitiatorPort,
        at: usize,
        engine: Option<&mut Engine>,
    ) -> Option<Notice> {
        let error = match self.transport.process_wire(now, options, port, at) {
            Ok(()) => return None,
            Err(WireFailure::Session(error)) => return Some(Notice::Lost(error)),
            Err(WireFailure::Connection(error)) => error,
        };
        // Let the session say what arrived before the end.
        let stream = self.wires()[at].stream;
        if let Some(notice) = self.session_events(now, options, engine) {
            return Some(notice);
        }
        let error = self.transport.explained(error);
        let at = self.wire_of(stream)?;
        self.transport.wire_ended(now, options, at, error).map(Notice::Lost)
    }

    fn session_events(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        mut engine: Option<&mut Engine>,
    ) -> Option<Notice> {
        while let Some(event) = self.transport.session_mut()?.poll_event() {
            match event {
                Event::DataIn(data_in) => self.data_in(now, &data_in, engine.as_deref_mut()),
                Event::Completed(completed) => {
                    if let Some(notice) = self.completed(now, &completed, engine.as_deref_mut()) {
                        return Some(notice);
                    }
                }
                Event::LogoutRequested { .. } => {
                    tracing::info!("the target asks for a logout; reconnecting");
                    self.log_out(now);
                }
                Event::AsyncSense { sense, .. } => tracing::info!(?sense, "the unit reports something"),
                Event::Closed { reason } => {
                    return Some(Notice::Lost(self.transport.explained(AttachError::Unreachable(reason))));
                }
                Event::TaskManagementDone { .. } => {}
                Event::Transport(event) => {
                    let change = self.transport.handle_event(now, options, event);
                    if let Some(notice) = self.session_changed(options, change, engine.as_deref_mut()) {
                        return Some(notice);
                    }
                }
            }
        }
        None
    }

    fn session_changed(
        &mut self,
        options: &AttachOptions,
        change: SessionChange,
        engine: Option<&mut Engine>,
    ) -> Option<Notice> {
        match change {
            SessionChange::None => None,
            SessionChange::LoggedIn => {
                let probe = Probe::new(options.target_name(), options.url.lun(), self.transport.target_key());
                self.probe = Some(Dialog::new(probe));
                self.ask();
                None
            }
            SessionChange::ConnectionLost => {
                if let Some(engine) = engine {
                    engine.connection_lost();
                }
                None
            }
            SessionChange::Suspended(reason) => {
                if let Some(engine) = engine {
                    engine.connection_lost();
                }
                Some(Notice::Suspended(reason))
            }
            SessionChange::Continued => Some(Notice::Continued),
        }
    }

    /// Data of a task, for what the task belongs to.
    fn data_in(&mut self, now: Instant, data_in: &DataIn, engine: Option<&mut Engine>) {
        match self.tasks.get(&data_in.task) {
            Some(Task::Probe) => {
                if let Some(probe) = &mut self.probe {
                    probe.of.data(data_in.data());
                }
            }
            Some(Task::Lease) => {
                if let Some(lease) = &mut self.lease {
                    lease.of.data(data_in.data());
                }
            }
            Some(&Task::Engine(id)) => {
                if let Some(engine) = engine {
                    engine.data_in(now, id, data_in);
                }
            }
            None => {}
        }
    }

    /// The end of a task, likewise.
    fn completed(&mut self, now: Instant, completed: &Completed, engine: Option<&mut Engine>) -> Option<Notice> {
        match self.tasks.remove(&completed.task)? {
            Task::Probe => match self.probe.as_mut()?.of.completed(completed) {
                ProbeStep::Ask(after) if after.is_zero() => self.ask(),
                ProbeStep::Ask(after) => self.probe.as_mut()?.at = Some(now + after),
                ProbeStep::Done(unit) => return Some(Notice::Probed(unit)),
                ProbeStep::Failed(error) => return Some(Notice::Lost(error)),
            },
            Task::Lease => return self.lease_answered(now, completed),
            Task::Engine(id) => {
                if let Some(engine) = engine {
                    engine.completed(now, id, completed);
                }
            }
        }
        None
    }

    fn ask(&mut self) {
        let (Some(probe), Some(session)) = (&mut self.probe, self.transport.session_mut()) else { return };
        match session.submit(probe.of.command()) {
            Ok(task) => drop(self.tasks.insert(task, Task::Probe)),
            // The session is ending; `Closed` says why.
            Err(error) => tracing::debug!(%error, "a question could not be sent"),
        }
    }

    /// Makes what is to be sent on a wire, up to about [`TRANSMIT_BYTES`]; empty when there is no more.
    pub(crate) fn transmit(&mut self, at: usize, engine: Option<&mut Engine>) -> Vec<Buffer> {
        if let (true, Some(session), Some(engine)) = (self.is_open, self.transport.session_mut(), engine) {
            while let Some((id, command)) = engine.next_command() {
                match session.submit(command) {
                    Ok(task) => drop(self.tasks.insert(task, Task::Engine(id))),
                    Err(SubmitError::QueueFull | SubmitError::NotLoggedIn) => {
                        engine.not_sent(id, None);
                        break;
                    }
                    Err(SubmitError::Malformed(why)) => engine.not_sent(id, Some(why)),
                }
            }
        }
        self.transport.poll_transmit(at, TRANSMIT_BYTES)
    }

    /// Whether commands of the engine may flow.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(crate) fn is_logging_out(&self) -> bool {
        self.is_logging_out
    }
}
