//! What the kernel knows of the way that a connection takes: Linux's `TCP_INFO`, as far as it is told.

#![allow(unsafe_code)] // An option that no library reads whole.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt;

/// Offsets in the kernel's `struct tcp_info` (include/uapi/linux/tcp.h), which only ever grows at its end, in bytes.
const UNACKED_AT: usize = 24;
const RTT_AT: usize = 68;
const CONGESTION_WINDOW_AT: usize = 80;
const RETRANSMITS_AT: usize = 100;
const NOTSENT_BYTES_AT: usize = 144;
const MIN_RTT_AT: usize = 148;
const DELIVERY_RATE_AT: usize = 160;
/// Up to the end of the delivery rate: Linux 4.9 and later.
const INFO_BYTES: usize = 168;

/// BBR's window while it looks at the way, in segments.
const BBR_PAUSED_SEGMENTS: u32 = 4;

/// A connection's network path, as TCP measures it: without data that waits for the application at either end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathInfo {
    /// Smoothed round trip.
    pub round_trip: Duration,
    /// The smallest of the last minutes (`net.ipv4.tcp_min_rtt_wlen`).
    pub smallest_round_trip: Duration,
    /// What arrived lately, in bytes per second; 0 before anything did.
    pub delivery_bytes_per_second: u64,
    /// Segments under way.
    pub unacknowledged_segments: u32,
    /// Segments that may be under way, as congestion control has it.
    pub congestion_window_segments: u32,
    /// Segments that were sent again so far.
    pub retransmits: u32,
    /// Bytes that wait in the socket for the window, or for congestion control.
    pub unsent_bytes: u32,
    /// The name of the congestion control.
    pub congestion: Option<String>,
}

impl PathInfo {
    /// Congestion control has emptied the pipe on purpose, to see the way without a queue: BBR does so for a fifth of a second every ten
    /// (draft-cardwell-iccrg-bbr-congestion-control-00, §4.3.5).
    pub fn is_paused(&self) -> bool {
        self.congestion.as_deref() == Some("bbr") && self.congestion_window_segments <= BBR_PAUSED_SEGMENTS
    }
}

/// `None` where the kernel does not tell, or has not measured yet.
pub(super) fn info(socket: BorrowedFd<'_>) -> Option<PathInfo> {
    let mut info = [0_u8; INFO_BYTES];
    let mut len_bytes = INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `len_bytes` bytes to `info`, which has as many, and the new length to `len_bytes`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len_bytes,
        )
    };
    if outcome != 0 || (len_bytes as usize) < INFO_BYTES {
        return None;
    }
    let u32_at = |at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().expect("eight bytes"));
    let (round_trip, smallest) = (u32_at(RTT_AT), u32_at(MIN_RTT_AT));
    if round_trip == 0 || smallest == u32::MAX {
        return None;
    }
    Some(PathInfo {
        round_trip: Duration::from_micros(round_trip.into()),
        smallest_round_trip: Duration::from_micros(smallest.into()),
        delivery_bytes_per_second: u64_at(DELIVERY_RATE_AT),
        unacknowledged_segments: u32_at(UNACKED_AT),
        congestion_window_segments: u32_at(CONGESTION_WINDOW_AT),
        retransmits: u32_at(RETRANSMITS_AT),
        unsent_bytes: u32_at(NOTSENT_BYTES_AT),
        congestion: sockopt::tcp_congestion(socket).ok(),
    })
}
