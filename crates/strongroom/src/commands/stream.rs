//! What `volume send` and `volume receive` have in common: where an interrupted stream goes on and reading.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use strongroom_store::{ReceptionInfo, SnapshotId};
use strongroom_target::admin::Resume;

/// How long a target may take to open a volume.
pub(super) const OPEN_PATIENCE: Duration = Duration::from_secs(300);

/// Where a transfer goes on: of which snapshot, building on which, and the sender's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamPosition {
    pub(super) to: SnapshotId,
    pub(super) from: Option<SnapshotId>,
    pub(super) position: u64,
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{:x}", self.to, self.from.unwrap_or(SnapshotId(0)), self.position)
    }
}

impl FromStr for StreamPosition {
    type Err = String;

    fn from_str(text: &str) -> Result<StreamPosition, String> {
        let numbers: Vec<u64> = text.split('-').filter_map(|part| u64::from_str_radix(part, 16).ok()).collect();
        match numbers[..] {
            [to, from, position] if text.matches('-').count() == 2 => Ok(StreamPosition {
                to: SnapshotId(to),
                from: Some(SnapshotId(from)).filter(|from| from.0 != 0),
                position,
            }),
            _ => Err("not a position; take what `strongroom volume receive NAME --position` prints".to_owned()),
        }
    }
}

impl From<&ReceptionInfo> for StreamPosition {
    fn from(reception: &ReceptionInfo) -> StreamPosition {
        StreamPosition { to: reception.id, from: reception.from, position: reception.position }
    }
}

impl From<&Resume> for StreamPosition {
    fn from(resume: &Resume) -> StreamPosition {
        let (to, from) = (SnapshotId(resume.to), resume.from.map(SnapshotId));
        StreamPosition { to, from, position: resume.position }
    }
}

pub(super) fn read_some(input: &mut dyn Read, bytes: &mut [u8]) -> Result<usize> {
    loop {
        match input.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read.context("the stream cannot be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_written() {
        for from in [None, Some(SnapshotId(7))] {
            let place = StreamPosition { to: SnapshotId(u64::MAX), from, position: (1 << 62) + 9 };
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for bad in ["", "1-2", "1-2-3-4", "x-1-2", "1--2", "1-2-x-3"] {
            assert!(bad.parse::<StreamPosition>().is_err(), "{bad}");
        }
    }
}
