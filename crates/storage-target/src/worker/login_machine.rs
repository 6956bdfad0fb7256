//! The login of a connection, whichever transport it is for. An ECL login is one message and its answer: what may log in, and whereto, is
//! decided as for iSCSI.

use std::collections::VecDeque;
use std::time::Instant;

use strongroom_ecl::Parity;
use strongroom_ecl::login::{Carrier, LoginAnswer, LoginRequest};
use strongroom_iscsi::target::{self as iscsi, ChapPolicy, Login, LoginEvent, LoginRequested, SessionKind};
use strongroom_iscsi::{CloseReason, Digests, LoginStatus, Pdu};

pub(super) enum LoginMachine {
    Iscsi(Box<Login>),
    Ecl(EclLogin),
}

/// An ECL login. The link has its time limit.
#[derive(Default)]
pub(super) struct EclLogin {
    is_requested: bool,
    carrier: Carrier,
    parity: Option<Parity>,
    events: VecDeque<LoginEvent>,
    /// The answer, if it is a refusal. What is granted is known where the session begins.
    refusal: Option<LoginAnswer>,
}

impl EclLogin {
    fn handle_message(&mut self, message: &[u8]) {
        let request = match LoginRequest::decode(message) {
            _ if self.is_requested => return self.end("a second message before the answer to the first"),
            Err(error) => return self.end(&error.to_string()),
            Ok(request) => request,
        };
        (self.is_requested, self.carrier, self.parity) = (true, request.carrier, request.parity);
        self.events.push_back(LoginEvent::Requested(LoginRequested {
            initiator_name: request.initiator_name,
            initiator_alias: None,
            isid: request.isid,
            tsih: 0,
            cid: 0,
            kind: SessionKind::Normal { target_name: request.target_name },
        }));
    }

    /// What is to carry the packets, and the parity of transfers.
    pub(super) fn wishes(&self) -> (Carrier, Option<Parity>) {
        (self.carrier, self.parity)
    }

    fn end(&mut self, why: &str) {
        self.events.push_back(LoginEvent::Closed(CloseReason::ConnectionLost(why.to_owned())));
    }

    fn refuse(&mut self, status: LoginStatus, reason: String) {
        self.refusal = Some(LoginAnswer::Refused { status: status.0, reason });
        self.events.push_back(LoginEvent::Closed(CloseReason::LoginRefused(status)));
    }
}

impl LoginMachine {
    /// Takes a message of an ECL login.
    pub(super) fn handle_message(&mut self, message: &[u8]) {
        if let LoginMachine::Ecl(login) = self {
            login.handle_message(message);
        }
    }

    /// Takes a PDU of an iSCSI login.
    pub(super) fn handle_pdu(&mut self, pdu: &Pdu) {
        if let LoginMachine::Iscsi(login) = self {
            login.handle_pdu(pdu);
        }
    }

    pub(super) fn handle_closed(&mut self, reason: CloseReason) {
        match self {
            LoginMachine::Iscsi(login) => login.handle_closed(reason),
            LoginMachine::Ecl(login) => login.events.push_back(LoginEvent::Closed(reason)),
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let LoginMachine::Iscsi(login) = self {
            login.handle_timeout(now);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            LoginMachine::Iscsi(login) => login.poll_timeout(),
            LoginMachine::Ecl(_) => None,
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<LoginEvent> {
        match self {
            LoginMachine::Iscsi(login) => login.poll_event(),
            LoginMachine::Ecl(login) => login.events.pop_front(),
        }
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Pdu> {
        match self {
            LoginMachine::Iscsi(login) => login.poll_transmit(),
            LoginMachine::Ecl(_) => None,
        }
    }

    /// The message that refuses an ECL login.
    pub(super) fn take_refusal(&mut self) -> Option<Vec<u8>> {
        match self {
            LoginMachine::Iscsi(_) => None,
            LoginMachine::Ecl(login) => login.refusal.take().map(|refusal| refusal.encode()),
        }
    }

    /// What PDUs have after an iSCSI login.
    pub(super) fn digests(&self) -> Digests {
        match self {
            LoginMachine::Iscsi(login) => login.agreed().map(|agreed| agreed.digests).unwrap_or_default(),
            LoginMachine::Ecl(_) => Digests::default(),
        }
    }

    /// Admits it to a session of its own.
    pub(super) fn accept(&mut self, tsih: u16) {
        match self {
            LoginMachine::Iscsi(login) => login.accept(tsih),
            LoginMachine::Ecl(login) => login.events.push_back(LoginEvent::Done),
        }
    }

    /// Admits it to a session that there is. An association has one connection.
    pub(super) fn accept_into(&mut self, session: &iscsi::Session) {
        if let LoginMachine::Iscsi(login) = self {
            login.accept_into(session);
        }
    }

    pub(super) fn require_chap(&mut self, policy: ChapPolicy) {
        if let LoginMachine::Iscsi(login) = self {
            login.require_chap(policy);
        }
    }

    pub(super) fn chap_name(&self) -> Option<&str> {
        match self {
            LoginMachine::Iscsi(login) => login.chap_name(),
            LoginMachine::Ecl(_) => None,
        }
    }

    /// Sends it elsewhere: over ECL, the reason of the refusal is the address.
    pub(super) fn redirect(&mut self, address: &str, is_permanent: bool) {
        match self {
            LoginMachine::Iscsi(login) => login.redirect(address, is_permanent),
            LoginMachine::Ecl(login) => {
                let status = match is_permanent {
                    true => LoginStatus::TARGET_MOVED_PERMANENTLY,
                    false => LoginStatus::TARGET_MOVED_TEMPORARILY,
                };
                login.refuse(status, address.to_owned());
            }
        }
    }

    pub(super) fn reject(&mut self, status: LoginStatus) {
        match self {
            LoginMachine::Iscsi(login) => login.reject(status),
            LoginMachine::Ecl(login) => login.refuse(status, String::new()),
        }
    }

    pub(super) fn reject_because(&mut self, status: LoginStatus, reason: &str) {
        match self {
            LoginMachine::Iscsi(login) => login.reject_because(status, reason),
            LoginMachine::Ecl(login) => login.refuse(status, reason.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ecl_login_is_one_request() {
        let request = LoginRequest {
            carrier: Carrier::Stream,
            parity: None,
            isid: [1; 6],
            initiator_name: "iqn.i".into(),
            target_name: "iqn.t".into(),
        };
        let mut login = LoginMachine::Ecl(EclLogin::default());
        login.handle_message(&request.encode());
        let Some(LoginEvent::Requested(requested)) = login.poll_event() else { panic!("a request") };
        assert_eq!((requested.initiator_name.as_str(), requested.isid), ("iqn.i", [1; 6]));
        login.handle_message(&request.encode());
        assert!(matches!(login.poll_event(), Some(LoginEvent::Closed(CloseReason::ConnectionLost(_)))));
        let mut login = LoginMachine::Ecl(EclLogin::default());
        login.handle_message(b"something else");
        assert!(matches!(login.poll_event(), Some(LoginEvent::Closed(_))) && login.take_refusal().is_none());
        login.redirect("far.example:3260", false);
        let refusal = LoginAnswer::decode(&login.take_refusal().unwrap()).unwrap();
        assert_eq!(refusal, LoginAnswer::Refused { status: 0x0101, reason: "far.example:3260".into() });
    }
}
