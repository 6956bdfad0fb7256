//! Proves what a login looks like when both sides behave: what it settles, who is let in, digests; and discovery.

use std::time::Duration;

use strongroom_block::Buffer;
use strongroom_iscsi::initiator::{self, Command, SendTargets, SubmitError, WriteSource};
use strongroom_iscsi::target::{self, Response, SessionKind, TargetEntry};
use strongroom_iscsi::{CloseReason, DigestOffer, Digests, LoginStatus, Lun, Offer};

use crate::pair::{INITIATOR, Pair, TARGET, initiator_config};

const LUN: Lun = Lun(0);

fn write(len: usize) -> Command {
    let data: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
    Command::write(LUN, [0x2a; 16], WriteSource::plain(Buffer::copy_from(&data)))
}

#[test]
fn a_login_settles_the_smaller_and_the_stricter() {
    let mut initiator = initiator_config();
    initiator.offer = Offer { recv_segment_bytes_max: 4096, first_burst_bytes: 65536, ..Offer::default() };
    let offer = Offer { max_burst_bytes: 131_072, initial_r2t: true, max_outstanding_r2t: 2, ..Offer::default() };
    let target = target::Config { offer, ..target::Config::default() };
    let mut pair = Pair::new(initiator, target);
    pair.keep = true;
    pair.log_in();
    let (ours, theirs) = (pair.initiator.agreed().expect("in"), pair.target.agreed().expect("in"));
    assert_eq!((ours.first_burst_bytes, ours.max_burst_bytes), (65536, 131_072));
    assert_eq!((ours.initial_r2t, ours.immediate_data, ours.max_outstanding_r2t), (true, true, 2));
    assert_eq!((ours.recv_segment_bytes_max, ours.send_segment_bytes_max), (4096, 262_144));
    assert_eq!((theirs.recv_segment_bytes_max, theirs.send_segment_bytes_max), (262_144, 4096));
    assert_eq!((theirs.first_burst_bytes, theirs.max_burst_bytes), (65536, 131_072));
    assert_eq!((theirs.initial_r2t, theirs.immediate_data, theirs.max_outstanding_r2t), (true, true, 2));
    assert_eq!(pair.sent_to_target.len(), 2, "security, then operational");
    let first = String::from_utf8(pair.sent_to_initiator[0].data.to_vec()).expect("text");
    assert_eq!(first, "AuthMethod=None\0TargetPortalGroupTag=1\0", "the target proposes nothing of its own");
}

#[test]
fn a_login_inside_a_channel_takes_one_round_trip() {
    let mut initiator = initiator_config();
    initiator.in_channel = true;
    let target = target::Config { in_channel: true, ..target::Config::default() };
    let mut pair = Pair::new(initiator, target);
    pair.keep = true;
    pair.log_in();
    assert_eq!((pair.sent_to_target.len(), pair.sent_to_initiator.len()), (1, 1));
    assert!(!pair.initiator.agreed().expect("in").initial_r2t);
}

#[test]
fn the_application_says_who_may_in() {
    let mut pair = Pair::new(initiator_config(), target::Config::default());
    pair.settle();
    let requested = pair.target.requested();
    assert_eq!((requested.initiator_name.as_str(), requested.isid), (INITIATOR, [0x80, 1, 2, 3, 4, 5]));
    assert_eq!(requested.kind, SessionKind::Normal { target_name: TARGET.into() });
    pair.target.login().reject(LoginStatus::AUTHORIZATION_FAILED);
    pair.settle();
    let status = LoginStatus::AUTHORIZATION_FAILED;
    let Some(initiator::Event::LoginFailed { status: told, .. }) = pair.initiator.poll_event() else { panic!("told") };
    assert_eq!(told, status);
    assert!(told.to_string().contains("access list"), "a person learns what to do");
    assert!(
        matches!(pair.initiator.poll_event(), Some(initiator::Event::Closed(CloseReason::LoginRefused(s))) if s == status)
    );
    assert_eq!(pair.target.closed(), Some(CloseReason::LoginRefused(status)));
    assert!(matches!(pair.initiator.submit(write(1)), Err(SubmitError::NotLoggedIn)));
}

#[test]
fn half_a_login_ends_in_time() {
    let mut pair = Pair::new(initiator_config(), target::Config::default());
    pair.advance(Duration::from_secs(14));
    assert!(!pair.target.is_closed());
    pair.advance(Duration::from_secs(2));
    assert!(pair.target.is_closed() && pair.initiator.is_closed());
    assert!(matches!(pair.initiator.poll_event(), Some(initiator::Event::Closed(CloseReason::LoginTimedOut))));
}

