//! What the runner says to an initiator's process and hears from it: one JSON object a line, on its standard streams.
//!
//! Initiators run in processes of their own so that their CPU time can be told apart and they can be kept on their own
//! processors. Ours is `strongroom-lab initiator`; a driver around another initiator that speaks the same lines can take
//! part in every experiment. The order of things: `attach`, perhaps `fill`, then any number of
//! `start` (→ `go`) → `mark` → `stop`; an end of the input ends the process.

use serde::{Deserialize, Serialize};

use crate::grid::Pattern;
use crate::latency::LatencyCounts;

/// From the runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "order")]
pub enum Order {
    /// Attach a volume, in place of the one before. What `how` holds is between a contender and its initiators.
    Attach {
        /// Where and how.
        how: serde_json::Value,
    },
    /// Write every byte of the volume once, and make it durable.
    Fill,
    /// Do I/O until told to stop; answered at once, or when what is sealed beforehand is sealed.
    Start(IoJob),
    /// Begin now: what is sealed beforehand waits for this after `started`, so that all initiators begin together. Not answered.
    Go,
    /// One process's part of BTIO; answered with `stopped` when it is done.
    Btio(BtioJob),
    /// Warm-up is over: forget what was counted.
    Mark,
    /// Stop, wait for what is in flight, and tell what was counted between `mark` and now.
    Stop,
}

/// I/O to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoJob {
    /// How addresses follow each other.
    pub pattern: Pattern,
    /// Bytes of one I/O.
    pub size: u64,
    /// I/Os in flight.
    pub depth: u32,
    /// Where this initiator's part of the volume begins, in bytes.
    pub start: u64,
    /// How long it is, in bytes.
    pub len: u64,
    /// Compare what is read with what must be there, and read back what was written.
    pub verify: bool,
    /// I/Os may be parts of a block: read with the rest of it, written by read, change and conditional write.
    #[serde(default)]
    pub parts: bool,
    /// Seal this many bytes of writes before I/O begins, and write these; read without opening. What is there to be read is opened once
    /// before. 0: everything is sealed and opened as it comes.
    #[serde(default)]
    pub sealed_beforehand_bytes: u64,
    /// I/Os that begin in a second, evenly spaced, as long as no more than `depth` are in flight; how long one took counts from when it was
    /// due. 0: each begins when another one has completed.
    #[serde(default)]
    pub rate: u32,
    /// For random addresses.
    pub seed: u64,
}

/// One BTIO process's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BtioJob {
    /// The problem's class.
    pub class: char,
    /// How many dumps it writes.
    pub dumps: u32,
    /// Which process.
    pub rank: u32,
    /// Of how many.
    pub count: u32,
    /// Writes in flight.
    pub depth: u32,
    /// Tells the contents of one measurement from those of another.
    pub run: u32,
    /// Read and compare all, instead of writing.
    pub verify: bool,
}

/// To the runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Answer {
    /// To `attach`.
    Attached(Volume),
    /// To `fill`.
    Filled,
    /// To `start`.
    Started,
    /// To `mark`.
    Marked,
    /// Unasked, after `marked`: what was sealed beforehand is nearly used up.
    Spent,
    /// To `stop`.
    Stopped(Outcome),
    /// To any order that could not be carried out.
    Failed {
        /// Why.
        message: String,
    },
}

/// What was attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Bytes.
    pub bytes: u64,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// The suite that was agreed on; `none` where nothing is encrypted.
    pub suite: String,
}

/// Counts between `mark` and `stop` in which every I/O counts with the share of its time that lies between the two, regardless of when it
/// completes. With few and long I/Os, or many that complete together, this gives their rate, and counting completions does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProratedCounts {
    /// Bytes of block data.
    pub bytes: u64,
    /// What their cryptography came to, in bytes: as many for each byte as from `start` to the last completion.
    pub crypto_bytes: u64,
    /// Of those, bytes encrypted.
    pub encrypted_bytes: u64,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// From `mark` to `stop`, in nanoseconds.
    pub elapsed_ns: u64,
    /// I/Os that completed.
    pub ios: u64,
    /// Bytes of block data in them.
    pub bytes: u64,
    /// The same, but I/Os that were in flight at `mark` or `stop` count in proportion.
    pub prorated: ProratedCounts,
    /// How long they took.
    pub latency: LatencyCounts,
    /// I/Os that failed, at any time since `start`.
    pub errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// Bytes encrypted, decrypted or authenticated by this process between `mark` and `stop`; `None`: it cannot tell.
    pub crypto_bytes: Option<u64>,
    /// Of those, bytes encrypted.
    pub encrypted_bytes: Option<u64>,
    /// Blocks of 512 bytes that were compared.
    pub verified: Option<u64>,
}
