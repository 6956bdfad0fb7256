//! Proves that the experiments are alive: each runs for real, as short as it goes, with targets and initiators as processes;
//! that what it writes is whole; that wrong wishes are refused with advice; and that data behind a URL is not overwritten
//! unless that is asked for. Says nothing about speed.

mod attached;
mod ecl;
mod private;
mod stage;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use stage::{World, run};

const SHORT: [&str; 5] = ["--warm-up", "0", "--runs", "2", "--quiet"];
/// How long each measurement takes. The first is enough, unless the machine is so busy that next to nothing is done in it.
const SECONDS: [&str; 4] = ["0.1", "1", "5", "20"];

/// The cells of a file of results.
fn cells(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("there are results");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    assert!(lines[0]["machine"]["kernel"].is_string(), "a run begins with its machine");
    lines.into_iter().filter(|line| line["bench"].is_string()).collect()
}

/// Runs an experiment, longer and longer until every cell is measured and `is_right`; its cells.
#[track_caller]
fn measured(command: &[&str], json: &str, is_right: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut wrong = String::new();
    for seconds in SECONDS {
        let said = run(&[command, &["--seconds", seconds, "--json", json]].concat());
        if !said.is_success() && [&said.stdout, &said.stderr].iter().any(|said| said.contains("give more --seconds")) {
            wrong = said.stdout + &said.stderr;
            continue;
        }
        said.ok();
        let cells = cells(Path::new(json));
        match cells.iter().find(|cell| !cell["error"].is_null() || !is_right(cell)) {
            None => return cells,
            Some(cell) => wrong = cell.to_string(),
        }
    }
    panic!("{wrong}");
}

#[test]
fn rawio_measures_and_verifies_every_scheme_and_the_report_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let json = path("results.jsonl");
    let mut command = vec!["rawio", "--schemes", "S0,S2-5", "--patterns", "randread,seqwrite", "--sizes"];
    command.extend(["512,4k", "--initiators", "2", "--depths", "4", "--volume-size", "8MiB", "--verify"]);
    // At either end of a measurement there are I/Os under way whose cryptography counts, or does not: among few they would show.
    let counts_add_up = |cell: &Value| {
        let crypto = cell["initiator_crypto_per_byte"].as_f64().unwrap();
        let (sealed, headers) = (cell["scheme"] == "S2-5", if cell["size"] == 512 { 1.0 } else { 0.2 });
        let is_blind = cell["target_crypto_per_byte"].as_f64().is_none_or(|crypto| crypto < headers);
        is_blind && if sealed { crypto > 1.9 } else { crypto == 0.0 }
    };
    let cells = measured(&[&command[..], &SHORT[..]].concat(), &json, counts_add_up);
    assert_eq!(cells.len(), 2 * 2 * 2 * 2);
    for cell in &cells {
        for field in [
            "mib_s",
            "iops",
            "p50_us",
            "p99_us",
            "target_cpu_s_per_gib",
            "target_cpu_ms_per_kio",
            "initiator_cpu_s_per_gib",
            "target_busy",
            "verified",
        ] {
            assert!(cell[field].is_number(), "{field} of {cell}");
        }
        assert!(cell["verified"].as_u64() > Some(0), "{cell}");
        assert_eq!(cell["scheme"] == "S2-5", cell["suite"] == "aes-256-gcm", "{cell}");
    }

    let streams = ["--sizes", "4k", "--json", &json, "--append", "--seconds", "0.1"];
    run(&[&["stream"], &streams[..], &SHORT[..]].concat()).ok();
    let (html, plots, markdown) = (path("report.html"), path("plots"), path("report.md"));
    run(&["report", &json, "--html", &html, "--plots", &plots, "--markdown", &markdown]).ok();
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.contains("S2-1") && page.contains("</html>") && !page.contains("src=\"http"));
    for plot in ["rawio-what-it-moved.svg", "rawio-what-it-moved.png", "stream-what-it-cost-the-target.svg"] {
        assert!(Path::new(&plots).join(plot).metadata().unwrap().len() > 1500, "{plot}");
    }
}

