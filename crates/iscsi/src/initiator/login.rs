//! The login as an initiator does it (RFC 7143 §6.3). On a plain stream it starts in the security stage, as every stock
//! target expects, with CHAP if there are secrets; inside a channel both sides are known already and one round trip is enough.

use bytes::Bytes;
use strongroom_block::Buffer;

use super::chap::{Exchange, Outcome};
use super::{Config, Event, Phase, Session, SessionKind, TEXT_BYTES_MAX};
use crate::login::{LOGIN_ROUNDS_MAX, Negotiation, stage};
use crate::pdu::{Answer, LoginRequest, LoginResponse, Pdu};
use crate::text::{Collector, Pairs};
use crate::{CloseReason, LoginStatus, PeerMisbehaved, Serial};

/// Names the login; one connection has one.
const LOGIN_TAG: u32 = 0x8fff_fffe;

/// A login in progress.
#[derive(Debug)]
pub(super) struct Login {
    negotiation: Negotiation,
    collector: Collector,
    rounds: u32,
    stage: u8,
    portal_group_tag: Option<u16>,
    is_first_answer: bool,
    has_proposed: bool,
    /// CHAP, if we have secrets for it.
    exchange: Option<Exchange>,
}

impl Login {
    pub(super) fn new(config: &Config) -> Login {
        Login {
            negotiation: Negotiation::new(&config.offer),
            collector: Collector::default(),
            rounds: 0,
            stage: if config.in_channel { stage::OPERATIONAL } else { stage::SECURITY },
            portal_group_tag: None,
            is_first_answer: true,
            has_proposed: false,
            exchange: config.chap.clone().filter(|_| !config.in_channel).map(Exchange::new),
        }
    }
}

impl Session {
    pub(super) fn start_login(&mut self) {
        let mut pairs = Pairs::default();
        pairs.push("InitiatorName", &self.config.initiator_name);
        match &self.config.kind {
            SessionKind::Discovery => pairs.push("SessionType", "Discovery"),
            SessionKind::Normal { target_name } => {
                pairs.push("SessionType", "Normal");
                pairs.push("TargetName", target_name);
            }
        }
        let Phase::Login(login) = &self.phase else { return };
        let offer = login.exchange.as_ref().map_or("None", Exchange::methods);
        let transit = login.exchange.is_none();
        if !self.config.in_channel {
            pairs.push("AuthMethod", offer);
        }
        self.send_login(pairs, transit);
    }

    pub(super) fn handle_login_pdu(&mut self, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        let Answer::Login(response) = Answer::decode(&pdu.bhs)? else {
            return Err(PeerMisbehaved::OutOfPlace { what: "another PDU", expected: "a login response" });
        };
        let Phase::Login(login) = &mut self.phase else { return Ok(()) };
        if response.initiator_task_tag != LOGIN_TAG {
            return Err(PeerMisbehaved::Login("an answer to a login that is not ours"));
        }
        if std::mem::replace(&mut login.is_first_answer, false) {
            // The target's numbers start here.
            self.exp_stat_sn = response.sequence.stat_sn;
        }
        self.max_cmd_sn = self.cmd_sn;
        self.take_numbers(response.sequence, true)?;
        if response.status != LoginStatus::SUCCESS {
            return self.take_refusal(&response, pdu);
        }
        let Phase::Login(login) = &mut self.phase else { return Ok(()) };
        login.rounds += 1;
        if login.rounds > LOGIN_ROUNDS_MAX {
            return Err(PeerMisbehaved::Login("it does not come to an end"));
        }
        if response.current_stage != login.stage || (response.transit && response.continues) {
            return Err(PeerMisbehaved::Login("an answer in a stage that we are not in"));
        }
        match login.collector.push(&pdu.data, response.continues, TEXT_BYTES_MAX)? {
            None => self.send_login(Pairs::default(), false),
            Some(pairs) => self.take_login_text(&response, &pairs)?,
        }
        Ok(())
    }

