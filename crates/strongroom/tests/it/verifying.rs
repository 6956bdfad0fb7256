//! Proves that `volume verify` tells a sound volume from one that was never sealed, goes on where it was interrupted, and gives advice; and that a
//! damaged block is read in an older version only where both ends chose so.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::stage::{CommandOutput, World, eventually, noise, run};

/// Carries connections to a target. Once `limit` bytes have come back from it, what follows is held.
struct HoldingWire {
    port: u16,
    carried: Arc<AtomicU64>,
    limit: Arc<AtomicU64>,
}

impl HoldingWire {
    fn to(port: u16, limit: u64) -> HoldingWire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = HoldingWire {
            port: listener.local_addr().unwrap().port(),
            carried: Arc::default(),
            limit: Arc::new(AtomicU64::new(limit)),
        };
        let (carried, limit) = (Arc::clone(&wire.carried), Arc::clone(&wire.limit));
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let (carried, limit) = (Arc::clone(&carried), Arc::clone(&limit));
                let forth = (near.try_clone().unwrap(), far.try_clone().unwrap());
                thread::spawn(move || pass(forth.0, forth.1, |_| ()));
                thread::spawn(move || {
                    pass(far, near, |bytes| {
                        let so_far = carried.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        while so_far >= limit.load(Ordering::SeqCst) {
                            thread::sleep(Duration::from_millis(5));
                        }
                    });
                });
            }
        });
        wire
    }

    fn is_holding(&self) -> bool {
        self.carried.load(Ordering::SeqCst) >= self.limit.load(Ordering::SeqCst)
    }

    fn release(&self) {
        self.limit.store(u64::MAX, Ordering::SeqCst);
    }
}

/// Passes everything on; `before` is called with each number of bytes, and may wait.
fn pass(mut from: TcpStream, mut to: TcpStream, before: impl Fn(u64)) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        before(count as u64);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

#[test]
fn a_volume_is_verified_and_what_cannot_be_is_refused() {
    let (world, server) = World::sealed("vault", "16MiB");
    let image = world.text("image");
    std::fs::write(&image, noise(3, 16 << 20)).unwrap();
    world.alice(&["copy", &image, &world.url("vault")]).ok();
    let state = world.text("state");
    let said = world.alice(&["volume", "verify", &world.url("vault"), "--state", &state]).ok();
    assert!(said.contains("4096 blocks open") && said.contains("0 do not open"), "{said}");
    assert!(!std::path::Path::new(&state).exists(), "it is done");
    let said = world.alice(&["volume", "verify", &world.url("vault"), "--from", "4000"]).ok();
    assert!(said.contains("96 blocks open"), "{said}");
    world.alice(&["volume", "verify", &world.url("vault"), "--from", "5000"]).failed(&["past the end"]);
    std::fs::write(&state, "no state").unwrap();
    world.alice(&["volume", "verify", &world.url("vault"), "--state", &state]).failed(&["name another file"]);
    // A volume has a say in whether older versions may be read.
    world.alice(&["copy", &world.url("vault"), &world.text("copy"), "--previous-versions"]).failed(&["does not allow"]);
    run(&["volume", "access", "vault", "--peer", "alice", "--previous-versions", "--root", &world.text("volumes")])
        .ok();
    world.alice(&["copy", &world.url("vault"), &world.text("copy"), "--previous-versions"]).ok();
    assert!(std::fs::read(world.text("copy")).unwrap() == std::fs::read(&image).unwrap());
    let shown = run(&["volume", "show", "vault", "--root", &world.text("volumes")]).ok();
    assert!(shown.contains("damaged blocks"), "{shown}");
    // Nobody has sealed this one.
    world.create(&["blank", "--size", "16MiB", "--peer", "alice"]).ok();
    world.alice(&["volume", "verify", &world.url("blank")]).failed(&["strongroom volume format"]);
    // Recorded, but still without a sealed block.
    world.alice(&["key", "record", &world.url("blank")]).ok();
    world.alice(&["volume", "verify", &world.url("blank")]).failed(&["not formatted", "--keep-going"]);
    let said = world.alice(&["volume", "verify", &world.url("blank"), "--keep-going"]);
    assert!(said.stdout.contains("blocks 0 to 4095 do not open"), "{}", said.stdout);
    said.failed(&["volume recover"]);
    // Another key than the volume's is not reported block by block.
    run(&["key", "new", "--out", &world.text("wrong.key")]).ok();
    let with_wrong_key = |arguments: &[&str]| {
        world.finish(world.initiator("alice.identity", "iqn.2026-11.test:alice", "wrong.key", arguments))
    };
    with_wrong_key(&["key", "record", &world.url("vault")]).ok();
    let said = with_wrong_key(&["volume", "verify", &world.url("vault")]);
    assert!(said.stdout.lines().count() + said.stderr.lines().count() < 32, "{}{}", said.stdout, said.stderr);
    said.failed(&["probably not the volume's key"]);
    server.stop();
}

