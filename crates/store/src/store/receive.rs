//! Receiving: a stream is written to a branch of its own, which nobody sees. When it is whole that becomes the snapshot, of
//! the same name and identity, and the volume goes on from it: at once, durably, or not at all.

use strongroom_block::{Buffer, Lba, SealRecord, Token, keyless_checksum};

use super::Store;
use super::append::{Addresses, Content};
use super::gate::Gate;
use crate::catalogue::Change;
use crate::op::{Op, OpError, Outcome};
use crate::stream::{BLOCKS_FROM, Chain, Decoded, Frame, StreamError, StreamInfo, hole_record};
use crate::view::{BranchId, SnapshotId, View};

/// Why a reception cannot begin or end; callers know it as [`StreamError::Diverged`].
const DIVERGED: &str = "the volume was written since the snapshot that the stream builds on; roll back to that first";

fn diverged(error: OpError) -> StreamError {
    match error {
        OpError::Depended(DIVERGED) => StreamError::Diverged,
        other => StreamError::Store(other),
    }
}

/// Bytes of data that go into the log as one group at most, unless a frame has more.
const GROUP_BYTES: usize = 1 << 20;

/// Blocks that were taken in and are not in the log.
#[derive(Default)]
struct Taken {
    lbas: Vec<u64>,
    items: Vec<u8>,
    pieces: Vec<Buffer>,
    bytes: usize,
}

/// A stream on its way in. Moved on by [`Store::receive`].
#[derive(Debug, Default)]
pub struct Receiver {
    /// Bytes of a frame that is not whole.
    rest: Vec<u8>,
    chain: Chain,
    info: Option<StreamInfo>,
    branch: u32,
    done: bool,
}

/// A reception that was begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceptionInfo {
    /// The snapshot that it will be.
    pub id: SnapshotId,
    /// The snapshot that it builds on.
    pub from: Option<SnapshotId>,
    /// The snapshot's name.
    pub name: String,
    /// Where the sender shall go on.
    pub position: u64,
}

impl Receiver {
    /// At the start of a stream (or of the rest of one that was interrupted).
    pub fn new() -> Receiver {
        Receiver::default()
    }

    /// The snapshot is here, durably.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// What the stream says of itself, once its first frame is here.
    pub fn info(&self) -> Option<&StreamInfo> {
        self.info.as_ref()
    }
}

impl Store {
    /// Takes in the next bytes of a stream, cut anywhere. Every block is checked against its keyless checksum. Waits for its
    /// own writes.
    ///
    /// # Errors
    /// [`StreamError`]; what was taken in before stays, to go on from [`Store::receive_position`].
    pub fn receive(&mut self, receiver: &mut Receiver, bytes: &[u8]) -> Result<(), StreamError> {
        receiver.rest.extend_from_slice(bytes);
        let mut taken = Taken::default();
        let outcome = self.take_frames(receiver, &mut taken);
        // What is intact goes in, whatever follows it.
        self.write_taken(receiver.branch, &mut taken)?;
        receiver.rest.drain(..outcome?);
        Ok(())
    }

    /// Takes in the frames that are whole; returns how many bytes they have.
    fn take_frames(&mut self, receiver: &mut Receiver, taken: &mut Taken) -> Result<usize, StreamError> {
        let mut at = 0;
        while !receiver.done
            && let Some(decoded) = Frame::decode(&receiver.rest[at..], receiver.chain)?
        {
            let Decoded { frame, position, len, chain } = decoded;
            at += len;
            self.take_frame(receiver, taken, frame, position)?;
            receiver.chain = chain;
        }
        if receiver.done && at < receiver.rest.len() {
            return Err(StreamError::Damaged("something follows its end"));
        }
        Ok(at)
    }

    /// Where the reception of a snapshot stands that was interrupted: what [`Sender::new`](crate::Sender::new) wants.
    /// `None`: it was not begun.
    pub fn receive_position(&self, id: SnapshotId) -> Option<u64> {
        self.receptions().into_iter().find(|reception| reception.id == id).map(|reception| reception.position)
    }

