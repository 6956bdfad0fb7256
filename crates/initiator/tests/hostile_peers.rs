//! Proves that a hostile target cannot talk an initiator out of its protection, and that hostile or clumsy peers neither undo
//! what others made durable, nor hang them, nor stop their unit.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, Buffer, Lba, Request, Token};
use strongroom_initiator::{
    ExpectedUnit, RemoteDevice, flush_blocking, read_blocking, write_blocking, write_part_blocking,
};
use strongroom_iscsi::Lun;
use strongroom_iscsi::initiator::{Command, Config, Event, Session, SessionKind, TaskFunction};
use strongroom_net::{Link, LinkEvent, LinkOptions};
use strongroom_target::{Catalogue, VolumeSpec};
use support::{Host, SIZE, Wire};

const BLOCK: usize = 4096;

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

#[test]
fn downgrade_to_plain_with_known_claims_and_a_key() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let alice = host.attach("vault");
    let expected = ExpectedUnit::from(alice.unit().sealed.unwrap().claims);
    alice.format().unwrap();
    alice.detach().unwrap();
    host.stop();
    std::fs::remove_dir_all(host.dir.path().join("vault")).unwrap();
    Catalogue::open(host.dir.path()).unwrap().create(&VolumeSpec::plain("vault", SIZE)).unwrap();
    host.start_again();
    let mut options = host.options(host.url("vault"));
    options.expected = expected;
    let attached = RemoteDevice::attach(options);
    if let Ok(device) = &attached {
        write_blocking(device, Lba(1), Buffer::copy_from(&b"TOP SECRET......".repeat(256)), true).unwrap();
        device.detach().unwrap();
    }
    host.stop();
    let leaked = grep(host.dir.path(), b"TOP SECRET");
    assert!(attached.is_err() && !leaked, "attached={} leaked={leaked}", attached.is_ok());
}

#[test]
fn downgrade_to_authenticate_only_with_known_claims() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let alice = host.attach("vault");
    let expected = ExpectedUnit::from(alice.unit().sealed.unwrap().claims);
    alice.format().unwrap();
    alice.detach().unwrap();
    host.stop();
    let path = host.dir.path().join("vault/volume.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let text: String = text
        .lines()
        .map(|l| if l.starts_with("mode") { "mode = \"authenticate-only\"\n".to_owned() } else { format!("{l}\n") })
        .collect();
    std::fs::write(&path, text).unwrap();
    host.start_again();
    let mut options = host.options(host.url("vault"));
    options.expected = expected;
    let attached = RemoteDevice::attach(options);
    if let Ok(device) = &attached {
        write_blocking(device, Lba(1), Buffer::copy_from(&b"TOP SECRET......".repeat(256)), true).unwrap();
        device.detach().unwrap();
    } else {
        eprintln!("{}", attached.as_ref().unwrap_err());
    }
    host.stop();
    let leaked = grep(host.dir.path(), b"TOP SECRET");
    assert!(attached.is_err() && !leaked, "attached={} leaked={leaked}", attached.is_ok());
}

fn grep(dir: &std::path::Path, needle: &[u8]) -> bool {
    std::fs::read_dir(dir).unwrap().any(|e| {
        let p = e.unwrap().path();
        if p.is_dir() {
            grep(&p, needle)
        } else {
            std::fs::read(&p).unwrap().windows(needle.len()).any(|w| w == needle)
        }
    })
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
struct Raw {
    stream: TcpStream,
    link: Link,
    session: Session,
}
impl Raw {
    fn login(host: &Host, volume: &str, name: &str) -> Raw {
        let now = Instant::now();
        let stream = TcpStream::connect(host.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut link = Link::initiator_plain(LinkOptions::default(), now);
        let kind = SessionKind::Normal { target_name: format!("iqn.2026-11.org.strongroom:{volume}") };
        let session = Session::new(now, Config::new(name.to_owned(), [0x80, 1, 2, 3, 4, 5], kind));
        while link.poll_event().is_some() {}
        let mut raw = Raw { stream, link, session };
        raw.until(|e| matches!(e, Event::LoggedIn { .. }));
        raw.link.login_finished();
        raw
    }
    fn turn(&mut self) -> Vec<Event> {
        while let Some(pdu) = self.session.poll_transmit() {
            self.link.send_pdu(pdu);
        }
        let mut out = Vec::new();
        self.link.poll_transmit(&mut out);
        for b in out {
            self.stream.write_all(&b).unwrap();
        }
        let mut buf = vec![0; 65536];
        if let Ok(n) = self.stream.read(&mut buf) {
            self.link.handle_input(&buf[..n]);
        }
        while let Some(e) = self.link.poll_event() {
            if let LinkEvent::Pdu(p) = e {
                self.session.handle_pdu(Instant::now(), p);
            }
        }
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }
    fn until(&mut self, want: impl Fn(&Event) -> bool) -> Event {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            for e in self.turn() {
                if want(&e) {
                    return e;
                } else {
                    eprintln!("raw: {e:?}")
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
    let mut raw = Raw::login(&host, "disk", support::STOCK);
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
        let end = Instant::now() + Duration::from_secs(75);
        while in_flight > 0 {
            device.wait(Some(Duration::from_millis(200)));
            device.poll_completions(&mut completions);
            for c in completions.drain(..) {
                in_flight -= 1;
                c.result.map(drop).unwrap_or_else(|e| eprintln!("{e:?}"));
            }
            assert!(
                Instant::now() < end,
                "{in_flight} writes hang for 75 s after somebody's LUN reset; status {:?}",
                device.status()
            );
        }
    }
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
