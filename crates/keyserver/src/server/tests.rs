//! Proves what an attacker on the wire, a stranger at the port, and an identity that may do little can do to a key server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use strongroom_block::{SealingDomain, VolumeId};
use strongroom_channel::Scheme;
use strongroom_handshake::{Handshake, Protocols};
use strongroom_seal::{KeyPurpose, VolumeKeyFile};
use tempfile::TempDir;
use zeroize::Zeroizing;

use super::*;
use crate::audit::AuditHead;
use crate::protocol::{Answer, Encoded, Failure, Request};
use crate::standby::news;
use crate::{Client, ClientError, ClientOptions, LocalMasterKey, NewVolume, Rights};

const PATIENCE: Duration = Duration::from_secs(60);

fn node(byte: u8) -> Arc<NodeKey> {
    Arc::new(NodeKey::from_seed(&[byte; 32]))
}

fn domain(byte: u8) -> SealingDomain {
    SealingDomain([byte; 16])
}

/// A server with one volume, which `node(1)` made and `node(2)` may write to, but not read.
struct Site {
    _dir: TempDir,
    server: KeyServer,
}

impl Site {
    fn with(limits: &str) -> Site {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("keys");
        let text = format!(
            "directory = {directory:?}\nlisten = [\"127.0.0.1:0\"]\nnode_key = \"unused\"\n[limits]\n{limits}\n[[identity]]\n\
             name = \"admin\"\nkey = \"{}\"\nroles = [\"administrator\"]\n[[identity]]\nname = \"standby\"\nkey = \"{}\"\n\
             roles = [\"standby\"]\n",
            node(1).public(),
            node(3).public()
        );
        let master = LocalMasterKey::new(&VolumeKeyFile::new(KeyPurpose::Master, &[1; 32])).unwrap();
        let database = Database::open_or_create(&directory, &master).unwrap();
        let config = Config::parse(&text).unwrap();
        let server = KeyServer::start(ServerOptions { config, node_key: node(100), database }).unwrap();
        let site = Site { _dir: dir, server };
        let new = NewVolume { id: VolumeId([1; 16]), name: "vault".into(), domain: domain(1) };
        site.admin().create(new).unwrap();
        let rights = Rights { open: false, seal: true, administer: false };
        site.admin().grant(domain(1), node(2).public(), rights).unwrap();
        site
    }

    fn address(&self) -> SocketAddr {
        self.server.local_addresses()[0]
    }

    fn admin(&self) -> Client {
        client(self.address(), 1, PATIENCE)
    }

    fn log(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let database = &self.server.shared.service.engine.database;
        database
            .lines(1, |line| {
                lines.push(line.text);
                true
            })
            .unwrap();
        lines
    }

    /// An authentic connection, for messages that no client sends.
    fn connection(&self, byte: u8) -> Connection {
        let stream = TcpStream::connect(self.address()).unwrap();
        Connection::connect(stream, &node(byte), &[node(100).public()], Instant::now() + PATIENCE).unwrap()
    }
}

fn client(address: SocketAddr, byte: u8, timeout: Duration) -> Client {
    let servers = vec![address.to_string()];
    Client::new(ClientOptions { servers, server_keys: vec![node(100).public()], node_key: node(byte), timeout })
}

/// What an attacker in the middle does to one direction: the chunk, and where it begins in the stream.
type Hook = Arc<dyn Fn(&mut Vec<u8>, usize) + Send + Sync>;

/// An attacker in the middle.
fn in_the_middle(to: SocketAddr, to_server: Hook, to_client: Hook) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(to)) else { return };
            for (from, into, hook) in [(&client, &server, &to_server), (&server, &client, &to_client)] {
                let (mut from, mut into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                let hook = Arc::clone(hook);
                thread::spawn(move || {
                    let (mut buffer, mut at) = ([0; 4096], 0);
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        let mut chunk = buffer[..count].to_vec();
                        hook(&mut chunk, at);
                        at += count;
                        if into.write_all(&chunk).is_err() {
                            break;
                        }
                    }
                    let _ = (into.shutdown(Shutdown::Write), from.shutdown(Shutdown::Read));
                });
            }
        }
    });
    address
}

fn untouched() -> Hook {
    Arc::new(|_, _| {})
}

