//! Proves that a node of a cluster that is fenced writes nothing more, also of what it had under way, over iSCSI and over ECL: while it writes all the
//! time, while it cannot be reached and comes back with writes to send again, and after a restart of the target; that a fenced node cannot fence in
//! turn; and who may fence at all.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use strongroom_block::{Buffer, DeviceErrorKind, Lba};
use strongroom_initiator::{
    AttachError, AttachOptions, FenceReport, FenceRequest, LeaseMode, RemoteDevice, ReservationError, ReservationKey,
    Victim, VolumeUrl, fence, flush_blocking, read_blocking, write_blocking,
};
use strongroom_target::VolumeSpec;
use strongroom_target::config::PeerRule;

use crate::support::{ALICE, BOB, Host, SIZE, Wire, eventually, key_of, mark};

const BLOCK: usize = 4096;
const TRANSPORTS: [&str; 3] = ["strongroom", "ecl", "ecl+tcp"];
/// May only read.
const READER: &str = "iqn.2026-11.org.example:reader";

fn data(mark: u8) -> Buffer {
    Buffer::copy_from(&vec![mark; BLOCK])
}

fn key(key: u64) -> ReservationKey {
    format!("{key:x}").parse().unwrap()
}

fn vault() -> Host {
    let host = Host::start_with(&[VolumeSpec::sealed("vault", SIZE), VolumeSpec::plain("disk", SIZE)], |config| {
        config.peers.push(PeerRule {
            name: "reader".into(),
            key: key_of(0xee).public().to_string(),
            initiators: vec![READER.into()],
            volumes: vec!["*".into()],
            read_only: true,
            ..PeerRule::default()
        });
    });
    host.attach("vault").format().unwrap();
    host
}

fn over(transport: &str, url: &VolumeUrl) -> VolumeUrl {
    url.to_string().replace("strongroom://", &format!("{transport}://")).parse().unwrap()
}

fn with_key(mut options: AttachOptions, number: u64) -> AttachOptions {
    options.lease.reservation_key = Some(key(number));
    options
}

fn exclusive(mut options: AttachOptions) -> AttachOptions {
    options.lease.mode = LeaseMode::Exclusive;
    options
}

fn attach(options: AttachOptions) -> RemoteDevice {
    RemoteDevice::attach(options).unwrap()
}

fn fence_as(options: AttachOptions, own: u64, victim: Victim, joins: bool) -> Result<FenceReport, AttachError> {
    fence(options, FenceRequest::Fence { key: key(own), victim, joins })
}

#[track_caller]
fn refused(result: Result<impl std::fmt::Debug, AttachError>) -> ReservationError {
    match result {
        Err(AttachError::Reservation(error)) => *error,
        other => panic!("{other:?}"),
    }
}

fn keys(report: &FenceReport) -> Vec<(ReservationKey, &str)> {
    let mut keys: Vec<_> = report.registered.iter().map(|one| (one.key, &*one.initiator_name)).collect();
    keys.sort_unstable();
    keys
}

fn list(host: &Host) -> FenceReport {
    fence(host.options(host.url("vault")), FenceRequest::List).unwrap()
}

/// Writes ever higher numbers until it fails.
fn write_on(device: &RemoteDevice, stop: &AtomicBool) -> strongroom_block::DeviceError {
    let mut number = 1_u64;
    loop {
        assert!(!stop.load(Ordering::Relaxed), "it writes on after {number} writes");
        let block: Vec<u8> = number.to_be_bytes().into_iter().cycle().take(BLOCK).collect();
        if let Err(error) =
            write_blocking(device, Lba(number % 8), Buffer::copy_from(&block), number.is_multiple_of(50))
        {
            return error;
        }
        number += 1;
    }
}

fn contents(device: &RemoteDevice) -> Vec<u8> {
    read_blocking(device, Lba(0), 8).unwrap().to_vec()
}

