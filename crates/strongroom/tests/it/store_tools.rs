//! Proves that a store can be shown, checked and repaired without keys: damage is named with its place, nothing is changed
//! unless asked for, and exit codes tell what was found.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::stage::{World, run};

const SUPERBLOCK_1: u64 = 512 << 10;
const LOG_START: u64 = 1 << 20;

fn world() -> (World, String) {
    let world = World::new();
    world.create(&["scratch", "--size", "16MiB", "--plain"]).ok();
    let store = world.text("volumes/scratch/store");
    (world, store)
}

fn destroy(store: &str, offset: u64) {
    let log = OpenOptions::new().write(true).open(format!("{store}/log")).unwrap();
    log.write_all_at(&[0x5a; 4096], offset).unwrap();
}

#[test]
fn a_sound_store_is_shown_and_checked() {
    let (_world, store) = world();
    let shown = run(&["store", "info", &store]).ok();
    assert!(shown.contains("format:     version") && shown.contains("superblock 1"), "{shown}");
    let checked = run(&["store", "check", &store]).ok();
    assert!(checked.contains("all are as they were written"), "{checked}");
    let json = run(&["store", "check", &store, "--json"]).ok();
    assert!(json.contains("\"sound\": true"), "{json}");
    assert!(run(&["store", "repair", &store]).ok().contains("nothing to repair"));
    run(&["store", "check", "/nowhere"]).failed(&["/nowhere"]);
}

#[test]
fn a_lost_superblock_copy_is_rewritten_on_demand() {
    let (_world, store) = world();
    destroy(&store, SUPERBLOCK_1);
    let checked = run(&["store", "check", &store]).ok();
    assert!(
        checked.contains("superblock copy 1 is not whole") && checked.contains("a repair rewrites it"),
        "{checked}"
    );
    let shown = run(&["store", "info", &store]).ok();
    assert!(shown.contains("superblock 1: not whole: "), "{shown}");
    for said in [checked, shown] {
        assert!(!said.contains("backup"), "one copy is enough: {said}");
    }
    for _ in 0..2 {
        let plan = run(&["store", "repair", &store]);
        assert!(!plan.is_success() && plan.stdout.contains("to do: superblock copy 1"), "{}", plan.stdout);
    }
    let said = run(&["store", "repair", &store, "--apply"]).ok();
    assert!(said.contains("done: superblock copy 1") && said.contains(".saved"), "{said}");
    assert!(run(&["store", "info", &store, "--json"]).ok().matches("serial").count() == 2);
}

#[test]
fn a_store_that_does_not_open_is_rebuilt_with_consent() {
    let (_world, store) = world();
    destroy(&store, LOG_START); // The first unit of the log: the segment table.
    let checked = run(&["store", "check", &store]);
    assert!(!checked.is_success() && checked.stdout.contains("does not open"), "{}", checked.stdout);
    let json = run(&["store", "check", &store, "--json"]);
    assert!(json.stdout.contains("\"opens\": false"), "{}", json.stdout);
    let plan = run(&["store", "repair", &store, "--apply"]);
    assert!(!plan.is_success() && plan.stdout.contains("gives up: "), "{}", plan.stdout);
    let repaired = run(&["store", "repair", &store, "--apply", "--accept-data-loss", "--json"]);
    assert!(repaired.stderr.contains(r#""operation":"reading the log""#), "it says how far it is: {}", repaired.stderr);
    let repaired: serde_json::Value = serde_json::from_str(&repaired.ok()).unwrap();
    assert_eq!(repaired["steps"][0]["done"], true, "{repaired}");
    run(&["store", "check", &store]).ok();
}
