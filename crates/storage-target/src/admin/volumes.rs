//! What is asked and told about volumes as such: plain data.

use serde::{Deserialize, Serialize};
use strongroom_block::{Custody, Mode, Suite};
use strongroom_store::CreateOptions;

use crate::catalogue::{SealedSpec, VolumeSpec, VolumeStatus};
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::protection::Protection;
use crate::volume::{Access, CloneOf, Volume};

/// A volume to be made, on the target's own file system and without files of its own beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its block size in bytes.
    pub block_size: u64,
    /// How it is sealed; none: it is a plain volume.
    #[serde(default)]
    pub sealed: Option<NewSealing>,
    /// The share of its size that older versions may take, in percent.
    pub retention_percent: u8,
    /// Space for cleaning, in percent.
    pub spare_percent: u16,
    /// The peers that may use it, `*` for all.
    #[serde(default)]
    pub peers: Vec<String>,
    /// Nobody may write.
    #[serde(default)]
    pub read_only: bool,
    /// What sessions must have.
    #[serde(default)]
    pub protection: Protection,
}

/// How a new volume is sealed: with keys that the target does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSealing {
    /// Who has them.
    pub custody: BlindCustody,
    /// The cipher.
    pub suite: String,
    /// Blocks are authenticated and stay readable.
    #[serde(default)]
    pub authenticate_only: bool,
}

/// The custodies in which a target has no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlindCustody {
    /// Initiators have them.
    KeyFile,
    /// A key server lends them.
    KeyServer,
}

impl NewVolume {
    pub(super) fn spec(&self) -> Result<VolumeSpec, CatalogueError> {
        let spare = CreateOptions::SPARE_PERCENT_DEFAULT..=CreateOptions::SPARE_PERCENT_MAX;
        if self.retention_percent > 100 || !spare.contains(&self.spare_percent) {
            return Err(CatalogueError::Kind(
                "older versions may take 0 to 100 percent, and `strongroom volume create --help` says what may be spare; choose within that",
            ));
        }
        let sealed = self.sealed.as_ref().map(|sealed| {
            let custody = match sealed.custody {
                BlindCustody::KeyFile => Custody::KeyFile,
                BlindCustody::KeyServer => Custody::KeyServer,
            };
            let suite = Suite::ALL.into_iter().find(|suite| suite.name() == sealed.suite);
            let suite =
                suite.ok_or(CatalogueError::Kind("this target does not know that suite; choose another one"))?;
            let mode = if sealed.authenticate_only { Mode::AuthenticateOnly } else { Mode::Encrypt };
            Ok::<_, CatalogueError>(SealedSpec { suite, mode, ..SealedSpec::new(custody) })
        });
        let (peers, read_only, protection) = (self.peers.clone(), self.read_only, self.protection.clone());
        Ok(VolumeSpec {
            block_size: self.block_size,
            sealed: sealed.transpose()?,
            retention_percent: self.retention_percent,
            spare_percent: self.spare_percent,
            access: Access { peers, read_only, protection, ..Access::default() },
            ..VolumeSpec::plain(&self.name, self.size_bytes)
        })
    }
}

/// A volume of the target, or what is wrong with one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum VolumeEntry {
    /// One that can be used.
    Good(Box<VolumeInfo>),
    /// One whose description cannot be read.
    Damaged {
        /// Its name.
        name: String,
        /// Why, for people.
        error: String,
    },
}

impl VolumeEntry {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            VolumeEntry::Good(info) => &info.name,
            VolumeEntry::Damaged { name, .. } => name,
        }
    }

    /// What it is, if that can be read.
    pub fn info(&self) -> Option<&VolumeInfo> {
        match self {
            VolumeEntry::Good(info) => Some(info),
            VolumeEntry::Damaged { .. } => None,
        }
    }

    /// Why its description cannot be read, for people.
    pub fn problem(&self) -> Option<&str> {
        match self {
            VolumeEntry::Good(_) => None,
            VolumeEntry::Damaged { error, .. } => Some(error),
        }
    }
}

