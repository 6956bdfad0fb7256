//! The peer database as a file: TOML, replaced as a whole, with a version. `docs/pairing.md` has every field.
//!
//! Absent: which changes may be made, which `registry` decides.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_handshake::{PairingKey, PublicKey};
use zeroize::{Zeroize as _, Zeroizing};

use super::error::PeerDatabaseError;
use super::names::PeerName;
use super::{DATABASE_NAME, INVITATIONS_MAX, PEERS_MAX, VOLUMES_MAX};
use crate::names::{VolumeName, for_log};
use crate::roles::PeerRole;

/// Largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 32 << 20;
const VERSION: u64 = 1;
const HEADER: &str = "# Peers of this target and invitations to it, as `strongroom invite` and `strongroom peer` write them while it runs: docs/pairing.md.\n\
     # A reader of this file can use the invitations in it that are not used yet.\n\n";

/// A node that took up an invitation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PairedPeer {
    pub(crate) name: PeerName,
    pub(crate) key: PublicKey,
    /// `*` for all.
    pub(crate) volumes: Vec<String>,
    pub(crate) read_only: bool,
    pub(crate) role: PeerRole,
    /// When it joined, in seconds since 1970.
    pub(crate) since: u64,
}

/// An invitation, until it is forgotten.
#[derive(Clone, Debug)]
pub(crate) struct InvitationRecord {
    pub(crate) name: PeerName,
    pub(crate) volumes: Vec<String>,
    pub(crate) read_only: bool,
    pub(crate) role: PeerRole,
    pub(crate) expires_at: u64,
    /// Checks proofs of it.
    pub(crate) key: PairingKey,
    /// Who took it up.
    pub(crate) used_by: Option<PublicKey>,
}

