//! Proves that links on runtimes work over real sockets, on both flavours: a channel with back-pressure and rekeying, a
//! connection that moves to another thread in the midst of it, and peers that talk rubbish or stop half-way.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_channel::ChannelLimits;
use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_iscsi::{Bhs, Pdu};
use strongroom_net::{
    Admission, DetachedStream, Event, FlavourChoice, Link, LinkEnd, LinkEvent, LinkOptions, Listener, Runtime,
    RuntimeOptions, SendState, StreamId,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn flavours() -> impl Iterator<Item = FlavourChoice> {
    [FlavourChoice::Epoll, FlavourChoice::IoUring].into_iter().filter(|&flavour| {
        let found = Runtime::new(RuntimeOptions { flavour, ..RuntimeOptions::default() });
        if let Err(error) = &found {
            eprintln!("skipped: {error}");
        }
        found.is_ok()
    })
}

fn node(seed: u8) -> NodeKey {
    NodeKey::from_seed(&[seed; 32])
}

fn admission() -> Admission {
    let known = node(1).public();
    Admission {
        identity: Some(Arc::new(node(2))),
        peers: Arc::new(move |key: &PublicKey| *key == known),
        allow_plain: true,
    }
}

/// Small generations, so that a test passes through many.
fn options(setup_timeout: Duration) -> LinkOptions {
    let channel = ChannelLimits { rekey_tags: 50, ..ChannelLimits::default() };
    LinkOptions { channel, setup_timeout, ..LinkOptions::default() }
}

/// A thread's runtime with the links on it: the glue that target and initiator each have in their own way.
struct Node {
    runtime: Runtime,
    /// How long a connection accepted from now on may take.
    setup_timeout: Duration,
    links: HashMap<StreamId, Link>,
    full: HashMap<StreamId, bool>,
    events: Vec<(StreamId, LinkEvent)>,
}

impl Node {
    fn new(flavour: FlavourChoice) -> Node {
        let runtime = Runtime::new(RuntimeOptions { flavour, ..RuntimeOptions::default() }).unwrap();
        Node { runtime, setup_timeout: PATIENCE, links: HashMap::new(), full: HashMap::new(), events: Vec::new() }
    }

    fn listening(flavour: FlavourChoice) -> (Node, SocketAddr) {
        let mut node = Node::new(flavour);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_address();
        node.runtime.listen(listener).unwrap();
        (node, address)
    }

    fn call(&mut self, address: SocketAddr) -> StreamId {
        let stream = self.runtime.connect(address).unwrap();
        let link = Link::initiator_channel(&node(1), &[node(2).public()], options(PATIENCE), Instant::now()).unwrap();
        self.links.insert(stream, link);
        self.flush(stream);
        stream
    }

    /// One turn: what happened goes into the links, what they say goes out.
    fn step(&mut self) {
        let now = Instant::now();
        let first = self.links.values().filter_map(Link::poll_timeout).min();
        let timeout = first.map_or(Duration::from_millis(20), |first| first.saturating_duration_since(now));
        self.runtime.poll(Some(timeout.min(Duration::from_millis(20)))).unwrap();
        let mut touched = Vec::new();
        while let Some(event) = self.runtime.next_event() {
            let stream = match event {
                Event::Accepted { stream, .. } => {
                    let options = options(self.setup_timeout);
                    self.links.insert(stream, Link::target(admission(), options, Instant::now()));
                    stream
                }
                Event::Received { stream, bytes } => {
                    if let Some(link) = self.links.get_mut(&stream) {
                        link.handle_input(bytes);
                    }
                    stream
                }
                Event::PeerFinished { stream } => {
                    if let Some(link) = self.links.get_mut(&stream) {
                        link.handle_eof();
                    }
                    stream
                }
                Event::SendLow { stream } => {
                    self.full.insert(stream, false);
                    stream
                }
                Event::Closed { stream, failure } => panic!("{stream:?} failed: {failure}"),
                Event::Connected { stream } => stream,
                Event::Woken | Event::DatagramsReady { .. } => continue,
            };
            touched.push(stream);
        }
        for link in self.links.values_mut() {
            link.handle_timeout(Instant::now());
        }
        touched.extend(self.links.keys());
        touched.into_iter().for_each(|stream| self.flush(stream));
    }

    fn flush(&mut self, stream: StreamId) {
        let Some(link) = self.links.get_mut(&stream) else { return };
        let mut ended = false;
        while let Some(event) = link.poll_event() {
            if matches!(event, LinkEvent::Established { .. }) {
                link.login_finished(strongroom_iscsi::Digests::default());
            }
            ended |= matches!(event, LinkEvent::Ended(_));
            self.events.push((stream, event));
        }
        let mut out = Vec::new();
        link.poll_transmit(&mut out);
        if self.runtime.send(stream, &mut out) == SendState::Full {
            self.full.insert(stream, true);
        }
        if ended {
            self.links.remove(&stream);
            self.runtime.close(stream);
        }
    }

    #[track_caller]
    fn until<T>(&mut self, mut found: impl FnMut(&mut Node) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = found(self) {
                return value;
            }
            assert!(Instant::now() < deadline, "waited in vain");
            self.step();
        }
    }

    fn next(&mut self) -> (StreamId, LinkEvent) {
        self.until(|node| (!node.events.is_empty()).then(|| node.events.remove(0)))
    }

    fn established(&mut self) -> StreamId {
        let (stream, event) = self.next();
        assert!(matches!(event, LinkEvent::Established { peer: Some(_) }), "{event:?}");
        stream
    }
}

