//! Proves that a disk that is full, and files that are damaged, give clear errors and lose nothing that was flushed.
//! Needs root and FUSE.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::stage::{World, can_mount, noise, run};

/// A small file system in memory; unmounted when dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn on(path: &Path, size: &str) -> SmallDisk {
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).status().unwrap();
        assert!(mounted.success());
        SmallDisk(path.to_owned())
    }

    fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_and_what_was_flushed_stays() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let disk = SmallDisk::on(&world.path("volumes"), "48m");
    world.create(&["vault", "--size", "256MiB"]).ok();
    let server = world.serve();
    let url = world.url("vault");
    world.alice(&["volume", "format", &url, "--yes"]).ok();
    let directory = world.text("attached");
    world.alice(&["attach", &url, "--to", &directory]).ok();
    let path = format!("{directory}/vault");
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let flushed = noise(1, 4 << 20);
    file.write_all_at(&flushed, 0).unwrap();
    file.sync_all().unwrap();
    let piece = noise(2, 1 << 20);
    let error = (8..200_u64)
        .find_map(|mib| file.write_all_at(&piece, mib << 20).and_then(|()| file.sync_all()).err())
        .expect("48 MiB do not hold 200");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    let mut found = vec![0; flushed.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == flushed);
    drop(file);
    // Detaching may have to say that something was not written; in either case it ends.
    let _ = run(&["detach", &directory]);
    server.stop();
    // Somebody makes room, and the target starts again.
    disk.grow("96m");
    let server = world.serve();
    world.alice(&["attach", &url, "--to", &directory, "--read-only"]).ok();
    File::open(&path).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert!(found == flushed, "after a restart, with room made, too");
    run(&["detach", &directory]).ok();
    server.stop();
}

#[test]
fn a_damaged_store_is_refused_with_a_reason_and_harms_no_other() {
    let (world, server) = World::sealed("vault", "64MiB");
    world.create(&["other", "--size", "64MiB"]).ok();
    world.alice(&["volume", "format", &world.url("other"), "--yes"]).ok();
    server.stop();
    let log = world.path("volumes/vault/store/log");
    let whole = fs::read(&log).unwrap();
    for damage in [&b"nothing"[..], &noise(3, 16384)] {
        fs::write(&log, damage).unwrap();
        let server = world.serve();
        world.alice(&["copy", &world.url("vault"), &world.text("out"), "--overwrite", "--timeout", "1s"]).failed(&[]);
        assert!(server.log().contains("ERROR") || server.log().contains("WARN"), "the log says why: {}", server.log());
        world.alice(&["copy", &world.url("other"), &world.text("out"), "--overwrite"]).ok();
        server.stop();
    }
    fs::write(&log, whole).unwrap();
    let server = world.serve();
    world.alice(&["copy", &world.url("vault"), &world.text("out"), "--overwrite"]).ok();
    server.stop();
}

#[test]
fn one_store_is_open_once() {
    if !can_mount() {
        return;
    }
    let (world, server) = World::sealed("vault", "64MiB");
    let root = world.text("volumes");
    let directory = world.text("attached");
    world.alice(&["attach", &world.url("vault"), "--to", &directory]).ok();
    // A second target over the same directory.
    let mut second = crate::stage::strongroom(&[
        "serve",
        "--root",
        &root,
        "--admin-socket",
        &world.text("second.sock"),
        "--listen",
        "127.0.0.1:0",
        "--node-key",
        &world.text("target.identity"),
        "--peer",
        &format!("name=alice; key={}; initiators=*; volumes=*", world.public_key("alice")),
    ]);
    let log = world.path("second.log");
    let file = File::create(&log).unwrap();
    let mut second = second.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
    let mut address = String::new();
    crate::stage::eventually("the second target serves", || {
        let text = fs::read_to_string(&log).unwrap();
        address = text.lines().find_map(|line| line.strip_prefix("serving on ")).unwrap_or_default().to_owned();
        !address.is_empty()
    });
    let url = format!("strongroom://{address}/vault");
    world.alice(&["copy", &url, &world.text("out"), "--timeout", "1s"]).failed(&[]);
    assert!(fs::read_to_string(&log).unwrap().contains("in use"), "{}", fs::read_to_string(&log).unwrap());
    let _ = second.kill();
    let _ = second.wait();
    run(&["detach", &directory]).ok();
    server.stop();
}
