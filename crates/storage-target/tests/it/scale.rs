//! Proves that many volumes and sessions at once are served within the memory budget, and prints what they take (of the whole process: exact
//! only where this test runs alone). A few of
//! them here; `make soak` has 1,000 volumes and 10,000 sessions (STRONGROOM_SCALE_VOLUMES, STRONGROOM_SCALE_SESSIONS).

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_iscsi::pdu::{Answer, LoginRequest};
use strongroom_iscsi::{Bhs, Digests, LoginStatus, Pdu, PlainFramer};
use strongroom_target::VolumeSpec;

use crate::support::keeper::status;
use crate::support::{BOB, Host, Initiator, MIB, eventually, normal, pattern, raise_file_limit, target_name};

/// Threads that log in at the same time.
const CLIENTS: usize = 8;

fn from_environment(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// A number in a line of `/proc/self/status`.
fn process(line: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|found| found.strip_prefix(line)).expect("the kernel tells it");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// A plain login in one request; the session lives as long as the stream.
fn log_in(at: SocketAddr, volume: usize, number: usize) -> TcpStream {
    let [.., high, middle, low] = (number as u64).to_be_bytes();
    let request = LoginRequest::one_step([0x80, 0, 0, high, middle, low]);
    let target = target_name(&format!("v{volume}"));
    let text = format!("InitiatorName={BOB}\0TargetName={target}\0SessionType=Normal\0");
    let pdu = Pdu::new(request.encode(), Bytes::new(), Buffer::copy_from(text.as_bytes()), false);
    let mut out = Vec::new();
    PlainFramer::encode(pdu, Digests::default(), &mut out);
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
    out.iter().for_each(|bytes| stream.write_all(bytes).unwrap());
    let mut header = [0; 48];
    stream.read_exact(&mut header).unwrap();
    let Ok(Answer::Login(answer)) = Answer::decode(&Bhs(header)) else { panic!("{header:?}") };
    assert_eq!(answer.status, LoginStatus::SUCCESS);
    stream
}

/// The initiators, in a process of their own: one process may not have enough descriptors for both ends. Says when all are logged in, and
/// keeps them until its input ends.
#[test]
#[ignore = "started by many_volumes_and_sessions_stay_within_the_budget"]
fn scale_initiators() {
    let at: SocketAddr = std::env::var("STRONGROOM_SCALE_AT").expect("an address").parse().unwrap();
    let (volumes, sessions) =
        (from_environment("STRONGROOM_SCALE_VOLUMES", 1), from_environment("STRONGROOM_SCALE_SESSIONS", 1));
    raise_file_limit();
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    let streams: Vec<TcpStream> = std::thread::scope(|scope| {
        let client = || {
            let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < sessions));
            numbers.map(|number| log_in(at, number % volumes, number)).collect::<Vec<_>>()
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    println!("\nlogged in {} {:.3}", streams.len(), began.elapsed().as_secs_f64());
    let _ = std::io::stdin().read(&mut [0; 1]);
}

#[test]
fn many_volumes_and_sessions_stay_within_the_budget() {
    let volumes = from_environment("STRONGROOM_SCALE_VOLUMES", 20);
    let sessions = from_environment("STRONGROOM_SCALE_SESSIONS", 200);
    raise_file_limit();
    let specs: Vec<VolumeSpec> = (0..volumes).map(|number| VolumeSpec::plain(format!("v{number}"), 16 * MIB)).collect();
    let host = Host::start_with(&specs, |config| {
        config.limits.connections_max = sessions * 2;
        config.limits.unauthenticated_percent = 100;
        config.limits.connections_per_address_max = sessions * 2;
        config.limits.login_timeout_s = 600;
        config.limits.idle_close_s = 3600;
    });
    let resident_before = process("VmRSS:");
    let mut initiators = Command::new(std::env::current_exe().unwrap())
        .args(["scale::scale_initiators", "--exact", "--ignored", "--nocapture"])
        .env("STRONGROOM_SCALE_AT", host.address().to_string())
        .env("STRONGROOM_SCALE_VOLUMES", volumes.to_string())
        .env("STRONGROOM_SCALE_SESSIONS", sessions.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(initiators.stdout.take().unwrap()).lines().map_while(Result::ok);
    let done = said.find_map(|line| line.strip_prefix("logged in ").map(str::to_owned)).expect("all are logged in");
    let took: f64 = done.split(' ').nth(1).unwrap().parse().unwrap();
    let resident = process("VmRSS:");
    eventually("all are there", || host.handle().stats().sessions == sessions as u64);
    let report = status(&host);
    assert_eq!((report.sessions.len(), report.volumes.len()), (sessions, volumes));
    let memory = report.memory;
    assert!(memory.used_bytes() <= memory.budget_bytes, "{memory:?}");
    // Everybody is served: one more session of some volumes, which writes and reads.
    for volume in (0..volumes).step_by((volumes / 10).max(1)) {
        let mut config = normal(BOB, &format!("v{volume}"));
        config.isid = [0x80, 1, 0, 0, 0, 0];
        let mut session = Initiator::log_in(&host, None, config).expect("admitted");
        session.write(0, &pattern(volume as u8, 16));
        assert_eq!(session.read(0, 16), pattern(volume as u8, 16));
    }
    let iterations = host.handle().stats().iterations;
    println!(
        "{volumes} volumes, {sessions} sessions: {:.0} logins/s, {} KiB resident for each session and its share of volumes, {} MiB in all; \
         budget {} MiB, used {} MiB (sessions {}, caches {}, stores {}); {} iterations, {} over 10 ms, the longest {:.1} ms",
        sessions as f64 / took,
        resident.saturating_sub(resident_before) / sessions as u64,
        resident >> 10,
        memory.budget_bytes >> 20,
        memory.used_bytes() >> 20,
        memory.sessions_bytes >> 20,
        memory.caches_bytes >> 20,
        memory.stores_bytes >> 20,
        iterations.count(),
        iterations.longer_than(Duration::from_millis(10)),
        iterations.longest_us as f64 / 1000.0,
    );
    drop(initiators.stdin.take());
    initiators.wait().unwrap();
    eventually("all are gone", || host.handle().stats().connections == 0);
    eventually("their memory is given back", || status(&host).memory.sessions_bytes == 0);
}
