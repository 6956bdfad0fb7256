//! Proves that no other user of the machine can reach what an experiment makes, under the usual umask: while it works, and what it leaves.

#[path = "../../../strongroom/tests/it/modes/private_paths.rs"]
mod private_paths;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::stage::{World, run};

/// Every path that was made is for its owner alone; says which there are.
fn assert_private(root: &Path) -> Vec<String> {
    private_paths::assert_private(root, |_| false)
}

#[test]
fn nobody_else_can_reach_what_an_experiment_makes() {
    // The children inherit it. It is the default nearly everywhere.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let world = World::new();
    let [work, results, html, plots] = ["work", "results.jsonl", "page.html", "plots"].map(|name| world.text(name));
    fs::create_dir(&work).unwrap();
    fs::set_permissions(&work, fs::Permissions::from_mode(0o700)).unwrap();
    let grid = ["--schemes", "S2-5", "--patterns", "randread", "--sizes", "4k", "--initiators", "1", "--depths", "1"];
    let small = ["--volume-size", "8MiB", "--medium", "directory", "--seconds", "1", "--warm-up", "0", "--runs", "1"];
    let files = ["--work-dir", &work, "--json", &results, "--quiet"];
    let bench = std::thread::spawn({
        let arguments: Vec<String> =
            ["rawio"].iter().chain(&grid).chain(&small).chain(&files).map(|part| (*part).to_owned()).collect();
        move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).ok()
    });
    let mut has_seen_a_store = false;
    while !bench.is_finished() {
        has_seen_a_store |= assert_private(Path::new(&work)).iter().any(|path| path.ends_with("store/log"));
    }
    bench.join().unwrap();
    assert!(has_seen_a_store, "its volume was looked at");
    run(&["report", &results, "--html", &html, "--plots", &plots]).ok();
    let made = assert_private(&world.path("."));
    for part in ["results.jsonl", "page.html"] {
        assert!(made.iter().any(|path| path.ends_with(part)), "{part} is not among {made:?}");
    }
}
