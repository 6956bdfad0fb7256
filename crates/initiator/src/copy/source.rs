//! The reading end of a copy: what comes next, data or absence, and reads in flight.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{SeekFrom, seek};
use strongroom_block::{BufferMut, Completion, Lba, Request, Token};

use super::meter::{PROGRESS_INTERVAL, ProgressReporter};
use super::{CHUNK_BYTES, CopyError, Endpoint, PIECES_MAX, SparseDevice, pieces_max};

/// The next part of the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    offset: u64,
    len_bytes: u64,
    absent: bool,
}

impl Piece {
    pub(super) fn range(self) -> (u64, u64) {
        (self.offset, self.len_bytes)
    }
}

/// Reads one endpoint from start to end.
pub(super) struct Reader {
    kind: Kind,
    align: u64,
    size: u64,
    next: u64,
    /// Ask for a hole before the next read.
    ask: bool,
    /// Up to here there is data, as far as was asked.
    data_until: u64,
}

enum Kind {
    File { path: PathBuf, file: File },
    Volume { device: Arc<dyn SparseDevice>, arrived: HashMap<u64, BufferMut>, completions: Vec<Completion> },
}

impl Reader {
    /// Reads all of `endpoint`; pieces begin at multiples of `align`.
    pub(super) fn open(endpoint: &Endpoint, align: u64) -> Result<Reader, CopyError> {
        Self::open_part(endpoint, align, u64::MAX)
    }

    /// Reads the first `size_max` bytes.
    pub(super) fn open_part(endpoint: &Endpoint, align: u64, size_max: u64) -> Result<Reader, CopyError> {
        let (kind, size) = match endpoint {
            Endpoint::File(path) => {
                let file = File::open(path).map_err(|source| failed(path, "opening", source))?;
                if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
                    return Err(failed(path, "opening", io::Error::from(io::ErrorKind::IsADirectory)));
                }
                // By seeking: a block device has a size and no length.
                let size = seek(&file, SeekFrom::End(0)).map_err(|e| failed(path, "finding the size", e.into()))?;
                (Kind::File { path: path.clone(), file }, size)
            }
            Endpoint::Volume(device) => {
                let kind = Kind::Volume { device: device.clone(), arrived: HashMap::new(), completions: Vec::new() };
                (kind, device.geometry().bytes())
            }
        };
        Ok(Reader { kind, align, size: size.min(size_max), next: 0, ask: true, data_until: 0 })
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size
    }

    /// How many pieces to ask for before the first of them is taken.
    pub(super) fn pieces_max(&self) -> usize {
        match &self.kind {
            Kind::File { .. } => PIECES_MAX,
            Kind::Volume { device, .. } => pieces_max(&**device),
        }
    }

    /// What was read looks like an absence: ask before the next read.
    pub(super) fn expect_hole(&mut self) {
        self.ask = true;
    }

    /// Begins there: a multiple of the alignment, or the end.
    pub(super) fn skip_to(&mut self, offset: u64) {
        self.next = offset;
    }

    /// The next piece; its read is under way when it returns. No piece has `border` within it.
    pub(super) fn next_piece(&mut self, border: u64) -> Result<Option<Piece>, CopyError> {
        if self.next == self.size {
            return Ok(None);
        }
        let offset = self.next;
        let room = if offset < border { border - offset } else { u64::MAX };
        let absent = self.absent_bytes(offset)?.min(room);
        if absent > 0 {
            self.next += absent;
            return Ok(Some(Piece { offset, len_bytes: absent, absent: true }));
        }
        let len_bytes = CHUNK_BYTES.min(self.size - offset).min(room);
        self.next += len_bytes;
        if let Kind::Volume { device, .. } = &self.kind {
            let lba = Lba(offset >> device.geometry().block_size.shift());
            device.submit(Token(offset), Request::Read { lba, buffer: BufferMut::zeroed(len_bytes as usize) });
        }
        Ok(Some(Piece { offset, len_bytes, absent: false }))
    }

    /// Bytes known to be absent from `offset` on, a multiple of the alignment (or all the rest).
    fn absent_bytes(&mut self, offset: u64) -> Result<u64, CopyError> {
        let rest = self.size - offset;
        let absent = match &self.kind {
            Kind::File { .. } if offset < self.data_until => 0,
            Kind::File { path, file } => match seek(file, SeekFrom::Data(offset)) {
                Ok(data) if data > offset => (data - offset).min(rest),
                Ok(_) => {
                    // No answer, no holes: then all of it is data.
                    self.data_until = seek(file, SeekFrom::Hole(offset)).unwrap_or(self.size).max(offset + 1);
                    0
                }
                Err(rustix::io::Errno::NXIO) => rest,
                // A file system or device that knows of no holes.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOTTY) => {
                    self.data_until = self.size;
                    0
                }
                Err(error) => return Err(failed(path, "looking for holes", error.into())),
            },
            Kind::Volume { .. } if !self.ask => 0,
            Kind::Volume { device, .. } => {
                let shift = device.geometry().block_size.shift();
                let blocks = device.hole_at(Lba(offset >> shift), rest >> shift).map_err(CopyError::Source)?;
                self.ask = blocks > 0;
                (blocks << shift).min(rest)
            }
        };
        Ok(if absent == rest { rest } else { absent / self.align * self.align })
    }

    /// Waits for the data of a piece; `None` for an absent one. Meanwhile it is told how the copy goes.
    pub(super) fn wait_for(
        &mut self,
        piece: Piece,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<Option<BufferMut>, CopyError> {
        if piece.absent {
            return Ok(None);
        }
        match &mut self.kind {
            Kind::File { path, file } => {
                let mut data = BufferMut::zeroed(piece.len_bytes as usize);
                file.read_exact_at(&mut data, piece.offset).map_err(|source| failed(path, "reading", source))?;
                Ok(Some(data))
            }
            Kind::Volume { device, arrived, completions } => loop {
                if let Some(data) = arrived.remove(&piece.offset) {
                    return Ok(Some(data));
                }
                device.wait(Some(PROGRESS_INTERVAL));
                device.poll_completions(completions);
                for completion in completions.drain(..) {
                    if let Some(buffer) = completion.result.map_err(CopyError::Source)? {
                        arrived.insert(completion.token.0, buffer);
                    }
                }
                reporter.tell()?;
            },
        }
    }
}

fn failed(path: &Path, doing: &'static str, source: io::Error) -> CopyError {
    CopyError::File { path: path.to_owned(), doing, source }
}
