//! Path MTU discovery (RFC 8899) over four sizes of packets: those that carry segments of 512, 1024, 2048 and 4096 bytes. A larger size is
//! used when a probe of it was acknowledged, and given up when packets of it vanish while smaller ones arrive (a black hole).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Header, tag, and the longest entry in front of a segment: store sequence and a record with a block key.
pub const OVERHEAD_BYTES: usize = 176;
/// Bytes of a quantum that a packet of each size carries, the smallest first.
pub const SEGMENT_BYTES: [usize; 4] = [512, 1024, 2048, 4096];

/// The size that is taken to pass until a probe says more: 1200 bytes, as in QUIC.
const START: usize = 1;
/// Probes of one size before it counts as too large (RFC 8899 §5.1.2, MAX_PROBES).
const PROBES_MAX: u32 = 3;
/// Packets of the present size that were lost in a row, while smaller ones arrived, before the size is given up.
const BLACK_HOLE_LOSSES: u32 = 6;
/// A larger size is tried again after this time (RFC 8899 §5.1.1, PMTU_RAISE_TIMER).
const RAISE_AFTER: Duration = Duration::from_secs(600);

/// The path takes shorter packets than before: those of one size vanished while smaller ones arrived. What they carried is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathReduction {
    /// The longest packet so far, in bytes.
    pub from_bytes: usize,
    /// The longest packet from now on, in bytes.
    pub to_bytes: usize,
}

/// Which packets the path takes.
#[derive(Debug)]
pub(crate) struct PathMtu {
    size: usize,
    /// The size that carries a whole quantum: none above it is of use.
    largest: usize,
    /// Probes of the next size that were lost.
    failed_probes: u32,
    is_probing: bool,
    search_at: Option<Instant>,
    /// Packets above the smallest size that were lost since one arrived.
    losses: u32,
    black_holes: u64,
    /// Those that nobody has been told of.
    reductions: VecDeque<PathReduction>,
}

impl PathMtu {
    /// For quanta of `quantum_bytes`. `is_fixed`: the transport below takes packets of any size, and nothing is probed.
    pub(crate) fn new(now: Instant, quantum_bytes: usize, is_fixed: bool) -> PathMtu {
        let largest = SEGMENT_BYTES.iter().position(|bytes| *bytes >= quantum_bytes).unwrap_or(SEGMENT_BYTES.len() - 1);
        let size = if is_fixed { largest } else { START.min(largest) };
        let search_at = (size < largest).then_some(now);
        PathMtu {
            size,
            largest,
            failed_probes: 0,
            is_probing: false,
            search_at,
            losses: 0,
            black_holes: 0,
            reductions: VecDeque::new(),
        }
    }

    /// Longest packet that may be sent, in bytes.
    pub(crate) fn packet_bytes(&self) -> usize {
        packet_bytes(self.size)
    }

    /// Most bytes of a quantum that fit one packet.
    pub(crate) fn segment_bytes(&self) -> usize {
        SEGMENT_BYTES[self.size]
    }

    /// How often a size was given up.
    pub(crate) fn black_holes(&self) -> u64 {
        self.black_holes
    }

    /// The next size that was given up, to be told once.
    pub(crate) fn poll_reduction(&mut self) -> Option<PathReduction> {
        self.reductions.pop_front()
    }

    /// The size of the probe that is to be sent now.
    pub(crate) fn wanted_probe(&self, now: Instant) -> Option<usize> {
        let is_due = self.search_at.is_some_and(|at| at <= now) && !self.is_probing;
        is_due.then(|| packet_bytes(self.size + 1))
    }

    /// When there may be a probe to send.
    pub(crate) fn search_at(&self) -> Option<Instant> {
        self.search_at.filter(|_| !self.is_probing)
    }

    pub(crate) fn probe_sent(&mut self) {
        self.is_probing = true;
    }

    /// A probe arrived. True: packets may be larger from now on.
    pub(crate) fn probe_acknowledged(&mut self, now: Instant, bytes: usize) -> bool {
        self.is_probing = false;
        self.failed_probes = 0;
        if bytes <= self.packet_bytes() || self.size == self.largest {
            return false;
        }
        self.size += 1;
        self.losses = 0;
        self.search_at = (self.size < self.largest).then_some(now);
        true
    }