/// Every suite, a key for every block, and 64 KiB sealed at once under I/Os of 4 KiB: all of it verified.
#[test]
fn suites_custodies_and_block_sets_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("results.jsonl").to_str().unwrap().to_owned();
    let small = ["--volume-size", "8MiB", "--depths", "4", "--verify"];
    let rawio = |arguments: &[&str], is_right: &dyn Fn(&Value) -> bool| {
        let cells = measured(&[&["rawio"], arguments, &small, &SHORT].concat(), &json, is_right);
        assert!(cells.iter().all(|cell| cell["verified"].as_u64() > Some(0)), "{cells:?}");
        cells
    };
    let suites = ["aes-256-gcm", "aes-128-gcm", "chacha20-poly1305", "aes192-cbc+hmac-md5"];
    let schemes =
        ["--schemes", "plain,S1-2,encrypt-all,S2-6", "--suites", "aes-256-gcm,aes-128-gcm,chacha20-poly1305,paper"];
    let measured = rawio(&[&schemes[..], &["--patterns", "seqwrite", "--sizes", "4k"]].concat(), &|_| true);
    assert_eq!(measured.len(), (1 + 3 * 4) * 2, "S0 has no suite");
    for suite in suites {
        let of_suite: Vec<&Value> = measured.iter().filter(|cell| cell["suite"] == suite).collect();
        assert_eq!(of_suite.len(), 3 * 2, "{suite}");
        for cell in of_suite {
            let row = match cell["scheme"].as_str().unwrap() {
                "S2-1" => "S2-2",
                "S2-5" => "S2-6",
                scheme => scheme,
            };
            assert_eq!((&cell["row"], &cell["process"]), (&row.into(), &"hardware".into()), "{cell}");
        }
    }
    let sets = ["--schemes", "S2-5", "--custody", "keyfile,target", "--seal-bytes", "4k,64k", "--sizes", "4k"];
    // Sixteen times as much is opened, and for a write sealed again.
    let opens_whole_sets = |cell: &Value| {
        let whole = cell["contender"].as_str().unwrap().contains("sealing 64k");
        whole == (cell["initiator_crypto_per_byte"].as_f64().unwrap() > 20.0)
    };
    let measured = rawio(&[&sets[..], &["--patterns", "randread,randwrite"]].concat(), &opens_whole_sets);
    assert_eq!(measured.len(), 4 * 2 * 2);
    let runs = ["--schemes", "S2-5", "--custody", "keyfile,target", "--blocks-per-key", "1,16", "--sizes", "64k"];
    let measured = rawio(&[&runs[..], &["--patterns", "randread"]].concat(), &|_| true);
    let contenders: BTreeSet<_> = measured.iter().map(|cell| cell["contender"].as_str().unwrap()).collect();
    assert_eq!(contenders, BTreeSet::from(["S2-5", "S2-5 custody target", "S2-5 custody target 16 blocks a key"]));
}

/// Initiators that seal and open beforehand do no cryptography on blocks while they are measured; what they wrote opens.
#[test]
fn what_is_sealed_beforehand_is_written_verified_and_ends_the_measurement() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("results.jsonl").to_str().unwrap().to_owned();
    let usual = ["rawio", "--volume-size", "8MiB", "--warm-up", "0", "--runs", "1", "--quiet", "--verify"];
    let schemes = ["--schemes", "S0,S1-2,S2-5", "--custody", "keyfile,target", "--sizes", "64k", "--initiators", "2"];
    let headers_and_records = |cell: &Value| cell["initiator_crypto_per_byte"].as_f64().unwrap() < 0.2;
    let beforehand = ["--depths", "4", "--sealed-beforehand", "64MiB"];
    let cells = measured(&[&usual[..], &schemes, &beforehand].concat(), &json, headers_and_records);
    assert_eq!(cells.len(), 5 * 4, "S0, and two schemes with two custodies");
    assert!(cells.iter().all(|cell| cell["verified"].as_u64() > Some(0)), "{cells:?}");
    let few = ["--schemes", "S2-5", "--patterns", "randwrite", "--sizes", "4k", "--depths", "2", "--seconds", "100"];
    run(&[&usual[..], &few, &["--sealed-beforehand", "64MiB", "--json", &json]].concat()).ok();
    let cells = self::cells(Path::new(&json));
    assert!(cells[0]["error"].is_null() && cells[0]["ios"].as_u64() <= Some(16384), "{cells:?}");
    assert!(cells[0]["elapsed_s"].as_f64() < Some(100.0), "{cells:?}");
    run(&["rawio", "--sealed-beforehand", "--seal-bytes", "64k"]).failed(&["--seal-bytes"]);
}

