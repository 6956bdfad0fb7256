//! Proves that a target's keeper can watch and steer it with the binary: status, sessions, drain, reload, by command and by signal.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use crate::stage::{World, eventually, run, strongroom};

const RULES: &str = "[[plain]]\ninitiators = [\"*\"]\nvolumes = [\"*\"]\n";

fn alices_rule(world: &World) -> String {
    let alice = world.public_key("alice");
    format!(
        "[[peer]]\nname = \"alice\"\nkey = \"{alice}\"\ninitiators = [\"iqn.2026-11.test:alice\"]\nvolumes = [\"*\"]\n\n{RULES}"
    )
}

#[test]
fn without_a_target_the_commands_say_so() {
    let world = World::new();
    let root = world.text("volumes");
    for command in [&["status"][..], &["session", "list"], &["reload"], &["drain"], &["session", "drop", "1"]] {
        run(&[command, &["--root", &root]].concat()).failed(&[
            "no target answers at",
            ".admin.sock",
            "strongroom serve",
        ]);
    }
}

/// For every benchmark, also with options that only the lab has.
#[test]
fn benchmarks_say_where_they_went() {
    for arguments in
        [&[][..], &["--help"], &["--version"], &["rawio", "--schemes", "S0,S2-5", "-x"], &["lab", "--", "sh"]]
    {
        let said = run(&[&["bench"], arguments].concat());
        assert_eq!((said.status, said.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", said.stderr);
        said.failed(&["strongroom-lab", "make lab", "target/release/strongroom-lab"]);
    }
    assert!(!run(&["--help"]).ok().contains("bench"), "it is no command any more");
}

#[test]
fn a_target_is_watched_drained_and_reloaded() {
    let (world, server) = World::sealed("vault", "16MiB");
    let (root, config) = (world.text("volumes"), world.text("strongroom.toml"));
    let said = run(&["status", "--root", &root, "--interval", "100ms"]).ok();
    // Formatting logs in twice: to learn which volume to record with the key, and to seal.
    for part in ["no sessions", "listens on", "2 since the start", "now"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let json = run(&["status", "--config", &config, "--json", "--interval", "100ms"]).ok();
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["pid"], server.pid());
    assert!(report["rates"]["read_bytes_per_s"].is_number(), "{json}");
    run(&["session", "drop", "--peer", "nobody", "--root", &root]).failed(&["no session is like that"]);
    run(&["session", "drop", "--root", &root]).failed(&["--peer"]);
    // Away, and back.
    run(&["drain", "--wait", "--grace", "2s", "--root", &root]).ok();
    assert!(run(&["status", "--root", &root]).ok().contains("every volume: logins are refused"));
    world.alice(&["copy", &world.url("vault"), &world.text("out")]).failed(&["the volume is being drained"]);
    run(&["drain", "--end", "--root", &root]).ok();
    run(&["drain", "--end", "--root", &root]).failed(&["nothing of that"]);
    world.alice(&["copy", &world.url("vault"), &world.text("out")]).ok();
    // A configuration that is wrong changes nothing; a right one does.
    let good = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{good}\n[[peer]]\nname = 7\n")).unwrap();
    run(&["reload", "--root", &root]).failed(&["configuration"]);
    world.write_config(RULES);
    assert!(run(&["reload", "--root", &root]).ok().contains("in force now: peer"));
    world.alice(&["copy", &world.url("vault"), &world.text("again")]).failed(&["cannot attach"]);
    world.write_config(&alices_rule(&world));
    let pid = rustix::process::Pid::from_raw(server.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    eventually("SIGHUP is obeyed", || server.log().matches("read the configuration again").count() == 2);
    world.alice(&["copy", &world.url("vault"), &world.text("again")]).ok();
    server.stop();
    run(&["status", "--root", &root]).failed(&["no target answers"]);
}

/// Over a restart of the target.
#[test]
fn a_watched_target_is_shown_again_and_again() {
    let world = World::new();
    let root = world.text("volumes");
    run(&["status", "--watch", "--interval", "0", "--root", &root]).failed(&["--interval"]);
    run(&["status", "--watch", "--root", &root]).failed(&["no target answers"]);
    let server = world.serve();
    let output = world.path("watched");
    let watcher = strongroom(&["status", "--watch", "--json", "--interval", "50ms", "--root", &root])
        .stdout(std::fs::File::create(&output).unwrap())
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut watcher = watcher.unwrap();
    let reports = |pid: u32| {
        let said = std::fs::read_to_string(&output).unwrap();
        // The last line may not be whole yet.
        let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let reports = whole.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        reports.filter(|report| report["pid"] == pid && report["rates"]["read_bytes_per_s"].is_number()).count()
    };
    eventually("rates are shown", || reports(server.pid()) > 2);
    server.stop();
    let server = world.serve();
    eventually("the next target is shown", || reports(server.pid()) > 0);
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    server.stop();
}

#[test]
fn a_plan_is_made_from_what_is_told_or_measured_at_the_target() {
    let (world, server) = World::sealed("vault", "16MiB");
    let told = run(&["plan", "--rtt", "128ms", "--rate", "1Gbit", "--plot", &world.text("plan.svg")]).ok();
    for part in ["one at a time", "pipelined", "<- ideal", "equation (3)", "--pipeline"] {
        assert!(told.contains(part), "{part} is not in:\n{told}");
    }
    assert!(std::fs::read_to_string(world.path("plan.svg")).unwrap().starts_with("<svg"));
    // Measured without a volume's key, in a channel and in plain iSCSI.
    for url in [world.url("vault"), world.plain_url("any")] {
        let said = world.alice_without_key(&["plan", "--measure", &url, "--measure-bytes", "2MiB", "--json"]).ok();
        let plan: serde_json::Value = serde_json::from_str(&said).unwrap();
        for number in ["rtt_ms", "bytes_per_second", "bytes"] {
            assert!(plan["measured"][number].as_f64().unwrap() > 0.0, "{number}: {said}");
        }
        assert!(plan["n"].as_u64().unwrap() >= 2 && plan["memory_bytes"].as_u64().unwrap() > 0, "{said}");
    }
    run(&["plan", "--rate", "1Gbit"]).failed(&["--rtt"]);
    run(&["plan", "--rtt", "1ms", "--rate", "1Gbit", "--block", "100"]).failed(&["multiple of 512"]);
    server.stop();
}

#[test]
fn another_user_is_turned_away() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("passed over: needs root to be somebody else");
        return;
    }
    let world = World::new();
    let server = world.serve();
    let socket = world.path("volumes/.admin.sock");
    let as_nobody = || {
        let mut command = strongroom(&["status", "--interval", "0", "--socket", socket.to_str().unwrap()]);
        let output = command.uid(65534).gid(65534).output();
        output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(socket.parent().unwrap().parent().unwrap(), 0o755);
    let Ok(said) = as_nobody() else {
        eprintln!("passed over: nobody may not run the binary where it lies");
        return;
    };
    assert!(said.contains("ask as the user that runs it"), "{said}");
    // Even if somebody opens the file.
    open(&socket, 0o666);
    let said = as_nobody().unwrap();
    assert!(said.contains("only the user that runs this target"), "{said}");
    run(&["status", "--interval", "0", "--socket", socket.to_str().unwrap()]).ok();
    server.stop();
}
