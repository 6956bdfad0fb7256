//! Proves, by the commands that a user would type, that one volume has one writer unless all of them say otherwise; that who is taken over from
//! loses nothing silently; and that a volume in use, or formatted with another key, is neither formatted nor erased by a mistake. Needs root and
//! FUSE.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::stage::{
    CommandOutput, Transport, World, can_mount, eventually, has, noise, on_a_terminal, over_both, process_at, run,
};

const ALICE: &str = "iqn.2026-11.test:alice";

/// A volume with a file system, and what attaches it.
struct Vault {
    world: World,
}

impl Vault {
    fn url(&self) -> String {
        self.world.url("vault")
    }

    fn attach(&self, name: &str, more: &[&str]) -> CommandOutput {
        let (to, url) = (self.world.text(&format!("{name}.file")), self.url());
        self.world.alice(&[&["attach", &url, "--to", &to][..], more].concat())
    }

    fn mounted(&self, name: &str) -> String {
        self.world.text(&format!("{name}.mounted"))
    }

    fn mount(&self, name: &str, more: &[&str]) -> CommandOutput {
        let mounted = self.mounted(name);
        self.attach(name, &[&["--mount", &mounted][..], more].concat())
    }

    fn file(&self, name: &str) -> String {
        self.world.text(&format!("{name}.file/vault"))
    }

    fn detach(&self, name: &str) -> CommandOutput {
        run(&["detach", &self.world.text(&format!("{name}.file"))])
    }
}

impl Drop for Vault {
    fn drop(&mut self) {
        for name in ["first", "second"] {
            for directory in [self.mounted(name), self.world.text(&format!("{name}.file"))] {
                let _ = Command::new("umount").args(["-l", &directory]).stderr(std::process::Stdio::null()).status();
            }
            let _ = run(&["detach", "--force", &self.world.text(&format!("{name}.file"))]);
        }
    }
}

fn vault() -> (Vault, crate::stage::Server) {
    let (world, server) = World::sealed("vault", "64MiB");
    (Vault { world }, server)
}

over_both!(two_file_systems_never_write_to_one_volume_by_mistake);

fn two_file_systems_never_write_to_one_volume_by_mistake(transport: Transport) {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (world, server) = World::sealed_over(transport, "vault", "64MiB");
    let vault = Vault { world };
    vault.mount("first", &["--mkfs", "ext4"]).ok();
    let contents = noise(1, 1 << 20);
    fs::write(format!("{}/file", vault.mounted("first")), &contents).unwrap();
    let mounted = vault.mounted("first");
    let told = vault.mount("second", &[]).failed(&[ALICE, "pid ", &mounted, "connected", "--shared", "--take-over"]);
    assert!(told.contains("attached for writing by"), "{told}");
    // Readers are admitted. A second writer is, too, but only with `--shared`, which the first one must have said as well.
    vault.attach("second", &["--read-only"]).ok();
    vault.detach("second").ok();
    vault.attach("second", &["--shared"]).failed(&[ALICE]);
    let copied = vault.world.text("image");
    fs::write(&copied, noise(2, 4096)).unwrap();
    vault.world.alice(&["copy", &copied, &vault.url(), "--allow-smaller"]).failed(&[ALICE, &mounted]);
    assert!(fs::read(format!("{}/file", vault.mounted("first"))).unwrap() == contents);
    vault.detach("first").ok();
    vault.attach("first", &["--shared"]).ok();
    vault.attach("second", &["--shared"]).ok();
    for (name, at) in [("first", 5), ("second", 6)] {
        let file = File::options().write(true).open(vault.file(name)).unwrap();
        file.write_all_at(&noise(at, 4096), at * 4096).unwrap();
        file.sync_all().unwrap();
    }
    vault.detach("first").ok();
    vault.detach("second").ok();
    server.stop();
}

#[test]
fn a_take_over_ends_the_writing_of_the_first_and_its_detach_says_so() {
    if !can_mount() {
        return;
    }
    let (vault, server) = vault();
    vault.attach("first", &[]).ok();
    let first = File::options().read(true).write(true).open(vault.file("first")).unwrap();
    first.write_all_at(&noise(1, 4096), 0).unwrap();
    first.sync_all().unwrap();
    vault.attach("second", &[]).failed(&["--take-over"]);
    vault.attach("second", &["--take-over"]).ok();
    let second = File::options().read(true).write(true).open(vault.file("second")).unwrap();
    second.write_all_at(&noise(2, 4096), 4096).unwrap();
    second.sync_all().unwrap();
    let failed = first.write_all_at(&noise(3, 4096), 4096).and_then(|()| first.sync_all());
    failed.expect_err("it is not the writer any more");
    drop((first, second));
    vault.detach("first").failed(&["was taken over", ALICE]);
    vault.detach("second").ok();
    vault.attach("second", &["--read-only"]).ok();
    let mut found = vec![0; 8192];
    File::open(vault.file("second")).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert!(found == [noise(1, 4096), noise(2, 4096)].concat());
    vault.detach("second").ok();
    server.stop();
}

