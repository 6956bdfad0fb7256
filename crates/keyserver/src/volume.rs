//! What the server keeps about one volume: its name, its epochs' wrapped keys, and who may do what.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use strongroom_block::{SealingDomain, VolumeId};
use strongroom_handshake::PublicKey;
use strongroom_seal::{EPOCHS_MAX, KeyId};
use zeroize::Zeroizing;

use crate::keys::WRAPPED_BYTES;
use crate::wire::{Malformed, Put, Take};

/// Longest name of a volume, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Most identities that one volume can be granted to.
pub const GRANTS_MAX: usize = 1024;

const RECORD_VERSION: u8 = 1;

/// What an identity may do with a volume: any of the three.
///
/// A peer that can open can, cryptographically, seal: the keys are symmetric. `seal` is what an honest initiator keeps to, and
/// what the target's access list enforces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Get the keys, and read.
    pub open: bool,
    /// Write with them.
    pub seal: bool,
    /// Grant, revoke, rotate, export, destroy.
    pub administer: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Rights = Rights { open: true, seal: true, administer: true };

    const WORDS: [&str; 3] = ["open", "seal", "administer"];

    fn flags(self) -> [bool; 3] {
        [self.open, self.seal, self.administer]
    }

    /// Whether it is no right at all.
    pub fn is_empty(self) -> bool {
        self == Rights::default()
    }

    pub(crate) fn bits(self) -> u8 {
        (0..).zip(self.flags()).map(|(bit, set)| u8::from(set) << bit).sum()
    }

    pub(crate) fn from_bits(bits: u8) -> Option<Rights> {
        let flag = |bit: u8| bits & (1 << bit) != 0;
        (bits < 8).then(|| Rights { open: flag(0), seal: flag(1), administer: flag(2) })
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = Self::WORDS.into_iter().zip(self.flags()).filter(|(_, set)| *set).map(|(word, _)| word);
        f.write_str(&words.collect::<Vec<_>>().join("+"))
    }
}

/// A word that names no right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no right; there are open, seal and administer, joined by commas: open,seal")]
pub struct UnknownRight(String);

impl FromStr for Rights {
    type Err = UnknownRight;

    fn from_str(text: &str) -> Result<Rights, UnknownRight> {
        let mut rights = Rights::default();
        for word in text.split([',', '+']).map(str::trim) {
            match word {
                "open" => rights.open = true,
                "seal" => rights.seal = true,
                "administer" => rights.administer = true,
                _ => return Err(UnknownRight(word.to_owned())),
            }
        }
        Ok(rights)
    }
}

/// Whether the text can be a volume's name: 1 to 128 letters, digits and `. _ - : / @ +`.
pub fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@+".contains(&byte);
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(fits)
}

/// One epoch's key, wrapped, and where the key that wraps it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) slot: u32,
    pub(crate) wrapped: [u8; WRAPPED_BYTES],
    pub(crate) id: KeyId,
}

/// A volume. Epochs that are not listed, up to the current one, are destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    pub(crate) domain: SealingDomain,
    pub(crate) name: String,
    /// The sequence of the last change: newer is larger, for the life of the database.
    pub(crate) revision: u64,
    pub(crate) current: u32,
    /// The server's generation when the current epoch began.
    pub(crate) generation: u64,
    pub(crate) epochs: BTreeMap<u32, Epoch>,
    pub(crate) grants: BTreeMap<PublicKey, Rights>,
}

impl Volume {
    pub(crate) fn rights(&self, identity: &PublicKey) -> Rights {
        self.grants.get(identity).copied().unwrap_or_default()
    }

    /// As it is stored, before sealing, and as it goes to a standby.
    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut put = Put::with_capacity(
            128 + self.name.len() + self.epochs.len() * (16 + WRAPPED_BYTES) + self.grants.len() * 33,
        );
        put.u8(RECORD_VERSION).bytes(&self.id.0).bytes(&self.domain.0).text(&self.name);
        put.u64(self.revision).u32(self.current).u64(self.generation).u32(self.epochs.len() as u32);
        for (number, epoch) in &self.epochs {
            put.u32(*number).u32(epoch.slot).bytes(&epoch.id.0).bytes(&epoch.wrapped);
        }
        put.u32(self.grants.len() as u32);
        for (identity, rights) in &self.grants {
            put.public_key(identity).u8(rights.bits());
        }
        put.done()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Volume, Malformed> {
        let mut take = Take::new(bytes);
        if take.u8()? != RECORD_VERSION {
            return Err(Malformed);
        }
        let (id, domain) = (VolumeId(take.array()?), SealingDomain(take.array()?));
        let name = take.text(NAME_BYTES_MAX)?;
        let (revision, current, generation) = (take.u64()?, take.u32()?, take.u64()?);
        let mut epochs = BTreeMap::new();
        for _ in 0..take.count(EPOCHS_MAX, 16 + WRAPPED_BYTES)? {
            let number = take.u32()?;
            let epoch = Epoch { slot: take.u32()?, id: KeyId(take.array()?), wrapped: take.array()? };
            epochs.insert(number, epoch);
        }
        let mut grants = BTreeMap::new();
        for _ in 0..take.count(GRANTS_MAX, 33)? {
            grants.insert(take.public_key()?, take.rights()?);
        }
        take.finish()?;
        if !is_name(&name) || !epochs.contains_key(&current) || epochs.keys().any(|&epoch| epoch > current) {
            return Err(Malformed);
        }
        Ok(Volume { id, domain, name, revision, current, generation, epochs, grants })
    }

