//! The initiator's room: attach to a volume, seal what is written, open what is read, and offer it to programs.
//!
//! ```text
//! front end (fuse, copy)  ->  BlockDevice  ->  RemoteDevice: seal, order, replay  ->  session, channel, driver
//! ```
//!
//! This is the one room that holds keys *and* touches the network. Deliberately absent: protocol rules (`iscsi`, `scsi`,
//! `channel`), cryptography (`seal`), and any path from a read that does not open to data: such a read is an error.

mod blocking;
pub mod chap;
mod completion;
pub mod copy;
mod discover;
mod error;
pub mod fuse;
mod key_source;
mod known;
pub mod loopdev;
mod memory;
mod options;
mod remote;
pub mod safety;
mod url;

pub use blocking::{discard_blocking, flush_blocking, read_blocking, write_blocking, write_part_blocking};
pub use discover::{DiscoverOptions, DiscoveredTarget, discover};
pub use error::AttachError;
pub use key_source::{KeyFileSource, KeyRequest, KeySource, KeySourceError};
pub use known::{ExpectedUnit, KnownVolumes, KnownVolumesError, SealedClaims, UnitMismatch};
pub use memory::{MemoryCounts, MemoryDevice};
pub use options::{AttachOptions, Limits, Timeouts, default_initiator_name};
pub use remote::{
    ConnectionStatus, EngineCounters, RecoverError, Recovered, RemoteDevice, SealedUnit, UnitDescription, inquire,
};
pub use strongroom_channel::Scheme;
pub use strongroom_iscsi::DigestOffer;
pub use url::{DEFAULT_BASE_IQN, DEFAULT_PORT, UrlError, VolumeUrl, is_volume_name};
