//! Proves that programs of others use a volume over NBD (libnbd's tools, qemu's, fio), that nothing is lost when the target or the server is
//! killed, and that the server is listed, ended and explained like any attachment.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::stage::{CommandOutput, Transport, World, eventually, has, noise, over_both, run};

/// A server in the background of a test; killed when dropped.
pub(crate) struct NbdServer {
    child: Child,
    uri: String,
    socket: String,
    log: String,
}

impl NbdServer {
    fn start(world: &World, volume: &str, more: &[&str]) -> NbdServer {
        let socket = world.text(&format!("{volume}.sock"));
        let url = world.url(volume);
        let arguments = [&["nbd", "serve", &url, "--socket", &socket, "--lease", "2s"], more].concat();
        NbdServer::spawn(world.alice_command(&arguments), socket, world.text("nbd.log"))
    }

    pub(crate) fn spawn(mut command: Command, socket: String, log: String) -> NbdServer {
        let file = fs::File::options().create(true).append(true).open(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(file).spawn().unwrap();
        // Where metrics are is said before.
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let uri = lines.filter(|line| line.starts_with("nbd")).take(1).collect::<String>();
        let server = NbdServer { child, uri, socket, log };
        assert!(server.uri.starts_with("nbd"), "it did not start: {}", server.log());
        server
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGTERM; its exit status.
    pub(crate) fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the NBD server ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the NBD server's log:\n{}", self.log());
        }
    }
}

/// Runs a program of others to its end.
#[track_caller]
fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let output = CommandOutput::new(output);
    assert!(output.is_success(), "{program} {arguments:?}: {}{}", output.stdout, output.stderr);
    output.stdout
}

/// Runs a script with libnbd's Python module; `uri` and a handle `h` are variables there.
#[track_caller]
fn nbdsh(uri: &str, script: &str) -> String {
    tool(PYTHON, &["-c", &format!("import nbd\nuri = {uri:?}\nh = nbd.NBD()\n{script}")])
}

/// Debian's own, which has its modules.
const PYTHON: &str = "/usr/bin/python3";

