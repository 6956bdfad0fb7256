//! Random numbers of the operating system.

use std::io;

use crate::error::StoreError;

/// Random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::Io {
        action: "drawing random bytes".to_owned(),
        source: io::Error::other(error.to_string()),
    })?;
    Ok(bytes)
}
