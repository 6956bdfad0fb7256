//! Searches files and the memory of processes for canaries: short byte strings that must, or must not, be there.
//!
//! One pass for any number of canaries. Absent: what the canaries are and what finding one means.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{SeekFrom, seek};

/// Bytes in every canary.
pub(crate) const CANARY_BYTES: usize = 32;
/// Bytes looked at in one piece.
const CHUNK_BYTES: usize = 4 << 20;

/// A set of canaries, ready to be searched for.
pub(crate) struct Canaries {
    all: Vec<[u8; CANARY_BYTES]>,
    /// By the first eight bytes; the values index `all`.
    by_prefix: HashMap<u64, Vec<usize>>,
    /// One bit per hash of a prefix: rejects nearly every position without a look into the map.
    filter: Vec<u64>,
}

/// Where a search has looked and what it met.
#[derive(Default, Debug)]
pub(crate) struct Findings {
    /// Which canaries were found, as indexes.
    pub(crate) found: BTreeSet<usize>,
    /// Bytes that were looked at.
    pub(crate) bytes: u64,
}

const FILTER_BITS: u32 = 20;

fn filter_slot(prefix: u64) -> usize {
    (prefix.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - FILTER_BITS)) as usize
}

impl Canaries {
    /// Canaries to look for.
    pub(crate) fn new(all: Vec<[u8; CANARY_BYTES]>) -> Canaries {
        let mut by_prefix: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut filter = vec![0u64; (1 << FILTER_BITS) / 64];
        for (index, canary) in all.iter().enumerate() {
            let prefix = u64::from_le_bytes(canary[..8].try_into().expect("8 of 32 bytes"));
            by_prefix.entry(prefix).or_default().push(index);
            filter[filter_slot(prefix) / 64] |= 1 << (filter_slot(prefix) % 64);
        }
        Canaries { all, by_prefix, filter }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The same set without those at `indexes`.
    pub(crate) fn without(self, indexes: &BTreeSet<usize>) -> Canaries {
        let kept = self.all.into_iter().enumerate().filter(|(index, _)| !indexes.contains(index));
        Canaries::new(kept.map(|(_, canary)| canary).collect())
    }

    /// Searches bytes in memory.
    pub(crate) fn search_bytes(&self, haystack: &[u8], findings: &mut Findings) {
        findings.bytes += haystack.len() as u64;
        for (at, window) in haystack.windows(8).enumerate() {
            let prefix = u64::from_le_bytes(window.try_into().expect("windows of 8"));
            let slot = filter_slot(prefix);
            if self.filter[slot / 64] & (1 << (slot % 64)) == 0 {
                continue;
            }
            for &index in self.by_prefix.get(&prefix).into_iter().flatten() {
                if haystack[at..].starts_with(&self.all[index]) {
                    findings.found.insert(index);
                }
            }
        }
    }

    /// Searches every file below `directory`, byte by byte as stored.
    pub(crate) fn search_files(&self, directory: &Path, findings: &mut Findings) -> Result<()> {
        for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.search_files(&entry.path(), findings)?;
            } else if kind.is_file() {
                self.search_file(&entry.path(), findings)?;
            }
        }
        Ok(())
    }

    fn search_file(&self, path: &Path, findings: &mut Findings) -> Result<()> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut end = 0;
        // Data by data: holes in a sparse file are nobody's bytes.
        while let Ok(start) = seek(&file, SeekFrom::Data(end)) {
            end = seek(&file, SeekFrom::Hole(start))?;
            let mut at = start;
            while at < end {
                let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
                file.read_exact_at(&mut buffer[..want], at)?;
                self.search_bytes(&buffer[..want], findings);
                at += advance(want, at + want as u64 == end);
            }
        }
        Ok(())
    }

    /// Searches everything that a process has mapped: heap, stacks, shared memory, libraries.
    ///
    /// Pages that cannot be read (the kernel's own) are passed over.
    pub(crate) fn search_process(&self, pid: u32, findings: &mut Findings) -> Result<()> {
        let maps = File::open(format!("/proc/{pid}/maps")).with_context(|| format!("process {pid} is gone"))?;
        let memory = File::open(format!("/proc/{pid}/mem"))
            .with_context(|| format!("cannot read the memory of process {pid}; run as root"))?;
        let mut buffer = vec![0; CHUNK_BYTES];
        for line in BufReader::new(maps).lines() {
            let line = line?;
            let Some((start, end)) = readable_range(&line) else { continue };
            let mut at = start;
            while at < end {
                let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
                let read = memory.read_at(&mut buffer[..want], at).unwrap_or(0);
                if read == 0 {
                    // A hole in the mapping: go on at the next page.
                    at = (at & !0xfff) + 0x1000;
                    continue;
                }
                self.search_bytes(&buffer[..read], findings);
                at += advance(read, read < want || at + read as u64 == end);
            }
        }
        Ok(())
    }
}