/// As by Ctrl-C. What the target sends after the first part of the volume is held until the signal is sent: it always comes in the middle.
#[test]
fn a_verification_that_was_interrupted_goes_on_from_its_state() {
    let (world, server) = World::sealed("vault", "16MiB");
    std::fs::write(world.path("image"), noise(8, 16 << 20)).unwrap();
    world.alice(&["copy", &world.text("image"), &world.url("vault")]).ok();
    let wire = HoldingWire::to(world.port(), 6 << 20);
    let (url, state) = (format!("strongroom://127.0.0.1:{}/vault", wire.port), world.text("state"));
    let verify = || world.alice_command(&["volume", "verify", &url, "--state", &state, "--json"]);
    let mut child = verify().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it is in the middle of the volume", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        wire.is_holding()
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    wire.release();
    let stopped = CommandOutput::new(child.wait_with_output().unwrap());
    let first: Value = serde_json::from_str(&stopped.stdout).unwrap_or_else(|_| panic!("{}", stopped.stderr));
    stopped.failed(&["stopped before block", "the same command goes on from there", &state]);
    let next = first["next"].as_u64().unwrap();
    assert!((1..4096).contains(&next), "{first}");
    assert_eq!(first["opened"], next, "{first}");
    assert!(std::fs::read_to_string(&state).unwrap().contains(&format!("\"next\":{next},")), "{first}");

    let rest: Value = serde_json::from_str(&world.finish(verify()).ok()).unwrap();
    assert_eq!(rest["opened"], 4096 - next, "what was verified is not read again: {rest}");
    assert_eq!(rest["next"], 4096, "{rest}");
    assert!(!std::path::Path::new(&state).exists(), "it is done");
    server.stop();
}

/// Custody `target`, with the cryptography that the binary hands to the target: what nobody has read is verified there.
#[test]
fn a_trusted_target_verifies_in_the_background() {
    let world = World::new();
    let config = std::fs::read_to_string(world.path("strongroom.toml")).unwrap();
    // The volume stays open while nobody uses it.
    std::fs::write(world.path("strongroom.toml"), config.replace("idle_close_s = 1", "idle_close_s = 300")).unwrap();
    let wrapping = world.text("wrap.key");
    run(&["key", "new", "--for", "wrapping", "--out", &wrapping]).ok();
    world.create(&["box", "--size", "16MiB", "--custody", "target", "--wrapping-key", &wrapping]).ok();
    let server = world.serve();
    let url = world.url("box");
    world.alice_without_key(&["volume", "format", &url, "--yes"]).ok();
    for seed in [4, 5] {
        let image = world.text("image");
        std::fs::write(&image, noise(seed, 1 << 20)).unwrap();
        world.alice_without_key(&["copy", &image, &url, "--allow-smaller"]).ok();
    }
    let show = || run(&["volume", "show", "box", "--config", &world.text("strongroom.toml")]).ok();
    crate::stage::eventually("the target has verified what was written", || {
        let shown = show();
        shown.contains("verified here") && shown.contains("256 blocks open, 0 do not")
    });
    let shown = show();
    assert!(shown.contains("0 of at most"), "{shown}");
    assert!(shown.contains("96 bytes a block, 384 KiB for all blocks; 160 KiB of that are block keys"), "{shown}");
    let status = run(&["status", "--json", "--config", &world.text("strongroom.toml")]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let opened = status["counters"]["background_crypto"]["decrypted_bytes"].as_u64().unwrap();
    assert!(opened >= 1 << 20, "{opened}");
    server.stop();
}
