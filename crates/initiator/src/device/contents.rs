//! Whether anything is on a sealed volume, and whether our key opens it: what is looked at before it is formatted.

use strongroom_block::{BlockDevice, Custody, DeviceError, DeviceErrorKind, Lba, StoreSequence};

use super::RemoteDevice;
use crate::device::versions::OpenedVersion;

/// What is on a volume, as far as a few blocks of it tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeContents {
    /// It was never formatted, or erased; or it is plain, where nobody can tell.
    Empty,
    /// It is formatted, and our key opens it.
    Opens,
    /// It is formatted, and our key does not open it: it is another's.
    DoesNotOpen,
    /// It is formatted, and the key server has no keys of it any more.
    KeysDestroyed,
}

impl RemoteDevice {
    /// Looks at the first block, the last, and one in the middle.
    ///
    /// # Errors
    /// What the target says.
    pub fn contents(&self) -> Result<VolumeContents, DeviceError> {
        let Some(versions) = self.versions() else { return Ok(VolumeContents::Empty) };
        let is_lent = self.unit.custody() == Some(Custody::KeyServer);
        let last = self.geometry().blocks - 1;
        let mut found = VolumeContents::Empty;
        for lba in [0, last / 2, last] {
            match versions.version(Lba(lba), StoreSequence(0)) {
                Ok(OpenedVersion::Good { .. }) => return Ok(VolumeContents::Opens),
                Ok(OpenedVersion::Bad { .. } | OpenedVersion::Unreadable) => found = VolumeContents::DoesNotOpen,
                Ok(OpenedVersion::None) => {}
                Err(error)
                    if error.kind == DeviceErrorKind::NoKey && is_lent && found != VolumeContents::DoesNotOpen =>
                {
                    found = VolumeContents::KeysDestroyed;
                }
                Err(error) if error.kind == DeviceErrorKind::NoKey => found = VolumeContents::DoesNotOpen,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}
