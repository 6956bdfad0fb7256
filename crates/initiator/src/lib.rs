//! The initiator's room: attach to a volume, seal what is written, open what is read, and offer it to programs.
//!
//! ```text
//! front end (fuse, copy)  ->  BlockDevice  ->  RemoteDevice: seal, order, replay  ->  session, channel, driver
//! ```
//!
//! # Use
//!
//! A [`VolumeUrl`] says what to attach and how it is protected on the way, [`AttachOptions`] the rest, and [`RemoteDevice`] is the
//! volume: a `BlockDevice` whose requests complete in any order, or, with the functions below, one call after the other.
//!
//! ```no_run
//! use strongroom_block::{Buffer, Lba};
//! use strongroom_initiator::{AttachOptions, RemoteDevice, flush_blocking, read_blocking, write_blocking};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Any iSCSI target; nothing is sealed.
//! let device = RemoteDevice::attach(AttachOptions::new("iscsi://storage/iqn.2026-11.org.example:disk/0".parse()?))?;
//! let block = read_blocking(&device, Lba(0), 1)?;
//! write_blocking(&device, Lba(1), Buffer::copy_from(&block), false)?;
//! // From here on it survives a crash of the target.
//! flush_blocking(&device)?;
//! device.detach()?;
//! # Ok(())
//! # }
//! ```
//!
//! A sealed volume needs to know whom to trust, and its key. Both sides prove who they are before a word of iSCSI is said.
//!
//! ```no_run
//! use std::sync::Arc;
//! use strongroom_block::{Buffer, Lba};
//! use strongroom_handshake::NodeKey;
//! use strongroom_initiator::{AttachOptions, KeyFileSource, RemoteDevice, flush_blocking, write_blocking};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = AttachOptions::new("strongroom://storage/vault".parse()?);
//! options.channel.node_key = Some(Arc::new(NodeKey::parse(&std::fs::read_to_string("identity")?)?));
//! options.channel.target_keys = vec![std::fs::read_to_string("storage.pub")?.trim().parse()?];
//! options.sealing.key_source = Some(Arc::new(KeyFileSource::new("vault.key")));
//! // A long way: several TCP connections share the load, and the session outlives the loss of one.
//! options.iscsi.connections = 4;
//! let device = RemoteDevice::attach(options)?;
//! let size = device.unit().geometry.block_size.len();
//! write_blocking(&device, Lba(0), Buffer::copy_from(&vec![7; size]), false)?;
//! flush_blocking(&device)?;
//! device.detach()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does by itself
//!
//! A lost connection is made again, and what was in flight is sent again, unchanged; an acknowledged write that was not
//! flushed is kept, and sent again to a target that was restarted. Redirections are followed, unit attentions and busy targets
//! waited out, a target that fell silent is connected to again, a target that stays away is given up after a time that can be chosen
//! ([`Timeouts`]). A block that does not open, a refusal, a reservation of somebody else's are errors and stay errors. The options
//! and their cost are in `docs/iscsi.md`, "The initiator".
//!
//! This is the one room that holds keys *and* touches the network. Deliberately absent: protocol rules (`iscsi`, `scsi`,
//! `channel`), cryptography (`seal`), and any path from a read that does not open to data, but the one that has to be asked for
//! at both ends ([`DamagedReads::Previous`]): such a read is an error.

mod blocking;
pub mod chap;
mod completion;
mod conversation;
pub mod copy;
mod device;
mod discover;
mod error;
pub mod front;
mod key_server_source;
mod key_source;
mod known;
mod lease;
mod memory;
pub mod model;
mod options;
mod path;
pub mod pipeline;
mod reservation;
pub mod safety;
mod session;
mod url;

pub use blocking::{discard_blocking, flush_blocking, read_blocking, write_blocking, write_part_blocking};
pub use device::{
    ConnectionStatus, Erased, Growth, PreviousReads, RecoverError, Recovered, RemoteDevice, ResealProgress,
    ResealReport, SealedWrite, UnsealedGrowth, VerifyProgress, VerifyReport, VolumeContents, fence, grow_and_seal,
    inquire, unsealed_part, writers,
};
pub use discover::{DiscoverOptions, DiscoveredTarget, discover};
pub use error::AttachError;
pub use key_server_source::KeyServerSource;
pub use key_source::{KeyFileSource, KeyRequest, KeySource, KeySourceError, VolumeKeys};
pub use known::{ExpectedUnit, KnownVolumes, KnownVolumesError, SealedClaims, UnitMismatch};
pub use lease::{LeaseOptions, WriterConflict, describe as describe_writer, describe_process, is_process};
pub use memory::{MemoryCounts, MemoryDevice};
#[doc(hidden)]
pub use options::SimulatedFaults;
pub use options::{
    AttachOptions, ChannelOptions, DamagedReads, IscsiOptions, Limits, Rekey, SealingOptions, Timeouts,
    default_initiator_name, first_burst_bytes,
};
pub use path::{PathLimits, PathMeasurement, measure_path};
pub use pipeline::engine::EngineCounters;
pub use pipeline::key_renewal::KeyStatus;
pub use pipeline::losses::WriteLosses;
pub use pipeline::meter::RequestReport;
pub use pipeline::unit::{SealedUnit, UnitDescription};
pub use pipeline::{PathRoundTrip, Pipeline, PipelineError, PipelineStatus};
pub use reservation::{
    FenceReport, FenceRequest, Registrant, ReservationError, ReservationKey, ReservationKeyError, Victim,
};
pub use strongroom_channel::Scheme;
pub use strongroom_iscsi::DigestOffer;
pub use strongroom_net::{BusyPoll, PollCounters};
pub use strongroom_scsi::vendor::lease::{LeaseMode, Standing, Writer, WriterRole};
/// The initiator as a machine without sockets, threads and clock, for simulations.
#[doc(hidden)]
pub mod machine {
    pub use crate::device::machine::{Finished, Initiator};
}
pub use session::transport::PacketStatus;
pub use url::{DEFAULT_BASE_IQN, DEFAULT_PORT, Transport, UrlError, UrlParameters, VolumeUrl, is_volume_name};
