//! Proves that a file system on a volume whose host ran full can be attached again, which replays its journal, checked, emptied and
//! trimmed, as docs/admin.md says; and that the warnings before are there. Needs root, FUSE and ext4.

mod stage;

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

use stage::{World, can_mount, eventually, has, run};

/// The target's volumes on a file system of this size, unmounted when dropped.
struct SmallHost(String);

impl SmallHost {
    fn beneath(world: &World, size: &str) -> SmallHost {
        let at = world.text("volumes");
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs", &at]).status();
        assert!(mounted.is_ok_and(|status| status.success()), "root may mount a tmpfs");
        SmallHost(at)
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).stderr(Stdio::null()).status();
    }
}

/// Detached and unmounted, whatever became of it.
struct Cleanup<'a>(&'a World);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        for directory in [self.0.text("mounted"), self.0.text("attached")] {
            let _ = Command::new("umount").args(["-l", &directory]).stderr(Stdio::null()).status();
        }
        let _ = run(&["detach", &self.0.text("attached"), "--force"]);
    }
}

/// Writes files of a MiB until that fails or there are so many; how many there are.
fn fill(mounted: &str, name: &str, most: usize) -> usize {
    let piece = stage::noise(7, 1 << 20);
    for at in 0..most {
        let written = File::create(format!("{mounted}/{name}-{at}")).and_then(|mut file| {
            file.write_all(&piece)?;
            file.sync_all()
        });
        if written.is_err() {
            return at;
        }
    }
    most
}

fn status(world: &World) -> String {
    run(&["status", "--root", &world.text("volumes")]).ok()
}

#[test]
fn a_volume_on_a_full_host_can_be_mounted_checked_and_trimmed() {
    if !can_mount() || !has("mkfs.ext4") || !has("fstrim") {
        return;
    }
    let world = World::new();
    let _host = SmallHost::beneath(&world, "136m");
    let said = world.create(&["vault", "--size", "1GiB"]);
    assert!(said.success && said.stderr.contains("New data will be refused"), "{}", said.stderr);
    let server = world.serve();
    world.alice(&["volume", "format", &world.url("vault"), "--yes"]).ok();
    let (attached, mounted) = (world.text("attached"), world.text("mounted"));
    let _cleanup = Cleanup(&world);
    let url = world.url("vault");
    let attach = ["attach", &url, "--to", &attached, "--mount", &mounted];
    world.alice(&[&attach[..], &["--mkfs", "ext4"]].concat()).ok();

    let files = fill(&mounted, "file", 300);
    assert!((30..136).contains(&files), "{files} files of a MiB on a host of 136 MiB");
    eventually("the log tells", || server.log().contains("the store is full, and new data is refused"));
    assert!(server.log().contains("the store is nearly full"), "it warned before: {}", server.log());
    // Full, or nearly again: what is written again and compacted leaves a little room now and then.
    let told = status(&world);
    assert!(told.contains("VOLUME FREE") && told.contains("STORE FREE") && told.contains("HOST FREE"), "{told}");
    assert!(told.contains("run fstrim"), "{told}");
    // More of the same, as a program that does not give up would: 300 MiB in all.
    fill(&mounted, "more", 10);
    for at in 0..10 {
        let _ = fs::write(format!("{mounted}/large-{at}"), vec![at; 20 << 20]);
    }

    // 1. Detached (which tells what was lost) and attached again. The journal is replayed.
    let _ = run(&["detach", &mounted]);
    eventually("it is detached", || !run(&["detach", "--list"]).stdout.contains(&url));
    world.alice(&[&["attach"], &attach[1..4]].concat()).ok();
    let file = format!("{attached}/vault");
    let checked = Command::new("e2fsck").args(["-f", "-y", &file]).output().unwrap();
    let code = checked.status.code().unwrap_or(99);
    assert!(code < 4, "e2fsck ends with {code}: {}", String::from_utf8_lossy(&checked.stdout));
    run(&["detach", &attached]).ok();
    world.alice(&attach).ok();
    let kept = fs::read(format!("{mounted}/file-0")).unwrap();
    assert!(kept == stage::noise(7, 1 << 20), "what was synced is there");

    // 2. Files are deleted, and fstrim tells the store.
    for at in 1..files {
        fs::remove_file(format!("{mounted}/file-{at}")).unwrap();
    }
    for entry in fs::read_dir(&mounted).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(['l', 'm']) && entry.file_type().unwrap().is_file() {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let trimmed = Command::new("fstrim").args(["-v", &mounted]).output().unwrap();
    assert!(trimmed.status.success(), "{}", String::from_utf8_lossy(&trimmed.stderr));
}
