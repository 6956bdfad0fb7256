//! Proves what an attachment does with keys that a server lends: it follows rotations without a pause, no matter what the target says of
//! epochs; it works on while the server is away until the lease ends, and no longer; and keys that are taken back are gone at once.
//! The server here is a value that the test holds; a real one is in the tests of the binary.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, Buffer, BufferMut, Custody, DeviceErrorKind, Lba, Request, Token};
use strongroom_initiator::{
    AttachError, AttachOptions, Erased, KeyRequest, KeySource, KeySourceError, KeyStatus, RemoteDevice, VolumeKeys,
    discard_blocking, flush_blocking, read_blocking, write_blocking, write_part_blocking,
};
use strongroom_seal::{KeyPurpose, VolumeKeyFile};
use strongroom_target::{SealedSpec, VolumeSpec};

use crate::support::{Host, SIZE, Wire};

const BLOCK: usize = 4096;
/// Blocks of a write that is larger than what a socket takes before the peer reads.
const HELD: usize = 256;
const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3600);

/// What a key server says.
struct Says {
    epochs: BTreeMap<u32, u8>,
    revision: u64,
    may_seal: bool,
    lease: Duration,
    is_away: bool,
    refuses: bool,
    /// Changes are only told to who asks, not to who waits.
    keeps_quiet: bool,
    asked: u64,
}

struct Server {
    says: Mutex<Says>,
    changed: Condvar,
}

impl Server {
    fn with(epochs: &[(u32, u8)]) -> Arc<Server> {
        let says = Says {
            epochs: epochs.iter().copied().collect(),
            revision: 1,
            may_seal: true,
            lease: LONG,
            is_away: false,
            refuses: false,
            keeps_quiet: false,
            asked: 0,
        };
        Arc::new(Server { says: Mutex::new(says), changed: Condvar::new() })
    }

    fn change(&self, change: impl FnOnce(&mut Says)) {
        let mut says = self.says.lock().unwrap();
        change(&mut says);
        says.revision += 1;
        self.changed.notify_all();
    }

    fn asked(&self) -> u64 {
        self.says.lock().unwrap().asked
    }
}

impl Says {
    fn answer(&self) -> Result<VolumeKeys, KeySourceError> {
        if self.is_away {
            return Err(KeySourceError::Unreachable("nobody answers".into()));
        }
        if self.refuses {
            return Err(KeySourceError::Refused("you may not have it".into()));
        }
        let mut text = String::from("strongroom-volume-key 1\n");
        for (epoch, seed) in &self.epochs {
            let one = VolumeKeyFile::new(KeyPurpose::Volume, &[*seed; 32]).to_text();
            let line = one.lines().last().unwrap().replace("epoch 1", &format!("epoch {epoch}"));
            text.push_str(&format!("{line}\n"));
        }
        Ok(VolumeKeys {
            keys: VolumeKeyFile::parse(&text).unwrap(),
            domain: None,
            current_epoch: *self.epochs.keys().last().unwrap(),
            may_seal: self.may_seal,
            revision: self.revision,
            lease: Some(self.lease),
        })
    }
}

impl KeySource for Server {
    fn custody(&self) -> Custody {
        Custody::KeyServer
    }

    fn volume_keys(&self, _: &KeyRequest) -> Result<VolumeKeys, KeySourceError> {
        let mut says = self.says.lock().unwrap();
        says.asked += 1;
        says.answer()
    }

    fn changed_keys(&self, _: &KeyRequest, seen: u64, wait: Duration) -> Result<Option<VolumeKeys>, KeySourceError> {
        let says = self.says.lock().unwrap();
        let same = |says: &mut Says| !says.is_away && !says.refuses && (says.keeps_quiet || says.revision == seen);
        let (says, waited) = self.changed.wait_timeout_while(says, wait, same).unwrap();
        if waited.timed_out() { Ok(None) } else { says.answer().map(Some) }
    }

