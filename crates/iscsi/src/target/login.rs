//! The login as a target sees it (RFC 7143 §6.3): who is it, what for, may it, and with which parameters. The proof of who it
//! is, where one is wanted, is in `chap`; inside a channel the channel has authenticated the peer already.

use std::time::Instant;

use bytes::Bytes;
use strongroom_block::Buffer;

use super::chap::{ChapPolicy, Exchange, Progress};
use super::{AnswerKind, Event, LoginRequested, Phase, Session, SessionKind, TEXT_BYTES_MAX};
use crate::login::{LOGIN_ROUNDS_MAX, LOGIN_SEGMENT_BYTES, Negotiation, Offer, stage};
use crate::pdu::{LoginRequest, LoginResponse, Pdu, PduError, Request, Sequence};
use crate::text::{Collector, Pairs};
use crate::{CloseReason, LoginStatus, NAME_BYTES_MAX, PeerMisbehaved};

/// A login in progress.
#[derive(Debug)]
pub(super) struct Login {
    negotiation: Negotiation,
    collector: Collector,
    rounds: u32,
    stage: u8,
    /// The first request, which later ones must agree with.
    first: Option<LoginRequest>,
    /// What waits for the application's word.
    parked: Option<(LoginRequest, Pairs)>,
    /// CHAP, while it goes on.
    exchange: Option<Exchange>,
    /// CHAP's last answers, which go out with the next text of ours.
    answers: Pairs,
    /// AuthMethod has been settled.
    method_settled: bool,
    tsih: Option<u16>,
    portal_group_declared: bool,
    /// The rest of an answer that is longer than a segment, and the request that it answers.
    rest: Option<(LoginRequest, Buffer)>,
}

/// Why a login cannot go on: what the initiator is told, and what the log says.
pub(super) struct Refusal(pub(super) LoginStatus, pub(super) PeerMisbehaved);

impl Refusal {
    fn initiator(why: &'static str) -> Refusal {
        Refusal(LoginStatus::INITIATOR_ERROR, PeerMisbehaved::Login(why))
    }
}

impl<E: Into<PeerMisbehaved>> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal(LoginStatus::INITIATOR_ERROR, error.into())
    }
}

impl Login {
    pub(super) fn new(offer: &Offer) -> Login {
        Login {
            negotiation: Negotiation::new(offer),
            collector: Collector::default(),
            rounds: 0,
            stage: stage::SECURITY,
            first: None,
            parked: None,
            exchange: None,
            answers: Pairs::default(),
            method_settled: false,
            tsih: None,
            portal_group_declared: false,
            rest: None,
        }
    }

    fn check(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
        self.rounds += 1;
        if self.rounds > LOGIN_ROUNDS_MAX {
            return Err(Refusal::initiator("too many requests"));
        }
        if self.parked.is_some() {
            return Err(Refusal::initiator("a request before the answer to the one before"));
        }
        if request.version_min > 0 {
            return Err(Refusal(LoginStatus::UNSUPPORTED_VERSION, PeerMisbehaved::Login("protocol version above 0")));
        }
        if request.tsih != 0 {
            // Sessions have one connection: there is none to join.
            let why = PeerMisbehaved::Login("a connection for a session that is not there");
            return Err(Refusal(LoginStatus::SESSION_DOES_NOT_EXIST, why));
        }
        if request.current_stage > stage::OPERATIONAL || request.current_stage < self.stage {
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
                    && first.cid == request.cid
                    && first.initiator_task_tag == request.initiator_task_tag;
                if !same {
                    return Err(Refusal::initiator("ISID, CID or task tag changed on the way"));
                }
            }
        }
        self.stage = request.current_stage;
        Ok(())
    }
}

