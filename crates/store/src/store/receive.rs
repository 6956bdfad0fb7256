//! Receiving: a stream is written to a branch of its own, which nobody sees. When it is whole that becomes the snapshot, of
//! the same name and identity, and the volume goes on from it: at once, durably, or not at all.

use strongroom_block::{Buffer, Lba, SealRecord, Token, keyless_checksum};

use super::Store;
use super::engine::Engine;
use super::reception::{DIVERGED, has_blocks, may_be_replaced, receive_position, receiving_branch};
use super::request::{Addresses, Content, WriteRequest};
use crate::catalogue::Change;
use crate::layout::{Layout, item_checksum};
use crate::op::{Op, OpError, Outcome};
use crate::stream::{Chain, Decoded, Frame, StreamError, StreamInfo, hole_record};
use crate::view::{BranchId, SnapshotId, View};

/// Bytes of data that go into the log as one group at most, unless a frame has more.
const GROUP_BYTES: usize = 1 << 20;

/// What a stream asks of a store next, checked as far as that can be without the store; one at a time goes to [`ReceiveStep::submit`].
#[derive(Debug)]
pub struct ReceiveStep {
    /// The snapshot that it will be.
    id: SnapshotId,
    from: Option<SnapshotId>,
    kind: StepKind,
}

#[derive(Debug)]
enum StepKind {
    Begin { info: Box<StreamInfo>, position: u64 },
    Blocks(ReceivedBlocks),
    Hole(Op),
    End,
}

impl ReceiveStep {
    /// The snapshot that the stream builds on.
    pub fn from(&self) -> Option<SnapshotId> {
        self.from
    }

    /// What the stream says of itself, if this begins it.
    pub fn begins(&self) -> Option<&StreamInfo> {
        match &self.kind {
            StepKind::Begin { info, .. } => Some(info),
            _ => None,
        }
    }

    /// Whether the volume goes on from the snapshot once this is done.
    pub fn is_end(&self) -> bool {
        matches!(self.kind, StepKind::End)
    }
}

/// Blocks that were taken in and are not in the log.
#[derive(Debug, Default)]
struct ReceivedBlocks {
    lbas: Vec<u64>,
    items: Vec<u8>,
    pieces: Vec<Buffer>,
    bytes: usize,
}

/// A stream on its way in. Moved on by [`Receiver::receive`], or by a caller that hands its steps to a store.
#[derive(Debug, Default)]
pub struct Receiver {
    /// Bytes of frames that are not taken in.
    rest: Vec<u8>,
    chain: Chain,
    info: Option<StreamInfo>,
    done: bool,
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

    /// The next bytes of the stream, cut anywhere. [`Receiver::next_step`] says what to do about them, until it says `None`.
    pub fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// What to do next. Every block is checked against its keyless checksum here, without the store. `None`: more bytes are needed.
    /// Once the step of the stream's end is done, [`Receiver::finished`] is to be called.
    ///
    /// # Errors
    /// [`StreamError`]: what is intact in front of it was given out before.
    pub fn next_step(&mut self) -> Result<Option<ReceiveStep>, StreamError> {
        let (mut at, mut taken) = (0, ReceivedBlocks::default());
        let kind = loop {
            if self.done {
                if at < self.rest.len() {
                    return Err(StreamError::Damaged("something follows its end"));
                }
                break None;
            }
            let decoded = match Frame::decode(&self.rest[at..], self.chain) {
                Ok(Some(decoded)) => decoded,
                // What is intact is taken in, even if what follows is not.
                Ok(None) | Err(_) if !taken.lbas.is_empty() => break Some(StepKind::Blocks(taken)),
                Ok(None) => break None,
                Err(error) => return Err(error),
            };
            let Decoded { frame, position, len, chain } = decoded;
            let ends_group = match &frame {
                Frame::Blocks { data, .. } => taken.bytes + data.len() > GROUP_BYTES,
                _ => true,
            };
            if ends_group && !taken.lbas.is_empty() {
                break Some(StepKind::Blocks(taken));
            }
            let step = match self.take_frame(&mut taken, frame, position) {
                Err(_) if !taken.lbas.is_empty() => break Some(StepKind::Blocks(taken)),
                step => step?,
            };
            (at, self.chain) = (at + len, chain);
            if step.is_some() {
                break step;
            }
        };
        self.rest.drain(..at);
        let ids = self.info.as_ref().map(|info| (info.to, info.from));
        Ok(kind.zip(ids).map(|(kind, (id, from))| ReceiveStep { id, from, kind }))
    }

