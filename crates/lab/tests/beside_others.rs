//! Proves that the experiments beside other programs work: tiny forms of `btio`, `peers` and `dbench`, and the
//! script for real IPsec.
//!
//! What is not installed, or takes root, is passed over, with a word. No number is looked at, but that there are numbers, and
//! that the data was right.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strongroom-lab")).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// Runs an experiment; its cells.
fn cells(arguments: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("results.jsonl");
    let output = lab(&[arguments, &["--quiet", "--runs", "1", "--json", file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    let text = std::fs::read_to_string(&file).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(lines.next().unwrap()["machine"]["kernel"].is_string(), "the machine comes first");
    lines.collect()
}

fn positive(cell: &Value, name: &str) {
    assert!(cell[name].as_f64().is_some_and(|value| value > 0.0), "{name} of {cell}");
}

#[test]
fn btio_writes_one_file_from_several_initiators() {
    let cells = cells(&["btio", "--class", "S", "--dumps", "3", "--initiators", "1,4", "--schemes", "S0,S2-5"]);
    assert_eq!(cells.len(), 4);
    let bytes = 3 * 12 * 12 * 12 * 40;
    for cell in &cells {
        assert_eq!((cell["bench"].as_str(), cell["pattern"].as_str()), (Some("btio"), Some("btio-S")));
        assert_eq!(cell["bytes"], bytes);
        assert!(cell["verified"].as_u64().unwrap() >= bytes / 512, "all of the file was compared: {cell}");
        ["elapsed_s", "mib_s", "p99_us"].iter().for_each(|name| positive(cell, name));
    }
}

#[test]
fn every_peer_that_is_installed_stores_what_it_is_given() {
    let grid = ["--patterns", "randwrite", "--sizes", "4k", "--depths", "4", "--volume-size", "8MiB", "--verify"];
    let time = ["--seconds", "0.1", "--warm-up", "0.05"];
    let cells = cells(&[&["peers"][..], &grid, &time].concat());
    let names: Vec<&str> = cells.iter().map(|cell| cell["contender"].as_str().unwrap()).collect();
    eprintln!("took part: {names:?}");
    assert!(names.contains(&"Strongroom sealed"));
    for cell in &cells {
        positive(cell, "verified");
        positive(cell, "mib_s");
        let encrypts = ["stunnel + tgt", "WireGuard + tgt", "QEMU LUKS + tgt", "Strongroom sealed"];
        let is_secured = encrypts.contains(&cell["contender"].as_str().unwrap());
        assert_eq!(cell["suite"] != "none", is_secured, "{cell}");
    }
}

#[test]
fn dbench_runs_on_mounted_sealed_volumes() {
    if let Err(missing) = strongroom_lab::dbench::check() {
        return eprintln!("passed over: {missing}");
    }
    let size = ["--volume-size", "256MiB"];
    let cells = cells(
        &[&["dbench", "--schemes", "S1-2,S2-5", "--clients", "1", "--sync", "no", "--seconds", "3"][..], &size]
            .concat(),
    );
    assert_eq!(cells.len(), 2);
    for cell in &cells {
        assert_eq!(cell["suite"], "aes-256-gcm");
        ["mib_s", "max_us"].iter().for_each(|name| positive(cell, name));
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_advice() {
    for (arguments, advice) in [
        (&["btio", "--initiators", "3"][..], "square numbers"),
        (&["btio", "--class", "X"], "choose S, W, A or B"),
        (&["peers", "--only", "tgtx"], "choose from tgt-default"),
        (&["peers", "--peer", "gotgt=run"], "{port}"),
        (&["dbench", "--seconds", "1"], "--seconds 3"),
        (&["peers", "--sizes", "1000"], "powers of two"),
    ] {
        let output = lab(arguments);
        assert!(!output.status.success() && said(&output).contains(advice), "{arguments:?}: {}", said(&output));
    }
}

#[test]
fn the_script_for_ipsec_says_whether_this_kernel_has_it() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ipsec.sh");
    let output = Command::new(script).arg("--check").output().unwrap();
    let said = said(&output);
    match output.status.code() {
        Some(0) => assert!(said.contains("this kernel can"), "{said}"),
        Some(3) => assert!(said.contains("CONFIG_INET_ESP") && said.contains("CONFIG_INET_AH"), "{said}"),
        _ => assert!(said.contains("root") || said.contains("iproute2"), "{said}"),
    }
}

/// The whole script, each of its experiments for a moment, over a real link. No time is looked at, only what must be there on every
/// machine.
#[test]
fn wan_measures_every_setting_beside_its_model_and_the_report_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench-wan.sh");
    let mut script = Command::new(script);
    script.arg("--tiny").env("LAB", env!("CARGO_BIN_EXE_strongroom-lab"));
    let output = script.env("BENCH_DIR", dir.path()).env("DOCS", path("docs")).env_remove("REPORT").output().unwrap();
    let refusals = ["need root", "not permitted", "denied", "CONFIG_TUN"];
    if !output.status.success() && refusals.iter().any(|words| said(&output).contains(words)) {
        return eprintln!("passed over: {}", said(&output));
    }
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("bench-wan: 7 of 7"), "{}", said(&output));
    assert!(said(&output).contains("0/20  …"), "progress is told where there is no terminal: {}", said(&output));
    let text = std::fs::read_to_string(path("wan.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let cells: Vec<Value> = lines.filter(|line| line["machine"].is_null()).collect();
    let of = |bench: &str| cells.iter().filter(|cell| cell["bench"] == bench).collect::<Vec<_>>();
    let benches = ["wan", "wan-steady", "wan-steady-gigabit", "wan-loss", "wan-loss-percent", "wan-many", "wan-paper"];
    assert_eq!(benches.map(|it| of(it).len()), [2 * 2 * 5, 2, 2, 2, 2, 4, 2]);
    for cell in &cells {
        assert!(cell["error"].is_null(), "{cell}");
        for name in [
            "mib_s",
            "model_mib_s",
            "socket_mib_s",
            "link_payload_mib_s",
            "ideal_n",
            "initiator_encrypted_per_byte",
            "wire_per_byte",
        ] {
            positive(cell, name);
        }
        assert!(["latency", "link", "sealing", "target"].contains(&cell["limit"].as_str().unwrap()), "{cell}");
        let one_at_a_time = cell["contender"].as_str().unwrap().ends_with("one at a time");
        if one_at_a_time && cell["initiators"] == 1 {
            // Each byte is encrypted once; at either end of the measurement a write was under way, which counts by its share.
            let per_byte = cell["initiator_encrypted_per_byte"].as_f64().unwrap();
            assert!((per_byte - 1.0).abs() <= 0.05, "{cell}");
            let [bytes, ios, size] = ["bytes", "ios", "size"].map(|name| cell[name].as_u64().unwrap());
            assert!(bytes.abs_diff(ios * size) <= size, "{cell}");
        }
    }
    assert!(of("wan-many").iter().all(|cell| cell["targets"] == 2), "{:?}", of("wan-many"));
    let plots = path("docs/bench");
    let section = std::fs::read_to_string(path("docs/bench/wan.md")).unwrap();
    for part in [
        "wan: begin",
        "Figures 9 to 16",
        "within 15 %",
        "does not encrypt again what TCP sends again",
        "loss 0.1 %",
        "auto after 20 seconds, of the link's payload rate",
    ] {
        assert!(section.contains(part), "{part} is not in:\n{section}");
    }
    for name in ["throughput", "improvement", "processor", "model", "ratio", "encrypted"] {
        assert!(std::path::Path::new(&plots).join(format!("wan-{name}.svg")).exists(), "{name}");
    }
    for (wrong, part) in [
        (["--settings", "OP-1"], "OP-2"),
        (["--name", "lan"], "wan-"),
        (["--sizes", "5k"], "5"),
        (["--rate", "unlimited"], "10Gbit"),
        (["--rate", "fast"], "unlimited"),
    ] {
        let refused = lab(&["wan", wrong[0], wrong[1]]);
        assert!(!refused.status.success() && said(&refused).contains(part), "{}", said(&refused));
    }
}

#[test]
fn the_link_runs_a_command_at_each_end_of_a_link() {
    let run = |arguments: &[&str]| lab(&[&["link", "--delay", "2ms", "--rate", "100Mbit"], arguments].concat());
    let output = run(&["--", "sh", "-c", "echo near $WAN_NEAR; ip netns exec $WAN_FAR_NS ip address show wan0"]);
    let refusals = ["need root", "not permitted", "denied", "CONFIG_TUN"];
    if !output.status.success() && refusals.iter().any(|words| said(&output).contains(words)) {
        return eprintln!("passed over: {}", said(&output));
    }
    let text = said(&output);
    assert!(output.status.success() && text.contains("near 10.216.0.1") && text.contains("inet 10.216.0.2"), "{text}");
    assert!(!run(&["--", "false"]).status.success(), "a command that fails is told");
    let measured = run(&["--measure", "2"]);
    assert!(measured.status.success() && said(&measured).contains("Mbit/s of TCP payload"), "{}", said(&measured));
    let refused = lab(&["link", "--delay", "300ms"]);
    assert!(said(&refused).contains("200ms"), "{}", said(&refused));
}
