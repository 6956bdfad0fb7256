//! Proves that the keeper of a target can see and end sessions, drain it and reload it while it runs, and that the socket for it is
//! nobody else's and holds against clients that say nonsense, too much, or nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use strongroom_block::{BlockKeyWrap, Buffer, Custody, WrapError};
use strongroom_iscsi::initiator::Event;
use strongroom_iscsi::pdu::{Answer, LoginRequest};
use strongroom_iscsi::{Bhs, Digests, LoginStatus, Pdu, PlainFramer};
use strongroom_target::admin::{
    self, CLIENTS_MAX, Client, Operation, REQUEST_BYTES_MAX, Reloaded, Reply, Request, default_socket,
};
use strongroom_target::{
    Catalogue, ChapSecrets, Config, SealedSpec, Stats, Target, TargetOptions, VolumeSpec, WrapFactory,
};

use crate::support::keeper::{ask, status};
use crate::support::*;

fn socket(host: &Host) -> PathBuf {
    default_socket(host.dir.path())
}

fn drop_where(peer: Option<&str>, volume: Option<&str>) -> Request {
    Request::SessionDrop { id: None, initiator: None, peer: peer.map(Into::into), volume: volume.map(Into::into) }
}

/// A target whose configuration can be replaced for its next reload, by one that may be wrong.
fn reloadable(volumes: &[VolumeSpec]) -> (Host, Config, Arc<Mutex<Result<Config, String>>>) {
    reloadable_with(volumes, None)
}

fn reloadable_with(
    volumes: &[VolumeSpec],
    wraps: Option<WrapFactory>,
) -> (Host, Config, Arc<Mutex<Result<Config, String>>>) {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    volumes.iter().for_each(|spec| drop(catalogue.create(spec).unwrap()));
    let config = config(dir.path());
    let next = Arc::new(Mutex::new(Ok(config.clone())));
    let mut options = TargetOptions::new(config.clone());
    options.node_key = Some(target_key());
    options.wraps = wraps;
    let read = Arc::clone(&next);
    options.reread = Some(Arc::new(move || Ok((read.lock().unwrap().clone()?, ChapSecrets::default()))));
    let target = Target::start(options).unwrap();
    (Host { target: Some(target), dir, node: target_key().public() }, config, next)
}

fn reload(host: &Host) -> Result<Reloaded, String> {
    match ask(host, &Request::Reload)? {
        Reply::Reloaded(reloaded) => Ok(reloaded),
        other => panic!("{other:?}"),
    }
}

#[test]
fn status_tells_who_does_what() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB), VolumeSpec::plain("other", MIB)]);
    let mode = std::fs::metadata(socket(&host)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut plain = host.plain("data");
    let _channel = host.channel("other");
    plain.write(0, &pattern(1, 4));
    plain.read(0, 2);
    let report = status(&host);
    assert_eq!(report.addresses, host.handle().local_addresses());
    assert_eq!((report.workers, report.channels, report.sessions.len()), (2, true, 2));
    let session = report.sessions.iter().find(|session| session.scheme == "S0").unwrap();
    assert_eq!((session.initiator.as_str(), session.volume.as_deref()), (ALICE, Some("data")));
    assert_eq!((session.bytes_written, session.bytes_read), (4 * BLOCK as u64, 2 * BLOCK as u64));
    assert_eq!((session.peer.as_deref(), session.read_only), (None, false));
    assert!(session.keys.iter().any(|(key, value)| key == "ImmediateData" && value == "Yes"), "{:?}", session.keys);
    let other = report.sessions.iter().find(|session| session.scheme == "S2-5").unwrap();
    assert_eq!(other.peer.as_deref(), Some("alice"));
    let volume = report.volumes.iter().find(|volume| volume.name == "data").unwrap();
    assert_eq!((volume.sessions, volume.size_bytes, volume.store.blocks_mapped), (1, MIB, 4));
    // The workers go on meanwhile.
    let iterations = report.counters.iterations.clone();
    assert!(iterations.count() > 0);
    assert_eq!(report.counters, Stats { iterations, ..host.handle().stats() });
    plain.log_out();
    eventually("the session is gone", || status(&host).sessions.len() == 1);
}

