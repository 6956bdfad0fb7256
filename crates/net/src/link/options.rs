//! What a link may be used for, and its limits.

use std::sync::Arc;
use std::time::Duration;

use strongroom_block::{CryptoCounters, Suite};
use strongroom_channel::{ChannelLimits, Scheme};
use strongroom_handshake::{Offer, Protocols};

use super::detached::ProtocolUse;

/// What both ends of a link agreed to use it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPurpose {
    /// iSCSI, in a channel or plain: PDUs flow.
    Blocks,
    /// The login of an ECL association: messages flow.
    Ecl,
    /// A snapshot is sent.
    Transfer,
    /// An invitation is taken up.
    Pairing,
    /// An operator makes and changes volumes.
    Operator,
}

impl LinkPurpose {
    /// Whether no PDUs flow, and [`Link::into_detached`](super::Link::into_detached) has the channel.
    pub fn is_detached(self) -> bool {
        match self {
            LinkPurpose::Blocks | LinkPurpose::Ecl => false,
            LinkPurpose::Transfer | LinkPurpose::Pairing | LinkPurpose::Operator => true,
        }
    }
}

/// Limits of a link.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// How long handshake and login together may take, until [`Link::login_finished`](super::Link::login_finished).
    pub setup_timeout: Duration,
    /// Longest data segment taken on a plain stream, in bytes: the MaxRecvDataSegmentLength that the session declares.
    pub data_bytes_max: usize,
    /// The schemes that an initiator offers, or that a target admits, the preferred one first.
    pub schemes: Vec<Scheme>,
    /// The cipher suites, likewise.
    pub suites: Vec<Suite>,
    /// Whether snapshots may be sent over it.
    pub transfers: ProtocolUse,
    /// Whether invitations may be taken up over it.
    pub pairings: ProtocolUse,
    /// Whether operators may make requests over it.
    pub operators: ProtocolUse,
    /// Whether it may be the login of an ECL association.
    pub ecl: ProtocolUse,
    /// Limits of the channel; its `data_bytes_max` likewise bounds what one connection can make us hold.
    pub channel: ChannelLimits,
    /// Keys of a channel that are in use serve us for so long; zero: for any time.
    pub rekey_after: Duration,
    /// Counts the bytes of cryptography done for channels.
    pub counters: Arc<CryptoCounters>,
}

impl LinkOptions {
    pub(super) fn protocols(&self) -> Protocols<'_> {
        let offer = Offer { schemes: &self.schemes, suites: &self.suites };
        let others = [self.ecl, self.transfers, self.pairings, self.operators];
        match others.iter().position(|other| *other == ProtocolUse::Only) {
            Some(0) => Protocols::Ecl(offer),
            Some(1) => Protocols::Transfer,
            Some(2) => Protocols::Pairing,
            Some(_) => Protocols::Operator,
            None => {
                let [ecl, transfer, pairing, operator] = others.map(|other| other == ProtocolUse::Admitted);
                Protocols::Port { blocks: offer, ecl, transfer, pairing, operator }
            }
        }
    }
}

impl Default for LinkOptions {
    fn default() -> LinkOptions {
        LinkOptions {
            setup_timeout: Duration::from_secs(15),
            data_bytes_max: 1 << 20,
            schemes: vec![Scheme::default()],
            suites: vec![Suite::default()],
            transfers: ProtocolUse::default(),
            pairings: ProtocolUse::default(),
            operators: ProtocolUse::default(),
            ecl: ProtocolUse::default(),
            channel: ChannelLimits::default(),
            rekey_after: Duration::from_secs(3600),
            counters: Arc::new(CryptoCounters::new()),
        }
    }
}
