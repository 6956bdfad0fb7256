//! Proves that the tree of nodes says what each view sees, after any changes, and survives being bytes.

use strongroom_block::VolumeId;

use super::*;
use crate::layout::SEQUENCE_MAX;

fn create(id: u64, branch: u32, name: &str) -> Change {
    Change::SnapshotCreate { id, branch, created: 5, name: name.to_owned() }
}

fn tree(changes: &[(Change, u64)]) -> Catalogue {
    let mut catalogue = Catalogue::new(VolumeId([1; 16]));
    for (change, sequence) in changes {
        catalogue.apply(change, *sequence).unwrap();
        let again = Catalogue::decode(&catalogue.encode()).expect("a possible tree");
        assert_eq!(again, catalogue);
        assert_eq!(Change::decode(change.branch(), &change.encode()).as_ref(), Some(change));
    }
    catalogue
}

impl Catalogue {
    /// Its bytes, if its last span began there.
    fn encode_with_span(mut self, from: u64) -> Vec<u8> {
        let ((branch, _), span) = self.spans.pop_last().unwrap();
        self.spans.insert((branch, from), span);
        self.encode()
    }
}

#[test]
fn each_write_belongs_to_the_node_of_its_time() {
    let mut catalogue = tree(&[(create(7, 0, "a"), 10), (create(8, 0, "b"), 20)]);
    let nodes = [5, 15, 25].map(|sequence| catalogue.node_of(0, sequence).unwrap());
    assert_eq!(catalogue.path(nodes[2]).collect::<Vec<_>>(), [nodes[2], nodes[1], nodes[0]]);
    assert_eq!(catalogue.node_of(1, 5), None, "no such branch");
    catalogue.apply(&Change::SnapshotDelete { id: 7 }, 30).unwrap();
    assert_eq!(catalogue.work(), Some(NodeRemoval::Merge { from: nodes[0], to: nodes[1] }));
    catalogue.collapse();
    assert_eq!(catalogue.node_of(0, 5), Some(nodes[1]));
    assert_eq!((catalogue.spans.len(), catalogue.labels(nodes[1]).branch(5)), (2, Some(0)));
}

#[test]
fn what_a_rollback_undid_belongs_to_nobody() {
    let mut catalogue = tree(&[(create(7, 0, "a"), 10), (Change::Rollback { to: 7 }, 20)]);
    catalogue.collapse();
    assert_eq!(catalogue.node_of(0, 15), None);
    assert_eq!(catalogue.node_of(0, 25), catalogue.head(0));
    assert_eq!(catalogue.parent(catalogue.head(0).unwrap()), catalogue.node_of(0, 5));
    assert_eq!(Catalogue::decode(&catalogue.encode()).unwrap(), catalogue);
}

/// What an initiator compares after a lost connection: only a rollback and a reception replace what a branch holds.
#[test]
fn a_branch_is_unbroken_until_its_contents_are_replaced() {
    let mut catalogue = tree(&[(create(7, 0, "a"), 10), (create(8, 0, "b"), 20)]);
    assert_eq!(catalogue.unbroken_since(0), Some(0));
    catalogue.apply(&Change::SnapshotDelete { id: 7 }, 30).unwrap();
    catalogue.collapse();
    assert_eq!(catalogue.unbroken_since(0), Some(0), "merged nodes change nothing");
    catalogue.apply(&Change::Rollback { to: 8 }, 40).unwrap();
    assert_eq!(catalogue.unbroken_since(0), Some(40));
    catalogue.collapse();
    catalogue.apply(&create(9, 0, "c"), 50).unwrap();
    assert_eq!(catalogue.unbroken_since(0), Some(40));
    let begin = Change::ReceiveBegin { branch: 1, id: 10, base: 9, created: 1, name: "d".to_owned() };
    catalogue.apply(&begin, 60).unwrap();
    assert_eq!((catalogue.unbroken_since(0), catalogue.unbroken_since(1)), (Some(40), Some(60)));
    catalogue.apply(&Change::ReceiveCommit { branch: 1 }, 70).unwrap();
    catalogue.collapse();
    assert_eq!((catalogue.unbroken_since(0), catalogue.unbroken_since(1)), (Some(70), None));
    assert_eq!(Catalogue::decode(&catalogue.encode()).unwrap().unbroken_since(0), Some(70));
}

#[test]
fn a_snapshot_with_clones_stays() {
    let clone =
        Change::CloneCreate { branch: 1, from: 7, created: 1, volume_id: VolumeId([2; 16]), name: "c".to_owned() };
    let mut catalogue = tree(&[(create(7, 0, "a"), 10), (clone, 11)]);
    assert!(matches!(catalogue.apply(&Change::SnapshotDelete { id: 7 }, 12), Err(OpError::Depended(_))));
    assert!(matches!(catalogue.apply(&create(9, 0, "a"), 12), Err(OpError::NameTaken(_))));
    catalogue.apply(&Change::CloneDelete { branch: 1 }, 12).unwrap();
    catalogue.apply(&Change::SnapshotDelete { id: 7 }, 13).unwrap();
    catalogue.collapse();
    assert_eq!((catalogue.nodes.len(), catalogue.spans.len()), (1, 1));
}

#[test]
fn a_span_that_no_sequence_comes_to_is_refused() {
    let from = |sequence| tree(&[(create(7, 0, "a"), 10)]).encode_with_span(sequence);
    assert_eq!(Catalogue::decode(&from(500)).unwrap().newest_begins(), 500);
    assert!(Catalogue::decode(&from(SEQUENCE_MAX - 1)).is_some());
    for sequence in [SEQUENCE_MAX, SEQUENCE_MAX + 9, u64::MAX - 1] {
        assert!(Catalogue::decode(&from(sequence)).is_none(), "{sequence}");
    }
}