/// The `index`th of a row of sealed writes; its bytes follow from its index.
fn pdu(index: u32, len_bytes: usize) -> Pdu {
    let mut bhs = Bhs([0; 48]);
    bhs.0[0] = 0x05;
    bhs.0[16..20].copy_from_slice(&index.to_be_bytes());
    let ahs = [&[0, 57, 0x30, 56][..], &[index as u8; 56]].concat();
    Pdu::new(bhs, Bytes::from(ahs), Buffer::copy_from(&vec![index as u8; len_bytes]), true)
}

const PDUS: u32 = 1500;
const PDU_BYTES: usize = 64 << 10;

/// Sends the row, as fast as the queue allows, and says goodbye.
fn send_row(initiator: &mut Node, stream: StreamId) {
    for index in 0..PDUS {
        initiator.until(|node| (!node.full.get(&stream).copied().unwrap_or(false)).then_some(()));
        initiator.links.get_mut(&stream).unwrap().send_pdu(pdu(index, PDU_BYTES));
        initiator.flush(stream);
    }
    initiator.links.get_mut(&stream).unwrap().close();
    initiator.flush(stream);
}

fn expect_rest_of_row(target: &mut Node, from: u32) {
    for index in from..PDUS {
        let (_, event) = target.next();
        let LinkEvent::Pdu(got) = event else { panic!("{event:?}") };
        assert!(got == pdu(index, PDU_BYTES), "PDU {index} of the row");
    }
    assert_eq!(target.next().1, LinkEvent::Ended(LinkEnd::PeerClosed));
}

#[test]
fn a_row_of_writes_arrives_whole_and_in_order() {
    for flavour in flavours() {
        let (mut target, address) = Node::listening(flavour);
        let initiator = std::thread::spawn(move || {
            let mut initiator = Node::new(flavour);
            let stream = initiator.call(address);
            assert_eq!(initiator.established(), stream);
            send_row(&mut initiator, stream);
            // The target's goodbye answers ours.
            assert_eq!(initiator.next().1, LinkEvent::Ended(LinkEnd::PeerClosed));
        });
        target.established();
        expect_rest_of_row(&mut target, 0);
        target.until(|node| (node.runtime.streams_count() == 0).then_some(()));
        initiator.join().unwrap();
    }
}

