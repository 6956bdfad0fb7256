//! Proves that CHAP keeps a plain volume: our session machine and libiscsi's tools get in with the secret, one way and mutual,
//! and nobody gets in, asks for targets, or ends a session without it.

use std::io::Write;
use std::process::Command as Process;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::chap::{Algorithm, Challenge, Credentials, Secret};
use strongroom_iscsi::initiator::{ChapLogin, Command, Config as SessionConfig};
use strongroom_net::LinkEvent;
use strongroom_scsi::cdb;
use strongroom_target::config::ChapRule;
use strongroom_target::{Catalogue, ChapSecrets, Target, TargetOptions, VolumeSpec};

use crate::support::{ALICE, Host, Initiator, LUN, Refused, config, discovery, normal, target_key, target_name};

const BOB: &[u8] = b"bob's own secret";
const VAULT: &[u8] = b"the target's one";

/// The volumes `open` (for everybody) and `disk` (for bob); bob alone may ask for targets.
fn host() -> Host {
    let mut secrets = ChapSecrets::default();
    secrets.insert("bob", secret(BOB), Some(secret(VAULT)));
    Host::start_with_secrets(
        &[VolumeSpec::plain("disk", 16 << 20), VolumeSpec::plain("open", 16 << 20)],
        secrets,
        |config| {
            let mut disk = config.plain[0].clone();
            config.plain[0].volumes = vec!["open".into()];
            disk.volumes = vec!["disk".into()];
            disk.chap = vec!["bob".into()];
            config.plain.push(disk);
            config.chap.push(ChapRule { user: "bob".into(), target_user: Some("vault".into()), ..ChapRule::default() });
            config.discovery_chap = vec!["bob".into()];
        },
    )
}

fn secret(bytes: &[u8]) -> Secret {
    Secret::new(bytes).unwrap()
}

fn with(mut config: SessionConfig, user: &str, own: &[u8], target: Option<&[u8]>) -> SessionConfig {
    config.chap = Some(ChapLogin {
        ourselves: Credentials { name: user.into(), secret: secret(own) },
        target: target.map(|bytes| Credentials { name: "vault".into(), secret: secret(bytes) }),
        algorithms: Algorithm::ALL.to_vec(),
        challenge: Challenge::from_random([9; 33]),
    });
    config
}

#[test]
fn with_the_secret_and_not_without() {
    let host = host();
    let failed = || Err(Refused::Login(LoginStatus::AUTHENTICATION_FAILED));
    let log_in = |config| Initiator::log_in(&host, None, config).map(drop);
    for config in [normal(ALICE, "disk"), discovery(ALICE)] {
        assert_eq!(log_in(with(config.clone(), "bob", BOB, None)), Ok(()));
        assert_eq!(log_in(with(config.clone(), "bob", BOB, Some(VAULT))), Ok(()));
        assert_eq!(log_in(config.clone()), failed());
        for (user, own, target) in [
            ("bob", VAULT, None),
            ("eve", BOB, None),
            ("bob", BOB, Some(BOB)),
            ("bob", &b"some other secret"[..], None),
        ] {
            assert_eq!(log_in(with(config.clone(), user, own, target)), failed(), "{user}");
        }
    }
    assert_eq!(log_in(normal(ALICE, "open")), Ok(()));
}

/// Names prove nothing: only bob replaces bob's session.
#[test]
fn a_session_is_replaced_by_its_own_user_alone() {
    let host = host();
    let bob = || with(normal(ALICE, "disk"), "bob", BOB, None);
    let mut first = Initiator::log_in(&host, None, bob()).unwrap();
    assert!(Initiator::log_in(&host, None, normal(ALICE, "disk")).is_err());
    assert_eq!(first.run(Command::without_data(LUN, cdb::test_unit_ready())).status, 0, "it goes on");
    let mut second = Initiator::log_in(&host, None, bob()).unwrap();
    assert_eq!(second.run(Command::without_data(LUN, cdb::test_unit_ready())).status, 0);
}

