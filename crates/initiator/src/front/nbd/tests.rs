//! Proves that clients see the volume's bytes over real sockets, aligned or not, several at once; that hostile ones cost the others nothing;
//! and that the server comes and goes cleanly.

mod client;
mod hostile;
mod sockets;
mod tls;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{BlockSize, DeviceErrorKind, Geometry, Lba};

use super::{NbdAddress, NbdOptions, NbdServer, NbdServerError};
use crate::MemoryDevice;
use client::{BLOCK_STATUS, Client, DF, DISC, FLUSH, FUA, NO_HOLE, READ, TRIM, WRITE, WRITE_ZEROES};

const SIZE: u64 = 8 << 20;
/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a Unix socket, and the device behind it.
struct Served {
    server: NbdServer,
    device: Arc<MemoryDevice>,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

fn served(options: NbdOptions) -> Served {
    let device = Arc::new(MemoryDevice::new(Geometry::from_bytes(SIZE, BlockSize::DEFAULT).unwrap()));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap().join("vault.sock");
    let server = NbdServer::start(device.clone(), &NbdAddress::Unix(path.clone()), options).unwrap();
    Served { server, device, path, _directory: directory }
}

fn options() -> NbdOptions {
    NbdOptions { fast_zero: true, ..NbdOptions::new("vault") }
}

#[track_caller]
fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < PATIENCE, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pattern(at: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + at) as u8 | 1).collect()
}

#[test]
fn any_range_is_read_and_written_in_either_format() {
    let served = served(options());
    let mut model = vec![0_u8; SIZE as usize];
    let mut clients = [Client::new(&served.path, false), Client::new(&served.path, true)];
    assert!(clients.iter().all(|client| client.size_bytes == SIZE));
    let ranges =
        [(0, 4096), (5000, 100), (4095, 2), (512, 512), (8192, 300_000), (77_777, 123_457), (SIZE as usize - 10, 10)];
    let whole = [(1 << 20, 5 << 20), ((1 << 20) + 1, (3 << 20) + 1)];
    for (at, len) in ranges.into_iter().chain(whole) {
        for client in &mut clients {
            let data = pattern(at + usize::from(client.flags), len);
            client.write(0, at as u64, &data);
            model[at..at + len].copy_from_slice(&data);
        }
    }
    for client in &mut clients {
        assert!(client.read(0, SIZE as u32) == model);
        for (at, len) in [(0, 1), (12_345, 54_321), (4096, 4096), (SIZE as usize - 1, 1), (100_000, 4 << 20)] {
            assert!(client.read(at as u64, len as u32) == model[at..at + len], "{at} {len}");
            let whole = client.request(if client.flags & 0x80 != 0 { DF } else { 0 }, READ, at as u64, len as u32, b"");
            assert!(whole.data == model[at..at + len] && whole.holes == 0);
        }
    }
    for client in &mut clients {
        client.send(0, DISC, 0, 0, b"");
    }
    served.server.finish().unwrap();
    assert!(!served.path.exists(), "the socket goes with the server");
    assert_eq!(served.device.counts().flushes, 1, "the end makes everything durable");
}

#[test]
fn flush_fua_trim_and_zeros_reach_the_device() {
    let served = served(options());
    let mut client = Client::new(&served.path, true);
    let counts = || served.device.counts();
    client.write(0, 0, &pattern(0, 64 << 10));
    client.done(0, FLUSH, 0, 0);
    assert_eq!((counts().flushes, counts().forced_writes), (1, 0));
    client.write(FUA, 5000, &pattern(1, 5000));
    assert_eq!((counts().flushes, counts().forced_writes), (1, 2), "each part is forced");
    // A trim takes whole blocks, and is made durable by a flush.
    client.done(0, TRIM, 5000, 12_000);
    assert_eq!((counts().discarded_blocks, counts().flushes), (2, 1));
    client.done(FUA, TRIM, 0, 4096);
    assert_eq!((counts().discarded_blocks, counts().flushes), (3, 2));
    client.done(FUA, TRIM, 1, 100);
    assert_eq!((counts().discarded_blocks, counts().flushes), (3, 3), "nothing to be forgotten");
    // Zeros: blocks are forgotten unless they are to stay.
    client.write(0, 0, &[9; 32 << 10]);
    let present = counts().blocks_present;
    client.done(FUA, WRITE_ZEROES, 100, 20_000);
    assert_eq!((counts().blocks_present, counts().flushes), (present - 3, 4));
    assert!(client.read(0, 32 << 10).iter().enumerate().all(|(at, byte)| (100..20_100).contains(&at) == (*byte == 0)));
    client.done(NO_HOLE, WRITE_ZEROES, 0, 3 << 20);
    assert_eq!(counts().blocks_present, (3 << 20) / 4096);
    assert!(client.read(0, 3 << 20).iter().all(|byte| *byte == 0));
    drop(client);
    served.server.finish().unwrap();
}

