//! Runs libiscsi's conformance suite (`iscsi-test-cu`, Debian package libiscsi-bin) against our target and proves: no test fails, and every test
//! runs, but for those that docs/conformance.md lists with the reason why they cannot apply. The suite itself counts a skipped test as passed,
//! so skips are counted here.
//!
//! STRONGROOM_TEST_CU names another build of the suite (a newer one has more tests). A missing tool is a failure, unless
//! STRONGROOM_SKIP_INTEROP=1 is set; then that is said on standard error.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use strongroom_iscsi::chap::Secret;
use strongroom_target::config::{ChapRule, PlainRule};
use strongroom_target::{ChapSecrets, VolumeSpec};

use crate::support::{Host, MIB, target_name};

/// Processes of the suite at once. They mostly wait and sleep.
const AT_ONCE: usize = 6;
/// No run takes so long unless it hangs.
const RUN_PATIENCE: Duration = Duration::from_secs(900);

fn tool() -> String {
    std::env::var("STRONGROOM_TEST_CU").unwrap_or_else(|_| "iscsi-test-cu".to_owned())
}

/// How a test ended in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Ran,
    Skipped(String),
    Failed(String),
}

/// What one process of the suite does.
struct Run {
    /// `FAMILY.SUITE`, or more than one, separated by commas.
    tests: String,
    volume: &'static str,
    /// Two paths to the unit.
    multipath: bool,
    /// Before the host in the URL: `user%password@`.
    login: String,
}

/// Whether the suite is there. Loud if not.
fn have_suite() -> bool {
    if Command::new(tool()).arg("--help").output().is_ok() {
        return true;
    }
    let skip = std::env::var_os("STRONGROOM_SKIP_INTEROP").is_some_and(|value| value == "1");
    assert!(skip, "{} is missing: install libiscsi-bin, or set STRONGROOM_SKIP_INTEROP=1", tool());
    let _ = writeln!(std::io::stderr(), "\n*** SKIPPED conformance: no {} ***", tool());
    false
}

/// Every test of the suite, as `FAMILY.SUITE.TEST`.
fn all_tests() -> BTreeSet<String> {
    let output = Command::new(tool()).arg("--list").output().expect("it was there a moment ago");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| line.matches('.').count() == 2).map(str::to_owned).collect()
}

impl Run {
    /// Runs it; verdicts by `SUITE.TEST`.
    fn go(&self, host: &Host) -> BTreeMap<String, Verdict> {
        let url = format!("iscsi://{}{}/{}/0", self.login, host.address(), target_name(self.volume));
        let mut command = Command::new("timeout");
        command.arg(RUN_PATIENCE.as_secs().to_string()).arg(tool());
        command.args(["--dataloss", "--allow-sanitize", "--verbose", "--Verbose-scsi", "--test", &self.tests, &url]);
        if self.multipath {
            command.arg(&url);
        }
        let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", tool()));
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("Run Summary"), "{} did not come to its end:\n{}", self.tests, tail(&text, 40));
        verdicts(&text)
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Cuts the suite's output at "Suite:" and "Test:" and judges each test by what it printed.
fn verdicts(text: &str) -> BTreeMap<String, Verdict> {
    let mut found = BTreeMap::new();
    for suite in text.split("\nSuite: ").skip(1) {
        let suite_name = suite.lines().next().unwrap_or("").trim();
        for test in suite.split("\n  Test: ").skip(1) {
            let (name, said) = test.split_once(" ...").unwrap_or((test, ""));
            let said = said.split("Run Summary").next().unwrap_or(said);
            let line = |what: &str| said.lines().find(|line| line.contains(what)).unwrap_or(what).trim().to_owned();
            let verdict = if said.contains("FAILED\n    1.") || !said.contains("passed") {
                Verdict::Failed(tail(said, 12))
            } else if skips_whole(said) {
                Verdict::Skipped(line("[SKIPPED]"))
            } else {
                Verdict::Ran
            };
            found.insert(format!("{suite_name}.{}", name.trim()), verdict);
        }
    }
    found
}

/// A test skips if it says so. What it says of parts that do not concern this unit, having tested the rest, is listed here.
fn skips_whole(said: &str) -> bool {
    const PARTS: [&str; 7] = [
        // SANITIZE is tested with each erasure that there is.
        "[SKIPPED] SANITIZE OVERWRITE is not",
        "[SKIPPED] SANITIZE CRYPTO_ERASE is not",
        // A clause of SPC-3 only.
        "Target is SPC-4+. Skipping NUL bit test",
        // WRITE ATOMIC works at any address and with any number of blocks.
        "[SKIPPED] No alignment restrictions",
        "[SKIPPED] No granularity restrictions",
        // Said after the refusal of a count of 0 (WSNZ=1) was tested.
        "[SKIPPED] WRITESAME10 does not support 0-blocks",
        "[SKIPPED] WRITESAME16 does not support 0-blocks",
    ];
    let one_erasure = said.contains("Test SANITIZE BLOCK_ERASE");
    said.lines()
        .filter(|line| line.contains("[SKIPPED]"))
        .any(|line| !PARTS.iter().enumerate().any(|(index, part)| line.contains(part) && (index > 1 || one_erasure)))
}

/// The tests that docs/conformance.md excuses.
fn excused() -> BTreeSet<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/conformance.md");
    let text = std::fs::read_to_string(path).expect("docs/conformance.md is there");
    let table = text.split("<!-- excused -->").nth(1).expect("the list of excused tests is marked");
    let cell = |line: &str| line.strip_prefix("| `")?.split('`').next().map(str::to_owned);
    table.lines().filter_map(cell).collect()
}

