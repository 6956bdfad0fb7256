//! Proves pairing as people do it: an invitation on the target, `join` on another machine, and a key that is shared between two initiators; and that
//! the secrets in it reach no argument and no log. `scripts/five-minutes.sh` does it by the README's own words.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::stage::{Machine, Server, World, can_mount, eventually, has, on_target, run, unshare};

fn invite(world: &World, name: &str) -> String {
    on_target(world, &["invite", name, "--volume", "vault"]).ok()
}

/// A target with a volume that nobody has formatted.
fn world() -> (World, Server) {
    let world = World::new();
    world.create(&["vault", "--size", "16MiB"]).ok();
    let server = world.serve();
    (world, server)
}

#[test]
fn an_invited_machine_formats_and_uses_its_volume() {
    let (world, server) = world();
    let bob = Machine { world: &world, home: "bob" };
    let token = invite(&world, "bob");
    assert_eq!((token.lines().count(), token.starts_with("strongroom-invitation1:")), (1, true), "{token}");
    assert!(on_target(&world, &["invite", "list"]).ok().contains("bob"));
    // As a terminal breaks it.
    let (first, second) = token.split_at(60);
    let url = world.url("vault");
    let joined = bob.run_with(&["join"], &format!("{first}\r\n{second}")).ok();
    assert!(joined.contains("as 'bob'") && joined.contains(&url), "{joined}");
    let known = fs::read_to_string(bob.file("known_targets")).unwrap();
    assert_eq!(known, format!("127.0.0.1:{} {}\n", world.port(), world.public_key("target")));
    assert!(!on_target(&world, &["invite", "list"]).ok().contains("bob"));

    let key = world.text("bob.key");
    bob.run(&["volume", "format", &url, "--new-key", &key, "--yes"]).ok();
    bob.run(&["volume", "format", &url, "--new-key", &key, "--yes"]).failed(&["never overwritten"]);
    assert!(bob.run(&["discover", &format!("127.0.0.1:{}", world.port())]).ok().contains(&url));
    bob.run(&["volume", "verify", &url, "--key-file", &key, "--read-only"]).ok();

    let again = bob.run_with(&["join"], &token).ok();
    assert!(again.contains("before, as 'bob'"), "{again}");
    assert_eq!(fs::read_to_string(bob.file("known_targets")).unwrap(), known);
    let carol = Machine { world: &world, home: "carol" };
    carol.run_with(&["join"], &token).failed(&["used already", "peer remove"]);
    // The secret is in neither log.
    let secret = token.trim().split_once(':').unwrap().1;
    assert!(!server.log().contains(&secret[10..40]), "{}", server.log());
}

#[test]
fn peers_are_listed_changed_and_removed_without_a_reload() {
    let (world, _server) = world();
    let bob = Machine { world: &world, home: "bob" };
    bob.run_with(&["join"], &invite(&world, "bob")).ok();
    let listed = on_target(&world, &["peer", "list"]).ok();
    let line = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("alice").contains("configuration") && line("bob").contains("invitation"), "{listed}");
    assert!(line("bob").contains(&bob.public_key()), "{listed}");
    let discover = ["discover", &format!("127.0.0.1:{}", world.port())];
    assert!(bob.run(&discover).ok().contains("vault"));
    on_target(&world, &["peer", "deny", "bob", "--volume", "vault"]).ok();
    bob.run(&discover).failed(&["no volume for this node"]);
    on_target(&world, &["peer", "allow", "bob", "--volume", "vault", "--read-only"]).ok();
    on_target(&world, &["peer", "rename", "bob", "robert"]).ok();
    let json = on_target(&world, &["peer", "list", "--json"]).ok();
    assert!(json.contains("\"robert\"") && json.contains("\"read_only\": true"), "{json}");
    on_target(&world, &["peer", "remove", "robert"]).ok();
    bob.run(&discover).failed(&["[[peer]]"]);
    on_target(&world, &["peer", "remove", "alice"]).failed(&["in the configuration", "strongroom reload"]);
    on_target(&world, &["peer", "allow", "bob"]).failed(&["--volume"]);
}

