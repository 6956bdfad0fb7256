//! Proves that CHAP lets in who knows the secret and nobody else, in every form of the exchange, on both sides.

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_iscsi::chap::{Algorithm, CHALLENGE_BYTES, Challenge, Credentials, Secret};
use strongroom_iscsi::initiator::{self, ChapLogin};
use strongroom_iscsi::pdu::{Answer, LoginRequest};
use strongroom_iscsi::target::{self, ChapPolicy, ChapUser, LoginEvent};
use strongroom_iscsi::text::Pairs;
use strongroom_iscsi::{CloseReason, LoginStatus, Pdu};

use crate::pair::{INITIATOR, Pair, TARGET, Target, epoch, initiator_config};

const ALICE: &[u8] = b"alice's own secret";
const TARGETS: &[u8] = b"the target's secret";

fn credentials(name: &str, secret: &[u8]) -> Credentials {
    Credentials { name: name.into(), secret: Secret::new(secret).expect("long enough") }
}

fn challenge(seed: u8) -> Challenge {
    Challenge::from_random(std::array::from_fn::<u8, { CHALLENGE_BYTES + 1 }, _>(|at| seed.wrapping_add(at as u8)))
}

fn chap() -> ChapLogin {
    ChapLogin {
        ourselves: credentials("alice", ALICE),
        target: None,
        algorithms: Algorithm::ALL.to_vec(),
        challenge: challenge(100),
    }
}

fn mutual() -> ChapLogin {
    ChapLogin { target: Some(credentials("vault", TARGETS)), ..chap() }
}

fn users(target: Option<Credentials>) -> Vec<ChapUser> {
    let user = |name, secret| ChapUser { initiator: credentials(name, secret), target: target.clone() };
    vec![user("bob", b"bob's secret, too"), user("alice", ALICE)]
}

fn policy() -> ChapPolicy {
    ChapPolicy {
        users: users(Some(credentials("vault", TARGETS))),
        algorithms: Algorithm::ALL.to_vec(),
        challenge: challenge(0),
        is_required: true,
    }
}

fn pair_of(chap: Option<ChapLogin>) -> Pair {
    let mut config = initiator_config();
    config.chap = chap;
    let mut pair = Pair::new(config, target::Config::default());
    pair.keep = true;
    pair.settle();
    pair
}

/// Logs in; who was let in, or the status that each side ended with.
fn log_in(pair: &mut Pair, policy: ChapPolicy) -> Result<Option<String>, LoginStatus> {
    pair.target.requested();
    pair.target.login().require_chap(policy);
    pair.settle();
    let user = match pair.target.login().poll_event() {
        Some(LoginEvent::Authenticated { user }) => {
            pair.target.accept(pair.now, 7);
            pair.settle();
            Ok(user)
        }
        Some(LoginEvent::Closed(CloseReason::Misbehaved(_))) => Err(()),
        None => Err(()),
        other => panic!("{other:?}"),
    };
    match pair.initiator.poll_event() {
        Some(initiator::Event::LoggedIn { tsih: 7, .. }) => {
            assert!(pair.target.is_logged_in());
            Ok(user.expect("a session that is open was let in"))
        }
        Some(initiator::Event::LoginFailed { status, .. }) => Err(status),
        other => panic!("{other:?}"),
    }
}

const FAILED: Result<Option<String>, LoginStatus> = Err(LoginStatus::AUTHENTICATION_FAILED);

#[test]
fn every_algorithm_one_way_and_mutual() {
    for algorithm in Algorithm::ALL {
        for login in [chap(), mutual()] {
            let mut pair = pair_of(Some(ChapLogin { algorithms: vec![algorithm], ..login }));
            assert_eq!(log_in(&mut pair, policy()), Ok(Some("alice".into())), "{algorithm:?}");
        }
        let only = ChapPolicy { algorithms: vec![algorithm], ..policy() };
        assert_eq!(log_in(&mut pair_of(Some(mutual())), only), Ok(Some("alice".into())));
    }
}

#[test]
fn the_exchange_as_text() {
    let mut pair = pair_of(Some(mutual()));
    assert!(log_in(&mut pair, policy()).is_ok());
    let keys = |pdus: &[Pdu], at: usize| -> Vec<String> {
        let pairs = Pairs::parse(&pdus[at].data).expect("text");
        pairs.iter().map(|(key, value)| format!("{key}={}", value.get(..18).unwrap_or(value))).collect()
    };
    let sent = |at| keys(&pair.sent_to_target, at);
    let answered = |at| keys(&pair.sent_to_initiator, at);
    assert_eq!(sent(0)[3], "AuthMethod=CHAP");
    assert_eq!(answered(0), ["AuthMethod=CHAP", "TargetPortalGroupTag=1"]);
    assert_eq!(sent(1), ["CHAP_A=8,7,6,5"]);
    assert_eq!(answered(1), ["CHAP_A=8", "CHAP_I=0", "CHAP_C=0x0102030405060708"]);
    assert_eq!(sent(2)[0], "CHAP_N=alice");
    assert_eq!(sent(2)[2..], ["CHAP_I=100", "CHAP_C=0x65666768696a6b6c"]);
    assert_eq!(answered(2)[0], "CHAP_N=vault");
    let transits: Vec<bool> = pair.sent_to_initiator.iter().map(|pdu| pdu.bhs.0[1] & 0x80 != 0).collect();
    assert_eq!(transits, [false, false, true, true]);
}