#[test]
fn holes_are_reported_and_not_sent() {
    let served = served(options());
    let mut client = Client::new(&served.path, true);
    client.write(0, 8192, &pattern(0, 8192));
    client.write(0, 40_960, &pattern(0, 100));
    let reply = client.request(0, READ, 4096, 40_960, b"");
    assert_eq!((reply.data.len(), reply.holes), (40_960, 2));
    let status = |client: &mut Client<_>, flags, offset, len| {
        let reply = client.request(flags, BLOCK_STATUS, offset, len, b"");
        assert_eq!((reply.error, &reply.data[..4]), (0, &[0, 0, 0, 1][..]));
        let field = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        reply.data[4..].chunks(8).map(|extent| (field(&extent[..4]), field(&extent[4..]))).collect::<Vec<_>>()
    };
    let all = [(8192, 3), (8192, 0), (24_576, 3), (4096, 0), (SIZE as u32 - 45_056, 3)];
    assert_eq!(status(&mut client, 0, 0, SIZE as u32), all);
    assert_eq!(status(&mut client, 8, 0, SIZE as u32), all[..1], "one is enough");
    assert_eq!(status(&mut client, 0, 5000, 5000), [(3192, 3), (1808, 0)], "in bytes, and no further than asked");
    assert_eq!(status(&mut client, 8, 9000, 100), [(100, 0)]);
    drop(client);
    served.server.finish().unwrap();
}

#[test]
fn errors_reach_the_client_and_spare_the_rest() {
    let served = served(options());
    served.device.fail_at(Lba(3), DeviceErrorKind::Medium);
    served.device.fail_at(Lba(900), DeviceErrorKind::NoSpace);
    served.device.fail_at(Lba(1100), DeviceErrorKind::ReservationConflict);
    for is_structured in [false, true] {
        let mut client = Client::new(&served.path, is_structured);
        assert_eq!(client.request(0, READ, 3 * 4096, 4096, b"").error, 5);
        assert_eq!(client.request(0, READ, 0, 2 << 20, b"").error, 5, "one part of it fails");
        assert_eq!(client.request(0, WRITE, 900 * 4096, 4096, &[1; 4096]).error, 28);
        assert_eq!(client.request(FUA, TRIM, 1100 * 4096, 4096, b"").error, 1);
        assert_eq!(client.request(0, 77, 0, 4096, b"").error, 22, "an unknown command");
        assert_eq!(client.request(0, WRITE, SIZE - 4096, 8192, &[1; 8192]).error, 28, "beyond the end");
        assert_eq!(client.request(0x4000, WRITE, 0, 4096, &[1; 4096]).error, 22, "an unknown flag");
        assert_eq!(client.read(4 * 4096, 4096), [0; 4096]);
    }
    served.device.heal();
    let read_only = self::served(NbdOptions { read_only: true, ..options() });
    let mut client = Client::new(&read_only.path, true);
    for (kind, data) in [(WRITE, &[1; 4096][..]), (TRIM, b""), (WRITE_ZEROES, b"")] {
        assert_eq!(client.request(0, kind, 0, 4096, data).error, 1);
    }
    client.done(0, FLUSH, 0, 0);
    assert_eq!(client.read(0, 4096), [0; 4096]);
    served.server.finish().unwrap();
}

