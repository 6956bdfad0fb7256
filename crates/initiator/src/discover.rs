//! Asks a target which volumes it has for us (SendTargets, RFC 7143 Appendix C), through a channel or over plain iSCSI.
//!
//! One question on one blocking socket: no engine, no thread, no reconnecting. Absent: attaching.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::initiator::{Config, Event, SendTargets, Session, SessionKind};
use strongroom_net::{Link, LinkEvent, LinkOptions, resolve};

use crate::AttachError;
use crate::chap::ChapAccount;
use crate::url::parse_target_address;

/// Bytes read from the socket at a time.
const READ_BYTES: usize = 64 << 10;
/// Redirections followed in a row.
const HOPS_MAX: u32 = 8;
/// How long one read waits before timers are looked at again.
const READ_WAIT: Duration = Duration::from_millis(100);

/// Whom to ask, and as whom.
#[derive(Clone, Debug)]
pub struct DiscoverOptions {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Our iSCSI name.
    pub initiator_name: String,
    /// Our identity, for a channel; without it the question goes over plain iSCSI.
    pub node_key: Option<Arc<NodeKey>>,
    /// Our account, for a plain target that wants one.
    pub chap: Option<ChapAccount>,
    /// The target's identity, any of these; needed for a channel.
    pub target_keys: Vec<PublicKey>,
    /// How long the whole may take.
    pub timeout: Duration,
}

/// A target that we may use, by its name, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// The iSCSI target name.
    pub name: String,
    /// Each `host:port,portal-group`.
    pub addresses: Vec<String>,
}

/// Asks for all targets that this initiator may use.
///
/// # Errors
/// [`AttachError`]: not reachable, refused, or no answer in time.
pub fn discover(options: &DiscoverOptions) -> Result<Vec<DiscoveredTarget>, AttachError> {
    let deadline = Instant::now() + options.timeout;
    let mut options = options.clone();
    for _ in 0..HOPS_MAX {
        match ask(&options, deadline) {
            Err(AttachError::Moved { address, is_permanent }) => match parse_target_address(&address) {
                Some(elsewhere) => (options.host, options.port) = elsewhere,
                None => return Err(AttachError::Moved { address, is_permanent }),
            },
            answer => return answer,
        }
    }
    Err(AttachError::Moved { address: format!("{}:{}", options.host, options.port), is_permanent: false })
}

/// Asks at one address.
fn ask(options: &DiscoverOptions, deadline: Instant) -> Result<Vec<DiscoveredTarget>, AttachError> {
    let mut stream = connect(options)?;
    let mut question = Question::new(options)?;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let answer = question.process(Instant::now(), options)?;
        for bytes in question.transmit() {
            stream.write_all(&bytes).map_err(|error| AttachError::Unreachable(error.to_string()))?;
        }
        if let Some(targets) = answer {
            return Ok(targets);
        }
        if Instant::now() >= deadline {
            let seconds = options.timeout.as_secs();
            return Err(AttachError::TimedOut { seconds, doing: "asking for targets" });
        }
        match stream.read(&mut buffer) {
            Ok(0) => question.link.handle_eof(),
            Ok(bytes) => question.link.handle_input(&buffer[..bytes]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(error) => return Err(AttachError::Unreachable(error.to_string())),
        }
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
                stream.set_read_timeout(Some(READ_WAIT))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = format!("{address}: {error}; is the target running there?"),
        }
    }
    Err(AttachError::Unreachable(failure))
}

/// The machines of one discovery session.
struct Question {
    link: Link,
    session: Option<Session>,
    answer: Option<Vec<DiscoveredTarget>>,
}

impl Question {
    fn new(options: &DiscoverOptions) -> Result<Question, AttachError> {
        let link_options = LinkOptions { setup_timeout: options.timeout, ..LinkOptions::default() };
        let now = Instant::now();
        let link = match &options.node_key {
            Some(node) => Link::initiator_channel(node, &options.target_keys, link_options, now)
                .map_err(|error| AttachError::Handshake(error.to_string()))?,
            None => Link::initiator_plain(link_options, now),
        };
        Ok(Question { link, session: None, answer: None })
    }

    /// Moves on everything that has arrived; the targets, once they and the goodbye are done.
    fn process(
        &mut self,
        now: Instant,
        options: &DiscoverOptions,
    ) -> Result<Option<Vec<DiscoveredTarget>>, AttachError> {
        self.link.handle_timeout(now);
        if let Some(session) = &mut self.session
            && session.poll_timeout().is_some_and(|at| at <= now)
        {
            session.handle_timeout(now);
        }
        while let Some(event) = self.link.poll_event() {
            match event {
                LinkEvent::Established { .. } => {
                    let mut isid = [0; 6];
                    isid[0] = 0x80;
                    let mut config = Config::new(options.initiator_name.clone(), isid, SessionKind::Discovery);
                    config.in_channel = self.link.in_channel();
                    config.login_timeout = options.timeout;
                    config.offer.protocol_level = 1;
                    config.chap = options.chap.as_ref().map(ChapAccount::login).transpose()?;
                    self.session = Some(Session::new(now, config));
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
                    let answer = self.session_events(now)?;
                    return answer.or(self.answer.take()).map(Some).ok_or(AttachError::Handshake(end.to_string()));
                }
            }
        }
        self.session_events(now)
    }

    fn session_events(&mut self, now: Instant) -> Result<Option<Vec<DiscoveredTarget>>, AttachError> {
        let Some(session) = &mut self.session else { return Ok(None) };
        while let Some(event) = session.poll_event() {
            match event {
                Event::LoggedIn { agreed, .. } => {
                    self.link.login_finished(agreed.digests);
                    session
                        .send_targets(&SendTargets::All)
                        .map_err(|error| AttachError::Unsupported(error.to_string()))?;
                }
                Event::LoginFailed { status, redirect: Some(address) } => {
                    let is_permanent = status == LoginStatus::TARGET_MOVED_PERMANENTLY;
                    return Err(AttachError::Moved { address, is_permanent });
                }
                Event::LoginFailed { status, .. } => return Err(AttachError::LoginRefused(status.to_string())),
                Event::TargetsListed(entries) => {
                    let targets = entries.into_iter();
                    let target = |entry: strongroom_iscsi::target::TargetEntry| DiscoveredTarget {
                        name: entry.name,
                        addresses: entry.addresses,
                    };
                    self.answer = Some(targets.map(target).collect());
                    session.logout(now);
                }
                Event::Closed(reason) => {
                    self.link.close();
                    return match self.answer.take() {
                        Some(targets) => Ok(Some(targets)),
                        None => Err(AttachError::Unreachable(reason.to_string())),
                    };
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// What is to be sent now.
    fn transmit(&mut self) -> Vec<strongroom_block::Buffer> {
        if let Some(session) = &mut self.session {
            while let Some(pdu) = session.poll_transmit() {
                self.link.send_pdu(pdu);
            }
        }
        let mut out = Vec::new();
        self.link.poll_transmit(&mut out);
        out
    }
}
