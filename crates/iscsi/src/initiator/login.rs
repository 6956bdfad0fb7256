//! The login of one connection at the initiator (RFC 7143 §6.3): its requests, and what the target's answers lead to. On a plain stream it
//! starts in the security stage, as every stock target expects, with CHAP if there are secrets; inside a channel both sides are known
//! already and one round trip is enough.

use bytes::Bytes;
use strongroom_block::Buffer;

use super::chap::{ChapExchange, Outcome};
use super::types::{Config, SessionKind, TEXT_BYTES_MAX};
use crate::login::{Agreed, LoginExchange, Negotiation, REASON_BYTES_MAX, REASON_KEY, number};
use crate::pdu::request_codes::stage;
use crate::pdu::{Answer, Bhs, LoginRequest, LoginResponse, Pdu};
use crate::text::Pairs;
use crate::{LoginStatus, PeerMisbehaved, Serial};

/// Names the login; one connection has one.
const LOGIN_TAG: u32 = 0x8fff_fffe;

/// A login in progress.
#[derive(Debug)]
pub(super) struct Login {
    isid: [u8; 6],
    /// Of the session that it joins; 0 for a new one.
    tsih: u16,
    cid: u16,
    exchange: LoginExchange,
    portal_group_tag: Option<u16>,
    is_first_answer: bool,
    has_proposed: bool,
    /// CHAP, if we have secrets for it.
    chap: Option<ChapExchange>,
}

/// What an answer of the target leads to.
pub(super) enum LoginOutcome {
    /// The login goes on with this request.
    Request(Bhs, Buffer),
    /// Full-feature phase.
    Entered {
        /// What was settled on this connection.
        agreed: Agreed,
        /// Names the session.
        tsih: u16,
        portal_group_tag: Option<u16>,
    },
    /// The target, or we, end it.
    Refused {
        status: LoginStatus,
        /// Where the target sends us instead.
        redirect: Option<String>,
        /// The target's explanation, for people.
        reason: Option<String>,
    },
}

impl Login {
    /// Of the leading connection of a new session.
    pub(super) fn new(config: &Config, cid: u16) -> Login {
        let first_stage = if config.in_channel { stage::OPERATIONAL } else { stage::SECURITY };
        Login {
            isid: config.isid,
            tsih: 0,
            cid,
            exchange: LoginExchange::new(Negotiation::new(&config.offer), first_stage, TEXT_BYTES_MAX),
            portal_group_tag: None,
            is_first_answer: true,
            has_proposed: false,
            chap: config.chap.clone().filter(|_| !config.in_channel).map(ChapExchange::new),
        }
    }

    /// Of a further connection of the session `tsih`, in which `session` holds.
    pub(super) fn joining(config: &Config, cid: u16, session: &Agreed, tsih: u16) -> Login {
        let mut login = Login::new(config, cid);
        login.exchange.negotiation = Negotiation::joining(&config.offer, session);
        login.tsih = tsih;
        login
    }

    /// The first request: who we are, and what the session is for.
    pub(super) fn start(&mut self, config: &Config) -> (Bhs, Buffer) {
        let mut pairs = Pairs::default();
        pairs.push("InitiatorName", &config.initiator_name);
        match &config.kind {
            SessionKind::Discovery => pairs.push("SessionType", "Discovery"),
            SessionKind::Normal { target_name } => {
                pairs.push("SessionType", "Normal");
                pairs.push("TargetName", target_name);
            }
        }
        if !config.in_channel {
            pairs.push("AuthMethod", self.chap.as_ref().map_or("None", ChapExchange::methods));
        }
        let wants_transit = self.chap.is_none();
        self.request(pairs, wants_transit)
    }

    /// Whether this is the first answer: the target's StatSN starts with it.
    pub(super) fn take_first_answer(&mut self) -> bool {
        std::mem::replace(&mut self.is_first_answer, false)
    }

    /// The header of an answer to this login.
    pub(super) fn decode(pdu: &Pdu) -> Result<LoginResponse, PeerMisbehaved> {
        match Answer::decode(&pdu.bhs)? {
            Answer::Login(response) if response.initiator_task_tag == LOGIN_TAG => Ok(response),
            Answer::Login(_) => Err(PeerMisbehaved::Login("an answer to a login that is not ours")),
            _ => Err(PeerMisbehaved::OutOfPlace { what: "another PDU", expected: "a login response" }),
        }
    }

