//! Proves that a worker divides work that comes all at once into iterations of its event loop: what one takes, every session of that worker
//! waits. Counted is the CPU time of the worker's thread, so that other programs do not matter.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{BlockKeyWrap, Custody, WrapError};
use strongroom_iscsi::initiator::{Event, Session};
use strongroom_net::{Link, LinkOptions};
use strongroom_target::{Catalogue, SealedSpec, Target, TargetOptions, VolumeSpec};

use crate::support::{self, ALICE, Host, Initiator, MIB, PATIENCE, alice_key, eventually, normal, raise_file_limit};

/// The part of the worker's whole CPU time that one iteration may take. It is 0.03 here, and 0.18 where the bursts are not divided. How many
/// milliseconds an iteration takes is measured on an idle machine (`make bench-iterations`); a busy one stretches all of them.
const SHARE_MAX: f64 = 0.1;
const MANY: usize = 1000;

struct NoWrap;

impl BlockKeyWrap for NoWrap {
    fn wrap(&self, _: &[u8; 32]) -> Result<[u8; 40], WrapError> {
        Err(WrapError)
    }

    fn unwrap(&self, _: &[u8; 40]) -> Result<[u8; 32], WrapError> {
        Err(WrapError)
    }
}

/// A target with one worker and a volume that takes a while to open.
fn host() -> Host {
    let dir = tempfile::tempdir().unwrap();
    let sealed = SealedSpec { wrapping_key: Some("/etc/wrap.key".into()), ..SealedSpec::new(Custody::Target) };
    let spec = VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain("vault", MIB) };
    Catalogue::open(dir.path()).unwrap().create(&spec).unwrap();
    let mut config = support::config(dir.path());
    config.workers = Some(1);
    (config.limits.connections_max, config.limits.connections_per_address_max) = (4 * MANY, MANY);
    config.limits.login_timeout_s = 600;
    let mut options = TargetOptions::new(config);
    options.node_key = Some(support::target_key());
    options.wraps = Some(Arc::new(|_| {
        std::thread::sleep(Duration::from_secs(4));
        Ok(Arc::new(NoWrap))
    }));
    Host { target: Some(Target::start(options).unwrap()), dir, node: support::target_key().public() }
}

/// An initiator's end whose first message waits to be sent.
fn begin(host: &Host, number: usize) -> (Initiator, Vec<u8>) {
    let now = Instant::now();
    let mut link = Link::initiator_channel(&alice_key(), &[host.node], LinkOptions::default(), now).unwrap();
    let mut out = Vec::new();
    link.poll_transmit(&mut out);
    let mut config = normal(ALICE, "vault");
    config.isid[4..].copy_from_slice(&(number as u16).to_be_bytes());
    config.in_channel = true;
    let stream = TcpStream::connect(host.address()).unwrap();
    let session = Session::new(now, config);
    let first = out.iter().flat_map(|piece| piece.to_vec()).collect();
    (
        Initiator {
            stream,
            link,
            session,
            events: Vec::new(),
            ended: None,
            established: false,
            extra_segments: Vec::new(),
        },
        first,
    )
}

#[test]
fn handshakes_and_logins_that_come_at_once_are_divided_into_iterations() {
    raise_file_limit();
    let host = host();
    let mut initiators: Vec<_> = (0..MANY).map(|number| begin(&host, number)).collect();
    eventually("all are connected", || host.handle().stats().connections == MANY as u64);
    // The first messages of all handshakes are there before the worker has answered a few of them.
    for (initiator, first) in &mut initiators {
        initiator.stream.write_all(first).unwrap();
        initiator.stream.set_nonblocking(true).unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    let mut logged_in = 0;
    // Most logins wait for the volume, and go on all at once when it is open.
    while logged_in < MANY {
        assert!(Instant::now() < deadline, "{logged_in} have logged in");
        for (initiator, _) in &mut initiators {
            initiator.receive();
            initiator.flush();
            let is_login = |event: &Event| matches!(event, Event::LoggedIn { .. });
            logged_in += initiator.events.drain(..).filter(is_login).count();
            assert_eq!(initiator.ended, None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let times = host.handle().stats().iterations;
    println!("the longest iteration took {} of {} µs of CPU time", times.longest_us, times.total_us);
    assert!(times.longest_us as f64 <= SHARE_MAX * times.total_us as f64, "{times:?}");
}
