//! Proves that no acknowledged change is lost when a primary is killed while it serves requests and its standby is promoted.

use std::thread;

use super::KeySite;
use crate::stage::eventually;

fn current_epoch(shown: &str) -> u32 {
    let line = shown.lines().find(|line| line.ends_with(" current")).unwrap_or_else(|| panic!("no epoch in {shown}"));
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_killed_primary_loses_nothing_that_was_acknowledged() {
    let site = KeySite::new();
    site.configure_pair();
    let primary = site.start();
    let standby = site.start_from("standby.toml");
    eventually("the standby follows", || site.key("admin", &["create", "vault"]).is_success());
    let acknowledged = thread::scope(|scope| {
        let rotating = scope.spawn(|| {
            let mut last = 1;
            loop {
                let said = site.key("admin", &["rotate", "vault"]);
                if !said.is_success() {
                    return last;
                }
                last = said.stdout.trim().strip_prefix("epoch ").unwrap().parse::<u32>().unwrap();
            }
        });
        eventually("some of them are done", || current_epoch(&site.key("admin", &["show", "vault"]).ok()) > 3);
        drop(primary);
        rotating.join().unwrap()
    });
    let ports = [site.port, site.standby_port];
    // Nobody serves until somebody decides.
    site.key_at(&ports, "admin", &["rotate", "vault"]).failed(&["standby"]);
    site.key_at(&[site.standby_port], "admin", &["promote"]).failed(&["--yes"]);
    assert!(site.key_at(&[site.standby_port], "admin", &["promote", "--yes"]).ok().contains("generation 2"));
    let found = current_epoch(&site.key_at(&ports, "admin", &["show", "vault"]).ok());
    assert!(found == acknowledged || found == acknowledged + 1, "{found} of {acknowledged}");
    site.key_at(&ports, "admin", &["audit", "--verify"]).ok();
    // The old one comes back, is told, and keeps still.
    let primary = site.start();
    eventually("the old primary knows", || site.key("admin", &["status"]).ok().contains("role fenced"));
    site.key("admin", &["show", "vault"]).failed(&["taken its place"]);
    assert_eq!(site.key_at(&ports, "admin", &["rotate", "vault"]).ok(), format!("epoch {}\n", found + 1 + 1024));
    standby.stop();
    primary.stop();
}
