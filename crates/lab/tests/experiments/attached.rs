//! Proves that programs on attached volumes are measured: fio moves bytes through the file in FUSE, by NBD, and through ext4, in every scheme, of every
//! program and with every argument that was asked for, our own client does the same beside it, and the report shows them side by side.
//! Needs root, FUSE, loop devices and fio; says so and passes over itself where they are missing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::stage::run;
use crate::{cells, measured};

/// What is said where something is missing that the experiment needs.
const MISSING: [&str; 5] = ["takes root", "there is no ", "unshare: ", "no loop device", "cannot mount"];

/// Why the experiment cannot be made here, if it cannot.
fn missing(json: &str) -> Option<String> {
    let command = ["attach", "--quick", "--quiet", "--schemes", "S0", "--ways", "ext4", "--patterns", "seqread"];
    let said = run(&[&command[..], &["--json", json]].concat());
    if said.is_success() || !MISSING.iter().any(|missing| said.stderr.contains(missing)) {
        said.ok();
        return None;
    }
    Some(said.stderr.trim().to_owned())
}

fn text<'a>(cell: &'a Value, field: &str) -> &'a str {
    cell[field].as_str().unwrap_or_default()
}

/// Whether I/O went through, and is told of.
fn has_moved(cell: &Value) -> bool {
    let is_positive = |field: &str| cell[field].as_f64() > Some(0.0);
    cell["bytes"].as_u64() >= cell["size"].as_u64() && is_positive("mib_s") && is_positive("elapsed_s")
}

#[test]
fn programs_on_attached_volumes_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, page) = (path("attach.jsonl"), path("attach.md"));
    if let Some(reason) = missing(&json) {
        println!("skipped: attached volumes were not measured: {reason}");
        return;
    }
    let cells = measured(&["attach", "--quick", "--quiet", "--schemes", "S0,S2-5"], &json, has_moved);
    let rows: BTreeSet<String> = cells
        .iter()
        .map(|cell| {
            let part = |field: &str| text(cell, field);
            format!("{} {} {} {} {}", part("scheme"), part("access"), part("pattern"), cell["size"], cell["depth"])
        })
        .collect();
    assert_eq!(cells.len(), rows.len(), "one run of each");
    let mut expected = BTreeSet::new();
    let mut expect = |name: &str| {
        for point in ["randread 4096 1", "randread 4096 16", "randwrite 4096 1", "randwrite 4096 16"] {
            expected.insert(format!("{name} {point}"));
        }
        for pattern in ["seqread", "seqwrite"] {
            expected.extend(["65536 16", "1048576 4"].map(|size| format!("{name} {pattern} {size}")));
        }
    };
    for name in ["plain nbd", "LUKS nbd", "S0 client", "S0 file", "S0 nbd", "S2-5 client", "S2-5 file", "S2-5 nbd"] {
        expect(name);
    }
    for scheme in ["S0", "S2-5"] {
        let points = ["seqread 1048576 1", "seqwrite 1048576 1", "randread 4096 16"];
        expected.extend(points.map(|point| format!("{scheme} ext4 {point}")));
    }
    assert_eq!(rows, expected);
    for cell in &cells {
        let scheme = text(cell, "scheme");
        assert_eq!(text(cell, "suite") == "none", matches!(scheme, "S0" | "plain"), "{cell}");
        // What goes through the page cache has no latency of the volume's.
        let is_buffered = text(cell, "access") == "ext4" && text(cell, "pattern") != "randread";
        assert_eq!(cell["p50_us"].is_number() && cell["p99_us"].is_number(), !is_buffered, "{cell}");
        // nbdkit has no target.
        assert!(cell["target_cpu_s_per_gib"].is_number() || scheme == "plain", "{cell}");
        assert!(cell["initiator_cpu_s_per_gib"].is_number(), "{cell}");
    }
    run(&["report", &json, "--attach", &page]).ok();
    let page = fs::read_to_string(&page).unwrap();
    for part in [
        "| p50 above it, µs |",
        "| S2-5, without FUSE |",
        "| S2-5, NBD |",
        "| at most 35 |",
        "| at least 0.9 |",
        "| at least 80 |",
        "<!-- attach: end -->",
    ] {
        assert!(page.contains(part), "{part} is missing in {page}");
    }
}

