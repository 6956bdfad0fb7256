//! The link between two namespaces, by real sockets. Bounds that hold on a busy machine too: nothing arrives sooner, and nothing
//! arrives that the rate has no room for. Needs root and TUN; without them these tests say so and pass.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use strongroom_wan::{Congestion, End, Lab, LabError, Loss, Profile};

/// `None`, with a word, where there can be none.
fn lab(profile: &Profile) -> Option<Lab> {
    match Lab::new(profile) {
        Ok(lab) => Some(lab),
        Err(error @ (LabError::Setup { .. } | LabError::Program { .. })) if cannot_here(&error) => {
            eprintln!("passed over: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Without root, in a container that may not, or without the kernel's parts.
fn cannot_here(error: &LabError) -> bool {
    let said = error.to_string();
    let refused =
        ["Operation not permitted", "Permission denied", "need root"].iter().any(|words| said.contains(words));
    refused || !std::path::Path::new("/dev/net/tun").exists()
}

#[test]
fn nothing_arrives_sooner_than_the_delay_allows() {
    let profile = Profile { delay: Duration::from_millis(30), ..Profile::default() };
    let Some(lab) = lab(&profile) else { return };
    let trips = lab.measure_round_trips(5).unwrap();
    assert!(!trips.is_empty(), "a link without loss carries datagrams");
    assert!(trips.iter().all(|trip| *trip >= 2 * profile.delay), "{trips:?}");

    let slower = Profile { delay: Duration::from_millis(60), ..profile };
    lab.change(&slower).unwrap();
    // What was sent before the change has long arrived.
    let trips = lab.measure_round_trips(5).unwrap();
    assert!(trips.iter().skip(1).all(|trip| *trip >= 2 * slower.delay), "{trips:?}");
}

#[test]
fn no_more_arrives_than_the_rate_has_room_for() {
    let rate = 20_000_000;
    let profile = Profile {
        delay: Duration::from_millis(5),
        rate_bits_per_s: Some(rate),
        congestion: Congestion::Reno,
        ..Profile::default()
    };
    let Some(lab) = lab(&profile) else { return };
    let begun = Instant::now();
    let stream = lab.measure_stream(3).unwrap();
    let payload: u64 = stream.bytes_by_second.iter().sum();
    let counts = lab.counts(End::Near);
    let room = rate as f64 / 8.0 * begun.elapsed().as_secs_f64();
    assert!(counts.delivered_bytes as f64 <= room + 3000.0, "{counts:?}, room for {room} bytes");
    assert!(payload > 0 && payload <= counts.delivered_bytes, "{payload} bytes of payload, {counts:?}");
    assert!(lab.counts(End::Far).delivered_packets > 0, "acknowledgements come back");
    assert!(counts.offered_bytes <= counts.offered_packets * 1500, "each packet counts for itself: {counts:?}");
}

/// Sends `bytes` from near to far; the checksum of what arrived.
fn transfer(lab: &Lab, bytes: usize, pause_at: Option<usize>) -> (Vec<u8>, Vec<u8>) {
    let address = SocketAddr::from((End::Far.address(), 7000));
    let sent: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
    let listener = lab.at(End::Far, move || TcpListener::bind(address).unwrap()).unwrap().join().unwrap();
    let sink = lab
        .at(End::Far, move || {
            let mut arrived = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut arrived).unwrap();
            arrived
        })
        .unwrap();
    let (content, first) = (sent.clone(), pause_at.unwrap_or(bytes));
    let connect = move || TcpStream::connect(address).unwrap();
    let mut connection = lab.at(End::Near, connect).unwrap().join().unwrap();
    connection.write_all(&content[..first]).unwrap();
    if pause_at.is_some() {
        lab.set_down(true);
        let before = lab.counts(End::Near);
        connection.write_all(&content[first..first + 1000]).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        let after = lab.counts(End::Near);
        assert!(after.offered_packets > before.offered_packets, "TCP goes on trying");
        // One batch may have been on its way when the cable was cut.
        assert!(after.delivered_packets <= before.delivered_packets + 128, "{before:?} {after:?}");
        lab.set_down(false);
        connection.write_all(&content[first + 1000..]).unwrap();
    }
    drop(connection);
    (sent, sink.join().unwrap())
}

#[test]
fn tcp_arrives_whole_through_loss_doubles_reordering_and_a_cut() {
    let profile = Profile {
        delay: Duration::from_millis(2),
        jitter: Duration::from_millis(1),
        loss: Loss::Bursts { share: 0.01, length: 3.0 },
        duplicate: 0.01,
        reorder_gap: Some(50),
        rate_bits_per_s: Some(200_000_000),
        ..Profile::default()
    };
    let Some(lab) = lab(&profile) else { return };
    let (sent, arrived) = transfer(&lab, 1_000_000, Some(400_000));
    assert!(sent == arrived, "{} of {} bytes, or others", arrived.len(), sent.len());
}

#[test]
fn two_laboratories_do_not_see_each_other() {
    let Some(one) = lab(&Profile::default()) else { return };
    let other = lab(&Profile::default()).unwrap();
    assert_ne!(one.namespace(End::Near), other.namespace(End::Near));
    assert!(!one.measure_round_trips(1).unwrap().is_empty());
    assert_eq!(other.counts(End::Far).delivered_packets, other.counts(End::Far).offered_packets);
    let name = one.namespace(End::Far);
    drop(one);
    assert!(!std::path::Path::new("/run/netns").join(name).exists(), "its namespaces are gone with it");
}
