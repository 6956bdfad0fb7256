//! The stream that carries a snapshot from one store to another: a chain of frames. `docs/send-format.md`.
//!
//! Blocks travel as they lie at rest, with their records; no key is needed on either side. Absent: reading and writing
//! the blocks (`store/send.rs`, `store/receive.rs`).

use crc_fast::{CrcAlgorithm, Digest};
use strongroom_block::{
    BlockSize, Custody, Geometry, HoleRecord, Lba, Mode, SealRecord, SealingDomain, Suite, VolumeId,
};

use crate::layout::{be_u16, be_u32, be_u64};
use crate::op::{Op, OpError};
use crate::options::UnitKind;
use crate::view::SnapshotId;

const MAGIC: [u8; 4] = *b"SRsd";
/// The version that this build writes.
pub(crate) const STREAM_VERSION: u32 = 2;
/// The oldest that it reads. There frames are not chained, and nothing is said of how new blocks are sealed.
const STREAM_VERSION_OLDEST: u32 = 1;
/// Bytes in front of a frame's payload.
pub(crate) const FRAME_HEADER: usize = 32;
/// Upper bound on a payload.
pub(crate) const PAYLOAD_MAX: usize = 2 << 20;
/// Positions from here on are blocks; smaller ones, sequences of holes.
pub(crate) const BLOCKS_FROM: u64 = 1 << 62;

/// Why a stream could not be made or taken in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The store refused a read or write.
    #[error("{0}")]
    Store(#[from] OpError),
    /// The stream's bytes are not what was sent.
    #[error("the stream is damaged: {0}; send again, from the position that the receiving store tells")]
    Damaged(&'static str),
    /// The stream was written by another version.
    #[error(
        "the stream has format version {found}, this build knows versions up to {STREAM_VERSION}; use the newer Strongroom on both sides"
    )]
    Version {
        /// The version found.
        found: u32,
    },
    /// The stream is of another kind of volume.
    #[error("the stream does not fit this volume: {0}; receive it into a volume made for it")]
    Differs(&'static str),
    /// What the stream builds on is not here.
    #[error("the snapshot {0} that the stream builds on is not here; send that first, or send in full")]
    MissingBase(SnapshotId),
    /// The snapshot that a stream shall build on is not part of the other one's past.
    #[error("the older snapshot is not in the past of the newer one; send in full, or from another snapshot")]
    Unrelated,
    /// The receiving volume was written to.
    #[error("the volume was written since the snapshot that the stream builds on; roll back to that first")]
    Diverged,
    /// It goes on from a place that was not reached here.
    #[error(
        "the stream is the rest of one whose first part is not here; send in full, or from the position \
         that the receiving store tells"
    )]
    Ahead,
    /// It was not the beginning.
    #[error("the stream does not begin with its header; send again from the start or from a position")]
    NoBeginning,
}

/// How new blocks of a volume are sealed: what its store does not know, and a volume made for a stream needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSealing {
    /// The cipher.
    pub suite: Suite,
    /// What sealing does.
    pub mode: Mode,
    /// The key epoch, from 1 on.
    pub epoch: u32,
}

/// What a stream says of itself first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Of the stream's format.
    pub version: u32,
    /// How new blocks are sealed; `None` if the volume is plain, or the sender did not say.
    pub sealing: Option<StreamSealing>,
    /// The volume's kind, with the sealing domain: the receiving volume has the same, so it opens with the same keys.
    pub kind: UnitKind,
    /// Its shape.
    pub geometry: Geometry,
    /// The sending volume's name among machines.
    pub volume_id: VolumeId,
    /// The snapshot.
    pub to: SnapshotId,
    /// The snapshot that must be there already.
    pub from: Option<SnapshotId>,
    /// When the snapshot was taken, in seconds since 1970.
    pub created_seconds: u64,
    /// Its name.
    pub name: String,
}

impl StreamInfo {
    /// From the first bytes of a stream; `None` if more are needed.
    ///
    /// # Errors
    /// [`StreamError::Damaged`], [`StreamError::Version`], [`StreamError::NoBeginning`].
    pub fn peek(bytes: &[u8]) -> Result<Option<StreamInfo>, StreamError> {
        match Frame::decode(bytes, Chain::START)? {
            Some(Decoded { frame: Frame::Begin(info), .. }) => Ok(Some(info)),
            Some(_) => Err(StreamError::NoBeginning),
            None => Ok(None),
        }
    }
}

/// What ties a frame to all frames before it: the checksum of the one before, over which its own runs, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain(Option<u64>);

impl Chain {
    /// In front of the first frame.
    pub(crate) const START: Chain = Chain(None);

    fn behind(frame: &Frame, before: Chain, sum: u64) -> Chain {
        match frame {
            Frame::Begin(info) if info.version == STREAM_VERSION_OLDEST => Chain::START,
            Frame::Begin(_) => Chain(Some(sum)),
            _ => Chain(before.0.map(|_| sum)),
        }
    }
}

