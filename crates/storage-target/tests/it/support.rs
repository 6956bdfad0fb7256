//! A target in this process, and a blocking initiator made of the real link and the real session machine, for tests.

pub(crate) mod keeper;
pub(crate) mod raw_peer;
pub(crate) mod sealed;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use strongroom_block::Buffer;
use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_iscsi::initiator::{
    Command, Completed, Config as SessionConfig, DataIn, Event, Session, SessionKind, TaskId, WriteSource,
};
use strongroom_iscsi::pdu::Opcode;
use strongroom_iscsi::target::SendTargets;
use strongroom_iscsi::{CloseReason, LoginStatus, Lun};
use strongroom_net::{Link, LinkEvent, LinkOptions};
use strongroom_scsi::{Sense, cdb};
use strongroom_target::config::{PeerRule, PlainRule};
use strongroom_target::{Catalogue, ChapSecrets, Config, Target, TargetHandle, TargetOptions, VolumeSpec};

pub(crate) const ALICE: &str = "iqn.2026-11.org.example:alice";
pub(crate) const BOB: &str = "iqn.2026-11.org.example:bob";
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const BLOCK: usize = 4096;
/// Nothing in these tests takes so long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LUN: Lun = Lun::single_level(0);

/// The status RESERVATION CONFLICT.
pub(crate) const CONFLICT: u8 = 0x18;

/// A target with its volumes in a temporary directory.
pub(crate) struct Host {
    pub(crate) target: Option<TargetHandle>,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) node: PublicKey,
}

pub(crate) fn alice_key() -> NodeKey {
    NodeKey::from_seed(&[0xa1; 32])
}

pub(crate) fn target_key() -> NodeKey {
    NodeKey::from_seed(&[0x7a; 32])
}

/// Any initiator may use plain volumes; alice may use all volumes through a channel.
pub(crate) fn config(root: &std::path::Path) -> Config {
    let mut config = Config::new(root);
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.workers = Some(2);
    config.plain.push(PlainRule {
        initiators: vec!["*".into()],
        volumes: vec!["*".into()],
        read_only: false,
        ..PlainRule::default()
    });
    config.peers.push(PeerRule {
        name: "alice".into(),
        key: alice_key().public().to_string(),
        initiators: vec![ALICE.into()],
        volumes: vec!["*".into()],
        ..PeerRule::default()
    });
    config
}

impl Host {
    /// Stops the target, and starts another one on the same volumes, whose configuration names no peers.
    pub(crate) fn restart_without_peers(&mut self) {
        self.target.take().unwrap().stop();
        let mut config = config(self.dir.path());
        config.peers.clear();
        self.target = Some(Target::start(TargetOptions::new(config)).unwrap());
    }

    pub(crate) fn start(volumes: &[VolumeSpec]) -> Host {
        Host::start_with(volumes, |_| {})
    }

    pub(crate) fn start_with(volumes: &[VolumeSpec], change: impl FnOnce(&mut Config)) -> Host {
        Host::start_with_secrets(volumes, ChapSecrets::default(), change)
    }

    pub(crate) fn start_with_secrets(
        volumes: &[VolumeSpec],
        chap_secrets: ChapSecrets,
        change: impl FnOnce(&mut Config),
    ) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        volumes.iter().for_each(|spec| drop(catalogue.create(spec).unwrap()));
        let mut config = config(dir.path());
        change(&mut config);
        let mut options = TargetOptions::new(config);
        options.node_key = Some(target_key());
        options.chap_secrets = chap_secrets;
        let target = Target::start(options).unwrap();
        Host { target: Some(target), dir, node: target_key().public() }
    }

    /// Over volumes that are there.
    pub(crate) fn over(dir: tempfile::TempDir) -> Host {
        let mut options = TargetOptions::new(config(dir.path()));
        options.node_key = Some(target_key());
        Host { target: Some(Target::start(options).unwrap()), dir, node: target_key().public() }
    }

    pub(crate) fn handle(&self) -> &TargetHandle {
        self.target.as_ref().unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.handle().local_addresses()[0]
    }

    pub(crate) fn plain(&self, volume: &str) -> Initiator {
        Initiator::log_in(self, None, normal(ALICE, volume)).expect("admitted")
    }

    pub(crate) fn channel(&self, volume: &str) -> Initiator {
        Initiator::log_in(self, Some(alice_key()), normal(ALICE, volume)).expect("admitted")
    }
}

pub(crate) fn target_name(volume: &str) -> String {
    format!("iqn.2026-11.org.strongroom:{volume}")
}

pub(crate) fn normal(initiator: &str, volume: &str) -> SessionConfig {
    let kind = SessionKind::Normal { target_name: target_name(volume) };
    SessionConfig::new(initiator, [0x80, 0, 0, 0, 0, 1], kind)
}