fn has_nbdsh() -> bool {
    let has = Command::new(PYTHON)
        .args(["-c", "import nbd"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !has {
        eprintln!("passed over: python3-libnbd is not installed");
    }
    has
}

fn have(programs: &[&str]) -> bool {
    programs.iter().all(|program| has(program))
}

#[test]
fn libnbds_tools_read_and_write() {
    if !have(&["nbdinfo", "nbdcopy"]) || !has_nbdsh() {
        return;
    }
    let (world, target) = World::sealed("vault", "64MiB");
    let server = NbdServer::start(&world, "vault", &[]);
    assert_eq!(server.uri, format!("nbd+unix:///vault?socket={}", server.socket));
    let info: Value = serde_json::from_str(&tool("nbdinfo", &["--json", &server.uri])).unwrap();
    let export = &info["exports"][0];
    assert_eq!((export["export-size"].as_u64(), info["protocol"].as_str()), (Some(64 << 20), Some("newstyle-fixed")));
    assert_eq!(
        (export["block_size_minimum"].as_u64(), export["block_size_maximum"].as_u64()),
        (Some(4096), Some(32 << 20))
    );
    for can in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero", "can_fast_zero", "can_df"] {
        assert_eq!(export[can].as_bool(), Some(true), "{can}");
    }
    assert!(tool("nbdinfo", &["--list", &server.uri]).contains("export=\"vault\""));
    // Half of a sparse file: data, a hole, data.
    let contents = [noise(1, 5 << 20), vec![0; 20 << 20], noise(2, 7 << 20)].concat();
    fs::write(world.path("disk.img"), &contents).unwrap();
    tool("nbdcopy", &["--flush", &world.text("disk.img"), &server.uri]);
    let map: Value = serde_json::from_str(&tool("nbdinfo", &["--map", "--json", &server.uri])).unwrap();
    let extents = map.as_array().unwrap().iter();
    let extents: Vec<_> =
        extents.map(|extent| (extent["length"].as_u64().unwrap() >> 20, extent["type"].as_u64().unwrap())).collect();
    assert_eq!(extents, [(5, 0), (20, 3), (7, 0), (32, 3)]);
    tool("nbdcopy", &[&server.uri, &world.text("copy.img")]);
    assert!(fs::read(world.path("copy.img")).unwrap()[..contents.len()] == contents);
    // A client that does not heed block sizes: 512 bytes, and 7.
    nbdsh(
        &server.uri,
        "h.set_strict_mode(0)\nh.connect_uri(uri)\nh.pwrite(b'x' * 512, 512)\nh.pwrite(b'y' * 7, 4093, nbd.CMD_FLAG_FUA)\n\
         assert h.pread(512, 512) == b'x' * 512\nassert h.pread(7, 4093) == b'y' * 7\nh.flush()\nh.shutdown()",
    );
    assert_eq!(server.stop(), Some(0));
    let copied = world.text("again.img");
    world.alice(&["copy", &world.url("vault"), &copied]).ok();
    let mut expected = contents;
    expected[512..1024].fill(b'x');
    expected[4093..4100].fill(b'y');
    assert!(fs::read(&copied).unwrap()[..expected.len()] == expected);
    target.stop();
}

#[test]
fn qemus_tools_convert_compare_and_map() {
    if !have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let (world, target) = World::sealed("vault", "32MiB");
    let server = NbdServer::start(&world, "vault", &[]);
    let disk = world.text("disk.img");
    let contents = [noise(1, 3 << 20), vec![0; 10 << 20], noise(2, 1 << 20), vec![0; 18 << 20]].concat();
    fs::write(&disk, contents).unwrap();
    tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &disk, &server.uri]);
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &disk, &server.uri]);
    let map: Value =
        serde_json::from_str(&tool("qemu-img", &["map", "--output=json", "-f", "raw", &server.uri])).unwrap();
    let mapped = map.as_array().unwrap().iter().filter(|extent| extent["data"] == true);
    assert_eq!(mapped.map(|extent| extent["length"].as_u64().unwrap()).sum::<u64>(), 4 << 20);
    let io = |commands: &[&str]| {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let said =
            tool("qemu-io", &["-f", "raw"].into_iter().chain(commands).chain([&*server.uri]).collect::<Vec<_>>());
        assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    };
    io(&["write -P 7 512 512", "read -P 7 512 512", "write -f -P 8 1M 64k", "flush", "read -P 8 1M 64k"]);
    io(&[
        "write -z -u 1M 32k",
        "read -P 0 1M 32k",
        "read -P 8 1081344 32k",
        "write -z 2M 512",
        "discard 0 1M",
        "aio_write -P 9 3M 1M",
        "aio_flush",
    ]);
    io(&["read -P 9 3M 1M"]);
    assert_eq!(server.stop(), Some(0));
    target.stop();
}

over_both!(fio_verifies_while_the_target_is_killed_and_comes_back);

fn fio_verifies_while_the_target_is_killed_and_comes_back(transport: Transport) {
    if !has("fio") {
        return;
    }
    let (world, mut target) = World::sealed_over(transport, "vault", "64MiB");
    let server = NbdServer::start(&world, "vault", &[]);
    let mut fio = Command::new("fio");
    fio.args([
        "--name=verify",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=16",
        "--size=32M",
        "--rate_iops=4000",
    ])
    .args(["--verify=crc32c", "--verify_fatal=1", "--fsync=200", "--randseed=7"])
    .arg(format!("--uri={}", server.uri))
    .current_dir(world.path("."))
    .stdout(Stdio::piped())
    .stderr(Stdio::piped());
    let Ok(mut fio) = fio.spawn() else { panic!("fio is there") };
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(200));
        target.kill();
        std::thread::sleep(std::time::Duration::from_millis(200));
        target = world.serve();
    }
    eventually("fio ends", || fio.try_wait().unwrap().is_some());
    let said = CommandOutput::new(fio.wait_with_output().unwrap());
    assert!(said.is_success() && said.stdout.contains("err= 0"), "{}{}", said.stdout, said.stderr);
    assert_eq!(server.stop(), Some(0));
    target.stop();
}

