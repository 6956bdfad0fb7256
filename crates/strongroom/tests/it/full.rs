//! Proves that a file system on a volume whose host ran full can be attached again, which replays its journal, checked, emptied and
//! trimmed, as docs/admin.md says; and that the warnings before are there. Needs root, FUSE and ext4.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::stage::{CommandOutput, World, can_mount, eventually, has, run, strongroom, unshare};
use rustix::process::{Pid, Signal, kill_process};

/// The target's volumes on an ext4 of this size, unmounted when dropped.
struct SmallHost {
    at: String,
    volumes: String,
}

impl SmallHost {
    fn beneath(world: &World, size: &str) -> SmallHost {
        let (image, at, volumes) = (world.text("host.image"), world.text("host"), world.text("volumes"));
        fs::create_dir(&at).unwrap();
        for command in [
            &["truncate", "-s", size, &image][..],
            &["mkfs.ext4", "-q", "-F", &image],
            &["mount", "-o", "loop", &image, &at],
        ] {
            let done = Command::new(command[0]).args(&command[1..]).status();
            assert!(done.is_ok_and(|status| status.success()), "root may do {command:?}");
        }
        // Beside lost+found.
        fs::create_dir(format!("{at}/volumes")).unwrap();
        fs::remove_dir(&volumes).unwrap();
        symlink(format!("{at}/volumes"), &volumes).unwrap();
        SmallHost { at, volumes }
    }

    /// Takes what is left for root alone, to the last block.
    fn fill(&self) {
        let mut file = File::create(format!("{}/others", self.at)).unwrap();
        let mut piece = 1 << 20;
        while piece >= 512 {
            if file.write_all(&vec![1; piece]).and_then(|()| file.sync_all()).is_err() {
                piece /= 2;
            }
        }
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.volumes);
        let _ = Command::new("umount").args(["-l", &self.at]).stderr(Stdio::null()).status();
    }
}

/// A mount namespace with a tmpfs of 64 KiB as root's directory for attachments. What is attached in it goes with it.
struct SmallRun(Child);

impl SmallRun {
    const AT: &str = "/run/strongroom";

    fn new() -> SmallRun {
        let script = format!(
            "mkdir -p {at} && mount -t tmpfs -o size=64k,mode=700 tmpfs {at} && exec sleep 1000",
            at = SmallRun::AT
        );
        let small = SmallRun(unshare(&["sh", "-c", &script]).spawn().unwrap());
        let mounts = format!("/proc/{}/mounts", small.0.id());
        let mounted = format!("tmpfs {} tmpfs", SmallRun::AT);
        eventually("the tmpfs is there", || fs::read_to_string(&mounts).unwrap().contains(&mounted));
        small
    }

    /// A path in the namespace.
    fn path(&self, path: &str) -> String {
        format!("/proc/{}/root{path}", self.0.id())
    }

    /// Leaves room for this many pages.
    fn fill(&self, pages: usize) {
        let mut file = File::create(self.path("/run/strongroom/others")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        let full = file.metadata().unwrap().len();
        file.set_len(full - 4096 * pages as u64).unwrap();
    }

    fn empty(&self) {
        fs::remove_file(self.path("/run/strongroom/others")).unwrap();
    }

    /// A command in the namespace, not yet run.
    fn command(&self, inside: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.0.id())).arg(inside.get_program()).args(inside.get_args());
        for (name, value) in inside.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, inside: &Command) -> CommandOutput {
        CommandOutput::new(self.command(inside).output().unwrap())
    }
}

impl Drop for SmallRun {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command in the background; killed when dropped.
struct Background(Child);

impl Background {
    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Detaches and unmounts when dropped, in any state.
struct Cleanup<'a>(&'a World);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        for directory in [self.0.text("mounted"), self.0.text("attached")] {
            let _ = Command::new("umount").args(["-l", &directory]).stderr(Stdio::null()).status();
        }
        let _ = run(&["detach", &self.0.text("attached"), "--force"]);
    }
}

/// Writes files of a MiB until that fails or there are this many; how many there are.
fn fill(mounted: &str, name: &str, most: usize) -> usize {
    let piece = crate::stage::noise(7, 1 << 20);
    for at in 0..most {
        let written = File::create(format!("{mounted}/{name}-{at}")).and_then(|mut file| {
            file.write_all(&piece)?;
            file.sync_all()
        });
        if written.is_err() {
            return at;
        }
    }
    most
}

