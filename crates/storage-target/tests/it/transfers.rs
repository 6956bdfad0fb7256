//! Proves how a target takes in snapshots that other nodes send (`docs/transfer.md`): who may, that every byte is checked, where it goes
//! on, and what a hostile node cannot do. The hostile ones speak the protocol from its document, byte by byte.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_handshake::NodeKey;
use strongroom_net::{LinkEnd, LinkOptions, ProtocolUse};
use strongroom_target::VolumeSpec;
use strongroom_target::admin::{Request, Resume};
use strongroom_target::config::PeerRule;
use strongroom_target::operate::Operation;
use strongroom_target::transfers::{Begun, Destination, Outgoing, RefusalCode, TransferError};

use crate::support::keeper::{self, client, operate};
use crate::support::raw_peer::RawPeer;
use crate::support::*;

const SIZE: u64 = 12 * MIB;
/// Codes of REFUSED, as the document numbers them.
const NOT_PERMITTED: u8 = 1;
const UNAVAILABLE: u8 = 6;
const DAMAGED: u8 = 7;
const DOES_NOT_FIT: u8 = 8;
const STALLED: u8 = 12;
const MISBEHAVED: u8 = 13;

fn bob_key() -> NodeKey {
    NodeKey::from_seed(&[0xb0; 32])
}

/// Alice and bob may send into 'disk', and alice into 'missing'; mallory may log in.
fn destination_with(change: impl FnOnce(&mut strongroom_target::Config)) -> Host {
    Host::start_with(&[VolumeSpec::plain("disk", SIZE), VolumeSpec::plain("other", SIZE)], |config| {
        config.peers[0].receive = vec!["disk".into(), "missing".into()];
        let peer = |name: &str, key: NodeKey, receive: &[&str]| PeerRule {
            name: name.into(),
            key: key.public().to_string(),
            initiators: vec![BOB.into()],
            volumes: vec!["*".into()],
            read_only: false,
            receive: receive.iter().map(ToString::to_string).collect(),
            ..PeerRule::default()
        };
        config.peers.push(peer("bob", bob_key(), &["disk"]));
        config.peers.push(peer("mallory", mallory_key(), &[]));
        change(config);
    })
}

fn mallory_key() -> NodeKey {
    NodeKey::from_seed(&[0x66; 32])
}

fn destination() -> Host {
    destination_with(|_| {})
}

/// A target with 'data', of which there are two snapshots.
fn source() -> Host {
    let host = Host::start(&[VolumeSpec::plain("data", SIZE)]);
    let mut data = host.plain("data");
    (0..SIZE / MIB).for_each(|part| data.write(part * 256, &pattern(part as u8 + 1, 256)));
    snapshot(&host, "monday");
    data.write(5, &pattern(99, 3));
    snapshot(&host, "tuesday");
    data.log_out();
    host
}

fn snapshot(host: &Host, name: &str) {
    operate(host, "data", Operation::SnapshotCreate { snapshot: name.into() }).unwrap();
}

/// A stream in its slices, of which the first is its beginning.
fn stream(host: &Host, snapshot: &str, from: Option<&str>, resume: Option<Resume>) -> Vec<Vec<u8>> {
    let mut client = client(host);
    let request =
        Request::Send { volume: "data".into(), snapshot: snapshot.into(), from: from.map(Into::into), resume };
    client.begin_stream(&request, PATIENCE).unwrap();
    std::iter::from_fn(|| client.next_slice().unwrap()).map(|(bytes, _)| bytes).collect()
}

fn to(host: &Host, node: NodeKey, volume: &str) -> Destination {
    Destination {
        host: host.address().ip().to_string(),
        port: host.address().port(),
        volume: volume.into(),
        node: Arc::new(node),
        expected: vec![host.node],
        connect_timeout: PATIENCE,
    }
}

fn begin(host: &Host, node: NodeKey, volume: &str, begin: &[u8]) -> Result<Begun, TransferError> {
    Outgoing::begin(&to(host, node, volume), begin)
}

