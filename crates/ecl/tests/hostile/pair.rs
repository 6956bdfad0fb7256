//! Two sessions of one association, joined by a network that loses nothing of itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strongroom_ecl::{Config, Datagram, Transmit, initiator, target};
use strongroom_scsi::transport::initiator::Event;

pub(crate) fn address(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

pub(crate) fn datagram(source: SocketAddr, transmit: &Transmit) -> Datagram {
    Datagram { rest: transmit.payload.clone(), ..Datagram::whole(source, transmit.head.clone()) }
}

pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) initiator: initiator::Session,
    pub(crate) target: target::Session,
}

impl Pair {
    /// Established, and quiet. `config`: of an end with this peer.
    #[allow(clippy::disallowed_methods)] // An Instant has no other beginning.
    pub(crate) fn established(config: impl Fn(SocketAddr) -> Config) -> Pair {
        let now = Instant::now();
        let initiator = initiator::Session::new(now, &config(address(2, 3260)));
        let target = target::Session::new(now, &config(address(1, 0)));
        let mut pair = Pair { now, initiator, target };
        pair.settle();
        assert!(matches!(pair.initiator.poll_event(), Some(Event::Transport(_))));
        pair
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..100 {
            while let Some(transmit) = self.initiator.poll_transmit(self.now) {
                self.give_to_target(&transmit);
            }
            while let Some(transmit) = self.target.poll_transmit(self.now) {
                self.give_to_initiator(&transmit);
            }
            self.now += Duration::from_millis(2);
            self.initiator.handle_timeout(self.now);
            self.target.handle_timeout(self.now);
        }
    }

    pub(crate) fn give_to_target(&mut self, transmit: &Transmit) {
        self.target.handle_datagram(self.now, datagram(address(1, 5000), transmit));
    }

    pub(crate) fn give_to_initiator(&mut self, transmit: &Transmit) {
        self.initiator.handle_datagram(self.now, datagram(address(2, 3260), transmit));
    }
}
