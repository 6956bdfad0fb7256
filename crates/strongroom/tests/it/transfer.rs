//! Proves that a sealed volume is carried from one target's store to another's by files, in full, as a difference and in two parts,
//! and opens there with the same key; and that what cannot be says what to do.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::stage::{World, noise, run, strongroom};

/// Gives some blocks of the volume new contents.
fn change(contents: &mut [u8], seed: u64) {
    for block in (0..contents.len() / 4096).step_by(3) {
        contents[block * 4096..][..4096].copy_from_slice(&noise(seed + block as u64, 4096));
    }
}

#[test]
fn a_sealed_volume_is_sent_and_opens_elsewhere_with_its_key() {
    let (world, server) = World::sealed("vault", "4MiB");
    let (here, there) = (world.text("volumes"), world.text("elsewhere"));
    let at = |root: &str, arguments: &[&str]| run(&[&["volume"], arguments, &["--root", root]].concat());
    let put = |contents: &[u8]| {
        fs::write(world.path("contents"), contents).unwrap();
        world.alice(&["copy", &world.text("contents"), &world.url("vault"), "--overwrite"]).ok();
    };
    let holds = |export: &str, expected: &[u8]| {
        let _ = fs::remove_file(world.path("out"));
        world.alice(&["copy", &world.url(export), &world.text("out")]).ok();
        assert!(fs::read(world.path("out")).unwrap() == expected, "{export}");
    };
    let monday = noise(1, 4 << 20);
    put(&monday);
    at(&here, &["snapshot", "create", "vault@monday"]).ok();
    let mut tuesday = monday.clone();
    change(&mut tuesday, 100);
    put(&tuesday);
    at(&here, &["snapshot", "create", "vault@tuesday"]).ok();
    let mut wednesday = tuesday.clone();
    change(&mut wednesday, 9000);
    put(&wednesday);
    at(&here, &["snapshot", "create", "vault@wednesday"]).ok();

    let [full, difference, whole, rest] = ["full", "difference", "whole", "rest"].map(|name| world.text(name));
    // Out of the target that serves it, or from its directory: it is the same.
    at(&here, &["send", "vault@monday", "--out", &full]).ok();
    fs::remove_file(&full).unwrap();
    server.stop();

    // What cannot be sent.
    at(&here, &["send", "vault@sunday", "--out", &full]).failed(&["no snapshot 'sunday'", "snapshot list"]);
    at(&here, &["send", "vault@monday", "--from", "tuesday", "--out", &full]).failed(&["not in the past"]);
    assert!(!world.path("full").exists(), "nothing is left of what failed");
    at(&here, &["send", "vault@monday", "--out", &full]).ok();
    at(&here, &["send", "vault@monday", "--out", &full]).failed(&["exists"]);
    at(&here, &["send", "vault@tuesday", "--from", "monday", "--out", &difference]).ok();
    assert!(fs::metadata(&difference).unwrap().len() < fs::metadata(&full).unwrap().len());

    // In full, to a new volume; then the difference.
    at(&there, &["receive", "vault", "--in", &difference]).failed(&["no volume 'vault'", "in full"]);
    at(&there, &["receive", "vault", "--in", &world.text("contents")]).failed(&["damaged"]);
    at(&there, &["show", "vault"]).failed(&["no volume"]);
    let said = at(&there, &["receive", "vault", "--in", &full]).ok();
    assert!(said.contains("received vault@monday") && said.contains("nobody may use it yet"), "{said}");
    at(&there, &["receive", "vault", "--in", &full]).failed(&["here already"]);
    let mut damaged = fs::read(&difference).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(world.path("damaged"), damaged).unwrap();
    at(&there, &["receive", "vault", "--in", &world.text("damaged")]).failed(&["damaged", "--resume-from"]);
    at(&there, &["receive", "vault", "--abandon"]).ok();
    at(&there, &["receive", "vault", "--abandon"]).failed(&["no transfer"]);
    at(&there, &["receive", "vault", "--position"]).failed(&["no transfer"]);
    at(&there, &["receive", "vault", "--in", &difference]).ok();

    // The third is cut off in the middle, and goes on.
    at(&here, &["send", "vault@wednesday", "--from", "tuesday", "--out", &whole]).ok();
    let cut = fs::read(&whole).unwrap();
    fs::write(world.path("cut"), &cut[..cut.len() * 2 / 3]).unwrap();
    at(&there, &["receive", "vault", "--in", &world.text("cut")]).failed(&["before its end", "--resume-from"]);
    assert!(!at(&there, &["snapshot", "list", "vault"]).ok().contains("wednesday"));
    let token = at(&there, &["receive", "vault", "--position"]).ok();
    let resume = ["--resume-from", token.trim()];
    at(&here, &[&["send", "vault@tuesday", "--out", &rest], &resume[..]].concat()).failed(&["another snapshot"]);
    at(&here, &[&["send", "vault@wednesday", "--out", &rest], &resume[..]].concat()).ok();
    assert!(fs::metadata(&rest).unwrap().len() < cut.len() as u64 / 2, "what arrived is not sent again");
    at(&there, &["receive", "vault", "--in", &rest]).ok();

    // With the key, it is the same volume, with the same snapshots. The configuration lets alice use it.
    let identity = |root: &str| {
        let shown = at(root, &["show", "vault"]).ok();
        shown.lines().filter(|line| line.starts_with("volume id") || line.contains("domain")).collect::<String>()
    };
    assert_eq!(identity(&here), identity(&there));
    fs::rename(world.path("volumes"), world.path("original")).unwrap();
    fs::rename(world.path("elsewhere"), world.path("volumes")).unwrap();
    let server = world.serve();
    holds("vault", &wednesday);
    holds("vault@monday", &monday);
    holds("vault@tuesday", &tuesday);
    put(&monday);
    server.stop();

    // It was written to: a difference is refused until that is given up.
    let origin = world.text("original");
    at(&origin, &["snapshot", "create", "vault@thursday"]).ok();
    let thursday = world.text("thursday");
    at(&origin, &["send", "vault@thursday", "--from", "wednesday", "--out", &thursday]).ok();
    at(&here, &["receive", "vault", "--in", &thursday]).failed(&["rollback vault@wednesday --yes"]);
    at(&here, &["snapshot", "rollback", "vault@wednesday", "--yes"]).ok();
    at(&here, &["receive", "vault", "--in", &thursday]).ok();
    let server = world.serve();
    holds("vault@thursday", &wednesday);
    server.stop();
}

