//! Direct I/O: past the page cache, from and to aligned memory. What is not aligned is staged, once.

use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use strongroom_block::{BUFFER_ALIGN, Buffer, BufferMut};

use super::positioned::GATHER_MAX;

/// What the file asks of direct I/O, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alignment {
    /// Of memory.
    pub(super) memory: usize,
    /// Of offsets and lengths.
    pub(super) offset: usize,
}

/// Makes all further I/O on `file` direct. An error says that the file system has no direct I/O that we can use.
pub(super) fn make_direct(file: &File) -> io::Result<Alignment> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)?;
    let alignment = alignment_of(file);
    // Some file systems take the flag and refuse the I/O.
    let mut probe = BufferMut::zeroed(BUFFER_ALIGN);
    let usable = if alignment.offset > BUFFER_ALIGN || alignment.memory > BUFFER_ALIGN {
        Err(io::ErrorKind::Unsupported.into())
    } else {
        std::os::unix::fs::FileExt::read_at(file, &mut probe, 0).map(drop)
    };
    if usable.is_err() {
        rustix::fs::fcntl_setfl(file, flags)?;
    }
    usable.map(|()| alignment)
}

fn alignment_of(file: &File) -> Alignment {
    let careful = Alignment { memory: BUFFER_ALIGN, offset: BUFFER_ALIGN };
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(told) if told.stx_dio_offset_align > 0 => {
            Alignment { memory: (told.stx_dio_mem_align as usize).max(1), offset: told.stx_dio_offset_align as usize }
        }
        _ => careful,
    }
}

impl Alignment {
    fn fits(self, bytes: &[u8]) -> bool {
        (bytes.as_ptr() as usize).is_multiple_of(self.memory) && bytes.len().is_multiple_of(self.offset)
    }

    /// The buffers as they are if the kernel takes them so; else one aligned copy of all of them.
    pub(super) fn gathered(self, offset: u64, buffers: Vec<Buffer>) -> io::Result<Vec<Buffer>> {
        let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        if !(offset as usize).is_multiple_of(self.offset) || !len.is_multiple_of(self.offset) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a write that is not aligned to the medium's blocks",
            ));
        }
        if buffers.len() <= GATHER_MAX && buffers.iter().all(|buffer| self.fits(buffer)) {
            return Ok(buffers);
        }
        let mut staged = BufferMut::to_fill(len);
        let mut at = 0;
        for buffer in &buffers {
            staged[at..at + buffer.len()].copy_from_slice(buffer);
            at += buffer.len();
        }
        Ok(vec![staged.freeze()])
    }

    /// What to read for `buffer`, from where, and into what.
    pub(super) fn widened(self, offset: u64, buffer: BufferMut) -> Reading {
        let skip = (offset % self.offset as u64) as usize;
        if skip == 0 && self.fits(&buffer) {
            return Reading { offset, into: buffer, part: None };
        }
        let into = BufferMut::to_fill((skip + buffer.len()).next_multiple_of(self.offset));
        Reading { offset: offset - skip as u64, into, part: Some((skip, buffer)) }
    }
}

/// A read on its way: aligned, with what was asked for somewhere within.
pub(super) struct Reading {
    pub(super) offset: u64,
    pub(super) into: BufferMut,
    /// Where in `into` the caller's part begins, and the caller's buffer.
    part: Option<(usize, BufferMut)>,
}

impl Reading {
    /// What the caller gets.
    pub(super) fn finish(self) -> BufferMut {
        match self.part {
            None => self.into,
            Some((skip, mut buffer)) => {
                let len = buffer.len();
                buffer.copy_from_slice(&self.into[skip..skip + len]);
                buffer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIGNMENT: Alignment = Alignment { memory: 512, offset: 512 };

    #[test]
    fn only_what_is_not_aligned_is_copied() {
        let whole = Buffer::copy_from(&[7; 4096]);
        let kept = ALIGNMENT.gathered(4096, vec![whole.clone(), whole.slice(512..1024)]).unwrap();
        assert_eq!(kept.len(), 2);
        assert_eq!(kept[0].as_ptr(), whole.as_ptr());
        let pieces = vec![whole.slice(..100), whole.slice(100..)];
        let staged = ALIGNMENT.gathered(4096, pieces).unwrap();
        assert_eq!((staged.len(), &staged[0][..]), (1, &whole[..]));
        assert!(ALIGNMENT.gathered(100, vec![whole.clone()]).is_err());
        assert!(ALIGNMENT.gathered(0, vec![whole.slice(..100)]).is_err());
        let many = vec![whole.slice(..512); GATHER_MAX + 1];
        assert_eq!(ALIGNMENT.gathered(0, many).unwrap().len(), 1, "more than one call takes");
    }

    #[test]
    fn reads_are_widened_and_cut_again() {
        let mut reading = ALIGNMENT.widened(1000, BufferMut::zeroed(600));
        assert_eq!((reading.offset, reading.into.len()), (512, 1536));
        for (at, byte) in reading.into.iter_mut().enumerate() {
            *byte = (at / 8) as u8;
        }
        let expected: Vec<u8> = (488..1088).map(|at| (at / 8) as u8).collect();
        assert_eq!(reading.finish()[..], expected);
        let plain = ALIGNMENT.widened(512, BufferMut::zeroed(1024));
        assert_eq!((plain.offset, plain.into.len(), plain.part.is_none()), (512, 1024, true));
    }
}