    fn destroy_keys(&self, _: &KeyRequest) -> Result<u32, KeySourceError> {
        let mut begun = 0;
        self.change(|says| {
            begun = says.epochs.keys().last().unwrap() + 1;
            says.epochs = [(begun, 70 + begun as u8)].into();
        });
        Ok(begun)
    }
}

fn host() -> Host {
    let sealed = Some(SealedSpec::new(Custody::KeyServer));
    Host::start(&[VolumeSpec { sealed, ..VolumeSpec::plain("vault", SIZE) }])
}

fn options(host: &Host, server: &Arc<Server>) -> AttachOptions {
    let mut options = host.options(host.url("vault"));
    options.sealing.key_source = Some(Arc::clone(server) as Arc<_>);
    options
}

fn attach(host: &Host, server: &Arc<Server>) -> RemoteDevice {
    RemoteDevice::attach(options(host, server)).unwrap()
}

fn formatted(host: &Host, server: &Arc<Server>) -> RemoteDevice {
    let device = attach(host, server);
    device.format().unwrap();
    device
}

fn write(device: &RemoteDevice, lba: u64, mark: u8) {
    write_blocking(device, Lba(lba), Buffer::copy_from(&[mark; BLOCK]), false).unwrap();
}

fn read(device: &RemoteDevice, lba: u64) -> Result<u8, DeviceErrorKind> {
    read_blocking(device, Lba(lba), 1).map(|block| block[0]).map_err(|error| error.kind)
}

fn keys(device: &RemoteDevice) -> KeyStatus {
    device.key_status().expect("they are lent")
}

#[track_caller]
fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < PATIENCE, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_rotation_is_followed_while_attached_even_if_the_target_lies() {
    let host = host();
    let server = Server::with(&[(1, 7)]);
    let device = formatted(&host, &server);
    write(&device, 1, 1);
    server.change(|says| says.epochs.extend([(2, 8)]));
    eventually("the new epoch is known", || keys(&device).epoch == 2);
    assert_eq!(keys(&device).epochs, [2, 1]);
    write(&device, 2, 2);
    discard_blocking(&device, Lba(9), 2).unwrap();
    flush_blocking(&device).unwrap();
    assert_eq!((read(&device, 1), read(&device, 2)), (Ok(1), Ok(2)));
    drop(device);

    // The target's description still says 1: who attaches now seals under 2 all the same, also after a lost connection.
    let mut device = attach(&host, &server);
    assert_eq!(device.unit().sealed.unwrap().claims.epoch, 2);
    write(&device, 3, 3);
    for (epochs, seen) in [([(1, 7)], [Ok(1), Err(()), Err(()), Err(())]), ([(2, 8)], [Err(()), Ok(2), Ok(3), Ok(0)])] {
        drop(device);
        device = attach(&host, &Server::with(&epochs));
        let found = [1, 2, 3, 9].map(|lba| read(&device, lba).map_err(|kind| assert_eq!(kind, DeviceErrorKind::NoKey)));
        assert_eq!(found, seen, "with only epoch {epochs:?}");
    }
    assert_eq!(device.detach(), Ok(()));
}

#[test]
fn a_block_under_an_unknown_epoch_makes_us_ask_once_before_it_fails() {
    let host = host();
    let server = Server::with(&[(1, 7)]);
    let device = formatted(&host, &server);
    server.change(|says| {
        says.keeps_quiet = true;
        says.epochs.insert(2, 8);
    });
    let other = attach(&host, &server);
    write(&other, 1, 5);
    flush_blocking(&other).unwrap();
    let before = server.asked();
    assert_eq!(keys(&device).epoch, 1, "nobody told");
    assert_eq!(read(&device, 1), Ok(5));
    assert_eq!((server.asked(), keys(&device).epoch), (before + 1, 2));
    // One that the server does not know either.
    let stranger = attach(&host, &Server::with(&[(9, 9)]));
    write(&stranger, 1, 6);
    flush_blocking(&stranger).unwrap();
    assert_eq!(read(&device, 1), Err(DeviceErrorKind::NoKey));
    assert_eq!(server.asked(), before + 2);
    assert_eq!(read(&device, 0), Ok(0), "the rest is as it was");
}