#[test]
fn a_connection_moves_to_another_thread_in_the_midst() {
    for flavour in flavours() {
        let (mut front, address) = Node::listening(flavour);
        let initiator = std::thread::spawn(move || {
            let mut initiator = Node::new(flavour);
            let stream = initiator.call(address);
            initiator.established();
            send_row(&mut initiator, stream);
            assert_eq!(initiator.next().1, LinkEvent::Ended(LinkEnd::PeerClosed));
        });
        let stream = front.established();
        front.until(|node| (node.events.len() >= 10).then_some(()));
        // The stream and its link move together; PDUs told before stay told.
        let moving: (DetachedStream, Link) =
            (front.runtime.detach(stream).unwrap(), front.links.remove(&stream).unwrap());
        let told = std::mem::take(&mut front.events);
        let (sender, receiver) = mpsc::channel::<(DetachedStream, Link)>();
        let worker = std::thread::spawn(move || {
            let (detached, link) = receiver.recv().unwrap();
            let mut worker = Node::new(flavour);
            let stream = worker.runtime.attach(detached).unwrap();
            worker.links.insert(stream, link);
            expect_rest_of_row(&mut worker, told.len() as u32);
            worker.until(|node| (node.runtime.streams_count() == 0).then_some(()));
        });
        sender.send(moving).unwrap();
        worker.join().unwrap();
        initiator.join().unwrap();
    }
}

#[test]
fn rubbish_and_half_logins_end_and_leave_the_rest_alone() {
    for flavour in flavours() {
        let (mut target, address) = Node::listening(flavour);
        let mut initiator = Node::new(flavour);
        let good = initiator.call(address);
        target.until(|node| (!node.links.is_empty()).then_some(()));
        target.setup_timeout = Duration::from_millis(400);
        let mut rubbish = TcpStream::connect(address).unwrap();
        rubbish.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut half_hello = TcpStream::connect(address).unwrap();
        half_hello.write_all(&[0x16, 3, 1, 2]).unwrap();
        let half_login = TcpStream::connect(address).unwrap();
        (&half_login).write_all(&[0x43; 30]).unwrap();
        let silent = TcpStream::connect(address).unwrap();
        let mut ends = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while ends.len() < 3 || initiator.events.is_empty() {
            assert!(Instant::now() < deadline, "{ends:?}");
            target.step();
            initiator.step();
            for (_, event) in target.events.drain(..) {
                if let LinkEvent::Ended(end) = event {
                    ends.push(end);
                }
            }
        }
        assert!(ends.contains(&LinkEnd::UnknownProtocol { first: b'G' }), "{ends:?}");
        let timed_out = |end: &&LinkEnd| matches!(end, LinkEnd::TimedOut { stage: "the handshake", .. });
        assert_eq!(ends.iter().filter(timed_out).count(), 2, "{ends:?}");
        // They are told by an end of the stream, and soon.
        for mut peer in [rubbish, half_hello, silent] {
            peer.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let closed = (0..100).any(|_| {
                target.step();
                matches!(peer.read(&mut [0; 64]), Ok(0)) || peer.read(&mut [0; 64]).is_ok_and(|count| count == 0)
            });
            assert!(closed);
        }
        // And the honest one never noticed.
        assert_eq!(initiator.established(), good);
        initiator.links.get_mut(&good).unwrap().send_pdu(pdu(7, 4096));
        initiator.flush(good);
        let deadline = Instant::now() + PATIENCE;
        while !target.events.iter().any(|(_, event)| matches!(event, LinkEvent::Pdu(got) if *got == pdu(7, 4096))) {
            assert!(Instant::now() < deadline);
            initiator.step();
            target.step();
        }
    }
}

#[test]
fn a_cut_connection_is_a_failure_on_the_other_side() {
    for flavour in flavours() {
        let (mut target, address) = Node::listening(flavour);
        let mut initiator = Node::new(flavour);
        let stream = initiator.call(address);
        let deadline = Instant::now() + PATIENCE;
        while initiator.events.is_empty() || target.events.is_empty() {
            assert!(Instant::now() < deadline);
            initiator.step();
            target.step();
        }
        let served = target.established();
        // Closed without the channel's goodbye, as by a machine in the middle.
        initiator.links.remove(&stream);
        initiator.runtime.close(stream);
        initiator.step();
        let (ended, event) = target.next();
        let LinkEvent::Ended(end) = event else { panic!("{event:?}") };
        assert_eq!(ended, served);
        assert!(!end.is_orderly(), "{end}");
    }
}