    /// The step of the stream's end is done.
    pub fn finished(&mut self) {
        self.done = true;
    }

    fn take_frame(
        &mut self,
        taken: &mut ReceivedBlocks,
        frame: Frame,
        position: u64,
    ) -> Result<Option<StepKind>, StreamError> {
        match (frame, &self.info) {
            (Frame::Begin(_), Some(_)) => {
                Err(StreamError::Damaged("it begins a second time; give each part to a reception of its own"))
            }
            (Frame::Begin(info), None) => {
                self.info = Some(info.clone());
                Ok(Some(StepKind::Begin { info: Box::new(info), position }))
            }
            (_, None) => Err(StreamError::NoBeginning),
            (Frame::Blocks { lba, count, items, data }, Some(info)) => {
                taken.take(info, (lba, count), &items, &data)?;
                Ok(None)
            }
            (Frame::Hole { start, count, record }, Some(_)) => Ok(Some(StepKind::Hole(match record {
                Some(record) => Op::Hole { holes: vec![hole_record(start, count, record)], origin: None },
                None => Op::Discard { lba: Lba(start), count },
            }))),
            (Frame::End, Some(_)) => Ok(Some(StepKind::End)),
        }
    }
}

impl ReceivedBlocks {
    fn take(
        &mut self,
        info: &StreamInfo,
        (lba, count): (u64, u32),
        items: &[u8],
        data: &[u8],
    ) -> Result<(), StreamError> {
        let (block_bytes, item_bytes) =
            (info.geometry.block_size.bytes() as usize, Layout::item_bytes_of(info.kind) as usize);
        if items.len() != count as usize * item_bytes || data.len() != count as usize * block_bytes {
            return Err(StreamError::Damaged("a frame of blocks of another length"));
        }
        if !info.geometry.contains(Lba(lba), u64::from(count)) {
            return Err(StreamError::Store(OpError::OutOfRange { lba: Lba(lba), count: u64::from(count) }));
        }
        for (block, item) in data.chunks_exact(block_bytes).zip(items.chunks_exact(item_bytes)) {
            if keyless_checksum(block) != item_checksum(item) {
                return Err(StreamError::Damaged("a block does not match its checksum"));
            }
            if info.kind.is_sealed() {
                let record = SealRecord::decode(item).map_err(|_| StreamError::Damaged("a block's record"))?;
                if record.flags().is_hole() {
                    return Err(StreamError::Damaged("a block whose record seals a hole"));
                }
            }
        }
        self.lbas.extend(lba..lba + u64::from(count));
        self.items.extend_from_slice(items);
        self.bytes += data.len();
        self.pieces.push(Buffer::copy_from(data));
        Ok(())
    }
}

impl Receiver {
    /// Takes in the next bytes of a stream, cut anywhere. Every block is checked against its keyless checksum. Waits for its
    /// own writes.
    ///
    /// # Errors
    /// [`StreamError`]; what was taken in before stays, to go on from [`VolumeIndex::receive_position`](crate::VolumeIndex::receive_position).
    pub fn receive(&mut self, store: &mut Store, bytes: &[u8]) -> Result<(), StreamError> {
        const TOKEN: Token = Token(u64::MAX);
        self.push(bytes);
        while let Some(step) = self.next_step()? {
            let is_end = step.is_end();
            step.submit(store, TOKEN)?;
            store.engine.wait_for(TOKEN).map_err(StreamError::of_step)?;
            if is_end {
                self.finished();
                // Report at once if something follows.
                self.next_step()?;
            }
        }
        Ok(())
    }
}

impl Receiver {
    /// Gives up what arrived of a snapshot.
    ///
    /// # Errors
    /// As a request.
    pub fn abandon(store: &mut Store, id: SnapshotId) -> Result<(), OpError> {
        let branch = BranchId(receiving_branch(&store.engine.views.map, id).ok_or(OpError::NoSuchView)?);
        store.execute(Op::CloneDelete { branch }).map(drop)
    }
}

