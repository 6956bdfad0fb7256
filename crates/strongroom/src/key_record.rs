//! Records in a key file which volume is sealed with its keys, and in which domain.
//!
//! The domain is drawn here, by an initiator: a target that had two volumes of one key file sealed in one domain could swap their blocks.
//! Absent: what a record means at an attachment (the initiator's key source).

use std::path::Path;

use anyhow::{Context, Result, bail};
use strongroom_block::SealingDomain;
use strongroom_seal::{VolumeKeyFile, VolumeRecord};

use crate::{keys, secret_file};

/// In which domain a volume is sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Domain<'a> {
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
pub(crate) enum Others {
    /// There must be none.
    Refuse,
    /// They are forgotten: the volume was made anew.
    Forget,
    /// They stay: the volume is about to take the other one's place.
    Keep,
}

/// Records the volume whose target claims `claimed` under these names.
///
/// # Errors
/// What is wrong with the file; a record that contradicts what the target claims.
pub(crate) fn record(
    path: &Path,
    claimed: SealingDomain,
    names: &[&str],
    domain: Domain<'_>,
    others: Others,
) -> Result<()> {
    change(path, |file| {
        let shown = path.display();
        let is_named = |known: &VolumeRecord| names.contains(&known.name.as_str());
        let domain = choose(file, claimed, names, domain).with_context(|| format!("key file {shown}"))?;
        if let Some(other) = file.volumes().iter().find(|known| is_named(known) && known.claimed != claimed) {
            match others {
                Others::Keep => {}
                Others::Forget => file.retain_volumes(|known| !(is_named(known) && known.claimed != claimed)),
                Others::Refuse => bail!(
                    "the target shows another volume than '{}', which the key file {shown} records; if the volume was made anew, add \
                     --forget-volume; if there are two of that name, use a key file of its own for each",
                    other.name
                ),
            }
        }
        for name in names {
            file.record_volume(VolumeRecord { name: (*name).to_owned(), claimed, domain })
                .with_context(|| format!("cannot record '{name}' in the key file {shown}"))?;
        }
        Ok(())
    })
}

/// Forgets what had these names before the volume whose target claims `claimed`.
pub(crate) fn forget_others(path: &Path, names: &[&str], claimed: SealingDomain) -> Result<()> {
    change(path, |file| {
        file.retain_volumes(|known| known.claimed == claimed || !names.contains(&known.name.as_str()));
        Ok(())
    })
}

/// Whether a key file records a volume of this name.
pub(crate) fn is_recorded(path: &Path, name: &str) -> Result<bool> {
    Ok(keys::read_key_file(path)?.volumes().iter().any(|known| known.name == name))
}

/// Forgets what has this name: it was recorded for something that did not come about.
pub(crate) fn forget(path: &Path, name: &str) -> Result<()> {
    change(path, |file| {
        file.retain_volumes(|known| known.name != name);
        Ok(())
    })
}

fn choose(file: &VolumeKeyFile, claimed: SealingDomain, names: &[&str], domain: Domain<'_>) -> Result<SealingDomain> {
    let is_another = |known: &&VolumeRecord| !names.contains(&known.name.as_str());
    let as_another =
        file.volumes().iter().filter(is_another).find(|known| [known.claimed, known.domain].contains(&claimed));
    let recorded = file.volumes().iter().find(|known| !is_another(known) && known.claimed == claimed);
    if let (Domain::Formatting, Some(recorded)) = (domain, recorded) {
        return Ok(recorded.domain);
    }
    match (domain, as_another) {
        (Domain::Formatting | Domain::Drawn, _) => {
            let name = names.last().context("a volume has a name")?;
            Ok(file.drawn_domain(name, claimed))
        }
        (Domain::Claimed, None) => Ok(claimed),
        (Domain::Claimed, Some(other)) => bail!(
            "the target claims for this volume what is recorded of '{}'; if it is a clone of it, or was received elsewhere, add \
             --same-as {}; do not trust this target if not",
            other.name,
            other.name
        ),
        (Domain::SameAs(name), _) => {
            let same = file.volumes().iter().find(|known| known.name == name && known.claimed == claimed);
            Ok(same.with_context(|| format!("the target does not show here what is recorded of '{name}'"))?.domain)
        }
    }
}

/// Changes a key file; readers see all of it or nothing, and it is on the disk afterwards.
fn change(path: &Path, change: impl FnOnce(&mut VolumeKeyFile) -> Result<()>) -> Result<()> {
    // What a link points to is replaced, not the link.
    let path = path.canonicalize().with_context(|| format!("cannot open the key file {}", path.display()))?;
    let _lock = secret_file::lock_directory_of(&path)?;
    let before = keys::read_key_file(&path)?;
    let mut after = before.clone();
    change(&mut after)?;
    if after != before {
        secret_file::replace(&path, &after.to_text()).with_context(|| {
            format!("the key file {} has to record the volume; put it where it can be changed", path.display())
        })?;
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
        keys::read_key_file(path).unwrap().volumes().to_vec()
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
        keys::read_key_file(&path).unwrap().volume_key(1).unwrap();
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
