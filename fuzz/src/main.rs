//! libFuzzer's entry: runs the target that `STRONGROOM_FUZZ_TARGET` names, or lists them.
//!
//! One binary for all targets, because the instrumented build is the slow part. Absent: the targets themselves.

#![no_main]

mod randomness;
mod targets;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use targets::{TARGETS, Target};

static TARGET: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = std::env::var("STRONGROOM_FUZZ_TARGET").unwrap_or_default();
    if name == "list" {
        for (name, _) in TARGETS {
            println!("{name}");
        }
        std::process::exit(0);
    }
    match TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => *target,
        None => {
            eprintln!("no fuzz target '{name}'; set STRONGROOM_FUZZ_TARGET to one of those that `list` shows");
            std::process::exit(2);
        }
    }
}

fuzz_target!(init: { TARGET.get_or_init(chosen); }, |bytes: &[u8]| {
    TARGET.get_or_init(chosen)(bytes);
});
