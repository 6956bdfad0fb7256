//! Proves that `volume reseal --to` moves a volume from every custody to every other and between plain and sealed, in place: same name,
//! identity, contents and holes; that a crash of any process loses nothing and the same command finishes it; that the old key opens nothing
//! afterwards; and that neither a store, nor a target, nor a forged state file makes it believe that something was done that was not.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use strongroom_block::{Buffer, Lba};
use strongroom_handshake::NodeKey;
use strongroom_initiator::{AttachOptions, KeyFileSource, LeaseOptions, RemoteDevice, write_blocking};

use super::{KeyProcess, KeySite};
use crate::stage::{CommandOutput, Server, World, eventually, noise, run};

const SIZE: usize = 4 << 20;
/// Data in the first half but for a hole in it; the rest is absent.
const DATA: usize = SIZE / 2;

/// A target, a key server, and alice, who has all keys.
struct Site {
    world: World,
    keys: KeySite,
    _server: KeyProcess,
}

/// What opens the volume.
#[derive(Clone, Copy, PartialEq)]
enum Key<'a> {
    None,
    File(&'a str),
    Server,
}

impl Site {
    fn new(key_files: &[&str]) -> Site {
        let (world, keys) = (World::new(), KeySite::new());
        for file in key_files {
            run(&["key", "new", "--out", &world.text(file)]).ok();
        }
        let server = keys.start();
        fs::write(world.path("image"), contents()).unwrap();
        Site { world, keys, _server: server }
    }

    fn url(&self) -> String {
        self.world.url("vault")
    }

    /// A command of alice with these keys, not yet run.
    fn command(&self, key: Key<'_>, arguments: &[&str]) -> Command {
        let mut command = self.world.alice_command_without_key(arguments);
        match key {
            Key::None => &mut command,
            Key::File(file) => command.args(["--key-file", &self.world.text(file)]),
            Key::Server => command.args(["--key-server", &format!("127.0.0.1:{}", self.keys.port)]),
        };
        command.args(["--key-server-key", &self.keys.public_key("server")]);
        command
    }

    fn alice(&self, key: Key<'_>, arguments: &[&str]) -> CommandOutput {
        self.world.finish(self.command(key, arguments))
    }

    /// On the target's machine.
    fn reseal(&self, arguments: &[&str]) -> CommandOutput {
        let config = self.world.text("strongroom.toml");
        run(&[&["volume", "reseal", "vault"], arguments, &["--config", &config]].concat())
    }

    fn prepare(&self, to: &str, more: &[&str]) {
        let said = self.reseal(&[&["--to", to, "--peer", "alice"], more].concat()).ok();
        if to == "keyserver" {
            let named = |name: &str| {
                let mut words = said.split_ascii_whitespace().skip_while(|word| *word != name).skip(1);
                words.next().unwrap_or_else(|| panic!("no {name} in {said}")).to_owned()
            };
            let (domain, id) = (named("--domain"), named("--id"));
            self.keys.key("admin", &["create", "vault", "--domain", &domain, "--id", &id]).ok();
            let alice = self.world.public_key("alice");
            self.keys.key("admin", &["grant", "vault", &alice, "--rights", "open,seal,administer"]).ok();
        }
    }

    /// The initiator's part: from the keys that it has to what `to` says.
    fn moving(&self, from: Key<'_>, to: &str, more: &[&str]) -> Command {
        let (url, state) = (self.url(), self.world.text("state"));
        let arguments = ["volume", "reseal", &url, "--to", to, "--state", &state, "--state-every", "256KiB", "--quiet"];
        self.command(from, &[&arguments[..], more].concat())
    }

    fn to_file(&self, file: &str) -> String {
        format!("keyfile={}", self.world.text(file))
    }

    fn to_server(&self) -> String {
        format!("keyserver=127.0.0.1:{}", self.keys.port)
    }

    /// What is in the volume, into a file.
    fn read(&self, key: Key<'_>) -> CommandOutput {
        self.alice(key, &["copy", &self.url(), &self.world.text("out"), "--overwrite", "--quiet"])
    }

    #[track_caller]
    fn assert_contents(&self, key: Key<'_>) {
        self.read(key).ok();
        assert!(fs::read(self.world.path("out")).unwrap() == contents(), "the contents are others");
    }

    fn shown(&self) -> serde_json::Value {
        let config = self.world.text("strongroom.toml");
        serde_json::from_str(&run(&["volume", "show", "vault", "--json", "--config", &config]).ok()).unwrap()
    }

