//! Clients that break off, lie, flood, and never read.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::client::{Client, FLUSH, READ, WRITE, connect, greet, header};
use super::{NbdOptions, SIZE, eventually, options, served};
use crate::front::nbd::NbdServer;

/// Whether the server has closed the connection.
fn is_closed(stream: &mut UnixStream) -> bool {
    match stream.read(&mut [0; 4096]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Other clients are served, and nothing is left of those that are gone.
fn serves_others(server: &NbdServer, path: &std::path::Path) {
    let mut client = Client::new(path, true);
    client.write(0, SIZE - 4096, &[5; 4096]);
    assert_eq!(client.read(SIZE - 4096, 4096), [5; 4096]);
    drop(client);
    eventually("the clients are gone", || server.connection_count() == 0);
}

#[test]
fn attack_nbd_break_off_within_a_request() {
    let served = served(options());
    let whole = [header(0, WRITE, 9, 0, 8192), vec![7; 8192]].concat();
    for sent in [1, 27, 28, 29, 28 + 4096, 28 + 8191] {
        let mut client = Client::new(&served.path, false);
        client.write(0, 16_384, &[sent as u8; 4096]);
        client.stream.write_all(&whole[..sent]).unwrap();
        drop(client);
        serves_others(&served.server, &served.path);
    }
    // Within the negotiation too.
    for sent in 0..20 {
        let mut stream = connect(&served.path);
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\x7f\xff"[..sent]).unwrap();
        drop(stream);
    }
    serves_others(&served.server, &served.path);
    let mut client = Client::new(&served.path, false);
    assert_eq!(client.read(0, 8192), [0; 8192], "what did not come whole is not written");
    assert_eq!(client.read(16_384, 4096), [(28_u64 + 8191) as u8; 4096], "what was answered is");
    served.server.abandon();
}

#[test]
fn attack_nbd_garbage_ends_its_own_connection_only() {
    let served = served(options());
    let mut bystander = Client::new(&served.path, true);
    for garbage in [
        vec![0; 28],
        vec![0xff; 4096],
        b"GET / HTTP/1.1\r\nHost: storage\r\n\r\n".to_vec(),
        header(0, WRITE, 1, 0, u32::MAX),
        header(0, WRITE, 1, 0, (32 << 20) + 1),
    ] {
        let mut client = Client::new(&served.path, true);
        client.stream.write_all(&garbage).unwrap();
        assert!(is_closed(&mut client.stream), "{garbage:x?}");
        bystander.done(0, FLUSH, 0, 0);
    }
    for garbage in
        [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x03NOTANOPTION.....", b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff"]
    {
        let mut stream = connect(&served.path);
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(garbage).unwrap();
        assert!(is_closed(&mut stream));
        bystander.done(0, FLUSH, 0, 0);
    }
    drop(bystander);
    serves_others(&served.server, &served.path);
    served.server.finish().unwrap();
}

/// It asks for far more than it takes; what it has in flight is bounded, and others do not wait for it.
#[test]
fn attack_nbd_a_client_that_never_reads() {
    const MEMORY_MAX: usize = 16 << 20;
    let served = served(options());
    let mut fill = Client::new(&served.path, false);
    fill.write(0, 0, &[1; 4 << 20]);
    drop(fill);
    eventually("it is gone", || served.server.connection_count() == 0);
    let mut client = Client::new(&served.path, true);
    // 2 GiB of replies; the requests fit into the socket's buffer.
    let requests: Vec<u8> = (0..2000).flat_map(|cookie| header(0, READ, cookie, 0, 1 << 20)).collect();
    client.stream.write_all(&requests).unwrap();
    let used = || served.server.service.connections.used_bytes().into_iter().max().unwrap_or(0);
    eventually("its credit is used up", || used() > MEMORY_MAX - (1 << 20));
    let mut other = Client::new(&served.path, true);
    for round in 0..200_u64 {
        other.write(0, 4 << 20, &[round as u8; 4096]);
        assert_eq!(other.read(4 << 20, 4096), [round as u8; 4096]);
        assert!(used() <= MEMORY_MAX, "{} bytes in flight", used());
    }
    // It is served on as soon as it reads.
    for _ in 0..40 {
        assert!(client.reply(0).1.data.iter().all(|byte| *byte == 1));
    }
    drop((client, other));
    serves_others(&served.server, &served.path);
    served.server.finish().unwrap();
}

/// The end does not wait for such a client either.
#[test]
fn attack_nbd_hold_up_the_end_of_the_server() {
    let served = served(options());
    let mut client = Client::new(&served.path, false);
    client.write(0, 0, &[1; 4 << 20]);
    (0..100).for_each(|cookie| client.stream.write_all(&header(0, READ, cookie, 0, 1 << 20)).unwrap());
    let idle = connect(&served.path);
    served.server.finish().unwrap();
    assert!(!served.path.exists());
    assert_eq!(served.device.counts().flushes, 1);
    drop((client, idle));
}

#[test]
fn attack_nbd_a_thousand_connections() {
    let served = served(NbdOptions { connections_max: 8, ..options() });
    let mut all: Vec<UnixStream> = Vec::new();
    for _ in 0..1000 {
        // The kernel's queue may be full for a moment.
        eventually("it connects", || match UnixStream::connect(&served.path) {
            Ok(stream) => {
                all.push(stream);
                true
            }
            Err(_) => false,
        });
        assert!(served.server.connection_count() <= 8);
    }
    // The others are closed without a word.
    let mut greeted = 0;
    for stream in &mut all {
        stream.set_read_timeout(Some(super::PATIENCE)).unwrap();
        match greet(stream) {
            Ok(()) => greeted += 1,
            Err(error) => {
                let closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                assert!(closed.contains(&error.kind()), "{error}");
            }
        }
    }
    assert!(greeted <= 8, "{greeted} were served");
    all.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    drop(all);
    eventually("there is room again", || served.server.connection_count() == 0);
    serves_others(&served.server, &served.path);
    served.server.finish().unwrap();
}
