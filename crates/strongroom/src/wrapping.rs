//! Wrapping keys of custody `target`: one file per volume, outside the store, made, used and destroyed here.
//!
//! Who has the store and not this file has nothing: every block key in it is wrapped under this one. So destroying the file is
//! cryptographic erase. Absent: wrapping itself (`seal`), and when to erase (the target's).

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use strongroom_block::BlockKeyWrap;
use strongroom_seal::{KEY_BYTES, KeyPurpose, KeyWrapper, VolumeKeyFile};
use strongroom_target::{Volume, WrapFactory};
use zeroize::Zeroizing;

use crate::{keys, secret_file};

/// What a renewal leaves beside the file if it is cut short.
const SUCCESSOR: &str = "new";

/// A new wrapping key for the volume `name` in `directory`, in a file that only its owner can read.
pub(crate) fn make(directory: &Path, name: &str) -> Result<PathBuf> {
    let mut suffix = [0; 8];
    getrandom::fill(&mut suffix).context("the operating system gave no random bytes")?;
    // A volume may be made anew under a name whose old key somebody still keeps.
    let name: String = name.chars().filter(|character| character.is_ascii_alphanumeric()).collect();
    let path = directory.join(format!("{name}-{:016x}.key", u64::from_be_bytes(suffix)));
    let path = std::path::absolute(&path).with_context(|| format!("cannot tell where {} is", path.display()))?;
    secret_file::create(&path, &fresh()?.to_text())?;
    sync_directory(&path)?;
    Ok(path)
}

/// Opens volumes' wrapping keys.
pub(crate) fn opening() -> WrapFactory {
    Arc::new(|volume| in_words(open(volume)))
}

/// Destroys volumes' wrapping keys, and makes fresh ones in their place.
pub(crate) fn renewing() -> WrapFactory {
    Arc::new(|volume| in_words(renew(volume)))
}

fn in_words(result: Result<KeyWrapper>) -> Result<Arc<dyn BlockKeyWrap>, String> {
    match result {
        Ok(wrapper) => Ok(Arc::new(wrapper)),
        Err(error) => Err(format!("{error:#}")),
    }
}

fn open(volume: &Volume) -> Result<KeyWrapper> {
    let path = path_of(volume)?;
    let successor = path.with_extension(SUCCESSOR);
    if successor.exists() {
        // A renewal was cut short: the old key is gone, or the renewal did not begin to destroy it.
        match keys::read_key_file(path) {
            Ok(_) => fs::remove_file(&successor)?,
            Err(_) => replace(path, &successor)?,
        }
    }
    wrapper(volume, &keys::read_key_file(path)?)
}

fn renew(volume: &Volume) -> Result<KeyWrapper> {
    let path = path_of(volume)?;
    let successor = path.with_extension(SUCCESSOR);
    let keys = fresh()?;
    let wrapper = wrapper(volume, &keys)?;
    match fs::remove_file(&successor) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", successor.display()));
        }
        _ => {}
    }
    secret_file::create(&successor, &keys.to_text())?;
    sync_directory(path)?;
    destroy(path).with_context(|| format!("cannot destroy the wrapping key {}", path.display()))?;
    replace(path, &successor)?;
    Ok(wrapper)
}

/// Overwrites a key's bytes where they lie. A file system or a disk that writes elsewhere may keep them: put wrapping keys where that
/// does not happen (docs/threat-model.md).
fn destroy(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    for byte in [0xff, 0x00] {
        file.rewind()?;
        file.write_all(&vec![byte; length])?;
        file.sync_all()?;
    }
    Ok(())
}

fn replace(path: &Path, successor: &Path) -> Result<()> {
    fs::rename(successor, path).with_context(|| format!("cannot put {} in its place", successor.display()))?;
    sync_directory(path)
}

fn sync_directory(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .with_context(|| format!("cannot make {} durable", directory.display()))
}

fn path_of(volume: &Volume) -> Result<&Path> {
    let sealed = volume.sealed.as_ref().context("a plain volume has no keys")?;
    sealed.wrapping_key.as_deref().context("its description names no wrapping key")
}

