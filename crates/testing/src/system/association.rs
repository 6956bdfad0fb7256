//! What both ends of a simulated association of ECL share: its login, and what that settles.
//!
//! The login is a request and an answer in a channel over the simulated network, as `docs/ecl.md` has it, but for TLS: both ends are given the
//! same keys. Its connection stays open, and its end ends the association.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use strongroom_block::{Buffer, CryptoCounters, Suite};
use strongroom_channel::{Channel, ChannelError, ChannelKeys, ChannelLimits, FrameKind, Role, Scheme};
use strongroom_ecl::{CongestionAlgorithm, EclKeys, Parity, Planted, RekeyLimits};

use super::layout::BLOCK_BYTES;

/// One end of a login's connection.
pub(super) struct LoginChannel {
    channel: Channel,
    out: Vec<Buffer>,
}

impl LoginChannel {
    /// An end whose handshake is over.
    pub(super) fn new(role: Role, keys: ChannelKeys) -> LoginChannel {
        let (limits, counters) = (ChannelLimits::default(), Arc::new(CryptoCounters::new()));
        let mut out = Vec::new();
        let channel = match role {
            Role::Initiator => Channel::initiator(keys, limits, counters),
            Role::Target => Channel::target(keys, limits, counters, &mut out),
        };
        LoginChannel { channel, out }
    }

    /// Whether messages may be sent.
    pub(super) fn is_confirmed(&self) -> bool {
        self.channel.is_confirmed()
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &[u8]) {
        // A channel that has failed sends nothing.
        let _ = self.channel.encode(FrameKind::Private, message, Buffer::empty(), &mut self.out);
    }

    /// Takes bytes; the messages that they complete. `None` behind the last one: the peer said goodbye.
    ///
    /// # Errors
    /// Something was damaged on the way.
    pub(super) fn handle_input(&mut self, mut bytes: &[u8]) -> Result<Vec<Option<Bytes>>, ChannelError> {
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let taken = self.channel.handle_input(bytes)?;
            bytes = &bytes[taken..];
            messages.extend(self.channel.poll_frame().map(|frame| Some(frame.header)));
        }
        if self.channel.is_closed_by_peer() {
            messages.push(None);
        }
        Ok(messages)
    }

    /// Says goodbye.
    pub(super) fn close(&mut self) {
        self.channel.close(&mut self.out);
    }

    /// What is to be sent.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out).iter().flat_map(|buffer| buffer.iter().copied()).collect()
    }
}

/// What all associations of a run have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct AssociationSetup {
    pub(super) scheme: Scheme,
    /// Bytes of write data that the target takes.
    pub(super) window_bytes: u64,
    pub(super) rekey_packets: u64,
    pub(super) parity: Option<Parity>,
    pub(super) planted: Planted,
}

/// The secret of a connection, which both ends have from a handshake that is left out.
pub(super) fn exporter(id: u64) -> [u8; 32] {
    let mut exporter = [0; 32];
    exporter[..8].copy_from_slice(&id.to_be_bytes());
    exporter
}

impl AssociationSetup {
    /// The association of a connection, for the end whose peer is `peer`.
    pub(super) fn config(&self, id: u64, peer: SocketAddr) -> strongroom_ecl::Config {
        let scheme = strongroom_ecl::Scheme::from_number(self.scheme as u8).expect("one that ECL carries");
        let keys = EclKeys::new(exporter(id), scheme, Suite::Aes256Gcm);
        let mut config = strongroom_ecl::Config::new(keys, id as u32, peer, BLOCK_BYTES as u32);
        config.window_bytes = self.window_bytes;
        config.parity = self.parity;
        config.rekey = RekeyLimits { packets: self.rekey_packets, ..RekeyLimits::default() };
        let is_cubic = id.is_multiple_of(3);
        config.congestion = if is_cubic { CongestionAlgorithm::Cubic } else { CongestionAlgorithm::Bbr };
        config.planted = self.planted;
        config
    }
}
