//! Proves that a virtual machine's disk can be a volume, over vhost-user: that no request is lost or wrong when the back end, the target or both
//! are killed, and that the server is listed, ended and explained like any attachment. The virtual machine is the test; a real one is in
//! `scripts/test-vhost-user.sh`.

#[expect(dead_code, reason = "the tests of the initiator use the rest")]
#[path = "../../../initiator/src/front/vhost/tests/guest.rs"]
mod guest;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Transport, World, eventually, noise, over_both, run};
use guest::{DISCARD, FLUSH, Guest, IDENTIFY, READ, SLOT_BYTES, SLOTS, WRITE, WRITE_ZEROES};

/// A server in the background of a test; killed when dropped.
struct BackEnd {
    child: Child,
    socket: String,
    log: String,
}

impl BackEnd {
    fn start(world: &World, more: &[&str]) -> BackEnd {
        let socket = world.text("vault.sock");
        let url = world.url("vault");
        let arguments = [&["vhost-user", "serve", &url, "--socket", &socket, "--lease", "2s"], more].concat();
        BackEnd::spawn(world.alice_command(&arguments), socket, world.text("vhost-user.log"))
    }

    fn spawn(mut command: Command, socket: String, log: String) -> BackEnd {
        let file = fs::File::options().create(true).append(true).open(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(file).spawn().unwrap();
        // Where metrics are is said before.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let is_ready = lines.any(|line| line == socket);
        let server = BackEnd { child, socket, log };
        assert!(is_ready, "it did not start: {}", server.log());
        server
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the server ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// SIGTERM; its exit status.
    fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.wait()
    }

    /// SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

fn connected(server: &BackEnd, queues: usize) -> Guest {
    let mut guest = Guest::new(queues);
    guest.connect(Path::new(&server.socket));
    guest
}

/// Reads the volume by another command, whole.
fn contents(world: &World) -> Vec<u8> {
    let file = world.text("contents.img");
    world.alice(&["copy", &world.url("vault"), &file, "--overwrite"]).ok();
    fs::read(file).unwrap()
}

#[test]
fn a_guest_reads_writes_and_discards() {
    let (world, target) = World::sealed("vault", "16MiB");
    let server = BackEnd::start(&world, &[]);
    let mut guest = connected(&server, 2);
    assert_eq!(guest.size_bytes(), 16 << 20);
    let identity = guest.request(0, IDENTIFY, 0, b"", 20).data;
    assert!(identity.iter().all(u8::is_ascii_hexdigit), "{identity:?}");
    let mut model = vec![0; 16 << 20];
    for round in 0..40_u64 {
        let (sector, sectors) = (round * 571 % 30_000, 1 + round * 37 % 500);
        let data = noise(round + 1, sectors as usize * 512);
        guest.write(round as usize % 2, sector, &data);
        model[sector as usize * 512..][..data.len()].copy_from_slice(&data);
    }
    for (kind, sector, sectors, flags) in
        [(WRITE_ZEROES, 999, 2222, 1), (WRITE_ZEROES, 5000, 100, 0), (DISCARD, 8000, 8000, 0)]
    {
        assert_eq!(guest.request(0, kind, 0, &Guest::range(sector, sectors, flags), 0).status, 0);
        model[sector as usize * 512..][..sectors as usize * 512].fill(0);
    }
    assert_eq!(guest.request(1, FLUSH, 0, b"", 0).status, 0);
    for at in (0..16 << 20).step_by(SLOT_BYTES as usize) {
        assert!(guest.read(1, at as u64 / 512, SLOT_BYTES) == model[at..at + SLOT_BYTES as usize], "{at}");
    }
    assert_eq!(guest.request(0, READ, (16 << 20) / 512, b"", 512).status, 1);
    drop(guest);
    assert_eq!(server.stop(), Some(0));
    assert!(!Path::new(&world.text("vault.sock")).exists());
    // The serial number stays.
    let server = BackEnd::start(&world, &["--read-only", "--queues", "2", "--logical-block-size", "512"]);
    let mut guest = connected(&server, 1);
    assert_eq!(guest.request(0, IDENTIFY, 0, b"", 20).data, identity);
    assert_eq!(guest.config(20, 4), 512_u32.to_le_bytes());
    assert_eq!(guest.request(0, WRITE, 0, &[1; 512], 0).status, 1);
    drop(guest);
    assert_eq!(server.stop(), Some(0));
    assert!(contents(&world) == model);
    target.stop();
}

over_both!(nothing_is_lost_when_the_back_end_is_killed_again_and_again);

/// Writes of a whole volume, in flight all the time. What is written to a place does not change, so that a write that is executed again is no
/// other one.
fn nothing_is_lost_when_the_back_end_is_killed_again_and_again(transport: Transport) {
    const WRITES: u64 = 768;
    const BYTES: usize = 20 << 10;
    let (world, mut target) = World::sealed_over(transport, "vault", "16MiB");
    let mut server = BackEnd::start(&world, &[]);
    let mut guest = connected(&server, 1);
    let mut free: Vec<u16> = (0..SLOTS).collect();
    let (mut asked, mut answered, mut kills) = (0, 0, 0);
    while answered < WRITES {
        while asked < WRITES
            && let Some(slot) = free.pop()
        {
            guest.ask(0, slot, WRITE, asked * 40, &noise(asked + 1, BYTES), 0);
            asked += 1;
        }
        if asked * 5 / WRITES > kills {
            kills += 1;
            // With requests in flight for certain every other time: their target is gone.
            if kills % 2 == 1 {
                target.kill();
                std::thread::sleep(std::time::Duration::from_millis(50));
                server.kill();
                target = world.serve();
            } else {
                server.kill();
            }
            server = BackEnd::start(&world, &[]);
            guest.connect(Path::new(&server.socket));
        }
        let slot = guest.wait_for_answer(0);
        assert_eq!(guest.status(0, slot), 0);
        assert!(!free.contains(&slot), "answered twice");
        free.push(slot);
        answered += 1;
    }
    assert_eq!((asked, free.len(), kills), (WRITES, SLOTS as usize, 5));
    assert_eq!(guest.next_answer(0), None, "every request is answered once");
    assert_eq!(guest.request(0, FLUSH, 0, b"", 0).status, 0);
    server.kill();
    let contents = contents(&world);
    for at in 0..WRITES {
        assert!(contents[at as usize * BYTES..][..BYTES] == noise(at + 1, BYTES), "write {at}");
    }
    target.stop();
}

#[test]
fn requests_wait_while_the_target_is_away() {
    let (world, target) = World::sealed("vault", "16MiB");
    let server = BackEnd::start(&world, &[]);
    let mut guest = connected(&server, 1);
    guest.write(0, 0, &noise(1, 4096));
    target.kill();
    guest.ask(0, 1, WRITE, 8, &noise(2, 4096), 0);
    guest.ask(0, 2, READ, 0, b"", 4096);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!((guest.status(0, 1), guest.status(0, 2)), (0xee, 0xee));
    run(&["detach", &server.socket]).failed(&["still attached", "the target is away"]);
    let target = world.serve();
    let mut answered = [guest.wait_for_answer(0), guest.wait_for_answer(0)];
    answered.sort_unstable();
    assert_eq!((answered, guest.status(0, 1), guest.status(0, 2)), ([1, 2], 0, 0));
    assert!(guest.data(0, 2, 4096) == noise(1, 4096));
    assert_eq!(server.stop(), Some(0));
    target.stop();
}

#[test]
fn a_guest_is_told_that_the_volume_has_grown() {
    let (world, target) = World::sealed("vault", "16MiB");
    let server = BackEnd::start(&world, &["--seal-growth"]);
    let mut guest = connected(&server, 1);
    run(&["volume", "resize", "vault", "--size", "48MiB", "--root", &world.text("volumes")]).ok();
    guest.wait_for_change();
    assert_eq!(guest.size_bytes(), 48 << 20);
    assert_eq!(guest.read(0, (48 << 20) / 512 - 8, 4096), [0; 4096]);
    guest.write(0, (48 << 20) / 512 - 8, &noise(1, 4096));
    assert_eq!(guest.request(0, FLUSH, 0, b"", 0).status, 0);
    drop(guest);
    assert_eq!(server.stop(), Some(0));
    target.stop();
}

#[test]
fn it_is_listed_and_detached_like_any_attachment() {
    let (world, target) = World::sealed("vault", "16MiB");
    let mut server = BackEnd::start(&world, &["--metrics", &format!("unix:{}", world.text("metrics.sock"))]);
    let listed = run(&["attach", "list"]).ok();
    assert!(listed.contains(&format!("at {} (process {})", server.socket, server.child.id())), "{listed}");
    assert!(listed.contains(&format!("vhost-user: {}", server.socket)), "{listed}");
    assert!(run(&["attach", "list", "--json"]).ok().contains(&format!("\"vhost_user\":\"{}\"", server.socket)));
    // One writer at a time, and one server on a socket.
    let url = world.url("vault");
    let second = |more: &[&str]| world.alice(&[&["vhost-user", "serve", &url, "--wait", "0"][..], more].concat());
    second(&["--socket", &world.text("more.sock")]).failed(&["--take-over"]);
    second(&["--socket", &server.socket, "--read-only"]).failed(&["another process answers there"]);
    second(&["--socket", &server.socket, "--queue-size", "100"]).failed(&["a power of two from 2 to 1024"]);
    run(&["detach", &server.socket]).ok();
    assert_eq!(server.wait(), Some(0));
    assert!(!Path::new(&server.socket).exists() && !run(&["attach", "list"]).ok().contains(&server.socket));
    // One that was killed leaves a name, which the next one replaces.
    BackEnd::start(&world, &[]).kill();
    assert!(Path::new(&world.text("vault.sock")).exists());
    assert_eq!(BackEnd::start(&world, &[]).stop(), Some(0));
    target.stop();
}
