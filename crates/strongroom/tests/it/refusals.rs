//! Proves that peers without access are refused, that each refusal says what to do, and that the target goes on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::stage::{LOGIN_TIMEOUT, World, eventually, noise, run};

#[test]
fn strangers_and_disguises() {
    let (world, server) = World::sealed("vault", "64MiB");
    let url = world.url("vault");
    run(&["identity", "new", "--out", &world.text("mallory.identity")]).ok();
    let out = world.text("out");
    let copy = ["copy", url.as_str(), &out, "--quiet", "--overwrite"];
    let stranger = world.initiator("mallory.identity", "iqn.2026-11.test:alice", "volume.key", &copy);
    let said = world.finish(stranger).failed(&["does not know this node", "[[peer]]"]);
    assert!(said.contains(&world.public_key("mallory")), "names the key to be added: {said}");
    // A known key under a name that it may not use.
    let disguise = world.initiator("alice.identity", "iqn.2026-11.test:bob", "volume.key", &copy);
    // It has proven who it is, and learns why.
    world.finish(disguise).failed(&["refused the login", "'alice'", "it may use iqn.2026-11.test:alice"]);
    // The sealed volume over plain iSCSI, and a volume that is not there.
    let said = world.alice(&["copy", &world.plain_url("vault"), &world.text("out"), "--overwrite"]);
    assert!(
        !said.failed(&["refused the login"]).contains("'vault' is sealed"),
        "who has proven nothing learns nothing"
    );
    world.alice(&["copy", &world.url("nothing"), &world.text("out"), "--overwrite"]).failed(&["refused the login"]);
    let log = server.log();
    for reason in ["iqn.2026-11.test:bob", "sealed"] {
        assert!(log.contains(reason), "the log says why ({reason}): {log}");
    }
    world.alice(&copy).ok();
    server.stop();
}