/// `FAMILY.SUITE` for every suite of a family.
fn suites(tests: &BTreeSet<String>, family: &str) -> Vec<String> {
    let prefix = format!("{family}.");
    let of = |test: &String| test.starts_with(&prefix).then(|| test[..test.rfind('.').unwrap_or(0)].to_owned());
    let found: BTreeSet<String> = tests.iter().filter_map(of).collect();
    found.into_iter().collect()
}

fn host() -> Host {
    let mut volumes: Vec<VolumeSpec> = VOLUMES.iter().map(|name| VolumeSpec::plain(*name, 256 * MIB)).collect();
    // Blocks of 512 bytes in physical blocks of 4096: some tests want units with both.
    volumes.extend(SMALL.iter().map(|name| VolumeSpec { block_size: 512, ..VolumeSpec::plain(*name, 256 * MIB) }));
    volumes.extend(["fixed", "fresh"].map(|name| VolumeSpec::plain(name, 256 * MIB)));
    Host::start_with(&volumes, |config| {
        config.plain.clear();
        let rule = |volumes: Vec<String>, read_only| PlainRule {
            initiators: vec!["*".into()],
            volumes,
            read_only,
            ..PlainRule::default()
        };
        config.plain.push(rule(vec!["fixed".into()], true));
        let writable = VOLUMES.iter().chain(&SMALL).chain(&["fresh"]);
        config.plain.push(rule(writable.map(|name| (*name).to_owned()).collect(), false));
    })
}

/// One volume of each kind for each process: the suite uses it all.
const VOLUMES: [&str; AT_ONCE] = ["a", "b", "c", "d", "e", "f"];
const SMALL: [&str; AT_ONCE] = ["a5", "b5", "c5", "d5", "e5", "f5"];

