//! Proves that an operator manages a target's volumes from another machine, with the commands that do it on the target's own and with the same
//! output; that a sealed volume's key stays with the initiator; and that the role is given and taken as the documents say.

use crate::stage::{CommandOutput, Machine, Server, World, eventually, on_target};

/// The operator olga on a machine of her own, who may use no volume.
fn world() -> (World, Server) {
    let world = World::new();
    let server = world.serve();
    let token = on_target(&world, &["invite", "olga", "--operator"]).ok();
    assert!(on_target(&world, &["invite", "list"]).ok().contains("operator"));
    let joined = olga(&world).run_with(&["join"], &token).ok();
    assert!(joined.contains("operator there") && joined.contains("volume list --target 127.0.0.1"), "{joined}");
    (world, server)
}

fn olga(world: &World) -> Machine<'_> {
    Machine { world, home: "olga" }
}

/// `strongroom volume …`, by olga from her machine.
fn there(world: &World, arguments: &[&str]) -> CommandOutput {
    let address = format!("127.0.0.1:{}", world.port());
    olga(world).run(&[&["volume"], arguments, &["--target", &address]].concat())
}

/// The same on the target's machine.
fn here(world: &World, arguments: &[&str]) -> CommandOutput {
    on_target(world, &[&["volume"], arguments].concat())
}

#[test]
fn an_operator_manages_volumes_from_another_machine() {
    let (world, server) = world();
    let made = there(&world, &["create", "vault", "--size", "16MiB"]).ok();
    let url = world.url("vault");
    assert!(made.contains("made the sealed volume 'vault', 16 MiB"), "{made}");
    assert!(made.contains(&format!("strongroom volume format {url} --yes")), "{made}");
    assert!(made.contains("volume grant vault PEER"), "{made}");
    let (machine, port) = (olga(&world), world.port());
    machine.run(&["discover", &format!("127.0.0.1:{port}")]).failed(&["no volume for this node"]);
    assert!(there(&world, &["grant", "vault", "olga"]).ok().contains("'olga' may use 'vault'"));
    // The key is made at the initiator, and stays there.
    let key = world.text("olga.key");
    machine.run(&["volume", "format", &url, "--new-key", &key, "--yes"]).ok();
    machine.run(&["volume", "verify", &url, "--key-file", &key, "--read-only"]).ok();

    there(&world, &["snapshot", "create", "vault@monday"]).ok();
    let cloned = there(&world, &["clone", "vault@monday", "twin", "--peer", "olga"]).ok();
    assert!(cloned.contains("made the volume 'twin' of vault@monday"), "{cloned}");
    machine.run(&["volume", "verify", &world.url("twin"), "--key-file", &key, "--read-only"]).ok();
    let resized = there(&world, &["resize", "vault", "--size", "32MiB"]).ok();
    assert!(resized.contains(&format!("volume grow {url} --from 16777216")), "{resized}");
    machine.run(&["volume", "grow", &url, "--from", "16MiB", "--key-file", &key]).ok();

    // As on the target's machine.
    for command in
        [&["list"][..], &["list", "--json"], &["snapshot", "list", "vault"], &["snapshot", "list", "vault", "--json"]]
    {
        // What is open is closed meanwhile.
        eventually("both say the same", || there(&world, command).ok() == here(&world, command).ok());
    }
    let listed = there(&world, &["list"]).ok();
    assert!(listed.contains("sealed (keyfile)") && listed.contains("32 MiB") && listed.contains("twin"), "{listed}");

    there(&world, &["delete", "vault"]).failed(&["for ever", "--yes"]);
    there(&world, &["delete", "vault", "--yes"]).failed(&["clone", "twin"]);
    there(&world, &["snapshot", "delete", "vault@monday"]).failed(&["twin", "volume delete"]);
    there(&world, &["delete", "twin", "--yes"]).ok();
    there(&world, &["snapshot", "delete", "vault@monday"]).ok();
    assert!(there(&world, &["revoke", "vault", "olga"]).ok().contains("may not use 'vault' any more"));
    there(&world, &["delete", "vault", "--yes"]).ok();
    there(&world, &["delete", "vault", "--yes"]).failed(&["there is no volume 'vault'"]);
    assert!(!here(&world, &["list"]).ok().contains("vault"));
    let log = server.log();
    for part in ["VolumeCreate", "VolumeGrant", "SnapshotCreate", "VolumeDelete", "operator=olga"] {
        assert!(log.contains(part) || log.contains(&part.replace('=', "=\"")), "{part}: {log}");
    }
}

