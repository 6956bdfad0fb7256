//! Proves how nodes become peers of a target (`docs/pairing.md`): by an invitation, once, and only they; that what a peer may do changes at once;
//! and what a stranger, another target, and somebody in the middle cannot do. The hostile ones speak the protocol byte by byte.

use std::net::TcpListener;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Instant;

use strongroom_handshake::{HandshakeError, Invitation, NodeKey, PairingBinding, PairingSecret, PublicKey};
use strongroom_net::{Admission, Link, LinkEnd, LinkOptions, ProtocolUse};
use strongroom_target::admin::{PeerOperation, PeerOrigin, PeerReport, Reply, Request};
use strongroom_target::config::PeerRule;
use strongroom_target::pairing::{JoinError, Joined, PairingRefusal, join};
use strongroom_target::{ChapSecrets, PeerRole, Target, TargetOptions, VolumeSpec};

use crate::support::keeper::{ask, status};
use crate::support::raw_peer::{RawPeer, run_link};
use crate::support::*;

fn bob() -> NodeKey {
    NodeKey::from_seed(&[0xb0; 32])
}

fn eve() -> NodeKey {
    NodeKey::from_seed(&[0xee; 32])
}

/// Its configuration knows alice alone.
fn host() -> Host {
    Host::start(&[VolumeSpec::plain("data", MIB), VolumeSpec::plain("other", MIB)])
}

fn invite_request(name: &str, volumes: &[&str]) -> Request {
    let volumes = volumes.iter().map(ToString::to_string).collect();
    Request::Invite {
        name: name.into(),
        volumes,
        read_only: false,
        role: PeerRole::Initiator,
        expires_s: 3600,
        addresses: Vec::new(),
    }
}