#[test]
fn the_suite_runs_and_nothing_fails() {
    if !have_suite() {
        return;
    }
    let host = host();
    let tests = all_tests();
    assert!(tests.len() > 400, "the list of tests is not what it was: {}", tests.len());
    // All suites with two paths, then the families SCSI and iSCSI with one, to smaller blocks; those that sleep longest first.
    let mut queue: Vec<(String, bool)> = suites(&tests, "ALL").into_iter().map(|suite| (suite, true)).collect();
    for family in ["SCSI", "iSCSI"] {
        queue.extend(suites(&tests, family).into_iter().map(|suite| (suite, false)));
    }
    // Its GetLBAStatus asks in the middle of a physical block and expects the next one's address, if they differ from logical ones.
    let small = |suite: &str| !["MultipathIO", "GetLBAStatus"].iter().any(|other| suite.contains(other));
    queue.retain(|(suite, multipath)| !runs_elsewhere(suite) && (*multipath || small(suite)));
    queue.sort_by_key(|(suite, _)| {
        ["Reserve6", "PreventAllow", "iSCSI", "Sanitize"].iter().any(|slow| suite.contains(slow))
    });
    let queue = Mutex::new(queue);
    let results: Mutex<Results> = Mutex::default();
    let started = Instant::now();
    let take = || queue.lock().unwrap().pop();
    std::thread::scope(|scope| {
        for index in 0..AT_ONCE {
            let (host, results) = (&host, &results);
            scope.spawn(move || {
                while let Some((tests, multipath)) = take() {
                    // Its COMPARE AND WRITE goes one block beyond what it has zeroed (libiscsi 1.19).
                    let volume = if tests.contains("MultipathIO") {
                        "fresh"
                    } else if multipath {
                        VOLUMES[index]
                    } else {
                        SMALL[index]
                    };
                    let verdicts = Run { tests, volume, multipath, login: String::new() }.go(host);
                    note(&mut results.lock().unwrap(), verdicts);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    // A unit that may only be read runs the tests that want one.
    note(
        &mut results,
        Run { tests: "SCSI.ReadOnly".into(), volume: "fixed", multipath: false, login: String::new() }.go(&host),
    );
    report(&tests, &results, started.elapsed());
}

/// CHAP has a test of its own below. Of text keys that it makes up the suite (newer than Debian's) expects a Reject PDU, where RFC 7143
/// §6.2 wants the answer NotUnderstood; it waits for ever for that.
fn runs_elsewhere(test: &str) -> bool {
    test.contains("CHAP") || test.contains("SendTargets")
}

/// How each `SUITE.TEST` ended, in every run.
type Results = BTreeMap<String, Vec<Verdict>>;

fn note(results: &mut Results, verdicts: BTreeMap<String, Verdict>) {
    for (test, verdict) in verdicts {
        results.entry(test).or_default().push(verdict);
    }
}

/// Judges it all: what failed, what was left out, what was skipped without or against the list.
fn report(tests: &BTreeSet<String>, results: &Results, took: Duration) {
    let mut failed = Vec::new();
    let mut skipped = BTreeMap::new();
    for (test, verdicts) in results {
        let said = verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Failed(said) => Some(format!("{test}:\n{said}")),
            _ => None,
        });
        failed.extend(said);
        if let (false, Some(Verdict::Skipped(why))) = (verdicts.contains(&Verdict::Ran), verdicts.first()) {
            skipped.insert(test.clone(), why.clone());
        }
    }
    let wanted: BTreeSet<&str> = tests
        .iter()
        .filter_map(|test| test.split_once('.'))
        .filter(|(family, _)| *family == "ALL")
        .map(|(_, test)| test)
        .collect();
    let missing: Vec<_> = wanted.iter().filter(|test| !runs_elsewhere(test) && !results.contains_key(**test)).collect();
    let excused = excused();
    let surprising: Vec<_> = skipped.iter().filter(|(test, _)| !excused.contains(*test)).collect();
    let stale: Vec<_> = excused.iter().filter(|test| !skipped.contains_key(*test)).collect();
    let _ = writeln!(
        std::io::stderr(),
        "\niscsi-test-cu: {} tests, {} runs in {} s: {} failed, {} skipped, {} of them without an excuse",
        results.len(),
        results.values().map(Vec::len).sum::<usize>(),
        took.as_secs(),
        failed.len(),
        skipped.len(),
        surprising.len(),
    );
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n\n"));
    assert!(missing.is_empty(), "not run: {missing:?}");
    assert!(surprising.is_empty(), "skipped, and docs/conformance.md does not say why: {surprising:#?}");
    assert!(stale.is_empty(), "docs/conformance.md excuses what is not skipped (any more): {stale:?}");
}

/// Users whose names look like numbers in hexadecimal or base64, and one whose does not: the CHAP tests of a newer suite (Debian's 1.19 has none)
/// want a run with each. With Debian's suite its reading tests run behind each login.
#[test]
fn the_suite_logs_in_with_chap() {
    if !have_suite() {
        return;
    }
    const USERS: [&str; 3] = ["plainuser", "0xabcd1234", "0babcd1234"];
    const PASSWORD: &str = "libiscsi-test-secret";
    let mut secrets = ChapSecrets::default();
    for user in USERS {
        secrets.insert(user, Secret::new(PASSWORD.as_bytes()).unwrap(), None);
    }
    let host = Host::start_with_secrets(&[VolumeSpec::plain("disk", 64 * MIB)], secrets, |config| {
        config.chap.extend(USERS.map(|user| ChapRule { user: user.into(), ..ChapRule::default() }));
        config.plain[0].chap = USERS.map(str::to_owned).to_vec();
    });
    let tests = all_tests();
    let has_chap = tests.iter().any(|test| test.contains("CHAP"));
    let wanted = if has_chap { "iSCSI.iSCSICHAP" } else { "SCSI.Read10" };
    let mut results = Results::new();
    for user in USERS {
        let login = format!("{user}%{PASSWORD}@");
        let verdicts = Run { tests: wanted.into(), volume: "disk", multipath: false, login }.go(&host);
        assert!(!verdicts.is_empty(), "{wanted} ran nothing");
        note(&mut results, verdicts);
    }
    let bad: Vec<_> = results.iter().filter(|(_, verdicts)| !verdicts.contains(&Verdict::Ran)).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let failed = |verdict: &Verdict| matches!(verdict, Verdict::Failed(_));
    let failed: Vec<_> = results.iter().filter(|(_, verdicts)| verdicts.iter().any(failed)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let wrong = Command::new(tool())
        .args([
            "--test",
            "SCSI.Read10",
            &format!("iscsi://plainuser%wrong@{}/{}/0", host.address(), target_name("disk")),
        ])
        .output()
        .unwrap();
    assert!(!wrong.status.success() || !String::from_utf8_lossy(&wrong.stdout).contains("passed"));
}

#[test]
fn the_judge_tells_failures_and_skips_apart() {
    let text = "\nSuite: S\n  Test: Good ...    noise\npassed\n  Test: Left ...    [SKIPPED] no such thing\npassed\n  Test: Bad ...FAILED\n    1. x.c:1  - CU_FAIL\nRun Summary: passed\n";
    let found = verdicts(text);
    assert_eq!(found["S.Good"], Verdict::Ran);
    assert!(matches!(&found["S.Left"], Verdict::Skipped(why) if why.contains("no such thing")));
    assert!(matches!(found["S.Bad"], Verdict::Failed(_)));
    let partly = "\nSuite: S\n  Test: A ... [SKIPPED] SANITIZE OVERWRITE is not\n Test SANITIZE BLOCK_ERASE\npassed\n";
    assert_eq!(verdicts(partly)["S.A"], Verdict::Ran);
    let wholly = "\nSuite: S\n  Test: A ... [SKIPPED] SANITIZE OVERWRITE is not\npassed\n";
    assert!(matches!(verdicts(wholly)["S.A"], Verdict::Skipped(_)));
}
