//! The seal record as bytes: what must accompany a sealed block so that a reader can open it.
//!
//! Layout, version 1, all integers big-endian (`docs/sealed-block.md` is the specification):
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | record version, 1 |
//! | 1 | 1 | suite |
//! | 2 | 1 | mode |
//! | 3 | 1 | flags |
//! | 4 | 4 | key epoch |
//! | 8 | 24 | stamp |
//! | 32 | 8 | keyless checksum of the ciphertext (0 in a hole) |
//! | 40 | 16 | AEAD tag |
//! | 56 | 0, 32 or 40 | custody `target`: the block key; 32 bytes inside a channel, 40 (wrapped, RFC 3394) at rest |

use std::fmt;

use zeroize::Zeroize;

use crate::{Buffer, Lba, Stamp, Suite};

/// The version of the record format that this build writes.
pub const RECORD_VERSION: u8 = 1;
/// Upper bound on an encoded record, in bytes.
pub const RECORD_BYTES_MAX: usize = 96;
/// Bytes in an AEAD tag.
pub const TAG_BYTES: usize = 16;
/// Bytes in a block key.
pub const BLOCK_KEY_BYTES: usize = 32;
/// Bytes in a wrapped block key (RFC 3394 adds 8).
pub const WRAPPED_KEY_BYTES: usize = 40;

/// What sealing does to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Encrypt and authenticate.
    Encrypt = 1,
    /// Authenticate only (the paper's lazy authentication alone); the block is readable by anyone.
    AuthenticateOnly = 2,
}

/// Who holds the keys of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Custody {
    /// A volume key from a file that only initiators hold; the target is blind.
    KeyFile = 1,
    /// The same, from the key server.
    KeyServer = 2,
    /// A random key per block, kept by the trusted target, wrapped at rest.
    Target = 3,
}

/// Single bits of a record. Bound by the associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RecordFlags(pub u8);

impl RecordFlags {
    /// The record seals an absence (a range hole), not a block.
    pub const HOLE: u8 = 1;
    /// The block was sealed under a key of its own, carried by the record (custody `target`).
    pub const BLOCK_KEY: u8 = 2;
    /// That key is shared by a run of blocks, and its nonce is the stamp's counter; only with [`RecordFlags::BLOCK_KEY`], never of a
    /// hole. For the benchmark that shows what a key for every block costs.
    pub const SHARED_KEY: u8 = 4;

    /// Whether the record seals an absence.
    pub fn is_hole(self) -> bool {
        self.0 & Self::HOLE != 0
    }

    /// Whether the record carries a block key.
    pub fn has_block_key(self) -> bool {
        self.0 & Self::BLOCK_KEY != 0
    }

    /// Whether other blocks have the same block key.
    pub fn has_shared_key(self) -> bool {
        self.0 & Self::SHARED_KEY != 0
    }
}

/// Bytes that are not a seal record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// No record has this length.
    #[error("a seal record of {0} bytes: expected 56, 88 or 96")]
    Length(usize),
    /// A version, suite, mode or flag that this build does not know.
    #[error("seal record field '{field}' has the unknown value {value}; a newer Strongroom wrote it")]
    Unknown {
        /// The field's name.
        field: &'static str,
        /// Its value.
        value: u8,
    },
    /// The flags and the length contradict each other.
    #[error("a seal record whose flags and length contradict each other")]
    Contradiction,
}

impl Mode {
    /// From its byte on disk and wire.
    pub fn from_byte(value: u8) -> Result<Mode, RecordError> {
        match value {
            1 => Ok(Mode::Encrypt),
            2 => Ok(Mode::AuthenticateOnly),
            _ => Err(RecordError::Unknown { field: "mode", value }),
        }
    }
}

impl Custody {
    /// Whether the target cannot open what it stores.
    pub fn is_blind(self) -> bool {
        self != Custody::Target
    }