#[track_caller]
fn invite(host: &Host, name: &str) -> Invitation {
    match ask(host, &invite_request(name, &["data"])) {
        Ok(Reply::Invited { invitation, .. }) => Invitation::parse(&invitation.0).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn join_as(node: &NodeKey, invitation: &Invitation) -> Result<Joined, JoinError> {
    join(invitation, &invitation.addresses, node, PATIENCE)
}

#[track_caller]
fn refusal(outcome: Result<Joined, JoinError>) -> PairingRefusal {
    match outcome.unwrap_err() {
        JoinError::Refused(refusal) => refusal,
        error => panic!("not refused: {error}"),
    }
}

fn peers(host: &Host) -> Vec<PeerReport> {
    match ask(host, &Request::Peers).unwrap() {
        Reply::Peers(peers) => peers,
        other => panic!("{other:?}"),
    }
}

fn peer_names(host: &Host) -> Vec<String> {
    peers(host).into_iter().map(|peer| peer.name).collect()
}

fn change(host: &Host, name: &str, operation: PeerOperation) -> Result<(usize, Vec<String>), String> {
    match ask(host, &Request::Peer { name: name.into(), operation })? {
        Reply::Peer { sessions, named_by } => Ok((sessions, named_by)),
        other => panic!("{other:?}"),
    }
}

fn log_in(host: &Host, node: NodeKey, volume: &str) -> Result<Initiator, Refused> {
    let name = format!("iqn.2026-11.org.strongroom:initiator.host.{}", node.public().fingerprint());
    Initiator::log_in(host, Some(node), normal(&name, volume))
}

/// Another target process on the same volumes.
fn restart(host: Host) -> Host {
    let Host { target, dir, .. } = host;
    drop(target);
    Host::over(dir)
}

/// The same invitation at a target that has another port by now.
fn at(host: &Host, invitation: &Invitation) -> Invitation {
    Invitation { addresses: vec![host.address().to_string()], ..invitation.clone() }
}

#[test]
fn an_invited_node_joins_once_and_uses_its_volume() {
    let host = host();
    assert!(matches!(log_in(&host, bob(), "data"), Err(Refused::Closed(_))));
    let invitation = invite(&host, "bob");
    assert_eq!((invitation.target, &invitation.addresses[..]), (host.node, &[host.address().to_string()][..]));
    let joined = join_as(&bob(), &invitation).unwrap();
    assert_eq!(
        (joined.name.as_str(), &joined.volumes[..], joined.was_joined),
        ("bob", &["data".to_owned()][..], false)
    );
    // Without a reload.
    log_in(&host, bob(), "data").unwrap().write(0, &pattern(1, 1));
    assert!(matches!(log_in(&host, bob(), "other"), Err(Refused::Login(_))));
    let again = join_as(&bob(), &invitation).unwrap();
    assert!(again.was_joined && again.volumes == joined.volumes);
    // After a restart, too.
    let host = restart(host);
    log_in(&host, bob(), "data").unwrap().read(0, 1);
    assert!(join_as(&bob(), &at(&host, &invitation)).unwrap().was_joined);
    assert_eq!(peer_names(&host), ["alice", "bob"]);
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let host = host();
    let refused = |request: &Request| ask(&host, request).unwrap_err();
    for (name, volumes, part) in [
        ("alice", &["data"][..], "change its [[peer]]"),
        ("a\u{1b}[2Jb", &["data"], "cannot name a peer"),
        ("bob", &[], "--volume"),
        ("bob", &["missing"], "there is no volume 'missing'"),
        ("bob", &["../data"], "cannot name a volume"),
    ] {
        let said = refused(&invite_request(name, volumes));
        assert!(said.contains(part) && !said.contains('\u{1b}'), "{said}");
    }
    for expires_s in [0, 59, 7 * 24 * 3600 + 1, u64::MAX] {
        let (name, volumes, addresses) = ("bob".into(), vec!["data".into()], Vec::new());
        let said = refused(&Request::Invite {
            name,
            volumes,
            read_only: false,
            role: PeerRole::Initiator,
            expires_s,
            addresses,
        });
        assert!(said.contains("one minute to seven days"), "{said}");
    }
    for address in ["a b", "", "x:0", "x\n"] {
        let (name, volumes, addresses) = ("bob".into(), vec!["data".into()], vec![address.into()]);
        let said = refused(&Request::Invite {
            name,
            volumes,
            read_only: false,
            role: PeerRole::Initiator,
            expires_s: 3600,
            addresses,
        });
        assert!(said.contains("--address"), "{said}");
    }
    invite(&host, "bob");
    assert!(refused(&invite_request("bob", &["data"])).contains("invite revoke bob"));
    assert!(refused(&Request::Revoke { name: "carol".into() }).contains("invite list"));
    assert!(change(&host, "carol", PeerOperation::Remove).unwrap_err().contains("peer list"));
    assert!(change(&host, "alice", PeerOperation::Remove).unwrap_err().contains("reload"));
    let Ok(Reply::Invitations(open)) = ask(&host, &Request::Invitations) else { panic!("no list") };
    assert_eq!((open.len(), open[0].name.as_str()), (1, "bob"));
    assert!(open[0].expires_in_s <= 3600);
}

#[test]
fn a_removed_peers_sessions_end_at_once_and_rights_change_without_a_reload() {
    let host = host();
    let invitation = invite(&host, "bob");
    join_as(&bob(), &invitation).unwrap();
    let mut with_data = log_in(&host, bob(), "data").unwrap();
    let allow = PeerOperation::Allow { volumes: vec!["other".into()], read_only: None };
    change(&host, "bob", allow).unwrap();
    let mut with_other = log_in(&host, bob(), "other").unwrap();
    let session = status(&host).sessions.into_iter().find(|session| session.volume.as_deref() == Some("data"));
    assert_eq!(session.unwrap().peer.as_deref(), Some("bob"));
    // One volume is taken away: only its session ends.
    let (sessions, named_by) = change(&host, "bob", PeerOperation::Deny { volumes: vec!["data".into()] }).unwrap();
    assert_eq!((sessions, named_by.len()), (1, 0));
    with_data.wait_for_end();
    with_other.write(0, &pattern(1, 1));
    // Reading only.
    change(&host, "bob", PeerOperation::Allow { volumes: Vec::new(), read_only: Some(true) }).unwrap();
    assert_ne!(with_other.try_write(0, &pattern(2, 1)).status, 0);
    assert_eq!(with_other.read(0, 1), pattern(1, 1));
    change(&host, "bob", PeerOperation::Rename { to: "robert".into() }).unwrap();
    assert_eq!(peer_names(&host), ["alice", "robert"]);
    with_other.read(0, 1);
    assert_eq!(change(&host, "robert", PeerOperation::Remove).unwrap().0, 1);
    with_other.wait_for_end();
    assert!(matches!(log_in(&host, bob(), "other"), Err(Refused::Closed(_))));
    // And the invitation does not bring it back.
    assert_eq!(refusal(join_as(&bob(), &invitation)), PairingRefusal::Used);
}

#[test]
fn volumes_that_name_a_removed_peer_are_told() {
    let mut spec = VolumeSpec::plain("own", MIB);
    spec.access.peers = vec!["bob".into()];
    let host = Host::start(&[VolumeSpec::plain("data", MIB), spec]);
    join_as(&bob(), &invite(&host, "bob")).unwrap();
    log_in(&host, bob(), "own").unwrap().log_out();
    assert_eq!(change(&host, "bob", PeerOperation::Remove).unwrap().1, ["own"]);
}

#[test]
fn the_configuration_overrides_the_database_from_the_reload_on() {
    let host = host();
    let dir = host.dir.path().to_owned();
    join_as(&bob(), &invite(&host, "bob")).unwrap();
    let Host { target, dir: directory, node } = host;
    drop(target);
    let mut with_bob = config(&dir);
    with_bob.peers.push(PeerRule {
        name: "bob".into(),
        key: eve().public().to_string(),
        initiators: vec!["*".into()],
        volumes: vec!["other".into()],
        ..PeerRule::default()
    });
    let next = Arc::new(Mutex::new(config(&dir)));
    let read = Arc::clone(&next);
    let mut options = TargetOptions::new(config(&dir));
    options.node_key = Some(target_key());
    options.reread = Some(Arc::new(move || Ok((read.lock().unwrap().clone(), ChapSecrets::default()))));
    let host = Host { target: Some(Target::start(options).unwrap()), dir: directory, node };
    let mut session = log_in(&host, bob(), "data").unwrap();
    *next.lock().unwrap() = with_bob;
    assert!(matches!(ask(&host, &Request::Reload), Ok(Reply::Reloaded(reloaded)) if reloaded.sessions_ended == 1));
    session.wait_for_end();
    let origins: Vec<PeerOrigin> = peers(&host).iter().map(|peer| peer.origin).collect();
    assert_eq!(origins, [PeerOrigin::Configuration, PeerOrigin::Configuration, PeerOrigin::Overridden]);
    // Of the two, the one of the database can be removed here, and is.
    change(&host, "bob", PeerOperation::Remove).unwrap();
    assert_eq!(peers(&host).len(), 2);
}

#[test]
fn a_database_that_cannot_be_read_stops_the_start() {
    let host = host();
    let Host { target, dir, .. } = host;
    drop(target);
    std::fs::write(dir.path().join(strongroom_target::pairing::DATABASE_NAME), "version = 7\n").unwrap();
    let mut options = TargetOptions::new(config(dir.path()));
    options.node_key = Some(target_key());
    let error = Target::start(options).unwrap_err().to_string();
    assert!(error.contains("version 7") && error.contains("backup"), "{error}");
}

#[test]
fn attack_pairing_two_nodes_race_for_one_invitation() {
    let host = host();
    for round in 0..4 {
        let invitation = invite(&host, &format!("node{round}"));
        let start = Barrier::new(2);
        let try_as = |byte: u8| {
            start.wait();
            join_as(&NodeKey::from_seed(&[byte; 32]), &invitation)
        };
        let outcomes = thread::scope(|scope| {
            let both = [2 * round + 1, 2 * round + 2].map(|byte| scope.spawn(move || try_as(byte)));
            both.map(|one| one.join().unwrap())
        });
        let joined = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(joined, 1, "{outcomes:?}");
        let lost = outcomes.into_iter().find(Result::is_err).unwrap();
        assert_eq!(refusal(lost), PairingRefusal::Used);
        assert_eq!(peers(&host).len(), usize::from(round) + 2);
    }
}

/// An identity stolen together with nothing else, and a token that somebody reads later: it is good for nobody else.
#[test]
fn attack_pairing_replayed_token() {
    let host = host();
    let invitation = invite(&host, "bob");
    join_as(&bob(), &invitation).unwrap();
    let mut session = log_in(&host, bob(), "data").unwrap();
    assert_eq!(refusal(join_as(&eve(), &invitation)), PairingRefusal::Used);
    assert!(matches!(log_in(&host, eve(), "data"), Err(Refused::Closed(_))));
    session.write(0, &pattern(1, 1));
    assert_eq!(peer_names(&host), ["alice", "bob"]);
}

#[test]
fn attack_pairing_revoked_token() {
    let host = host();
    let invitation = invite(&host, "bob");
    invite(&host, "carol");
    ask(&host, &Request::Revoke { name: "bob".into() }).unwrap();
    assert_eq!(refusal(join_as(&eve(), &invitation)), PairingRefusal::NotValid);
    ask(&host, &Request::Revoke { name: "carol".into() }).unwrap();
    // None is out: the port knows no such protocol.
    let error = join_as(&eve(), &invitation).unwrap_err();
    assert!(matches!(error, JoinError::NoInvitations { .. }), "{error}");
}

/// The right target's key and address, and a secret that is guessed. What is answered does not tell a wrong guess from an invitation that there
/// is not; soon nothing is answered any more; and the invitation stays good for the node that has it.
#[test]
fn attack_pairing_guessed_token() {
    let host = host();
    let invitation = invite(&host, "bob");
    let guess = |byte| Invitation { secret: PairingSecret::from_bytes([byte; 16]), ..invitation.clone() };
    for byte in 0..5 {
        assert_eq!(refusal(join_as(&eve(), &guess(byte))), PairingRefusal::NotValid);
    }
    for byte in 5..8 {
        assert_eq!(refusal(join_as(&eve(), &guess(byte))), PairingRefusal::Busy);
    }
    assert_eq!(refusal(join_as(&bob(), &invitation)), PairingRefusal::Busy, "the address is what counts");
    assert_eq!(peer_names(&host), ["alice"]);
    // Counted in memory: another process of the target, or a minute later.
    let host = restart(host);
    join_as(&bob(), &at(&host, &invitation)).unwrap();
}

/// A target in the place of the one that gave out the invitation: its address leads to another one.
#[test]
fn attack_pairing_token_for_another_target() {
    let (right, wrong_dir) = (host(), tempfile::tempdir().unwrap());
    let mut options = TargetOptions::new(config(wrong_dir.path()));
    options.node_key = Some(eve());
    let wrong = Host { target: Some(Target::start(options).unwrap()), dir: wrong_dir, node: eve().public() };
    let invitation = at(&wrong, &invite(&right, "bob"));
    let error = join_as(&bob(), &invitation).unwrap_err();
    assert!(matches!(error, JoinError::NoInvitations { .. }), "{error}");
    ask(&wrong, &invite_request("bob", &["*"])).unwrap();
    match join_as(&bob(), &invitation).unwrap_err() {
        JoinError::OtherTarget { presented, .. } => assert_eq!(presented, eve().public()),
        error => panic!("{error}"),
    }
    // The first address leads elsewhere, the second one to the target.
    let addresses = vec![wrong.address().to_string(), right.address().to_string()];
    let joined = join(&invitation, &addresses, &bob(), PATIENCE).unwrap();
    assert_eq!(joined.address, right.address().to_string());
    assert_eq!(peer_names(&wrong), ["alice"]);
}

/// Somebody between the two who ends TLS on both sides, with a key of his own: the node does not speak to him.
#[test]
fn attack_pairing_relay_that_ends_tls_on_both_sides() {
    let host = host();
    let invitation = invite(&host, "bob");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relayed = Invitation { addresses: vec![listener.local_addr().unwrap().to_string()], ..invitation.clone() };
    let relay = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let admission =
            Admission { identity: Some(Arc::new(eve())), peers: Arc::new(|_: &PublicKey| true), allow_plain: false };
        let options = LinkOptions { pairings: ProtocolUse::Only, setup_timeout: PATIENCE, ..LinkOptions::default() };
        run_link(stream, Link::target(admission, options, Instant::now())).map(drop)
    });
    let error = join_as(&bob(), &relayed).unwrap_err();
    assert!(matches!(error, JoinError::OtherTarget { presented, .. } if presented == eve().public()), "{error}");
    let heard = relay.join().unwrap();
    assert!(matches!(heard, Err(LinkEnd::Handshake(HandshakeError::RefusedByInitiator { .. }))), "{heard:?}");
    join_as(&bob(), &invitation).unwrap();
}

