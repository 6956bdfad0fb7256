//! Moves the contents of a volume to its successor, which the target made with another custody: every block is opened with the old keys,
//! sealed with the new ones, and read back; then the successor takes the volume's place.
//!
//! What is believed of how far it is: a note that this node wrote and authenticated ([`MoveState`]), and what opens. Absent: how either
//! volume is attached, what is printed, and what the target has on its disk at each moment (its catalogue's).

mod state;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{DeviceError, DeviceErrorKind, Lba};

use super::{ContentSums, CopyError, CopyOptions, CopyReport, Endpoint, Progress, Resume, SparseDevice};
use crate::{AttachError, AttachOptions, RemoteDevice, SealedClaims, UnitDescription, read_blocking};

pub use self::state::{MoveState, MoveStateError};

/// Bytes that may be moved before a rate counts.
const BURST_BYTES: u64 = 1 << 20;

/// Why contents are not moved, or not known to have been.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The successor is not one of this volume.
    #[error("the successor has another size than the volume; give it up on the target's machine, and start over")]
    OtherSize,
    /// It is a volume that is known by another name.
    #[error("what the target shows as the volume's successor is {0}; nothing was done to it. Do not trust this target")]
    SeenElsewhere(String),
    /// Neither is sealed.
    #[error("{volume} is plain, and so is its successor; there is nothing to do")]
    BothPlain {
        /// The volume.
        volume: String,
    },
    /// One volume has both names.
    #[error(
        "the target shows the same volume under both names; do not trust this target, and start over on its machine"
    )]
    SameVolume,
    /// The successor has another identity.
    #[error(
        "what the target shows as the volume's successor is another volume; nothing was done to it. Do not trust this target"
    )]
    OtherVolume,
    /// The contents would be sent in plaintext, and nobody said that this is meant.
    #[error("everything in {volume} will lie in PLAINTEXT on the target; if that is meant, add --plaintext")]
    Plaintext {
        /// The volume.
        volume: String,
    },
    /// There is something in the successor, and no note of the attempt that wrote it.
    #[error(
        "the volume's successor was formatted before, by an attempt whose state is not in this file: name that file, or give it \
         up on the target's machine (--abandon) and start over there. If nobody did that, do not trust this target"
    )]
    FormattedBefore,
    /// The successor cannot be read.
    #[error("cannot tell whether the volume's successor is empty")]
    Unreadable(#[source] DeviceError),
    /// The successor cannot be written.
    #[error("the volume's successor cannot be formatted")]
    Format(#[source] DeviceError),
    /// The contents could not be copied, or what was read back is not what was written.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The target does not let the successor take the volume's place.
    #[error("everything is resealed, but the target refuses to put it in its place; the volume is as it was")]
    Refused(#[source] DeviceError),
    /// The volume cannot be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The volume is not its successor yet.
    #[error("{volume} is still what it was")]
    NotPlaced {
        /// The volume.
        volume: String,
    },
}

/// A volume and its successor, both attached.
#[derive(Debug)]
pub struct VolumeMove {
    volume: Arc<RemoteDevice>,
    successor: Arc<RemoteDevice>,
}

impl VolumeMove {
    /// Checks that they are two volumes of one shape and identity, of which none is plain unless `allows_plaintext`. `name`: the volume, for
    /// people; `seen_elsewhere`: which other volume the successor is known as, if it is.
    ///
    /// # Errors
    /// [`MoveError`]; nothing was read or written.
    pub fn new(
        name: &str,
        volume: Arc<RemoteDevice>,
        successor: Arc<RemoteDevice>,
        seen_elsewhere: Option<String>,
        allows_plaintext: bool,
    ) -> Result<VolumeMove, MoveError> {
        let (before, after) = (volume.unit(), successor.unit());
        if before.geometry != after.geometry {
            return Err(MoveError::OtherSize);
        }
        if let Some(known) = seen_elsewhere {
            return Err(MoveError::SeenElsewhere(known));
        }
        match (before.sealed, after.sealed) {
            (None, None) => return Err(MoveError::BothPlain { volume: name.to_owned() }),
            (Some(one), Some(other)) if one.claims.domain == other.claims.domain => return Err(MoveError::SameVolume),
            (Some(one), Some(other)) if one.claims.volume_id != other.claims.volume_id => {
                return Err(MoveError::OtherVolume);
            }
            (Some(_), None) if !allows_plaintext => return Err(MoveError::Plaintext { volume: name.to_owned() }),
            _ => {}
        }
        Ok(VolumeMove { volume, successor })
    }

    /// The volume that is moved.
    pub fn volume(&self) -> &RemoteDevice {
        &self.volume
    }

    /// Refuses a successor in which anything opens; a plain one needs no formatting and may hold anything.
    ///
    /// # Errors
    /// [`MoveError`]
    pub fn check_unformatted(&self) -> Result<(), MoveError> {
        if self.successor.unit().sealed.is_none() {
            return Ok(());
        }
        match read_blocking(&*self.successor, Lba(0), 1) {
            Ok(_) => Err(MoveError::FormattedBefore),
            Err(error) if error.kind == DeviceErrorKind::Medium => Ok(()),
            Err(error) => Err(MoveError::Unreadable(error)),
        }
    }

    /// Removes what an attempt without a note left in the successor.
    ///
    /// # Errors
    /// [`MoveError::Format`]
    pub fn format(&self) -> Result<(), MoveError> {
        self.successor.format().map_err(MoveError::Format)
    }

    /// Copies everything, and reads it back; goes on from where `resume` was noted.
    ///
    /// # Errors
    /// [`CopyError`], in [`MoveError::Copy`]
    pub fn copy(
        &self,
        resume: &Resume,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<CopyReport, MoveError> {
        let options = CopyOptions { sha256: true, verify: true, sparse: true, ..CopyOptions::default() };
        let [source, destination] = [&self.volume, &self.successor].map(endpoint);
        Ok(super::copy_resumable(&source, &destination, options, Some(resume), progress)?)
    }
}

/// The checksums of what a successor has now.
///
/// # Errors
/// [`CopyError`], in [`MoveError::Copy`]
pub fn checksum_successor(
    successor: &Arc<RemoteDevice>,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<ContentSums, MoveError> {
    Ok(super::checksum(&endpoint(successor), true, progress)?)
}

fn endpoint(device: &Arc<RemoteDevice>) -> Endpoint {
    Endpoint::Volume(Arc::clone(device) as Arc<dyn SparseDevice>)
}

/// Has a successor take the volume's place. Whether the target does it is seen from what it serves then ([`attach_placed`]).
///
/// # Errors
/// [`MoveError::Refused`]
pub fn take_place(successor: &RemoteDevice) -> Result<(), MoveError> {
    match successor.take_place() {
        Ok(()) => {}
        // It ends the session in doing so: the answer may have been lost.
        Err(error) if matches!(error.kind, DeviceErrorKind::Unreachable) => {
            tracing::debug!(%error, "the target has not said that it begins");
        }
        Err(error) => return Err(MoveError::Refused(error)),
    }
    successor.abandon();
    Ok(())
}

/// Attaches a volume whose place its successor has taken, to read it.
///
/// # Errors
/// [`MoveError::NotPlaced`], if it is the old one; [`MoveError::Attach`].
pub fn attach_placed(mut options: AttachOptions, state: &MoveState) -> Result<Arc<RemoteDevice>, MoveError> {
    options.read_only = true;
    let volume = options.url.to_string();
    let device = Arc::new(RemoteDevice::attach(options)?);
    if !state.is_successor(device.unit()) {
        return Err(MoveError::NotPlaced { volume });
    }
    Ok(device)
}

/// What a volume claims to be that tells it from any other, and how it is sealed; a plain one claims nothing.
pub fn describe_unit(unit: &UnitDescription) -> String {
    unit.sealed.map_or_else(
        || "plain".to_owned(),
        |sealed| {
            let SealedClaims { volume_id, domain, custody, suite, .. } = sealed.claims;
            format!("{volume_id} {domain} {custody} {suite} {:?}", sealed.mode)
        },
    )
}

/// Keeps a copy to a number of bytes per second.
#[derive(Clone, Copy, Debug)]
pub struct CopyRate {
    bytes_per_second: Option<u64>,
    started: Instant,
    /// Bytes that were moved before: what an earlier run has done took nothing of this one.
    before_bytes: Option<u64>,
}

impl CopyRate {
    /// From now on; `None`: as fast as it goes.
    pub fn new(bytes_per_second: Option<u64>) -> CopyRate {
        CopyRate { bytes_per_second, started: Instant::now(), before_bytes: None }
    }

    /// How long to wait before more is moved.
    pub fn pause(&mut self, progress: &Progress) -> Duration {
        let moved = progress.done_bytes - progress.hole_bytes;
        let moved = moved.saturating_sub(*self.before_bytes.get_or_insert(moved.saturating_sub(BURST_BYTES)));
        let due = self
            .bytes_per_second
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(moved as f64 / rate.max(1) as f64));
        due.saturating_sub(self.started.elapsed())
    }
}
