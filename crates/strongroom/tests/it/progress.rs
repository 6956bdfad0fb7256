//! Proves that long operations tell programs how far they are, as lines of JSON beside the result, and that neither gets into the other's way.

use std::fs;

use serde_json::Value;

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