/// How far to go on after a piece: not quite its length, so that a canary across the border of two is met as well.
fn advance(piece_bytes: usize, is_last: bool) -> u64 {
    let overlap = if is_last || piece_bytes < CANARY_BYTES { 0 } else { CANARY_BYTES - 1 };
    (piece_bytes - overlap) as u64
}

/// The addresses of a line of `/proc/PID/maps`, if the mapping can be read.
fn readable_range(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    if !fields.next()?.starts_with('r') || line.ends_with("[vvar]") || line.ends_with("[vsyscall]") {
        return None;
    }
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    //! Proves that the search finds what is there, across the borders of its pieces too: a search that cannot find
    //! would prove nothing by finding nothing.
    use super::*;
    use std::hint::black_box;

    fn canary(seed: u8) -> [u8; CANARY_BYTES] {
        std::array::from_fn(|at| seed.wrapping_mul(31).wrapping_add((at as u8).wrapping_mul(17)) ^ 0x5a)
    }

    #[test]
    fn found_at_every_offset_of_a_file_around_the_border_of_two_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let canaries = Canaries::new(vec![canary(1), canary(2)]);
        for shift in [0, 1, 15, 31, 32, 33] {
            let mut bytes = vec![0xee; CHUNK_BYTES + 4096];
            let at = CHUNK_BYTES - shift;
            bytes[at..at + CANARY_BYTES].copy_from_slice(&canary(2));
            fs::write(dir.path().join("file"), &bytes).unwrap();
            let mut findings = Findings::default();
            canaries.search_files(dir.path(), &mut findings).unwrap();
            assert_eq!(findings.found, BTreeSet::from([1]), "shift {shift}");
        }
    }

    #[test]
    fn found_in_the_memory_of_this_process_and_not_when_absent() {
        let present = canary(9).to_vec();
        black_box(&present);
        // The absent one must not lie in memory in one piece, not even in the set that searches for it: the needle is
        // masked, and the set holds it from here on, so search a child instead.
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let canaries = Canaries::new(vec![canary(9)]);
        let mut own = Findings::default();
        canaries.search_process(std::process::id(), &mut own).unwrap();
        let mut others = Findings::default();
        canaries.search_process(child.id(), &mut others).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(own.found, BTreeSet::from([0]));
        assert!(others.found.is_empty() && others.bytes > 0);
    }

    #[test]
    fn a_set_can_leave_some_out() {
        let canaries = Canaries::new(vec![canary(1), canary(2), canary(3)]).without(&BTreeSet::from([1]));
        assert_eq!(canaries.count(), 2);
        let mut findings = Findings::default();
        canaries.search_bytes(&canary(2), &mut findings);
        assert!(findings.found.is_empty());
        canaries.search_bytes(&canary(3), &mut findings);
        assert_eq!(findings.found, BTreeSet::from([1]));
    }
}