#[test]
fn who_does_not_know_the_secret_stays_out() {
    let wrong = ChapLogin { ourselves: credentials("alice", b"a guess of somebody"), ..chap() };
    assert_eq!(log_in(&mut pair_of(Some(wrong)), policy()), FAILED);
    let unknown = ChapLogin { ourselves: credentials("mallory", ALICE), ..chap() };
    assert_eq!(log_in(&mut pair_of(Some(unknown)), policy()), FAILED);
    let bobs = ChapLogin { ourselves: credentials("bob", ALICE), ..chap() };
    assert_eq!(log_in(&mut pair_of(Some(bobs)), policy()), FAILED);
    assert_eq!(log_in(&mut pair_of(Some(chap())), ChapPolicy { users: vec![], ..policy() }), FAILED);
    // None where CHAP is required, and the other way round.
    assert_eq!(log_in(&mut pair_of(None), policy()), FAILED);
    let md5 = ChapPolicy { algorithms: vec![Algorithm::Md5], ..policy() };
    let sha = ChapLogin { algorithms: vec![Algorithm::Sha256], ..chap() };
    assert_eq!(log_in(&mut pair_of(Some(sha)), md5), FAILED);
}

#[test]
fn chap_that_is_not_required_is_done_where_it_is_offered() {
    let lax = || ChapPolicy { is_required: false, ..policy() };
    assert_eq!(log_in(&mut pair_of(None), lax()), Ok(None));
    assert_eq!(log_in(&mut pair_of(Some(chap())), lax()), Ok(Some("alice".into())));
    let wrong = ChapLogin { ourselves: credentials("alice", b"a guess of somebody"), ..chap() };
    assert_eq!(log_in(&mut pair_of(Some(wrong)), lax()), FAILED);
    // A target without CHAP takes who offers both, and not who insists.
    for (login, is_in) in [(chap(), true), (mutual(), false)] {
        let mut pair = pair_of(Some(login));
        pair.target.requested();
        pair.target.accept(pair.now, 7);
        pair.settle();
        let event = pair.initiator.poll_event();
        assert_eq!(matches!(event, Some(initiator::Event::LoggedIn { .. })), is_in, "{event:?}");
    }
}

#[test]
fn a_target_that_does_not_know_its_secret_is_not_believed() {
    for ourselves in [credentials("vault", b"something else entirely"), credentials("another", TARGETS)] {
        let policy = ChapPolicy { users: users(Some(ourselves)), ..policy() };
        assert_eq!(log_in(&mut pair_of(Some(mutual())), policy), FAILED);
    }
    assert_eq!(log_in(&mut pair_of(Some(mutual())), ChapPolicy { users: users(None), ..policy() }), FAILED);
    // Any name does where none was given.
    let any = ChapLogin { target: Some(credentials("", TARGETS)), ..chap() };
    assert!(log_in(&mut pair_of(Some(any)), policy()).is_ok());
    // A target with our own secret may have got its proof from us.
    let own = ChapLogin { target: Some(credentials("vault", ALICE)), ..chap() };
    let policy = ChapPolicy { users: users(Some(credentials("vault", ALICE))), ..policy() };
    assert_eq!(log_in(&mut pair_of(Some(own)), policy), FAILED);
}

#[test]
fn a_reflected_challenge_is_refused_by_both_sides() {
    let reflecting = ChapLogin { challenge: challenge(0), ..mutual() };
    // The initiator notices first: it will not ask what it was asked.
    assert_eq!(log_in(&mut pair_of(Some(reflecting)), policy()), FAILED);
    // A hostile one does not mind.
    let mut target = By::hand();
    target.require(policy());
    target.send("CHAP_A=7");
    let answer = target.send_any(&format!(
        "CHAP_N=alice\0CHAP_R={}\0CHAP_I=9\0CHAP_C={}",
        respond(&challenge(0), ALICE),
        value_of(&challenge(0))
    ));
    assert_eq!(answer, Err(LoginStatus::AUTHENTICATION_FAILED));
}

/// An initiator by hand: what no decent one sends.
struct By {
    now: std::time::Instant,
    target: Target,
    stage: u8,
}

impl By {
    fn hand() -> By {
        let now = epoch();
        By { now, target: Target::new(now, target::Config::default()), stage: 0 }
    }

