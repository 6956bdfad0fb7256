//! Proves that what no view needs for itself is merged behind requests without a trace: a checkpoint written meanwhile has
//! every block and hole, under its own branch.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, VolumeId};
use strongroom_store::{
    BranchId, CreateOptions, Extent, Op, OpenOptions, Outcome, Receiver, Sender, SharedMemory, SnapshotId, Store,
    UnitKind, View,
};

/// Merging takes ten polls.
const BLOCKS: u64 = 10 * 4096;
/// What lies where in the data, so that runs do not make the checkpoint a single piece.
const HOLE_EVERY: u64 = 64;

/// A backend that outlives its store, as if the power had failed.
fn made() -> SharedMemory {
    let backend = SharedMemory::default();
    let geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks: BLOCKS };
    let options = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    let options = CreateOptions { segment_bytes: 256 << 10, ..options };
    Store::create_on(Box::new(backend.clone()), &options).unwrap();
    backend
}

fn open(backend: &SharedMemory, checkpoint_log_bytes: u64) -> Store {
    let options = OpenOptions { checkpoint_log_bytes: Some(checkpoint_log_bytes), ..OpenOptions::default() };
    Store::open_on(Box::new(backend.clone()), &options, Arc::new(|| {})).unwrap()
}

fn fill(store: &mut Store, view: View, with: u8) {
    let data = Buffer::copy_from(&vec![with; 1 << 20]);
    for lba in (0..BLOCKS).step_by(2048) {
        let write =
            Op::Write { lba: Lba(lba), data: vec![data.clone()], records: Vec::new(), fua: false, origin: None };
        store.execute_on(view, write).unwrap();
    }
    for lba in (0..BLOCKS).step_by(HOLE_EVERY as usize) {
        store.execute_on(view, Op::Discard { lba: Lba(lba), count: 2 }).unwrap();
    }
}

fn snapshot(store: &mut Store, view: View, name: &str) -> SnapshotId {
    match store.execute_on(view, Op::SnapshotCreate { name: name.to_owned() }) {
        Ok(Outcome::SnapshotCreated { id }) => id,
        other => panic!("{other:?}"),
    }
}

/// A clone filled and with a snapshot, which shall go.
fn of_a_clone(store: &mut Store) -> (View, SnapshotId) {
    let from = snapshot(store, View::default(), "base");
    let clone = Op::CloneCreate { from, name: "clone".to_owned(), volume_id: VolumeId([2; 16]) };
    let Ok(Outcome::CloneCreated { branch: BranchId(branch) }) = store.execute(clone) else { panic!("no clone") };
    let view = View::Head(BranchId(branch));
    fill(store, view, 3);
    (view, snapshot(store, view, "of the clone"))
}

/// A volume that was received, whose snapshot shall go: its blocks stand under the reception's branch.
fn received(store: &mut Store) -> (View, SnapshotId) {
    let mut source = open(&made(), u64::MAX);
    fill(&mut source, View::default(), 3);
    let id = snapshot(&mut source, View::default(), "sent");
    let (mut sender, mut receiver) = (Sender::new(None, id, 0), Receiver::new());
    while let Some(bytes) = sender.send(&mut source).unwrap() {
        receiver.receive(store, &bytes).unwrap();
    }
    assert!(receiver.is_done());
    (View::default(), id)
}

fn log_bytes(store: &Store) -> u64 {
    let stats = store.stats();
    stats.appended_bytes + stats.cleaned_bytes + stats.table_bytes
}

fn check(store: &mut Store, view: View) {
    for lba in (0..BLOCKS).step_by(2048) {
        let Ok(Outcome::Read(extents)) = store.execute_on(view, Op::Read { lba: Lba(lba), count: 2048 }) else {
            panic!("blocks from {lba} on cannot be read")
        };
        let mut at = lba;
        for extent in extents {
            match extent {
                Extent::Blocks { data, .. } => {
                    let data = data.to_vec();
                    assert!(at % HOLE_EVERY >= 2 && data.iter().all(|&byte| byte == 3), "from block {at} on");
                    at += data.len() as u64 / 512;
                }
                Extent::Hole { count, .. } => {
                    assert!(at % HOLE_EVERY == 0 && count == 2, "{count} blocks from {at} on are gone");
                    at += count;
                }
            }
        }
    }
}

fn a_checkpoint_meanwhile_is_whole(prepare: fn(&mut Store) -> (View, SnapshotId)) {
    let mut store = open(&made(), u64::MAX);
    prepare(&mut store);
    let begin = log_bytes(&store);
    let mut from_checkpoints = 0;
    for later in 0..8 {
        let backend = made();
        let mut store = open(&backend, begin + later * 8192);
        let (view, snapshot) = prepare(&mut store);
        store.execute(Op::SnapshotDelete { id: snapshot }).unwrap();
        let mut rounds = 0;
        while store.stats().checkpoints == 0 {
            // The same again: so the log grows.
            let data = vec![Buffer::copy_from(&[3; 512])];
            let write = Op::Write { lba: Lba(5), data, records: Vec::new(), fua: true, origin: None };
            store.execute_on(view, write).unwrap();
            rounds += 1;
            assert!(rounds < 1000, "no checkpoint was taken");
        }
        check(&mut store, view);
        drop(store);
        let mut store = open(&backend, u64::MAX);
        from_checkpoints += u64::from(store.stats().opened_from_checkpoint);
        check(&mut store, view);
    }
    assert_eq!(from_checkpoints, 8);
}

#[test]
fn a_checkpoint_while_nodes_of_a_clone_are_merged_has_every_block() {
    a_checkpoint_meanwhile_is_whole(of_a_clone);
}

#[test]
fn a_checkpoint_while_a_received_node_is_merged_has_every_block() {
    a_checkpoint_meanwhile_is_whole(received);
}
