//! Positioned I/O on a file, in place: what the backends without a ring are made of.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom};
use strongroom_block::Buffer;

/// Most buffers that one `pwritev` takes (`IOV_MAX` on Linux).
pub(super) const GATHER_MAX: usize = 1024;

/// Makes durable what was written.
pub(super) fn sync(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fdatasync(file)?)
}

/// Fills `buffer` from `offset`; past the end are zeros.
pub(super) fn read_padded(file: &File, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match file.read_at(buffer, offset) {
            Ok(0) => {
                buffer.fill(0);
                return Ok(());
            }
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the buffers back to back.
pub(super) fn write_gathered(file: &File, mut offset: u64, buffers: &[Buffer]) -> io::Result<()> {
    let mut slices: Vec<io::IoSlice<'_>> = buffers.iter().map(|buffer| io::IoSlice::new(buffer)).collect();
    let mut rest = &mut slices[..];
    io::IoSlice::advance_slices(&mut rest, 0); // skips empty buffers
    while !rest.is_empty() {
        let take = rest.len().min(GATHER_MAX);
        match rustix::io::pwritev(file, &rest[..take], offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                offset += count as u64;
                io::IoSlice::advance_slices(&mut rest, count);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Gives space back, where that is possible.
pub(super) fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    ignore_unsupported(rustix::fs::fallocate(file, flags, offset, len))
}

/// What the file system has left for a sparse file; one that has all its space needs no more.
pub(super) fn host_free_bytes(file: &File, keeps_space: bool) -> Option<u64> {
    if keeps_space || !file.metadata().ok()?.is_file() {
        return None;
    }
    let host = rustix::fs::fstatvfs(file).ok()?;
    Some(host.f_bavail.saturating_mul(host.f_frsize))
}

/// The first bytes from `from` on that the file holds data in. A device has all of it.
pub(super) fn data_from(file: &File, from: u64) -> Option<Range<u64>> {
    // Nothing else uses the position.
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => Some(start..rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(u64::MAX)),
        Err(rustix::io::Errno::NXIO) => None,
        Err(_) => Some(from..u64::MAX),
    }
}

/// Makes a file at least so large: sparse, or with all its space if that was taken for the rest of it too.
pub(super) fn grow(file: &File, bytes: u64, keeps_space: bool) -> io::Result<()> {
    let size = crate::medium::device_bytes(file)?;
    match file.metadata()?.is_file() {
        _ if size >= bytes => Ok(()),
        true if keeps_space => Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), size, bytes - size)?),
        true => file.set_len(bytes),
        false => Err(io::ErrorKind::StorageFull.into()),
    }
}

/// Takes space, where that is possible.
pub(super) fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    ignore_unsupported(rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, len))
}

/// Neither is needed for correctness: without the one space is not given back, without the other a write may run out.
pub(super) fn ignore_unsupported(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::NODEV) => Ok(()),
        other => Ok(other?),
    }
}
