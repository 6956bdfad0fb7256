//! Proves, by the commands that a cluster manager would type, that a node which hangs is fenced for good: nothing that it had under way takes effect,
//! its file system ends, and another node has the volume at once; and what the command's exit status says. Needs root and FUSE.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, kill_process};

use crate::stage::{
    CommandOutput, Server, Transport, World, can_mount, eventually, has, listed_at, noise, process_at, run,
};

const ALICE: &str = "iqn.2026-11.test:alice";
const BOB: &str = "iqn.2026-11.test:bob";

/// A volume and its two nodes.
struct Pair {
    world: World,
    server: Option<Server>,
}

impl Pair {
    fn over(transport: Transport) -> Pair {
        let world = World::over(transport);
        run(&["identity", "new", "--out", &world.text("bob.identity")]).ok();
        let peer = |name: &str| {
            let key = world.public_key(name);
            format!(
                "[[peer]]\nname = \"{name}\"\nkey = \"{key}\"\ninitiators = [\"iqn.2026-11.test:{name}\"]\nvolumes = [\"*\"]\n\n"
            )
        };
        world.write_config(&(peer("alice") + &peer("bob")));
        world.create(&["vault", "--size", "32MiB"]).ok();
        let server = Some(world.serve());
        world.alice(&["volume", "format", &world.url("vault"), "--yes"]).ok();
        Pair { world, server }
    }

    fn command(&self, name: &str, arguments: &[&str]) -> CommandOutput {
        let initiator = format!("iqn.2026-11.test:{name}");
        let command = self.world.initiator(&format!("{name}.identity"), &initiator, "volume.key", arguments);
        self.world.finish(command)
    }

    fn directory(&self, name: &str) -> String {
        self.world.text(&format!("{name}.file"))
    }

    fn attach(&self, name: &str, key: &str, more: &[&str]) -> CommandOutput {
        let (url, to) = (self.world.url("vault"), self.directory(name));
        self.command(name, &[&["attach", &url, "--to", &to, "--reservation-key", key][..], more].concat())
    }

    fn fence(&self, name: &str, more: &[&str]) -> CommandOutput {
        self.command(name, &[&["fence", &self.world.url("vault")], more].concat())
    }

    fn detach(&self, name: &str) -> CommandOutput {
        run(&["detach", &self.directory(name)])
    }

    fn listed(&self, name: &str) -> String {
        listed_at(&self.directory(name))
    }

    fn signal(&self, name: &str, signal: Signal) {
        kill_process(process_at(&self.directory(name)).expect("it is attached"), signal).unwrap();
    }

    /// All of the volume, as a node reads it.
    fn contents(&self, name: &str) -> Vec<u8> {
        let mut contents = Vec::new();
        File::open(format!("{}/vault", self.directory(name))).unwrap().read_to_end(&mut contents).unwrap();
        contents
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in ["alice", "bob"] {
            let _ = process_at(&self.directory(name)).map(|process| kill_process(process, Signal::CONT));
            for directory in [self.world.text(&format!("{name}.mounted")), self.directory(name)] {
                let _ = Command::new("umount").args(["-l", &directory]).stderr(Stdio::null()).status();
            }
            let _ = run(&["detach", "--force", &self.directory(name)]);
        }
    }
}

#[test]
fn attack_fence_amid_writes_is_complete() {
    if can_mount() && has("mkfs.ext4") {
        [Transport::Iscsi, Transport::Ecl, Transport::EclTcp].into_iter().for_each(a_node_that_hangs_is_fenced);
    }
}

