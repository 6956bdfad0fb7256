//! Proves that long operations tell programs how far they are, as lines of JSON beside the result, and that neither gets into the other's way.

use std::fs;

use serde_json::{Value, json};

use crate::keyserver::KeySite;
use crate::stage::{CommandOutput, World, noise, run, strongroom};

/// The result of a command that was given `--json`, and its lines of progress for `operation` in `unit`, of which there is one at least.
fn told(said: CommandOutput, operation: &str, unit: &str) -> Value {
    assert!(said.is_success(), "{}{}", said.stdout, said.stderr);
    let progress: Vec<Value> = said
        .stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?.get("progress").cloned())
        .filter(|line| line["operation"] == operation)
        .collect();
    let Some(first) = progress.first() else { panic!("no progress of {operation} in: {}", said.stderr) };
    assert_eq!(first["unit"], unit, "{first}");
    let (done, total) = (first["done"].as_u64().unwrap(), first["total"].as_u64());
    assert!(total.is_none_or(|total| done <= total), "{first}");
    for key in ["per_second", "seconds_left"] {
        assert!(first.get(key).is_some_and(|value| value.is_null() || value.is_number()), "{first}");
    }
    serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("the result is not JSON: {}", said.stdout))
}

#[test]
fn long_operations_tell_their_progress_and_result_as_json() {
    let (world, server) = World::sealed("vault", "16MiB");
    let config = world.text("strongroom.toml");
    let volume = |arguments: &[&str]| run(&[&["volume"], arguments, &["--config", &config, "--json"]].concat());
    fs::write(world.path("image"), noise(3, 16 << 20)).unwrap();
    let url = world.url("vault");
    let copied = told(world.alice(&["copy", &world.text("image"), &url, "--verify", "--json"]), "verifying", "bytes");
    assert_eq!((&copied["bytes"], &copied["verified"]), (&(16 << 20).into(), &true.into()), "{copied}");
    assert!(copied["checksums"].as_str().unwrap().starts_with("crc64:"), "{copied}");
    let verified = told(world.alice(&["volume", "verify", &url, "--json"]), "verifying", "blocks");
    assert_eq!((&verified["opened"], &verified["bad_blocks"]), (&4096.into(), &Value::Array(Vec::new())), "{verified}");
    let recover = ["volume", "recover", &url, "--lba", "7", "--count", "2", "--yes", "--json"];
    let recovered = told(world.alice(&recover), "recovering", "blocks");
    let unchanged = |lba: u64| json!({ "lba": lba, "result": "unchanged" });
    assert_eq!(recovered, json!({ "blocks": [unchanged(7), unchanged(8)] }));

    run(&["volume", "snapshot", "create", "vault@monday", "--config", &config]).ok();
    let stream = world.text("stream");
    let sent = told(volume(&["send", "vault@monday", "--out", &stream]), "sending", "bytes");
    assert_eq!(sent["sent_bytes"], fs::metadata(&stream).unwrap().len(), "{sent}");
    server.stop();
    // Where standard output is the stream, the result is beside it.
    let send = ["volume", "send", "vault@monday", "--config", &config, "--json"];
    let piped = strongroom(&send).output().unwrap();
    let beside = String::from_utf8(piped.stderr).unwrap();
    let result: Value = serde_json::from_str(beside.lines().last().expect("a result")).unwrap();
    assert_eq!(result["sent_bytes"], piped.stdout.len(), "{beside}");
    assert!(!piped.stdout.is_empty());

    let there = world.text("there");
    let receive = ["volume", "receive", "vault", "--in", &stream, "--root", &there, "--json"];
    let received = told(run(&receive), "receiving", "bytes");
    assert_eq!(received["received_bytes"], sent["sent_bytes"], "{received}");
    let checked = told(run(&["volume", "check", "vault", "--root", &there, "--json"]), "checking", "bytes");
    assert_eq!((&checked["sound"], &checked["blocks"]), (&true.into(), &4096.into()), "{checked}");
    run(&["volume", "snapshot", "delete", "vault@monday", "--config", &config]).ok();
    assert_eq!(told(volume(&["erase", "vault", "--yes"]), "erasing", "parts")["erased"], "vault");
}