#[track_caller]
fn outgoing(host: &Host, node: NodeKey, first: &[u8]) -> (u64, Box<Outgoing>) {
    match begin(host, node, "disk", first).unwrap() {
        Begun::At { position, outgoing } => (position, outgoing),
        Begun::WasThere => panic!("it is there already"),
    }
}

#[track_caller]
fn code(outcome: Result<Begun, TransferError>) -> RefusalCode {
    match outcome.unwrap_err() {
        TransferError::Refused { code, .. } => code,
        error => panic!("not refused: {error}"),
    }
}

fn send_all(mut outgoing: Box<Outgoing>, slices: &[Vec<u8>]) -> Result<(), TransferError> {
    slices.iter().try_for_each(|slice| outgoing.send(slice))?;
    outgoing.finish()
}

fn blocks(initiator: &mut Initiator) -> Vec<u8> {
    (0..SIZE / MIB).flat_map(|part| initiator.read(part * 256, 256)).collect()
}

/// What a session sees that comes now. It logs out: nobody waits for it.
fn contents(host: &Host, volume: &str) -> Vec<u8> {
    let mut session = host.plain(volume);
    let contents = blocks(&mut session);
    session.log_out();
    contents
}

fn snapshots(host: &Host, volume: &str) -> Vec<String> {
    host.handle().catalogue().show(volume).unwrap().volume.snapshots
}

#[test]
fn a_transfer_brings_snapshots_in_full_and_as_differences() {
    let (source, there) = (source(), destination());
    let monday = stream(&source, "monday", None, None);
    let (position, full) = outgoing(&there, alice_key(), &monday[0]);
    assert_eq!(position, 0);
    send_all(full, &monday).unwrap();
    assert_eq!(snapshots(&there, "disk"), ["monday"]);
    assert!(matches!(begin(&there, alice_key(), "disk", &monday[0]), Ok(Begun::WasThere)));
    let tuesday = stream(&source, "tuesday", Some("monday"), None);
    let (_, difference) = outgoing(&there, bob_key(), &tuesday[0]);
    send_all(difference, &tuesday).unwrap();
    let expected = contents(&source, "data:tuesday");
    assert!(contents(&there, "disk") == expected && contents(&there, "disk:tuesday") == expected);
    // A node with the right learns that there is no volume; one that could write keeps a stream out, one that reads does not.
    assert_eq!(code(begin(&there, alice_key(), "missing", &monday[0])), RefusalCode::NoSuchVolume);
    let wednesday = {
        snapshot(&source, "wednesday");
        stream(&source, "wednesday", Some("tuesday"), None)
    };
    let mut reader = there.plain("disk:monday");
    let writer = there.plain("disk");
    assert_eq!(code(begin(&there, alice_key(), "disk", &wednesday[0])), RefusalCode::InUse);
    writer.log_out();
    let (_, difference) = outgoing(&there, alice_key(), &wednesday[0]);
    // While it is under way no other node sends into the volume, nor does a command.
    assert_eq!(code(begin(&there, bob_key(), "disk", &wednesday[0])), RefusalCode::Busy);
    let receive = keeper::ask(&there, &Request::Receive { volume: "disk".into() }).unwrap_err();
    assert!(receive.contains("another stream"), "{receive}");
    send_all(difference, &wednesday).unwrap();
    assert!(blocks(&mut reader) == blocks(&mut source.plain("data:monday")), "who reads a snapshot goes on");
    reader.log_out();
    there.plain("disk").log_out();
    // It was written to since: what builds on it is refused.
    there.plain("disk").write(0, &pattern(3, 1));
    snapshot(&source, "thursday");
    let thursday = stream(&source, "thursday", Some("wednesday"), None);
    let (_, late) = outgoing(&there, alice_key(), &thursday[0]);
    let refused = send_all(late, &thursday).unwrap_err();
    assert!(matches!(&refused, TransferError::Refused { code: RefusalCode::Diverged, .. }), "{refused}");
    assert_eq!(snapshots(&there, "disk"), ["monday", "tuesday", "wednesday"]);
}