#[test]
fn a_node_that_writes_all_the_time_writes_nothing_after_it_was_fenced() {
    for (at, transport) in TRANSPORTS.into_iter().enumerate() {
        let host = vault();
        let url = over(transport, &host.url("vault"));
        let alice = attach(with_key(host.options(url.clone()), 0xa));
        let bob = attach(with_key(host.bobs_options(url.clone()), 0xb));
        assert_eq!(keys(&list(&host)), [(key(0xa), ALICE), (key(0xb), BOB)]);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_on(&bob, &stop));
            eventually("he writes", || contents(&alice)[7] != 0);
            let victim = [Victim::Key(key(0xb)), Victim::Node(BOB.into()), Victim::Other][at].clone();
            let report = fence_as(host.options(url.clone()), 0xa, victim.clone(), false).unwrap();
            let seen = contents(&alice);
            assert_eq!(report.fenced.len(), 1);
            assert_eq!((report.fenced[0].key, &*report.fenced[0].initiator_name), (key(0xb), BOB));
            assert_eq!(keys(&report), [(key(0xa), ALICE)]);
            // It fails, and is not tried for ever.
            let error = writer.join().unwrap();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(error.kind, DeviceErrorKind::ReservationConflict);
            assert!(error.message.contains("fenced off") && error.message.contains("0xb"), "{error}");
            assert!(contents(&alice) == seen, "{transport}: what was read after the fence stays");
            // The same again says that it is done.
            let again = fence_as(host.options(url.clone()), 0xa, victim, false).unwrap();
            assert!(again.fenced.is_empty());
        });
        write_blocking(&alice, Lba(0), data(1), true).unwrap();
        write_blocking(&bob, Lba(0), data(2), false).unwrap_err();
        flush_blocking(&bob).unwrap_err();
        assert!(bob.status().lease_lost.is_some());
        assert_eq!((mark(&alice, 0), mark(&bob, 0)), (1, 1), "he may read");
        bob.detach().expect_err("he is told");
        alice.detach().unwrap();
        assert_eq!(keys(&list(&host)), []);
    }
}

/// A network that can be cut, for any transport by TCP.
struct Network {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    is_down: Arc<AtomicBool>,
}

impl Network {
    fn before(host: &Host) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let network =
            Network { address: listener.local_addr().unwrap(), open: Arc::default(), is_down: Arc::default() };
        let (target, open, is_down) = (host.address, network.open.clone(), network.is_down.clone());
        std::thread::spawn(move || {
            for initiator in listener.incoming().map_while(Result::ok) {
                let Ok(target) = TcpStream::connect(target) else { continue };
                // Under the lock, so that none is let through after it was cut.
                let mut open = open.lock().unwrap();
                if is_down.load(Ordering::Relaxed) {
                    continue;
                }
                for (mut from, mut to) in [(&initiator, &target), (&target, &initiator)].map(|(from, to)| {
                    to.set_nodelay(true).unwrap();
                    (from.try_clone().unwrap(), to.try_clone().unwrap())
                }) {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                open.extend([initiator, target]);
            }
        });
        network
    }

    fn url(&self, transport: &str) -> VolumeUrl {
        format!("{transport}://{}/vault", self.address).parse().unwrap()
    }