#[test]
fn a_stream_goes_through_a_pipe_and_fits_no_other_volume() {
    let world = World::new();
    world.create(&["scratch", "--size", "1MiB", "--plain"]).ok();
    world.create(&["other", "--size", "2MiB", "--plain"]).ok();
    let root = world.text("volumes");
    let volume = |arguments: &[&str]| run(&[&["volume"], arguments, &["--root", &root]].concat());
    volume(&["snapshot", "create", "scratch@now"]).ok();
    let send = crate::stage::strongroom(&["volume", "send", "scratch@now", "--root", &root]).output().unwrap();
    assert!(send.status.success() && !send.stdout.is_empty());
    fs::write(world.path("stream"), &send.stdout).unwrap();
    let mut receive = crate::stage::strongroom(&["volume", "receive", "twin", "--initiator", "*", "--root", &root]);
    let received = receive.stdin(fs::File::open(world.path("stream")).unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&received.stdout).into_owned();
    assert!(received.status.success() && said.contains("has its own"), "{said}");
    assert!(volume(&["show", "twin"]).ok().contains("now"));
    volume(&["receive", "other", "--in", &world.text("stream")]).failed(&["another volume"]);
    volume(&["resize", "scratch", "--size", "2MiB"]).ok();
    volume(&["snapshot", "create", "scratch@later"]).ok();
    let later = world.text("later");
    volume(&["send", "scratch@later", "--from", "now", "--out", &later]).ok();
    volume(&["receive", "twin", "--in", &later]).failed(&["volume resize twin --size 2097152"]);
    volume(&["resize", "twin", "--size", "2MiB"]).ok();
    volume(&["receive", "twin", "--in", &later]).ok();
}