#[test]
fn a_session_is_dropped_and_may_come_again() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB), VolumeSpec::plain("other", MIB)]);
    let mut one = host.plain("data");
    let mut two = host.channel("other");
    assert_eq!(ask(&host, &drop_where(None, Some("none"))), Ok(Reply::Sessions(0)));
    assert_eq!(ask(&host, &drop_where(Some("alice"), None)), Ok(Reply::Sessions(1)));
    two.wait_for_end();
    one.read(0, 1);
    let id = status(&host).sessions[0].id;
    let by_id = Request::SessionDrop { id: Some(id), initiator: None, peer: None, volume: None };
    assert_eq!(ask(&host, &by_id), Ok(Reply::Sessions(1)));
    one.wait_for_end();
    assert!(ask(&host, &drop_where(None, None)).unwrap_err().contains("which sessions"));
    host.plain("data").read(0, 1);
}

#[test]
fn a_drain_sends_initiators_elsewhere_until_it_ends() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB), VolumeSpec::plain("other", MIB)]);
    let mut data = host.plain("data");
    let mut other = host.plain("other");
    let drain = |to: Option<&str>| Request::Drain { to: to.map(Into::into), volume: Some("data".into()), grace_s: 30 };
    assert!(ask(&host, &drain(Some("nowhere"))).unwrap_err().contains("host:port"));
    assert_eq!(ask(&host, &drain(Some("[2001:db8::1]:3260"))), Ok(Reply::Sessions(1)));
    // RFC 7143 §11.9.1: an asynchronous message asks for the logout; the initiator's machine answers it.
    data.pump_until(|data| {
        data.events.iter().any(|event| matches!(event, Event::LogoutRequested { .. })).then_some(())
    });
    data.log_out();
    other.read(0, 1);
    let mut again = Initiator::connect(&host, None, normal(ALICE, "data"));
    let redirect = again.pump_until(|again| {
        again.events.drain(..).find_map(|event| match event {
            Event::LoginFailed { status, redirect, .. } => Some((status.class(), redirect)),
            _ => None,
        })
    });
    assert_eq!(redirect, (1, Some("[2001:db8::1]:3260".to_owned())));
    assert_eq!(status(&host).drains.len(), 1);
    // Without a place to go: not now.
    ask(&host, &drain(None)).unwrap();
    let refused = Initiator::log_in(&host, None, normal(ALICE, "data")).err().unwrap();
    assert_eq!(refused, Refused::Login(LoginStatus::SERVICE_UNAVAILABLE));
    let end = Request::Undrain { volume: Some("data".into()) };
    assert_eq!(ask(&host, &end), Ok(Reply::Done));
    assert!(ask(&host, &end).is_err());
    host.plain("data").read(0, 1);
}

