//! Proves what people see of a network path that carries shorter packets than before: both ends say so in their logs, `status` and `attach list`,
//! and nothing is lost. In a network namespace, whose loopback gets a smaller MTU. Needs root, FUSE and namespaces.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::stage::{Transport, World, can_mount, eventually, has, listed_at, noise, run};

/// A block in one packet needs 4300 bytes or so; of 2048 bytes, half of that.
const SMALLER_MTU: &str = "2400";
const SAID: &str = "a link on the path has a smaller MTU now";
const PART: usize = 1 << 20;

/// A process that keeps a network namespace; it ends with this.
struct Namespace(Child);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Namespace {
    /// `None`, with a word, where there can be none.
    fn new() -> Option<Namespace> {
        let may = Command::new("unshare").args(["--net", "true"]).stderr(Stdio::null()).status();
        if !may.is_ok_and(|status| status.success()) {
            eprintln!("passed over: no namespaces can be made here");
            return None;
        }
        Some(Namespace(Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap()))
    }

    /// Takes the calling thread there, and so what it starts.
    fn enter(&self) {
        let ours = fs::read_link("/proc/thread-self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", self.0.id());
        eventually("the namespace is there", || fs::read_link(&theirs).is_ok_and(|theirs| theirs != ours));
        let namespace = File::open(theirs).unwrap();
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        ip(&["link", "set", "lo", "up"]);
    }
}

fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

/// What the target says of the packets of its only session.
fn association(world: &World) -> Value {
    let json = run(&["status", "--config", &world.text("strongroom.toml"), "--json", "--interval", "0"]).ok();
    serde_json::from_str::<Value>(&json).unwrap()["sessions"][0]["ecl"].take()
}

/// Past the page cache.
fn read(file: &str, at: usize, into: &str) -> Vec<u8> {
    dd(file, into, &[&format!("skip={at}"), "count=1", "iflag=direct"]);
    fs::read(into).unwrap()
}

fn dd(from: &str, to: &str, more: &[&str]) {
    let (from, to) = (format!("if={from}"), format!("of={to}"));
    let said = Command::new("dd").args([&from, &to, "bs=1M"]).args(more).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn a_path_that_shrinks_is_named_at_both_ends() {
    if !can_mount() || !has("ip") || !has("unshare") {
        return;
    }
    let Some(namespace) = Namespace::new() else { return };
    namespace.enter();
    let (world, server) = World::sealed_over(Transport::Ecl, "vault", "16MiB");
    let directory = world.text("attached");
    let said = world.alice(&["attach", &world.url("vault"), "--to", &directory]);
    assert!(said.is_success(), "{}", said.stderr);
    let log = said.stderr.split_whitespace().last().expect("it names its log").to_owned();
    let file = format!("{directory}/vault");
    let (before, after) = (noise(1, PART), noise(2, PART));
    fs::write(world.path("before"), &before).unwrap();
    dd(&world.text("before"), &file, &["seek=0", "conv=notrunc,fsync"]);
    eventually("whole blocks in a packet, both ways", || {
        association(&world)["packet_bytes"] == 4272 && listed_at(&directory).contains("packets up to 4272 bytes")
    });
    assert_eq!(association(&world)["black_holes"], 0);

    ip(&["link", "set", "lo", "mtu", SMALLER_MTU]);
    fs::write(world.path("after"), &after).unwrap();
    dd(&world.text("after"), &file, &["seek=1", "conv=notrunc,fsync"]);
    assert!(read(&file, 0, &world.text("back")) == before && read(&file, 1, &world.text("back")) == after);
    let seen = association(&world);
    assert_eq!(seen["packet_bytes"], 2224, "{seen}");
    assert_eq!(seen["black_holes"], 1, "{seen}");
    let text = run(&["status", "--config", &world.text("strongroom.toml"), "--interval", "0"]).ok();
    let words = "packets up to 2224 bytes (longer ones vanished: reduced once)";
    assert!(text.contains(words), "{text}");
    eventually("attach list says so", || listed_at(&directory).contains(words));
    for log in [server.log(), fs::read_to_string(log).unwrap()] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(SAID)).collect();
        assert!(
            matches!(lines[..], [line] if ["WARN", "4272", "2224"].iter().all(|part| line.contains(part))),
            "{log}"
        );
    }
    run(&["detach", &directory]).ok();
    server.stop();
}
