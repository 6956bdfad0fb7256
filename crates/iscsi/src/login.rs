//! What the two sides of a login settle: offers, the values agreed on, and the rules of each key (RFC 7143 §13). Who says
//! what when is in the session machines.

/// Bytes of data segment that every side takes before a login settles more (RFC 7143 §13.12).
pub const LOGIN_SEGMENT_BYTES: u32 = 8192;

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
    /// MaxOutstandingR2T: R2Ts in flight per command.
    pub max_outstanding_r2t: u16,
}

impl Default for Offer {
    /// 256 KiB segments and first burst, 1 MiB bursts, immediate and unsolicited data: what spares round trips.
    fn default() -> Offer {
        Offer {
            recv_segment_bytes_max: 256 * 1024,
            first_burst_bytes: 256 * 1024,
            max_burst_bytes: 1024 * 1024,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: 4,
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
}
