//! Making a store, finding one in a directory, and the lock that keeps it open once.

use std::fs::{self, File, OpenOptions as FileOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use strongroom_block::Buffer;

use super::erase::Erasing;
use super::{Checkpoints, Head, Store};
use crate::backend::{Backend, Chosen, FileBackend, Io, IoChoice, MemoryBackend, backend_on};
use crate::catalogue::Catalogue;
use crate::error::StoreError;
use crate::holes::{Hole, ItemPlace};
use crate::layout::{LOG_START, RECORD_BLOCK, SEGMENT_BLOCKS_MIN, SUPERBLOCK_AT, segments_least, segments_needed};
use crate::map::BlockMap;
use crate::medium::Medium;
use crate::operations::Operations;
use crate::options::{CreateOptions, OpenOptions, StoreId, VolumeInfo};
use crate::recover::Filler;
use crate::segments::Segments;
use crate::superblock::{Superblock, segment_bytes_valid};
use crate::unit::{NO_SEGMENT, Place, TABLE_ROW, UnitBuilder, UnitHeader, flag};

/// Name of the log in a store's directory.
const LOG_NAME: &str = "log";
/// Name of the log while it is being made.
const NEW_LOG_NAME: &str = "log.new";
/// Name of the file whose lock keeps the store open once.
const LOCK_NAME: &str = "lock";

/// How long the last I/O of a killed process may take to arrive, and how often to look.
const IN_FLIGHT_PATIENCE: Duration = Duration::from_secs(5);
const IN_FLIGHT_PAUSE: Duration = Duration::from_millis(2);

/// What recovery found: everything that a store in memory is made of.
pub(crate) struct Recovered {
    pub(crate) superblock: Superblock,
    pub(crate) superblock_copy: usize,
    pub(crate) map: BlockMap,
    pub(crate) segments: Segments,
    pub(crate) operations: Operations,
    pub(crate) head: Head,
    pub(crate) checkpoints: Checkpoints,
    /// What an opening writes in the place of segment tables that were damaged, before anything else.
    pub(crate) fillers: Vec<Filler>,
    /// What is not as it was written, and costs nothing.
    pub(crate) notes: Vec<String>,
}

impl Store {
    /// Makes a store in the directory `dir` (made if missing) and closes it again. The volume reads as zeros if plain,
    /// and must be formatted by an initiator if sealed.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::InUse`], [`StoreError::Options`], [`StoreError::Io`].
    pub fn create(dir: &Path, options: &CreateOptions) -> Result<(), StoreError> {
        let action = || format!("making a store in {}", dir.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(StoreError::io(action()))?;
        let _lock = lock_in(dir)?;
        if dir.join(LOG_NAME).exists() {
            return Err(StoreError::Exists(dir.to_owned()));
        }
        match &options.medium {
            // There is nothing to make; but what cannot be is refused now.
            Medium::Memory => return plan(options).map(drop),
            Medium::Directory => create_log(dir, options, &action())?,
            Medium::File(path) | Medium::Device(path) => link_log(dir, path, options, &action())?,
        }
        let parent = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_owned));
        for dir in [Some(dir.to_owned()), parent].into_iter().flatten() {
            sync_dir(&dir).map_err(StoreError::io(action()))?;
        }
        Ok(())
    }

    /// A new store in memory, open. Everything in it is lost when it is closed.
    ///
    /// # Errors
    /// [`StoreError::Options`].
    pub fn open_in_memory(
        create: &CreateOptions,
        options: &OpenOptions,
        waker: crate::backend::Waker,
    ) -> Result<Store, StoreError> {
        let mut superblock = plan(create)?;
        // Whoever knew another one by this name is told by its number that this is not the same.
        superblock.open_epoch = u64::from(u32::from_be_bytes(random()?));
        let mut backend = Box::new(MemoryBackend::for_segments(create.segment_bytes));
        make(backend.as_mut(), superblock)?;
        Store::open_on(backend, options, waker)
    }

    /// Removes what the store in `dir` has outside of it: a log at another path goes, a device is made blank.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Io`].
    pub fn remove_outside(dir: &Path) -> Result<(), StoreError> {
        let _lock = match lock(dir) {
            Ok(lock) => lock,
            // Nothing was made, or what the link leads to is gone.
            Err(StoreError::Missing(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        crate::medium::remove_linked(&dir.join(LOG_NAME))
            .map_err(StoreError::io(format!("removing what {} leads to", dir.join(LOG_NAME).display())))
    }

    /// Makes a store on a backend that holds none (or nothing worth keeping).
    ///
    /// # Errors
    /// [`StoreError::Options`], [`StoreError::Io`].
    pub fn create_on(mut backend: Box<dyn Backend>, options: &CreateOptions) -> Result<VolumeInfo, StoreError> {
        make(backend.as_mut(), plan(options)?)
    }

    /// Opens a store that was being erased.
    pub(super) fn erase_on(
        mut backend: Box<dyn Backend>,
        options: &OpenOptions,
        waker: crate::backend::Waker,
        open_id: u64,
    ) -> Result<Store, StoreError> {
        let (superblock, copy) = crate::recover::read_superblock(backend.as_mut())?;
        // Nothing of it is read, or written down: this stands for whatever there was.
        let mut store = Store::from_recovered(backend, options.clone(), waker, fresh(superblock, copy, open_id));
        store.erasing = Some(Erasing::resumed());
        (store.waker)();
        Ok(store)
    }

    /// What the store in `dir` says of its volume, from its superblock alone; works while it is open elsewhere.
    ///
    /// # Errors
    /// [`StoreError`] if there is no readable store.
    pub fn inspect(dir: &Path) -> Result<VolumeInfo, StoreError> {
        let file = File::open(dir.join(LOG_NAME)).map_err(missing_or("reading the store", dir))?;
        let mut copies = [[0; RECORD_BLOCK]; 2];
        for (copy, at) in copies.iter_mut().zip(SUPERBLOCK_AT) {
            match std::os::unix::fs::FileExt::read_exact_at(&file, copy, at) {
                // A file cut short: what is missing is zeros, and no superblock.
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                    return Err(StoreError::io("reading the superblock")(error));
                }
                _ => {}
            }
        }
        Superblock::choose([&copies[0], &copies[1]]).map(|(superblock, _)| superblock.info())
    }

    /// The log of the store in `dir`, and the lock that keeps others from opening it.
    pub(crate) fn locked_log(dir: &Path, io: IoChoice) -> Result<(File, Chosen), StoreError> {
        Ok((lock(dir)?, open_log(dir, io)?))
    }

    /// The log of the store in `dir` for tools that write nothing, on any medium, also a read-only one. The lock, where there
    /// is one and it can be had, keeps others from opening the store meanwhile. Right after its process was killed, what that had in
    /// flight is waited for.
    pub(crate) fn log_to_look_at(dir: &Path) -> Result<(Option<File>, Box<dyn Backend>), StoreError> {
        let file = File::open(dir.join(LOG_NAME)).map_err(missing_or("opening the store", dir))?;
        let lock = File::open(dir.join(LOCK_NAME)).ok();
        let in_use = |taken| matches!(taken, Err(TryLockError::WouldBlock));
        if lock.as_ref().is_some_and(|lock| in_use(lock.try_lock_shared()))
            || in_use(patiently(|| file.try_lock_shared()))
        {
            return Err(StoreError::InUse(dir.to_owned()));
        }
        Ok((lock, Box::new(FileBackend::new(file).map_err(StoreError::io("preparing to read the log"))?)))
    }

    /// Whether the directory holds a store.
    pub fn exists(dir: &Path) -> bool {
        dir.join(LOG_NAME).exists()
    }
}

/// Writes a new store: its first segment, then both superblocks.
fn make(backend: &mut dyn Backend, mut superblock: Superblock) -> Result<VolumeInfo, StoreError> {
    let layout = superblock.layout();
    let buffers = first_segment(&superblock).buffers;
    let write = |offset, buffers| Io::Write { offset, buffers };
    let action = "making the store";
    // Like every segment that is opened: so it has its host space when it is free again.
    let whole = Io::Allocate { offset: layout.segment_at(0), len: u64::from(layout.segment_bytes) };
    blocking(backend, whole).map_err(StoreError::io(action))?;
    blocking(backend, write(layout.segment_at(0), buffers)).map_err(StoreError::io(action))?;
    blocking(backend, Io::Sync).map_err(StoreError::io(action))?;
    for (copy, at) in SUPERBLOCK_AT.into_iter().enumerate() {
        superblock.serial += 1;
        let buffers = vec![superblock.encode(copy).freeze()];
        blocking(backend, write(at, buffers)).map_err(StoreError::io(action))?;
        blocking(backend, Io::Sync).map_err(StoreError::io(action))?;
    }
    Ok(superblock.info())
}

/// What a new store has in its first segment, 0.
pub(super) struct FirstSegment {
    pub(super) buffers: Vec<Buffer>,
    /// In 4 KiB blocks.
    end: u32,
    last_lsn: u64,
    /// A plain volume's: one over all of it.
    hole: Option<Hole>,
}

/// The first epoch is an opening that only made the volume: it used the sequence and the generation before the superblock's.
pub(super) fn first_segment(superblock: &Superblock) -> FirstSegment {
    let layout = superblock.layout();
    let place = Place { store_id: superblock.store_id, segment: 0, block: 0 };
    let mut unit = UnitBuilder::new(layout, layout.segment_blocks());
    let mut row = [0; TABLE_ROW];
    row[8..].copy_from_slice(&(superblock.next_generation - 1).to_be_bytes());
    unit.push_table(&row);
    let flags = flag::FIRST | flag::LAST | flag::TABLE;
    let (header, table) = unit.finish(first_header(1, flags, superblock), place);
    let mut first =
        FirstSegment { buffers: vec![table.freeze()], end: header.blocks(), last_lsn: header.lsn, hole: None };
    if !superblock.kind.is_sealed() {
        let mut unit = UnitBuilder::new(layout, layout.segment_blocks());
        let (count, sequence) = (superblock.geometry.blocks, superblock.sequence_limit - 1);
        let item_at = unit.push_hole((0, sequence), 0, count, &[], false).expect("an empty unit has room");
        let place = Place { block: first.end, ..place };
        let (header, records) = unit.finish(first_header(2, flag::FIRST | flag::LAST, superblock), place);
        let item_at = first.end * RECORD_BLOCK as u32 + item_at;
        first.hole = Some(Hole::new(0, count, sequence, None, ItemPlace { segment: 0, item_at }));
        first.buffers.push(records.freeze());
        (first.end, first.last_lsn) = (first.end + header.blocks(), header.lsn);
    }
    first
}

/// What recovery would find of a new store.
pub(super) fn fresh(superblock: Superblock, superblock_copy: usize, open_id: u64) -> Recovered {
    let first = first_segment(&superblock);
    let mut segments = Segments::new(superblock.layout());
    segments.adopt([(0, superblock.next_generation - 1, first.end)].into_iter());
    let mut map = BlockMap::new(Catalogue::new(superblock.volume_id));
    if let Some(hole) = first.hole {
        let node = map.catalogue.head(0).expect("the volume has its branch");
        segments.add_live(0, hole.live_bytes());
        map.table_mut(node).holes.insert(hole, |_, _, _| false, |_| ());
    }
    let head = Head {
        segment: NO_SEGMENT,
        block: 0,
        prev_segment: NO_SEGMENT,
        prev_end: 0,
        next_lsn: first.last_lsn + 1,
        last_lsn: 0,
        completed_lsn: first.last_lsn,
        durable_lsn: first.last_lsn,
        next_sequence: superblock.sequence_limit,
        next_generation: superblock.next_generation,
        open_id,
        open_epoch: superblock.open_epoch + 1,
    };
    let (operations, checkpoints) = (Operations::new(superblock.segment_bytes), Checkpoints::default());
    let (fillers, notes) = (Vec::new(), Vec::new());
    Recovered { superblock, superblock_copy, map, segments, operations, head, checkpoints, fillers, notes }
}

/// Makes the log as a file in the store's directory.
fn create_log(dir: &Path, options: &CreateOptions, action: &str) -> Result<(), StoreError> {
    let new = dir.join(NEW_LOG_NAME);
    let mut file_options = FileOptions::new();
    file_options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let file = file_options.open(&new).map_err(StoreError::io(action))?;
    let length = file.try_clone().map_err(StoreError::io(action))?;
    let info = Store::create_on(Box::new(FileBackend::new(file).map_err(StoreError::io(action))?), options)?;
    // The whole length from the start: sparse, and a file that lost its end is noticed.
    length.set_len(log_bytes(&info)).and_then(|()| length.sync_all()).map_err(StoreError::io(action))?;
    fs::rename(&new, dir.join(LOG_NAME)).map_err(StoreError::io(action))
}

/// Makes the log elsewhere, and the link to it.
fn link_log(dir: &Path, path: &Path, options: &CreateOptions, action: &str) -> Result<(), StoreError> {
    let info = plan(options)?.info();
    let outside = || format!("making the log at {}", path.display());
    let is_file = matches!(options.medium, Medium::File(_));
    let file = if is_file {
        crate::medium::new_file(path, log_bytes(&info))
    } else {
        crate::medium::blank_device(path, log_bytes(&info))
    };
    let file = file.map_err(StoreError::io(outside()))?;
    let made = FileBackend::new(file)
        .map_err(StoreError::io(outside()))
        .and_then(|backend| Store::create_on(Box::new(backend), options))
        .and_then(|_| sync_parent(path).map_err(StoreError::io(outside())))
        .and_then(|()| std::os::unix::fs::symlink(path, dir.join(LOG_NAME)).map_err(StoreError::io(action)));
    if made.is_err() && is_file {
        let _ = fs::remove_file(path);
    }
    made
}

fn log_bytes(info: &VolumeInfo) -> u64 {
    LOG_START + u64::from(info.segments) * u64::from(info.segment_bytes)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The superblock of a new store.
fn plan(options: &CreateOptions) -> Result<Superblock, StoreError> {
    let bad = |what: String| Err(StoreError::Options(what));
    if !segment_bytes_valid(options.segment_bytes) {
        return bad("a segment is a power of two from 64 KiB to 16 MiB".to_owned());
    }
    if options.segment_bytes / options.geometry.block_size.bytes() < SEGMENT_BLOCKS_MIN {
        return bad("a segment must hold at least 16 blocks; choose larger segments or smaller blocks".to_owned());
    }
    if options.geometry.blocks == 0 {
        return bad("the volume has no blocks".to_owned());
    }
    let percent = u64::from(options.retention_percent);
    if percent > 100 {
        return bad("at most 100% can be kept for older versions".to_owned());
    }
    let retained = (u128::from(options.geometry.blocks) * u128::from(percent)).div_ceil(100) as u64;
    let retained = if options.kind.is_sealed() { retained } else { 0 };
    let spare = options.spare_percent;
    if !(CreateOptions::SPARE_PERCENT_DEFAULT..=CreateOptions::SPARE_PERCENT_MAX).contains(&spare) {
        return bad(format!(
            "spare space is {} to {} percent of what is stored",
            CreateOptions::SPARE_PERCENT_DEFAULT,
            CreateOptions::SPARE_PERCENT_MAX
        ));
    }
    let needed = segments_needed(options.geometry, options.kind, options.segment_bytes, retained, spare);
    let Some(segments) = needed else {
        return bad("the volume is too large for one store (about 300 TiB)".to_owned());
    };
    let segments = options.segments.unwrap_or(segments);
    let least = segments_least(options.geometry, options.segment_bytes, segments);
    if u64::from(segments) < least {
        return bad(format!(
            "{segments} segments are too few for the volume and what is set aside: take {least} or more, or leave the \
             count out"
        ));
    }
    let store_id = match options.store_id {
        Some(id) => id,
        None => StoreId(random()?),
    };
    Ok(Superblock {
        serial: 0,
        store_id,
        volume_id: options.volume_id,
        kind: options.kind,
        geometry: options.geometry,
        segment_bytes: options.segment_bytes,
        segments,
        retention_blocks: retained,
        open_epoch: 0,
        open_id: 0,
        table_segment: 0,
        table_block: 0,
        table_lsn: 1,
        second_table: None,
        sequence_limit: 2,
        next_generation: 2,
        durable_lsn: if options.kind.is_sealed() { 1 } else { 2 },
        clean: true,
        checkpoint: None,
        erasing: false,
        incarnation: 0,
        bases_from: Some(0),
    })
}

fn first_header(lsn: u64, flags: u32, superblock: &Superblock) -> UnitHeader {
    UnitHeader {
        record_blocks: 0,
        generation: superblock.next_generation - 1,
        lsn,
        prev_lsn: lsn - 1,
        open_id: superblock.open_id,
        open_epoch: superblock.open_epoch,
        durable_lsn: 0,
        next_sequence: superblock.sequence_limit,
        data_bytes: 0,
        entries: 0,
        flags,
        prev_segment: NO_SEGMENT,
        prev_end: 0,
        next_segment: NO_SEGMENT,
    }
}

/// Does one I/O and waits for it; for the time before a store is open.
pub(crate) fn blocking(backend: &mut dyn Backend, io: Io) -> io::Result<Option<strongroom_block::BufferMut>> {
    backend.submit(u64::MAX, io);
    let mut done = Vec::new();
    while backend.poll(&mut done) == 0 {
        backend.wait();
    }
    done.pop().expect("one was submitted").result
}

/// Random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::Io {
        action: "drawing random bytes".to_owned(),
        source: io::Error::other(error.to_string()),
    })?;
    Ok(bytes)
}