/// Adjacent writes in the same blocks, by several clients at once: no part is lost.
#[test]
fn several_clients_write_parts_of_the_same_blocks() {
    let served = served(options());
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let path = &served.path;
            scope.spawn(move || {
                let mut client = Client::new(path, thread % 2 == 0);
                for round in 0..32 {
                    client.write(0, round * 65_536 + thread * 500, &[thread as u8 + 1; 500]);
                }
                client.done(0, FLUSH, 0, 0);
            });
        }
    });
    let all = Client::new(&served.path, false).read(0, 32 << 16);
    for round in 0..32 {
        for thread in 0..8 {
            let at = round * 65_536 + thread * 500;
            assert!(all[at..at + 500].iter().all(|byte| *byte == thread as u8 + 1));
        }
    }
    eventually("the clients are gone", || served.server.connection_count() == 0);
    served.server.finish().unwrap();
}

#[test]
fn many_requests_are_in_flight_and_answered_at_the_end() {
    let served = served(options());
    let mut client = Client::new(&served.path, true);
    let mut due: Vec<u64> = (0..100).map(|at| client.send(0, WRITE, at * 8192, 8192, &[at as u8 + 1; 8192])).collect();
    let finishing = std::thread::spawn(move || served.server.finish());
    while !due.is_empty() {
        let (cookie, reply) = client.reply(0);
        assert_eq!(reply.error, 0);
        due.retain(|other| *other != cookie);
    }
    finishing.join().unwrap().unwrap();
    assert_eq!(served.device.counts().blocks_present, 200);
}

#[test]
fn new_clients_see_a_volume_that_has_grown() {
    let served = served(options());
    let mut old = Client::new(&served.path, false);
    served.device.grow_to(2 * SIZE / 4096);
    let mut new = Client::new(&served.path, false);
    assert_eq!((old.size_bytes, new.size_bytes), (SIZE, 2 * SIZE));
    new.write(0, 2 * SIZE - 4096, &[7; 4096]);
    assert_eq!(old.read(2 * SIZE - 4096, 4096), [7; 4096], "who knows of it can use it");
    served.server.abandon();
}

#[test]
fn a_socket_is_its_users_own_and_its_servers_own() {
    let served = served(options());
    let mode = served.path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let address = NbdAddress::Unix(served.path.clone());
    let second = NbdServer::start(served.device.clone(), &address, options());
    assert!(
        matches!(&second, Err(NbdServerError::Listen { source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse)
    );
    assert!(second.unwrap_err().to_string().contains("another process answers there"));
    Client::new(&served.path, false).write(0, 0, &[1; 4096]);
    assert_eq!(served.server.uri(), format!("nbd+unix:///vault?socket={}", served.path.display()));
    served.server.finish().unwrap();
    // What a killed process leaves is replaced; anything else is not.
    drop(std::os::unix::net::UnixListener::bind(&served.path).unwrap());
    let server = NbdServer::start(served.device.clone(), &address, options()).unwrap();
    Client::new(&served.path, false).write(0, 0, &[2; 4096]);
    server.finish().unwrap();
    std::fs::write(&served.path, "a file").unwrap();
    assert!(NbdServer::start(served.device, &address, options()).is_err());
    assert_eq!(std::fs::read(&served.path).unwrap(), b"a file");
}

#[test]
fn tcp_is_for_the_loopback_unless_there_is_tls() {
    let device = Arc::new(MemoryDevice::new(Geometry::from_bytes(SIZE, BlockSize::DEFAULT).unwrap()));
    let start = |address: &str| NbdServer::start(device.clone(), &NbdAddress::Tcp(address.parse().unwrap()), options());
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:10809", "[::ffff:127.0.0.1]:0"] {
        let error = start(address).unwrap_err();
        assert!(matches!(error, NbdServerError::NotLocal(_)) && error.to_string().contains("TLS"), "{error}");
    }
    let server = start("127.0.0.1:0").unwrap();
    let NbdAddress::Tcp(address) = server.address() else { panic!("{server:?}") };
    let mut client = Client::try_over(std::net::TcpStream::connect(address).unwrap(), true).unwrap();
    client.write(FUA, 0, &[3; 4096]);
    assert_eq!(client.read(0, 4096), [3; 4096]);
    drop(client);
    server.finish().unwrap();
}