    fn set_down(&self, is_down: bool) {
        let mut open = self.open.lock().unwrap();
        self.is_down.store(is_down, Ordering::Relaxed);
        open.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

/// Bob has acknowledged writes that are not flushed, and one under way, when the network is cut; then the target forgets the former.
#[test]
fn who_comes_back_from_a_partition_sends_nothing_again() {
    for transport in ["strongroom", "ecl+tcp"] {
        let mut host = vault();
        let network = Network::before(&host);
        let alices = with_key(host.options(over(transport, &host.url("vault"))), 0xa);
        let alice = attach(alices.clone());
        let bob = attach(with_key(host.bobs_options(network.url(transport)), 0xb));
        (0..8).for_each(|lba| write_blocking(&bob, Lba(lba), data(2), false).unwrap());
        assert!(bob.status().unflushed_bytes > 0);
        network.set_down(true);
        eventually("he sees it", || !bob.status().is_connected);
        std::thread::scope(|scope| {
            let under_way = scope.spawn(|| write_blocking(&bob, Lba(9), data(2), false));
            fence_as(alices, 0xa, Victim::Key(key(0xb)), false).unwrap();
            (0..10).for_each(|lba| write_blocking(&alice, Lba(lba), data(1), true).unwrap());
            // An initiator sends again what a target has forgotten.
            host.stop();
            host.start_again();
            write_blocking(&alice, Lba(20), data(1), true).unwrap();
            assert_eq!(keys(&list(&host)), [(key(0xa), ALICE)], "registrations survive a restart");
            network.set_down(false);
            let error = under_way.join().unwrap().unwrap_err();
            assert_eq!(error.kind, DeviceErrorKind::ReservationConflict);
            assert!(error.message.contains("fenced off"), "{error}");
        });
        assert!(bob.status().lease_lost.is_some());
        write_blocking(&bob, Lba(9), data(2), false).unwrap_err();
        flush_blocking(&bob).expect_err("what he wrote is lost");
        assert_eq!(bob.status().unflushed_bytes, 0, "it is not kept to be sent again");
        assert!((0..10).all(|lba| mark(&alice, lba) == 1), "{transport}");
        // Neither does it come when everybody else has gone.
        alice.detach().unwrap();
        network.set_down(false);
        write_blocking(&bob, Lba(9), data(2), false).unwrap_err();
        bob.detach().unwrap_err();
        let reader = attach(host.options(host.url("vault")));
        assert!((0..10).all(|lba| mark(&reader, lba) == 1), "{transport}");
    }
}

/// Active and passive: the passive node has no attachment.
#[test]
fn a_passive_node_fences_the_active_one_and_takes_its_place() {
    let mut host = vault();
    let wire = Wire::before(&host);
    let alice = attach(exclusive(with_key(host.options(wire.url("vault")), 0xa)));
    write_blocking(&alice, Lba(0), data(1), true).unwrap();
    let bobs = || host.bobs_options(host.url("vault"));
    assert!(matches!(RemoteDevice::attach(exclusive(with_key(bobs(), 0xb))), Err(AttachError::InUse(_))));
    assert_eq!(refused(fence_as(bobs(), 0xb, Victim::Other, false)), ReservationError::NotRegistered { key: key(0xb) });
    wire.set_down(true);
    let report = fence_as(bobs(), 0xb, Victim::Key(key(0xa)), true).unwrap();
    assert!(report.ended_lease && report.fenced.len() == 1, "{report:?}");
    // The key stays, or nothing would keep her out.
    assert_eq!(keys(&list(&host)), [(key(0xb), BOB)]);
    assert!(fence_as(bobs(), 0xb, Victim::Key(key(0xa)), true).unwrap().fenced.is_empty());
    host.stop();
    host.start_again();
    wire.set_down(false);
    let error = write_blocking(&alice, Lba(1), data(1), false).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::ReservationConflict, "{error}");
    let bob = attach(exclusive(with_key(host.bobs_options(host.url("vault")), 0xb)));
    write_blocking(&bob, Lba(1), data(2), true).unwrap();
    assert_eq!(keys(&list(&host)), [(key(0xb), BOB)], "once: what the command left is replaced");
    alice.detach().unwrap_err();
    assert_eq!((mark(&bob, 0), mark(&bob, 1)), (1, 2));
    bob.detach().unwrap();
    // A key that only the command has registered can be given up.
    let bobs = || host.bobs_options(host.url("vault"));
    fence_as(bobs(), 0xb, Victim::Key(key(0xa)), true).unwrap();
    assert_eq!(keys(&list(&host)), [(key(0xb), BOB)]);
    fence(bobs(), FenceRequest::Release { key: key(0xb) }).unwrap();
    assert_eq!(keys(&list(&host)), []);
    assert_eq!(
        refused(fence(bobs(), FenceRequest::Release { key: key(0xb) })),
        ReservationError::NotRegistered { key: key(0xb) }
    );
}

#[test]
fn an_idle_node_sees_that_it_was_fenced() {
    let host = vault();
    let _alice = attach(with_key(host.options(host.url("vault")), 0xa));
    let bob = attach(with_key(host.bobs_options(host.url("vault")), 0xb));
    fence_as(host.options(host.url("vault")), 0xa, Victim::Other, false).unwrap();
    eventually("he is told, though he asks for nothing", || bob.status().lease_lost.is_some());
    bob.detach().unwrap_err();
}

#[test]
fn each_node_has_one_key_and_each_key_one_node() {
    let host = vault();
    let alice = attach(with_key(host.options(host.url("vault")), 0xa));
    let owner = ALICE.to_owned();
    let bobs = || host.bobs_options(host.url("vault"));
    assert_eq!(
        refused(RemoteDevice::attach(with_key(bobs(), 0xa))),
        ReservationError::KeyInUse { key: key(0xa), owner: owner.clone() }
    );
    for joins in [false, true] {
        let in_use = ReservationError::KeyInUse { key: key(0xa), owner: owner.clone() };
        assert_eq!(refused(fence_as(bobs(), 0xa, Victim::Other, joins)), in_use);
    }
    assert!(refused(fence(bobs(), FenceRequest::Release { key: key(0xa) })).to_string().contains(ALICE));
    // The same node again: refused while its attachment is there, taken over if that is meant.
    let again = with_key(host.options(host.url("vault")), 0xa);
    let error = refused(RemoteDevice::attach(again.clone()));
    assert!(matches!(&error, ReservationError::AttachedAlready { .. }) && error.to_string().contains("--take-over"));
    write_blocking(&alice, Lba(0), data(1), true).expect("it is not disturbed");
    let mut taking_over = again.clone();
    taking_over.lease.take_over = true;
    let second = attach(taking_over);
    assert!(write_blocking(&alice, Lba(0), data(2), true).unwrap_err().message.contains("fenced off"));
    write_blocking(&second, Lba(0), data(3), true).unwrap();
    assert_eq!(keys(&list(&host)), [(key(0xa), ALICE)]);
    // An attachment that cannot be reached any more, as of a machine that died, is replaced without being asked.
    alice.detach().unwrap_err();
    second.detach().unwrap();
    let wire = Wire::before(&host);
    let lost = attach(AttachOptions { url: wire.url("vault"), ..again.clone() });
    wire.set_down(true);
    let mut third = None;
    eventually("the target sees that it is gone", || {
        third = RemoteDevice::attach(again.clone()).ok();
        third.is_some()
    });
    write_blocking(&third.unwrap(), Lba(0), data(4), true).unwrap();
    wire.set_down(false);
    write_blocking(&lost, Lba(0), data(5), true).unwrap_err();
    assert_eq!(mark(&lost, 0), 4);
}

#[test]
fn who_is_meant_must_be_said_and_must_have_a_key() {
    let host = vault();
    let alices = || host.options(host.url("vault"));
    // Somebody writes without a key: nobody knows what he has under way.
    let bob = attach(host.bobs_options(host.url("vault")));
    write_blocking(&bob, Lba(0), data(2), true).unwrap();
    for victim in [Victim::Node(BOB.into()), Victim::Key(key(0xb)), Victim::Other] {
        let without_key = ReservationError::VictimWithoutKey(BOB.into());
        assert_eq!(refused(fence_as(alices(), 0xa, victim, true)), without_key);
        write_blocking(&bob, Lba(0), data(3), true).expect("nothing was changed");
    }
    assert_eq!(keys(&list(&host)), []);
    // From the first key on, he cannot write.
    let alice = attach(with_key(alices(), 0xa));
    let error = write_blocking(&bob, Lba(0), data(4), true).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::ReservationConflict);
    fence_as(alices(), 0xa, Victim::Node(BOB.into()), false).expect("he cannot write");
    bob.detach().expect_err("a flush is refused as well");
    assert_eq!(refused(fence_as(alices(), 0xa, Victim::Key(key(0xa)), false)), ReservationError::OwnKey(key(0xa)));
    let others: Vec<RemoteDevice> =
        [0xb, 0xc].map(|one| attach(with_key(host.bobs_options(host.url("vault")), one))).into();
    let error = refused(fence_as(alices(), 0xa, Victim::Other, false));
    assert_eq!(error, ReservationError::WhichOne("0xb, 0xc".into()));
    others.iter().for_each(|other| write_blocking(other, Lba(1), data(5), true).expect("nobody was fenced"));
    // A node is fenced with all that it has attached.
    assert_eq!(fence_as(alices(), 0xa, Victim::Node(BOB.into()), false).unwrap().fenced.len(), 2);
    others.iter().for_each(|other| drop(write_blocking(other, Lba(1), data(6), true).unwrap_err()));
    write_blocking(&alice, Lba(1), data(1), true).unwrap();
}

