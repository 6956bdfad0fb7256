//! Sending: what a snapshot has, or what it has that an older one has not, as a stream. Holes first, in an order in which a newer one
//! comes behind those that it hides; then blocks by address. After an interruption it goes on at a block, or from the start.

use strongroom_block::{Lba, SealRecord};

use super::Store;
use super::volume_index::VolumeIndex;
use crate::catalogue::NodeId;
use crate::holes::HolesAt;
use crate::index::low_bits;
use crate::map::At;
use crate::op::{Extent, Op, OpError, Outcome};
use crate::stream::{BLOCKS_FROM, Chain, Frame, STREAM_VERSION, StreamError, StreamInfo, StreamSealing};
use crate::view::{SnapshotId, View};

/// Bytes of data that are read at once.
const SLICE_BYTES: u64 = 256 << 10;
/// Holes that one call sends, at most.
const HOLES_AT_ONCE: usize = 4096;
/// Fragments of holes that one call looks at.
const HOLES_LOOKED_AT_MAX: usize = 1 << 14;
/// Chunks of 64 blocks that one call looks at when it finds nothing to send, in whichever nodes.
const CHUNKS_LOOKED_AT_MAX: usize = 1 << 14;

/// A stream on its way out. Made by [`Sender::new`], moved on by [`Sender::send`].
#[derive(Clone, Debug)]
pub struct Sender {
    from: Option<SnapshotId>,
    to: SnapshotId,
    sealing: Option<StreamSealing>,
    position: u64,
    /// The next holes: of which node, and where in it.
    holes: (NodeId, HolesAt),
    chain: Chain,
    begun: bool,
    done: bool,
}

impl Sender {
    /// Of the snapshot `to`; if `from` is given, only what it does not have. `position`: 0, or where an interrupted
    /// reception says that it stands.
    pub fn new(from: Option<SnapshotId>, to: SnapshotId, position: u64) -> Sender {
        Sender {
            from,
            to,
            sealing: None,
            position,
            holes: (0, HolesAt::START),
            chain: Chain::START,
            begun: false,
            done: false,
        }
    }

    /// The stream tells how new blocks of the volume are sealed, so that one made for it seals them likewise.
    #[must_use]
    pub fn sealed_as(mut self, sealing: Option<StreamSealing>) -> Sender {
        self.sealing = sealing;
        self
    }

    /// How far it is; opaque, growing.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How many blocks of the volume it has gone through, for people.
    pub fn blocks_done(&self) -> u64 {
        self.position.saturating_sub(BLOCKS_FROM)
    }
}

/// What comes next in a stream; see [`Sender::next_step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendStep {
    /// These bytes, at most about 2 MiB; none where a slice of the volume has nothing to send.
    Bytes(Vec<u8>),
    /// Blocks that must be read first, with [`Op::ReadRuns`]: [`Sender::blocks_read`] makes the bytes of what was read.
    Read {
        /// What to ask.
        view: View,
        /// See there.
        runs: Vec<(Lba, u32)>,
    },
    /// All was given out.
    End,
}

impl Sender {
    /// The next bytes of a stream, at most about 2 MiB; `None` when all was given out. Waits for its own reads. Keyless
    /// checksums are checked on the way.
    ///
    /// # Errors
    /// [`StreamError::Store`], [`StreamError::Unrelated`].
    pub fn send(&mut self, store: &mut Store) -> Result<Option<Vec<u8>>, StreamError> {
        match self.next_step(&store.index())? {
            SendStep::Bytes(bytes) => Ok(Some(bytes)),
            SendStep::End => Ok(None),
            SendStep::Read { view, runs } => {
                let outcome = store.execute_on(view, Op::ReadRuns { runs })?;
                Ok(Some(self.blocks_read(&store.index(), &outcome)))
            }
        }
    }