#[test]
fn what_cannot_be_a_tree_is_refused() {
    let good = tree(&[(create(7, 0, "a"), 10)]).encode();
    for at in 0..good.len() {
        for bit in [0, 7] {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            if let Some(other) = Catalogue::decode(&bad) {
                assert_eq!(other.encode(), bad, "what is accepted says itself");
            }
        }
    }
    assert!(Catalogue::decode(&good[..good.len() - 1]).is_none());
}

/// A log may say anything whose checksum fits: the volume stays a branch of its own, and numbers are never used up.
#[test]
fn attack_store_changes_that_no_store_made() {
    let receive = |branch| Change::ReceiveBegin { branch, id: 9, base: 0, created: 5, name: "r".to_owned() };
    let clone = |branch| Change::CloneCreate {
        branch,
        from: 7,
        created: 1,
        volume_id: VolumeId([2; 16]),
        name: "c".to_owned(),
    };
    let mut catalogue = tree(&[(create(7, 0, "a"), 10), (clone(3), 11)]);
    for branch in [0, 1, 3, u32::MAX] {
        assert!(matches!(catalogue.apply(&receive(branch), 12), Err(OpError::TooMany(_))), "{branch}");
        assert!(matches!(catalogue.apply(&clone(branch), 12), Err(OpError::TooMany(_))), "{branch}");
    }
    assert_eq!(catalogue.apply(&receive(4), 12), Ok(4));
    let refused = |change: fn(&mut Catalogue)| {
        let mut catalogue = tree(&[(create(7, 0, "a"), 10)]);
        change(&mut catalogue);
        Catalogue::decode(&catalogue.encode()).is_none()
    };
    assert!(!refused(|_| {}));
    assert!(refused(|catalogue| catalogue.branches.get_mut(&0).unwrap().receiving = 9), "the volume is no reception");
    assert!(refused(|catalogue| catalogue.next_node = u64::MAX), "a number of a node is used once");
    assert!(refused(|catalogue| catalogue.snapshots[0].name = "\x1b[2J".to_owned()), "what nobody could name it");
}

/// What replaying the log makes again was made while nodes were merged in between.
#[test]
fn a_log_of_any_number_of_changes_is_replayed() {
    let mut replay = Replay::new(Catalogue::new(VolumeId([1; 16])));
    replay.apply(&create(1, 0, "first"), 1).unwrap();
    for at in 2..2 * SPANS_MAX as u64 {
        replay.apply(&create(at, 0, "next"), 2 * at).unwrap();
        replay.apply(&Change::SnapshotDelete { id: at }, 2 * at + 1).unwrap();
    }
    let catalogue = replay.finish();
    assert_eq!((catalogue.nodes.len(), catalogue.spans.len(), catalogue.snapshots.len()), (2, 2, 1));
    assert_eq!(catalogue.node_of(0, 5), catalogue.head(0));
    assert_eq!(catalogue.node_of(0, 0), catalogue.snapshot(1).map(|snapshot| snapshot.node));
}

/// As many snapshots as there may be, with nothing to merge: each look is one pass over the tree.
#[test]
fn work_is_found_among_many_snapshots() {
    let mut changes: Vec<(Change, u64)> = Vec::new();
    for at in 1..=Op::SNAPSHOTS_MAX as u64 {
        changes.push((create(at, 0, &at.to_string()), 10 * at));
    }
    let mut catalogue = Catalogue::new(VolumeId([1; 16]));
    for (change, sequence) in &changes {
        catalogue.apply(change, *sequence).unwrap();
    }
    assert_eq!(catalogue.work(), None);
    let nodes: Vec<NodeId> = catalogue.nodes().collect();
    catalogue.apply(&Change::SnapshotDelete { id: 500 }, 1_000_000).unwrap();
    assert_eq!(catalogue.work(), Some(NodeRemoval::Merge { from: nodes[499], to: nodes[500] }));
    catalogue.collapse();
    assert_eq!((catalogue.work(), catalogue.nodes.len()), (None, nodes.len() - 1));
}

/// A tree after any changes, and the same tree with its nodes done one after the other.
#[test]
fn all_work_at_once_is_the_same_as_one_after_the_other() {
    let mut random = 7u64;
    let mut below = |end: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % end
    };
    let mut merged = 0;
    for _ in 0..300 {
        let mut catalogue = Catalogue::new(VolumeId([1; 16]));
        for sequence in 1..=below(60) {
            let id = below(20);
            let branch = below(6) as u32;
            let change = match below(8) {
                0..=2 => create(sequence + 100, branch, &format!("s{sequence}")),
                3 => Change::Rollback { to: catalogue.snapshots.get(id as usize).map_or(0, |snapshot| snapshot.id) },
                4 => Change::CloneCreate {
                    branch: catalogue.next_branch(),
                    from: catalogue.snapshots.get(id as usize).map_or(0, |snapshot| snapshot.id),
                    created: 1,
                    volume_id: VolumeId([2; 16]),
                    name: format!("c{sequence}"),
                },
                5 => Change::CloneDelete { branch },
                _ => Change::SnapshotDelete { id: catalogue.snapshots.get(id as usize).map_or(0, |found| found.id) },
            };
            // Many are refused.
            let _ = catalogue.apply(&change, sequence * 10);
        }
        let mut slowly = catalogue.clone();
        while let Some(work) = slowly.work() {
            merged += usize::from(matches!(work, NodeRemoval::Merge { .. }));
            slowly.finish(work);
        }
        catalogue.collapse();
        assert_eq!(catalogue, slowly);
        assert_eq!(catalogue.work(), None);
    }
    assert!(merged > 100, "{merged} merged");
}
