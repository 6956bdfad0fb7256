//! Proves that ECL takes part in the grid and that what it writes is whole, that I/Os at a fixed rate are no more than asked, and that each
//! experiment about ECL runs, measures all that it should, and is judged.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;

use serde_json::Value;

use crate::stage::run;
use crate::{SECONDS, SHORT, cells, measured};

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

/// What an experiment left: its cells, and the page that the report makes of them.
struct Judged {
    cells: Vec<Value>,
    page: String,
}

/// Runs an experiment, longer and longer until every cell is measured. `None`: the machine lacks what it takes.
#[track_caller]
fn judged(experiment: &str) -> Option<Judged> {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, page, plots) = (path("ecl.jsonl"), path("ecl.md"), path("plots"));
    let short = ["--quiet", "--warm-up", "0", "--runs", "1", "--fills", "1", "--volume-size", "8MiB", "--json", &json];
    let mut seconds = SECONDS.iter();
    loop {
        let seconds = seconds.next().expect("enough time to measure something");
        let said = run(&[&["ecl", experiment, "--seconds", seconds], &short[..]].concat());
        if ["takes root", "no ethtool", "no ip;"].iter().any(|part| said.stderr.contains(part)) {
            println!("skipped: the experiment {experiment} about ECL was not tested: {}", said.stderr.trim());
            return None;
        }
        let mut cells = cells(Path::new(&json));
        // The local disk is measured by a program that need not be there.
        cells.retain(|cell| !cell["error"].as_str().is_some_and(|error| error.contains("there is no fio")));
        let errors: BTreeSet<&str> = cells.iter().filter_map(|cell| cell["error"].as_str()).collect();
        if errors.iter().any(|error| error.contains("give more --seconds")) {
            continue;
        }
        assert!(errors.is_empty() && !cells.is_empty(), "{errors:?} {}", said.stderr);
        run(&["report", &json, "--ecl", &page, "--plots", &plots]).ok();
        let page = fs::read_to_string(&page).unwrap();
        assert!(page.contains("<!-- ecl: end -->"), "{page}");
        for bench in cells.iter().filter_map(|cell| cell["bench"].as_str()).collect::<BTreeSet<_>>() {
            let mut asked = page.lines().filter(|line| line.contains(&format!("| {bench}: ")));
            assert!(asked.all(|line| !line.ends_with("not measured |")), "{bench}: {page}");
            assert!(!page.contains(&format!("| {bench} | at ")), "a question about {bench} has no answer: {page}");
        }
        return Some(Judged { cells, page });
    }
}

impl Judged {
    fn of(&self, bench: &str) -> Vec<&Value> {
        self.cells.iter().filter(|cell| cell["bench"] == bench).collect()
    }

    /// What differs among the cells of an experiment.
    fn different(&self, bench: &str, field: &str) -> BTreeSet<String> {
        let text = |cell: &&Value| cell[field].as_str().map_or_else(|| cell[field].to_string(), str::to_owned);
        self.of(bench).iter().map(text).collect()
    }

    /// The table has a line that begins so.
    #[track_caller]
    fn asks(&self, begin: &str) -> &str {
        let line = self.page.lines().find(|line| line.starts_with(begin));
        line.unwrap_or_else(|| panic!("no line begins with {begin}: {}", self.page))
    }
}

#[test]
fn the_goals_are_measured_and_judged() {
    let Some(judged) = judged("goals") else { return };
    assert_eq!(judged.of("ecl-latency").len(), 2 * 4);
    for cell in judged.of("ecl-latency") {
        assert!(cell["p50_us"].is_number() && cell["mtu"] == 9000 && cell["offloads"] == true, "{cell}");
    }
    judged.asks("| p50, over S2-5 by TCP, both block | ecl-latency: 4 KiB randread, depth 1 |");
    let over_plain = judged.asks("| target CPU per GiB, over S0 | ecl-64k: 64 KiB seqread");
    assert!(over_plain.contains("63 %") && over_plain.ends_with("| reported |"), "{over_plain}");
    run(&["ecl", "goal"]).failed(&["goals, figures"]);
}

/// Whether a process has a packet socket of our own type of Ethernet frames.
fn frames_are_used() -> bool {
    let has_socket = |process: &fs::DirEntry| {
        let table = fs::read_to_string(process.path().join("net/packet")).unwrap_or_default();
        table.lines().any(|line| line.split_whitespace().nth(3) == Some("88b5"))
    };
    fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|process| has_socket(&process))
}

