//! Entry points for the fuzzer: arbitrary bytes as packets, bodies and logins, also such as an authentic peer could send.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use bytes::Bytes;
use strongroom_block::Suite;

use crate::acknowledgement::Acknowledgement;
use crate::body;
use crate::config::Config;
use crate::connection::Datagram;
use crate::header::{ClearHeader, HEADER_BYTES, Header};
use crate::initiator;
use crate::keys::{Direction, EclKeys, RekeyLimits, SendKeys};
use crate::login::{LoginAnswer, LoginRequest};
use crate::scheme::Scheme;
use crate::target;

const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3260);

fn keys() -> EclKeys {
    EclKeys::new([7; 32], Scheme::Lazy, Suite::Aes256Gcm)
}

/// Every decoder of bytes.
pub fn fuzz_decode(bytes: &[u8]) {
    if let (Some(clear), Some(first)) = (ClearHeader::decode(bytes), bytes.first_chunk::<HEADER_BYTES>())
        && let Ok(header) = Header::decode(first)
    {
        assert_eq!(header.encode(&clear), *first, "one header has one encoding");
    }
    if let Ok((acknowledgement, rest)) = Acknowledgement::decode(bytes) {
        let mut again = Vec::new();
        acknowledgement.encode(&mut again);
        assert_eq!(again, bytes[..bytes.len() - rest.len()], "one acknowledgement has one encoding");
    }
    if let Ok((parameters, len)) = body::parameters(bytes) {
        let mut again = Vec::new();
        body::push_parameters(&mut again, &parameters);
        assert_eq!(again, bytes[..len], "the same parameters have one encoding");
    }
    if let Some((specific, rest)) = bytes.split_first_chunk::<16>() {
        if let Ok(response) = body::ResponseBody::decode(specific, rest) {
            let (specific, rest) = response.encode();
            assert_eq!(body::ResponseBody::decode(&specific, &rest), Ok(response));
        }
        let _ = (body::function_of(specific), body::result_of(specific));
    }
    let _ = body::hole_of(&Bytes::copy_from_slice(bytes));
    if let Ok(request) = LoginRequest::decode(bytes) {
        assert_eq!(LoginRequest::decode(&request.encode()), Ok(request));
    }
    if let Ok(answer) = LoginAnswer::decode(bytes) {
        assert_eq!(LoginAnswer::decode(&answer.encode()), Ok(answer));
    }
}

/// Packets for a target: as they are, and as an authentic initiator would protect them.
pub fn fuzz_target(now: Instant, bytes: &[u8]) {
    let mut session = target::Session::new(now, &Config::new(keys(), 1, PEER, 512));
    let mut sender = SendKeys::new(&keys(), Direction::ToTarget, 1, RekeyLimits::default());
    for (number, packet) in packets(bytes).enumerate() {
        session.handle_datagram(now, Datagram::whole(PEER, packet.to_vec()));
        let sealed = protected(&mut sender, number as u64, packet);
        session.handle_datagram(now, Datagram::whole(PEER, sealed));
        while let Some(event) = session.poll_event() {
            use strongroom_scsi::transport::target::{Event, Response};
            if let Event::Command(command) = event {
                session.complete(command.task, Response::good_data(command.gather()));
            }
        }
        while session.poll_transmit(now).is_some() {}
    }
    assert!(session.memory_bytes() <= 1 << 20, "no more than has arrived");
}

/// The same for an initiator.
pub fn fuzz_initiator(now: Instant, bytes: &[u8]) {
    use strongroom_scsi::transport::Lun;
    use strongroom_scsi::transport::initiator::Command;

    let mut session = initiator::Session::new(now, &Config::new(keys(), 1, PEER, 512));
    let mut sender = SendKeys::new(&keys(), Direction::ToInitiator, 1, RekeyLimits::default());
    for (number, packet) in packets(bytes).enumerate() {
        let mut read = Command::read(Lun(0), [0x88; 16], 2048);
        read.sealed_block_bytes = (number % 2 == 0).then_some(512);
        let _ = session.submit(read);
        while session.poll_transmit(now).is_some() {}
        let sealed = protected(&mut sender, number as u64, packet);
        session.handle_datagram(now, Datagram::whole(PEER, sealed));
        while session.poll_event().is_some() {}
    }
}

/// Pieces of the input: a length (two bytes) and that number of bytes, repeated until the input ends.
fn packets(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (len, after) = rest.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_be_bytes(*len) % 1600).min(after.len());
        let (packet, after) = after.split_at(len);
        rest = after;
        Some(packet)
    })
}

/// A header and body in authentic protection, no matter what they say.
fn protected(sender: &mut SendKeys, number: u64, bytes: &[u8]) -> Vec<u8> {
    let said = bytes.get(2..4).map_or(0, |said| usize::from(u16::from_be_bytes([said[0], said[1]])));
    let protected_bytes = said.clamp(HEADER_BYTES, bytes.len().max(HEADER_BYTES));
    let mut head = vec![0; protected_bytes];
    let len = bytes.len().min(protected_bytes);
    head[..len].copy_from_slice(&bytes[..len]);
    head[0] = 0x11 + head[0] % 2;
    head[1] = sender.generation_byte();
    head[2..4].copy_from_slice(&(protected_bytes as u16).to_be_bytes());
    head[4..8].copy_from_slice(&1u32.to_be_bytes());
    head[8..12].copy_from_slice(&(number as u32).to_be_bytes());
    sender.seal(number, &mut head);
    head.extend_from_slice(&bytes[len..]);
    head
}
