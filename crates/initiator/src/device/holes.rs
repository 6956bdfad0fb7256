//! Absent blocks. On a sealed volume absence is proved by its seal, on a plain one it is what the target says.

use strongroom_block::{DeviceError, Lba};

use crate::device::intake::Intake;
use crate::pipeline::answer::Answer;
use crate::pipeline::operation::{LbaStatus, ProbeHole};

/// Questions in one call of [`Holes::find`].
const QUESTIONS_MAX: u32 = 256;

/// See the module.
pub(super) struct Holes<'a> {
    pub(super) intake: &'a Intake,
    pub(super) is_sealed: bool,
}

/// Blocks that are absent, and the oldest epoch that their absence is sealed under.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Absence {
    pub(super) blocks: u64,
    pub(super) oldest_epoch: Option<u32>,
}

impl Holes<'_> {
    /// Absent blocks from `lba` on, at most `count`.
    pub(super) fn find(&self, lba: Lba, count: u64) -> Result<Absence, DeviceError> {
        let mut oldest_epoch: Option<u32> = None;
        let mut found = 0;
        let mut step = self.hint(lba, count)?;
        for _ in 0..QUESTIONS_MAX {
            if step == 0 {
                break;
            }
            if !self.is_sealed {
                found += step;
                step = self.hint(Lba(lba.0 + found), count - found)?;
                continue;
            }
            // The hint is the target's; the proof is a read, which moves no data where there is none. Its size doubles, so
            // that data behind the hole costs no more than the hole did.
            let probe = ProbeHole::new(Lba(lba.0 + found), u32::try_from(step).unwrap_or(u32::MAX));
            let Answer::HoleBlocks { absent, asked, oldest_epoch: oldest } = self.intake.ask(probe, 0)? else { break };
            oldest_epoch = oldest_epoch.into_iter().chain(oldest).min();
            found += absent.min(count - found);
            step = if absent < u64::from(asked) { 0 } else { (2 * u64::from(asked)).min(count - found) };
        }
        Ok(Absence { blocks: found, oldest_epoch })
    }

    /// How many blocks from `lba` on may hold data, as the target says: at least one, at most `count`. To be asked where none was found
    /// absent; a target that says that they are has not proved it, so they count as data.
    pub(super) fn data(&self, lba: Lba, count: u64) -> Result<u64, DeviceError> {
        Ok(self.status(lba)?.map_or(count, |(blocks, _)| blocks.min(count)).max(1))
    }

    /// How many blocks from `lba` on are absent, as the target says.
    fn hint(&self, lba: Lba, count: u64) -> Result<u64, DeviceError> {
        if count == 0 {
            return Ok(0);
        }
        Ok(match self.status(lba)? {
            Some((blocks, false)) => blocks.min(count),
            _ => 0,
        })
    }

    /// How many blocks from `lba` on are alike, and whether they are mapped. `None`: the target does not say.
    fn status(&self, lba: Lba) -> Result<Option<(u64, bool)>, DeviceError> {
        let Answer::LbaStatus(Some(status)) = self.intake.ask(LbaStatus::new(lba), 0)? else { return Ok(None) };
        let behind = lba.0.checked_sub(status.lba.0).and_then(|before| u64::from(status.count).checked_sub(before));
        Ok(behind.filter(|blocks| *blocks > 0).map(|blocks| (blocks, status.mapped)))
    }
}
