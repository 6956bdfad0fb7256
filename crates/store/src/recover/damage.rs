//! The damage that recovery passed over for a read-only opening.

use crate::unit::UnitHeader;

/// What a read-only opening of a damaged store passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The places in the log, in words.
    pub places: Vec<String>,
    /// A block is as it was last written if its newest version has at least this sequence. Any other may have been written in what was
    /// passed over: it may be missing or old.
    pub(crate) suspect_below: u64,
    /// Nothing intact was seen since the last place.
    open: bool,
}

/// Upper bound on the places that are told.
const PLACES_MAX: usize = 1000;

impl Damage {
    /// Whether nothing was passed over.
    pub fn is_none(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn note(&mut self, what: String) {
        if self.places.len() < PLACES_MAX {
            self.places.push(what);
        }
        self.open = true;
    }

    /// An intact unit: what was lost before it has smaller sequences than those that follow it.
    pub(super) fn seen(&mut self, header: &UnitHeader) {
        if std::mem::take(&mut self.open) {
            self.suspect_below = self.suspect_below.max(header.next_sequence);
        }
    }

    /// Nothing follows.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            self.suspect_below = u64::MAX;
        }
    }
}