/// Takes the lock of the store in `dir`.
fn lock(dir: &Path) -> Result<File, StoreError> {
    if !dir.join(LOG_NAME).exists() {
        return Err(StoreError::Missing(dir.to_owned()));
    }
    lock_in(dir)
}

fn lock_in(dir: &Path) -> Result<File, StoreError> {
    let action = || format!("locking the store in {}", dir.display());
    let mut options = FileOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(dir.join(LOCK_NAME)).map_err(StoreError::io(action()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(StoreError::io(action())(error)),
    }
}

/// Takes the log's own lock, which lasts as long as anything is done to the log: after a process was killed, until what it
/// had in flight has arrived; nothing of it may arrive later, in what was written since. And two directories may lead to
/// the same log.
fn lock_log(file: &File) -> Result<(), TryLockError> {
    patiently(|| file.try_lock())
}

fn patiently(mut lock: impl FnMut() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    let until = Instant::now() + IN_FLIGHT_PATIENCE;
    loop {
        match lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(IN_FLIGHT_PAUSE),
            outcome => return outcome,
        }
    }
}

fn open_log(dir: &Path, io: IoChoice) -> Result<Chosen, StoreError> {
    let path = dir.join(LOG_NAME);
    let is_device = fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    let file = if is_device {
        crate::medium::open_device(&path)
    } else {
        FileOptions::new().read(true).write(true).open(&path)
    };
    let file = file.map_err(missing_or("opening the store", dir))?;
    lock_log(&file).map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::InUse(dir.to_owned()),
        TryLockError::Error(error) => StoreError::io("locking the log")(error),
    })?;
    // A file elsewhere was preallocated; a device has no space to give back, but discarding tells it what it may forget.
    let preallocated = !is_device && path.is_symlink();
    backend_on(file, io, preallocated)
        .map_err(StoreError::io(format!("preparing the log for I/O (io = {io}; auto takes what works here)")))
}

