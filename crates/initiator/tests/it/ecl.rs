//! Proves that a volume is used by ECL as by iSCSI, over real sockets: what is written is read back by either transport, for every block size,
//! custody and scheme that ECL has; lost connections, lost packets and restarts of the target are survived; and what ECL does not carry, or
//! cannot reach, is refused with what to use instead.

mod attacks;
mod path;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, Buffer, BufferMut, Lba, Mode, Request, Token};
use strongroom_channel::Scheme;
use strongroom_initiator::{
    AttachError, AttachOptions, RemoteDevice, VolumeUrl, discard_blocking, flush_blocking, inquire, read_blocking,
    write_blocking, write_part_blocking,
};
use strongroom_target::{Config, VolumeSpec};

use self::path::Path;
use crate::support::{Host, SIZE, eventually, mark, trusted};

const BLOCK: usize = 4096;

fn url(host: &Host, volume: &str) -> VolumeUrl {
    format!("ecl://{}/{volume}", host.address).parse().unwrap()
}

fn attach(host: &Host, volume: &str) -> RemoteDevice {
    RemoteDevice::attach(host.options(url(host, volume))).unwrap()
}

fn start(change: fn(&mut Config)) -> Host {
    Host::start_with(&[VolumeSpec::sealed("vault", SIZE)], change)
}

/// Different in every block, and in every round.
fn pattern(round: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 509) as u8 ^ (at >> 9) as u8 ^ round).collect()
}

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

/// Everything that an attachment does, and what it must read then.
fn use_all_of_it(device: &RemoteDevice) -> Vec<u8> {
    let block_bytes = device.geometry().block_size.len();
    device.format().unwrap();
    assert!(read_blocking(device, Lba(0), 64).unwrap().iter().all(|&byte| byte == 0));
    let mut data = pattern(1, 700 * block_bytes);
    write_blocking(device, Lba(100), Buffer::copy_from(&data), false).unwrap();
    write_blocking(device, Lba(5), Buffer::copy_from(&vec![7; block_bytes]), true).unwrap();
    write_part_blocking(device, Lba(100), 100, Buffer::copy_from(b"part of a block")).unwrap();
    discard_blocking(device, Lba(110), 10).unwrap();
    flush_blocking(device).unwrap();
    data[100..115].copy_from_slice(b"part of a block");
    data[10 * block_bytes..20 * block_bytes].fill(0);
    assert!(read_blocking(device, Lba(100), 700).unwrap()[..] == data);
    assert_eq!(device.hole_at(Lba(110), 100).unwrap(), 10);
    assert_eq!(mark(device, 5), 7);
    data
}

#[test]
fn what_is_written_over_ecl_is_read_over_either_transport() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE), trusted()]);
    for volume in ["vault", "trusted"] {
        let device = attach(&host, volume);
        let data = use_all_of_it(&device);
        let packets = device.status().packets.expect("it has packets");
        assert_eq!(packets.quantum_bytes, 4096);
        assert!(packets.round_trip.is_some() && packets.packets_received > 100, "{packets:?}");
        // The path over loopback takes whole quanta, which are received into memory of their own.
        assert!(packets.packet_bytes > 4096 && packets.received_bytes > 100 * 4096, "{packets:?}");
        device.detach().unwrap();
        for url in [url(&host, volume), host.url(volume)] {
            let bob = RemoteDevice::attach(host.bobs_options(url)).unwrap();
            assert!(read_blocking(&bob, Lba(100), 700).unwrap()[..] == data);
            write_blocking(&bob, Lba(1000), block(3), false).unwrap();
            bob.detach().unwrap();
        }
    }
    assert_eq!(host.stats().misbehaved, 0);
}

#[test]
fn every_block_size_and_scheme_that_ecl_has() {
    let sizes = [512, 1024, 2048];
    let spec = |block_size: u64| VolumeSpec { block_size, ..VolumeSpec::sealed(format!("b{block_size}"), SIZE) };
    let mut open = VolumeSpec::sealed("open", SIZE);
    open.sealed.as_mut().expect("it is sealed").mode = Mode::AuthenticateOnly;
    let volumes: Vec<VolumeSpec> = sizes.map(spec).into_iter().chain([open]).collect();
    let host = Host::start(&volumes);
    for bytes in sizes {
        use_all_of_it(&attach(&host, &format!("b{bytes}")));
    }
    let mut options = host.options(url(&host, "open"));
    options.sealing.mode = Mode::AuthenticateOnly;
    assert_eq!(options.scheme(), Scheme::LazyAuth);
    use_all_of_it(&RemoteDevice::attach(options).unwrap());
    assert_eq!(host.stats().misbehaved, 0);
}