/// What was destroyed stays destroyed: a block that is under it is no reason to ask, however often it is read.
#[test]
fn nobody_is_asked_about_an_epoch_that_is_over() {
    let host = host();
    let server = Server::with(&[(1, 7)]);
    let device = formatted(&host, &server);
    write(&device, 1, 1);
    server.change(|says| says.epochs = [(2, 8)].into());
    eventually("the old epoch is gone", || keys(&device).epochs == [2]);
    // Even if an attacker invents newer epochs beside it.
    let stranger = attach(&host, &Server::with(&[(9, 9)]));
    write(&stranger, 5, 6);
    flush_blocking(&stranger).unwrap();
    assert_eq!(read(&device, 5), Err(DeviceErrorKind::NoKey));
    let before = server.asked();
    for _ in 0..20 {
        assert_eq!(read(&device, 1), Err(DeviceErrorKind::NoKey));
        assert!(device.recover(Lba(1), false).is_err());
    }
    assert_eq!(server.asked(), before);
    write(&device, 1, 2);
    assert_eq!(read(&device, 1), Ok(2));
}

/// The epoch that it is sealed under may be destroyed once the lease is over: what waits on the way must not arrive then.
#[test]
fn attack_key_what_a_wire_holds_back_does_not_arrive_after_the_lease() {
    let host = host();
    let wire = Wire::before(&host);
    let server = Server::with(&[(1, 7)]);
    let device = RemoteDevice::attach(AttachOptions { url: wire.url("vault"), ..options(&host, &server) }).unwrap();
    device.format().unwrap();
    let (holds, is_held) = mpsc::channel::<()>();
    let (let_go, is_let_go) = mpsc::channel::<()>();
    let mut armed = true;
    wire.tamper_towards_target(move |message| {
        if message.is_frame() && std::mem::take(&mut armed) {
            holds.send(()).unwrap();
            let _ = is_let_go.recv_timeout(PATIENCE);
        }
    });
    // What is behind this one is not read from the socket. Both are submitted from here: a device has one consumer of its completions.
    device.submit(Token(1), Request::Read { lba: Lba(0), buffer: BufferMut::zeroed(BLOCK) });
    is_held.recv_timeout(PATIENCE).expect("something is sent");
    let before = device.status().engine.commands_sent;
    let data = Buffer::copy_from(&vec![9; HELD * BLOCK]);
    device.submit(Token(2), Request::Write { lba: Lba(100), data, fua: false });
    eventually("it is on its way", || device.status().engine.commands_sent > before);
    server.change(|says| says.lease = Duration::from_secs(1));
    eventually("it is lent for less", || keys(&device).lease_left <= Duration::from_secs(1));
    server.change(|says| says.is_away = true);
    eventually("the lease ends", || keys(&device).epochs.is_empty());
    eventually("it was cut", || device.status().last_loss.is_some_and(|why| why.contains("the keys are gone")));
    let_go.send(()).unwrap();
    let mut completions = Vec::new();
    while completions.len() < 2 {
        assert!(device.wait(Some(PATIENCE)), "nothing completes");
        device.poll_completions(&mut completions);
    }
    for completion in completions {
        assert_eq!(completion.result.unwrap_err().kind, DeviceErrorKind::NoKey, "{:?}", completion.token);
    }
    wire.behave();
    server.change(|says| (says.is_away, says.lease) = (false, LONG));
    eventually("there are keys again", || !keys(&device).epochs.is_empty());
    let arrived = (100..100 + HELD as u64).filter(|lba| read(&device, *lba) != Ok(0)).count();
    assert_eq!(arrived, 0, "what waited in a socket has arrived");
    write(&device, 2, 2);
    assert_eq!(read(&device, 2), Ok(2));
}

