//! Proves that `doctor` says the same as text and as JSON, that its exit status says whether anything needs attention, and that a secret which
//! others can read does.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::stage::{World, run};

#[test]
fn the_machine_is_looked_at_and_secrets_that_others_can_read_are_named() {
    let world = World::new();
    let config = world.text("strongroom.toml");
    let checked = || {
        let said = run(&["doctor", "--config", &config, "--json"]);
        let report: Value =
            serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{}{}", said.stdout, said.stderr));
        assert_eq!(report["ok"], said.is_success());
        report["findings"].as_array().expect("findings").clone()
    };
    let state = |findings: &[Value], check: &str| {
        let finding = findings.iter().find(|finding| finding["check"] == check).expect("every check is made");
        (finding["state"].as_str().unwrap().to_owned(), finding["advice"].as_str().unwrap_or_default().to_owned())
    };
    fs::set_permissions(world.path("volumes"), fs::Permissions::from_mode(0o700)).unwrap();
    let findings = checked();
    for check in ["io_uring", "FUSE", "open files", "locked memory", "MTU", "clock", "swap"] {
        state(&findings, check);
    }
    assert_eq!(state(&findings, "configuration").0, "ok");
    assert_eq!(state(&findings, "volumes").0, "ok");

    fs::set_permissions(world.path("target.identity"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(world.path("volumes"), fs::Permissions::from_mode(0o755)).unwrap();
    let findings = checked();
    let (found, advice) = state(&findings, "configuration");
    assert!(found == "attention" && advice.contains("chmod go= ") && advice.contains("target.identity"), "{advice}");
    assert_eq!(state(&findings, "volumes").0, "attention");
    let table = run(&["doctor", "--config", &config]);
    assert_eq!(table.status, Some(1));
    assert!(table.stdout.contains("!!") && table.stdout.contains(&advice), "{}", table.stdout);

    fs::write(&config, "root = \"/srv\"\nno_such_setting = 1\n").unwrap();
    let (found, advice) = state(&checked(), "settings");
    assert!(found == "attention" && advice.contains("serve --config") && advice.contains("--check"), "{advice}");
}
