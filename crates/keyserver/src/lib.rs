//! The key server's room: wrapped volume keys, who may have them, what was done with them, and the service; and its client.
//!
//! Keys live on a server of their own; valid clients fetch them; the storage server has no key management (quanta paper,
//! sections 2 and 3). The paper's file of keys per stored file is here a key per volume and epoch. `docs/keys.md` explains,
//! `docs/key-protocol.md` specifies.
//!
//! | module | holds |
//! |---|---|
//! | [`Client`] | what initiators and `strongroom key` call; blocking |
//! | `protocol`, `wire` | messages to bytes and back, nothing else |
//! | `connection` | one TCP connection, its handshake and channel, either end |
//! | `keys` | the key hierarchy; [`MasterKey`], the seam for a key management service |
//! | `volume`, `batch`, `audit` | what is kept: volumes, changes of them, the log |
//! | `database`, `shred` | where it is kept, and nothing else in the room knows how |
//! | `operations`, `engine` | policy: who may do what; one thread that commits |
//! | `replication`, `standby` | a second server that has everything the first one has told any client |
//! | [`KeyServer`], [`Config`] | the service |
//!
//! Deliberately absent: reading keys from files (the binary's), sealing blocks, the storage protocol.

mod audit;
mod batch;
mod client;
mod config;
mod connection;
mod database;
mod engine;
mod keys;
mod leases;
mod limits;
mod metrics;
mod operations;
mod protocol;
mod replication;
mod server;
mod shred;
mod standby;
mod volume;
mod wire;

pub use audit::{AuditError, AuditHead, AuditLine, NotAHead};
pub use batch::Role;
pub use client::{AuditPage, Client, ClientError, ClientOptions};
pub use config::{Config, ConfigError, IdentityRule, Limits, ServerRole};
pub use database::{Database, DatabaseError};
pub use keys::{LocalMasterKey, MasterKey, MasterKeyError};
pub use metrics::KeyServerReport;
pub use protocol::{KeyGrant, NewVolume, PROTOCOL_VERSION, ServerStatus, WAIT_MAX};
pub use server::{KeyServer, KeyServerReporter, ServerOptions, StartError};
pub use volume::{GRANTS_MAX, NAME_BYTES_MAX, Rights, UnknownRight, VolumeInfo, is_name};

#[doc(hidden)]
pub use database::fuzz_files;
#[doc(hidden)]
pub use protocol::fuzz_decode;

/// Where a key server listens unless told otherwise.
pub const DEFAULT_PORT: u16 = 3261;