/// Carries one connection, with one bit of one direction changed, and says how many bytes went each way. When both ends wait for each
/// other (a length was changed), filler follows: what waits for more must come to a decision, and not to the end of its patience.
fn carry_one(to: SocketAddr, flip: Option<(usize, usize)>) -> (SocketAddr, thread::JoinHandle<[usize; 2]>) {
    const IDLE: Duration = Duration::from_millis(300);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let carry = move || {
        let ends = [listener.accept().unwrap().0, TcpStream::connect(to).unwrap()];
        ends.iter().for_each(|end| end.set_read_timeout(Some(IDLE)).unwrap());
        let passed = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let pump = |direction: usize| {
            let (mut from, mut into) = (&ends[direction], &ends[1 - direction]);
            let mut buffer = [0; 4096];
            loop {
                let at = passed[direction].load(Ordering::SeqCst);
                let before = passed[1 - direction].load(Ordering::SeqCst);
                match from.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => {
                        let chunk = &mut buffer[..count];
                        let here = flip.filter(|flip| flip.0 == direction).and_then(|flip| flip.1.checked_sub(at));
                        if let Some(byte) = here.and_then(|here| chunk.get_mut(here)) {
                            *byte ^= 1;
                        }
                        passed[direction].fetch_add(count, Ordering::SeqCst);
                        if into.write_all(chunk).is_err() {
                            break;
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        let is_changed = flip.is_some_and(|flip| flip.0 == direction && flip.1 < at);
                        let is_idle = before == passed[1 - direction].load(Ordering::SeqCst);
                        if is_changed && is_idle {
                            let _ = into.write_all(&[0xa5; 80 << 10]);
                            break;
                        }
                    }
                    Err(_) => break,
                }
            }
            let _ = (into.shutdown(Shutdown::Write), from.shutdown(Shutdown::Read));
        };
        thread::scope(|scope| {
            scope.spawn(|| pump(0));
            pump(1);
        });
        passed.map(AtomicUsize::into_inner)
    };
    (address, thread::spawn(carry))
}

/// One bit of every byte that travels, in either direction, once. Either the client has a definite error, or the byte meant nothing.
#[test]
fn a_server_that_admits_nobody_does_not_answer_its_watchdog() {
    let site = Site::with("");
    assert!(site.server.answers(PATIENCE) && !site.server.has_failed());
    let half_open = site.server.shared.half_open();
    assert!(!site.server.answers(Duration::from_millis(20)));
    drop(half_open);
    assert!(site.server.answers(PATIENCE));
}

#[test]
fn attack_key_flip_on_the_wire() {
    let site = Site::with("");
    let keys = site.admin().fetch(domain(1)).unwrap().keys;
    let (address, carried) = carry_one(site.address(), None);
    client(address, 1, PATIENCE).fetch(domain(1)).unwrap();
    let bytes = carried.join().unwrap();
    assert!(bytes.iter().all(|bytes| *bytes > 1000), "{bytes:?}");
    let places: Vec<(usize, usize)> =
        (0..2).flat_map(|direction| (0..bytes[direction]).map(move |at| (direction, at))).collect();
    let (next, harmless) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(&place) = places.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let (address, carried) = carry_one(site.address(), Some(place));
                    match client(address, 1, PATIENCE).fetch(domain(1)) {
                        Ok(grant) => {
                            assert_eq!(grant.keys, keys, "direction and byte {place:?}");
                            harmless.lock().unwrap().push(place);
                        }
                        Err(error) => assert!(!error.to_string().contains("in time"), "{place:?}: {error}"),
                    }
                    let passed = carried.join().unwrap();
                    assert!(passed[place.0] > place.1, "{place:?} was never sent: {passed:?}");
                }
            });
        }
    });
    // The version in front of a TLS record is for the eyes of old middleboxes, and so is the type of one that is encrypted.
    let harmless = harmless.into_inner().unwrap();
    println!("{} of {} bytes mean nothing: {harmless:?}", harmless.len(), places.len());
    assert!(harmless.len() <= 16, "{harmless:?}");
    assert_eq!(site.admin().fetch(domain(1)).unwrap().keys, keys);
}

