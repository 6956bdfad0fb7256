//! Proves that `volume verify` tells a sound volume from one that was never sealed, keeps its position, and gives advice; and that a
//! damaged block is read in an older version only where both ends chose so.

mod stage;

use stage::{World, noise, run};

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
    let said = world.alice(&["volume", "verify", &world.url("blank")]);
    said.failed(&["volume recover"]);
    server.stop();
}