    fn take_login_text(&mut self, response: &LoginResponse, pairs: &Pairs) -> Result<(), PeerMisbehaved> {
        let Phase::Login(login) = &mut self.phase else { return Ok(()) };
        pairs.check_unique()?;
        let mut answers = Pairs::default();
        let mut wants_transit = true;
        match &mut login.exchange {
            Some(exchange) if login.stage == stage::SECURITY => {
                match exchange.take(pairs, response.transit, &mut answers) {
                    Outcome::Goes => wants_transit = false,
                    Outcome::Done => {}
                    Outcome::Failed => {
                        self.fail_login(LoginStatus::AUTHENTICATION_FAILED, None);
                        return Ok(());
                    }
                }
            }
            Some(_) => {}
            None if pairs.value("AuthMethod").is_some_and(|method| method != "None") => {
                self.fail_login(LoginStatus::AUTHENTICATION_FAILED, None);
                return Ok(());
            }
            None => {}
        }
        if let Some(tag) = pairs.value("TargetPortalGroupTag").and_then(crate::login::number) {
            login.portal_group_tag = u16::try_from(tag).ok();
        }
        login.negotiation.take(pairs, &mut answers)?;
        if !response.transit {
            // The target has more to say, or waits for what it asked.
            self.send_login(answers, wants_transit);
            return Ok(());
        }
        match (login.stage, response.next_stage) {
            (stage::SECURITY, stage::OPERATIONAL) => {
                login.stage = stage::OPERATIONAL;
                self.send_login(answers, true);
                Ok(())
            }
            (stage::OPERATIONAL, stage::FULL_FEATURE) => {
                if !login.negotiation.is_acceptable() {
                    return Err(PeerMisbehaved::Login("the target has no digests, which were asked for"));
                }
                let portal_group_tag = login.portal_group_tag;
                self.agreed = login.negotiation.agreed();
                self.recovery = (self.agreed.error_recovery_level > 0).then(Box::default);
                self.phase = Phase::FullFeature;
                self.deadline = None;
                let agreed = self.agreed.clone();
                self.events.push_back(Event::LoggedIn { agreed, tsih: response.tsih, portal_group_tag });
                Ok(())
            }
            _ => Err(PeerMisbehaved::Login("a transit that we did not ask for")),
        }
    }

    fn take_refusal(&mut self, response: &LoginResponse, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        let redirect = match response.status.class() {
            1 => Pairs::parse(&pdu.data)?.value("TargetAddress").map(str::to_owned),
            _ => None,
        };
        self.fail_login(response.status, redirect);
        Ok(())
    }

    fn fail_login(&mut self, status: LoginStatus, redirect: Option<String>) {
        self.events.push_back(Event::LoginFailed { status, redirect });
        self.end(CloseReason::LoginRefused(status));
    }

    /// Sends a request with `pairs`, and with our proposals when their stage has come.
    fn send_login(&mut self, mut pairs: Pairs, transit: bool) {
        let Phase::Login(login) = &mut self.phase else { return };
        if login.stage == stage::OPERATIONAL && !std::mem::replace(&mut login.has_proposed, true) {
            login.negotiation.propose(&mut pairs);
        }
        let next_stage = match login.stage {
            stage::SECURITY => stage::OPERATIONAL,
            _ => stage::FULL_FEATURE,
        };
        let request = LoginRequest {
            transit,
            continues: false,
            current_stage: login.stage,
            next_stage: if transit { next_stage } else { 0 },
            version_max: 0,
            version_min: 0,
            isid: self.config.isid,
            tsih: 0,
            initiator_task_tag: LOGIN_TAG,
            cid: 0,
            cmd_sn: Serial(0),
            exp_stat_sn: Serial(0),
        };
        self.requests.push_back((request.encode(), Buffer::from(Bytes::from(pairs.encode()))));
    }
}
