//! Proves that the end of an attachment tells the truth: what was lost is said, what a dead process left is removed, and `--force` ends.
//! Needs root and FUSE.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::stage::{CommandOutput, World, can_mount, eventually, has, listed_at, noise, process_at, run, unshare};
use rustix::process::{Pid, Signal, kill_process};

/// Who attaches here, as the target knows it.
const ALICE: &str = "iqn.2026-11.test:alice";
/// A forced detach ends within its own limit of 15 s; a busy machine gets some more.
const FORCED_MAX: Duration = Duration::from_secs(40);

/// Where a test attaches, and what it leaves if it fails.
struct Paths {
    directory: String,
    mounted: String,
}

impl Paths {
    fn of(world: &World) -> Paths {
        Paths { directory: world.text("attached"), mounted: world.text("mounted") }
    }

    fn file(&self) -> String {
        format!("{}/vault", self.directory)
    }

    /// The process that serves it, and its log.
    fn attach(&self, world: &World, more: &[&str]) -> (Pid, String) {
        let said =
            world.alice(&[&["attach", &world.url("vault"), "--to", &self.directory, "--lease", "2s"], more].concat());
        assert!(said.is_success(), "{}", said.stderr);
        let log = said.stderr.split_whitespace().last().expect("it names its log");
        (process_at(&self.directory).expect("it is attached"), log.to_owned())
    }

    fn listed(&self) -> String {
        listed_at(&self.directory)
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        [&self.directory, &self.mounted].iter().any(|path| mounts.contains(&format!(" {path} ")))
    }

    fn loop_devices(&self) -> usize {
        let devices = fs::read_dir("/sys/class/block").unwrap().flatten();
        let files = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
        files.filter(|file| file.starts_with(&self.directory)).count()
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        for path in [&self.mounted, &self.directory] {
            let _ = Command::new("umount").args(["-l", path]).stderr(std::process::Stdio::null()).status();
        }
        let _ = run(&["detach", "--force", &self.directory]);
    }
}

/// Of a detach that ended, and after which data is missing.
#[track_caller]
fn lost(said: CommandOutput, parts: &[&str]) {
    assert_eq!(said.status, Some(3), "{}{}", said.stdout, said.stderr);
    said.failed(parts);
}

fn write_until_it_fails(file: &File) {
    eventually("writes fail while the target is away", || file.write_all_at(&noise(2, 4096), 5 * 4096).is_err());
}