    /// Every reception that was begun and not ended.
    pub fn receptions(&self) -> Vec<ReceptionInfo> {
        let begun = self.map.catalogue.branches.values().filter(|branch| branch.receiving != 0);
        begun
            .map(|branch| {
                // Blocks arrive by address, and what survives a crash is the beginning of what was written.
                let end = self.map.table(branch.node).index.end();
                ReceptionInfo {
                    id: SnapshotId(branch.receiving),
                    from: Some(SnapshotId(branch.from)).filter(|from| from.0 != 0),
                    name: branch.name.clone(),
                    position: if end > 0 { BLOCKS_FROM + end } else { 0 },
                }
            })
            .collect()
    }

    /// Gives up what arrived of a snapshot.
    ///
    /// # Errors
    /// As a request.
    pub fn receive_abandon(&mut self, id: SnapshotId) -> Result<(), OpError> {
        let mut branches = self.map.catalogue.branches.iter();
        let branch = branches.find(|(_, branch)| branch.receiving == id.0).map(|(&branch, _)| branch);
        let branch = BranchId(branch.ok_or(OpError::NoSuchView)?);
        self.execute(Op::CloneDelete { branch }).map(drop)
    }

    fn take_frame(
        &mut self,
        receiver: &mut Receiver,
        taken: &mut Taken,
        frame: Frame,
        position: u64,
    ) -> Result<(), StreamError> {
        let ends_group = match &frame {
            Frame::Blocks { data, .. } => taken.bytes + data.len() > GROUP_BYTES,
            _ => true,
        };
        if ends_group {
            self.write_taken(receiver.branch, taken)?;
        }
        match frame {
            Frame::Begin(_) if receiver.info.is_some() => {
                return Err(StreamError::Damaged("it begins a second time; give each part to a reception of its own"));
            }
            Frame::Begin(info) => {
                // What lies before its beginning must be here.
                if position > self.receive_position(info.to).unwrap_or(0) {
                    return Err(StreamError::Ahead);
                }
                receiver.branch = self.begin_reception(&info)?;
                receiver.info = Some(info);
            }
            _ if receiver.info.is_none() => return Err(StreamError::NoBeginning),
            Frame::Blocks { lba, count, items, data } => self.take_blocks(taken, lba, count, &items, &data)?,
            // Holes come first: with a block here, all of them are. Once more, and thus newer, they would hide blocks that arrived.
            Frame::Hole { .. } if self.has_blocks(receiver.branch) => {}
            Frame::Hole { start, count, record } => {
                let hole = match record {
                    Some(record) => Op::Hole { holes: vec![hole_record(start, count, record)], origin: None },
                    None => Op::Discard { lba: Lba(start), count },
                };
                self.execute_on(View::Head(BranchId(receiver.branch)), hole)?;
            }
            Frame::End => {
                self.execute_change(Change::ReceiveCommit { branch: receiver.branch }).map_err(diverged)?;
                receiver.done = true;
            }
        }
        Ok(())
    }

    /// Whether a block of a reception is here. What is here after a crash is the beginning of what was written.
    fn has_blocks(&self, branch: u32) -> bool {
        let node = self.map.catalogue.head(branch);
        node.is_some_and(|node| self.map.table(node).index.len() > 0)
    }

    fn begin_reception(&mut self, info: &StreamInfo) -> Result<u32, StreamError> {
        if info.kind != self.info.kind {
            return Err(StreamError::Differs("it is sealed otherwise, or in another sealing domain"));
        }
        if info.geometry != self.info.geometry {
            return Err(StreamError::Differs("its block size or number of blocks is another"));
        }
        let catalogue = &self.map.catalogue;
        if catalogue.snapshot(info.to.0).is_some() {
            return Err(StreamError::Store(OpError::NameTaken(info.name.clone())));
        }
        if let Some(from) = info.from.filter(|from| catalogue.snapshot(from.0).is_none()) {
            return Err(StreamError::MissingBase(from));
        }
        let base = info.from.map_or(0, |from| from.0);
        // At each beginning, also when it goes on: the volume may have been used meanwhile.
        if !self.may_be_replaced(base) {
            return Err(StreamError::Diverged);
        }
        let begun = catalogue.branches.iter().find(|(_, branch)| branch.receiving == info.to.0);
        if let Some((&branch, begun)) = begun {
            return if begun.from == base {
                Ok(branch)
            } else {
                Err(StreamError::Differs("it was begun on another base"))
            };
        }
        let (id, created, name) = (info.to.0, info.created_seconds, info.name.clone());
        let begin = Change::ReceiveBegin { branch: 0, id, base, created, name };
        match self.execute_change(begin).map_err(diverged)? {
            Outcome::CloneCreated { branch } => Ok(branch.0),
            other => unreachable!("a reception begins with a branch: {other:?}"),
        }
    }

