//! Proves that a volume which is read takes in a snapshot every night: a mounted file system keeps its contents through receptions, a lost
//! connection and a killed target; the target names who is waited for; the new contents are there after detaching; and an attachment that
//! comes back too late is told that its volume was replaced. Needs root and FUSE.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::stage::{CommandOutput, Server, World, can_mount, eventually, has, run};

const NIGHTS: [&str; 3] = ["monday", "tuesday", "wednesday"];

/// A world whose target has received monday's snapshot of a volume with a file system; streams of the other nights are beside it.
fn replica() -> (World, Server) {
    let (world, origin) = World::sealed("vault", "32MiB");
    let (directory, mounted) = (world.text("attached"), world.text("mounted"));
    let volume = |arguments: &[&str]| {
        run(&[&["volume"], arguments, &["--config", &world.text("strongroom.toml")]].concat()).ok()
    };
    let mut base = Vec::new();
    for night in NIGHTS {
        let make = if night == "monday" { &["--mkfs", "ext4"][..] } else { &[] };
        let attach = ["attach", &world.url("vault"), "--to", &directory, "--mount", &mounted];
        world.alice(&[&attach[..], make].concat()).ok();
        fs::write(world.path("mounted/newest"), night).unwrap();
        fs::write(world.path("mounted").join(night), crate::stage::noise(night.len() as u64, 1 << 20)).unwrap();
        run(&["detach", &directory]).ok();
        let snapshot = format!("vault@{night}");
        volume(&["snapshot", "create", &snapshot]);
        world.alice(&["copy", &world.url(&snapshot), &world.text(&format!("{night}.image"))]).ok();
        volume(&[&["send", &snapshot, "--out", &world.text(night)][..], &base].concat());
        base = vec!["--from", night];
    }
    origin.stop();
    fs::rename(world.path("volumes"), world.path("origin")).unwrap();
    fs::create_dir(world.path("volumes")).unwrap();
    let server = world.serve();
    receive(&world, "monday").ok();
    (world, server)
}

/// What the nightly job does.
fn receive(world: &World, night: &str) -> CommandOutput {
    let (file, config) = (world.text(night), world.text("strongroom.toml"));
    run(&["volume", "receive", "vault", "--in", &file, "--config", &config, "--wait", "30s"])
}

fn attach(world: &World, more: &[&str]) -> CommandOutput {
    let (url, directory) = (world.url("vault"), world.text("attached"));
    world.alice(&[&["attach", &url, "--to", &directory, "--read-only"][..], more].concat())
}

fn status(world: &World) -> String {
    run(&["status", "--config", &world.text("strongroom.toml")]).ok()
}

/// Detaches when dropped, also when the test fails.
struct Detached<'a>(&'a World);

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        for directory in ["mounted", "attached"] {
            let _ = Command::new("umount")
                .args(["-l", &self.0.text(directory)])
                .stderr(std::process::Stdio::null())
                .status();
        }
        let _ = run(&["detach", "--force", &self.0.text("attached")]);
    }
}

#[test]
fn a_mounted_file_system_stays_as_it_is_while_snapshots_come_in() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (world, server) = replica();
    let config = world.text("strongroom.toml");
    let monday = fs::read(world.path("monday.image")).unwrap();
    let mounted = world.text("mounted");
    let _detached = Detached(&world);
    attach(&world, &["--mount", &mounted]).ok();
    // The attachment's file goes past every cache of the initiator.
    let is_unchanged = |when: &str| {
        assert!(fs::read(world.path("attached/vault")).unwrap() == monday, "{when}");
        assert_eq!(fs::read(world.path("mounted/newest")).unwrap(), b"monday", "{when}");
        assert!(!world.path("mounted/tuesday").exists(), "{when}");
    };
    // Its connection is lost, and while it is away a snapshot comes in.
    run(&["session", "drop", "--volume", "vault", "--config", &config]).ok();
    receive(&world, "tuesday").ok();
    is_unchanged("after a lost connection");
    let shown = status(&world);
    assert!(shown.contains("waits for sessions that see 'monday'") && shown.contains("alice"), "{shown}");
    let shown = run(&["volume", "show", "vault", "--config", &config]).ok();
    assert!(shown.contains("waits for sessions that see 'monday'") && shown.contains("tuesday"), "{shown}");
    let delete = ["volume", "snapshot", "delete", "vault@monday", "--config", &config];
    run(&delete).failed(&["read this one"]);
    let writer = ["attach", &world.url("vault"), "--to", &world.text("writer")];
    world.alice(&writer).failed(&["before a snapshot was received", "strongroom volume show"]);

    server.kill();
    let server = world.serve();
    is_unchanged("after the target was killed");
    receive(&world, "wednesday").ok();
    is_unchanged("when the second snapshot is there");

    run(&["detach", &mounted]).ok();
    // The target cannot know that nobody else was attached when it was killed: it waits for a minute.
    eventually("the newest snapshot is seen", || {
        thread::sleep(Duration::from_secs(1));
        !status(&world).contains("waits for sessions")
    });
    attach(&world, &["--mount", &mounted]).ok();
    assert_eq!(fs::read(world.path("mounted/newest")).unwrap(), b"wednesday");
    assert!(fs::read(world.path("attached/vault")).unwrap() == fs::read(world.path("wednesday.image")).unwrap());
    run(&["detach", &mounted]).ok();
    run(&delete).ok();
    server.stop();
}

#[test]
fn an_attachment_whose_volume_was_replaced_meanwhile_is_told_so() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (world, server) = replica();
    let _detached = Detached(&world);
    let said = attach(&world, &[]);
    let log = said.stderr.split_whitespace().last().unwrap().to_owned();
    said.ok();
    server.kill();
    // Without a target nothing is kept for those who are away.
    receive(&world, "tuesday").ok();
    let server = world.serve();
    eventually("it does not go on", || fs::read(world.path("attached/vault")).is_err());
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("contents were replaced") && log.contains("attach again"), "{log}");
    run(&["detach", "--force", &world.text("attached")]);
    attach(&world, &[]).ok();
    assert!(fs::read(world.path("attached/vault")).unwrap() == fs::read(world.path("tuesday.image")).unwrap());
    run(&["detach", &world.text("attached")]).ok();
    server.stop();
}