    /// From its byte on disk and wire.
    pub fn from_byte(value: u8) -> Result<Custody, RecordError> {
        match value {
            1 => Ok(Custody::KeyFile),
            2 => Ok(Custody::KeyServer),
            3 => Ok(Custody::Target),
            _ => Err(RecordError::Unknown { field: "custody", value }),
        }
    }

    /// The encoded length of this custody's records at rest, in bytes.
    pub fn record_bytes_at_rest(self) -> usize {
        if self.is_blind() { SealRecord::BASE_BYTES } else { RECORD_BYTES_MAX }
    }

    /// The encoded length of this custody's records inside a channel, in bytes.
    pub fn record_bytes_in_channel(self) -> usize {
        if self.is_blind() { SealRecord::BASE_BYTES } else { SealRecord::BASE_BYTES + BLOCK_KEY_BYTES }
    }
}

impl fmt::Display for Custody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Custody::KeyFile => "keyfile",
            Custody::KeyServer => "keyserver",
            Custody::Target => "target",
        })
    }
}

/// One seal record, well-formed. Its `Debug` never shows a block key; a raw one is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct SealRecord {
    len_bytes: u8,
    bytes: [u8; RECORD_BYTES_MAX],
}

impl SealRecord {
    /// Encoded length without a block key.
    pub const BASE_BYTES: usize = 56;
    const RAW_BYTES: usize = Self::BASE_BYTES + BLOCK_KEY_BYTES;

    /// A record from its parts. `flags` gets [`RecordFlags::BLOCK_KEY`] only through [`SealRecord::with_block_key`].
    pub fn new(
        suite: Suite,
        mode: Mode,
        flags: RecordFlags,
        epoch: u32,
        stamp: Stamp,
        checksum: u64,
        tag: [u8; TAG_BYTES],
    ) -> SealRecord {
        let mut bytes = [0; RECORD_BYTES_MAX];
        bytes[0] = RECORD_VERSION;
        bytes[1] = suite as u8;
        bytes[2] = mode as u8;
        bytes[3] = flags.0 & !RecordFlags::BLOCK_KEY;
        bytes[4..8].copy_from_slice(&epoch.to_be_bytes());
        bytes[8..32].copy_from_slice(&stamp.to_bytes());
        bytes[32..40].copy_from_slice(&checksum.to_be_bytes());
        bytes[40..56].copy_from_slice(&tag);
        SealRecord { len_bytes: Self::BASE_BYTES as u8, bytes }
    }

    /// The same record carrying a raw block key (32 bytes, inside a channel) or a wrapped one (40 bytes, at rest),
    /// replacing any that it had.
    ///
    /// # Panics
    /// If `key` is of another length.
    #[must_use]
    pub fn with_block_key(&self, key: &[u8]) -> SealRecord {
        assert!(key.len() == BLOCK_KEY_BYTES || key.len() == WRAPPED_KEY_BYTES, "a block key is 32 or 40 bytes");
        let mut record = self.clone();
        record.bytes[Self::BASE_BYTES..].zeroize();
        record.bytes[3] |= RecordFlags::BLOCK_KEY;
        record.bytes[Self::BASE_BYTES..Self::BASE_BYTES + key.len()].copy_from_slice(key);
        record.len_bytes = (Self::BASE_BYTES + key.len()) as u8;
        record
    }

    /// The same record with another keyless checksum: the one field that no tag covers.
    #[must_use]
    pub fn with_checksum(&self, checksum: u64) -> SealRecord {
        let mut record = self.clone();
        record.bytes[32..40].copy_from_slice(&checksum.to_be_bytes());
        record
    }

