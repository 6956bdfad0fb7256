//! The session with the target over one or several wires: links, session, the questions after the login, and then the engine's
//! commands.
//!
//! A machine like its parts: bytes and time in, buffers and [`Notice`]s out. The sockets are the driver's. Where the target takes
//! several connections per session, further wires are asked for ([`Nexus::wants_wire`]) once the unit has answered by the first,
//! and again when one was lost; at error recovery level 2 the session survives that, else it ends with any of them.

mod lease;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, Custody};
use strongroom_handshake::PublicKey;
use strongroom_iscsi::initiator::{Completed, ConnectionId, DataIn, Event, Session, SubmitError, TaskId};
use strongroom_iscsi::{Agreed, CloseReason};
use strongroom_net::{LinkEnd, LinkEvent, StreamId};

use crate::chap::ChapAccount;
use crate::pipeline::engine::{CommandId, Engine};
use crate::pipeline::unit::UnitDescription;
use crate::session::further::FurtherConnections;
use crate::session::login::{Identity, login_config, login_error};
use crate::session::probe::{Probe, ProbeStep};
use crate::session::wire::Wire;
use crate::session::writer_lease::{LeaseOutcome, LeaseTalk};
use crate::{AttachError, AttachOptions};

/// From how many bytes on what was made is handed to the socket before more is made.
const TRANSMIT_BYTES: usize = 256 << 10;

/// What the driver must know.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The unit has answered all questions; commands may flow once [`Nexus::open`] is called.
    Probed(Box<UnitDescription>),
    /// What was to be said about the writer lease was answered.
    Lease(LeaseOutcome),
    /// The last connection is gone and the session is not: the tasks wait for a new one.
    Suspended(CloseReason),
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
pub(crate) struct Nexus {
    /// The leading one first, until it is lost.
    wires: Vec<Wire>,
    /// Sockets of wires that are gone.
    ended: Vec<StreamId>,
    further: FurtherConnections,
    /// Who holds the unit's keys, if it is sealed: see [`Wire::protect`].
    custody: Option<Custody>,
    was_suspended: bool,
    /// Who the target has proven to be on the first wire.
    target_key: Option<PublicKey>,
    session: Option<Session>,
    probe: Option<Dialog<Probe>>,
    /// What is being said about the writer lease.
    lease: Option<Dialog<LeaseTalk>>,
    tasks: HashMap<TaskId, Task>,
    /// Until the unit has answered.
    deadline: Option<Instant>,
    connect_timeout: Duration,
    is_open: bool,
    is_logging_out: bool,
    login_failure: Option<AttachError>,
}

impl Nexus {
    /// A nexus whose first wire is being connected.
    pub(crate) fn new(now: Instant, options: &AttachOptions, wire: Wire) -> Nexus {
        Nexus {
            wires: vec![wire],
            ended: Vec::new(),
            further: FurtherConnections::new(options.timeouts.backoff_min),
            custody: None,
            was_suspended: false,
            target_key: None,
            session: None,
            probe: None,
            lease: None,
            tasks: HashMap::new(),
            deadline: Some(now + options.timeouts.connect),
            connect_timeout: options.timeouts.connect,
            is_open: false,
            is_logging_out: false,
            login_failure: None,
        }
    }

    /// Bytes from the target.
    pub(crate) fn handle_input(&mut self, now: Instant, stream: StreamId, bytes: &[u8]) {
        let Some(at) = self.wire_of(stream) else { return };
        let wire = &mut self.wires[at];
        wire.link.handle_input(bytes);
        if let (Some(session), Some(id)) = (&mut self.session, wire.id) {
            session.handle_progress_on(now, id);
        }
    }

    /// The target sends no more.
    pub(crate) fn handle_eof(&mut self, stream: StreamId) {
        if let Some(at) = self.wire_of(stream) {
            self.wires[at].link.handle_eof();
        }
    }

    /// Which wire has a socket.
    pub(crate) fn wire_of(&self, stream: StreamId) -> Option<usize> {
        self.wires.iter().position(|wire| wire.stream == stream)
    }

    pub(crate) fn wires(&self) -> &[Wire] {
        &self.wires
    }

