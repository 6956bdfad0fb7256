//! Proves that a hostile target cannot talk an initiator out of its protection, and that hostile or clumsy peers neither undo
//! what others made durable, nor hang them, nor stop their unit.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Host, SIZE, Wire};
use strongroom_block::{BlockDevice, Buffer, DeviceErrorKind, Lba, Mode, Request, Token};
use strongroom_channel::Scheme;
use strongroom_handshake::NodeKey;
use strongroom_initiator::{
    AttachOptions, ExpectedUnit, RemoteDevice, flush_blocking, read_blocking, write_blocking, write_part_blocking,
};
use strongroom_iscsi::Lun;
use strongroom_iscsi::initiator::{Command, Config, Event, Session, SessionKind, TaskFunction};
use strongroom_net::{Link, LinkEvent, LinkOptions};
use strongroom_target::{Catalogue, VolumeSpec};

const BLOCK: usize = 4096;
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

const SECRET: &[u8] = b"TOP SECRET......";

/// Formats a sealed volume, lets the target change its mind about what it is, and attaches it with `options` again: nothing
/// readable may reach the target's disk, and the attachment must fail for the reason given.
fn refuses(lie: impl FnOnce(&Host), change: impl FnOnce(&mut AttachOptions), reason: &str) {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let alice = host.attach("vault");
    let expected = ExpectedUnit::from(alice.unit().sealed.unwrap().claims);
    alice.format().unwrap();
    alice.detach().unwrap();
    host.stop();
    lie(&host);
    host.start_again();
    let mut options = host.options(host.url("vault"));
    options.expected = expected;
    change(&mut options);
    let attached = RemoteDevice::attach(options);
    if let Ok(device) = &attached {
        let _ = write_blocking(device, Lba(1), Buffer::copy_from(&SECRET.repeat(BLOCK / SECRET.len())), true);
        let _ = device.detach();
    }
    host.stop();
    assert!(!holds(host.dir.path(), SECRET), "the target got plaintext");
    let error = attached.map(drop).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

fn becomes_plain(host: &Host) {
    std::fs::remove_dir_all(host.dir.path().join("vault")).unwrap();
    Catalogue::open(host.dir.path()).unwrap().create(&VolumeSpec::plain("vault", SIZE)).unwrap();
}

fn becomes(host: &Host, from: &str, to: &str) {
    let path = host.dir.path().join("vault/volume.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(&path, text.replace(from, to)).unwrap();
}

fn holds(dir: &Path, needle: &[u8]) -> bool {
    std::fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            holds(&path, needle)
        } else {
            std::fs::read(&path).unwrap().windows(needle.len()).any(|window| window == needle)
        }
    })
}

#[test]
fn a_sealed_volume_that_claims_to_be_plain() {
    refuses(becomes_plain, |_| {}, "protection was sealed and is plain");
    refuses(becomes_plain, |options| options.sealing.key_source = None, "protection was sealed and is plain");
    refuses(becomes_plain, |options| options.expected = ExpectedUnit::default(), "nothing would be sealed");
}

#[test]
fn an_encrypted_volume_that_claims_to_be_authenticated_only() {
    let lie = |host: &Host| becomes(host, "\"encrypt\"", "\"authenticate-only\"");
    // A target that tells the truth would refuse the usual scheme for such a volume; one that lies goes along.
    let lured = |options: &mut AttachOptions| options.channel.scheme = Some(Scheme::EncryptAll);
    refuses(lie, lured, "add --authenticate-only");
    let unaware = |options: &mut AttachOptions| {
        lured(options);
        options.expected = ExpectedUnit::default();
    };
    refuses(lie, unaware, "add --authenticate-only");
    // And the other way round, for one who asked for it.
    refuses(|_| {}, |options| options.sealing.mode = Mode::AuthenticateOnly, "the volume is encrypted");
}

