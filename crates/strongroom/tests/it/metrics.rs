//! Proves that targets, attachments and key servers answer collectors of metrics as OpenMetrics has it, that what they say is documented, names
//! no initiator and holds no secret, and that collectors which never read disturb nobody.

mod exposition;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use exposition::Samples;

use crate::keyserver::KeySite;
use crate::nbd::NbdServer;
use crate::stage::{Transport, World, can_mount, eventually, free_port, has, noise, over_both, run};

const PATIENCE: Duration = Duration::from_secs(60);

fn answer(mut stream: impl Read + Write) -> Samples {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{head}"
    );
    let samples = Samples::parse(body);
    samples.check_with_promtool();
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md")).unwrap();
    for family in samples.families() {
        assert!(document.contains(&format!("`{family}")), "docs/metrics.md does not have {family}");
    }
    samples
}

fn scrape(port: u16) -> Samples {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    answer(stream)
}

/// Scrapes until something is true: answers are up to a moment old.
#[track_caller]
fn scrape_until(what: &str, port: u16, is_true: impl Fn(&Samples) -> bool) -> Samples {
    let mut last = scrape(port);
    eventually(what, || {
        last = scrape(port);
        is_true(&last)
    });
    last
}

over_both!(a_target_is_scraped);

fn a_target_is_scraped(transport: Transport) {
    let (world, port) = (World::over(transport), free_port());
    world.create(&["vault", "--size", "16MiB"]).ok();
    let server = world.serve_with(&["--metrics", &format!("127.0.0.1:{port}")]);
    assert!(server.log().contains(&format!("metrics on 127.0.0.1:{port}")), "{}", server.log());
    let before = scrape(port);
    assert_eq!(before.value("strongroom_target_volumes_open", &[]), Some(0.0));
    assert_eq!(before.value("strongroom_target_command_seconds_count", &[("operation", "write")]), Some(0.0));

    world.alice(&["volume", "format", &world.url("vault"), "--yes"]).ok();
    fs::write(world.path("data"), noise(1, 1 << 20)).unwrap();
    world.alice(&["copy", &world.text("data"), &world.url("vault"), "--allow-smaller"]).ok();
    world.alice(&["copy", &world.url("vault"), &world.text("back")]).ok();
    let after = scrape_until("the copies were counted", port, |samples| {
        let bytes = |name| samples.value(name, &[]).unwrap();
        bytes("strongroom_target_written_bytes_total") >= f64::from(1 << 20)
            && bytes("strongroom_target_read_bytes_total") >= f64::from(1 << 20)
    });
    for operation in ["read", "write", "flush", "discard"] {
        let count = after.value("strongroom_target_command_seconds_count", &[("operation", operation)]);
        assert!(count > Some(0.0), "{operation}: {count:?}");
    }
    assert!(after.value("strongroom_target_logins_total", &[]) >= Some(3.0));
    assert!(after.value("strongroom_target_iteration_cpu_seconds_count", &[]) > Some(0.0));
    let sent = after.value("strongroom_target_ecl_packets_sent_total", &[]);
    assert_eq!(sent > Some(0.0), transport == Transport::Ecl, "{sent:?}");
    let received = after.value("strongroom_target_ecl_received_bytes_total", &[]);
    let is_counted = received >= Some(f64::from(1 << 20));
    assert_eq!(is_counted, transport == Transport::Ecl, "{received:?}");
    assert_eq!(after.value("strongroom_target_ecl_black_holes_total", &[]), Some(0.0));
    // It is closed when nobody uses it, and then has no metrics of its own any more.
    let attached = after.value("strongroom_target_volume_size_bytes", &[("volume", "vault")]);
    assert!(attached.is_none_or(|bytes| bytes == f64::from(16 << 20)), "{attached:?}");
    scrape_until("the volume is closed", port, |samples| {
        samples.value("strongroom_target_volumes_open", &[]) == Some(0.0)
            && samples.value("strongroom_target_volume_size_bytes", &[("volume", "vault")]).is_none()
    });
    // Who uses it is nobody's business, and latencies outlive the volume.
    let last = scrape(port);
    assert!(!last.text().contains("alice") && !last.text().contains("iqn."));
    assert!(last.value("strongroom_target_command_seconds_count", &[("operation", "write")]) > Some(0.0));
    server.stop();
}