fn discovery() -> Pair {
    let mut config = initiator_config();
    config.kind = SessionKind::Discovery;
    config.offer.recv_segment_bytes_max = 2048;
    Pair::logged_in(config, target::Config::default())
}

#[test]
fn discovery_lists_more_targets_than_fit_a_pdu() {
    let mut pair = discovery();
    let entries: Vec<TargetEntry> = (0..400u32)
        .map(|n| TargetEntry {
            name: format!("{TARGET}-{n}"),
            addresses: vec![format!("192.0.2.1:{n},1"), format!("[2001:db8::1]:{n},1")],
        })
        .collect();
    pair.initiator.send_targets(&SendTargets::All).expect("in");
    pair.settle();
    assert!(matches!(pair.target.poll_event(), Some(target::Event::SendTargets(_, SendTargets::All))));
    pair.target.send_targets(&entries);
    pair.settle();
    let Some(initiator::Event::TargetsListed(listed)) = pair.initiator.poll_event() else { panic!("a list") };
    assert_eq!(listed, entries);
    // And again: the exchange is over.
    pair.initiator.send_targets(&SendTargets::Named(TARGET.into())).expect("in");
    pair.settle();
    assert!(
        matches!(pair.target.poll_event(), Some(target::Event::SendTargets(_, SendTargets::Named(name))) if name == TARGET)
    );
    pair.target.send_targets(&[]);
    pair.settle();
    assert!(matches!(pair.initiator.poll_event(), Some(initiator::Event::TargetsListed(listed)) if listed.is_empty()));
    assert!(matches!(pair.initiator.submit(write(1)), Err(SubmitError::Malformed(_))));
}

/// RFC 7143 Appendix C, and the switch against it.
#[test]
fn all_targets_are_for_discovery_sessions() {
    for allowed in [false, true] {
        let config = target::Config { send_targets_all_in_normal_session: allowed, ..target::Config::default() };
        let mut pair = Pair::logged_in(initiator_config(), config);
        pair.initiator.send_targets(&SendTargets::All).expect("in");
        pair.settle();
        let asked = matches!(pair.target.poll_event(), Some(target::Event::SendTargets(_, SendTargets::All)));
        assert_eq!(asked, allowed);
        pair.target.send_targets(&[]);
        pair.settle();
        assert!(matches!(pair.initiator.poll_event(), Some(initiator::Event::TargetsListed(_))));
        pair.initiator.send_targets(&SendTargets::ThisTarget).expect("in");
        pair.settle();
        assert!(matches!(pair.target.poll_event(), Some(target::Event::SendTargets(_, SendTargets::ThisTarget))));
    }
}

#[test]
fn digests_are_what_both_can() {
    use DigestOffer::{Allow, Never, Prefer, Require};
    for (ours, theirs, expected) in [
        (Never, Allow, Some(false)),
        (Allow, Allow, Some(false)),
        (Prefer, Allow, Some(true)),
        (Prefer, Never, Some(false)),
        (Require, Allow, Some(true)),
        (Allow, Require, Some(true)),
        (Require, Never, None),
        (Never, Require, None),
    ] {
        let mut initiator = initiator_config();
        initiator.offer = Offer { header_digest: ours, data_digest: ours, ..Offer::default() };
        let offer = Offer { header_digest: theirs, data_digest: theirs, ..Offer::default() };
        let mut pair = Pair::new(initiator, target::Config { offer, ..target::Config::default() });
        match expected {
            Some(expected) => {
                pair.log_in();
                assert_eq!(pair.digests, Digests { header: expected, data: expected }, "{ours:?} {theirs:?}");
                pair.initiator.submit(write(10_001)).expect("in");
                pair.settle();
                let command = pair.command();
                pair.target.complete(command.task, Response::good());
                pair.settle();
                assert_eq!(pair.completed().1.status, 0);
            }
            None => {
                pair.settle();
                pair.target.requested();
                pair.target.accept(pair.now, 7);
                pair.settle();
                assert!(pair.initiator.is_closed(), "{ours:?} {theirs:?}");
            }
        }
    }
}

#[test]
fn in_a_channel_there_are_no_digests() {
    let mut initiator = initiator_config();
    initiator.in_channel = true;
    initiator.offer.header_digest = DigestOffer::Require;
    let mut target = target::Config { in_channel: true, ..target::Config::default() };
    target.offer.data_digest = DigestOffer::Require;
    let pair = Pair::logged_in(initiator, target);
    assert_eq!(pair.digests, Digests::default());
}