/// And if he had a proof, made on another connection with the very same target: it is none on his.
#[test]
fn attack_pairing_relayed_proof() {
    let host = host();
    let invitation = invite(&host, "bob");
    let key = invitation.secret.key();
    // Bob's, on bob's connection.
    let of_bob = RawPeer::connect(&host, &bob(), pairing_only()).unwrap();
    let proof = key.prove(of_bob.binding.as_ref().unwrap());
    let mut of_eve = RawPeer::connect(&host, &eve(), pairing_only()).unwrap();
    of_eve.say(&[&[1], &proof.as_bytes()[..]].concat(), &[]);
    assert_eq!(of_eve.hear(), Some(vec![3, 1]));
    // Bound to another exporter, with the right keys.
    let mut of_eve = RawPeer::connect(&host, &eve(), pairing_only()).unwrap();
    let other = PairingBinding::new(&[7; 32], eve().public(), host.node);
    of_eve.say(&[&[1], &key.prove(&other).as_bytes()[..]].concat(), &[]);
    assert_eq!(of_eve.hear(), Some(vec![3, 1]));
    join_as(&bob(), &invitation).unwrap();
}

/// The node is noted before it is answered: an answer that is lost, with the target's process or without, loses nothing.
#[test]
fn attack_pairing_lost_answer() {
    let host = host();
    let invitation = invite(&host, "bob");
    let mut lost = RawPeer::connect(&host, &bob(), pairing_only()).unwrap();
    let proof = invitation.secret.key().prove(lost.binding.as_ref().unwrap());
    lost.say(&[&[1], &proof.as_bytes()[..]].concat(), &[]);
    lost.stream.shutdown(std::net::Shutdown::Both).unwrap();
    drop(lost);
    eventually("bob is a peer", || peer_names(&host) == ["alice", "bob"]);
    let host = restart(host);
    let invitation = at(&host, &invitation);
    assert_eq!(refusal(join_as(&eve(), &invitation)), PairingRefusal::Used);
    assert!(join_as(&bob(), &invitation).unwrap().was_joined);
    log_in(&host, bob(), "data").unwrap();
}

