//! The offline check: recovers without writing, then reads everything that counts and compares it with its checksums.
//! Needs no keys: it tells accidents, not forgeries.

use std::fmt;
use std::path::Path;

use strongroom_block::{Lba, StoreSequence, keyless_checksum};

use crate::backend::{Backend, Io, blocking};
use crate::catalogue::Catalogue;
use crate::error::StoreError;
use crate::index::Version;
use crate::layout::{RECORD_BLOCK, item_checksum};
use crate::map::At;
use crate::options::VolumeInfo;
use crate::planted::Planted;
use crate::recover::{Rebuilt, Recovered, Scanner, Unit, rebuild, recover, superblocks};
use crate::superblock::Superblock;
use crate::unit::{self, Entry, LogAddress, record_block_generation, record_block_intact};

/// Upper bound on the bad blocks that a report lists.
const LISTED_MAX: usize = 10_000;

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The block of the volume, if it is one.
    pub lba: Option<Lba>,
    /// Which version of it.
    pub sequence: Option<StoreSequence>,
    /// Whether that version is the newest: then the block cannot be read.
    pub newest: bool,
    /// Who sees that version, where there is more than the volume: the volume, its clones, `@SNAPSHOT`. Nobody sees an older one.
    pub seen_by: Vec<String>,
    /// The newest older version of it that is retained and intact; a holder of the key can restore it.
    pub older: Option<StoreSequence>,
    /// Where in the log, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

impl Problem {
    /// Of no block in particular.
    fn of_the_log(offset: u64, what: String) -> Problem {
        Problem { lba: None, sequence: None, newest: false, seen_by: Vec::new(), older: None, offset, what }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(lba), Some(sequence)) = (self.lba, self.sequence) {
            write!(f, "block {lba}")?;
            if !self.seen_by.is_empty() {
                write!(f, " of {}", self.seen_by.join(", "))?;
            }
            write!(f, ", {}version {sequence}, ", if self.newest { "newest " } else { "older " })?;
        }
        write!(f, "at byte {} of the log: {}", self.offset, self.what)?;
        match self.older {
            Some(older) => write!(f, "; version {older} of it is kept and whole"),
            None => Ok(()),
        }
    }
}

/// What a check found. A store without problems is sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The volume.
    pub info: VolumeInfo,
    /// Why the store does not open. All else is then what a repair would find: what units are left, and what is wrong with them.
    pub unopenable: Option<String>,
    /// What a repair would give up, if it does not open.
    pub losses: Vec<String>,
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
    /// All of that with its place, and what else is wrong (the first ten thousand).
    pub problems: Vec<Problem>,
    /// What is not as usual, but as a power cut may leave it: the next opening puts it right.
    pub notes: Vec<String>,
}

impl CheckReport {
    /// Whether everything that counts is as it was written.
    pub fn is_sound(&self) -> bool {
        self.unopenable.is_none()
            && self.problems.is_empty()
            && self.bad_blocks.is_empty()
            && self.bad_versions.is_empty()
    }

    fn problem(&mut self, problem: Problem) {
        if self.problems.len() < LISTED_MAX {
            self.problems.push(problem);
        }
    }
}

