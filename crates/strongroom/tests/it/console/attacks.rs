//! What other sites, other programs on the machine, a hostile target and its peers try at the console.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use strongroom_target::admin::{
    Client, PeerOrigin, PeerReport, Reply, Request, StatusReport, VerificationReport, VolumeEntry,
};

use strongroom_target::PeerRole;

use super::browser::{ConsoleProcess, request};
use crate::stage::{Server, World, eventually, run};

fn world() -> (World, Server) {
    let world = World::new();
    world.create(&["vault", "--size", "16MiB"]).ok();
    let server = world.serve();
    (world, server)
}

fn invitations(world: &World) -> String {
    run(&["invite", "list", "--json", "--config", &world.text("strongroom.toml")]).ok()
}

/// A form of another site, which the browser sends with the cookie if it knows no better.
#[test]
fn attack_console_forged_form() {
    let (world, server) = world();
    let console = ConsoleProcess::of(&world);
    let browser = console.log_in();
    let (cookie, origin) = (browser.cookie.as_str(), console.origin());
    let headers = [("Cookie", cookie), ("Origin", origin.as_str())];
    let right = browser.form_token();
    let (short, other) = (&right[..right.len() - 1], "0".repeat(right.len()));
    for token in ["", short, &other, &format!("{right}0"), &console.token] {
        let body = format!("token={token}&name=mallory&volume=*&expires_s=600");
        for path in ["/peers/invite", "/peers/revoke", "/peers/remove", "/logout"] {
            let answer = console.post(&browser.path(path), &headers, &body);
            assert_eq!(answer.status, 403, "{path} with {token:?}: {}", answer.body);
        }
    }
    // Nor does a link do what takes a form, with the right token in it.
    let link = format!("/peers/invite?token={right}&name=mallory&volume=*&expires_s=600");
    assert_ne!(browser.get(&link).status, 200);
    assert_eq!(invitations(&world).trim(), "[]");
    assert_eq!(browser.get("/").status, 200, "it is still logged in");
    server.stop();
}

#[test]
fn attack_console_other_origin() {
    let (world, server) = world();
    let console = ConsoleProcess::of(&world);
    let browser = console.log_in();
    let port = console.address.rsplit_once(':').unwrap().1;
    let body = format!("token={}&name=mallory&volume=*&expires_s=600", browser.form_token());
    let own = console.origin();
    let other_port = format!("http://127.0.0.1:{}", port.parse::<u16>().unwrap() ^ 1);
    let other_name = format!("http://localhost:{port}");
    let longer = format!("{own}.evil.example");
    let https = own.replace("http:", "https:");
    for origin in ["http://evil.example", "null", "", &other_port, &other_name, &longer, &https] {
        let headers = [("Cookie", browser.cookie.as_str()), ("Origin", origin)];
        assert_eq!(console.post(&browser.path("/peers/invite"), &headers, &body).status, 403, "{origin}");
        let login = console.post("/login", &[("Origin", origin)], "token=x");
        assert_eq!(login.status, 403, "{origin}");
    }
    let without = console.post(&browser.path("/peers/invite"), &[("Cookie", &browser.cookie)], &body);
    assert_eq!(without.status, 403, "no origin at all");
    for site in ["cross-site", "same-site", "none"] {
        let headers = [("Cookie", browser.cookie.as_str()), ("Origin", own.as_str()), ("Sec-Fetch-Site", site)];
        assert_eq!(console.post(&browser.path("/peers/invite"), &headers, &body).status, 403, "{site}");
    }
    assert_eq!(invitations(&world).trim(), "[]");
    // What lets no other site in, on every answer.
    for answer in
        [browser.get("/"), browser.get("/nothing"), console.get("/login", &[]), console.get("/assets/console.js", &[])]
    {
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        let has = |name: &str, value: &str| assert_eq!(answer.header(name), Some(value), "{}", answer.head);
        has("cross-origin-resource-policy", "same-origin");
        has("x-content-type-options", "nosniff");
        has("referrer-policy", "same-origin");
        has("cache-control", "no-store");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    server.stop();
}

/// A name of the attacker that suddenly means 127.0.0.1: to the browser its page and the console are one site.
#[test]
fn attack_console_rebinding() {
    let (world, server) = world();
    let console = ConsoleProcess::of(&world);
    let port = console.address.rsplit_once(':').unwrap().1;
    let evil = format!("evil.example:{port}");
    let origin = format!("http://{evil}");
    let used = console.post("/login", &[("Host", &evil), ("Origin", &origin)], &format!("token={}", console.token));
    assert_eq!(used.status, 421, "{}", used.body);
    let browser = console.log_in();
    for host in [&evil, "127.0.0.1.evil.example", "", "[::2]:8640"] {
        for path in ["/", "/login", "/assets/console.js", &browser.path("/")] {
            let answer = console.get(path, &[("Host", host), ("Cookie", &browser.cookie)]);
            assert_eq!(answer.status, 421, "{host} {path}");
            assert!(!answer.body.contains("vault"));
        }
    }
    let twice = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nHost: evil\r\nCookie: {}\r\nConnection: close\r\n\r\n",
        browser.path("/"),
        console.address,
        browser.cookie
    );
    assert!(matches!(console.send(&twice).status, 400 | 421));
    let absolute = request(
        "GET",
        &format!("http://evil.example{}", browser.path("/")),
        &[("Host", &console.address), ("Cookie", &browser.cookie)],
        "",
    );
    assert_eq!(console.send(&absolute).status, 421);
    // By the other names of the loopback it can be used.
    let localhost = format!("localhost:{port}");
    assert_eq!(console.get(&browser.path("/"), &[("Host", &localhost), ("Cookie", &browser.cookie)]).status, 200);
    server.stop();
}

