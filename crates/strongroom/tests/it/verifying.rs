//! Proves that `volume verify` tells a sound volume from one that was never sealed, keeps its position, and gives advice; and that a
//! damaged block is read in an older version only where both ends chose so.

use crate::stage::{World, noise, run};

#[test]
fn a_volume_is_verified_and_what_cannot_be_is_refused() {
    let (world, server) = World::sealed("vault", "16MiB");
    let image = world.text("image");
    std::fs::write(&image, noise(3, 16 << 20)).unwrap();
    world.alice(&["copy", &image, &world.url("vault")]).ok();
    let state = world.text("state");
    let said = world.alice(&["volume", "verify", &world.url("vault"), "--state", &state]).ok();
    assert!(said.contains("4096 blocks open") && said.contains("0 do not open"), "{said}");
    assert!(!std::path::Path::new(&state).exists(), "it is done");
    let said = world.alice(&["volume", "verify", &world.url("vault"), "--from", "4000"]).ok();
    assert!(said.contains("96 blocks open"), "{said}");
    world.alice(&["volume", "verify", &world.url("vault"), "--from", "5000"]).failed(&["past the end"]);
    std::fs::write(&state, "no state").unwrap();
    world.alice(&["volume", "verify", &world.url("vault"), "--state", &state]).failed(&["name another file"]);
    // A volume has a say in whether older versions may be read.
    world.alice(&["copy", &world.url("vault"), &world.text("copy"), "--previous-versions"]).failed(&["does not allow"]);
    run(&["volume", "access", "vault", "--peer", "alice", "--previous-versions", "--root", &world.text("volumes")])
        .ok();
    world.alice(&["copy", &world.url("vault"), &world.text("copy"), "--previous-versions"]).ok();
    assert!(std::fs::read(world.text("copy")).unwrap() == std::fs::read(&image).unwrap());
    let shown = run(&["volume", "show", "vault", "--root", &world.text("volumes")]).ok();
    assert!(shown.contains("damaged blocks"), "{shown}");
    // Nobody has sealed this one.
    world.create(&["blank", "--size", "16MiB", "--peer", "alice"]).ok();
    world.alice(&["volume", "verify", &world.url("blank")]).failed(&["strongroom volume format"]);
    // Recorded, but still without a sealed block.
    world.alice(&["key", "record", &world.url("blank")]).ok();
    world.alice(&["volume", "verify", &world.url("blank")]).failed(&["not formatted", "--keep-going"]);
    let said = world.alice(&["volume", "verify", &world.url("blank"), "--keep-going"]);
    assert!(said.stdout.contains("blocks 0 to 4095 do not open"), "{}", said.stdout);
    said.failed(&["volume recover"]);
    // Another key than the volume's is not reported block by block.
    run(&["key", "new", "--out", &world.text("wrong.key")]).ok();
    let with_wrong_key = |arguments: &[&str]| {
        world.finish(world.initiator("alice.identity", "iqn.2026-11.test:alice", "wrong.key", arguments))
    };
    with_wrong_key(&["key", "record", &world.url("vault")]).ok();
    let said = with_wrong_key(&["volume", "verify", &world.url("vault")]);
    assert!(said.stdout.lines().count() + said.stderr.lines().count() < 32, "{}{}", said.stdout, said.stderr);
    said.failed(&["probably not the volume's key"]);
    server.stop();
}

/// Custody `target`, with the cryptography that the binary hands to the target: what nobody has read is verified there.
#[test]
fn a_trusted_target_verifies_in_the_background() {
    let world = World::new();
    let config = std::fs::read_to_string(world.path("strongroom.toml")).unwrap();
    // The volume stays open while nobody uses it.
    std::fs::write(world.path("strongroom.toml"), config.replace("idle_close_s = 1", "idle_close_s = 300")).unwrap();
    let wrapping = world.text("wrap.key");
    run(&["key", "new", "--for", "wrapping", "--out", &wrapping]).ok();
    world.create(&["box", "--size", "16MiB", "--custody", "target", "--wrapping-key", &wrapping]).ok();
    let server = world.serve();
    let url = world.url("box");
    world.alice_without_key(&["volume", "format", &url, "--yes"]).ok();
    for seed in [4, 5] {
        let image = world.text("image");
        std::fs::write(&image, noise(seed, 1 << 20)).unwrap();
        world.alice_without_key(&["copy", &image, &url, "--allow-smaller"]).ok();
    }
    let show = || run(&["volume", "show", "box", "--config", &world.text("strongroom.toml")]).ok();
    crate::stage::eventually("the target has verified what was written", || {
        let shown = show();
        shown.contains("verified here") && shown.contains("256 blocks open, 0 do not")
    });
    let shown = show();
    assert!(shown.contains("0 of at most"), "{shown}");
    assert!(shown.contains("96 bytes a block, 384 KiB for all blocks; 160 KiB of that are block keys"), "{shown}");
    let status = run(&["status", "--json", "--config", &world.text("strongroom.toml")]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let opened = status["counters"]["background_crypto"]["decrypted_bytes"].as_u64().unwrap();
    assert!(opened >= 1 << 20, "{opened}");
    server.stop();
}