#[test]
fn what_ecl_does_not_carry_is_refused_with_what_to_use() {
    let long = VolumeSpec { block_size: 8192, ..VolumeSpec::sealed("long", SIZE) };
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE), VolumeSpec::plain("disk", SIZE), long]);
    let refused = |volume: &str, change: &dyn Fn(&mut AttachOptions)| {
        let mut options = host.options(url(&host, volume));
        change(&mut options);
        RemoteDevice::attach(options).unwrap_err()
    };
    let error = refused("long", &|_| {});
    assert!(matches!(&error, AttachError::LoginRefused(_)) && error.to_string().contains("strongroom://"), "{error}");
    let error = refused("disk", &|_| {});
    assert!(error.to_string().contains("iscsi://"), "{error}");
    let error = refused("nothing", &|_| {});
    assert!(matches!(&error, AttachError::LoginRefused(_)) && error.to_string().contains("no target"), "{error}");
    for scheme in [Scheme::EncryptAll, Scheme::MacAll, Scheme::LazyDecrypt] {
        let error = refused("vault", &|options| options.channel.scheme = Some(scheme));
        assert!(error.to_string().contains("S1-2 and S2-5"), "{error}");
    }
    let error = refused("vault", &|options| options.iscsi.connections = 2);
    assert!(error.to_string().contains("one association"), "{error}");
    // Nothing is needed to ask, over either transport.
    assert_eq!(inquire(host.options(url(&host, "vault"))).unwrap().geometry.bytes(), SIZE);
}

#[test]
fn a_target_without_ecl_says_so_and_nobody_settles_for_iscsi() {
    let host = start(|config| config.ecl = false);
    let error = RemoteDevice::attach(host.options(url(&host, "vault"))).unwrap_err().to_string();
    assert!(error.contains("ecl = false") && error.contains("strongroom://"), "{error}");
    assert_eq!(host.stats().logins, 0);
    host.attach("vault").detach().unwrap();
    let host = start(|config| config.schemes = vec!["S2-1".into()]);
    let error = RemoteDevice::attach(host.options(url(&host, "vault"))).unwrap_err().to_string();
    assert!(error.contains("S2-5"), "{error}");
}

#[test]
fn a_path_without_udp_is_found_out_and_named() {
    let host = start(|_| {});
    let path = Path::before(&host);
    path.set_udp(|_, _| false);
    let error = RemoteDevice::attach(host.options(path.url("vault"))).unwrap_err().to_string();
    assert!(["UDP", "ecl+tcp://", "strongroom://"].iter().all(|part| error.contains(part)), "{error}");
    eventually("the end of its session", || host.stats().sessions == 0);
    path.set_udp(|_, _| true);
    RemoteDevice::attach(host.options(path.url("vault"))).unwrap().detach().unwrap();
}

#[test]
fn lost_repeated_and_shortened_packets_are_survived() {
    let host = start(|_| {});
    let path = Path::before(&host);
    // Every thirteenth packet is lost, whichever way it goes; and none is longer than an Ethernet takes.
    path.set_udp(|number, len| number % 13 != 0 && len <= 1472);
    let device = RemoteDevice::attach(host.options(path.url("vault"))).unwrap();
    use_all_of_it(&device);
    let packets = device.status().packets.unwrap();
    assert!(packets.packets_lost > 0 && packets.packet_bytes <= 1472, "{packets:?}");
    device.detach().unwrap();
    assert_eq!(host.stats().misbehaved, 0);
}

