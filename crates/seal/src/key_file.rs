//! The text form of volume keys and wrapping keys. Text in, text out: reading and writing files is the caller's.
//!
//! ```text
//! # comment lines and empty lines may stand anywhere
//! strongroom-volume-key 1
//! epoch 1 id 3f5bd1c08a52e0f1 key 5d0c…64 hex digits…91
//! ```
//!
//! The first line says what the key is for (`strongroom-volume-key`, `strongroom-wrapping-key` or `strongroom-master-key`) and the version of
//! the format. Each epoch has one line. The id is derived from the key, so that a damaged file is told from a wrong one
//! and people can compare keys without seeing them.

use std::collections::BTreeMap;
use std::fmt;

use zeroize::{Zeroize, Zeroizing};

use crate::blind::derive_into;
use crate::secret::{KEY_BYTES, Secret, VolumeKey, WrappingKey};

/// Upper bound on the text of a key file, in bytes.
pub const KEY_FILE_BYTES_MAX: usize = 256 * 1024;
/// Upper bound on the epochs in one key file.
pub const EPOCHS_MAX: usize = 1024;

const VERSION: &str = "1";

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
                "# Strongroom volume key. Whoever has this file can read and change every volume sealed with it.\n\
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

/// Keys of one purpose, by epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeKeyFile(Keys);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Keys {
    Volume(BTreeMap<u32, VolumeKey>),
    Wrapping(BTreeMap<u32, WrappingKey>),
    Master(BTreeMap<u32, WrappingKey>),
}

impl VolumeKeyFile {
    /// A new file with one key, for epoch 1. `random` comes from the operating system's generator; the caller wipes it.
    pub fn new(purpose: KeyPurpose, random: &[u8; KEY_BYTES]) -> VolumeKeyFile {
        VolumeKeyFile(match purpose {
            KeyPurpose::Volume => Keys::Volume(BTreeMap::from([(1, VolumeKey::new(*random))])),
            KeyPurpose::Wrapping => Keys::Wrapping(BTreeMap::from([(1, WrappingKey::new(*random))])),
            KeyPurpose::Master => Keys::Master(BTreeMap::from([(1, WrappingKey::new(*random))])),
        })
    }

    /// A file with these volume keys.
    ///
    /// # Errors
    /// [`KeyFileError::Epochs`] if there is none, or more than [`EPOCHS_MAX`].
    pub fn of_volume(keys: BTreeMap<u32, VolumeKey>) -> Result<VolumeKeyFile, KeyFileError> {
        if keys.is_empty() || keys.len() > EPOCHS_MAX {
            Err(KeyFileError::Epochs)
        } else {
            Ok(VolumeKeyFile(Keys::Volume(keys)))
        }
    }

    /// What the keys are for.
    pub fn purpose(&self) -> KeyPurpose {
        match self.0 {
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
        match &self.0 {
            Keys::Volume(keys) => keys.get(&epoch).ok_or(KeyFileError::NoEpoch { epoch }),
            _ => Err(KeyFileError::Purpose { found: self.purpose(), needed: KeyPurpose::Volume }),
        }
    }

    /// The wrapping key of `epoch`.
    ///
    /// # Errors
    /// [`KeyFileError::Purpose`] or [`KeyFileError::NoEpoch`].
    pub fn wrapping_key(&self, epoch: u32) -> Result<&WrappingKey, KeyFileError> {
        match &self.0 {
            Keys::Wrapping(keys) => keys.get(&epoch).ok_or(KeyFileError::NoEpoch { epoch }),
            _ => Err(KeyFileError::Purpose { found: self.purpose(), needed: KeyPurpose::Wrapping }),
        }
    }

    /// The master key: the one of the newest epoch.
    ///
    /// # Errors
    /// [`KeyFileError::Purpose`].
    pub fn master_key(&self) -> Result<&WrappingKey, KeyFileError> {
        match &self.0 {
            Keys::Master(keys) => Ok(keys.values().next_back().expect("a key file has at least one epoch")),
            _ => Err(KeyFileError::Purpose { found: self.purpose(), needed: KeyPurpose::Master }),
        }
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// [`KeyFileError`]; never panics, whatever the text is.
    pub fn parse(text: &str) -> Result<VolumeKeyFile, KeyFileError> {
        if text.len() > KEY_FILE_BYTES_MAX {
            return Err(KeyFileError::TooLong);
        }
        let mut lines = (1..)
            .zip(text.lines())
            .map(|(number, line)| (number, line.trim()))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let purpose = purpose_of(lines.next().ok_or(KeyFileError::NotAKeyFile)?.1)?;
        let mut secrets = BTreeMap::new();
        for (line, text) in lines {
            let (epoch, secret) = parse_epoch(line, text)?;
            if secrets.len() == EPOCHS_MAX || secrets.insert(epoch, secret).is_some() {
                return Err(KeyFileError::Epochs);
            }
        }
        if secrets.is_empty() {
            return Err(KeyFileError::Epochs);
        }
        let secrets = secrets.into_iter();
        Ok(VolumeKeyFile(match purpose {
            KeyPurpose::Volume => Keys::Volume(secrets.map(|(epoch, secret)| (epoch, VolumeKey(secret))).collect()),
            KeyPurpose::Wrapping => {
                Keys::Wrapping(secrets.map(|(epoch, secret)| (epoch, WrappingKey(secret))).collect())
            }
            KeyPurpose::Master => Keys::Master(secrets.map(|(epoch, secret)| (epoch, WrappingKey(secret))).collect()),
        }))
    }

    /// The text to write into a file that only its owner may read (mode 0600). Wiped when dropped.
    pub fn to_text(&self) -> Zeroizing<String> {
        // Sized up front: a string that grows leaves unwiped copies behind.
        let mut text = Zeroizing::new(String::with_capacity(512 + 160 * self.secrets().count()));
        text.push_str(self.purpose().comment());
        text.push_str(&format!("{} {VERSION}\n", self.purpose().word()));
        for (epoch, secret) in self.secrets() {
            text.push_str(&format!("epoch {epoch} id {} key ", id_of(secret)));
            push_hex(&mut text, secret.expose());
            text.push('\n');
        }
        text
    }

    fn secrets(&self) -> Box<dyn Iterator<Item = (u32, &Secret<KEY_BYTES>)> + '_> {
        match &self.0 {
            Keys::Volume(keys) => Box::new(keys.iter().map(|(&epoch, key)| (epoch, &key.0))),
            Keys::Wrapping(keys) | Keys::Master(keys) => Box::new(keys.iter().map(|(&epoch, key)| (epoch, &key.0))),
        }
    }
}

fn purpose_of(line: &str) -> Result<KeyPurpose, KeyFileError> {
    let (word, version) = line.split_once(' ').ok_or(KeyFileError::NotAKeyFile)?;
    let purpose = [KeyPurpose::Volume, KeyPurpose::Wrapping, KeyPurpose::Master]
        .into_iter()
        .find(|purpose| purpose.word() == word);
    let purpose = purpose.ok_or(KeyFileError::NotAKeyFile)?;
    if version.trim() == VERSION { Ok(purpose) } else { Err(KeyFileError::Version) }
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
        assert_eq!(parse("strongroom-volume-key 2"), KeyFileError::Version);
        assert_eq!(parse("strongroom-volume-key 1"), KeyFileError::Epochs);
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
