//! Bytes in memory: for tests and benchmarks. Sparse; every I/O completes at once and nothing survives the process.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rustc_hash::FxHashMap;
use strongroom_block::{Buffer, BufferMut};

use super::{Backend, Io, IoDone, Waker};
use crate::layout::LOG_START;

/// Length of a page of a medium of which nothing is known, and upper bound on any, in bytes.
const PAGE_BYTES: usize = 64 << 10;
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Most bytes of pages that are kept for what is written next: taking memory from the system costs more than filling it.
const SPARE_BYTES_MAX: usize = 64 << 20;

/// Most pages that may be looked at while they are no part of the medium any more: then nothing is shared until somebody is done.
const LENT_PAGES_MAX: usize = 32;

/// A piece of the medium, all of it zeros but for what was written.
struct Page {
    /// Shared only while somebody looks at what lies here; see [`Backend::share`].
    bytes: Arc<BufferMut>,
    /// As far as something was written; what is behind is of earlier use, and stands for zeros.
    len: usize,
}

/// A sparse array of bytes.
pub struct MemoryBackend {
    page_bytes: usize,
    /// Where the medium begins in the first page.
    origin: u64,
    pages: FxHashMap<u64, Page>,
    spare: Vec<Arc<BufferMut>>,
    /// Pages that somebody looks at, or did, and that are no part of the medium any more.
    lent: Vec<Weak<BufferMut>>,
    ready: Vec<IoDone>,
}

impl Default for MemoryBackend {
    fn default() -> MemoryBackend {
        let (pages, spare, lent, ready) = Default::default();
        MemoryBackend { page_bytes: PAGE_BYTES, origin: 0, pages, spare, lent, ready }
    }
}

impl Page {
    /// Its memory to write to, with zeros up to `len`. What somebody still looks at is left to them, and goes to `lent`.
    fn unique(&mut self, len: usize, lent: &mut Vec<Weak<BufferMut>>) -> &mut BufferMut {
        if Arc::get_mut(&mut self.bytes).is_none() {
            lent.push(Arc::downgrade(&self.bytes));
            self.bytes = Arc::new(BufferMut::copy_from(&self.bytes));
        }
        let bytes = Arc::get_mut(&mut self.bytes).expect("nobody else has it");
        if self.len < len {
            bytes[self.len..len].fill(0);
            self.len = len;
        }
        bytes
    }
}

impl MemoryBackend {
    /// All zeros.
    pub fn new() -> MemoryBackend {
        MemoryBackend::default()
    }

    /// All zeros, with a page for each segment of a store.
    pub(crate) fn for_segments(segment_bytes: u32) -> MemoryBackend {
        let page_bytes = (segment_bytes as usize).min(PAGE_BYTES_MAX);
        let origin = page_bytes as u64 - LOG_START % page_bytes as u64;
        MemoryBackend { page_bytes, origin, ..MemoryBackend::default() }
    }

    /// Calls `visit(page, offset within the page, range of the caller's bytes)` for every page touched.
    fn for_pages(page_bytes: usize, position: u64, len: usize, mut visit: impl FnMut(u64, usize, Range<usize>)) {
        let mut at = 0;
        while at < len {
            let position = position + at as u64;
            let within = (position % page_bytes as u64) as usize;
            let count = (page_bytes - within).min(len - at);
            visit(position / page_bytes as u64, within, at..at + count);
            at += count;
        }
    }

    /// Copies from `offset` into `bytes`.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) {
        Self::for_pages(self.page_bytes, self.origin + offset, bytes.len(), |page, within, range| {
            let page = self.pages.get(&page).map_or(&[][..], |page| &page.bytes[..page.len]);
            let there = page.len().saturating_sub(within).min(range.len());
            let (data, zeros) = bytes[range].split_at_mut(there);
            data.copy_from_slice(&page[page.len().min(within)..][..there]);
            zeros.fill(0);
        });
    }

    /// Copies `bytes` to `offset`.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) {
        let (page_bytes, spare, lent) = (self.page_bytes, &mut self.spare, &mut self.lent);
        let mut fresh = || spare.pop().unwrap_or_else(|| Arc::new(BufferMut::to_fill(page_bytes)));
        Self::for_pages(page_bytes, self.origin + offset, bytes.len(), |page, within, range| {
            let page = self.pages.entry(page).or_insert_with(|| Page { bytes: fresh(), len: 0 });
            let end = within + range.len();
            // The log is written from front to back: what is new is put behind what is there.
            page.unique(within, lent)[within..end].copy_from_slice(&bytes[range]);
            page.len = page.len.max(end);
        });
    }

    /// Makes `len` bytes from `offset` zeros; whole pages are freed.
    pub fn discard(&mut self, offset: u64, len: u64) {
        Self::for_pages(self.page_bytes, self.origin + offset, len as usize, |page, within, range| {
            if range.len() == self.page_bytes {
                let Some(mut page) = self.pages.remove(&page) else { return };
                if Arc::get_mut(&mut page.bytes).is_none() {
                    self.lent.push(Arc::downgrade(&page.bytes));
                } else if self.spare.len() * self.page_bytes < SPARE_BYTES_MAX {
                    self.spare.push(page.bytes);
                }
            } else if let Some(page) = self.pages.get_mut(&page).filter(|page| page.len > within) {
                let end = page.len.min(within + range.len());
                page.unique(0, &mut self.lent)[within..end].fill(0);
            }
        });
    }
}

impl Backend for MemoryBackend {
    fn set_waker(&mut self, _waker: Waker) {}