/// All that is in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerDatabase {
    pub(crate) peers: Vec<PairedPeer>,
    pub(crate) invitations: Vec<InvitationRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DatabaseFile {
    version: u64,
    #[serde(default, rename = "peer", skip_serializing_if = "Vec::is_empty")]
    peers: Vec<PeerEntry>,
    #[serde(default, rename = "invitation", skip_serializing_if = "Vec::is_empty")]
    invitations: Vec<InvitationEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerEntry {
    name: String,
    key: String,
    volumes: Vec<String>,
    read_only: bool,
    #[serde(default, skip_serializing_if = "PeerRole::is_usual")]
    role: PeerRole,
    since: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InvitationEntry {
    name: String,
    volumes: Vec<String>,
    read_only: bool,
    #[serde(default, skip_serializing_if = "PeerRole::is_usual")]
    role: PeerRole,
    expires_at: u64,
    proof_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    used_by: Option<String>,
}

impl Drop for InvitationEntry {
    fn drop(&mut self) {
        self.proof_key.zeroize();
    }
}

/// Only the version, of a file that this program may not know.
#[derive(Deserialize)]
struct VersionOnly {
    version: u64,
}

impl PeerDatabase {
    /// Reads the file; one that is not there has nobody in it.
    pub(crate) fn read(path: &Path) -> Result<PeerDatabase, PeerDatabaseError> {
        let io = |source| PeerDatabaseError::Io { what: "read", path: path.to_owned(), source };
        let damaged = |problem| PeerDatabaseError::Damaged { path: path.to_owned(), problem };
        match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(PeerDatabase::default()),
            Err(error) => return Err(io(error)),
            Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(damaged("it is far too large".to_owned())),
            Ok(_) => {}
        }
        let text = Zeroizing::new(fs::read_to_string(path).map_err(io)?);
        PeerDatabase::parse(&text).map_err(damaged)
    }

    /// Replaces the file; durable when this returns, and as it was if it fails.
    pub(crate) fn write(&self, path: &Path) -> Result<(), PeerDatabaseError> {
        let beside = beside(path);
        let replace = || -> io::Result<()> {
            // A link, or a file of another user, is not written to; what an interrupted attempt left goes.
            let _ = fs::remove_file(&beside);
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
            file.write_all(self.to_toml().as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, path)?;
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        replace().map_err(|source| PeerDatabaseError::Io { what: "write", path: path.to_owned(), source })
    }

    fn parse(text: &str) -> Result<PeerDatabase, String> {
        let version = toml::from_str::<VersionOnly>(text).map_err(|error| error.message().to_owned())?.version;
        if version != VERSION {
            return Err(format!("it is of version {version}, and this program knows {VERSION}"));
        }
        let file: DatabaseFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let peers: Vec<PairedPeer> = file.peers.iter().map(PeerEntry::decode).collect::<Result<_, _>>()?;
        let invitations: Vec<InvitationRecord> =
            file.invitations.iter().map(InvitationEntry::decode).collect::<Result<_, _>>()?;
        if peers.len() > PEERS_MAX || invitations.len() > INVITATIONS_MAX {
            return Err("it has more entries than there may be".to_owned());
        }
        for (index, peer) in peers.iter().enumerate() {
            if peers[..index].iter().any(|other| other.name == peer.name || other.key == peer.key) {
                return Err(format!("the name or the key of '{}' is there twice", peer.name));
            }
        }
        Ok(PeerDatabase { peers, invitations })
    }

    fn to_toml(&self) -> Zeroizing<String> {
        let file = DatabaseFile {
            version: VERSION,
            peers: self.peers.iter().map(PeerEntry::encode).collect(),
            invitations: self.invitations.iter().map(InvitationEntry::encode).collect(),
        };
        let mut body = toml::to_string(&file).expect("what is in it has a form in TOML");
        let mut text = Zeroizing::new(String::with_capacity(HEADER.len() + body.len()));
        text.push_str(HEADER);
        text.push_str(&body);
        body.zeroize();
        text
    }
}

impl PeerEntry {
    fn encode(peer: &PairedPeer) -> PeerEntry {
        PeerEntry {
            name: peer.name.to_string(),
            key: peer.key.to_string(),
            volumes: peer.volumes.clone(),
            read_only: peer.read_only,
            role: peer.role,
            since: peer.since,
        }
    }

    fn decode(&self) -> Result<PairedPeer, String> {
        Ok(PairedPeer {
            name: peer_name(&self.name)?,
            key: self.key.parse::<PublicKey>().map_err(|error| format!("peer '{}': {error}", for_log(&self.name)))?,
            volumes: checked_volumes(&self.volumes)?,
            read_only: self.read_only,
            role: self.role,
            since: self.since,
        })
    }
}

impl InvitationEntry {
    fn encode(invitation: &InvitationRecord) -> InvitationEntry {
        // Sized up front: a string that grows leaves unwiped copies behind.
        let mut proof_key = String::with_capacity(2 * PairingKey::BYTES);
        for byte in invitation.key.bytes() {
            proof_key.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
        }
        InvitationEntry {
            name: invitation.name.to_string(),
            volumes: invitation.volumes.clone(),
            read_only: invitation.read_only,
            role: invitation.role,
            expires_at: invitation.expires_at,
            proof_key,
            used_by: invitation.used_by.map(|key| key.to_string()),
        }
    }

    fn decode(&self) -> Result<InvitationRecord, String> {
        let of = |error: &dyn std::fmt::Display| format!("invitation for '{}': {error}", for_log(&self.name));
        Ok(InvitationRecord {
            name: peer_name(&self.name)?,
            volumes: checked_volumes(&self.volumes)?,
            read_only: self.read_only,
            role: self.role,
            expires_at: self.expires_at,
            key: key_of_hex(&self.proof_key).ok_or_else(|| of(&"its proof_key is none"))?,
            used_by: self.used_by.as_deref().map(str::parse::<PublicKey>).transpose().map_err(|error| of(&error))?,
        })
    }
}

fn peer_name(name: &str) -> Result<PeerName, String> {
    name.parse::<PeerName>().map_err(|error| error.to_string())
}

fn key_of_hex(text: &str) -> Option<PairingKey> {
    let mut bytes = Zeroizing::new([0; PairingKey::BYTES]);
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != PairingKey::BYTES {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(PairingKey::from_bytes(*bytes))
}

fn checked_volumes(volumes: &[String]) -> Result<Vec<String>, String> {
    if volumes.len() > VOLUMES_MAX {
        return Err("an entry has too many volumes".to_owned());
    }
    for volume in volumes.iter().filter(|volume| *volume != "*") {
        VolumeName::new(volume).map_err(|error| error.to_string())?;
    }
    Ok(volumes.to_vec())
}

fn beside(path: &Path) -> PathBuf {
    let mut beside = path.to_owned().into_os_string();
    beside.push(".new");
    beside.into()
}

/// The names of the peers in the database among the volumes of `root`, also while a target uses it.
///
/// # Errors
/// [`PeerDatabaseError`].
pub fn paired_names(root: &Path) -> Result<Vec<String>, PeerDatabaseError> {
    Ok(PeerDatabase::read(&root.join(DATABASE_NAME))?.peers.iter().map(|peer| peer.name.to_string()).collect())
}

/// For fuzzing: any text, which is read as it is written.
#[doc(hidden)]
pub fn fuzz_database(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(read) = PeerDatabase::parse(text) {
        let again = PeerDatabase::parse(&read.to_toml()).expect("what is written can be read");
        assert_eq!(again.peers, read.peers);
        assert_eq!(again.invitations.len(), read.invitations.len());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use strongroom_handshake::PairingSecret;

    use super::*;

    /// The file of `docs/pairing.md`.
    const GOLDEN: &str = include_str!("golden/peers-1.toml");

    fn example() -> PeerDatabase {
        let key = |byte| PublicKey::from_bytes([byte; PublicKey::BYTES]);
        let invitation = |name: &str, used_by| InvitationRecord {
            name: name.parse().unwrap(),
            volumes: vec!["vault".into()],
            read_only: name == "carol",
            role: if name == "carol" { PeerRole::Operator } else { PeerRole::Initiator },
            expires_at: 1_795_905_000,
            key: PairingSecret::from_bytes([0x11; PairingSecret::BYTES]).key(),
            used_by,
        };
        PeerDatabase {
            peers: vec![PairedPeer {
                name: "alice".parse().unwrap(),
                key: key(0x33),
                volumes: vec!["vault".into(), "*".into()],
                read_only: false,
                role: PeerRole::Initiator,
                since: 1_795_901_400,
            }],
            invitations: vec![invitation("alice", Some(key(0x33))), invitation("carol", None)],
        }
    }

    #[test]
    fn golden_database() {
        assert_eq!(*example().to_toml(), GOLDEN);
        let read = PeerDatabase::parse(GOLDEN).unwrap();
        assert_eq!(read.peers, example().peers);
        assert_eq!(*read.to_toml(), GOLDEN);
    }

    #[test]
    fn it_is_replaced_as_a_whole_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".peers.toml");
        assert!(PeerDatabase::read(&path).unwrap().peers.is_empty());
        // What an interrupted attempt left, with another mode.
        fs::write(beside(&path), "half").unwrap();
        example().write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(PeerDatabase::read(&path).unwrap().peers, example().peers);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".peers.toml");
        let alice = GOLDEN.split("[[invitation]]").next().unwrap();
        let cases = [
            (String::new(), "version"),
            (GOLDEN.replace("version = 1", "version = 2"), "version 2"),
            (GOLDEN.replace("since", "sinse"), "sinse"),
            (GOLDEN.replace("name = \"carol\"", "name = \"ca\\u001brol\""), "cannot name a peer"),
            (GOLDEN.replace("proof_key = \"29", "proof_key = \"2x"), "proof_key"),
            (GOLDEN.replace("\"vault\"", "\"../x\""), "cannot name a volume"),
            (format!("{alice}{}", alice.split("version = 1").nth(1).unwrap()), "twice"),
        ];
        for (text, place) in cases {
            fs::write(&path, &text).unwrap();
            let message = PeerDatabase::read(&path).unwrap_err().to_string();
            assert!(message.contains(place) && message.contains("backup"), "{text}: {message}");
            assert!(!message.contains('\u{1b}') && !message.contains("2907"), "{message}");
        }
    }
}
