//! Proves at the port of a running target, with its default limits, that a flood of connections from several addresses keeps nobody out
//! who can prove who he is: not while a thousand discovery sessions answer every ping, and not while a thousand handshakes stay half open.
//! What makes way is connected again at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use strongroom_block::Buffer;
use strongroom_handshake::NodeKey;
use strongroom_iscsi::initiator::{Event, Session};
use strongroom_iscsi::pdu::{Answer, LoginRequest};
use strongroom_iscsi::{LoginStatus, Pdu};
use strongroom_net::{Link, LinkEvent, LinkOptions};
use strongroom_target::VolumeSpec;

use crate::support::{
    ALICE, Host, Initiator, MIB, PATIENCE, Refused, alice_key, discovery, eventually, normal, raise_file_limit,
    target_name,
};

/// More than there are places for everybody together.
const FLOOD: usize = 1100;
/// From this many addresses, each of which stays below its own limit.
const ADDRESSES: usize = 5;
/// Connections that are made in a turn, and the pause behind it.
const PER_TURN: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);
/// How long an initiator with a key may take to get in, on a machine that is busy with other tests.
const BOUND: Duration = Duration::from_secs(30);

/// What a connection of a flood does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flooder {
    /// A discovery session that answers pings.
    Discovery,
    /// The first message of a handshake, and nothing more.
    HalfOpen,
}

struct Connection {
    initiator: Initiator,
    /// Its first message is all that it sends.
    is_silent: bool,
}

impl Connection {
    fn open(host: (SocketAddr, &NodeKey), flooder: Flooder, number: usize) -> Option<Connection> {
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 1, 1 + (number % ADDRESSES) as u8), 0));
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
        bind(&fd, &from).ok()?;
        connect(&fd, &host.0).ok()?;
        let stream = TcpStream::from(fd);
        stream.set_nonblocking(true).unwrap();
        let now = Instant::now();
        let link = match flooder {
            Flooder::Discovery => Link::initiator_plain(LinkOptions::default(), now),
            Flooder::HalfOpen => Link::initiator_channel(
                &NodeKey::from_seed(&[0xee; 32]),
                &[host.1.public()],
                LinkOptions::default(),
                now,
            )
            .unwrap(),
        };
        let session = Session::new(now, discovery(&format!("iqn.2026-11.org.example:flood{number}")));
        let mut initiator = Initiator {
            stream,
            link,
            session,
            events: Vec::new(),
            ended: None,
            established: false,
            extra_segments: Vec::new(),
        };
        initiator.flush();
        Some(Connection { initiator, is_silent: flooder == Flooder::HalfOpen })
    }

    /// Takes in what has come, and answers. Whether the target has ended the connection.
    fn turn(&mut self, bytes: &mut [u8], logged_in: &AtomicUsize) -> bool {
        let initiator = &mut self.initiator;
        match initiator.stream.read(bytes) {
            Ok(0) => return true,
            Ok(len) if !self.is_silent => initiator.link.handle_input(&bytes[..len]),
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
        if !self.is_silent {
            initiator.flush();
            let is_login = |event: &Event| matches!(event, Event::LoggedIn { .. });
            logged_in.fetch_add(initiator.events.drain(..).filter(is_login).count(), Ordering::Relaxed);
        }
        initiator.ended.is_some()
    }
}