fn missing_or(action: &'static str, dir: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing(dir.to_owned()),
        _ => StoreError::io(format!("{action} in {}", dir.display()))(error),
    }
}

#[cfg(test)]
mod tests {
    use strongroom_block::{BlockSize, Geometry, VolumeId};

    use super::*;
    use crate::options::UnitKind;

    #[test]
    fn too_few_segments_are_refused() {
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 160 };
        let options = CreateOptions {
            segment_bytes: 64 << 10,
            medium: Medium::Memory,
            ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)
        };
        let open = |segments| {
            let options = CreateOptions { segments: Some(segments), ..options.clone() };
            Store::open_in_memory(&options, &OpenOptions::default(), std::sync::Arc::new(|| {}))
        };
        for segments in [0, 1, 2, 16] {
            assert!(
                matches!(open(segments), Err(StoreError::Options(why)) if why.contains("take 17 or more")),
                "{segments}"
            );
        }
        assert_eq!(open(17).unwrap().info().segments, 17);
    }

    #[test]
    fn who_looks_waits_for_what_a_killed_process_had_in_flight() {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 160 };
        Store::create(dir.path(), &CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)).unwrap();
        // The kernel lets go of the log when the last I/O has arrived; of the lock, with the process.
        let log = File::open(dir.path().join(LOG_NAME)).unwrap();
        log.try_lock().unwrap();
        let arrives = std::thread::spawn(move || {
            std::thread::sleep(IN_FLIGHT_PATIENCE / 20);
            drop(log);
        });
        assert!(Store::check(dir.path()).unwrap().is_sound());
        arrives.join().unwrap();
        // Whoever lives has the lock, and is not waited for.
        let _held = lock(dir.path()).unwrap();
        let asked = Instant::now();
        assert!(matches!(Store::check(dir.path()), Err(StoreError::InUse(_))));
        assert!(asked.elapsed() < IN_FLIGHT_PATIENCE);
    }
}
