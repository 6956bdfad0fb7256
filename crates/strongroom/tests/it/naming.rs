//! Proves that an attached volume has a name in /dev/strongroom that leads to it and to nothing else: it is there while the volume is attached,
//! is removed after a crash, is never taken from another one, and a volume that cannot have it is told so. Needs root and FUSE.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{CommandOutput, Server, World, can_mount, eventually, has, listed_at, noise, process_at, run};

/// A volume of a name that no other test has, since /dev is the machine's.
struct Named {
    world: World,
    server: Server,
    volume: String,
}

impl Named {
    fn new(label: &str) -> Named {
        let volume = format!("{label}-{}", std::process::id());
        let (world, server) = World::sealed(&volume, "64MiB");
        Named { world, server, volume }
    }

    fn link(&self) -> PathBuf {
        Path::new("/dev/strongroom").join(&self.volume)
    }

    fn shown_link(&self) -> String {
        self.link().to_str().unwrap().to_owned()
    }

    fn attach(&self, more: &[&str]) -> CommandOutput {
        let (url, to) = (self.world.url(&self.volume), self.world.text("attached"));
        self.world.alice(&[&["attach", &url, "--to", &to, "--lease", "2s"], more].concat())
    }

    fn file(&self) -> PathBuf {
        self.world.path("attached").join(&self.volume)
    }

    fn detach(&self) -> CommandOutput {
        run(&["detach", &self.world.text("attached")])
    }

    fn listed(&self) -> String {
        listed_at(&self.world.text("attached"))
    }

    fn process(&self) -> Pid {
        process_at(&self.world.text("attached")).expect("it is attached")
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        for directory in ["mounted", "attached"] {
            let quiet = std::process::Stdio::null();
            let _ = Command::new("umount").args(["-l", &self.world.text(directory)]).stderr(quiet).status();
        }
        let _ = run(&["detach", "--force", &self.world.text("attached")]);
    }
}

fn is_there(link: &Path) -> bool {
    fs::symlink_metadata(link).is_ok()
}

#[test]
fn a_stable_name_leads_to_the_file_or_the_loop_device_while_it_is_attached() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let named = Named::new("lead");
    let link = named.link();
    let said = named.attach(&[]);
    assert!(said.stderr.contains(&format!("its name is {}", link.display())), "{}", said.stderr);
    said.ok();
    assert_eq!(fs::read_link(&link).unwrap(), named.file());
    let file = File::options().write(true).open(&link).unwrap();
    file.write_all_at(&noise(1, 4096), 0).unwrap();
    drop(file);
    assert!(named.listed().contains(&format!("name: {}", link.display())), "{}", named.listed());
    // It is as good as any other name of the attachment.
    run(&["detach", &named.shown_link()]).ok();
    assert!(!is_there(&link) && named.listed().is_empty());

    let mounted = named.world.text("mounted");
    let made = named.attach(&["--mount", &mounted, "--mkfs", "ext4"]);
    made.failed(&["there is something on"]);
    assert!(!is_there(&link), "nothing is attached");
    named.world.alice(&["volume", "format", &named.world.url(&named.volume), "--yes", "--reformat"]).ok();
    named.attach(&["--mount", &mounted, "--mkfs", "ext4"]).ok();
    let device = fs::read_link(&link).unwrap();
    assert!(device.to_str().unwrap().starts_with("/dev/loop"), "{}", device.display());
    let backing = format!("/sys/class/block/{}/loop/backing_file", device.file_name().unwrap().to_str().unwrap());
    assert_eq!(fs::read_to_string(backing).unwrap().trim_end(), named.file().to_str().unwrap());
    // Who is refused a detach keeps the name.
    let user = File::create(format!("{mounted}/file")).unwrap();
    named.detach().failed(&["still attached"]);
    assert_eq!(fs::read_link(&link).unwrap(), device);
    drop(user);
    run(&["detach", &named.shown_link()]).ok();
    assert!(!is_there(&link));
}

