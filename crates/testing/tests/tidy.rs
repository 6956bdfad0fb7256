//! Proves that the sources keep the house's rules: which room may depend on which, what the pure rooms never touch, how
//! long a file may be, and what must not be left lying about.
//!
//! The dependency arrows are the design's trust boundaries, so this is where "the storage host cannot open a block" is
//! checked: `target` and `store` reach neither `seal` nor anything that does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Longest source file, in lines; tests in a file of their own may be longer, a bit.
const FILE_LINES_MAX: usize = 620;
const TEST_FILE_LINES_MAX: usize = 900;

/// Which rooms each room may use directly (normal dependencies), from the design's table.
const ARROWS: &[(&str, &[&str])] = &[
    ("block", &[]),
    ("cipher", &["block"]),
    ("seal", &["block", "cipher"]),
    ("handshake", &["block", "channel"]),
    ("channel", &["block", "cipher"]),
    ("iscsi", &["block", "scsi"]),
    ("ecl", &["block", "cipher", "scsi"]),
    ("scsi", &["block"]),
    ("store", &["block"]),
    ("net", &["block", "channel", "handshake", "iscsi"]),
    ("keyfiles", &["block", "seal"]),
    ("unix-socket", &[]),
    ("metrics", &["unix-socket"]),
    ("console", &["block", "target"]),
    ("csi", &["block", "target", "unix-socket"]),
    ("nbd", &["block"]),
    ("keyserver", &["block", "channel", "cipher", "handshake", "metrics", "seal"]),
    (
        "initiator",
        &["block", "channel", "ecl", "handshake", "iscsi", "keyserver", "nbd", "net", "scsi", "seal", "unix-socket"],
    ),
    ("target", &["block", "channel", "ecl", "handshake", "iscsi", "metrics", "net", "scsi", "store", "unix-socket"]),
    // The whole system in one process, and from one seed.
    (
        "testing",
        &["block", "channel", "ecl", "handshake", "initiator", "iscsi", "net", "scsi", "seal", "store", "target"],
    ),
    // The binary joins the rooms.
    (
        "strongroom",
        &[
            "block",
            "channel",
            "console",
            "csi",
            "handshake",
            "initiator",
            "keyfiles",
            "keyserver",
            "metrics",
            "net",
            "scsi",
            "seal",
            "store",
            "target",
        ],
    ),
    // The laboratory measures them from outside, and is no part of the product.
    ("wan", &[]),
    (
        "lab",
        &[
            "block",
            "channel",
            "cipher",
            "handshake",
            "initiator",
            "keyfiles",
            "keyserver",
            "net",
            "seal",
            "strongroom",
            "target",
            "wan",
        ],
    ),
];

/// Rooms without sockets, clock, threads and operating-system randomness, and the crates that would bring them in.
const PURE: &[&str] = &["block", "channel", "cipher", "ecl", "iscsi", "nbd", "scsi", "seal"];
const IMPURE_CRATES: &[&str] =
    &["fuser", "getrandom", "io-uring", "mio", "nix", "polling", "rand", "rustix", "rustls", "socket2", "tokio"];

