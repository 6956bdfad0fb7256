//! The login as an initiator does it (RFC 7143 §6.3). On a plain stream it starts in the security stage, as every stock
//! target expects, with CHAP if there are secrets; inside a channel both sides are known already and one round trip is enough.

use std::time::Instant;

use bytes::Bytes;
use strongroom_block::Buffer;

use super::chap::{Exchange, Outcome};
use super::{Config, Event, Phase, Session, SessionKind, TEXT_BYTES_MAX};
use crate::login::{Agreed, LOGIN_ROUNDS_MAX, Negotiation, REASON_BYTES_MAX, REASON_KEY, stage};
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

    /// Into a session that is there.
    pub(super) fn joining(config: &Config, session: &Agreed) -> Login {
        Login { negotiation: Negotiation::joining(&config.offer, session), ..Login::new(config) }
    }
}

impl Session {
    pub(super) fn start_login(&mut self, at: usize) {
        let mut pairs = Pairs::default();
        pairs.push("InitiatorName", &self.config.initiator_name);
        match &self.config.kind {
            SessionKind::Discovery => pairs.push("SessionType", "Discovery"),
            SessionKind::Normal { target_name } => {
                pairs.push("SessionType", "Normal");
                pairs.push("TargetName", target_name);
            }
        }
        let Some(login) = &self.connections[at].login else { return };
        let offer = login.exchange.as_ref().map_or("None", Exchange::methods);
        let transit = login.exchange.is_none();
        if !self.config.in_channel {
            pairs.push("AuthMethod", offer);
        }
        self.send_login(at, pairs, transit);
    }

    pub(super) fn handle_login_pdu(&mut self, now: Instant, at: usize, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        let Answer::Login(response) = Answer::decode(&pdu.bhs)? else {
            return Err(PeerMisbehaved::OutOfPlace { what: "another PDU", expected: "a login response" });
        };
        let connection = &mut self.connections[at];
        let Some(login) = &mut connection.login else { return Ok(()) };
        if response.initiator_task_tag != LOGIN_TAG {
            return Err(PeerMisbehaved::Login("an answer to a login that is not ours"));
        }
        if std::mem::replace(&mut login.is_first_answer, false) {
            // The target's numbers start here.
            connection.exp_stat_sn = response.sequence.stat_sn;
        }
        if self.phase == Phase::Login {
            self.max_cmd_sn = self.cmd_sn;
        }
        self.take_numbers(at, response.sequence, true)?;
        if response.status != LoginStatus::SUCCESS {
            return self.take_refusal(now, at, &response, pdu);
        }
        let Some(login) = &mut self.connections[at].login else { return Ok(()) };
        login.rounds += 1;
        if login.rounds > LOGIN_ROUNDS_MAX {
            return Err(PeerMisbehaved::Login("it does not come to an end"));
        }
        if response.current_stage != login.stage || (response.transit && response.continues) {
            return Err(PeerMisbehaved::Login("an answer in a stage that we are not in"));
        }
        match login.collector.push(&pdu.data, response.continues, TEXT_BYTES_MAX)? {
            None => self.send_login(at, Pairs::default(), false),
            Some(pairs) => self.take_login_text(now, at, &response, &pairs)?,
        }
        Ok(())
    }

