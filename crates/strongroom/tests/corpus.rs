//! Replays the fuzz corpora, and random bytes beside them: what fuzzing has found stays found.

#[path = "../../../fuzz/src/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};
use targets::TARGETS;

#[test]
fn every_target_takes_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let Ok(entries) = fs::read_dir(corpus.join(name)) else {
            panic!("fuzz/corpus/{name} is missing: run `scripts/fuzz.sh 30 {name}` and commit a few inputs");
        };
        for entry in entries {
            target(&fs::read(entry.unwrap().path()).unwrap());
        }
    }
}

#[test]
fn every_target_takes_random_bytes() {
    for (name, target) in TARGETS {
        let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
        runner
            .run(&vec(any::<u8>(), 0..600), |bytes| {
                target(&bytes);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
