//! Proves that volumes are made, listed, shown and deleted, and that what cannot be made is refused with advice.

use crate::stage::{World, run};

#[test]
fn a_volume_from_making_to_deleting() {
    let world = World::new();
    let root = world.text("volumes");
    let said = world.create(&["vault", "--size", "64MiB", "--peer", "alice"]).ok();
    assert!(said.contains("volume format"), "says what to do next: {said}");
    world.create(&["scratch", "--size", "16MiB", "--plain", "--block-size", "512"]).ok();
    let list = run(&["volume", "list", "--root", &root]).ok();
    assert!(list.contains("vault") && list.contains("sealed (keyfile)") && list.contains("64 MiB"), "{list}");
    assert!(list.contains("scratch") && list.contains("plain"), "{list}");
    // By configuration as well as by directory.
    let show = run(&["volume", "show", "vault", "--json", "--config", &world.text("strongroom.toml")]).ok();
    assert!(show.contains("\"size_bytes\": 67108864") && show.contains("\"alice\""), "{show}");
    run(&["volume", "delete", "vault", "--root", &root]).failed(&["--yes"]);
    run(&["volume", "delete", "vault", "--yes", "--root", &root]).ok();
    run(&["volume", "show", "vault", "--root", &root]).failed(&["vault"]);
    run(&["volume", "delete", "vault", "--yes", "--root", &root]).failed(&["vault"]);
}

#[test]
fn what_cannot_be_is_refused_with_advice() {
    let world = World::new();
    // Not whole blocks: the nearest sizes are named.
    world.create(&["a", "--size", "10000"]).failed(&["8192", "12288"]);
    world.create(&["a", "--size", "0"]).failed(&["larger"]);
    world.create(&["a", "--size", "1MiB", "--block-size", "3000"]).failed(&["power of two"]);
    world.create(&["a", "--size", "10GB"]).failed(&["GiB"]);
    world.create(&["../a", "--size", "1MiB"]).failed(&["../a"]);
    world.create(&["a", "--size", "1MiB", "--suite", "rot13"]).failed(&["chacha20-poly1305"]);
    world.create(&["a", "--size", "1MiB", "--suite", "paper"]).failed(&["benchmarks"]);
    world.create(&["a", "--size", "1MiB", "--plain", "--custody", "keyfile"]).failed(&["--plain"]);
    world.create(&["a", "--size", "1MiB", "--initiator", "*"]).failed(&["plain"]);
    world.create(&["a", "--size", "64MiB"]).ok();
    world.create(&["a", "--size", "64MiB"]).failed(&["a"]);
    assert_eq!(std::fs::read_dir(world.path("volumes")).unwrap().count(), 1, "nothing is left of what was refused");
}

#[test]
fn a_wrapping_key_must_lie_elsewhere() {
    let world = World::new();
    let inside = world.text("volumes/wrap.key");
    run(&["key", "new", "--for", "wrapping", "--out", &inside]).ok();
    world
        .create(&["a", "--size", "1MiB", "--custody", "target", "--wrapping-key", &inside])
        .failed(&["beside the volumes"]);
}

#[test]
fn a_wrapping_key_must_be_usable_and_is_found_from_anywhere() {
    let world = World::new();
    let missing = world.text("missing.key");
    world
        .create(&["a", "--size", "1MiB", "--custody", "target", "--wrapping-key", &missing])
        .failed(&["missing.key", "key new --for wrapping"]);
    let volume_key = world.text("other.key");
    run(&["key", "new", "--out", &volume_key]).ok();
    world
        .create(&["a", "--size", "1MiB", "--custody", "target", "--wrapping-key", &volume_key])
        .failed(&["for something else"]);
    let successor = world.text("wrap.key.successor");
    run(&["key", "new", "--for", "wrapping", "--out", &successor]).ok();
    world
        .create(&["a", "--size", "1MiB", "--custody", "target", "--wrapping-key", &successor])
        .failed(&["choose another name"]);
    let wrapping = world.text("wrap.key");
    run(&["key", "new", "--for", "wrapping", "--out", &wrapping]).ok();
    let here = std::env::current_dir().unwrap();
    let up = "../".repeat(here.components().count());
    let relative = format!("{up}{}", wrapping.trim_start_matches('/'));
    world.create(&["a", "--size", "1MiB", "--custody", "target", "--wrapping-key", &relative]).ok();
    let shown = run(&["volume", "show", "a", "--json", "--root", &world.text("volumes")]).ok();
    let stored: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let path = stored.pointer("/sealed/wrapping_key").or(stored.get("wrapping_key")).unwrap().as_str().unwrap();
    assert!(path.starts_with('/'), "{path}");
}

#[test]
fn without_a_configuration_the_commands_say_what_to_give() {
    run(&["volume", "list", "--config", "/nonexistent/strongroom.toml"]).failed(&["--root", "--config"]);
    run(&["volume", "list", "--root", "/nonexistent"]).failed(&["/nonexistent"]);
}

#[test]
fn a_volume_in_use_is_not_deleted() {
    if !crate::stage::can_mount() {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let root = world.text("volumes");
    let directory = world.text("attached");
    world.alice(&["attach", &world.url("vault"), "--to", &directory]).ok();
    // Longer than an idle volume stays open.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(run(&["volume", "show", "vault", "--json", "--root", &root]).ok().contains("\"in_use\": true"));
    run(&["volume", "delete", "vault", "--yes", "--root", &root]).failed(&["uses 'vault'", "detach"]);
    run(&["detach", &directory]).ok();
    crate::stage::eventually("the idle volume is closed and can go", || {
        run(&["volume", "delete", "vault", "--yes", "--root", &root]).is_success()
    });
    server.stop();
}