/// A link's MTU becomes smaller under an association whose packets are longer.
#[test]
fn a_path_that_shrinks_is_counted_at_both_ends_and_loses_nothing() {
    let host = start(|_| {});
    let path = Path::before(&host);
    let device = RemoteDevice::attach(host.options(path.url("vault"))).unwrap();
    device.format().unwrap();
    let long = |packets: usize| packets > 4096;
    // A few blocks at a time: what is in the middle holds little, and probes must not be lost for that.
    eventually("whole blocks in a packet", || {
        write_blocking(&device, Lba(0), Buffer::copy_from(&pattern(3, 2 * BLOCK)), false).unwrap();
        read_blocking(&device, Lba(0), 2).unwrap();
        long(device.status().packets.unwrap().packet_bytes) && long(host.association().packet_bytes)
    });
    let before = pattern(1, 20 * BLOCK);
    write_blocking(&device, Lba(100), Buffer::copy_from(&before), true).unwrap();
    path.set_udp(|_, len| len <= 2372);
    let after = pattern(2, 20 * BLOCK);
    write_blocking(&device, Lba(400), Buffer::copy_from(&after), true).unwrap();
    assert!(read_blocking(&device, Lba(100), 20).unwrap()[..] == before);
    assert!(read_blocking(&device, Lba(400), 20).unwrap()[..] == after);
    let (initiator, target) = (device.status().packets.unwrap(), host.association());
    assert_eq!((initiator.packet_bytes, target.packet_bytes), (2224, 2224), "the longest that passes");
    assert_eq!((initiator.black_holes, target.black_holes), (1, 1), "{initiator:?} {target:?}");
    assert_eq!((device.status().connections, host.stats().misbehaved), (1, 0));
    device.detach().unwrap();
}

/// Where packets carry whole blocks, these stay where the kernel has put them, at both ends.
#[test]
fn next_to_nothing_is_copied_on_the_normal_path() {
    let host = start(|_| {});
    let device = attach(&host, "vault");
    device.format().unwrap();
    eventually("whole blocks in a packet", || {
        write_blocking(&device, Lba(0), Buffer::copy_from(&pattern(1, 50 * BLOCK)), false).unwrap();
        read_blocking(&device, Lba(0), 50).unwrap();
        device.status().packets.unwrap().packet_bytes > 4096 && host.association().packet_bytes > 4096
    });
    let counts = || {
        let (initiator, target) = (device.status().packets.unwrap(), host.association());
        [(initiator.received_bytes, initiator.copied_bytes), (target.received_bytes, target.copied_bytes)]
    };
    let before = counts();
    for round in 0..16 {
        let data = pattern(round, 512 * BLOCK);
        write_blocking(&device, Lba(1000), Buffer::copy_from(&data), false).unwrap();
        assert!(read_blocking(&device, Lba(1000), 512).unwrap()[..] == data);
    }
    for (end, (before, after)) in ["initiator", "target"].into_iter().zip(before.into_iter().zip(counts())) {
        let (received, copied) = (after.0 - before.0, after.1 - before.1);
        assert!(received >= 32 << 20, "{end}: {received} bytes received");
        assert!(copied * 100 <= received, "{end}: {copied} of {received} bytes copied");
    }
    device.detach().unwrap();
}

#[test]
fn where_udp_is_blocked_the_connection_carries_the_packets() {
    let host = Host::start_with(&[VolumeSpec::sealed("vault", SIZE), trusted()], |config| config.workers = Some(2));
    let path = Path::before(&host);
    path.set_udp(|_, _| false);
    for volume in ["vault", "trusted"] {
        let device = RemoteDevice::attach(host.options(path.tcp_url(volume))).unwrap();
        let data = use_all_of_it(&device);
        let packets = device.status().packets.expect("it has packets");
        assert!(
            packets.packets_lost == 0 && packets.packets_received > 100 && packets.packet_bytes > 4096,
            "{packets:?}"
        );
        device.detach().unwrap();
        eventually("the end of its session", || host.stats().sessions == 0);
        // It is the same volume by each transport.
        for url in [host.url(volume), url(&host, volume), path.tcp_url(volume)] {
            let bob = RemoteDevice::attach(host.bobs_options(url)).unwrap();
            assert!(read_blocking(&bob, Lba(100), 700).unwrap()[..] == data);
            bob.detach().unwrap();
        }
    }
    let mut options = host.options(path.tcp_url("vault"));
    options.channel.scheme = Some(Scheme::EncryptAll);
    let error = RemoteDevice::attach(options).unwrap_err().to_string();
    assert!(error.contains("S1-2 and S2-5"), "{error}");
    assert_eq!((host.stats().misbehaved, host.stats().datagrams_dropped), (0, 0));
}