    /// The same without waiting, for a store that others use: after [`SendStep::Read`] the caller reads, and hands what came of
    /// it to [`Sender::blocks_read`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn next_step(&mut self, index: &VolumeIndex<'_>) -> Result<SendStep, StreamError> {
        if self.done {
            return Ok(SendStep::End);
        }
        let nodes = self.nodes(index)?;
        if !std::mem::replace(&mut self.begun, true) {
            let snapshot = index.map.catalogue.snapshot(self.to.0).ok_or(OpError::NoSuchView)?;
            let info = StreamInfo {
                version: STREAM_VERSION,
                sealing: self.sealing.filter(|_| index.volume.is_sealed()),
                kind: index.volume.info.kind,
                geometry: index.volume.info.geometry,
                volume_id: index.volume.info.volume_id,
                to: self.to,
                from: self.from,
                created_seconds: snapshot.created,
                name: snapshot.name.clone(),
            };
            return Ok(SendStep::Bytes(Frame::Begin(info).encode(self.position, &mut self.chain)));
        }
        if self.position < BLOCKS_FROM {
            if let Some(bytes) = self.next_holes(index, &nodes) {
                return Ok(SendStep::Bytes(bytes));
            }
            self.position = BLOCKS_FROM;
        }
        match next_blocks(index, &nodes, self.position - BLOCKS_FROM) {
            Next::Blocks(runs) => Ok(SendStep::Read { view: View::Snapshot(self.to), runs }),
            Next::LookOn { lba } => {
                self.position = BLOCKS_FROM + lba;
                Ok(SendStep::Bytes(Vec::new()))
            }
            Next::End => {
                self.done = true;
                Ok(SendStep::Bytes(Frame::End.encode(u64::MAX, &mut self.chain)))
            }
        }
    }

    /// The nodes that the newer snapshot has and the older one has not, nearest first.
    fn nodes(&self, index: &VolumeIndex<'_>) -> Result<Vec<NodeId>, StreamError> {
        let catalogue = &index.map.catalogue;
        let node = catalogue.node(View::Snapshot(self.to)).ok_or(OpError::NoSuchView)?;
        let Some(from) = self.from else { return Ok(catalogue.path(node).collect()) };
        let base = catalogue.node(View::Snapshot(from)).ok_or(OpError::NoSuchView)?;
        if !catalogue.path(node).any(|node| node == base) {
            return Err(StreamError::Unrelated);
        }
        Ok(catalogue.path(node).take_while(|&node| node != base).collect())
    }

    /// The next holes: those of older nodes first, so that a newer one wins; of a sealed volume those of one node by sequence, for the same
    /// reason. `None`: there are no more. Nothing to send where enough was looked at.
    fn next_holes(&mut self, index: &VolumeIndex<'_>, nodes: &[NodeId]) -> Option<Vec<u8>> {
        let (mut out, mut fuel, mut left) = (Vec::new(), HOLES_LOOKED_AT_MAX, HOLES_AT_ONCE);
        // Parents have smaller numbers. One that is gone was merged into another, which comes later.
        while let Some(&node) = nodes.iter().filter(|&&node| node >= self.holes.0).min() {
            if node > self.holes.0 {
                self.holes = (node, HolesAt::START);
            }
            let (position, chain) = (&mut self.position, &mut self.chain);
            let next = index.map.table(node).holes.visit(self.holes.1, &mut fuel, |hole| {
                if left == 0 {
                    return false;
                }
                left -= 1;
                *position = hole.sequence.max(*position);
                let frame = Frame::Hole { start: hole.start, count: hole.count, record: hole.record };
                out.extend_from_slice(&frame.encode(*position, chain));
                true
            });
            match next {
                Some(next) => {
                    self.holes.1 = next;
                    return Some(out);
                }
                None => self.holes = (node + 1, HolesAt::START),
            }
        }
        (!out.is_empty()).then_some(out)
    }

    /// The bytes of blocks that were read as [`SendStep::Read`] says. The sender is beyond them.
    ///
    /// # Panics
    /// If they come of another request than a read.
    pub fn blocks_read(&mut self, index: &VolumeIndex<'_>, outcome: &Outcome) -> Vec<u8> {
        let Outcome::Read(extents) = outcome else { panic!("what was read is asked for") };
        let mut out = Vec::new();
        let mut run: Option<Run> = None;
        for extent in extents {
            let Extent::Blocks { lba, data, records, .. } = extent else { continue };
            // Wherever they lie in the log.
            if let Some(before) = run.take_if(|run| run.end() != lba.0) {
                out.extend_from_slice(&before.encode(self));
            }
            let run = run.get_or_insert_with(|| Run { lba: lba.0, count: 0, items: Vec::new(), data: Vec::new() });
            let blocks = data.chunks_exact(index.volume.block_bytes());
            run.count += blocks.len() as u32;
            match index.volume.is_sealed() {
                true => run.items.extend(records.iter().flat_map(SealRecord::as_bytes)),
                false => {
                    run.items.extend(blocks.flat_map(|block| strongroom_block::keyless_checksum(block).to_be_bytes()));
                }
            }
            run.data.extend_from_slice(data);
        }
        if let Some(last) = run {
            out.extend_from_slice(&last.encode(self));
        }
        out
    }
}

