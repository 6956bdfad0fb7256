//! The login of one connection at the target (RFC 7143 §6.3): who the initiator is, what it wants, whether the application admits it, and
//! with which parameters. CHAP is in `chap`; inside a channel the peer is authenticated already. A login becomes a session, or a further
//! connection of one.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use strongroom_block::Buffer;

use super::chap::{ChapExchange, ChapPolicy, Progress};
use super::outbox::{AnswerKind, Outbox, Window};
use super::refusal::Refusal;
use super::types::{Config, IMMEDIATE_TASKS_MAX, LoginEvent, LoginRequested, SessionKind, TASKS_MAX, TEXT_BYTES_MAX};
use crate::login::{Agreed, LOGIN_SEGMENT_BYTES, LoginExchange, Negotiation, REASON_CHARS_MAX, REASON_KEY};
use crate::pdu::request_codes::stage;
use crate::pdu::{LoginRequest, LoginResponse, Pdu, PduError, Request, Sequence};
use crate::text::Pairs;
use crate::{CloseReason, LoginStatus, NAME_BYTES_MAX, PeerMisbehaved, Serial};

/// A login's machine: one connection, from its first byte to full-feature phase. After [`LoginEvent::Done`] it becomes a session
/// ([`super::Session::new`]) or a further connection of one ([`super::Session::add_connection`]).
#[derive(Debug)]
pub struct Login {
    pub(super) config: Config,
    phase: Phase,
    deadline: Instant,
    events: VecDeque<LoginEvent>,
    pub(super) outbox: Outbox,
    /// What the answers show of the command window.
    pub(super) window: Window,
    pub(super) kind: SessionKind,
    pub(super) tsih: Option<u16>,
    pub(super) agreed: Agreed,
    exchange: LoginExchange,
    /// The first request, which later ones must agree with.
    first: Option<LoginRequest>,
    /// What waits for the application's decision.
    parked: Option<(LoginRequest, Pairs)>,
    authentication: Authentication,
    portal_group_declared: bool,
    /// The rest of an answer that is longer than a segment, and the request that it answers.
    rest: Option<(LoginRequest, Buffer)>,
}

/// The AuthMethod key and what follows from it.
#[derive(Debug, Default)]
struct Authentication {
    /// CHAP, while it is in progress.
    chap: Option<ChapExchange>,
    /// CHAP's last answers, which go out with the next text of ours.
    answers: Pairs,
    is_settled: bool,
}

impl Authentication {
    /// Answers AuthMethod where no authentication is required.
    fn answer_method(&mut self, pairs: &Pairs, answers: &mut Pairs) -> Result<(), Refusal> {
        let Some(methods) = pairs.value("AuthMethod").filter(|_| !self.is_settled) else { return Ok(()) };
        if !methods.split(',').any(|method| method == "None") {
            return Err(Refusal::authentication("the initiator insists on an authentication that is not offered here"));
        }
        self.is_settled = true;
        answers.push("AuthMethod", "None");
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Done,
    Closed,
}

impl Login {
    /// A login on a connection that was made at `now`.
    pub fn new(now: Instant, mut config: Config) -> Login {
        config.offer = config.offer.clamped(config.in_channel);
        config.queue_depth = config.queue_depth.clamp(1, (TASKS_MAX - IMMEDIATE_TASKS_MAX) as u16);
        let nothing = Serial(0);
        Login {
            phase: Phase::Open,
            deadline: now + config.login_timeout,
            events: VecDeque::new(),
            outbox: Outbox::new(nothing),
            window: Window { exp_cmd_sn: nothing, max_cmd_sn: nothing },
            kind: SessionKind::Discovery,
            tsih: None,
            agreed: Agreed::default(),
            exchange: LoginExchange::new(Negotiation::new(&config.offer), stage::SECURITY, TEXT_BYTES_MAX),
            config,
            first: None,
            parked: None,
            authentication: Authentication::default(),
            portal_group_declared: false,
            rest: None,
        }
    }

    /// Takes a PDU from the peer.
    pub fn handle_pdu(&mut self, pdu: &Pdu) {
        match self.phase {
            Phase::Open => {
                if let Err(misbehaved) = self.take_pdu(pdu) {
                    self.end(CloseReason::Misbehaved(misbehaved));
                }
            }
            // A driver takes `Done` before it reads on.
            Phase::Done | Phase::Closed => {}
        }
    }

    /// The connection ended underneath, or its framing failed. Emits `Closed` unless that was already done.
    pub fn handle_closed(&mut self, reason: CloseReason) {
        self.outbox.clear();
        self.end(reason);
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.phase == Phase::Open && now >= self.deadline {
            self.end(CloseReason::LoginTimedOut);
        }
    }

    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.phase == Phase::Open).then_some(self.deadline)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<LoginEvent> {
        self.events.pop_front()
    }