/// What only one room may use directly.
const EXCLUSIVE: &[(&str, &[&str])] = &[
    // NBD clients on other machines come by TLS with certificates (initiator). The lab measures TLS's own record layer beside the channel.
    ("rustls", &["handshake", "initiator", "lab"]),
    // BBR and CUBIC, behind a trait.
    ("s2n-quic-core", &["ecl"]),
    // Sockets (net), and the log (store).
    ("io-uring", &["net", "store"]),
    ("fuser", &["initiator", "testing"]),
    // The kernel's NBD client is configured by generic netlink.
    ("neli", &["initiator"]),
    // The memory and the queues of virtual machines.
    ("vhost", &["initiator"]),
    ("virtio-queue", &["initiator"]),
    ("vm-memory", &["initiator"]),
    // From a node's Ed25519 key to the X25519 key of the same secret, which aws-lc-rs does not offer.
    ("curve25519-dalek", &["handshake"]),
    // CHAP's oldest digest, and the lazy-crypto paper's authenticator, which aws-lc-rs does not offer.
    ("md-5", &["cipher", "iscsi"]),
    ("hmac", &["cipher"]),
    // The WAN paper's cipher: triple DES.
    ("des", &["cipher"]),
    ("redb", &["keyserver"]),
    ("httparse", &["metrics"]),
    // The web console's runtime and the CSI driver's, never that of the data path.
    ("axum", &["console"]),
    ("hyper", &["console"]),
    ("tokio", &["console", "csi"]),
    ("tonic", &["csi"]),
    ("prometheus-client", &["metrics"]),
    ("clap", &["lab", "strongroom"]),
    ("anyhow", &["lab", "strongroom"]),
    ("indicatif", &["lab", "strongroom"]),
    // Names of volumes (csi); the audit log's chain (keyserver); CHAP's digests (iscsi); a copy's SHA-256 (initiator); the demo takes checksums and repeats a key's derivation from outside (strongroom).
    (
        "aws-lc-rs",
        &["channel", "cipher", "csi", "ecl", "handshake", "initiator", "iscsi", "keyserver", "seal", "strongroom"],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is two levels up")
}

/// The dependency graph by package name: normal dependencies of the workspace's crates, and what Cargo.lock says of other packages,
/// which includes their build dependencies and those of other platforms.
struct Graph {
    direct: BTreeMap<String, BTreeSet<String>>,
    rooms: BTreeSet<String>,
}

impl Graph {
    /// The rooms and what they declare. Nothing is resolved: that would need packages of platforms that no build here downloads.
    fn metadata() -> Value {
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
    }

    fn load() -> Graph {
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let mut direct = locked_dependencies();
        let mut rooms = BTreeSet::new();
        for package in Graph::metadata()["packages"].as_array().expect("an array") {
            let name = text(&package["name"]);
            let normal = |dependency: &&Value| dependency["kind"].is_null();
            let dependencies = package["dependencies"].as_array().expect("an array").iter();
            direct.insert(name.clone(), dependencies.filter(normal).map(|dep| text(&dep["name"])).collect());
            rooms.insert(name);
        }
        Graph { direct, rooms }
    }

    /// Everything that `package` reaches.
    fn reach(&self, package: &str) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        let mut open = vec![package.to_owned()];
        while let Some(name) = open.pop() {
            for dependency in self.direct.get(&name).into_iter().flatten() {
                if reached.insert(dependency.clone()) {
                    open.push(dependency.clone());
                }
            }
        }
        reached
    }
}

/// What each package of Cargo.lock depends on, by name; the versions of a package count as one.
fn locked_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("Cargo.lock")).expect("the workspace has a lock file");
    let lock: toml::Table = text.parse().expect("cargo writes TOML");
    let mut direct = BTreeMap::new();
    for package in lock["package"].as_array().expect("an array") {
        let name = package["name"].as_str().expect("a string").to_owned();
        let dependencies = package.get("dependencies").and_then(|list| list.as_array()).into_iter().flatten();
        // "name", or "name version" where there are several.
        let names = dependencies.filter_map(|dependency| dependency.as_str()?.split(' ').next()).map(str::to_owned);
        direct.entry(name).or_insert_with(BTreeSet::new).extend(names);
    }
    direct
}

/// The package name of a room.
fn package(room: &str) -> String {
    if room == "strongroom" { room.to_owned() } else { format!("strongroom-{room}") }
}

#[test]
fn the_storage_host_cannot_reach_what_opens_a_block() {
    let graph = Graph::load();
    for host in ["store", "target"] {
        let reached = graph.reach(&package(host));
        for forbidden in ["seal", "initiator", "keyserver", "strongroom"] {
            assert!(!reached.contains(&package(forbidden)), "{host} reaches {forbidden}: the storage host must not");
        }
    }
    assert!(!graph.reach("strongroom-store").contains("aws-lc-rs"), "store holds no cryptography at all");
    // This test looks at a real graph, through other packages too.
    assert!(graph.reach("strongroom-initiator").contains("strongroom-seal"));
    assert!(graph.reach("strongroom-handshake").contains("rustls-webpki"));
}