#[test]
fn a_plain_volume_is_shared_and_fenced_in_the_same_way() {
    let host = vault();
    let alice = attach(with_key(host.options(host.plain_url("disk")), 0xa));
    let bob = attach(with_key(host.bobs_options(host.plain_url("disk")), 0xb));
    write_blocking(&bob, Lba(0), data(2), false).unwrap();
    fence_as(host.options(host.plain_url("disk")), 0xa, Victim::Other, false).unwrap();
    write_blocking(&bob, Lba(0), data(3), false).unwrap_err();
    assert_eq!(mark(&alice, 0), 2);
}

/// Of two nodes that fence each other one wins, and the other one cannot fence in turn.
#[test]
fn attack_fence_by_a_node_that_was_fenced() {
    let host = vault();
    let alice = attach(with_key(host.options(host.url("vault")), 0xa));
    let bob = attach(with_key(host.bobs_options(host.url("vault")), 0xb));
    let results = std::thread::scope(|scope| {
        let by_alice = scope.spawn(|| fence_as(host.options(host.url("vault")), 0xa, Victim::Key(key(0xb)), false));
        let by_bob = scope.spawn(|| fence_as(host.bobs_options(host.url("vault")), 0xb, Victim::Key(key(0xa)), false));
        [by_alice.join().unwrap(), by_bob.join().unwrap()]
    });
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    let alice_won = results[0].is_ok();
    let (winner, loser) = if alice_won { (&alice, &bob) } else { (&bob, &alice) };
    write_blocking(winner, Lba(0), data(1), true).unwrap();
    write_blocking(loser, Lba(0), data(2), true).unwrap_err();
    let (loser_options, own, victim) = match alice_won {
        true => (host.bobs_options(host.url("vault")), 0xb, 0xa),
        false => (host.options(host.url("vault")), 0xa, 0xb),
    };
    let error = refused(fence_as(loser_options, own, Victim::Key(key(victim)), false));
    assert_eq!(error, ReservationError::NotRegistered { key: key(own) });
    write_blocking(winner, Lba(0), data(3), true).unwrap();
}

