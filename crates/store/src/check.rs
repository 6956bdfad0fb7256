//! The offline check: recovers without writing, then reads everything that counts and compares it with its checksums.
//! Needs no keys: it tells accidents, not forgeries.

use std::path::Path;

use strongroom_block::{Lba, StoreSequence, keyless_checksum};

use crate::backend::{Backend, Io, IoChoice};
use crate::error::StoreError;
use crate::index::Version;
use crate::layout::RECORD_BLOCK;
use crate::options::VolumeInfo;
use crate::planted::Planted;
use crate::recover::{Scanner, Unit, recover};
use crate::store::{Recovered, Store, blocking, item_checksum};
use crate::unit::Entry;

/// Upper bound on the bad blocks that a report lists.
const LISTED_MAX: usize = 10_000;

/// What a check found. A store without bad blocks and versions is sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The volume.
    pub info: VolumeInfo,
    /// Units of the log read, all of whose record blocks were intact.
    pub units: u64,
    /// Newest versions of blocks that were read.
    pub blocks: u64,
    /// Retained older versions that were read.
    pub versions: u64,
    /// Holes that count.
    pub holes: u64,
    /// Blocks whose newest version does not match its checksum or cannot be read (the first ten thousand).
    pub bad_blocks: Vec<Lba>,
    /// Older versions that do not, or cannot (the first ten thousand).
    pub bad_versions: Vec<(Lba, StoreSequence)>,
}

impl CheckReport {
    /// Whether everything that counts is as it was written.
    pub fn is_sound(&self) -> bool {
        self.bad_blocks.is_empty() && self.bad_versions.is_empty()
    }
}

impl Store {
    /// Checks the store in `dir`, which must not be open. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and the like where opening would fail too; `InUse` if it is open.
    pub fn check(dir: &Path) -> Result<CheckReport, StoreError> {
        let (_lock, mut backend) = Store::locked_log(dir, IoChoice::Auto)?;
        Store::check_on(backend.as_mut())
    }

    /// Checks the store on a backend.
    ///
    /// # Errors
    /// As [`Store::check`].
    pub fn check_on(backend: &mut dyn Backend) -> Result<CheckReport, StoreError> {
        let recovered = recover(backend, 0, Planted::default())?;
        let mut report = CheckReport {
            info: recovered.superblock.info(),
            units: 0,
            blocks: 0,
            versions: 0,
            holes: recovered.map.holes(),
            bad_blocks: Vec::new(),
            bad_versions: Vec::new(),
        };
        let used: Vec<(u32, u32)> = recovered.segments.listed().map(|(at, segment)| (at, segment.end)).collect();
        for (segment, end) in used {
            let mut block = 0;
            while block < end {
                let mut scanner = Scanner::lone(backend, &recovered.superblock);
                let Some(unit) = scanner.unit_at(segment, block)? else { break };
                block += unit.header.blocks();
                report.units += 1;
                check_unit(backend, &recovered, &unit, &mut report);
            }
        }
        report.bad_blocks.sort_unstable();
        Ok(report)
    }
}

fn check_unit(backend: &mut dyn Backend, recovered: &Recovered, unit: &Unit, report: &mut CheckReport) {
    let layout = recovered.superblock.layout();
    let offset = layout.segment_at(unit.segment) + u64::from(unit.data_at());
    let buffer = strongroom_block::BufferMut::zeroed(unit.header.data_bytes as usize);
    // What cannot be read is bad; which blocks that are, the entries say.
    let data = blocking(backend, Io::Read { offset, buffer }).ok().flatten();
    for entry in unit.entries(&layout) {
        let Entry::Blocks { branch, lba, sequence, items, count, item_at, data_index } = entry else { continue };
        for (at, item) in (0..count).zip(items.chunks_exact(layout.item_bytes as usize)) {
            let within = (data_index + at) * layout.block_bytes;
            let item_at = unit.block * RECORD_BLOCK as u32 + item_at + at * layout.item_bytes;
            let (lba, sequence) = (lba + u64::from(at), sequence + u64::from(at));
            let version = Version::new(&layout, sequence, unit.segment, unit.data_at() + within, item_at);
            let block = data.as_ref().map(|data| &data[within as usize..][..layout.block_bytes as usize]);
            let good = block.is_some_and(|block| keyless_checksum(block) == item_checksum(item));
            if recovered.map.is_mapped(branch, lba, version) {
                report.blocks += 1;
                if !good && report.bad_blocks.len() < LISTED_MAX {
                    report.bad_blocks.push(Lba(lba));
                }
            } else if recovered.map.is_live(branch, lba, version) {
                report.versions += 1;
                if !good && report.bad_versions.len() < LISTED_MAX {
                    report.bad_versions.push((Lba(lba), StoreSequence(sequence)));
                }
            }
        }
    }
}
