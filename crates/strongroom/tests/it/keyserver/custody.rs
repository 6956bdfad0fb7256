//! Proves that custody `keyserver` works from end to end: keys for who was granted them and nobody else, rotation and reseal under a
//! verifying workload while everybody is killed in turn, backups that open volumes, keys and plaintext nowhere but in initiators.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, Lba, Suite};
use strongroom_initiator::{RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_seal::{SealContext, VolumeKey, seal_key_for_test};

use super::writer::{Access, BLOCK, Writer, count, eventually_put};
use super::{KeyProcess, KeySite};
use crate::search::{CANARY_BYTES, Canaries, Findings};
use crate::stage::{
    CommandOutput, Server, Transport, World, eventually, has, noise, on_a_terminal, over_both, over_tcp_too, strongroom,
};

/// What the target's configuration lets everybody use.
const SIZE: &str = "8MiB";

/// A target, a key server, and people who are known to both.
struct CustodySite {
    world: World,
    key_site: KeySite,
}

impl CustodySite {
    /// With one volume, whose keys alice may use and the admin administers.
    fn new(volume: &str) -> (CustodySite, Server, KeyProcess) {
        CustodySite::with(volume, "")
    }

    fn with(volume: &str, settings: &str) -> (CustodySite, Server, KeyProcess) {
        CustodySite::of_suite(Transport::Iscsi, volume, settings, "aes-256-gcm")
    }

    fn of_suite(transport: Transport, volume: &str, settings: &str, suite: &str) -> (CustodySite, Server, KeyProcess) {
        let site = CustodySite { world: World::over(transport), key_site: KeySite::new() };
        site.key_site.configure_with(settings, "");
        let peers = ["alice", "bob", "admin"].map(|name| {
            let key = site.key_site.public_key(name);
            format!("[[peer]]\nname = \"{name}\"\nkey = \"{key}\"\ninitiators = [\"iqn.2026-11.test:{name}\"]\nvolumes = [\"*\"]\n")
        });
        site.world.write_config(&peers.join("\n"));
        let keys = site.key_site.start();
        let target = site.create(volume, suite);
        site.grant("alice", volume, "open,seal");
        site.run("alice", &["volume", "format", &site.world.url(volume), "--yes"]).ok();
        (site, target, keys)
    }

    /// Makes a volume and its keys, and starts the target.
    fn create(&self, volume: &str, suite: &str) -> Server {
        let said = self.world.create(&[volume, "--size", SIZE, "--custody", "keyserver", "--suite", suite]).ok();
        let named = |name: &str| {
            let mut words = said.split_ascii_whitespace().skip_while(|word| *word != name).skip(1);
            words.next().unwrap_or_else(|| panic!("no {name} in {said}")).to_owned()
        };
        let (domain, id) = (named("--domain"), named("--id"));
        self.key_site.key("admin", &["create", volume, "--domain", &domain, "--id", &id]).ok();
        self.world.serve()
    }

    fn grant(&self, name: &str, volume: &str, rights: &str) {
        self.key_site.key("admin", &["grant", volume, &self.key_site.public_key(name), "--rights", rights]).ok();
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        self.command_within("60s", name, arguments)
    }

    /// The same, which waits no longer than this for a target that is away.
    fn command_within(&self, patience: &str, name: &str, arguments: &[&str]) -> Command {
        let mut command = strongroom(arguments);
        command
            .args(["--identity", &self.key_site.text(&format!("{name}.identity"))])
            .args(["--initiator-name", &format!("iqn.2026-11.test:{name}")])
            .args(["--target-key", &self.world.public_key("target")])
            .args(["--key-server", &format!("127.0.0.1:{}", self.key_site.port)])
            .args(["--key-server-key", &self.key_site.public_key("server")])
            .args(["--connect-timeout", patience])
            .env("XDG_CONFIG_HOME", self.world.path(&format!("config-{name}")));
        command
    }

    fn run(&self, name: &str, arguments: &[&str]) -> CommandOutput {
        self.world.finish(self.command(name, arguments))
    }

    fn access(&self, name: &str, volume: &str) -> Access {
        Access {
            url: self.world.url(volume),
            name: name.to_owned(),
            identity: self.key_site.text(&format!("{name}.identity")),
            target_key: self.world.public_key("target"),
            server: format!("127.0.0.1:{}", self.key_site.port),
            server_key: self.key_site.public_key("server"),
        }
    }

    /// A device in this process.
    fn attach(&self, name: &str, volume: &str) -> RemoteDevice {
        self.access(name, volume).attach()
    }
}

/// Who has which right, and what he can do with it. The right to administer opens nothing.
#[test]
fn each_right_lets_do_what_it_says_and_nothing_else() {
    let (site, target, keys) = CustodySite::new("vault");
    let url = site.world.url("vault");
    let (file, out) = (site.world.text("in"), site.world.text("out"));
    fs::write(&file, noise(1, 8 << 20)).unwrap();
    site.run("alice", &["copy", &file, &url, "--quiet"]).ok();
    for (rights, reads, writes, rotates) in [
        (None, false, false, false),
        (Some("open"), true, false, false),
        (Some("open,seal"), true, true, false),
        (Some("administer"), false, false, true),
        (Some("open,seal,administer"), true, true, true),
    ] {
        if let Some(rights) = rights {
            site.grant("bob", "vault", rights);
        }
        let read = site.run("bob", &["copy", &url, &out, "--overwrite", "--quiet"]);
        assert_eq!(read.is_success(), reads, "{rights:?} reads: {}", read.stderr);
        if reads {
            assert!(fs::read(&out).unwrap() == fs::read(&file).unwrap());
        } else {
            read.failed(&["key server", "strongroom key grant"]);
        }
        let write = site.run("bob", &["copy", &file, &url, "--quiet"]);
        assert_eq!(write.is_success(), writes, "{rights:?} writes: {}", write.stderr);
        let rotate = site.key_site.key("bob", &["rotate", "vault"]);
        assert_eq!(rotate.is_success(), rotates, "{rights:?} rotates: {}", rotate.stderr);
    }
    // Taken back: nothing opens any more, neither what is written since nor, by this server's help, what was before.
    site.key_site.key("admin", &["revoke", "vault", &site.key_site.public_key("bob")]).ok();
    site.run("bob", &["copy", &url, &out, "--overwrite", "--quiet"]).failed(&["key server"]);
    site.run("alice", &["copy", &url, &out, "--overwrite", "--quiet"]).ok();
    // The target says whose keys they are; a name of the key server's holds it to that.
    site.run("alice", &["copy", &url, &out, "--overwrite", "--quiet", "--key-name", "other"])
        .failed(&["--key-name vault"]);
    keys.stop();
    target.stop();
}

/// A target that serves one volume under another's name, to an initiator that may have the keys of both and has used neither: none is read or
/// written as the other.
#[test]
fn attack_key_a_target_serves_another_volume_under_the_name() {
    let (site, target, keys) = CustodySite::new("vault");
    target.stop();
    site.create("other", "aes-256-gcm").stop();
    for volume in ["vault", "other"] {
        site.grant("bob", volume, "open,seal");
    }
    let exchange = |from: &str, to: &str| {
        fs::rename(site.world.path(&format!("volumes/{from}")), site.world.path(&format!("volumes/{to}"))).unwrap();
    };
    exchange("vault", "aside");
    exchange("other", "vault");
    exchange("aside", "other");
    for (volume, instead) in [("vault", "other"), ("other", "vault")] {
        let description = site.world.path(&format!("volumes/{volume}/volume.toml"));
        let text = fs::read_to_string(&description).unwrap();
        let renamed = text.replace(&format!("name = \"{instead}\""), &format!("name = \"{volume}\""));
        assert_ne!(renamed, text);
        fs::write(&description, renamed).unwrap();
    }
    let target = site.world.serve();
    let (file, out) = (site.world.text("in"), site.world.text("out"));
    fs::write(&file, noise(1, 8 << 20)).unwrap();
    for (volume, instead) in [("vault", "other"), ("other", "vault")] {
        let url = site.world.url(volume);
        let says = format!("the keys that the key server calls '{instead}', not those of '{volume}'");
        for (from, to) in [(&url, &out), (&file, &url)] {
            let said = site.run("bob", &["copy", from, to, "--overwrite", "--quiet"]);
            said.failed(&[&says, "do not trust this target"]);
        }
    }
    keys.stop();
    target.stop();
}

#[test]
fn every_scheme_works_and_a_lost_server_is_named() {
    let (site, target, keys) = CustodySite::new("vault");
    let url = site.world.url("vault");
    let (file, out) = (site.world.text("in"), site.world.text("out"));
    for (seed, scheme) in (2..).zip(["S1-1", "S1-2", "S2-1", "S2-3", "S2-5"]) {
        fs::write(&file, noise(seed, 8 << 20)).unwrap();
        site.run("alice", &["copy", &file, &url, "--quiet", "--scheme", scheme]).ok();
        site.run("alice", &["copy", &url, &out, "--overwrite", "--quiet", "--scheme", scheme]).ok();
        assert!(fs::read(&out).unwrap() == fs::read(&file).unwrap(), "{scheme}");
    }
    let known = fs::read_to_string(site.world.path("config-alice/strongroom/known_volumes")).unwrap();
    assert!(known.contains("custody keyserver suite aes-256-gcm epoch 1"), "{known}");
    keys.stop();
    site.run("alice", &["copy", &url, &out, "--overwrite"]).failed(&["no key server can be reached"]);
    site.run("alice", &["volume", "verify", &url]).failed(&["no key server can be reached"]);
    target.stop();
}

/// The old epoch's blocks are gone for good: from the volume, and from a copy of it that was made before.
#[test]
fn reseal_ends_an_epoch_and_erase_ends_them_all() {
    let (site, target, keys) = CustodySite::with("vault", "lease_s = 2");
    let url = site.world.url("vault");
    let (file, out, state) = (site.world.text("in"), site.world.text("out"), site.world.text("state"));
    fs::write(&file, noise(3, 8 << 20)).unwrap();
    site.run("alice", &["copy", &file, &url, "--quiet"]).ok();
    let reseal =
        |more: &[&str]| site.run("admin", &[&["volume", "reseal", &url, "--state", &state][..], more].concat());
    site.grant("admin", "vault", "open,seal,administer");
    reseal(&[]).ok().contains("nothing to do").then_some(()).unwrap();
    target.stop();
    let copied = Command::new("cp").args(["-r", &site.world.text("volumes"), &site.world.text("old")]).status();
    assert!(copied.unwrap().success());
    let target = site.world.serve();
    site.key_site.key("admin", &["rotate", "vault"]).ok();
    let said = reseal(&[]).ok();
    assert!(said.contains("2048 blocks") && said.contains("epochs 1;"), "{said}");
    assert!(site.key_site.key("admin", &["show", "vault"]).ok().contains("epoch 1 destroyed"));
    site.run("alice", &["copy", &url, &out, "--overwrite", "--quiet"]).ok();
    assert!(fs::read(&out).unwrap() == fs::read(&file).unwrap());
    // A snapshot keeps its blocks, so its epoch is kept unless that is forced.
    let root = site.world.text("volumes");
    crate::stage::run(&["volume", "snapshot", "create", "vault@then", "--root", &root]).ok();
    site.key_site.key("admin", &["rotate", "vault"]).ok();
    reseal(&[]).failed(&["snapshots or clones", "--force"]);
    reseal(&["--force"]).ok();
    site.run("alice", &["copy", &site.world.url("vault@then"), &out, "--overwrite"]).failed(&["no key for epoch 2"]);
    site.run("alice", &["copy", &url, &out, "--overwrite", "--quiet"]).ok();
    target.stop();
    // Who kept the old disk, and has all rights today, has nothing.
    let volumes = site.world.path("volumes");
    fs::rename(&volumes, site.world.path("new")).unwrap();
    fs::rename(site.world.path("old"), &volumes).unwrap();
    let target = site.world.serve();
    site.run("alice", &["copy", &url, &out, "--overwrite"]).failed(&["no key for epoch 1"]);
    target.stop();
    fs::remove_dir_all(&volumes).unwrap();
    fs::rename(site.world.path("new"), &volumes).unwrap();
    crate::stage::run(&["volume", "snapshot", "delete", "vault@then", "--root", &root]).ok();
    let target = site.world.serve();
    site.run("admin", &["volume", "erase", &url, "--yes"]).failed(&["--crypto"]);
    site.run("admin", &["volume", "erase", &url, "--crypto"]).failed(&["--yes"]);
    site.run("alice", &["volume", "erase", &url, "--crypto", "--yes"]).failed(&["key server"]);
    if crate::stage::can_mount() {
        // It is in use: the keys are not destroyed, no matter who asks.
        let to = site.world.text("attached");
        site.run("alice", &["attach", &url, "--to", &to]).ok();
        let contents = fs::read(format!("{to}/vault")).unwrap();
        let erase = ["volume", "erase", &url, "--crypto", "--yes"];
        site.run("admin", &erase).failed(&["in use by", "alice", "attach, as a file in"]);
        site.run("admin", &[&erase[..], &["--force"]].concat()).failed(&["--confirm"]);
        site.run("alice", &["copy", &url, &out, "--overwrite", "--quiet"]).ok();
        assert!(fs::read(&out).unwrap() == contents && contents.starts_with(&noise(3, 8 << 20)));
        crate::stage::run(&["detach", &to]).ok();
    }
    let said = site.run("admin", &["volume", "erase", &url, "--crypto", "--yes"]).ok();
    assert!(said.contains("formatted again") && !said.contains("keeps"), "its target has given the space back: {said}");
    site.run("alice", &["copy", &url, &out, "--overwrite", "--quiet"]).ok();
    assert!(fs::read(&out).unwrap().iter().all(|byte| *byte == 0));
    keys.stop();
    target.stop();
}

/// A stolen target does not answer, and its keys go all the same. If it comes back, what the command said is what helps.
#[test]
fn a_forced_erase_without_its_target_says_what_to_do_when_it_is_back() {
    let (site, target, keys) = CustodySite::with("vault", "lease_s = 2");
    let (url, file, out) = (site.world.url("vault"), site.world.text("in"), site.world.text("out"));
    fs::write(&file, noise(5, 1 << 20)).unwrap();
    site.run("alice", &["copy", &file, &url, "--allow-smaller", "--quiet"]).ok();
    site.grant("admin", "vault", "open,seal,administer");
    target.stop();
    let erase = |more: &[&str]| {
        site.command_within("3s", "admin", &[&["volume", "erase", &url, "--crypto", "--yes"], more].concat())
    };
    let shown = || site.key_site.key("admin", &["show", "vault"]).ok();
    site.world.finish(erase(&[])).failed(&["a target that is away cannot be asked: --force"]);
    site.world.finish(erase(&["--force"])).failed(&["no terminal", "--confirm vault"]);
    site.world.finish(erase(&["--force", "--confirm", "volt"])).failed(&["nothing was changed", "--confirm vault"]);
    let said = if has("script") {
        let said = on_a_terminal(&erase(&["--force"]), "volt\n");
        assert!(!said.is_success() && said.stdout.contains("nothing was changed"), "{}", said.stdout);
        assert!(!shown().contains("destroyed"), "{}", shown());
        let said = on_a_terminal(&erase(&["--force"]), "vault\n");
        assert!(!said.is_success() && said.stdout.contains("nobody is known to use vault"), "{}", said.stdout);
        said.stdout
    } else {
        site.world.finish(erase(&["--force", "--confirm", "vault"])).failed(&[])
    };
    assert!(said.contains("the keys of 'vault' are destroyed"), "{said}");
    assert!(shown().contains("epoch 1 destroyed"), "{}", shown());
    let advice = said.lines().find_map(|line| line.split_once("under the new ones: strongroom ")).expect(&said).1;
    // The reason follows on the same line.
    let advice = advice.split(": ").next().unwrap();
    let target = site.world.serve();
    let words: Vec<&str> = advice.split_whitespace().collect();
    site.run("admin", &words).ok();
    site.run("alice", &["copy", &url, &out, "--quiet"]).ok();
    assert!(fs::read(&out).unwrap().iter().all(|byte| *byte == 0));
    site.run("alice", &["copy", &file, &url, "--allow-smaller", "--quiet"]).ok();
    site.run("alice", &["copy", &url, &out, "--overwrite", "--quiet"]).ok();
    assert!(fs::read(&out).unwrap().starts_with(&noise(5, 1 << 20)), "the volume can be used again");
    keys.stop();
    target.stop();
}

#[test]
fn a_backup_that_is_restored_elsewhere_opens_the_volume() {
    let (site, target, keys) = CustodySite::new("vault");
    let url = site.world.url("vault");
    let (file, out, backup) = (site.world.text("in"), site.world.text("out"), site.key_site.text("backup"));
    fs::write(&file, noise(4, 8 << 20)).unwrap();
    site.run("alice", &["copy", &file, &url, "--quiet"]).ok();
    site.key_site.key("admin", &["backup", &backup]).ok();
    keys.stop();
    fs::remove_dir_all(site.key_site.path("keys")).unwrap();
    crate::stage::run(&["keyserver", "--config", &site.key_site.text("keyserver.toml"), "--restore", &backup]).ok();
    let keys = site.key_site.start();
    site.run("alice", &["copy", &url, &out, "--overwrite", "--quiet"]).ok();
    assert!(fs::read(&out).unwrap() == fs::read(&file).unwrap());
    keys.stop();
    target.stop();
}

/// A process that is started again whenever it was killed.
struct Resealer<'a> {
    site: &'a CustodySite,
    child: Option<Child>,
}

