//! Proves that what a package installs fits the program: the command lines of the systemd units and of the Kubernetes manifests are accepted, the manual
//! pages and completions are made, all of it is installed below a prefix, and a watchdog is told that the target works.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::stage::{CommandOutput, has};

/// A public line, of nobody.
const PUBLIC_LINE: &str = "strongroom-ed25519 p6enp6enp6enp6enp6enp6enp6enp6enp6enp6enp6c=";
const UNITS: [&str; 3] = ["strongroom.service", "strongroom-keyserver.service", "strongroom-attach@.service"];
/// What is installed below the prefix, beside the manual pages.
const INSTALLED: [&str; 11] = [
    "bin/strongroom",
    "share/bash-completion/completions/strongroom",
    "share/zsh/site-functions/_strongroom",
    "share/fish/vendor_completions.d/strongroom.fish",
    "share/doc/strongroom/examples/attach.conf",
    "share/doc/strongroom/examples/keyserver.toml",
    "share/doc/strongroom/examples/strongroom.toml",
    "lib/systemd/system/strongroom.service",
    "lib/systemd/system/strongroom-keyserver.service",
    "lib/systemd/system/strongroom-attach@.service",
    "lib/tmpfiles.d/strongroom.conf",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strongroom"))
}

/// The arguments of each ExecStart and ExecStartPre of a unit that call our program.
fn command_lines(unit: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join("contrib/systemd").join(unit)).unwrap();
    let commands = text.lines().filter_map(|line| line.split_once("=/usr/bin/strongroom ")).map(|(_, rest)| rest);
    commands.map(|rest| rest.split(' ').map(str::to_owned).collect()).collect()
}

/// What is wrong with the command line itself ends with status 2.
fn is_understood(arguments: &[String]) -> bool {
    let run = program().args(arguments).stdin(Stdio::null()).output().unwrap();
    run.status.code() != Some(2)
}

#[test]
fn the_command_lines_of_the_units_are_understood() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    for unit in UNITS {
        let lines = command_lines(unit);
        assert!(!lines.is_empty(), "{unit}");
        for line in lines {
            let arguments: Vec<String> = line
                .iter()
                .filter(|word| *word != "$OPTIONS")
                .map(|word| match word.as_str() {
                    "${URL}" => "strongroom://127.0.0.1:9/vault".to_owned(),
                    "%d/identity" => path("identity"),
                    word if word.starts_with('/') => path("none"),
                    word => word.to_owned(),
                })
                .collect();
            assert!(is_understood(&arguments), "{unit}: {arguments:?}");
            let wrong: Vec<String> = arguments.iter().cloned().chain(["--no-such-option".to_owned()]).collect();
            assert!(!is_understood(&wrong), "{unit}: a wrong option would go unnoticed");
        }
    }
}

/// The arguments of each container of a manifest that runs our program, and of each command of ours in its scripts. Of YAML it reads what the
/// manifests have: `args` right behind `image`, and one item a line.
fn manifest_command_lines(manifest: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join("contrib/kubernetes").join(manifest)).unwrap();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let mut found = Vec::new();
    while lines.any(|line| line.starts_with("image: registry.example/strongroom:")) {
        // One with a command of its own runs a shell.
        if lines.next() == Some("args:") {
            found.push(lines.by_ref().map_while(|line| line.strip_prefix("- ")).map(str::to_owned).collect());
        }
    }
    let scripts = text.lines().filter_map(|line| line.trim().rsplit("|| ").next()?.strip_prefix("strongroom "));
    found.extend(scripts.map(|rest| rest.split(' ').map(str::to_owned).collect::<Vec<String>>()));
    found
}

#[test]
fn the_command_lines_of_the_manifests_are_understood() {
    let directory = tempfile::tempdir().unwrap();
    let variables = [
        ("$(TARGET)", "127.0.0.1:9"),
        ("$(TARGET_KEY)", PUBLIC_LINE),
        ("$(TARGET_NAME)", "storage"),
        ("$(NODE_NAME)", "worker-1"),
    ];
    for (manifest, count) in [("controller.yaml", 1), ("node.yaml", 3)] {
        let lines = manifest_command_lines(manifest);
        assert_eq!(lines.len(), count, "{manifest}: {lines:?}");
        for (number, line) in lines.iter().enumerate() {
            // Every path becomes a file that is not there, another one for each line: without an identity the driver ends instead of serving.
            let none = directory.path().join(format!("{manifest}-{number}")).display().to_string();
            let fit = |word: &String| {
                let word = variables.iter().fold(word.clone(), |word, &(name, value)| word.replace(name, value));
                assert!(!word.contains("$("), "{manifest}: {word} has a variable that has no value here");
                match word.split_once("=/") {
                    Some((option, _)) => format!("{option}={none}"),
                    None if word.starts_with('/') => none.clone(),
                    None => word,
                }
            };
            let arguments: Vec<String> = line.iter().map(fit).collect();
            assert!(is_understood(&arguments), "{manifest}: {arguments:?}");
            let wrong: Vec<String> = arguments.iter().cloned().chain(["--no-such-option".to_owned()]).collect();
            assert!(!is_understood(&wrong), "{manifest}: a wrong option would go unnoticed");
        }
    }
}

