//! Proves that snapshots are pruned by rules, and taken by a schedule, through the binary: with a target and without one, also after it
//! was stopped, and that what goes wrong is told.

use std::fs::{self, File};

use crate::stage::{CommandOutput, World, eventually, noise, run};

/// `strongroom volume snapshot` of a world's target.
fn snapshot(world: &World, arguments: &[&str]) -> CommandOutput {
    run(&[&["volume", "snapshot"], arguments, &["--config", &world.text("strongroom.toml")]].concat())
}

/// The names of a volume's snapshots.
fn names(world: &World, volume: &str) -> Vec<String> {
    let listed: serde_json::Value = serde_json::from_str(&snapshot(world, &["list", volume, "--json"]).ok()).unwrap();
    let names = listed["snapshots"].as_array().unwrap().iter();
    names.map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
}

fn automatic(world: &World, volume: &str) -> Vec<String> {
    names(world, volume).into_iter().filter(|name| name.starts_with("auto-")).collect()
}

#[test]
fn what_no_rule_keeps_goes() {
    let world = World::new();
    world.create(&["scratch", "--size", "1MiB", "--plain"]).ok();
    for name in ["one", "two", "three", "four"] {
        snapshot(&world, &["create", &format!("scratch@{name}")]).ok();
    }
    let root = world.text("volumes");
    run(&["volume", "clone", "scratch@one", "twin", "--root", &root]).ok();
    snapshot(&world, &["prune", "scratch"]).failed(&["--keep-last 3", "--keep-daily 7"]);
    snapshot(&world, &["prune", "scratch", "--keep-daily", "0"]).failed(&["--keep-daily"]);
    let rule = ["prune", "scratch", "--keep-last", "2", "--keep-daily", "1"];
    let would = snapshot(&world, &[&rule[..], &["--dry-run"]].concat()).ok();
    assert!(would.contains("1 would be deleted, 3 kept"), "{would}");
    assert_eq!(names(&world, "scratch"), ["one", "two", "three", "four"]);
    let done = snapshot(&world, &rule).ok();
    let line = |name: &str| {
        let name = format!("scratch@{name} ");
        done.lines().find(|line| line.starts_with(&name)).unwrap_or_else(|| panic!("{name}: {done}")).to_owned()
    };
    assert!(line("one").contains("kept") && line("one").contains("the clone 'twin' depends"), "{done}");
    assert!(line("two").contains("deleted"), "{done}");
    assert!(line("three").contains("last 2"), "{done}");
    assert!(line("four").contains("last 1, daily 20"), "{done}");
    assert!(done.contains("1 deleted, 3 kept"), "{done}");
    // The same with a target, which has the store open.
    let server = world.serve();
    let done = snapshot(&world, &rule).ok();
    assert!(done.contains("0 deleted, 3 kept"), "{done}");
    snapshot(&world, &["prune", "scratch", "--keep-last", "1"]).ok();
    assert_eq!(names(&world, "scratch"), ["one", "four"]);
    let json = snapshot(&world, &["prune", "scratch", "--keep-last", "1", "--json"]).ok();
    assert!(json.contains("\"in-use\"") && json.contains("\"kept\""), "{json}");
    server.stop();
}

#[test]
fn a_schedule_takes_snapshots_of_what_was_written_and_prunes_its_own() {
    let world = World::new();
    world.create(&["scratch", "--size", "1MiB", "--plain"]).ok();
    let put = |seed: u64| {
        fs::write(world.path("contents"), noise(seed, 1 << 20)).unwrap();
        world.alice(&["copy", &world.text("contents"), &world.plain_url("scratch"), "--overwrite"]).ok();
    };
    let status = || run(&["status", "--interval", "0", "--config", &world.text("strongroom.toml")]).ok();
    snapshot(&world, &["schedule", "scratch", "--every", "1s"]).failed(&["--keep-last"]);
    snapshot(&world, &["schedule", "scratch", "--keep-last", "2"]).failed(&["--every"]);
    snapshot(&world, &["schedule", "scratch"]).failed(&["--show", "--off"]);
    let said = snapshot(&world, &["schedule", "scratch", "--every", "1s", "--keep-last", "2"]).ok();
    assert!(said.contains("as soon as one serves it"), "{said}");
    snapshot(&world, &["create", "scratch@mine"]).ok();

    let server = world.serve();
    put(1);
    eventually("a first snapshot", || !automatic(&world, "scratch").is_empty());
    // While nobody writes there are no more of them, although their time comes again and again.
    eventually("an interval is passed over", || status().contains("nothing was written since the last snapshot"));
    let first = automatic(&world, "scratch");
    eventually("and another one", || {
        status().contains("nothing was written since the last snapshot") && server.log().contains("took a snapshot")
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(automatic(&world, "scratch"), first);
    for seed in 2..5 {
        let before = automatic(&world, "scratch");
        put(seed);
        eventually("another snapshot", || automatic(&world, "scratch").last() != before.last());
    }
    eventually("only the newest stay", || automatic(&world, "scratch").len() == 2);
    assert!(!automatic(&world, "scratch").contains(&first[0]));
    assert!(names(&world, "scratch").contains(&"mine".to_owned()), "what was made by hand stays");
    let shown = snapshot(&world, &["schedule", "scratch", "--show"]).ok();
    assert!(shown.contains("every     1 s") && shown.contains("last 2") && shown.contains("UTC"), "{shown}");

    // It is kept over a restart, and what was written before is caught up with by one snapshot.
    let before = automatic(&world, "scratch");
    put(9);
    server.kill();
    let server = world.serve();
    eventually("it is caught up with", || automatic(&world, "scratch").last() != before.last());

    // What goes wrong is told, and is over when its cause is. Between two looks there is time in which the volume is closed.
    snapshot(&world, &["schedule", "scratch", "--every", "5s", "--keep-last", "2"]).ok();
    eventually("the target has closed it", || {
        let shown = run(&["volume", "show", "scratch", "--json", "--root", &world.text("volumes")]).ok();
        if shown.contains("\"in_use\": true") {
            return false;
        }
        let lock = File::options().append(true).open(world.path("volumes/scratch/lock")).unwrap();
        if lock.try_lock().is_err() {
            return false;
        }
        eventually("the problem is shown", || status().contains("FAILED"));
        true
    });
    assert!(server.log().contains("the schedule of snapshots could not be kept"), "{}", server.log());
    snapshot(&world, &["schedule", "scratch", "--every", "2s", "--keep-last", "2"]).ok();
    eventually("the problem is over", || status().contains("last 2") && !status().contains("FAILED"));
    snapshot(&world, &["schedule", "scratch", "--off"]).ok();
    eventually("it is off", || !status().contains("SNAPSHOTS OF"));
    assert!(snapshot(&world, &["schedule", "scratch", "--show"]).ok().contains("no schedule"));
    server.stop();
}
