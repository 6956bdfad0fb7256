//! What is compared: how many writes an initiator has under way, and what encrypts.

use std::fmt;
use std::str::FromStr;

use strongroom_channel::Scheme;
use strongroom_initiator::model::{Bottleneck, Bounds, Conditions, Depth, ideal_depth};

use crate::{BenchError, SchemeChoice};

/// `auto` is offered this many times what fills the link, and so much at least, in bytes; how much of it is under way is its own choice.
pub(super) const OFFERED_TIMES: u64 = 4;
const OFFERED_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=64 << 20;
/// I/Os that it is offered at once, at least and at most.
const OFFERED_MIN: u32 = 8;
const OFFERED_MAX: u32 = 1024;
/// A new connection has so much under way for so long, in writes of up to [`TEACHING_WRITE_BYTES`]. Without, BBR would take what one small
/// write a round trip comes to for all that the link carries, and spread each write over a third of a round trip, for ever.
const TEACHING_BYTES: u64 = 4 << 20;
pub(super) const TEACHING_WRITE_BYTES: u64 = 2 << 20;

/// What the initiator does with its waiting time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// One write at a time, in a channel that encrypts everything: S2-1.
    EagerOneAtATime,
    /// One write at a time, sealed, without overlap: S2-5.
    SealedOneAtATime,
    /// The paper's OP-*n*: this many writes under way, the next ones sealed meanwhile.
    Fixed(u32),
    /// The depth is found by itself.
    Auto,
}

impl Setting {
    /// The paper's, and ours.
    pub fn all() -> Vec<Setting> {
        let fixed = [2, 4, 6, 8, 10].map(Setting::Fixed);
        [&[Setting::EagerOneAtATime, Setting::SealedOneAtATime], &fixed[..], &[Setting::Auto]].concat()
    }

    /// What the channel protects.
    pub fn scheme(self) -> SchemeChoice {
        SchemeChoice::Channel(if self == Setting::EagerOneAtATime { Scheme::EncryptAll } else { Scheme::Lazy })
    }

    /// I/Os of `size` bytes that it is offered, over a link that holds `flight_bytes` in a round trip.
    pub(super) fn depth(self, size: u64, flight_bytes: u64) -> u32 {
        match self {
            Setting::EagerOneAtATime | Setting::SealedOneAtATime => 1,
            Setting::Fixed(n) => n,
            Setting::Auto => {
                let bytes = (OFFERED_TIMES * flight_bytes).clamp(*OFFERED_BYTES.start(), *OFFERED_BYTES.end());
                u32::try_from(bytes / size).unwrap_or(OFFERED_MAX).clamp(OFFERED_MIN, OFFERED_MAX)
            }
        }
    }

    /// As the initiator takes it.
    pub(super) fn pipeline(self) -> String {
        match self {
            Setting::EagerOneAtATime | Setting::SealedOneAtATime => "1".to_owned(),
            Setting::Fixed(n) => n.to_string(),
            Setting::Auto => "auto".to_owned(),
        }
    }

    /// What the model says of it, in bytes per second, and what limits that.
    pub(super) fn modelled(self, conditions: &Conditions) -> (f64, Bottleneck) {
        let depth = self.depth_modelled(conditions);
        match self {
            Setting::Auto => conditions.throughput(depth),
            _ => conditions.throughput_of_fixed(depth),
        }
    }

    /// Writes under way and workers, as the model has it. An initiator is kept on one processor.
    pub(super) fn depth_modelled(self, conditions: &Conditions) -> Depth {
        match self {
            Setting::EagerOneAtATime | Setting::SealedOneAtATime => Depth { n: 1, c: 1 },
            Setting::Fixed(n) => Depth { n, c: 1 },
            Setting::Auto => ideal_depth(conditions, &Bounds { c_max: 1, ..Bounds::default() }),
        }
    }

    /// Bytes of a write, of which as many as this setting has under way fill a link.
    pub(super) fn teaching_size(self, size: u64) -> u64 {
        match self {
            Setting::EagerOneAtATime | Setting::SealedOneAtATime => TEACHING_WRITE_BYTES,
            Setting::Fixed(n) => (TEACHING_BYTES / u64::from(n))
                .next_power_of_two()
                .clamp(size.min(TEACHING_WRITE_BYTES), TEACHING_WRITE_BYTES),
            Setting::Auto => size,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::EagerOneAtATime => f.write_str("S2-1 one at a time"),
            Setting::SealedOneAtATime => f.write_str("S2-5 one at a time"),
            Setting::Fixed(n) => write!(f, "OP-{n}"),
            Setting::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Setting {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Setting, BenchError> {
        let upper = text.trim().to_ascii_uppercase();
        let fixed =
            upper.strip_prefix("OP-").and_then(|n| n.parse::<u32>().ok()).filter(|n| (2..=OFFERED_MAX).contains(n));
        match (upper.as_str(), fixed) {
            ("S2-1", _) => Ok(Setting::EagerOneAtATime),
            ("S2-5", _) => Ok(Setting::SealedOneAtATime),
            ("AUTO", _) => Ok(Setting::Auto),
            (_, Some(n)) => Ok(Setting::Fixed(n)),
            _ => Err(BenchError::Asked(format!(
                "'{text}' is no setting; give S2-1 or S2-5 (one write at a time), OP-2, OP-4 and so on, or auto"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_named() {
        let names: Vec<String> = Setting::all().iter().map(Setting::to_string).collect();
        assert_eq!(names[..3], ["S2-1 one at a time", "S2-5 one at a time", "OP-2"]);
        for (text, setting) in
            [("s2-1", Setting::EagerOneAtATime), ("OP-10", Setting::Fixed(10)), ("auto", Setting::Auto)]
        {
            assert_eq!(text.parse::<Setting>().unwrap(), setting);
        }
        for wrong in ["OP-1", "OP-", "S2-3", ""] {
            assert!(wrong.parse::<Setting>().unwrap_err().to_string().contains("OP-2"), "{wrong}");
        }
        // 1 Gbit/s over 128 ms, and a short way.
        assert_eq!([16 << 10, 64 << 10, 2 << 20].map(|size| Setting::Auto.depth(size, 16_000_000)), [1024, 976, 30]);
        assert_eq!([16 << 10, 2 << 20].map(|size| Setting::Auto.depth(size, 0)), [256, 8]);
    }

    #[test]
    fn every_setting_learns_the_link_by_writes_that_fill_it() {
        for (setting, size, taught) in [
            (Setting::SealedOneAtATime, 16 << 10, 2 << 20),
            (Setting::Fixed(2), 16 << 10, 2 << 20),
            (Setting::Fixed(10), 16 << 10, 512 << 10),
            (Setting::Fixed(10), 2 << 20, 2 << 20),
            (Setting::Auto, 64 << 10, 64 << 10),
        ] {
            assert_eq!(setting.teaching_size(size), taught, "{setting} of {size}");
        }
    }
}