/// A frame that was found at the start of some bytes.
pub(crate) struct Decoded {
    pub(crate) frame: Frame,
    /// Where a sender goes on after it.
    pub(crate) position: u64,
    /// Its length, in bytes.
    pub(crate) len: usize,
    /// What the next frame hangs on.
    pub(crate) chain: Chain,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Begin(StreamInfo),
    /// Items (seal records or checksums) of consecutive blocks, then their data.
    Blocks {
        lba: u64,
        count: u32,
        items: Vec<u8>,
        data: Vec<u8>,
    },
    Hole {
        start: u64,
        count: u64,
        record: Option<SealRecord>,
    },
    /// All of it was sent.
    End,
}

impl Frame {
    /// Its bytes. `position`: where to go on after it. `chain`: what it hangs on, and afterwards what the next one does.
    pub(crate) fn encode(&self, position: u64, chain: &mut Chain) -> Vec<u8> {
        let (kind, payload) = match self {
            Frame::Begin(info) => (1, encode_info(info)),
            Frame::Blocks { lba, count, items, data } => {
                let mut out = lba.to_be_bytes().to_vec();
                out.extend_from_slice(&count.to_be_bytes());
                out.extend_from_slice(&(items.len() as u32).to_be_bytes());
                out.extend_from_slice(items);
                out.extend_from_slice(data);
                (2, out)
            }
            Frame::Hole { start, count, record } => {
                let mut out = [start.to_be_bytes(), count.to_be_bytes()].concat();
                out.extend_from_slice(record.as_ref().map_or(&[][..], SealRecord::as_bytes));
                (3, out)
            }
            Frame::End => (4, Vec::new()),
        };
        let mut out = vec![0; FRAME_HEADER];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = kind;
        out[8..12].copy_from_slice(&(payload.len() as u32).to_be_bytes());
        out[16..24].copy_from_slice(&position.to_be_bytes());
        let sum = checksum(*chain, &out, &payload);
        *chain = Chain::behind(self, *chain, sum);
        out[24..32].copy_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(&payload);
        out
    }

    /// The first frame of some bytes; `None` if it is not all there.
    ///
    /// # Errors
    /// If it can never become a frame that hangs on this chain.
    pub(crate) fn decode(bytes: &[u8], chain: Chain) -> Result<Option<Decoded>, StreamError> {
        let Some(header) = bytes.get(..FRAME_HEADER) else { return Ok(None) };
        if header[..4] != MAGIC || header[5..8] != [0; 3] || header[12..16] != [0; 4] {
            return Err(StreamError::Damaged("no frame begins here"));
        }
        let len = be_u32(header, 8) as usize;
        if len > PAYLOAD_MAX {
            return Err(StreamError::Damaged("a frame is longer than may be"));
        }
        let Some(payload) = bytes.get(FRAME_HEADER..FRAME_HEADER + len) else { return Ok(None) };
        let sum = checksum(chain, header, payload);
        if be_u64(header, 24) != sum {
            let what = "a frame does not match its checksum, or one before it is missing or out of its order";
            return Err(StreamError::Damaged(what));
        }
        let frame = decode_payload(header[4], payload)?;
        let chain = Chain::behind(&frame, chain, sum);
        Ok(Some(Decoded { frame, position: be_u64(header, 16), len: FRAME_HEADER + len, chain }))
    }
}

fn checksum(chain: Chain, header: &[u8], payload: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    if let Chain(Some(before)) = chain {
        digest.update(&before.to_be_bytes());
    }
    digest.update(&header[..24]);
    digest.update(payload);
    digest.finalize()
}

fn decode_payload(kind: u8, payload: &[u8]) -> Result<Frame, StreamError> {
    let impossible = StreamError::Damaged("a frame says what cannot be");
    match kind {
        1 => decode_info(payload).map(Frame::Begin),
        2 if payload.len() >= 16 => {
            let (lba, count, items) = (be_u64(payload, 0), be_u32(payload, 8), be_u32(payload, 12) as usize);
            let (items, data) = payload[16..].split_at_checked(items).ok_or(impossible.clone())?;
            lba.checked_add(u64::from(count)).filter(|_| count > 0).ok_or(impossible)?;
            Ok(Frame::Blocks { lba, count, items: items.to_vec(), data: data.to_vec() })
        }
        3 if payload.len() >= 16 => {
            let (start, count) = (be_u64(payload, 0), be_u64(payload, 8));
            start.checked_add(count).filter(|_| count > 0).ok_or(impossible.clone())?;
            let record = match &payload[16..] {
                [] => None,
                record => Some(SealRecord::decode(record).map_err(|_| impossible)?),
            };
            Ok(Frame::Hole { start, count, record })
        }
        4 if payload.is_empty() => Ok(Frame::End),
        _ => Err(impossible),
    }
}

