//! The text form of volume keys and wrapping keys. Text in, text out: reading and writing files is the caller's.
//!
//! ```text
//! # comment lines and empty lines may stand anywhere
//! strongroom-volume-key 1
//! epoch 1 id 3f5bd1c08a52e0f1 key 5d0c…64 hex digits…91
//! ```
//!
//! Version 2, of volume keys alone, also says which volumes are sealed with them (`VolumeRecord`), a line each:
//!
//! ```text
//! volume vault claimed 5f0cb6a1-… domain 9a3e07d2-…
//! ```
//!
//! The first line says what the key is for (`strongroom-volume-key`, `strongroom-wrapping-key` or `strongroom-master-key`) and the version of
//! the format. Each epoch has one line. The id is derived from the key, so that a damaged file is told from a wrong one
//! and people can compare keys without seeing them.

use std::collections::BTreeMap;
use std::fmt;

use strongroom_block::SealingDomain;
use zeroize::{Zeroize, Zeroizing};

use crate::blind::derive_into;
use crate::secret::{KEY_BYTES, Secret, VolumeKey, WrappingKey};

/// Upper bound on the text of a key file, in bytes.
pub const KEY_FILE_BYTES_MAX: usize = 256 * 1024;
/// Upper bound on the epochs in one key file.
pub const EPOCHS_MAX: usize = 1024;

/// Upper bound on the volumes that one key file records.
pub const KEY_FILE_VOLUMES_MAX: usize = 512;
/// Longest name of a volume in a key file, in bytes.
const NAME_BYTES_MAX: usize = 128;

const VERSION: &str = "1";
/// With the volumes that are sealed with the keys; builds that do not know it would seal in another domain, so they must refuse it.
const VERSION_WITH_VOLUMES: &str = "2";

/// A volume that is sealed with the keys of a file, under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// A name that it is reached by, without a snapshot's.
    pub name: String,
    /// The domain that its target claims: a label, by which the volume is known.
    pub claimed: SealingDomain,
    /// The domain that its blocks are sealed in. An initiator has drawn it (`drawn_domain`), so a target cannot give it to another volume.
    pub domain: SealingDomain,
}

/// What the keys of a file are for. One is never taken for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPurpose {
    /// Custody `keyfile`: held by initiators, never by the storage host.
    Volume,
    /// Custody `target`: held by the trusted target, outside its store.
    Wrapping,
    /// Custody `keyserver`: held by the key server, outside its database.
    Master,
}

impl KeyPurpose {
    fn word(self) -> &'static str {
        match self {
            KeyPurpose::Volume => "strongroom-volume-key",
            KeyPurpose::Wrapping => "strongroom-wrapping-key",
            KeyPurpose::Master => "strongroom-master-key",
        }
    }

    fn comment(self) -> &'static str {
        match self {
            KeyPurpose::Volume => {
                "# Strongroom volume key. Anyone who has this file can read and change every volume sealed with it.\n\
                 # Keep it off the storage host, and keep a copy in a safe place: without it the data is gone.\n"
            }
            KeyPurpose::Wrapping => {
                "# Strongroom wrapping key, for the target. Keep it outside the directory that holds the volumes:\n\
                 # without this file their blocks cannot be opened; destroying it erases them.\n"
            }
            KeyPurpose::Master => {
                "# Strongroom master key, for the key server. Keep it outside the directory that holds its database, and keep\n\
                 # a copy in a safe place: without it every volume key of that database is gone.\n"
            }
        }
    }
}

impl fmt::Display for KeyPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyPurpose::Volume => "volume key",
            KeyPurpose::Wrapping => "wrapping key",
            KeyPurpose::Master => "master key",
        })
    }
}