/// The next blocks that lie in these nodes: as many as are read at once.
fn next_blocks(index: &VolumeIndex<'_>, nodes: &[NodeId], from: u64) -> Next {
    let tables: Vec<_> = nodes.iter().map(|&node| index.map.table(node)).collect();
    let is_block = |lba| {
        let at = tables.iter().map(|table| table.at(lba)).find(|at| *at != At::Nothing);
        matches!(at, Some(At::Block(_)))
    };
    // Of each node the next block that it has: searched again only when it was passed, because that may be far away.
    let mut next: Vec<_> = tables.iter().map(|table| table.index.next_mapped(from)).collect();
    let mut left = (SLICE_BYTES / u64::from(index.volume.layout.block_bytes)).max(1);
    let (mut runs, mut fuel) = (Vec::new(), CHUNKS_LOOKED_AT_MAX);
    while let Some(first) = next.iter().copied().flatten().min() {
        if left == 0 || runs.len() == Op::RUNS_MAX || fuel == 0 {
            return if runs.is_empty() { Next::LookOn { lba: first } } else { Next::Blocks(runs) };
        }
        let base = first - first % 64;
        let (mut open, mut seen) = (!low_bits(first - base), 0);
        for table in &tables {
            seen |= open & table.index.chunk_at(base);
            open &= !table.chunk_at(base);
        }
        // If there is none, holes lie on all of it.
        let mut beyond = base + 64;
        if seen != 0 {
            let lba = base + u64::from(seen.trailing_zeros());
            let count = (lba..lba + left).take_while(|&lba| is_block(lba)).count() as u64;
            runs.push((Lba(lba), count as u32));
            left -= count;
            beyond = lba + count;
        }
        fuel = fuel.saturating_sub(tables.len());
        for (next, table) in next.iter_mut().zip(&tables).filter(|(next, _)| next.is_some_and(|next| next < beyond)) {
            *next = table.index.next_mapped(beyond);
        }
    }
    if runs.is_empty() { Next::End } else { Next::Blocks(runs) }
}

/// Blocks side by side, for one frame.
struct Run {
    lba: u64,
    count: u32,
    items: Vec<u8>,
    data: Vec<u8>,
}

impl Run {
    /// The block behind it.
    fn end(&self) -> u64 {
        self.lba + u64::from(self.count)
    }

    /// The frame's bytes. The sender is beyond them.
    fn encode(self, sender: &mut Sender) -> Vec<u8> {
        sender.position = BLOCKS_FROM + self.end();
        let Run { lba, count, items, data } = self;
        Frame::Blocks { lba, count, items, data }.encode(sender.position, &mut sender.chain)
    }
}

enum Next {
    Blocks(Vec<(Lba, u32)>),
    LookOn { lba: u64 },
    End,
}
