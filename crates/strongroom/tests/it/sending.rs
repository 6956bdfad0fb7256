//! Proves that `volume send --to` brings a snapshot into another target's volume, in full and as a difference; that it goes on after the
//! connection was cut and after either end was killed; and that what is refused says what to do.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::stage::{CommandOutput, Server, World, eventually, noise, run, strongroom};

/// The destination: a world whose target lets the origin's alice use volumes, and send into those that `receive` lists.
fn destination(origin: &World, receive: &str) -> World {
    let world = World::new();
    allow(&world, origin, receive);
    world
}

fn allow(world: &World, origin: &World, receive: &str) {
    let key = origin.public_key("alice");
    world.write_config(&format!(
        "[[peer]]\nname = \"origin\"\nkey = \"{key}\"\ninitiators = [\"*\"]\nvolumes = [\"*\"]\nreceive = {receive}\n\n\
         [[plain]]\ninitiators = [\"*\"]\nvolumes = [\"*\"]\n"
    ));
}

/// `volume send` at the origin, to this URL of the destination.
fn send(origin: &World, there: &World, url: &str, arguments: &[&str]) -> Command {
    let mut command = strongroom(&["volume", "send"]);
    command
        .args(arguments)
        .args(["--to", url, "--config", &origin.text("strongroom.toml")])
        .args(["--identity", &origin.text("alice.identity"), "--target-key", &there.public_key("target")])
        .args(["--connect-timeout", "60s"])
        .env("XDG_CONFIG_HOME", origin.path("config"));
    command
}

fn said(world: &World, command: Command) -> CommandOutput {
    world.finish(command)
}

/// What a volume of the destination holds, as the origin's alice reads it with her key.
fn contents(origin: &World, there: &World, volume: &str) -> Vec<u8> {
    let out = origin.path("read-back");
    let _ = fs::remove_file(&out);
    let mut copy = origin.alice_command(&["copy", &there.url(volume), &origin.text("read-back")]);
    copy.args(["--target-key", &there.public_key("target")]);
    origin.finish(copy).ok();
    fs::read(out).unwrap()
}