    fn submit(&mut self, token: u64, io: Io) {
        let result = match io {
            Io::Read { offset, mut buffer } => {
                self.read_at(offset, &mut buffer);
                Some(buffer)
            }
            Io::Write { mut offset, buffers } => {
                for buffer in &buffers {
                    self.write_at(offset, buffer);
                    offset += buffer.len() as u64;
                }
                None
            }
            Io::Discard { offset, len } => {
                self.discard(offset, len);
                None
            }
            Io::Sync | Io::Allocate { .. } => None,
        };
        self.ready.push(IoDone { token, result: Ok(result) });
    }

    fn share(&mut self, offset: u64, len: usize) -> Option<Buffer> {
        self.lent.retain(|page| page.strong_count() > 0);
        if self.lent.len() >= LENT_PAGES_MAX {
            return None;
        }
        let position = self.origin + offset;
        let within = (position % self.page_bytes as u64) as usize;
        let page = self.pages.get(&(position / self.page_bytes as u64)).filter(|page| within + len <= page.len)?;
        Some(Buffer::from(Arc::clone(&page.bytes)).slice(within..within + len))
    }

    /// What is discarded is dropped: there is nothing to overwrite before.
    fn data_from(&mut self, _from: u64) -> Option<Range<u64>> {
        None
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let count = self.ready.len();
        done.append(&mut self.ready);
        count
    }

    fn wait(&mut self) {}
}

/// Memory of which every clone is the same: what one store left in it is there for the next, as on a medium.
#[derive(Clone, Default)]
pub struct SharedMemory(Arc<Mutex<MemoryBackend>>);

impl SharedMemory {
    fn lock(&self) -> MutexGuard<'_, MemoryBackend> {
        self.0.lock().expect("nothing panics while it holds the memory")
    }

    /// Copies from `offset` into `bytes`.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) {
        self.lock().read_at(offset, bytes);
    }

    /// Copies `bytes` to `offset`.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) {
        self.lock().write_at(offset, bytes);
    }
}

impl Backend for SharedMemory {
    fn set_waker(&mut self, _waker: Waker) {}

    fn submit(&mut self, token: u64, io: Io) {
        self.lock().submit(token, io);
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        self.lock().poll(done)
    }

    fn wait(&mut self) {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 3 * PAGE_BYTES;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// What is shared stays as it was while the medium changes.
        #[test]
        fn agrees_with_an_array(
            segments in any::<bool>(),
            steps in prop::collection::vec((0u8..4, 0..BYTES, 1usize..2 * PAGE_BYTES), 1..30),
        ) {
            let mut memory = if segments { MemoryBackend::for_segments(128 << 10) } else { MemoryBackend::new() };
            let (mut model, mut shared) = (vec![0u8; BYTES], Vec::new());
            for (number, (kind, at, len)) in steps.into_iter().enumerate() {
                // Often from where a page begins, and whole pages.
                let at = if kind == 2 { at / PAGE_BYTES * PAGE_BYTES } else { at };
                let len = len.min(BYTES - at);
                match kind {
                    0 => {
                        let bytes = vec![number as u8 + 1; len];
                        memory.write_at(at as u64, &bytes);
                        model[at..at + len].copy_from_slice(&bytes);
                    }
                    3 => shared.extend(memory.share(at as u64, len).map(|there| (there, model[at..at + len].to_vec()))),
                    _ => {
                        memory.discard(at as u64, len as u64);
                        model[at..at + len].fill(0);
                    }
                }
                let mut read = vec![0xff; BYTES];
                memory.read_at(0, &mut read);
                prop_assert!(read == model);
            }
            for (there, then) in shared {
                prop_assert!(there[..] == then);
            }
        }

        #[test]
        fn a_segment_is_shared_as_a_whole(segment in 0u64..5, written in 1usize..PAGE_BYTES_MAX) {
            let mut memory = MemoryBackend::for_segments(PAGE_BYTES_MAX as u32);
            let at = LOG_START + segment * PAGE_BYTES_MAX as u64;
            memory.write_at(at, &vec![7; written]);
            prop_assert!(memory.share(at, written).is_some_and(|there| there.iter().all(|&byte| byte == 7)));
            prop_assert!(memory.share(at, written + 1).is_none(), "nobody wrote that");
        }
    }
    /// A reader of what is discarded or overwritten keeps a copy of it; so there is a bound on that.
    #[test]
    fn what_is_lent_and_gone_is_bounded() {
        let mut memory = MemoryBackend::new();
        let mut lent = Vec::new();
        for page in 0..LENT_PAGES_MAX as u64 {
            memory.write_at(page * PAGE_BYTES as u64, &[7; PAGE_BYTES]);
            lent.push(memory.share(page * PAGE_BYTES as u64, 512).expect("written"));
            match page % 3 {
                0 => memory.discard(page * PAGE_BYTES as u64, PAGE_BYTES as u64),
                // Used again without that.
                1 => memory.write_at(page * PAGE_BYTES as u64, &[9; PAGE_BYTES]),
                _ => memory.discard(page * PAGE_BYTES as u64 + 512, 512),
            }
        }
        memory.write_at(0, &[8; PAGE_BYTES]);
        assert!(memory.share(0, 512).is_none(), "too many hold what is gone");
        assert!(lent.iter().all(|there| there.iter().all(|&byte| byte == 7)));
        lent.pop();
        assert!(memory.share(0, 512).is_some_and(|there| there[0] == 8));
    }
}