/// Two users of one machine, who have set no name: each has one of its own, which is bound to its key without being listed.
#[test]
fn two_users_of_a_machine_have_names_of_their_own() {
    let world = World::new();
    run(&["identity", "new", "--out", &world.text("bob.identity")]).ok();
    let rule = |name: &str| {
        format!("[[peer]]\nname = \"{name}\"\nkey = \"{}\"\nvolumes = [\"vault\"]\n", world.public_key(name))
    };
    world.write_config(&(rule("alice") + &rule("bob")));
    world.create(&["vault", "--size", "16MiB"]).ok();
    let server = world.serve();
    let command = |name: &str, arguments: &[&str]| {
        let mut command = crate::stage::strongroom(arguments);
        command
            .args(["--identity", &world.text(&format!("{name}.identity")), "--key-file", &world.text("volume.key")])
            .args(["--target-key", &world.public_key("target"), "--connect-timeout", "60s"])
            .env("XDG_CONFIG_HOME", world.path("config"));
        command
    };
    let url = world.url("vault");
    world.finish(command("alice", &["volume", "format", &url, "--yes"])).ok();
    let verify = |name: &str| {
        let mut command = command(name, &["volume", "verify", &url, "--read-only"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    for child in [verify("alice"), verify("bob")] {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let name_of = |name: &str| {
        let said = run(&["identity", "show", "--initiator-name", &world.text(&format!("{name}.identity"))]).ok();
        said.lines().nth(1).unwrap().to_owned()
    };
    let (alice, bob) = (name_of("alice"), name_of("bob"));
    assert_ne!(alice, bob);
    let log = server.log();
    assert!(log.contains(&alice) && log.contains(&bob), "{log}");
    // Neither can take the other's.
    let disguised = command("alice", &["volume", "verify", &url, "--initiator-name", &bob]);
    world.finish(disguised).failed(&["refused the login", "may use any that ends in"]);
    server.stop();
}

#[test]
fn a_target_that_is_not_the_known_one() {
    let (world, server) = World::sealed("vault", "64MiB");
    run(&["identity", "new", "--out", &world.text("other.identity")]).ok();
    let mut command = crate::stage::strongroom(&["copy", &world.url("vault"), &world.text("out"), "--overwrite"]);
    command
        .args(["--identity", &world.text("alice.identity"), "--key-file", &world.text("volume.key")])
        .args(["--target-key", &world.public_key("other")])
        .env("XDG_CONFIG_HOME", world.path("config"));
    world.finish(command).failed(&["no channel"]);
    // And one of which nothing is known: there is no trust on first use.
    let mut command = crate::stage::strongroom(&["copy", &world.url("vault"), &world.text("out"), "--overwrite"]);
    command
        .args(["--identity", &world.text("alice.identity"), "--key-file", &world.text("volume.key")])
        .env("XDG_CONFIG_HOME", world.path("config"));
    world.finish(command).failed(&["no key is known", "--target-key"]);
    server.stop();
}

#[test]
fn a_wrong_or_missing_volume_key_gives_no_data() {
    let (world, server) = World::sealed("vault", "64MiB");
    let url = world.url("vault");
    std::fs::write(world.path("in"), noise(1, 64 << 20)).unwrap();
    world.alice(&["copy", &world.text("in"), &url, "--quiet"]).ok();
    run(&["key", "new", "--out", &world.text("wrong.key")]).ok();
    let out = world.text("out");
    let wrong = world.initiator("alice.identity", "iqn.2026-11.test:alice", "wrong.key", &["copy", &url, &out]);
    world.finish(wrong).failed(&["does not open", "not the key"]);
    let leaked = std::fs::read(&out).unwrap_or_default();
    assert!(leaked.iter().all(|&byte| byte == 0), "not a byte came out");
    // Nor does anything go in that the right key would not open.
    let input = world.text("in");
    let wrong = ["copy", &input, &url, "--quiet"];
    let wrong = world.initiator("alice.identity", "iqn.2026-11.test:alice", "wrong.key", &wrong);
    world.finish(wrong).failed(&["not the key"]);
    world.alice(&["copy", &url, &world.text("back"), "--quiet"]).ok();
    assert!(std::fs::read(world.path("back")).unwrap() == noise(1, 64 << 20), "what was there is there");
    let missing = world.initiator("alice.identity", "iqn.2026-11.test:alice", "none.key", &["copy", &url, &out]);
    world.finish(missing).failed(&["none.key"]);
    server.stop();
}

#[test]
fn a_flag_for_the_keys_takes_precedence_over_the_other_ones_variable() {
    let (world, server) = World::sealed("vault", "16MiB");
    let url = world.url("vault");
    let verify = ["volume", "verify", &url, "--quiet"];
    let finish = |mut command: std::process::Command| {
        command.env("STRONGROOM_KEY_SERVER", "nowhere.invalid");
        world.finish(command)
    };
    finish(world.alice_command(&verify)).ok();
    let mut both = world.alice_command_without_key(&verify);
    both.env("STRONGROOM_KEY_FILE", world.text("volume.key"));
    finish(both).failed(&["in a file or at a key server", "STRONGROOM_KEY_SERVER"]);
    finish(world.alice_command(&[&verify[..], &["--key-server", "nowhere.invalid"]].concat()))
        .failed(&["in a file or at a key server"]);
    server.stop();
}

#[test]
fn a_target_cannot_persuade_an_initiator_not_to_seal() {
    let (world, server) = World::sealed("vault", "16MiB");
    server.stop();
    let description = world.path("volumes/vault/volume.toml");
    let sealed = std::fs::read_to_string(&description).unwrap();
    std::fs::write(world.path("in"), noise(1, 16 << 20)).unwrap();
    let input = world.text("in");
    let url = world.url("vault");
    let copy = ["copy", input.as_str(), &url, "--quiet"];
    // The volume claims that its blocks are authenticated only, and so to be sent as they are.
    let readable = sealed.replace("\"encrypt\"", "\"authenticate-only\"");
    assert_ne!(readable, sealed);
    std::fs::write(&description, readable).unwrap();
    let server = world.serve();
    // A target that tells the truth refuses the usual scheme for such a volume; under another it may be admitted.
    world.alice(&copy).failed(&["0x0202", "cannot be used so", "S2-1"]);
    world.alice(&[&copy[..], &["--scheme", "S2-1"]].concat()).failed(&["could read", "--authenticate-only"]);
    server.stop();
    // It claims to be plain: to one who brings a key, and to one who only remembers.
    std::fs::remove_dir_all(world.path("volumes/vault")).unwrap();
    world.create(&["vault", "--size", "16MiB", "--plain"]).ok();
    let server = world.serve();
    world.alice(&copy).failed(&["protection was sealed and is plain"]);
    world.alice_without_key(&copy).failed(&["protection was sealed and is plain"]);
    world.alice(&[&copy[..], &["--forget-volume"]].concat()).failed(&["nothing would be sealed"]);
    // Between two volumes, the key is for the one that is named.
    let said = world.alice(&["copy", &world.url("vault"), &world.url("vault")]).failed(&["--source-key-file"]);
    assert!(said.contains("nothing would be sealed"), "{said}");
    world.alice_without_key(&copy).ok();
    server.stop();
}

#[test]
fn a_port_that_is_taken() {
    let world = World::new();
    let taken = TcpListener::bind(("127.0.0.1", world.port)).unwrap();
    run(&["serve", "--config", &world.text("strongroom.toml")]).failed(&[&world.port.to_string(), "already taken"]);
    drop(taken);
    world.serve().stop();
}

#[test]
fn configurations_with_mistakes_say_where() {
    let world = World::new();
    let config = world.text("strongroom.toml");
    let check = || run(&["serve", "--config", &config, "--check"]);
    check().ok();
    for (rules, parts) in [
        ("[[peer]]\nname = \"a\"\nkey = \"nonsense\"\ninitiators = [\"*\"]\n", &["peer[0]"][..]),
        ("[[peer]]\nname = \"a\"\ninitiators = [\"*\"]\n", &["key"]),
        ("[[plain]]\ninitiators = [\"*\"]\nvolumes = [\"../x\"]\n", &["plain[0].volumes"]),
        ("[[plian]]\n", &["plian"]),
        ("= 3\n", &["strongroom.toml"]),
    ] {
        world.write_config(rules);
        run(&["serve", "--config", &config]).failed(parts);
    }
    run(&["serve", "--config", "/nonexistent.toml"]).failed(&["examples/strongroom.toml"]);
    run(&["serve", "--root", "/nonexistent/volumes", "--listen", "127.0.0.1:0"]).failed(&["`root`"]);
}

#[test]
fn garbage_and_half_a_login_end_and_harm_nobody() {
    let (world, server) = World::sealed("vault", "64MiB");
    server.stop();
    let config = std::fs::read_to_string(world.path("strongroom.toml")).unwrap();
    std::fs::write(world.path("strongroom.toml"), config.replace(LOGIN_TIMEOUT, "login_timeout_s = 3")).unwrap();
    let server = world.serve();
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", world.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    };
    // Garbage, a TLS record that is none, an iSCSI header with impossible lengths.
    for garbage in [noise(7, 4096), [&[0x16, 3, 1, 0x40, 0][..], &noise(8, 600)].concat(), vec![0x43; 48]] {
        let mut stream = connect();
        let _ = stream.write_all(&garbage);
        assert_ended(&mut stream);
    }
    // Half a login: says something, then nothing.
    let mut silent = connect();
    let mut halfway = connect();
    halfway.write_all(&[0x16, 3, 1]).unwrap();
    assert_ended(&mut silent);
    assert_ended(&mut halfway);
    // On a busy machine 3 seconds may be too little for her as well, but not every time.
    eventually("alice is served", || {
        world.alice(&["copy", &world.url("vault"), &world.text("out"), "--quiet", "--overwrite"]).is_success()
    });
    server.stop();
}

/// The target ends the connection, possibly after an answer.
#[track_caller]
fn assert_ended(stream: &mut TcpStream) {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("still open: {error}"),
        }
    }
}

#[test]
fn discovery_shows_what_one_may_use() {
    let (world, server) = World::sealed("vault", "64MiB");
    world.create(&["scratch", "--size", "16MiB", "--plain"]).ok();
    let address = format!("127.0.0.1:{}", world.port);
    let found = world.alice(&["discover", &address]).ok();
    assert!(found.contains(&world.url("vault")), "{found}");
    let plain = world.alice(&["discover", &address, "--plain"]).ok();
    assert!(plain.contains("scratch") && !plain.contains("vault"), "{plain}");
    run(&["identity", "new", "--out", &world.text("mallory.identity")]).ok();
    let stranger = world.initiator("mallory.identity", "iqn.2026-11.test:m", "volume.key", &["discover", &address]);
    world.finish(stranger).failed(&["does not know this node"]);
    server.stop();
}

#[test]
fn a_wrong_chap_secret_is_logged_with_its_user_and_volume() {
    let world = World::new();
    for (file, secret) in [("right.secret", "correct horse battery"), ("wrong.secret", "incorrect horse battery")] {
        std::fs::write(world.path(file), secret).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(world.path(file), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    world.write_config(&format!(
        "[[chap]]\nuser = \"bob\"\nsecret_file = \"{}\"\n\n[[plain]]\ninitiators = [\"*\"]\nvolumes = [\"*\"]\nchap = [\"bob\"]\n",
        world.text("right.secret")
    ));
    world.create(&["scratch", "--size", "16MiB", "--plain"]).ok();
    let server = world.serve();
    let copy = |user: &str, secret: &str| {
        let (url, out, secret) = (world.plain_url("scratch"), world.text("out"), world.text(secret));
        run(&["copy", &url, &out, "--overwrite", "--quiet", "--chap-user", user, "--chap-secret-file", &secret])
    };
    copy("bob", "right.secret").ok();
    let said = copy("bob", "wrong.secret").failed(&["authentication failed"]);
    assert!(!said.contains("secret is wrong"), "whether there is such a user is not told: {said}");
    copy("eve", "wrong.secret").failed(&["authentication failed"]);
    let log = server.log();
    let line = |what: &str| {
        let found =
            log.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("'{what}' is missing: {log}"));
        assert!(found.contains("scratch") && !found.contains("misbehaved"), "{found}");
        found.to_owned()
    };
    assert!(line("the CHAP secret is wrong").contains("user=\"bob\""));
    assert!(line("no CHAP user of that name").contains("user=\"eve\""));
    assert!(!log.contains("horse"), "no secret is logged");
    server.stop();
}

#[test]
fn a_target_without_volumes_starts_and_says_what_to_do() {
    let world = World::new();
    std::fs::remove_dir(world.path("volumes")).unwrap();
    let server = world.serve();
    let log = server.log();
    assert!(log.contains("no volumes") && log.contains("strongroom volume create NAME"), "{log}");
    server.stop();
    let nowhere = world.text("no/such/directory");
    run(&["serve", "--root", &nowhere, "--listen", "127.0.0.1:1"])
        .failed(&["cannot make the directory of volumes", "`root`"]);
}