    pub(crate) fn wire(&mut self, at: usize) -> &mut Wire {
        &mut self.wires[at]
    }

    /// Whether the socket of some wire stands.
    pub(crate) fn is_connected(&self) -> bool {
        self.wires.iter().any(|wire| wire.is_connected)
    }

    /// Whether the session stands without a connection.
    pub(crate) fn is_suspended(&self) -> bool {
        self.was_suspended
    }

    /// Whether a further wire is to be called now.
    pub(crate) fn wants_wire(&self, now: Instant) -> bool {
        self.call_due().is_some_and(|at| at <= now)
    }

    fn call_due(&self) -> Option<Instant> {
        let session = self.session.as_ref().filter(|_| self.is_open)?;
        self.further.due(session, self.wires.len())
    }

    /// A further wire is being called.
    pub(crate) fn add_wire(&mut self, mut wire: Wire) {
        wire.protect(self.custody);
        self.wires.push(wire);
    }

    /// A further wire could not be called, or was lost: the next try waits.
    pub(crate) fn call_later(&mut self, now: Instant, options: &AttachOptions) {
        self.further.later(now, options.timeouts.backoff_max);
    }

    /// Sockets that are to be closed.
    pub(crate) fn take_ended(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.ended)
    }

    /// How long the target wants to be left alone after this session.
    pub(crate) fn reconnect_after(&self) -> Duration {
        self.session.as_ref().map_or(Duration::ZERO, Session::reconnect_after)
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
        self.wire_ended(now, options, at, AttachError::Unreachable(failure))
    }

    /// A wire is over; so is the session, unless it can do without.
    fn wire_ended(&mut self, now: Instant, options: &AttachOptions, at: usize, error: AttachError) -> Option<Notice> {
        let wire = self.wires.remove(at);
        self.ended.push(wire.stream);
        let Some(session) = &mut self.session else { return Some(Notice::Lost(error)) };
        if let Some(id) = wire.id {
            session.handle_closed_on(now, id, CloseReason::ConnectionLost(error.to_string()));
            if session.is_closed() {
                return Some(Notice::Lost(self.login_failure.take().unwrap_or(error)));
            }
        } else {
            tracing::debug!(%error, "a further connection could not be made");
        }
        self.call_later(now, options);
        None
    }

    fn set_custody(&mut self, custody: Option<Custody>) {
        self.custody = custody;
        self.wires.iter_mut().for_each(|wire| wire.protect(custody));
    }

    /// Commands of the engine may flow from now on.
    pub(crate) fn open(&mut self, now: Instant, custody: Option<Custody>) {
        self.set_custody(custody);
        self.is_open = true;
        self.deadline = None;
        self.further.now(now);
    }

    /// Starts a logout; [`Notice::Lost`] follows.
    pub(crate) fn log_out(&mut self, now: Instant) {
        self.is_logging_out = true;
        self.is_open = false;
        if let Some(session) = &mut self.session {
            session.logout(now);
        }
    }

    /// Says goodbye on the links: what [`Nexus::transmit`] then has is the last.
    pub(crate) fn close(&mut self) {
        self.wires.iter_mut().for_each(|wire| wire.link.close());
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.wires.iter_mut().for_each(|wire| wire.link.handle_timeout(now));
        if let Some(session) = &mut self.session
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
        let session = self.session.as_ref().and_then(Session::poll_timeout);
        let links = self.wires.iter().filter_map(|wire| wire.link.poll_timeout()).min();
        let probe = self.probe.as_ref().and_then(|probe| probe.at);
        let lease = self.lease.as_ref().and_then(|lease| lease.at);
        [links, session, probe, lease, self.deadline, self.call_due()].into_iter().flatten().min()
    }

    /// Moves everything that has arrived upwards.
    pub(crate) fn process(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        identity: &Identity,
        engine: Option<&mut Engine>,
    ) -> Option<Notice> {
        let mut engine = engine;
        loop {
            for at in (0..self.wires.len()).rev() {
                // One that ends may take others with it.
                if !self.wires.get(at).is_some_and(|wire| wire.is_connected) {
                    continue;
                }
                if let Some(notice) = self.link_events(now, options, identity, at, engine.as_deref_mut()) {
                    return Some(notice);
                }
            }
            if let Some(notice) = self.session_events(now, options, identity, engine.as_deref_mut()) {
                return Some(notice);
            }
            // What had come behind the end of a login.
            if !self.wires.iter().any(|wire| wire.is_connected && wire.link.has_events()) {
                break;
            }
        }
        // How long a call may take is the runtime's to say.
        if self.is_connected() && self.deadline.is_some_and(|deadline| deadline <= now) {
            let doing = match (&self.session, &self.probe) {
                (None, _) => "making the channel",
                (Some(_), None) => "logging in",
                _ if self.lease.is_some() => "claiming the writer lease",
                _ => "asking the unit what it is",
            };
            let seconds = self.connect_timeout.as_secs();
            return Some(Notice::Lost(AttachError::TimedOut { seconds, doing }));
        }
        None
    }

    /// Moves what a link has upwards.
    fn link_events(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        identity: &Identity,
        at: usize,
        engine: Option<&mut Engine>,
    ) -> Option<Notice> {
        while let Some(event) = self.wires[at].link.poll_event() {
            match event {
                LinkEvent::Established { .. } if self.session.is_none() => {
                    if let Err(error) = self.start_session(now, options, identity) {
                        return Some(Notice::Lost(error));
                    }
                }
                LinkEvent::Established { .. } => {
                    if let Err(error) = self.join(now, options, at) {
                        return self.wire_ended(now, options, at, error);
                    }
                }
                LinkEvent::Pdu(pdu) => {
                    if let (Some(session), Some(id)) = (&mut self.session, self.wires[at].id) {
                        session.handle_pdu_on(now, id, pdu);
                    }
                }
                LinkEvent::Corrupt(pdu) => {
                    if let (Some(session), Some(id)) = (&mut self.session, self.wires[at].id) {
                        session.handle_corrupt_pdu_on(now, id, &pdu);
                    }
                }
                LinkEvent::Ended(end) => {
                    // Let the session say what arrived before the end.
                    let stream = self.wires[at].stream;
                    let notice = self.session_events(now, options, identity, engine);
                    let at = self.wire_of(stream);
                    return notice.or_else(|| {
                        let error = self.link_lost(end);
                        self.wire_ended(now, options, at?, error)
                    });
                }
            }
        }
        None
    }

    /// Brings a further wire into the session.
    fn join(&mut self, now: Instant, options: &AttachOptions, at: usize) -> Result<(), AttachError> {
        let session = self.session.as_mut().expect("looked at by the caller");
        let wire = &mut self.wires[at];
        // Several keys may be the target's; a session has one.
        if self.target_key.is_some() && wire.link.peer() != self.target_key {
            return Err(AttachError::Handshake("a further connection came to another target than the first".into()));
        }
        let chap = options.chap.as_ref().map(ChapAccount::login).transpose()?;
        let id = session.add_connection(now, chap).map_err(|error| AttachError::Unreachable(error.to_string()))?;
        wire.id = Some(id);
        Ok(())
    }

    fn start_session(&mut self, now: Instant, options: &AttachOptions, identity: &Identity) -> Result<(), AttachError> {
        let wire = &mut self.wires[0];
        wire.id = Some(ConnectionId::LEADING);
        self.target_key = wire.link.peer();
        let in_channel = wire.link.in_channel();
        let config = login_config(options, identity, in_channel)?;
        self.session = Some(Session::new(now, config));
        Ok(())
    }

    fn session_events(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        identity: &Identity,
        mut engine: Option<&mut Engine>,
    ) -> Option<Notice> {
        while let Some(event) = self.session.as_mut()?.poll_event() {
            match event {
                Event::LoggedIn { agreed, .. } => {
                    self.logged_in(&agreed, options);
                    let probe = Probe::new(identity.target_name.clone(), options.url.lun(), self.target_key);
                    self.probe = Some(Dialog::new(probe));
                    self.ask();
                }
                Event::ConnectionJoined { id, agreed } => {
                    if let Some(wire) = self.wires.iter_mut().find(|wire| wire.id == Some(id)) {
                        wire.is_in_session = true;
                        wire.link.login_finished(agreed.digests);
                    }
                    self.further.joined(now, options.timeouts.backoff_min);
                    if std::mem::take(&mut self.was_suspended) {
                        return Some(Notice::Continued);
                    }
                }
                Event::ConnectionLost { id, reason } => {
                    if let Some(engine) = engine.as_deref() {
                        engine.connection_lost();
                    }
                    if let Some(notice) = self.connection_lost(now, options, id, reason) {
                        return Some(notice);
                    }
                }
                Event::LoginFailed { status, redirect, reason } => {
                    self.login_failure = Some(login_error(status, redirect, reason.as_deref()));
                }
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
                Event::Closed(reason) => return Some(Notice::Lost(self.session_lost(reason))),
                Event::TargetsListed(_) | Event::Echoed { .. } | Event::TaskManagementDone { .. } => {}
            }
        }
        None
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

    fn logged_in(&mut self, agreed: &Agreed, options: &AttachOptions) {
        self.wires[0].is_in_session = true;
        self.wires[0].link.login_finished(agreed.digests);
        self.further.agreed(agreed.connections_max, options.connections);
    }

    /// The session goes on without one of its connections, or did not get it.
    fn connection_lost(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        id: ConnectionId,
        reason: CloseReason,
    ) -> Option<Notice> {
        let session = self.session.as_ref()?;
        let is_suspended = session.is_suspended();
        if let CloseReason::LoginRefused(status) = &reason
            && !is_suspended
        {
            self.further.refused(status, session);
        }
        if let Some(at) = self.wires.iter().position(|wire| wire.id == Some(id)) {
            self.ended.push(self.wires.remove(at).stream);
            self.call_later(now, options);
        }
        if !is_suspended {
            tracing::info!(%reason, "a connection of the session is lost; its commands take another");
            return None;
        }
        (!std::mem::replace(&mut self.was_suspended, true)).then_some(Notice::Suspended(reason))
    }

    fn ask(&mut self) {
        let (Some(probe), Some(session)) = (&mut self.probe, &mut self.session) else { return };
        match session.submit(probe.of.command()) {
            Ok(task) => drop(self.tasks.insert(task, Task::Probe)),
            // The session is ending; `Closed` says why.
            Err(error) => tracing::debug!(%error, "a question could not be sent"),
        }
    }

    /// Makes what is to be sent on a wire, up to about [`TRANSMIT_BYTES`]; empty when there is no more.
    pub(crate) fn transmit(&mut self, at: usize, engine: Option<&mut Engine>) -> Vec<Buffer> {
        if let (true, Some(session), Some(engine)) = (self.is_open, &mut self.session, engine) {
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
        let mut made_bytes = 0;
        let wire = &mut self.wires[at];
        if let (Some(session), Some(id)) = (&mut self.session, wire.id) {
            while made_bytes < TRANSMIT_BYTES
                && let Some(pdu) = session.poll_transmit_on(id)
            {
                made_bytes += pdu.data.len();
                wire.link.send_pdu(pdu);
            }
        }
        wire.link.poll_transmit(&mut wire.out);
        std::mem::take(&mut wire.out)
    }

    fn session_lost(&mut self, reason: CloseReason) -> AttachError {
        self.login_failure.take().unwrap_or_else(|| AttachError::Unreachable(reason.to_string()))
    }

    fn link_lost(&mut self, end: LinkEnd) -> AttachError {
        use strongroom_handshake::HandshakeError as H;
        if let Some(failure) = self.login_failure.take() {
            return failure;
        }
        match &end {
            LinkEnd::Handshake(
                H::WrongTarget { .. } | H::RefusedByTarget { .. } | H::Incompatible { .. } | H::NotTls,
            ) => AttachError::Handshake(end.to_string()),
            _ => AttachError::Unreachable(end.to_string()),
        }
    }

    /// Whether commands of the engine may flow.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(crate) fn is_logging_out(&self) -> bool {
        self.is_logging_out
    }
}
