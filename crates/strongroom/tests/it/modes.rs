//! Proves that no other user of the machine can reach what a command makes, under the usual umask: a whole life of volumes and keys, and
//! then the mode of every path that is there.

mod private_paths;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use crate::keyserver::KeySite;
use crate::stage::{Machine, World, can_mount, eventually, has, noise, on_target, run};

/// What this test itself writes: configurations, logs of processes, what is copied in.
const OWN: &[&str] = &["serve.log", "in", "kept"];
const SIZE: usize = 4 << 20;
/// The second superblock in a log (docs/store-format.md).
const SUPERBLOCK_1: u64 = 512 << 10;

fn is_own(path: &Path) -> bool {
    let name = path.file_name().expect("it has a name").to_string_lossy();
    let is_configuration = name != "volume.toml" && [".toml", ".toml.log"].iter().any(|ending| name.ends_with(ending));
    OWN.contains(&&*name) || is_configuration
}

/// Every path that was made is for its owner alone; says which there are.
fn assert_private(root: &Path) -> Vec<String> {
    private_paths::assert_private(root, is_own)
}

#[test]
fn nobody_else_can_reach_what_a_command_makes() {
    // The children inherit it. It is the default nearly everywhere.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let world = World::new();
    // The commands make it.
    fs::remove_dir(world.path("volumes")).unwrap();
    let root = world.text("volumes");
    let volume = |arguments: &[&str]| run(&[&["volume"], arguments, &["--root", &root]].concat());
    fs::write(world.path("in"), noise(1, SIZE)).unwrap();
    fs::write(world.path("kept"), "").unwrap();
    fs::set_permissions(world.path("kept"), fs::Permissions::from_mode(0o640)).unwrap();

    world.create(&["vault", "--size", "4MiB"]).ok();
    world.create(&["scratch", "--size", "4MiB", "--plain"]).ok();
    let medium = format!("file:{}", world.text("medium"));
    world.create(&["elsewhere", "--size", "4MiB", "--plain", "--medium", &medium]).ok();
    let wrapping = world.text("wrapping/wrap.key");
    run(&["key", "new", "--for", "wrapping", "--out", &wrapping]).ok();
    world.create(&["trusted", "--size", "4MiB", "--custody", "target", "--wrapping-key", &wrapping]).ok();

    let stats = world.text("stats.json");
    let server = world.serve_with(&["--stats-file", &stats, "--stats-every", "50ms"]);
    let (url, from, out, kept) = (world.url("vault"), world.text("in"), world.text("out"), world.text("kept"));
    let trusted = world.url("trusted");
    world.alice(&["volume", "format", &url, "--yes"]).ok();
    world.alice_without_key(&["volume", "format", &trusted, "--yes"]).ok();
    world.alice(&["copy", &from, &url, "--resume", &world.text("note")]).ok();
    world.alice_without_key(&["copy", &from, &trusted]).ok();
    // What a copy that was killed left, as a version before made it.
    fs::write(world.path("out.partial"), "left").unwrap();
    world.alice(&["copy", &url, &out]).ok();
    world.alice(&["copy", &url, &kept, "--overwrite"]).ok();
    assert_eq!(fs::metadata(&kept).unwrap().mode() & 0o777, 0o640, "a file that was there keeps its mode");
    assert!(fs::read(&kept).unwrap() == noise(1, SIZE));
    if can_mount() {
        let attached = world.text("attached");
        let counters = world.text("attached.json");
        world.alice(&["attach", &url, "--to", &attached, "--stats-file", &counters]).ok();
        eventually("the counters are written", || world.path("attached.json").exists());
        run(&["detach", &attached]).ok();
    }
    volume(&["snapshot", "create", "vault@monday"]).ok();
    volume(&["clone", "vault@monday", "twin"]).ok();
    let stream = world.text("stream");
    volume(&["send", "vault@monday", "--out", &stream]).ok();
    let there = world.text("there");
    run(&["volume", "receive", "vault", "--in", &stream, "--root", &there]).ok();
    eventually("the target's counters are written", || world.path("stats.json").exists());
    assert!(assert_private(world.path(".").as_path()).iter().any(|path| path == "volumes/.admin.sock"));
    server.stop();
    let config = world.text("strongroom.toml");
    run(&["volume", "reseal", "trusted", "--to", "keyfile", "--peer", "alice", "--config", &config]).ok();
    let [moved, state] = ["moved.key", "state"].map(|name| world.text(name));
    run(&["key", "new", "--for", "volume", "--out", &moved]).ok();
    let server = world.serve();
    let to = format!("keyfile={moved}");
    world.alice_without_key(&["volume", "reseal", &trusted, "--to", &to, "--state", &state, "--quiet"]).ok();
    server.stop();
    // A repair saves what it replaces.
    let log = fs::File::options().write(true).open(world.path("volumes/scratch/store/log")).unwrap();
    log.write_all_at(&[0x5a; 4096], SUPERBLOCK_1).unwrap();
    run(&["store", "repair", &format!("{root}/scratch/store"), "--apply"]).ok();
    run(&["plan", "--rtt", "128ms", "--rate", "1Gbit", "--plot", &world.text("plan.svg")]).ok();
    let made = assert_private(world.path(".").as_path());
    for part in ["out", "medium", "stream", "there/vault/store/log", "plan.svg", ".saved"] {
        assert!(made.iter().any(|path| path.ends_with(part)), "{part} is not among {made:?}");
    }
    // What a version before made, or a person, is named when the target starts, and how to end it.
    fs::set_permissions(world.path("volumes/vault/store/log"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(world.path("medium"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(!server_log(&world).contains("chmod"), "{}", server_log(&world));
    world.serve().stop();
    for cure in [format!("chmod -R go= {root}"), format!("chmod go= {}", world.text("medium"))] {
        assert!(server_log(&world).contains(&cure), "'{cure}' is missing in {}", server_log(&world));
    }
}

/// While it plays, with all that it starts and attaches, and what it leaves: nothing. And all that it claims holds, over each transport: among it,
/// that neither plaintext nor the key are in the target's memory.
#[test]
fn nobody_else_can_reach_what_the_demo_makes() {
    the_demo_is_private("strongroom");
}

#[test]
fn nobody_else_can_reach_what_the_demo_over_ecl_makes() {
    the_demo_is_private("ecl");
}

fn the_demo_is_private(transport: &str) {
    if !can_mount() || ["mkfs.ext4", "losetup"].iter().any(|program| !has(program)) {
        return;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let work = place.path().to_str().unwrap().to_owned();
    let demo = std::thread::spawn({
        let (work, transport) = (work.clone(), transport.to_owned());
        move || {
            let sizes = ["--files", "4MiB", "--measure", "4MiB"];
            run(&[&["demo", "--work-dir", &work, "--transport", &transport][..], &sizes].concat())
        }
    });
    let mut seen = std::collections::BTreeSet::new();
    while !demo.is_finished() {
        seen.extend(assert_private(Path::new(&work)));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let said = demo.join().unwrap();
    said.ok();
    for part in [".identity", ".key", ".log", "store/log", "keys.redb"] {
        assert!(seen.iter().any(|path| path.ends_with(part)), "{part} is not among {seen:#?}");
    }
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0, "it leaves nothing");
}

fn server_log(world: &World) -> String {
    fs::read_to_string(world.path("serve.log")).unwrap()
}

#[test]
fn nobody_else_can_reach_what_pairing_and_an_nbd_server_make() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let world = World::new();
    fs::remove_dir(world.path("volumes")).unwrap();
    run(&["serve", "--init", "--check", "--config", &world.text("first/strongroom.toml")]).ok();
    world.create(&["vault", "--size", "16MiB"]).ok();
    let server = world.serve();
    let (bob, carol) = (Machine { world: &world, home: "bob" }, Machine { world: &world, home: "carol" });
    for (machine, name) in [(&bob, "bob"), (&carol, "carol")] {
        let token = on_target(&world, &["invite", name, "--volume", "vault"]).ok();
        machine.run_with(&["join"], &token).ok();
    }
    on_target(&world, &["peer", "deny", "carol", "--volume", "vault"]).ok();
    let (url, key) = (world.url("vault"), world.text("bob.key"));
    bob.run(&["volume", "format", &url, "--new-key", &key, "--yes"]).ok();
    let shared = bob.run(&["key", "share", &key, "--to", &carol.public_key()]).ok();
    let receive = ["key", "receive", "--out", &world.text("received/vault.key"), "--from", &bob.public_key()];
    carol.run_with(&receive, &shared).ok();
    let socket = world.text("vault.sock");
    let mut serving = bob.command(&["nbd", "serve", &url, "--key-file", &key, "--socket", &socket]);
    let mut serving = serving.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the NBD server listens", || Path::new(&socket).exists());
    let made = assert_private(world.path(".").as_path());
    serving.kill().unwrap();
    serving.wait().unwrap();
    server.stop();
    for part in [
        "first/identity",
        "bob/strongroom/identity",
        "bob/strongroom/known_targets",
        "received/vault.key",
        "vault.sock",
    ] {
        assert!(made.iter().any(|path| path == part), "{part} is not among {made:?}");
    }
    assert!(made.iter().any(|path| path.ends_with(".peers.toml")), "{made:?}");
}

#[test]
fn nobody_else_can_reach_what_a_key_server_makes() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let site = KeySite::new();
    site.configure_pair();
    let primary = site.start();
    let standby = site.start_from("standby.toml");
    eventually("the standby follows", || site.key("admin", &["create", "vault"]).is_success());
    let (exported, backup) = (site.text("out/exported.key"), site.text("backup"));
    site.key("admin", &["export", "vault", "--out", &exported]).ok();
    site.key("admin", &["backup", &backup]).ok();
    for metrics in ["keys.prom", "standby-keys.prom"] {
        eventually("the metrics are written", || site.path(metrics).exists());
    }
    assert_private(site.path(".").as_path());
    // For monitoring by another user.
    let inode = || fs::metadata(site.path("keys.prom")).unwrap().ino();
    fs::set_permissions(site.path("keys.prom"), fs::Permissions::from_mode(0o644)).unwrap();
    let before = inode();
    eventually("the metrics are written again", || inode() != before);
    let mode = fs::metadata(site.path("keys.prom")).unwrap().mode() & 0o777;
    primary.stop();
    standby.stop();
    assert_eq!(mode, 0o644, "a mode that somebody gave stays");
    fs::set_permissions(site.path("keys.prom"), fs::Permissions::from_mode(0o600)).unwrap();
    let config = site.text("keyserver.toml");
    let new = site.text("new-master.key");
    run(&["key", "new", "--for", "master", "--out", &new]).ok();
    run(&["keyserver", "--config", &config, "--new-master-key", &new]).ok();
    fs::rename(site.path("keys"), site.path("old")).unwrap();
    run(&["keyserver", "--config", &config, "--restore", &backup]).ok();
    let made = assert_private(site.path(".").as_path());
    for part in ["keys/keys.redb", "old/keys.shred", "standby-keys/keys.redb", "backup", "out/exported.key"] {
        assert!(made.iter().any(|path| path == part), "{part} is not among {made:?}");
    }
}
