//! Copies between files and volumes: pipelined, skipping what is absent, with a checksum of the contents.
//!
//! ```text
//! source: data and holes in order -> reads in flight -> checksum, zeros become holes -> writes in flight -> destination
//! ```
//!
//! The checksum covers the whole contents in order, holes as the zeros that they read as, so that it can be compared with
//! one of the plain bytes. CRC-64/NVME tells accidents; SHA-256, if asked for, tells everything. A copy that was killed goes on where
//! its note says (`resume`). Absent: progress bars, and any format of files but raw.

mod checksum;
mod destination;
mod meter;
mod node_mac;
mod resume;
mod source;
mod state_file;
#[cfg(test)]
mod tests;
mod volume_move;

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, BufferMut, DeviceError, Lba};

use crate::{MemoryDevice, RemoteDevice};
use checksum::Contents;
use destination::Writer;
use meter::{Meter, ProgressReporter};
use resume::{Due, Noted};
use source::{Piece, Reader};

pub use checksum::ContentSums;
pub use node_mac::{NodeMac, NodeMacError};
pub use resume::Resume;
pub use state_file::StateFile;
pub use volume_move::{
    CopyRate, MoveError, MoveState, MoveStateError, VolumeMove, attach_placed, checksum_successor, describe_unit,
    take_place,
};

/// Bytes of one read or write.
const CHUNK_BYTES: u64 = 1 << 20;
/// Pieces of a file that are known ahead of the write. Of a volume it is as many as [`SparseDevice::queue_bytes`] says are read ahead, and
/// as many writes are in flight, each: the limit of memory.
const PIECES_MAX: usize = 16;

/// Blocks that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockExtent {
    /// How many; at least one.
    pub blocks: u64,
    /// They are absent (read as zeros); otherwise they may hold data.
    pub is_absent: bool,
}

/// A block device that can tell what is absent.
pub trait SparseDevice: BlockDevice {
    /// How many blocks from `lba` on are absent (read as zeros), at most `count`; 0 if `lba` holds data or it cannot be
    /// told.
    ///
    /// # Errors
    /// What the device says.
    fn hole_at(&self, lba: Lba, count: u64) -> Result<u64, DeviceError>;

    /// What there is from `lba` on, for at most `count` blocks. A device that cannot tell where data end says that all of it may be data.
    ///
    /// # Errors
    /// What the device says.
    fn extent_at(&self, lba: Lba, count: u64) -> Result<BlockExtent, DeviceError> {
        let absent = self.hole_at(lba, count)?;
        Ok(BlockExtent { blocks: if absent > 0 { absent } else { count }, is_absent: absent > 0 })
    }

    /// Bytes of requests that it had best be given at once now; grows where the way is long.
    fn queue_bytes(&self) -> u64 {
        PIECES_MAX as u64 * CHUNK_BYTES
    }
}

impl SparseDevice for RemoteDevice {
    fn hole_at(&self, lba: Lba, count: u64) -> Result<u64, DeviceError> {
        RemoteDevice::hole_at(self, lba, count)
    }

    fn extent_at(&self, lba: Lba, count: u64) -> Result<BlockExtent, DeviceError> {
        let (blocks, is_absent) = RemoteDevice::extent_at(self, lba, count)?;
        Ok(BlockExtent { blocks, is_absent })
    }

    fn queue_bytes(&self) -> u64 {
        RemoteDevice::queue_bytes(self)
    }
}

impl SparseDevice for MemoryDevice {
    fn hole_at(&self, lba: Lba, count: u64) -> Result<u64, DeviceError> {
        Ok(MemoryDevice::hole_at(self, lba, count))
    }

    fn extent_at(&self, lba: Lba, count: u64) -> Result<BlockExtent, DeviceError> {
        Ok(match MemoryDevice::hole_at(self, lba, count) {
            0 => BlockExtent { blocks: self.data_at(lba, count), is_absent: false },
            blocks => BlockExtent { blocks, is_absent: true },
        })
    }
}