    /// The next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<Pdu> {
        self.outbox.pop(self.window).map(|(pdu, _)| pdu)
    }

    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// What the login settled; `None` before `Done`.
    pub fn agreed(&self) -> Option<&Agreed> {
        (self.phase == Phase::Done).then_some(&self.agreed)
    }

    /// Lets the initiator in with a session of its own. `tsih` names it among those of its nexus; not 0.
    ///
    /// # Panics
    /// If `tsih` is 0, which RFC 7143 keeps for "a new session".
    pub fn accept(&mut self, tsih: u16) {
        assert_ne!(tsih, 0, "0 asks for a new session");
        self.proceed(tsih);
    }

    /// Lets the connection into a session with these keys, this command window and this handle.
    pub(super) fn join(&mut self, keys: &Agreed, window: Window, tsih: u16) {
        self.window = window;
        self.exchange.negotiation.join(keys);
        self.proceed(tsih);
    }

    /// The CID of the connection, from the first request on.
    pub(super) fn cid(&self) -> u16 {
        self.first.map_or(0, |first| first.cid)
    }

    fn proceed(&mut self, tsih: u16) {
        let Some((request, pairs)) = self.parked.take() else { return };
        self.tsih = Some(tsih);
        if let Err(refusal) = self.negotiate(&request, &pairs) {
            self.refuse(&request, refusal);
        }
    }

    /// Has the initiator of `Requested` prove who it is; `Authenticated` or `Closed` follows. Not inside a channel, which has
    /// proven it already.
    pub fn require_chap(&mut self, policy: ChapPolicy) {
        let Some((request, pairs)) = self.parked.take() else { return };
        self.authentication.chap = Some(ChapExchange::new(policy));
        if let Err(refusal) = self.authenticate(request, pairs) {
            self.refuse(&request, refusal);
        }
    }

    /// The name that the initiator gave for CHAP, proven or not.
    pub fn chap_name(&self) -> Option<&str> {
        self.authentication.chap.as_ref()?.name()
    }

    /// Sends the initiator of `Requested` elsewhere, to `address` (`host:port`, or `host:port,portal-group`; an IPv6 host in
    /// brackets), for good or for a while (RFC 7143 §11.13.5, class 1); `Closed` follows.
    pub fn redirect(&mut self, address: &str, is_permanent: bool) {
        let status = match is_permanent {
            true => LoginStatus::TARGET_MOVED_PERMANENTLY,
            false => LoginStatus::TARGET_MOVED_TEMPORARILY,
        };
        let mut pairs = Pairs::default();
        pairs.push("TargetAddress", address);
        self.refuse_last(status, Buffer::from(Bytes::from(pairs.encode())));
    }

    /// Refuses the initiator; `Closed` follows.
    pub fn reject(&mut self, status: LoginStatus) {
        self.refuse_last(status, Buffer::empty());
    }

    /// As [`Login::reject`], and tells the initiator why, in the key `X-org.strongroom.Reason`. Only for peers that have proven who they are.
    pub fn reject_because(&mut self, status: LoginStatus, reason: &str) {
        let mut pairs = Pairs::default();
        pairs.push(REASON_KEY, reason.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect::<String>());
        self.refuse_last(status, Buffer::from(Bytes::from(pairs.encode())));
    }

    fn refuse_last(&mut self, status: LoginStatus, text: Buffer) {
        let reason = CloseReason::LoginRefused(status);
        match self.parked.take().map(|(request, _)| request).or(self.first) {
            Some(request) if self.phase == Phase::Open => self.refuse_with(&request, status, text, reason),
            _ => self.end(reason),
        }
    }

    fn take_pdu(&mut self, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        if pdu.data.len() > LOGIN_SEGMENT_BYTES as usize {
            let max_bytes = LOGIN_SEGMENT_BYTES as usize;
            return Err(PduError::DataTooLong { len_bytes: pdu.data.len(), max_bytes }.into());
        }
        let Request::Login(request) = Request::decode(&pdu.bhs)? else {
            let misplaced = PeerMisbehaved::OutOfPlace { what: "another PDU", expected: "a login request" };
            if let Some(first) = self.first {
                self.refuse(&first, Refusal { status: LoginStatus::INVALID_DURING_LOGIN, reason: misplaced });
                return Ok(());
            }
            return Err(misplaced);
        };
        if self.first.is_none() {
            self.begin(&request);
        }
        if let Err(refusal) = self.take_login(request, pdu) {
            self.refuse(&request, refusal);
        }
        Ok(())
    }

    /// RFC 7143 §4.2.2: the numbers start where the first request says.
    fn begin(&mut self, request: &LoginRequest) {
        self.outbox = Outbox::new(request.exp_stat_sn);
        let exp_cmd_sn = match request.tsih {
            0 => request.cmd_sn,
            // Which session it joins, and where that is, is not known yet: a number that acknowledges nothing.
            _ => Serial(request.cmd_sn.0.wrapping_sub(TASKS_MAX as u32)),
        };
        if request.tsih != 0 {
            self.exchange.negotiation.join(&Agreed::default());
        }
        let depth = if request.tsih == 0 { u32::from(self.config.queue_depth) } else { 0 };
        self.window = Window { exp_cmd_sn, max_cmd_sn: exp_cmd_sn.plus(depth).previous() };
    }

    fn check(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
        if !self.exchange.count_round() {
            return Err(Refusal::initiator("too many requests"));
        }
        if self.parked.is_some() {
            return Err(Refusal::initiator("a request before the answer to the one before"));
        }
        if request.version_min > 0 {
            return Err(Refusal::new(LoginStatus::UNSUPPORTED_VERSION, "protocol version above 0"));
        }
        if request.current_stage > stage::OPERATIONAL || request.current_stage < self.exchange.stage() {
            return Err(Refusal::initiator("a stage out of order"));
        }
        let next_is_ahead = request.next_stage > request.current_stage && request.next_stage != 2;
        if request.transit && (!next_is_ahead || request.continues) {
            return Err(Refusal::initiator("a transit to a stage that cannot follow"));
        }
        match &self.first {
            None => self.first = Some(*request),
            Some(first) => {
                let same = first.isid == request.isid
                    && first.tsih == request.tsih
                    && first.cid == request.cid
                    && first.initiator_task_tag == request.initiator_task_tag;
                if !same {
                    return Err(Refusal::initiator("ISID, TSIH, CID or task tag changed on the way"));
                }
            }
        }
        self.exchange.enter(request.current_stage);
        Ok(())
    }

    fn take_login(&mut self, request: LoginRequest, pdu: &Pdu) -> Result<(), Refusal> {
        self.check(&request)?;
        if let Some((original, rest)) = self.rest.take() {
            if !pdu.data.is_empty() {
                return Err(Refusal::initiator("text in the middle of the answer"));
            }
            return self.send_text(&original, rest);
        }
        let Some(pairs) = self.exchange.collect(&pdu.data, request.continues)? else {
            // Nothing to say before the text is whole (RFC 7143 §6.2).
            return self.send_response(&request, Buffer::empty(), false, false);
        };
        pairs.check_unique()?;
        if self.authentication.chap.is_some() {
            return self.authenticate(request, pairs);
        }
        if self.tsih.is_none() {
            let requested = identify(&request, &pairs)?;
            self.kind = requested.kind.clone();
            if self.kind == SessionKind::Discovery {
                self.exchange.negotiation.set_discovery();
            }
            self.parked = Some((request, pairs));
            self.events.push_back(LoginEvent::Requested(requested));
            return Ok(());
        }
        self.negotiate(&request, &pairs)
    }

    /// Takes a text of the CHAP exchange.
    fn authenticate(&mut self, request: LoginRequest, pairs: Pairs) -> Result<(), Refusal> {
        let Some(chap) = &mut self.authentication.chap else { return Ok(()) };
        let mut answers = Pairs::default();
        let progress = match request.current_stage {
            stage::SECURITY => chap.take(&pairs, &mut answers)?,
            _ if chap.is_required() => {
                return Err(Refusal::authentication(
                    "the initiator skips the security stage, but CHAP is required here",
                ));
            }
            _ => Progress::Done { user: None },
        };
        match progress {
            Progress::Continues => {
                self.declare_portal_group(&mut answers);
                self.exchange.negotiation.take(&pairs, &mut answers)?;
                // The stage does not end before it is over, even if the initiator asks.
                self.send_response(&request, Buffer::from(Bytes::from(answers.encode())), false, false)
            }
            Progress::Done { user } => {
                self.authentication = Authentication { chap: None, answers, is_settled: true };
                self.parked = Some((request, pairs));
                self.events.push_back(LoginEvent::Authenticated { user });
                Ok(())
            }
        }
    }

    fn declare_portal_group(&mut self, answers: &mut Pairs) {
        if self.kind != SessionKind::Discovery && !std::mem::replace(&mut self.portal_group_declared, true) {
            answers.push("TargetPortalGroupTag", self.config.portal_group_tag.to_string());
        }
    }

    /// Answers a whole text.
    fn negotiate(&mut self, request: &LoginRequest, pairs: &Pairs) -> Result<(), Refusal> {
        let mut answers = std::mem::take(&mut self.authentication.answers);
        self.authentication.answer_method(pairs, &mut answers)?;
        self.declare_portal_group(&mut answers);
        if request.current_stage == stage::OPERATIONAL {
            self.exchange.negotiation.declare(&mut answers);
        }
        self.exchange.negotiation.take(pairs, &mut answers)?;
        self.send_text(request, Buffer::from(Bytes::from(answers.encode())))
    }

    /// Sends an answer's text, in several responses if it is long.
    fn send_text(&mut self, request: &LoginRequest, text: Buffer) -> Result<(), Refusal> {
        let part_bytes = text.len().min(LOGIN_SEGMENT_BYTES as usize);
        let (part, rest) = (text.slice(..part_bytes), text.slice(part_bytes..));
        if !rest.is_empty() {
            self.rest = Some((*request, rest));
            return self.send_response(request, part, false, true);
        }
        let enters = request.transit && request.next_stage == stage::FULL_FEATURE;
        if enters && !self.exchange.negotiation.is_acceptable() {
            return Err(Refusal::initiator("the initiator has no digests, which are required here"));
        }
        self.send_response(request, part, request.transit, false)?;
        if request.transit {
            self.exchange.enter(request.next_stage);
        }
        if enters {
            self.agreed = self.exchange.negotiation.agreed();
            self.phase = Phase::Done;
            self.events.push_back(LoginEvent::Done);
        }
        Ok(())
    }

    fn send_response(
        &mut self,
        request: &LoginRequest,
        text: Buffer,
        transit: bool,
        continues: bool,
    ) -> Result<(), Refusal> {
        let enters = transit && request.next_stage == stage::FULL_FEATURE;
        let response = LoginResponse {
            transit,
            continues,
            current_stage: request.current_stage,
            next_stage: if transit { request.next_stage } else { 0 },
            isid: request.isid,
            // RFC 7143 §11.13.3: a new session learns its handle at the end; who joins one has it.
            tsih: if enters { self.tsih.unwrap_or(0) } else { request.tsih },
            initiator_task_tag: request.initiator_task_tag,
            sequence: Sequence::default(),
            status: LoginStatus::SUCCESS,
        };
        Ok(self.outbox.push(response.encode(), text, AnswerKind::Numbered)?)
    }

    fn refuse(&mut self, request: &LoginRequest, refusal: Refusal) {
        self.refuse_with(request, refusal.status, Buffer::empty(), CloseReason::Misbehaved(refusal.reason));
    }

    fn refuse_with(&mut self, request: &LoginRequest, status: LoginStatus, text: Buffer, reason: CloseReason) {
        let response = LoginResponse {
            transit: false,
            continues: false,
            current_stage: request.current_stage,
            next_stage: 0,
            isid: request.isid,
            tsih: request.tsih,
            initiator_task_tag: request.initiator_task_tag,
            sequence: Sequence::default(),
            status,
        };
        let _ = self.outbox.push(response.encode(), text, AnswerKind::Numbered);
        self.end(reason);
    }

    fn end(&mut self, reason: CloseReason) {
        if self.phase == Phase::Closed {
            return;
        }
        self.phase = Phase::Closed;
        self.outbox.keep_last_words();
        self.parked = None;
        // It was never used: the login failed.
        self.events.retain(|event| !matches!(event, LoginEvent::Done));
        self.events.push_back(LoginEvent::Closed(reason));
    }
}

