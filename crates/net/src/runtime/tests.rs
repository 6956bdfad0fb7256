//! Proves that a runtime keeps its promises over real sockets, the same on io_uring and epoll: bytes in order and
//! once, back-pressure both ways, ends and failures told, streams moved between threads without loss.

mod polling;
mod refused;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::*;

/// What a test remembers of an event.
#[derive(Debug, PartialEq, Eq, Clone)]
enum Seen {
    Accepted(StreamId),
    Connected(StreamId),
    Finished(StreamId),
    SendLow(StreamId),
    Closed(StreamId, String),
    Woken,
}

struct Bench {
    runtime: Runtime,
    seen: Vec<Seen>,
    received: Vec<(StreamId, Vec<u8>)>,
}

const PATIENCE: Duration = Duration::from_secs(60);

impl Bench {
    fn new(flavour: FlavourChoice) -> Bench {
        Bench::with(RuntimeOptions { flavour, ..RuntimeOptions::default() })
    }

    fn with(options: RuntimeOptions) -> Bench {
        Bench { runtime: Runtime::new(options).unwrap(), seen: Vec::new(), received: Vec::new() }
    }

    fn listen(&mut self) -> SocketAddr {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_address();
        self.runtime.listen(listener).unwrap();
        address
    }

    fn step(&mut self, timeout: Duration) {
        self.runtime.poll(Some(timeout)).unwrap();
        while let Some(event) = self.runtime.next_event() {
            let seen = match event {
                Event::Received { stream, bytes } => {
                    assert!(!bytes.is_empty());
                    match self.received.iter_mut().find(|(other, _)| *other == stream) {
                        Some((_, all)) => all.extend_from_slice(bytes),
                        None => self.received.push((stream, bytes.to_vec())),
                    }
                    continue;
                }
                Event::Accepted { stream, .. } => Seen::Accepted(stream),
                Event::Connected { stream } => Seen::Connected(stream),
                Event::PeerFinished { stream } => Seen::Finished(stream),
                Event::SendLow { stream } => Seen::SendLow(stream),
                Event::Closed { stream, failure } => Seen::Closed(stream, failure.to_string()),
                Event::Woken => Seen::Woken,
                Event::DatagramsReady { .. } => unreachable!("no datagram socket is watched"),
            };
            self.seen.push(seen);
        }
    }

    /// Steps until `done` holds, or fails the test.
    #[track_caller]
    fn until(&mut self, mut done: impl FnMut(&Bench) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "waited in vain; seen {:?}", self.seen);
            self.step(Duration::from_millis(20));
        }
    }

    /// Steps for a while in which `never` must not come to hold.
    #[track_caller]
    fn settle(&mut self) {
        let deadline = Instant::now() + Duration::from_millis(150);
        while Instant::now() < deadline {
            self.step(Duration::from_millis(10));
        }
    }

    fn accepted(&mut self) -> StreamId {
        self.until(|bench| bench.seen.iter().any(|seen| matches!(seen, Seen::Accepted(_))));
        let at = self.seen.iter().position(|seen| matches!(seen, Seen::Accepted(_))).unwrap();
        let Seen::Accepted(stream) = self.seen.remove(at) else { unreachable!() };
        stream
    }

    fn bytes_of(&self, stream: StreamId) -> &[u8] {
        self.received.iter().find(|(other, _)| *other == stream).map_or(&[], |(_, bytes)| bytes)
    }

    fn send(&mut self, stream: StreamId, bytes: &[u8]) -> SendState {
        self.runtime.send(stream, &mut vec![Buffer::copy_from(bytes)])
    }
}

/// Runs `test` on every flavour that this machine has.
fn on_each_flavour(test: impl Fn(FlavourChoice)) {
    for flavour in [FlavourChoice::Epoll, FlavourChoice::IoUring] {
        match Runtime::new(RuntimeOptions { flavour, ..RuntimeOptions::default() }) {
            Ok(_) => test(flavour),
            Err(error) => eprintln!("skipped on {flavour:?}: {error}"),
        }
    }
}

fn pattern(len_bytes: usize, seed: u8) -> Vec<u8> {
    (0..len_bytes).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed).collect()
}