#[test]
fn a_cut_wire_must_not_undo_what_bob_flushed() {
    for sealed in [false, true] {
        let spec = if sealed { VolumeSpec::sealed("v", SIZE) } else { VolumeSpec::plain("disk", SIZE) };
        let host = Host::start(&[spec]);
        let v = if sealed { "v" } else { "disk" };
        let wire = Wire::before(&host);
        let alice = RemoteDevice::attach(host.options(wire.url(v))).unwrap();
        alice.format().unwrap();
        let bob = RemoteDevice::attach(host.bobs_options(host.url(v))).unwrap();
        write_blocking(&alice, Lba(6), block(0xA), false).unwrap();
        write_blocking(&bob, Lba(6), block(0xB), true).unwrap();
        // Guarded updates of two halves of one block: the case that WritePart exists for.
        write_part_blocking(&alice, Lba(5), 0, Buffer::copy_from(b"alice")).unwrap();
        write_part_blocking(&bob, Lba(5), 100, Buffer::copy_from(b"bob")).unwrap();
        flush_blocking(&bob).unwrap();
        wire.cut();
        // Anything: alice reconnects; the target was never restarted.
        read_blocking(&alice, Lba(7), 1).unwrap();
        let now = read_blocking(&bob, Lba(5), 1).unwrap();
        assert_eq!(read_blocking(&bob, Lba(6), 1).unwrap()[0], 0xB, "whole, sealed={sealed}");
        assert_eq!(
            (&now[..5], &now[100..103]),
            (&b"alice"[..], &b"bob"[..]),
            "parts, sealed={sealed}, replayed {}",
            alice.status().engine.blocks_replayed
        );
    }
}

#[test]
fn a_restart_must_not_undo_what_bob_flushed_before_it() {
    let mut host = Host::start(&[VolumeSpec::sealed("v", SIZE)]);
    let alice = RemoteDevice::attach(host.options(host.url("v"))).unwrap();
    alice.format().unwrap();
    let bob = RemoteDevice::attach(host.bobs_options(host.url("v"))).unwrap();
    write_part_blocking(&alice, Lba(5), 0, Buffer::copy_from(b"alice")).unwrap();
    write_part_blocking(&bob, Lba(5), 100, Buffer::copy_from(b"bob")).unwrap();
    flush_blocking(&bob).unwrap();
    host.stop();
    host.start_again();
    read_blocking(&alice, Lba(7), 1).unwrap();
    let now = read_blocking(&bob, Lba(5), 1).unwrap();
    assert_eq!((&now[..5], &now[100..103]), (&b"alice"[..], &b"bob"[..]));
}

/// A stock initiator, as far as needed.
pub(crate) struct Raw {
    stream: TcpStream,
    link: Link,
    pub(crate) session: Session,
}