/// Who it is and what for: the keys of the first text (RFC 7143 §6.3).
fn identify(request: &LoginRequest, pairs: &Pairs) -> Result<LoginRequested, Refusal> {
    let missing = |what| Refusal::new(LoginStatus::MISSING_PARAMETER, what);
    let name = |key: &'static str| pairs.value(key).filter(|name| (1..=NAME_BYTES_MAX).contains(&name.len()));
    let initiator_name = name("InitiatorName").ok_or_else(|| missing("no InitiatorName, or one that is too long"))?;
    let kind = match pairs.value("SessionType") {
        Some("Discovery") => SessionKind::Discovery,
        None | Some("Normal") => {
            let target_name = name("TargetName").ok_or_else(|| missing("no TargetName, or one that is too long"))?;
            SessionKind::Normal { target_name: target_name.to_owned() }
        }
        Some(_) => {
            return Err(Refusal::new(LoginStatus::SESSION_TYPE_NOT_SUPPORTED, "a SessionType that does not exist"));
        }
    };
    Ok(LoginRequested {
        initiator_name: initiator_name.to_owned(),
        initiator_alias: pairs.value("InitiatorAlias").map(str::to_owned),
        isid: request.isid,
        tsih: request.tsih,
        cid: request.cid,
        kind,
    })
}