#[test]
fn stock_tools_get_in_with_the_secret() {
    let host = host();
    let url = |user: &str| format!("iscsi://{user}{}/{}/0", host.address(), target_name("disk"));
    let inquire = |url: &str, mutual: Option<(&str, &str)>| {
        let mut process = Process::new("iscsi-inq");
        if let Some((user, password)) = mutual {
            process.env("LIBISCSI_CHAP_TARGET_USERNAME", user).env("LIBISCSI_CHAP_TARGET_PASSWORD", password);
        }
        process.arg(url).output().expect("libiscsi-bin is installed").status.success()
    };
    assert!(inquire(&url("bob%bob's own secret@"), None));
    assert!(!inquire(&url("bob%bob's old secret@"), None));
    assert!(!inquire(&url(""), None));
    assert!(inquire(&url("bob%bob's own secret@"), Some(("vault", "the target's one"))));
    assert!(!inquire(&url("bob%bob's own secret@"), Some(("vault", "not the target's"))));
    let list = |user: &str| {
        let output = Process::new("iscsi-ls").arg(format!("iscsi://{user}{}", host.address())).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(list("bob%bob's own secret@").contains(&target_name("disk")));
    assert!(!list("").contains("Target"));
}

/// An initiator that answers the challenge when it is told to.
fn answer_after(host: &Host, config: SessionConfig, change: impl FnOnce()) -> Result<(), Refused> {
    let mut initiator = Initiator::connect(host, None, config);
    let (mut sent, mut change) = (0, Some(change));
    // It asks for CHAP, names its algorithms, and then answers.
    while sent < 3 {
        while let Some(event) = initiator.link.poll_event() {
            match event {
                LinkEvent::Established { .. } => initiator.established = true,
                LinkEvent::Pdu(pdu) => initiator.session.handle_pdu(Instant::now(), pdu),
                other => panic!("{other:?}"),
            }
        }
        let pdu = if initiator.established { initiator.session.poll_transmit() } else { None };
        match pdu {
            Some(pdu) => {
                sent += 1;
                if let Some(change) = change.take_if(|_| sent == 3) {
                    change();
                }
                initiator.link.send_pdu(pdu);
                let mut out = Vec::new();
                initiator.link.poll_transmit(&mut out);
                out.iter().for_each(|bytes| initiator.stream.write_all(bytes).unwrap());
            }
            None => initiator.receive(),
        }
    }
    initiator.wait_for_login()
}

#[test]
fn a_secret_that_is_changed_in_the_middle_of_a_login_proves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    Catalogue::open(dir.path()).unwrap().create(&VolumeSpec::plain("disk", 16 << 20)).unwrap();
    let mut config = config(dir.path());
    config.peers.clear();
    config.plain[0].chap = vec!["bob".into()];
    config.chap.push(ChapRule { user: "bob".into(), ..ChapRule::default() });
    let of = |bytes: &[u8]| {
        let mut secrets = ChapSecrets::default();
        secrets.insert("bob", secret(bytes), None);
        secrets
    };
    let next = Arc::new(Mutex::new(of(BOB)));
    let (read, reread) = (Arc::clone(&next), config.clone());
    let mut options = TargetOptions::new(config);
    options.chap_secrets = of(BOB);
    options.reread = Some(Arc::new(move || Ok((reread.clone(), read.lock().unwrap().clone()))));
    let target = Some(Target::start(options).unwrap());
    let host = Host { target, dir, node: target_key().public() };
    let reload = |bytes: &[u8]| {
        *next.lock().unwrap() = of(bytes);
        host.handle().reload().unwrap();
    };
    let bob = || with(normal(ALICE, "disk"), "bob", BOB, None);
    assert_eq!(answer_after(&host, bob(), || reload(BOB)), Ok(()), "nothing has changed");
    let refused = answer_after(&host, bob(), || reload(b"bob's next secret"));
    assert_eq!(refused, Err(Refused::Login(LoginStatus::AUTHENTICATION_FAILED)));
    let next = with(normal(ALICE, "disk"), "bob", b"bob's next secret", None);
    assert_eq!(Initiator::log_in(&host, None, next).map(drop), Ok(()));
}
