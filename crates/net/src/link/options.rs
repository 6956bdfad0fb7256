//! What a link may be used for, and its limits.

use std::sync::Arc;
use std::time::Duration;

use strongroom_block::{CryptoCounters, Suite};
use strongroom_channel::{ChannelLimits, Scheme};
use strongroom_handshake::{Offer, Protocols};

use super::ecl::EclLogins;
use super::pairing::Pairings;
use super::transfer::Transfers;

/// What both ends of a link agreed to use it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPurpose {
    /// iSCSI, in a channel or plain: PDUs flow.
    Blocks,
    /// The login of an ECL association: messages flow.
    Ecl,
    /// A snapshot is sent: [`Link::into_transfer`](super::Link::into_transfer) has the channel, and no PDUs flow.
    Transfer,
    /// An invitation is taken up: [`Link::into_pairing`](super::Link::into_pairing) has the channel, and no PDUs flow.
    Pairing,
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
    pub transfers: Transfers,
    /// Whether invitations may be taken up over it.
    pub pairings: Pairings,
    /// Whether it may be the login of an ECL association.
    pub ecl: EclLogins,
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
        let (ecl, transfer) = (self.ecl == EclLogins::Admitted, self.transfers == Transfers::Admitted);
        let pairing = self.pairings == Pairings::Admitted;
        match (self.ecl, self.transfers, self.pairings) {
            (EclLogins::Only, ..) => Protocols::Ecl(offer),
            (_, Transfers::Only, _) => Protocols::Transfer,
            (.., Pairings::Only) => Protocols::Pairing,
            (EclLogins::Never, Transfers::Never, Pairings::Never) => Protocols::Blocks(offer),
            _ => Protocols::Port { blocks: offer, ecl, transfer, pairing },
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
            transfers: Transfers::default(),
            pairings: Pairings::default(),
            ecl: EclLogins::default(),
            channel: ChannelLimits::default(),
            rekey_after: Duration::from_secs(3600),
            counters: Arc::new(CryptoCounters::new()),
        }
    }
}