    fn require(&mut self, policy: ChapPolicy) {
        self.push(&format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0AuthMethod=CHAP"));
        self.target.requested();
        self.target.login().require_chap(policy);
        assert!(self.answer().is_ok());
    }

    fn push(&mut self, text: &str) {
        let request = LoginRequest {
            current_stage: self.stage,
            next_stage: if self.stage == 0 { 1 } else { 3 },
            ..LoginRequest::one_step([0x80, 0, 0, 0, 0, 1])
        };
        let text = format!("{text}\0");
        self.target
            .handle_pdu(self.now, Pdu::new(request.encode(), Bytes::new(), Buffer::copy_from(text.as_bytes()), false));
    }

    fn answer(&mut self) -> Result<Pairs, LoginStatus> {
        let pdu = self.target.poll_transmit().expect("an answer");
        let Ok(Answer::Login(response)) = Answer::decode(&pdu.bhs) else { panic!("a login response") };
        assert!(!response.transit, "the stage does not end before the exchange");
        match response.status {
            LoginStatus::SUCCESS => Ok(Pairs::parse(&pdu.data).expect("text")),
            status => Err(status),
        }
    }

    fn send_any(&mut self, text: &str) -> Result<Pairs, LoginStatus> {
        self.push(text);
        self.answer()
    }

    fn send(&mut self, text: &str) -> Pairs {
        self.send_any(text).expect("taken")
    }
}

/// CHAP_C of a challenge, and the right CHAP_R of SHA-256, by way of a machine that knows how.
fn value_of(challenge: &Challenge) -> String {
    let mut target = By::hand();
    target.require(ChapPolicy { challenge: challenge.clone(), ..policy() });
    target.send("CHAP_A=7").value("CHAP_C").expect("a challenge").to_owned()
}

fn respond(challenge: &Challenge, secret: &[u8]) -> String {
    let login = ChapLogin { ourselves: credentials("alice", secret), algorithms: vec![Algorithm::Sha256], ..chap() };
    let mut pair = pair_of(Some(login));
    let _ = log_in(&mut pair, ChapPolicy { challenge: challenge.clone(), ..policy() });
    Pairs::parse(&pair.sent_to_target[2].data).expect("text").value("CHAP_R").expect("a response").to_owned()
}

#[test]
fn broken_exchanges_end() {
    let right = respond(&challenge(0), ALICE);
    let cases: [&[&str]; 9] = [
        &["CHAP_N=alice"],
        &["CHAP_A="],
        &["CHAP_A=9"],
        &["AuthMethod=None"],
        &["CHAP_A=7", "CHAP_N=alice"],
        &["CHAP_A=7", "CHAP_R=0x00"],
        &["CHAP_A=7", "CHAP_N=alice\0CHAP_R=0b!"],
        &["CHAP_A=7", &format!("CHAP_N=alice\0CHAP_R={right}\0CHAP_I=1")],
        &["CHAP_A=7", &format!("CHAP_N=alice\0CHAP_R={right}\0CHAP_I=1\0CHAP_C=0x{}", "00".repeat(1025))],
    ];
    for texts in cases {
        let mut target = By::hand();
        target.require(policy());
        let (last, before) = texts.split_last().expect("one at least");
        before.iter().for_each(|text| drop(target.send(text)));
        assert_eq!(target.send_any(last).map(drop), Err(LoginStatus::AUTHENTICATION_FAILED), "{last}");
        assert!(target.target.is_closed());
    }
}

#[test]
fn the_security_stage_cannot_be_skipped() {
    for (is_required, is_in) in [(true, false), (false, true)] {
        let mut target = By::hand();
        target.stage = 1;
        target.push(&format!("InitiatorName={INITIATOR}\0TargetName={TARGET}"));
        target.target.requested();
        target.target.login().require_chap(ChapPolicy { is_required, ..policy() });
        let event = target.target.login().poll_event();
        assert_eq!(matches!(event, Some(LoginEvent::Authenticated { user: None })), is_in, "{event:?}");
    }
}

/// libiscsi's suite has users whose names begin as binary values do: a name is text.
#[test]
fn names_are_text_even_if_they_begin_like_numbers() {
    for name in ["0xabc", "0babc", "0x", "Ωmega"] {
        let login = ChapLogin { ourselves: credentials(name, ALICE), ..chap() };
        let policy =
            ChapPolicy { users: vec![ChapUser { initiator: credentials(name, ALICE), target: None }], ..policy() };
        assert_eq!(log_in(&mut pair_of(Some(login)), policy), Ok(Some(name.into())));
    }
}

#[test]
fn a_login_is_sent_elsewhere() {
    for (permanent, expected) in [(false, LoginStatus(0x0101)), (true, LoginStatus(0x0102))] {
        let mut pair = pair_of(None);
        pair.target.requested();
        pair.target.login().redirect("[2001:db8::1]:3260,1", permanent);
        pair.settle();
        match pair.initiator.poll_event() {
            Some(initiator::Event::LoginFailed { status, redirect, .. }) => {
                assert_eq!((status, redirect.as_deref()), (expected, Some("[2001:db8::1]:3260,1")));
            }
            other => panic!("{other:?}"),
        }
        assert!(pair.target.is_closed());
    }
}