/// A login that was let in and is not over yet: the first of its requests was answered.
fn begin_login(host: &Host) -> TcpStream {
    let request = LoginRequest { current_stage: 0, next_stage: 1, ..LoginRequest::one_step([0x80, 0, 0, 0, 0, 1]) };
    let text =
        format!("InitiatorName={ALICE}\0TargetName={}\0SessionType=Normal\0AuthMethod=None\0", target_name("data"));
    let pdu = Pdu::new(request.encode(), Bytes::new(), Buffer::copy_from(text.as_bytes()), false);
    let mut out = Vec::new();
    PlainFramer::encode(pdu, Digests::default(), &mut out);
    let mut stream = TcpStream::connect(host.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    out.iter().for_each(|bytes| stream.write_all(bytes).unwrap());
    assert_eq!(login_status(&mut stream), LoginStatus::SUCCESS);
    stream
}

fn login_status(stream: &mut TcpStream) -> LoginStatus {
    let mut header = [0; 48];
    stream.read_exact(&mut header).unwrap();
    let len = u32::from_be_bytes([0, header[5], header[6], header[7]]).next_multiple_of(4);
    stream.read_exact(&mut vec![0; len as usize]).unwrap();
    match Answer::decode(&Bhs(header)) {
        Ok(Answer::Login(answer)) => answer.status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_is_on_the_way_in_is_drained_and_dropped_like_who_is_in() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB), VolumeSpec::plain("other", MIB)]);
    let drain = |volume: &str| Request::Drain { to: None, volume: Some(volume.into()), grace_s: 30 };
    let mut on_the_way = begin_login(&host);
    assert_eq!(ask(&host, &drop_where(None, Some("other"))), Ok(Reply::Sessions(0)));
    assert_eq!(ask(&host, &drain("other")), Ok(Reply::Sessions(0)));
    assert_eq!(ask(&host, &drop_where(None, Some("data"))), Ok(Reply::Sessions(1)));
    assert_eq!(login_status(&mut on_the_way), LoginStatus::SERVICE_UNAVAILABLE);
    assert_eq!(on_the_way.read(&mut [0; 1]).unwrap(), 0, "that is all");
    let mut on_the_way = begin_login(&host);
    assert_eq!(ask(&host, &drain("data")), Ok(Reply::Sessions(1)));
    assert_eq!(login_status(&mut on_the_way), LoginStatus::SERVICE_UNAVAILABLE);
    assert_eq!(on_the_way.read(&mut [0; 1]).unwrap(), 0);
    ask(&host, &Request::Undrain { volume: Some("data".into()) }).unwrap();
    host.plain("data").read(0, 1);
}

#[test]
fn a_drain_reaches_the_snapshots_of_a_volume() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB), VolumeSpec::plain("other", MIB)]);
    let operation = Operation::SnapshotCreate { snapshot: "monday".into() };
    ask(&host, &Request::Volume { volume: "data".into(), operation }).unwrap();
    let mut monday = host.plain("data:monday");
    let mut other = host.plain("other");
    let drain = Request::Drain { to: None, volume: Some("data".into()), grace_s: 1 };
    assert_eq!(ask(&host, &drain), Ok(Reply::Sessions(1)));
    monday.wait_for_end();
    let refused = Initiator::log_in(&host, None, normal(ALICE, "data:monday")).err().unwrap();
    assert_eq!(refused, Refused::Login(LoginStatus::SERVICE_UNAVAILABLE));
    other.read(0, 1);
}

#[test]
fn who_does_not_log_out_of_a_drained_target_is_dropped() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    let mut data = host.plain("data");
    ask(&host, &Request::Drain { to: None, volume: None, grace_s: 1 }).unwrap();
    data.wait_for_end();
    eventually("nobody is left", || status(&host).sessions.is_empty());
}

#[test]
fn a_reload_revokes_changes_and_lets_in() {
    let (host, config, next) = reloadable(&[VolumeSpec::plain("data", MIB), VolumeSpec::plain("other", MIB)]);
    let mut plain = host.plain("data");
    let mut channel = host.channel("other");
    assert_eq!(reload(&host), Ok(Reloaded::default()));
    // Alice's key is revoked; plain sessions may only read.
    let mut changed = config.clone();
    changed.peers.clear();
    changed.plain[0].read_only = true;
    changed.workers = Some(7);
    *next.lock().unwrap() = Ok(changed);
    let reloaded = reload(&host).unwrap();
    assert_eq!(reloaded.changed, ["peer", "plain"]);
    assert_eq!(reloaded.needs_restart, ["workers"]);
    assert_eq!((reloaded.sessions_ended, reloaded.sessions_changed), (1, 1));
    channel.wait_for_end();
    plain.read(0, 1);
    assert_eq!(plain.try_write(0, &pattern(1, 1)).sense().asc, 0x27, "DATA PROTECT: write protected");
    assert!(Initiator::log_in(&host, Some(alice_key()), normal(ALICE, "other")).is_err());
    *next.lock().unwrap() = Ok(config);
    assert_eq!(reload(&host).unwrap().sessions_changed, 1);
    plain.write(0, &pattern(1, 1));
    host.channel("other").read(0, 1);
}

