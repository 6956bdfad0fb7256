//! Proves that snapshots, clones, rollback and growing work through the binary on a sealed volume, whose key the target never has; and
//! that an erase is finished even if the command or the target is killed meanwhile.

use std::fs;
use std::process::Stdio;

use crate::stage::{Transport, World, noise, over_both, run, strongroom};

over_both!(a_sealed_volume_is_kept_cloned_rolled_back_and_grown);

fn a_sealed_volume_is_kept_cloned_rolled_back_and_grown(transport: Transport) {
    let (world, server) = World::sealed_over(transport, "vault", "4MiB");
    let root = world.text("volumes");
    let volume = |arguments: &[&str]| run(&[&["volume"], arguments, &["--root", &root]].concat());
    let (first, second) = (noise(1, 4 << 20), noise(2, 4 << 20));
    fs::write(world.path("first"), &first).unwrap();
    fs::write(world.path("second"), &second).unwrap();
    let put = |name: &str| world.alice(&["copy", &world.text(name), &world.url("vault"), "--overwrite"]).ok();
    let holds = |export: &str, expected: &[u8]| {
        let out = world.text("out");
        let _ = fs::remove_file(&out);
        world.alice(&["copy", &world.url(export), &out]).ok();
        assert!(fs::read(&out).unwrap()[..expected.len()] == *expected, "{export}");
    };
    put("first");
    volume(&["snapshot", "create", "vault"]).failed(&["VOLUME@SNAPSHOT"]);
    volume(&["snapshot", "create", "vault@monday"]).ok();
    put("second");
    holds("vault@monday", &first);
    holds("vault", &second);
    assert!(volume(&["snapshot", "list", "vault"]).ok().contains("vault@monday"));
    assert!(volume(&["show", "vault"]).ok().contains("monday"));
    volume(&["clone", "vault@monday", "twin"]).ok();
    holds("twin", &first);
    assert!(volume(&["list"]).ok().contains("twin"));
    volume(&["snapshot", "rollback", "vault@monday"]).failed(&["--yes"]);
    crate::stage::eventually("nobody uses it", || {
        volume(&["snapshot", "rollback", "vault@monday", "--yes"]).is_success()
    });
    holds("vault", &first);
    // It grows; the new part must be sealed by who has the key.
    let said = volume(&["resize", "vault", "--size", "6MiB"]).ok();
    assert!(said.contains("volume grow strongroom://HOST/vault --from 4194304"), "{said}");
    let grow = |from: &str| world.alice(&["volume", "grow", &world.url("vault"), "--from", from]);
    grow("2MiB").failed(&["formatted already"]);
    grow("5MiB").failed(&["cannot be read"]);
    assert!(grow("4MiB").ok().contains("6 MiB"));
    grow("4MiB").failed(&["formatted already"]);
    holds("vault", &first);
    server.stop();
    // What was kept before is as large as it was.
    let server = world.serve();
    holds("vault@monday", &first);
    assert_eq!(fs::metadata(world.path("out")).unwrap().len(), 4 << 20);
    server.stop();
    // Without the target the commands work on the store itself.
    volume(&["snapshot", "create", "vault@tuesday"]).ok();
    volume(&["delete", "vault", "--yes"]).failed(&["has clones"]);
    volume(&["delete", "twin", "--yes"]).ok();
    volume(&["snapshot", "delete", "vault@monday"]).ok();
    let left = volume(&["snapshot", "list", "vault", "--json"]).ok();
    assert!(left.contains("tuesday") && !left.contains("monday"), "{left}");
    let server = world.serve();
    holds("vault@tuesday", &first);
    server.stop();
}

/// A command that waits for an erase is told when the target no longer works on it, and the same command finishes it.
#[test]
fn an_erase_whose_target_is_killed_says_so_and_goes_on() {
    const BYTES: usize = 128 << 20;
    let world = World::new();
    let config = world.text("strongroom.toml");
    world.create(&["scratch", "--size", "128MiB", "--plain"]).ok();
    fs::write(world.path("in"), noise(3, BYTES)).unwrap();
    let server = world.serve();
    world.alice(&["copy", &world.text("in"), &world.plain_url("scratch")]).ok();
    crate::stage::eventually("nobody uses it", || server.log().contains("session ended"));
    let erase = ["volume", "erase", "scratch", "--yes", "--config", &config];
    let mut waiting = strongroom(&erase).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    crate::stage::eventually("it is being erased", || server.log().contains("erasing the store"));
    server.kill();
    crate::stage::eventually("the command ends", || waiting.try_wait().unwrap().is_some());
    run(&erase).ok();
    let server = world.serve();
    world.alice(&["copy", &world.plain_url("scratch"), &world.text("out")]).ok();
    assert!(fs::read(world.path("out")).unwrap() == vec![0; BYTES]);
    server.stop();
}