/// The software rows: that the processor's instructions are masked is measured before anything else is.
#[test]
fn software_processes_do_without_aes_instructions() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("results.jsonl").to_str().unwrap().to_owned();
    let rawio =
        ["rawio", "--schemes", "S2-1", "--process", "hardware,software", "--sizes", "64k", "--patterns", "seqread"];
    let command = [&rawio[..], &["--volume-size", "8MiB"], &SHORT].concat();
    run(&["rawio", "--schemes", "S2-2", "--process", "software"]).failed(&["S2-2", "hardware does"]);
    run(&["rawio", "--process", "both"]).failed(&["hardware,software"]);
    if !has_aes_instructions() {
        run(&command).failed(&["--process software"]);
        return;
    }
    for cell in measured(&command, &json, |_| true) {
        let is_software = cell["process"] == "software";
        assert_eq!(cell["row"], if is_software { "S2-1" } else { "S2-2" }, "{cell}");
        assert_eq!(is_software, cell["contender"] == "S2-1 software", "{cell}");
    }
}

/// Targets and initiators that are started for each measurement, on volumes that nobody has written.
#[test]
fn the_first_second_of_both_ends_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, page) = (path("results.jsonl"), path("schemes.md"));
    let command =
        ["rawio", "--name", "client-first-second", "--just-started", "--schemes", "S0,S2-5", "--sizes", "64k"];
    let writes = ["--patterns", "seqwrite", "--volume-size", "8MiB"];
    let cells = measured(&[&command[..], &writes, &SHORT].concat(), &json, |cell| cell["ios"].as_u64() > Some(0));
    assert_eq!(cells.len(), 2 * 2);
    for cell in &cells {
        assert!(cell["target_cpu_s_per_gib"].is_number() && cell["initiator_cpu_ms_per_kio"].is_number(), "{cell}");
        // What a target counts of itself is from before the measurement where nothing was before it.
        assert!(cell["target_crypto_per_byte"].as_f64().is_none_or(|crypto| crypto < 0.2), "{cell}");
    }
    run(&["report", &json, "--laziness", &page]).ok();
    let page = fs::read_to_string(&page).unwrap();
    let judged = page.lines().find(|line| line.contains("first second of target and initiator")).unwrap();
    assert!(judged.contains("| at most 1.08 |") && judged.contains("of 2 runs only"), "{judged}");
    run(&command).failed(&["--patterns seqwrite,randwrite"]);
    run(&[&command[..], &["--verify"]].concat()).failed(&["--verify"]);
}

