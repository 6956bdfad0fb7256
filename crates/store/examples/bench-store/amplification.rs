//! Write amplification of a full volume under random overwrites: bytes that went to the medium per byte that was written.

use strongroom_store::Stats;

use super::load::{Kind, Load};
use super::table::{Goal, Table};

/// How many times the volume is overwritten before it is measured; if skewed longer, because most blocks are overwritten seldom.
const BEFORE: u64 = 3;
const BEFORE_SKEWED: u64 = 6;
/// And meanwhile.
const MEASURED: u64 = 1;
/// What the figures to be reached are for: data, records and retained versions take so much of all segments, in percent.
const LIVE_PERCENT: u64 = 80;
/// Of a smaller volume too little is left beside what is set aside to be so full.
const FULL_MIB_MIN: u64 = 256;

/// How full the store is when all of its volume is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// As every store is made.
    AsMade,
    /// [`LIVE_PERCENT`] of it.
    Full,
}

/// What is to be reached, and a plain store as it is made; only that if there are too few segments for the other.
pub(crate) fn measure_all(size_mib: u64, table: &mut Table) {
    for skewed in [false, true] {
        if size_mib >= FULL_MIB_MIN {
            measure(Kind::Plain, Fill::Full, skewed, size_mib, table);
            measure(Kind::Sealed, Fill::Full, skewed, size_mib, table);
        }
        measure(Kind::Plain, Fill::AsMade, skewed, size_mib, table);
    }
}

/// Overwrites a full volume at random. `skewed`: nine in ten writes go to a tenth of the blocks.
fn measure(kind: Kind, fill: Fill, skewed: bool, size_mib: u64, table: &mut Table) {
    // As many segments as in a much larger volume with those of the usual size: what is set aside is a fixed number of them.
    let (size_mib, segment_bytes) = match fill {
        Fill::AsMade => (size_mib, 1 << 20),
        Fill::Full => (2 * size_mib, 512 << 10),
    };
    let blocks = size_mib * 256;
    let mut load = match fill {
        Fill::AsMade => Load::in_memory(kind, blocks, segment_bytes),
        Fill::Full => Load::in_memory_filled(kind, blocks, segment_bytes, LIVE_PERCENT),
    };
    load.fill();
    let mut overwrite = |volumes: u64| {
        let ops = volumes * blocks;
        let next = |load: &mut Load| {
            let lba = match skewed && load.random_below(10) < 9 {
                // Hot blocks lie scattered.
                true => load.random_below(blocks / 10) * 10,
                false => load.random_below(blocks),
            };
            load.write(lba, 1)
        };
        load.run_ops(32, next, |done, _| done >= ops);
        load.store.stats()
    };
    let before = overwrite(if skewed { BEFORE_SKEWED } else { BEFORE });
    let after = overwrite(MEASURED);
    let moved = Traffic::between(&before, &after);
    let total = u64::from(load.store.info().segment_bytes) * after.segments_total;
    let live = after.live_bytes as f64 * 100.0 / total as f64;
    let (goal, made) = match fill {
        Fill::AsMade => (Goal::Reported, "a store as it is made"),
        Fill::Full => (Goal::AtMost(if skewed { 2.0 } else { 3.0 }), "fewer segments"),
    };
    let what = format!("write amplification, {kind:?}, {}, {made}", if skewed { "90/10" } else { "uniform" });
    let parts = format!(
        "{moved}; data, records and retained versions are {live:.0}% of all {} segments, the reserved ones counted",
        after.segments_total
    );
    table.row(&what, parts, String::new(), (moved.to_medium(), ""), goal);
}

/// Bytes moved per byte that was written.
pub(crate) struct Traffic {
    appended: f64,
    copied: f64,
    read: f64,
    tables: f64,
    checkpoints: f64,
}

impl Traffic {
    /// What moved from one moment to another.
    pub(crate) fn between(before: &Stats, after: &Stats) -> Traffic {
        let of = |field: fn(&Stats) -> u64| (field(after) - field(before)) as f64;
        let written = of(|s| s.written_bytes).max(1.0);
        Traffic {
            appended: of(|s| s.appended_bytes) / written,
            copied: of(|s| s.cleaned_bytes) / written,
            read: of(|s| s.cleaning_read_bytes) / written,
            tables: of(|s| s.table_bytes) / written,
            checkpoints: of(|s| s.checkpoint_bytes) / written,
        }
    }

    /// Of that what went to the medium.
    fn to_medium(&self) -> f64 {
        self.appended + self.copied + self.tables + self.checkpoints
    }
}

impl std::fmt::Display for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Traffic { appended, copied, read, tables, checkpoints } = self;
        write!(
            f,
            "with records and framing {appended:.2}, copies {copied:.2} (read for them {read:.2}), tables {tables:.3}, \
             checkpoints {checkpoints:.3}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_with_fewer_segments_is_as_full_as_was_asked() {
        let mut load = Load::in_memory_filled(Kind::Plain, 16_384, 256 << 10, LIVE_PERCENT);
        load.fill();
        let stats = load.store.stats();
        let live = stats.live_bytes as f64 * 100.0 / (stats.segments_total * (256 << 10)) as f64;
        assert!((79.0..=80.0).contains(&live), "{live}: {stats:?}");
    }
}
