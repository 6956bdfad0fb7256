//! Proves the rules of retention on examples by hand, and for any rule and any times that pruning twice is pruning once, that the
//! newest snapshot stays, and that nothing is kept without need.

use proptest::prelude::*;

use super::*;

fn at(year: u64, month: u64, day: u64, hour: u64, minute: u64) -> u64 {
    CivilTime { year, month, day, hour, minute, second: 0 }.to_seconds().expect("a date")
}

/// The times of what is kept.
fn kept(retention: Retention, taken: &[u64]) -> Vec<u64> {
    let reasons = retention.reasons(taken);
    taken.iter().zip(reasons).filter(|(_, reasons)| !reasons.is_empty()).map(|(&taken, _)| taken).collect()
}

#[test]
fn each_day_keeps_its_newest() {
    let taken = [
        at(2026, 11, 18, 9, 0),
        at(2026, 11, 20, 9, 0),
        at(2026, 11, 20, 23, 59),
        // Nothing on the 21st: it does not count.
        at(2026, 11, 22, 0, 0),
        at(2026, 11, 23, 7, 0),
        at(2026, 11, 23, 8, 0),
    ];
    let retention = Retention { daily: 3, ..Retention::default() };
    assert_eq!(kept(retention, &taken), [taken[2], taken[3], taken[5]]);
    assert_eq!(retention.reasons(&taken)[5], ["daily 2026-11-23"]);
}

#[test]
fn weeks_begin_on_monday_and_months_on_their_first() {
    // 2026-11-23 is a Monday.
    let taken = [at(2026, 10, 31, 1, 0), at(2026, 11, 1, 1, 0), at(2026, 11, 22, 23, 0), at(2026, 11, 23, 0, 0)];
    let weekly = Retention { weekly: 2, ..Retention::default() };
    assert_eq!(kept(weekly, &taken), [taken[2], taken[3]]);
    assert_eq!(weekly.reasons(&taken)[2], ["weekly of 2026-11-16"]);
    let monthly = Retention { monthly: 2, ..Retention::default() };
    assert_eq!(kept(monthly, &taken), [taken[0], taken[3]]);
    assert_eq!(monthly.reasons(&taken)[0], ["monthly 2026-10"]);
    // The week goes on over the end of a year, the year does not.
    let new_year = [at(2025, 12, 31, 1, 0), at(2026, 1, 1, 1, 0)];
    assert_eq!(kept(weekly, &new_year), [new_year[1]]);
    assert_eq!(kept(Retention { yearly: 9, ..Retention::default() }, &new_year), new_year);
}

#[test]
fn what_one_rule_keeps_stays_under_all_others() {
    let hours: Vec<u64> = (0..72).map(|hour| at(2026, 11, 20, 0, 30) + hour * 3_600).collect();
    let retention = Retention { last: 1, hourly: 4, daily: 2, ..Retention::default() };
    let reasons = retention.reasons(&hours);
    assert_eq!(reasons[71], ["last 1", "hourly 2026-11-22 23h", "daily 2026-11-22"]);
    assert_eq!(kept(retention, &hours), [hours[47], hours[68], hours[69], hours[70], hours[71]]);
    assert_eq!(retention.to_string(), "last 1, hourly 4, daily 2");
    assert!(kept(retention, &[]).is_empty());
}

#[test]
fn of_the_same_second_the_later_one_is_newer() {
    let retention = Retention { daily: 1, ..Retention::default() };
    let reasons = retention.reasons(&[5, 5, 5]);
    assert!(reasons[0].is_empty() && reasons[1].is_empty() && reasons[2].len() == 1);
}

fn any_retention() -> impl Strategy<Value = Retention> {
    [0u32..5, 0u32..5, 0u32..5, 0u32..5, 0u32..5, 0u32..5].prop_map(|[last, hourly, daily, weekly, monthly, yearly]| {
        Retention { last, hourly, daily, weekly, monthly, yearly }
    })
}

/// Times within years, days, hours or minutes of each other.
fn any_times() -> impl Strategy<Value = Vec<u64>> {
    let span = prop_oneof![Just(4_000u64), Just(400_000), Just(40_000_000), Just(400_000_000)];
    span.prop_flat_map(|span| proptest::collection::vec(1_700_000_000..1_700_000_000 + span, 0..80))
}

proptest! {
    #[test]
    fn pruning_twice_is_pruning_once(retention in any_retention(), taken in any_times()) {
        let once = kept(retention, &taken);
        prop_assert_eq!(kept(retention, &once), once);
    }

    #[test]
    fn the_newest_stays(retention in any_retention(), taken in any_times()) {
        prop_assume!(!retention.is_empty() && !taken.is_empty());
        let newest = *taken.iter().max().unwrap();
        prop_assert!(kept(retention, &taken).contains(&newest));
    }

    #[test]
    fn no_more_is_kept_than_the_rules_say(retention in any_retention(), taken in any_times()) {
        prop_assert!(kept(retention, &taken).len() as u64 <= retention.kept_max());
        let all = Retention { last: 80, ..retention };
        prop_assert_eq!(kept(all, &taken).len(), taken.len());
    }

    /// What is added later never brings back what went, and a snapshot taken now is kept.
    #[test]
    fn as_time_goes_on_less_of_the_past_is_kept(retention in any_retention(), mut taken in any_times()) {
        prop_assume!(!retention.is_empty());
        taken.sort_unstable();
        let before = kept(retention, &taken);
        let now = taken.last().copied().unwrap_or(1_700_000_000) + 60;
        taken.push(now);
        let after = kept(retention, &taken);
        prop_assert!(after.contains(&now));
        prop_assert!(after.iter().all(|time| *time == now || before.contains(time)));
    }
}