impl Session {
    /// Lets the initiator of `LoginRequested` in. `tsih` names the session among those of its nexus; not 0.
    ///
    /// # Panics
    /// If `tsih` is 0, which RFC 7143 keeps for "a new session".
    pub fn accept_login(&mut self, now: Instant, tsih: u16) {
        assert_ne!(tsih, 0, "0 asks for a new session");
        self.liveness.moved(now);
        let Phase::Login(login) = &mut self.phase else { return };
        let Some((request, pairs)) = login.parked.take() else { return };
        login.tsih = Some(tsih);
        if let Err(refusal) = self.negotiate(&request, &pairs) {
            self.refuse(&request, refusal.0, CloseReason::Misbehaved(refusal.1));
        }
    }

    /// Has the initiator of `LoginRequested` prove who it is; `Authenticated` or `Closed` follows. Not inside a channel, which
    /// has proven it already.
    pub fn require_chap(&mut self, now: Instant, policy: ChapPolicy) {
        self.liveness.moved(now);
        let Phase::Login(login) = &mut self.phase else { return };
        let Some((request, pairs)) = login.parked.take() else { return };
        login.exchange = Some(Exchange::new(policy));
        if let Err(refusal) = self.authenticate(request, pairs) {
            self.refuse(&request, refusal.0, CloseReason::Misbehaved(refusal.1));
        }
    }

    /// Sends the initiator of `LoginRequested` elsewhere, to `address` (`host:port`, or `host:port,portal-group`; an IPv6 host in
    /// brackets), for good or for a while (RFC 7143 §11.13.5, class 1); `Closed` follows.
    pub fn redirect_login(&mut self, address: &str, is_permanent: bool) {
        let Phase::Login(login) = &mut self.phase else { return };
        let status = match is_permanent {
            true => LoginStatus::TARGET_MOVED_PERMANENTLY,
            false => LoginStatus::TARGET_MOVED_TEMPORARILY,
        };
        let Some(request) = login.parked.take().map(|(request, _)| request).or(login.first) else {
            return self.end(CloseReason::LoginRefused(status));
        };
        let mut pairs = Pairs::default();
        pairs.push("TargetAddress", address);
        let text = Buffer::from(Bytes::from(pairs.encode()));
        self.refuse_with(&request, status, text, CloseReason::LoginRefused(status));
    }

    /// Refuses the initiator of `LoginRequested`; `Closed` follows.
    pub fn reject_login(&mut self, status: LoginStatus) {
        let Phase::Login(login) = &mut self.phase else { return };
        match login.parked.take().map(|(request, _)| request).or(login.first) {
            Some(request) => self.refuse(&request, status, CloseReason::LoginRefused(status)),
            None => self.end(CloseReason::LoginRefused(status)),
        }
    }

    pub(super) fn handle_login_pdu(&mut self, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        let Phase::Login(login) = &mut self.phase else { return Ok(()) };
        if pdu.data.len() > LOGIN_SEGMENT_BYTES as usize {
            let max_bytes = LOGIN_SEGMENT_BYTES as usize;
            return Err(PduError::DataTooLong { len_bytes: pdu.data.len(), max_bytes }.into());
        }
        let Request::Login(request) = Request::decode(&pdu.bhs)? else {
            let misplaced = PeerMisbehaved::OutOfPlace { what: "another PDU", expected: "a login request" };
            if let Some(first) = login.first {
                self.refuse(&first, LoginStatus::INVALID_DURING_LOGIN, CloseReason::Misbehaved(misplaced));
                return Ok(());
            }
            return Err(misplaced);
        };
        let is_first = login.first.is_none();
        if is_first {
            // RFC 7143 §4.2.2: the numbers start where the first request says.
            self.exp_cmd_sn = request.cmd_sn;
            self.stat_sn = request.exp_stat_sn;
            self.cid = request.cid;
        }
        if let Err(refusal) = self.take_login(request, &pdu) {
            self.refuse(&request, refusal.0, CloseReason::Misbehaved(refusal.1));
        }
        Ok(())
    }