#[test]
fn what_parity_covers_is_restored_where_it_arrives() {
    let host = start(|_| {});
    let path = Path::before(&host);
    path.set_udp(|number, _| number % 13 != 0);
    let url: VolumeUrl = format!("{}?parity=4+2", path.url("vault")).parse().unwrap();
    let device = RemoteDevice::attach(host.options(url)).unwrap();
    use_all_of_it(&device);
    let packets = device.status().packets.unwrap();
    assert!(packets.packets_lost > 0 && packets.quanta_repaired > 0, "{packets:?}");
    device.detach().unwrap();
    assert_eq!(host.stats().misbehaved, 0);
}

#[test]
fn the_loss_of_the_connection_is_survived_in_the_midst_of_writes() {
    survives_cuts(|path| path.url("vault"));
}

#[test]
fn the_loss_of_the_connection_that_carries_the_packets_is_survived_in_the_midst_of_writes() {
    survives_cuts(|path| path.tcp_url("vault"));
}

fn survives_cuts(url: fn(&Path) -> VolumeUrl) {
    let host = start(|_| {});
    let path = Path::before(&host);
    let device = RemoteDevice::attach(host.options(url(&path))).unwrap();
    device.format().unwrap();
    for round in 0..4_u8 {
        for at in 0..4_u64 {
            let data = Buffer::copy_from(&pattern(round ^ at as u8, 200 * BLOCK));
            device.submit(Token(at), Request::Write { lba: Lba(200 * at), data, fua: false });
        }
        path.cut();
        let (mut completions, mut done) = (Vec::new(), 0);
        while done < 4 {
            assert!(device.wait(Some(Duration::from_secs(60))), "nothing completes");
            device.poll_completions(&mut completions);
            for completion in completions.drain(..) {
                completion.result.unwrap();
                done += 1;
            }
        }
        eventually("another login", || device.status().connections > u64::from(round));
    }
    flush_blocking(&device).unwrap();
    for at in 0..4_u64 {
        assert!(read_blocking(&device, Lba(200 * at), 200).unwrap()[..] == pattern(3 ^ at as u8, 200 * BLOCK));
    }
    eventually("one session", || host.stats().sessions == 1);
    assert!(device.status().connections >= 4, "{:?}", device.status());
    device.detach().unwrap();
    assert_eq!(host.stats().misbehaved, 0);
}

/// Keeps this many reads and writes of 64 KiB under way until it is over; counts the bytes that were moved.
fn keep_busy(device: &RemoteDevice, requests: u64, moved: &AtomicU64, is_over: &AtomicBool) {
    const BLOCKS: u64 = 16;
    let data = Buffer::copy_from(&pattern(1, BLOCKS as usize * BLOCK));
    let submit = |at: u64| {
        let lba = Lba(at % 128 * BLOCKS);
        let request = match at % 2 {
            0 => Request::Read { lba, buffer: BufferMut::zeroed(BLOCKS as usize * BLOCK) },
            _ => Request::Write { lba, data: data.clone(), fua: false },
        };
        device.submit(Token(at), request);
    };
    (0..requests).for_each(submit);
    let (mut completions, mut next, mut under_way) = (Vec::new(), requests, requests);
    while under_way > 0 {
        assert!(device.wait(Some(Duration::from_secs(60))), "nothing completes");
        device.poll_completions(&mut completions);
        for completion in completions.drain(..) {
            completion.result.unwrap();
            moved.fetch_add(BLOCKS * BLOCK as u64, Ordering::Relaxed);
            if is_over.load(Ordering::Relaxed) {
                under_way -= 1;
            } else {
                submit(next);
                next += 1;
            }
        }
    }
}

/// Ends what [`keep_busy`] does, also when a test fails.
struct EndOfWork<'a>(&'a AtomicBool);