#[test]
fn the_name_of_a_crashed_attachment_is_removed_with_the_rest() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let named = Named::new("crash");
    let link = named.link();
    named.attach(&["--mount", &named.world.text("mounted"), "--mkfs", "ext4"]).ok();
    kill_process(named.process(), Signal::KILL).unwrap();
    eventually("it is seen to be dead", || named.listed().contains("has died"));
    assert!(is_there(&link));
    let said = named.detach();
    assert!(said.stderr.contains(&format!("removed {}", link.display())), "{}", said.stderr);
    said.ok();
    assert!(!is_there(&link));

    // The same where nothing but the kernel knows of it any more, and where nothing else is left.
    named.attach(&[]).ok();
    let process = named.process();
    fs::remove_file(format!("/run/strongroom/{}.json", process.as_raw_nonzero())).unwrap();
    kill_process(process, Signal::KILL).unwrap();
    eventually("it can be removed", || named.detach().is_success());
    assert!(!is_there(&link));
    named.attach(&[]).ok();
    kill_process(named.process(), Signal::KILL).unwrap();
    eventually("it is seen to be dead", || named.listed().contains("has died"));
    assert!(Command::new("umount").args(["-l", &named.world.text("attached")]).status().unwrap().success());
    assert!(named.listed().is_empty() && !is_there(&link));
}

#[test]
fn volumes_of_one_name_at_two_targets_do_not_share_it() {
    if !can_mount() {
        return;
    }
    let (first, second) = (Named::new("same"), Named::new("same"));
    let link = first.link();
    assert_eq!(link, second.link());
    first.attach(&[]).ok();
    let url = first.world.url(&first.volume);
    let chosen = format!("{}.other", second.volume);
    for taken in [&first.volume, &chosen] {
        let attached = second.attach(&["--name", taken]);
        if taken == &chosen {
            attached.ok();
            assert_eq!(fs::read_link(link.with_file_name(&chosen)).unwrap(), second.file());
            second.detach().ok();
            assert!(!is_there(&link.with_file_name(&chosen)));
        } else {
            attached.failed(&[&format!("is the name of {url}"), "--name NAME"]);
            assert_eq!(second.listed(), "", "nothing is attached");
        }
    }
    // It can do without one that was not asked for.
    let said = second.attach(&[]);
    assert!(said.stderr.contains("without a stable name") && said.stderr.contains(&url), "{}", said.stderr);
    said.ok();
    assert!(second.listed().contains("no name: "), "{}", second.listed());
    assert_eq!(fs::read_link(&link).unwrap(), first.file());
    second.detach().ok();
    assert_eq!(fs::read_link(&link).unwrap(), first.file(), "it is the first one's");
    first.detach().ok();
    assert!(!is_there(&link));
    second.attach(&["--name", "no/slash"]).failed(&["letters, digits"]);
}

/// What only root can have put there, by mistake or for another program.
#[test]
fn attack_a_planted_file_in_place_of_a_volumes_name() {
    if !can_mount() {
        return;
    }
    let named = Named::new("planted");
    let (link, victim) = (named.link(), named.world.path("victim"));
    fs::write(&victim, "untouched").unwrap();
    fs::create_dir_all("/dev/strongroom").unwrap();
    for is_link in [true, false] {
        match is_link {
            true => symlink(&victim, &link).unwrap(),
            false => fs::write(&link, "foreign").unwrap(),
        }
        let said = named.attach(&[]);
        assert!(said.stderr.contains("without a stable name"), "{}", said.stderr);
        said.ok();
        let file = File::options().write(true).open(named.file()).unwrap();
        file.write_all_at(&noise(1, 4096), 0).unwrap();
        drop(file);
        named.detach().ok();
        named.attach(&["--name", &named.volume]).failed(&["look what it is and remove it", "--name NAME"]);
        assert_eq!(named.listed(), "");
        match is_link {
            true => assert_eq!(fs::read_link(&link).unwrap(), victim),
            false => assert_eq!(fs::read_to_string(&link).unwrap(), "foreign"),
        }
        fs::remove_file(&link).unwrap();
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    let Named { server, .. } = &named;
    assert!(!server.log().contains("panicked"));
}