#[test]
fn the_kernel_tells_of_the_way() {
    let mut bench = Bench::new(FlavourChoice::Epoll);
    let address = bench.listen();
    let stream = bench.runtime.connect(address).unwrap();
    let begun = Instant::now();
    while !bench.seen.contains(&Seen::Connected(stream)) && begun.elapsed() < PATIENCE {
        bench.step(Duration::from_millis(10));
    }
    let path = bench.runtime.path(stream).expect("the handshake was a measurement");
    assert!(path.smallest_round_trip > Duration::ZERO && path.smallest_round_trip <= path.round_trip, "{path:?}");
    assert!(path.round_trip < PATIENCE && path.congestion.is_some(), "{path:?}");
    assert!(path.congestion_window_segments > 1 && path.retransmits == 0, "{path:?}");
    let paused = PathInfo { congestion_window_segments: 4, congestion: Some("bbr".into()), ..path.clone() };
    let lost = PathInfo { congestion: Some("cubic".into()), ..paused.clone() };
    assert_eq!((path.is_paused(), paused.is_paused(), lost.is_paused()), (false, true, false));
    assert_eq!(bench.runtime.path(StreamId { generation: stream.generation + 7, ..stream }), None);
}

#[test]
fn talks_both_ways_over_ipv4_and_ipv6() {
    on_each_flavour(|flavour| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = Listener::bind(address.parse().unwrap()) else {
                eprintln!("skipped: no {address} here");
                continue;
            };
            let mut bench = Bench::new(flavour);
            let address = listener.local_address();
            bench.runtime.listen(listener).unwrap();
            let caller = bench.runtime.connect(address).unwrap();
            assert_eq!(bench.send(caller, b"queued before connected"), SendState::Ready);
            let callee = bench.accepted();
            bench.until(|bench| bench.bytes_of(callee) == b"queued before connected");
            assert!(bench.seen.contains(&Seen::Connected(caller)));
            assert_eq!(bench.runtime.peer(caller), Some(address));
            let _ = bench.send(callee, b"answer");
            bench.until(|bench| bench.bytes_of(caller) == b"answer");
        }
    });
}

#[test]
fn many_bytes_in_odd_pieces_arrive_once_and_in_order() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let address = bench.listen();
        let caller = bench.runtime.connect(address).unwrap();
        let callee = bench.accepted();
        let all = pattern(12 << 20, 1);
        let whole = Buffer::copy_from(&all);
        let (mut at, mut step, mut buffers) = (0, 1, Vec::new());
        while at < whole.len() {
            let end = (at + step).min(whole.len());
            buffers.push(whole.slice(at..end));
            (at, step) = (end, step * 7 % 100_003 + 1);
        }
        let _ = bench.runtime.send(caller, &mut buffers);
        bench.until(|bench| bench.bytes_of(callee).len() >= all.len());
        assert!(bench.bytes_of(callee) == all);
        assert_eq!(bench.runtime.queued_bytes(caller), 0);
        // Far fewer calls than pieces: vectored writes and large receives.
        let counters = bench.runtime.counters();
        assert_eq!(counters.sent_bytes, counters.received_bytes);
    });
}

#[test]
fn queue_above_high_water_says_full_and_then_low() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::with(RuntimeOptions {
            flavour,
            send_high_water_bytes: 1 << 20,
            send_low_water_bytes: 64 << 10,
            stream: StreamOptions { send_buffer_bytes: Some(64 << 10), ..StreamOptions::default() },
            ..RuntimeOptions::default()
        });
        let address = bench.listen();
        let mut reader = TcpStream::connect(address).unwrap();
        let stream = bench.accepted();
        let part = pattern(256 << 10, 2);
        let mut sent = 0;
        while bench.send(stream, &part) == SendState::Ready {
            sent += part.len();
            assert!(sent < 64 << 20, "never full");
        }
        sent += part.len();
        assert!(bench.runtime.queued_bytes(stream) > 1 << 20);
        bench.settle();
        assert!(!bench.seen.contains(&Seen::SendLow(stream)));
        let reading = std::thread::spawn(move || {
            let mut all = vec![0; sent];
            reader.read_exact(&mut all).unwrap();
            all
        });
        bench.until(|bench| bench.seen.contains(&Seen::SendLow(stream)));
        assert!(bench.runtime.queued_bytes(stream) <= 64 << 10);
        bench.until(|bench| bench.runtime.queued_bytes(stream) == 0);
        let all = reading.join().unwrap();
        assert!(all.chunks(part.len()).all(|chunk| chunk == part));
    });
}