/// The public name of one key: derived from it, tells nothing about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// Why a text is not the key file that is needed. Never shows a byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// Not a key file at all.
    #[error("this is not a Strongroom key file; make one with 'strongroom key new'")]
    NotAKeyFile,
    /// Larger than any key file.
    #[error("a key file is at most 256 KiB; this is something else")]
    TooLong,
    /// Made by a newer version.
    #[error("the key file has a newer format than this build knows; update strongroom")]
    Version,
    /// One line is not as it should be.
    #[error("line {line} of the key file is malformed; restore the file from its copy")]
    Malformed {
        /// Counted from 1.
        line: usize,
    },
    /// The key is not the one that its id names.
    #[error("line {line} of the key file is damaged: the key does not fit its id; restore the file from its copy")]
    Damaged {
        /// Counted from 1.
        line: usize,
    },
    /// Two lines for one epoch, or no line at all, or too many.
    #[error("the key file must have one line for each epoch, at least one and at most 1024; restore it from its copy")]
    Epochs,
    /// Volumes that cannot be recorded: too many, one twice, or of other keys than volume keys.
    #[error("a key file records at most 512 volumes, each once, and only of volume keys; use another key file")]
    Volumes,
    /// A volume key where a wrapping key is needed, or the other way round.
    #[error("the file holds a {found}, but a {needed} is needed here; give the other file")]
    Purpose {
        /// What it is.
        found: KeyPurpose,
        /// What it should be.
        needed: KeyPurpose,
    },
    /// The file has no key for the epoch in use.
    #[error("the key file has no key for epoch {epoch}; get the current key file of this volume")]
    NoEpoch {
        /// The epoch in use.
        epoch: u32,
    },
}

/// Keys of one purpose, by epoch; and the volumes that are sealed with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeKeyFile {
    keys: Keys,
    volumes: Vec<VolumeRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Keys {
    Volume(BTreeMap<u32, VolumeKey>),
    Wrapping(BTreeMap<u32, WrappingKey>),
    Master(BTreeMap<u32, WrappingKey>),
}

impl VolumeKeyFile {
    /// A new file with one key, for epoch 1. `random` comes from the operating system's generator; the caller wipes it.
    pub fn new(purpose: KeyPurpose, random: &[u8; KEY_BYTES]) -> VolumeKeyFile {
        VolumeKeyFile::of(match purpose {
            KeyPurpose::Volume => Keys::Volume(BTreeMap::from([(1, VolumeKey::new(*random))])),
            KeyPurpose::Wrapping => Keys::Wrapping(BTreeMap::from([(1, WrappingKey::new(*random))])),
            KeyPurpose::Master => Keys::Master(BTreeMap::from([(1, WrappingKey::new(*random))])),
        })
    }

    fn of(keys: Keys) -> VolumeKeyFile {
        VolumeKeyFile { keys, volumes: Vec::new() }
    }

    /// The volumes that are known to be sealed with the keys. None in a file of version 1.
    pub fn volumes(&self) -> &[VolumeRecord] {
        &self.volumes
    }

    /// Records a volume, in the place of a record of the same name and claim.
    ///
    /// # Errors
    /// [`KeyFileError::Volumes`]; a name that no volume can have is one of them.
    pub fn record_volume(&mut self, record: VolumeRecord) -> Result<(), KeyFileError> {
        self.volumes.retain(|known| (&known.name, known.claimed) != (&record.name, record.claimed));
        let is_name = is_volume_name(&record.name);
        if !is_name || self.purpose() != KeyPurpose::Volume || self.volumes.len() >= KEY_FILE_VOLUMES_MAX {
            return Err(KeyFileError::Volumes);
        }
        self.volumes.push(record);
        Ok(())
    }

    /// The domain that an initiator draws for a volume that it formats under this name: from the key, so that a target can neither choose
    /// nor foresee it, and another name gives another domain, independently of the target's claim; and so that a copy of the file that does not
    /// record the volume can be made to again.
    pub fn drawn_domain(&self, name: &str, claimed: SealingDomain) -> SealingDomain {
        let (_, secret) = self.secrets().next().expect("a key file has at least one epoch");
        let mut domain = [0; 16];
        derive_into(secret, &[b"domain", &claimed.0, name.as_bytes()], &mut domain);
        SealingDomain(domain)
    }

