//! Proves that every message is read back as it was written, that nothing else is taken for one, and pins some by their bytes.

use proptest::prelude::*;
use strongroom_seal::{KeyId, KeyPurpose};

use super::*;

fn domain() -> SealingDomain {
    SealingDomain([0xd0; 16])
}

fn identity() -> PublicKey {
    PublicKey::from_bytes([0x1d; 32])
}

fn new() -> NewVolume {
    NewVolume { id: VolumeId([0x1a; 16]), name: "vault".into(), domain: domain() }
}

fn keys() -> VolumeKeyFile {
    VolumeKeyFile::new(KeyPurpose::Volume, &[0xa7; 32])
}

fn head() -> AuditHead {
    AuditHead { lines: 3, hash: [0x4a; 32] }
}

fn lines() -> Vec<AuditLine> {
    let line = |text: &str, key| AuditLine { text: text.into(), key };
    vec![line("4 a", None), line("5 b", Some(Zeroizing::new([0x4b; 32])))]
}

fn requests() -> Vec<Request> {
    let (domain, identity) = (domain(), identity());
    vec![
        Request::Fetch { domain },
        Request::Watch { domain, revision: 9, wait: Duration::from_millis(1500) },
        Request::Find { name: "vault".into() },
        Request::Info { domain },
        Request::List { after: domain },
        Request::Status,
        Request::Create(new()),
        Request::Import(new(), keys()),
        Request::Export { domain },
        Request::Grant { domain, identity, rights: Rights::ALL },
        Request::Revoke { domain, identity },
        Request::Rotate { domain },
        Request::DestroyEpoch { domain, epoch: 2, force: true },
        Request::Destroy { domain },
        Request::Audit { from: 1 },
        Request::Backup,
        Request::Follow { generation: 1, sequence: 2, head: head() },
        Request::Promote,
        Request::Fence { database: [3; 16], generation: 2 },
    ]
}

fn grant() -> KeyGrant {
    KeyGrant {
        volume: VolumeId([0x1a; 16]),
        domain: domain(),
        name: "vault".into(),
        revision: 5,
        current_epoch: 1,
        rights: Rights { open: true, seal: true, administer: false },
        keys: keys(),
        lease: Duration::from_secs(3600),
    }
}

fn answers() -> Vec<Answer> {
    let info = VolumeInfo {
        id: VolumeId([0x1a; 16]),
        domain: domain(),
        name: "vault".into(),
        revision: 5,
        current_epoch: 3,
        settles_in: Duration::from_millis(77),
        epochs: vec![(1, KeyId([1; 8])), (3, KeyId([3; 8]))],
        grants: vec![(identity(), Rights::ALL)],
    };
    let status = ServerStatus {
        role: Role::Primary,
        generation: 1,
        sequence: 2,
        head: head(),
        volumes: 4,
        standby_sequence: Some(0),
    };
    vec![
        Answer::Done,
        Answer::Grant(grant()),
        Answer::Unchanged,
        Answer::Info(info.clone()),
        Answer::Epoch(7),
        Answer::Volumes(vec![info.clone(), info]),
        Answer::Lines { start: [1; 32], head: head(), lines: lines() },
        Answer::Part { last: true, bytes: Zeroizing::new(vec![1, 2, 3]) },
        Answer::Status(status),
        Answer::Failure(Failure::Refused),
        Answer::Failure(Failure::Conflict("because".into())),
        Answer::Failure(Failure::Unavailable("because".into())),
        Answer::Failure(Failure::NotPrimary("because".into())),
        Answer::Failure(Failure::TooMany),
        Answer::Failure(Failure::Malformed),
        Answer::Failure(Failure::Invalid("because".into())),
    ]
}

#[test]
fn every_request_is_read_back_and_nothing_shorter_or_longer() {
    for request in requests() {
        let message = request.encode(0x0102_0304);
        assert_eq!(Request::decode(&message), Ok((0x0102_0304, Ok(request.clone()))));
        for cut in 0..message.len() {
            assert!(!matches!(Request::decode(&message[..cut]), Ok((_, Ok(_)))), "{request:?} cut at {cut}");
        }
        let longer = [&message[..], &[0]].concat();
        assert_eq!(Request::decode(&longer), Ok((0x0102_0304, Err(Malformed))));
        let mut newer = message.to_vec();
        newer[0] = PROTOCOL_VERSION + 1;
        assert_eq!(Request::decode(&newer), Ok((0x0102_0304, Err(Malformed))));
        fuzz_decode(&message);
    }
}

#[test]
fn every_answer_is_read_back_and_nothing_shorter() {
    for answer in answers() {
        let encoded = answer.encode(7, 2);
        assert_eq!(Answer::decode(&encoded.message, &encoded.bulk), Ok((7, 2, answer.clone())));
        for cut in 0..encoded.message.len() {
            assert_eq!(Answer::decode(&encoded.message[..cut], &encoded.bulk), Err(Malformed), "{answer:?}");
        }
        fuzz_decode(&encoded.message);
    }
    let mut lacking = grant();
    lacking.current_epoch = 2;
    let encoded = Answer::Grant(lacking).encode(7, 2);
    assert_eq!(Answer::decode(&encoded.message, &encoded.bulk), Err(Malformed), "the current epoch has no key");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Pins the wire format; the same bytes stand in `docs/key-protocol.md`.
#[test]
fn golden_messages() {
    let message = Request::Fetch { domain: domain() }.encode(1);
    assert_eq!(hex(&message), format!("010100000001{}", "d0".repeat(16)));
    let message = Request::Grant { domain: domain(), identity: identity(), rights: Rights::ALL }.encode(2);
    assert_eq!(hex(&message), format!("011300000002{}{}07", "d0".repeat(16), "1d".repeat(32)));
    let message = Request::Create(new()).encode(3);
    assert_eq!(hex(&message), format!("011000000003{}{}00057661756c74", "1a".repeat(16), "d0".repeat(16)));
    let answer = Answer::Grant(grant()).encode(1, 1).message;
    let (head, id, domain) = ("0101000000010000000000000001", "1a".repeat(16), "d0".repeat(16));
    let tail = "00057661756c7400000000000000050000000103".to_owned() + "0036ee80";
    let keys = format!("0000000100000001{}", "a7".repeat(32));
    assert_eq!(hex(&answer), format!("{head}{id}{domain}{tail}{keys}"));
    assert_eq!(hex(&Answer::Failure(Failure::Refused).encode(1, 1).message), "0180000000010000000000000001");
}

#[test]
fn no_message_shows_a_key() {
    let shown = format!("{:?} {:?}", Request::Import(new(), keys()), Answer::Grant(grant()));
    assert!(!shown.contains("a7a7") && !shown.contains("167"), "{shown}");
}

proptest! {
    #[test]
    fn no_changed_message_makes_it_panic(which in 0..35_usize, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let requests = requests();
        let mut message = match requests.get(which) {
            Some(request) => request.encode(1).to_vec(),
            None => answers()[which - requests.len()].encode(1, 1).message.to_vec(),
        };
        let at = at.index(message.len());
        message[at] = byte;
        fuzz_decode(&message);
    }
}
