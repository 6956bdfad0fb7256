//! Proves that what a package installs fits the program: the command lines of the systemd units are accepted, the manual pages and completions are made,
//! and a watchdog is told that the target works.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

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
    for unit in ["strongroom.service", "strongroom-keyserver.service", "strongroom-attach@.service"] {
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