#[test]
fn a_take_over_ends_the_caches_of_a_mounted_file_system() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (vault, server) = vault();
    vault.mount("first", &["--mkfs", "ext4"]).ok();
    let path = format!("{}/file", vault.mounted("first"));
    fs::write(&path, noise(1, 100_000)).unwrap();
    let first = File::options().read(true).write(true).open(&path).unwrap();
    first.sync_all().unwrap();
    let mut found = vec![0; 100_000];
    first.read_exact_at(&mut found, 0).unwrap();
    // Dirty in the kernel's cache, which writes it back when it likes.
    first.write_all_at(&noise(2, 4096), 0).unwrap();
    vault.attach("second", &["--take-over"]).ok();
    // If the kernel takes this, it is too late for it.
    let _ = first.write_all_at(&noise(3, 4096), 4096);
    eventually("what is cached is not given out any more", || {
        first.read_exact_at(&mut found[..4096], 8192).is_err_and(|error| error.raw_os_error() == Some(libc::EIO))
    });
    first.sync_all().expect_err("what is dirty can never be written");
    drop(first);
    vault.detach("first").failed(&["was taken over", ALICE]);
    vault.detach("second").ok();
    vault.mount("second", &[]).ok();
    let found = fs::read(format!("{}/file", vault.mounted("second"))).unwrap();
    let flushed = noise(1, 100_000);
    assert!(found[4096..] == flushed[4096..], "what was flushed is there, and nothing that came later");
    assert!([&flushed[..4096], &noise(2, 4096)].contains(&&found[..4096]), "one write or the other");
    vault.detach("second").ok();
    server.stop();
}

#[test]
fn a_take_over_ends_the_caches_of_a_block_device() {
    if !can_mount() {
        return;
    }
    let (vault, server) = vault();
    let name = format!("taken-over-{}", std::process::id());
    vault.attach("first", &["--block-device", "--name", &name]).ok();
    let first = File::open(format!("/dev/strongroom/{name}")).unwrap();
    let read = || {
        let mut found = vec![0; 4096];
        first.read_exact_at(&mut found, 0).map(|()| found)
    };
    assert!(read().unwrap().iter().all(|byte| *byte == 0));
    vault.attach("second", &["--take-over"]).ok();
    let second = File::options().write(true).open(vault.file("second")).unwrap();
    second.write_all_at(&noise(2, 4096), 0).unwrap();
    second.sync_all().unwrap();
    drop(second);
    eventually("what it reads is what lies there", || read().is_ok_and(|found| found == noise(2, 4096)));
    drop(first);
    vault.detach("first").failed(&["was taken over", ALICE]);
    vault.detach("second").ok();
    server.stop();
}

#[test]
fn a_killed_writer_keeps_the_volume_for_its_lease_and_no_longer() {
    if !can_mount() {
        return;
    }
    let (vault, server) = vault();
    vault.attach("first", &["--lease", "6s"]).ok();
    let process = process_at(&vault.world.text("first.file")).expect("it is attached");
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    eventually("the target sees it", || {
        vault.attach("second", &["--wait", "0s"]).failed(&[ALICE]).contains("its lease ends in")
    });
    // The target may be restarted meanwhile.
    server.stop();
    let server = vault.world.serve();
    let begun = Instant::now();
    let said = vault.attach("second", &[]);
    // CommandOutput at once, and once.
    let waits: Vec<&str> = said.stderr.lines().filter(|line| line.contains("waiting for it up to")).collect();
    assert_eq!(waits.len(), 1, "{}", said.stderr);
    for part in [ALICE, "not connected for", "its lease ends in", "--take-over"] {
        assert!(waits[0].contains(part), "'{part}' is missing in {}", waits[0]);
    }
    said.ok();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    vault.detach("second").ok();
    server.stop();
}

