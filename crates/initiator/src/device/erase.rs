//! Cryptographic erase where a key server has the keys: they are destroyed there; then the target forgets what nobody can open any more
//! (SANITIZE, CRYPTOGRAPHIC ERASE, with the segment KEYS DESTROYED), and the volume is formatted under the new epoch.
//!
//! The front ends of an attachment are files and block devices, which take no SCSI commands: who wants this asks here.

use strongroom_block::{BlockDevice, DeviceError, DeviceErrorKind};

use super::RemoteDevice;
use crate::completion::device_error;
use crate::pipeline::operation::CryptoErase;

/// What came of a cryptographic erase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erased {
    /// The epoch that began with it: there are no keys of those before.
    pub epoch: u32,
    /// The target has given the space back. Else it keeps what nobody can open: there are snapshots or clones, or it is an old one.
    pub is_given_back: bool,
}

fn refused(what: impl Into<String>) -> DeviceError {
    device_error(DeviceErrorKind::Refused, None, what)
}

impl RemoteDevice {
    /// Has every key destroyed that the volume was sealed under, then [`RemoteDevice::forget_destroyed`]. Needs the right to
    /// administer the keys. Snapshots, clones and copies are lost as well.
    ///
    /// # Errors
    /// `Refused` where no key server lends the keys, and by the key server; what the target says. After an error keys may be destroyed:
    /// begin again.
    pub fn crypto_erase(&self) -> Result<Erased, DeviceError> {
        self.bounds().check_writable(None)?;
        let renewer = self.sealing.as_ref().and_then(|sealing| sealing.key_renewer.get()).ok_or_else(not_lent)?;
        let began = renewer.destroy_keys().map_err(|error| refused(error.to_string()))?;
        self.forget_destroyed(began)
    }

    /// After the key server has begun epoch `began` and destroyed the keys of all before it: the target gives the space of everything
    /// back, if it can, and the volume is formatted. **All data is gone**, also what others wrote under the new epoch meanwhile. Durable
    /// when it returns.
    ///
    /// # Errors
    /// `Refused` if the keys are others than those of `began` alone, or `began` is the volume's first epoch, which destroys nothing; what
    /// the target says.
    pub fn forget_destroyed(&self, began: u32) -> Result<Erased, DeviceError> {
        self.bounds().check_writable(None)?;
        self.check_keys()?;
        let keys = self.key_status().ok_or_else(not_lent)?;
        if keys.epochs != [began] || began < 2 {
            return Err(refused(format!(
                "there are keys of the epochs {:?}, so it is not said that all before epoch {began} were destroyed for an erase; rotate, and \
                 destroy what is older: strongroom key destroy-epoch",
                keys.epochs
            )));
        }
        let epoch = began;
        let mut is_given_back = self.unit.sealed.is_some_and(|sealed| sealed.heeds_keys_destroyed);
        if is_given_back {
            let work = CryptoErase { epoch, blocks: self.geometry().blocks };
            match self.intake.ask(work, 0) {
                Ok(_) => {}
                Err(error) if error.kind == DeviceErrorKind::Refused => {
                    tracing::warn!(%error, "the target keeps what nobody can open any more");
                    is_given_back = false;
                }
                Err(error) => return Err(error),
            }
        }
        self.intake.forget_ahead();
        self.format()?;
        Ok(Erased { epoch, is_given_back })
    }
}

fn not_lent() -> DeviceError {
    refused(
        "only keys at a key server are destroyed by command: destroy the key file, and every copy of it, and make a new volume",
    )
}