#[test]
fn attack_key_replay_a_request() {
    let site = Site::with("setup_timeout_s = 1");
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let record: Hook = {
        let recorded = Arc::clone(&recorded);
        Arc::new(move |chunk, _| recorded.lock().unwrap().extend_from_slice(chunk))
    };
    let address = in_the_middle(site.address(), record, untouched());
    assert_eq!(client(address, 1, PATIENCE).rotate(domain(1)).unwrap(), 2);
    // The whole connection once more.
    let mut again = TcpStream::connect(site.address()).unwrap();
    again.write_all(&recorded.lock().unwrap()).unwrap();
    let _ = again.read_to_end(&mut Vec::new());
    assert_eq!(site.admin().info(domain(1)).unwrap().current_epoch, 2);
    // One request twice: what a client sends once its connection is confirmed is its request.
    let confirmed = Arc::new(AtomicUsize::new(0));
    let (answers, twice): (Hook, Hook) = {
        let (told, confirmed) = (Arc::clone(&confirmed), Arc::clone(&confirmed));
        (
            Arc::new(move |_, _| {
                told.fetch_add(1, Ordering::SeqCst);
            }),
            Arc::new(move |chunk, _| {
                if confirmed.load(Ordering::SeqCst) > 1 {
                    chunk.extend_from_within(..);
                }
            }),
        )
    };
    let address = in_the_middle(site.address(), twice, answers);
    let rotated = client(address, 1, PATIENCE).rotate(domain(1));
    let epoch = site.admin().info(domain(1)).unwrap().current_epoch;
    assert!(epoch == 3 || (rotated.is_err() && epoch == 2), "once or not at all: {epoch}, {rotated:?}");
}

#[test]
fn attack_key_a_target_in_the_place_of_a_key_server() {
    let schemes = [Scheme::EncryptAll];
    let everybody = || Arc::new(|_: &PublicKey| true);
    for (offered, admitted) in
        [(Protocols::Keys, Protocols::from(&schemes)), (Protocols::from(&schemes), Protocols::Keys)]
    {
        let mut initiator = Handshake::initiator(&node(1), &[node(100).public()], offered).unwrap();
        let mut target = Handshake::target(&node(100), everybody(), admitted).unwrap();
        let (mut refusals, mut rounds) = (Vec::new(), 0);
        while refusals.len() < 2 && rounds < 8 {
            rounds += 1;
            let bytes = initiator.poll_transmit().unwrap_or_default();
            refusals.extend(feed(&mut target, &bytes));
            let bytes = target.poll_transmit().unwrap_or_default();
            refusals.extend(feed(&mut initiator, &bytes));
        }
        assert_eq!(refusals, [HandshakeError::NoCommonScheme, HandshakeError::NoCommonScheme]);
        assert!(initiator.finished().is_none() && target.finished().is_none());
    }
}

fn feed(handshake: &mut Handshake, mut bytes: &[u8]) -> Option<HandshakeError> {
    while !bytes.is_empty() {
        match handshake.handle_input(bytes) {
            Ok(0) => return None,
            Ok(taken) => bytes = &bytes[taken..],
            Err(error) => return Some(error),
        }
    }
    None
}

#[test]
fn attack_key_malformed_requests() {
    let site = Site::with("refusals_per_minute = 1000");
    let good = Request::Rotate { domain: domain(1) }.encode(7).to_vec();
    let answer = Answer::Epoch(9).encode(7, 1).message.to_vec();
    let mut newer = good.clone();
    newer[0] = 9;
    let mut unknown = good.clone();
    unknown[1] = 0x7f;
    let longer = [&good[..], &[0]].concat();
    let messages = [&good[..10], &good[..3], &[], &newer, &unknown, &longer, &answer, &[0xff; 65_535]];
    for message in messages {
        let mut connection = site.connection(1);
        let encoded = Encoded { message: Zeroizing::new(message.to_vec()), bulk: Zeroizing::default() };
        connection.send(&encoded, Instant::now() + PATIENCE).unwrap();
        // It may be told so; then it is over.
        let told = connection.receive(Instant::now() + PATIENCE, PATIENCE);
        if let Ok(Some(told)) = told {
            let (_, _, answer) = Answer::decode(told.bytes(), &told.bulk).unwrap();
            assert_eq!(answer, Answer::Failure(Failure::Malformed));
            assert!(matches!(connection.receive(Instant::now() + PATIENCE, PATIENCE), Ok(None) | Err(_)));
        }
    }
    let mut connection = site.connection(1);
    let bulky = Encoded { message: Zeroizing::new(good.clone()), bulk: Zeroizing::new(vec![0; 1000]) };
    // What a server does not take, the channel does not send.
    assert!(connection.send(&bulky, Instant::now() + PATIENCE).is_err());
    assert_eq!(site.admin().info(domain(1)).unwrap().current_epoch, 1);
    let told = site.log().iter().filter(|line| line.ends_with("malformed request")).count();
    assert_eq!(told, messages.len());
}