/// Two builds of this program take part, as their targets and their initiators.
#[test]
fn releases_are_contenders_of_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, page) = (path("results.jsonl"), path("schemes.md"));
    // Stands for a build of another release, and notes what it is asked to be.
    let (old, log) = (path("old-lab"), path("log"));
    let lab = env!("CARGO_BIN_EXE_strongroom-lab");
    fs::write(&old, format!("#!/bin/sh\necho \"$*\" >> '{log}'\nexec '{lab}' \"$@\"\n")).unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o700)).unwrap();
    let (first, last) = (format!("old={old}"), format!("new={lab}"));
    let programs = ["--program", &first, "--program", &last];
    let grid = ["--schemes", "S0,S2-5", "--patterns", "seqwrite", "--sizes", "4k", "--volume-size", "8MiB"];
    let command = [&["rawio", "--name", "client"], &programs[..], &grid, &SHORT].concat();
    let cells = measured(&command, &json, |cell| cell["ios"].as_u64() > Some(0));
    let contenders: BTreeSet<&str> = cells.iter().map(|cell| cell["contender"].as_str().unwrap()).collect();
    assert_eq!(contenders, BTreeSet::from(["S0 old", "S0 new", "S2-5 old", "S2-5 new"]));
    for cell in &cells {
        assert!(cell["contender"].as_str().unwrap().ends_with(cell["release"].as_str().unwrap()), "{cell}");
    }
    let asked = fs::read_to_string(&log).unwrap();
    assert!(asked.contains("product --log warn serve") && asked.contains("initiator"), "{asked}");
    let machine = fs::read_to_string(&json).unwrap().lines().next().unwrap().to_owned();
    assert!(machine.contains("old: strongroom-lab") && machine.contains("new: strongroom-lab"), "{machine}");
    run(&["report", &json, "--laziness", &page]).ok();
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("Releases beside each other") && page.contains("| S2-5 new over S2-5 old |"), "{page}");
    assert!(page.contains("| S2-5 over S0 |"), "the new one is judged: {page}");

    let peers = ["peers", "--only", "strongroom-sealed", "--patterns", "randread", "--sizes", "4k", "--runs", "1"];
    let command = [&peers[..], &["--volume-size", "8MiB", "--quiet"], &programs].concat();
    let cells = measured(&command, &json, |cell| cell["ios"].as_u64() > Some(0));
    let contenders: Vec<&str> = cells.iter().map(|cell| cell["contender"].as_str().unwrap()).collect();
    assert_eq!(contenders, ["Strongroom sealed old", "Strongroom sealed new"]);
    let page = path("peers.md");
    run(&["report", &json, "--peers", &page]).ok();
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("| 64 KiB I/Os | at least 5 | – | not measured |"), "{page}");
    assert!(page.contains("| Strongroom sealed new over Strongroom sealed old |"), "{page}");
    run(&["rawio", "--program", &old, "--program", &old]).failed(&["--program NAME=PATH"]);
    run(&["rawio", "--url", "strongroom://x/y", "--program", &old, "--patterns", "seqread"]).failed(&["--url"]);
}

/// Whether this machine lets us sample its processors; if not, why.
fn perf_can_look() -> Result<(), String> {
    let mut perf = std::process::Command::new("perf");
    perf.args(["record", "--quiet", "--event", "cpu-clock", "--cpu", "0", "--output", "/dev/null", "--", "true"]);
    match perf.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("cannot run perf: {error}")),
    }
}

