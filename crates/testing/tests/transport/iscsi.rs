//! iSCSI under the tests of transports: both session machines inside a channel, their PDUs handed over as they are.

use std::time::Instant;

use strongroom_iscsi::{initiator, target};

use crate::suite::Pair;

pub(crate) struct IscsiPair {
    now: Instant,
    initiator: initiator::Session,
    target: target::Session,
    connection: target::ConnectionId,
}

impl Pair for IscsiPair {
    type Initiator = initiator::Session;
    type Target = target::Session;

    fn new() -> IscsiPair {
        let now = Instant::now();
        let kind = initiator::SessionKind::Normal { target_name: "iqn.2026-11.org.strongroom:v".into() };
        let mut config = initiator::Config::new("iqn.2026-11.org.example:host", [0x80, 1, 2, 3, 4, 5], kind);
        config.in_channel = true;
        let mut initiator = initiator::Session::new(now, config);
        let mut login = target::Login::new(now, target::Config { in_channel: true, ..target::Config::default() });
        while login.agreed().is_none() {
            while let Some(pdu) = initiator.poll_transmit() {
                login.handle_pdu(&pdu);
            }
            while let Some(event) = login.poll_event() {
                if let target::LoginEvent::Requested(_) = event {
                    login.accept(7);
                }
            }
            while let Some(pdu) = login.poll_transmit() {
                initiator.handle_pdu(now, pdu);
            }
        }
        let (target, connection) = target::Session::new(now, login);
        let mut pair = IscsiPair { now, initiator, target, connection };
        pair.settle();
        let logged_in = pair.initiator.poll_event();
        assert!(matches!(logged_in, Some(initiator::Event::LoggedIn { .. })), "{logged_in:?}");
        pair
    }

    fn initiator(&mut self) -> &mut initiator::Session {
        &mut self.initiator
    }

    fn target(&mut self) -> &mut target::Session {
        &mut self.target
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn settle(&mut self) {
        loop {
            let to_target = self.initiator.poll_transmit();
            let to_initiator = self.target.poll_transmit(self.connection);
            if to_target.is_none() && to_initiator.is_none() {
                return;
            }
            if let Some(pdu) = to_target {
                self.target.handle_pdu(self.now, self.connection, pdu);
            }
            if let Some(pdu) = to_initiator {
                self.initiator.handle_pdu(self.now, pdu);
            }
        }
    }
}
