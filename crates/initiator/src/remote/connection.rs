//! One connection to the target: link, session, the questions after the login, and then the engine's commands.
//!
//! A machine like its parts: bytes and time in, buffers and [`Notice`]s out. The socket is the driver's.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use strongroom_block::Buffer;
use strongroom_iscsi::initiator::{Config, Event, Session, SessionKind, SubmitError, TaskId};
use strongroom_iscsi::{CloseReason, DigestOffer, LoginStatus};
use strongroom_net::{Link, LinkEnd, LinkEvent, LinkOptions};

use super::engine::{CommandId, Engine};
use super::probe::{Probe, Step};
use super::unit::UnitDescription;
use crate::chap::ChapAccount;
use crate::{AttachError, AttachOptions};

/// From how many bytes on what was made is handed to the socket before more is made.
const TRANSMIT_BYTES: usize = 256 << 10;

/// What the driver must know.
#[derive(Debug)]
pub(super) enum Notice {
    /// The unit has answered all questions; commands may flow once [`Connection::open`] is called.
    Probed(Box<UnitDescription>),
    /// The connection is over.
    Lost(AttachError),
}

#[derive(Debug)]
enum Task {
    Probe,
    Engine(CommandId),
}

#[derive(Debug)]
pub(super) struct Connection {
    link: Link,
    session: Option<Session>,
    probe: Option<Probe>,
    /// When the next question is due: it was answered with "later".
    ask_at: Option<Instant>,
    tasks: HashMap<TaskId, Task>,
    /// Until the unit has answered.
    deadline: Option<Instant>,
    connect_timeout: Duration,
    is_open: bool,
    is_logging_out: bool,
    login_failure: Option<AttachError>,
    out: Vec<Buffer>,
}

/// What a session and its probe are made from.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) isid: [u8; 6],
    pub(super) target_name: String,
}

impl Connection {
    pub(super) fn new(now: Instant, options: &AttachOptions) -> Result<Connection, AttachError> {
        let link_options = LinkOptions {
            setup_timeout: options.timeouts.connect,
            counters: options.counters.clone(),
            schemes: vec![options.scheme()],
            ..LinkOptions::default()
        };
        let link = if options.url.is_channel() {
            let node = options.node_key.as_ref().ok_or_else(|| {
                AttachError::Options(
                    "a strongroom:// URL needs an identity; make one with 'strongroom identity new'".into(),
                )
            })?;
            Link::initiator_channel(node, &options.target_keys, link_options, now)
                .map_err(|error| AttachError::Handshake(error.to_string()))?
        } else {
            Link::initiator_plain(link_options, now)
        };
        Ok(Connection {
            link,
            session: None,
            probe: None,
            ask_at: None,
            tasks: HashMap::new(),
            deadline: Some(now + options.timeouts.connect),
            connect_timeout: options.timeouts.connect,
            is_open: false,
            is_logging_out: false,
            login_failure: None,
            out: Vec::new(),
        })
    }

    /// Bytes from the target.
    pub(super) fn handle_input(&mut self, now: Instant, bytes: &[u8]) {
        self.link.handle_input(bytes);
        if let Some(session) = &mut self.session {
            session.handle_progress(now);
        }
    }

    /// The target sends no more.
    pub(super) fn handle_eof(&mut self) {
        self.link.handle_eof();
    }

    /// Commands of the engine may flow from now on.
    pub(super) fn open(&mut self) {
        self.is_open = true;
        self.deadline = None;
    }

    /// Starts a logout; [`Notice::Lost`] follows.
    pub(super) fn log_out(&mut self, now: Instant) {
        self.is_logging_out = true;
        self.is_open = false;
        if let Some(session) = &mut self.session {
            session.logout(now);
        }
    }

    /// Says goodbye on the link: what [`Connection::transmit`] then has is the last.
    pub(super) fn close(&mut self) {
        self.link.close();
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.link.handle_timeout(now);
        if let Some(session) = &mut self.session
            && session.poll_timeout().is_some_and(|at| at <= now)
        {
            session.handle_timeout(now);
        }
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = None;
            self.ask();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let session = self.session.as_ref().and_then(Session::poll_timeout);
        [self.link.poll_timeout(), session, self.ask_at, self.deadline].into_iter().flatten().min()
    }

    /// Moves everything that has arrived upwards.
    pub(super) fn process(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        identity: &Identity,
        engine: Option<&mut Engine>,
    ) -> Option<Notice> {
        let mut engine = engine;
        while let Some(event) = self.link.poll_event() {
            match event {
                LinkEvent::Established { .. } => {
                    if let Err(error) = self.start_session(now, options, identity) {
                        return Some(Notice::Lost(error));
                    }
                }
                LinkEvent::Pdu(pdu) => {
                    if let Some(session) = &mut self.session {
                        session.handle_pdu(now, pdu);
                    }
                }
                LinkEvent::Corrupt(pdu) => {
                    if let Some(session) = &mut self.session {
                        session.handle_corrupt_pdu(now, &pdu);
                    }
                }
                LinkEvent::Ended(end) => {
                    // Let the session say what arrived before the end.
                    let notice = self.session_events(now, options, identity, engine.as_deref_mut());
                    return Some(notice.unwrap_or_else(|| Notice::Lost(self.link_lost(end))));
                }
            }
        }
        if let Some(notice) = self.session_events(now, options, identity, engine.as_deref_mut()) {
            return Some(notice);
        }
        if self.link.has_events() {
            // What had come behind the end of the login.
            return self.process(now, options, identity, engine);
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            let doing = match (&self.session, &self.probe) {
                (None, _) => "making the channel",
                (Some(_), None) => "logging in",
                _ => "asking the unit what it is",
            };
            let seconds = self.connect_timeout.as_secs();
            return Some(Notice::Lost(AttachError::TimedOut { seconds, doing }));
        }
        None
    }

