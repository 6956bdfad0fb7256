//! What a person can vary: patterns, sizes, depths, numbers of initiators; read from the command line, checked once.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::BenchError;

/// How addresses follow each other, and whether data is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// One after the other.
    SeqRead,
    /// One after the other.
    SeqWrite,
    /// Uniformly random.
    RandRead,
    /// Uniformly random.
    RandWrite,
}

impl Pattern {
    /// All of them, in the order of the paper's Figure 6.
    pub const ALL: [Pattern; 4] = [Pattern::SeqRead, Pattern::SeqWrite, Pattern::RandRead, Pattern::RandWrite];

    /// As on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::SeqRead => "seqread",
            Pattern::SeqWrite => "seqwrite",
            Pattern::RandRead => "randread",
            Pattern::RandWrite => "randwrite",
        }
    }

    /// Whether data is written.
    pub fn is_write(self) -> bool {
        matches!(self, Pattern::SeqWrite | Pattern::RandWrite)
    }

    /// Whether addresses are random.
    pub fn is_random(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::RandWrite)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pattern {
    type Err = BenchError;
    fn from_str(text: &str) -> Result<Pattern, BenchError> {
        let all = || Pattern::ALL.map(Pattern::name).join(", ");
        let found = Pattern::ALL.into_iter().find(|pattern| pattern.name() == text);
        found.ok_or_else(|| BenchError::Asked(format!("'{text}' is no pattern; choose from {}", all())))
    }
}

/// Smallest I/O, in bytes.
pub const SIZE_MIN: u64 = 512;
/// Largest I/O, in bytes.
pub const SIZE_MAX: u64 = 16 << 20;
/// Most I/Os in flight for an initiator.
pub const DEPTH_MAX: u32 = 128;
/// Most initiators.
pub const INITIATORS_MAX: u32 = 64;

/// One combination, measured for every contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// How addresses follow each other.
    pub pattern: Pattern,
    /// Bytes of one I/O.
    pub size: u64,
    /// I/Os in flight for each initiator.
    pub depth: u32,
    /// Initiators at once.
    pub initiators: u32,
}

/// Every combination of some values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Patterns.
    pub patterns: Vec<Pattern>,
    /// Bytes of one I/O.
    pub sizes: Vec<u64>,
    /// I/Os in flight for each initiator.
    pub depths: Vec<u32>,
    /// Numbers of initiators.
    pub initiators: Vec<u32>,
}

impl Grid {
    /// Looks at every value.
    ///
    /// # Errors
    /// [`BenchError::Asked`], which says what can be asked for.
    pub fn check(&self) -> Result<(), BenchError> {
        let asked = |text: String| Err(BenchError::Asked(text));
        if self.patterns.is_empty() || self.sizes.is_empty() || self.depths.is_empty() || self.initiators.is_empty() {
            return asked("a list is empty; give at least one pattern, size, depth and number of initiators".into());
        }
        for &size in &self.sizes {
            if !(SIZE_MIN..=SIZE_MAX).contains(&size) || !size.is_power_of_two() {
                return asked(format!(
                    "{size} bytes cannot be an I/O here; give powers of two from 512 to 16MiB, as 4k or 64k"
                ));
            }
        }
        if let Some(depth) = self.depths.iter().find(|depth| !(1..=DEPTH_MAX).contains(*depth)) {
            return asked(format!("a queue depth of {depth} is not possible; give 1 to {DEPTH_MAX}"));
        }
        if let Some(count) = self.initiators.iter().find(|count| !(1..=INITIATORS_MAX).contains(*count)) {
            return asked(format!("{count} initiators are not possible; give 1 to {INITIATORS_MAX}"));
        }
        Ok(())
    }

    /// All combinations: patterns outermost, so that what is compared in one figure is measured close together.
    pub fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for &pattern in &self.patterns {
            for &initiators in &self.initiators {
                for &depth in &self.depths {
                    for &size in &self.sizes {
                        points.push(Point { pattern, size, depth, initiators });
                    }
                }
            }
        }
        points
    }
}

/// A size for people and file names: `512`, `4k`, `1m`.
pub fn short_size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use strongroom::units::long_size;

    use super::*;

    fn grid() -> Grid {
        Grid { patterns: Pattern::ALL.to_vec(), sizes: vec![512, 4096], depths: vec![1, 16], initiators: vec![1, 2, 8] }
    }

    #[test]
    fn every_combination_once() {
        let points = grid().points();
        let distinct: std::collections::HashSet<_> = points.iter().collect();
        assert_eq!((points.len(), distinct.len()), (48, 48));
    }

    #[test]
    fn what_cannot_be_is_refused_with_advice() {
        grid().check().unwrap();
        let refused = |change: &dyn Fn(&mut Grid), part: &str| {
            let mut grid = grid();
            change(&mut grid);
            let error = grid.check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(&|grid| grid.sizes.push(1000), "powers of two");
        refused(&|grid| grid.sizes.push(256), "from 512");
        refused(&|grid| grid.depths = vec![0], "1 to 128");
        refused(&|grid| grid.initiators = vec![65], "1 to 64");
        refused(&|grid| grid.patterns.clear(), "empty");
        assert!("sequential".parse::<Pattern>().unwrap_err().to_string().contains("seqread, seqwrite"));
        assert_eq!("randwrite".parse::<Pattern>().unwrap(), Pattern::RandWrite);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([512, 4096, 1 << 20, 1536].map(short_size), ["512", "4k", "1m", "1536"]);
        assert_eq!([512, 65536, 1 << 20].map(long_size), ["512 B", "64 KiB", "1 MiB"]);
    }
}
