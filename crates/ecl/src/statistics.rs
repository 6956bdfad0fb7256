//! What an association has done, for `status` and for tests.

use std::time::Duration;

use crate::error::Dropped;

/// Counters and measurements of one end: as many fields as there are figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets of all kinds.
    pub packets_sent: u64,
    /// Packets that were used.
    pub packets_received: u64,
    /// Packets that counted as lost, probes of the path left out.
    pub packets_lost: u64,
    /// Quanta that parity has restored.
    pub quanta_repaired: u64,
    /// Packets that were not used.
    pub dropped: DropCounts,
    /// Data of transfers that were over.
    pub stale: u64,
    /// Bytes of payload that stayed where they had been received.
    pub placed_bytes: u64,
    /// Bytes of payload that were copied: segments, and packets that were not received in two pieces.
    pub copied_bytes: u64,
    /// Smoothed round-trip time.
    pub rtt: Option<Duration>,
    /// The shortest round trip.
    pub rtt_min: Option<Duration>,
    /// Congestion window in bytes; 0 where a stream carries the packets, which has its own.
    pub window_bytes: u32,
    /// Bytes in flight.
    pub in_flight_bytes: u32,
    /// Longest packet that the path takes, as far as is known.
    pub packet_bytes: usize,
    /// How often a packet size was given up, because packets of it vanished while smaller ones arrived.
    pub black_holes: u64,
    /// How often this end changed its keys.
    pub rekeys: u64,
    /// How often the peer did.
    pub peer_rekeys: u64,
}

/// Packets that were not used, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// Not a packet, or for another association.
    pub malformed: u64,
    /// From another address than the peer's.
    pub other_source: u64,
    /// Not authentic.
    pub not_authentic: u64,
    /// Replayed, or too old to tell.
    pub replayed: u64,
    /// Damaged.
    pub checksum: u64,
    /// No room.
    pub no_room: u64,
}

impl Statistics {
    /// Bytes of payload received, wherever they lie.
    pub fn received_bytes(&self) -> u64 {
        self.placed_bytes + self.copied_bytes
    }

    pub(crate) fn count_dropped(&mut self, why: Dropped) {
        let count = match why {
            Dropped::Malformed | Dropped::OtherAssociation => &mut self.dropped.malformed,
            Dropped::OtherSource => &mut self.dropped.other_source,
            Dropped::NotAuthentic => &mut self.dropped.not_authentic,
            Dropped::Replayed => &mut self.dropped.replayed,
            Dropped::Checksum => &mut self.dropped.checksum,
            Dropped::NoRoom => &mut self.dropped.no_room,
        };
        *count += 1;
    }
}
