//! Proves that identities and keys are made once, for their owner alone, and never shown.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::stage::{World, run, strongroom};

#[test]
fn identity_files_are_private_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/identity");
    let path = path.to_str().unwrap();
    let printed = run(&["identity", "new", "--out", path]).ok();
    assert!(printed.starts_with("strongroom-ed25519 "), "{printed}");
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(run(&["identity", "show", path]).ok(), printed, "the public line is the same each time");
    let before = fs::read(path).unwrap();
    run(&["identity", "new", "--out", path]).failed(&["never overwritten", "--out"]);
    assert_eq!(fs::read(path).unwrap(), before);
}

#[test]
fn the_default_identity_lies_in_the_config_directory() {
    let dir = tempfile::tempdir().unwrap();
    let status = strongroom(&["identity", "new"]).env("XDG_CONFIG_HOME", dir.path()).status().unwrap();
    assert!(status.success());
    assert!(dir.path().join("strongroom/identity").is_file());
}

#[test]
fn a_key_is_made_private_and_only_its_id_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume.key");
    let path = path.to_str().unwrap();
    let made = run(&["key", "new", "--out", path]).ok();
    let shown = run(&["key", "show", path]).ok();
    assert!(made.ends_with(&shown) && shown.contains("id "), "{made}{shown}");
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
    let text = fs::read_to_string(path).unwrap();
    let secret = text.split_ascii_whitespace().rfind(|word| word.len() == 64).expect("64 hex digits");
    assert!(!made.contains(secret) && !shown.contains(secret));
}

#[test]
fn a_file_that_others_can_read_is_refused_with_the_cure() {
    let dir = tempfile::tempdir().unwrap();
    for (name, new, show) in [
        ("identity", ["identity", "new", "--out"], ["identity", "show"]),
        ("key", ["key", "new", "--out"], ["key", "show"]),
    ] {
        let path = dir.path().join(name);
        run(&[&new[..], &[path.to_str().unwrap()]].concat()).ok();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        run(&[&show[..], &[path.to_str().unwrap()]].concat()).failed(&["chmod 600"]);
    }
}

#[test]
fn damaged_and_mistaken_files_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    run(&["key", "new", "--out", key.to_str().unwrap()]).ok();
    let text = fs::read_to_string(&key).unwrap();
    let at = text.rfind("key ").unwrap() + 4;
    let flipped = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
    fs::write(&key, format!("{}{flipped}{}", &text[..at], &text[at + 1..])).unwrap();
    run(&["key", "show", key.to_str().unwrap()]).failed(&["damaged"]);
    let identity = dir.path().join("identity");
    run(&["identity", "new", "--out", identity.to_str().unwrap()]).ok();
    run(&["key", "show", identity.to_str().unwrap()]).failed(&["not a Strongroom key file"]);
}

#[test]
fn every_command_has_an_example() {
    let commands: &[&[&str]] = &[
        &["identity", "new"],
        &["identity", "show"],
        &["key", "new"],
        &["key", "show"],
        &["key", "record"],
        &["volume", "create"],
        &["volume", "list"],
        &["volume", "show"],
        &["volume", "check"],
        &["volume", "delete"],
        &["volume", "format"],
        &["volume", "recover"],
        &["serve"],
        &["attach"],
        &["detach"],
        &["nbd", "serve"],
        &["vhost-user", "serve"],
        &["copy"],
        &["discover"],
        &["demo"],
    ];
    for command in commands {
        let help = run(&[command, &["--help"][..]].concat()).ok();
        assert!(help.contains("Example"), "`strongroom {} --help` shows no example", command.join(" "));
    }
}

