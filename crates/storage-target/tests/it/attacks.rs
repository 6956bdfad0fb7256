//! Proves what a peer that has proven nothing cannot do at the target's port: keep others out by what it holds open, or end what somebody
//! else could recover.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use strongroom_iscsi::LoginStatus;
use strongroom_target::{Config, VolumeSpec};

use crate::support::{
    ALICE, BOB, Host, Initiator, MIB, PATIENCE, Refused, alice_key, discovery, eventually, normal, pattern,
};

fn volumes() -> [VolumeSpec; 2] {
    [VolumeSpec::plain("disk", MIB), VolumeSpec::sealed("vault", MIB)]
}

fn few_places(config: &mut Config) {
    config.limits.connections_max = 16;
}

/// Waits until the other end closes the connection.
#[track_caller]
fn wait_for_end(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("it stays open: {error}"),
        }
    }
}

#[test]
fn attack_discovery_sessions_do_not_block_the_port() {
    let host = Host::start_with(&volumes(), few_places);
    let mut held: Vec<Initiator> = Vec::new();
    for number in 0..40 {
        let mut one = Initiator::connect(&host, None, discovery(&format!("iqn.2026-11.org.example:x{number}")));
        one.wait_for_login().expect("each is let in, and an older one makes way");
        held.push(one);
        assert!(host.handle().stats().connections <= 13);
    }
    // All of them answer pings, and everybody else gets in at once.
    let mut channel = host.channel("vault");
    let mut plain = host.plain("disk");
    plain.write(0, &pattern(1, 1));
    assert_eq!(host.handle().stats().connections_evicted, 40 - 12 + 1, "one for each that found the share full");
    assert_eq!(host.handle().stats().connections_refused, 0);
    // And who has got in stays.
    for number in 0..40 {
        let name = format!("iqn.2026-11.org.example:y{number}");
        Initiator::connect(&host, None, discovery(&name)).wait_for_login().expect("let in");
    }
    plain.write(0, &pattern(2, 1));
    channel.synchronize();
}

#[test]
fn attack_silent_connections_do_not_block_the_port() {
    let host = Host::start_with(&volumes(), |config| {
        few_places(config);
        config.limits.login_timeout_s = 600;
    });
    let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(host.address()).unwrap()).collect();
    let mut channel = host.channel("vault");
    channel.synchronize();
    host.plain("disk").write(0, &pattern(1, 1));
    drop(silent);
}

/// One that may use a plain volume by a name that every peer can claim takes no more than the share of such.
#[test]
fn attack_plain_sessions_leave_places_to_others() {
    let host = Host::start_with(&volumes(), few_places);
    let mut held = Vec::new();
    let refused = loop {
        let mut config = normal(BOB, "disk");
        config.isid[5] = held.len() as u8;
        match Initiator::log_in(&host, None, config) {
            Ok(session) => held.push(session),
            Err(refused) => break refused,
        }
    };
    assert_eq!((held.len(), refused), (9, Refused::Login(LoginStatus::SERVICE_UNAVAILABLE)));
    host.channel("vault").synchronize();
    Initiator::connect(&host, None, discovery(ALICE)).wait_for_login().expect("discovery goes on");
    held[0].write(0, &pattern(1, 1));
}

#[test]
fn attack_one_address_takes_no_more_than_its_share() {
    let host = Host::start_with(&volumes(), |config| config.limits.connections_per_address_max = 8);
    let mut silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(host.address()).unwrap()).collect();
    eventually("all are there", || host.handle().stats().connections == 8);
    wait_for_end(&mut TcpStream::connect(host.address()).unwrap());
    assert_eq!(host.handle().stats().connections_refused, 1);
    drop(silent.pop());
    eventually("one is gone", || host.handle().stats().connections == 7);
    // What proves something does not count.
    let mut held = vec![host.channel("vault")];
    held.push(Initiator::log_in(&host, None, normal(BOB, "disk")).expect("there is room for one"));
    held[1].write(0, &pattern(1, 1));
}

#[test]
fn attack_an_unknown_peer_does_not_end_a_recoverable_session() {
    let host = Host::start_with(&volumes(), |config| {
        few_places(config);
        config.limits.time2retain_s = 600;
    });
    let recoverable = |node, initiator: &str, volume, which| {
        let mut config = normal(initiator, volume);
        (config.isid[5], config.offer.error_recovery_level, config.offer.time2retain_s) = (which, 2, 600);
        Initiator::log_in(&host, node, config).expect("admitted")
    };
    let mut gone = vec![recoverable(Some(alice_key()), ALICE, "vault", 1)];
    gone.push(recoverable(None, BOB, "disk", 2));
    drop(gone);
    eventually("both are lost", || host.handle().stats().connections == 0);
    assert_eq!(host.handle().stats().sessions, 2, "and may be recovered");
    let mut held: Vec<TcpStream> = Vec::new();
    for number in 0..40 {
        held.push(TcpStream::connect(host.address()).unwrap());
        let mut one = Initiator::connect(&host, None, discovery(&format!("iqn.2026-11.org.example:x{number}")));
        let _ = one.wait_for_login();
    }
    let sessions = || host.handle().sessions();
    assert!(sessions().iter().any(|session| session.peer.as_deref() == Some("alice")), "{:?}", sessions());
}

#[test]
fn attack_plain_logins_lead_nowhere_where_every_volume_is_sealed() {
    let sealed_only = |config: &mut Config| config.plain.clear();
    let host = Host::start_with(&[VolumeSpec::sealed("vault", MIB)], sealed_only);
    // Until the directory has not been changed for a moment it cannot be told from one that is being filled.
    let refused = || match Initiator::connect(&host, None, discovery(BOB)).wait_for_login() {
        Err(Refused::Closed(_)) => true,
        Err(other) => panic!("{other:?}"),
        Ok(()) => false,
    };
    eventually("plain iSCSI is refused", refused);
    assert!(refused() && refused());
    host.channel("vault").synchronize();
    // A plain volume is noticed at once, without being told of.
    let mut spec = VolumeSpec::plain("disk", MIB);
    spec.access.initiators = vec![BOB.into()];
    host.handle().catalogue().create(&spec).unwrap();
    Initiator::log_in(&host, None, normal(BOB, "disk")).expect("admitted").write(0, &pattern(1, 1));
}

#[test]
fn a_discovery_session_has_its_time() {
    let host = Host::start_with(&volumes(), |config| config.limits.discovery_timeout_s = 1);
    let mut session = Initiator::log_in(&host, None, discovery(BOB)).expect("let in");
    assert_eq!(session.send_targets().len(), 1);
    let began = Instant::now();
    let reason = session.wait_for_end();
    assert!(began.elapsed() < Duration::from_secs(30), "{reason}");
    eventually("its place is free", || host.handle().stats().connections == 0);
}