    pub(crate) fn probe_lost(&mut self, now: Instant) {
        self.is_probing = false;
        self.failed_probes += 1;
        if self.failed_probes >= PROBES_MAX {
            self.failed_probes = 0;
            self.search_at = Some(now + RAISE_AFTER);
        }
    }

    /// A packet arrived.
    pub(crate) fn acknowledged(&mut self, bytes: usize) {
        if bytes > packet_bytes(self.size.saturating_sub(1)) {
            self.losses = 0;
        }
    }

    /// A packet was lost. True: packets must be smaller from now on. Those that were sent before the last reduction say nothing about the
    /// present size.
    pub(crate) fn lost(&mut self, now: Instant, bytes: usize) -> bool {
        if self.size == 0 || bytes <= packet_bytes(self.size - 1) || bytes > self.packet_bytes() {
            return false;
        }
        self.losses += 1;
        if self.losses < BLACK_HOLE_LOSSES {
            return false;
        }
        let from_bytes = self.packet_bytes();
        self.size -= 1;
        self.losses = 0;
        self.failed_probes = 0;
        self.black_holes += 1;
        self.reductions.push_back(PathReduction { from_bytes, to_bytes: self.packet_bytes() });
        self.search_at = Some(now + RAISE_AFTER);
        true
    }
}

const fn packet_bytes(size: usize) -> usize {
    SEGMENT_BYTES[size] + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::disallowed_methods)]
    fn test_now() -> Instant {
        Instant::now()
    }

    /// Probes until there is nothing to probe, on a path that takes packets of at most `path_bytes`.
    fn search(mtu: &mut PathMtu, now: Instant, path_bytes: usize) {
        while let Some(bytes) = mtu.wanted_probe(now) {
            mtu.probe_sent();
            assert_eq!(mtu.wanted_probe(now), None, "one at a time");
            if bytes <= path_bytes {
                mtu.probe_acknowledged(now, bytes);
            } else {
                mtu.probe_lost(now);
            }
        }
    }

    #[test]
    fn the_largest_size_that_passes_is_found() {
        let now = test_now();
        for (path_bytes, segment_bytes) in [(1472, 1024), (2300, 2048), (4271, 2048), (4272, 4096), (9000, 4096)] {
            let mut mtu = PathMtu::new(now, 4096, false);
            search(&mut mtu, now, path_bytes);
            assert_eq!(mtu.segment_bytes(), segment_bytes, "{path_bytes}");
        }
        let mut small = PathMtu::new(now, 512, false);
        search(&mut small, now, 9000);
        assert_eq!((small.segment_bytes(), small.packet_bytes()), (512, 688), "no more than a quantum needs");
        assert_eq!(PathMtu::new(now, 4096, true).segment_bytes(), 4096);
    }

    #[test]
    fn a_black_hole_is_noticed_and_a_lossy_path_is_none() {
        let now = test_now();
        let mut mtu = PathMtu::new(now, 4096, false);
        search(&mut mtu, now, 9000);
        for _ in 0..100 {
            assert!(!mtu.lost(now, 4272));
            mtu.acknowledged(4272);
        }
        for _ in 0..100 {
            assert!(!mtu.lost(now, 300), "small packets say nothing about large ones");
        }
        for lost in 1..=BLACK_HOLE_LOSSES {
            mtu.acknowledged(300);
            assert_eq!(mtu.lost(now, 4272), lost == BLACK_HOLE_LOSSES);
        }
        assert_eq!((mtu.segment_bytes(), mtu.black_holes()), (2048, 1));
        assert_eq!(mtu.poll_reduction(), Some(PathReduction { from_bytes: 4272, to_bytes: 2224 }));
        assert_eq!(mtu.poll_reduction(), None, "told once");
        assert_eq!((mtu.wanted_probe(now), mtu.search_at()), (None, Some(now + RAISE_AFTER)));
        for _ in 0..3 * BLACK_HOLE_LOSSES {
            assert!(!mtu.lost(now, 4272), "what was on its way says nothing about the size that is used now");
        }
        search(&mut mtu, now + RAISE_AFTER, 9000);
        assert_eq!(mtu.segment_bytes(), 4096, "it is tried again");
    }
}
