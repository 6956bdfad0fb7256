//! Proves which action follows from which summary: every action, and the limits between them.

use super::*;

/// A store of 640 segments of 1 MiB with a reserve of 12, half of it live; nothing is low, and there is little garbage.
fn counts() -> SegmentCounts {
    SegmentCounts {
        total: 640,
        segment_bytes: 1 << 20,
        segment_blocks: 256,
        free: 320,
        warm: 10,
        dead: 0,
        coming: 0,
        live_bytes: 310 << 20,
        full_bytes: 500 << 20,
        base_reserve: 12,
        table_blocks: 6,
        copy_segments: 0,
    }
}

#[test]
fn without_a_demand_compaction_depends_on_free_segments_and_garbage() {
    use CompactionAction::{Compact, Nothing};
    // The reserve, one round of 10 and 4 segments ahead.
    let low = 12 + 10 + 4;
    // 1.5 times what is live and 16 segments.
    let garbage = 320 * 2 / 3 - 11;
    let cases = [
        ("enough", SegmentCounts { ..counts() }, Nothing),
        (
            "as many free as are low",
            SegmentCounts { free: low, live_bytes: 600 << 20, ..counts() },
            Compact(Pace::Replenish),
        ),
        ("one more", SegmentCounts { free: low + 1, live_bytes: 600 << 20, ..counts() }, Nothing),
        ("dead ones count", SegmentCounts { free: low, dead: 1, live_bytes: 600 << 20, ..counts() }, Nothing),
        ("those of a round count", SegmentCounts { free: low, coming: 1, live_bytes: 600 << 20, ..counts() }, Nothing),
        (
            "a table of two segments needs more",
            SegmentCounts { free: low + 6, table_blocks: 510, live_bytes: 600 << 20, ..counts() },
            Compact(Pace::Replenish),
        ),
        (
            "and one more is enough then",
            SegmentCounts { free: low + 7, table_blocks: 510, live_bytes: 600 << 20, ..counts() },
            Nothing,
        ),
        ("garbage", SegmentCounts { live_bytes: garbage << 20, ..counts() }, Compact(Pace::Idle)),
        ("a little less garbage", SegmentCounts { live_bytes: (garbage + 1) << 20, ..counts() }, Nothing),
        (
            "a log that is large for its volume may have more garbage",
            SegmentCounts { live_bytes: garbage << 20, full_bytes: 320 << 20, ..counts() },
            Nothing,
        ),
    ];
    for (name, segments, expected) in cases {
        assert_eq!(next(&SpaceSummary { segments, ..SpaceSummary::default() }), expected, "{name}");
    }
    let urgent = SpaceSummary { segments: counts(), is_urgent: true, ..SpaceSummary::default() };
    assert_eq!(next(&urgent), Compact(Pace::Urgent));
}

/// From the cheapest to the last resort: each row takes away what the row before could still do.
#[test]
fn a_demand_is_met_by_what_costs_least() {
    use CompactionAction::*;
    for demand in [Demand::Request, Demand::Relief] {
        let mut summary = SpaceSummary {
            segments: counts(),
            demand,
            host: HostSpace::Allocating,
            is_urgent: false,
            can_reclaim: true,
            unread_retried: false,
            has_slices: true,
            awaited_slices: true,
            checkpoint: CheckpointSpace::Writing,
            can_compact: true,
            versions_exhausted: false,
        };
        type Change = fn(&mut SpaceSummary);
        let rows: [(Change, CompactionAction); 11] = [
            (|_| (), Wait),
            (|summary| summary.host = HostSpace::Full, Compact(Pace::Urgent)),
            (|summary| summary.is_urgent = true, Wait),
            (|summary| summary.can_reclaim = false, AskHost),
            (|summary| summary.host = HostSpace::Available, RetryUnread),
            (|summary| summary.unread_retried = true, AwaitSlices),
            (|summary| summary.has_slices = false, CompactAgain),
            (|summary| summary.awaited_slices = false, Wait),
            (|summary| summary.checkpoint = CheckpointSpace::Droppable, DropCheckpoint),
            (|summary| summary.checkpoint = CheckpointSpace::Nothing, DropVersions),
            (|summary| summary.versions_exhausted = true, GiveUp),
        ];
        for (change, expected) in rows {
            change(&mut summary);
            assert_eq!(next(&summary), expected, "{summary:?}");
        }
        // Versions stay if compaction cannot use their space.
        let blocked = SpaceSummary { can_compact: false, versions_exhausted: false, ..summary };
        assert_eq!(next(&blocked), GiveUp);
    }
}

