//! Bytes in memory: for tests and benchmarks. Sparse; every I/O completes at once and nothing survives the process.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use rustc_hash::FxHashMap;

use super::{Backend, Io, IoDone, Waker};

const PAGE_BYTES: usize = 64 << 10;
/// Most pages that are kept for what is written next: taking memory from the system costs more than filling it.
const SPARE_MAX: usize = 1024;

/// A sparse array of bytes.
#[derive(Default)]
pub struct MemoryBackend {
    /// As long as something was written; the rest of a page is zeros.
    pages: FxHashMap<u64, Vec<u8>>,
    spare: Vec<Vec<u8>>,
    ready: Vec<IoDone>,
}

impl MemoryBackend {
    /// All zeros.
    pub fn new() -> MemoryBackend {
        MemoryBackend::default()
    }

    /// Copies from `offset` into `bytes`.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) {
        for_pages(offset, bytes.len(), |page, within, range| match self.pages.get(&page) {
            Some(page) => {
                let there = page.len().saturating_sub(within).min(range.len());
                let (data, zeros) = bytes[range].split_at_mut(there);
                data.copy_from_slice(&page[page.len().min(within)..][..there]);
                zeros.fill(0);
            }
            None => bytes[range].fill(0),
        });
    }

    /// Copies `bytes` to `offset`.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) {
        for_pages(offset, bytes.len(), |page, within, range| {
            let spare = &mut self.spare;
            let page =
                self.pages.entry(page).or_insert_with(|| spare.pop().unwrap_or_else(|| Vec::with_capacity(PAGE_BYTES)));
            if page.len() < within {
                page.resize(within, 0);
            }
            // The log is written from front to back: what is new is put behind what is there.
            let over = (page.len() - within).min(range.len());
            let (old, new) = bytes[range].split_at(over);
            page[within..within + over].copy_from_slice(old);
            page.extend_from_slice(new);
        });
    }

    /// Makes `len` bytes from `offset` zeros; whole pages are freed.
    pub fn discard(&mut self, offset: u64, len: u64) {
        for_pages(offset, len as usize, |page, within, range| {
            if range.len() == PAGE_BYTES {
                if let Some(mut page) = self.pages.remove(&page).filter(|_| self.spare.len() < SPARE_MAX) {
                    page.clear();
                    self.spare.push(page);
                }
            } else if let Some(page) = self.pages.get_mut(&page).filter(|page| page.len() > within) {
                let end = page.len().min(within + range.len());
                page[within..end].fill(0);
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

/// Calls `visit(page, offset within the page, range of the caller's bytes)` for every page touched.
fn for_pages(offset: u64, len: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut at = 0;
    while at < len {
        let position = offset + at as u64;
        let within = (position % PAGE_BYTES as u64) as usize;
        let count = (PAGE_BYTES - within).min(len - at);
        visit(position / PAGE_BYTES as u64, within, at..at + count);
        at += count;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 3 * PAGE_BYTES;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        #[test]
        fn agrees_with_an_array(steps in prop::collection::vec((0u8..3, 0..BYTES, 1usize..2 * PAGE_BYTES), 1..30)) {
            let (mut memory, mut model) = (MemoryBackend::new(), vec![0u8; BYTES]);
            for (number, (kind, at, len)) in steps.into_iter().enumerate() {
                // Often from where a page begins, and whole pages.
                let at = if kind == 2 { at / PAGE_BYTES * PAGE_BYTES } else { at };
                let len = len.min(BYTES - at);
                if kind == 0 {
                    let bytes = vec![number as u8 + 1; len];
                    memory.write_at(at as u64, &bytes);
                    model[at..at + len].copy_from_slice(&bytes);
                } else {
                    memory.discard(at as u64, len as u64);
                    model[at..at + len].fill(0);
                }
                let mut read = vec![0xff; BYTES];
                memory.read_at(0, &mut read);
                prop_assert!(read == model);
            }
        }
    }
}