#[test]
fn a_transfer_goes_on_where_it_was_durable() {
    let (source, mut there) = (source(), destination());
    let monday = stream(&source, "monday", None, None);
    let (_, mut first) = outgoing(&there, alice_key(), &monday[0]);
    let half = monday.len() / 2;
    monday[..half].iter().for_each(|slice| first.send(slice).unwrap());
    // The same node comes back while its old connection is still there, and takes its place.
    let (reached, second) = outgoing(&there, alice_key(), &monday[0]);
    let info = strongroom_store::StreamInfo::peek(&monday[0]).unwrap().unwrap();
    let rest = |position| stream(&source, "monday", None, Some(Resume { to: info.to.0, from: None, position }));
    assert!(first.finish().is_err(), "the first is over");
    // The target stops in the middle, and another one goes on.
    drop(second);
    there.target.take().unwrap().stop();
    let mut config = config(there.dir.path());
    config.peers[0].receive = vec!["*".into()];
    let mut options = strongroom_target::TargetOptions::new(config);
    options.node_key = Some(target_key());
    there.target = Some(strongroom_target::Target::start(options).unwrap());
    let (again, third) = outgoing(&there, alice_key(), &monday[0]);
    assert!(again >= reached, "nothing that was told to be here is lost");
    let rest = if again == 0 { monday.clone() } else { rest(again) };
    send_all(third, &rest).unwrap();
    assert!(blocks(&mut there.plain("disk:monday")) == blocks(&mut source.plain("data:monday")));
}

#[test]
fn a_transfer_needs_memory() {
    let names: Vec<String> = (0..8).map(|number| format!("disk{number}")).collect();
    let specs: Vec<VolumeSpec> = names.iter().map(|name| VolumeSpec::plain(name, SIZE)).collect();
    let small = Host::start_with(&specs, |config| {
        config.limits.memory_bytes = Some(64 << 20);
        config.peers[0].receive = vec!["*".into()];
        config.peers.push(PeerRule {
            name: "bob".into(),
            key: bob_key().public().to_string(),
            initiators: vec![BOB.into()],
            volumes: vec!["*".into()],
            read_only: false,
            receive: vec!["*".into()],
            ..PeerRule::default()
        });
    });
    let source = source();
    let monday = stream(&source, "monday", None, None);
    // As many as two nodes may have at the same time, each charged 8 MiB.
    let node = |number: usize| if number < 4 { alice_key() } else { bob_key() };
    let mut admitted = Vec::new();
    let refused =
        names.iter().enumerate().find_map(|(number, name)| match begin(&small, node(number), name, &monday[0]) {
            Ok(begun) => {
                admitted.push(begun);
                None
            }
            Err(error) => Some(error),
        });
    match refused.expect("64 MiB are not enough for eight transfers") {
        TransferError::Refused { code, text } => {
            assert_eq!(code, RefusalCode::Overloaded);
            assert!(text.contains("limits.memory_bytes"), "{text}");
        }
        error => panic!("not refused: {error}"),
    }
    assert!(!admitted.is_empty(), "there is memory for some");
    small.plain("disk7").write(0, &pattern(1, 1));
}

/// A node that says what it likes.
struct Raw(RawPeer);

impl std::ops::Deref for Raw {
    type Target = RawPeer;

    fn deref(&self) -> &RawPeer {
        &self.0
    }
}

impl std::ops::DerefMut for Raw {
    fn deref_mut(&mut self) -> &mut RawPeer {
        &mut self.0
    }
}

impl Raw {
    fn connect(host: &Host, node: &NodeKey) -> Result<Raw, LinkEnd> {
        let options = LinkOptions { transfers: ProtocolUse::Only, ..LinkOptions::default() };
        RawPeer::connect(host, node, options).map(Raw)
    }