#[test]
fn attack_key_half_open_connections() {
    let site = Site::with("connections_max = 6\nsetup_timeout_s = 1");
    let silent: Vec<TcpStream> = (0..20).filter_map(|_| TcpStream::connect(site.address()).ok()).collect();
    let started = Instant::now();
    while site.admin().status().is_err() {
        assert!(started.elapsed() < PATIENCE, "unknown peers keep all others out");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(!site.server.metrics().contains("connections_refused_total 0\n"));
    drop(silent);
}

/// Unknown peers of one address evict one another, not a peer from another address.
#[test]
fn attack_key_half_open_connections_of_one_address_are_bounded() {
    let site = Site::with("connections_max = 200\nsetup_timeout_s = 300");
    let elsewhere = {
        let SocketAddr::V4(to) = site.address() else { panic!("it listens there") };
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
        let from = std::net::SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 0);
        rustix::net::bind(&socket, &from).unwrap();
        rustix::net::connect(&socket, &to).unwrap();
        TcpStream::from(socket)
    };
    let taken = |count: usize| {
        let started = Instant::now();
        while site.server.shared.half_open().len() < count {
            assert!(started.elapsed() < PATIENCE, "they are taken");
            thread::sleep(Duration::from_millis(5));
        }
    };
    taken(1);
    // A quarter of half of them, and one more.
    let same_address: Vec<TcpStream> = (0..26).map(|_| TcpStream::connect(site.address()).unwrap()).collect();
    taken(27);
    let others: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(site.address()).unwrap()).collect();
    // The oldest of their own address end, and no more connections are half-open than before.
    let mut oldest = &same_address[0];
    oldest.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(!matches!(oldest.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
    site.admin().status().unwrap();
    assert!(site.server.shared.half_open().len() <= 28);
    let mut elsewhere = &elsewhere;
    elsewhere.set_nonblocking(true).unwrap();
    let waits = elsewhere.read(&mut [0]).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "who comes from elsewhere is still waited for");
    drop((same_address, others));
}

/// What an attacker on the path can say before the server is authenticated does not withdraw keys.
#[test]
fn attack_key_what_is_not_proven_is_no_refusal() {
    let ends: [fn(TcpStream); 4] = [
        |stream| drop(stream),
        // A fatal alert, access_denied, in the clear.
        |mut stream| drop(stream.write_all(&[0x15, 3, 3, 0, 2, 2, 49])),
        |mut stream| drop(stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n")),
        |mut stream| drop((stream.read(&mut [0; 100]), stream.write_all(&[0; 600]))),
    ];
    for end in ends {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || listener.incoming().flatten().for_each(end));
        let error = client(address, 1, PATIENCE).fetch(domain(1)).unwrap_err();
        assert!(error.is_temporary(), "{error}");
    }
    // Nor does a server with another key, or one that shows an older revision: the next may be the right one.
    let site = Site::with("");
    let servers = vec![site.address().to_string()];
    let options = ClientOptions { servers, server_keys: vec![node(99).public()], node_key: node(1), timeout: PATIENCE };
    let error = Client::new(options).fetch(domain(1)).unwrap_err();
    assert!(error.is_temporary() && error.to_string().contains("not the expected one"), "{error}");
    assert!(ClientError::RolledBack { known: 2, told: 1 }.is_temporary());
    // One that has proven who it is, and refuses, does.
    assert!(!client(site.address(), 2, PATIENCE).fetch(domain(1)).unwrap_err().is_temporary());
}