/// Bob's machine hangs while it writes, is fenced, and goes on.
fn a_node_that_hangs_is_fenced(transport: Transport) {
    let mut pair = Pair::over(transport);
    let mounted = pair.world.text("bob.mounted");
    pair.attach("bob", "0xb", &["--mount", &mounted, "--mkfs", "ext4"]).ok();
    pair.attach("alice", "0xa", &[]).failed(&["attached for writing by", BOB]);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            loop {
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                let file = File::create(format!("{mounted}/file{}", round % 4));
                let written = file.and_then(|mut file| {
                    file.write_all(&noise(round, 256 << 10))?;
                    file.sync_all()
                });
                if let Err(error) = written {
                    return error;
                }
            }
        });
        eventually("he writes", || rounds.load(Ordering::Relaxed) > 5);
        pair.signal("bob", Signal::STOP);
        let fenced = pair.fence("alice", &["--reservation-key", "a", "--register", "--victim", "0xb", "--json"]).ok();
        let fenced: serde_json::Value = serde_json::from_str(&fenced).unwrap();
        assert_eq!(fenced["fenced"][0]["key"], "0xb");
        assert_eq!(fenced["fenced"][0]["initiator"], BOB);
        assert_eq!((&fenced["was_registered"], &fenced["ended_lease"]), (&true.into(), &true.into()));
        // At once, and without a take-over.
        pair.attach("alice", "0xa", &["--wait", "0s"]).ok();
        let seen = pair.contents("alice");
        pair.signal("bob", Signal::CONT);
        writer.join().unwrap();
        eventually("his attachment knows", || pair.listed("bob").contains("kept out: "));
        eventually("his file system has ended", || (0..4).all(|at| fs::read(format!("{mounted}/file{at}")).is_err()));
        assert!(pair.contents("alice") == seen, "nothing of him arrives");
    });
    // Nor after a restart of the target, when initiators send again what it may have forgotten.
    let before = pair.contents("alice");
    pair.server.take().unwrap().stop();
    pair.server = Some(pair.world.serve());
    pair.fence("alice", &["--status", "--victim", "a"]).ok();
    let again = pair.fence("alice", &["--reservation-key", "0xa", "--victim", BOB]).ok();
    assert!(again.contains("fenced already"), "{again}");
    let said = pair.detach("bob");
    assert_eq!(said.status, Some(3), "{}", said.stderr);
    said.failed(&["is detached, but"]);
    assert!(pair.contents("alice") == before);
    pair.detach("alice").ok();
    // The file system is as after a power cut.
    let mounted = pair.world.text("alice.mounted");
    pair.attach("alice", "0xa", &["--mount", &mounted]).ok();
    assert!(fs::read_dir(&mounted).unwrap().count() > 0);
    pair.detach("alice").ok();
    assert!(pair.fence("alice", &["--list"]).ok().contains("nobody is registered"));
}

#[test]
fn the_exit_status_says_whether_a_node_is_fenced() {
    if !can_mount() {
        return;
    }
    let pair = Pair::over(Transport::Iscsi);
    let status = |name: &str, more: &[&str]| pair.fence(name, more).status;
    pair.attach("alice", "0xa", &["--shared"]).ok();
    pair.attach("bob", "0xb", &["--shared"]).ok();
    let listed = pair.fence("alice", &["--list"]).ok();
    assert!(listed.contains(&format!("0xa {ALICE}")) && listed.contains(&format!("0xb {BOB}")), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&pair.fence("bob", &["--list", "--json"]).ok()).unwrap();
    assert_eq!(json["registered"].as_array().unwrap().len(), 2);
    assert_eq!(json["registered"][0]["holds_reservation"], true);
    assert_eq!(status("alice", &["--status", "--victim", "0xb"]), Some(0));
    assert_eq!(status("alice", &["--status", "--victim", "0xc"]), Some(3));
    // Wrong command lines.
    for wrong in [
        &["--victim", "0xb"][..],
        &["--reservation-key", "0"],
        &["--reservation-key", "1", "--victim", "bob"],
        &["--status"],
    ] {
        assert_eq!(status("alice", wrong), Some(2), "{wrong:?}");
    }
    // Not by somebody who is not registered, and not oneself.
    let refused = pair.fence("alice", &["--reservation-key", "0xc", "--victim", "0xb"]);
    assert_eq!(refused.status, Some(1));
    refused.failed(&["nobody was fenced", "--register"]);
    pair.fence("alice", &["--reservation-key", "0xa", "--victim", "0xa"]).failed(&["own reservation key"]);
    let (url, other) = (pair.world.url("vault"), pair.world.text("other"));
    let read_only = ["attach", &url, "--to", &other, "--reservation-key", "0xb", "--read-only"];
    pair.command("bob", &read_only).failed(&["leave out --reservation-key"]);
    assert_eq!(status("alice", &["--status", "--victim", BOB]), Some(0), "nothing has happened");
    assert!(pair.fence("alice", &["--reservation-key", "0xa"]).ok().contains("fenced: 0xb"));
    assert_eq!(status("alice", &["--status", "--victim", BOB]), Some(3));
    // He cannot fence in turn, and cannot be reached by mistake either.
    assert_eq!(status("bob", &["--reservation-key", "0xb", "--victim", "0xa"]), Some(1));
    eventually("he is told without doing anything", || pair.listed("bob").contains("kept out: "));
    assert_eq!(pair.detach("bob").status, Some(3));
    pair.attach("bob", "0xb", &["--shared"]).ok();
    assert_eq!(status("alice", &["--status", "--victim", "0xb"]), Some(0), "he is taken back");
    pair.detach("bob").ok();
    pair.detach("alice").ok();
    drop(pair.fence("alice", &["--list"]).ok());
}