    /// With the HELLO of a regular sender, and its answer taken.
    fn begun(host: &Host, node: &NodeKey, begin: &[u8]) -> Raw {
        let mut raw = Raw::connect(host, node).unwrap();
        raw.say(&hello("disk", begin), &[]);
        let answer = raw.hear().unwrap();
        assert_eq!((answer[0], answer.len()), (2, 13), "POSITION: {answer:?}");
        raw
    }

    fn data(&mut self, offset: u64, data: &[u8]) {
        self.say(&[&[4], &offset.to_be_bytes()[..]].concat(), data);
    }

    /// The code of the refusal that it hears next.
    #[track_caller]
    fn refused(&mut self) -> u8 {
        loop {
            match self.hear() {
                Some(message) if message[0] == 3 => return message[1],
                Some(message) => assert!([5, 8].contains(&message[0]), "{message:?}"),
                None => panic!("it was not told why"),
            }
        }
    }
}

fn hello(volume: &str, begin: &[u8]) -> Vec<u8> {
    let part = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    [&[1][..], &part(volume.as_bytes()), &part(begin)].concat()
}

/// All of a stream as bytes.
fn whole(slices: &[Vec<u8>]) -> Vec<u8> {
    slices.concat()
}

/// The destination goes on as before: nothing of the snapshot is there, the volume can be used, and alice's transfer succeeds.
#[track_caller]
fn survives(there: &Host, slices: &[Vec<u8>]) {
    assert!(snapshots(there, "disk").is_empty());
    let (position, outgoing) = outgoing(there, alice_key(), &slices[0]);
    assert_eq!(position, 0, "what was wrong is not kept");
    send_all(outgoing, slices).unwrap();
    assert_eq!(snapshots(there, "disk"), ["monday"]);
}

#[test]
fn attack_an_unknown_peer_gets_no_transfer() {
    let there = destination();
    let stranger = NodeKey::generate();
    let transfer = Raw::connect(&there, &stranger).map(drop).unwrap_err().to_string();
    assert!(transfer.contains(&stranger.public().to_string()), "only that it is not known: {transfer}");
    let storage = Initiator::log_in(&there, Some(stranger), normal(ALICE, "disk")).map(drop).unwrap_err();
    let Refused::Closed(storage) = storage else { panic!("a login is refused in the handshake: {storage:?}") };
    assert_eq!(storage.trim_start_matches("connection lost: "), transfer, "a login is told the same");
}

#[test]
fn attack_a_peer_without_the_right_learns_nothing() {
    let (source, there) = (source(), destination());
    let monday = stream(&source, "monday", None, None);
    let mut answers = Vec::new();
    for (node, volume) in [
        (bob_key(), "other"),
        (bob_key(), "nowhere"),
        (bob_key(), "disk@x"),
        (bob_key(), "../disk"),
        (bob_key(), ""),
        (mallory_key(), "disk"),
        (mallory_key(), "nowhere"),
    ] {
        let mut raw = Raw::connect(&there, &node).unwrap();
        raw.say(&hello(volume, &monday[0]), &[]);
        answers.push(raw.hear().expect("it is told so"));
    }
    assert_eq!((answers[0][0], answers[0][1]), (3, NOT_PERMITTED));
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(there.handle().stats().volumes_open, 0);
    survives(&there, &monday);
}

#[test]
fn attack_another_volumes_stream_does_not_go_in() {
    let (source, there) = (source(), destination());
    let monday = stream(&source, "monday", None, None);
    // HELLO tells of one snapshot, and another one comes.
    let tuesday = stream(&source, "tuesday", None, None);
    let mut raw = Raw::begun(&there, &bob_key(), &monday[0]);
    raw.data(0, &tuesday[0]);
    assert_eq!(raw.refused(), MISBEHAVED);
    // A volume of another size, or a sealed one.
    for spec in [VolumeSpec::plain("data", 2 * SIZE), VolumeSpec::sealed("data", SIZE)] {
        let another = Host::start(&[spec]);
        snapshot(&another, "monday");
        let slices = stream(&another, "monday", None, None);
        let mut raw = Raw::begun(&there, &bob_key(), &slices[0]);
        raw.data(0, &slices[0]);
        assert_eq!(raw.refused(), DOES_NOT_FIT);
    }
    // What was begun of the other snapshot is in nobody's way.
    survives(&there, &monday);
}

