//! Two session machines joined in memory, stepped through virtual time; every PDU crosses as bytes, the way a stream or a
//! channel frame carries it. No threads, no sockets: what happens is what the caller steps.

pub(crate) mod model;

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_iscsi::target::{ConnectionId, Event, Login, LoginEvent, Session};
use strongroom_iscsi::{Agreed, Bhs, CloseReason, Digests, Pdu, PlainFramer, initiator, target};

pub(crate) const TARGET: &str = "iqn.2026-11.org.strongroom:v";
pub(crate) const INITIATOR: &str = "iqn.2026-11.org.example:host";

pub(crate) fn pdu(bhs: Bhs, data: &[u8]) -> Pdu {
    Pdu::new(bhs, Bytes::new(), Buffer::copy_from(data), false)
}

/// A seed's stream of numbers (xorshift64*): the same seed, the same run.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The start of virtual time.
#[allow(clippy::disallowed_methods)] // An Instant has no other beginning; it is never read again.
pub(crate) fn epoch() -> Instant {
    Instant::now()
}

/// A target's side of one connection: its login, and then its session, which is what it stands for.
pub(crate) struct Target {
    login: Option<Login>,
    session: Option<(Session, ConnectionId)>,
}

impl Deref for Target {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session.as_ref().expect("logged in").0
    }
}

impl DerefMut for Target {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session.as_mut().expect("logged in").0
    }
}

impl Target {
    pub(crate) fn new(now: Instant, config: target::Config) -> Target {
        Target { login: Some(Login::new(now, config)), session: None }
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.session.as_ref().expect("logged in").1
    }

    /// The login, while it lasts.
    pub(crate) fn login(&mut self) -> &mut Login {
        self.login.as_mut().expect("in its login")
    }

    /// Takes the login's question who may in.
    pub(crate) fn requested(&mut self) -> target::LoginRequested {
        match self.login().poll_event() {
            Some(LoginEvent::Requested(request)) => request,
            other => panic!("expected a login, got {other:?}"),
        }
    }

    pub(crate) fn accept(&mut self, now: Instant, tsih: u16) {
        self.login().accept(tsih);
        self.enter(now);
    }

    /// A login that is done becomes a session.
    pub(crate) fn enter(&mut self, now: Instant) {
        if let Some(login) = self.login.take_if(|login| login.agreed().is_some()) {
            self.session = Some(Session::new(now, login));
        }
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        self.session.is_some()
    }

    pub(crate) fn handle_pdu(&mut self, now: Instant, pdu: Pdu) {
        match (&mut self.login, &mut self.session) {
            (Some(login), _) => {
                login.handle_pdu(&pdu);
                self.enter(now);
            }
            (None, Some((session, id))) => session.handle_pdu(now, *id, pdu),
            (None, None) => unreachable!("one or the other"),
        }
    }

    pub(crate) fn handle_corrupt_pdu(&mut self, now: Instant, pdu: &Pdu) {
        let id = self.id();
        Session::handle_corrupt_pdu(self, now, id, pdu);
    }

    pub(crate) fn handle_closed(&mut self, now: Instant, reason: CloseReason) {
        let id = self.id();
        Session::handle_closed(self, now, id, reason);
    }

    pub(crate) fn handle_progress(&mut self, now: Instant) {
        let id = self.id();
        Session::handle_progress(self, now, id);
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        match &mut self.login {
            Some(login) => login.handle_timeout(now),
            None => Session::handle_timeout(self, now),
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.login {
            Some(login) => login.poll_timeout(),
            None => Session::poll_timeout(self),
        }
    }

    pub(crate) fn poll_transmit(&mut self) -> Option<Pdu> {
        match (&mut self.login, &mut self.session) {
            (Some(login), _) => login.poll_transmit(),
            (None, Some((session, id))) => session.poll_transmit(*id),
            (None, None) => unreachable!("one or the other"),
        }
    }

    pub(crate) fn accepts_input(&self) -> bool {
        Session::accepts_input(self, self.id())
    }

    pub(crate) fn agreed(&self) -> Option<&Agreed> {
        Session::agreed(self, self.id())
    }

    pub(crate) fn send_targets(&mut self, targets: &[target::TargetEntry]) {
        let id = self.id();
        Session::send_targets(self, id, targets);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.login.as_ref().map_or_else(|| Session::is_closed(self), Login::is_closed)
    }

    /// The end, no matter which events came before it.
    pub(crate) fn closed(&mut self) -> Option<CloseReason> {
        match &mut self.login {
            Some(login) => std::iter::from_fn(|| login.poll_event()).find_map(|event| match event {
                LoginEvent::Closed(reason) => Some(reason),
                _ => None,
            }),
            None => std::iter::from_fn(|| self.poll_event()).find_map(|event| match event {
                Event::Closed(reason) => Some(reason),
                _ => None,
            }),
        }
    }
}

pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) initiator: initiator::Session,
    pub(crate) target: Target,
    in_channel: bool,
    pub(crate) digests: Digests,
    to_target: PlainFramer,
    to_initiator: PlainFramer,
    /// What crossed, for a test that wants to look.
    pub(crate) sent_to_initiator: Vec<Pdu>,
    pub(crate) sent_to_target: Vec<Pdu>,
    pub(crate) keep: bool,
}