    fn take_login_text(
        &mut self,
        now: Instant,
        at: usize,
        response: &LoginResponse,
        pairs: &Pairs,
    ) -> Result<(), PeerMisbehaved> {
        let Some(login) = &mut self.connections[at].login else { return Ok(()) };
        pairs.check_unique()?;
        let mut answers = Pairs::default();
        let mut wants_transit = true;
        match &mut login.exchange {
            Some(exchange) if login.stage == stage::SECURITY => {
                match exchange.take(pairs, response.transit, &mut answers) {
                    Outcome::Goes => wants_transit = false,
                    Outcome::Done => {}
                    Outcome::Failed => {
                        self.fail_login(now, at, LoginStatus::AUTHENTICATION_FAILED, None, None);
                        return Ok(());
                    }
                }
            }
            Some(_) => {}
            None if pairs.value("AuthMethod").is_some_and(|method| method != "None") => {
                self.fail_login(now, at, LoginStatus::AUTHENTICATION_FAILED, None, None);
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
            self.send_login(at, answers, wants_transit);
            return Ok(());
        }
        match (login.stage, response.next_stage) {
            (stage::SECURITY, stage::OPERATIONAL) => {
                login.stage = stage::OPERATIONAL;
                self.send_login(at, answers, true);
                Ok(())
            }
            (stage::OPERATIONAL, stage::FULL_FEATURE) => {
                if !login.negotiation.is_acceptable() {
                    return Err(PeerMisbehaved::Login("the target has no digests, which were asked for"));
                }
                self.enter(now, at, response.tsih)
            }
            _ => Err(PeerMisbehaved::Login("a transit that we did not ask for")),
        }
    }

    /// The login is over: full-feature phase.
    fn enter(&mut self, now: Instant, at: usize, tsih: u16) -> Result<(), PeerMisbehaved> {
        let connection = &mut self.connections[at];
        let Some(login) = connection.login.take() else { return Ok(()) };
        connection.deadline = None;
        connection.agreed = login.negotiation.agreed();
        let agreed = connection.agreed.clone();
        let recovers = agreed.error_recovery_level > 0 && !self.config.in_channel;
        connection.recovery = recovers.then(Box::default);
        let id = connection.id;
        if self.phase == Phase::Login {
            self.phase = Phase::FullFeature;
            self.tsih = tsih;
            self.agreed = agreed.clone();
            self.events.push_back(Event::LoggedIn { agreed, tsih, portal_group_tag: login.portal_group_tag });
            return Ok(());
        }
        // What a command was checked against must hold on every connection.
        let is_narrower = agreed.send_segment_bytes_max < self.agreed.send_segment_bytes_max;
        if tsih != self.tsih || is_narrower {
            self.connections[at].login = Some(login);
            return Err(PeerMisbehaved::Login(match is_narrower {
                true => "a further connection takes less data per PDU than the first",
                false => "a further connection is in another session",
            }));
        }
        self.events.push_back(Event::ConnectionJoined { id, agreed });
        self.joined(now, id);
        Ok(())
    }

    fn take_refusal(
        &mut self,
        now: Instant,
        at: usize,
        response: &LoginResponse,
        pdu: &Pdu,
    ) -> Result<(), PeerMisbehaved> {
        let redirect = match response.status.class() {
            1 => Pairs::parse(&pdu.data)?.value("TargetAddress").map(str::to_owned),
            _ => None,
        };
        // Other targets may send anything along with a refusal.
        let reason = Pairs::parse(&pdu.data).ok().and_then(|pairs| pairs.value(REASON_KEY).map(str::to_owned));
        let reason = reason.filter(|reason| reason.len() <= REASON_BYTES_MAX);
        self.fail_login(now, at, response.status, redirect, reason);
        Ok(())
    }

    fn fail_login(
        &mut self,
        now: Instant,
        at: usize,
        status: LoginStatus,
        redirect: Option<String>,
        reason: Option<String>,
    ) {
        if self.phase == Phase::Login {
            self.events.push_back(Event::LoginFailed { status, redirect, reason });
        }
        self.lose(now, at, CloseReason::LoginRefused(status));
    }

    /// Sends a request with `pairs`, and with our proposals when their stage has come.
    fn send_login(&mut self, at: usize, mut pairs: Pairs, transit: bool) {
        let connection = &mut self.connections[at];
        let Some(login) = &mut connection.login else { return };
        if login.stage == stage::OPERATIONAL && !std::mem::replace(&mut login.has_proposed, true) {
            login.negotiation.propose(&mut pairs);
        }
        let next_stage = match login.stage {
            stage::SECURITY => stage::OPERATIONAL,
            _ => stage::FULL_FEATURE,
        };
        let request = LoginRequest {
            transit,
            current_stage: login.stage,
            next_stage: if transit { next_stage } else { 0 },
            tsih: self.tsih,
            initiator_task_tag: LOGIN_TAG,
            cid: connection.id.0,
            cmd_sn: Serial(0),
            ..LoginRequest::one_step(self.config.isid)
        };
        connection.requests.push_back((request.encode(), Buffer::from(Bytes::from(pairs.encode()))));
    }
}
