//! What a read has to fetch: a range of a view, cut into holes and runs of blocks that are contiguous in the log. From the index alone.

use strongroom_block::{Buffer, HoleRecord, Lba, Token};

use super::volume::Volume;
use crate::catalogue::NodeId;
use crate::index::Version;
use crate::map::{At, BlockMap};
use crate::op::OpError;

/// Upper bound on one read from the medium, in bytes.
const READ_BYTES_MAX: usize = 4 << 20;

/// Who asked for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// With the bytes that it counts against the limit of requests.
    Caller {
        token: Token,
        bytes: usize,
    },
    /// The condition of the first queued write.
    Gate(u64),
    Scrub,
}

/// What a read has to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Records,
    Data,
    /// Data that is read from the medium, even if it is cached.
    DataOfMedium,
}

/// A part of a read.
pub(super) enum Part {
    Blocks {
        lba: u64,
        versions: Vec<Version>,
        segment: u32,
        /// `Ok(None)` until it arrives, or always if only records are wanted.
        data: Result<Option<Buffer>, String>,
        /// The data is from the cache, which has only what matched its checksum. (What the medium lends is not, and is verified.)
        cached: bool,
    },
    Hole {
        lba: u64,
        count: u64,
        sequence: u64,
        /// As it was when the read began. In a box: a part of blocks that is moved is copied in the size of the largest kind, with what the
        /// stack still has of another part's record in it, and a record may have a block key.
        record: Option<Box<HoleRecord>>,
    },
}

impl Part {
    /// One version of a block.
    pub(super) fn version(lba: u64, version: Version, volume: &Volume) -> Part {
        let segment = version.segment(&volume.layout);
        Part::Blocks { lba, versions: vec![version], segment, data: Ok(None), cached: false }
    }

    fn hole(map: &BlockMap, lba: u64, sequence: u64) -> Part {
        Part::Hole { lba, count: 1, sequence, record: hole_record(map, sequence).map(Box::new) }
    }
}

fn hole_record(map: &BlockMap, sequence: u64) -> Option<HoleRecord> {
    let hole = map.sealed_hole(sequence)?;
    let record = hole.record.clone()?;
    Some(HoleRecord { start: Lba(hole.start), count: hole.count, record })
}

/// The newest versions of some ranges of a view.
///
/// # Errors
/// [`OpError::NotFormatted`] for a block of a sealed volume that has neither data nor a hole.
pub(super) fn newest(
    map: &BlockMap,
    volume: &Volume,
    node: NodeId,
    runs: &[(Lba, u32)],
    wanted: Wanted,
) -> Result<Vec<Part>, OpError> {
    let run_bytes_max = if wanted == Wanted::Records { usize::MAX } else { READ_BYTES_MAX };
    let mut cutter = Cutter {
        map,
        volume,
        run_blocks_max: (run_bytes_max / volume.block_bytes()).max(1),
        parts: Vec::new(),
        // Ranges apart are parts apart, even where one was written behind the other.
        range_begins: 0,
    };
    for &(lba, count) in runs {
        cutter.range_begins = cutter.parts.len();
        cutter.cut(node, lba.0, u64::from(count))?;
    }
    Ok(cutter.parts)
}

/// The newest version of a block that is older than `below`.
///
/// # Errors
/// [`OpError::NoVersion`].
pub(super) fn older(map: &BlockMap, volume: &Volume, node: NodeId, lba: u64, below: u64) -> Result<Vec<Part>, OpError> {
    let by_sequence = |version: Version| (version.sequence(), version);
    let (mut block, mut hole) = (None, None);
    for table in map.path(node) {
        let mapped = table.index.find(lba);
        block = block.max(mapped.filter(|version| version.sequence() < below).map(by_sequence));
        // A plain unit keeps no versions, so a hole beneath a block is not one.
        let beneath = table.holes.covering(lba).filter(|_| volume.is_sealed() || mapped.is_none());
        hole = hole.max(beneath.map(|(.., sequence)| sequence).filter(|&sequence| sequence < below));
    }
    let sees = |branch, sequence| map.sees(node, branch, sequence);
    let block = block.max(map.versions.newest_below(lba, below, sees).map(by_sequence));
    match (block, hole) {
        (Some((sequence, block)), hole) if hole.is_none_or(|hole| hole < sequence) => {
            Ok(vec![Part::version(lba, block, volume)])
        }
        (_, Some(sequence)) => Ok(vec![Part::hole(map, lba, sequence)]),
        _ => Err(OpError::NoVersion { lba: Lba(lba) }),
    }
}

/// Cuts ranges into parts.
struct Cutter<'a> {
    map: &'a BlockMap,
    volume: &'a Volume,
    run_blocks_max: usize,
    parts: Vec<Part>,
    /// The first part of the range that is being cut.
    range_begins: usize,
}

impl Cutter<'_> {
    fn cut(&mut self, node: NodeId, lba: u64, count: u64) -> Result<(), OpError> {
        let only = self.map.only_table(node);
        let found = if only.is_some() { Vec::new() } else { self.map.look_up(node, lba, count) };
        // A piece of a hole counts until its end where no block lies on it; of one node only: another may be nearer.
        let mut covering: Option<(u64, u64)> = None;
        for (nth, lba) in (lba..lba + count).enumerate() {
            let at = match only {
                None => found[nth],
                Some(table) => match (table.index.find(lba), covering) {
                    (Some(version), _) => At::Block(version),
                    (None, Some((end, sequence))) if lba < end => At::Hole { end, sequence },
                    (None, _) => table.at(lba),
                },
            };
            match at {
                At::Block(version) => self.push_block(lba, version),
                At::Hole { end, sequence } => {
                    covering = Some((end, sequence));
                    self.push_hole(lba, sequence);
                }
                // Blocks by which a plain volume has grown are zeros.
                At::Nothing if !self.volume.is_sealed() => self.push_hole(lba, 0),
                At::Nothing => return Err(OpError::NotFormatted { lba: Lba(lba) }),
            }
        }
        Ok(())
    }

    fn push_block(&mut self, lba: u64, version: Version) {
        let at = version.segment(&self.volume.layout);
        let block_bytes = u64::from(self.volume.layout.block_bytes);
        if let Some(Part::Blocks { versions, segment, .. }) = self.parts[self.range_begins..].last_mut()
            && *segment == at
            && versions.len() < self.run_blocks_max
            && versions.last().expect("not empty").data_offset() + block_bytes == version.data_offset()
        {
            versions.push(version);
            return;
        }
        self.parts.push(Part::version(lba, version, self.volume));
    }

    fn push_hole(&mut self, lba: u64, sequence: u64) {
        match self.parts[self.range_begins..].last_mut() {
            Some(Part::Hole { count, sequence: last, .. }) if *last == sequence => *count += 1,
            _ => self.parts.push(Part::hole(self.map, lba, sequence)),
        }
    }
}
