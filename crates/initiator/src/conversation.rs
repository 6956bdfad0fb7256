//! A session with a target's portal and no volume, on one socket: connected, protected, logged in, its events one by one.
//!
//! What asks a portal a question uses it: which targets there are (`discover`), how good the way is (`path`). No engine, no
//! thread, no reconnecting. Absent: the questions.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strongroom_block::Buffer;
use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::initiator::{Config, Event, Session, SessionKind};
use strongroom_net::{Link, LinkEvent, LinkOptions, resolve};

use crate::chap::ChapAccount;
use crate::error::refusal;
use crate::session::transport::InitiatorPort;
use crate::{AttachError, DiscoverOptions};

/// Bytes read from the socket at a time.
const READ_BYTES: usize = 64 << 10;
/// How long one wait for the socket lasts before timers are looked at again.
const WAIT: Duration = Duration::from_millis(100);

/// One discovery session (RFC 7143 §4.3.1).
pub(crate) struct Conversation {
    stream: TcpStream,
    link: Link,
    session: Option<Session>,
    login: Config,
    deadline: Instant,
    doing: &'static str,
    timeout: Duration,
    /// What the socket has not taken yet, and how much it took of the first.
    out: Vec<Buffer>,
    out_done: usize,
    buffer: Vec<u8>,
}

impl Conversation {
    /// Connects to the first address that answers; the login goes on in [`Conversation::next`]. All of it must be over by `deadline`.
    ///
    /// # Errors
    /// [`AttachError`]: not reachable, or the options do not fit.
    pub(crate) fn begin(
        options: &DiscoverOptions,
        deadline: Instant,
        doing: &'static str,
    ) -> Result<Conversation, AttachError> {
        let stream = connect(options)?;
        stream.set_nonblocking(true)?;
        let link_options = LinkOptions { setup_timeout: options.timeout, ..LinkOptions::default() };
        let now = Instant::now();
        let link = match &options.node_key {
            Some(node) => Link::initiator_channel(node, &options.target_keys, link_options, now)
                .map_err(|error| AttachError::Handshake(error.to_string()))?,
            None => Link::initiator_plain(link_options, now),
        };
        let port = InitiatorPort::random();
        let mut login = Config::new(options.initiator_name.clone(), port.isid, SessionKind::Discovery);
        login.login_timeout = options.timeout;
        login.offer.protocol_level = 1;
        login.chap = options.chap.as_ref().map(ChapAccount::login).transpose()?;
        Ok(Conversation {
            stream,
            link,
            session: None,
            login,
            deadline,
            doing,
            timeout: options.timeout,
            out: Vec::new(),
            out_done: 0,
            buffer: vec![0; READ_BYTES],
        })
    }

    /// The session, once there was an event.
    pub(crate) fn session(&mut self) -> Result<&mut Session, AttachError> {
        self.session.as_mut().ok_or_else(|| AttachError::Unreachable("the session has not begun".to_owned()))
    }

    /// Waits for the session's next event. A refused login is an error here.
    ///
    /// # Errors
    /// [`AttachError`].
    pub(crate) fn next(&mut self) -> Result<Event, AttachError> {
        loop {
            if let Some(event) = self.process(Instant::now())? {
                return Ok(event);
            }
            self.transmit()?;
            if Instant::now() >= self.deadline {
                return Err(AttachError::TimedOut { seconds: self.timeout.as_secs(), doing: self.doing });
            }
            let write = if self.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(WAIT.subsec_nanos()) };
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN | write)], Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(AttachError::Unreachable(error.to_string())),
            }
            match self.stream.read(&mut self.buffer) {
                Ok(0) => self.link.handle_eof(),
                Ok(bytes) => self.link.handle_input(&self.buffer[..bytes]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(AttachError::Unreachable(error.to_string())),
            }
        }
    }

    /// Moves on everything that has arrived.
    fn process(&mut self, now: Instant) -> Result<Option<Event>, AttachError> {
        if let Some(event) = self.event()? {
            return Ok(Some(event));
        }
        self.link.handle_timeout(now);
        if let Some(session) = &mut self.session
            && session.poll_timeout().is_some_and(|at| at <= now)
        {
            session.handle_timeout(now);
        }
        while let Some(event) = self.link.poll_event() {
            match event {
                LinkEvent::Established { .. } => {
                    self.login.in_channel = self.link.in_channel();
                    self.session = Some(Session::new(now, self.login.clone()));
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
                // Of ECL logins, which this is none of.
                LinkEvent::Message(_) | LinkEvent::Packet(_) => {}
                LinkEvent::Ended(end) => {
                    return self.event()?.map(Some).ok_or_else(|| AttachError::Handshake(end.to_string()));
                }
            }
        }
        self.event()
    }

    fn event(&mut self) -> Result<Option<Event>, AttachError> {
        let Some(session) = &mut self.session else { return Ok(None) };
        let event = session.poll_event();
        match &event {
            Some(Event::LoggedIn { agreed, .. }) => self.link.login_finished(agreed.digests),
            Some(Event::LoginFailed { status, redirect: Some(address), .. }) => {
                let is_permanent = *status == LoginStatus::TARGET_MOVED_PERMANENTLY;
                return Err(AttachError::Moved { address: address.clone(), is_permanent });
            }
            Some(Event::LoginFailed { status, reason, .. }) => {
                return Err(AttachError::LoginRefused(refusal(*status, reason.as_deref())));
            }
            Some(Event::Closed(_)) => self.link.close(),
            _ => {}
        }
        Ok(event)
    }

    /// Gives the socket what it takes.
    fn transmit(&mut self) -> Result<(), AttachError> {
        if self.out.is_empty() {
            if let Some(session) = &mut self.session {
                while let Some(pdu) = session.poll_transmit() {
                    self.link.send_pdu(pdu);
                }
            }
            self.link.poll_transmit(&mut self.out);
        }
        while let Some(first) = self.out.first() {
            match self.stream.write(&first[self.out_done..]) {
                Ok(bytes) => self.out_done += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(AttachError::Unreachable(error.to_string())),
            }
            if self.out_done >= self.out[0].len() {
                self.out.remove(0);
                self.out_done = 0;
            }
        }
        Ok(())
    }
}

/// The first address that answers.
fn connect(options: &DiscoverOptions) -> Result<TcpStream, AttachError> {
    let addresses =
        resolve(&options.host, options.port).map_err(|error| AttachError::Unreachable(error.to_string()))?;
    let mut failure = format!("{} has no address", options.host);
    for address in addresses {
        match TcpStream::connect_timeout(&address, options.timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = format!("{address}: {error}; is the target running there?"),
        }
    }
    Err(AttachError::Unreachable(failure))
}
