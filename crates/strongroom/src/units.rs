//! Sizes and durations as people write them, and back. Absent: everything that knows what they are for.

use std::time::Duration;

use strongroom_target::calendar::CivilTime;

/// A size in bytes from text such as `4096`, `512K`, `10GiB` or `1.5T`. Units are powers of 1024.
///
/// # Errors
/// A sentence for the person who wrote it.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; write for instance 4096, 512MiB, 10GiB or 2TiB");
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        "kb" | "mb" | "gb" | "tb" | "pb" => {
            return Err(format!("'{text}' is ambiguous; units here are powers of 1024: write KiB, MiB, GiB or TiB"));
        }
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is larger than any volume can be"));
    }
    let fraction: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = fraction * (1u64 << shift) as f64;
    if !bytes.is_finite() || bytes >= u64::MAX as f64 || bytes.fract() != 0.0 {
        return Err(format!("'{text}' is not a whole number of bytes; write a whole number with a smaller unit"));
    }
    Ok(bytes as u64)
}

/// A size for people: three digits and a binary unit.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || unit == 0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A size for people: `512 B`, `4 KiB`, `1 MiB`.
pub fn long_size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// A moment for people, from seconds since 1970: `2026-11-21 13:09 UTC`.
pub fn show_time(seconds: u64) -> String {
    let CivilTime { year, month, day, hour, minute, .. } = CivilTime::from_seconds(seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// A duration from text such as `30s`, `5m`, `500ms` or `2h`; a bare number is seconds.
///
/// # Errors
/// A sentence for the person who wrote it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration; write for instance 30s, 5m, 2h or 500ms");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

/// A length of time for people: its largest unit and the next smaller one, without what is zero.
pub fn show_duration(time: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let seconds = time.as_secs();
    let largest = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let mut shown = Vec::new();
    let mut left = seconds;
    for (unit, name) in UNITS.iter().skip(largest).take(2) {
        if left >= *unit || seconds == 0 {
            shown.push(format!("{} {name}", left / unit));
        }
        left %= unit;
    }
    shown.join(" ")
}

/// Bits in a second from text such as `1Gbit`, `100Mbit` or `64kbit`. Units are powers of 1000, as for links everywhere.
///
/// # Errors
/// A sentence for the person who wrote it.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a rate; write for instance 1Gbit, 100Mbit or 64kbit");
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let factor = match unit.trim().trim_end_matches("/s").to_ascii_lowercase().as_str() {
        "gbit" => 1e9,
        "mbit" => 1e6,
        "kbit" => 1e3,
        "bit" => 1.0,
        _ => return Err(wrong()),
    };
    Ok((number * factor) as u64)
}

/// A share of 1 from text such as `1%` or `0.1%`.
///
/// # Errors
/// A sentence for the person who wrote it.
pub fn parse_share(text: &str) -> Result<f32, String> {
    let wrong = || format!("'{text}' is not a share; write for instance 1% or 0.1%");
    let number: f32 = text.strip_suffix('%').and_then(|number| number.trim().parse().ok()).ok_or_else(wrong)?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("512K", 512 << 10),
            ("10GiB", 10 << 30),
            ("1.5T", 3 << 39),
            ("64 MiB", 64 << 20),
            ("0", 0),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "x", "10XB", "1.0001K", "99999999999P", "-1", "10GB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(show_size(10 << 30), "10 GiB");
        assert_eq!(show_size(1536), "1.5 KiB");
        assert_eq!(show_size(17), "17 B");
    }

    #[test]
    fn moments_are_dates() {
        assert_eq!(show_time(0), "1970-01-01 00:00 UTC");
        assert_eq!(show_time(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(show_time(1_795_266_542), "2026-11-21 13:09 UTC");
    }

    #[test]
    fn durations_as_people_write_them() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7200)));
        for text in ["", "s", "1y", "1.5s", "-3s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_of_time_are_shown_short() {
        let shown = |seconds| show_duration(Duration::from_secs(seconds));
        assert_eq!([0, 7, 83, 7_380].map(shown), ["0 s", "7 s", "1 min 23 s", "2 h 3 min"]);
        assert_eq!([60, 7_200, 86_400, 7 * 86_400].map(shown), ["1 min", "2 h", "1 d", "7 d"]);
        assert_eq!([3_601, 90_000, 86_459, 200_000].map(shown), ["1 h", "1 d 1 h", "1 d", "2 d 7 h"]);
    }

    #[test]
    fn rates_and_shares() {
        assert_eq!(parse_rate("1Gbit"), Ok(1_000_000_000));
        assert_eq!(parse_rate("2.5 Mbit/s"), Ok(2_500_000));
        assert!(parse_rate("1G").unwrap_err().contains("1Gbit"));
        assert!((parse_share("0.5%").unwrap() - 0.005).abs() < 1e-9);
        assert!(parse_share("1").unwrap_err().contains("1%") && parse_share("101%").is_err());
    }
}
