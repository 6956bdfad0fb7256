//! A volume's schedule of snapshots: how often, what is kept, what they are called. Pure; who runs it is the scheduler.
//!
//! Time is cut into intervals from a Monday at 0:00 UTC on, and each has at most one automatic snapshot. Its name has the time, and a
//! volume's description has the names, so that a target that was just started knows what is there without opening a store.

pub(crate) mod error;

use serde::{Deserialize, Serialize};
use strongroom_store::Op;

use crate::calendar::{CivilTime, DAY};
use crate::retention::Retention;
pub use error::ScheduleError;

/// What names of automatic snapshots begin with.
const PREFIX: &str = "auto-";
/// Where intervals begin: 1970-01-05, a Monday.
const FIRST_MONDAY: u64 = 4 * DAY;
/// The longest interval, in seconds.
const EVERY_S_MAX: u64 = 366 * DAY;
/// Automatic snapshots of one volume at most, so that there is room for others.
const KEPT_MAX: u64 = Op::SNAPSHOTS_MAX as u64 - 24;

/// When a volume's snapshots are taken by themselves, and which of these are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Seconds from one snapshot to the next.
    pub every_s: u64,
    /// Which automatic snapshots are kept.
    pub keep: Retention,
}

impl Schedule {
    /// Whether it can be kept to.
    ///
    /// # Errors
    /// [`ScheduleError`].
    pub fn check(&self) -> Result<(), ScheduleError> {
        if !(1..=EVERY_S_MAX).contains(&self.every_s) {
            return Err(ScheduleError::Interval);
        }
        if self.keep.is_empty() {
            return Err(ScheduleError::KeepsNothing);
        }
        if self.keep.kept_max() > KEPT_MAX {
            return Err(ScheduleError::KeepsTooMany);
        }
        Ok(())
    }

    /// The interval of a moment.
    pub(crate) fn interval(&self, seconds: u64) -> u64 {
        seconds.saturating_sub(FIRST_MONDAY) / self.every_s
    }

    /// When the interval after that of `seconds` begins.
    pub(crate) fn next(&self, seconds: u64) -> u64 {
        FIRST_MONDAY + (self.interval(seconds) + 1) * self.every_s
    }

    /// The name of a snapshot that is taken now, for instance `auto-2026-11-23t0730z`; with seconds where intervals are not whole
    /// minutes. `others`: how many of that name there are, by clones of the same store.
    pub(crate) fn name(&self, seconds: u64, others: u32) -> String {
        let CivilTime { year, month, day, hour, minute, second } = CivilTime::from_seconds(seconds);
        let second = if self.every_s.is_multiple_of(60) { String::new() } else { format!("{second:02}") };
        let other = if others == 0 { String::new() } else { format!("-{}", others + 1) };
        format!("{PREFIX}{year:04}-{month:02}-{day:02}t{hour:02}{minute:02}{second}z{other}")
    }

    /// The newest automatic snapshot among these that was taken in the interval of `now`.
    pub(crate) fn taken_in_interval<'a>(&self, now: u64, names: impl IntoIterator<Item = &'a str>) -> Option<u64> {
        let times = names.into_iter().filter_map(automatic_time);
        times.filter(|&time| time <= now && self.interval(time) == self.interval(now)).max()
    }
}

/// When an automatic snapshot was taken, by its name; `None` if no schedule gave it that name.
pub(crate) fn automatic_time(name: &str) -> Option<u64> {
    let (date_time, other) = name.strip_prefix(PREFIX)?.split_once('z')?;
    let is_counted = other.strip_prefix('-').is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number > 1));
    if !(other.is_empty() || is_counted) {
        return None;
    }
    let (date, time) = date_time.split_once('t')?;
    let mut parts = date.split('-');
    let mut part = |len: usize| parts.next().filter(|part| part.len() == len).and_then(number);
    let (year, month, day) = (part(4)?, part(2)?, part(2)?);
    if parts.next().is_some() || !matches!(time.len(), 4 | 6) || !time.is_ascii() {
        return None;
    }
    let second = if time.len() == 6 { number(&time[4..])? } else { 0 };
    CivilTime { year, month, day, hour: number(&time[..2])?, minute: number(&time[2..4])?, second }.to_seconds()
}

fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::names::VolumeName;

    fn every(every_s: u64) -> Schedule {
        Schedule { every_s, keep: Retention { last: 3, ..Retention::default() } }
    }

    #[test]
    fn names_tell_when() {
        let seconds = 1_795_419_042; // 2026-11-23 07:30:42
        assert_eq!(every(3_600).name(seconds, 0), "auto-2026-11-23t0730z");
        assert_eq!(every(3_600).name(seconds, 1), "auto-2026-11-23t0730z-2");
        assert_eq!(every(1).name(seconds, 0), "auto-2026-11-23t073042z");
        assert_eq!(automatic_time("auto-2026-11-23t0730z"), Some(seconds - 42));
        assert_eq!(automatic_time("auto-2026-11-23t073042z-7"), Some(seconds));
        for other in [
            "monday",
            "auto-",
            "auto-2026-11-23",
            "auto-2026-11-23t0730",
            "auto-2026-11-23t0730z-",
            "auto-2026-11-23t0730z-1",
            "auto-2026-11-23t0730z2",
            "auto-2026-13-23t0730z",
            "auto-2026-11-23t07300z",
            "auto-2026-11-23-1t0730z",
            "auto-+026-11-23t0730z",
            "my-auto-2026-11-23t0730z",
        ] {
            assert_eq!(automatic_time(other), None, "{other}");
        }
    }

    #[test]
    fn weeks_begin_on_monday_at_midnight() {
        let week = every(7 * DAY);
        let next = CivilTime::from_seconds(week.next(1_795_419_042));
        assert_eq!((next.year, next.month, next.day, next.hour), (2026, 11, 30, 0));
        let hour = CivilTime::from_seconds(every(3_600).next(1_795_419_042));
        assert_eq!((hour.day, hour.hour, hour.minute), (23, 8, 0));
    }

    #[test]
    fn what_was_taken_in_this_interval_counts() {
        let now = 1_795_419_042;
        let names = ["monday", "auto-2026-11-23t0659z", "auto-2026-11-23t0701z", "auto-2026-11-23t0731z"];
        assert_eq!(every(3_600).taken_in_interval(now, names), Some(now - 42 - 29 * 60), "not what lies in the future");
        assert_eq!(every(3_600).taken_in_interval(now + 3_600, names), None);
    }

    #[test]
    fn what_could_not_go_on_is_refused() {
        assert!(every(0).check().is_err() && every(u64::MAX).check().is_err());
        assert!(every(1).check().is_ok());
        let keep = |last| Schedule { every_s: 60, keep: Retention { last, ..Retention::default() } };
        assert!(keep(0).check().unwrap_err().to_string().contains("--keep-last"));
        assert!(keep(1_000).check().is_ok() && keep(1_001).check().is_err());
    }

    proptest! {
        #[test]
        fn a_name_is_a_legal_one_and_read_back(seconds in FIRST_MONDAY..200_000_000_000, every_s in 1u64..100_000, others in 0u32..3) {
            let schedule = every(every_s);
            let name = schedule.name(seconds, others);
            prop_assert!(VolumeName::new(&name).is_ok());
            let time = automatic_time(&name).unwrap();
            // The name's minute is in the same interval.
            prop_assert_eq!(schedule.interval(time), schedule.interval(seconds));
            prop_assert!(schedule.next(seconds) > seconds && schedule.next(seconds) - seconds <= every_s);
        }
    }
}