impl From<(VolumeName, Result<VolumeStatus, CatalogueError>)> for VolumeEntry {
    fn from((name, status): (VolumeName, Result<VolumeStatus, CatalogueError>)) -> VolumeEntry {
        match status {
            Ok(status) => VolumeEntry::Good(Box::new(VolumeInfo::of(&status))),
            Err(error) => VolumeEntry::Damaged { name: name.to_string(), error: error.to_string() },
        }
    }
}

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its name among machines.
    pub volume_id: String,
    /// Plain or sealed, and who has the keys, for people.
    pub kind: String,
    /// Its shape and its medium.
    #[serde(flatten)]
    pub shape: VolumeShape,
    /// How it is sealed.
    pub sealed: Option<SealingInfo>,
    /// Whose store its blocks are in, if it is a clone.
    pub clone_of: Option<CloneOf>,
    /// Its snapshots.
    pub snapshots: Vec<String>,
    /// The volume that its contents are being resealed into.
    pub successor: Option<String>,
    /// The volume whose successor it is.
    pub succeeds: Option<String>,
    /// Who may use it, beyond what the configuration and the peer database say.
    pub access: Access,
    /// What its files take, in bytes.
    pub on_disk_bytes: u64,
    /// A process has it open; of a clone: a session uses it.
    pub in_use: bool,
}

/// What a volume's store was made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeShape {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its block size in bytes.
    pub block_size: u64,
    /// What its blocks lie on.
    pub medium: String,
    /// How its store is read and written.
    pub io: String,
    /// The share of its size that older versions may take, in percent.
    pub retention_percent: u8,
    /// Space for cleaning, in percent.
    pub spare_percent: u16,
}

/// How a volume is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealingInfo {
    /// Who has the keys.
    pub custody: String,
    /// What seals are bound to.
    pub domain: String,
    /// The cipher.
    pub suite: String,
    /// The key epoch of new writes.
    pub epoch: u32,
    /// What the record of a block takes, in bytes.
    pub record_bytes: u64,
    /// What those of all blocks take.
    pub record_bytes_in_all: u64,
    /// Custody `target`: the file that wraps block keys.
    pub wrapping_key: Option<String>,
    /// Opened at the target: the file with the volume's key.
    pub opened_with: Option<String>,
}

impl VolumeInfo {
    /// What a catalogue says of a volume.
    pub fn of(status: &VolumeStatus) -> VolumeInfo {
        let volume = &status.volume;
        VolumeInfo {
            name: volume.name.to_string(),
            volume_id: volume.id.to_string(),
            kind: volume.kind_text(),
            shape: VolumeShape {
                size_bytes: volume.geometry.bytes(),
                block_size: volume.geometry.block_size.bytes().into(),
                medium: volume.medium.to_string(),
                io: volume.io.to_string(),
                retention_percent: volume.retention_percent,
                spare_percent: volume.spare_percent,
            },
            sealed: SealingInfo::of(volume),
            clone_of: volume.clone_of.clone(),
            snapshots: volume.snapshots.clone(),
            successor: volume.successor.as_ref().map(ToString::to_string),
            succeeds: volume.succeeds.as_ref().map(ToString::to_string),
            access: volume.access.clone(),
            on_disk_bytes: status.host_bytes,
            in_use: status.in_use,
        }
    }
}

impl SealingInfo {
    fn of(volume: &Volume) -> Option<SealingInfo> {
        let sealed = volume.sealed.as_ref()?;
        let record_bytes = sealed.custody.record_bytes_at_rest() as u64;
        let path = |path: &std::path::PathBuf| path.display().to_string();
        Some(SealingInfo {
            custody: sealed.custody.to_string(),
            domain: sealed.domain.to_string(),
            suite: sealed.suite.name().to_owned(),
            epoch: sealed.epoch,
            record_bytes,
            record_bytes_in_all: record_bytes * volume.geometry.blocks,
            wrapping_key: sealed.wrapping_key.as_ref().map(path),
            opened_with: sealed.opened_with.as_ref().map(path),
        })
    }
}
