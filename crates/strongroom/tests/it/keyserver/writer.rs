//! A workload in a process of its own, which may be killed: it writes numbers, each to the place that the number gives, and says in a file
//! which are durable. The process is the tests' own binary, told by an environment variable to do this and nothing else.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use strongroom_block::{Buffer, DeviceErrorKind, Lba};
use strongroom_handshake::NodeKey;
use strongroom_initiator::{
    AttachOptions, KeyServerSource, LeaseOptions, RemoteDevice, flush_blocking, read_blocking, write_blocking,
};
use strongroom_keyserver::{Client, ClientOptions};

use crate::stage::eventually;

pub(crate) const BLOCK: usize = 4096;
const PLACES: u64 = 61;
/// Writes between two flushes.
const TOGETHER: u64 = 16;
const TOLD_BY: &str = "STRONGROOM_TEST_WRITER";

/// What a process needs to attach a volume as somebody.
pub(crate) struct Access {
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) identity: String,
    pub(crate) target_key: String,
    pub(crate) server: String,
    pub(crate) server_key: String,
}

impl Access {
    pub(crate) fn attach(&self) -> RemoteDevice {
        let text = fs::read_to_string(&self.identity).unwrap();
        let node_key = Arc::new(NodeKey::parse(&text).unwrap());
        let client = Client::new(ClientOptions {
            servers: vec![self.server.clone()],
            server_keys: vec![self.server_key.parse().unwrap()],
            node_key: Arc::clone(&node_key),
            timeout: Duration::from_secs(10),
        });
        let mut options = AttachOptions::new(self.url.parse().unwrap());
        options.lease = LeaseOptions::shared();
        options.iscsi.initiator_name = format!("iqn.2026-11.test:{}", self.name);
        options.channel.node_key = Some(node_key);
        options.channel.target_keys = vec![self.target_key.parse().unwrap()];
        options.sealing.key_source = Some(Arc::new(KeyServerSource::new(client, None)));
        let mut device = None;
        // The target or the key server may just be down.
        eventually("it is attached", || {
            device = RemoteDevice::attach(options.clone()).ok();
            device.is_some()
        });
        device.unwrap()
    }
}

pub(crate) fn count(device: &RemoteDevice, lba: u64) -> u64 {
    let block = read_blocking(device, Lba(lba), 1).unwrap();
    let (first, rest) = block.split_first_chunk::<8>().unwrap();
    assert!(rest.chunks_exact(8).all(|chunk| chunk == first), "a torn block");
    u64::from_le_bytes(*first)
}

pub(crate) fn put(device: &RemoteDevice, lba: u64, value: u64) -> Result<(), DeviceErrorKind> {
    let data: Vec<u8> = value.to_le_bytes().into_iter().cycle().take(BLOCK).collect();
    write_blocking(device, Lba(lba), Buffer::copy_from(&data), false).map_err(|error| error.kind)
}

/// Without keys, on a machine so slow that a lease ended, nothing is done, and nothing lost.
pub(crate) fn eventually_put(device: &RemoteDevice, lba: u64, value: u64) {
    eventually("it can be written", || match put(device, lba, value) {
        Ok(()) => true,
        Err(kind) => {
            assert_eq!(kind, DeviceErrorKind::NoKey);
            false
        }
    });
}

/// The process.
pub(crate) struct Writer {
    test: &'static str,
    access: Access,
    first: u64,
    log: PathBuf,
    child: Option<Child>,
}

impl Writer {
    /// Whether this process is one.
    pub(crate) fn is_this_process() -> bool {
        std::env::var_os(TOLD_BY).is_some()
    }

    /// What it does, until it is killed.
    pub(crate) fn run() {
        let told = std::env::var(TOLD_BY).unwrap();
        let words: Vec<String> = told.lines().map(str::to_owned).collect();
        let [url, name, identity, target_key, server, server_key, first, log, from] = words.try_into().unwrap();
        let device = Access { url, name, identity, target_key, server, server_key }.attach();
        let (first, from): (u64, u64) = (first.parse().unwrap(), from.parse().unwrap());
        let mut log = File::options().append(true).open(log).unwrap();
        for begin in (from..).step_by(TOGETHER as usize) {
            for value in begin..begin + TOGETHER {
                eventually_put(&device, first + value % PLACES, value);
            }
            // What a restarted target has forgotten is sent again, once there are keys.
            eventually("it is durable", || flush_blocking(&device).is_ok());
            writeln!(log, "{}", begin + TOGETHER - 1).unwrap();
        }
    }

    /// Starts it: a test that calls [`Writer::run`], and the first of its places.
    pub(crate) fn start(test: &'static str, access: Access, first: u64, log: PathBuf) -> Writer {
        File::create(&log).unwrap();
        let mut writer = Writer { test, access, first, log, child: None };
        writer.go_on();
        writer
    }

    /// Restarts it; it goes on after everything that the previous one may have written.
    pub(crate) fn go_on(&mut self) {
        let Access { url, name, identity, target_key, server, server_key } = &self.access;
        let (first, from) = (self.first.to_string(), (self.flushed() + 2 * TOGETHER).to_string());
        let log = self.log.to_str().unwrap();
        let told = [url, name, identity, target_key, server, server_key, &first, log, &from].join("\n");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", self.test, "--nocapture"]).env(TOLD_BY, told);
        self.child = Some(command.stdout(Stdio::null()).spawn().unwrap());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// The last number that is durable, 0 for none.
    fn flushed(&self) -> u64 {
        let text = fs::read_to_string(&self.log).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().last().map_or(0, |line| line.parse().unwrap())
    }

    /// All places, behind what one before may have left out.
    pub(crate) fn until_it_has_flushed(&mut self) {
        let before = self.flushed();
        eventually("it writes", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "it ended by itself: {ended:?}");
            self.flushed() > before + 6 * TOGETHER
        });
    }

    /// SIGKILL, wherever it is.
    pub(crate) fn kill_once_it_has_flushed(&mut self) {
        self.until_it_has_flushed();
        self.kill();
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Every place has the last number that was durable for it, or one that was on its way when it was killed.
    pub(crate) fn check(&self, device: &RemoteDevice) {
        let flushed = self.flushed();
        for place in 0..PLACES {
            let durable = flushed - (flushed + PLACES - place) % PLACES;
            let found = count(device, self.first + place);
            assert!(
                found >= durable && found <= flushed + 2 * TOGETHER,
                "place {place}: {found} of {durable}, {flushed}"
            );
            assert_eq!(found % PLACES, place);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.kill();
    }
}
