//! ECL under the tests of transports: both session machines, their packets handed over as they are, and time that passes only where a
//! machine waits for it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strongroom_block::Suite;
use strongroom_ecl::{Config, Datagram, EclKeys, Scheme, Transmit, initiator, target};
use strongroom_scsi::transport::initiator::Event;

use crate::suite::Pair;

/// Timers within this time are the transport's own: acknowledgements, probes of the path, time-outs of lost packets.
const TIMERS_MAX: Duration = Duration::from_secs(1);

pub(crate) struct EclPair {
    now: Instant,
    initiator: initiator::Session,
    target: target::Session,
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn config(peer: SocketAddr) -> Config {
    Config::new(EclKeys::new([7; 32], Scheme::Lazy, Suite::Aes256Gcm), 9, peer, 512)
}

/// As a driver receives it: head and quantum apart, where there is a quantum.
fn datagram(source: SocketAddr, transmit: Transmit) -> Datagram {
    Datagram { rest: transmit.payload, ..Datagram::whole(source, transmit.head) }
}

impl Pair for EclPair {
    type Initiator = initiator::Session;
    type Target = target::Session;

    fn new() -> EclPair {
        let now = Instant::now();
        let initiator = initiator::Session::new(now, &config(address(3260)));
        let target = target::Session::new(now, &config(address(0)));
        let mut pair = EclPair { now, initiator, target };
        pair.settle();
        let established = pair.initiator.poll_event();
        assert!(matches!(established, Some(Event::Transport(initiator::EclEvent::Established))), "{established:?}");
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
            let to_target = self.initiator.poll_transmit(self.now);
            let to_initiator = self.target.poll_transmit(self.now);
            if to_target.is_none() && to_initiator.is_none() {
                let due = [self.initiator.poll_timeout(), self.target.poll_timeout()].into_iter().flatten().min();
                let Some(due) = due.filter(|due| *due <= self.now + TIMERS_MAX) else { return };
                self.now = self.now.max(due);
                self.initiator.handle_timeout(self.now);
                self.target.handle_timeout(self.now);
                continue;
            }
            if let Some(transmit) = to_target {
                self.target.handle_datagram(self.now, datagram(address(1000), transmit));
            }
            if let Some(transmit) = to_initiator {
                self.initiator.handle_datagram(self.now, datagram(address(3260), transmit));
            }
        }
    }
}
