//! Credits: how much write data an initiator may have under way. They are a running total, so that a lost or repeated packet changes nothing.

/// Bytes in one unit.
pub(crate) const UNIT_BYTES: u64 = 512;

/// Units that a transfer takes.
pub(crate) fn units(bytes: u32) -> u64 {
    u64::from(bytes).div_ceil(UNIT_BYTES)
}

/// The target's side: what it has granted, and what commands have taken of it.
#[derive(Debug)]
pub(crate) struct GrantedCredits {
    limit: u64,
    taken: u64,
}

impl GrantedCredits {
    pub(crate) fn new(window_bytes: u64) -> GrantedCredits {
        GrantedCredits { limit: window_bytes / UNIT_BYTES, taken: 0 }
    }

    /// The running total, as headers show it.
    pub(crate) fn as_sent(&self) -> u32 {
        self.limit as u32
    }

    /// Whether `bytes` more fit, of a command or of data that came before its command.
    pub(crate) fn admits(&self, bytes: u64) -> bool {
        self.taken + bytes.div_ceil(UNIT_BYTES) <= self.limit
    }

    /// A command takes its part.
    pub(crate) fn take(&mut self, bytes: u32) {
        self.taken += units(bytes);
    }

    /// A command is over, and its memory free.
    pub(crate) fn give_back(&mut self, bytes: u32) {
        self.limit += units(bytes);
    }

    /// The planted fault: the grant was in one packet only, and that is lost.
    pub(crate) fn withdraw(&mut self, bytes: u32) {
        self.limit -= units(bytes);
    }
}

/// The initiator's side.
#[derive(Debug)]
pub(crate) struct UsableCredits {
    limit: u64,
    used: u64,
    window: u64,
}

impl UsableCredits {
    pub(crate) fn new(window_bytes: u64) -> UsableCredits {
        let window = window_bytes / UNIT_BYTES;
        UsableCredits { limit: window, used: 0, window }
    }

    /// A header's running total. One from an older packet, below what is known, changes nothing.
    pub(crate) fn update(&mut self, sent: u32) {
        let ahead = sent.wrapping_sub(self.limit as u32);
        if ahead < 1 << 31 {
            self.limit += u64::from(ahead);
        }
    }

    /// Whether a write could ever be sent.
    pub(crate) fn is_possible(&self, bytes: u32) -> bool {
        units(bytes) <= self.window
    }

    /// Whether there are enough for a write now.
    pub(crate) fn has(&self, bytes: u32) -> bool {
        self.used + units(bytes) <= self.limit
    }

    /// Takes the credits of a write; false if there are not enough now.
    pub(crate) fn take(&mut self, bytes: u32) -> bool {
        let fits = self.has(bytes);
        if fits {
            self.used += units(bytes);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_only_grow_and_wrap() {
        let mut granted = GrantedCredits::new(1 << 20);
        let mut usable = UsableCredits::new(1 << 20);
        // More than 2^32 units pass.
        for round in 0..6000u32 {
            let old = granted.as_sent();
            assert!(usable.take(1 << 20) && !usable.take(1), "round {round}");
            assert!(granted.admits(1 << 20));
            granted.take(1 << 20);
            assert!(!granted.admits(1));
            granted.give_back(1 << 20);
            usable.update(granted.as_sent());
            usable.update(old);
        }
        assert!(usable.is_possible(1 << 20) && !usable.is_possible((1 << 20) + 1));
    }
}