impl CheckReport {
    /// Checks the store in `dir`, which must not be open; tells now and then how many bytes of how many it has read. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Superblock`] and the like if nothing can be told of it; `InUse` if it is open. A damaged log is reported.
    pub fn of(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, StoreError> {
        let (_lock, mut backend) = crate::store::log_for_reading(dir)?;
        check_backend(backend.as_mut(), progress)
    }

    /// Checks the store on a backend.
    ///
    /// # Errors
    /// As [`CheckReport::of`].
    pub fn of_backend(backend: &mut dyn Backend) -> Result<CheckReport, StoreError> {
        check_backend(backend, &mut |_, _| ())
    }
}

fn check_backend(backend: &mut dyn Backend, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, StoreError> {
    let (recovered, unopenable, losses) = recovered_or_rebuilt(backend, progress)?;
    let mut report = CheckReport {
        info: recovered.superblock.info(),
        unopenable,
        losses,
        units: 0,
        blocks: 0,
        versions: 0,
        holes: recovered.map.holes(),
        bad_blocks: Vec::new(),
        bad_versions: Vec::new(),
        problems: Vec::new(),
        notes: Vec::new(),
    };
    for (copy, read) in superblocks(backend).into_iter().enumerate() {
        if let Err(error) = read {
            let why = error.reason();
            report.notes.push(format!(
                "superblock copy {copy} is not whole ({why}); the other one is, and the next opening or a repair rewrites it"
            ));
        }
    }
    report.notes.extend(recovered.notes.iter().cloned());
    let layout = recovered.superblock.layout();
    let listed = |from| recovered.segments.next_listed(from, u64::MAX);
    let listed = std::iter::successors(listed(0), |&(segment, _)| listed(segment + 1));
    let used: Vec<(u32, u32)> = listed.map(|(segment, entry)| (segment, entry.end)).collect();
    let total = used.iter().map(|&(_, end)| u64::from(end) * RECORD_BLOCK as u64).sum();
    let mut done = 0;
    for (segment, end) in used {
        check_segment(backend, &recovered, (segment, end), &mut report, &mut |bytes| {
            done += bytes;
            progress(done, total);
        });
    }
    if report.problems.is_empty() && report.unopenable.is_none() {
        all_accounted_for(&recovered, layout.segment_at(0), &mut report);
    }
    report.bad_blocks.sort_unstable();
    Ok(report)
}

/// Checks the units of a segment. `progress` is called with the bytes of each.
fn check_segment(
    backend: &mut dyn Backend,
    recovered: &Recovered,
    (segment, end): (u32, u32),
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64),
) {
    let generation = recovered.segments.segment(segment).generation;
    let (mut block, mut missed) = (0, Vec::new());
    while block < end {
        let unit = Scanner::lone(backend, &recovered.superblock).unit_at(segment, block).ok().flatten();
        let unit = unit.filter(|unit| unit.header.generation == generation);
        // Behind a damaged unit others may be intact.
        let Some(unit) = unit else {
            missed.push(block);
            block += 1;
            continue;
        };
        block += unit.header.blocks();
        report.units += 1;
        check_unit(backend, recovered, &unit, report);
        progress(u64::from(unit.header.blocks()) * RECORD_BLOCK as u64);
    }
    if report.unopenable.is_some() {
        missed.extend(damaged_behind(backend, recovered, segment, end, generation));
    }
    // What is left of a segment table that is not intact: a note tells of it.
    let layout = recovered.superblock.layout();
    let passed_over = |block: u32| {
        let at = layout.block_at(segment, block);
        recovered.fillers.iter().any(|filler| (filler.offset..filler.end()).contains(&at))
    };
    missed.retain(|&block| report.unopenable.is_some() || !passed_over(block));
    if !missed.is_empty() {
        look_at_missed(backend, recovered, segment, &missed, report);
    }
}

/// The store as it would be opened; if it does not open, as it could be rebuilt, with why, and what that would lose. So one
/// damage does not hide the others.
fn recovered_or_rebuilt(
    backend: &mut dyn Backend,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Recovered, Option<String>, Vec<String>), StoreError> {
    let error = match recover(backend, 0, Planted::default()) {
        Ok(recovered) => return Ok((recovered, None, Vec::new())),
        Err(error @ (StoreError::Damaged { .. } | StoreError::Unreadable { .. })) => error,
        Err(error) => return Err(error),
    };
    let whole = superblocks(backend).into_iter().enumerate().filter_map(|(copy, read)| Some((copy, read.ok()?)));
    let better: Option<(usize, Superblock)> = whole.max_by_key(|(_, superblock)| superblock.serial);
    let (copy, superblock) = better.expect("a log is found to be damaged by what a superblock says");
    let Rebuilt { recovered, losses } = rebuild(backend, &superblock, copy, 0, progress)?;
    Ok((recovered, Some(error.to_string()), losses))
}

/// Record blocks of this generation behind the last whole unit of a segment that are not as they were written.
fn damaged_behind(
    backend: &mut dyn Backend,
    recovered: &Recovered,
    segment: u32,
    end: u32,
    generation: u64,
) -> Vec<u32> {
    let layout = recovered.superblock.layout();
    let mut is_damaged = |block: u32| {
        let buffer = strongroom_block::BufferMut::zeroed(RECORD_BLOCK);
        let read = blocking(backend, Io::Read { offset: layout.block_at(segment, block), buffer });
        let Ok(Some(bytes)) = read else { return true };
        let place = LogAddress { store_id: recovered.superblock.store_id, segment, block };
        bytes.starts_with(&unit::MAGIC)
            && record_block_generation(&bytes) == generation
            && !record_block_intact(&bytes, place)
    };
    (end..layout.segment_blocks()).filter(|&block| is_damaged(block)).collect()
}

/// Whether a version of a block counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Newest,
    Older,
    Dead,
}