pub(crate) fn discovery(initiator: &str) -> SessionConfig {
    SessionConfig::new(initiator, [0x80, 0, 0, 0, 0, 2], SessionKind::Discovery)
}

/// How an attempt to log in ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Refused {
    Login(LoginStatus),
    Closed(String),
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: u8,
    pub(crate) sense: Option<Sense>,
    pub(crate) data: Vec<u8>,
    pub(crate) segments: Vec<DataIn>,
    pub(crate) completed: Completed,
}

impl Outcome {
    #[track_caller]
    pub(crate) fn good(self) -> Vec<u8> {
        assert_eq!(self.status, 0, "{:?}", self.sense);
        self.data
    }

    #[track_caller]
    pub(crate) fn sense(self) -> Sense {
        assert_eq!(self.status, 2, "CHECK CONDITION");
        self.sense.expect("sense with CHECK CONDITION")
    }
}

/// One session over a real socket.
pub(crate) struct Initiator {
    pub(crate) stream: TcpStream,
    pub(crate) link: Link,
    pub(crate) session: Session,
    pub(crate) events: Vec<Event>,
    pub(crate) ended: Option<String>,
    pub(crate) established: bool,
    /// Header segments to add to the next command.
    pub(crate) extra_segments: Vec<u8>,
}

impl Initiator {
    /// Connects and logs in; takes the power-on unit attention.
    pub(crate) fn log_in(host: &Host, node: Option<NodeKey>, config: SessionConfig) -> Result<Initiator, Refused> {
        let is_discovery = config.kind == SessionKind::Discovery;
        let mut initiator = Initiator::connect(host, node, config);
        initiator.wait_for_login()?;
        if !is_discovery {
            let first = initiator.run(Command::without_data(LUN, cdb::test_unit_ready()));
            assert_eq!((first.status, first.sense.map(|sense| sense.asc)), (2, Some(0x29)), "power on comes first");
        }
        Ok(initiator)
    }

    pub(crate) fn connect(host: &Host, node: Option<NodeKey>, config: SessionConfig) -> Initiator {
        Initiator::connect_at(host, host.address(), node, config)
    }

    pub(crate) fn connect_at(
        host: &Host,
        at: SocketAddr,
        node: Option<NodeKey>,
        mut config: SessionConfig,
    ) -> Initiator {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        stream.set_nodelay(true).unwrap();
        let now = Instant::now();
        let link = match &node {
            Some(node) => Link::initiator_channel(node, &[host.node], LinkOptions::default(), now).unwrap(),
            None => Link::initiator_plain(LinkOptions::default(), now),
        };
        config.in_channel = node.is_some();
        Initiator {
            stream,
            link,
            session: Session::new(now, config),
            events: Vec::new(),
            ended: None,
            established: false,
            extra_segments: Vec::new(),
        }
    }

    pub(crate) fn wait_for_login(&mut self) -> Result<(), Refused> {
        let mut status = None;
        self.pump_until(|initiator| {
            for event in initiator.events.drain(..) {
                match event {
                    Event::LoggedIn { .. } => return Some(Ok(())),
                    Event::LoginFailed { status: refused, .. } => status = Some(refused),
                    Event::Closed(reason) => {
                        return Some(Err(status.map_or(Refused::Closed(reason.to_string()), Refused::Login)));
                    }
                    _ => {}
                }
            }
            initiator.ended.clone().map(|end| Err(status.map_or(Refused::Closed(end), Refused::Login)))
        })
    }