/// Also where packets are Ethernet frames, where they are lost, and where parity repairs what was lost.
#[test]
fn what_is_read_over_ecl_is_what_was_written() {
    let experiment = thread::spawn(|| judged("verify"));
    let mut has_seen_frames = false;
    while !experiment.is_finished() {
        has_seen_frames |= frames_are_used();
        thread::sleep(std::time::Duration::from_millis(20));
    }
    let Some(judged) = experiment.join().unwrap() else { return };
    assert!(has_seen_frames, "nobody had a socket for frames");
    assert_eq!((judged.of("ecl-verify").len(), judged.of("ecl-verify-loss").len()), (2 * 2 * 2, 2 * 2 * 2));
    assert!(judged.cells.iter().all(|cell| cell["verified"].as_u64() > Some(0)), "{:?}", judged.cells);
    assert!(judged.different("ecl-verify", "contender").contains("ECL-S2-5 in Ethernet frames"));
    assert!(judged.different("ecl-verify-loss", "contender").contains("ECL-S2-5, parity"));
    for bench in ["ecl-verify", "ecl-verify-loss"] {
        let question =
            "| measurements that failed, as with wrong bytes, a lost acknowledged write, or a stale overwrite |";
        let line = judged.asks(&format!("{question} {bench}: "));
        assert!(line.contains("| 0.00 (of 8; ") && line.ends_with("| met |"), "{line}");
    }
}

#[test]
fn figures_are_over_packets_and_quanta_of_every_length() {
    let Some(judged) = judged("figures") else { return };
    let lengths = ["1500", "16000", "2048", "4300", "9000"].map(str::to_owned).into();
    assert_eq!(judged.different("ecl-mtu", "mtu"), lengths);
    let of_frames: Vec<_> =
        judged.of("ecl-mtu").into_iter().filter(|cell| cell["contender"] == "ECL-S2-5 in Ethernet frames").collect();
    assert_eq!(of_frames.len(), 5 * 2 * 2, "every length, with and without offloads, both ways");
    assert!(
        of_frames
            .iter()
            .all(|cell| cell["mib_s"].as_f64() > Some(0.0) && cell["initiator_crypto_per_byte"].as_f64() > Some(1.0))
    );
    assert_eq!(judged.of("ecl-quantum").len(), 3 * 2 * 2 * 8);
    assert_eq!(judged.different("ecl-quantum", "mtu"), ["1500", "5000", "9000"].map(str::to_owned).into());
    judged.asks("| ecl-mtu | ECL-S2-5 in Ethernet frames | ECL-S2-5 |");
    judged.asks("![ecl-mtu: ");
}

#[test]
fn depths_are_measured_with_every_scheme_that_ecl_carries() {
    let Some(judged) = judged("depths") else { return };
    assert_eq!(judged.of("ecl-depths").len(), 2 * 5 * 5);
    assert_eq!(judged.different("ecl-depths", "depth"), ["1", "4", "16", "64", "128"].map(str::to_owned).into());
    let contenders = ["ECL-S1-2", "ECL-S2-5", "S0", "S2-1", "S2-5"].map(str::to_owned).into();
    assert_eq!(judged.different("ecl-depths", "contender"), contenders);
    assert!(judged.cells.iter().all(|cell| cell["target_cpu_ms_per_kio"].as_f64() > Some(0.0)), "{:?}", judged.cells);
}

#[test]
fn lossy_and_long_links_are_measured() {
    let Some(judged) = judged("loss") else { return };
    assert_eq!(judged.of("ecl-loss").len(), 3 * 5 * 2);
    assert_eq!(judged.different("ecl-loss", "loss_percent"), ["0.0", "0.5", "1.0", "2.0"].map(str::to_owned).into());
    assert_eq!(judged.different("ecl-loss", "delay_ms"), ["0.05", "0.5", "10.0"].map(str::to_owned).into());
    assert_eq!(judged.different("ecl-loss-parity", "contender").len(), 3, "with parity, without, and over TCP");
    assert_eq!(judged.of("ecl-long").len(), 2 * 2);
    for begin in [
        "| p99 of reads, over S2-5 by TCP | ecl-loss: ",
        "| p99 of reads with parity 8+1, over S2-5 by TCP | ecl-loss-parity: ",
        "| writes, of the link's rate for payload | ecl-long: ",
    ] {
        judged.asks(begin);
    }
}

#[test]
fn shares_of_a_bottleneck_are_measured() {
    let Some(judged) = judged("fairness") else { return };
    assert_eq!(judged.of("ecl-beside-tcp").len(), 2);
    for cell in judged.of("ecl-beside-tcp") {
        assert!(cell["tcp_beside_mib_s"].as_f64() > Some(0.0), "{cell}");
    }
    assert_eq!(judged.of("ecl-several").len(), 4 * 2);
    for cell in judged.of("ecl-several") {
        let fairness = cell["fairness"].as_f64();
        assert_eq!(fairness.is_some(), cell["initiators"] != 1, "{cell}");
        assert!(fairness.is_none_or(|fairness| fairness > 0.0 && fairness <= 1.0), "{cell}");
        assert!(cell["p999_us"].is_number(), "{cell}");
    }
    judged.asks("| throughput, over a TCP connection's through the same bottleneck | ecl-beside-tcp: ");
}

#[test]
fn a_flood_is_compared_with_one_that_is_discarded_and_with_none() {
    let Some(judged) = judged("flood") else { return };
    let contenders = ["ECL-S2-5", "ECL-S2-5 beside a socket that discards", "ECL-S2-5 without a flood"];
    assert_eq!(judged.different("ecl-flood", "contender"), contenders.map(str::to_owned).into());
    judged.asks(
        "| throughput with its UDP port flooded, over that beside a socket that discards the flood | ecl-flood: ",
    );
}