    fn start_session(&mut self, now: Instant, options: &AttachOptions, identity: &Identity) -> Result<(), AttachError> {
        let kind = SessionKind::Normal { target_name: identity.target_name.clone() };
        let mut config = Config::new(options.initiator_name.clone(), identity.isid, kind);
        config.in_channel = self.link.in_channel();
        config.login_timeout = options.timeouts.connect;
        // The functions of level 2 are not used here, and some targets know no such key.
        config.offer.protocol_level = 1;
        // Without digests nothing would be found damaged.
        config.offer.error_recovery_level =
            u8::from(matches!(options.digests, DigestOffer::Prefer | DigestOffer::Require));
        config.offer.header_digest = options.digests;
        config.offer.data_digest = options.digests;
        config.chap = options.chap.as_ref().map(ChapAccount::login).transpose()?;
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
                    self.link.login_finished(agreed.digests);
                    let lun = options.url.lun();
                    self.probe = Some(Probe::new(identity.target_name.clone(), lun, self.link.peer()));
                    self.ask();
                }
                Event::LoginFailed { status, redirect } => self.login_failure = Some(login_error(status, redirect)),
                Event::DataIn(data_in) => match self.tasks.get(&data_in.task) {
                    Some(Task::Probe) => {
                        if let Some(probe) = &mut self.probe {
                            probe.data(&data_in.data);
                        }
                    }
                    Some(&Task::Engine(id)) => {
                        if let Some(engine) = &mut engine {
                            engine.data_in(now, id, &data_in);
                        }
                    }
                    None => {}
                },
                Event::Completed(completed) => match self.tasks.remove(&completed.task) {
                    Some(Task::Probe) => match self.probe.as_mut().map(|probe| probe.completed(&completed)) {
                        Some(Step::Ask(after)) if after.is_zero() => self.ask(),
                        Some(Step::Ask(after)) => self.ask_at = Some(now + after),
                        Some(Step::Done(unit)) => return Some(Notice::Probed(unit)),
                        Some(Step::Failed(error)) => return Some(Notice::Lost(error)),
                        None => {}
                    },
                    Some(Task::Engine(id)) => {
                        if let Some(engine) = &mut engine {
                            engine.completed(now, id, &completed);
                        }
                    }
                    None => {}
                },
                Event::LogoutRequested { .. } => {
                    tracing::info!("the target asks for a logout; reconnecting");
                    self.log_out(now);
                }
                Event::AsyncSense { sense, .. } => tracing::info!(?sense, "the unit reports something"),
                Event::Closed(reason) => return Some(Notice::Lost(self.session_lost(reason))),
                Event::TargetsListed(_) | Event::TaskManagementDone { .. } => {}
            }
        }
        None
    }

    fn ask(&mut self) {
        let (Some(probe), Some(session)) = (&mut self.probe, &mut self.session) else { return };
        match session.submit(probe.command()) {
            Ok(task) => drop(self.tasks.insert(task, Task::Probe)),
            // The session is ending; `Closed` says why.
            Err(error) => tracing::debug!(%error, "a question could not be sent"),
        }
    }

    /// Makes what is to be sent, up to about [`TRANSMIT_BYTES`]; empty when there is no more.
    pub(super) fn transmit(&mut self, engine: Option<&mut Engine>) -> Vec<Buffer> {
        if let (true, Some(session), Some(engine)) = (self.is_open, &mut self.session, engine) {
            while let Some((id, command)) = engine.next_command() {
                match session.submit(command) {
                    Ok(task) => drop(self.tasks.insert(task, Task::Engine(id))),
                    Err(SubmitError::QueueFull | SubmitError::NotLoggedIn) => {
                        engine.not_sent(id);
                        break;
                    }
                    Err(SubmitError::Malformed(why)) => engine.cannot_be_sent(id, why),
                }
            }
        }
        let mut made_bytes = 0;
        if let Some(session) = &mut self.session {
            while made_bytes < TRANSMIT_BYTES
                && let Some(pdu) = session.poll_transmit()
            {
                made_bytes += pdu.data.len();
                self.link.send_pdu(pdu);
            }
        }
        self.link.poll_transmit(&mut self.out);
        std::mem::take(&mut self.out)
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

    pub(super) fn is_logging_out(&self) -> bool {
        self.is_logging_out
    }
}

fn login_error(status: LoginStatus, redirect: Option<String>) -> AttachError {
    if let Some(address) = redirect {
        return AttachError::Moved { address, is_permanent: status == LoginStatus::TARGET_MOVED_PERMANENTLY };
    }
    let message = status.to_string();
    // RFC 7143 §11.13.5: class 3 is the target's own trouble, which may pass.
    if status.class() == 3 { AttachError::Unreachable(message) } else { AttachError::LoginRefused(message) }
}
