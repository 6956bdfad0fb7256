//! Proves that the web console shows a target and manages its peers, that it says what is wrong and goes on, and that other sites, other programs
//! on the machine, and what a target or a peer is called get nothing out of it. `make test-console` looks at it with a browser.

mod attacks;
mod browser;

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use self::browser::ConsoleProcess;
use crate::stage::{World, eventually, noise, run, strongroom};

#[test]
fn a_target_is_shown() {
    let (world, server) = World::sealed("vault", "16MiB");
    fs::write(world.path("image"), noise(1, 1 << 20)).unwrap();
    world.alice(&["copy", &world.text("image"), &world.url("vault"), "--allow-smaller"]).ok();
    run(&["volume", "snapshot", "create", "vault@monday", "--config", &world.text("strongroom.toml")]).ok();
    let socket = world.text("nbd.sock");
    let mut attached = world.alice_command(&["nbd", "serve", &world.url("vault"), "--socket", &socket]);
    let mut attached = attached.stdout(Stdio::null()).spawn().unwrap();
    let console = ConsoleProcess::of(&world);
    let browser = console.log_in();
    eventually("the session is there", || browser.page("/sessions").body.contains("iqn.2026-11.test:alice"));
    browser.page("/sessions").has(&["<strong>alice</strong>", ">vault</a>", "S2-5"]);
    let overview = browser.page("/");
    overview.has(&[env!("CARGO_PKG_VERSION"), "Nothing needs attention", "1 volume, 1 open", "<svg", "Memory used"]);
    // Latencies by operation, of what the copy did.
    overview.has(&["<th scope=\"row\" role=\"rowheader\">write</th>", "≤ "]);
    browser.page("/volumes").has(&[">vault</a>", "sealed (keyfile)", "16 MiB", ">open<"]);
    browser.page(&format!("/volumes?filter={}", "%c3%bc".repeat(300)));
    assert!(browser.page("/volumes?filter=none-of-them").body.contains("No volume has this in its name"));
    let volume = browser.page("/volume?name=vault");
    volume.has(&["monday", "Sealing domain", "Epoch", "Scrub", "Scrubbed in this pass", "older versions of blocks"]);
    volume.has(&[&format!("strongroom volume verify {} --key-file KEY-FILE", world.url("vault"))]);
    // What the attachment says about itself.
    volume.has(&["exclusive", "nbd serve"]);
    attached.kill().unwrap();
    attached.wait().unwrap();
    // Of one that is not open, what its description says.
    eventually("it is closed", || browser.page("/volume?name=vault").body.contains("not open"));
    browser.page("/volume?name=vault").has(&["monday"]);
    assert_eq!(browser.get("/volume?name=nothing").status, 404);
    assert_eq!(browser.get("/nothing").status, 404);
    server.stop();
}

#[test]
fn peers_are_invited_revoked_and_removed() {
    let world = World::new();
    world.create(&["vault", "--size", "16MiB"]).ok();
    let server = world.serve();
    let console = ConsoleProcess::of(&world);
    let browser = console.log_in();
    browser.page("/peers").has(&["alice", "the configuration", "name=\"volume\" value=\"vault\""]);
    let answer = browser.submit("/peers/invite", "name=bob&volume=vault&expires_s=600&address=");
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.has(&["shown this once", "strongroom join"]);
    let (_, invitation) = answer.body.split_once("strongroom-invitation1:").expect("an invitation");
    let invitation = format!("strongroom-invitation1:{}", invitation.split('<').next().unwrap());
    let listed = browser.page("/peers");
    listed.has(&["Revoke", ">bob</strong>"]);
    assert!(!listed.body.contains(&invitation[30..60]), "it is shown once");
    fs::write(world.path("token"), &invitation).unwrap();
    let mut join = strongroom(&["join", "--token-file", &world.text("token")]);
    join.env("XDG_CONFIG_HOME", world.path("bob"));
    assert!(world.finish(join).ok().contains("as 'bob'"));
    browser.page("/peers/remove?name=bob").has(&["its sessions end at once", "Keep it"]);
    let removed = browser.submit("/peers/remove", "name=bob");
    assert_eq!(removed.status, 200, "{}", removed.body);
    assert!(!browser.page("/peers").body.contains(">bob</strong>"));

    browser.submit("/peers/invite", "name=carol&volume=*&expires_s=600").has(&["carol"]);
    let revoked = browser.submit("/peers/revoke", "name=carol");
    assert_eq!((revoked.status, revoked.header("location")), (303, Some(browser.path("/peers").as_str())));
    assert!(!browser.page("/peers").body.contains("carol"));
    // What the target refuses is said, and what was typed stays.
    let refused = browser.submit("/peers/invite", "name=a+b&volume=vault&read_only=yes");
    assert_eq!(refused.status, 422, "{}", refused.body);
    refused.has(&["cannot name a peer", "value=\"a b\"", "value=\"vault\" checked"]);
    let refused = browser.submit("/peers/remove", "name=alice");
    assert_eq!(refused.status, 409, "{}", refused.body);
    refused.has(&["in the configuration"]);
    assert!(!server.log().contains(&invitation[30..60]), "{}", server.log());
    server.stop();
}

#[test]
fn a_console_without_a_target_says_so_and_shows_it_when_it_comes() {
    let world = World::new();
    let console = ConsoleProcess::of(&world);
    let browser = console.log_in();
    for page in ["/", "/volumes", "/volume?name=vault", "/sessions", "/peers"] {
        let away = browser.get(page);
        assert_eq!(away.status, 503, "{page}");
        away.has(&["No target answers at", ".admin.sock", "strongroom serve", "data-target=\"away\""]);
    }
    let server = world.serve();
    browser.page("/").has(&["data-target=\"here\""]);
    server.kill();
    eventually("the page says that it is gone", || browser.get("/").status == 503);
    let server = world.serve();
    eventually("the page shows the target again", || browser.get("/").status == 200);
    server.stop();
}

#[test]
fn a_stale_login_says_what_to_do() {
    let world = World::new();
    let server = world.serve();
    let console = ConsoleProcess::start(&["--idle", "1s", "--config", &world.text("strongroom.toml")]);
    let browser = console.log_in();
    assert_eq!(browser.get("/").status, 200);
    // A page that refreshes itself does not count.
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(400));
        console.get(&browser.path("/"), &[("Cookie", &browser.cookie), ("X-Console-Refresh", "1")]);
    }
    let stale = browser.get("/peers");
    assert_eq!(stale.status, 401);
    stale.has(&["its login has expired", "strongroom console"]);
    server.stop();
}

#[test]
fn logging_out_ends_the_session() {
    let world = World::new();
    let server = world.serve();
    let console = ConsoleProcess::of(&world);
    let browser = console.log_in();
    assert_eq!(browser.submit("/logout", "").status, 401);
    assert_eq!(browser.get("/").status, 401);
    server.stop();
}

#[test]
fn addresses_that_others_reach_and_ports_in_use_are_refused() {
    let world = World::new();
    let console = |listen: &str| run(&["console", "--listen", listen, "--config", &world.text("strongroom.toml")]);
    for address in ["0.0.0.0:8640", "192.0.2.1:8640", "[::]:8640"] {
        console(address).failed(&["loopback only", "ssh -L 8640:127.0.0.1:8640"]);
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    console(&address).failed(&["cannot listen at", &address, "--listen"]);
    run(&["console", "--config", &world.text("none.toml")]).failed(&["there is no configuration", "--root"]);
}