fn status(world: &World) -> String {
    run(&["status", "--root", &world.text("volumes")]).ok()
}

#[test]
fn a_volume_on_a_full_host_can_be_mounted_checked_and_trimmed() {
    if !can_mount() || !has("mkfs.ext4") || !has("fstrim") {
        return;
    }
    let world = World::new();
    let host = SmallHost::beneath(&world, "136M");
    let said = world.create(&["vault", "--size", "1GiB"]);
    assert!(said.is_success() && said.stderr.contains("New data will be refused"), "{}", said.stderr);
    let server = world.serve();
    world.alice(&["volume", "format", &world.url("vault"), "--yes"]).ok();
    let (attached, mounted) = (world.text("attached"), world.text("mounted"));
    let _cleanup = Cleanup(&world);
    let url = world.url("vault");
    let attach = ["attach", &url, "--to", &attached, "--mount", &mounted];
    world.alice(&[&attach[..], &["--mkfs", "ext4"]].concat()).ok();

    let files = fill(&mounted, "file", 300);
    assert!((30..136).contains(&files), "{files} files of a MiB on a host of 136 MiB");
    eventually("the log tells", || server.log().contains("the store is full, and new data is refused"));
    assert!(server.log().contains("the store is nearly full"), "it warned before: {}", server.log());
    // Full, or nearly again: what is written again and compacted leaves a little room now and then.
    let told = status(&world);
    assert!(told.contains("VOLUME FREE") && told.contains("STORE FREE") && told.contains("HOST FREE"), "{told}");
    assert!(told.contains("run fstrim"), "{told}");
    // More of the same, as a program that does not give up would: 300 MiB in all.
    fill(&mounted, "more", 10);
    for at in 0..10 {
        let _ = fs::write(format!("{mounted}/large-{at}"), vec![at; 20 << 20]);
    }

    // Others have the rest of the host, and what attached the volume dies: another attachment has to be let in.
    host.fill();
    let listed = run(&["attach", "list"]).ok();
    let ours = listed.lines().find(|line| line.contains(&attached)).expect("it is attached");
    let process: i32 = ours.rsplit_once("process ").unwrap().1.trim_end_matches(')').parse().unwrap();
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    eventually("it is seen to be dead", || run(&["attach", "list"]).stdout.contains("has died"));

    // 1. Detached (which tells what was lost) and attached again. The journal is replayed.
    let _ = run(&["detach", &mounted]);
    eventually("it is detached", || !run(&["detach", "--list"]).stdout.contains(&url));
    world.alice(&[&["attach"], &attach[1..4], &["--take-over"]].concat()).ok();
    let file = format!("{attached}/vault");
    let checked = Command::new("e2fsck").args(["-f", "-y", &file]).output().unwrap();
    let code = checked.status.code().unwrap_or(99);
    assert!(code < 4, "e2fsck ends with {code}: {}", String::from_utf8_lossy(&checked.stdout));
    run(&["detach", &attached]).ok();
    world.alice(&attach).ok();
    let kept = fs::read(format!("{mounted}/file-0")).unwrap();
    assert!(kept == crate::stage::noise(7, 1 << 20), "what was synced is there");

    // 2. Files are deleted, and fstrim tells the store.
    for at in 1..files {
        fs::remove_file(format!("{mounted}/file-{at}")).unwrap();
    }
    for entry in fs::read_dir(&mounted).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(['l', 'm']) && entry.file_type().unwrap().is_file() {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    // What was deleted and is not committed yet is not trimmed.
    assert!(Command::new("sync").args(["-f", &mounted]).status().unwrap().success());
    let trimmed = Command::new("fstrim").args(["-v", &mounted]).output().unwrap();
    assert!(trimmed.status.success(), "{}", String::from_utf8_lossy(&trimmed.stderr));

    // 3. That shows without a write, and as much as before can be written again, however much at once.
    eventually("the store has room, and gives the host some", || {
        let told = status(&world);
        !told.contains("FULL") && !host_free(&told).starts_with("0 B")
    });
    for at in 0..3 {
        let file = format!("{mounted}/again-{at}");
        fs::write(&file, crate::stage::noise(9, 10 << 20)).and_then(|()| File::open(&file)?.sync_all()).unwrap();
    }
    let more = fill(&mounted, "more", 300);
    assert!(more + 30 > files * 3 / 4, "{more} files and 30 MiB now, {files} at first");
    let kept = fs::read(format!("{mounted}/again-2")).unwrap();
    assert!(kept == crate::stage::noise(9, 10 << 20));
    let _ = run(&["detach", &mounted]);
    server.stop();
}

/// What `status` says is free on the host.
fn host_free(told: &str) -> String {
    let head = told.lines().find(|line| line.contains("HOST FREE")).expect("there is a volume open");
    let row = told.lines().skip_while(|line| *line != head).nth(1).expect("and its row");
    let cell = head.find("HOST FREE").unwrap();
    // Numbers end where their heading does.
    let end = cell + "HOST FREE".len();
    let words: Vec<&str> = row[..end].split_whitespace().collect();
    words[words.len() - 2..].join(" ")
}

/// Nothing stays attached that `detach` could not find, and the lease goes at once; what is attached works on, and can be detached.
#[test]
fn a_full_run_time_directory_is_told_and_loses_nothing() {
    if !can_mount() {
        return;
    }
    let (world, _server) = World::sealed("vault", "64MiB");
    let small = SmallRun::new();
    let (attached, mounted, url) = (world.text("attached"), world.text("mounted"), world.url("vault"));
    let attach = |more: &[&str]| {
        let arguments = [&["attach", &url, "--to", &attached, "--mount", &mounted], more].concat();
        small.run(&world.alice_command(&arguments))
    };
    let detach = || small.run(&strongroom(&["detach", &attached]));
    let is_empty = |directory: &str| fs::read_dir(small.path(directory)).unwrap().next().is_none();
    // No room for its log; none for what `detach` finds it by, beside its log.
    for pages in [0, 1] {
        small.fill(pages);
        attach(&["--mkfs", "ext4"]).failed(&["cannot write", "No space left", SmallRun::AT]);
        small.empty();
        assert_eq!(small.run(&strongroom(&["attach", "list"])).ok(), "");
    }
    assert!(is_empty(&attached) && is_empty(&mounted));
    // The second attempt has made the file system.
    attach(&[]).ok();
    small.fill(0);
    fs::write(small.path(&format!("{mounted}/file")), b"kept").unwrap();
    detach().ok();
    small.empty();
    attach(&[]).ok();
    assert_eq!(fs::read(small.path(&format!("{mounted}/file"))).unwrap(), b"kept");
    detach().ok();
}

/// The same of an NBD server, which has no log of its own.
#[test]
fn an_nbd_server_tells_of_a_full_run_time_directory_and_loses_nothing() {
    if !can_mount() {
        return;
    }
    let (world, _target) = World::sealed("vault", "64MiB");
    let small = SmallRun::new();
    let (socket, log, url) = (world.text("vault.sock"), world.path("nbd.log"), world.url("vault"));
    let serve = world.alice_command(&["nbd", "serve", &url, "--socket", &socket]);
    let start = || {
        let mut command = small.command(&serve);
        Background(command.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap())
    };
    let list = || small.run(&strongroom(&["attach", "list"])).ok();
    // No room for what `detach` finds it by.
    small.fill(0);
    let status = start().wait();
    let said = fs::read_to_string(&log).unwrap();
    assert!(!status.success(), "{said}");
    for part in ["cannot write", "No space left", SmallRun::AT] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    assert!(!fs::exists(&socket).unwrap(), "its socket is gone");
    small.empty();
    assert_eq!(list(), "");
    // The volume is free at once.
    fs::write(world.path("image"), crate::stage::noise(5, 1 << 20)).unwrap();
    world.alice(&["copy", &world.text("image"), &url, "--allow-smaller", "--wait", "0", "--quiet"]).ok();
    // One that serves goes on, and can be detached.
    let mut server = start();
    eventually("it serves", || list().contains(&socket));
    small.fill(0);
    small.run(&strongroom(&["detach", &socket])).ok();
    assert!(server.wait().success(), "{}", fs::read_to_string(&log).unwrap());
    assert_eq!(list(), "");
}
