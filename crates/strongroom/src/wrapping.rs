//! Connects the target with the files of its volumes' wrapping keys. Absent: what is done with those files (`keyfiles`).

use std::sync::Arc;

use anyhow::{Context, Result};
use strongroom_block::BlockKeyWrap;
use strongroom_keyfiles::{KeyStorageError, WrappingKeyFile};
use strongroom_seal::KeyWrapper;
use strongroom_target::{ProviderError, Volume, WrapFactory};

use crate::process;

/// Opens volumes' wrapping keys.
pub(crate) fn opening() -> WrapFactory {
    Arc::new(|volume| with_file(volume, WrappingKeyFile::open).map_err(ProviderError::new))
}

/// Destroys volumes' wrapping keys and puts new ones in their place.
pub(crate) fn renewing() -> WrapFactory {
    Arc::new(|volume| with_file(volume, WrappingKeyFile::renew).map_err(ProviderError::new))
}

fn with_file(
    volume: &Volume,
    action: impl FnOnce(&WrappingKeyFile) -> Result<KeyWrapper, KeyStorageError>,
) -> Result<Arc<dyn BlockKeyWrap>> {
    let sealed = volume.sealed.as_ref().context("a plain volume has no keys")?;
    let path = sealed.wrapping_key.clone().context("its description names no wrapping key")?;
    process::lock_memory();
    Ok(Arc::new(action(&WrappingKeyFile::new(path, sealed.epoch, sealed.domain))?))
}