    fn take_login(&mut self, request: LoginRequest, pdu: &Pdu) -> Result<(), Refusal> {
        let Phase::Login(login) = &mut self.phase else { return Ok(()) };
        login.check(&request)?;
        if let Some((original, rest)) = login.rest.take() {
            if !pdu.data.is_empty() {
                return Err(Refusal::initiator("text in the middle of the answer"));
            }
            return self.send_login_text(&original, rest);
        }
        let Some(pairs) = login.collector.push(&pdu.data, request.continues, TEXT_BYTES_MAX)? else {
            // Nothing to say before the text is whole (RFC 7143 §6.2).
            return self.send_login_response(&request, Buffer::empty(), false, false);
        };
        pairs.check_unique()?;
        if login.exchange.is_some() {
            return self.authenticate(request, pairs);
        }
        if login.tsih.is_none() {
            let requested = identify(&request, &pairs)?;
            self.discovery = requested.kind == SessionKind::Discovery;
            self.target_name = match &requested.kind {
                SessionKind::Normal { target_name } => Some(target_name.clone()),
                SessionKind::Discovery => None,
            };
            let Phase::Login(login) = &mut self.phase else { return Ok(()) };
            if self.discovery {
                login.negotiation.set_discovery();
            }
            login.parked = Some((request, pairs));
            self.events.push_back(Event::LoginRequested(requested));
            return Ok(());
        }
        self.negotiate(&request, &pairs)
    }

    /// Takes a text of the CHAP exchange.
    fn authenticate(&mut self, request: LoginRequest, pairs: Pairs) -> Result<(), Refusal> {
        let is_discovery = self.discovery;
        let Phase::Login(login) = &mut self.phase else { return Ok(()) };
        let Some(exchange) = &mut login.exchange else { return Ok(()) };
        let mut answers = Pairs::default();
        let progress = match request.current_stage {
            stage::SECURITY => exchange.take(&pairs, &mut answers)?,
            _ if exchange.is_required() => {
                let why = PeerMisbehaved::Login("the initiator skips the security stage, but CHAP is required here");
                return Err(Refusal(LoginStatus::AUTHENTICATION_FAILED, why));
            }
            _ => Progress::Done { user: None },
        };
        match progress {
            Progress::Goes => {
                if !std::mem::replace(&mut login.portal_group_declared, true) && !is_discovery {
                    answers.push("TargetPortalGroupTag", self.config.portal_group_tag.to_string());
                }
                login.negotiation.take(&pairs, &mut answers)?;
                // Not before it is over does the stage end, whatever the initiator would like.
                self.send_login_response(&request, Buffer::from(Bytes::from(answers.encode())), false, false)
            }
            Progress::Done { user } => {
                login.exchange = None;
                login.method_settled = true;
                login.answers = answers;
                login.parked = Some((request, pairs));
                self.events.push_back(Event::Authenticated { user });
                Ok(())
            }
        }
    }

    /// Answers a whole text.
    fn negotiate(&mut self, request: &LoginRequest, pairs: &Pairs) -> Result<(), Refusal> {
        let Phase::Login(login) = &mut self.phase else { return Ok(()) };
        let mut answers = std::mem::take(&mut login.answers);
        if let Some(methods) = pairs.value("AuthMethod").filter(|_| !login.method_settled) {
            if !methods.split(',').any(|method| method == "None") {
                let why = PeerMisbehaved::Login("the initiator insists on an authentication that is not offered here");
                return Err(Refusal(LoginStatus::AUTHENTICATION_FAILED, why));
            }
            login.method_settled = true;
            answers.push("AuthMethod", "None");
        }
        if !std::mem::replace(&mut login.portal_group_declared, true) && !self.discovery {
            answers.push("TargetPortalGroupTag", self.config.portal_group_tag.to_string());
        }
        if request.current_stage == stage::OPERATIONAL {
            login.negotiation.declare(&mut answers);
        }
        login.negotiation.take(pairs, &mut answers)?;
        self.send_login_text(request, Buffer::from(Bytes::from(answers.encode())))
    }