    /// Takes an answer of the target.
    pub(super) fn take(&mut self, response: &LoginResponse, data: &[u8]) -> Result<LoginOutcome, PeerMisbehaved> {
        if response.status != LoginStatus::SUCCESS {
            return refusal(response.status, data);
        }
        if !self.exchange.count_round() {
            return Err(PeerMisbehaved::Login("it does not come to an end"));
        }
        if response.current_stage != self.exchange.stage() || (response.transit && response.continues) {
            return Err(PeerMisbehaved::Login("an answer in a stage that we are not in"));
        }
        match self.exchange.collect(data, response.continues)? {
            None => Ok(self.go_on(Pairs::default(), false)),
            Some(pairs) => self.take_text(response, &pairs),
        }
    }

    fn take_text(&mut self, response: &LoginResponse, pairs: &Pairs) -> Result<LoginOutcome, PeerMisbehaved> {
        pairs.check_unique()?;
        let mut answers = Pairs::default();
        let mut wants_transit = true;
        let is_refused = match &mut self.chap {
            Some(chap) if self.exchange.stage() == stage::SECURITY => {
                let outcome = chap.take(pairs, response.transit, &mut answers);
                wants_transit = outcome != Outcome::Continues;
                outcome == Outcome::Failed
            }
            Some(_) => false,
            None => pairs.value("AuthMethod").is_some_and(|method| method != "None"),
        };
        if is_refused {
            let status = LoginStatus::AUTHENTICATION_FAILED;
            return Ok(LoginOutcome::Refused { status, redirect: None, reason: None });
        }
        if let Some(tag) = pairs.value("TargetPortalGroupTag").and_then(number) {
            self.portal_group_tag = u16::try_from(tag).ok();
        }
        self.exchange.negotiation.take(pairs, &mut answers)?;
        if !response.transit {
            // The target has more to say, or waits for what it asked.
            return Ok(self.go_on(answers, wants_transit));
        }
        match (self.exchange.stage(), response.next_stage) {
            (stage::SECURITY, stage::OPERATIONAL) => {
                self.exchange.enter(stage::OPERATIONAL);
                Ok(self.go_on(answers, true))
            }
            (stage::OPERATIONAL, stage::FULL_FEATURE) => {
                if !self.exchange.negotiation.is_acceptable() {
                    return Err(PeerMisbehaved::Login("the target has no digests, which were asked for"));
                }
                let agreed = self.exchange.negotiation.agreed();
                Ok(LoginOutcome::Entered { agreed, tsih: response.tsih, portal_group_tag: self.portal_group_tag })
            }
            _ => Err(PeerMisbehaved::Login("a transit that we did not ask for")),
        }
    }

    fn go_on(&mut self, pairs: Pairs, transit: bool) -> LoginOutcome {
        let (bhs, data) = self.request(pairs, transit);
        LoginOutcome::Request(bhs, data)
    }

    /// A request with `pairs`, and with our proposals when their stage has come.
    fn request(&mut self, mut pairs: Pairs, transit: bool) -> (Bhs, Buffer) {
        let current_stage = self.exchange.stage();
        if current_stage == stage::OPERATIONAL && !std::mem::replace(&mut self.has_proposed, true) {
            self.exchange.negotiation.propose(&mut pairs);
        }
        let next_stage = match current_stage {
            stage::SECURITY => stage::OPERATIONAL,
            _ => stage::FULL_FEATURE,
        };
        let request = LoginRequest {
            transit,
            current_stage,
            next_stage: if transit { next_stage } else { 0 },
            tsih: self.tsih,
            initiator_task_tag: LOGIN_TAG,
            cid: self.cid,
            cmd_sn: Serial(0),
            ..LoginRequest::one_step(self.isid)
        };
        (request.encode(), Buffer::from(Bytes::from(pairs.encode())))
    }
}

/// A login response that refuses the login or sends the initiator elsewhere (RFC 7143 §11.13.5).
fn refusal(status: LoginStatus, data: &[u8]) -> Result<LoginOutcome, PeerMisbehaved> {
    let redirect = match status.class() {
        1 => Pairs::parse(data)?.value("TargetAddress").map(str::to_owned),
        _ => None,
    };
    // Other targets may send anything along with a refusal.
    let reason = Pairs::parse(data).ok().and_then(|pairs| pairs.value(REASON_KEY).map(str::to_owned));
    let reason = reason.filter(|reason| reason.len() <= REASON_BYTES_MAX);
    Ok(LoginOutcome::Refused { status, redirect, reason })
}