#[test]
fn a_snapshot_is_sent_straight_to_another_target_and_opens_there() {
    let (origin, here) = World::sealed("vault", "4MiB");
    let there = destination(&origin, "[]");
    let server = there.serve();
    let volume = |arguments: &[&str]| {
        run(&[&["volume"], arguments, &["--config", &origin.text("strongroom.toml")]].concat()).ok()
    };
    let put = |contents: &[u8]| {
        fs::write(origin.path("contents"), contents).unwrap();
        origin.alice(&["copy", &origin.text("contents"), &origin.url("vault"), "--overwrite"]).ok();
    };
    let monday = noise(1, 4 << 20);
    put(&monday);
    volume(&["snapshot", "create", "vault@monday"]);
    let mut tuesday = monday.clone();
    tuesday[1 << 20..][..4096].copy_from_slice(&noise(2, 4096));
    put(&tuesday);
    volume(&["snapshot", "create", "vault@tuesday"]);

    let url = there.url("vault");
    let to_there = |arguments: &[&str]| said(&origin, send(&origin, &there, &url, arguments));
    // No right, and no such volume without a right: the same.
    let refused = to_there(&["vault@monday"]).failed(&["receive = [\"vault\"]", &origin.public_key("alice")]);
    let other = there.url("other");
    let missing = said(&origin, send(&origin, &there, &other, &["vault@monday"])).failed(&["receive = [\"other\"]"]);
    assert_eq!(refused.replace("vault", "other"), missing.replace("vault", "other"));

    allow(&there, &origin, "[\"vault\"]");
    run(&["reload", "--config", &there.text("strongroom.toml")]).ok();
    to_there(&["vault@tuesday", "--from", "monday"]).failed(&["in full first"]);
    let advice = to_there(&["vault@monday"]).failed(&["strongroom volume receive vault --new-for"]);
    let token = advice.split("--new-for ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let config = there.text("strongroom.toml");
    let made = run(&["volume", "receive", "vault", "--new-for", &token, "--config", &config]).ok();
    assert!(made.contains("made 'vault' for the snapshot 'monday'"), "{made}");
    run(&["volume", "receive", "vault", "--new-for", &token, "--config", &config]).failed(&["already"]);

    // Out of a target that serves the volume, into one that serves it.
    assert!(to_there(&["vault@monday"]).stderr_if_ok().contains("sent vault@monday to"));
    assert!(contents(&origin, &there, "vault") == monday);
    assert!(to_there(&["vault@monday"]).stderr_if_ok().contains("has vault@monday already"));
    // And without one.
    here.stop();
    assert!(to_there(&["vault@tuesday", "--from", "monday"]).stderr_if_ok().contains("sent vault@tuesday"));
    assert!(contents(&origin, &there, "vault") == tuesday);
    assert!(contents(&origin, &there, "vault@monday") == monday);
    assert!(server.log().contains("received a snapshot"), "{}", server.log());

    // A target that is not the one that is meant.
    let mut wrong = send(&origin, &origin, &url, &["vault@tuesday"]);
    wrong.args(["--timeout", "1s"]);
    said(&origin, wrong).failed(&["not the expected one"]);
    server.stop();
}

trait Words {
    fn stderr_if_ok(self) -> String;
}

impl Words for CommandOutput {
    #[track_caller]
    fn stderr_if_ok(self) -> String {
        let stderr = self.stderr.clone();
        self.ok();
        stderr
    }
}

/// Carries connections to a port. The one during which `limit` bytes have gone through in total is held there, or cut.
struct Wire {
    port: u16,
    carried: Arc<AtomicU64>,
    limit: Arc<AtomicU64>,
    cuts: Arc<AtomicBool>,
}

impl Wire {
    fn to(port: u16, limit: u64, cuts: bool) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Wire {
            port: listener.local_addr().unwrap().port(),
            carried: Arc::default(),
            limit: Arc::new(AtomicU64::new(limit)),
            cuts: Arc::new(AtomicBool::new(cuts)),
        };
        let (carried, limit, cuts) = (Arc::clone(&wire.carried), Arc::clone(&wire.limit), Arc::clone(&wire.cuts));
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let (carried, limit, cuts) = (Arc::clone(&carried), Arc::clone(&limit), Arc::clone(&cuts));
                let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
                thread::spawn(move || pass(back.0, back.1, |_| true));
                thread::spawn(move || {
                    pass(near, far, |bytes| {
                        let so_far = carried.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        while so_far >= limit.load(Ordering::SeqCst) {
                            if cuts.load(Ordering::SeqCst) {
                                limit.store(u64::MAX, Ordering::SeqCst);
                                return false;
                            }
                            thread::sleep(Duration::from_millis(5));
                        }
                        true
                    });
                });
            }
        });
        wire
    }

    fn url(&self, volume: &str) -> String {
        format!("strongroom://127.0.0.1:{}/{volume}", self.port)
    }

    fn carried(&self) -> u64 {
        self.carried.load(Ordering::SeqCst)
    }

    fn wait_until_held(&self) {
        eventually("as much went through as may", || self.carried() >= self.limit.load(Ordering::SeqCst));
    }

    fn release(&self) {
        self.limit.store(u64::MAX, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut goes_on: impl FnMut(u64) -> bool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut bytes)
        && count > 0
        && goes_on(count as u64)
        && to.write_all(&bytes[..count]).is_ok()
    {}
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

const SIZE: usize = 40 << 20;
/// More than a window is acknowledged by then.
const MIDDLE: u64 = 28 << 20;

/// An origin with a plain volume full of noise and a snapshot of it, a destination with an empty volume for it, and its target.
fn plain_pair() -> (World, World, Server, Vec<u8>) {
    let origin = World::new();
    origin.create(&["data", "--size", "40MiB", "--plain"]).ok();
    let noise = noise(7, SIZE);
    fs::write(origin.path("contents"), &noise).unwrap();
    let here = origin.serve();
    origin.alice_without_key(&["copy", &origin.text("contents"), &origin.plain_url("data")]).ok();
    let config = origin.text("strongroom.toml");
    run(&["volume", "snapshot", "create", "data@now", "--config", &config]).ok();
    here.stop();
    let there = destination(&origin, "[\"data\"]");
    there.create(&["data", "--size", "40MiB", "--plain"]).ok();
    let server = there.serve();
    (origin, there, server, noise)
}

fn holds_plain(there: &World, noise: &[u8]) {
    there.alice_without_key(&["copy", &there.plain_url("data:now"), &there.text("out")]).ok();
    assert!(fs::read(there.path("out")).unwrap() == noise);
}

fn spawn(mut command: Command) -> Child {
    command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[track_caller]
fn succeeds(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    stderr
}

#[test]
fn a_transfer_goes_on_by_itself_when_its_connection_is_cut() {
    let (origin, there, server, noise) = plain_pair();
    let wire = Wire::to(there.port(), MIDDLE, true);
    let stderr = succeeds(spawn(send(&origin, &there, &wire.url("data"), &["data@now"])));
    assert!(stderr.contains("trying again for 5 min"), "{stderr}");
    assert!(wire.carried() < (SIZE + SIZE / 2) as u64, "what is there is not sent again: {}", wire.carried());
    holds_plain(&there, &noise);
    server.stop();
}

#[test]
fn a_transfer_goes_on_by_itself_when_the_destination_was_killed() {
    let (origin, there, server, noise) = plain_pair();
    let wire = Wire::to(there.port(), MIDDLE, false);
    let sending = spawn(send(&origin, &there, &wire.url("data"), &["data@now"]));
    wire.wait_until_held();
    server.kill();
    let server = there.serve();
    wire.release();
    succeeds(sending);
    assert!(wire.carried() < (SIZE + SIZE * 3 / 4) as u64, "what is durable is not sent again: {}", wire.carried());
    holds_plain(&there, &noise);
    server.stop();
}

#[test]
fn the_same_command_goes_on_when_the_sender_was_killed() {
    let (origin, there, server, noise) = plain_pair();
    let wire = Wire::to(there.port(), MIDDLE, false);
    let mut sending = spawn(send(&origin, &there, &wire.url("data"), &["data@now"]));
    wire.wait_until_held();
    sending.kill().unwrap();
    sending.wait().unwrap();
    // Its connection hangs in the middle: the same node takes its place at once.
    let direct = Wire::to(there.port(), u64::MAX, false);
    succeeds(spawn(send(&origin, &there, &direct.url("data"), &["data@now"])));
    assert!(direct.carried() < (SIZE * 3 / 4) as u64, "what is durable is not sent again: {}", direct.carried());
    holds_plain(&there, &noise);
    // Nobody is there any more: an end, and a way to go on.
    server.stop();
    let mut late = send(&origin, &there, &there.url("data"), &["data@now"]);
    late.args(["--timeout", "1s"]);
    said(&origin, late).failed(&["cannot connect to 127.0.0.1"]);
}