    /// Sends an answer's text, in several responses if it is long.
    fn send_login_text(&mut self, request: &LoginRequest, text: Buffer) -> Result<(), Refusal> {
        let part_bytes = text.len().min(LOGIN_SEGMENT_BYTES as usize);
        let (part, rest) = (text.slice(..part_bytes), text.slice(part_bytes..));
        if !rest.is_empty() {
            let Phase::Login(login) = &mut self.phase else { return Ok(()) };
            login.rest = Some((*request, rest));
            return self.send_login_response(request, part, false, true);
        }
        let enters = request.transit && request.next_stage == stage::FULL_FEATURE;
        let Phase::Login(login) = &self.phase else { return Ok(()) };
        if enters && !login.negotiation.is_acceptable() {
            return Err(Refusal::initiator("the initiator has no digests, which are required here"));
        }
        self.send_login_response(request, part, request.transit, false)?;
        let Phase::Login(login) = &mut self.phase else { return Ok(()) };
        if request.transit {
            login.stage = request.next_stage;
        }
        if enters {
            self.agreed = login.negotiation.agreed();
            self.recovery = (self.agreed.error_recovery_level > 0).then(Box::default);
            self.phase = Phase::FullFeature;
            self.deadline = None;
            self.events.push_back(Event::LoggedIn);
        }
        Ok(())
    }

    fn send_login_response(
        &mut self,
        request: &LoginRequest,
        text: Buffer,
        transit: bool,
        continues: bool,
    ) -> Result<(), Refusal> {
        let Phase::Login(login) = &self.phase else { return Ok(()) };
        let enters = transit && request.next_stage == stage::FULL_FEATURE;
        let response = LoginResponse {
            transit,
            continues,
            current_stage: request.current_stage,
            next_stage: if transit { request.next_stage } else { 0 },
            isid: request.isid,
            tsih: if enters { login.tsih.unwrap_or(0) } else { 0 },
            initiator_task_tag: request.initiator_task_tag,
            sequence: Sequence::default(),
            status: LoginStatus::SUCCESS,
        };
        Ok(self.answer(response.encode(), text, AnswerKind::Numbered)?)
    }

    fn refuse(&mut self, request: &LoginRequest, status: LoginStatus, reason: CloseReason) {
        self.refuse_with(request, status, Buffer::empty(), reason);
    }

    fn refuse_with(&mut self, request: &LoginRequest, status: LoginStatus, text: Buffer, reason: CloseReason) {
        let response = LoginResponse {
            transit: false,
            continues: false,
            current_stage: request.current_stage,
            next_stage: 0,
            isid: request.isid,
            tsih: 0,
            initiator_task_tag: request.initiator_task_tag,
            sequence: Sequence::default(),
            status,
        };
        let _ = self.answer(response.encode(), text, AnswerKind::Numbered);
        self.end(reason);
    }
}

/// Who it is and what for: the keys of the first text (RFC 7143 §6.3).
fn identify(request: &LoginRequest, pairs: &Pairs) -> Result<LoginRequested, Refusal> {
    let missing = |what| Refusal(LoginStatus::MISSING_PARAMETER, PeerMisbehaved::Login(what));
    let name = |key: &'static str| pairs.value(key).filter(|name| (1..=NAME_BYTES_MAX).contains(&name.len()));
    let initiator_name = name("InitiatorName").ok_or_else(|| missing("no InitiatorName, or one that is too long"))?;
    let kind = match pairs.value("SessionType") {
        Some("Discovery") => SessionKind::Discovery,
        None | Some("Normal") => {
            let target_name = name("TargetName").ok_or_else(|| missing("no TargetName, or one that is too long"))?;
            SessionKind::Normal { target_name: target_name.to_owned() }
        }
        Some(_) => {
            let why = PeerMisbehaved::Login("a SessionType that does not exist");
            return Err(Refusal(LoginStatus::SESSION_TYPE_NOT_SUPPORTED, why));
        }
    };
    Ok(LoginRequested {
        initiator_name: initiator_name.to_owned(),
        initiator_alias: pairs.value("InitiatorAlias").map(str::to_owned),
        isid: request.isid,
        kind,
    })
}