    /// A volume of custody keyfile, filled, served.
    fn filled(&self, file: &str) -> Server {
        self.world.create(&["vault", "--size", "4MiB"]).ok();
        let server = self.world.serve();
        let key = Key::File(file);
        self.alice(key, &["volume", "format", &self.url(), "--yes"]).ok();
        self.alice(key, &["copy", &self.world.text("image"), &self.url(), "--quiet"]).ok();
        server
    }

    /// In this process, for reading and writing.
    fn attach(&self, file: &str) -> RemoteDevice {
        let mut options = AttachOptions::new(self.url().parse().unwrap());
        options.lease = LeaseOptions::shared();
        options.iscsi.initiator_name = "iqn.2026-11.test:alice".to_owned();
        let text = fs::read_to_string(self.world.path("alice.identity")).unwrap();
        options.channel.node_key = Some(Arc::new(NodeKey::parse(&text).unwrap()));
        options.channel.target_keys = vec![self.world.public_key("target").parse().unwrap()];
        options.sealing.key_source = Some(Arc::new(KeyFileSource::new(self.world.path(file))));
        RemoteDevice::attach(options).unwrap()
    }

    /// Begins to move it, slowly, and returns when part of it is noted.
    fn begin(&self, from: Key<'_>, to: &str) -> Child {
        let mut command = self.moving(from, to, &["--rate", "32KiB"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("some of it is noted", || {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            self.world.path("state.copy").exists()
        });
        child
    }
}

fn contents() -> Vec<u8> {
    let mut bytes = noise(7, SIZE);
    bytes[DATA / 4..DATA / 4 + (256 << 10)].fill(0);
    bytes[DATA..].fill(0);
    bytes
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn copy_tree(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let place = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &place),
            false => drop(fs::copy(entry.path(), place).unwrap()),
        }
    }
}

#[test]
fn a_volume_moves_from_every_custody_to_every_other_and_stays_what_it_is() {
    let site = Site::new(&["one.key", "two.key", "three.key"]);
    site.world.create(&["vault", "--size", "4MiB", "--plain", "--peer", "alice", "--initiator", "*"]).ok();
    let server = site.world.serve();
    site.alice(Key::None, &["copy", &site.world.text("image"), &site.url(), "--quiet"]).ok();
    let id = site.shown()["volume_id"].clone();
    let steps = [
        (Key::File("one.key"), "keyfile", site.to_file("one.key")),
        (Key::Server, "keyserver", site.to_server()),
        (Key::File("two.key"), "keyfile", site.to_file("two.key")),
        (Key::None, "target", "target".to_owned()),
        (Key::File("three.key"), "keyfile", site.to_file("three.key")),
        (Key::None, "plain", "plain".to_owned()),
    ];
    let mut before = Key::None;
    for (index, (after, custody, to)) in steps.into_iter().enumerate() {
        let is_plain = custody == "plain";
        let more: &[&str] = if is_plain { &["--plaintext"] } else { &[] };
        if is_plain {
            site.reseal(&["--to", "plain"]).failed(&["PLAINTEXT", "--plaintext"]);
        }
        site.prepare(custody, more);
        if is_plain {
            site.world.finish(site.moving(before, &to, &[])).failed(&["PLAINTEXT", "--plaintext"]);
        }
        // The old keys at the server go with the move, and none of the new ones.
        let doomed: &[&str] = if before == Key::Server { &["--destroy-old-keys"] } else { &[] };
        let dry = site.world.finish(site.moving(before, &to, &[&["--dry-run"], more].concat())).ok();
        assert!(dry.contains("nothing is done"), "{dry}");
        let said = site.world.finish(site.moving(before, &to, &[more, doomed].concat())).ok();
        assert_eq!(said.contains("destroyed at the key server"), before == Key::Server, "{said}");
        assert!(said.contains("1.8 MiB of data, 2.2 MiB absent"), "step {index}: {said}");
        assert!(!site.world.path("state").exists() && !site.world.path("state.copy").exists());
        site.assert_contents(after);
        if let Key::File(file) = after {
            let device = site.attach(file);
            let absent = |lba| device.hole_at(Lba(lba), 1024 - lba).unwrap();
            assert_eq!([0, 128, 192, 512].map(absent), [0, 64, 0, 512]);
            device.detach().unwrap();
        }
        let shown = site.shown();
        assert_eq!(shown["volume_id"], id);
        let found = shown["sealed"].get("custody").and_then(|name| name.as_str()).unwrap_or("plain");
        assert_eq!(found, custody);
        assert_eq!(
            fs::read_dir(site.world.path("volumes")).unwrap().flatten().filter(|entry| entry.path().is_dir()).count(),
            1
        );
        if before != Key::None {
            // As somebody who has not seen the move, and has the old key.
            let mut command =
                site.command(before, &["copy", &site.url(), &site.world.text("old"), "--overwrite", "--quiet"]);
            command.env("XDG_CONFIG_HOME", site.world.path("elsewhere"));
            site.world.finish(command).failed(&[]);
        }
        before = after;
    }
    server.stop();
}

