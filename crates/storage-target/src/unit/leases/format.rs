//! Writer leases on disk: `leases.toml` (`docs/vendor-cdbs.md`, "Writer leases").

use serde::{Deserialize, Serialize};
use strongroom_scsi::vendor::lease::{LeaseId, LeaseMode};

use super::table::{Holder, LeaseRecord};
use crate::access::Identity;
use crate::unit::persistent_file::{ContentsError, FileContents};

/// The version of the file that this build writes.
const VERSION: u32 = 1;

/// The file's name. It is left behind when a volume takes the place of another one.
pub(crate) const LEASES_FILE: &str = "leases.toml";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    #[serde(default, rename = "lease")]
    leases: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// 32 hexadecimal digits.
    id: String,
    mode: ModeEntry,
    initiator: String,
    /// Who the holder has proven to be, at most one of these: the public line of a peer, a CHAP user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chap_user: Option<String>,
    seconds: u32,
    description: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModeEntry {
    Exclusive,
    Shared,
    Maintenance,
}

fn identity_of(key: Option<String>, chap_user: Option<String>) -> Result<Identity, ContentsError> {
    match (key, chap_user) {
        (Some(key), None) => match key.parse() {
            Ok(parsed) => Ok(Identity::Channel(parsed)),
            Err(source) => Err(ContentsError::Key { value: key, source }),
        },
        (None, Some(user)) => Ok(Identity::Chap(user.into())),
        (None, None) => Ok(Identity::Plain),
        (Some(_), Some(_)) => Err(ContentsError::TwoIdentities),
    }
}

impl Entry {
    fn of(lease: &LeaseRecord) -> Option<Entry> {
        let mode = match lease.mode {
            // Nothing of a reader outlives its session.
            LeaseMode::Reader => return None,
            LeaseMode::Exclusive => ModeEntry::Exclusive,
            LeaseMode::Shared => ModeEntry::Shared,
            LeaseMode::Maintenance => ModeEntry::Maintenance,
        };
        let (key, chap_user) = match &lease.holder.identity {
            Identity::Channel(key) => (Some(key.to_string()), None),
            Identity::Chap(user) => (None, Some(user.to_string())),
            Identity::Plain => (None, None),
        };
        Some(Entry {
            id: lease.id.to_string(),
            mode,
            initiator: lease.holder.initiator_name.to_string(),
            key,
            chap_user,
            seconds: lease.seconds,
            description: lease.description.clone(),
        })
    }

    fn parse(self) -> Result<LeaseRecord, ContentsError> {
        let digits = u128::from_str_radix(&self.id, 16).ok().filter(|&id| id != 0 && self.id.len() == 32);
        let id = digits.ok_or_else(|| ContentsError::value(self.id, "lease of 32 hexadecimal digits"))?;
        Ok(LeaseRecord {
            id: LeaseId(id.to_be_bytes()),
            mode: match self.mode {
                ModeEntry::Exclusive => LeaseMode::Exclusive,
                ModeEntry::Shared => LeaseMode::Shared,
                ModeEntry::Maintenance => LeaseMode::Maintenance,
            },
            holder: Holder { initiator_name: self.initiator.into(), identity: identity_of(self.key, self.chap_user)? },
            seconds: self.seconds,
            description: self.description,
        })
    }
}

impl FileContents for Vec<LeaseRecord> {
    const FILE: &'static str = LEASES_FILE;
    const WHAT: &'static str = "writer leases";
    const REMEDY: &'static str =
        "it says who alone may write: restore it, or delete it when no initiator has the volume attached";

    fn to_toml(&self) -> Option<String> {
        let leases: Vec<Entry> = self.iter().filter_map(Entry::of).collect();
        if leases.is_empty() {
            return None;
        }
        let body = toml::to_string(&Document { version: VERSION, leases });
        let body = body.expect("strings and numbers are representable");
        Some(format!("# Writer leases of this volume; written by the target.\n{body}"))
    }

    fn from_toml(text: &str) -> Result<Vec<LeaseRecord>, ContentsError> {
        let document: Document = toml::from_str(text)?;
        ContentsError::check_version(document.version, VERSION)?;
        document.leases.into_iter().map(Entry::parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use strongroom_handshake::NodeKey;

    use super::*;

    fn sample() -> Vec<LeaseRecord> {
        let holder = |identity| Holder { initiator_name: "iqn.a".into(), identity };
        let lease = |id, mode, identity, description: &str| LeaseRecord {
            id: LeaseId([id; 16]),
            mode,
            holder: holder(identity),
            seconds: 60,
            description: description.to_owned(),
        };
        let key = NodeKey::from_seed(&[7; 32]).public();
        vec![
            lease(0x1a, LeaseMode::Exclusive, Identity::Channel(key), "host web1, pid 4711, \u{1b}[2J\"attach\""),
            lease(2, LeaseMode::Shared, Identity::Chap("carol".into()), ""),
            lease(3, LeaseMode::Maintenance, Identity::Plain, "reseal"),
        ]
    }

    const GOLDEN: &str = r#"# Writer leases of this volume; written by the target.
version = 1

[[lease]]
id = "1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a"
mode = "exclusive"
initiator = "iqn.a"
key = "KEY"
seconds = 60
description = "host web1, pid 4711, \u001B[2J\"attach\""

[[lease]]
id = "02020202020202020202020202020202"
mode = "shared"
initiator = "iqn.a"
chap_user = "carol"
seconds = 60
description = ""

[[lease]]
id = "03030303030303030303030303030303"
mode = "maintenance"
initiator = "iqn.a"
seconds = 60
description = "reseal"
"#;

    #[test]
    fn golden_file() {
        let golden = GOLDEN.replace("KEY", &NodeKey::from_seed(&[7; 32]).public().to_string());
        assert_eq!(sample().to_toml().unwrap(), golden);
        assert_eq!(Vec::from_toml(&golden), Ok(sample()));
        assert_eq!(Vec::new().to_toml(), None);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let golden = sample().to_toml().unwrap();
        for (from, to) in [
            ("version = 1", "version = 2"),
            ("\"shared\"", "\"reader\""),
            ("1a1a", "1a"),
            ("chap_user", "user"),
            ("strongroom-ed25519", "x"),
        ] {
            let damaged = golden.replacen(from, to, 1);
            assert_ne!(damaged, golden, "{from}");
            assert!(Vec::<LeaseRecord>::from_toml(&damaged).is_err(), "{to}");
        }
    }
}