#[test]
fn a_target_is_scraped_over_a_unix_socket_that_the_configuration_names() {
    let world = World::new();
    let path = world.path("metrics.sock");
    let config = fs::read_to_string(world.path("strongroom.toml")).unwrap();
    fs::write(world.path("strongroom.toml"), format!("metrics = \"unix:{}\"\n{config}", path.display())).unwrap();
    let server = world.serve();
    eventually("the socket is there", || path.exists());
    let samples = answer(UnixStream::connect(&path).unwrap());
    assert_eq!(samples.value("strongroom_target_sessions", &[("transport", "iscsi")]), Some(0.0));
    server.stop();
    assert!(!path.exists(), "the socket goes with the target");
}

#[test]
fn addresses_that_others_reach_and_ports_in_use_are_refused() {
    let world = World::new();
    for (address, part) in
        [("0.0.0.0:9464", "loopback"), ("storage:9464", "no address"), ("unix:metrics.sock", "absolute")]
    {
        run(&["serve", "--config", &world.text("strongroom.toml"), "--metrics", address]).failed(&[part]);
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = run(&["serve", "--config", &world.text("strongroom.toml"), "--metrics", &address]);
    refused.failed(&[&address, "choose another address"]);
    // A file says it as clearly.
    let config = fs::read_to_string(world.path("strongroom.toml")).unwrap();
    fs::write(world.path("strongroom.toml"), format!("metrics = \"192.0.2.1:9464\"\n{config}")).unwrap();
    let refused = run(&["serve", "--config", &world.text("strongroom.toml"), "--check"]);
    refused.failed(&["metrics", "127.0.0.1:9464"]);
}

#[test]
fn collectors_that_never_read_disturb_nobody() {
    let (world, port) = (World::new(), free_port());
    world.create(&["vault", "--size", "16MiB"]).ok();
    let server = world.serve_with(&["--metrics", &format!("127.0.0.1:{port}")]);
    let mut stuck = Vec::new();
    for request in ["", "GET /metrics HTTP/1.1\r\n\r\n", "GET /met", "\0\0\0\0"].iter().cycle().take(40) {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let _ = stream.write_all(request.as_bytes());
        stuck.push(stream);
    }
    world.alice(&["volume", "format", &world.url("vault"), "--yes"]).ok();
    scrape_until("the login was counted", port, |samples| {
        samples.value("strongroom_target_logins_total", &[]) >= Some(1.0)
    });
    server.stop();
    drop(stuck);
}

over_both!(an_attachment_is_scraped);

fn an_attachment_is_scraped(transport: Transport) {
    if !can_mount() {
        return;
    }
    let (world, server) = World::sealed_over(transport, "vault", "16MiB");
    let (port, directory) = (free_port(), world.text("attached"));
    let address = format!("127.0.0.1:{port}");
    world.alice(&["attach", &world.url("vault"), "--to", &directory, "--metrics", &address]).ok();
    fs::write(format!("{directory}/vault"), noise(2, 1 << 20)).unwrap();
    let file = fs::File::open(format!("{directory}/vault")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let name = if transport == Transport::Ecl { "ecl" } else { "iscsi" };
    let samples = scrape_until("the write was counted", port, |samples| {
        samples.value("strongroom_attachment_written_bytes_total", &[]) >= Some(f64::from(1 << 20))
            && samples.value("strongroom_attachment_request_seconds_count", &[("operation", "flush")]) > Some(0.0)
    });
    assert_eq!(samples.value("strongroom_attachment_info", &[("transport", name), ("volume", "vault")]), Some(1.0));
    assert_eq!(samples.value("strongroom_attachment_connected", &[]), Some(1.0));
    assert_eq!(samples.value("strongroom_attachment_blocks_unreadable_total", &[]), Some(0.0));
    assert!(
        samples.value("strongroom_attachment_crypto_bytes_total", &[("work", "encrypted")]) >= Some(f64::from(1 << 20))
    );
    assert!(samples.value("strongroom_attachment_request_seconds_sum", &[("operation", "write")]) > Some(0.0));
    let window = samples.value("strongroom_attachment_ecl_window_bytes", &[]);
    assert_eq!(window.is_some(), transport == Transport::Ecl);
    for name in ["received_bytes", "copied_bytes", "black_holes"] {
        let value = samples.value(&format!("strongroom_attachment_ecl_{name}_total"), &[]);
        assert_eq!(value.is_some(), transport == Transport::Ecl, "{name}");
    }
    assert!(!samples.text().contains("alice"));
    // Without its target it answers all the same, and has forgotten nothing.
    server.stop();
    let samples = scrape_until("the session is lost", port, |samples| {
        samples.value("strongroom_attachment_connected", &[]) == Some(0.0)
    });
    assert_eq!(samples.value("strongroom_attachment_info", &[("transport", name), ("volume", "vault")]), Some(1.0));
    assert!(samples.value("strongroom_attachment_written_bytes_total", &[]) >= Some(f64::from(1 << 20)));
    let _server = world.serve();
    scrape_until("there is a session again", port, |samples| {
        samples.value("strongroom_attachment_connected", &[]) == Some(1.0)
            && samples.value("strongroom_attachment_sessions_total", &[]) >= Some(2.0)
    });
    run(&["detach", &directory]).ok();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "it has ended");
}

#[test]
fn an_nbd_server_is_scraped() {
    if !has("nbdcopy") {
        return;
    }
    let (world, server) = World::sealed("vault", "16MiB");
    let (port, socket) = (free_port(), world.text("vault.sock"));
    let address = format!("127.0.0.1:{port}");
    let arguments = ["nbd", "serve", &world.url("vault"), "--socket", &socket, "--metrics", &address];
    let mut serving = NbdServer::spawn(world.alice_command(&arguments), socket.clone(), world.text("nbd.log"));
    scrape_until("nobody is connected", port, |samples| {
        samples.value("strongroom_attachment_clients", &[]) == Some(0.0)
    });
    let client = UnixStream::connect(&socket).unwrap();
    scrape_until("a client is connected", port, |samples| {
        samples.value("strongroom_attachment_clients", &[]) == Some(1.0)
    });
    drop(client);
    fs::write(world.path("image"), noise(3, 16 << 20)).unwrap();
    let uri = format!("nbd+unix:///vault?socket={socket}");
    let copied = Command::new("nbdcopy").args(["--flush", &world.text("image"), &uri]).status().unwrap();
    assert!(copied.success());
    let samples = scrape_until("its writes were counted", port, |samples| {
        samples.value("strongroom_attachment_written_bytes_total", &[]) >= Some(f64::from(16 << 20))
    });
    assert!(samples.value("strongroom_attachment_request_seconds_count", &[("operation", "flush")]) > Some(0.0));
    samples.check_with_promtool();
    run(&["detach", &socket]).ok();
    assert_eq!(serving.wait(), Some(0));
    server.stop();
}

#[test]
fn an_attachment_whose_address_is_taken_does_not_stay() {
    if !can_mount() {
        return;
    }
    let (world, _server) = World::sealed("vault", "16MiB");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = world.text("attached");
    let refused = world.alice(&["attach", &world.url("vault"), "--to", &directory, "--metrics", &address]);
    refused.failed(&["choose another address"]);
    // The writer lease was given back.
    world.alice(&["attach", &world.url("vault"), "--to", &directory, "--wait", "0s"]).ok();
    run(&["detach", &directory]).ok();
}

#[test]
fn a_key_server_is_scraped() {
    let (site, port) = (KeySite::new(), free_port());
    site.configure_with(&format!("metrics = \"127.0.0.1:{port}\"\n"), "");
    let server = site.start();
    let before = scrape(port);
    assert_eq!(before.value("strongroom_keyserver_role", &[("role", "primary")]), Some(1.0));
    assert_eq!(before.value("strongroom_keyserver_volumes", &[]), Some(0.0));
    site.key("admin", &["create", "vault"]).ok();
    let after = scrape_until("the request was counted", port, |samples| {
        samples.value("strongroom_keyserver_volumes", &[]) == Some(1.0)
    });
    let labels = [("kind", "create"), ("result", "done")];
    assert_eq!(after.value("strongroom_keyserver_requests_total", &labels), Some(1.0));
    assert!(!after.text().contains("vault") && !after.text().contains("admin"), "the audit log has names");
    drop(server);
    run(&["keyserver", "--config", &site.text("keyserver.toml"), "--metrics", "[::]:9466"]).failed(&["loopback"]);
}
