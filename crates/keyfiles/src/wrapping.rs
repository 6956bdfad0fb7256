//! Wrapping keys of custody `target`: one file per volume, outside the store; created, opened, renewed and destroyed here.
//!
//! Every block key in the store is wrapped under the volume's wrapping key, so a stolen store opens nothing, and destroying this file
//! is a cryptographic erase. Absent: wrapping itself (`seal`), and the decision to erase (the target's).

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use strongroom_block::SealingDomain;
use strongroom_seal::{KEY_BYTES, KeyPurpose, KeyWrapper, VolumeKeyFile};
use zeroize::Zeroizing;

use crate::{KeyStorageError, read_key_file, secret_file};

/// Appended to the file's whole name while the next key is being put in place. No key file may have a name that ends so.
const SUCCESSOR: &str = ".successor";
/// The bytes that overwrite a destroyed key, one pass each. No key file begins with either.
const OVERWRITTEN: [u8; 2] = [0xff, 0x00];

/// Creates a wrapping key for the volume `name` in `directory`, in a new file that only its owner can read.
///
/// # Errors
/// If there are no random bytes, or the file cannot be made durable.
pub fn create(directory: &Path, name: &str) -> Result<PathBuf, KeyStorageError> {
    let mut suffix = [0; 8];
    getrandom::fill(&mut suffix).map_err(KeyStorageError::Random)?;
    // The random suffix separates it from the key of an older volume of the same name, which somebody may still keep.
    let name: String = name.chars().filter(|character| character.is_ascii_alphanumeric()).collect();
    let path = directory.join(format!("{name}-{:016x}.key", u64::from_be_bytes(suffix)));
    let path = std::path::absolute(&path).map_err(KeyStorageError::io(format!("tell where {} is", path.display())))?;
    secret_file::create(&path, &random_key()?.to_text())?;
    sync_directory_of(&path)?;
    Ok(path)
}

/// The file of one volume's wrapping key.
#[derive(Clone, Debug)]
pub struct WrappingKeyFile {
    path: PathBuf,
    epoch: u32,
    domain: SealingDomain,
}

impl WrappingKeyFile {
    /// The file at `path`, which wraps the block keys of a sealing domain under the key of `epoch`.
    pub fn new(path: PathBuf, epoch: u32, domain: SealingDomain) -> WrappingKeyFile {
        WrappingKeyFile { path, epoch, domain }
    }

    /// Reads the key; completes or undoes a renewal that was interrupted.
    ///
    /// # Errors
    /// If the file cannot be read, is readable by others, or has no key of that epoch.
    pub fn open(&self) -> Result<KeyWrapper, KeyStorageError> {
        settle(&self.path)?;
        self.wrapper(&read_key_file(&self.path)?)
    }

    /// Destroys the key and puts a new one in its place. What was wrapped before can never be opened again.
    ///
    /// # Errors
    /// Only if the old key may still be on the disk.
    pub fn renew(&self) -> Result<KeyWrapper, KeyStorageError> {
        self.renew_by(destroy, replace)
    }

    fn renew_by(
        &self,
        destroy: impl FnOnce(&Path) -> std::io::Result<()>,
        replace: impl FnOnce(&Path, &Path) -> Result<(), KeyStorageError>,
    ) -> Result<KeyWrapper, KeyStorageError> {
        let path = self.path.as_path();
        // Without this the only key could be mistaken for a leftover of an interrupted renewal.
        settle(path)?;
        let successor = successor_of(path)?;
        let keys = random_key()?;
        let wrapper = self.wrapper(&keys)?;
        secret_file::create(&successor, &keys.to_text())?;
        sync_directory_of(path)?;
        destroy(path).map_err(KeyStorageError::io(format!("destroy the wrapping key {}", path.display())))?;
        if let Err(error) = replace(path, &successor) {
            // The old key is destroyed. The next opening completes the renewal, provided that the new key is found.
            let holds_new_key = |path: &Path| read_key_file(path).is_ok_and(|found| found == keys);
            if !holds_new_key(&successor) && !holds_new_key(path) {
                return Err(error);
            }
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the new wrapping key takes the old one's name at the next opening");
        }
        Ok(wrapper)
    }

    fn wrapper(&self, keys: &VolumeKeyFile) -> Result<KeyWrapper, KeyStorageError> {
        Ok(KeyWrapper::new(keys.wrapping_key(self.epoch)?, self.domain))
    }
}

/// Ends a renewal that was interrupted. If the old key is intact, it stays and the new one is removed. If destroying the old key has
/// begun, the new one takes its place. An old key that cannot be read for any other reason is never replaced.
fn settle(path: &Path) -> Result<(), KeyStorageError> {
    let successor = successor_of(path)?;
    let exists = successor.try_exists().map_err(KeyStorageError::io(format!("look for {}", successor.display())))?;
    if !exists {
        return Ok(());
    }
    let Err(error) = read_key_file(path) else {
        return fs::remove_file(&successor).map_err(KeyStorageError::io(format!("remove {}", successor.display())));
    };
    if !is_overwritten(path) {
        return Err(KeyStorageError::InterruptedRenewal { successor, source: Box::new(error) });
    }
    read_key_file(&successor).map_err(|source| KeyStorageError::IncompleteSuccessor { source: Box::new(source) })?;
    // The first attempt may have been interrupted in the middle, or before it was durable.
    destroy(path).map_err(KeyStorageError::io(format!("destroy the wrapping key {}", path.display())))?;
    replace(path, &successor)
}