    /// Forgets the records for which `keep` says no.
    pub fn retain_volumes(&mut self, keep: impl FnMut(&VolumeRecord) -> bool) {
        self.volumes.retain(keep);
    }

    /// A file with these volume keys.
    ///
    /// # Errors
    /// [`KeyFileError::Epochs`] if there is none, or more than [`EPOCHS_MAX`].
    pub fn of_volume(keys: BTreeMap<u32, VolumeKey>) -> Result<VolumeKeyFile, KeyFileError> {
        if keys.is_empty() || keys.len() > EPOCHS_MAX {
            Err(KeyFileError::Epochs)
        } else {
            Ok(VolumeKeyFile::of(Keys::Volume(keys)))
        }
    }

    /// What the keys are for.
    pub fn purpose(&self) -> KeyPurpose {
        match self.keys {
            Keys::Volume(_) => KeyPurpose::Volume,
            Keys::Wrapping(_) => KeyPurpose::Wrapping,
            Keys::Master(_) => KeyPurpose::Master,
        }
    }

    /// The epochs that have a key, ascending.
    pub fn epochs(&self) -> impl Iterator<Item = u32> + '_ {
        self.secrets().map(|(epoch, _)| epoch)
    }

    /// The public name of each key, by epoch: what `key show` prints.
    pub fn ids(&self) -> Vec<(u32, KeyId)> {
        self.secrets().map(|(epoch, secret)| (epoch, id_of(secret))).collect()
    }

    /// The volume key of `epoch`.
    ///
    /// # Errors
    /// [`KeyFileError::Purpose`] or [`KeyFileError::NoEpoch`].
    pub fn volume_key(&self, epoch: u32) -> Result<&VolumeKey, KeyFileError> {
        match &self.keys {
            Keys::Volume(keys) => keys.get(&epoch).ok_or(KeyFileError::NoEpoch { epoch }),
            _ => Err(KeyFileError::Purpose { found: self.purpose(), needed: KeyPurpose::Volume }),
        }
    }

    /// The wrapping key of `epoch`.
    ///
    /// # Errors
    /// [`KeyFileError::Purpose`] or [`KeyFileError::NoEpoch`].
    pub fn wrapping_key(&self, epoch: u32) -> Result<&WrappingKey, KeyFileError> {
        match &self.keys {
            Keys::Wrapping(keys) => keys.get(&epoch).ok_or(KeyFileError::NoEpoch { epoch }),
            _ => Err(KeyFileError::Purpose { found: self.purpose(), needed: KeyPurpose::Wrapping }),
        }
    }

    /// The master key: the one of the newest epoch.
    ///
    /// # Errors
    /// [`KeyFileError::Purpose`].
    pub fn master_key(&self) -> Result<&WrappingKey, KeyFileError> {
        match &self.keys {
            Keys::Master(keys) => Ok(keys.values().next_back().expect("a key file has at least one epoch")),
            _ => Err(KeyFileError::Purpose { found: self.purpose(), needed: KeyPurpose::Master }),
        }
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// [`KeyFileError`]; never panics, for any text.
    pub fn parse(text: &str) -> Result<VolumeKeyFile, KeyFileError> {
        if text.len() > KEY_FILE_BYTES_MAX {
            return Err(KeyFileError::TooLong);
        }
        let mut lines = (1..)
            .zip(text.lines())
            .map(|(number, line)| (number, line.trim()))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let (purpose, has_volumes) = purpose_of(lines.next().ok_or(KeyFileError::NotAKeyFile)?.1)?;
        let mut secrets = BTreeMap::new();
        let mut volumes = Vec::new();
        for (line, text) in lines {
            if has_volumes && text.starts_with("volume ") {
                volumes.push(parse_volume(line, text)?);
                continue;
            }
            let (epoch, secret) = parse_epoch(line, text)?;
            if secrets.len() == EPOCHS_MAX || secrets.insert(epoch, secret).is_some() {
                return Err(KeyFileError::Epochs);
            }
        }
        if secrets.is_empty() {
            return Err(KeyFileError::Epochs);
        }
        let secrets = secrets.into_iter();
        let mut file = VolumeKeyFile::of(match purpose {
            KeyPurpose::Volume => Keys::Volume(secrets.map(|(epoch, secret)| (epoch, VolumeKey(secret))).collect()),
            KeyPurpose::Wrapping => {
                Keys::Wrapping(secrets.map(|(epoch, secret)| (epoch, WrappingKey(secret))).collect())
            }
            KeyPurpose::Master => Keys::Master(secrets.map(|(epoch, secret)| (epoch, WrappingKey(secret))).collect()),
        });
        for (count, record) in (1..).zip(volumes) {
            file.record_volume(record)?;
            if file.volumes.len() != count {
                return Err(KeyFileError::Volumes);
            }
        }
        Ok(file)
    }

    /// The text to write into a file that only its owner may read (mode 0600). Wiped when dropped.
    pub fn to_text(&self) -> Zeroizing<String> {
        // Sized up front: a string that grows leaves unwiped copies behind.
        let bytes = 512 + 160 * self.secrets().count() + (128 + NAME_BYTES_MAX) * self.volumes.len();
        let mut text = Zeroizing::new(String::with_capacity(bytes));
        text.push_str(self.purpose().comment());
        let version = if self.volumes.is_empty() { VERSION } else { VERSION_WITH_VOLUMES };
        text.push_str(&format!("{} {version}\n", self.purpose().word()));
        for (epoch, secret) in self.secrets() {
            text.push_str(&format!("epoch {epoch} id {} key ", id_of(secret)));
            push_hex(&mut text, secret.expose());
            text.push('\n');
        }
        for VolumeRecord { name, claimed, domain } in &self.volumes {
            text.push_str(&format!("volume {name} claimed {claimed} domain {domain}\n"));
        }
        text
    }

    fn secrets(&self) -> Box<dyn Iterator<Item = (u32, &Secret<KEY_BYTES>)> + '_> {
        match &self.keys {
            Keys::Volume(keys) => Box::new(keys.iter().map(|(&epoch, key)| (epoch, &key.0))),
            Keys::Wrapping(keys) | Keys::Master(keys) => Box::new(keys.iter().map(|(&epoch, key)| (epoch, &key.0))),
        }
    }
}

