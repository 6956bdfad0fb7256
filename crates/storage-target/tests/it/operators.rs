//! Proves what operators may do over the network (`docs/operators.md`), that their role counts at every request, and what a node without it,
//! a hostile operator, and one that was an operator cannot do. The hostile ones speak the protocol from its document.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_handshake::NodeKey;
use strongroom_net::{LinkOptions, OPERATOR_MESSAGE_BYTES_MAX, ProtocolUse};
use strongroom_target::admin::{
    NewSealing, NewVolume, Operation, PeerOperation, Reply, Request, VolumeEntry, VolumeInfo,
};
use strongroom_target::config::PeerRule;
use strongroom_target::operators::{LINKS_OF_PEER_MAX, OperatorClient, OperatorDestination, OperatorError};
use strongroom_target::{Access, PeerRole, VolumeSpec};

use crate::support::keeper;
use crate::support::raw_peer::RawPeer;
use crate::support::*;

fn olga() -> NodeKey {
    NodeKey::from_seed(&[0x01; 32])
}

fn bob() -> NodeKey {
    NodeKey::from_seed(&[0xb0; 32])
}

/// Alice is an initiator and may use everything. Olga is an operator that may use nothing, and bob an initiator that may use nothing; both
/// have joined by invitation.
fn host() -> Host {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    join(&host, "olga", &olga(), PeerRole::Operator, &[]);
    join(&host, "bob", &bob(), PeerRole::Initiator, &["data"]);
    let deny = PeerOperation::Deny { volumes: vec!["data".into()] };
    keeper::ask(&host, &Request::Peer { name: "bob".into(), operation: deny }).unwrap();
    host
}

fn join(host: &Host, name: &str, node: &NodeKey, role: PeerRole, volumes: &[&str]) {
    let volumes = volumes.iter().map(ToString::to_string).collect();
    let (name, addresses) = (name.to_owned(), Vec::new());
    let request = Request::Invite { name, volumes, read_only: false, role, expires_s: 3600, addresses };
    let Ok(Reply::Invited { invitation, .. }) = keeper::ask(host, &request) else { panic!("no invitation") };
    let invitation = strongroom_handshake::Invitation::parse(&invitation.0).unwrap();
    let joined = strongroom_target::pairing::join(&invitation, &invitation.addresses, node, PATIENCE).unwrap();
    assert_eq!(joined.role, role);
}

fn destination(host: &Host, node: NodeKey) -> OperatorDestination {
    OperatorDestination {
        host: host.address().ip().to_string(),
        port: host.address().port(),
        node: Arc::new(node),
        expected: vec![host.node],
        connect_timeout: PATIENCE,
    }
}

fn connect(host: &Host, node: NodeKey) -> OperatorClient {
    OperatorClient::connect(&destination(host, node)).unwrap()
}

fn operators_only() -> LinkOptions {
    LinkOptions { operators: ProtocolUse::Only, ..LinkOptions::default() }
}

fn try_ask(client: &mut OperatorClient, request: &Request) -> Result<Reply, OperatorError> {
    client.ask(request, PATIENCE)
}

#[track_caller]
fn ask(client: &mut OperatorClient, request: &Request) -> Reply {
    try_ask(client, request).unwrap()
}

