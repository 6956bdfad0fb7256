//! Proves that `strongroom key` administers a key server, and that no secret shows on the way.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use super::KeySite;
use crate::stage::{eventually, run};

#[test]
fn a_key_server_is_administered_by_commands() {
    let site = KeySite::new();
    let server = site.start();
    let (alice, bob) = (site.public_key("alice"), site.public_key("bob"));
    let made = site.key("admin", &["create", "vault"]).ok();
    assert!(made.contains("epoch 1 id ") && made.contains("current"), "{made}");
    site.key("alice", &["show", "vault"]).failed(&["strongroom key grant", &alice]);
    site.key("admin", &["grant", "vault", &alice, "--rights", "open,seal"]).ok();
    site.key("admin", &["grant", "vault", &bob, "--rights", "open"]).ok();
    let seen = site.key("alice", &["show", "vault"]).ok();
    assert!(seen.contains(&format!("open+seal: {alice}")) && !seen.contains(&bob), "{seen}");
    site.key("alice", &["rotate", "vault"]).failed(&["not granted"]);
    // What concerns the whole server is no volume's right.
    site.key("alice", &["audit"]).failed(&["role \"administrator\"", "[[identity]]"]);
    site.key("alice", &["backup", &site.text("stolen.backup")]).failed(&["role \"administrator\""]);
    assert!(!site.path("stolen.backup").exists());
    assert_eq!(site.key("admin", &["revoke", "vault", &bob]).ok(), "epoch 2\n");
    site.key("bob", &["show", "vault"]).failed(&["strongroom key grant"]);
    assert_eq!(site.key("admin", &["rotate", "vault"]).ok(), "epoch 3\n");
    site.key("admin", &["destroy-epoch", "vault", "1"]).failed(&["--yes"]);
    site.key("admin", &["destroy-epoch", "vault", "1", "--yes", "--now"]).ok();
    assert!(site.key("admin", &["show", "vault"]).ok().contains("epoch 1 destroyed"));
    assert!(site.key("admin", &["list"]).ok().contains("vault"));
    assert!(site.key("admin", &["status"]).ok().contains("role primary"));
    // A key goes out as a file and nowhere else.
    let out = site.text("exported.key");
    let exported = site.key("admin", &["export", "vault", "--out", &out]).ok();
    let file = fs::read_to_string(&out).unwrap();
    let secrets: Vec<&str> = file.lines().filter_map(|line| line.split(" key ").nth(1)).collect();
    assert_eq!(secrets.len(), 2);
    let bytes = |name: &str| fs::read(site.path(name)).unwrap();
    let database = [bytes("keys/keys.redb"), bytes("keys/keys.shred")].concat();
    for secret in &secrets {
        assert!(!exported.contains(secret) && !server.log().contains(secret));
        let raw: Vec<u8> = (0..64).step_by(2).map(|at| u8::from_str_radix(&secret[at..at + 2], 16).unwrap()).collect();
        assert!(!database.windows(32).any(|window| window == raw), "a key lies in the database");
    }
    // Keys that were made elsewhere.
    run(&["key", "new", "--out", &site.text("own.key")]).ok();
    let domain = "11111111-1111-4111-8111-111111111111";
    site.key("admin", &["import", "own", "--key-file", &site.text("own.key"), "--domain", domain]).ok();
    assert!(site.key("admin", &["show", domain]).ok().contains("volume own"));
    site.key("admin", &["destroy", "own", "--yes"]).ok();
    site.key("admin", &["show", "own"]).failed(&["unknown there"]);
    server.stop();
    assert!(fs::read_to_string(site.path("keys.prom")).unwrap().contains("strongroom_keyserver_requests_total"));
}