impl ReceiveStep {
    /// Hands the step to the store, like a request: it completes, and only then comes the next one of its stream. What a completion says is
    /// to be told by [`StreamError::of_step`].
    ///
    /// # Errors
    /// [`StreamError`]: nothing was taken in, and nothing will complete.
    pub fn submit(self, store: &mut Store, token: Token) -> Result<(), StreamError> {
        let engine = &mut store.engine;
        if engine.erasure.is_some() {
            engine.medium.refusal.check_writable()?;
            return Err(StreamError::Store(OpError::Erasing));
        }
        let ReceiveStep { id, kind, .. } = self;
        let branch = match &kind {
            StepKind::Begin { info, position } => return begin_reception(engine, token, info, *position),
            _ => receiving_branch(&engine.views.map, id).ok_or(StreamError::Store(OpError::NoSuchView))?,
        };
        match kind {
            StepKind::Begin { .. } => unreachable!("answered above"),
            StepKind::Blocks(ReceivedBlocks { lbas, items, pieces, bytes }) => {
                let count = lbas.len() as u32;
                let content = Content::Blocks { addresses: Addresses::Each(lbas), pieces, items, count };
                submit_content(engine, token, branch, content, bytes)?;
            }
            // Holes come first: with a block here, all of them are. Once more, and thus newer, they would hide blocks that arrived.
            StepKind::Hole(_) if has_blocks(&engine.views.map, branch) => answer(engine, token, Outcome::Changed),
            StepKind::Hole(op) => engine.submit(token, View::Head(BranchId(branch)), op),
            StepKind::End => {
                let commit = Change::ReceiveCommit { branch };
                submit_content(engine, token, branch, Content::Change(Box::new(commit)), 0)?;
            }
        }
        Ok(())
    }

    /// Whether the store has room for the step now; else the same again, later.
    pub fn has_room(&self, store: &Store) -> bool {
        let bytes = match &self.kind {
            StepKind::Blocks(taken) => taken.bytes,
            _ => 0,
        };
        let grows = Op::SnapshotCreate { name: String::new() };
        store.engine.requests.has_room_for(bytes) && store.engine.requests.admits(&grows)
    }
}

fn begin_reception(engine: &mut Engine, token: Token, info: &StreamInfo, position: u64) -> Result<(), StreamError> {
    // What lies before its beginning must be here.
    if position > receive_position(&engine.views.map, info.to).unwrap_or(0) {
        return Err(StreamError::Ahead);
    }
    if info.kind != engine.medium.volume.info.kind {
        return Err(StreamError::Differs("it is sealed otherwise, or in another sealing domain"));
    }
    if info.geometry != engine.medium.volume.info.geometry {
        return Err(StreamError::Differs("its block size or number of blocks is another"));
    }
    let catalogue = &engine.views.map.catalogue;
    if catalogue.snapshot(info.to.0).is_some() {
        return Err(StreamError::Store(OpError::NameTaken(info.name.clone())));
    }
    if let Some(from) = info.from.filter(|from| catalogue.snapshot(from.0).is_none()) {
        return Err(StreamError::MissingBase(from));
    }
    let base = info.from.map_or(0, |from| from.0);
    // At each beginning, also when it goes on: the volume may have been used meanwhile.
    if !may_be_replaced(&engine.views.map, base) {
        return Err(StreamError::Diverged);
    }
    let begun = catalogue.branches.iter().find(|(_, branch)| branch.receiving == info.to.0);
    if let Some((&branch, begun)) = begun {
        if begun.from != base {
            return Err(StreamError::Differs("it was begun on another base"));
        }
        answer(engine, token, Outcome::CloneCreated { branch: BranchId(branch) });
        return Ok(());
    }
    let (id, created, name) = (info.to.0, info.created_seconds, info.name.clone());
    let begin = Change::ReceiveBegin { branch: 0, id, base, created, name };
    submit_content(engine, token, 0, Content::Change(Box::new(begin)), 0)
}

fn submit_content(
    engine: &mut Engine,
    token: Token,
    branch: u32,
    content: Content,
    bytes: usize,
) -> Result<(), StreamError> {
    let durable = matches!(content, Content::Change(_));
    let request = WriteRequest::new(token, branch, content, bytes);
    engine.writes.enqueue(&engine.medium, request.durable_if(durable))?;
    engine.requests.accept(bytes);
    Ok(())
}

/// Nothing is left to do for it.
fn answer(engine: &mut Engine, token: Token, outcome: Outcome) {
    engine.requests.accept(0);
    engine.requests.complete(token, 0, Ok(outcome));
}

impl StreamError {
    /// What the completion of a step says, if it failed.
    pub fn of_step(error: OpError) -> StreamError {
        match error {
            OpError::Depended(DIVERGED) => StreamError::Diverged,
            other => StreamError::Store(other),
        }
    }
}
