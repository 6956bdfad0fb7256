//! Proves that ECL takes part in the grid and that what it writes is whole, that I/Os at a fixed rate are no more than asked, and that the
//! experiments about ECL run and are judged.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::stage::run;
use crate::{SHORT, cells, measured};

#[test]
fn ecl_is_measured_beside_iscsi_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("results.jsonl").to_str().unwrap().to_owned();
    let usual = ["rawio", "--volume-size", "8MiB", "--depths", "4", "--sizes", "4k", "--verify"];
    let both = ["--schemes", "S2-5,ECL-S1-2,ECL-S2-5", "--patterns", "randread,randwrite", "--initiators", "2"];
    let is_verified = |cell: &Value| cell["verified"].as_u64() > Some(0);
    let measured_both = measured(&[&usual[..], &both, &SHORT].concat(), &json, is_verified);
    assert_eq!(measured_both.len(), 3 * 2 * 2);
    assert!(measured_both.iter().all(|cell| cell["suite"] == "aes-256-gcm"), "{measured_both:?}");
    let quanta = ["--schemes", "ECL-S2-5", "--seal-bytes", "512,2k", "--patterns", "seqwrite"];
    let measured_quanta = measured(&[&usual[..], &quanta, &SHORT].concat(), &json, is_verified);
    assert_eq!(measured_quanta.len(), 2 * 2);
    run(&["rawio", "--schemes", "ECL-S2-5", "--seal-bytes", "64k"]).failed(&["--seal-bytes from 512"]);
    run(&["rawio", "--schemes", "ECL-S2-1"]).failed(&["ECL-S1-2, ECL-S2-5"]);
}

#[test]
fn ios_at_a_rate_are_no_more_than_asked() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("results.jsonl").to_str().unwrap().to_owned();
    let paced = ["rawio", "--schemes", "S0", "--patterns", "randread", "--sizes", "4k", "--rate", "100"];
    let is_paced = |cell: &Value| cell["elapsed_s"].as_f64() > Some(0.9) && cell["ios"].as_u64() > Some(0);
    for cell in measured(&[&paced[..], &["--volume-size", "8MiB"], &SHORT].concat(), &json, is_paced) {
        let most = 100.0 * cell["elapsed_s"].as_f64().unwrap() + 20.0;
        assert!(cell["ios"].as_f64().unwrap() < most, "{cell}");
    }
}

#[test]
fn the_experiments_about_ecl_run_and_are_judged() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, page) = (path("ecl.jsonl"), path("ecl.md"));
    let short = ["--seconds", "0.2", "--warm-up", "0", "--runs", "1", "--fills", "1", "--volume-size", "8MiB"];
    let said = run(&[&["ecl", "goals", "--quiet", "--json", &json], &short[..]].concat());
    if ["takes root", "no ethtool", "no ip;"].iter().any(|part| said.stderr.contains(part)) {
        println!("skipped: the experiments about ECL were not tested: {}", said.stderr.trim());
        return;
    }
    let cells = cells(Path::new(&json));
    let of = |bench: &str| cells.iter().filter(|cell| cell["bench"] == bench).collect::<Vec<_>>();
    assert_eq!(of("ecl-latency").len(), 2 * 4, "{}", said.stderr);
    for cell in of("ecl-latency") {
        assert!(cell["p50_us"].is_number() && cell["mtu"] == 9000 && cell["offloads"] == true, "{cell}");
    }
    run(&["report", &json, "--ecl", &page]).ok();
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("| p50, over S2-5 by TCP, both block | ecl-latency: 4 KiB randread, depth 1 |"), "{page}");
    assert!(page.contains("<!-- ecl: end -->") && page.contains("| ecl-latency | S2-5 |"), "{page}");
    run(&["ecl", "goal"]).failed(&["goals, figures"]);
}