/// A CHAP account: one secret for each side, in files, on both machines.
#[test]
fn chap_lets_in_who_has_the_secrets() {
    let world = World::new();
    world.create(&["scratch", "--size", "16MiB", "--plain"]).ok();
    for (name, secret) in
        [("bob", "bob's own secret\n"), ("vault", "the target's one\n"), ("wrong", "a secret of nobody\n")]
    {
        fs::write(world.path(name), secret).unwrap();
        fs::set_permissions(world.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let config = format!(
        "[[plain]]\ninitiators = [\"*\"]\nvolumes = [\"*\"]\nchap = [\"bob\"]\n\n[[chap]]\nuser = \"bob\"\nsecret_file = \"{}\"\n\
         target_secret_file = \"{}\"\n",
        world.text("bob"),
        world.text("vault")
    );
    world.write_config(&config);
    let server = world.serve();
    let (url, out) = (world.plain_url("scratch"), world.text("out"));
    let copy = |chap: &[&str]| {
        let arguments = [&["copy", &url, &out, "--overwrite", "--timeout", "2s"], chap].concat();
        world.alice_without_key(&arguments)
    };
    let (bob, vault, wrong) = (world.text("bob"), world.text("vault"), world.text("wrong"));
    copy(&["--chap-user", "bob", "--chap-secret-file", &bob]).ok();
    copy(&["--chap-user", "bob", "--chap-secret-file", &bob, "--chap-target-secret-file", &vault]).ok();
    copy(&[]).failed(&["authentication failed"]);
    copy(&["--chap-user", "bob", "--chap-secret-file", &wrong]).failed(&["authentication failed"]);
    copy(&["--chap-user", "bob", "--chap-secret-file", &bob, "--chap-target-secret-file", &wrong])
        .failed(&["authentication failed"]);
    copy(&["--chap-user", "bob", "--chap-secret-file", &bob, "--chap-target-secret-file", &bob]).failed(&["the same"]);
    fs::set_permissions(world.path("bob"), fs::Permissions::from_mode(0o644)).unwrap();
    copy(&["--chap-user", "bob", "--chap-secret-file", &bob]).failed(&["chmod 600"]);
    server.stop();
    run(&["serve", "--config", &world.text("strongroom.toml"), "--check"]).failed(&["chmod 600"]);
}

/// `strongroom … | head -1`: no panic, no backtrace.
#[test]
fn output_that_nobody_reads_ends_a_command_quietly() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("identity");
    let path = path.to_str().unwrap();
    run(&["identity", "new", "--out", path]).ok();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = strongroom(&["identity", "show", path]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let refused = strongroom(&["identity", "show", "/nowhere"]).stdout(Stdio::null()).stderr(writer).status().unwrap();
    assert_eq!(refused.code(), Some(141), "an error that nobody reads");
}

/// Every line that both ends log, down to the finest, when blocks are written and read in both custodies: no key is in it.
#[test]
fn no_key_is_in_a_log() {
    let world = World::new();
    let wrapping = world.text("wrap.key");
    run(&["key", "new", "--for", "wrapping", "--out", &wrapping]).ok();
    world.create(&["box", "--size", "16MiB", "--custody", "target", "--wrapping-key", &wrapping]).ok();
    world.create(&["vault", "--size", "16MiB"]).ok();
    let server = world.serve_with(&["--log", "trace"]);
    let image = world.text("image");
    fs::write(&image, crate::stage::noise(9, 1 << 20)).unwrap();
    let mut logged = String::new();
    for volume in ["box", "vault"] {
        let (url, copy) = (world.url(volume), world.text("copy"));
        for command in [
            &["volume", "format", &url, "--yes"][..],
            &["copy", &image, &url, "--allow-smaller"],
            &["copy", &url, &copy, "--overwrite"],
        ] {
            let arguments = [command, &["--log", "trace"]].concat();
            let said = if volume == "box" { world.alice_without_key(&arguments) } else { world.alice(&arguments) };
            assert!(said.is_success(), "{}", said.stderr);
            logged += &said.stderr;
        }
    }
    logged += &server.log();
    server.stop();
    assert!(logged.contains("DEBUG") && logged.contains("logged in"), "there is something to look at: {logged}");
    let logged = logged.to_lowercase();
    for file in ["volume.key", "wrap.key", "alice.identity", "target.identity"] {
        let text = fs::read_to_string(world.path(file)).unwrap();
        let mut words = text.lines().rev().flat_map(str::split_ascii_whitespace);
        let secret = words.find(|word| word.len() >= 60).expect("a line with the secret").to_lowercase();
        assert!(!logged.contains(&secret[20..44]), "a part of {file} is in a log");
    }
}

/// What a crash would write to a file: the keys of channels, and of blocks in custody `target`.
#[test]
fn a_target_that_crashes_leaves_no_core() {
    let world = World::new();
    let binary = env!("CARGO_BIN_EXE_strongroom");
    let dumps = |arguments: &[&str], ready: Option<&str>| {
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -c unlimited && exec \"$@\"", "sh"])
            .args(arguments)
            .current_dir(world.path("."))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        if let Some(ready) = ready {
            let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            assert!(said.take(50).any(|line| line.contains(ready)), "it never said '{ready}'");
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::ABORT).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(6));
        status.core_dumped()
    };
    // One that holds no secrets shows that there would be a core to be seen.
    let can_dump = dumps(&["sh", "-c", "echo ready; while :; do sleep 1; done"], Some("ready"));
    if !can_dump {
        eprintln!("passed over: this machine writes no cores");
        return;
    }
    assert!(!dumps(&[binary, "serve", "--config", &world.text("strongroom.toml")], Some("serving on")));
}

/// A target of custody `target` keeps the wrapping key out of the swap, from before it reads it; and it may open as many files as the
/// system lets it. Its memory is not given to it in huge pages, whose clearing takes longer than an iteration of a worker may.
#[test]
fn a_target_locks_its_memory_for_a_wrapping_key() {
    let world = World::new();
    let wrapping = world.text("wrap.key");
    run(&["key", "new", "--for", "wrapping", "--out", &wrapping]).ok();
    world.create(&["box", "--size", "16MiB", "--custody", "target", "--wrapping-key", &wrapping]).ok();
    world.create(&["vault", "--size", "16MiB"]).ok();
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -S -n 512 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_strongroom"), "serve"])
        .args(["--config", &world.text("strongroom.toml")])
        .current_dir(world.path("."))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.take(50).any(|line| line.contains("serving on")));
    let told = |file: &str, line: &str| {
        let text = fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
        let line = text.lines().find_map(|found| found.strip_prefix(line)).expect("the kernel tells it");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let files = told("limits", "Max open files");
    assert_eq!(files[0], files[1], "the limit is raised as far as it may be");
    assert_eq!(told("status", "THP_enabled:")[0], "0");
    world.alice(&["volume", "format", &world.url("vault"), "--yes"]).ok();
    assert_eq!(told("status", "VmLck:")[0], "0", "without such a key nothing needs it");
    world.alice_without_key(&["volume", "format", &world.url("box"), "--yes"]).ok();
    let own = rustix::thread::capabilities(None).unwrap().effective;
    if own.contains(rustix::thread::CapabilitySet::IPC_LOCK) {
        assert_ne!(told("status", "VmLck:")[0], "0");
    } else {
        eprintln!("passed over: this user may not lock memory");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
