//! What this person has seen of a volume before: like SSH's `known_hosts`, for volumes.
//!
//! A target could answer for one volume with another one that is sealed under the same key file, in its own domain: every
//! block would open, of the wrong volume. So domain, volume identifier, block size, custody and suite of a sealed volume
//! are remembered at the first attach and compared at every later one. Text in, text out, one line for each volume:
//!
//! ```text
//! strongroom://storage/vol1 volume 5e7f… domain 77aa… block 4096 custody keyfile suite aes-256-gcm epoch 1
//! ```
//!
//! Absent: files (the binary's), and secrets: nothing here is one.

use std::fmt;

use strongroom_block::{BlockSize, Custody, SealingDomain, Suite, VolumeId};

/// Upper bound on the text, in bytes.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// What is known of a volume beforehand; what is not known is not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedUnit {
    /// The volume's identifier.
    pub volume_id: Option<VolumeId>,
    /// The sealing domain.
    pub domain: Option<SealingDomain>,
    /// The block size.
    pub block_size: Option<BlockSize>,
    /// Who holds the keys.
    pub custody: Option<Custody>,
    /// The cipher that its blocks are sealed with.
    pub suite: Option<Suite>,
    /// The newest epoch seen: an older one is an attempt to make us use a retired key.
    pub epoch_min: Option<u32>,
}

/// What a sealed volume claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedClaims {
    /// The volume's identifier.
    pub volume_id: VolumeId,
    /// The sealing domain.
    pub domain: SealingDomain,
    /// The block size.
    pub block_size: BlockSize,
    /// Who holds the keys.
    pub custody: Custody,
    /// The cipher that its blocks are sealed with: another one would open none of them, and be what new ones are written with.
    pub suite: Suite,
    /// The epoch that new writes are sealed under.
    pub epoch: u32,
}

/// A volume that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not the volume that was attached before: its {what} was {expected} and is {found}; if the volume was made \
     again on purpose, have its predecessor forgotten (--forget-volume), otherwise do not trust this target"
)]
pub struct UnitMismatch {
    /// Which property.
    pub what: &'static str,
    /// As remembered.
    pub expected: String,
    /// As claimed.
    pub found: String,
}

impl ExpectedUnit {
    /// Compares what a volume claims with what is known.
    ///
    /// # Errors
    /// [`UnitMismatch`] for the first difference.
    pub fn check(&self, claims: &SealedClaims) -> Result<(), UnitMismatch> {
        check("identifier", self.volume_id, claims.volume_id)?;
        check("sealing domain", self.domain, claims.domain)?;
        check("block size", self.block_size, claims.block_size)?;
        check("custody", self.custody, claims.custody)?;
        check("suite", self.suite, claims.suite)?;
        // Where the source of the keys says which epoch is current, what the target says decides nothing.
        if claims.custody.is_blind() { Ok(()) } else { self.check_epoch(claims.epoch) }
    }

    /// Compares the epoch that new writes would be sealed under with the newest one seen.
    ///
    /// # Errors
    /// [`UnitMismatch`] if it is older: an old key file, or a key server restored from an old backup, would go back to a retired key.
    pub fn check_epoch(&self, epoch: u32) -> Result<(), UnitMismatch> {
        match self.epoch_min {
            Some(expected) if epoch < expected => Err(UnitMismatch {
                what: "key epoch",
                expected: format!("at least {expected}"),
                found: epoch.to_string(),
            }),
            _ => Ok(()),
        }
    }
}

impl ExpectedUnit {
    /// Whether a volume that claims to be plain may be one: not if it was sealed before.
    ///
    /// # Errors
    /// [`UnitMismatch`].
    pub fn check_plain(&self) -> Result<(), UnitMismatch> {
        if *self == ExpectedUnit::default() {
            return Ok(());
        }
        Err(UnitMismatch { what: "protection", expected: "sealed".into(), found: "plain".into() })
    }
}

impl From<SealedClaims> for ExpectedUnit {
    fn from(claims: SealedClaims) -> ExpectedUnit {
        ExpectedUnit {
            volume_id: Some(claims.volume_id),
            domain: Some(claims.domain),
            block_size: Some(claims.block_size),
            custody: Some(claims.custody),
            suite: Some(claims.suite),
            epoch_min: Some(claims.epoch),
        }
    }
}