    pub(crate) fn info(&self, settles_in: Duration) -> VolumeInfo {
        VolumeInfo {
            settles_in,
            id: self.id,
            domain: self.domain,
            name: self.name.clone(),
            revision: self.revision,
            current_epoch: self.current,
            epochs: self.epochs.iter().map(|(&number, epoch)| (number, epoch.id)).collect(),
            grants: self.grants.iter().map(|(&identity, &rights)| (identity, rights)).collect(),
        }
    }
}

/// What may be told about a volume to those who have a right to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Of the volume that the keys were made for.
    pub id: VolumeId,
    /// What snapshots and clones share with it: the name of its keys.
    pub domain: SealingDomain,
    /// For people.
    pub name: String,
    /// Larger after each change.
    pub revision: u64,
    /// New writes are sealed under it.
    pub current_epoch: u32,
    /// The epochs that have a key, and its public name. Lower ones that are missing are destroyed.
    pub epochs: Vec<(u32, KeyId)>,
    /// How long an initiator that cannot reach the server may still write under an older epoch.
    pub settles_in: Duration,
    /// Who may do what; only for those who administer the volume, else their own alone.
    pub grants: Vec<(PublicKey, Rights)>,
}

impl VolumeInfo {
    /// The epochs that are destroyed, and the numbers that were passed over.
    pub fn destroyed_epochs(&self) -> impl Iterator<Item = u32> + '_ {
        (1..=self.current_epoch).filter(|epoch| !self.epochs.iter().any(|(number, _)| number == epoch))
    }

    pub(crate) fn put(&self, put: &mut Put) {
        put.bytes(&self.id.0).bytes(&self.domain.0).text(&self.name).u64(self.revision).u32(self.current_epoch);
        put.u32(u32::try_from(self.settles_in.as_millis()).unwrap_or(u32::MAX));
        put.u32(self.epochs.len() as u32);
        for (number, id) in &self.epochs {
            put.u32(*number).bytes(&id.0);
        }
        put.u32(self.grants.len() as u32);
        for (identity, rights) in &self.grants {
            put.public_key(identity).u8(rights.bits());
        }
    }

    pub(crate) fn take(take: &mut Take<'_>) -> Result<VolumeInfo, Malformed> {
        let (id, domain) = (VolumeId(take.array()?), SealingDomain(take.array()?));
        let (name, revision, current_epoch) = (take.text(NAME_BYTES_MAX)?, take.u64()?, take.u32()?);
        let settles_in = Duration::from_millis(take.u32()?.into());
        let epochs = take.count(EPOCHS_MAX, 12)?;
        let epochs = (0..epochs).map(|_| Ok((take.u32()?, KeyId(take.array()?)))).collect::<Result<_, _>>()?;
        let grants = take.count(GRANTS_MAX, 33)?;
        let grants = (0..grants).map(|_| Ok((take.public_key()?, take.rights()?))).collect::<Result<_, _>>()?;
        Ok(VolumeInfo { id, domain, name, revision, current_epoch, settles_in, epochs, grants })
    }
}

/// For the fuzzer: a record that decodes is encoded to the same again.
pub(crate) fn fuzz_record(bytes: &[u8]) {
    if let Ok(volume) = Volume::decode(bytes) {
        assert_eq!(Volume::decode(&volume.encode()), Ok(volume));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn volume() -> Volume {
        Volume {
            id: VolumeId([1; 16]),
            domain: SealingDomain([2; 16]),
            name: "vault".into(),
            revision: 7,
            current: 3,
            generation: 1,
            epochs: [1, 3]
                .map(|number| {
                    (number, Epoch { slot: number, wrapped: [number as u8; WRAPPED_BYTES], id: KeyId([9; 8]) })
                })
                .into(),
            grants: [(PublicKey::from_bytes([4; 32]), Rights::ALL)].into(),
        }
    }

    #[test]
    fn records_are_read_back() {
        let volume = volume();
        let bytes = volume.encode();
        assert_eq!(Volume::decode(&bytes), Ok(volume.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(Volume::decode(&bytes[..cut]), Err(Malformed));
        }
        assert_eq!(volume.info(Duration::ZERO).destroyed_epochs().collect::<Vec<_>>(), [2]);
        let mut newer = bytes.to_vec();
        newer[0] = 2;
        assert_eq!(Volume::decode(&newer), Err(Malformed));
    }

    #[test]
    fn rights_are_written_as_they_are_read() {
        for bits in 1..8 {
            let rights = Rights::from_bits(bits).unwrap();
            assert_eq!((rights.bits(), rights.to_string().parse()), (bits, Ok(rights)));
        }
        assert_eq!("open, seal".parse(), Ok(Rights { open: true, seal: true, administer: false }));
        assert!("".parse::<Rights>().is_err() && "read".parse::<Rights>().is_err() && Rights::from_bits(8).is_none());
    }

    #[test]
    fn names_hold_nothing_that_could_forge_a_line() {
        assert!(is_name("vault-1.de/a@b"));
        for wrong in ["", "two words", "line\nbreak", "ü", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
