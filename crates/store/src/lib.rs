//! The store room: blocks and their seal records, kept in a log, found by an index, never lost once flushed.
//!
//! One [`Store`] holds one volume. It is a machine without threads of its own: [`Store::submit`] takes an [`Op`] by token,
//! [`Store::poll_completions`] moves everything forward and hands back what has finished; a [`Waker`] tells the owner when
//! to poll again. A [`Backend`] does the I/O, also by token. The format is `docs/store-format.md`.
//!
//! Deliberately absent: cryptography and keys. A sealed block is bytes with a record; the store reads the record's stamp
//! and keyless checksum and cannot open anything.

pub mod backend;
mod cache;
mod catalogue;
mod check;
mod checkpoint;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod head;
mod holes;
mod index;
mod layout;
mod map;
mod medium;
mod op;
mod operations;
mod options;
mod planted;
mod random;
mod recover;
mod repair;
mod segments;
mod steps;
mod store;
mod stream;
mod superblock;
mod survey;
mod unit;
mod verified;
mod versions;
mod view;

pub use backend::{Backend, FileBackend, IoChoice, IoChoiceError, IoKind, MemoryBackend, SharedMemory, Waker};
pub use check::{CheckReport, Problem};
pub use error::StoreError;
pub use medium::{Medium, MediumError};
pub use op::{Completion, Extent, Op, OpError, Origin, Outcome};
pub use options::{CreateOptions, OpenOptions, SpaceState, Stats, StoreId, UnitKind, VolumeInfo};
pub use planted::{Planted, PlantedFault};
pub use recover::Damage;
pub use repair::{RepairOptions, RepairPlan, RepairStep};
pub use steps::steps_taken;
pub use store::{
    Admission, DamageReport, MemoryUse, PinnedCount, ReceiveStep, Receiver, ReceptionInfo, Run, ScrubReport, SendStep,
    Sender, Store, SuspectBlocks, VolumeIndex,
};
#[doc(hidden)]
pub use stream::fuzz_stream;
pub use stream::{StreamError, StreamInfo, StreamSealing};
pub use survey::{Contents, SuperblockSummary, Survey};
pub use versions::Unverified;
pub use view::{BranchId, BranchInfo, SnapshotId, SnapshotInfo, View};