#[test]
fn a_volume_in_use_is_not_formatted() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let (vault, server) = vault();
    let world = &vault.world;
    run(&["key", "new", "--out", &world.text("wrong.key")]).ok();
    let wrong_before = fs::read_to_string(world.path("wrong.key")).unwrap();
    vault.mount("first", &["--mkfs", "ext4"]).ok();
    let contents = noise(7, 2 << 20);
    let file = format!("{}/file", vault.mounted("first"));
    fs::write(&file, &contents).unwrap();
    let url = vault.url();
    let format = |key: &str, more: &[&str]| {
        let arguments = [&["volume", "format", &url, "--yes"][..], more].concat();
        world.finish(world.initiator("alice.identity", ALICE, key, &arguments))
    };
    for key in ["wrong.key", "volume.key"] {
        for more in [&[][..], &["--reformat"]] {
            format(key, more).failed(&["in use by", ALICE, &vault.mounted("first"), "Detach it there"]);
        }
    }
    format("wrong.key", &["--force"]).failed(&["--confirm", ALICE]);
    format("wrong.key", &["--force", "--confirm", "iqn.of.somebody"]).failed(&["--confirm", ALICE]);
    assert_eq!(fs::read_to_string(world.path("wrong.key")).unwrap(), wrong_before, "nothing was recorded in it");
    // A reader is in the way as well.
    vault.attach("second", &["--read-only"]).ok();
    // This file system alone: those of other tests have data that is not to be written yet.
    Command::new("sync").args(["-f", &vault.mounted("first")]).status().unwrap();
    fs::write("/proc/sys/vm/drop_caches", "3").ok();
    assert!(fs::read(&file).unwrap() == contents, "the files are as they were");
    vault.detach("first").ok();
    format("volume.key", &["--reformat"]).failed(&["in use by", "reading"]);
    vault.detach("second").ok();
    // Nobody is there: it takes the key that opens it, and the word that this is meant.
    format("wrong.key", &[]).failed(&["this key does not open it"]);
    format("wrong.key", &["--reformat"]).failed(&["this key does not open it", "--force"]);
    format("volume.key", &[]).failed(&["formatted already", "--reformat"]);
    vault.mount("first", &[]).ok();
    assert!(fs::read(&file).unwrap() == contents, "still");
    // What is really meant can be done, against all that is there.
    format("volume.key", &["--force", "--confirm", ALICE]).ok();
    let _ = fs::write(format!("{file}2"), &contents);
    vault.detach("first").failed(&["was taken over"]);
    format("volume.key", &["--reformat"]).ok();
    server.stop();
}

#[test]
fn a_forced_format_asks_on_the_terminal_who_loses_by_it() {
    if !can_mount() || !has("script") {
        return;
    }
    let (vault, server) = vault();
    let (world, url) = (&vault.world, vault.url());
    let write = |seed: u64| {
        let file = File::options().write(true).open(vault.file("first")).unwrap();
        file.write_all_at(&noise(seed, 4096), 0).unwrap();
        file.sync_all().unwrap();
    };
    let first_block = || {
        vault.attach("second", &["--read-only"]).ok();
        let mut found = vec![0; 4096];
        File::open(vault.file("second")).unwrap().read_exact_at(&mut found, 0).unwrap();
        vault.detach("second").ok();
        found
    };
    let format = |typed: &str| {
        on_a_terminal(&world.alice_command(&["volume", "format", &url, "--yes", "--force"]), &format!("{typed}\n"))
    };
    vault.attach("first", &[]).ok();
    write(1);
    vault.detach("first").ok();
    for wrong in ["volt", "", "vault vault2", "yes"] {
        let said = format(wrong);
        assert_eq!(said.status, Some(1), "'{wrong}': {}", said.stdout);
        assert!(
            said.stdout.contains("type its name: ") && said.stdout.contains("nothing was changed"),
            "{}",
            said.stdout
        );
        assert!(first_block() == noise(1, 4096), "'{wrong}' formatted it");
    }
    let said = format("vault");
    assert!(said.is_success() && said.stdout.contains("formatted strongroom://"), "{}", said.stdout);
    assert!(first_block().iter().all(|byte| *byte == 0), "it is formatted");
    // With somebody there it is that name, and not the volume's.
    vault.attach("first", &[]).ok();
    write(2);
    let said = format("vault");
    assert!(!said.is_success() && said.stdout.contains("is used by") && said.stdout.contains(ALICE), "{}", said.stdout);
    assert!(first_block() == noise(2, 4096));
    let said = format(ALICE);
    assert!(said.is_success(), "{}", said.stdout);
    assert!(first_block().iter().all(|byte| *byte == 0), "it is formatted");
    // It has to try to write before it knows.
    let first = File::options().write(true).open(vault.file("first")).unwrap();
    first.write_all_at(&noise(3, 4096), 0).and_then(|()| first.sync_all()).expect_err("it is not the writer any more");
    drop(first);
    vault.detach("first").failed(&["was taken over"]);
    server.stop();
}
