//! What a logical unit said about itself, once it has been checked.

use strongroom_block::{Custody, DeviceError, DeviceErrorKind, Geometry, Mode};
use strongroom_handshake::PublicKey;
use strongroom_scsi::transport::Lun;

use crate::completion::device_error;
use crate::{AttachError, SealedClaims};

/// The unit behind an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitDescription {
    /// The iSCSI target name.
    pub target_name: String,
    /// The logical unit number.
    pub lun: u16,
    /// T10 vendor, product and revision, trimmed.
    pub vendor: String,
    /// See `vendor`.
    pub product: String,
    /// See `vendor`.
    pub revision: String,
    /// Block size and count.
    pub geometry: Geometry,
    /// How it is sealed; `None` for a plain unit.
    pub sealed: Option<SealedUnit>,
    /// Who the target has proven to be; `None` without a channel.
    pub target_key: Option<PublicKey>,
    /// Most blocks of one READ or WRITE; `None` where the unit names no limit.
    pub transfer_blocks_max: Option<u32>,
    /// COMPARE AND WRITE works (plain units only).
    pub compare_and_write: bool,
    /// Most blocks of one UNMAP; `None` where UNMAP does not work or unmapped blocks need not read as zeros.
    pub unmap_blocks_max: Option<u32>,
    /// Snapshots and clones that share its blocks, as far as the target says.
    pub other_views: u16,
    /// Changes when acknowledged data may have been lost; `None` where the target does not say.
    pub incarnation: Option<u64>,
    /// Changes whenever the contents are replaced (a received snapshot, a rollback); `None` where the target does not say.
    pub image: Option<u64>,
    /// The target keeps a second writer out, if it is asked to.
    pub has_leases: bool,
}

/// How a unit is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedUnit {
    /// What is compared at every attach.
    pub claims: SealedClaims,
    /// What sealing does.
    pub mode: Mode,
    /// Length of a seal record inside a channel, in bytes.
    pub record_bytes: usize,
    /// Initiators may choose to read older versions of blocks that do not open.
    pub allows_previous: bool,
    /// A hole can be resealed while others write.
    pub conditional_holes: bool,
    /// It can be erased by saying that its keys are destroyed.
    pub heeds_keys_destroyed: bool,
}

impl SealedUnit {
    /// Who holds the keys.
    pub fn custody(&self) -> Custody {
        self.claims.custody
    }
}

impl UnitDescription {
    /// Who holds its keys, if it is sealed.
    pub(crate) fn custody(&self) -> Option<Custody> {
        self.sealed.as_ref().map(SealedUnit::custody)
    }

    pub(crate) fn wire_lun(&self) -> Lun {
        Lun::single_level(self.lun)
    }

    /// Whether holes can be resealed there without overwriting what others write meanwhile.
    pub(crate) fn check_reseal(&self) -> Result<(), DeviceError> {
        if self.sealed.is_some_and(|sealed| sealed.conditional_holes) {
            return Ok(());
        }
        let message = "this target would seal an absence over what others write meanwhile: update it, then reseal";
        Err(device_error(DeviceErrorKind::Refused, None, message))
    }

    /// Whether the contents were replaced between this and `now`, met after a reconnect: a file system on the volume, and what is cached of it,
    /// would not fit what is there.
    pub(crate) fn check_image(&self, now: &UnitDescription) -> Result<(), AttachError> {
        match (self.image, now.image) {
            (Some(before), Some(now)) if before != now => Err(AttachError::Replaced),
            _ => Ok(()),
        }
    }

    /// Whether `other`, met after a reconnect, is still the unit that was attached: anything else must not be written to. It may have
    /// grown, which takes nothing away.
    pub(crate) fn is_same_unit(&self, other: &UnitDescription) -> bool {
        let identity = |unit: &UnitDescription| {
            unit.sealed.map(|sealed| {
                let SealedClaims { volume_id, domain, block_size, custody, suite, epoch: _ } = sealed.claims;
                (volume_id, domain, block_size, custody, suite, sealed.mode, sealed.record_bytes)
            })
        };
        let (ours, theirs) = (self.geometry, other.geometry);
        ours.block_size == theirs.block_size && ours.blocks <= theirs.blocks && identity(self) == identity(other)
    }

    /// Whether `now`, met after a reconnect, may be used as the unit that this one was, as far as its users know it.
    pub(crate) fn check_continues(&self, now: &mut UnitDescription) -> Result<(), AttachError> {
        if !self.is_same_unit(now) {
            return Err(AttachError::Unsupported(
                "it is not the volume that was attached before the connection was lost; detach, and attach again"
                    .into(),
            ));
        }
        self.check_image(now)?;
        // Its users were told a size. What is larger is theirs once it was looked at (`grow`).
        now.geometry = self.geometry;
        if let (Some(now), Some(before)) = (&mut now.sealed, &self.sealed)
            && before.claims.custody.is_blind()
        {
            // The source of the keys says which epoch is current, never the target.
            now.claims.epoch = before.claims.epoch;
        }
        Ok(())
    }

    /// Whether the target, after a reconnect, may have lost what was acknowledged and not flushed.
    pub(crate) fn may_have_lost_writes(&self, now: &UnitDescription) -> bool {
        self.incarnation.is_none() || self.incarnation != now.incarnation
    }
}
