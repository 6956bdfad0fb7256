//! What a profile says of one cell: CPU time for each I/O, by stage, at both ends. Plain data, one group of a cell's JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Both ends of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CellProfile {
    /// The target's processes.
    pub target: EndProfile,
    /// The initiators'.
    pub initiator: EndProfile,
}

/// One end. All times are in microseconds of CPU time for each I/O.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndProfile {
    /// How many samples all of this is made from.
    pub samples: u64,
    /// By the name of the stage. Together: the CPU time of the end for each I/O.
    pub stages_us: BTreeMap<String, f64>,
    /// Of that: allocation, copying and the like, in any stage.
    pub of_which_us: BTreeMap<String, f64>,
    /// Of that: by source file, or function of the kernel. The largest.
    pub places_us: BTreeMap<String, f64>,
    /// Of that: by function, inlined ones with their callers. The largest.
    pub functions_us: BTreeMap<String, f64>,
    /// System calls for each I/O, by name; absent where they could not be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_calls: Option<BTreeMap<String, f64>>,
}