/// Keys first, then what was sealed with them; and nothing is forgotten while there are keys for it.
#[test]
fn a_cryptographic_erase_goes_to_the_key_server_and_then_to_the_target() {
    let host = host();
    let server = Server::with(&[(1, 7), (2, 8)]);
    let device = formatted(&host, &server);
    let other = attach(&host, &server);
    write(&device, 1, 1);
    // Nobody said that anything was destroyed, and nothing was.
    for began in [1, 2, 3] {
        let error = device.forget_destroyed(began).unwrap_err();
        assert!(error.kind == DeviceErrorKind::Refused && error.message.contains("destroy-epoch"), "{error}");
    }
    assert_eq!(read(&device, 1), Ok(1));
    assert_eq!(device.crypto_erase().unwrap(), Erased { epoch: 3, is_given_back: true });
    assert_eq!((read(&device, 1), keys(&device).epochs), (Ok(0), vec![3]));
    write(&device, 1, 3);
    flush_blocking(&device).unwrap();
    assert_eq!(read(&other, 1), Ok(3), "who is attached meanwhile goes on");
    drop((device, other));
    let thief = attach(&host, &Server::with(&[(1, 7), (2, 8)]));
    assert_eq!((read(&thief, 1), read(&thief, 0)), (Err(DeviceErrorKind::NoKey), Err(DeviceErrorKind::NoKey)));
    let fresh = self::host();
    let device = formatted(&fresh, &Server::with(&[(1, 7)]));
    write(&device, 1, 1);
    assert_eq!(
        device.forget_destroyed(1).unwrap_err().kind,
        DeviceErrorKind::Refused,
        "a first epoch destroys nothing"
    );
    assert_eq!(read(&device, 1), Ok(1));
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let error = host.attach("vault").crypto_erase().unwrap_err();
    assert!(error.kind == DeviceErrorKind::Refused && error.message.contains("key file"), "{error}");
}

#[test]
fn work_goes_on_without_the_server_until_the_lease_ends_and_when_it_is_back() {
    let host = host();
    let server = Server::with(&[(1, 7)]);
    let device = formatted(&host, &server);
    write(&device, 1, 1);
    server.change(|says| says.is_away = true);
    eventually("it is seen to be away", || keys(&device).trouble.is_some());
    write(&device, 2, 2);
    assert_eq!(read(&device, 2), Ok(2), "the lease still runs");
    server.change(|says| (says.is_away, says.lease) = (false, Duration::from_secs(1)));
    eventually("it is lent for less", || keys(&device).lease_left <= Duration::from_secs(1));
    server.change(|says| says.is_away = true);
    eventually("the lease ends", || keys(&device).epochs.is_empty());
    let error = read_blocking(&device, Lba(1), 1).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::NoKey);
    assert!(error.message.contains("longer than its keys are lent"), "{error}");
    let error = write_blocking(&device, Lba(1), Buffer::copy_from(&[9; BLOCK]), false).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::NoKey);
    flush_blocking(&device).unwrap();
    server.change(|says| (says.is_away, says.lease) = (false, LONG));
    eventually("there are keys again", || !keys(&device).epochs.is_empty());
    assert_eq!((read(&device, 1), read(&device, 2)), (Ok(1), Ok(2)));
    write(&device, 1, 3);
    assert_eq!(device.detach(), Ok(()));
}

#[test]
fn keys_that_are_taken_back_are_gone_at_once_and_open_nothing_newer() {
    let host = host();
    let server = Server::with(&[(1, 7)]);
    let device = formatted(&host, &server);
    write(&device, 1, 1);
    server.change(|says| says.refuses = true);
    eventually("they are gone", || keys(&device).epochs.is_empty());
    assert_eq!(read(&device, 1), Err(DeviceErrorKind::NoKey));
    let refused = RemoteDevice::attach(options(&host, &server)).unwrap_err();
    assert!(refused.to_string().contains("you may not have it"), "{refused}");
    // Somebody else goes on, under the next epoch.
    let another = attach(&host, &Server::with(&[(1, 7), (2, 8)]));
    write(&another, 1, 2);
    flush_blocking(&another).unwrap();
    // An attacker with the old key has nothing of what was written since.
    let thief = attach(&host, &Server::with(&[(1, 7)]));
    assert_eq!(read(&thief, 1), Err(DeviceErrorKind::NoKey));
}