#[test]
fn a_peer_that_never_reads_is_given_up() {
    on_each_flavour(|flavour| {
        let mut bench =
            Bench::with(RuntimeOptions { flavour, send_queue_bytes_max: 8 << 20, ..RuntimeOptions::default() });
        let address = bench.listen();
        let _silent = TcpStream::connect(address).unwrap();
        let stream = bench.accepted();
        let part = pattern(1 << 20, 3);
        for _ in 0..64 {
            let _ = bench.send(stream, &part);
        }
        bench.until(|bench| bench.seen.iter().any(|seen| matches!(seen, Seen::Closed(id, _) if *id == stream)));
        let Some(Seen::Closed(_, message)) = bench.seen.last() else { unreachable!() };
        assert!(message.contains("takes no data"), "{message}");
        bench.until(|bench| bench.runtime.streams_count() == 0);
    });
}

#[test]
fn receiving_stops_and_resumes_without_loss() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let address = bench.listen();
        let mut peer = TcpStream::connect(address).unwrap();
        let stream = bench.accepted();
        peer.write_all(b"one").unwrap();
        bench.until(|bench| bench.bytes_of(stream) == b"one");
        bench.runtime.set_receiving(stream, false);
        peer.write_all(b"two").unwrap();
        bench.settle();
        assert_eq!(bench.bytes_of(stream), b"one");
        bench.runtime.set_receiving(stream, true);
        bench.until(|bench| bench.bytes_of(stream) == b"onetwo");
        // Stop right after more was sent: it may be on its way through the ring.
        peer.write_all(b"three").unwrap();
        bench.runtime.set_receiving(stream, false);
        drop(peer);
        bench.settle();
        assert_eq!(bench.bytes_of(stream), b"onetwo");
        bench.runtime.set_receiving(stream, true);
        bench.until(|bench| bench.seen.contains(&Seen::Finished(stream)));
        assert_eq!(bench.bytes_of(stream), b"onetwothree");
    });
}

#[test]
fn a_half_closed_peer_still_gets_its_answer() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let address = bench.listen();
        let mut peer = TcpStream::connect(address).unwrap();
        let stream = bench.accepted();
        peer.write_all(b"last words").unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        bench.until(|bench| bench.seen.contains(&Seen::Finished(stream)));
        assert_eq!(bench.bytes_of(stream), b"last words");
        bench.settle();
        assert_eq!(bench.seen.iter().filter(|seen| **seen == Seen::Finished(stream)).count(), 1);
        let answer = pattern(3 << 20, 4);
        let _ = bench.send(stream, &answer);
        bench.runtime.close(stream);
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).map(|_| all)
        });
        bench.until(|bench| bench.runtime.streams_count() == 0);
        assert!(reading.join().unwrap().unwrap() == answer);
    });
}

#[test]
fn close_hands_over_the_queue_though_the_peer_goes_on_talking() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let address = bench.listen();
        let mut peer = TcpStream::connect(address).unwrap();
        let stream = bench.accepted();
        peer.write_all(&pattern(100_000, 5)).unwrap();
        let refusal = pattern(500_000, 6);
        let _ = bench.send(stream, &refusal);
        bench.runtime.close(stream);
        assert_eq!(bench.send(stream, b"after close"), SendState::Ready);
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.write_all(&pattern(100_000, 7)).unwrap();
            peer.read_to_end(&mut all).map(|_| all)
        });
        bench.until(|bench| bench.runtime.streams_count() == 0);
        // A plain close(2) with unread bytes would have reset the connection and lost the refusal.
        assert!(reading.join().unwrap().unwrap() == refusal);
        assert!(bench.seen.iter().all(|seen| !matches!(seen, Seen::Closed(..) | Seen::Finished(_))));
        assert!(bench.bytes_of(stream).is_empty());
    });
}

#[test]
fn abort_is_a_failure_for_the_peer() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let address = bench.listen();
        let caller = bench.runtime.connect(address).unwrap();
        let callee = bench.accepted();
        let _ = bench.send(caller, b"never read by the peer");
        bench.settle();
        bench.runtime.abort(callee);
        bench.until(|bench| bench.seen.iter().any(|seen| matches!(seen, Seen::Closed(id, _) if *id == caller)));
        assert!(!bench.seen.contains(&Seen::Finished(caller)), "that would be an end in order");
        bench.runtime.abort(caller);
        bench.until(|bench| bench.runtime.streams_count() == 0);
    });
}