#[test]
fn attack_flipped_bytes_of_a_transfer_are_found() {
    let (source, there) = (source(), destination());
    let monday = stream(&source, "monday", None, None);
    let bytes = whole(&monday);
    for at in [40, monday[0].len() + 3, monday[0].len() + 20_000] {
        let mut raw = Raw::begun(&there, &bob_key(), &monday[0]);
        let mut flipped = bytes[..600_000].to_vec();
        flipped[at] ^= 1;
        let mut offset = 0;
        for piece in flipped.chunks(200_000) {
            raw.data(offset, piece);
            offset += piece.len() as u64;
        }
        raw.say(&[&[6], &offset.to_be_bytes()[..]].concat(), &[]);
        assert_eq!(raw.refused(), DAMAGED, "at {at}");
    }
    survives(&there, &monday);
}

#[test]
fn attack_pieces_replayed_reordered_or_left_out_are_refused() {
    let (source, there) = (source(), destination());
    let monday = stream(&source, "monday", None, None);
    let bytes = whole(&monday);
    let (first, second) = (&bytes[..100], &bytes[100..300]);
    let attempt = |pieces: &[(u64, &[u8])]| {
        let mut raw = Raw::begun(&there, &bob_key(), &monday[0]);
        pieces.iter().for_each(|(offset, piece)| raw.data(*offset, piece));
        raw.refused()
    };
    assert_eq!(attempt(&[(0, first), (0, first)]), MISBEHAVED, "a piece again");
    assert_eq!(attempt(&[(100, second), (0, first)]), MISBEHAVED, "another order");
    assert_eq!(attempt(&[(0, first), (300, second)]), MISBEHAVED, "a piece left out");
    // The same with offsets that fit: then the stream itself shows it.
    let begin = monday[0].len() as u64;
    assert_eq!(attempt(&[(0, &monday[0]), (begin, &monday[0])]), DAMAGED, "its beginning again");
    let frame = &bytes[begin as usize..][..32 + be_u32(&bytes[begin as usize + 8..]) as usize];
    let mut raw = Raw::begun(&there, &bob_key(), &monday[0]);
    let mut offset = 0;
    for piece in [&monday[0][..], frame, frame].into_iter().flat_map(|part| part.chunks(100_000)) {
        raw.data(offset, piece);
        offset += piece.len() as u64;
    }
    assert_eq!(raw.refused(), DAMAGED, "a frame again");
    // An end before the end; and after it nothing is there.
    let mut raw = Raw::begun(&there, &bob_key(), &monday[0]);
    raw.say(&[&[6], &0u64.to_be_bytes()[..]].concat(), &[]);
    assert_eq!(raw.refused(), DAMAGED);
    assert!(snapshots(&there, "disk").is_empty());
}

fn be_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