/// The files below a directory, by their paths.
fn files_below(directory: &Path) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.insert(path.display().to_string());
        }
    }
    files
}

/// From a tree as `make install` has it, in which a few bytes stand for the program.
#[test]
fn the_script_installs_all_of_it_below_its_prefix() {
    if !has("bash") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (tree, destination) = (directory.path().join("tree"), directory.path().join("destination"));
    for part in ["scripts", "target/release"] {
        std::fs::create_dir_all(tree.join(part)).unwrap();
    }
    std::fs::copy(root().join("scripts/install.sh"), tree.join("scripts/install.sh")).unwrap();
    for part in ["contrib", "examples"] {
        symlink(root().join(part), tree.join(part)).unwrap();
    }
    let install = || {
        let mut command = Command::new("bash");
        command.arg(tree.join("scripts/install.sh")).arg(&destination).arg("/opt/strongroom");
        CommandOutput::new(command.stdin(Stdio::null()).output().unwrap())
    };
    install().failed(&["nothing is built", "make install"]);
    assert!(!destination.exists());
    let (built, package) = (tree.join("target/release/strongroom"), tree.join("target/package"));
    std::fs::write(&built, "the program").unwrap();
    std::fs::set_permissions(&built, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(program().arg("generate").arg(&package).status().unwrap().success());

    let printed: BTreeSet<String> = install().ok().lines().map(str::to_owned).collect();
    let pages = std::fs::read_dir(package.join("man")).unwrap().map(|page| page.unwrap().file_name());
    let pages = pages.map(|page| format!("share/man/man1/{}", page.to_string_lossy()));
    let below = |path: String| format!("{}/opt/strongroom/{path}", destination.display());
    let expected: BTreeSet<String> = pages.chain(INSTALLED.map(str::to_owned)).map(below).collect();
    assert!(expected.contains(&below("share/man/man1/strongroom-attach.1".to_owned())));
    assert_eq!(printed, expected, "what is printed");
    assert_eq!(files_below(&destination), expected, "what is there");

    let prefix = destination.join("opt/strongroom");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&prefix.join("bin/strongroom")), 0o755);
    for unit in UNITS {
        let path = prefix.join("lib/systemd/system").join(unit);
        assert_eq!(mode(&path), 0o644, "{unit}");
        let text = std::fs::read_to_string(&path).unwrap();
        let commands: Vec<&str> = text.lines().filter(|line| line.starts_with("ExecStart")).collect();
        let are_ours = commands.iter().all(|line| line.contains("=/opt/strongroom/bin/strongroom "));
        assert!(!commands.is_empty() && are_ours, "{unit}: {commands:?}");
        assert!(!text.contains("/usr/bin/strongroom") && !text.contains("/usr/share/doc"), "{unit}: {text}");
    }
}

#[test]
fn manual_pages_and_completions_are_made() {
    let directory = tempfile::tempdir().unwrap();
    assert!(program().arg("generate").arg(directory.path()).status().unwrap().success());
    let text = |name: &str| {
        std::fs::read_to_string(directory.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    assert!(text("man/strongroom.1").contains("serve"));
    assert!(text("man/strongroom-attach.1").contains("mkfs"));
    assert!(text("man/strongroom-volume-create.1").contains("size"));
    assert!(text("completions/bash/strongroom.bash").contains("keyserver"));
    assert!(text("completions/zsh/_strongroom").contains("keyserver"));
    assert!(text("completions/fish/strongroom.fish").contains("keyserver"));
}

#[test]
fn a_target_tells_the_watchdog_that_it_works() {
    let directory = tempfile::tempdir().unwrap();
    let socket_path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&socket_path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut target = program()
        .args(["serve", "--listen", "127.0.0.1:0", "--workers", "2", "--root"])
        .arg(directory.path().join("volumes"))
        .env("NOTIFY_SOCKET", &socket_path)
        .env("WATCHDOG_USEC", "2000000")
        .env_remove("WATCHDOG_PID")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut message = [0; 256];
    let mut told = 0;
    while told < 3 {
        let len = socket.recv(&mut message).expect("the watchdog is told in time");
        told += u32::from(&message[..len] == b"WATCHDOG=1");
    }
    target.kill().unwrap();
    target.wait().unwrap();
}