#[test]
fn a_moved_stream_loses_nothing() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let address = bench.listen();
        let mut peer = TcpStream::connect(address).unwrap();
        let stream = bench.accepted();
        peer.write_all(b"login").unwrap();
        bench.until(|bench| bench.bytes_of(stream) == b"login");
        // In flight in both directions at the moment of the move, more than any socket buffer holds.
        let inbound = pattern(6 << 20, 8);
        let outbound = pattern(10 << 20, 9);
        let (inbound_sent, outbound_len) = (inbound.clone(), outbound.len());
        let mut writing_half = peer.try_clone().unwrap();
        let writing = std::thread::spawn(move || writing_half.write_all(&inbound_sent).unwrap());
        let _ = bench.send(stream, &outbound);
        bench.step(Duration::from_millis(5));
        let before = bench.bytes_of(stream).len() - b"login".len();
        let detached = bench.runtime.detach(stream).unwrap();
        assert_eq!(bench.runtime.streams_count(), 0);
        assert!(bench.runtime.detach(stream).is_err());
        bench.settle();
        assert_eq!(bench.bytes_of(stream).len() - b"login".len(), before);

        let rest = inbound.len() - before;
        let other = std::thread::spawn(move || {
            let mut bench = Bench::new(flavour);
            let stream = bench.runtime.attach(detached).unwrap();
            bench.until(|bench| bench.bytes_of(stream).len() >= rest && bench.runtime.queued_bytes(stream) == 0);
            bench.received.remove(0).1
        });
        let mut got = vec![0; outbound_len];
        peer.read_exact(&mut got).unwrap();
        writing.join().unwrap();
        let after = other.join().unwrap();
        assert!(got == outbound);
        let mut all = bench.bytes_of(stream)[b"login".len()..].to_vec();
        all.extend_from_slice(&after);
        assert!(all == inbound);
    });
}

#[test]
fn wakes_from_other_threads_coalesce_and_none_is_lost() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let waker = bench.runtime.waker();
        for _ in 0..1000 {
            waker.wake();
        }
        bench.until(|bench| bench.seen.contains(&Seen::Woken));
        assert_eq!(bench.seen, [Seen::Woken]);
        for round in 0..200 {
            bench.seen.clear();
            let waker = bench.runtime.waker();
            let thread = std::thread::spawn(move || waker.callback()());
            bench.until(|bench| bench.seen.contains(&Seen::Woken));
            thread.join().unwrap();
            assert!(bench.seen.len() == 1, "round {round}");
        }
    });
}

#[test]
fn poll_keeps_time() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let before = Instant::now();
        bench.runtime.poll(Some(Duration::from_millis(60))).unwrap();
        let took = before.elapsed();
        assert!(took >= Duration::from_millis(55) && took < PATIENCE, "{took:?}");
        // On a busy machine another process may have the processor meanwhile, but not every time.
        let is_immediate = || {
            let before = Instant::now();
            bench.runtime.poll(Some(Duration::ZERO)).unwrap();
            before.elapsed() < Duration::from_millis(50)
        };
        assert!(std::iter::repeat_with(is_immediate).take(100).any(|is_so| is_so));
    });
}

#[test]
fn refusals_say_what_to_do() {
    let taken = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = taken.local_address();
    let error = Listener::bind(address).unwrap_err();
    assert!(matches!(error, NetError::AddressTaken { .. }));
    let message = error.to_string();
    assert!(message.contains(&address.port().to_string()) && message.contains("another port"), "{message}");
    let error = Listener::bind("192.0.2.1:3260".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("ip address"), "{error}");
    assert!(matches!(resolve("no-such-host.invalid", 1), Err(NetError::Resolve { .. })));
    assert_eq!(resolve("[::1]", 7).unwrap(), ["[::1]:7".parse().unwrap()]);

    // A port that no other process can take, as a released one could be.
    let silent = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&silent, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&silent).unwrap()).unwrap();
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let stream = bench.runtime.connect(address).unwrap();
        bench.until(|bench| !bench.seen.is_empty());
        let [Seen::Closed(id, message)] = &bench.seen[..] else { panic!("{:?}", bench.seen) };
        assert_eq!(*id, stream);
        assert!(message.contains("refused") && message.contains(&address.to_string()), "{message}");
        assert_eq!(bench.runtime.streams_count(), 0);
    });
}