/// A login that waits for its volume's store is asked again before it is let in: what was changed meanwhile holds.
#[test]
fn who_waits_to_log_in_comes_under_the_new_rules() {
    let sealed = SealedSpec { wrapping_key: Some("/etc/wrap.key".into()), ..SealedSpec::new(Custody::Target) };
    let spec = VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain("vault", MIB) };
    let refused = |change: fn(&Host, &Mutex<Result<Config, String>>)| {
        let (began, begins) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let (began, goes_on) = (Mutex::new(began), Mutex::new(goes_on));
        // Called while the store is being opened, in a thread of its own.
        let wraps: WrapFactory = Arc::new(move |_| {
            began.lock().unwrap().send(()).unwrap();
            goes_on.lock().unwrap().recv().unwrap();
            Ok(Arc::new(NoWrap))
        });
        let (host, _, next) = reloadable_with(std::slice::from_ref(&spec), Some(wraps));
        let mut late = Initiator::connect(&host, Some(alice_key()), normal(ALICE, "vault"));
        late.pump_until(|_| begins.try_recv().ok());
        change(&host, &next);
        go_on.send(()).unwrap();
        late.wait_for_login().unwrap_err()
    };
    let revoked = refused(|host, next| {
        next.lock().unwrap().as_mut().unwrap().peers[0].volumes.clear();
        assert_eq!(reload(host).unwrap().changed, ["peer"]);
    });
    assert_eq!(revoked, Refused::Login(LoginStatus::AUTHORIZATION_FAILED));
    let drained = refused(|host, _| {
        let drain = Request::Drain { to: None, volume: Some("vault".into()), grace_s: 30 };
        assert_eq!(ask(host, &drain), Ok(Reply::Sessions(0)));
    });
    assert_eq!(drained, Refused::Login(LoginStatus::SERVICE_UNAVAILABLE));
}

/// Never asked: no block is written here.
struct NoWrap;

impl BlockKeyWrap for NoWrap {
    fn wrap(&self, _: &[u8; 32]) -> Result<[u8; 40], WrapError> {
        unreachable!("nothing is written")
    }

    fn unwrap(&self, _: &[u8; 40]) -> Result<[u8; 32], WrapError> {
        unreachable!("nothing is read")
    }
}

#[test]
fn a_reload_that_cannot_be_changes_nothing() {
    let (host, config, next) = reloadable(&[VolumeSpec::plain("data", MIB), VolumeSpec::plain("other", MIB)]);
    let mut plain = host.plain("data");
    let mut bad = config.clone();
    bad.plain.clear();
    bad.peers[0].key = "no key".into();
    for wrong in [Err("line 3: not TOML".to_owned()), Ok(bad)] {
        *next.lock().unwrap() = wrong;
        let problem = reload(&host).unwrap_err();
        assert!(problem.contains("line 3") || problem.contains("peer[0]"), "{problem}");
        // Nothing of it holds: not even what comes before the mistake.
        plain.write(0, &pattern(2, 1));
        host.channel("other").log_out();
    }
}

#[test]
fn who_may_use_a_volume_can_change_while_it_is_used() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    let mut plain = host.plain("data");
    let access = strongroom_target::Access { read_only: true, ..Default::default() };
    host.handle().catalogue().set_access("data", access).unwrap();
    let refresh = Request::Refresh { volume: "data".into() };
    assert_eq!(ask(&host, &refresh), Ok(Reply::Sessions(1)));
    assert_eq!(plain.try_write(0, &pattern(1, 1)).sense().asc, 0x27);
    assert_eq!(ask(&host, &refresh), Ok(Reply::Sessions(0)));
}