/// Whether destroying the key in a file has begun.
fn is_overwritten(path: &Path) -> bool {
    let mut first = [0];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && OVERWRITTEN.contains(&first[0])
}

/// Where a renewal writes the next key.
///
/// # Errors
/// If the file itself has a name that is reserved for such files.
pub fn successor_of(path: &Path) -> Result<PathBuf, KeyStorageError> {
    let name = path.file_name().ok_or_else(|| KeyStorageError::NoFileName { path: path.to_owned() })?;
    if name.as_encoded_bytes().ends_with(SUCCESSOR.as_bytes()) {
        return Err(KeyStorageError::ReservedName { path: path.to_owned(), suffix: SUCCESSOR });
    }
    let mut name = name.to_owned();
    name.push(SUCCESSOR);
    Ok(path.with_file_name(name))
}

/// Overwrites a key's bytes in place. A file system or a disk that writes elsewhere may keep the old bytes: put wrapping keys where that
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
            tracing::warn!(%error, path = %path.display(), "a destroyed wrapping key was overwritten only once, not twice");
            Ok(())
        }
    }
}

fn replace(path: &Path, successor: &Path) -> Result<(), KeyStorageError> {
    fs::rename(successor, path).map_err(KeyStorageError::io(format!("put {} in its place", successor.display())))?;
    sync_directory_of(path)
}

fn sync_directory_of(path: &Path) -> Result<(), KeyStorageError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(KeyStorageError::io(format!("make {} durable", directory.display())))
}

fn random_key() -> Result<VolumeKeyFile, KeyStorageError> {
    let mut random = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(random.as_mut()).map_err(KeyStorageError::Random)?;
    Ok(VolumeKeyFile::new(KeyPurpose::Wrapping, &random))
}

#[cfg(test)]
mod tests {
    //! Proves that a renewed key opens nothing of the old one's, that no byte of that stays in its file, and that a renewal that was cut
    //! short at any point leaves one whole key.
    use strongroom_block::BlockKeyWrap as _;

    use super::*;

    fn file_at(path: PathBuf) -> WrappingKeyFile {
        WrappingKeyFile::new(path, 1, SealingDomain([5; 16]))
    }

    fn key_file() -> (tempfile::TempDir, WrappingKeyFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = create(&dir.path().join("wrapping-keys"), "vault").unwrap();
        (dir, file_at(path))
    }

