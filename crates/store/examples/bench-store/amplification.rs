//! Write amplification of a full volume under random overwrites: bytes that went to the medium per byte that was written.

use strongroom_store::Stats;

use super::load::{Kind, Load};
use super::table::{Goal, Table};

/// How many times the volume is overwritten before, and while, it is measured.
const BEFORE: u64 = 3;
const MEASURED: u64 = 2;

/// Overwrites a full volume at random. `skewed`: nine in ten writes go to a tenth of the blocks.
pub(crate) fn measure(kind: Kind, skewed: bool, size_mib: u64, table: &mut Table) {
    let blocks = size_mib * 256;
    // As full as a much larger volume with segments of the usual size: what is set aside is a fixed number of them.
    let mut load = Load::in_memory(kind, blocks, 1 << 20);
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
    let before = overwrite(BEFORE);
    let after = overwrite(MEASURED);
    let moved = |of: fn(&Stats) -> u64| (of(&after) - of(&before)) as f64;
    let (written, appended) = (moved(|s| s.written_bytes), moved(|s| s.appended_bytes));
    let (cleaned, tables) = (moved(|s| s.cleaned_bytes), moved(|s| s.table_bytes));
    let total = u64::from(load.store.info().segment_bytes) * after.segments_total;
    let what = format!("write amplification, {kind:?}, {}", if skewed { "90/10" } else { "uniform" });
    let parts = format!(
        "records and framing {:.2}, copies {:.2}, tables {:.3}; live {:.0}% of the store",
        appended / written,
        cleaned / written,
        tables / written,
        after.live_bytes as f64 * 100.0 / total as f64,
    );
    let goal = Goal::AtMost(if skewed { 2.0 } else { 3.0 });
    table.row(&what, parts, String::new(), ((appended + cleaned + tables) / written, ""), goal);
}