/// Every change that was acknowledged is there after a kill in the middle of the next ones.
#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let site = KeySite::new();
    let mut server = site.start();
    site.key("admin", &["create", "vault"]).ok();
    let mut acknowledged = 1;
    for round in 0..3 {
        let killed = std::thread::scope(|scope| {
            let rotating = scope.spawn(|| {
                let mut last = None;
                loop {
                    let said = site.key("admin", &["rotate", "vault", "--key-server-timeout", "20s"]);
                    if !said.is_success() {
                        return last;
                    }
                    last = said.stdout.trim().strip_prefix("epoch ").map(|epoch| epoch.parse::<u32>().unwrap());
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(150 + 70 * round));
            drop(server);
            rotating.join().unwrap()
        });
        acknowledged = killed.unwrap_or(acknowledged);
        server = site.start();
        let shown = site.key("admin", &["show", "vault"]).ok();
        let current = shown.lines().find(|line| line.ends_with(" current")).unwrap();
        let current: u32 = current.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(current == acknowledged || current == acknowledged + 1, "{current} of {acknowledged}");
        acknowledged = current;
        site.key("admin", &["audit", "--verify"]).ok();
    }
    server.stop();
}

#[test]
fn the_audit_log_is_printed_and_checked_against_a_head_that_was_kept() {
    let site = KeySite::new();
    let server = site.start();
    site.key("admin", &["create", "vault"]).ok();
    let kept = site.key("admin", &["audit", "--verify"]).ok();
    let kept = kept.trim().strip_prefix("head ").unwrap().to_owned();
    site.key("admin", &["rotate", "vault"]).ok();
    let printed = site.key("admin", &["audit", "--head", &kept]).ok();
    assert!(printed.contains(" create volume=vault") && printed.contains(" rotate volume=vault"), "{printed}");
    site.key("alice", &["audit"]).failed(&["admits this node"]);
    let (lines, hash) = kept.split_once(':').unwrap();
    let other = format!("{lines}:{}", "0".repeat(hash.len()));
    site.key("admin", &["audit", "--verify", "--head", &other]).failed(&["altered"]);
    site.key("admin", &["audit", "--verify", "--head", &format!("1000:{hash}")]).failed(&["cut off", "older copy"]);
    server.stop();
}

#[test]
fn roles_are_read_again_without_a_restart() {
    let site = KeySite::new();
    let server = site.start();
    site.key("alice", &["create", "hers"]).failed(&["admits this node"]);
    let alice = site.public_key("alice");
    site.configure(&format!("[[identity]]\nname = \"alice\"\nkey = \"{alice}\"\nroles = [\"creator\"]\n"));
    server.signal(rustix::process::Signal::HUP);
    eventually("the configuration is read again", || server.log().contains("was read again"));
    site.key("alice", &["create", "hers"]).ok();
    site.configure("nonsense = 1");
    server.signal(rustix::process::Signal::HUP);
    eventually("what is wrong with it is said", || server.log().contains("nonsense"));
    site.key("alice", &["show", "hers"]).ok();
    server.stop();
}

#[test]
fn an_address_in_use_is_named_and_nothing_is_lost_by_it() {
    let site = KeySite::new();
    let config = site.text("keyserver.toml");
    let taken = TcpListener::bind(("127.0.0.1", site.port)).unwrap();
    let address = format!("cannot listen on 127.0.0.1:{}: ", site.port);
    let said = run(&["keyserver", "--config", &config]);
    assert!(!said.stdout.contains("key server on"), "{}", said.stdout);
    said.failed(&[&address, "choose another address, or stop what listens there"]);
    drop(taken);
    // Neither the database nor its lock is in the way of the next start.
    let server = site.start();
    site.key("admin", &["create", "vault"]).ok();
    server.stop();
}

#[test]
fn a_master_key_that_others_can_read_or_that_is_another_one_is_refused() {
    let site = KeySite::new();
    let config = site.text("keyserver.toml");
    let said = run(&["keyserver", "--config", &config, "--check"]).ok();
    assert!(said.contains("in order") && said.contains("the first start makes one"), "{said}");
    let server = site.start();
    site.key("admin", &["create", "vault"]).ok();
    run(&["keyserver", "--config", &config, "--check"]).failed(&["open; stop that key server"]);
    server.stop();
    assert!(run(&["keyserver", "--config", &config, "--check"]).ok().starts_with("1 volumes, audit log "));
    let (path, other) = (site.path("master.key"), site.path("other.key"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    run(&["keyserver", "--config", &config]).failed(&["chmod 600"]);
    fs::rename(&path, &other).unwrap();
    run(&["keyserver", "--config", &config]).failed(&["master.key"]);
    run(&["key", "new", "--for", "master", "--out", &site.text("master.key")]).ok();
    run(&["keyserver", "--config", &config]).failed(&["was made under the master key", "right file"]);
    fs::remove_file(&path).unwrap();
    run(&["key", "new", "--for", "wrapping", "--out", &site.text("master.key")]).ok();
    run(&["keyserver", "--config", &config]).failed(&["master key is needed"]);
    fs::rename(&other, &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let server = site.start();
    site.key("admin", &["show", "vault"]).ok();
    server.stop();
}
