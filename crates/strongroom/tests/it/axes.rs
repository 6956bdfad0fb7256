//! Proves that every front end stores what programs write and shows it to the next attachment, over every transport, in every custody that both
//! ends of a channel can have.
//!
//! In `make test` one axis varies at a time, and the others stay at their defaults; `make soak` sets `STRONGROOM_AXES=product`.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::nbd::NbdServer;
use crate::stage::{CommandOutput, Server, Transport, World, can_mount, has, noise, run};

const BYTES: usize = 1 << 20;

/// A way for programs to use a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrontEnd {
    File,
    LoopDevice,
    FileSystem,
    Nbd,
    Copy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Custody {
    KeyFile,
    Target,
}

type Combination = (FrontEnd, Transport, Custody);

const FRONT_ENDS: [FrontEnd; 5] =
    [FrontEnd::File, FrontEnd::LoopDevice, FrontEnd::FileSystem, FrontEnd::Nbd, FrontEnd::Copy];
const TRANSPORTS: [Transport; 3] = [Transport::Iscsi, Transport::Ecl, Transport::EclTcp];
const CUSTODIES: [Custody; 2] = [Custody::KeyFile, Custody::Target];

/// Every combination, or those with the default on two axes at least: the first value of each.
fn combinations(is_product: bool) -> Vec<Combination> {
    let mut chosen = Vec::new();
    for (front_end_at, front_end) in FRONT_ENDS.into_iter().enumerate() {
        for (transport_at, transport) in TRANSPORTS.into_iter().enumerate() {
            for (custody_at, custody) in CUSTODIES.into_iter().enumerate() {
                let others = [front_end_at, transport_at, custody_at].iter().filter(|at| **at > 0).count();
                if is_product || others < 2 {
                    chosen.push((front_end, transport, custody));
                }
            }
        }
    }
    chosen
}

/// One volume, formatted, and the commands that use it.
struct Site {
    world: World,
    _server: Server,
    custody: Custody,
}

impl Site {
    fn new(transport: Transport, custody: Custody) -> Site {
        let world = World::over(transport);
        let size = ["vault", "--size", "32MiB"];
        match custody {
            Custody::KeyFile => world.create(&size).ok(),
            Custody::Target => {
                let key = world.text("wrapping.key");
                run(&["key", "new", "--for", "wrapping", "--out", &key]).ok();
                world.create(&[&size[..], &["--custody", "target", "--wrapping-key", &key]].concat()).ok()
            }
        };
        let server = world.serve();
        let site = Site { world, _server: server, custody };
        site.alice(&["volume", "format", &site.url(), "--yes"]).ok();
        site
    }

    fn url(&self) -> String {
        self.world.url("vault")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        match self.custody {
            Custody::KeyFile => self.world.alice_command(arguments),
            Custody::Target => self.world.alice_command_without_key(arguments),
        }
    }

    fn alice(&self, arguments: &[&str]) -> CommandOutput {
        self.world.finish(self.command(arguments))
    }

    /// Attaches the volume, has `act` use the path at which programs find it, and detaches it.
    fn attached(&self, more: &[&str], act: impl FnOnce(&Path)) {
        let directory = self.world.text("attached");
        self.alice(&[&["attach", &self.url(), "--to", &directory][..], more].concat()).ok();
        let listed = run(&["attach", "list", "--json"]).ok();
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let ours = listed.as_array().unwrap().iter().find(|one| one["directory"] == directory.as_str()).unwrap();
        let mount = ours["mount"].as_str().map(|mount| Path::new(mount).join("file"));
        let device = ours["device"].as_str().map(PathBuf::from);
        act(&mount.or(device).unwrap_or_else(|| Path::new(&directory).join("vault")));
        run(&["detach", &directory]).ok();
    }

    /// Serves the volume over NBD while one of libnbd's programs copies.
    fn nbdcopy(&self, arguments: impl FnOnce(&str) -> [String; 2]) {
        let socket = self.world.text("vault.sock");
        let command = self.command(&["nbd", "serve", &self.url(), "--socket", &socket]);
        let mut server = NbdServer::spawn(command, socket.clone(), self.world.text("nbd.log"));
        let uri = format!("nbd+unix:///vault?socket={socket}");
        let copied = Command::new("nbdcopy").arg("--flush").args(arguments(&uri)).status().unwrap();
        assert!(copied.success());
        run(&["detach", &socket]).ok();
        assert_eq!(server.wait(), Some(0));
    }
}

fn write(path: &Path, data: &[u8]) {
    let mut file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all(data).unwrap();
    file.sync_all().unwrap();
}

fn read(path: &Path) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    File::open(path).unwrap().read_exact(&mut data).unwrap();
    data
}

impl FrontEnd {
    fn is_here(self) -> bool {
        match self {
            FrontEnd::File => can_mount(),
            FrontEnd::LoopDevice => can_mount() && has("losetup"),
            FrontEnd::FileSystem => can_mount() && has("mkfs.ext4"),
            FrontEnd::Nbd => has("nbdcopy"),
            FrontEnd::Copy => true,
        }
    }

    fn write(self, site: &Site, data: &[u8]) {
        let (from, mount) = (site.world.text("from"), site.world.text("mounted"));
        fs::write(&from, data).unwrap();
        match self {
            FrontEnd::File => site.attached(&[], |path| write(path, data)),
            FrontEnd::LoopDevice => site.attached(&["--block-device"], |path| write(path, data)),
            FrontEnd::FileSystem => site.attached(&["--mount", &mount, "--mkfs", "ext4"], |path| write(path, data)),
            FrontEnd::Nbd => site.nbdcopy(|uri| [from.clone(), uri.to_owned()]),
            FrontEnd::Copy => {
                site.alice(&["copy", &from, &site.url(), "--allow-smaller", "--quiet"]).ok();
            }
        }
    }

    fn read(self, site: &Site) -> Vec<u8> {
        let (to, mount) = (site.world.text("to"), site.world.text("mounted"));
        let mut data = Vec::new();
        match self {
            FrontEnd::File => site.attached(&[], |path| data = read(path)),
            FrontEnd::LoopDevice => site.attached(&["--block-device"], |path| data = read(path)),
            FrontEnd::FileSystem => site.attached(&["--mount", &mount], |path| data = read(path)),
            FrontEnd::Nbd => {
                site.nbdcopy(|uri| [uri.to_owned(), to.clone()]);
                data = read(Path::new(&to));
            }
            FrontEnd::Copy => {
                site.alice(&["copy", &site.url(), &to, "--overwrite", "--quiet"]).ok();
                data = read(Path::new(&to));
            }
        }
        data
    }
}

#[test]
fn every_front_end_stores_and_shows_what_is_written() {
    let is_product = std::env::var_os("STRONGROOM_AXES").is_some_and(|axes| axes == "product");
    for (seed, combination) in (1..).zip(combinations(is_product)) {
        let (front_end, transport, custody) = combination;
        if !front_end.is_here() {
            eprintln!("skipped: {combination:?} needs root, FUSE or a program that is missing");
            continue;
        }
        let site = Site::new(transport, custody);
        let data = noise(seed, BYTES);
        front_end.write(&site, &data);
        assert!(front_end.read(&site) == data, "{combination:?} shows something else");
        if front_end != FrontEnd::FileSystem {
            assert!(FrontEnd::Copy.read(&site) == data, "{combination:?} stored something else");
        }
    }
}

#[test]
fn one_axis_varies_at_a_time_unless_the_product_is_asked_for() {
    assert_eq!(combinations(false).len(), 1 + 4 + 2 + 1);
    assert_eq!(combinations(true).len(), 5 * 3 * 2);
}