/// A write that was answered on one connection, and a flush on another: then it is there, also when initiator and target are killed.
#[test]
fn a_flush_covers_what_other_connections_have_written() {
    if !has_nbdsh() {
        return;
    }
    let (world, target) = World::sealed("vault", "64MiB");
    let server = NbdServer::start(&world, "vault", &[]);
    nbdsh(
        &server.uri,
        "a = nbd.NBD()\na.connect_uri(uri)\nb = nbd.NBD()\nb.connect_uri(uri)\nassert a.can_multi_conn()\n\
         for i in range(64): a.pwrite(bytes([i + 1]) * 65536, i * 65536)\nb.flush()",
    );
    server.kill();
    target.kill();
    let target = world.serve();
    // The socket that was left is replaced.
    let server = NbdServer::start(&world, "vault", &[]);
    nbdsh(
        &server.uri,
        "h.connect_uri(uri)\nfor i in range(64): assert h.pread(65536, i * 65536) == bytes([i + 1]) * 65536",
    );
    assert_eq!(server.stop(), Some(0));
    target.stop();
}

/// The value of this name, where the report has it first.
fn find<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    match report {
        Value::Object(fields) => fields.get(name).or_else(|| fields.values().find_map(|value| find(value, name))),
        Value::Array(items) => items.iter().find_map(|item| find(item, name)),
        _ => None,
    }
}

#[test]
fn a_trim_frees_space_in_the_store() {
    if !has_nbdsh() {
        return;
    }
    let (world, target) = World::sealed("vault", "64MiB");
    let server = NbdServer::start(&world, "vault", &[]);
    let mapped = || {
        let report = run(&["status", "--json", "--interval", "0", "--config", &world.text("strongroom.toml")]).ok();
        let report: Value = serde_json::from_str(&report).unwrap();
        find(&report, "blocks_mapped").and_then(Value::as_u64).expect("a store says how full it is")
    };
    let before = mapped();
    nbdsh(&server.uri, "h.connect_uri(uri)\nh.pwrite(b'x' * (16 << 20), 1 << 20)\nh.flush()");
    assert_eq!(mapped() - before, 4096);
    nbdsh(
        &server.uri,
        "h.connect_uri(uri)\nh.trim(8 << 20, 1 << 20, nbd.CMD_FLAG_FUA)\nh.zero(4 << 20, 9 << 20)\nh.flush()",
    );
    assert_eq!(mapped() - before, 1024);
    assert_eq!(server.stop(), Some(0));
    target.stop();
}

#[test]
fn it_is_listed_and_detached_like_any_attachment() {
    if !has("nbdinfo") {
        return;
    }
    let (world, target) = World::sealed("vault", "64MiB");
    let mut server = NbdServer::start(&world, "vault", &["--metrics", &format!("unix:{}", world.text("metrics.sock"))]);
    let listed = run(&["attach", "list"]).ok();
    assert!(listed.contains(&format!("at {} (process {})", server.socket, server.child.id())), "{listed}");
    assert!(listed.contains(&format!("NBD: {}", server.uri)), "{listed}");
    assert!(Path::new(&world.text("metrics.sock")).exists());
    run(&["detach", &server.socket]).ok();
    assert_eq!(server.wait(), Some(0));
    assert!(!Path::new(&server.socket).exists() && !run(&["attach", "list"]).ok().contains(&server.socket));
    // By TCP, and read-only; by its URI.
    let arguments = ["nbd", "serve", &world.url("vault"), "--listen", "127.0.0.1:0", "--read-only"];
    let mut server = NbdServer::spawn(world.alice_command(&arguments), String::new(), world.text("nbd.log"));
    assert!(server.uri.starts_with("nbd://127.0.0.1:") && server.uri.ends_with("/vault"), "{}", server.uri);
    let info: Value = serde_json::from_str(&tool("nbdinfo", &["--json", &server.uri])).unwrap();
    assert_eq!(info["exports"][0]["is_read_only"].as_bool(), Some(true));
    assert!(run(&["attach", "list"]).ok().contains(&server.uri));
    run(&["detach", &server.uri]).ok();
    assert_eq!(server.wait(), Some(0));
    target.stop();
}