impl Drop for EndOfWork<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One worker, and an initiator that has 8 MiB under way all the time. What another one asks for is not answered behind all of that, but in its
/// turn.
#[test]
fn an_initiator_with_much_under_way_does_not_hold_up_another_one() {
    const REQUESTS: u64 = 128;
    const UNDER_WAY: u64 = REQUESTS * (64 << 10);
    let host = start(|config| config.workers = Some(1));
    let greedy = attach(&host, "vault");
    greedy.format().unwrap();
    let modest = RemoteDevice::attach(host.bobs_options(url(&host, "vault"))).unwrap();
    let (moved, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut meanwhile: Vec<u64> = std::thread::scope(|scope| {
        let _end = EndOfWork(&is_over);
        scope.spawn(|| keep_busy(&greedy, REQUESTS, &moved, &is_over));
        eventually("it is busy", || moved.load(Ordering::Relaxed) > UNDER_WAY);
        let turns = (0..100_u64).map(|at| {
            let before = moved.load(Ordering::Relaxed);
            match at % 2 {
                0 => drop(read_blocking(&modest, Lba(3000 + at), 1).unwrap()),
                _ => write_blocking(&modest, Lba(3000 + at), block(at as u8), false).unwrap(),
            }
            moved.load(Ordering::Relaxed) - before
        });
        turns.collect()
    });
    meanwhile.sort_unstable();
    let typical = meanwhile[meanwhile.len() / 2];
    assert!(typical < UNDER_WAY / 4, "{typical} bytes of the other one were moved meanwhile: {meanwhile:?}");
    assert_eq!((host.stats().sessions, host.stats().misbehaved), (2, 0));
}

/// Where the memory budget is small, many initiators that all write get on, each with credits for less, and their data stays within the budget.
#[test]
fn the_memory_of_many_initiators_is_bounded_in_total() {
    const BUDGET: u64 = 64 << 20;
    let host = start(|config| config.limits.memory_bytes = Some(BUDGET));
    attach(&host, "vault").format().unwrap();
    let devices: Vec<RemoteDevice> = (0..12).map(|_| attach(&host, "vault")).collect();
    let (moved, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = EndOfWork(&is_over);
        for device in &devices {
            let (moved, is_over) = (&moved, &is_over);
            scope.spawn(move || keep_busy(device, 64, moved, is_over));
        }
        eventually("all of it was moved", || {
            let memory = host.memory();
            // A command of each may go beyond.
            let most = memory.budget_bytes - memory.reserve_bytes + (devices.len() as u64) * (1 << 20);
            assert!(memory.used_bytes() <= most, "{memory:?}");
            moved.load(Ordering::Relaxed) >= 12 * (32 << 20)
        });
    });
    assert_eq!(host.stats().misbehaved, 0);
}

#[test]
fn a_restart_of_the_target_is_survived() {
    let mut host = start(|_| {});
    let device = attach(&host, "vault");
    device.format().unwrap();
    let data = pattern(9, 500 * BLOCK);
    write_blocking(&device, Lba(10), Buffer::copy_from(&data), false).unwrap();
    host.stop();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| write_blocking(&device, Lba(600), block(0xee), false));
        host.start_again();
        late.join().unwrap().unwrap();
    });
    flush_blocking(&device).unwrap();
    assert!(read_blocking(&device, Lba(10), 500).unwrap()[..] == data);
    assert_eq!(mark(&device, 600), 0xee);
    assert!(device.status().connections > 1);
    device.detach().unwrap();
}

#[test]
fn many_initiators_share_the_ports_of_several_workers() {
    let host = start(|config| config.workers = Some(3));
    attach(&host, "vault").format().unwrap();
    std::thread::scope(|scope| {
        for number in 0..12_u8 {
            let host = &host;
            scope.spawn(move || {
                let first = Lba(u64::from(number) * 200);
                let device = attach(host, "vault");
                for round in 0..5 {
                    let data = pattern(number ^ (round << 4), 150 * BLOCK);
                    write_blocking(&device, first, Buffer::copy_from(&data), round == 4).unwrap();
                    assert!(read_blocking(&device, first, 150).unwrap()[..] == data, "{number}, round {round}");
                }
                device.detach().unwrap();
            });
        }
    });
    assert_eq!((host.stats().misbehaved, host.stats().logins), (0, 13));
    eventually("the end of all sessions", || host.stats().sessions == 0);
}

#[test]
fn a_revoked_identity_is_out_at_once() {
    let host = start(|_| {});
    let device = attach(&host, "vault");
    device.format().unwrap();
    let mut config = host.config();
    config.peers.retain(|peer| peer.name != "alice");
    host.reload(config);
    let begun = Instant::now();
    let error = write_blocking(&device, Lba(0), block(1), false).unwrap_err();
    assert!(error.message.contains("[[peer]]"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(host.stats().sessions, 0);
}