#[test]
fn rooms_depend_only_along_the_arrows() {
    let graph = Graph::load();
    for (room, allowed) in ARROWS {
        let allowed: BTreeSet<String> = allowed.iter().map(|room| package(room)).collect();
        let used: BTreeSet<String> = graph.direct[&package(room)].intersection(&graph.rooms).cloned().collect();
        let extra: Vec<_> = used.difference(&allowed).collect();
        assert!(extra.is_empty(), "{room} must not depend on {extra:?}; the arrows are in ARCHITECTURE.md");
    }
    for room in &graph.rooms {
        let known = ARROWS.iter().any(|(name, _)| package(name) == *room);
        assert!(known, "{room} is a new room: give it its arrows here and in ARCHITECTURE.md");
    }
}

/// What only experiments need is not in the product, not even through others.
#[test]
fn the_product_holds_no_laboratory() {
    let graph = Graph::load();
    let reached = graph.reach("strongroom");
    for part in ["strongroom-lab", "strongroom-wan", "hdrhistogram", "resvg", "str0m-netem", "tun-rs", "libloading"] {
        assert!(!reached.contains(part), "the product reaches {part}, which is for experiments alone");
        let elsewhere = part == "strongroom-lab" || graph.reach("strongroom-lab").contains(part);
        assert!(elsewhere, "nothing uses {part}: this test looks for what is not there");
    }
}

#[test]
fn pure_rooms_stay_pure() {
    let graph = Graph::load();
    for room in PURE {
        let direct = &graph.direct[&package(room)];
        let impure: Vec<_> = IMPURE_CRATES.iter().filter(|name| direct.contains(**name)).collect();
        assert!(impure.is_empty(), "{room} is pure (no sockets, clock, threads, randomness) but uses {impure:?}");
        assert!(!direct.contains("libc"), "{room} is pure but uses libc");
    }
    for (name, allowed) in EXCLUSIVE {
        for room in &graph.rooms {
            let may = allowed.iter().any(|room_allowed| package(room_allowed) == *room);
            assert!(may || !graph.direct[room].contains(*name), "{room} uses {name}, which only {allowed:?} may");
        }
    }
}

#[test]
fn pure_rooms_forbid_the_clock_to_clippy() {
    for room in ["channel", "cipher", "ecl", "iscsi", "nbd", "scsi", "seal"] {
        let path = root().join("crates").join(room).join("clippy.toml");
        let text = fs::read_to_string(&path).unwrap_or_default();
        for method in ["std::time::Instant::now", "std::time::SystemTime::now", "std::thread::spawn"] {
            assert!(text.contains(method), "crates/{room}/clippy.toml should disallow {method}");
        }
    }
}

/// The faults that the simulation must find are compiled into nothing but the tests of `testing`.
#[test]
fn planted_faults_are_for_tests_only() {
    let metadata = Graph::metadata();
    for package in metadata["packages"].as_array().expect("an array") {
        for dependency in package["dependencies"].as_array().expect("an array") {
            let name = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let features: Vec<String> = dependency["features"].as_array().into_iter().flatten().map(name).collect();
            let planted = features.iter().any(|feature| feature.starts_with("planted"));
            let is_testing = name(&package["name"]) == "strongroom-testing" && name(&dependency["kind"]) == "dev";
            assert!(!planted || is_testing, "{} enables {features:?}", package["name"]);
        }
        for (feature, enables) in package["features"].as_object().expect("an object") {
            let own = ["strongroom-ecl", "strongroom-store", "strongroom-testing"]
                .iter()
                .any(|name| package["name"] == *name);
            let planted = feature.starts_with("planted") || enables.to_string().contains("planted");
            assert!(own || !planted, "{} has the feature {feature}", package["name"]);
            assert!(feature != "default" || !planted, "{} plants faults by default", package["name"]);
        }
    }
    let word = ["Planted", "Fault"].concat();
    for (path, text) in tracked_texts().iter().filter(|(path, _)| is_rust(path)) {
        let may = ["crates/ecl", "crates/store", "crates/testing"].iter().any(|folder| path.starts_with(folder));
        assert!(may || !text.contains(&word), "{} names planted faults", path.display());
    }
}