#[test]
fn grants_and_deletes_work_on_the_targets_machine_too() {
    let (world, server) = world();
    here(&world, &["create", "scratch", "--size", "1MiB", "--plain"]).ok();
    here(&world, &["grant", "scratch", "bob"]).failed(&["no peer 'bob'", "peer list"]);
    here(&world, &["grant", "scratch", "olga"]).ok();
    here(&world, &["revoke", "scratch", "alice"]).failed(&["may still use", "[[peer]]", "reload"]);
    here(&world, &["revoke", "scratch", "olga"]).ok();
    // It is open, because it was just looked into, and for nobody: the target closes it.
    here(&world, &["snapshot", "create", "scratch@monday"]).ok();
    here(&world, &["snapshot", "delete", "scratch@monday"]).ok();
    here(&world, &["delete", "scratch", "--yes"]).ok();
    server.stop();
    here(&world, &["create", "scratch", "--size", "1MiB", "--plain"]).ok();
    here(&world, &["grant", "scratch", "olga"]).failed(&["no target answers", "--target"]);
    here(&world, &["delete", "scratch", "--yes"]).ok();
}

#[test]
fn who_is_no_operator_is_told_what_to_do() {
    let (world, _server) = world();
    let (olga, bob) = (olga(&world), Machine { world: &world, home: "bob" });
    let address = format!("127.0.0.1:{}", world.port());
    let list = ["volume", "list", "--target", &address];
    bob.run(&list).failed(&["no identity"]);
    here(&world, &["create", "data", "--size", "1MiB", "--plain"]).ok();
    bob.run_with(&["join"], &on_target(&world, &["invite", "bob", "--volume", "data"]).ok()).ok();
    bob.run(&list).failed(&["no operator of this target", "peer role"]);
    on_target(&world, &["peer", "role", "bob", "operator"]).ok();
    assert!(bob.run(&list).ok().contains("data"));
    let listed = on_target(&world, &["peer", "list"]).ok();
    assert!(listed.lines().any(|line| line.starts_with("bob") && line.contains("operator")), "{listed}");
    on_target(&world, &["peer", "role", "bob", "initiator"]).ok();
    bob.run(&list).failed(&["no operator of this target"]);
    on_target(&world, &["peer", "role", "alice", "operator"]).failed(&["in the configuration", "reload"]);
    on_target(&world, &["peer", "role", "bob", "king"]).failed(&["operator"]);
    on_target(&world, &["invite", "alice", "--volume", "data"]).failed(&["[[peer]]", "strongroom reload"]);
    on_target(&world, &["invite", "carol"]).failed(&["--volume"]);
    let refused = |arguments: &[&str], parts: &[&str]| there(&world, arguments).failed(parts);
    refused(&["create", "a", "--size", "1MiB", "--custody", "target"], &["--custody target", "target's machine"]);
    refused(&["create", "a", "--size", "1MiB", "--medium", "file:/tmp/a"], &["--medium", "target's machine"]);
    refused(&["create", "a", "--size", "1MiB", "--plain", "--initiator", "*"], &["--initiator", "peers"]);
    refused(&["create", "../a", "--size", "1MiB"], &["cannot name a volume"]);
    refused(&["create", "a", "--size", "10000"], &["8192", "12288"]);
    refused(&["create", "a", "--size", "1MiB", "--peer", "nobody"], &["no peer 'nobody'"]);
    refused(&["list", "--root", "/srv"], &["--target"]);
    olga.run(&["volume", "list", "--target", "a b"]).failed(&["HOST or HOST:PORT"]);
    olga.run(&["volume", "list", "--target", "127.0.0.1:1", "--target-key", &world.public_key("target")])
        .failed(&["cannot connect"]);
    olga.run(&["volume", "list", "--target", "127.0.0.1:1"]).failed(&["no key is known"]);
    assert!(!here(&world, &["list"]).ok().contains(" a "));
}