    fn in_words(error: &KeyStorageError) -> String {
        let chain = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
        chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    /// A second name for the same bytes on the disk: what a file system that writes in place has left of them.
    fn witness_of(path: &Path) -> PathBuf {
        let witness = path.with_extension("witness");
        fs::hard_link(path, &witness).unwrap();
        witness
    }

    #[test]
    fn what_was_wrapped_before_a_renewal_is_lost() {
        let (_dir, file) = key_file();
        let path = file.path.as_path();
        let wrapped = file.open().unwrap().wrap(&[7; 32]).unwrap();
        assert_eq!(file.open().unwrap().unwrap(&wrapped), Ok([7; 32]));
        let before = fs::read_to_string(path).unwrap();
        let key = before.split_whitespace().last().unwrap();
        let witness = witness_of(path);
        let renewed = file.renew().unwrap();
        assert!(renewed.unwrap(&wrapped).is_err(), "the old key's work opens under the new one");
        assert!(!fs::read_to_string(path).unwrap().contains(key));
        assert!(fs::read(&witness).unwrap().iter().all(|byte| *byte == 0), "the old key is still on the disk");
        let again = renewed.wrap(&[8; 32]).unwrap();
        assert_eq!(file.open().unwrap().unwrap(&again), Ok([8; 32]), "the new key is the one in the file");
        assert!(!successor_of(path).unwrap().exists());
    }

    #[test]
    fn a_renewal_that_was_cut_short_leaves_one_whole_key() {
        let (_dir, file) = key_file();
        let path = file.path.as_path();
        let wrapped = file.open().unwrap().wrap(&[7; 32]).unwrap();
        let before = fs::read(path).unwrap();
        // Cut before the old key was touched: it still holds.
        secret_file::create(&successor_of(path).unwrap(), &random_key().unwrap().to_text()).unwrap();
        assert_eq!(file.open().unwrap().unwrap(&wrapped), Ok([7; 32]));
        assert!(!successor_of(path).unwrap().exists());
        // Cut after: the new one does.
        let successor = random_key().unwrap();
        secret_file::create(&successor_of(path).unwrap(), &successor.to_text()).unwrap();
        destroy(path).unwrap();
        // The second pass was cut short, and nothing of the first one had reached the disk but its beginning.
        let mut torn = vec![0xff; 8];
        torn.extend(&before[8..]);
        fs::write(path, torn).unwrap();
        let witness = witness_of(path);
        assert!(file.open().unwrap().unwrap(&wrapped).is_err());
        assert_eq!(read_key_file(path).unwrap(), successor);
        assert!(fs::read(&witness).unwrap().iter().all(|byte| *byte == 0), "the old key is still on the disk");
        // Cut anywhere, and begun again.
        secret_file::create(&successor_of(path).unwrap(), "half of a k").unwrap();
        file.renew().unwrap();
        file.open().unwrap();
    }

    /// One file's name is not to be made of another's.
    #[test]
    fn every_name_has_a_successor_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["wrap.new", "wrap.key", "wrap"];
        let files = names.map(|name| {
            let path = dir.path().join(name);
            secret_file::create(&path, &random_key().unwrap().to_text()).unwrap();
            file_at(path)
        });
        // One is being renewed while the others are opened and renewed.
        let path = files[1].path.as_path();
        let successor = random_key().unwrap();
        secret_file::create(&successor_of(path).unwrap(), &successor.to_text()).unwrap();
        destroy(path).unwrap();
        for file in [&files[0], &files[2]] {
            let wrapped = file.open().unwrap().wrap(&[7; 32]).unwrap();
            assert_eq!(file.open().unwrap().unwrap(&wrapped), Ok([7; 32]), "opening it again changes nothing");
            let wrapped = file.renew().unwrap().wrap(&[8; 32]).unwrap();
            assert_eq!(file.open().unwrap().unwrap(&wrapped), Ok([8; 32]));
        }
        files[1].open().unwrap();
        assert_eq!(read_key_file(path).unwrap(), successor);
        let path = dir.path().join("a.successor");
        secret_file::create(&path, &random_key().unwrap().to_text()).unwrap();
        let file = file_at(path);
        for error in [file.open().unwrap_err(), file.renew().unwrap_err()] {
            assert!(error.to_string().contains("choose another name"), "{error}");
        }
    }

    /// What cannot be read now may be read later.
    #[test]
    fn only_a_destroyed_key_is_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, file) = key_file();
        let path = file.path.as_path();
        let wrapped = file.open().unwrap().wrap(&[7; 32]).unwrap();
        let before = fs::read(path).unwrap();
        secret_file::create(&successor_of(path).unwrap(), &random_key().unwrap().to_text()).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = in_words(&file.open().unwrap_err());
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        let elsewhere = path.with_extension("elsewhere");
        fs::rename(path, &elsewhere).unwrap();
        file.open().unwrap_err();
        file.renew().unwrap_err();
        assert!(!path.exists());
        fs::write(path, &before[..before.len() / 2]).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        file.open().unwrap_err();
        file.renew().unwrap_err();
        assert_eq!(fs::read(path).unwrap(), before[..before.len() / 2]);
        fs::rename(&elsewhere, path).unwrap();
        assert_eq!(file.open().unwrap().unwrap(&wrapped), Ok([7; 32]), "the old key is whole");
        // Nor by half a key.
        secret_file::create(&successor_of(path).unwrap(), "half of a k").unwrap();
        destroy(path).unwrap();
        let error = in_words(&file.open().unwrap_err());
        assert!(error.contains("incomplete") && path.exists(), "{error}");
    }

    #[test]
    fn a_renewal_fails_only_while_the_old_key_may_be_there() {
        let (_dir, file) = key_file();
        let path = file.path.as_path();
        let wrapped = file.open().unwrap().wrap(&[7; 32]).unwrap();
        file.renew_by(|_| Err(std::io::Error::other("no overwriting")), replace).unwrap_err();
        assert_eq!(file.open().unwrap().unwrap(&wrapped), Ok([7; 32]), "the old key holds");
        // The old key is gone: what wraps is the new one, wherever it is, and another renewal does not lose it.
        for _ in 0..2 {
            let renewed = file
                .renew_by(destroy, |_, _| Err(KeyStorageError::io("rename")(std::io::Error::other("no renaming"))))
                .unwrap();
            assert!(is_overwritten(path));
            let again = renewed.wrap(&[8; 32]).unwrap();
            file.renew_by(|_| Err(std::io::Error::other("no overwriting")), replace).unwrap_err();
            assert_eq!(file.open().unwrap().unwrap(&again), Ok([8; 32]));
        }
        let lose = |_: &Path, successor: &Path| {
            fs::remove_file(successor).unwrap();
            Err(KeyStorageError::io("find it")(std::io::Error::other("it is gone")))
        };
        file.renew_by(destroy, lose).unwrap_err();
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, file) = key_file();
        let path = file.path.as_path();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = in_words(&file.open().unwrap_err());
        assert!(error.contains("chmod 600"), "{error}");
    }
}