/// The papers' cipher suites are compiled into the laboratory and into tests, and into nothing else: the product does not reach the laboratory
/// (above). `make test-product` looks at a product that was built alone.
#[test]
fn weak_suites_are_for_the_laboratory_and_for_tests() {
    let metadata = Graph::metadata();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut enabled_by = BTreeSet::new();
    for package in metadata["packages"].as_array().expect("an array") {
        for dependency in package["dependencies"].as_array().expect("an array") {
            let mut features = dependency["features"].as_array().into_iter().flatten();
            if features.any(|feature| feature == "weak-suites") && text(&dependency["kind"]) != "dev" {
                enabled_by.insert(text(&package["name"]));
            }
        }
        for (feature, enables) in package["features"].as_object().expect("an object") {
            let of_its_own = feature == "weak-suites";
            assert!(of_its_own || !enables.to_string().contains("weak-suites"), "{}: {feature}", package["name"]);
        }
    }
    assert_eq!(enabled_by, BTreeSet::from(["strongroom-lab".to_owned()]));
}

/// The engine, the nexus with its driver, and the logical unit see a session in SCSI's terms, so that a second transport changes none of them.
#[test]
fn the_engine_and_the_logical_unit_name_no_transport() {
    let above = [
        "crates/initiator/src/pipeline",
        "crates/initiator/src/device/attachment",
        "crates/initiator/src/device/driver",
        "crates/initiator/src/session/nexus",
        "crates/initiator/src/session/transport",
        "crates/storage-target/src/unit",
        "crates/scsi/src",
    ];
    let mut looked_at = 0;
    for (path, text) in tracked_texts().iter().filter(|(path, _)| is_rust(path)) {
        let path = path.display().to_string();
        if above.iter().any(|folder| path.starts_with(folder)) {
            looked_at += 1;
            let transports = ["strongroom_iscsi", "session::iscsi", "strongroom_ecl", "session::ecl"];
            let named = transports.iter().find(|name| text.contains(**name));
            assert!(named.is_none(), "{path} names {named:?}: use strongroom_scsi::transport");
        }
    }
    assert!(looked_at > 50, "the folders have moved: {looked_at} files");
}

/// Every file that belongs to the repository.
fn tracked_files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).expect("paths are UTF-8");
    listing.split('\0').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// Path and text of every tracked text file; files that vanish while we look are skipped.
fn tracked_texts() -> Vec<(PathBuf, String)> {
    tracked_files()
        .into_iter()
        .filter_map(|path| fs::read_to_string(root().join(&path)).ok().map(|text| (path, text)))
        .collect()
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs")
}

#[test]
fn files_can_be_read_in_one_sitting() {
    for (path, text) in tracked_texts().iter().filter(|(path, _)| is_rust(path)) {
        let limit = if is_test(path) { TEST_FILE_LINES_MAX } else { FILE_LINES_MAX };
        let lines = text.lines().count();
        assert!(lines <= limit, "{} has {lines} lines, more than {limit}: it holds two things", path.display());
    }
}

#[test]
fn every_source_file_says_what_room_it_is() {
    for (path, text) in tracked_texts().iter().filter(|(path, _)| is_rust(path)) {
        assert!(text.starts_with("//!"), "{} should open with a //! sentence", path.display());
        assert!(!text.starts_with("//! Placeholder"), "{} is still a placeholder", path.display());
    }
}

