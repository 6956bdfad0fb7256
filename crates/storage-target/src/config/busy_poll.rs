//! `busy_poll` of the configuration, as text: `off`, `auto`, or microseconds.

use serde::{Deserialize, Deserializer, Serializer, de};
use strongroom_net::BusyPoll;

pub(super) fn serialize<S: Serializer>(setting: &BusyPoll, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(setting)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BusyPoll, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(de::Error::custom)
}
