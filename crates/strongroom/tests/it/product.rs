//! Proves that the product does not have the papers' cipher suites, which protect nothing today, and says so when one is named; and
//! that its symbols are taken out of it into a file that debuggers find.
//!
//! The suites can be missed only in a product that was built alone, for cargo unifies the features of what it builds together, and the
//! lab's ciphers are the product's too then: `make test-product`. Elsewhere this passes itself over.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::stage::{World, has, run};
use strongroom_block::Suite;

/// Set by `make test-product`: to pass over is a failure then.
const ALONE: &str = "STRONGROOM_PRODUCT_ALONE";
/// The papers' suites, by all of their names.
const WEAK: [&str; 5] = ["paper", "3des", "aes192-cbc+hmac-md5", "3des-cbc+hmac-md5", "3DES-CBC+HMAC-MD5"];
/// What is said of each.
const REFUSAL: [&str; 3] = ["protects nothing today", "strongroom-lab", "choose from aes-256-gcm"];

#[test]
fn a_product_that_was_built_alone_refuses_the_papers_suites() {
    if Suite::ALL.into_iter().any(Suite::is_for_benchmarks_only) {
        assert!(std::env::var_os(ALONE).is_none(), "the product was built alone, and has the papers' suites");
        return eprintln!("passed over: built together with the lab; run make test-product");
    }
    // Not from a record, a description or a peer either.
    for byte in [0xf0, 0xf1] {
        assert!(Suite::from_byte(byte).is_err());
    }
    let world = World::new();
    let url = "strongroom://127.0.0.1:1/vault";
    for suite in WEAK {
        let refused = |said: crate::stage::CommandOutput| {
            said.failed(&[&REFUSAL[..], &[suite]].concat());
        };
        refused(world.create(&["vault", "--size", "1MiB", "--medium", "memory", "--suite", suite]));
        refused(run(&["plan", "--rtt", "1ms", "--rate", "1Gbit", "--suite", suite]));
        refused(world.alice(&["volume", "verify", url, "--read-only", "--channel-suite", suite]));
        let mut command = world.alice_command(&["copy", url, &world.text("out")]);
        command.env("STRONGROOM_CHANNEL_SUITE", suite);
        refused(world.finish(command));
        let in_url = format!("{url}?suite={suite}");
        refused(world.alice(&["volume", "verify", &in_url, "--read-only"]));
        let config = world.text("weak.toml");
        fs::write(&config, format!("root = {:?}\nsuites = [\"{suite}\"]\n", world.text("volumes"))).unwrap();
        refused(run(&["serve", "--config", &config, "--check"]));
    }
    run(&["serve", "--root", &world.text("volumes"), "--benchmark-suites"])
        .failed(&["--benchmark-suites", "strongroom-lab"]);
    // A volume that says that it is of such a suite is not served.
    world.create(&["vault", "--size", "1MiB"]).ok();
    let description = world.path("volumes/vault/volume.toml");
    let text = fs::read_to_string(&description).unwrap();
    let weak = text.replace("aes-256-gcm", "3des-cbc+hmac-md5");
    assert_ne!(weak, text);
    fs::write(&description, weak).unwrap();
    run(&["volume", "show", "vault", "--root", &world.text("volumes")])
        .failed(&["3des-cbc+hmac-md5", "not known to this build"]);
}

#[test]
fn symbols_are_taken_out_and_found_again() {
    if !["objcopy", "readelf"].into_iter().all(has) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [program, symbols] = ["strongroom", "strongroom.debug"].map(|name| dir.path().join(name));
    fs::copy(env!("CARGO_BIN_EXE_strongroom"), &program).unwrap();
    let bytes = |path: &Path| fs::metadata(path).unwrap().len();
    let whole = bytes(&program);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/split-debug.sh");
    let split = || assert!(Command::new(&script).arg(&program).status().unwrap().success());
    split();
    let parts = (bytes(&program), bytes(&symbols));
    assert!(parts.0 < whole / 2 && parts.1 > 1 << 20, "{whole} bytes became {parts:?}");
    assert!(Command::new(&program).arg("--version").status().unwrap().success());
    split();
    assert_eq!((bytes(&program), bytes(&symbols)), parts, "the second time there is nothing to do");
    let main_in_gdb = || {
        let output = Command::new("gdb").args(["-batch", "-ex", "info address main"]).arg(&program).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("is a function at address")
    };
    if has("gdb") {
        assert!(main_in_gdb(), "the symbols are found");
        fs::remove_file(&symbols).unwrap();
        assert!(!main_in_gdb(), "and were not in the program");
    }
}