#[test]
fn nobody_writes_meanwhile_and_it_can_be_given_up() {
    let site = Site::new(&["one.key", "two.key"]);
    let server = site.filled("one.key");
    let (key, image) = (Key::File("one.key"), site.world.text("image"));
    let config = site.world.text("strongroom.toml");
    site.reseal(&[]).failed(&["--to"]);
    site.reseal(&["--to", "keyfile=x"]).failed(&["leave out"]);
    site.reseal(&["--abandon"]).failed(&["not being resealed"]);
    run(&["volume", "snapshot", "create", "vault@monday", "--config", &config]).ok();
    site.reseal(&["--to", "target", "--peer", "alice"]).failed(&["snapshots", "vault@monday"]);
    run(&["volume", "snapshot", "delete", "vault@monday", "--config", &config]).ok();
    let to = site.to_file("two.key");
    site.world.finish(site.moving(key, &to, &[])).failed(&["strongroom volume reseal vault --to keyfile"]);
    assert!(site.reseal(&["--to", "keyfile", "--dry-run"]).ok().contains("nothing is done"));
    // Somebody has it, and may write.
    let user = site.attach("one.key");
    let to_a_file = ["--to", "keyfile", "--peer", "alice"];
    site.reseal(&to_a_file).failed(&["nothing was begun", "in use"]);
    // Nor does it matter whether the target that has it can be asked.
    fs::rename(site.world.path("volumes/.admin.sock"), site.world.path("volumes/.away")).unwrap();
    site.reseal(&to_a_file).failed(&["nothing was begun"]);
    fs::rename(site.world.path("volumes/.away"), site.world.path("volumes/.admin.sock")).unwrap();
    write_blocking(&user, Lba(1000), Buffer::copy_from(&[0; 4096]), false).unwrap();
    user.detach().unwrap();
    site.reseal(&["--to", "keyfile"]).failed(&["which peer"]);
    site.prepare("keyfile", &[]);
    site.assert_contents(key);
    // The successor is for the named peer only, not for plain iSCSI, even where the general rules allow that.
    let next = site.world.plain_url("vault.resealed");
    site.alice(Key::None, &["copy", &next, &site.world.text("stolen"), "--quiet"]).failed(&[]);
    site.alice(key, &["copy", &image, &site.url(), "--quiet"]).failed(&["read-only"]);
    for refused in [&["volume", "resize", "vault", "--size", "8MiB"][..], &["volume", "delete", "vault", "--yes"]] {
        run(&[refused, &["--config", &config]].concat()).failed(&["--abandon"]);
    }
    // What the target made is not what was asked for.
    site.world.finish(site.moving(key, "plain", &["--plaintext"])).failed(&[]);
    site.reseal(&["--abandon"]).ok();
    site.alice(key, &["copy", &image, &site.url(), "--quiet"]).ok();
    site.assert_contents(key);
    server.stop();
}