#[test]
fn who_may_only_open_cannot_write() {
    let host = host();
    let server = Server::with(&[(1, 7)]);
    let device = formatted(&host, &server);
    server.change(|says| says.may_seal = false);
    eventually("the right is gone", || !keys(&device).may_seal);
    assert_eq!(read(&device, 1), Ok(0));
    let error = write_blocking(&device, Lba(1), Buffer::copy_from(&[9; BLOCK]), false).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::ReadOnly);
    let refused = RemoteDevice::attach(options(&host, &server)).unwrap_err().to_string();
    assert!(refused.contains("read-only"), "{refused}");
    let reader = RemoteDevice::attach(AttachOptions { read_only: true, ..options(&host, &server) }).unwrap();
    assert_eq!(read(&reader, 1), Ok(0));
}

fn marks(device: &RemoteDevice, count: u64) -> Vec<Result<u8, DeviceErrorKind>> {
    (0..count).map(|lba| read(device, lba)).collect()
}

/// Everything that is left of the volume without its first epoch: whether all of it opens.
fn opens_without_the_first_epoch(host: &Host) -> RemoteDevice {
    let device = attach(host, &Server::with(&[(2, 8)]));
    let report = device.verify(Lba(0), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.progress.bad, report.progress.next.0), (0, SIZE / BLOCK as u64));
    device
}

#[test]
fn a_pass_leaves_nothing_under_the_old_epoch_and_goes_on_where_it_was_stopped() {
    let host = host();
    let server = Server::with(&[(1, 7)]);
    let device = formatted(&host, &server);
    for (lba, mark) in [(0, 1), (1, 2), (700, 3), (701, 4), (4000, 5)] {
        write(&device, lba, mark);
    }
    discard_blocking(&device, Lba(1), 1).unwrap();
    server.change(|says| says.epochs.extend([(2, 8)]));
    eventually("the new epoch is known", || keys(&device).epoch == 2);
    write(&device, 701, 6);
    let mut steps = 0;
    let stopped = device
        .reseal(Lba(0), &mut |_| {
            steps += 1;
            if steps > 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert!(!stopped.is_clean() && stopped.progress.next.0 > 0);
    let report = device.reseal(stopped.progress.next, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_clean());
    assert_eq!(report.epoch, 2);
    assert_eq!(stopped.progress.resealed + report.progress.resealed, 3, "of the five, one is absent and one is new");
    assert!(stopped.progress.absent_resealed + report.progress.absent_resealed >= SIZE / BLOCK as u64 - 4);
    // Again: there is nothing to do.
    let again = device.reseal(Lba(0), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((again.progress.resealed, again.progress.absent_resealed), (0, 0));
    drop(device);
    let device = opens_without_the_first_epoch(&host);
    assert_eq!(marks(&device, 2), [Ok(1), Ok(0)]);
    assert_eq!([700, 701, 4000].map(|lba| read(&device, lba)), [Ok(3), Ok(6), Ok(5)]);
}

/// What others write, discard or guard meanwhile is neither undone nor left under the old epoch.
#[test]
fn a_pass_disturbs_no_other_writer() {
    const PLACES: u64 = 64;
    let host = host();
    let server = Server::with(&[(1, 7)]);
    let device = formatted(&host, &server);
    for lba in 0..2 * PLACES {
        write(&device, lba, 1);
    }
    server.change(|says| says.epochs.extend([(2, 8)]));
    eventually("the new epoch is known", || keys(&device).epoch == 2);
    let other = attach(&host, &server);
    let ended = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut counts = vec![1; PLACES as usize];
            for round in 0_u64.. {
                let lba = round * 7 % PLACES;
                let count = &mut counts[lba as usize];
                *count = *count % 200 + 1;
                match round % 3 {
                    0 => write(&other, lba, *count),
                    1 => {
                        write_part_blocking(&other, Lba(lba), 0, Buffer::copy_from(&[*count])).unwrap();
                    }
                    _ => {
                        discard_blocking(&other, Lba(lba), 1).unwrap();
                        *count = 0;
                    }
                }
                if ended.load(Ordering::Relaxed) && round > PLACES {
                    break;
                }
            }
            counts
        });
        let report = device.reseal(Lba(0), &mut |_| ControlFlow::Continue(())).unwrap();
        ended.store(true, Ordering::Relaxed);
        assert!(report.is_clean(), "{report:?}");
        writer.join().unwrap()
    });
    flush_blocking(&other).unwrap();
    drop((device, other));
    let device = opens_without_the_first_epoch(&host);
    let expected: Vec<_> = counts.into_iter().map(Ok).collect();
    assert_eq!(marks(&device, PLACES), expected);
    assert_eq!(read(&device, PLACES), Ok(1));
}