    /// Reads a record of exactly `bytes`.
    ///
    /// # Errors
    /// [`RecordError`] for any length, version, suite, mode or flag that this build does not know.
    pub fn decode(bytes: &[u8]) -> Result<SealRecord, RecordError> {
        if ![Self::BASE_BYTES, Self::RAW_BYTES, RECORD_BYTES_MAX].contains(&bytes.len()) {
            return Err(RecordError::Length(bytes.len()));
        }
        if bytes[0] != RECORD_VERSION {
            return Err(RecordError::Unknown { field: "version", value: bytes[0] });
        }
        Suite::from_byte(bytes[1])?;
        Mode::from_byte(bytes[2])?;
        if bytes[3] & !(RecordFlags::HOLE | RecordFlags::BLOCK_KEY | RecordFlags::SHARED_KEY) != 0 {
            return Err(RecordError::Unknown { field: "flags", value: bytes[3] });
        }
        let flags = RecordFlags(bytes[3]);
        let shares_oddly = flags.has_shared_key() && (flags.is_hole() || !flags.has_block_key());
        if flags.has_block_key() != (bytes.len() > Self::BASE_BYTES) || shares_oddly {
            return Err(RecordError::Contradiction);
        }
        let mut record = SealRecord { len_bytes: bytes.len() as u8, bytes: [0; RECORD_BYTES_MAX] };
        record.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(record)
    }

    /// The encoded record.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len_bytes)]
    }

    /// The suite.
    pub fn suite(&self) -> Suite {
        Suite::from_byte(self.bytes[1]).expect("checked when decoded")
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        Mode::from_byte(self.bytes[2]).expect("checked when decoded")
    }

    /// The flags.
    pub fn flags(&self) -> RecordFlags {
        RecordFlags(self.bytes[3])
    }

    /// The key epoch.
    pub fn epoch(&self) -> u32 {
        u32::from_be_bytes(self.bytes[4..8].try_into().expect("4 bytes"))
    }

    /// The stamp.
    pub fn stamp(&self) -> Stamp {
        Stamp::from_bytes(self.bytes[8..32].try_into().expect("24 bytes"))
    }

    /// The keyless checksum of the ciphertext; 0 in a hole.
    pub fn checksum(&self) -> u64 {
        u64::from_be_bytes(self.bytes[32..40].try_into().expect("8 bytes"))
    }

    /// The AEAD tag.
    pub fn tag(&self) -> [u8; TAG_BYTES] {
        self.bytes[40..56].try_into().expect("16 bytes")
    }

    /// The raw block key, if the record carries one unwrapped.
    pub fn raw_block_key(&self) -> Option<&[u8; BLOCK_KEY_BYTES]> {
        (usize::from(self.len_bytes) == Self::RAW_BYTES)
            .then(|| self.bytes[Self::BASE_BYTES..Self::RAW_BYTES].try_into().expect("32 bytes"))
    }

    /// The wrapped block key, if the record carries one.
    pub fn wrapped_block_key(&self) -> Option<&[u8; WRAPPED_KEY_BYTES]> {
        (usize::from(self.len_bytes) == RECORD_BYTES_MAX)
            .then(|| self.bytes[Self::BASE_BYTES..].try_into().expect("40 bytes"))
    }
}

impl Drop for SealRecord {
    fn drop(&mut self) {
        if self.flags().has_block_key() {
            self.bytes[Self::BASE_BYTES..].zeroize();
        }
    }
}

impl fmt::Debug for SealRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealRecord")
            .field("suite", &self.suite())
            .field("mode", &self.mode())
            .field("flags", &self.flags())
            .field("epoch", &self.epoch())
            .field("stamp", &self.stamp())
            .field("checksum", &format_args!("{:016x}", self.checksum()))
            .finish_non_exhaustive()
    }
}

/// A sealed range of absent blocks: valid where nothing newer was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoleRecord {
    /// The first block.
    pub start: Lba,
    /// How many blocks.
    pub count: u64,
    /// The record that seals (start, count); its flags say `HOLE`.
    pub record: SealRecord,
}

impl HoleRecord {
    /// Encoded length in front of the record: start and count, 8 bytes each, big-endian.
    pub const PREFIX_BYTES: usize = 16;