    /// Whether the volume has nothing that a reception onto snapshot `base` (0: none) would throw away.
    fn may_be_replaced(&self, base: u64) -> bool {
        let catalogue = &self.map.catalogue;
        let head = catalogue.head(0).expect("the volume itself is always there");
        match catalogue.snapshot(base) {
            Some(base) => {
                let table = self.map.table(head);
                catalogue.parent(head) == Some(base.node) && table.index.len() == 0 && table.holes.len() == 0
            }
            None => {
                // Also what deleted snapshots left and is not merged yet. The hole that a plain volume is made with, or the
                // one that formats a sealed volume, is nothing to lose.
                let path = self.map.path(head);
                let holes: usize = path.iter().map(|table| table.holes.len()).sum();
                catalogue.snapshots.is_empty() && holes <= 1 && path.iter().all(|table| table.index.len() == 0)
            }
        }
    }

    /// Why a change at the front of the queue would throw away what was written to the volume.
    pub(super) fn would_lose(&self, change: &Change) -> Option<OpError> {
        let base = match change {
            Change::ReceiveBegin { base, .. } => *base,
            Change::ReceiveCommit { branch } => self.map.catalogue.branches.get(branch)?.from,
            _ => return None,
        };
        (!self.may_be_replaced(base)).then_some(OpError::Depended(DIVERGED))
    }

    fn take_blocks(
        &mut self,
        taken: &mut Taken,
        lba: u64,
        count: u32,
        items: &[u8],
        data: &[u8],
    ) -> Result<(), StreamError> {
        let (block_bytes, item_bytes) = (self.layout.block_bytes as usize, self.layout.item_bytes as usize);
        if items.len() != count as usize * item_bytes || data.len() != count as usize * block_bytes {
            return Err(StreamError::Damaged("a frame of blocks of another length"));
        }
        if !self.info.geometry.contains(Lba(lba), u64::from(count)) {
            return Err(StreamError::Store(OpError::OutOfRange { lba: Lba(lba), count: u64::from(count) }));
        }
        for (block, item) in data.chunks_exact(block_bytes).zip(items.chunks_exact(item_bytes)) {
            if keyless_checksum(block) != super::item_checksum(item) {
                return Err(StreamError::Damaged("a block does not match its checksum"));
            }
            if self.info.kind.is_sealed() {
                let record = SealRecord::decode(item).map_err(|_| StreamError::Damaged("a block's record"))?;
                if record.flags().is_hole() {
                    return Err(StreamError::Damaged("a block whose record seals a hole"));
                }
            }
        }
        taken.lbas.extend(lba..lba + u64::from(count));
        taken.items.extend_from_slice(items);
        taken.bytes += data.len();
        taken.pieces.push(Buffer::copy_from(data));
        Ok(())
    }

    /// Writes what was taken in, as one group: whatever fails, what is here is the beginning of the stream.
    fn write_taken(&mut self, branch: u32, taken: &mut Taken) -> Result<(), StreamError> {
        let Taken { lbas, items, pieces, .. } = std::mem::take(taken);
        if lbas.is_empty() {
            return Ok(());
        }
        let count = lbas.len() as u32;
        self.execute_content(branch, Content::Blocks { addresses: Addresses::Each(lbas), pieces, items, count })?;
        Ok(())
    }

    /// Makes a change of the catalogue and waits for it.
    fn execute_change(&mut self, change: Change) -> Result<Outcome, OpError> {
        self.execute_content(change.branch(), Content::Change(Box::new(change)))
    }

    fn execute_content(&mut self, branch: u32, content: Content) -> Result<Outcome, OpError> {
        const TOKEN: Token = Token(u64::MAX);
        if self.erasing.is_some() {
            return Err(if self.refused.is_some() { self.refusal() } else { OpError::Erasing });
        }
        let durable = matches!(content, Content::Change(_));
        self.ops_in_flight += 1;
        if let Err(error) = self.enqueue(TOKEN, branch, content, Gate::Open, durable, 0) {
            self.ops_in_flight -= 1;
            return Err(error);
        }
        self.wait_for(TOKEN)
    }
}