/// A failure is reported in words with `--json`, too, and the result is printed before it.
#[test]
fn a_volume_that_is_not_whole_is_told_as_json_and_fails() {
    let (world, server) = World::sealed("vault", "16MiB");
    world.create(&["blank", "--size", "16MiB", "--peer", "alice"]).ok();
    world.alice(&["key", "record", &world.url("blank")]).ok();
    let said = world.alice(&["volume", "verify", &world.url("blank"), "--keep-going", "--json"]);
    let result: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(result["bad_blocks"].as_array().map(Vec::len), Some(4096));
    said.failed(&["volume recover"]);
    server.stop();
}

/// To another custody, and to the newest epoch. On the target's machine nothing takes long: the initiator moves the contents.
#[test]
fn both_kinds_of_reseal_tell_their_progress_and_result_as_json() {
    let (world, server) = World::sealed("vault", "4MiB");
    let keys = KeySite::new();
    keys.configure_with("lease_s = 2", "");
    let key_server = keys.start();
    let (url, config, state) = (world.url("vault"), world.text("strongroom.toml"), world.text("state"));
    fs::write(world.path("image"), noise(5, 4 << 20)).unwrap();
    world.alice(&["copy", &world.text("image"), &url, "--quiet"]).ok();

    let prepare = ["volume", "reseal", "vault", "--to", "keyserver", "--peer", "alice", "--config", &config];
    let prepared: Value = serde_json::from_str(&run(&[&prepare[..], &["--json"]].concat()).ok()).unwrap();
    assert_eq!((&prepared["successor"], &prepared["is_made"]), (&"vault.resealed".into(), &true.into()), "{prepared}");
    let [domain, id] = ["domain", "id"].map(|key| prepared[key].as_str().unwrap_or_else(|| panic!("{prepared}")));
    keys.key("admin", &["create", "vault", "--domain", domain, "--id", id]).ok();
    let alice = world.public_key("alice");
    keys.key("admin", &["grant", "vault", &alice, "--rights", "open,seal,administer"]).ok();
    let (at, server_key) = (format!("127.0.0.1:{}", keys.port), keys.public_key("server"));
    let to = format!("keyserver={at}");
    let moving = ["volume", "reseal", &url, "--to", &to, "--state", &state, "--key-server-key", &server_key, "--json"];
    let moved = world.alice(&moving);
    assert!(moved.stderr.contains(r#""operation":"verifying""#), "{}", moved.stderr);
    assert_eq!(told(moved, "copying", "bytes")["custody"], "keyserver");

    keys.key("admin", &["rotate", "vault"]).ok();
    let resealing = ["volume", "reseal", &url, "--key-server", &at, "--key-server-key", &server_key, "--json"];
    let resealed = told(world.alice_without_key(&resealing), "resealing", "blocks");
    assert_eq!(resealed, json!({ "epoch": 2, "resealed": 1024, "destroyed_epochs": [1] }));
    key_server.stop();
    server.stop();
}

#[test]
fn a_snapshot_that_is_sent_to_another_target_is_told_as_json() {
    let (origin, there) = (World::new(), World::new());
    origin.create(&["data", "--size", "4MiB", "--plain"]).ok();
    let server = origin.serve();
    fs::write(origin.path("image"), noise(4, 4 << 20)).unwrap();
    origin.alice_without_key(&["copy", &origin.text("image"), &origin.plain_url("data"), "--quiet"]).ok();
    let config = origin.text("strongroom.toml");
    run(&["volume", "snapshot", "create", "data@now", "--config", &config]).ok();
    let alice = origin.public_key("alice");
    there.write_config(&format!(
        "[[peer]]\nname = \"origin\"\nkey = \"{alice}\"\ninitiators = [\"*\"]\nvolumes = [\"*\"]\n\
         receive = [\"data\"]\n"
    ));
    there.create(&["data", "--size", "4MiB", "--plain"]).ok();
    let receiver = there.serve();
    let send = || {
        let mut command = strongroom(&["volume", "send", "data@now", "--to", &there.url("data"), "--json"]);
        command
            .args(["--config", &config, "--identity", &origin.text("alice.identity")])
            .args(["--target-key", &there.public_key("target"), "--connect-timeout", "60s"])
            .env("XDG_CONFIG_HOME", origin.path("config"));
        origin.finish(command)
    };
    let sent = told(send(), "sending", "bytes");
    assert_eq!((&sent["volume"], &sent["snapshot"]), (&"data".into(), &"now".into()), "{sent}");
    assert!(sent["sent_bytes"].as_u64() > Some(4 << 20), "{sent}");
    let again: Value = serde_json::from_str(&send().ok()).unwrap();
    assert_eq!(again["sent_bytes"], 0, "it is there already: {again}");
    receiver.stop();
    server.stop();
}