/// What the keys are for, and whether the file may record volumes.
fn purpose_of(line: &str) -> Result<(KeyPurpose, bool), KeyFileError> {
    let (word, version) = line.split_once(' ').ok_or(KeyFileError::NotAKeyFile)?;
    let purpose = [KeyPurpose::Volume, KeyPurpose::Wrapping, KeyPurpose::Master]
        .into_iter()
        .find(|purpose| purpose.word() == word);
    let purpose = purpose.ok_or(KeyFileError::NotAKeyFile)?;
    match version.trim() {
        VERSION => Ok((purpose, false)),
        VERSION_WITH_VOLUMES if purpose == KeyPurpose::Volume => Ok((purpose, true)),
        _ => Err(KeyFileError::Version),
    }
}

fn is_volume_name(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'@' | b'#');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_fit)
}

fn parse_volume(line: usize, text: &str) -> Result<VolumeRecord, KeyFileError> {
    let malformed = KeyFileError::Malformed { line };
    let words: [&str; 6] = text.split_ascii_whitespace().collect::<Vec<_>>().try_into().map_err(|_| malformed)?;
    let ["volume", name, "claimed", claimed, "domain", domain] = words else { return Err(malformed) };
    if !is_volume_name(name) {
        return Err(malformed);
    }
    let read = |text: &str| text.parse::<SealingDomain>().map_err(|_| malformed);
    Ok(VolumeRecord { name: name.to_owned(), claimed: read(claimed)?, domain: read(domain)? })
}