fn check<T: PartialEq + fmt::Display>(what: &'static str, expected: Option<T>, found: T) -> Result<(), UnitMismatch> {
    match expected {
        Some(expected) if expected != found => {
            Err(UnitMismatch { what, expected: expected.to_string(), found: found.to_string() })
        }
        _ => Ok(()),
    }
}

/// Text that is no list of known volumes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KnownVolumesError {
    /// One line cannot be read.
    #[error("line {line} of the file of known volumes cannot be read; remove that line")]
    Line {
        /// Counted from 1.
        line: usize,
    },
    /// Too long to be such a file.
    #[error("the file of known volumes is larger than 4 MiB; this is something else")]
    TooLong,
}

/// Volumes by URL, in the order in which they were first seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownVolumes {
    entries: Vec<(String, ExpectedUnit)>,
}

impl KnownVolumes {
    /// Reads the text form.
    ///
    /// # Errors
    /// [`KnownVolumesError`] names the line.
    pub fn parse(text: &str) -> Result<KnownVolumes, KnownVolumesError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(KnownVolumesError::TooLong);
        }
        let mut known = KnownVolumes::default();
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if !line.is_empty() && !line.starts_with('#') {
                known.entries.push(parse_line(line).ok_or(KnownVolumesError::Line { line: number })?);
            }
        }
        Ok(known)
    }

    /// What is known of the volume at `url`; nothing if it was never seen.
    pub fn expected(&self, url: &str) -> ExpectedUnit {
        self.entries.iter().find(|(known, _)| known == url).map(|(_, unit)| unit.clone()).unwrap_or_default()
    }

    /// Another URL than these that a volume of this sealing domain was seen at.
    pub fn seen_elsewhere(&self, domain: SealingDomain, urls: &[&str]) -> Option<&str> {
        let found =
            self.entries.iter().find(|(url, unit)| unit.domain == Some(domain) && !urls.contains(&url.as_str()));
        found.map(|(url, _)| url.as_str())
    }

    /// Remembers the volume at `url`; returns whether the text form has changed.
    pub fn remember(&mut self, url: &str, claims: SealedClaims) -> bool {
        let unit = ExpectedUnit::from(claims);
        match self.entries.iter_mut().find(|(known, _)| known == url) {
            Some((_, known)) if *known == unit => false,
            Some((_, known)) => {
                *known = unit;
                true
            }
            None => {
                self.entries.push((url.to_owned(), unit));
                true
            }
        }
    }

    /// Forgets the volume at `url` (it was deleted, or created again); returns whether it was known.
    pub fn forget(&mut self, url: &str) -> bool {
        let before = self.entries.len();
        self.entries.retain(|(known, _)| known != url);
        self.entries.len() != before
    }
}

