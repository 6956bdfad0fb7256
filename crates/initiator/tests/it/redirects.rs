//! Proves that an initiator goes where a target sends it, that it finds the way back, and that it does not go round for ever.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::support::{Host, SIZE};
use strongroom_block::{Buffer, Lba};
use strongroom_initiator::{
    AttachError, DiscoverOptions, RemoteDevice, VolumeUrl, discover, read_blocking, write_blocking,
};
use strongroom_iscsi::target::{Config, Login, LoginEvent};
use strongroom_iscsi::{Digests, PlainFramer};
use strongroom_target::VolumeSpec;
use strongroom_target::admin::{Client, Reply, Request as AdminRequest, default_socket};

/// A target that sends everybody to `there`, or to itself.
fn signpost(there: Option<SocketAddr>, is_permanent: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // An initiator that has left is none of ours.
            let _ = send_away(stream, &there.unwrap_or(here).to_string(), is_permanent);
        }
    });
    here
}

fn send_away(mut stream: TcpStream, there: &str, is_permanent: bool) -> std::io::Result<()> {
    let mut login = Login::new(Instant::now(), Config::default());
    let (mut framer, mut buffer) = (PlainFramer::default(), [0; 4096]);
    while !login.is_closed() {
        let count = stream.read(&mut buffer)?;
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let taken = framer.handle_input(rest).map_err(std::io::Error::other)?;
            rest = &rest[taken..];
            framer.poll_pdu().into_iter().for_each(|pdu| login.handle_pdu(&pdu));
        }
        while let Some(event) = login.poll_event() {
            if matches!(event, LoginEvent::Requested(_)) {
                login.redirect(&format!("{there},1"), is_permanent);
            }
        }
        let mut parts = Vec::new();
        while let Some(pdu) = login.poll_transmit() {
            PlainFramer::encode(pdu, Digests::default(), &mut parts);
        }
        parts.iter().try_for_each(|part| stream.write_all(part))?;
    }
    Ok(())
}

fn url(at: SocketAddr) -> VolumeUrl {
    format!("iscsi://{at}/iqn.2026-11.org.strongroom:disk/0").parse().unwrap()
}

#[test]
fn a_redirection_is_followed() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    for is_permanent in [false, true] {
        let first = signpost(Some(host.address), is_permanent);
        let second = signpost(Some(first), is_permanent);
        let device = RemoteDevice::attach(host.options(url(second))).unwrap();
        assert_eq!(read_blocking(&device, Lba(0), 1).unwrap().len(), 4096);
        device.detach().unwrap();
    }
    let at = signpost(Some(host.address), false);
    let options = DiscoverOptions {
        host: at.ip().to_string(),
        port: at.port(),
        initiator_name: crate::support::ALICE.into(),
        node_key: None,
        chap: None,
        target_keys: Vec::new(),
        timeout: Duration::from_secs(10),
    };
    let found = discover(&options).unwrap();
    assert!(found.iter().any(|target| target.name.ends_with(":disk")), "{found:?}");
}

#[test]
fn going_round_has_an_end() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let error = RemoteDevice::attach(host.options(url(signpost(None, false)))).unwrap_err();
    assert!(matches!(error, AttachError::Moved { .. }), "{error}");
}

/// A target that comes back to its address is found there, though it was elsewhere meanwhile.
#[test]
fn an_attachment_finds_the_way_back() {
    let mut host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let there = signpost(Some(host.address), true);
    let device = RemoteDevice::attach(host.options(url(there))).unwrap();
    host.stop();
    host.start_again();
    assert_eq!(read_blocking(&device, Lba(1), 1).unwrap().len(), 4096, "by way of the signpost again");
    device.detach().unwrap();
}

/// RFC 7143 §11.9.1: who is asked to log out does so, long before it would be dropped; its requests wait, and are done when it is taken in again.
#[test]
fn a_drain_is_obeyed_and_work_goes_on_after_it() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let device = RemoteDevice::attach(host.options(host.url("disk"))).unwrap();
    write_blocking(&device, Lba(1), Buffer::copy_from(&[1; 4096]), false).unwrap();
    let ask = |request: &AdminRequest| {
        let mut client = Client::connect(&default_socket(host.dir.path())).unwrap().expect("it listens");
        client.ask(request, Duration::from_secs(30)).unwrap()
    };
    let drain = AdminRequest::Drain { to: None, volume: Some("disk".into()), grace_s: 3600 };
    assert_eq!(ask(&drain), Reply::Sessions(1));
    let until = Instant::now() + Duration::from_secs(60);
    while host.stats().sessions > 0 {
        assert!(Instant::now() < until, "it was asked to log out");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_blocking(&device, Lba(2), Buffer::copy_from(&[2; 4096]), false));
        // It comes to the door, and is sent away.
        while host.stats().logins_refused == 0 {
            assert!(Instant::now() < until, "it tries again");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(ask(&AdminRequest::Undrain { volume: Some("disk".into()) }), Reply::Done);
        writer.join().unwrap().unwrap();
    });
    let read = [1, 2].map(|lba| read_blocking(&device, Lba(lba), 1).unwrap()[0]);
    assert_eq!(read, [1, 2]);
    device.detach().unwrap();
}
