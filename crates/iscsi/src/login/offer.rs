//! What one side of a login offers, and what a login settles (RFC 7143 §13).

use super::values::{LENGTH_RANGE, TIME_MAX_S};
use crate::framer::Digests;
use crate::pdu::bhs::LOGIN_SEGMENT_BYTES;

/// What this side says about digests (RFC 7143 §13.1). A target takes what the initiator prefers, as far as it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DigestOffer {
    /// None at all; a target rejects an initiator that insists.
    Never,
    /// Rather none, but CRC32C if the peer wants it.
    #[default]
    Allow,
    /// Rather CRC32C, but none if the peer does not have it.
    Prefer,
    /// CRC32C; a target refuses an initiator without, an initiator such a target.
    Require,
}

impl DigestOffer {
    pub(super) fn list(self) -> &'static str {
        match self {
            DigestOffer::Never => "None",
            DigestOffer::Allow => "None,CRC32C",
            DigestOffer::Prefer => "CRC32C,None",
            DigestOffer::Require => "CRC32C",
        }
    }

    pub(super) fn takes(self, choice: &str) -> bool {
        match choice {
            "None" => self != DigestOffer::Require,
            "CRC32C" => self != DigestOffer::Never,
            _ => false,
        }
    }
}

/// What this side declares and would like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// MaxRecvDataSegmentLength: the longest data segment that this side takes, in bytes.
    pub recv_segment_bytes_max: u32,
    /// FirstBurstLength: unsolicited data per command, immediate data included, in bytes.
    pub first_burst_bytes: u32,
    /// MaxBurstLength: solicited data per R2T, and data per Data-In burst, in bytes.
    pub max_burst_bytes: u32,
    /// InitialR2T: whether the first Data-Out waits for an R2T.
    pub initial_r2t: bool,
    /// ImmediateData: whether a command may carry data.
    pub immediate_data: bool,
    /// MaxOutstandingR2T: R2Ts in flight per command, at most 8.
    pub max_outstanding_r2t: u16,
    /// HeaderDigest; none inside a channel.
    pub header_digest: DigestOffer,
    /// DataDigest; none inside a channel.
    pub data_digest: DigestOffer,
    /// iSCSIProtocolLevel, at most 2. An initiator proposes what is above 1.
    pub protocol_level: u8,
    /// ErrorRecoveryLevel, at most 2; inside a channel, where nothing arrives damaged, 0 or 2.
    pub error_recovery_level: u8,
    /// MaxConnections: connections of one session.
    pub connections_max: u16,
    /// DefaultTime2Wait: how long to wait, after a connection was lost, before reconnecting, in seconds; the larger of both
    /// sides' holds.
    pub time2wait_s: u16,
    /// DefaultTime2Retain: for how long after that its tasks are kept, in seconds; the smaller of both sides' holds.
    pub time2retain_s: u16,
}

impl Default for Offer {
    /// 256 KiB segments, 1 MiB bursts and as much unsolicited data, some of it immediate: what spares round trips.
    fn default() -> Offer {
        Offer {
            recv_segment_bytes_max: 256 * 1024,
            first_burst_bytes: 1024 * 1024,
            max_burst_bytes: 1024 * 1024,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: 4,
            header_digest: DigestOffer::Allow,
            data_digest: DigestOffer::Allow,
            protocol_level: 2,
            error_recovery_level: 0,
            connections_max: 1,
            time2wait_s: 0,
            time2retain_s: 0,
        }
    }
}

impl Offer {
    /// The nearest offer that RFC 7143 allows: lengths in their ranges, the first burst within a burst. In a channel, which
    /// proves more than a digest could, there are none.
    #[must_use]
    pub(crate) fn clamped(&self, in_channel: bool) -> Offer {
        let digest = |offer: DigestOffer| if in_channel { DigestOffer::Never } else { offer };
        let within = |value: u32| value.clamp(*LENGTH_RANGE.start(), *LENGTH_RANGE.end());
        let max_burst_bytes = within(self.max_burst_bytes);
        Offer {
            recv_segment_bytes_max: within(self.recv_segment_bytes_max),
            first_burst_bytes: within(self.first_burst_bytes).min(max_burst_bytes),
            max_burst_bytes,
            max_outstanding_r2t: self.max_outstanding_r2t.clamp(1, 8),
            header_digest: digest(self.header_digest),
            data_digest: digest(self.data_digest),
            protocol_level: self.protocol_level.clamp(1, 2),
            error_recovery_level: match self.error_recovery_level.min(2) {
                1 if in_channel => 0,
                level => level,
            },
            connections_max: self.connections_max.max(1),
            time2wait_s: self.time2wait_s.min(TIME_MAX_S),
            time2retain_s: self.time2retain_s.min(TIME_MAX_S),
            ..self.clone()
        }
    }
}

/// What a login settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The longest data segment that the peer takes, in bytes.
    pub send_segment_bytes_max: u32,
    /// The longest data segment that this side takes, in bytes.
    pub recv_segment_bytes_max: u32,
    /// Unsolicited data per command, immediate data included, in bytes.
    pub first_burst_bytes: u32,
    /// Data per R2T and per Data-In burst, in bytes.
    pub max_burst_bytes: u32,
    /// Whether the first Data-Out waits for an R2T.
    pub initial_r2t: bool,
    /// Whether a command may carry data.
    pub immediate_data: bool,
    /// R2Ts in flight per command.
    pub max_outstanding_r2t: u16,
    /// Digests from full-feature phase on: tell the framer.
    pub digests: Digests,
    /// iSCSIProtocolLevel: from 2 on there are the task management functions of RFC 7144.
    pub protocol_level: u8,
    /// ErrorRecoveryLevel: 0, 1 with recovery of damaged data within a command, 2 with that of connections too.
    pub error_recovery_level: u8,
    /// MaxConnections: connections of this session at most.
    pub connections_max: u16,
    /// Time2Wait, in seconds.
    pub time2wait_s: u16,
    /// Time2Retain, in seconds.
    pub time2retain_s: u16,
}

impl Default for Agreed {
    /// What applies to a key that was not negotiated (RFC 7143 §13).
    fn default() -> Agreed {
        Agreed {
            send_segment_bytes_max: LOGIN_SEGMENT_BYTES,
            recv_segment_bytes_max: LOGIN_SEGMENT_BYTES,
            first_burst_bytes: 65536,
            max_burst_bytes: 262_144,
            initial_r2t: true,
            immediate_data: true,
            max_outstanding_r2t: 1,
            digests: Digests::default(),
            protocol_level: 1,
            error_recovery_level: 0,
            connections_max: 1,
            time2wait_s: 2,
            time2retain_s: 20,
        }
    }
}