/// A holder of a standby's identity gets every key: an audit record is written before the first byte leaves, and a second follower gets nothing.
#[test]
fn attack_key_follow_without_a_trace() {
    let site = Site::with("");
    let follow = |connection: &mut Connection, number: u32| {
        let head = AuditHead::start(&[0; 16]);
        let request = Request::Follow { generation: 1, sequence: 0, head }.encode(number);
        connection.send(&Encoded { message: request, bulk: Zeroizing::default() }, Instant::now() + PATIENCE).unwrap();
        let message = connection.receive(Instant::now() + PATIENCE, PATIENCE).unwrap().unwrap();
        Answer::decode(message.bytes(), &message.bulk).unwrap().2
    };
    let short = crate::audit::short(&node(3).public());
    let told = |what: &str| site.log().iter().filter(|line| line.contains(&format!("{short} {what}"))).count();
    let mut first = site.connection(3);
    assert_eq!(told("follow"), 0);
    let Answer::Part { bytes, .. } = follow(&mut first, 1) else { panic!("it is given everything") };
    assert_eq!(bytes[..], [news::SNAPSHOT]);
    assert_eq!((told("follow snapshot volumes=1 revision="), told("follow")), (1, 2), "{:?}", site.log());
    // Another connection, of the same identity even.
    let refused =
        |answer| matches!(answer, Answer::Failure(Failure::Conflict(text)) if text.contains("another standby"));
    let mut second = site.connection(3);
    assert!(refused(follow(&mut second, 1)));
    assert_eq!(told("refused follow"), 1);
    // Its place is free once it is gone; the log counts it, or has a line of it.
    drop(first);
    let started = Instant::now();
    while refused(follow(&mut second, 2)) {
        assert!(started.elapsed() < PATIENCE, "the first one is gone");
        thread::sleep(Duration::from_millis(20));
    }
    // A peer without the role.
    let mut other = site.connection(2);
    assert_eq!(follow(&mut other, 1), Answer::Failure(Failure::Refused));
}

/// A standby that was taken over can ask for everything as often as it likes; the log grows by what it did not have before.
#[test]
fn attack_key_follow_from_nowhere_again_and_again() {
    let site = Site::with("repeated_lines_s = 3600");
    let mut connection = site.connection(3);
    for number in 1..=20_u8 {
        let head = AuditHead { lines: 1, hash: [number; 32] };
        let request = Request::Follow { generation: 1, sequence: 1, head }.encode(number.into());
        let request = Encoded { message: request, bulk: Zeroizing::default() };
        connection.send(&request, Instant::now() + PATIENCE).unwrap();
        loop {
            let message = connection.receive(Instant::now() + PATIENCE, PATIENCE).unwrap().unwrap();
            match Answer::decode(message.bytes(), &message.bulk).unwrap().2 {
                Answer::Part { last: false, .. } => {}
                Answer::Part { last: true, .. } => break,
                other => panic!("it is given everything: {other:?}"),
            }
        }
    }
    let told = |site: &Site| site.log().iter().filter(|line| line.contains(" follow")).count();
    assert_eq!(told(&site), 2, "{:?}", site.log());
    site.admin().rotate(domain(1)).unwrap();
    drop(connection);
    let nowhere = Request::Follow { generation: 1, sequence: 1, head: AuditHead { lines: 1, hash: [0; 32] } };
    let started = Instant::now();
    while client(site.address(), 3, PATIENCE).pieces(&nowhere, &mut |_| Ok(())).is_err() {
        assert!(started.elapsed() < PATIENCE, "its place is free");
    }
    assert_eq!(told(&site), 3, "what is new is told: {:?}", site.log());
}

#[test]
fn attack_key_ask_for_a_thousand_volumes() {
    let site = Site::with("refusals_per_minute = 10");
    let them = client(site.address(), 2, PATIENCE);
    let mut answered = 0;
    let error = loop {
        match them.fetch(domain(answered)) {
            Err(ClientError::Refused) => answered += 1,
            other => break other.unwrap_err(),
        }
    };
    assert!(matches!(error, ClientError::TooMany), "{error}");
    assert!(answered < 10, "{answered}");
    // From now on each costs a second and a connection, and none of them a line.
    let started = Instant::now();
    assert!(matches!(them.fetch(domain(200)), Err(ClientError::TooMany)));
    assert!(started.elapsed() >= Duration::from_secs(1));
    let lines = site.log().iter().filter(|line| line.contains("refused fetch")).count();
    assert!(lines <= 10, "{lines} lines");
    // Others are served.
    site.admin().fetch(domain(1)).unwrap();
}