impl Resealer<'_> {
    fn start(&mut self) {
        let url = self.site.world.url("vault");
        let arguments = ["volume", "reseal", &url, "--state", &self.site.world.text("state"), "--rate", "2MiB"];
        let mut command = self.site.command("admin", &arguments);
        let log = fs::File::options().create(true).append(true).open(self.site.world.path("reseal.log")).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// SIGKILL.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Resealer<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Keys are rotated, everything is resealed, and the target, the key server, the resealing initiator and a writing one are killed, in an
/// order that a seed chooses. What was written is read, always, and so is what a writer that was killed had made durable; in the end nothing
/// is left under an older epoch.
#[test]
fn rotation_and_reseal_survive_the_death_of_everybody() {
    const PLACES: u64 = 97;
    if Writer::is_this_process() {
        return Writer::run();
    }
    let (site, target, keys) = CustodySite::with("vault", "lease_s = 3");
    site.grant("admin", "vault", "open,seal,administer");
    site.grant("bob", "vault", "open,seal");
    let (mut target, mut keys) = (Some(target), Some(keys));
    let mut resealer = Resealer { site: &site, child: None };
    let device = site.attach("alice", "vault");
    // A process of its own, behind those places.
    let test = "keyserver::custody::rotation_and_reseal_survive_the_death_of_everybody";
    let mut writer = Writer::start(test, site.access("bob", "vault"), PLACES, site.world.path("writer.log"));
    let mut written = vec![0; PLACES as usize];
    let mut dice = noise(53, 4096).into_iter();
    let mut value = 0;
    let mut happened = [0; 6];
    for round in 0..24 {
        let what = usize::from(dice.next().unwrap() % 6);
        happened[what] += 1;
        match what {
            // While one is away, work goes on as far as it can.
            0 => {
                target.take().unwrap().kill();
                target = Some(site.world.serve());
            }
            1 => {
                drop(keys.take());
                keys = Some(site.key_site.start());
            }
            2 => {
                resealer.kill();
                resealer.start();
            }
            3 if round > 2 => drop(site.key_site.key("admin", &["rotate", "vault"]).ok()),
            4 => {
                writer.kill_once_it_has_flushed();
                writer.check(&device);
                writer.go_on();
            }
            _ => {}
        }
        for _ in 0..40 {
            value += 1;
            let lba = u64::from(dice.next().unwrap_or(7)) * 7 % PLACES;
            eventually_put(&device, lba, value);
            written[lba as usize] = value;
        }
        if round % 4 == 3 {
            let _ = flush_blocking(&device);
            eventually("there are keys", || device.key_status().is_some_and(|keys| !keys.epochs.is_empty()));
            for (lba, value) in (0..).zip(&written) {
                assert_eq!(count(&device, lba), *value, "block {lba} in round {round}");
            }
        }
    }
    assert!(happened[..5].iter().all(|times| *times > 1), "a seed that shows everything: {happened:?}");
    resealer.kill();
    writer.kill_once_it_has_flushed();
    site.key_site.key("admin", &["rotate", "vault"]).ok();
    let url = site.world.url("vault");
    let said = site.run("admin", &["volume", "reseal", &url, "--state", &site.world.text("state")]).ok();
    assert!(said.contains("destroyed at the key server"), "{said}");
    let shown = site.key_site.key("admin", &["show", "vault"]).ok();
    assert_eq!(shown.matches(" id ").count(), 1, "one epoch is left: {shown}");
    for (lba, value) in (0..).zip(&written) {
        assert_eq!(count(&device, lba), *value, "block {lba} at the end");
    }
    writer.check(&device);
    device.detach().unwrap();
    site.run("alice", &["volume", "verify", &url, "--quiet"]).ok();
    keys.take().unwrap().stop();
    target.take().unwrap().stop();
}

over_both!(keys_and_plaintext_are_nowhere_but_in_the_initiator);
over_tcp_too!(
    keys_and_plaintext_are_nowhere_but_in_the_initiator
        as keys_and_plaintext_are_nowhere_but_in_the_initiator_over_ecl_tcp
);

/// Plaintext and keys are in who reads and writes, where the very same search finds them; not in the target, nor in what it stores.
fn keys_and_plaintext_are_nowhere_but_in_the_initiator(transport: Transport) {
    if Writer::is_this_process() {
        return Writer::run();
    }
    // Of this suite an initiator keeps the epoch's key as it is; of AES-256-GCM what the library makes of it.
    let (site, target, keys) = CustodySite::of_suite(transport, "vault", "", "chacha20-poly1305");
    let secret = site.key_site.text("exported.key");
    site.key_site.key("admin", &["export", "vault", "--out", &secret]).ok();
    let text = fs::read_to_string(&secret).unwrap();
    let digits = text.split_ascii_whitespace().rfind(|word| word.len() == 64).expect("64 hex digits");
    let raw: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect();
    let halves = [&digits.as_bytes()[..CANARY_BYTES], &digits.as_bytes()[CANARY_BYTES..]];
    let device = site.attach("alice", "vault");
    let claims = device.unit().sealed.unwrap().claims;
    let context = SealContext::new(claims.domain, claims.block_size, claims.epoch).with_suite(Suite::ChaCha20Poly1305);
    let derived = seal_key_for_test(&VolumeKey::new(raw[..].try_into().unwrap()), &context);
    let key = Canaries::new([&raw[..], halves[0], halves[1], &derived].map(|form| form.try_into().unwrap()).to_vec());
    let epoch_key = Canaries::new(vec![derived]);
    // One that does nothing but write, in a process that never saw the key file.
    let test = match transport {
        Transport::Iscsi => "keyserver::custody::keys_and_plaintext_are_nowhere_but_in_the_initiator::over_iscsi",
        Transport::Ecl => "keyserver::custody::keys_and_plaintext_are_nowhere_but_in_the_initiator::over_ecl",
        Transport::EclTcp => "keyserver::custody::keys_and_plaintext_are_nowhere_but_in_the_initiator_over_ecl_tcp",
    };
    site.grant("bob", "vault", "open,seal");
    let mut writer = Writer::start(test, site.access("bob", "vault"), 600, site.world.path("writer.log"));
    writer.until_it_has_flushed();
    let plain = noise(5, BLOCK);
    let plaintext = Canaries::new(vec![plain[64..64 + CANARY_BYTES].try_into().unwrap()]);
    let until = Instant::now() + Duration::from_secs(2);
    let mut rounds = 0;
    let (mut in_target, mut in_store) = (Findings::default(), Findings::default());
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while rounds < 50 || Instant::now() < until {
                write_blocking(&device, Lba(rounds % 500), Buffer::copy_from(&plain), false).unwrap();
                assert_eq!(read_blocking(&device, Lba(rounds % 500), 1).unwrap()[..], plain[..]);
                rounds += 1;
            }
        });
        while !worker.is_finished() {
            for canaries in [&plaintext, &key] {
                canaries.search_process(target.pid(), &mut in_target).unwrap();
                canaries.search_files(&site.world.path("volumes"), &mut in_store).unwrap();
            }
        }
    });
    flush_blocking(&device).unwrap();
    assert!(in_target.bytes > 0 && in_target.found.is_empty(), "{:?}", in_target.found);
    assert!(in_store.bytes > 0 && in_store.found.is_empty(), "{:?}", in_store.found);
    let mut own = Findings::default();
    plaintext.search_process(std::process::id(), &mut own).unwrap();
    assert!(!own.found.is_empty(), "the search finds what is there");
    let mut in_writer = Findings::default();
    epoch_key.search_process(writer.pid(), &mut in_writer).unwrap();
    assert!(!in_writer.found.is_empty(), "and the key where blocks are sealed");
    writer.kill_once_it_has_flushed();
    // The key server keeps keys wrapped at rest.
    let mut at_rest = Findings::default();
    key.search_files(&site.key_site.path("keys"), &mut at_rest).unwrap();
    assert!(at_rest.bytes > 0 && at_rest.found.is_empty());
    device.detach().unwrap();
    keys.stop();
    target.stop();
}