fn encode_info(info: &StreamInfo) -> Vec<u8> {
    let mut out = info.version.to_be_bytes().to_vec();
    let (sealed, custody, domain) = match info.kind {
        UnitKind::Plain => (0, 0, SealingDomain([0; 16])),
        UnitKind::Sealed { domain, custody } => (1, custody as u8, domain),
    };
    let (suite, mode) = info.sealing.map_or((0, 0), |sealing| (sealing.suite as u8, sealing.mode as u8));
    out.extend_from_slice(&[sealed, custody, suite, mode]);
    out.extend_from_slice(&info.geometry.block_size.bytes().to_be_bytes());
    out.extend_from_slice(&info.sealing.map_or(0, |sealing| sealing.epoch).to_be_bytes());
    out.extend_from_slice(&info.geometry.blocks.to_be_bytes());
    out.extend_from_slice(&info.volume_id.0);
    out.extend_from_slice(&domain.0);
    for number in [info.to.0, info.from.map_or(0, |from| from.0), info.created_seconds] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(&(info.name.len() as u16).to_be_bytes());
    out.extend_from_slice(info.name.as_bytes());
    out
}

fn decode_info(bytes: &[u8]) -> Result<StreamInfo, StreamError> {
    let impossible = || StreamError::Damaged("its header says what cannot be");
    if bytes.len() < 4 {
        return Err(impossible());
    }
    let version = be_u32(bytes, 0);
    if !(STREAM_VERSION_OLDEST..=STREAM_VERSION).contains(&version) {
        return Err(StreamError::Version { found: version });
    }
    let name_len = bytes.get(80..82).map(|_| usize::from(be_u16(bytes, 80))).ok_or_else(impossible)?;
    let name = bytes.get(82..).filter(|name| name.len() == name_len && name_len <= Op::NAME_BYTES_MAX);
    let name = name.and_then(|name| std::str::from_utf8(name).ok()).ok_or_else(impossible)?;
    let array = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).expect("16 bytes");
    let kind = match bytes[4] {
        0 => UnitKind::Plain,
        1 => UnitKind::Sealed {
            domain: SealingDomain(array(40)),
            custody: Custody::from_byte(bytes[5]).map_err(|_| impossible())?,
        },
        _ => return Err(impossible()),
    };
    let sealing = match (bytes[6], bytes[7], be_u32(bytes, 12)) {
        (0, 0, 0) => None,
        // All that version 1 has there, and plain volumes, is zeros.
        _ if version == STREAM_VERSION_OLDEST || !kind.is_sealed() => return Err(impossible()),
        (suite, mode, epoch) => Some(StreamSealing {
            suite: Suite::from_byte(suite).map_err(|_| impossible())?,
            mode: Mode::from_byte(mode).map_err(|_| impossible())?,
            epoch: Some(epoch).filter(|&epoch| epoch > 0).ok_or_else(impossible)?,
        }),
    };
    let block_size = BlockSize::new(u64::from(be_u32(bytes, 8))).map_err(|_| impossible())?;
    let info = StreamInfo {
        version,
        sealing,
        kind,
        geometry: Geometry { block_size, blocks: be_u64(bytes, 16) },
        volume_id: VolumeId(array(24)),
        to: SnapshotId(be_u64(bytes, 56)),
        from: Some(SnapshotId(be_u64(bytes, 64))).filter(|from| from.0 != 0),
        created_seconds: be_u64(bytes, 72),
        name: name.to_owned(),
    };
    (info.to.0 != 0 && encode_info(&info) == bytes).then_some(info).ok_or_else(impossible)
}

/// A hole as a request takes it.
pub(crate) fn hole_record(start: u64, count: u64, record: SealRecord) -> HoleRecord {
    HoleRecord { start: Lba(start), count, record }
}

/// For fuzzing: decodes frames from any bytes, with the checksum that they have and with the right one, alone and in a chain.
#[doc(hidden)]
pub fn fuzz_stream(bytes: &[u8]) {
    let _ = StreamInfo::peek(bytes);
    let mut forged = bytes.to_vec();
    for chain in [Chain::START, Chain(Some(7))] {
        if forged.len() < FRAME_HEADER {
            return;
        }
        let len = (forged.len() - FRAME_HEADER).min(PAYLOAD_MAX);
        forged[..4].copy_from_slice(&MAGIC);
        forged[5..16].fill(0);
        forged[8..12].copy_from_slice(&(len as u32).to_be_bytes());
        let sum = checksum(chain, &forged, &forged[FRAME_HEADER..FRAME_HEADER + len]);
        forged[24..32].copy_from_slice(&sum.to_be_bytes());
        if let Ok(Some(decoded)) = Frame::decode(&forged, chain) {
            let Decoded { frame, position, len, chain: behind } = decoded;
            let mut again = chain;
            assert_eq!(frame.encode(position, &mut again), forged[..len], "what is accepted says itself");
            assert_eq!(again, behind);
        }
    }
}
