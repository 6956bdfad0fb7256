//! Proves that the experiments are alive: each runs for real, as short as it goes, with targets and initiators as processes;
//! that what it writes is whole; that wrong wishes are refused with advice; and that data behind a URL is not overwritten
//! unless that is asked for. Says nothing about speed.

mod stage;

use std::fs;
use std::path::Path;

use serde_json::Value;
use stage::{World, run};

const SHORT: [&str; 7] = ["--seconds", "0.1", "--warm-up", "0", "--runs", "2", "--quiet"];

/// The cells of a file of results.
fn cells(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("there are results");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    assert!(lines[0]["machine"]["kernel"].is_string(), "a run begins with its machine");
    lines.into_iter().filter(|line| line["bench"].is_string()).collect()
}

#[test]
fn rawio_measures_and_verifies_every_scheme_and_the_report_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let json = path("results.jsonl");
    let mut command = vec!["bench", "rawio", "--schemes", "S0,S2-5", "--patterns", "randread,seqwrite", "--sizes"];
    command.extend([
        "512,4k",
        "--initiators",
        "2",
        "--depths",
        "4",
        "--volume-size",
        "8MiB",
        "--verify",
        "--json",
        &json,
    ]);
    run(&[&command[..], &SHORT[..]].concat()).ok();

    let cells = cells(Path::new(&json));
    assert_eq!(cells.len(), 2 * 2 * 2 * 2);
    for cell in &cells {
        assert!(cell["error"].is_null(), "{cell}");
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
        let (sealed, crypto) = (cell["scheme"] == "S2-5", cell["initiator_crypto_per_byte"].as_f64().unwrap());
        assert_eq!(sealed, cell["suite"] == "aes-256-gcm", "{cell}");
        assert!(if sealed { crypto > 1.9 } else { crypto == 0.0 }, "{cell}");
        if let Some(crypto) = cell["target_crypto_per_byte"].as_f64() {
            assert!(crypto < if cell["size"] == 512 { 1.0 } else { 0.2 }, "headers only: {cell}");
        }
    }

    run(&[&["bench", "stream", "--sizes", "4k", "--json", &json, "--append"], &SHORT[..]].concat()).ok();
    let (html, plots, markdown) = (path("report.html"), path("plots"), path("report.md"));
    run(&["bench", "report", &json, "--html", &html, "--plots", &plots, "--markdown", &markdown]).ok();
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.contains("S2-1") && page.contains("</html>") && !page.contains("src=\"http"));
    for plot in ["rawio-what-it-moved.svg", "rawio-what-it-moved.png", "stream-what-it-cost-the-target.svg"] {
        assert!(Path::new(&plots).join(plot).metadata().unwrap().len() > 1500, "{plot}");
    }
}

#[test]
fn any_target_can_be_measured_by_url_and_its_data_is_safe() {
    let world = World::new();
    world.create(&["disk", "--plain", "--initiator", "*", "--size", "8MiB"]).ok();
    let server = world.serve();
    let url = world.plain_url("disk");
    let json = &world.text("results.jsonl");
    let rawio = ["bench", "rawio", "--url", &url, "--sizes", "4k", "--json", json];
    run(&[&rawio[..], &SHORT[..]].concat()).failed(&["--destroy-data", "seqread,randread"]);
    run(&[&rawio[..], &["--patterns", "randread"], &SHORT[..]].concat()).ok();
    assert!(cells(Path::new(json)).iter().all(|cell| cell["error"].is_null() && cell["mib_s"].is_number()));
    run(&[&rawio[..], &["--patterns", "randwrite", "--destroy-data", "--verify"], &SHORT[..]].concat()).ok();
    drop(server);
    // A target that is not there is a failed cell, and a failed command.
    run(&[&rawio[..], &["--patterns", "randread"], &SHORT[..]].concat()).failed(&["cells failed"]);
    let failed = cells(Path::new(json));
    assert!(failed.iter().all(|cell| cell["error"].is_string() && cell["mib_s"].is_null()), "{failed:?}");
}

#[test]
fn wrong_wishes_are_refused_with_advice() {
    let refused = |arguments: &[&str], parts: &[&str]| {
        run(&[&["bench"], arguments].concat()).failed(parts);
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
    refused(&["stream", "--protections", "ssl"], &["S2-5"]);
    refused(&["report", "/nonexistent"], &["/nonexistent"]);
}