#[test]
fn releases_and_arguments_are_contenders() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let json = path("attach.jsonl");
    if let Some(reason) = missing(&json) {
        println!("skipped: releases were not measured: {reason}");
        return;
    }
    // Stands for the product of another release.
    let product = path("strongroom");
    let lab = env!("CARGO_BIN_EXE_strongroom-lab");
    fs::write(&product, format!("#!/bin/sh\nexec '{lab}' product \"$@\"\n")).unwrap();
    fs::set_permissions(&product, fs::Permissions::from_mode(0o700)).unwrap();
    let (old, new) = (format!("old={product}"), format!("new={product}"));
    let command = ["attach", "--quick", "--quiet", "--schemes", "S2-5", "--ways", "file", "--patterns", "seqwrite"];
    let releases = ["--program", &old, "--program", &new];
    let arguments = ["--attach-with", "one=", "--attach-with", "two=--connections 2"];
    measured(&[&command[..], &releases, &arguments].concat(), &json, has_moved);
    let cells = cells(Path::new(&json));
    let contenders: BTreeSet<&str> = cells.iter().map(|cell| text(cell, "contender")).collect();
    let expected = ["S2-5 old one", "S2-5 old two", "S2-5 new one", "S2-5 new two"];
    let clients = ["S2-5 old, without FUSE", "S2-5 new, without FUSE"];
    assert_eq!(contenders, expected.into_iter().chain(clients).collect());
    for cell in &cells {
        let name = [text(cell, "scheme"), text(cell, "release"), text(cell, "attached_with")].join(" ");
        assert!(text(cell, "contender").starts_with(name.trim()), "{cell}");
    }
    run(&[&command[..], &["--program", &product, "--program", &product]].concat()).failed(&["--program NAME=PATH"]);
    // What an attachment refuses ends the experiment, in its words.
    let refused = [&command[..], &["--attach-with", "bad=--connections 0"]].concat();
    run(&refused).failed(&["--connections"]);
}

#[test]
fn attachments_that_nobody_uses_are_measured_with_polling_and_without() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, page) = (path("attach.jsonl"), path("attach.md"));
    if let Some(reason) = missing(&json) {
        println!("skipped: idle attachments were not measured: {reason}");
        return;
    }
    let command = ["attach", "--quick", "--quiet", "--schemes", "S2-5", "--ways", "file", "--patterns", "seqwrite"];
    run(&[&command[..], &["--idle", "3", "--seconds", "1", "--json", &json]].concat()).ok();
    let cells: Vec<Value> =
        cells(Path::new(&json)).into_iter().filter(|cell| text(cell, "bench") == "attach-idle").collect();
    let contenders: Vec<&str> = cells.iter().map(|cell| text(cell, "contender")).collect();
    assert_eq!(contenders, ["S2-5, polling off", "S2-5, polling auto"]);
    for cell in &cells {
        assert!(cell["error"].is_null() && cell["initiators"] == 3, "{cell}");
        for end in ["target_cpu", "initiator_cpu"] {
            // Nobody would call half of a processor idle.
            assert!(cell[end].as_f64().is_some_and(|cpu| cpu < 0.5), "{cell}");
        }
    }
    run(&["report", &json, "--attach", &page]).ok();
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("| S2-5, polling auto | 3 |") && !page.contains("at most 0.2 "), "40 are asked: {page}");
}

#[test]
fn wrong_wishes_are_refused_with_advice() {
    let refused = |arguments: &[&str], parts: &[&str]| {
        run(&[&["attach"], arguments].concat()).failed(parts);
    };
    refused(&["--ways", "nfs"], &["nfs", "file, nbd and ext4"]);
    refused(&["--schemes", "S9-9"], &["S9-9"]);
    refused(&["--program", "/nonexistent"], &["/nonexistent"]);
    refused(&["--attach-with", "two"], &["NAME=ARGUMENTS"]);
    refused(&["--runs", "0"], &["--runs 1"]);
    refused(&["--volume-size", "1MiB"], &["--volume-size 8MiB"]);
    refused(&["--target-cpus", "4000"], &["no processor 4000"]);
}