    /// Appends the encoded form: start, count, record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.start.0.to_be_bytes());
        out.extend_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(self.record.as_bytes());
    }

    /// Reads one from exactly `bytes`.
    ///
    /// # Errors
    /// [`RecordError`] if the record is malformed, not of a hole, or the range is empty or overflows.
    pub fn decode(bytes: &[u8]) -> Result<HoleRecord, RecordError> {
        if bytes.len() < Self::PREFIX_BYTES {
            return Err(RecordError::Length(bytes.len()));
        }
        let (prefix, record) = bytes.split_at(Self::PREFIX_BYTES);
        let start = u64::from_be_bytes(prefix[..8].try_into().expect("8 bytes"));
        let count = u64::from_be_bytes(prefix[8..].try_into().expect("8 bytes"));
        let record = SealRecord::decode(record)?;
        if !record.flags().is_hole() || count == 0 || start.checked_add(count).is_none() {
            return Err(RecordError::Contradiction);
        }
        Ok(HoleRecord { start: Lba(start), count, record })
    }

    /// Whether the hole covers `lba`.
    pub fn covers(&self, lba: Lba) -> bool {
        lba.0 >= self.start.0 && lba.0 - self.start.0 < self.count
    }
}

/// Ciphertext of exactly one block, and its seal record.
#[derive(Clone, Debug)]
pub struct SealedBlock {
    /// As stored and sent; `block_size` bytes.
    pub ciphertext: Buffer,
    /// What opens it.
    pub record: SealRecord,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AttachId;

    fn sample() -> SealRecord {
        let stamp = Stamp { attach_id: AttachId([0x11; 16]), counter: 0x22 };
        SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(0), 3, stamp, 0x44, [0x55; 16])
    }

    #[test]
    fn golden_bytes() {
        let mut golden = vec![1, 1, 1, 0, 0, 0, 0, 3];
        golden.extend_from_slice(&[0x11; 16]);
        golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0, 0x44]);
        golden.extend_from_slice(&[0x55; 16]);
        assert_eq!(sample().as_bytes(), golden);
        assert_eq!(SealRecord::decode(&golden), Ok(sample()));
    }

    #[test]
    fn a_block_key_changes_flag_and_length() {
        let keyed = sample().with_block_key(&[9; 32]);
        assert_eq!(keyed.as_bytes().len(), 88);
        assert_eq!(keyed.raw_block_key(), Some(&[9; 32]));
        let wrapped = keyed.with_block_key(&[8; 40]);
        assert_eq!(wrapped.as_bytes().len(), RECORD_BYTES_MAX);
        assert_eq!(wrapped.wrapped_block_key(), Some(&[8; 40]));
        assert_eq!(SealRecord::decode(wrapped.as_bytes()), Ok(wrapped));
        assert!(!format!("{keyed:?}").contains("09"), "no key in Debug");
    }

    #[test]
    fn malformed_records_are_refused() {
        let good = sample();
        for (at, value) in [(0, 2), (1, 0), (2, 9), (3, 0x80), (3, RecordFlags::BLOCK_KEY)] {
            let mut bad = good.as_bytes().to_vec();
            bad[at] = value;
            assert!(SealRecord::decode(&bad).is_err(), "byte {at} = {value}");
        }
        assert!(SealRecord::decode(&good.as_bytes()[..55]).is_err());
        assert!(SealRecord::decode(&[]).is_err());
    }

    #[test]
    fn holes_decode_as_encoded_and_do_not_overflow() {
        let mut record = sample();
        record.bytes[3] = RecordFlags::HOLE;
        let hole = HoleRecord { start: Lba(5), count: 10, record };
        let mut bytes = Vec::new();
        hole.encode(&mut bytes);
        assert_eq!(HoleRecord::decode(&bytes), Ok(hole.clone()));
        assert!(hole.covers(Lba(5)) && hole.covers(Lba(14)) && !hole.covers(Lba(15)) && !hole.covers(Lba(4)));
        bytes[..8].copy_from_slice(&u64::MAX.to_be_bytes());
        assert_eq!(HoleRecord::decode(&bytes), Err(RecordError::Contradiction));
    }
}