/// One end of a copy. A volume must have no other user of its completions.
#[derive(Clone)]
pub enum Endpoint {
    /// A file, or a block device of this machine.
    File(PathBuf),
    /// A volume.
    Volume(Arc<dyn SparseDevice>),
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::File(path) => write!(f, "{}", path.display()),
            Endpoint::Volume(device) => write!(f, "volume of {} bytes", device.geometry().bytes()),
        }
    }
}

/// How to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Also make a SHA-256 of the contents.
    pub sha256: bool,
    /// Read the destination back and compare its checksum.
    pub verify: bool,
    /// The source may be smaller than the destination volume; what lies behind stays as it is.
    pub allow_smaller: bool,
    /// Replace a destination file that exists.
    pub overwrite: bool,
    /// In a destination volume every block of zeros becomes absent, not only long ranges of them.
    pub sparse: bool,
}

/// What a copy is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// From the source to the destination.
    Copying,
    /// Reading the destination back.
    Verifying,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// What it is at.
    pub phase: Phase,
    /// Bytes done in this phase, holes included: what a volume has acknowledged, not what is on its way.
    pub done_bytes: u64,
    /// Bytes to do in this phase.
    pub total_bytes: u64,
    /// Of those done, bytes that were absent and not moved.
    pub hole_bytes: u64,
    /// Bytes of data per second, over the last three seconds: nothing while nothing moves.
    pub bytes_per_second: f64,
    /// How long what is left takes at the rate of the last twenty seconds; `None` while that cannot be told.
    pub time_left: Option<Duration>,
    /// For how long nothing has moved, if that is worth telling; zero otherwise.
    pub stalled_for: Duration,
    /// Since the phase began.
    pub elapsed: Duration,
}

/// What a copy did.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyReport {
    /// Size of the contents.
    pub bytes: u64,
    /// Of those, bytes that were moved.
    pub data_bytes: u64,
    /// Of those, bytes that were absent.
    pub hole_bytes: u64,
    /// Checksums of the contents.
    pub sums: ContentSums,
    /// Whether the destination was read back and found equal.
    pub verified: bool,
    /// From start to end, verification included.
    pub elapsed: Duration,
}

/// Why a copy ended early. What was copied so far stays at the destination.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A file failed.
    #[error("{path}: {doing}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The destination file is there already.
    #[error("{0} exists; remove it, or say --overwrite")]
    Exists(PathBuf),
    /// The source volume failed.
    #[error("reading the source: {0}")]
    Source(#[source] DeviceError),
    /// The destination volume failed.
    #[error("writing the destination: {0}")]
    Destination(#[source] DeviceError),
    /// The source does not fit.
    #[error("the source has {source_bytes} bytes, the destination only {destination_bytes}; make a larger volume")]
    TooLarge {
        /// Size of the source.
        source_bytes: u64,
        /// Size of the destination.
        destination_bytes: u64,
    },
    /// The source would not fill the destination.
    #[error(
        "the source has {source_bytes} bytes, the destination {destination_bytes}; the rest would keep what it holds: say \
         --allow-smaller if that is meant"
    )]
    TooSmall {
        /// Size of the source.
        source_bytes: u64,
        /// Size of the destination.
        destination_bytes: u64,
    },
    /// The source ends within a block.
    #[error(
        "the source has {source_bytes} bytes, which is not a multiple of the volume's block of {block_bytes}; extend it \
         with: truncate -s {} FILE", source_bytes.next_multiple_of(*block_bytes)
    )]
    NotWholeBlocks {
        /// Size of the source.
        source_bytes: u64,
        /// Bytes in a block of the volume.
        block_bytes: u64,
    },
    /// What was read back is not what was written.
    #[error(
        "verification failed: the source has {source_sums}, the destination {destination_sums}; copy again, and check the media"
    )]
    Differs {
        /// Of what was read from the source.
        source_sums: ContentSums,
        /// Of what was read back.
        destination_sums: ContentSums,
    },
    /// The note of how far the copy is cannot be used.
    #[error("{path}: {problem}; remove it to copy from the start")]
    Note {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// The progress callback asked for the end.
    #[error("the copy was interrupted; the destination is incomplete")]
    Interrupted,
}