#[test]
fn bad_tokens_say_what_to_do_and_tokens_are_no_arguments() {
    let (world, server) = world();
    let bob = Machine { world: &world, home: "bob" };
    let token = invite(&world, "bob");
    bob.run(&["join", token.trim()]).failed(&["is a secret", "paste"]);
    let whole = token.trim();
    bob.run_with(&["join"], &whole[..whole.len() - 2]).failed(&["copy the whole line again"]);
    let other = if whole.as_bytes()[80] == b'A' { "B" } else { "A" };
    let altered = format!("{}{other}{}", &whole[..80], &whole[81..]);
    bob.run_with(&["join"], &altered).failed(&["copy the whole line again"]);
    bob.run_with(&["join"], "").failed(&["strongroom invite"]);
    bob.run_with(&["join"], &world.public_key("target")).failed(&["that is no invitation"]);
    bob.run(&["join", "--token-file", &world.text("missing")]).failed(&["cannot open"]);
    assert!(!Path::new(&bob.file("identity")).exists(), "nothing is made before the invitation is one");
    // Another key is known for that address already.
    let (known, port) = (world.text("known"), world.port());
    fs::write(&known, format!("127.0.0.1:{port} {}\n", world.public_key("alice"))).unwrap();
    bob.run_with(&["join", "--known", &known], &token).failed(&["another key for 127.0.0.1"]);
    bob.run_with(&["join", "--address", "127.0.0.1:1"], &token).failed(&["cannot connect", "--address"]);
    bob.run_with(&["join", "--address", "a b"], &token).failed(&["HOST or HOST:PORT"]);
    on_target(&world, &["invite", "a\u{1b}[2Jb", "--volume", "vault"]).failed(&["cannot name a peer"]);
    on_target(&world, &["invite", "bob", "--volume", "vault", "--expires", "8d"]).failed(&["seven days"]);
    // By way of a file, under another identity; and nothing of it was used up before.
    fs::write(world.path("token"), &token).unwrap();
    let (file, identity) = (world.text("token"), world.text("bob.identity"));
    bob.run(&["join", "--token-file", &file, "--identity", &identity]).ok();
    assert!(Path::new(&identity).exists());
    server.stop();
    on_target(&world, &["invite", "carol", "--volume", "vault"]).failed(&["no target answers", "strongroom serve"]);
}

#[test]
fn a_key_is_shared_with_another_initiator_and_nobody_else() {
    let (world, _server) = world();
    let (bob, eve) = (Machine { world: &world, home: "bob" }, Machine { world: &world, home: "eve" });
    world.alice(&["volume", "format", &world.url("vault"), "--yes"]).ok();
    bob.run_with(&["join"], &invite(&world, "bob")).ok();
    eve.run(&["identity", "new"]).ok();
    let alice = world.public_key("alice");
    let (volume_key, identity) = (world.text("volume.key"), world.text("alice.identity"));
    let share = ["key", "share", &volume_key, "--to", &bob.public_key(), "--identity", &identity];
    let shared = run(&share).ok();
    let secret = fs::read_to_string(&volume_key).unwrap();
    let secret = secret.split_ascii_whitespace().rfind(|word| word.len() == 64).expect("64 hex digits").to_owned();
    assert!(!shared.contains(&secret) && shared.contains("BEGIN STRONGROOM SHARED KEY"));

    let received = world.text("received.key");
    let receive = ["key", "receive", "--out", &received];
    bob.run_with(&receive, &shared).failed(&[&alice, "identity show", "--from"]);
    bob.run_with(&[&receive[..], &["--from", &eve.public_key()]].concat(), &shared).failed(&[&alice]);
    eve.run_with(&[&receive[..], &["--from", &alice]].concat(), &shared).failed(&["another node"]);
    assert!(!Path::new(&received).exists());
    bob.run_with(&[&receive[..], &["--from", &alice]].concat(), &format!("Hello,\n{shared}bye\n")).ok();
    bob.run(&["volume", "verify", &world.url("vault"), "--key-file", &received, "--read-only"]).ok();
    bob.run_with(&[&receive[..], &["--from", &alice]].concat(), &shared).failed(&["never overwritten"]);
    // Keys that stay where they are.
    let wrapping = world.text("wrapping.key");
    run(&["key", "new", "--for", "wrapping", "--out", &wrapping]).ok();
    run(&["key", "share", &wrapping, "--to", &alice, "--identity", &identity]).failed(&["stays where it is"]);
}

/// The README's first commands, on two machines, as they stand there. Needs root and namespaces.
#[test]
fn the_five_minutes_of_the_readme_work_by_their_own_words() {
    if !can_mount() || !has("unshare") || !has("nsenter") || !has("mkfs.ext4") || !has("ip") {
        return;
    }
    let may = unshare(&["--net", "--pid", "--uts", "--fork", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        return eprintln!("passed over: no namespaces can be made here");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/five-minutes.sh");
    let output = Command::new(script).arg(env!("CARGO_BIN_EXE_strongroom")).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("every command of the README did what it says"), "{said}");
}

/// A target that was killed right after it had let a node in: it is in.
#[test]
fn peers_survive_a_kill() {
    let (world, server) = world();
    let bob = Machine { world: &world, home: "bob" };
    bob.run_with(&["join"], &invite(&world, "bob")).ok();
    server.kill();
    let _server = world.serve();
    eventually("bob is in", || bob.run(&["discover", &format!("127.0.0.1:{}", world.port())]).is_success());
}
