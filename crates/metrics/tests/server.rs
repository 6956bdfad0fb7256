//! Proves that collectors are answered over the loopback and over a Unix socket, and that those who send garbage, too much or nothing, or who
//! never read, cost a few connections for a while and nothing else.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strongroom_metrics::{Definition, Exposition, MetricsAddress, MetricsServer};

const SCRAPES: Definition = Definition::counter("test_scrapes", &[], "How often it was measured.");
const FILLING: Definition = Definition::gauge("test_filling", &["number"], "To make the answer long.");
const PATIENCE: Duration = Duration::from_secs(30);

/// A server whose answers have this many lines beside one, and how often it was measured.
fn server(address: &str, lines: usize) -> (MetricsServer, Arc<AtomicU64>) {
    let scrapes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&scrapes);
    let address: MetricsAddress = address.parse().unwrap();
    let source = move || {
        let mut exposition = Exposition::default();
        exposition.add(&SCRAPES, &[], counted.fetch_add(1, Ordering::Relaxed) + 1);
        (0..lines).for_each(|line| exposition.add(&FILLING, &[&line.to_string()], line));
        exposition
    };
    (MetricsServer::start(&address, source).unwrap(), scrapes)
}

fn port_of(server: &MetricsServer) -> SocketAddr {
    match server.address() {
        MetricsAddress::Loopback(address) => *address,
        MetricsAddress::Unix(path) => panic!("{}", path.display()),
    }
}

fn connect(server: &MetricsServer) -> TcpStream {
    let stream = TcpStream::connect(port_of(server)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The whole answer to some bytes.
fn ask(mut stream: impl Read + Write, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";

#[track_caller]
fn assert_is_scrape(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{head}");
    assert!(body.contains("test_scrapes_total ") && body.ends_with("# EOF\n"), "{body}");
}

#[test]
fn the_loopback_is_answered() {
    let (server, scrapes) = server("127.0.0.1:0", 3);
    assert_is_scrape(&ask(connect(&server), GET));
    let head = ask(connect(&server), b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(ask(connect(&server), b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(connect(&server), b"PUT /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(scrapes.load(Ordering::Relaxed) <= 2, "a moment later the answer is the same");
    std::thread::sleep(Duration::from_millis(300));
    let before = scrapes.load(Ordering::Relaxed);
    assert_is_scrape(&ask(connect(&server), GET));
    assert_eq!(scrapes.load(Ordering::Relaxed), before + 1);
    let address = port_of(&server);
    drop(server);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_unix_socket_is_answered_and_goes_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.sock");
    let address = format!("unix:{}", path.display());
    let (server_one, _) = server(&address, 0);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    assert_is_scrape(&ask(UnixStream::connect(&path).unwrap(), GET));
    let second = MetricsServer::start(&address.parse().unwrap(), Exposition::default).unwrap_err().to_string();
    assert!(second.contains("another process answers there") && second.contains("metrics.sock"), "{second}");
    drop(server_one);
    assert!(!path.exists());
    // As a killed process leaves it.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let (again, _) = server(&address, 0);
    assert_is_scrape(&ask(UnixStream::connect(&path).unwrap(), GET));
    drop(again);
    fs::write(&path, "somebody's file").unwrap();
    assert!(MetricsServer::start(&address.parse().unwrap(), Exposition::default).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's file");
}

#[test]
fn a_port_in_use_is_an_error_that_says_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = MetricsAddress::Loopback(taken.local_addr().unwrap());
    let error = MetricsServer::start(&address, Exposition::default).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("choose another address"), "{error}");
}

#[test]
fn garbage_and_huge_requests_are_refused() {
    let (server, scrapes) = server("127.0.0.1:0", 0);
    assert!(ask(connect(&server), b"\x16\x03\x01\x02\x00\x01\x00").starts_with("HTTP/1.1 400 "));
    assert!(ask(connect(&server), b"SSH-2.0-client\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let mut huge = b"GET /metrics HTTP/1.1\r\n".to_vec();
    (0..500).for_each(|_| huge.extend_from_slice(b"A: 0123456789012345678901234567890123456789\r\n"));
    let mut stream = connect(&server);
    stream.write_all(&huge).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    // Endless ones are cut off.
    let mut stream = connect(&server);
    let started = Instant::now();
    while stream.write_all(&[b'A'; 4 << 10]).is_ok() {
        assert!(started.elapsed() < PATIENCE);
    }
    assert_eq!(scrapes.load(Ordering::Relaxed), 0);
    assert_is_scrape(&ask(connect(&server), GET));
}

#[test]
fn collectors_that_never_send_or_never_read_make_way() {
    // Longer than what sockets hold.
    let (server, scrapes) = server("127.0.0.1:0", 400_000);
    let mut idle = Vec::new();
    for number in 0..20 {
        let mut stream = connect(&server);
        if number % 2 == 0 {
            stream.write_all(GET).unwrap();
        }
        idle.push(stream);
    }
    let started = Instant::now();
    assert_is_scrape(&ask(connect(&server), GET));
    assert!(started.elapsed() < PATIENCE);
    // Those beyond the few that it holds were dropped: they end before a whole answer.
    let mut first = String::new();
    let _ = idle[0].read_to_string(&mut first);
    assert!(!first.ends_with("# EOF\n"));
    // And all others, after a while.
    for stream in &mut idle {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(scrapes.load(Ordering::Relaxed) <= 12);
    let stopping = Instant::now();
    let stuck = connect(&server);
    drop(server);
    assert!(stopping.elapsed() < Duration::from_secs(5), "it does not wait for collectors");
    drop(stuck);
}
