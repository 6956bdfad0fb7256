//! The one client for all servers: blocking sockets, a fixed number of requests in flight, no cleverness.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::protocol::{Kind, Offsets, REQUEST_BYTES, Request};

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub kind: Kind,
    pub len_bytes: usize,
    pub connections: usize,
    /// Requests in flight on each connection.
    pub depth: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub ops: u64,
    pub elapsed: Duration,
    pub server_cpu_us: u64,
}

struct Connection {
    stream: TcpStream,
    received: usize,
}

pub fn run(port: u16, load: Load, for_how_long: Duration) -> Outcome {
    let mut offsets = Offsets::new(0);
    let mut requests = Vec::new();
    let mut request_batch = |count: usize| {
        requests.clear();
        for _ in 0..count {
            let offset = offsets.next(load.len_bytes);
            requests.extend_from_slice(&Request { kind: load.kind, len_bytes: load.len_bytes, offset }.encode());
        }
        requests.clone()
    };
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket");
        Connection { stream, received: 0 }
    };
    let mut connections: Vec<Connection> = (0..load.connections).map(|_| connect()).collect();
    let mut control = connect().stream;
    for connection in &mut connections {
        connection.stream.write_all(&request_batch(load.depth)).expect("sent");
    }
    let mut buffer = vec![0; 1 << 20];
    let warm_until = Instant::now() + for_how_long / 10;
    let (mut ops, mut cpu_before, mut started) = (0, None, Instant::now());
    loop {
        for connection in &mut connections {
            // At least one whole reply of this connection, then as many new requests as replies came.
            let mut completed = 0;
            while completed == 0 {
                let count = connection.stream.read(&mut buffer).expect("a reply");
                assert!(count > 0, "the server left");
                connection.received += count;
                completed = connection.received / load.len_bytes;
            }
            connection.received -= completed * load.len_bytes;
            ops += completed as u64;
            connection.stream.write_all(&request_batch(completed)).expect("sent");
        }
        let now = Instant::now();
        match cpu_before {
            None if now >= warm_until => {
                cpu_before = Some(server_cpu(&mut control));
                (ops, started) = (0, Instant::now());
            }
            Some(before) if now >= started + for_how_long => {
                let elapsed = started.elapsed();
                return Outcome { ops, elapsed, server_cpu_us: server_cpu(&mut control) - before };
            }
            _ => {}
        }
    }
}

fn server_cpu(control: &mut TcpStream) -> u64 {
    let request: [u8; REQUEST_BYTES] = Request { kind: Kind::CpuTime, len_bytes: 8, offset: 0 }.encode();
    control.write_all(&request).expect("sent");
    let mut reply = [0; 8];
    control.read_exact(&mut reply).expect("a reply");
    u64::from_be_bytes(reply)
}
