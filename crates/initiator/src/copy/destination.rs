//! The writing end of a copy: writes in flight, absence without data, and the flush at the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use strongroom_block::{BufferMut, Completion, Lba, Request, Token};

use super::meter::{PROGRESS_INTERVAL, ProgressReporter};
use super::resume::Noted;
use super::{CHUNK_BYTES, CopyError, CopyOptions, Endpoint, Resume, SparseDevice, is_zero, pieces_max};

/// Bytes of zeros written at a time where a block device of this machine cannot punch holes.
const ZEROS_BYTES: u64 = 1 << 20;

/// Writes one endpoint.
pub(super) struct Writer {
    kind: Kind,
    /// What is durable, and was not asked for yet.
    durable: Option<Noted>,
    /// Requests under way at once, beside what the device says: no more than is noted at once.
    under_way_max: usize,
}

enum Kind {
    /// `fresh`: made by us and full of zeros already. `partial`: where it is written until it is whole, if it was not there before.
    /// `keep`: it is not removed if it never gets whole.
    File { path: PathBuf, file: File, fresh: bool, partial: Option<PathBuf>, keep: bool },
    Volume {
        device: Arc<dyn SparseDevice>,
        next_token: u64,
        /// Bytes of data by token; none for what is no data.
        in_flight: BTreeMap<u64, u64>,
        completions: Vec<Completion>,
        saving: Option<Saving>,
    },
}

/// What is being made durable.
#[derive(Clone, Copy, Debug)]
struct Saving {
    noted: Noted,
    /// The last token that it covers.
    covers: u64,
    /// The flush, once everything that it covers has completed.
    flush: Option<u64>,
}

impl Writer {
    /// A destination for `size` bytes; with a note to resume by, what there is of a file stays if the copy ends early, and is gone on
    /// with if there was a note (`is_resumed`).
    pub(super) fn open(
        endpoint: &Endpoint,
        size: u64,
        options: CopyOptions,
        resume: Option<&Resume>,
        is_resumed: bool,
    ) -> Result<Writer, CopyError> {
        let kind = match endpoint {
            Endpoint::Volume(device) => Kind::Volume {
                device: device.clone(),
                next_token: 0,
                in_flight: BTreeMap::new(),
                completions: Vec::new(),
                saving: None,
            },
            Endpoint::File(path) => open_file(path, size, options, resume, is_resumed)?,
        };
        let noted_at_once = resume.map_or(u64::MAX, |resume| resume.every_bytes / CHUNK_BYTES);
        Ok(Writer { kind, durable: None, under_way_max: usize::try_from(noted_at_once).unwrap_or(usize::MAX).max(1) })
    }