impl Raw {
    fn login(host: &Host, volume: &str, name: &str) -> Raw {
        let now = Instant::now();
        let stream = TcpStream::connect(host.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut link = Link::initiator_plain(LinkOptions::default(), now);
        while link.poll_event().is_some() {}
        let session = Session::new(now, Raw::config(volume, name));
        let mut raw = Raw { stream, link, session };
        raw.until(|e| matches!(e, Event::LoggedIn { .. }));
        raw.link.login_finished(strongroom_iscsi::Digests::default());
        raw
    }

    /// Through a channel to a sealed unit, whose key it does not need.
    pub(crate) fn login_by_channel(host: &Host, volume: &str, name: &str, node: &NodeKey, scheme: Scheme) -> Raw {
        let now = Instant::now();
        let stream = TcpStream::connect(host.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let options = LinkOptions { schemes: vec![scheme], ..LinkOptions::default() };
        let link = Link::initiator_channel(node, &[crate::support::key_of(0x7a).public()], options, now).unwrap();
        let config = Config { in_channel: true, ..Raw::config(volume, name) };
        let mut raw = Raw { stream, link, session: Session::new(now, config) };
        let end = Instant::now() + PATIENCE;
        while !raw.link.in_channel() {
            assert!(Instant::now() < end, "no channel");
            raw.exchange();
        }
        while raw.link.poll_event().is_some() {}
        raw.until(|e| matches!(e, Event::LoggedIn { .. }));
        raw.link.login_finished(strongroom_iscsi::Digests::default());
        raw.link.conceal_parameters();
        raw
    }

    fn config(volume: &str, name: &str) -> Config {
        let kind = SessionKind::Normal { target_name: format!("iqn.2026-11.org.strongroom:{volume}") };
        Config::new(name.to_owned(), [0x80, 1, 2, 3, 4, 5], kind)
    }

    /// Sends what is to be sent, and takes what has come.
    fn exchange(&mut self) {
        let mut out = Vec::new();
        self.link.poll_transmit(&mut out);
        for b in out {
            self.stream.write_all(&b).unwrap();
        }
        let mut buf = vec![0; 65536];
        if let Ok(n) = self.stream.read(&mut buf) {
            self.link.handle_input(&buf[..n]);
        }
    }

    fn turn(&mut self) -> Vec<Event> {
        while let Some(pdu) = self.session.poll_transmit() {
            self.link.send_pdu(pdu);
        }
        self.exchange();
        while let Some(e) = self.link.poll_event() {
            if let LinkEvent::Pdu(p) = e {
                self.session.handle_pdu(Instant::now(), p);
            }
        }
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }
    pub(crate) fn until(&mut self, want: impl Fn(&Event) -> bool) -> Event {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            for e in self.turn() {
                if want(&e) {
                    return e;
                }
            }
        }
        panic!("nothing came");
    }
}

#[test]
fn another_initiators_lun_reset_must_not_hang_ours() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let device = Arc::new(RemoteDevice::attach(host.options(host.url("disk"))).unwrap());
    let mut raw = Raw::login(&host, "disk", crate::support::STOCK);
    let big = Buffer::copy_from(&vec![3; 1 << 20]);
    let mut in_flight = 0u64;
    let mut token = 0;
    let mut completions = Vec::new();
    for _ in 0..6 {
        for _ in 0..8 {
            device.submit(Token(token), Request::Write { lba: Lba((token % 8) * 256), data: big.clone(), fua: true });
            token += 1;
            in_flight += 1;
        }
        raw.session.manage_task(TaskFunction::LogicalUnitReset, Lun::single_level(0), None).unwrap();
        raw.until(|e| matches!(e, Event::TaskManagementDone { .. }));
        let end = Instant::now() + Duration::from_secs(30);
        while in_flight > 0 {
            device.wait(Some(Duration::from_millis(200)));
            device.poll_completions(&mut completions);
            for c in completions.drain(..) {
                in_flight -= 1;
                c.result.unwrap();
            }
            assert!(
                Instant::now() < end,
                "{in_flight} writes hang after somebody's LUN reset; status {:?}",
                device.status()
            );
        }
    }
}

/// SPC-2 RESERVE(6) of another initiator: ours is told what it is, not retried for ever, and goes on once it is released.
#[test]
fn a_reservation_of_another_is_told_as_one() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let device = RemoteDevice::attach(host.options(host.url("disk"))).unwrap();
    let mut raw = Raw::login(&host, "disk", crate::support::STOCK);
    let mut order = |opcode: u8| {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        raw.session.submit(Command::without_data(Lun::single_level(0), cdb)).unwrap();
        let Event::Completed(done) = raw.until(|e| matches!(e, Event::Completed(_))) else { unreachable!() };
        done.status
    };
    // A unit attention of its own may come first.
    assert!((0..3).any(|_| order(0x16) == 0));
    let error = write_blocking(&device, Lba(0), block(1), false).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::ReservationConflict);
    assert!(error.message.contains("another initiator has reserved the volume"), "{error}");
    assert_eq!(order(0x17), 0);
    write_blocking(&device, Lba(0), block(1), false).unwrap();
}

#[test]
fn a_read_only_peer_must_not_stop_the_unit() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let device = RemoteDevice::attach(host.options(host.url("disk"))).unwrap();
    let mut raw = Raw::login(&host, "disk", "iqn.2026-11.org.example:reader");
    for _ in 0..2 {
        raw.session
            .submit(Command::without_data(Lun::single_level(0), [0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
            .unwrap();
        raw.until(|e| matches!(e, Event::Completed { .. }));
    }
    write_blocking(&device, Lba(0), block(1), false).unwrap();
}