#[test]
fn attack_oversized_lengths_of_a_transfer_are_refused() {
    let (source, there) = (source(), destination());
    let monday = stream(&source, "monday", None, None);
    for message in [
        vec![],
        vec![0],
        vec![1, 0xff, 0xff],
        hello(&"a".repeat(513), &monday[0]),
        hello("disk", &[0; 1025]),
        [hello("disk", &monday[0]), vec![0]].concat(),
        vec![9; 4096],
    ] {
        let mut raw = Raw::connect(&there, &bob_key()).unwrap();
        raw.say(&message, &[]);
        // An empty message is none for the channel already.
        let heard = raw.hear();
        assert!(heard.is_none_or(|heard| heard[..2] == [3, MISBEHAVED]), "{message:?}");
    }
    // What a frame may hold is told before, and a longer one ends the channel.
    let raw = Raw::connect(&there, &bob_key()).unwrap();
    assert_eq!(raw.channel.peer_limits(), (4096, 256 << 10));
    let mut raw = Raw::begun(&there, &bob_key(), &monday[0]);
    raw.data(0, &[]);
    assert_eq!(raw.refused(), MISBEHAVED, "a piece of nothing");
    // A frame of the stream that claims to be longer than any.
    let mut raw = Raw::begun(&there, &bob_key(), &monday[0]);
    let mut forged = monday[0].clone();
    forged[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    raw.data(0, &forged);
    assert_eq!(raw.refused(), DAMAGED);
    survives(&there, &monday);
}

#[test]
fn attack_a_stalled_sender_does_not_hold_the_volume() {
    let there = destination_with(|config| config.limits.transfer_stall_s = 2);
    let source = source();
    let monday = stream(&source, "monday", None, None);
    let mut stalled = Raw::begun(&there, &bob_key(), &monday[0]);
    stalled.data(0, &monday[0]);
    // It says that it is there, for as long as a peer listens, and sends nothing.
    let deadline = Instant::now() + PATIENCE;
    stalled.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let refusal = loop {
        assert!(Instant::now() < deadline, "it holds the place for ever");
        stalled.say(&[8], &[]);
        if let Some(message) = stalled.hear() {
            break message;
        }
    };
    assert_eq!(refusal[..2], [3, STALLED]);
    drop(stalled);
    // One that says nothing at all after its HELLO, or before it.
    let silent = Raw::begun(&there, &bob_key(), &monday[0]);
    eventually("the silent one is gone", || begin(&there, alice_key(), "disk", &monday[0]).is_ok());
    drop(silent);
}

/// Rights and drains count within a second or so also for one that sends hardly anything.
#[test]
fn a_drain_ends_a_transfer_that_is_slow() {
    let (source, there) = (source(), destination());
    let monday = stream(&source, "monday", None, None);
    let mut slow = Raw::begun(&there, &bob_key(), &monday[0]);
    slow.data(0, &monday[0]);
    let drain = Request::Drain { to: None, volume: Some("disk".into()), grace_s: 30 };
    keeper::ask(&there, &drain).unwrap();
    slow.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let refusal = loop {
        assert!(Instant::now() < deadline, "a drained volume is sent into");
        slow.say(&[8], &[]);
        if let Some(message) = slow.hear() {
            break message;
        }
    };
    assert_eq!(refusal[..2], [3, UNAVAILABLE]);
}

#[test]
fn attack_transfers_that_never_begin_leave_places_to_others() {
    let (source, there) = (source(), destination_with(|config| config.limits.login_timeout_s = 600));
    let monday = stream(&source, "monday", None, None);
    let many: Vec<Raw> = (0..12).map(|_| Raw::connect(&there, &bob_key()).unwrap()).collect();
    survives(&there, &monday);
    there.plain("disk").write(0, &pattern(1, 1));
    drop(many);
}

#[test]
fn attack_a_position_beyond_what_was_sent_is_refused() {
    let (source, there) = (source(), destination());
    let monday = stream(&source, "monday", None, None);
    let info = strongroom_store::StreamInfo::peek(&monday[0]).unwrap().unwrap();
    let position = (1 << 62) + 1000;
    let rest = stream(&source, "monday", None, Some(Resume { to: info.to.0, from: None, position }));
    let mut raw = Raw::begun(&there, &bob_key(), &monday[0]);
    raw.data(0, &rest[0]);
    assert_eq!(raw.refused(), MISBEHAVED);
    let mut raw = Raw::connect(&there, &bob_key()).unwrap();
    raw.say(&hello("disk", &rest[0]), &[]);
    let answer = raw.hear().unwrap();
    assert_eq!(answer[1..9], [0; 8], "what HELLO says of a position counts for nothing");
    drop(raw);
    eventually("the one that left is gone", || begin(&there, alice_key(), "disk", &monday[0]).is_ok());
    survives(&there, &monday);
}