    pub(super) fn write(
        &mut self,
        offset: u64,
        data: BufferMut,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(), CopyError> {
        let len = data.len() as u64;
        match &mut self.kind {
            Kind::File { path, file, .. } => {
                file.write_all_at(&data, offset).map_err(|source| failed(path, "writing", source))?;
                reporter.meter.add(len, false);
                Ok(())
            }
            Kind::Volume { device, .. } => {
                let lba = Lba(offset >> device.geometry().block_size.shift());
                self.submit(Request::Write { lba, data: data.freeze(), fua: false }, len, reporter)
            }
        }
    }

    /// The same, but blocks of zeros become absent.
    pub(super) fn write_sparse(
        &mut self,
        offset: u64,
        data: BufferMut,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(), CopyError> {
        let block_bytes = match &self.kind {
            Kind::Volume { device, .. } => device.geometry().block_size.len(),
            Kind::File { .. } => data.len(),
        };
        let mut blocks = data.chunks(block_bytes).map(is_zero).peekable();
        let mut from = 0;
        while let Some(absent) = blocks.next() {
            let mut to = from + block_bytes;
            while blocks.next_if_eq(&absent).is_some() {
                to += block_bytes;
            }
            let run = from..to.min(data.len());
            let (at, len) = (offset + from as u64, run.len() as u64);
            if absent {
                self.write_hole(at, len, reporter)?;
                reporter.meter.add(len, true);
            } else {
                let mut part = BufferMut::zeroed(run.len());
                part.copy_from_slice(&data[run]);
                self.write(at, part, reporter)?;
            }
            from = to;
        }
        Ok(())
    }

    /// Makes a range read as zeros; what is absent already is left alone.
    pub(super) fn write_hole(
        &mut self,
        offset: u64,
        len_bytes: u64,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(), CopyError> {
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
                        return self.submit(Request::Discard { lba: Lba(lba), count: end - lba }, 0, reporter);
                    }
                }
                Ok(())
            }
        }
    }

    /// Has everything that was written so far made durable; [`Writer::take_durable`] says when it is. One at a time: while an earlier
    /// one is under way this does nothing.
    pub(super) fn make_durable(&mut self, noted: Noted) -> Result<(), CopyError> {
        match &mut self.kind {
            Kind::File { path, file, .. } => {
                file.sync_data().map_err(|source| failed(path, "syncing", source))?;
                self.durable = Some(noted);
            }
            Kind::Volume { next_token, saving, .. } => {
                saving.get_or_insert(Saving { noted, covers: *next_token, flush: None });
                self.save();
            }
        }
        Ok(())
    }

    /// What has become durable since it was asked last.
    pub(super) fn take_durable(&mut self) -> Option<Noted> {
        self.durable.take()
    }

    /// Waits for every write, and makes them durable.
    pub(super) fn finish(&mut self, reporter: &mut ProgressReporter<'_>) -> Result<(), CopyError> {
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
                self.settle(0, reporter)?;
                self.submit(Request::Flush, 0, reporter)?;
                self.settle(0, reporter)
            }
        }
    }

    fn submit(
        &mut self,
        request: Request,
        data_bytes: u64,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(), CopyError> {
        let Kind::Volume { device, .. } = &self.kind else { return Ok(()) };
        self.settle(pieces_max(&**device).min(self.under_way_max) - 1, reporter)?;
        self.hand_over(request, data_bytes);
        Ok(())
    }

    /// The token of what was handed over.
    fn hand_over(&mut self, request: Request, data_bytes: u64) -> Option<u64> {
        let Kind::Volume { device, next_token, in_flight, .. } = &mut self.kind else { return None };
        // Read tokens are offsets; the same volume is never both ends, so tokens may overlap.
        *next_token += 1;
        in_flight.insert(*next_token, data_bytes);
        device.submit(Token(*next_token), request);
        Some(*next_token)
    }

    /// Flushes once everything that is to be durable has completed.
    fn save(&mut self) {
        let Kind::Volume { in_flight, saving: Some(saving), .. } = &self.kind else { return };
        let is_done = in_flight.first_key_value().is_none_or(|(token, _)| *token > saving.covers);
        if saving.flush.is_some() || !is_done {
            return;
        }
        let flush = self.hand_over(Request::Flush, 0);
        if let Kind::Volume { saving: Some(saving), .. } = &mut self.kind {
            saving.flush = flush;
        }
    }

    /// Waits until at most `in_flight_max` writes are under way. Meanwhile it is told how the copy goes.
    fn settle(&mut self, in_flight_max: usize, reporter: &mut ProgressReporter<'_>) -> Result<(), CopyError> {
        loop {
            let Kind::Volume { device, in_flight, completions, saving, .. } = &mut self.kind else { return Ok(()) };
            if in_flight.len() > in_flight_max {
                device.wait(Some(PROGRESS_INTERVAL));
            }
            device.poll_completions(completions);
            for completion in completions.drain(..) {
                completion.result.map_err(CopyError::Destination)?;
                let token = completion.token.0;
                reporter.meter.add(in_flight.remove(&token).unwrap_or(0), false);
                if let Some(saved) = saving.take_if(|saving| saving.flush == Some(token)) {
                    self.durable = Some(saved.noted);
                }
            }
            self.save();
            let Kind::Volume { in_flight, .. } = &self.kind else { return Ok(()) };
            if in_flight.len() <= in_flight_max {
                return Ok(());
            }
            reporter.tell()?;
        }
    }
}

impl Drop for Writer {
    /// What is not whole must not look as if it were.
    fn drop(&mut self) {
        if let Kind::File { partial: Some(partial), keep: false, .. } = &self.kind {
            let _ = fs::remove_file(partial);
        }
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn open_file(
    path: &Path,
    size: u64,
    options: CopyOptions,
    resume: Option<&Resume>,
    is_resumed: bool,
) -> Result<Kind, CopyError> {
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
    let is_new = !is_device && !is_resumed;
    let mut file_options = File::options();
    file_options.read(true).write(true).mode(0o600);
    if is_new && partial.is_some() {
        // What is left of a copy that was cut off goes, and a link or a file of somebody else in its place is not written to.
        let _ = fs::remove_file(to);
        file_options.create_new(true);
    } else {
        file_options.create(is_new).truncate(is_new);
    }
    let opened = file_options.open(to);
    let file = match (opened, resume) {
        (Err(error), Some(resume)) if is_resumed && error.kind() == io::ErrorKind::NotFound => {
            return Err(resume.refuse(format!("{} is not there any more", to.display())));
        }
        (opened, _) => opened.map_err(|source| failed(path, "opening", source))?,
    };
    if is_device {
        let destination_bytes =
            seek(&file, SeekFrom::End(0)).map_err(|e| failed(path, "finding the size", e.into()))?;
        if size > destination_bytes {
            return Err(CopyError::TooLarge { source_bytes: size, destination_bytes });
        }
    } else {
        file.set_len(size).map_err(|source| failed(path, "making it as large as the source", source))?;
    }
    Ok(Kind::File { path: path.to_owned(), file, fresh: is_new, partial, keep: resume.is_some() })
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