/// Connections that come back whenever they are ended, until this is dropped.
struct Flood {
    is_over: Arc<AtomicBool>,
    logged_in: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn begin(host: &Host, flooder: Flooder) -> Flood {
        let (is_over, logged_in) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (over, count, at) = (Arc::clone(&is_over), Arc::clone(&logged_in), host.address());
        let target = crate::support::target_key();
        let thread = std::thread::spawn(move || {
            let mut connections: Vec<Option<Connection>> = (0..FLOOD).map(|_| None).collect();
            let mut bytes = vec![0; 16 << 10];
            while !over.load(Ordering::Relaxed) {
                let mut left = PER_TURN;
                for (number, connection) in connections.iter_mut().enumerate() {
                    if connection.as_mut().is_some_and(|connection| connection.turn(&mut bytes, &count)) {
                        *connection = None;
                    }
                    if connection.is_none() && left > 0 {
                        left -= 1;
                        *connection = Connection::open((at, &target), flooder, number);
                    }
                }
                std::thread::sleep(PAUSE);
            }
        });
        Flood { is_over, logged_in, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Alice's session by its handle: a login through a channel, by hand, as a recovering initiator's is.
fn rejoin(host: &Host, isid: [u8; 6], tsih: u16) -> Option<LoginStatus> {
    let mut stream = TcpStream::connect(host.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut link = Link::initiator_channel(&alice_key(), &[host.node], LinkOptions::default(), Instant::now()).unwrap();
    let mut bytes = vec![0; 16 << 10];
    loop {
        let mut out = Vec::new();
        link.poll_transmit(&mut out);
        out.iter().try_for_each(|piece| stream.write_all(piece)).ok()?;
        match stream.read(&mut bytes).ok()? {
            0 => return None,
            len => link.handle_input(&bytes[..len]),
        }
        match link.poll_event() {
            Some(LinkEvent::Established { .. }) => {
                let request = LoginRequest { tsih, cid: 1, ..LoginRequest::one_step(isid) };
                let target = target_name("vault");
                let text = format!("InitiatorName={ALICE}\0TargetName={target}\0SessionType=Normal\0");
                link.send_pdu(Pdu::new(request.encode(), Bytes::new(), Buffer::copy_from(text.as_bytes()), false));
            }
            Some(LinkEvent::Pdu(pdu)) => {
                let Ok(Answer::Login(answer)) = Answer::decode(&pdu.bhs) else { panic!("{pdu:?}") };
                return Some(answer.status);
            }
            Some(_) => return None,
            None => {}
        }
    }
}

/// Tries until it comes to something; panics if that takes too long.
#[track_caller]
fn within_bound<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        let outcome = attempt();
        assert!(began.elapsed() < BOUND, "{what} took {:?}", began.elapsed());
        if let Some(done) = outcome {
            return done;
        }
    }
}

fn nobody_with_a_key_is_kept_out(flooder: Flooder) {
    raise_file_limit();
    let volumes = [VolumeSpec::plain("disk", MIB), VolumeSpec::sealed("vault", MIB)];
    let host = Host::start_with(&volumes, |config| {
        (config.limits.ping_after_s, config.limits.time2retain_s) = (1, 600);
        (config.limits.discovery_timeout_s, config.limits.login_timeout_s) = (600, 600);
    });
    // A session of alice's waits for her to come back.
    let mut config = normal(ALICE, "vault");
    (config.offer.error_recovery_level, config.offer.time2retain_s) = (2, 600);
    let isid = config.isid;
    let mut gone = Initiator::connect(&host, Some(alice_key()), config);
    let tsih = gone.pump_until(|initiator| {
        initiator.events.drain(..).find_map(|event| match event {
            Event::LoggedIn { tsih, .. } => Some(tsih),
            _ => None,
        })
    });
    drop(gone);
    eventually("its connection is lost", || host.handle().stats().connections == 0);
    let [session] = &host.handle().sessions()[..] else { panic!("one session waits") };
    assert_eq!(session.peer.as_deref(), Some("alice"));

    let flood = Flood::begin(&host, flooder);
    eventually("the flood has all that it can get", || {
        let stats = host.handle().stats();
        let is_in = flooder != Flooder::Discovery || flood.logged_in.load(Ordering::Relaxed) > FLOOD;
        stats.connections > 500 && stats.connections_evicted + stats.connections_refused > 100 && is_in
    });
    for which in 2..10 {
        let mut admitted = within_bound("a login", || {
            let mut config = normal(ALICE, "vault");
            config.isid[5] = which;
            match Initiator::log_in(&host, Some(alice_key()), config) {
                Ok(session) => Some(session),
                // It made way while it proved who it is; an initiator tries again.
                Err(Refused::Closed(_)) => None,
                Err(refused) => panic!("{refused:?}"),
            }
        });
        admitted.synchronize();
        assert_eq!(admitted.log_out(), "logged out");
    }
    assert_eq!(within_bound("coming back", || rejoin(&host, isid, tsih)), LoginStatus::SUCCESS, "the session was kept");
    let stats = host.handle().stats();
    assert!(stats.connections <= 1025, "{stats:?}");
    drop(flood);
}

#[test]
fn attack_a_thousand_discovery_sessions_that_answer_pings() {
    nobody_with_a_key_is_kept_out(Flooder::Discovery);
}

#[test]
fn attack_a_thousand_half_open_handshakes() {
    nobody_with_a_key_is_kept_out(Flooder::HalfOpen);
}