pub(crate) fn initiator_config() -> initiator::Config {
    let kind = initiator::SessionKind::Normal { target_name: TARGET.into() };
    initiator::Config::new(INITIATOR, [0x80, 1, 2, 3, 4, 5], kind)
}

impl Pair {
    pub(crate) fn new(initiator: initiator::Config, target: target::Config) -> Pair {
        let now = epoch();
        assert_eq!(initiator.in_channel, target.in_channel);
        Pair {
            now,
            in_channel: target.in_channel,
            digests: Digests::default(),
            to_target: PlainFramer::new(target.offer.recv_segment_bytes_max as usize),
            to_initiator: PlainFramer::new(initiator.offer.recv_segment_bytes_max as usize),
            initiator: initiator::Session::new(now, initiator),
            target: Target::new(now, target),
            sent_to_initiator: Vec::new(),
            sent_to_target: Vec::new(),
            keep: false,
        }
    }

    /// A pair in full-feature phase, its login events taken.
    pub(crate) fn logged_in(initiator: initiator::Config, target: target::Config) -> Pair {
        let mut pair = Pair::new(initiator, target);
        pair.log_in();
        pair
    }

    pub(crate) fn log_in(&mut self) {
        self.settle();
        self.target.requested();
        self.target.accept(self.now, 7);
        self.settle();
        assert!(self.target.is_logged_in());
        match self.initiator.poll_event() {
            Some(initiator::Event::LoggedIn { tsih: 7, agreed, .. }) => self.set_digests(agreed.digests),
            other => panic!("expected to be in, got {other:?}"),
        }
    }

    /// What both sides agreed on holds from here.
    pub(crate) fn set_digests(&mut self, digests: Digests) {
        assert_eq!(Some(digests), self.target.agreed().map(|agreed| agreed.digests));
        self.digests = digests;
        self.to_target.set_digests(digests);
        self.to_initiator.set_digests(digests);
    }

    /// Carries one PDU towards the target; false if there was none.
    pub(crate) fn step_to_target(&mut self) -> bool {
        let Some(pdu) = self.initiator.poll_transmit() else { return false };
        if self.keep {
            self.sent_to_target.push(pdu.clone());
        }
        let pdu = cross(pdu, self.in_channel, self.digests, &mut self.to_target);
        self.target.handle_pdu(self.now, pdu);
        true
    }

    /// Carries one PDU towards the initiator; false if there was none.
    pub(crate) fn step_to_initiator(&mut self) -> bool {
        let Some(pdu) = self.target.poll_transmit() else { return false };
        if self.keep {
            self.sent_to_initiator.push(pdu.clone());
        }
        let pdu = cross(pdu, self.in_channel, self.digests, &mut self.to_initiator);
        self.initiator.handle_pdu(self.now, pdu);
        true
    }

    /// Carries PDUs until neither side has one.
    pub(crate) fn settle(&mut self) {
        while self.step_to_target() | self.step_to_initiator() {}
    }

    /// Lets time pass; machines are woken when they asked for it.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            let due = [self.initiator.poll_timeout(), self.target.poll_timeout()];
            let Some(next) = due.into_iter().flatten().min().filter(|at| *at <= end) else { break };
            self.now = next.max(self.now);
            if self.initiator.poll_timeout().is_some_and(|at| at <= self.now) {
                self.initiator.handle_timeout(self.now);
            }
            if self.target.poll_timeout().is_some_and(|at| at <= self.now) {
                self.target.handle_timeout(self.now);
            }
            self.settle();
        }
        self.now = end;
    }

    pub(crate) fn command(&mut self) -> target::Command {
        match self.target.poll_event() {
            Some(target::Event::Command(command)) => command,
            other => panic!("expected a command, got {other:?}"),
        }
    }

    /// Takes a completion, and the data that came before it.
    pub(crate) fn completed(&mut self) -> (Vec<u8>, initiator::Completed) {
        let mut data = Vec::new();
        loop {
            match self.initiator.poll_event() {
                Some(initiator::Event::DataIn(part)) => data.extend_from_slice(part.data()),
                Some(initiator::Event::Completed(completed)) => return (data, completed),
                other => panic!("expected a completion, got {other:?}"),
            }
        }
    }
}

fn cross(pdu: Pdu, in_channel: bool, digests: Digests, framer: &mut PlainFramer) -> Pdu {
    if in_channel {
        let mut header = Vec::new();
        pdu.channel_header(&mut header);
        return Pdu::from_channel_frame(Bytes::from(header), pdu.data, pdu.sealed).expect("we make sound frames");
    }
    let mut parts: Vec<Buffer> = Vec::new();
    PlainFramer::encode(pdu, digests, &mut parts);
    for part in &parts {
        assert_eq!(framer.handle_input(part), Ok(part.len()));
    }
    framer.poll_pdu().expect("a whole PDU crossed")
}
