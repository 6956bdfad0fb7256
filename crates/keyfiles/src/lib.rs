//! Key files on disk: reading and writing them with private modes, the wrapping keys of custody `target` with their
//! renewal and destruction, and the records that a key file keeps of its volumes.
//!
//! Absent: what keys do (`seal`), who asks for them, configuration, and the network.

mod error;
pub mod secret_file;
pub mod volume_records;
pub mod wrapping;

use std::path::Path;

use strongroom_seal::VolumeKeyFile;

pub use error::KeyStorageError;
pub use wrapping::WrappingKeyFile;

/// Reads a file of volume keys or wrapping keys.
///
/// # Errors
/// As [`secret_file::read`], and if the text is not a key file.
pub fn read_key_file(path: &Path) -> Result<VolumeKeyFile, KeyStorageError> {
    parse(secret_file::read(path, "key file")?.as_str(), "key file", path)
}

/// Reads a key file that systemd hands to a service as a credential.
///
/// # Errors
/// As [`read_key_file`].
pub fn read_credential(path: &Path) -> Result<VolumeKeyFile, KeyStorageError> {
    parse(secret_file::read_credential(path, "credential")?.as_str(), "credential", path)
}

fn parse(text: &str, what: &'static str, path: &Path) -> Result<VolumeKeyFile, KeyStorageError> {
    VolumeKeyFile::parse(text).map_err(|source| KeyStorageError::Parse { what, path: path.to_owned(), source })
}