impl fmt::Display for KnownVolumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Sealed volumes seen by 'strongroom attach'. Nothing here is secret.")?;
        for (url, unit) in &self.entries {
            write!(f, "{url}")?;
            if let Some(id) = unit.volume_id {
                write!(f, " volume {id}")?;
            }
            if let Some(domain) = unit.domain {
                write!(f, " domain {domain}")?;
            }
            if let Some(block_size) = unit.block_size {
                write!(f, " block {block_size}")?;
            }
            if let Some(custody) = unit.custody {
                write!(f, " custody {custody}")?;
            }
            if let Some(suite) = unit.suite {
                write!(f, " suite {suite}")?;
            }
            if let Some(epoch) = unit.epoch_min {
                write!(f, " epoch {epoch}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn parse_line(line: &str) -> Option<(String, ExpectedUnit)> {
    let mut words = line.split_ascii_whitespace();
    let url = words.next()?.to_owned();
    let mut unit = ExpectedUnit::default();
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word {
            "volume" => unit.volume_id = Some(value.parse().ok()?),
            "domain" => unit.domain = Some(value.parse().ok()?),
            "block" => unit.block_size = Some(BlockSize::new(value.parse().ok()?).ok()?),
            "custody" => {
                let all = [Custody::KeyFile, Custody::KeyServer, Custody::Target];
                unit.custody = Some(all.into_iter().find(|custody| custody.to_string() == value)?);
            }
            "suite" => unit.suite = Some(value.parse().ok()?),
            "epoch" => unit.epoch_min = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    Some((url, unit))
}

#[cfg(test)]
mod tests {
    //! Proves that a volume seen before is held to what it was, and that the text form keeps it.
    use super::*;

    fn claims() -> SealedClaims {
        SealedClaims {
            volume_id: VolumeId([1; 16]),
            domain: SealingDomain([2; 16]),
            block_size: BlockSize::DEFAULT,
            custody: Custody::KeyFile,
            suite: Suite::ChaCha20Poly1305,
            epoch: 3,
        }
    }

    #[test]
    fn what_is_remembered_is_kept_and_checked() {
        let mut known = KnownVolumes::default();
        assert_eq!(known.expected("u"), ExpectedUnit::default());
        assert!(known.expected("u").check(&claims()).is_ok(), "the first time, anything goes");
        assert!(known.remember("strongroom://h/u", claims()));
        assert!(!known.remember("strongroom://h/u", claims()));
        let mut known = KnownVolumes::parse(&known.to_string()).unwrap();
        let expected = known.expected("strongroom://h/u");
        assert_eq!(known.seen_elsewhere(claims().domain, &["strongroom://h/v"]), Some("strongroom://h/u"));
        assert_eq!(known.seen_elsewhere(claims().domain, &["strongroom://h/u"]), None);
        assert!(expected.check(&claims()).is_ok());
        assert!(expected.check(&SealedClaims { epoch: 4, ..claims() }).is_ok(), "epochs only go forward");
        for (changed, what) in [
            (SealedClaims { volume_id: VolumeId([9; 16]), ..claims() }, "identifier"),
            (SealedClaims { domain: SealingDomain([9; 16]), ..claims() }, "sealing domain"),
            (SealedClaims { block_size: BlockSize::new(512).unwrap(), ..claims() }, "block size"),
            (SealedClaims { custody: Custody::Target, ..claims() }, "custody"),
            (SealedClaims { suite: Suite::Aes128Gcm, ..claims() }, "suite"),
        ] {
            assert_eq!(expected.check(&changed).unwrap_err().what, what);
        }
        assert!(known.forget("strongroom://h/u") && !known.forget("strongroom://h/u"));
        for custody in [Custody::KeyFile, Custody::KeyServer] {
            let served = ExpectedUnit::from(SealedClaims { custody, ..claims() });
            let rolled_back = SealedClaims { custody, epoch: 1, ..claims() };
            assert!(served.check(&rolled_back).is_ok(), "a target's word on epochs counts for nothing there");
            assert_eq!(served.check_epoch(2).unwrap_err().what, "key epoch");
            assert!(served.check_epoch(3).is_ok());
        }
        let trusted = SealedClaims { custody: Custody::Target, ..claims() };
        let rolled_back = ExpectedUnit::from(trusted).check(&SealedClaims { epoch: 2, ..trusted });
        assert_eq!(rolled_back.unwrap_err().what, "key epoch");
    }

    /// Written before suites were remembered: the next attach fills it in, and the one after that is held to it.
    #[test]
    fn what_an_older_file_does_not_know_is_learnt() {
        let whole = {
            let mut known = KnownVolumes::default();
            known.remember("u", claims());
            known.to_string()
        };
        let mut known = KnownVolumes::parse(&whole.replace(" suite chacha20-poly1305", "")).unwrap();
        let other = SealedClaims { suite: Suite::Aes256Gcm, ..claims() };
        assert!(known.expected("u").check(&other).is_ok());
        assert!(known.remember("u", claims()));
        assert_eq!(known.to_string(), whole);
        assert_eq!(known.expected("u").check(&other).unwrap_err().what, "suite");
    }

    #[test]
    fn nonsense_names_its_line() {
        for text in ["a\nb volume x", "#\nu what 1", "\nu epoch"] {
            assert_eq!(KnownVolumes::parse(text), Err(KnownVolumesError::Line { line: 2 }), "{text:?}");
        }
    }
}
