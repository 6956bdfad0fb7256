//! The writing end of a copy: writes in flight, absence without data, and the flush at the end.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use strongroom_block::{BufferMut, Completion, Lba, Request, Token};

use super::{CopyError, CopyOptions, Endpoint, SparseDevice, pieces_max};

/// Bytes of zeros written at a time where a block device of this machine cannot punch holes.
const ZEROS_BYTES: u64 = 1 << 20;

/// Writes one endpoint.
pub(super) struct Writer {
    kind: Kind,
}

enum Kind {
    /// `fresh`: made by us and full of zeros already. `partial`: where it is written until it is whole, if it was not there before.
    File {
        path: PathBuf,
        file: File,
        fresh: bool,
        partial: Option<PathBuf>,
    },
    Volume {
        device: Arc<dyn SparseDevice>,
        next_token: u64,
        in_flight: usize,
        completions: Vec<Completion>,
    },
}

impl Writer {
    /// A destination for `size` bytes.
    pub(super) fn open(endpoint: &Endpoint, size: u64, options: CopyOptions) -> Result<Writer, CopyError> {
        let kind = match endpoint {
            Endpoint::Volume(device) => {
                Kind::Volume { device: device.clone(), next_token: 0, in_flight: 0, completions: Vec::new() }
            }
            Endpoint::File(path) => open_file(path, size, options)?,
        };
        Ok(Writer { kind })
    }

    pub(super) fn write(&mut self, offset: u64, data: BufferMut) -> Result<(), CopyError> {
        match &mut self.kind {
            Kind::File { path, file, .. } => {
                file.write_all_at(&data, offset).map_err(|source| failed(path, "writing", source))
            }
            Kind::Volume { device, .. } => {
                let lba = Lba(offset >> device.geometry().block_size.shift());
                self.submit(Request::Write { lba, data: data.freeze(), fua: false })
            }
        }
    }

    /// Makes a range read as zeros; what is absent already is left alone.
    pub(super) fn write_hole(&mut self, offset: u64, len_bytes: u64) -> Result<(), CopyError> {
        match &mut self.kind {
            Kind::File { fresh: true, .. } => Ok(()),
            Kind::File { path, file, .. } => punch(file, offset, len_bytes).map_err(|e| failed(path, "zeroing", e)),
            Kind::Volume { device, .. } => {
                let device = device.clone();
                let shift = device.geometry().block_size.shift();
                let (mut lba, end) = (offset >> shift, (offset + len_bytes) >> shift);
                while lba < end {
                    let absent = device.hole_at(Lba(lba), end - lba).map_err(CopyError::Destination)?;
                    lba += absent;
                    if lba < end && absent == 0 {
                        // Once something is there, one seal over all of the rest costs less than asking block by block.
                        return self.submit(Request::Discard { lba: Lba(lba), count: end - lba });
                    }
                }
                Ok(())
            }
        }
    }

    /// Waits for every write, and makes them durable.
    pub(super) fn finish(&mut self) -> Result<(), CopyError> {
        match &mut self.kind {
            Kind::File { path, file, partial, .. } => {
                file.sync_all().map_err(|source| failed(path, "syncing", source))?;
                match partial.take() {
                    None => Ok(()),
                    Some(partial) => fs::rename(&partial, &*path)
                        .and_then(|()| sync_parent(path))
                        .map_err(|source| failed(path, "naming", source)),
                }
            }
            Kind::Volume { .. } => {
                self.settle(0)?;
                self.submit(Request::Flush)?;
                self.settle(0)
            }
        }
    }

    fn submit(&mut self, request: Request) -> Result<(), CopyError> {
        let Kind::Volume { device, .. } = &self.kind else { return Ok(()) };
        self.settle(pieces_max(&**device) - 1)?;
        let Kind::Volume { device, next_token, in_flight, .. } = &mut self.kind else { return Ok(()) };
        // Read tokens are offsets; the same volume is never both ends, so tokens may overlap.
        *next_token += 1;
        *in_flight += 1;
        device.submit(Token(*next_token), request);
        Ok(())
    }

    /// Waits until at most `in_flight_max` writes are under way.
    fn settle(&mut self, in_flight_max: usize) -> Result<(), CopyError> {
        let Kind::Volume { device, in_flight, completions, .. } = &mut self.kind else { return Ok(()) };
        loop {
            if *in_flight > in_flight_max {
                device.wait(None);
            }
            device.poll_completions(completions);
            *in_flight -= completions.len();
            for completion in completions.drain(..) {
                completion.result.map_err(CopyError::Destination)?;
            }
            if *in_flight <= in_flight_max {
                return Ok(());
            }
        }
    }
}

impl Drop for Writer {
    /// What is not whole must not look as if it were.
    fn drop(&mut self) {
        if let Kind::File { partial: Some(partial), .. } = &self.kind {
            let _ = fs::remove_file(partial);
        }
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn open_file(path: &Path, size: u64, options: CopyOptions) -> Result<Kind, CopyError> {
    let exists = path.symlink_metadata().is_ok();
    let is_device = path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    if exists && !options.overwrite {
        return Err(CopyError::Exists(path.to_owned()));
    }
    let partial = (!exists).then(|| {
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        PathBuf::from(name)
    });
    let to = partial.as_deref().unwrap_or(path);
    let opened = File::options().read(true).write(true).create(!is_device).truncate(!is_device).open(to);
    let file = opened.map_err(|source| failed(path, "opening", source))?;
    if is_device {
        let destination_bytes =
            seek(&file, SeekFrom::End(0)).map_err(|e| failed(path, "finding the size", e.into()))?;
        if size > destination_bytes {
            return Err(CopyError::TooLarge { source_bytes: size, destination_bytes });
        }
    } else {
        file.set_len(size).map_err(|source| failed(path, "making it as large as the source", source))?;
    }
    Ok(Kind::File { path: path.to_owned(), file, fresh: !is_device, partial })
}

fn punch(file: &File, offset: u64, len_bytes: u64) -> io::Result<()> {
    if fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len_bytes).is_ok() {
        return Ok(());
    }
    let zeros = BufferMut::zeroed(ZEROS_BYTES.min(len_bytes) as usize);
    let mut done = 0;
    while done < len_bytes {
        let bytes = ZEROS_BYTES.min(len_bytes - done);
        file.write_all_at(&zeros[..bytes as usize], offset + done)?;
        done += bytes;
    }
    Ok(())
}

fn failed(path: &Path, doing: &'static str, source: io::Error) -> CopyError {
    CopyError::File { path: path.to_owned(), doing, source }
}