fn standing(recovered: &Recovered, branch: u32, lba: u64, version: Version) -> Standing {
    if recovered.map.is_mapped(branch, lba, version) {
        Standing::Newest
    } else if recovered.map.is_live(branch, lba, version) {
        Standing::Older
    } else {
        Standing::Dead
    }
}

/// Some 4 KiB blocks of a segment are part of no whole unit: the versions whose records are there, one by one. Opening
/// did not need them, if a checkpoint had what they say; reading a version needs only its own record block.
fn look_at_missed(
    backend: &mut dyn Backend,
    recovered: &Recovered,
    segment: u32,
    missed: &[u32],
    report: &mut CheckReport,
) {
    let layout = recovered.superblock.layout();
    for run in missed.chunk_by(|before, after| before + 1 == *after) {
        let what = format!(
            "the record blocks of a unit in segment {segment} are damaged or cannot be read; nothing can be told of \
                 {} KiB",
            run.len() * RECORD_BLOCK / 1024
        );
        report.problem(Problem::of_the_log(layout.block_at(segment, run[0]), what));
    }
    let mut behind = Vec::new();
    let is_behind = |version: Version| {
        let block = version.item_at() / RECORD_BLOCK as u32;
        version.segment(&layout) == segment && missed.binary_search(&block).is_ok()
    };
    for (_, table) in recovered.map.tables() {
        table
            .index
            .for_each(|lba, version| behind.extend(is_behind(version).then_some((Standing::Newest, lba, version))));
    }
    let versions = &recovered.map.versions;
    versions.for_each(|_, lba, version| behind.extend(is_behind(version).then_some((Standing::Older, lba, version))));
    for (standing, lba, version) in behind {
        match standing {
            Standing::Newest => report.blocks += 1,
            _ => report.versions += 1,
        }
        if let Err(what) = readable(backend, recovered, version) {
            bad_version(recovered, standing, lba, version, what, report);
        }
    }
}

/// What a read of one version would find.
fn readable(backend: &mut dyn Backend, recovered: &Recovered, version: Version) -> Result<(), &'static str> {
    let layout = recovered.superblock.layout();
    let segment = version.segment(&layout);
    let place =
        LogAddress { store_id: recovered.superblock.store_id, segment, block: version.item_at() / RECORD_BLOCK as u32 };
    let mut read = |offset, len| {
        let buffer = strongroom_block::BufferMut::zeroed(len);
        blocking(backend, Io::Read { offset, buffer }).ok().flatten().ok_or("it cannot be read")
    };
    let record_block = read(layout.block_at(segment, place.block), RECORD_BLOCK)?;
    let generation = recovered.segments.segment(segment).generation;
    let intact = record_block_intact(&record_block, place) && record_block_generation(&record_block) == generation;
    let at = version.item_at() as usize % RECORD_BLOCK;
    let item = record_block.get(at..at + layout.item_bytes as usize).filter(|_| intact);
    let item = item.ok_or("its record block is damaged")?;
    let data = read(version.data_offset(), layout.block_bytes as usize)?;
    (keyless_checksum(&data) == item_checksum(item)).then_some(()).ok_or("it does not match its checksum")
}

