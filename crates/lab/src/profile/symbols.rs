//! From offsets in a program's file to the source files that the instructions come from, inlined functions included.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::{Object, ObjectSegment, ReadCache};

use super::perf::CallSite;
use super::stages::Frame;
use crate::BenchError;

/// A part of the file, and where it lies in memory, before it is moved as a whole.
struct Segment {
    offset: u64,
    len: u64,
    address: u64,
}

/// The line tables of all programs that take part.
pub(crate) struct Symbols(Vec<ProgramSymbols>);

/// The line tables of one program.
struct ProgramSymbols {
    binary: PathBuf,
    loader: Loader,
    segments: Vec<Segment>,
    found: HashMap<u64, Vec<String>>,
}

impl Symbols {
    /// Opens the tables of some programs.
    ///
    /// # Errors
    /// If one has none.
    pub(crate) fn open(binaries: &[PathBuf]) -> Result<Symbols, BenchError> {
        let programs: Result<_, _> = binaries.iter().map(|binary| ProgramSymbols::open(binary)).collect();
        Ok(Symbols(programs?))
    }

    /// A chain of places as frames.
    pub(crate) fn frames(&mut self, chain: &[CallSite]) -> Vec<Frame> {
        let frame = |(index, place): (usize, &CallSite)| {
            let program = self.0.iter_mut().find(|program| Path::new(&place.object) == program.binary);
            // But for the innermost these are where calls return to: the call is before.
            let address = place.address - u64::from(index > 0 && place.address > 0);
            let files = program.map_or(Vec::new(), |program| program.files(address));
            Frame { is_kernel: place.is_kernel(), function: place.symbol.clone(), files }
        };
        chain.iter().enumerate().map(frame).collect()
    }
}

impl ProgramSymbols {
    /// Opens a program's tables.
    ///
    /// # Errors
    /// If it has none.
    fn open(binary: &Path) -> Result<ProgramSymbols, BenchError> {
        let cannot = |problem: String| {
            BenchError::process(
                binary.display().to_string(),
                format!(
                    "its line tables cannot be read ({problem}); use a build that was not stripped, as `make lab` makes it"
                ),
            )
        };
        let loader = Loader::new(binary).map_err(|error| cannot(error.to_string()))?;
        let cache = ReadCache::new(File::open(binary).map_err(|error| BenchError::file(binary, error))?);
        let file = object::File::parse(&cache).map_err(|error| cannot(error.to_string()))?;
        let segment = |segment: object::Segment<'_, '_, _>| {
            let (offset, len) = segment.file_range();
            Segment { offset, len, address: segment.address() }
        };
        let segments = file.segments().map(segment).collect();
        Ok(ProgramSymbols { binary: binary.to_owned(), loader, segments, found: HashMap::new() })
    }

    /// Source files of ours for the instruction at an offset of the file, innermost first.
    fn files(&mut self, offset: u64) -> Vec<String> {
        if let Some(files) = self.found.get(&offset) {
            return files.clone();
        }
        let files = self.look_up(offset).unwrap_or_default();
        self.found.insert(offset, files.clone());
        files
    }

    fn look_up(&self, offset: u64) -> Option<Vec<String>> {
        let is_inside = |segment: &&Segment| (segment.offset..segment.offset + segment.len).contains(&offset);
        let segment = self.segments.iter().find(is_inside)?;
        let mut frames = self.loader.find_frames(segment.address + (offset - segment.offset)).ok()?;
        let mut files = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let file = frame.location.and_then(|location| location.file);
            files.extend(file.and_then(after_crates).map(str::to_owned));
        }
        Some(files)
    }
}

/// `store/src/index.rs` of `/home/me/strongroom/crates/store/src/index.rs`.
fn after_crates(path: &str) -> Option<&str> {
    path.strip_prefix("crates/").or_else(|| path.rsplit_once("/crates/").map(|(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_from_the_workspace_on() {
        assert_eq!(after_crates("/home/me/s/crates/store/src/index.rs"), Some("store/src/index.rs"));
        assert_eq!(after_crates("crates/net/src/link.rs"), Some("net/src/link.rs"));
        assert_eq!(after_crates("/rustc/5980/library/core/src/option.rs"), None);
    }

    #[test]
    fn this_programs_own_functions_are_found() {
        let binary = std::env::current_exe().unwrap();
        let mut symbols = Symbols::open(std::slice::from_ref(&binary)).unwrap();
        // Where this function lies in memory, and so in the file.
        let address = this_programs_own_functions_are_found as fn() as usize as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let offset = maps.lines().find_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (begin, end) = fields.next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            let (begin, end, offset) = (number(begin)?, number(end)?, number(fields.nth(1)?)?);
            (begin..end).contains(&address).then(|| address - begin + offset)
        });
        let place =
            CallSite { address: offset.unwrap(), symbol: "it".into(), object: binary.to_str().unwrap().to_owned() };
        let frames = symbols.frames(std::slice::from_ref(&place));
        assert_eq!(frames[0].files.last().map(String::as_str), Some("lab/src/profile/symbols.rs"), "{frames:?}");
        let elsewhere = CallSite { object: "/bin/other".into(), ..place };
        assert!(symbols.frames(&[elsewhere])[0].files.is_empty());
    }
}