#[test]
fn its_end_says_which_writes_were_lost() {
    if !has_nbdsh() {
        return;
    }
    let (world, target) = World::sealed("vault", "64MiB");
    let mut server = NbdServer::start(&world, "vault", &["--timeout", "1s"]);
    nbdsh(&server.uri, "h.connect_uri(uri)\nh.pwrite(b'x' * 4096, 0)\nh.flush()");
    target.kill();
    nbdsh(
        &server.uri,
        "h.connect_uri(uri)\ntry:\n    h.pwrite(b'y' * 4096, 5 * 4096)\nexcept nbd.Error as error:\n    assert error.errnum == 5\nelse:\n    raise Exception('it succeeded')",
    );
    eventually("it is listed", || run(&["attach", "list"]).ok().contains("data lost"));
    // While the target is away nothing is given up.
    run(&["detach", &server.socket]).failed(&["still attached", "the target is away", "detach --force"]);
    let target = world.serve();
    nbdsh(
        &server.uri,
        "import time\nh.connect_uri(uri)\nfor _ in range(600):\n    try:\n        assert h.pread(4096, 0) == b'x' * 4096\n        break\n    \
         except nbd.Error:\n        time.sleep(0.1)\nelse:\n    raise Exception('it stays away')",
    );
    let said = run(&["detach", &server.socket]);
    assert_eq!(said.status, Some(3), "{}", said.stderr);
    said.failed(&["is detached", "blocks 5", "failed"]);
    assert_eq!(server.wait(), Some(3));
    assert!(server.log().contains("is detached, but"), "{}", server.log());
    target.stop();
}

#[test]
fn what_cannot_be_served_is_explained() {
    let (world, target) = World::sealed("vault", "64MiB");
    world.create(&["other", "--size", "64MiB"]).ok();
    let url = world.url("vault");
    world.alice(&["nbd", "serve", &url, "--listen", "0.0.0.0:0"]).failed(&["other machines", "TLS", "docs/nbd.md"]);
    let nowhere = world.text("nowhere");
    world
        .alice(&["nbd", "serve", &url, "--listen", "0.0.0.0:0", "--tls-certificates", &nowhere])
        .failed(&["ca-cert.pem", "docs/nbd.md"]);
    let server = NbdServer::start(&world, "vault", &[]);
    // One writer at a time, and one server on a socket.
    world.alice(&["nbd", "serve", &url, "--socket", &world.text("more.sock"), "--wait", "0"]).failed(&["--take-over"]);
    world
        .alice(&["nbd", "serve", &url, "--socket", &server.socket, "--read-only"])
        .failed(&["another process answers there"]);
    assert_eq!(server.stop(), Some(0));
    target.stop();
}

/// What the kernel's client does with a volume needs a kernel that has it: scripts/test-nbd.sh.
#[test]
fn a_kernel_without_an_nbd_client_is_named_before_anything_is_attached() {
    if Path::new("/sys/module/nbd").exists() {
        eprintln!("passed over: this kernel has an NBD client");
        return;
    }
    let world = World::new();
    let (url, mount, to) = (world.url("vault"), world.text("mount"), world.text("to"));
    // There is no target that could refuse it.
    let alone: &[&str] = &[];
    for more in [alone, &["--foreground"], &["--mount", &mount], &["--mount", &mount, "--mkfs", "ext4", "--foreground"]]
    {
        let said = world.alice(&[&["attach", &url, "--nbd"], more].concat());
        said.failed(&["modprobe nbd", "CONFIG_BLK_DEV_NBD", "leave --nbd out"]);
    }
    assert!(!Path::new(&mount).exists(), "nothing was made");
    for other in [&["--to", to.as_str()][..], &["--block-device"], &["--allow-other"]] {
        let said = world.alice(&[&["attach", &url, "--nbd"], other].concat());
        assert_eq!(said.status, Some(2), "{}", said.stderr);
        said.failed(&["cannot be used with"]);
    }
    assert_eq!(world.alice(&["attach", &url]).status, Some(2), "without --nbd there must be a directory");
}
