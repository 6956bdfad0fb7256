//! Records in a key file: which volumes are sealed with its keys, and in which sealing domain.
//!
//! The initiator draws the domain, because a target that assigned one domain to two volumes of a key file could swap their blocks.
//! Absent: what a record means for an attachment (the initiator's key source).

use std::path::Path;

use strongroom_block::SealingDomain;
use strongroom_seal::{VolumeKeyFile, VolumeRecord};

use crate::{KeyStorageError, read_key_file, secret_file};

/// Which sealing domain is recorded for a volume.
#[derive(Clone, Copy, Debug)]
pub enum Domain<'a> {
    /// In the one that is recorded, else in the one that is drawn: it is about to be formatted, and may have snapshots.
    Formatting,
    /// In the one that is drawn for its last name: it was formatted with another copy of the file.
    Drawn,
    /// In the one that its target claims: it was formatted before key files recorded volumes, or its target opens its blocks.
    Claimed,
    /// In that of the volume that is recorded under this name, whose target claims the same.
    SameAs(&'a str),
}

/// What becomes of records of the same name that another volume has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// There must be none.
    Refuse,
    /// They are forgotten: the volume was recreated.
    Forget,
    /// They stay: the volume is about to take the other one's place.
    Keep,
}

/// Records the volume whose target claims `claimed` under these names.
///
/// # Errors
/// What is wrong with the file; a record that contradicts what the target claims.
pub fn record(
    path: &Path,
    claimed: SealingDomain,
    names: &[&str],
    domain: Domain<'_>,
    others: Others,
) -> Result<(), KeyStorageError> {
    change(path, |file| {
        let is_named = |known: &VolumeRecord| names.contains(&known.name.as_str());
        let domain = choose(path, file, claimed, names, domain)?;
        if let Some(other) = file.volumes().iter().find(|known| is_named(known) && known.claimed != claimed) {
            match others {
                Others::Keep => {}
                Others::Forget => file.retain_volumes(|known| !(is_named(known) && known.claimed != claimed)),
                Others::Refuse => {
                    return Err(KeyStorageError::OtherVolume { name: other.name.clone(), path: path.to_owned() });
                }
            }
        }
        for name in names {
            file.record_volume(VolumeRecord { name: (*name).to_owned(), claimed, domain }).map_err(|source| {
                KeyStorageError::Record { name: (*name).to_owned(), path: path.to_owned(), source }
            })?;
        }
        Ok(())
    })
}

/// Forgets what had these names before the volume whose target claims `claimed`.
pub fn forget_others(path: &Path, names: &[&str], claimed: SealingDomain) -> Result<(), KeyStorageError> {
    change(path, |file| {
        file.retain_volumes(|known| known.claimed == claimed || !names.contains(&known.name.as_str()));
        Ok(())
    })
}

/// Whether a key file records a volume of this name.
pub fn is_recorded(path: &Path, name: &str) -> Result<bool, KeyStorageError> {
    Ok(read_key_file(path)?.volumes().iter().any(|known| known.name == name))
}

/// Forgets what has this name: it was recorded for something that did not come about.
pub fn forget(path: &Path, name: &str) -> Result<(), KeyStorageError> {
    change(path, |file| {
        file.retain_volumes(|known| known.name != name);
        Ok(())
    })
}

fn choose(
    path: &Path,
    file: &VolumeKeyFile,
    claimed: SealingDomain,
    names: &[&str],
    domain: Domain<'_>,
) -> Result<SealingDomain, KeyStorageError> {
    let is_another = |known: &&VolumeRecord| !names.contains(&known.name.as_str());
    let as_another =
        file.volumes().iter().filter(is_another).find(|known| [known.claimed, known.domain].contains(&claimed));
    let recorded = file.volumes().iter().find(|known| !is_another(known) && known.claimed == claimed);
    if let (Domain::Formatting, Some(recorded)) = (domain, recorded) {
        return Ok(recorded.domain);
    }
    match (domain, as_another) {
        (Domain::Formatting | Domain::Drawn, _) => {
            let name = names.last().expect("a volume is recorded under at least one name");
            Ok(file.drawn_domain(name, claimed))
        }
        (Domain::Claimed, None) => Ok(claimed),
        (Domain::Claimed, Some(other)) => {
            Err(KeyStorageError::ClaimedByOther { name: other.name.clone(), path: path.to_owned() })
        }
        (Domain::SameAs(name), _) => {
            let same = file.volumes().iter().find(|known| known.name == name && known.claimed == claimed);
            let refused = || KeyStorageError::NotTheSame { name: name.to_owned(), path: path.to_owned() };
            Ok(same.ok_or_else(refused)?.domain)
        }
    }
}