#[test]
fn a_block_that_does_not_open_is_named_and_left_alone() {
    let host = host();
    let server = Server::with(&[(1, 7), (2, 8)]);
    let device = formatted(&host, &server);
    let stranger = attach(&host, &Server::with(&[(1, 9)]));
    write(&stranger, 5, 1);
    flush_blocking(&stranger).unwrap();
    let report = device.reseal(Lba(0), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.bad_blocks, report.progress.bad), (vec![Lba(5)], 1));
    assert_eq!(read(&stranger, 5), Ok(1));
}

/// A server that was restored from an old backup, or that somebody rolled back, does not make us seal under a retired key.
#[test]
fn attack_key_an_epoch_that_goes_back_is_refused() {
    let host = host();
    let server = Server::with(&[(1, 7), (2, 8)]);
    let device = formatted(&host, &server);
    let known = device.unit().sealed.unwrap().claims;
    server.change(|says| says.epochs.retain(|epoch, _| *epoch < 2));
    eventually("they are gone", || keys(&device).epochs.is_empty());
    assert!(keys(&device).trouble.unwrap().contains("old backup"));
    let options = AttachOptions { expected: known.into(), ..options(&host, &server) };
    assert!(
        matches!(RemoteDevice::attach(options), Err(AttachError::Mismatch(mismatch)) if mismatch.what == "key epoch")
    );
}

/// Nobody else may say where a reseal resumes: a later position than it had reached would leave blocks to be destroyed.
#[test]
fn attack_key_a_note_that_was_changed_or_is_of_another_volume_is_none() {
    let host = host();
    let server = Server::with(&[(1, 7)]);
    let device = formatted(&host, &server);
    let note = device.seal_note(b"next 77").unwrap();
    assert_eq!(device.open_note(&note).unwrap().as_deref(), Some(&b"next 77"[..]));
    for at in [0, 8, 20, 70, note.len() - 1] {
        let mut changed = note.clone();
        changed[at] ^= 1;
        assert_eq!(device.open_note(&changed).unwrap(), None, "byte {at}");
    }
    assert_eq!(device.open_note(&note[..note.len() - 1]).unwrap(), None);
    let another = self::host();
    let other = formatted(&another, &server);
    assert_eq!(other.open_note(&note).unwrap(), None, "the same key, another domain");
    assert!(device.seal_note(&[0; BLOCK - 1]).is_err());
}

/// A target cannot choose where the keys of a volume come from.
#[test]
fn attack_key_the_custody_is_not_the_targets_to_choose() {
    let host = host();
    let error = host.attach_error(|_| {});
    assert!(error.to_string().contains("--key-server"), "{error}");
    let sealed = Some(SealedSpec::new(Custody::KeyFile));
    let host = Host::start(&[VolumeSpec { sealed, ..VolumeSpec::plain("vault", SIZE) }]);
    let error = RemoteDevice::attach(options(&host, &Server::with(&[(1, 7)]))).unwrap_err();
    assert!(error.to_string().contains("--key-file"), "{error}");
}
