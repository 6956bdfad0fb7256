//! A peer that says what it likes behind the handshake, byte by byte, on a connection that is not for sessions.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use strongroom_block::Buffer;
use strongroom_channel::{Channel, FrameKind};
use strongroom_handshake::{NodeKey, PairingBinding};
use strongroom_net::{Link, LinkEnd, LinkEvent, LinkOptions};

use super::{Host, PATIENCE};

pub(crate) struct RawPeer {
    pub(crate) stream: TcpStream,
    pub(crate) channel: Channel,
    /// Of a pairing.
    pub(crate) binding: Option<PairingBinding>,
    input: Vec<u8>,
}

/// Moves bytes until the link is over, or has a channel.
pub(crate) fn run_link(mut stream: TcpStream, mut link: Link) -> Result<(TcpStream, Link), LinkEnd> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    loop {
        let mut out = Vec::new();
        link.poll_transmit(&mut out);
        out.iter().for_each(|buffer| drop(stream.write_all(buffer)));
        while let Some(event) = link.poll_event() {
            match event {
                LinkEvent::Established { .. } => return Ok((stream, link)),
                LinkEvent::Ended(end) => return Err(end),
                _ => {}
            }
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => link.handle_eof(),
            Ok(count) => link.handle_input(&bytes[..count]),
            Err(error) => panic!("{error}"),
        }
    }
}

impl RawPeer {
    /// With options that offer one protocol.
    pub(crate) fn connect(host: &Host, node: &NodeKey, options: LinkOptions) -> Result<RawPeer, LinkEnd> {
        let options = LinkOptions { setup_timeout: PATIENCE, ..options };
        let stream = TcpStream::connect(host.address()).unwrap();
        let link = Link::initiator_channel(node, &[host.node], options, Instant::now()).unwrap();
        let (stream, link) = run_link(stream, link)?;
        let detached = link.into_detached().expect("no session came of it");
        Ok(RawPeer { stream, channel: detached.channel, binding: detached.binding, input: detached.unread })
    }

    /// What it says after the end, nobody hears.
    pub(crate) fn say(&mut self, message: &[u8], data: &[u8]) {
        let data = if data.is_empty() { Buffer::default() } else { Buffer::copy_from(data) };
        let mut out = Vec::new();
        self.channel.encode(FrameKind::Private, message, data, &mut out).unwrap();
        out.iter().for_each(|buffer| drop(self.stream.write_all(buffer)));
    }

    /// The next message, or the end.
    pub(crate) fn hear(&mut self) -> Option<Vec<u8>> {
        loop {
            while !self.input.is_empty() {
                let taken = self.channel.handle_input(&self.input).ok()?;
                self.input.drain(..taken);
                if let Some(frame) = self.channel.poll_frame() {
                    return Some(frame.header.to_vec());
                }
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.input = bytes[..count].to_vec(),
            }
        }
    }
}
