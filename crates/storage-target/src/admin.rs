//! The admin interface: one request and one reply per line, as JSON, over a Unix socket that only this target's user and
//! root may use. `docs/admin.md` is its specification.
//!
//! [`Request`] and [`Reply`] are what is said, [`Client`] asks, and the target answers in threads of their own, which never
//! touch a session or a store: they ask the workers. Deliberately absent: anything that needs a key.

mod activity;
mod answer;
mod answer_peers;
mod answer_volumes;
mod client;
mod drain;
pub(crate) mod error;
mod lines;
mod peers;
mod receive;
mod report;
mod send;
mod socket;
mod volumes;
mod workers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::roles::PeerRole;

pub use crate::operate::{CloneReport, Description, Operation, Pruned, PrunedSnapshot, SnapshotReport};
pub use activity::{ActivityReport, LatencyBucket, LatencyReport, LeaseReport};
pub(crate) use answer::{execute, reload, status};
pub(crate) use answer_volumes::check_peers;
pub use client::{AdminError, Client};
pub(crate) use drain::Drain;
pub use error::{ReloadError, RequestError};
pub use peers::{InvitationReport, InvitationText, PeerOperation, PeerOrigin, PeerReport};
pub use report::{
    ConnectionReport, EclReport, ScheduleReport, SessionReport, SpaceReport, StatusReport, StoreReport,
    VerificationReport, VolumeReport, WaitingReport,
};
pub(crate) use socket::AdminSocket;
pub use volumes::{BlindCustody, NewSealing, NewVolume, SealingInfo, VolumeEntry, VolumeInfo, VolumeShape};
pub(crate) use workers::{recheck, workers_answer};

/// The version of this protocol, as a status report tells it. A field that is removed or means something else raises it; fields and
/// requests that are added do not.
pub const PROTOCOL: u32 = 1;
/// Upper bound on one request, its newline included, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Upper bound on one reply that [`Client`] takes, in bytes.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Upper bound on one slice of a stream, in bytes.
pub const SLICE_BYTES_MAX: usize = 4 << 20;
/// How long the receiver of a stream may take for one slice.
pub const SLICE_PATIENCE: Duration = Duration::from_secs(600);
/// Clients that are served at a time; more are turned away.
pub const CLIENTS_MAX: usize = 16;
/// How long a client may take to send a request, or to take a reply.
pub const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// The socket's file in the directory with the volumes, unless the configuration names another.
pub const SOCKET_NAME: &str = ".admin.sock";

/// Where the admin socket of the target that serves `root` is, unless its configuration says otherwise.
pub fn default_socket(root: &Path) -> PathBuf {
    root.join(SOCKET_NAME)
}

