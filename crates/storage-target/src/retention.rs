//! Which snapshots a rule of retention keeps, and why. Pure: times and names come from outside.
//!
//! A rule "daily 7" keeps the newest snapshot of each of the last seven days that have one; a day without a snapshot does not count.
//! A snapshot that any rule keeps stays. Periods are those of the calendar in UTC; weeks begin on Monday.
//!
//! Applied to what it left, a rule keeps all of it: the last periods that have a snapshot still have their newest one. And the newest
//! snapshot is the newest of its period, so that every rule keeps it.

use std::cmp::Reverse;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::calendar::{CivilTime, DAY};

/// How many snapshots to keep, by period; 0 for no such rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// The newest snapshots, whenever they were taken.
    #[serde(skip_serializing_if = "is_zero")]
    pub last: u32,
    /// The newest of each hour.
    #[serde(skip_serializing_if = "is_zero")]
    pub hourly: u32,
    /// The newest of each day.
    #[serde(skip_serializing_if = "is_zero")]
    pub daily: u32,
    /// The newest of each week.
    #[serde(skip_serializing_if = "is_zero")]
    pub weekly: u32,
    /// The newest of each month.
    #[serde(skip_serializing_if = "is_zero")]
    pub monthly: u32,
    /// The newest of each year.
    #[serde(skip_serializing_if = "is_zero")]
    pub yearly: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// One of the periods of which the newest snapshot is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Period {
    /// Grows with time; the same for all moments of one period.
    fn number(self, seconds: u64) -> u64 {
        let civil = CivilTime::from_seconds(seconds);
        match self {
            Period::Hour => seconds / 3_600,
            Period::Day => seconds / DAY,
            // 1970 began on a Thursday.
            Period::Week => (seconds / DAY + 3) / 7,
            Period::Month => civil.year * 12 + civil.month,
            Period::Year => civil.year,
        }
    }

    /// The rule's name and which period it is, for people.
    fn reason(self, seconds: u64) -> String {
        let date = |seconds| {
            let CivilTime { year, month, day, .. } = CivilTime::from_seconds(seconds);
            format!("{year:04}-{month:02}-{day:02}")
        };
        let CivilTime { year, month, hour, .. } = CivilTime::from_seconds(seconds);
        match self {
            Period::Hour => format!("hourly {} {hour:02}h", date(seconds)),
            Period::Day => format!("daily {}", date(seconds)),
            Period::Week => {
                let days_since_monday = (seconds / DAY + 3) % 7;
                format!("weekly of {}", date(seconds.saturating_sub(days_since_monday * DAY)))
            }
            Period::Month => format!("monthly {year:04}-{month:02}"),
            Period::Year => format!("yearly {year:04}"),
        }
    }
}

impl Retention {
    /// The names of the rules, as options and settings have them, with their numbers.
    fn rules(&self) -> [(&'static str, u32); 6] {
        let Retention { last, hourly, daily, weekly, monthly, yearly } = *self;
        let counts = [last, hourly, daily, weekly, monthly, yearly];
        let names = ["last", "hourly", "daily", "weekly", "monthly", "yearly"];
        std::array::from_fn(|rule| (names[rule], counts[rule]))
    }

    /// Whether no rule keeps anything.
    pub fn is_empty(&self) -> bool {
        *self == Retention::default()
    }

    /// At most how many snapshots it keeps.
    pub fn kept_max(&self) -> u64 {
        self.rules().into_iter().map(|(_, count)| u64::from(count)).sum()
    }

    /// Of each snapshot, by when it was taken (in seconds since 1970) and in the order in which they were taken: why it is kept. One
    /// without reasons goes.
    pub fn reasons(&self, taken: &[u64]) -> Vec<Vec<String>> {
        let mut newest_first: Vec<usize> = (0..taken.len()).collect();
        // Of the same second, the later one in the list is newer.
        newest_first.sort_by_key(|&index| Reverse((taken[index], index)));
        let mut reasons: Vec<Vec<String>> = vec![Vec::new(); taken.len()];
        for (rank, &index) in newest_first.iter().take(self.last as usize).enumerate() {
            reasons[index].push(format!("last {}", rank + 1));
        }
        let periods = [
            (Period::Hour, self.hourly),
            (Period::Day, self.daily),
            (Period::Week, self.weekly),
            (Period::Month, self.monthly),
            (Period::Year, self.yearly),
        ];
        for (period, count) in periods {
            let (mut left, mut current) = (count, None);
            for &index in &newest_first {
                let number = period.number(taken[index]);
                if current == Some(number) {
                    continue;
                }
                if left == 0 {
                    break;
                }
                (left, current) = (left - 1, Some(number));
                reasons[index].push(period.reason(taken[index]));
            }
        }
        reasons
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules().into_iter().filter(|&(_, count)| count > 0);
        let rules: Vec<String> = rules.map(|(name, count)| format!("{name} {count}")).collect();
        f.write_str(&rules.join(", "))
    }
}

#[cfg(test)]
mod tests;