#[test]
fn nonsense_is_refused_and_nobody_else_notices() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    let mut plain = host.plain("data");
    let say = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(socket(&host)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that has heard enough may hang up while we still talk.
        let _ = stream.write_all(bytes);
        let mut reply = String::new();
        let _ = BufReader::new(&stream).read_line(&mut reply);
        reply
    };
    let deep = format!("{}\n", "[".repeat(60_000));
    for line in [
        "hello\n",
        "{}\n",
        "\n",
        "\0\u{1}\n",
        "{\"request\":\"format-everything\"}\n",
        "{\"request\":\"refresh\"}\n",
        "{\"request\":\"refresh\",\"volume\":7}\n",
        "{\"request\":\"session-drop\",\"id\":1,\"sudo\":true}\n",
        "{\"request\":\"drain\",\"grace_s\":-1}\n",
        "{\"request\":\"refresh\",\"volume\":\"../../etc\"}\n",
        deep.as_str(),
    ] {
        let reply = say(line.as_bytes());
        assert!(reply.starts_with("{\"error\":"), "{line:?}: {reply}");
    }
    assert!(say(&[0xff, 0xfe, b'\n']).starts_with("{\"error\":"));
    let reply = say(&vec![b'a'; 4 * REQUEST_BYTES_MAX]);
    assert!(reply.contains("longer than"), "{reply}");
    // After a request that is none the next one counts, two in one packet too.
    let mut stream = UnixStream::connect(socket(&host)).unwrap();
    stream.write_all(b"nonsense\n{\"request\":\"status\"}\n").unwrap();
    let mut lines = BufReader::new(&stream).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("{\"error\":"));
    assert!(lines.next().unwrap().unwrap().starts_with("{\"status\":"));
    // Half a request, and gone.
    drop(UnixStream::connect(socket(&host)).unwrap());
    UnixStream::connect(socket(&host)).unwrap().write_all(b"{\"request\":").unwrap();
    plain.write(0, &pattern(1, 1));
    assert_eq!(status(&host).sessions.len(), 1);
}

#[test]
fn silent_clients_have_a_bound_and_a_time() {
    let host = Host::start(&[]);
    let mut silent: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| UnixStream::connect(socket(&host)).unwrap()).collect();
    let turned_away = ask(&host, &Request::Status).unwrap_err();
    assert!(turned_away.contains("too many admin clients"), "{turned_away}");
    drop(silent.pop());
    eventually("there is room again", || ask(&host, &Request::Status).is_ok());
    // The others lose their places when their time is over.
    let mut first = silent.remove(0);
    first.set_read_timeout(Some(admin::CLIENT_PATIENCE + Duration::from_secs(5))).unwrap();
    let mut last_words = String::new();
    first.read_to_string(&mut last_words).unwrap();
    assert!(last_words.contains("no request"), "{last_words}");
}

#[test]
fn a_socket_left_behind_is_replaced_and_a_live_one_is_not() {
    let (mut host, config, _) = reloadable(&[]);
    let mut second = TargetOptions::new(config.clone());
    second.node_key = Some(target_key());
    let error = Target::start(second).err().unwrap().to_string();
    assert!(error.contains("another target answers there"), "{error}");
    drop(host.target.take());
    assert!(!socket(&host).exists(), "it goes with its target");
    assert!(Client::connect(&socket(&host)).unwrap().is_none());
    // As a killed target leaves it.
    drop(std::os::unix::net::UnixListener::bind(socket(&host)).unwrap());
    assert!(Client::connect(&socket(&host)).unwrap().is_none());
    let start = || {
        let mut options = TargetOptions::new(config.clone());
        options.node_key = Some(target_key());
        Target::start(options)
    };
    let target = start().unwrap();
    assert!(std::fs::symlink_metadata(socket(&host)).unwrap().file_type().is_socket());
    drop(target);
    // What is no socket is somebody's file.
    std::fs::write(socket(&host), "mine").unwrap();
    assert!(start().is_err());
    assert_eq!(std::fs::read(socket(&host)).unwrap(), b"mine");
}

#[test]
fn a_socket_may_lie_deep() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(120)).join("e".repeat(120));
    std::fs::create_dir_all(&deep).unwrap();
    let config = config(&deep);
    let mut options = TargetOptions::new(config);
    options.node_key = Some(target_key());
    let _target = Target::start(options).unwrap();
    let mut client = Client::connect(&default_socket(&deep)).unwrap().expect("it listens");
    assert!(matches!(client.ask(&Request::Status, PATIENCE), Ok(Reply::Status(_))));
}
