//! Wrapping keys of custody `target`: one file per volume, outside the store, made, used and destroyed here.
//!
//! Who has the store and not this file has nothing: every block key in it is wrapped under this one. So destroying the file is
//! cryptographic erase. Absent: wrapping itself (`seal`), and when to erase (the target's).

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use strongroom_block::BlockKeyWrap;
use strongroom_seal::{KEY_BYTES, KeyPurpose, KeyWrapper, VolumeKeyFile};
use strongroom_target::{Volume, WrapFactory};
use zeroize::Zeroizing;

use crate::{keys, process, secret_file};

/// What a renewal puts behind the whole name of the file, for the key that comes next. No key file's own name ends like that.
const SUCCESSOR: &str = ".successor";
/// What a key is overwritten with, a pass each. No text begins with either.
const OVERWRITTEN: [u8; 2] = [0xff, 0x00];

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
    process::lock_memory();
    settle(path)?;
    wrapper(volume, &keys::read_key_file(path)?)
}

fn renew(volume: &Volume) -> Result<KeyWrapper> {
    renew_by(volume, destroy, replace)
}

/// Fails only if the old key may still be on the disk.
fn renew_by(
    volume: &Volume,
    destroy: impl FnOnce(&Path) -> std::io::Result<()>,
    replace: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<KeyWrapper> {
    let path = path_of(volume)?;
    process::lock_memory();
    // Else the only key could be the one that this takes for a leftover.
    settle(path)?;
    let successor = successor_of(path)?;
    let keys = fresh()?;
    let wrapper = wrapper(volume, &keys)?;
    secret_file::create(&successor, &keys.to_text())?;
    sync_directory(path)?;
    destroy(path).with_context(|| format!("cannot destroy the wrapping key {}", path.display()))?;
    if let Err(error) = replace(path, &successor) {
        // The old key is gone, and the next opening goes on from here: as long as the new one is found.
        let is_there = |path: &Path| keys::read_key_file(path).is_ok_and(|found| found == keys);
        if !is_there(&successor) && !is_there(path) {
            return Err(error);
        }
        tracing::warn!(
            error = format!("{error:#}"),
            "the new wrapping key takes the old one's name at the next opening"
        );
    }
    Ok(wrapper)
}

/// Ends a renewal that was cut short: either it had not begun to destroy the old key, which then holds, or the new one does. Whatever
/// else keeps the old key from being read is no reason to replace it.
fn settle(path: &Path) -> Result<()> {
    let successor = successor_of(path)?;
    let is_there = successor.try_exists().with_context(|| format!("cannot look for {}", successor.display()))?;
    if !is_there {
        return Ok(());
    }
    let Err(error) = keys::read_key_file(path) else {
        return fs::remove_file(&successor).with_context(|| format!("cannot remove {}", successor.display()));
    };
    if !is_overwritten(path) {
        let beside = successor.display();
        return Err(error.context(format!(
            "this wrapping key was being renewed, and {beside} is there: mend what follows; only if the old key is lost for good, \
             rename that file over it"
        )));
    }
    keys::read_key_file(&successor).context("the old wrapping key is destroyed, and the new one is not whole")?;
    // It may have been cut short in the middle, or before it was durable.
    destroy(path).with_context(|| format!("cannot destroy the wrapping key {}", path.display()))?;
    replace(path, &successor)
}

/// Whether destroying the key in a file has begun.
fn is_overwritten(path: &Path) -> bool {
    let mut first = [0];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && OVERWRITTEN.contains(&first[0])
}

/// Where a renewal puts the next key.
///
/// # Errors
/// If the file itself has such a name.
pub(crate) fn successor_of(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().with_context(|| format!("{} is no file's name", path.display()))?;
    if name.as_encoded_bytes().ends_with(SUCCESSOR.as_bytes()) {
        bail!(
            "{} cannot be a wrapping key: names that end in {SUCCESSOR} are those of keys being renewed; choose another name",
            path.display()
        );
    }
    let mut name = name.to_owned();
    name.push(SUCCESSOR);
    Ok(path.with_file_name(name))
}

/// Overwrites a key's bytes where they lie. A file system or a disk that writes elsewhere may keep them: put wrapping keys where that
/// does not happen (docs/threat-model.md). Fails only if neither pass is known to have reached the disk.
fn destroy(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    let mut overwrite = |byte| {
        file.rewind()?;
        file.write_all(&vec![byte; length])?;
        file.sync_all()
    };
    let [first, second] = OVERWRITTEN.map(&mut overwrite);
    match (first, second) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(error), Err(_)) => Err(error),
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, path = %path.display(), "a destroyed wrapping key was overwritten once, and not twice");
            Ok(())
        }
    }
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
        let path = make(&dir.path().join("wrapping-keys"), "vault").unwrap();
        let volume = volume_with(&dir, "vault", path);
        (dir, volume)
    }

    fn volume_with(dir: &tempfile::TempDir, name: &str, path: PathBuf) -> Volume {
        let root = dir.path().join("volumes");
        fs::create_dir_all(&root).unwrap();
        let sealed = SealedSpec { wrapping_key: Some(path), ..SealedSpec::new(Custody::Target) };
        let spec = VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain(name, 1 << 20) };
        Catalogue::open(root).unwrap().create(&spec).unwrap()
    }

    /// A second name for the same bytes on the disk: what a file system that writes in place has left of them.
    fn witness_of(path: &Path) -> PathBuf {
        let witness = path.with_extension("witness");
        fs::hard_link(path, &witness).unwrap();
        witness
    }

    #[test]
    fn what_was_wrapped_before_a_renewal_is_lost() {
        let (_dir, volume) = volume();
        let path = path_of(&volume).unwrap();
        let wrapped = open(&volume).unwrap().wrap(&[7; 32]).unwrap();
        assert_eq!(open(&volume).unwrap().unwrap(&wrapped), Ok([7; 32]));
        let before = fs::read_to_string(path).unwrap();
        let key = before.split_whitespace().last().unwrap();
        let witness = witness_of(path);
        let renewed = renew(&volume).unwrap();
        assert!(renewed.unwrap(&wrapped).is_err(), "the old key's work opens under the new one");
        assert!(!fs::read_to_string(path).unwrap().contains(key));
        assert!(fs::read(&witness).unwrap().iter().all(|byte| *byte == 0), "the old key is still on the disk");
        let again = renewed.wrap(&[8; 32]).unwrap();
        assert_eq!(open(&volume).unwrap().unwrap(&again), Ok([8; 32]), "the new key is the one in the file");
        assert!(!successor_of(path).unwrap().exists());
    }

    #[test]
    fn a_renewal_that_was_cut_short_leaves_one_whole_key() {
        let (_dir, volume) = volume();
        let path = path_of(&volume).unwrap();
        let wrapped = open(&volume).unwrap().wrap(&[7; 32]).unwrap();
        let before = fs::read(path).unwrap();
        // Cut before the old key was touched: it still holds.
        secret_file::create(&successor_of(path).unwrap(), &fresh().unwrap().to_text()).unwrap();
        assert_eq!(open(&volume).unwrap().unwrap(&wrapped), Ok([7; 32]));
        assert!(!successor_of(path).unwrap().exists());
        // Cut after: the new one does.
        let successor = fresh().unwrap();
        secret_file::create(&successor_of(path).unwrap(), &successor.to_text()).unwrap();
        destroy(path).unwrap();
        // The second pass was cut short, and nothing of the first one had reached the disk but its beginning.
        let mut torn = vec![0xff; 8];
        torn.extend(&before[8..]);
        fs::write(path, torn).unwrap();
        let witness = witness_of(path);
        assert!(open(&volume).unwrap().unwrap(&wrapped).is_err());
        assert_eq!(keys::read_key_file(path).unwrap(), successor);
        assert!(fs::read(&witness).unwrap().iter().all(|byte| *byte == 0), "the old key is still on the disk");
        // Cut anywhere, and begun again.
        secret_file::create(&successor_of(path).unwrap(), "half of a k").unwrap();
        renew(&volume).unwrap();
        open(&volume).unwrap();
    }

    /// One file's name is not to be made of another's.
    #[test]
    fn every_name_has_a_successor_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["wrap.new", "wrap.key", "wrap"];
        let volumes = names.map(|name| {
            let path = dir.path().join(name);
            secret_file::create(&path, &fresh().unwrap().to_text()).unwrap();
            volume_with(&dir, &name.replace('.', "-"), path)
        });
        // One is being renewed while the others are opened and renewed.
        let path = path_of(&volumes[1]).unwrap();
        let successor = fresh().unwrap();
        secret_file::create(&successor_of(path).unwrap(), &successor.to_text()).unwrap();
        destroy(path).unwrap();
        for volume in [&volumes[0], &volumes[2]] {
            let wrapped = open(volume).unwrap().wrap(&[7; 32]).unwrap();
            assert_eq!(open(volume).unwrap().unwrap(&wrapped), Ok([7; 32]), "opening it again changes nothing");
            let wrapped = renew(volume).unwrap().wrap(&[8; 32]).unwrap();
            assert_eq!(open(volume).unwrap().unwrap(&wrapped), Ok([8; 32]));
        }
        open(&volumes[1]).unwrap();
        assert_eq!(keys::read_key_file(path).unwrap(), successor);
        let path = dir.path().join("a.successor");
        secret_file::create(&path, &fresh().unwrap().to_text()).unwrap();
        let volume = volume_with(&dir, "successor", path);
        for error in [open(&volume).unwrap_err(), renew(&volume).unwrap_err()] {
            assert!(format!("{error:#}").contains("choose another name"), "{error:#}");
        }
    }

    /// What cannot be read now may be read later.
    #[test]
    fn only_a_destroyed_key_is_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, volume) = volume();
        let path = path_of(&volume).unwrap();
        let wrapped = open(&volume).unwrap().wrap(&[7; 32]).unwrap();
        let before = fs::read(path).unwrap();
        secret_file::create(&successor_of(path).unwrap(), &fresh().unwrap().to_text()).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = format!("{:#}", open(&volume).unwrap_err());
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        let elsewhere = path.with_extension("elsewhere");
        fs::rename(path, &elsewhere).unwrap();
        open(&volume).unwrap_err();
        renew(&volume).unwrap_err();
        assert!(!path.exists());
        fs::write(path, &before[..before.len() / 2]).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        open(&volume).unwrap_err();
        renew(&volume).unwrap_err();
        assert_eq!(fs::read(path).unwrap(), before[..before.len() / 2]);
        fs::rename(&elsewhere, path).unwrap();
        assert_eq!(open(&volume).unwrap().unwrap(&wrapped), Ok([7; 32]), "the old key is whole");
        // Nor by half a key.
        secret_file::create(&successor_of(path).unwrap(), "half of a k").unwrap();
        destroy(path).unwrap();
        let error = format!("{:#}", open(&volume).unwrap_err());
        assert!(error.contains("not whole") && path.exists(), "{error}");
    }

    #[test]
    fn a_renewal_fails_only_while_the_old_key_may_be_there() {
        let (_dir, volume) = volume();
        let path = path_of(&volume).unwrap();
        let wrapped = open(&volume).unwrap().wrap(&[7; 32]).unwrap();
        renew_by(&volume, |_| Err(std::io::Error::other("no overwriting")), replace).unwrap_err();
        assert_eq!(open(&volume).unwrap().unwrap(&wrapped), Ok([7; 32]), "the old key holds");
        // The old key is gone: what wraps is the new one, wherever it is, and another renewal does not lose it.
        for _ in 0..2 {
            let renewed = renew_by(&volume, destroy, |_, _| bail!("no renaming")).unwrap();
            assert!(is_overwritten(path));
            let again = renewed.wrap(&[8; 32]).unwrap();
            renew_by(&volume, |_| Err(std::io::Error::other("no overwriting")), replace).unwrap_err();
            assert_eq!(open(&volume).unwrap().unwrap(&again), Ok([8; 32]));
        }
        let lose = |_: &Path, successor: &Path| {
            fs::remove_file(successor)?;
            bail!("it is gone")
        };
        renew_by(&volume, destroy, lose).unwrap_err();
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
