//! Proves that a login that breaks the rules, never ends or is not there is told why, and that text without an end ends the session.

use strongroom_iscsi::pdu::{Answer, LoginRequest, TAG_NONE, TextRequest};
use strongroom_iscsi::{CloseReason, LoginStatus, Lun, PeerMisbehaved, Serial};

use super::{KEYS, Victim, login, small};

#[test]
fn endless_text_ends_the_session() {
    let mut victim = Victim::fresh(small());
    let piece = b"X-a=".iter().copied().chain(std::iter::repeat_n(b'b', 8000)).collect::<Vec<u8>>();
    while !victim.session.is_closed() {
        victim.say(login(0x44, 100).encode(), &piece);
    }
    assert!(matches!(victim.closed(), CloseReason::Misbehaved(PeerMisbehaved::Text(_))));
    let mut last = None;
    while let Some((answer, _)) = victim.hear() {
        last = Some(answer);
    }
    assert!(matches!(last, Some(Answer::Login(answer)) if answer.status == LoginStatus::INITIATOR_ERROR));

    let mut victim = Victim::logged_in(small(), KEYS);
    let text = TextRequest {
        immediate: true,
        is_final: false,
        continues: true,
        lun: Lun(0),
        initiator_task_tag: 3,
        target_transfer_tag: TAG_NONE,
        cmd_sn: Serial(100),
        exp_stat_sn: Serial(0),
    };
    victim.say(text.encode(), &piece);
    for _ in 0..100 {
        victim.say(TextRequest { target_transfer_tag: 0xc000_0000, ..text }.encode(), &piece);
    }
    assert!(matches!(victim.closed(), CloseReason::Misbehaved(PeerMisbehaved::Text(_))));
}

#[test]
fn a_login_that_never_ends_is_ended() {
    let mut victim = Victim::fresh(small());
    victim.say(login(0x04, 100).encode(), b"InitiatorName=a\0TargetName=t\0");
    victim.session.accept(victim.now, 1);
    for _ in 0..100 {
        victim.say(login(0x04, 100).encode(), &[]);
    }
    assert!(matches!(victim.closed(), CloseReason::Misbehaved(PeerMisbehaved::Login(_))) || victim.session.is_closed());
}

#[test]
fn malformed_logins_are_told_why() {
    let named = b"InitiatorName=iqn.x:a\0TargetName=iqn.x:t\0";
    let cases: [(LoginRequest, &[u8], LoginStatus); 9] = [
        (login(0x87, 1), b"TargetName=t\0", LoginStatus::MISSING_PARAMETER),
        (login(0x87, 1), b"InitiatorName=i\0", LoginStatus::MISSING_PARAMETER),
        (LoginRequest { version_min: 1, ..login(0x87, 1) }, named, LoginStatus::UNSUPPORTED_VERSION),
        (login(0x8c, 1), named, LoginStatus::INITIATOR_ERROR),
        (login(0x86, 1), named, LoginStatus::INITIATOR_ERROR),
        (login(0xc7, 1), named, LoginStatus::INITIATOR_ERROR),
        (login(0x87, 1), b"InitiatorName", LoginStatus::INITIATOR_ERROR),
        (login(0x87, 1), b"InitiatorName=i\0TargetName=t\0A=1\0A=2\0", LoginStatus::INITIATOR_ERROR),
        (login(0x87, 1), b"InitiatorName=i\0SessionType=Odd\0", LoginStatus::SESSION_TYPE_NOT_SUPPORTED),
    ];
    for (request, text, status) in cases {
        let mut victim = Victim::fresh(small());
        victim.say(request.encode(), text);
        assert!(matches!(victim.hear(), Some((Answer::Login(answer), _)) if answer.status == status), "{status}");
        assert!(matches!(victim.closed(), CloseReason::Misbehaved(_)));
    }
}

#[test]
fn an_initiator_that_insists_on_chap_is_refused() {
    let mut victim = Victim::fresh(small());
    victim.say(login(0x81, 1).encode(), b"InitiatorName=i\0TargetName=t\0AuthMethod=CHAP\0");
    victim.session.accept(victim.now, 1);
    let status = LoginStatus::AUTHENTICATION_FAILED;
    assert!(matches!(victim.hear(), Some((Answer::Login(answer), _)) if answer.status == status));
}

#[test]
fn a_command_before_the_login_ends_the_session() {
    let mut victim = Victim::fresh(small());
    victim.write(1, 0, true, &[]);
    assert!(matches!(victim.closed(), CloseReason::Misbehaved(PeerMisbehaved::OutOfPlace { .. })));
}