fn wrapper(volume: &Volume, keys: &VolumeKeyFile) -> Result<KeyWrapper> {
    let Some(sealed) = volume.sealed.as_ref() else { bail!("a plain volume has no keys") };
    Ok(KeyWrapper::new(keys.wrapping_key(sealed.epoch)?, sealed.domain))
}

fn fresh() -> Result<VolumeKeyFile> {
    let mut random = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(random.as_mut()).context("the operating system gave no random bytes")?;
    Ok(VolumeKeyFile::new(KeyPurpose::Wrapping, &random))
}

#[cfg(test)]
mod tests {
    //! Proves that a renewed key opens nothing of the old one's, that no byte of that stays in its file, and that a renewal that was cut
    //! short at any point leaves one whole key.
    use strongroom_block::Custody;
    use strongroom_target::{Catalogue, SealedSpec, VolumeSpec};

    use super::*;

    fn volume() -> (tempfile::TempDir, Volume) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("volumes");
        fs::create_dir(&root).unwrap();
        let path = make(&dir.path().join("wrapping-keys"), "vault").unwrap();
        let sealed = SealedSpec { wrapping_key: Some(path), ..SealedSpec::new(Custody::Target) };
        let spec = VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain("vault", 1 << 20) };
        let volume = Catalogue::open(root).unwrap().create(&spec).unwrap();
        (dir, volume)
    }

    #[test]
    fn what_was_wrapped_before_a_renewal_is_lost() {
        let (_dir, volume) = volume();
        let path = path_of(&volume).unwrap();
        let wrapped = open(&volume).unwrap().wrap(&[7; 32]).unwrap();
        assert_eq!(open(&volume).unwrap().unwrap(&wrapped), Ok([7; 32]));
        let before = fs::read_to_string(path).unwrap();
        let key = before.split_whitespace().last().unwrap();
        // A second name for the same bytes on the disk: what a file system that writes in place has left of them.
        let witness = path.with_extension("witness");
        fs::hard_link(path, &witness).unwrap();
        let renewed = renew(&volume).unwrap();
        assert!(renewed.unwrap(&wrapped).is_err(), "the old key's work opens under the new one");
        assert!(!fs::read_to_string(path).unwrap().contains(key));
        assert!(fs::read(&witness).unwrap().iter().all(|byte| *byte == 0), "the old key is still on the disk");
        let again = renewed.wrap(&[8; 32]).unwrap();
        assert_eq!(open(&volume).unwrap().unwrap(&again), Ok([8; 32]), "the new key is the one in the file");
        assert!(!path.with_extension(SUCCESSOR).exists());
    }

    #[test]
    fn a_renewal_that_was_cut_short_leaves_one_whole_key() {
        let (_dir, volume) = volume();
        let path = path_of(&volume).unwrap();
        let wrapped = open(&volume).unwrap().wrap(&[7; 32]).unwrap();
        // Cut before the old key was touched: it still holds.
        secret_file::create(&path.with_extension(SUCCESSOR), &fresh().unwrap().to_text()).unwrap();
        assert_eq!(open(&volume).unwrap().unwrap(&wrapped), Ok([7; 32]));
        assert!(!path.with_extension(SUCCESSOR).exists());
        // Cut after: the new one does.
        let successor = fresh().unwrap();
        secret_file::create(&path.with_extension(SUCCESSOR), &successor.to_text()).unwrap();
        destroy(path).unwrap();
        assert!(open(&volume).unwrap().unwrap(&wrapped).is_err());
        assert_eq!(keys::read_key_file(path).unwrap(), successor);
        // Cut anywhere, and begun again.
        secret_file::create(&path.with_extension(SUCCESSOR), "half of a k").unwrap();
        renew(&volume).unwrap();
        open(&volume).unwrap();
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, volume) = volume();
        let path = path_of(&volume).unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = format!("{:#}", open(&volume).unwrap_err());
        assert!(error.contains("chmod 600"), "{error}");
    }
}