/// Copies all of `source` to `destination`, flushes it, and (if asked) reads it back.
///
/// `progress` is called about ten times a second, also while nothing moves, and may end the copy.
///
/// # Errors
/// [`CopyError`].
pub fn copy(
    source: &Endpoint,
    destination: &Endpoint,
    options: CopyOptions,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<CopyReport, CopyError> {
    copy_resumable(source, destination, options, None, progress)
}

/// The same, noting how far it is. Where there is a note already the copy goes on from there; when all is durable the note is removed.
///
/// The destination may hold more than is noted: that is written again. With a SHA-256 the part of the source that is done is read
/// again, and must be what it was.
///
/// # Errors
/// [`CopyError`]; a note that is another copy's, or was not written by this node, is one.
pub fn copy_resumable(
    source: &Endpoint,
    destination: &Endpoint,
    options: CopyOptions,
    resume: Option<&Resume>,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<CopyReport, CopyError> {
    let started = Instant::now();
    let align = source.block_bytes().max(destination.block_bytes());
    let mut reader = Reader::open(source, align)?;
    let size = reader.size_bytes();
    check_sizes(size, destination, options)?;
    let noted = resume.map(|resume| resume.read(size)).transpose()?.flatten();
    let mut writer = Writer::open(destination, size, options, resume, noted.is_some())?;
    let mut contents = Contents::new(options.sha256);
    let begun = noted.unwrap_or_default();
    let mut reporter = ProgressReporter::new(Meter::new(Phase::Copying, size, begun), progress);
    if noted.is_some() && !options.sha256 {
        contents.go_on_from(begun.crc64);
        reader.skip_to(begun.done_bytes);
    }
    let sparse = options.sparse;
    Transfer { writer: Some(&mut writer), resume, begun: noted, size, sparse }.run(
        &mut reader,
        &mut contents,
        &mut reporter,
    )?;
    writer.finish(&mut reporter)?;
    let hole_bytes = reporter.meter.hole_bytes();
    let sums = contents.finish();
    let mut verified = false;
    if options.verify {
        let mut back = Reader::open_part(destination, align, size)?;
        let mut contents = Contents::new(options.sha256);
        let mut reporter = ProgressReporter::new(Meter::new(Phase::Verifying, size, Noted::default()), progress);
        Transfer { writer: None, resume: None, begun: None, size, sparse }.run(
            &mut back,
            &mut contents,
            &mut reporter,
        )?;
        let destination_sums = contents.finish();
        if destination_sums != sums {
            return Err(CopyError::Differs { source_sums: sums, destination_sums });
        }
        verified = true;
    }
    if let Some(resume) = resume {
        resume.remove()?;
    }
    Ok(CopyReport {
        bytes: size,
        data_bytes: size - hole_bytes,
        hole_bytes,
        sums,
        verified,
        elapsed: started.elapsed(),
    })
}

/// The checksums of the contents of `endpoint`, as [`copy`] makes them.
///
/// # Errors
/// [`CopyError`].
pub fn checksum(
    endpoint: &Endpoint,
    sha256: bool,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<ContentSums, CopyError> {
    let mut reader = Reader::open(endpoint, endpoint.block_bytes())?;
    let mut contents = Contents::new(sha256);
    let size = reader.size_bytes();
    let mut reporter = ProgressReporter::new(Meter::new(Phase::Verifying, size, Noted::default()), progress);
    Transfer { writer: None, resume: None, begun: None, size, sparse: false }.run(
        &mut reader,
        &mut contents,
        &mut reporter,
    )?;
    Ok(contents.finish())
}

/// How many pieces a device is given at once.
fn pieces_max(device: &dyn SparseDevice) -> usize {
    usize::try_from(device.queue_bytes() / CHUNK_BYTES).unwrap_or(usize::MAX).max(1)
}

impl Endpoint {
    /// What offsets of pieces must be multiples of.
    fn block_bytes(&self) -> u64 {
        match self {
            Endpoint::File(_) => 1,
            Endpoint::Volume(device) => u64::from(device.geometry().block_size.bytes()),
        }
    }
}

fn check_sizes(source_bytes: u64, destination: &Endpoint, options: CopyOptions) -> Result<(), CopyError> {
    let Endpoint::Volume(device) = destination else { return Ok(()) };
    let destination_bytes = device.geometry().bytes();
    let block_bytes = destination.block_bytes();
    if source_bytes > destination_bytes {
        return Err(CopyError::TooLarge { source_bytes, destination_bytes });
    }
    if !source_bytes.is_multiple_of(block_bytes) {
        return Err(CopyError::NotWholeBlocks { source_bytes, block_bytes });
    }
    if source_bytes < destination_bytes && !options.allow_smaller {
        return Err(CopyError::TooSmall { source_bytes, destination_bytes });
    }
    Ok(())
}

/// Moves every piece, in order; without a writer only the contents are summed.
struct Transfer<'a> {
    writer: Option<&'a mut Writer>,
    resume: Option<&'a Resume>,
    /// What an earlier copy has done.
    begun: Option<Noted>,
    size: u64,
    sparse: bool,
}

impl Transfer<'_> {
    fn run(
        mut self,
        reader: &mut Reader,
        contents: &mut Contents,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(), CopyError> {
        let mut ahead: VecDeque<Piece> = VecDeque::new();
        let mut due = Due::first(self.begun.map_or(0, |begun| begun.done_bytes));
        loop {
            let until = self.begun.map_or(0, |begun| begun.done_bytes);
            while ahead.len() < reader.pieces_max()
                && let Some(piece) = reader.next_piece(until)?
            {
                ahead.push_back(piece);
            }
            let Some(piece) = ahead.pop_front() else { break };
            let (offset, len) = piece.range();
            match reader.wait_for(piece, reporter)? {
                Some(data) if !is_zero(&data) => {
                    contents.add(&data);
                    self.put(offset, len, Some(data), reporter)?;
                }
                found => {
                    if found.is_some() {
                        // Looks like an absence, so ask whether there is more of it.
                        reader.expect_hole();
                    }
                    contents.add_zeros(len);
                    self.put(offset, len, None, reporter)?;
                }
            }
            self.note(offset + len, contents, reporter, &mut due)?;
            reporter.tell_moved()?;
        }
        reporter.tell_now()
    }

    /// Writes a piece, unless it is there already.
    fn put(
        &mut self,
        offset: u64,
        len: u64,
        data: Option<BufferMut>,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(), CopyError> {
        if self.begun.is_some_and(|begun| offset < begun.done_bytes) {
            return Ok(());
        }
        match (&mut self.writer, data) {
            (Some(writer), Some(data)) if self.sparse => writer.write_sparse(offset, data, reporter),
            (Some(writer), Some(data)) => writer.write(offset, data, reporter),
            (Some(writer), None) => {
                writer.write_hole(offset, len, reporter)?;
                reporter.meter.add(len, true);
                Ok(())
            }
            (None, data) => {
                reporter.meter.add(len, data.is_none());
                Ok(())
            }
        }
    }

    /// Notes what is durable, and from time to time has what was written made so.
    fn note(
        &mut self,
        end: u64,
        contents: &mut Contents,
        reporter: &ProgressReporter<'_>,
        due: &mut Due,
    ) -> Result<(), CopyError> {
        let (Some(resume), Some(writer)) = (self.resume, &mut self.writer) else { return Ok(()) };
        match self.begun {
            Some(begun) if end < begun.done_bytes => return Ok(()),
            Some(begun) if end == begun.done_bytes => {
                if contents.crc64() != begun.crc64 {
                    let problem = "what was copied already is not what the source holds now".to_owned();
                    return Err(resume.refuse(problem));
                }
                return Ok(());
            }
            _ => {}
        }
        if due.is_over(resume, end) {
            let hole_bytes = reporter.meter.hole_bytes();
            writer.make_durable(Noted { done_bytes: end, hole_bytes, crc64: contents.crc64() })?;
        }
        match writer.take_durable() {
            Some(noted) => resume.write(self.size, noted),
            None => Ok(()),
        }
    }
}

/// Whether there is nothing but zeros; stops at the first other byte.
fn is_zero(data: &[u8]) -> bool {
    let (chunks, rest) = data.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}