#[test]
fn attack_console_reused_login_link() {
    let (world, server) = world();
    let console = ConsoleProcess::of(&world);
    let browser = console.log_in();
    let again = console.try_to_log_in(&console.token);
    assert_eq!((again.status, again.header("set-cookie")), (401, None));
    again.has(&["used already", "strongroom console"]);
    assert_eq!(browser.get("/").status, 200, "who was first stays logged in");
    // It is in no log: neither the console's nor the target's.
    assert!(!server.log().contains(&console.token));
    server.stop();
}

#[test]
fn attack_console_guessed_login_links() {
    let (world, server) = world();
    let console = ConsoleProcess::of(&world);
    let guesses: Vec<u16> = (0..60).map(|guess| console.try_to_log_in(&format!("{guess:064x}")).status).collect();
    assert!(guesses.iter().all(|status| matches!(status, 401 | 429)), "{guesses:?}");
    assert!(guesses.iter().filter(|status| **status == 429).count() > 30, "{guesses:?}");
    // The link is still good.
    eventually("its owner logs in", || {
        thread::sleep(Duration::from_millis(200));
        console.try_to_log_in(&console.token).status == 200
    });
    server.stop();
}

/// Cookies do not know ports: a browser shows them to every server on this machine, if they are not for a path that only the console has.
#[test]
fn attack_console_cookie_for_another_port() {
    let (world, server) = world();
    let console = ConsoleProcess::of(&world);
    let answer = console.try_to_log_in(&console.token);
    let base = answer.body.trim_end_matches('/').to_owned();
    let cookie = answer.header("set-cookie").unwrap();
    for part in ["; HttpOnly", "; SameSite=Strict", &format!("; Path={base}")] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(base.len() > 32 + "/console-".len() - 1, "{base} can be guessed");
    // Nobody who is not logged in is told the path.
    for path in ["/", "/login", "/volumes", "/console", &base, &format!("{base}/"), &format!("{base}/peers")] {
        let answer = console.get(path, &[]);
        assert!(matches!(answer.status, 401 | 200) && (path == "/login") == (answer.status == 200), "{path}");
        assert!(!answer.body.contains(&base) && !answer.head.contains(&base), "{path}");
    }
    for forged in
        ["strongroom_console=", "strongroom_console=0", &format!("strongroom_console={}", console.token), "x=y"]
    {
        assert_eq!(console.get(&format!("{base}/"), &[("Cookie", forged)]).status, 401, "{forged}");
    }
    server.stop();
}

