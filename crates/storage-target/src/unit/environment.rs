//! What a unit knows of the target around it.

use std::sync::Arc;

use crate::config::Config;
use crate::open_units::OpenUnits;

/// The same for every unit of a target; it does not change while the target runs.
#[derive(Debug)]
pub(crate) struct TargetEnvironment {
    /// The target's ports by relative identifier: the tags of its portal groups.
    pub(crate) ports: Arc<[u16]>,
    /// For VPD page 85h.
    pub(crate) management_url: Option<String>,
    /// The other units.
    pub(crate) open_units: OpenUnits,
}

impl TargetEnvironment {
    pub(crate) fn of(config: &Config) -> TargetEnvironment {
        TargetEnvironment {
            ports: config.group_tags().into(),
            management_url: config.management_url.clone(),
            open_units: OpenUnits::default(),
        }
    }
}