#[track_caller]
fn refused(client: &mut OperatorClient, request: &Request) -> String {
    match try_ask(client, request) {
        Err(OperatorError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn new_volume(name: &str) -> NewVolume {
    NewVolume {
        name: name.into(),
        size_bytes: MIB,
        block_size: 4096,
        sealed: None,
        retention_percent: 10,
        spare_percent: 25,
        peers: Vec::new(),
        read_only: false,
        protection: strongroom_target::Protection::default(),
    }
}

fn create(name: &str) -> Request {
    Request::VolumeCreate { volume: new_volume(name) }
}

fn on(volume: &str, operation: Operation) -> Request {
    Request::Volume { volume: volume.into(), operation }
}

fn grant(volume: &str, peer: &str) -> Request {
    Request::VolumeGrant { volume: volume.into(), peer: peer.into() }
}

fn revoke(volume: &str, peer: &str) -> Request {
    Request::VolumeRevoke { volume: volume.into(), peer: peer.into() }
}

fn delete(volume: &str) -> Request {
    Request::VolumeDelete { volume: volume.into() }
}

fn set_role(host: &Host, name: &str, role: PeerRole) {
    keeper::ask(host, &Request::Peer { name: name.into(), operation: PeerOperation::Role { role } }).unwrap();
}

fn names(host: &Host) -> Vec<String> {
    host.handle().catalogue().names().unwrap().iter().map(ToString::to_string).collect()
}

fn log_in(host: &Host, node: NodeKey, volume: &str) -> Result<Initiator, Refused> {
    let name = format!("iqn.2026-11.org.strongroom:initiator.host.{}", node.public().fingerprint());
    Initiator::log_in(host, Some(node), normal(&name, volume))
}

fn raw(host: &Host, node: &NodeKey) -> RawPeer {
    RawPeer::connect(host, node, operators_only()).unwrap()
}

/// One request of some bytes, and its whole answer; `None`: the link ended.
fn say(raw: &mut RawPeer, line: &[u8]) -> Option<String> {
    raw.say(line, &[]);
    let mut answer = Vec::new();
    while answer.last() != Some(&b'\n') {
        answer.extend(raw.hear()?);
    }
    Some(String::from_utf8(answer).unwrap())
}

#[test]
fn an_operator_makes_uses_and_deletes_volumes() {
    let host = host();
    let olga = &mut connect(&host, olga());
    let suite = "aes-256-gcm".to_owned();
    let sealed =
        Some(NewSealing { custody: strongroom_target::admin::BlindCustody::KeyFile, suite, authenticate_only: false });
    let volume = NewVolume { sealed, ..new_volume("vault") };
    let Reply::Created(info) = ask(olga, &Request::VolumeCreate { volume }) else { panic!("not made") };
    assert_eq!((info.name.as_str(), info.shape.size_bytes), ("vault", MIB));
    assert_eq!(info.sealed.as_ref().map(|sealed| sealed.custody.as_str()), Some("keyfile"));
    ask(olga, &create("plain"));
    let Reply::Volumes(volumes) = ask(olga, &Request::Volumes { volume: None }) else { panic!("no list") };
    let name = |entry: &VolumeEntry| match entry {
        VolumeEntry::Good(info) => info.name.clone(),
        VolumeEntry::Damaged { name, error } => panic!("{name}: {error}"),
    };
    assert_eq!(volumes.iter().map(name).collect::<Vec<_>>(), ["data", "plain", "vault"]);
    let one = ask(olga, &Request::Volumes { volume: Some("vault".into()) });
    assert!(matches!(one, Reply::Volumes(one) if one == [VolumeEntry::Good(Box::new(VolumeInfo { ..*info }))]));

    // Bob uses it once he may, and no longer than that.
    assert!(matches!(log_in(&host, bob(), "plain"), Err(Refused::Login(_))));
    ask(olga, &grant("plain", "bob"));
    let mut session = log_in(&host, bob(), "plain").unwrap();
    session.write(0, &pattern(1, 1));
    ask(olga, &on("plain", Operation::SnapshotCreate { snapshot: "monday".into() }));
    ask(olga, &on("plain", Operation::Resize { size_bytes: 2 * MIB }));
    // The first command hears that the capacity has changed.
    assert_ne!(session.try_write(300, &pattern(2, 1)).status, 0);
    session.write(300, &pattern(2, 1));
    let access = Some(Access { peers: vec!["bob".into()], ..Access::default() });
    ask(olga, &on("plain", Operation::Clone { snapshot: "monday".into(), name: "twin".into(), access }));
    log_in(&host, bob(), "twin").unwrap().log_out();
    let Reply::Volume(described) = ask(olga, &on("plain", Operation::Describe)) else { panic!("not described") };
    assert_eq!((described.snapshots.len(), described.clones.len()), (1, 1));
    assert!(refused(olga, &delete("plain")).contains("session"), "it is in use");
    let revoked = ask(olga, &revoke("plain", "bob"));
    assert!(matches!(revoked, Reply::Access { sessions: 1, may_use_because: None }), "{revoked:?}");
    session.wait_for_end();
    assert!(refused(olga, &delete("plain")).contains("twin"), "it has a clone");
    assert!(refused(olga, &on("plain", Operation::SnapshotDelete { snapshot: "monday".into() })).contains("twin"));
    ask(olga, &delete("twin"));
    ask(olga, &on("plain", Operation::SnapshotDelete { snapshot: "monday".into() }));
    ask(olga, &delete("plain"));
    ask(olga, &delete("vault"));
    assert_eq!(names(&host), ["data"]);
}

#[test]
fn a_right_that_a_revocation_leaves_is_told() {
    let host = host();
    let olga = &mut connect(&host, olga());
    // By the peer database, which is changed too.
    let allow = |volume: &str| PeerOperation::Allow { volumes: vec![volume.into()], read_only: None };
    keeper::ask(&host, &Request::Peer { name: "bob".into(), operation: allow("data") }).unwrap();
    let mut session = log_in(&host, bob(), "data").unwrap();
    assert!(matches!(ask(olga, &revoke("data", "bob")), Reply::Access { sessions: 1, may_use_because: None }));
    session.wait_for_end();
    keeper::ask(&host, &Request::Peer { name: "bob".into(), operation: allow("*") }).unwrap();
    let left = |reply: Reply| match reply {
        Reply::Access { may_use_because, .. } => may_use_because.unwrap_or_default(),
        other => panic!("{other:?}"),
    };
    assert!(left(ask(olga, &revoke("data", "bob"))).contains("peer deny"));
    assert!(left(ask(olga, &revoke("data", "alice"))).contains("configuration"));
    // A name that nobody has gets no rights, for whom it may be given to later.
    assert!(refused(olga, &grant("data", "carol")).contains("no peer 'carol'"));
    let volume = NewVolume { peers: vec!["carol".into()], ..new_volume("hers") };
    assert!(refused(olga, &Request::VolumeCreate { volume }).contains("no peer 'carol'"));
    assert_eq!(names(&host), ["data"]);
}

/// What the role means is not more than it says, and not less: an operator can let itself use any volume.
#[test]
fn attack_operator_grants_itself_a_volume_and_nothing_beyond() {
    let host = host();
    let node = olga();
    assert!(matches!(log_in(&host, olga(), "data"), Err(Refused::Login(_))));
    let olga = &mut connect(&host, node);
    ask(olga, &grant("data", "olga"));
    log_in(&host, self::olga(), "data").unwrap().log_out();
    // No other node becomes a peer or an operator by it, and no rule of the target changes.
    let role = PeerOperation::Role { role: PeerRole::Operator };
    for request in [
        Request::Peer { name: "bob".into(), operation: role },
        Request::Peer { name: "alice".into(), operation: PeerOperation::Remove },
        Request::Invite {
            name: "eve".into(),
            volumes: vec!["*".into()],
            read_only: false,
            role: PeerRole::Operator,
            expires_s: 60,
            addresses: Vec::new(),
        },
        Request::Peers,
        Request::Status,
        Request::Reload,
        Request::Drain { to: Some("evil.example:3260".into()), volume: None, grace_s: 1 },
        Request::SessionDrop { id: None, initiator: None, peer: Some("alice".into()), volume: None },
        Request::Send { volume: "data".into(), snapshot: "x".into(), from: None, resume: None },
        on("data", Operation::Rollback { snapshot: "x".into() }),
        on("data", Operation::Erase),
    ] {
        assert!(refused(olga, &request).contains("not for operators"), "{request:?}");
    }
    assert!(matches!(keeper::ask(&host, &Request::Invitations), Ok(Reply::Invitations(open)) if open.is_empty()));
    // The link goes on.
    ask(olga, &Request::Volumes { volume: None });
}

#[test]
fn attack_operator_requests_of_a_peer_without_the_role() {
    let host = host();
    for node in [alice_key(), bob()] {
        let client = &mut connect(&host, node);
        assert!(refused(client, &create("mine")).contains("peer role"));
        // And the link is over.
        assert!(matches!(try_ask(client, &create("mine")), Err(OperatorError::Broken(_))));
    }
    assert_eq!(names(&host), ["data"]);
    // A node that nobody knows does not get through the handshake.
    let stranger = NodeKey::from_seed(&[0xee; 32]);
    assert!(RawPeer::connect(&host, &stranger, operators_only()).is_err());
}

#[test]
fn attack_operator_role_taken_away_on_an_open_link() {
    let host = host();
    let client = &mut connect(&host, olga());
    ask(client, &create("one"));
    set_role(&host, "olga", PeerRole::Initiator);
    assert!(refused(client, &create("two")).contains("no operator"));
    assert!(matches!(try_ask(client, &create("two")), Err(OperatorError::Broken(_))));
    set_role(&host, "olga", PeerRole::Operator);
    let client = &mut connect(&host, olga());
    ask(client, &create("two"));
    // No peer at all any more.
    keeper::ask(&host, &Request::Peer { name: "olga".into(), operation: PeerOperation::Remove }).unwrap();
    assert!(refused(client, &delete("one")).contains("no operator"));
    assert!(RawPeer::connect(&host, &olga(), operators_only()).is_err());
    assert_eq!(names(&host), ["data", "one", "two"]);
}

/// The configuration gives the role as well, and overrides the database.
#[test]
fn the_configuration_makes_operators() {
    let host = Host::start_with(&[], |config| {
        config.peers.push(PeerRule {
            name: "olga".into(),
            key: olga().public().to_string(),
            role: PeerRole::Operator,
            ..PeerRule::default()
        });
    });
    ask(&mut connect(&host, olga()), &create("one"));
    assert_eq!(names(&host), ["one"]);
}

#[test]
fn attack_operator_names_and_sizes_that_cannot_be() {
    let host = host();
    let outside = host.dir.path().parent().unwrap().join("strongroom-escaped");
    let olga = &mut connect(&host, olga());
    for name in [
        "../strongroom-escaped",
        "..",
        ".",
        "/etc/passwd",
        "a/b",
        ".hidden",
        ".peers.toml",
        "a\0b",
        "A",
        "",
        "a@b",
        &"x".repeat(65),
    ] {
        for request in [
            create(name),
            delete(name),
            grant(name, "bob"),
            revoke(name, "bob"),
            on(name, Operation::Describe),
            on(name, Operation::DeleteClone),
            on("data", Operation::SnapshotCreate { snapshot: name.into() }),
            Request::Volumes { volume: Some(name.into()) },
        ] {
            let said = refused(olga, &request);
            assert!(said.contains("cannot name a volume") && !said.contains('\0'), "{request:?}: {said}");
        }
    }
    ask(olga, &on("data", Operation::SnapshotCreate { snapshot: "monday".into() }));
    for name in ["../x", "/x", "", "data"] {
        refused(olga, &on("data", Operation::Clone { snapshot: "monday".into(), name: name.into(), access: None }));
    }
    for size_bytes in [0, 1, 4097, u64::MAX, !4095] {
        refused(olga, &Request::VolumeCreate { volume: NewVolume { size_bytes, ..new_volume("big") } });
        refused(olga, &on("data", Operation::Resize { size_bytes }));
    }
    for block_size in [0, 1, 3000, 1 << 17, u64::MAX] {
        refused(olga, &Request::VolumeCreate { volume: NewVolume { block_size, ..new_volume("odd") } });
    }
    for (retention_percent, spare_percent) in [(101, 25), (255, 25), (10, 0), (10, u16::MAX)] {
        refused(
            olga,
            &Request::VolumeCreate { volume: NewVolume { retention_percent, spare_percent, ..new_volume("odd") } },
        );
    }
    let sealed = |suite: &str| {
        let custody = strongroom_target::admin::BlindCustody::KeyServer;
        Some(NewSealing { custody, suite: suite.into(), authenticate_only: false })
    };
    for suite in ["rot13", "", "aes192-cbc+hmac-md5"] {
        refused(olga, &Request::VolumeCreate { volume: NewVolume { sealed: sealed(suite), ..new_volume("weak") } });
    }
    assert_eq!(names(&host), ["data"]);
    assert!(!outside.exists());
    host.plain("data").write(0, &pattern(1, 1));
}

#[test]
fn attack_operator_oversized_and_endless_requests() {
    let host = host();
    let node = olga();
    // What a frame may hold is told before; a longer one cannot be said, and a forged one ends the channel.
    let mut peer = raw(&host, &node);
    assert_eq!(peer.channel.peer_limits(), (OPERATOR_MESSAGE_BYTES_MAX, 0));
    let long =
        [&br#"{"request":"volumes","volume":""#[..], &vec![b'a'; OPERATOR_MESSAGE_BYTES_MAX - 34], b"\"}\n"].concat();
    assert!(say(&mut peer, &long).unwrap().contains("cannot name a volume"));
    for nonsense in [
        &b"\n"[..],
        b"{}\n",
        b"{\"request\":\"volumes\"}",
        b"null\n",
        b"\xff\xfe\n",
        b"{\"request\":\"volumes\"}\n{}\n",
        &[b'['; 9000],
    ] {
        let answer = say(&mut peer, nonsense).unwrap();
        assert!(answer.starts_with("{\"error\""), "{answer}");
    }
    // Data behind a request has no place.
    let mut with_data = raw(&host, &node);
    let mut out = Vec::new();
    let data = strongroom_block::Buffer::copy_from(&[0; 16]);
    let said = with_data.channel.encode(
        strongroom_channel::FrameKind::Private,
        b"{\"request\":\"volumes\"}\n",
        data,
        &mut out,
    );
    assert!(said.is_err(), "the target said that it takes none");
    // A request that never ends: a byte now and then holds the link, and no longer than any request may take; meanwhile others are served.
    let mut slow = raw(&host, &node);
    let mut frame = Vec::new();
    slow.channel
        .encode(strongroom_channel::FrameKind::Private, b"{\"request\":\"volumes\"}\n", Default::default(), &mut frame)
        .unwrap();
    let bytes: Vec<u8> = frame.iter().flat_map(|buffer| buffer.to_vec()).collect();
    slow.stream.write_all(&bytes[..bytes.len() - 1]).unwrap();
    ask(&mut connect(&host, olga()), &create("one"));
    slow.stream.write_all(&bytes[bytes.len() - 1..]).unwrap();
    assert!(slow.hear().is_some());
}

#[test]
fn attack_operator_flood_of_links() {
    let host = host();
    let second = NodeKey::from_seed(&[2; 32]);
    join(&host, "oleg", &second, PeerRole::Operator, &[]);
    let has_ended = AtomicBool::new(false);
    let mine = thread::scope(|scope| {
        // Nodes that are no operators, again and again: some are told so, and all end.
        for _ in 0..8 {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    if let Ok(mut peer) = RawPeer::connect(&host, &bob(), operators_only()) {
                        while peer.hear().is_some() {}
                    }
                }
            });
        }
        // And all that one operator can have.
        let mine: Vec<RawPeer> = (0..LINKS_OF_PEER_MAX).map(|_| raw(&host, &olga())).collect();
        let one_more = OperatorClient::connect(&destination(&host, olga()));
        let refused = one_more.and_then(|mut client| try_ask(&mut client, &create("one")));
        // Others come through.
        let made = try_ask(&mut connect(&host, second), &create("two"));
        host.plain("data").write(0, &pattern(1, 1));
        has_ended.store(true, Ordering::Relaxed);
        assert!(refused.is_err() && made.is_ok(), "{refused:?}, {made:?}");
        mine
    });
    match try_ask(&mut connect(&host, olga()), &create("one")) {
        Err(OperatorError::Refused(text)) => assert!(text.contains("as many links"), "{text}"),
        other => panic!("{other:?}"),
    }
    drop(mine);
    eventually("there is room again", || {
        try_ask(&mut connect(&host, olga()), &Request::Volumes { volume: None }).is_ok()
    });
    assert_eq!(names(&host), ["data", "two"]);
}

/// Two operators that do what excludes each other: one of them is told so.
#[test]
fn operators_race_for_a_name() {
    let host = host();
    let outcomes = thread::scope(|scope| {
        let tries = [(); 4].map(|()| scope.spawn(|| try_ask(&mut connect(&host, olga()), &create("one")).is_ok()));
        tries.map(|one| one.join().unwrap())
    });
    assert_eq!(outcomes.iter().filter(|made| **made).count(), 1, "{outcomes:?}");
    assert_eq!(names(&host), ["data", "one"]);
}

/// A target that stops does not wait for operators that say nothing.
#[test]
fn a_stop_ends_links() {
    let host = host();
    let mut idle = raw(&host, &olga());
    assert!(say(&mut idle, b"{\"request\":\"volumes\"}\n").is_some());
    let started = Instant::now();
    host.target.unwrap().stop();
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(idle.hear(), None);
}