#[test]
fn reserves_and_rounds_grow_with_the_segment_table() {
    let cases = [
        // (segments, blocks of the tables) and (segments of the tables, reserve, round, least round)
        ((640, 6), (0, 12, 10, 1)),
        ((640, 254), (0, 12, 10, 1)),
        ((640, 255), (1, 14, 10, 8)),
        ((640, 510), (2, 16, 10, 10)),
        ((63, 6), (0, 12, 1, 1)),
        ((100_000, 6), (0, 12, 32, 1)),
        ((100_000, 512), (2, 16, 64, 16)),
    ];
    for ((total, table_blocks), expected) in cases {
        let counts = SegmentCounts { total, table_blocks, ..counts() };
        let found = (counts.table_segments(), counts.reserve(), counts.round_segments(), counts.round_segments_least());
        assert_eq!(found, expected, "{total} segments, {table_blocks} blocks");
    }
    assert!(SegmentCounts { free: 12, ..counts() }.reserve_is_touched());
    assert!(!SegmentCounts { free: 12, coming: 1, ..counts() }.reserve_is_touched());
}

#[test]
fn compaction_for_one_request_ends_when_it_gains_nothing() {
    let mut search = RoomSearch::default();
    let most = 2 * counts().live_bytes + 16 * counts().segment_bytes;
    search.note_copied(most + 1);
    assert!(!search.is_futile(&counts()), "nobody waits");
    search.begin();
    search.note_copied(most);
    assert!(!search.is_futile(&counts()));
    search.note_copied(1);
    assert!(search.is_futile(&counts()));
    search.compact_again();
    assert!(!search.is_futile(&counts()));
}

/// The whole search of a store that compaction can go on in until it is futile, and that has this many versions to drop, a few at a time:
/// the actions, one after the other, until the request is refused.
fn search_with_versions(mut drops: u32) -> Vec<CompactionAction> {
    let (mut search, mut actions) = (RoomSearch::default(), Vec::new());
    let mut versions_exhausted = false;
    while actions.len() < 100 && actions.last() != Some(&CompactionAction::GiveUp) {
        let action = next(&SpaceSummary {
            segments: counts(),
            demand: Demand::Request,
            is_urgent: search.is_urgent(),
            can_reclaim: search.is_urgent() && !search.is_futile(&counts()),
            unread_retried: search.unread_retried(),
            awaited_slices: search.awaits_slices(),
            can_compact: true,
            versions_exhausted,
            ..SpaceSummary::default()
        });
        match action {
            CompactionAction::Compact(_) => search.begin(),
            // Compaction copies everything that is live, and more than once.
            CompactionAction::Wait => search.note_copied(3 * counts().total as u64 * counts().segment_bytes),
            CompactionAction::RetryUnread => search.retry_unread(),
            CompactionAction::DropVersions => {
                // The limit can be lowered however few versions there are.
                versions_exhausted = search.versions_made_way(true, drops > 0);
                drops = drops.saturating_sub(1);
            }
            CompactionAction::GiveUp => {}
            other => panic!("nothing leads to {other:?}"),
        }
        actions.push(action);
    }
    actions
}

#[test]
fn a_search_ends_when_no_versions_make_way() {
    use CompactionAction::{Compact, DropVersions, GiveUp, RetryUnread, Wait};
    let cases: [(u32, &[CompactionAction]); 3] = [
        (0, &[Compact(Pace::Urgent), Wait, RetryUnread, DropVersions, GiveUp]),
        (1, &[Compact(Pace::Urgent), Wait, RetryUnread, DropVersions, Wait, DropVersions, GiveUp]),
        (2, &[Compact(Pace::Urgent), Wait, RetryUnread, DropVersions, Wait, DropVersions, Wait, DropVersions, GiveUp]),
    ];
    for (drops, expected) in cases {
        assert_eq!(search_with_versions(drops), expected, "{drops} times versions make way");
    }
    // Versions over the budget go without a lower limit: the search goes on, but compaction has not gained more by it.
    let mut search = RoomSearch::default();
    search.begin();
    search.note_copied(u64::MAX);
    for (is_limit_lower, any_dropped, exhausted, futile) in
        [(false, false, true, true), (true, false, true, true), (false, true, false, true), (true, true, false, false)]
    {
        assert_eq!(search.versions_made_way(is_limit_lower, any_dropped), exhausted);
        assert_eq!(search.is_futile(&counts()), futile, "limit lowered: {is_limit_lower}, dropped: {any_dropped}");
    }
}
