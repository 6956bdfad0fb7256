//! An attacker who keeps every packet and sends it once more just when the replay window has moved past it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, Suite};
use strongroom_ecl::{Config, Datagram, EclKeys, Planted, REPLAY_WINDOW, Scheme, Transmit, initiator, target};
use strongroom_scsi::transport::Lun;
use strongroom_scsi::transport::initiator::Command;
use strongroom_scsi::transport::target::{Event, Response};

/// What the target made of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) replayed: u64,
    pub(crate) accepted_twice: u64,
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn datagram(port: u16, transmit: &Transmit) -> Datagram {
    Datagram { rest: transmit.payload.clone(), ..Datagram::whole(address(port), transmit.head.clone()) }
}

/// Reads until more packets than the window has have reached the target, each of which comes again a window later.
#[allow(clippy::disallowed_methods)]
pub(crate) fn replay_at_the_edge(planted: Planted) -> Outcome {
    let mut now = Instant::now();
    let config = |port| {
        let keys = EclKeys::new([7; 32], Scheme::Lazy, Suite::Aes256Gcm);
        let mut config = Config::new(keys, 1, address(port), 512);
        config.planted = planted;
        config
    };
    let mut initiator = initiator::Session::new(now, &config(2));
    let mut target = target::Session::new(now, &config(0));
    let mut kept: VecDeque<Transmit> = VecDeque::new();
    let mut sent = 0;
    while sent < REPLAY_WINDOW + 1000 {
        let mut read = Command::read(Lun(0), [0x88; 16], 16);
        read.sealed_block_bytes = None;
        let _ = initiator.submit(read);
        while let Some(transmit) = initiator.poll_transmit(now) {
            target.handle_datagram(now, datagram(1, &transmit));
            sent += 1;
            kept.push_back(transmit);
            // The newest has the number n, so this one has n - REPLAY_WINDOW: there is no bit for it any more.
            if kept.len() as u64 > REPLAY_WINDOW {
                let old = kept.pop_front().expect("just counted");
                target.handle_datagram(now, datagram(1, &old));
            }
        }
        while let Some(event) = target.poll_event() {
            if let Event::Command(command) = event {
                target.complete(command.task, Response::good_data(Buffer::copy_from(&[1; 16])));
            }
        }
        while let Some(transmit) = target.poll_transmit(now) {
            initiator.handle_datagram(now, datagram(2, &transmit));
        }
        while initiator.poll_event().is_some() {}
        now += Duration::from_micros(500);
        initiator.handle_timeout(now);
        target.handle_timeout(now);
        assert!(!initiator.is_closed() && !target.is_closed());
    }
    let statistics = target.statistics();
    let accepted_twice = statistics.packets_received.saturating_sub(sent);
    Outcome { replayed: statistics.dropped.replayed, accepted_twice }
}
