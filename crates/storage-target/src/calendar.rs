//! Dates and times of day in UTC from seconds since 1970, and back. Absent: time zones, and the clock.

/// Seconds in a day; UTC as computers count it has no others.
pub(crate) const DAY: u64 = 86_400;

/// A moment as a person writes it, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilTime {
    /// The year.
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
    /// 0 to 23.
    pub hour: u64,
    /// 0 to 59.
    pub minute: u64,
    /// 0 to 59.
    pub second: u64,
}

impl CivilTime {
    /// The moment this many seconds after the beginning of 1970.
    pub fn from_seconds(seconds: u64) -> CivilTime {
        // Howard Hinnant's algorithm; days count from 0000-03-01.
        let days = seconds / DAY + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        CivilTime {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            hour: seconds % DAY / 3_600,
            minute: seconds % 3_600 / 60,
            second: seconds % 60,
        }
    }

    /// Seconds since the beginning of 1970; `None` if there is no such moment, or it is before then.
    pub fn to_seconds(self) -> Option<u64> {
        let in_range = (1970..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=31).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second < 60;
        if !in_range {
            return None;
        }
        let year = self.year - u64::from(self.month <= 2);
        let month_from_march = (self.month + 9) % 12;
        let (era, year_of_era) = (year / 400, year % 400);
        let day_of_year = (153 * month_from_march + 2) / 5 + self.day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
        let seconds = days * DAY + self.hour * 3_600 + self.minute * 60 + self.second;
        // The 31st of April is not the 1st of May.
        (CivilTime::from_seconds(seconds) == self).then_some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_moments() {
        let civil = |seconds| {
            let at = CivilTime::from_seconds(seconds);
            [at.year, at.month, at.day, at.hour, at.minute, at.second]
        };
        assert_eq!(civil(0), [1970, 1, 1, 0, 0, 0]);
        assert_eq!(civil(951_782_400), [2000, 2, 29, 0, 0, 0]);
        assert_eq!(civil(1_795_266_542), [2026, 11, 21, 13, 9, 2]);
        let none = CivilTime { year: 2026, month: 4, day: 31, hour: 0, minute: 0, second: 0 };
        assert_eq!(none.to_seconds(), None);
    }

    proptest! {
        #[test]
        fn there_and_back(seconds in 0u64..253_402_300_800) {
            prop_assert_eq!(CivilTime::from_seconds(seconds).to_seconds(), Some(seconds));
        }
    }
}