#[test]
fn after_a_kill_of_any_process_the_same_command_finishes() {
    let site = Site::new(&["one.key", "two.key"]);
    let mut server = site.filled("one.key");
    let (old, new, to) = (Key::File("one.key"), Key::File("two.key"), site.to_file("two.key"));
    site.prepare("keyfile", &[]);
    // The initiator, in the midst of it; what was not moved and what was is where it was.
    kill(site.begin(old, &to));
    site.assert_contents(old);
    // The target, under a mover that goes on by itself; and that one too, when it has logged in again.
    let filled = |server: &Server| server.log().matches("volume=\"vault.resealed\" read_only=false").count();
    let begun = filled(&server);
    let mut mover = site.begin(old, &to);
    eventually("it goes on where it was", || filled(&server) > begun);
    let begun = filled(&server);
    server.kill();
    server = site.world.serve();
    // A command that was attaching for the first time does not try again.
    eventually("it has called again, or ended", || filled(&server) > begun || mover.try_wait().unwrap().is_some());
    kill(mover);
    // To the end, and again as if it had been killed before it noticed: the state is what it had when all was read back.
    let mut command = site.moving(old, &to, &[]);
    let mut mover = command.stdout(Stdio::null()).spawn().unwrap();
    let mut kept = None;
    eventually("it is done", || {
        let state = fs::read_to_string(site.world.path("state")).unwrap_or_default();
        if state.contains("sha256") && state.ends_with('\n') {
            kept.get_or_insert(state);
        }
        mover.try_wait().unwrap().is_some()
    });
    assert!(mover.wait().unwrap().success());
    site.assert_contents(new);
    if let Some(kept) = kept {
        fs::write(site.world.path("state"), kept).unwrap();
        let said = site.world.finish(site.moving(old, &to, &[])).ok();
        assert!(said.contains("from here on"), "{said}");
    }
    site.read(old).failed(&["opens"]);
    assert!(!site.world.path("volumes/vault.resealed").exists());
    server.kill();
    let server = site.world.serve();
    site.assert_contents(new);
    server.stop();
}

#[test]
fn attack_reseal_a_state_that_was_changed_is_refused() {
    let site = Site::new(&["one.key", "two.key"]);
    let server = site.filled("one.key");
    let (old, to) = (Key::File("one.key"), site.to_file("two.key"));
    site.prepare("keyfile", &[]);
    kill(site.begin(old, &to));
    let (state, note) = (site.world.path("state"), site.world.path("state.copy"));
    let (good_state, good_note) = (fs::read_to_string(&state).unwrap(), fs::read_to_string(&note).unwrap());
    let attempt = || site.world.finish(site.moving(old, &to, &[]));
    // That all of it was found right, when it was not.
    fs::write(&state, good_state.replace("null", "\"crc64:0 sha256:0\"")).unwrap();
    attempt().failed(&["was not written by this node", "start over"]);
    fs::write(&state, "{}").unwrap();
    attempt().failed(&["is no state of a move"]);
    fs::write(&state, &good_state).unwrap();
    // That more of it was moved than was.
    let done = good_note.lines().find(|line| line.starts_with("done")).unwrap();
    fs::write(&note, good_note.replace(done, &format!("done {SIZE}"))).unwrap();
    attempt().failed(&["not written by this node"]);
    fs::write(&note, &good_note).unwrap();
    attempt().ok();
    site.assert_contents(Key::File("two.key"));
    server.stop();
}

#[test]
fn attack_reseal_a_store_that_lost_what_was_moved_or_brings_the_old_volume_back() {
    let site = Site::new(&["one.key", "two.key"]);
    let server = site.filled("one.key");
    let (old, new, to) = (Key::File("one.key"), Key::File("two.key"), site.to_file("two.key"));
    site.prepare("keyfile", &[]);
    let volume = |name: &str| site.world.path(&format!("volumes/{name}"));
    server.stop();
    copy_tree(&volume("vault.resealed"), &site.world.path("unformatted"));
    copy_tree(&volume("vault"), &site.world.path("before"));
    let server = site.world.serve();
    site.alice(new, &["volume", "format", &site.world.url("vault.resealed"), "--yes"]).ok();
    // Something that opens with the new key is not taken for empty: it may be another volume.
    site.world.finish(site.moving(old, &to, &[])).failed(&["was formatted before", "do not trust this target"]);
    server.stop();
    copy_tree(&volume("vault.resealed"), &site.world.path("empty"));
    copy_tree(&site.world.path("unformatted"), &volume("vault.resealed"));
    let server = site.world.serve();
    kill(site.begin(old, &to));
    server.stop();
    // All of it is authentic, and as it was before anything was moved.
    copy_tree(&site.world.path("empty"), &volume("vault.resealed"));
    let server = site.world.serve();
    site.world.finish(site.moving(old, &to, &[])).failed(&["what was read back is not what was moved", "start over"]);
    site.assert_contents(old);
    fs::remove_file(site.world.path("state.copy")).unwrap();
    site.world.finish(site.moving(old, &to, &[])).ok();
    site.assert_contents(new);
    server.stop();
    // The old volume again under its name: a node that has seen the move uses neither key for it.
    copy_tree(&site.world.path("before"), &volume("vault"));
    let server = site.world.serve();
    site.read(new).failed(&["not the volume that was attached before", "sealing domain"]);
    site.read(old).failed(&["not the volume that was attached before", "sealing domain"]);
    server.stop();
}
