//! Proves that what is copied in comes out, through every custody, beside stock tools, and across a stop of the target.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::stage::{Transport, World, has, noise, over_both, run};

over_both!(sealed_there_and_back_with_holes, custody_target_keeps_wrapped_keys);

fn sealed_there_and_back_with_holes(transport: Transport) {
    let (world, server) = World::sealed_over(transport, "vault", "64MiB");
    let mut contents = noise(3, 64 << 20);
    contents[8 << 20..40 << 20].fill(0);
    fs::write(world.path("in"), &contents).unwrap();
    let said = world.alice(&["copy", &world.text("in"), &world.url("vault"), "--verify", "--sha256"]).ok();
    assert!(said.contains("32 MiB of data, 32 MiB absent; read back and the same"), "{said}");
    // A stop and a start of the target between.
    server.stop();
    let server = world.serve();
    let said = world.alice(&["copy", &world.url("vault"), &world.text("out"), "--sha256"]).ok();
    assert!(said.contains("32 MiB absent"), "holes are not moved: {said}");
    assert!(fs::read(world.path("out")).unwrap() == contents);
    world.alice(&["copy", &world.url("vault"), &world.text("out")]).failed(&["--overwrite"]);
    // Nothing of it lies on the server in the clear.
    let stored = fs::read(world.path("volumes/vault/store/log")).unwrap();
    let piece = &contents[..64];
    assert!(!stored.windows(64).any(|window| window == piece));
    server.stop();
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let (world, server) = World::sealed("vault", "64MiB");
    for (bytes, parts) in
        [((64 << 20) + 4096, &["larger volume"][..]), (10_000, &["multiple", "truncate"]), (8192, &["--allow-smaller"])]
    {
        fs::write(world.path("in"), noise(4, bytes)).unwrap();
        world.alice(&["copy", &world.text("in"), &world.url("vault")]).failed(parts);
    }
    server.stop();
}

fn custody_target_keeps_wrapped_keys(transport: Transport) {
    let world = World::over(transport);
    let wrapping = world.text("wrapping.key");
    run(&["key", "new", "--for", "wrapping", "--out", &wrapping]).ok();
    world.create(&["trusted", "--size", "32MiB", "--custody", "target", "--wrapping-key", &wrapping]).ok();
    let server = world.serve();
    let url = world.url("trusted");
    world.alice_without_key(&["volume", "format", &url, "--yes"]).ok();
    // A key on our side would have no use, and may show that the target lies about who holds the keys.
    world.alice(&["copy", &url, &world.text("out")]).failed(&["leave the key out"]);
    let contents = noise(5, 32 << 20);
    fs::write(world.path("in"), &contents).unwrap();
    world.alice_without_key(&["copy", &world.text("in"), &url, "--verify"]).ok();
    server.stop();
    let stored = fs::read(world.path("volumes/trusted/store/log")).unwrap();
    assert!(!stored.windows(64).any(|window| window == &contents[..64]));
    // Without the wrapping key the store opens nothing.
    fs::rename(&wrapping, world.path("elsewhere")).unwrap();
    let server = world.serve();
    world.alice_without_key(&["copy", &url, &world.text("out"), "--timeout", "2s"]).failed(&[]);
    assert!(server.log().contains("wrapping.key"), "the log names the file: {}", server.log());
    server.stop();
    fs::rename(world.path("elsewhere"), &wrapping).unwrap();
    let server = world.serve();
    world.alice_without_key(&["copy", &url, &world.text("out"), "--overwrite"]).ok();
    assert!(fs::read(world.path("out")).unwrap() == contents);
    server.stop();
}

/// Without a wrapping key of its own a volume gets one, beside the configuration and away from the store.
#[test]
fn custody_target_makes_its_wrapping_key() {
    let world = World::new();
    let config = world.text("strongroom.toml");
    let create =
        ["volume", "create", "trusted", "--size", "8MiB", "--custody", "target", "--suite", "chacha20-poly1305"];
    let said = run(&[&create[..], &["--config", &config]].concat()).ok();
    assert!(said.contains("keep a copy"), "{said}");
    let shown = run(&["volume", "show", "trusted", "--json", "--config", &config]).ok();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let path = shown["sealed"]["wrapping_key"].as_str().unwrap();
    assert!(path.starts_with(&world.text("wrapping-keys")), "{path}");
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(shown["sealed"]["suite"], "chacha20-poly1305");
    assert_eq!(
        (&shown["sealed"]["record_bytes"], &shown["sealed"]["record_bytes_in_all"]),
        (&96.into(), &(2048 * 96).into())
    );
    // What is refused leaves no key behind.
    run(&[&create[..], &["--config", &config]].concat()).failed(&["trusted"]);
    assert_eq!(fs::read_dir(world.path("wrapping-keys")).unwrap().count(), 1);

    let server = world.serve();
    let url = format!("{}?scheme=encrypt-all&suite=chacha20-poly1305", world.url("trusted"));
    world.alice_without_key(&["volume", "format", &url, "--yes"]).ok();
    let contents = noise(7, 8 << 20);
    fs::write(world.path("in"), &contents).unwrap();
    world.alice_without_key(&["copy", &world.text("in"), &url, "--verify"]).ok();
    world.alice_without_key(&["copy", &url, &world.text("out"), "--scheme", "lazy"]).failed(&[
        "S2-1",
        "S2-5",
        "leave one",
    ]);
    world.alice_without_key(&["copy", &world.url("trusted"), &world.text("out"), "--scheme", "S2-6"]).ok();
    assert!(fs::read(world.path("out")).unwrap() == contents);
    server.stop();
}

