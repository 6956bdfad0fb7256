//! Proves that a store can be shown, checked and repaired without keys: damage is named with its place, nothing is changed
//! unless asked for, and exit codes tell what was found.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use crate::stage::{World, noise, run};

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

/// Flips bits in the log, somewhere that opening needs, so that only what lies there is lost. What `store damage` then lists.
fn damage_the_log(store: &str) -> String {
    let log = OpenOptions::new().read(true).write(true).open(format!("{store}/log")).unwrap();
    let mut block = vec![0; 4096];
    for at in (LOG_START..).step_by(4096).take_while(|at| *at < 64 << 20) {
        if log.read_at(&mut block, at).unwrap() < block.len() {
            break;
        }
        // The record block of a unit (docs/store-format.md).
        if block.starts_with(b"SRrb") {
            log.write_all_at(&[block[200] ^ 8], at + 200).unwrap();
            let listed = run(&["store", "damage", store]);
            if listed.stdout.contains("blocks may be missing or old") {
                return listed.stdout;
            }
            log.write_all_at(&block[200..201], at + 200).unwrap();
        }
    }
    panic!("no damage of one record block leaves the rest readable");
}

/// An operator's way out of a damaged log: the volume is refused, the damage is listed, and what is left is read, and only read.
#[test]
fn what_is_left_of_a_damaged_log_is_copied_out() {
    let (world, store) = world();
    let server = world.serve();
    let (url, from, out) = (world.plain_url("scratch"), world.text("from"), world.text("out"));
    for seed in 0..4 {
        fs::write(&from, noise(seed, 2 << 20)).unwrap();
        world.alice_without_key(&["copy", &from, &url, "--allow-smaller"]).ok();
    }
    server.kill();
    let listed = damage_the_log(&store);
    assert!(listed.contains("cannot be read: "), "{listed}");

    let server = world.serve();
    assert!(!world.alice_without_key(&["copy", &url, &out, "--connect-timeout", "5s"]).is_success());
    server.stop();
    let root = world.text("volumes");
    run(&["volume", "access", "scratch", "--peer", "alice", "--read-only-if-damaged", "--root", &root]).ok();

    let server = world.serve();
    world.alice_without_key(&["copy", &url, &out]).ok();
    assert_eq!(fs::metadata(&out).unwrap().len(), 16 << 20);
    assert!(
        !world.alice_without_key(&["copy", &from, &url, "--allow-smaller"]).is_success(),
        "nothing is written to a damaged log"
    );
    let log = server.log();
    assert!(log.contains("the volume's log is damaged") && log.contains("strongroom store damage"), "{log}");
    server.stop();
    assert_eq!(run(&["store", "damage", &store]).stdout, listed, "it is as it was");
}
