//! What an application sees: a block device that completes requests in any order.

use std::sync::Arc;
use std::time::Duration;

use crate::{Buffer, BufferMut, Geometry, Lba};

/// Chosen by the caller, handed back with the completion. Unique among the requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// One request. Lengths of buffers are whole blocks of the device's geometry.
#[derive(Debug)]
pub enum Request {
    /// Fill `buffer` from `lba` on.
    Read {
        /// First block.
        lba: Lba,
        /// Where the blocks go; its length says how many.
        buffer: BufferMut,
    },
    /// Store `data` from `lba` on.
    Write {
        /// First block.
        lba: Lba,
        /// Whole blocks.
        data: Buffer,
        /// Force unit access: durable before it completes.
        fua: bool,
    },
    /// Replace part of one block, atomically with respect to every other writer (conditional write and retry).
    WritePart {
        /// The block.
        lba: Lba,
        /// Where in the block, in bytes.
        offset_bytes: u32,
        /// Fewer bytes than a block.
        data: Buffer,
        /// Force unit access.
        fua: bool,
    },
    /// Make every write that completed before this was submitted durable.
    Flush,
    /// Forget `count` blocks; they read as zeros.
    Discard {
        /// First block.
        lba: Lba,
        /// How many.
        count: u64,
    },
}

/// What kind of failure; front ends map it to `errno`, targets to sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceErrorKind {
    /// The data at an address cannot be had, or is not authentic: never wrong data instead.
    Medium,
    /// Outside the device, or not whole blocks.
    OutOfRange,
    /// No space is left on the store.
    NoSpace,
    /// The device may not be written by us.
    ReadOnly,
    /// A reservation of another initiator stands in the way.
    ReservationConflict,
    /// The peer refused us (access, identity, policy): retrying will not help.
    Refused,
    /// The connection was lost for longer than the time-out.
    Unreachable,
    /// The device could not sync or write; what was not flushed may be lost.
    Hardware,
    /// There is no key to do it with: the key server takes it back or is away for too long, or never gave that one.
    NoKey,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", lba.map(|lba| format!(" (block {lba})")).unwrap_or_default())]
pub struct DeviceError {
    /// For programs.
    pub kind: DeviceErrorKind,
    /// The first block concerned, where one is known.
    pub lba: Option<Lba>,
    /// For people: what happened and what to do.
    pub message: String,
}

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// The caller's token.
    pub token: Token,
    /// The buffer of a read; `None` for everything else.
    pub result: Result<Option<BufferMut>, DeviceError>,
}

/// Answers requests in the thread in which they end, without a hand-over to the consumer of the completions.
pub trait CompletionSink: std::fmt::Debug + Send + Sync {
    /// Takes a completion, or gives it back for [`BlockDevice::poll_completions`]. Called in the device's own thread, or in `submit`: it must
    /// return soon, and not submit anything.
    fn complete(&self, completion: Completion) -> Option<Completion>;
}

/// A device that takes requests by token and completes them in any order, from any thread.
///
/// A request that was submitted always completes, once. One consumer takes the completions.
pub trait BlockDevice: Send + Sync {
    /// The shape of the device. While it is attached its blocks stay as large as they are, and can only become more.
    fn geometry(&self) -> Geometry;
    /// Hands a request over. Blocks only while the device's queue of requests is at its limit.
    fn submit(&self, token: Token, request: Request);
    /// Moves what has completed to the end of `completions`; returns how many. Never blocks.
    fn poll_completions(&self, completions: &mut Vec<Completion>) -> usize;
    /// Blocks until a completion can be polled (true) or the time is over (false).
    fn wait(&self, timeout: Option<Duration>) -> bool;
    /// Offers each completion from now on to `sink`, and no longer to the one before, before it can be polled. A device that cannot do that
    /// leaves all of them to be polled.
    fn offer_completions(&self, _sink: Arc<dyn CompletionSink>) {}
}