    /// Moves bytes and events until `done` says so.
    pub(crate) fn pump_until<T>(&mut self, mut done: impl FnMut(&mut Initiator) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.flush();
            if let Some(outcome) = done(self) {
                return outcome;
            }
            assert!(Instant::now() < deadline, "nothing happened in {PATIENCE:?}; events: {:?}", self.events);
            self.receive();
        }
    }

    /// Sends what there is to send.
    pub(crate) fn flush(&mut self) {
        loop {
            let mut quiet = true;
            while let Some(event) = self.link.poll_event() {
                quiet = false;
                match event {
                    LinkEvent::Established { .. } => self.established = true,
                    LinkEvent::Pdu(pdu) => self.session.handle_pdu(Instant::now(), pdu),
                    LinkEvent::Corrupt(pdu) => self.session.handle_corrupt_pdu(Instant::now(), &pdu),
                    LinkEvent::Message(_) | LinkEvent::Packet(_) => {}
                    LinkEvent::Ended(end) => {
                        self.ended = Some(end.to_string());
                        self.session.handle_closed(CloseReason::ConnectionLost(end.to_string()));
                    }
                }
            }
            while let Some(event) = self.session.poll_event() {
                quiet = false;
                if let Event::LoggedIn { agreed, .. } = &event {
                    self.link.login_finished(agreed.digests);
                }
                self.events.push(event);
            }
            while self.established
                && let Some(mut pdu) = self.session.poll_transmit()
            {
                quiet = false;
                if pdu.bhs.opcode() == Some(Opcode::ScsiCommand) && !self.extra_segments.is_empty() {
                    pdu.ahs = [&pdu.ahs[..], &std::mem::take(&mut self.extra_segments)].concat().into();
                }
                self.link.send_pdu(pdu);
            }
            let mut out = Vec::new();
            self.link.poll_transmit(&mut out);
            for buffer in out {
                // A target that has ended the connection is seen when reading.
                let _ = self.stream.write_all(&buffer);
            }
            if quiet {
                return;
            }
        }
    }

    /// Takes in what arrives within a moment.
    pub(crate) fn receive(&mut self) {
        let mut bytes = vec![0; 256 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.link.handle_eof(),
            Ok(len) => self.link.handle_input(&bytes[..len]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                self.session.handle_timeout(Instant::now());
            }
            Err(error) => {
                self.ended = Some(error.to_string());
                self.session.handle_closed(CloseReason::ConnectionLost(error.to_string()));
            }
        }
    }

    pub(crate) fn submit(&mut self, command: Command) -> TaskId {
        self.session.submit(command).expect("room for a task")
    }

    /// Waits for the end of one command. Panics if the session ends before.
    #[track_caller]
    pub(crate) fn wait(&mut self, task: TaskId) -> Outcome {
        self.try_wait(task).unwrap_or_else(|reason| panic!("the session ended: {reason}"))
    }

    pub(crate) fn try_wait(&mut self, task: TaskId) -> Result<Outcome, String> {
        self.pump_until(|initiator| {
            for event in &initiator.events {
                if let Event::Closed(reason) = event {
                    return Some(Err(reason.to_string()));
                }
            }
            let at = initiator
                .events
                .iter()
                .position(|event| matches!(event, Event::Completed(done) if done.task == task))?;
            let Event::Completed(completed) = initiator.events.remove(at) else { unreachable!("matched") };
            let mut segments = Vec::new();
            let mut rest = Vec::new();
            for event in initiator.events.drain(..) {
                match event {
                    Event::DataIn(data) if data.task == task => segments.push(data),
                    other => rest.push(other),
                }
            }
            initiator.events = rest;
            let data = segments.iter().flat_map(|segment| segment.data().to_vec()).collect();
            let sense = Sense::parse(&completed.sense);
            Some(Ok(Outcome { status: completed.status, sense, data, segments, completed }))
        })
    }

    #[track_caller]
    pub(crate) fn run(&mut self, command: Command) -> Outcome {
        let task = self.submit(command);
        self.wait(task)
    }

    #[track_caller]
    pub(crate) fn read(&mut self, lba: u64, blocks: u32) -> Vec<u8> {
        let cdb = cdb::read_16(strongroom_block::Lba(lba), blocks);
        self.run(Command::read(LUN, cdb, blocks * BLOCK as u32)).good()
    }

    pub(crate) fn try_write(&mut self, lba: u64, data: &[u8]) -> Outcome {
        let cdb = cdb::write_16(strongroom_block::Lba(lba), (data.len() / BLOCK) as u32, false);
        self.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(data))))
    }

    #[track_caller]
    pub(crate) fn write(&mut self, lba: u64, data: &[u8]) {
        self.try_write(lba, data).good();
    }

    #[track_caller]
    pub(crate) fn synchronize(&mut self) {
        self.run(Command::without_data(LUN, cdb::synchronize_cache_10())).good();
    }

    pub(crate) fn send_targets(&mut self) -> Vec<strongroom_iscsi::target::TargetEntry> {
        self.session.send_targets(&SendTargets::All).unwrap();
        self.pump_until(|initiator| {
            initiator.events.drain(..).find_map(|event| match event {
                Event::TargetsListed(targets) => Some(targets),
                _ => None,
            })
        })
    }

    /// Logs out and waits for the end.
    pub(crate) fn log_out(mut self) -> String {
        self.session.logout(Instant::now());
        self.wait_for_end()
    }

    /// Waits until the session ends; says why.
    pub(crate) fn wait_for_end(&mut self) -> String {
        self.pump_until(|initiator| {
            initiator.events.drain(..).find_map(|event| match event {
                Event::Closed(reason) => Some(reason.to_string()),
                _ => None,
            })
        })
    }
}

/// Recognisable bytes: each block is different.
pub(crate) fn pattern(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| seed ^ (at / BLOCK) as u8 ^ (at % 251) as u8).collect()
}

/// As many open files as the machine lets this process have.
pub(crate) fn raise_file_limit() {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).unwrap();
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