/// Every version that the index names was met in the log.
fn all_accounted_for(recovered: &Recovered, offset: u64, report: &mut CheckReport) {
    let versions = recovered.map.versions.len() + recovered.map.versions.pinned();
    let blocks = recovered.map.blocks();
    if (report.blocks, report.versions) != (blocks, versions) {
        let what = format!(
            "{blocks} blocks and {versions} older versions count, but the segments hold {} and {}",
            report.blocks, report.versions
        );
        report.problem(Problem::of_the_log(offset, what));
    }
}

fn bad_version(
    recovered: &Recovered,
    standing: Standing,
    lba: u64,
    version: Version,
    what: &str,
    report: &mut CheckReport,
) {
    let newest = standing == Standing::Newest;
    let sequence = StoreSequence(version.sequence());
    if newest && report.bad_blocks.len() < LISTED_MAX {
        report.bad_blocks.push(Lba(lba));
    } else if !newest && report.bad_versions.len() < LISTED_MAX {
        report.bad_versions.push((Lba(lba), sequence));
    }
    let older = recovered.map.versions.newest_below(lba, version.sequence(), |_, _| newest);
    report.problem(Problem {
        lba: Some(Lba(lba)),
        sequence: Some(sequence),
        newest,
        seen_by: seen_by(recovered, lba, version),
        older: older.map(|older| StoreSequence(older.sequence())),
        offset: version.data_offset(),
        what: what.to_owned(),
    });
}

/// The views in which a block has this version. They are not told apart where there is only the volume.
fn seen_by(recovered: &Recovered, lba: u64, version: Version) -> Vec<String> {
    let map = &recovered.map;
    let Catalogue { snapshots, branches, .. } = &map.catalogue;
    if snapshots.is_empty() && branches.len() == 1 {
        return Vec::new();
    }
    let heads = branches.values().map(|branch| {
        let name = match () {
            () if branch.receiving != 0 => format!("'{}', which is being received", branch.name),
            () if branch.name.is_empty() => "the volume".to_owned(),
            () => branch.name.clone(),
        };
        (branch.node, name)
    });
    let snapshots = snapshots.iter().map(|snapshot| {
        let of = branches.get(&snapshot.branch).map_or("", |branch| &branch.name);
        (snapshot.node, format!("{of}@{}", snapshot.name))
    });
    let has_it = |node| {
        let found = map.path(node).into_iter().map(|table| table.at(lba)).find(|at| *at != At::Nothing);
        found == Some(At::Block(version))
    };
    heads.chain(snapshots).filter(|&(node, _)| has_it(node)).map(|(_, name)| name).collect()
}

fn check_unit(backend: &mut dyn Backend, recovered: &Recovered, unit: &Unit, report: &mut CheckReport) {
    let layout = recovered.superblock.layout();
    let offset = layout.segment_at(unit.segment) + u64::from(unit.data_at());
    let buffer = strongroom_block::BufferMut::zeroed(unit.header.data_bytes as usize);
    // What cannot be read is bad; which blocks that are, the entries say.
    let data = blocking(backend, Io::Read { offset, buffer }).ok().flatten();
    for entry in unit.entries(&layout) {
        let Entry::Blocks { branch, lba, sequence, items, count, item_at, data_index, .. } = entry else { continue };
        for (at, item) in (0..count).zip(items.chunks_exact(layout.item_bytes as usize)) {
            let within = (data_index + at) * layout.block_bytes;
            let item_at = unit.block * RECORD_BLOCK as u32 + item_at + at * layout.item_bytes;
            let (lba, sequence) = (lba + u64::from(at), sequence + u64::from(at));
            let version = Version::new(&layout, sequence, unit.segment, unit.data_at() + within, item_at);
            let standing = standing(recovered, branch, lba, version);
            match standing {
                Standing::Newest => report.blocks += 1,
                Standing::Older => report.versions += 1,
                Standing::Dead => continue,
            }
            let block = data.as_ref().map(|data| &data[within as usize..][..layout.block_bytes as usize]);
            match block {
                None => bad_version(recovered, standing, lba, version, "it cannot be read", report),
                Some(block) if keyless_checksum(block) != item_checksum(item) => {
                    bad_version(recovered, standing, lba, version, "it does not match its checksum", report);
                }
                Some(_) => {}
            }
        }
    }
}