#[test]
fn attack_pairing_strangers_get_no_further_while_invitations_are_out() {
    let host = host();
    invite(&host, "bob");
    // Blocks and transfers want a key that is known, as ever.
    let transfers = LinkOptions { transfers: ProtocolUse::Only, ..LinkOptions::default() };
    for options in [LinkOptions::default(), transfers] {
        let end = RawPeer::connect(&host, &eve(), options).map(drop).unwrap_err();
        let refused = HandshakeError::RefusedByTarget { own: eve().public() };
        let unconfirmed = HandshakeError::NotConfirmed { own: eve().public() };
        assert!(end == LinkEnd::Handshake(refused) || end == LinkEnd::Handshake(unconfirmed), "{end}");
    }
    // Other messages than the one that there is, and a login of iSCSI.
    for message in [&[1; 32][..], &[2, 0, 1, b'x', 0], &[3, 1], &[0x43; 48]] {
        let mut stranger = RawPeer::connect(&host, &eve(), pairing_only()).unwrap();
        stranger.say(message, &[]);
        assert_eq!(stranger.hear(), None, "{message:?}");
    }
    assert_eq!(peer_names(&host), ["alice"]);
}

#[test]
fn attack_pairing_silent_strangers_do_not_block_the_port() {
    let host = Host::start_with(&[VolumeSpec::plain("data", MIB)], |config| config.limits.connections_max = 64);
    let invitation = invite(&host, "bob");
    // They shake hands, and say nothing: those beyond few from one address end at once, the others after a few seconds.
    let strangers: Vec<RawPeer> =
        (0..24).filter_map(|_| RawPeer::connect(&host, &eve(), pairing_only()).ok()).collect();
    host.channel("data").write(0, &pattern(1, 1));
    let started = Instant::now();
    for mut stranger in strangers {
        assert_eq!(stranger.hear(), None);
    }
    assert!(started.elapsed() < PATIENCE);
    join_as(&bob(), &invitation).unwrap();
}

fn pairing_only() -> LinkOptions {
    LinkOptions { pairings: ProtocolUse::Only, ..LinkOptions::default() }
}