/// What can be asked of a running target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Everything about the target now. Answered by [`Reply::Status`].
    Status,
    /// Ends sessions. Answered by [`Reply::Sessions`].
    SessionDrop {
        /// The session of this number, as `status` shows it.
        #[serde(default)]
        id: Option<u64>,
        /// Every session of this initiator name.
        #[serde(default)]
        initiator: Option<String>,
        /// Every session of this peer.
        #[serde(default)]
        peer: Option<String>,
        /// Every session with this volume.
        #[serde(default)]
        volume: Option<String>,
    },
    /// Sends initiators away: new logins are redirected or refused, sessions are asked to log out. Answered by
    /// [`Reply::Sessions`].
    Drain {
        /// Where to send them, `host:port`; without it logins are refused as "service unavailable".
        #[serde(default)]
        to: Option<String>,
        /// Only from this volume; without it from all.
        #[serde(default)]
        volume: Option<String>,
        /// How long sessions have to log out before their connections are dropped, in seconds.
        grace_s: u64,
    },
    /// Takes initiators in again. Answered by [`Reply::Done`].
    Undrain {
        /// Only for this volume; without it for all.
        #[serde(default)]
        volume: Option<String>,
    },
    /// Reads the configuration again. Answered by [`Reply::Reloaded`].
    Reload,
    /// Does something to a volume as a whole. Answered by [`Reply::Volume`].
    Volume {
        /// The volume.
        volume: String,
        /// What.
        operation: Operation,
    },
    /// Which volumes there are, and what they are. Answered by [`Reply::Volumes`].
    Volumes {
        /// Only this one.
        #[serde(default)]
        volume: Option<String>,
    },
    /// Makes a volume. Answered by [`Reply::Created`].
    VolumeCreate {
        /// Which.
        volume: NewVolume,
    },
    /// Deletes a volume that no session uses, and everything in it. Answered by [`Reply::Done`].
    VolumeDelete {
        /// The volume.
        volume: String,
    },
    /// Has a volume name a peer that may use it. Answered by [`Reply::Access`].
    VolumeGrant {
        /// The volume.
        volume: String,
        /// The peer.
        peer: String,
    },
    /// Takes a volume from a peer. Answered by [`Reply::Access`].
    VolumeRevoke {
        /// The volume.
        volume: String,
        /// The peer.
        peer: String,
    },
    /// Gives out a snapshot as a stream (`docs/send-format.md`) while the volume is used. Answered by [`Reply::Stream`], and for each
    /// slice by [`Reply::Slice`] followed by this many bytes; at the end by [`Reply::Done`].
    Send {
        /// The volume.
        volume: String,
        /// Its snapshot.
        snapshot: String,
        /// Only what it has that this older snapshot has not.
        #[serde(default)]
        from: Option<String>,
        /// Where an interrupted transfer goes on.
        #[serde(default)]
        resume: Option<Resume>,
    },
    /// Takes a stream (`docs/send-format.md`) into a volume, which may be read meanwhile. Answered by [`Reply::Stream`]; then the client
    /// sends pieces, each behind its length (4 bytes, big-endian, at most 1 MiB), and a length of 0 behind the last. Answered by [`Reply::Done`], or
    /// at any time by an error, behind which the target hangs up. [`Reply::InUse`]: not now.
    Receive {
        /// The volume.
        volume: String,
    },
    /// What was begun to be received into a volume and not ended. Answered by [`Reply::Receptions`].
    Receptions {
        /// The volume.
        volume: String,
        /// Give it up.
        #[serde(default)]
        abandon: bool,
    },
    /// Closes a volume that nobody uses, without waiting until it was idle for long. Answered by [`Reply::Done`], before it is closed.
    Close {
        /// The volume.
        volume: String,
    },
    /// Reads a volume's description again: who may use it may have changed. Answered by [`Reply::Sessions`].
    Refresh {
        /// The volume.
        volume: String,
    },
    /// Gives out an invitation. Answered by [`Reply::Invited`].
    Invite {
        /// What the node that takes it up will be called.
        name: String,
        /// The volumes that it may use; `*` for all.
        volumes: Vec<String>,
        /// It may only read.
        #[serde(default)]
        read_only: bool,
        /// What it will be to the target.
        #[serde(default)]
        role: PeerRole,
        /// For how long, in seconds.
        expires_s: u64,
        /// Where initiators reach this target, `host` or `host:port`; none: as its configuration says.
        #[serde(default)]
        addresses: Vec<String>,
    },
    /// Invitations that can still be used. Answered by [`Reply::Invitations`].
    Invitations,
    /// Ends one of them. Answered by [`Reply::Done`].
    Revoke {
        /// Whom it is for.
        name: String,
    },
    /// The peers of the configuration, and those that have joined by invitation. Answered by [`Reply::Peers`].
    Peers,
    /// Changes one that has joined by invitation; it counts at once. Answered by [`Reply::Peer`].
    Peer {
        /// Its name.
        name: String,
        /// What becomes of it.
        operation: PeerOperation,
    },
}

/// Where an interrupted transfer goes on, as its receiver has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// The snapshot that was being sent.
    pub to: u64,
    /// The one that the stream builds on.
    #[serde(default)]
    pub from: Option<u64>,
    /// The sender's position.
    pub position: u64,
}

/// What a target answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Status`].
    Status(Box<StatusReport>),
    /// How many sessions were ended, or asked to end.
    Sessions(usize),
    /// What a reload came to.
    Reloaded(Reloaded),
    /// What a volume's store has in it after an operation.
    Volume(Box<Description>),
    /// To [`Request::Volumes`].
    Volumes(Vec<VolumeEntry>),
    /// A volume was made.
    Created(Box<VolumeInfo>),
    /// What a peer may do with a volume was changed.
    Access {
        /// Sessions that ended, or may now write or no longer may.
        sessions: usize,
        /// Why the peer may use the volume now; none: it may not.
        may_use_because: Option<String>,
    },
    /// A stream begins, of a volume of this many bytes.
    Stream {
        /// The volume's size.
        size_bytes: u64,
    },
    /// This many bytes of a stream follow this line.
    Slice {
        /// How many; at most [`SLICE_BYTES_MAX`].
        bytes: usize,
        /// How much of the volume is done with them, in bytes.
        done_bytes: u64,
    },
    /// These could write to the volume, or use it where nobody may.
    InUse(Vec<String>),
    /// What was begun to be received, and for each the snapshot's name.
    Receptions(Vec<(Resume, String)>),
    /// An invitation was given out.
    Invited {
        /// The line that the invited node needs.
        invitation: InvitationText,
        /// The addresses in it.
        addresses: Vec<String>,
        /// When it expires, in seconds since 1970.
        expires_at: u64,
    },
    /// Invitations that can still be used.
    Invitations(Vec<InvitationReport>),
    /// Who may come through a channel.
    Peers(Vec<PeerReport>),
    /// A peer was changed.
    Peer {
        /// Sessions that ended, or may now write or no longer may.
        sessions: usize,
        /// Volumes that name the peer themselves, by the name that it had: that is not changed with it.
        named_by: Vec<String>,
    },
    /// It is done.
    Done,
    /// It is not done, and why; for people.
    Error(String),
}

/// What a reload came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Settings that changed and hold now.
    pub changed: Vec<String>,
    /// Settings that differ in the file and hold only after a restart.
    pub needs_restart: Vec<String>,
    /// Sessions that ended because the new rules do not admit them.
    pub sessions_ended: usize,
    /// Sessions that may now write, or no longer may.
    pub sessions_changed: usize,
}