#[test]
fn a_detach_says_which_writes_failed() {
    if !can_mount() {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    let (_, log) = paths.attach(&world, &["--timeout", "1s"]);
    let file = File::options().read(true).write(true).open(paths.file()).unwrap();
    file.write_all_at(&noise(1, 4096), 4096).unwrap();
    file.sync_all().unwrap();
    assert!(!paths.listed().contains("data lost"), "{}", paths.listed());
    server.kill();
    write_until_it_fails(&file);
    eventually("it is listed", || {
        let listed = paths.listed();
        listed.contains("data lost") && listed.contains("not connected") && listed.contains("blocks 5")
    });
    let server = world.serve();
    // The program writes on, with success; what failed before is not forgotten by that.
    eventually("it works again", || file.write_all_at(&noise(3, 4096), 4096).is_ok());
    drop(file);
    lost(run(&["detach", &paths.directory]), &["is detached", "blocks 5", "failed", &log]);
    assert!(Path::new(&log).exists(), "the log stays");
    assert!(!paths.is_mounted());
    run(&["detach", &paths.directory]).failed(&["nothing is attached"]);
    fs::remove_file(log).unwrap();
    server.stop();
}

/// Nothing was to be written any more, so nothing failed: the target is asked before a detach says that all is well.
#[test]
fn a_detach_says_that_the_volume_was_formatted_elsewhere() {
    if !can_mount() {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    paths.attach(&world, &[]);
    let file = File::options().write(true).open(paths.file()).unwrap();
    file.write_all_at(&noise(1, 4096), 4096).unwrap();
    file.sync_all().unwrap();
    drop(file);
    world.alice(&["volume", "format", &world.url("vault"), "--yes", "--force", "--confirm", ALICE]).ok();
    lost(run(&["detach", &paths.directory]), &["is detached", "was taken over"]);
    assert!(!paths.is_mounted());
    server.stop();
}

#[test]
fn what_was_lost_is_listed_until_somebody_was_told() {
    if !can_mount() {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    paths.attach(&world, &["--timeout", "1s"]);
    let file = File::options().read(true).write(true).open(paths.file()).unwrap();
    server.kill();
    write_until_it_fails(&file);
    drop(file);
    let server = world.serve();
    eventually("it is connected again", || !paths.listed().contains("not connected"));
    assert!(Command::new("umount").arg(&paths.directory).status().unwrap().success());
    eventually("it has ended", || paths.listed().contains("to confirm what was lost"));
    assert!(paths.listed().contains("data lost: "), "{}", paths.listed());
    lost(run(&["detach", &paths.directory]), &["is detached", "blocks 5", "failed"]);
    assert_eq!(paths.listed(), "");
    server.stop();
}

#[test]
fn a_file_system_that_lost_writes_is_not_unmounted_without_a_word() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    paths.attach(&world, &["--timeout", "1s", "--mount", &paths.mounted, "--mkfs", "ext4"]);
    // It has its blocks: without the target no others can be found for it.
    let mut file = File::create(format!("{}/gone", paths.mounted)).unwrap();
    file.write_all(&noise(1, 1 << 20)).unwrap();
    file.sync_all().unwrap();
    server.kill();
    file.write_all_at(&noise(2, 1 << 20), 0).unwrap();
    file.sync_all().expect_err("it cannot be written back");
    drop(file);
    let server = world.serve();
    eventually("it is connected again", || !paths.listed().contains("not connected"));
    // From outside, where nobody is told anything.
    assert!(Command::new("umount").arg(&paths.mounted).status().unwrap().success());
    // That ends the mount and nothing else: the attachment goes on, and knows.
    assert!(Path::new(&paths.file()).exists());
    eventually("it is listed", || paths.listed().contains("data lost: ") && paths.listed().contains("failed"));
    lost(run(&["detach", &paths.directory]), &["is detached", "failed"]);
    assert_eq!(paths.listed(), "");
    server.stop();
}

/// A mount namespace in which the helper of umount(8) is installed.
struct HelperInstalled {
    keeper: Child,
}

impl HelperInstalled {
    fn new(world: &World) -> HelperInstalled {
        let script = format!(
            "cp -a /usr/sbin {0} && ln -s {1} {0}/umount.strongroom && mount --bind {0} /usr/sbin && echo ready && exec sleep 600",
            world.text("sbin"),
            env!("CARGO_BIN_EXE_strongroom"),
        );
        let mut keeper = unshare(&["sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        HelperInstalled { keeper }
    }

    /// Runs a command in it.
    fn run(&self, command: &Command) -> CommandOutput {
        let mut inside = Command::new("nsenter");
        inside.args(["--mount", "--target", &self.keeper.id().to_string()]);
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        CommandOutput::new(inside.output().unwrap())
    }
}

impl Drop for HelperInstalled {
    fn drop(&mut self) {
        self.keeper.kill().unwrap();
        self.keeper.wait().unwrap();
    }
}

/// Where the helper is installed, umount(8) does what a detach does.
#[test]
fn umount_says_what_was_lost_where_its_helper_is_installed() {
    if !can_mount() || !has("mkfs.ext4") || !has("nsenter") {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    let inside = HelperInstalled::new(&world);
    let umount = || inside.run(Command::new("umount").arg(&paths.mounted));
    let attach = |more: &[&str]| {
        let url = world.url("vault");
        let always =
            ["attach", &url, "--to", &paths.directory, "--lease", "2s", "--timeout", "1s", "--mount", &paths.mounted];
        inside.run(&world.alice_command(&[&always, more].concat())).ok();
    };
    attach(&["--mkfs", "ext4"]);
    umount().ok();
    assert_eq!(paths.listed(), "", "nothing was lost, and it is detached");

    attach(&[]);
    server.kill();
    let file = format!("of={}/gone", paths.mounted);
    inside
        .run(Command::new("dd").args(["if=/dev/zero", &file, "bs=64k", "count=16", "conv=fsync"]))
        .failed(&["fsync failed"]);
    let server = world.serve();
    eventually("it is connected again", || !paths.listed().contains("not connected"));
    lost(umount(), &["is detached", "failed"]);
    assert_eq!(paths.listed(), "");
    server.stop();
}

#[test]
fn an_unmounted_attachment_stays_until_it_is_detached() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    paths.attach(&world, &["--mount", &paths.mounted, "--mkfs", "ext4"]);
    fs::write(format!("{}/file", paths.mounted), b"kept").unwrap();
    assert!(Command::new("umount").arg(&paths.mounted).status().unwrap().success());
    assert!(paths.listed().contains(&world.url("vault")), "{}", paths.listed());
    assert!(Path::new(&paths.file()).exists());
    run(&["detach", &paths.mounted]).ok();
    assert!(!paths.is_mounted() && paths.listed().is_empty());
    paths.attach(&world, &["--mount", &paths.mounted]);
    assert_eq!(fs::read(format!("{}/file", paths.mounted)).unwrap(), b"kept");
    run(&["detach", &paths.directory]).ok();
    server.stop();
}

/// In a mount namespace with a /run of its own: other tests have attachments, too.
#[test]
fn all_are_detached_but_for_one_that_is_used() {
    if !can_mount() || !has("mkfs.ext4") || !has("unshare") {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let (url, paths, other) = (world.url("vault"), Paths::of(&world), world.text("other"));
    let attach = |to: &str, more: &[&str]| {
        let command = world.alice_command(&[&["attach", &url, "--to", to], more].concat());
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ")
    };
    let script = format!(
        "set -e\nmount -t tmpfs tmpfs /run\n{}\n{}\nexec 9>{mounted}/file\n\
         ! $STRONGROOM detach --all\n$STRONGROOM attach list\n\
         exec 9>&-\n$STRONGROOM detach --all\ntest -z \"$($STRONGROOM attach list)\"\n$STRONGROOM detach --all",
        attach(&paths.directory, &["--shared", "--mount", &paths.mounted, "--mkfs", "ext4"]),
        attach(&other, &["--read-only"]),
        mounted = paths.mounted,
    );
    let mut shell = unshare(&["sh", "-c", &script]);
    shell.env("STRONGROOM", env!("CARGO_BIN_EXE_strongroom"));
    shell.env("XDG_CONFIG_HOME", world.path("config"));
    let said = world.finish(shell);
    assert!(said.is_success() && said.stderr.contains("1 still attached"), "{}{}", said.stdout, said.stderr);
    let is_listed = |directory: &str| said.stdout.contains(&format!(" at {directory}"));
    assert!(is_listed(&paths.directory) && !is_listed(&other), "the other one is detached: {}", said.stdout);
    server.stop();
}

#[test]
fn what_a_killed_attachment_leaves_is_removed() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    let with_mount = ["--mount", &paths.mounted];
    let (pid, log) = paths.attach(&world, &[&with_mount[..], &["--mkfs", "ext4"]].concat());
    fs::write(format!("{}/file", paths.mounted), b"kept").unwrap();
    // Of this file system alone: those of other tests have data that is not to be written yet.
    rustix::fs::syncfs(File::open(&paths.mounted).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    eventually("it is seen to be dead", || paths.listed().contains("has died"));
    let url = world.url("vault");
    for more in [&[][..], &with_mount] {
        let again = [&["attach", &url, "--to", &paths.directory], more].concat();
        world.alice(&again).failed(&["has died", &format!("strongroom detach {}", paths.directory)]);
    }
    // Nor is anything mounted over what it had mounted.
    let other = world.text("other");
    let over = ["attach", &world.url("vault"), "--to", &other, "--mount", &paths.mounted];
    world.alice(&over).failed(&["has died", "strongroom detach"]);
    assert!(paths.is_mounted() && paths.loop_devices() == 1);
    let said = run(&["detach", &paths.mounted]);
    assert!(said.stderr.contains(&format!("unmounted {}", paths.mounted)), "{}", said.stderr);
    said.ok();
    assert!(!paths.is_mounted(), "{}", fs::read_to_string("/proc/mounts").unwrap());
    assert_eq!((paths.loop_devices(), paths.listed().as_str()), (0, ""));
    assert!(!Path::new(&log).exists(), "its log is gone");
    paths.attach(&world, &with_mount);
    assert_eq!(fs::read(format!("{}/file", paths.mounted)).unwrap(), b"kept");
    run(&["detach", &paths.directory]).ok();
    server.stop();
}

#[test]
fn what_is_left_is_found_without_a_note_of_it() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    let (pid, log) = paths.attach(&world, &["--mount", &paths.mounted, "--mkfs", "ext4"]);
    let note = Path::new(&log).with_file_name(format!("{}.json", pid.as_raw_nonzero()));
    // Something has its working directory there, so that it can only be detached lazily.
    let mut user = Command::new("sleep").arg("600").current_dir(&paths.mounted).spawn().unwrap();
    fs::remove_file(note).unwrap();
    run(&["detach", &paths.mounted]).failed(&["nothing is attached"]);
    kill_process(pid, Signal::KILL).unwrap();
    eventually("it can be removed", || run(&["detach", &paths.mounted]).is_success());
    assert!(!paths.is_mounted());
    user.kill().unwrap();
    user.wait().unwrap();
    eventually("the kernel frees the loop device", || paths.loop_devices() == 0);
    server.stop();
}

#[test]
fn force_ends_although_a_program_has_the_file_open() {
    if !can_mount() {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    paths.attach(&world, &[]);
    let file = File::options().write(true).open(paths.file()).unwrap();
    file.write_all_at(&noise(1, 4096), 0).unwrap();
    server.kill();
    let begun = Instant::now();
    run(&["detach", &paths.directory]).failed(&["still attached"]);
    // With what was acknowledged and not flushed something is lost; the second time there is nothing to end.
    let said = run(&["detach", "--force", &paths.directory]);
    assert!(matches!(said.status, Some(0 | 3)), "{}", said.stderr);
    assert!(begun.elapsed() < FORCED_MAX, "{:?}", begun.elapsed());
    assert!(!paths.is_mounted());
    file.write_all_at(&noise(1, 4096), 0).expect_err("nothing serves it any more");
    drop(file);
    assert_eq!(paths.listed(), "");
    run(&["detach", "--force", &paths.directory]).failed(&["nothing is attached"]);
}

#[test]
fn force_ends_although_a_program_uses_the_mounted_file_system() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    paths.attach(&world, &["--mount", &paths.mounted, "--mkfs", "ext4"]);
    let file = File::create(format!("{}/file", paths.mounted)).unwrap();
    file.write_all_at(&noise(1, 1 << 20), 0).unwrap();
    server.kill();
    let begun = Instant::now();
    run(&["detach", &paths.directory]).failed(&["still attached"]);
    let said = run(&["detach", "--force", &paths.mounted]);
    assert!(matches!(said.status, Some(0 | 3)), "{}", said.stderr);
    assert!(begun.elapsed() < FORCED_MAX, "{:?}", begun.elapsed());
    assert!(!paths.is_mounted());
    file.sync_all().expect_err("it is lost, and the program is told");
    drop(file);
    eventually("the kernel frees the loop device", || paths.loop_devices() == 0);
}

#[test]
fn a_file_system_is_made_where_there_is_nothing() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    let url = world.url("vault");
    let attach = ["attach", &url, "--to", &paths.directory, "--mount", &paths.mounted];
    let said = world.alice(&attach).failed(&["no ext4", "--mkfs ext4", "its log is"]);
    assert!(!said.contains("/dev/loop"), "that device is free again: {said}");
    let log = said.trim_end().rsplit(' ').next().unwrap().to_owned();
    assert!(Path::new(&log).exists(), "the log of what failed is kept");
    fs::remove_file(log).unwrap();
    world.alice(&[&attach[..], &["--mkfs", "nothing"]].concat()).failed(&["mkfs.nothing", "installed"]);
    paths.attach(&world, &["--mount", &paths.mounted, "--mkfs", "ext4"]);
    fs::write(format!("{}/file", paths.mounted), b"kept").unwrap();
    run(&["detach", &paths.mounted]).ok();
    world.alice(&[&attach[..], &["--mkfs", "ext4"]].concat()).failed(&["a file system (ext4)", "destroy"]);
    paths.attach(&world, &["--mount", &paths.mounted]);
    assert_eq!(fs::read(format!("{}/file", paths.mounted)).unwrap(), b"kept");
    run(&["detach", &paths.mounted]).ok();
    // Something else that is there is not destroyed either.
    paths.attach(&world, &[]);
    let file = File::options().write(true).open(paths.file()).unwrap();
    file.write_all_at(&[0; 2 << 20], 0).unwrap();
    file.write_all_at(b"LABELONE", 512).unwrap();
    drop(file);
    run(&["detach", &paths.directory]).ok();
    world.alice(&[&attach[..], &["--mkfs", "ext4"]].concat()).failed(&["there is something on"]);
    server.stop();
}

#[test]
fn nothing_is_mounted_over_something_else() {
    if !can_mount() {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let paths = Paths::of(&world);
    fs::create_dir(&paths.mounted).unwrap();
    assert!(Command::new("mount").args(["-t", "tmpfs", "none", &paths.mounted]).status().unwrap().success());
    let attach = ["attach", &world.url("vault"), "--to", &paths.directory, "--mount", &paths.mounted];
    world.alice(&attach).failed(&["tmpfs is mounted there"]);
    assert!(Command::new("umount").arg(&paths.mounted).status().unwrap().success());
    paths.attach(&world, &[]);
    world.alice(&attach).failed(&["attached at", "already", "strongroom detach"]);
    run(&["detach", &paths.directory]).ok();
    server.stop();
}