fn parse_epoch(line: usize, text: &str) -> Result<(u32, Secret<KEY_BYTES>), KeyFileError> {
    let malformed = KeyFileError::Malformed { line };
    let words: [&str; 6] = text.split_ascii_whitespace().collect::<Vec<_>>().try_into().map_err(|_| malformed)?;
    let ["epoch", epoch, "id", id, "key", key] = words else { return Err(malformed) };
    let epoch: u32 = epoch.parse().map_err(|_| malformed)?;
    let mut bytes = [0; KEY_BYTES];
    let read = read_hex(key, &mut bytes);
    let secret = Secret::new(bytes);
    bytes.zeroize();
    read.ok_or(malformed)?;
    let mut stated = [0; 8];
    read_hex(id, &mut stated).ok_or(malformed)?;
    if id_of(&secret) == KeyId(stated) { Ok((epoch, secret)) } else { Err(KeyFileError::Damaged { line }) }
}

fn id_of(secret: &Secret<KEY_BYTES>) -> KeyId {
    let mut id = [0; 8];
    derive_into(secret, &[b"id"], &mut id);
    KeyId(id)
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).expect("a nibble"));
        }
    }
}

fn read_hex(text: &str, out: &mut [u8]) -> Option<()> {
    if text.len() != 2 * out.len() {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_printed_parses() {
        for purpose in [KeyPurpose::Volume, KeyPurpose::Wrapping, KeyPurpose::Master] {
            let file = VolumeKeyFile::new(purpose, &[0xa7; 32]);
            assert_eq!(VolumeKeyFile::parse(&file.to_text()), Ok(file));
        }
    }

    /// Pins the text format and the derivation of the id.
    #[test]
    fn golden_text() {
        let file = VolumeKeyFile::new(KeyPurpose::Volume, &[0xa7; 32]);
        let text = file.to_text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let key = "a7".repeat(32);
        assert_eq!(lines, ["strongroom-volume-key 1", &format!("epoch 1 id d36b5139cae3138a key {key}")]);
    }

    /// Version 2, which builds that know only version 1 refuse.
    #[test]
    fn golden_text_with_volumes() {
        let mut file = VolumeKeyFile::new(KeyPurpose::Volume, &[0xa7; 32]);
        let record = |name: &str, claimed: u8, domain: u8| VolumeRecord {
            name: name.into(),
            claimed: SealingDomain([claimed; 16]),
            domain: SealingDomain([domain; 16]),
        };
        file.record_volume(record("vault", 1, 2)).unwrap();
        file.record_volume(record("twin", 1, 2)).unwrap();
        file.record_volume(record("vault", 1, 3)).unwrap();
        assert_eq!(file.volumes(), [record("twin", 1, 2), record("vault", 1, 3)], "one for each name and claim");
        let text = file.to_text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let [one, two, three] = [
            "01010101-0101-0101-0101-010101010101",
            "02020202-0202-0202-0202-020202020202",
            "03030303-0303-0303-0303-030303030303",
        ];
        assert_eq!(lines[0], "strongroom-volume-key 2");
        assert!(lines[1].starts_with("epoch 1 id d36b5139cae3138a key a7"));
        assert_eq!(lines[2], format!("volume twin claimed {one} domain {two}"));
        assert_eq!(lines[3..], [format!("volume vault claimed {one} domain {three}")]);
        assert_eq!(VolumeKeyFile::parse(&text), Ok(file.clone()));
        for (from, to, error) in [
            ("key 2\n", "key 1\n", KeyFileError::Malformed { line: 5 }),
            ("key 2\n", "key 3\n", KeyFileError::Version),
            ("volume-key", "wrapping-key", KeyFileError::Version),
            ("volume twin", "volume vault", KeyFileError::Volumes),
            ("volume twin", "volume tw@in", KeyFileError::Malformed { line: 5 }),
            ("domain 02", "domain 0", KeyFileError::Malformed { line: 5 }),
        ] {
            assert_eq!(VolumeKeyFile::parse(&text.replace(from, to)), Err(error), "{from} -> {to}");
        }
        let drawn = file.drawn_domain("vault", SealingDomain([1; 16]));
        assert_eq!(drawn.to_string(), "7b978fb5-0bcf-8367-6e81-ba7039893234");
        assert_ne!(file.drawn_domain("other", SealingDomain([1; 16])), drawn, "independently of the target's claim");
        let mut wrapping = VolumeKeyFile::new(KeyPurpose::Wrapping, &[1; 32]);
        assert_eq!(wrapping.record_volume(record("vault", 1, 2)), Err(KeyFileError::Volumes));
        for name in ["", "two words", "vault@monday", "a\nb"] {
            assert_eq!(file.record_volume(record(name, 1, 2)), Err(KeyFileError::Volumes), "{name:?}");
        }
        file.retain_volumes(|_| false);
        assert!(file.to_text().contains("strongroom-volume-key 1\n"));
        for number in 0..KEY_FILE_VOLUMES_MAX {
            file.record_volume(record(&format!("v{number}"), 1, 2)).unwrap();
        }
        assert_eq!(file.record_volume(record("another", 1, 2)), Err(KeyFileError::Volumes));
        assert!(file.to_text().len() < KEY_FILE_BYTES_MAX);
    }

    #[test]
    fn one_kind_of_key_is_never_taken_for_the_other() {
        let wrapping = VolumeKeyFile::new(KeyPurpose::Wrapping, &[1; 32]);
        assert!(matches!(wrapping.volume_key(1), Err(KeyFileError::Purpose { .. })));
        let volume = VolumeKeyFile::new(KeyPurpose::Volume, &[1; 32]);
        assert!(matches!(volume.wrapping_key(1), Err(KeyFileError::Purpose { .. })));
        assert!(matches!(volume.master_key(), Err(KeyFileError::Purpose { .. })));
        let master = VolumeKeyFile::new(KeyPurpose::Master, &[1; 32]);
        assert!(matches!(master.wrapping_key(1), Err(KeyFileError::Purpose { .. })));
        assert_eq!(master.master_key().unwrap().expose(), &[1; 32]);
        assert_eq!(volume.volume_key(2), Err(KeyFileError::NoEpoch { epoch: 2 }));
    }

    #[test]
    fn every_kind_of_damage_is_named() {
        let good = VolumeKeyFile::new(KeyPurpose::Volume, &[0xa7; 32]).to_text().to_string();
        let line = good.lines().last().unwrap().to_owned();
        let parse = |text: &str| VolumeKeyFile::parse(text).unwrap_err();
        assert_eq!(parse(""), KeyFileError::NotAKeyFile);
        assert_eq!(parse("# only a comment"), KeyFileError::NotAKeyFile);
        assert_eq!(parse("hello world"), KeyFileError::NotAKeyFile);
        assert_eq!(parse("strongroom-volume-key 3"), KeyFileError::Version);
        assert_eq!(parse("strongroom-volume-key 1"), KeyFileError::Epochs);
        assert_eq!(parse("strongroom-volume-key 2"), KeyFileError::Epochs);
        assert_eq!(parse(&format!("{good}{line}\n")), KeyFileError::Epochs);
        assert_eq!(parse(&good.replace("key a7", "key a6")), KeyFileError::Damaged { line: 4 });
        assert_eq!(parse(&good.replace("key a7", "key g7")), KeyFileError::Malformed { line: 4 });
        assert_eq!(parse(&good.replace("key a7", "key ")), KeyFileError::Malformed { line: 4 });
        assert_eq!(parse(&"#".repeat(KEY_FILE_BYTES_MAX + 1)), KeyFileError::TooLong);
    }

    #[test]
    fn debug_shows_no_key() {
        let shown = format!("{:?}", VolumeKeyFile::new(KeyPurpose::Volume, &[0xa7; 32]));
        assert!(!shown.contains("a7") && !shown.contains("167"), "{shown}");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*") {
            let _ = VolumeKeyFile::parse(&text);
        }

        #[test]
        fn no_epoch_line_makes_it_panic(tail in "( ?(epoch|id|key|[0-9a-f]{0,70}|é))*") {
            let _ = VolumeKeyFile::parse(&format!("strongroom-volume-key 1\nepoch{tail}"));
        }
    }
}
