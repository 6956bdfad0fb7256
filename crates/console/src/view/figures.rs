//! Numbers, times and names as people read them.

use std::time::Duration;

use strongroom_target::calendar::CivilTime;

/// Text from elsewhere: what is not plainly visible is escaped, what is long is cut.
pub(crate) fn text(text: &str) -> String {
    strongroom_block::foreign(text).to_string()
}

/// Names from elsewhere.
pub(crate) fn texts(all: &[String]) -> String {
    all.iter().map(|one| text(one)).collect::<Vec<_>>().join(", ")
}

/// A size: three digits and a binary unit.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0 && value.fract() != 0.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A number with spaces between thousands.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push('\u{202f}');
        }
        shown.push(digit);
    }
    shown
}

/// `1 session`, `2 sessions`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// How much of a whole, in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let share = part as f64 * 100.0 / whole.max(1) as f64;
    format!("{:.*} %", usize::from(share > 0.0 && share < 10.0), share)
}

/// A length of time: its largest unit and the next smaller one.
pub(crate) fn duration(seconds: f64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    let largest = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let mut left = seconds;
    let mut shown = Vec::new();
    for (unit, name) in UNITS.iter().skip(largest).take(2) {
        if left >= *unit || seconds == 0 {
            shown.push(format!("{} {name}", left / unit));
        }
        left %= unit;
    }
    shown.join(" ")
}

/// A latency.
pub(crate) fn micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} ms", micros as f64 / 1e3),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

/// An upper bound of latencies; none: longer than is measured.
pub(crate) fn at_most(bound_us: Option<u64>) -> String {
    bound_us.map_or_else(|| "> 16 s".to_owned(), |bound| format!("≤ {}", micros(bound)))
}

/// Years that a date can have; a hostile target may say any number of seconds.
const SECONDS_MAX: u64 = 253_402_300_799;

/// A moment, from seconds since 1970.
pub(crate) fn moment(seconds: u64) -> String {
    let CivilTime { year, month, day, hour, minute, .. } = CivilTime::from_seconds(seconds.min(SECONDS_MAX));
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [0, 1023, 1536, 10 << 30, (150 << 20) + 1].map(size),
            ["0 B", "1023 B", "1.5 KiB", "10 GiB", "150 MiB"]
        );
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]);
        assert_eq!(
            [0.2, 83.0, 7380.0, f64::NAN, -1.0, f64::MAX].map(duration),
            ["0 s", "1 min 23 s", "2 h 3 min", "0 s", "0 s", "0 s"]
        );
        assert_eq!([0, 12, 1500, 22_000, 3_000_000].map(micros), ["0 µs", "12 µs", "1.5 ms", "22 ms", "3.0 s"]);
        assert_eq!(percent(1, 0), "100 %");
        assert_eq!(percent(1, 40), "2.5 %");
        assert_eq!(moment(u64::MAX), "9999-12-31 23:59 UTC");
    }
}