#[test]
fn a_stock_initiator_and_ours_see_the_same_bytes() {
    if !has("qemu-img") || !has("iscsi-readcapacity16") {
        return;
    }
    let world = World::new();
    world.create(&["scratch", "--size", "64MiB", "--plain"]).ok();
    let server = world.serve();
    let url = world.plain_url("scratch");
    fs::write(world.path("in"), noise(6, 64 << 20)).unwrap();
    // Ours writes, theirs compares.
    world.alice(&["copy", &world.text("in"), &url]).ok();
    let compare = |file: &str| {
        let output = Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw", file, &url]).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (same, said) = compare(&world.text("in"));
    assert!(same, "{said}");
    // Theirs writes, ours reads.
    fs::write(world.path("second"), noise(9, 64 << 20)).unwrap();
    let status = Command::new("qemu-img")
        .args(["convert", "-n", "-f", "raw", "-O", "raw", &world.text("second"), &url])
        .status()
        .unwrap();
    assert!(status.success());
    world.alice(&["copy", &url, &world.text("out")]).ok();
    assert!(fs::read(world.path("out")).unwrap() == fs::read(world.path("second")).unwrap());
    assert!(!compare(&world.text("in")).0, "the comparison can fail");
    let capacity = Command::new("iscsi-readcapacity16").arg(&url).output().unwrap();
    let said = String::from_utf8_lossy(&capacity.stdout).into_owned();
    assert!(said.contains("16384") || said.contains("16383"), "{said}");
    server.stop();
}

/// Through a running target and without one: the wrapping key is another one afterwards, and the volume is as new.
#[test]
fn a_cryptographic_erase_leaves_another_key_and_nothing_else() {
    let world = World::new();
    let config = world.text("strongroom.toml");
    let volume = |arguments: &[&str]| run(&[&["volume"], arguments, &["--config", &config]].concat());
    volume(&["create", "trusted", "--size", "8MiB", "--custody", "target"]).ok();
    volume(&["create", "blind", "--size", "8MiB"]).ok();
    volume(&["erase", "blind", "--crypto", "--yes"]).failed(&["custody 'target'"]);
    let shown: serde_json::Value = serde_json::from_str(&volume(&["show", "trusted", "--json"]).ok()).unwrap();
    let key_file = shown["sealed"]["wrapping_key"].as_str().unwrap().to_owned();
    let mut keys = vec![fs::read(&key_file).unwrap()];
    let url = world.url("trusted");
    let contents = noise(8, 8 << 20);
    fs::write(world.path("in"), &contents).unwrap();
    let mut server = world.serve();
    for with_target in [true, false] {
        world.alice_without_key(&["volume", "format", &url, "--yes"]).ok();
        world.alice_without_key(&["copy", &world.text("in"), &url, "--verify"]).ok();
        if with_target {
            volume(&["erase", "blind", "--crypto", "--yes"]).failed(&["custody 'target'"]);
            crate::stage::eventually("nobody uses it", || {
                volume(&["erase", "trusted", "--crypto", "--yes"]).is_success()
            });
        } else {
            server.stop();
            volume(&["erase", "trusted", "--crypto", "--yes"]).ok();
            server = world.serve();
        }
        let key = fs::read(&key_file).unwrap();
        assert!(!keys.contains(&key), "the old key is gone");
        keys.push(key);
        // Absent, not undecipherable.
        world.alice_without_key(&["copy", &url, &world.text("out"), "--overwrite"]).failed(&["format"]);
    }
    world.alice_without_key(&["volume", "format", &url, "--yes"]).ok();
    world.alice_without_key(&["copy", &world.text("in"), &url, "--verify"]).ok();
    server.stop();
}

/// A way to the target that lets this many bytes pass towards it, and then holds everything back.
struct Way {
    port: u16,
    left: Arc<AtomicI64>,
}

impl Way {
    fn to(port: u16, bytes: i64) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Way { port: listener.local_addr().unwrap().port(), left: Arc::new(AtomicI64::new(bytes)) };
        let left = way.left.clone();
        std::thread::spawn(move || {
            for initiator in listener.incoming().map_while(Result::ok) {
                let Ok(target) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let (up, down) = (initiator.try_clone().unwrap(), target.try_clone().unwrap());
                let left = left.clone();
                std::thread::spawn(move || pass(&up, &target, |bytes| left.fetch_sub(bytes, Ordering::Relaxed) > 0));
                std::thread::spawn(move || pass(&down, &initiator, |_| true));
            }
        });
        way
    }
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, mut may: impl FnMut(i64) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        while !may(bytes as i64) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_copy_goes_on_after_its_process_was_killed() {
    let (world, server) = World::sealed("vault", "32MiB");
    let contents = noise(8, 32 << 20);
    fs::write(world.path("in"), &contents).unwrap();
    let way = Way::to(world.port(), 20 << 20);
    let url = format!("strongroom://127.0.0.1:{}/vault", way.port);
    let (from, note) = (world.text("in"), world.text("note"));
    let arguments = ["copy", &from, &url, "--resume", &note, "--resume-every", "1MiB", "--lease", "2s"];
    let mut copying = world.alice_command(&arguments).stdout(Stdio::null()).spawn().unwrap();
    // The way is blocked before the copy can be whole.
    crate::stage::eventually("something is noted", || world.path("note").exists());
    crate::stage::eventually("the way is blocked", || way.left.load(Ordering::Relaxed) <= 0);
    copying.kill().unwrap();
    copying.wait().unwrap();
    let noted = fs::read_to_string(world.path("note")).unwrap();
    let done = noted.lines().find_map(|line| line.strip_prefix("done ")).unwrap().parse::<u64>().unwrap();
    assert!((1 << 20..32 << 20).contains(&done), "{noted}");
    way.left.store(i64::MAX / 2, Ordering::Relaxed);
    // Somebody else's note, and one of another copy, are not believed.
    fs::write(world.path("note"), noted.replace(&format!("done {done}"), "done 33554432")).unwrap();
    world.alice(&arguments).failed(&["was not written by this node, or was changed", "remove it"]);
    fs::write(world.path("note"), &noted).unwrap();
    let other = ["copy", &from, &world.url("vault"), "--resume", &note];
    world.alice(&other).failed(&["another destination"]);
    let said = world.alice(&[&arguments[..], &["--verify", "--sha256"]].concat()).ok();
    assert!(said.contains("read back and the same"), "{said}");
    assert!(!world.path("note").exists(), "a copy that is whole has no note");
    world.alice(&["copy", &world.url("vault"), &world.text("out")]).ok();
    assert!(fs::read(world.path("out")).unwrap() == contents);
    server.stop();
}

#[test]
fn a_volume_that_is_opened_at_the_target_says_so_and_shows_it() {
    let world = World::new();
    let key = world.text("opening.key");
    fs::copy(world.path("volume.key"), &key).unwrap();
    let said = world.create(&["open", "--size", "16MiB", "--open-at-target", &key]).ok();
    assert!(said.contains("stores plaintext"), "{said}");
    world
        .create(&["no", "--size", "16MiB", "--open-at-target", &key, "--custody", "target"])
        .failed(&["custody 'keyfile'"]);
    world.create(&["no", "--size", "16MiB", "--open-at-target", &world.text("gone")]).failed(&["volume's key"]);
    let root = world.text("volumes");
    let shown = run(&["volume", "show", "open", "--root", &root]).ok();
    assert!(shown.contains("PLAINTEXT") && shown.contains("opening.key") && shown.contains("trust"), "{shown}");
    let server = world.serve();
    let url = world.url("open");
    // Its target has the key file as it was, and so cannot open what is sealed in a domain that is drawn at the initiator.
    world.alice(&["volume", "format", &url, "--yes"]).failed(&["--opened-at-target"]);
    world.alice(&["volume", "format", &url, "--yes", "--opened-at-target"]).ok();
    let contents = noise(9, 16 << 20);
    fs::write(world.path("in"), &contents).unwrap();
    world.alice(&["copy", &world.text("in"), &url, "--verify"]).ok();
    run(&["volume", "snapshot", "create", "open@one", "--root", &root]).ok();
    run(&["volume", "send", "open@one", "--out", &world.text("stream"), "--root", &root]).failed(&["strongroom copy"]);
    server.stop();
    run(&["volume", "send", "open@one", "--out", &world.text("stream"), "--root", &root]).failed(&["strongroom copy"]);
    let stored = fs::read(world.path("volumes/open/store/log")).unwrap();
    assert!(stored.windows(64).any(|window| window == &contents[4096..4160]), "plaintext, as it says");
    // Its checks without keys are those of any store.
    run(&["store", "check", &world.text("volumes/open/store")]).ok();
    // Without the key it is not served.
    fs::rename(&key, world.path("elsewhere")).unwrap();
    let server = world.serve();
    world.alice(&["copy", &url, &world.text("out"), "--timeout", "2s"]).failed(&[]);
    assert!(server.log().contains("opening.key"), "the log names the file: {}", server.log());
    server.stop();
}
