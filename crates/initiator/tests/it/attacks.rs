//! Proves what each attack on a sealed volume comes to, one test per attack, each under every scheme: with somebody on the wire
//! between real ends, with a store that was edited behind the target's back, with peers that are not who they say. The names
//! are the rows of the table in `docs/threat-model.md`.

mod answers;
mod identity;
mod key_file;
mod store;
mod wire_data;
mod wire_headers;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use strongroom_block::{BlockDevice, Buffer, BufferMut, DeviceError, DeviceErrorKind, Lba, Request, Token};
use strongroom_channel::Scheme;
use strongroom_initiator::{RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_target::VolumeSpec;

use crate::support::{Host, Message, SIZE, Wire, trusted};

const BLOCK: usize = 4096;
/// Where attacks take place, and how many blocks.
const AT: Lba = Lba(9);
const COUNT: u64 = 4;
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Volumes of the custodies that there are: `keyfile` and `target`.
const CUSTODIES: [&str; 2] = ["vault", "trusted"];

/// A target with a sealed volume whose blocks hold 2, and held 1 before.
fn host() -> Host {
    host_with("vault")
}

fn host_with(volume: &str) -> Host {
    let sealed = if volume == "vault" { VolumeSpec::sealed("vault", SIZE) } else { trusted() };
    let host = Host::start(&[sealed, VolumeSpec::plain("disk", SIZE)]);
    let device = host.attach(volume);
    device.format().unwrap();
    for mark in [1, 2] {
        write(&device, AT, mark);
    }
    flush_blocking(&device).unwrap();
    device.detach().unwrap();
    host
}

/// Alice's device, with somebody on its wire.
struct Scene {
    wire: Wire,
    device: Arc<RemoteDevice>,
    scheme: Scheme,
}

impl Scene {
    fn new(host: &Host, scheme: Scheme) -> Scene {
        Scene::with(host, scheme, "vault")
    }

    fn with(host: &Host, scheme: Scheme, volume: &str) -> Scene {
        let wire = Wire::before(host);
        let mut options = host.options(wire.url(volume));
        options.channel.scheme = Some(scheme);
        // Telling the target what opened takes frames of its own, at its own time.
        options.sealing.verified_feedback = false;
        let device = Arc::new(RemoteDevice::attach(options).unwrap());
        Scene { wire, device, scheme }
    }

    /// Has the target register the attach id that this connection's writes have: the first write waits for that, alone, and what is done to
    /// it would be noticed only by the next ping.
    fn register(&self) {
        write(&self.device, AT, 3);
    }

    /// How many sessions there have been.
    fn sessions(&self) -> u64 {
        self.device.status().connections
    }

    /// Runs `work`, and asserts that the session ended meanwhile, or that it did not.
    #[track_caller]
    fn ends_session<T>(&self, ends: bool, work: impl FnOnce() -> T) -> T {
        let before = self.sessions();
        let result = work();
        assert_eq!(self.sessions() > before, ends, "{}: {:?}", self.scheme, self.device.status().last_loss);
        result
    }

    /// Once, of the frames that `is_meant` chooses on their way to the target.
    fn once_to_target(
        &self,
        is_meant: fn(&Message<'_>) -> bool,
        change: impl FnOnce(&mut Message<'_>) + Send + 'static,
    ) {
        self.wire.tamper_towards_target(once(is_meant, change));
    }

    /// Once, of the frames that `is_meant` chooses on their way to the initiator.
    fn once_to_initiator(
        &self,
        is_meant: fn(&Message<'_>) -> bool,
        change: impl FnOnce(&mut Message<'_>) + Send + 'static,
    ) {
        self.wire.tamper_towards_initiator(once(is_meant, change));
    }

    /// What the next block frame to the target was, in a copy.
    fn record_to_target(&self) -> Arc<Mutex<Vec<u8>>> {
        let copy = Arc::new(Mutex::new(Vec::new()));
        let kept = copy.clone();
        self.once_to_target(with_blocks, move |message| kept.lock().unwrap().clone_from(message.bytes));
        copy
    }

    /// Two writes under way at the same time, so that something follows the attack on the first.
    fn write_twice(&self, mark: u8) {
        for (token, lba) in [(1, AT), (2, Lba(AT.0 + 100))] {
            let data = blocks(mark);
            self.device.submit(Token(token), Request::Write { lba, data, fua: false });
        }
        let mut completions = Vec::new();
        while completions.len() < 2 {
            assert!(self.device.wait(Some(PATIENCE)), "nothing completes");
            self.device.poll_completions(&mut completions);
        }
        for completion in completions {
            completion.result.unwrap();
        }
        for lba in [AT, Lba(AT.0 + 100)] {
            assert_holds(&self.device, lba, mark);
        }
    }
}

fn any_frame(message: &Message<'_>) -> bool {
    message.is_frame()
}

fn with_blocks(message: &Message<'_>) -> bool {
    message.has_blocks()
}

fn once(
    is_meant: fn(&Message<'_>) -> bool,
    change: impl FnOnce(&mut Message<'_>) + Send + 'static,
) -> impl FnMut(&mut Message<'_>) + Send + 'static {
    let mut change = Some(change);
    move |message| {
        if is_meant(message)
            && let Some(change) = change.take()
        {
            change(message);
        }
    }
}

fn blocks(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; COUNT as usize * BLOCK])
}

#[track_caller]
fn write(device: &RemoteDevice, lba: Lba, mark: u8) {
    write_blocking(device, lba, blocks(mark), false).unwrap();
}

fn read(device: &RemoteDevice) -> Result<BufferMut, DeviceError> {
    read_blocking(device, AT, COUNT)
}

#[track_caller]
fn assert_holds(device: &RemoteDevice, lba: Lba, mark: u8) {
    assert!(read_blocking(device, lba, COUNT).unwrap()[..] == blocks(mark)[..], "block {lba} holds something else");
}

/// The read fails, names the block and gives no data.
#[track_caller]
fn assert_noticed(device: &RemoteDevice, lba: Lba) {
    let error = read(device).unwrap_err();
    assert_eq!((error.kind, error.lba), (DeviceErrorKind::Medium, Some(lba)), "{error}");
}