/// Browsers that are slow, silent, many, or say too much take little memory, and others are served.
#[test]
fn attack_console_slow_and_greedy_browsers() {
    let (world, server) = world();
    let console = ConsoleProcess::of(&world);
    let browser = console.log_in();
    let endless = format!(
        "POST /login HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nContent-Length: 1000000000\r\n\r\ntoken=",
        console.address
    );
    let mut stuck = Vec::new();
    for beginning in ["", "GET / HTTP/1.1\r\n", "GET /", &endless, "\0\0\0\0"].iter().cycle().take(200) {
        let mut stream = TcpStream::connect(&console.address).unwrap();
        let _ = stream.write_all(beginning.as_bytes());
        stuck.push(stream);
    }
    let started = Instant::now();
    assert_eq!(browser.get("/").status, 200);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let headers = [("Cookie", browser.cookie.as_str()), ("Origin", &console.origin())];
    let large = format!("token={}&name={}", browser.form_token(), "a".repeat(64 << 10));
    assert_eq!(console.post(&browser.path("/peers/invite"), &headers, &large).status, 413);
    let long = console.get(&format!("/{}", "a".repeat(100 << 10)), &[]);
    assert!(matches!(long.status, 400..500), "{}", long.status);
    let many: Vec<(String, String)> = (0..500).map(|at| (format!("X-{at}"), "y".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert!(matches!(console.get("/login", &many).status, 400..500));
    let status = fs::read_to_string(format!("/proc/{}/status", console.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it runs");
    let resident: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(resident < 64 << 10, "{resident} KiB");
    drop(stuck);
    server.stop();
}

const SCRIPT: &str = "<script>alert(1)</script>";
const ATTRIBUTE: &str = "\"><img src=x onerror=alert(1)>' onfocus='alert(1)";
const COMMAND: &str = "x'; touch /tmp/strongroom-pwned; '\u{202e}\u{1b}[2J";

/// Answers as a target that is in the attacker's hand, with these replies.
fn hostile_target(socket: &Path, status: StatusReport, volumes: Vec<VolumeEntry>, peers: Vec<PeerReport>) {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut line = String::new();
            BufReader::new(client.try_clone().unwrap()).read_line(&mut line).unwrap();
            let reply = match serde_json::from_str::<Request>(&line) {
                Ok(Request::Status) => Reply::Status(Box::new(status.clone())),
                Ok(Request::Volumes { .. }) => Reply::Volumes(volumes.clone()),
                Ok(Request::Peers) => Reply::Peers(peers.clone()),
                Ok(Request::Invitations) => Reply::Invitations(Vec::new()),
                _ => Reply::Error(format!("{SCRIPT}{ATTRIBUTE}")),
            };
            let _ = client.write_all(format!("{}\n", serde_json::to_string(&reply).unwrap()).as_bytes());
        }
    });
}

/// What of a page is within tags, without the values of attributes, which are in double quotes.
fn tags(page: &str) -> String {
    let (mut is_in_tag, mut is_quoted) = (false, false);
    let is_of_a_tag = |character: &char| {
        match character {
            '"' if is_in_tag => is_quoted = !is_quoted,
            '<' if !is_quoted => is_in_tag = true,
            '>' if !is_quoted => is_in_tag = false,
            _ => {}
        }
        is_in_tag && !is_quoted
    };
    page.chars().filter(is_of_a_tag).collect()
}

/// Names of volumes, peers and initiators, and messages, from a target that is hostile: they are text, in pages and in commands to copy.
#[test]
fn attack_console_script_in_a_name() {
    let (world, server) = World::sealed("vault", "16MiB");
    let mut client = Client::connect(&world.path("volumes/.admin.sock")).unwrap().unwrap();
    let mut ask = |request| client.ask(&request, Duration::from_secs(60)).unwrap();
    let (Reply::Status(mut status), Reply::Volumes(mut volumes)) =
        (ask(Request::Status), ask(Request::Volumes { volume: None }))
    else {
        panic!("it answers otherwise")
    };
    let mut open = status.volumes.pop().expect("it was formatted just now");
    open.name = COMMAND.to_owned();
    open.verification =
        Some(VerificationReport { bad_blocks: vec![7, 8, 12, u64::MAX], ..VerificationReport::default() });
    open.bad_blocks = vec![u64::MAX, 0];
    open.io = ATTRIBUTE.to_owned();
    (open.size_bytes, open.block_size, open.store.blocks_mapped) = (u64::MAX, 0, u64::MAX);
    status.volumes.push(open);
    status.version = SCRIPT.to_owned();
    status.root = ATTRIBUTE.to_owned();
    status.memory.sessions_bytes = u64::MAX;
    status.memory.stores_bytes = u64::MAX;
    status.uptime_s = f64::MAX;
    let Some(VolumeEntry::Good(mut listed)) = volumes.pop() else { panic!("it is whole") };
    volumes.push(VolumeEntry::Damaged { name: SCRIPT.to_owned(), error: SCRIPT.to_owned() });
    listed.name = COMMAND.to_owned();
    listed.kind = ATTRIBUTE.to_owned();
    listed.snapshots = vec![SCRIPT.to_owned()];
    volumes.push(VolumeEntry::Good(listed));
    let peer = |name: &str| PeerReport {
        name: name.to_owned(),
        key: ATTRIBUTE.to_owned(),
        volumes: vec![SCRIPT.to_owned()],
        read_only: false,
        role: PeerRole::Initiator,
        origin: PeerOrigin::Invitation,
        since: Some(u64::MAX),
    };
    let socket = world.path("hostile.sock");
    hostile_target(&socket, *status, volumes, vec![peer(SCRIPT), peer(ATTRIBUTE)]);
    let console = ConsoleProcess::start(&["--socket", &world.text("hostile.sock")]);
    let browser = console.log_in();
    let encoded: String = COMMAND.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let volume = format!("/volume?name={encoded}");
    let removal =
        format!("/peers/remove?name={}", SCRIPT.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>());
    let mut pages: Vec<String> = ["/", "/volumes", &volume, "/sessions", "/peers", &removal]
        .iter()
        .map(|path| browser.page(path).body)
        .collect();
    pages.push(browser.submit("/peers/invite", "name=a&volume=b").body);
    pages.push(browser.submit("/peers/remove", "name=a").body);
    for page in &pages {
        assert!(!page.contains("<script>") && !page.contains("<img"), "{page}");
        // But for what forms send back, which is not shown.
        let values = page.split(" value=\"").enumerate();
        let shown: String = values
            .filter_map(|(at, part)| if at == 0 { Some(part) } else { part.split_once('"').map(|(_, rest)| rest) })
            .collect();
        assert!(!shown.contains("\u{202e}") && !shown.contains('\u{1b}'), "{page}");
        let tags = tags(page);
        assert!(tags.contains("<main") && !tags.contains(" on"), "{tags}");
    }
    assert!(pages[0].contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{}", pages[0]);
    // The recovery commands have the name as one word.
    let page = &pages[2];
    assert!(page.contains("4 blocks failed authentication"), "{page}");
    assert!(
        page.contains(
            r"/x'\''; touch /tmp/strongroom-pwned; '\''\u{202e}\u{1b}[2J' --lba 7 --count 2 --key-file KEY-FILE --yes"
        ),
        "{page}"
    );
    server.stop();
}

/// Of another version: nothing is shown wrongly.
#[test]
fn a_target_of_another_protocol_is_refused() {
    let (world, server) = world();
    let mut client = Client::connect(&world.path("volumes/.admin.sock")).unwrap().unwrap();
    let Reply::Status(mut status) = client.ask(&Request::Status, Duration::from_secs(60)).unwrap() else { panic!() };
    assert_eq!(status.protocol, strongroom_target::admin::PROTOCOL);
    status.protocol = 7;
    hostile_target(&world.path("other.sock"), *status, Vec::new(), Vec::new());
    let console = ConsoleProcess::start(&["--socket", &world.text("other.sock")]);
    let answer = console.log_in().get("/");
    assert_eq!(answer.status, 503);
    answer.has(&["speaks version 7 of the admin protocol", "Use programs of one version"]);
    server.stop();
}