#[test]
fn nothing_is_left_lying_about() {
    // Split, so that this list does not find itself.
    let leftovers =
        [["dbg", "!("], ["todo", "!("], ["unimplemented", "!("], ["FIX", "ME"], ["XX", "X:"]].map(|p| p.concat());
    let vague = ["utils", "util", "common", "misc", "manager", "helpers"];
    for (path, text) in tracked_texts().iter().filter(|(path, _)| is_rust(path)) {
        for leftover in &leftovers {
            assert!(!text.contains(leftover.as_str()), "{} contains {leftover}", path.display());
        }
        for name in vague {
            let declares = text.lines().any(|line| {
                let line = line.trim().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
                line.strip_prefix("mod ").is_some_and(|rest| rest.trim_end_matches([';', '{', ' ']) == name)
            });
            assert!(!declares, "{} declares mod {name}: name it after what it holds", path.display());
        }
    }
}

#[test]
fn the_repository_names_no_registry_and_no_private_path() {
    // Cargo.lock names its registry by the index's address; that is cargo's to write.
    let hosts = [["crates", ".io"], ["pypi", ".org"], ["npmjs", ".com"], ["proxy.golang", ".org"]].map(|p| p.concat());
    for (path, text) in tracked_texts() {
        if path.ends_with("Cargo.lock") {
            continue;
        }
        for host in &hosts {
            assert!(!text.contains(host.as_str()), "{} names the registry host {host}", path.display());
        }
    }
}

#[test]
fn the_documents_and_the_tree_agree() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let architecture = read("ARCHITECTURE.md");
    let results = read("docs/bench/README.md");
    for room in Graph::load().rooms {
        let room = room.trim_start_matches("strongroom-");
        assert!(architecture.contains(&format!("`{room}`")), "ARCHITECTURE.md does not mention the room {room}");
    }
    for path in tracked_files() {
        let is_document = path.starts_with("docs") && path.extension().is_some_and(|extension| extension == "md");
        if is_document && path.starts_with("docs/bench") {
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(
                name == "README.md" || results.contains(&*name),
                "docs/bench/README.md should say what {name} is for"
            );
        } else if is_document {
            let name = path.display().to_string();
            assert!(architecture.contains(&name), "ARCHITECTURE.md should say what {name} is for");
        }
    }
    for (path, text) in tracked_texts() {
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        for link in relative_links(&text) {
            let at = path.parent().unwrap_or(Path::new("")).join(link);
            assert!(root().join(&at).exists(), "{} links to {}, which is not there", path.display(), at.display());
        }
    }
}

/// The threat model's tables of attacks name exactly the tests that prove them.
#[test]
fn every_attack_is_in_the_threat_model() {
    let tests = |text: &str| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let named = |pair: &[&str]| {
            let name = pair[1].strip_prefix("fn ")?.split('(').next()?;
            (pair[0].starts_with("#[test]") && name.starts_with("attack_")).then(|| name.to_owned())
        };
        lines.windows(2).filter_map(named).collect::<Vec<String>>()
    };
    let texts = tracked_texts();
    let proved: Vec<String> =
        texts.iter().filter(|(path, _)| is_rust(path)).flat_map(|(_, text)| tests(text)).collect();
    let model = fs::read_to_string(root().join("docs/threat-model.md")).expect("it is there");
    // Names stand in backquotes, at the odd places.
    let claimed: BTreeSet<String> = model
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.starts_with("attack_") && name.len() > "attack_".len())
        .map(str::to_owned)
        .collect();
    let distinct: BTreeSet<String> = proved.iter().cloned().collect();
    assert_eq!(proved.len(), distinct.len(), "two tests have one name: {proved:?}");
    assert_eq!(distinct, claimed, "tests and docs/threat-model.md, its tables of attacks");
}

/// The targets of Markdown links that point into the repository.
fn relative_links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter_map(|link| {
        let path = link.split('#').next().unwrap_or("");
        let inside = !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:");
        inside.then_some(path)
    })
}