#[test]
fn an_unanswered_call_ends() {
    on_each_flavour(|flavour| {
        // A listener whose backlog is full does not answer: fill it.
        let fd = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
        rustix::net::bind(&fd, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        rustix::net::listen(&fd, 0).unwrap();
        let address = SocketAddr::try_from(rustix::net::getsockname(&fd).unwrap()).unwrap();
        let mut bench = Bench::with(RuntimeOptions {
            flavour,
            connect_timeout: Duration::from_millis(200),
            ..RuntimeOptions::default()
        });
        for _ in 0..4 {
            bench.runtime.connect(address).unwrap();
        }
        bench.until(|bench| {
            bench.seen.iter().any(|seen| matches!(seen, Seen::Closed(_, why) if why.contains("did not answer")))
        });
    });
}

#[test]
fn connections_above_the_limit_are_refused_at_once() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::with(RuntimeOptions { flavour, streams_max: 2, ..RuntimeOptions::default() });
        let address = bench.listen();
        let mut peers: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        bench.until(|bench| bench.runtime.counters().refused == 1);
        peers[2].set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(matches!(peers[2].read(&mut [0]), Ok(0) | Err(_)));
        assert!(matches!(bench.runtime.connect(address), Err(NetError::TooManyStreams { streams_max: 2 })));
        // One goes, one may come.
        drop(peers.remove(0));
        bench.until(|bench| bench.seen.iter().any(|seen| matches!(seen, Seen::Finished(_))));
        let Some(Seen::Finished(gone)) = bench.seen.iter().find(|seen| matches!(seen, Seen::Finished(_))).cloned()
        else {
            unreachable!()
        };
        bench.runtime.close(gone);
        bench.until(|bench| bench.runtime.streams_count() == 1);
        let _fourth = TcpStream::connect(address).unwrap();
        bench.until(|bench| bench.runtime.counters().accepted == 3);
    });
}

#[test]
fn a_stopped_listener_accepts_no_more() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_address();
        let id = bench.runtime.listen(listener).unwrap();
        let _first = TcpStream::connect(address).unwrap();
        bench.accepted();
        bench.runtime.stop_listening(id);
        bench.settle();
        assert!(TcpStream::connect(address).is_err());
        assert_eq!(bench.runtime.streams_count(), 1);
        // And the port is free again.
        Listener::bind(address).unwrap();
    });
}

#[test]
fn a_listener_shared_by_runtimes_serves_each_connection_once() {
    on_each_flavour(|flavour| {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_address();
        let (mut first, mut second) = (Bench::new(flavour), Bench::new(flavour));
        first.runtime.listen(listener.try_clone().unwrap()).unwrap();
        second.runtime.listen(listener).unwrap();
        let _peers: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let deadline = Instant::now() + PATIENCE;
        while first.runtime.streams_count() + second.runtime.streams_count() < 20 {
            assert!(Instant::now() < deadline);
            first.step(Duration::from_millis(1));
            second.step(Duration::from_millis(1));
        }
        first.settle();
        second.settle();
        assert_eq!(first.runtime.streams_count() + second.runtime.streams_count(), 20);
    });
}

#[test]
fn dropping_a_runtime_in_the_midst_of_work_is_harmless() {
    on_each_flavour(|flavour| {
        for _ in 0..20 {
            let mut bench = Bench::new(flavour);
            let address = bench.listen();
            let mut peer = TcpStream::connect(address).unwrap();
            let stream = bench.accepted();
            peer.write_all(&pattern(50_000, 1)).unwrap();
            let _ = bench.send(stream, &pattern(4 << 20, 2));
            bench.step(Duration::ZERO);
        }
    });
}

#[test]
fn a_peer_that_never_stops_sending_does_not_hold_the_loop() {
    on_each_flavour(|flavour| {
        let mut bench = Bench::new(flavour);
        let address = bench.listen();
        let mut flood = TcpStream::connect(address).unwrap();
        let stream = bench.accepted();
        let flooding = std::thread::spawn(move || {
            let part = pattern(1 << 20, 1);
            while flood.write_all(&part).is_ok() {}
        });
        bench.until(|bench| bench.bytes_of(stream).len() > 8 << 20);
        // Each turn ends although more always waits, so wakes and other streams get theirs.
        for _ in 0..50 {
            bench.runtime.poll(None).unwrap();
            let mut count = 0;
            while bench.runtime.next_event().is_some() {
                count += 1;
                assert!(count < 10_000, "the turn never ends");
            }
        }
        bench.runtime.waker().wake();
        bench.until(|bench| bench.seen.contains(&Seen::Woken));
        bench.runtime.abort(stream);
        bench.until(|bench| bench.runtime.streams_count() == 0);
        flooding.join().unwrap();
    });
}