/// Both ends are sampled, nearly every sample is given to a stage, and the stages are those that the scheme has.
#[test]
fn profiles_give_the_time_of_an_io_to_its_stages() {
    if let Err(reason) = perf_can_look() {
        println!("skipped: profiles were not tested: {reason}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, page) = (path("profile.jsonl"), path("profile.md"));
    let grid = ["--schemes", "S0,S2-5,ECL-S2-5", "--patterns", "seqwrite", "--sizes", "64k", "--volume-size", "8MiB"];
    let looks = ["--look", "1", "--count", "0.1", "--runs", "1", "--quiet"];
    let us = |end: &Value, stage: &str| end["stages_us"][stage].as_f64().unwrap_or(0.0);
    let sum = |end: &Value| end["stages_us"].as_object().unwrap().values().map(|us| us.as_f64().unwrap()).sum::<f64>();
    let is_right = |cell: &Value| {
        let (target, initiator) = (&cell["profile"]["target"], &cell["profile"]["initiator"]);
        let is_sealed = cell["scheme"] != "S0";
        let recovers = us(initiator, "recovery, congestion (ECL)") > 0.0;
        let adds_up = [(target, "target_cpu_ms_per_kio"), (initiator, "initiator_cpu_ms_per_kio")]
            .iter()
            .all(|(end, whole)| (sum(end) / cell[*whole].as_f64().unwrap() - 1.0).abs() < 0.01);
        let is_known = [target, initiator].iter().all(|end| us(end, "unknown") < 0.1 * sum(end));
        adds_up
            && is_known
            && recovers == (cell["scheme"] == "ECL-S2-5")
            && is_sealed == (us(initiator, "seal, open") > 0.0)
            && us(target, "seal, open") == 0.0
            && is_sealed == (us(target, "channel") > 0.0)
            && us(target, "store: log, append") > 0.0
            && us(initiator, "store: log, append") == 0.0
            && us(initiator, "socket (kernel)") > 0.0
    };
    let cells = measured(&[&["profile"], &grid[..], &looks].concat(), &json, is_right);
    assert_eq!(cells.len(), 3);
    run(&["report", &json, "--profile", &page]).ok();
    let page = fs::read_to_string(&page).unwrap();
    assert!(
        page.contains("| stage | S0 | S2-5 | ECL-S2-5 | S2-5 − S0 | ECL-S2-5 − S2-5 |")
            && page.contains(", 1 initiator: target"),
        "{page}"
    );
    assert!(page.contains("| seal, open | 0.00 |") && page.contains("<!-- profile: end -->"), "{page}");
    run(&["profile", "--look", "0"]).failed(&["--look 0.05"]);
    run(&["profile", "--schemes", "S9-9"]).failed(&["S9-9"]);
}

/// A limited target takes its share by the kernel's account, says so in its cells, and leaves no cgroup behind.
#[test]
fn a_targets_quota_holds() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("results.jsonl").to_str().unwrap().to_owned();
    let command = ["rawio", "--schemes", "S2-5", "--target-quota", "20", "--patterns", "randread", "--sizes", "4k"];
    let command = [&command[..], &["--volume-size", "8MiB"], &SHORT].concat();
    let said = run(&[&command[..], &["--seconds", "0.5", "--json", &json]].concat());
    if said.stderr.contains("--target-quota cannot limit the target") {
        println!("skipped: quotas were not tested: {}", said.stderr.trim());
        return;
    }
    for cell in measured(&command, &json, |cell| cell["elapsed_s"].as_f64() > Some(0.3)) {
        let cpu = cell["target_cpu"].as_f64().unwrap();
        assert!(cpu < 0.3, "20 % of a processor were allowed: {cell}");
        assert_eq!((&cell["target_quota_percent"], &cell["process"]), (&20.into(), &"hardware".into()), "{cell}");
        assert_eq!(cell["contender"], "S2-5 target at 20%", "{cell}");
    }
    let left =
        fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().flat_map(|entry| {
            fs::read_dir(entry.path()).into_iter().flatten().flatten().map(|entry| entry.file_name())
        });
    // Those of other tests of this user may be there still.
    let is_ours = |name: &std::ffi::OsString| {
        let pid = name.to_str().and_then(|name| name.strip_prefix("strongroom-lab-")?.split('-').next());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    };
    let left: Vec<_> = left.filter(is_ours).collect();
    assert!(left.is_empty(), "{left:?}");
    run(&["rawio", "--target-quota", "0"]).failed(&["--target-quota"]);
    run(&["rawio", "--url", "strongroom://x/y", "--target-quota", "50", "--patterns", "seqread"]).failed(&["--url"]);
}

/// The mask is the target's alone: the target's cryptography becomes slow, the initiators' does not.
#[test]
fn a_target_alone_does_without_aes_instructions() {
    if !has_aes_instructions() {
        println!("skipped: this processor has no AES instructions that could be masked");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("results.jsonl").to_str().unwrap().to_owned();
    let command =
        ["rawio", "--schemes", "S0,S2-1", "--target-process", "software", "--sizes", "64k", "--patterns", "seqread"];
    let command = [&command[..], &["--volume-size", "8MiB"], &SHORT].concat();
    let is_slower_there = |cell: &Value| {
        let cost = |end: &str| cell[end].as_f64().unwrap();
        cell["scheme"] == "S0" || cost("target_cpu_s_per_gib") > 3.0 * cost("initiator_cpu_s_per_gib")
    };
    for cell in measured(&command, &json, is_slower_there) {
        let target = if cell["scheme"] == "S0" { Value::Null } else { "software".into() };
        assert_eq!((&cell["process"], &cell["target_process"]), (&"hardware".into(), &target), "{cell}");
    }
}

fn has_aes_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

#[test]
fn any_target_can_be_measured_by_url_and_its_data_is_safe() {
    let world = World::new();
    world.create(&["disk", "--plain", "--initiator", "*", "--size", "8MiB"]).ok();
    let server = world.serve();
    let url = server.plain_url("disk");
    let json = &world.text("results.jsonl");
    let rawio = [&["rawio", "--url", &url, "--sizes", "4k"], &SHORT[..]].concat();
    let reading = [&rawio[..], &["--patterns", "randread"]].concat();
    run(&[&rawio[..], &["--json", json]].concat()).failed(&["--destroy-data", "seqread,randread"]);
    measured(&reading, json, |cell| cell["mib_s"].is_number());
    let writing = ["--patterns", "randwrite", "--destroy-data", "--verify"];
    measured(&[&rawio[..], &writing].concat(), json, |_| true);
    drop(server);
    // A target that is not there is a failed cell, and a failed command.
    run(&[&reading[..], &["--seconds", "0.1", "--json", json]].concat()).failed(&["cells failed"]);
    let failed = cells(Path::new(json));
    assert!(failed.iter().all(|cell| cell["error"].is_string() && cell["mib_s"].is_null()), "{failed:?}");
}

#[test]
fn wrong_wishes_are_refused_with_advice() {
    let refused = |arguments: &[&str], parts: &[&str]| {
        run(arguments).failed(parts);
    };
    refused(&["rawio", "--schemes", "S9-9"], &["S9-9", "S0, "]);
    refused(&["rawio", "--patterns", "backwards"], &["backwards", "seqread, seqwrite"]);
    refused(&["rawio", "--sizes", "1000"], &["powers of two"]);
    refused(&["rawio", "--sizes", "4kb"], &["KiB"]);
    refused(&["rawio", "--depths", "1000"], &["1 to 128"]);
    refused(&["rawio", "--initiators", "0"], &["1 to 64"]);
    refused(&["rawio", "--seconds", "0"], &["measures nothing"]);
    refused(&["rawio", "--url", "http://x"], &["strongroom://HOST"]);
    refused(&["rawio", "--medium", "paper"], &["paper"]);
    refused(&["rawio", "--target-cpus", "4000"], &["no processor 4000"]);
    refused(&["rawio", "--work-dir", "/nonexistent"], &["--work-dir"]);
    refused(&["rawio", "--suites", "rot13"], &["rot13", "chacha20-poly1305"]);
    refused(&["rawio", "--custody", "keyserver"], &["keyfile and target"]);
    refused(&["rawio", "--seal-bytes", "1000000"], &["512 to 64k"]);
    refused(&["rawio", "--blocks-per-key", "16"], &["--custody target"]);
    refused(&["stream", "--protections", "ssl"], &["S2-5"]);
    refused(&["report", "/nonexistent"], &["/nonexistent"]);
}

/// Fetches, and first reads with a key file, with a key server, and with its standby named as well.
#[test]
fn keys_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, markdown) = (path("keys.jsonl"), path("page.md"));
    let short = ["--seconds", "0.1", "--clients", "2", "--runs", "2", "--attaches", "2"];
    let said = run(&[&["keys", "--json", &json, "--markdown", &markdown], &short[..]].concat()).ok();
    let text = fs::read_to_string(&json).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[0]["machine"]["kernel"].is_string());
    let of = |bench: &str| lines.iter().filter(|line| line["bench"] == bench).collect::<Vec<_>>();
    assert_eq!((of("fetch").len(), of("first read").len()), (2 * 2, 2 * 3));
    assert!(of("fetch").iter().all(|cell| cell["fetches_s"].as_f64() > Some(0.0)));
    assert!(of("first read").iter().all(|cell| cell["count"] == 2 && cell["p50_ms"].as_f64() > Some(0.0)));
    let page = fs::read_to_string(&markdown).unwrap();
    for way in ["key file", "key server", "key server, standby named"] {
        assert!(said.contains(way) && page.contains(&format!("| {way} |")), "{page}");
    }
    run(&["keys", "--clients", "0"]).failed(&["--clients 1 to 500"]);
}