/// The store does not know in what mode and key epoch a volume is sealed; the stream says it, or what was received would not open.
#[test]
fn a_volume_made_for_a_stream_is_sealed_as_the_one_that_was_sent() {
    let world = World::new();
    world.create(&["vault", "--size", "1MiB", "--authenticate-only"]).ok();
    let description = world.path("volumes/vault/volume.toml");
    let rekeyed = fs::read_to_string(&description).unwrap().replace("epoch = 1\n", "epoch = 7\n");
    fs::write(&description, rekeyed).unwrap();
    let (here, there, stream) = (world.text("volumes"), world.text("elsewhere"), world.text("stream"));
    let at = |root: &str, arguments: &[&str]| run(&[&["volume"], arguments, &["--root", root]].concat());
    at(&here, &["snapshot", "create", "vault@now"]).ok();
    at(&here, &["send", "vault@now", "--out", &stream]).ok();
    at(&there, &["receive", "vault", "--in", &stream]).ok();
    let shown = at(&there, &["show", "vault"]).ok();
    assert!(shown.contains("AuthenticateOnly") && shown.contains("key epoch        7"), "{shown}");

    world.create(&["secret", "--size", "1MiB"]).ok();
    at(&here, &["snapshot", "create", "secret@now"]).ok();
    let stream = world.text("secret-stream");
    at(&here, &["send", "secret@now", "--out", &stream]).ok();
    at(&there, &["receive", "secret", "--in", &stream, "--authenticate-only"])
        .failed(&["leave --authenticate-only out"]);
    at(&there, &["receive", "secret", "--in", &stream]).ok();
}

/// As a nightly job does it: a target serves the volume, keeps it open for long after its last session, and somebody reads.
#[test]
fn a_served_volume_takes_in_a_stream_while_it_is_read() {
    let world = World::new();
    let origin = world.text("origin");
    let there = |arguments: &[&str]| run(&[&["volume"], arguments, &["--root", &origin]].concat());
    let receive = |file: &str, more: &[&str]| {
        let (file, config) = (world.text(file), world.text("strongroom.toml"));
        let arguments = ["volume", "receive", "scratch", "--in", &file, "--config", &config];
        strongroom(&[&arguments[..], more].concat()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let said = |child: Child| {
        let output = child.wait_with_output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    there(&["create", "scratch", "--size", "1MiB", "--plain"]).ok();
    let mut from = None;
    for day in ["monday", "tuesday", "wednesday"] {
        there(&["snapshot", "create", &format!("scratch@{day}")]).ok();
        let (snapshot, out) = (format!("scratch@{day}"), world.text(day));
        let base = from.map(|from| vec!["--from", from]).unwrap_or_default();
        there(&[&["send", &snapshot, "--out", &out], &base[..]].concat()).ok();
        from = Some(day);
    }
    let server = world.serve_with(&["--idle-close", "10m"]);
    assert!(said(receive("monday", &[])).0);
    world.alice(&["copy", &world.plain_url("scratch"), &world.text("out")]).ok();
    let of_snapshot = format!("iscsi://127.0.0.1:{}/iqn.2026-11.org.strongroom:scratch:monday/0", world.port());
    world.alice(&["copy", &of_snapshot, &world.text("out-of-monday")]).ok();
    // Nobody uses it any more, nor the snapshot: it need not be waited for.
    let started = Instant::now();
    let (success, stderr) = said(receive("tuesday", &["--wait", "0"]));
    assert!(success && started.elapsed() < Duration::from_secs(60), "{stderr}");
    assert_eq!(server.log().matches("closed volume=scratch").count(), 0, "{}", server.log());
    let shown = run(&["volume", "snapshot", "list", "scratch", "--config", &world.text("strongroom.toml")]).ok();
    assert!(shown.contains("scratch@tuesday"), "{shown}");

    if crate::stage::can_mount() {
        let directory = world.text("attached");
        // One who could write is named, and waited for.
        world.alice_without_key(&["attach", &world.plain_url("scratch"), "--to", &directory]).ok();
        let (success, stderr) = said(receive("wednesday", &["--wait", "0"]));
        assert!(!success && stderr.contains("with 'scratch'") && stderr.contains("--wait"), "{stderr}");
        run(&["detach", &directory]).ok();
        // One who reads is not.
        let arguments = ["attach", &world.plain_url("scratch"), "--to", &directory, "--read-only"];
        world.alice_without_key(&arguments).ok();
        let (success, stderr) = said(receive("wednesday", &["--wait", "30s"]));
        assert!(success, "{stderr}");
        run(&["detach", &directory]).ok();
        let shown = run(&["volume", "snapshot", "list", "scratch", "--config", &world.text("strongroom.toml")]).ok();
        assert!(shown.contains("scratch@wednesday"), "{shown}");
    }
    server.stop();
}
