//! The vocabulary room: the words that every other room speaks.
//!
//! Addresses, geometry, identifiers, seal records as bytes, aligned buffers, and the traits at the few real seams.
//! Deliberately absent: I/O, cryptography, threads, clocks. A seal record is *named* here (so that a store without keys
//! can read its stamp and check its keyless checksum) but only the `seal` room can make or open one.

mod address;
mod buffer;
mod checksum;
mod counters;
mod device;
mod foreign;
mod identity;
mod latency;
mod opener;
mod record;
mod suite;
mod wiped;

pub use address::{BlockSize, Geometry, GeometryError, Lba};
pub use buffer::{BUFFER_ALIGN, Buffer, BufferMut};
pub use checksum::keyless_checksum;
pub use counters::{CryptoBytes, CryptoCounters};
pub use device::{BlockDevice, Completion, CompletionSink, DeviceError, DeviceErrorKind, Request, Token};
pub use foreign::{FOREIGN_CHARS_MAX, Foreign, foreign, with_foreign_parts};
pub use identity::{AttachId, ParseIdError, SealingDomain, Stamp, StoreSequence, VolumeId};
pub use latency::{IoKind, Latencies, LatencyCounters, LatencyHistogram};
pub use opener::{BlockKeyWrap, OpenError, Opener, Resealer, WrapError};
pub use record::{
    BLOCK_KEY_BYTES, Custody, HoleRecord, Mode, RECORD_BYTES_MAX, RECORD_VERSION, RecordError, RecordFlags, SealRecord,
    SealedBlock, TAG_BYTES, WRAPPED_KEY_BYTES,
};
pub use suite::{Suite, UnknownSuite};
pub use wiped::wiped;