/// Changes a key file; readers see all of it or nothing, and it is on the disk afterwards.
fn change(
    path: &Path,
    change: impl FnOnce(&mut VolumeKeyFile) -> Result<(), KeyStorageError>,
) -> Result<(), KeyStorageError> {
    // What a link points to is replaced, not the link.
    let path = path.canonicalize().map_err(KeyStorageError::io(format!("open the key file {}", path.display())))?;
    let _lock = secret_file::lock_directory_of(&path)?;
    let before = read_key_file(&path)?;
    let mut after = before.clone();
    change(&mut after)?;
    if after != before {
        secret_file::replace(&path, &after.to_text())
            .map_err(|source| KeyStorageError::Unwritable { path: path.clone(), source: Box::new(source) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use strongroom_seal::KeyPurpose;

    use super::*;

    const A: SealingDomain = SealingDomain([0xa; 16]);
    const B: SealingDomain = SealingDomain([0xb; 16]);

    fn key_file() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.key");
        secret_file::create(&path, &VolumeKeyFile::new(KeyPurpose::Volume, &[7; 32]).to_text()).unwrap();
        (dir, path)
    }

    fn volumes(path: &Path) -> Vec<VolumeRecord> {
        read_key_file(path).unwrap().volumes().to_vec()
    }

    #[test]
    fn domains_are_drawn_once_for_each_volume() {
        let (_dir, path) = key_file();
        for _ in 0..2 {
            record(&path, A, &["vault"], Domain::Formatting, Others::Refuse).unwrap();
        }
        // The target claims the same for another volume.
        record(&path, A, &["other"], Domain::Formatting, Others::Refuse).unwrap();
        let found = volumes(&path);
        let names: Vec<&str> = found.iter().map(|record| record.name.as_str()).collect();
        assert_eq!(names, ["vault", "other"]);
        assert!(found[0].domain != found[1].domain && found[0].domain != A && found[1].domain != A);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        read_key_file(&path).unwrap().volume_key(1).unwrap();
    }

    #[test]
    fn a_name_is_not_given_to_another_volume_unless_that_is_meant() {
        let (_dir, path) = key_file();
        record(&path, A, &["vault"], Domain::Formatting, Others::Refuse).unwrap();
        let error = record(&path, B, &["vault"], Domain::Formatting, Others::Refuse).unwrap_err().to_string();
        assert!(error.contains("--forget-volume"), "{error}");
        assert_eq!(volumes(&path).len(), 1);
        record(&path, B, &["vault-next", "vault"], Domain::Formatting, Others::Keep).unwrap();
        assert_eq!(volumes(&path).len(), 3);
        forget_others(&path, &["vault"], B).unwrap();
        assert_eq!(volumes(&path).iter().map(|record| record.claimed).collect::<Vec<_>>(), [B, B]);
        record(&path, A, &["vault"], Domain::Formatting, Others::Forget).unwrap();
        assert_eq!(volumes(&path).iter().filter(|record| record.name == "vault").count(), 1);
    }

    #[test]
    fn a_volume_of_before_is_taken_as_claimed_and_a_clone_as_what_it_is_of() {
        let (_dir, path) = key_file();
        record(&path, A, &["old"], Domain::Claimed, Others::Refuse).unwrap();
        assert_eq!(volumes(&path)[0].domain, A);
        let error = format!("{:#}", record(&path, A, &["twin"], Domain::Claimed, Others::Refuse).unwrap_err());
        assert!(error.contains("--same-as old"), "{error}");
        let error = format!("{:#}", record(&path, B, &["twin"], Domain::SameAs("old"), Others::Refuse).unwrap_err());
        assert!(error.contains("does not show here"), "{error}");
        record(&path, A, &["twin"], Domain::SameAs("old"), Others::Refuse).unwrap();
        assert_eq!(volumes(&path)[1].domain, A);
        // Formatted again it keeps its snapshots readable.
        record(&path, A, &["old"], Domain::Formatting, Others::Refuse).unwrap();
        assert!(volumes(&path).iter().all(|record| record.domain == A));
        // One that was formatted in vain, because its target opens what arrives.
        record(&path, B, &["open"], Domain::Formatting, Others::Refuse).unwrap();
        record(&path, B, &["open"], Domain::Claimed, Others::Refuse).unwrap();
        assert_eq!(volumes(&path)[2].domain, B);
    }
}
