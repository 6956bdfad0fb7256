//! The target room: portals, access control, logical units, the catalogue of volumes.
//!
//! [`Target::start`](server::Target::start) serves the volumes of a [`Catalogue`]: one worker thread per core, each volume owned by
//! one worker, nothing shared on the data path. Deliberately absent: keys of volumes, and anything that could open a block; this
//! crate does not depend on `seal`, and what a trusted target must wrap (custody `target`) it is handed from outside as a
//! [`strongroom_block::BlockKeyWrap`].

pub mod access;
pub mod admin;
mod budget;
pub mod calendar;
pub mod catalogue;
mod channel_stream;
mod command_counters;
pub mod config;
mod connection_handlers;
mod connection_slots;
mod detached_connection;
mod dial;
mod endpoint;
mod error;
mod iterations;
#[doc(hidden)]
pub mod machine;
mod metrics;
pub mod names;
mod open_units;
pub mod operate;
pub mod operators;
pub mod pairing;
mod polling;
mod pool;
pub mod protection;
mod reception;
mod receptions;
pub mod retention;
mod roles;
pub mod schedule;
mod schedule_runner;
mod scheduler;
mod sends;
mod server;
mod services;
mod session_loads;
mod settings;
mod stats;
mod store_handle;
mod store_queue;
mod succession;
pub mod transfers;
mod turns;
mod unit;
pub mod volume;
mod volume_keys;
mod worker;
mod worker_directory;

pub use access::ChapSecrets;
pub use budget::MemoryReport;
pub use catalogue::{
    Catalogue, Listing, OpenVolume, SUCCESSOR_SUFFIX, SealedSpec, SuccessorSpec, VolumeSpec, VolumeStatus,
};
pub use config::Config;
pub use error::{CatalogueError, ConfigError, DescriptionError, KeyError, ProviderError, StartError};
pub use iterations::{IterationBucket, IterationTimes};
pub use metrics::MetricsReport;
pub use polling::BusyPollReport;
pub use protection::{Protection, ProtectionError, ProtectionUnmet, Service};
pub use retention::Retention;
pub use roles::PeerRole;
pub use schedule::{Schedule, ScheduleError};
pub use server::{Target, TargetHandle, TargetOptions, TargetReporter};
pub use settings::ConfigReader;
pub use stats::{PacketCounts, SessionInfo, Stats};
pub use strongroom_net::BusyPoll;
pub use strongroom_store::{IoChoice, Medium};
pub use volume::{Access, CloneOf, Sealed, Volume};
pub use volume_keys::{OpenerFactory, ResealerFactory, WrapFactory};

/// Most bytes that one READ or WRITE moves; told to initiators in VPD page 0xB0.
pub const TRANSFER_BYTES_MAX: u32 = 16 << 20;