#[test]
fn attack_fence_without_write_access() {
    let host = vault();
    let alice = attach(with_key(host.options(host.url("vault")), 0xa));
    let bob = attach(with_key(host.bobs_options(host.url("vault")), 0xb));
    let mut reader = host.options(host.url("vault"));
    reader.iscsi.initiator_name = READER.into();
    reader.channel.node_key = Some(key_of(0xee));
    for request in [
        FenceRequest::Fence { key: key(0xe), victim: Victim::Key(key(0xb)), joins: true },
        // With the key of somebody else, which everybody can read.
        FenceRequest::Fence { key: key(0xa), victim: Victim::Key(key(0xb)), joins: false },
        FenceRequest::Release { key: key(0xb) },
    ] {
        let error = refused(fence(reader.clone(), request));
        assert!(matches!(error, ReservationError::ReadOnly | ReservationError::KeyInUse { .. }), "{error}");
    }
    // Who may read may see who is registered.
    assert_eq!(keys(&fence(reader.clone(), FenceRequest::List).unwrap()).len(), 2);
    for (device, mark) in [(&alice, 1), (&bob, 2)] {
        write_blocking(device, Lba(0), data(mark), true).unwrap();
    }
}

#[test]
fn attack_fence_by_a_stranger() {
    let host = vault();
    let bob = attach(with_key(host.bobs_options(host.url("vault")), 0xb));
    // A key that the target does not know, and a name that is another peer's.
    let mut unknown = host.options(host.url("vault"));
    unknown.channel.node_key = Some(key_of(0x99));
    let mut borrowed = host.options(host.url("vault"));
    borrowed.iscsi.initiator_name = BOB.into();
    for options in [unknown, borrowed] {
        let request = FenceRequest::Fence { key: key(0xe), victim: Victim::Key(key(0xb)), joins: true };
        let error = fence(options.clone(), request).unwrap_err();
        assert!(matches!(error, AttachError::Handshake(_) | AttachError::LoginRefused(_)), "{error}");
        fence(options, FenceRequest::Release { key: key(0xb) }).unwrap_err();
    }
    write_blocking(&bob, Lba(0), data(2), true).unwrap();
    assert_eq!(keys(&list(&host)), [(key(0xb), BOB)]);
}
