//! What a volume is, as its description file `volume.toml` says: identity, shape, who holds the keys, who may use it.
//!
//! The store's own superblock has identity and shape too; they are compared when a volume is opened, so that a store put
//! under another volume's description is refused.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_block::{BlockSize, Custody, Geometry, Mode, SealingDomain, Suite, VolumeId};
use strongroom_scsi::UnitKind;
use strongroom_scsi::vendor::{Sealing, UnitPage};
use strongroom_store::{BranchId, CreateOptions, IoChoice, Medium, OpenOptions, SnapshotInfo, VolumeInfo};

use crate::error::DescriptionError;
use crate::names::VolumeName;
use crate::protection::Protection;
use crate::schedule::Schedule;

/// The version of `volume.toml` that this build writes.
const FILE_VERSION: u32 = 1;

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name, unique in the catalogue.
    pub name: VolumeName,
    /// Its name among machines.
    pub id: VolumeId,
    /// Its shape.
    pub geometry: Geometry,
    /// How it is sealed; `None` for a plain volume.
    pub sealed: Option<Sealed>,
    /// The share of its size that retained versions may take, in percent.
    pub retention_percent: u8,
    /// Space for cleaning, in percent of what it takes when all of it is written, as it was made.
    pub spare_percent: u16,
    /// What its blocks lie on.
    pub medium: Medium,
    /// How its store is read and written.
    pub io: IoChoice,
    /// Whose store its blocks lie in, if it is a clone.
    pub clone_of: Option<CloneOf>,
    /// Names of its snapshots, as the store had them when they were last changed; the store itself is what counts.
    pub snapshots: Vec<String>,
    /// The volume that its contents are being resealed into, and that takes its place then; until then nobody writes to this one.
    pub successor: Option<VolumeName>,
    /// The volume whose successor it is.
    pub succeeds: Option<VolumeName>,
    /// When snapshots of it are taken by themselves.
    pub schedule: Option<Schedule>,
    /// Who may use it, beyond what the target's configuration says.
    pub access: Access,
}

/// Where a clone's blocks are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloneOf {
    /// The volume that has the store.
    pub volume: String,
    /// The clone's line of writes in it.
    pub branch: u32,
    /// The snapshot that it was made from, for people.
    pub snapshot: String,
}

/// How a sealed volume is sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Who holds the keys.
    pub custody: Custody,
    /// What associated data binds to.
    pub domain: SealingDomain,
    /// The cipher of new writes.
    pub suite: Suite,
    /// What sealing does.
    pub mode: Mode,
    /// The key epoch of new writes.
    pub epoch: u32,
    /// Custody `target`: the file with the key that wraps block keys at rest. Lies outside the store; the binary reads it.
    pub wrapping_key: Option<PathBuf>,
    /// Open at target: the file with the volume's key. Blocks are opened when they arrive and stored in plaintext; they are sealed on the
    /// wire only. Lies outside the store; the binary reads it.
    pub opened_with: Option<PathBuf>,
}

/// Who may use a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Access {
    /// Names of peers in the target's configuration; `*` for all of them.
    pub peers: Vec<String>,
    /// Initiator names that may use it over plain iSCSI (plain volumes only); `*` for any.
    pub initiators: Vec<String>,
    /// Nobody may write.
    pub read_only: bool,
    /// Sealed volumes: initiators may choose to read an older version of a block that does not open.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub previous_versions: bool,
    /// If the part of its log that opening replays is damaged, the volume is opened read-only and some blocks may be missing or old; else it
    /// is not opened at all.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read_only_if_damaged: bool,
    /// What the sessions that use it must have.
    pub protection: Protection,
}

/// A volume of which no stream may leave the target.
#[derive(Debug, thiserror::Error)]
#[error(
    "volume '{volume}' is opened at the target, so a stream of it would be plaintext; copy it as an initiator instead: \
     strongroom copy"
)]
pub struct NotSendable {
    /// The volume.
    pub volume: VolumeName,
}

impl Volume {
    /// Plain or sealed, as SCSI sees it.
    pub fn unit_kind(&self) -> UnitKind {
        match &self.sealed {
            None => UnitKind::Plain,
            // What is stored as plaintext needs no keys to be read.
            Some(sealed) if sealed.custody == Custody::KeyServer && sealed.opened_with.is_none() => {
                UnitKind::SealedWithKeyServer
            }
            Some(sealed) if sealed.custody.is_blind() => UnitKind::Sealed,
            Some(_) => UnitKind::SealedWithKeys,
        }
    }

    /// Plain or sealed, and who has the keys, for people.
    pub fn kind_text(&self) -> String {
        self.sealed.as_ref().map_or_else(
            || "plain".to_owned(),
            |sealed| match sealed.opened_with {
                None => format!("sealed ({})", sealed.custody),
                Some(_) => format!("sealed on the wire ({}), plaintext here", sealed.custody),
            },
        )
    }

    /// Vital product data page 0xC0.
    pub(crate) fn unit_page(&self, incarnation: u64, other_views: u16, image: u64) -> UnitPage {
        UnitPage {
            volume: self.id,
            block_size: self.geometry.block_size,
            sealing: self.sealed.as_ref().map(|sealed| Sealing {
                custody: sealed.custody,
                suite: sealed.suite,
                mode: sealed.mode,
                domain: sealed.domain,
                record_bytes: sealed.custody.record_bytes_in_channel() as u32,
                epoch: sealed.epoch,
                allows_previous: self.access.previous_versions,
                conditional_holes: true,
                heeds_keys_destroyed: self.unit_kind() == UnitKind::SealedWithKeyServer,
            }),
            other_views,
            incarnation,
            // Nobody writes to a snapshot.
            has_leases: self.name.snapshot().is_none(),
            image: Some(image),
        }
    }

    /// Whether a stream of it may leave: it holds what the store holds.
    ///
    /// # Errors
    /// [`NotSendable`].
    pub fn may_be_sent(&self) -> Result<(), NotSendable> {
        match self.sealed.as_ref().is_some_and(|sealed| sealed.opened_with.is_some()) {
            false => Ok(()),
            true => Err(NotSendable { volume: self.name.clone() }),
        }
    }

    /// What a stream of it tells of how new blocks are sealed; `None` if it is plain.
    pub fn stream_sealing(&self) -> Option<strongroom_store::StreamSealing> {
        self.sealed.as_ref().map(|sealed| strongroom_store::StreamSealing {
            suite: sealed.suite,
            mode: sealed.mode,
            epoch: sealed.epoch,
        })
    }

    /// What the store must say of itself.
    pub(crate) fn store_kind(&self) -> strongroom_store::UnitKind {
        match &self.sealed {
            None => strongroom_store::UnitKind::Plain,
            Some(sealed) => strongroom_store::UnitKind::Sealed { domain: sealed.domain, custody: sealed.custody },
        }
    }

    /// As one of its snapshots is exported: under a name and an identity of its own, for reading.
    pub(crate) fn as_snapshot(&self, name: &VolumeName) -> Volume {
        let mut id = self.id.0;
        // Another unit than the volume, the same one every time: an FNV-1a hash of the name changes the identity.
        let hash = name
            .as_str()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        // In both halves: the NAA designator, by which multipath tells units apart, is made of the first one.
        id.iter_mut().zip(hash.to_be_bytes().iter().cycle()).for_each(|(byte, change)| *byte ^= change);
        Volume { name: name.clone(), id: VolumeId(id), ..self.clone() }
    }

    /// The volume that has the store which its blocks lie in.
    pub(crate) fn store_name(&self) -> VolumeName {
        let cloned = self.clone_of.as_ref().and_then(|clone| VolumeName::new(&clone.volume).ok());
        cloned.unwrap_or_else(|| self.name.volume())
    }

    /// Its line of writes in that store.
    pub(crate) fn branch(&self) -> BranchId {
        self.clone_of.as_ref().map_or(BranchId::VOLUME, |clone| BranchId(clone.branch))
    }

    /// How its store is made.
    pub(crate) fn create_options(&self) -> CreateOptions {
        let mut options = CreateOptions::new(self.id, self.geometry, self.store_kind());
        options.retention_percent = self.retention_percent;
        options.spare_percent = self.spare_percent;
        options.medium = self.medium.clone();
        options
    }

    /// How its store is opened, with so much for its caches of records and of data, in bytes.
    pub(crate) fn open_options(&self, (record_cache_bytes, data_cache_bytes): (usize, usize)) -> OpenOptions {
        let read_only_if_damaged = self.access.read_only_if_damaged;
        OpenOptions {
            io: self.io,
            record_cache_bytes,
            data_cache_bytes,
            read_only_if_damaged,
            ..OpenOptions::default()
        }
    }

    /// Whether a store's superblock belongs to this description; otherwise what contradicts.
    pub(crate) fn agrees_with(&self, info: &VolumeInfo) -> Result<(), DescriptionError> {
        let mismatch = |field, ours: &dyn fmt::Debug, stored: &dyn fmt::Debug| {
            let (described, stored) = (format!("{ours:?}"), format!("{stored:?}"));
            Err(DescriptionError::OtherStore { field, described, stored })
        };
        if self.id != info.volume_id {
            return mismatch("volume_id", &self.id, &info.volume_id);
        }
        // A larger store was grown by somebody who did not come to note it here.
        let grown = Geometry { blocks: info.geometry.blocks.min(self.geometry.blocks), ..info.geometry };
        if self.geometry != grown {
            return mismatch("the size", &self.geometry, &info.geometry);
        }
        if self.store_kind() != info.kind {
            return mismatch("the kind", &self.store_kind(), &info.kind);
        }
        Ok(())
    }

    /// Takes over what only the store knows for sure. Whether that was different.
    pub(crate) fn take_from(&mut self, info: &VolumeInfo, snapshots: &[SnapshotInfo]) -> bool {
        let names: Vec<String> = of_branch(snapshots, self.branch());
        let differs = self.geometry != info.geometry || self.snapshots != names;
        (self.geometry, self.snapshots) = (info.geometry, names);
        differs
    }

    /// As the text of `volume.toml`.
    pub(crate) fn to_toml(&self) -> String {
        let file = VolumeFile {
            version: FILE_VERSION,
            name: self.name.to_string(),
            volume_id: self.id.to_string(),
            size_bytes: self.geometry.bytes(),
            block_size: self.geometry.block_size.bytes(),
            retention_percent: self.retention_percent,
            spare_percent: self.spare_percent,
            medium: self.medium.to_string(),
            io: (self.io != IoChoice::Auto).then(|| self.io.to_string()),
            sealed: self.sealed.as_ref().map(|sealed| SealedFile {
                custody: sealed.custody.to_string(),
                domain: sealed.domain.to_string(),
                suite: sealed.suite.name().to_owned(),
                mode: mode_name(sealed.mode).to_owned(),
                epoch: sealed.epoch,
                wrapping_key: sealed.wrapping_key.clone(),
                opened_with: sealed.opened_with.clone(),
            }),
            clone_of: self.clone_of.clone(),
            snapshots: self.snapshots.clone(),
            successor: self.successor.as_ref().map(ToString::to_string),
            succeeds: self.succeeds.as_ref().map(ToString::to_string),
            schedule: self.schedule,
            access: self.access.clone(),
        };
        let body = toml::to_string_pretty(&file).expect("strings and numbers are representable");
        format!("# A Strongroom volume. Identity and shape must not be changed by hand; io and [access] may.\n{body}")
    }

    /// From the text of `volume.toml`; the error says what is wrong.
    pub(crate) fn from_toml(text: &str) -> Result<Volume, DescriptionError> {
        // The version first: a newer file may have fields that we do not know.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = toml::from_str(text)?;
        if version != FILE_VERSION {
            return Err(DescriptionError::Version { found: version, known: FILE_VERSION });
        }
        let file: VolumeFile = toml::from_str(text)?;
        let block_size = BlockSize::new(file.block_size.into())?;
        let geometry = Geometry::from_bytes(file.size_bytes, block_size)?;
        let other = |name: Option<String>| name.map(|name| VolumeName::new(&name)).transpose();
        let (successor, succeeds) = (other(file.successor), other(file.succeeds));
        let protection = &file.access.protection;
        protection
            .check(file.sealed.is_some())
            .map_err(|error| DescriptionError::value("access.protection.schemes", error))?;
        file.schedule
            .iter()
            .try_for_each(Schedule::check)
            .map_err(|error| DescriptionError::value("schedule", error))?;
        Ok(Volume {
            name: VolumeName::new(&file.name).map_err(|error| DescriptionError::Name(Box::new(error)))?,
            id: file.volume_id.parse().map_err(|error| DescriptionError::value("volume_id", error))?,
            geometry,
            sealed: file.sealed.map(SealedFile::parse).transpose()?,
            retention_percent: file.retention_percent,
            spare_percent: file.spare_percent,
            medium: file.medium.parse().map_err(|error| DescriptionError::value("medium", error))?,
            io: file.io.as_deref().unwrap_or("auto").parse().map_err(|error| DescriptionError::value("io", error))?,
            clone_of: file.clone_of,
            snapshots: file.snapshots,
            successor: successor.map_err(|error| DescriptionError::value("successor", error))?,
            succeeds: succeeds.map_err(|error| DescriptionError::value("succeeds", error))?,
            schedule: file.schedule,
            access: file.access,
        })
    }
}

/// The fields of `volume.toml`, one each: more than 15, because a volume is described by one flat file, the format of which is fixed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeFile {
    version: u32,
    name: String,
    volume_id: String,
    size_bytes: u64,
    block_size: u32,
    retention_percent: u8,
    /// The default is not written: so builds from before there was a choice read the file.
    #[serde(default = "spare_default", skip_serializing_if = "is_spare_default")]
    spare_percent: u16,
    /// Volumes from before there was a choice lie in their directory.
    #[serde(default = "medium_default")]
    medium: String,
    /// `auto` is not written: so builds from before there was a choice read the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    io: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    snapshots: Vec<String>,
    sealed: Option<SealedFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clone_of: Option<CloneOf>,
    /// Builds that do not know these refuse the file, rather than write to a volume whose contents move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    successor: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    succeeds: Option<String>,
    /// Builds that do not know it refuse the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schedule: Option<Schedule>,
    #[serde(default)]
    access: Access,
}

fn medium_default() -> String {
    Medium::default().to_string()
}

fn spare_default() -> u16 {
    CreateOptions::SPARE_PERCENT_DEFAULT
}

fn is_spare_default(percent: &u16) -> bool {
    *percent == CreateOptions::SPARE_PERCENT_DEFAULT
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SealedFile {
    custody: String,
    domain: String,
    suite: String,
    mode: String,
    epoch: u32,
    wrapping_key: Option<PathBuf>,
    /// Builds that do not know it refuse the file, rather than take plaintext for ciphertext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opened_with: Option<PathBuf>,
}

impl SealedFile {
    fn parse(self) -> Result<Sealed, DescriptionError> {
        let known =
            |field, found: &str| DescriptionError::value(field, format!("'{found}' is not known to this build"));
        let custody = custody_from(&self.custody).ok_or_else(|| known("sealed.custody", &self.custody))?;
        if (custody == Custody::Target) != self.wrapping_key.is_some() {
            return Err(DescriptionError::Custody { field: "wrapping_key", custody: Custody::Target });
        }
        if self.opened_with.is_some() && custody != Custody::KeyFile {
            return Err(DescriptionError::Custody { field: "opened_with", custody: Custody::KeyFile });
        }
        Ok(Sealed {
            custody,
            domain: self.domain.parse().map_err(|error| DescriptionError::value("sealed.domain", error))?,
            suite: Suite::ALL
                .into_iter()
                .find(|suite| suite.name() == self.suite)
                .ok_or_else(|| known("sealed.suite", &self.suite))?,
            mode: [Mode::Encrypt, Mode::AuthenticateOnly]
                .into_iter()
                .find(|mode| mode_name(*mode) == self.mode)
                .ok_or_else(|| known("sealed.mode", &self.mode))?,
            epoch: self.epoch,
            wrapping_key: self.wrapping_key,
            opened_with: self.opened_with,
        })
    }
}

/// The names of a branch's snapshots.
pub(crate) fn of_branch(snapshots: &[SnapshotInfo], branch: BranchId) -> Vec<String> {
    snapshots.iter().filter(|snapshot| snapshot.branch == branch).map(|snapshot| snapshot.name.clone()).collect()
}

/// A custody by its name.
pub fn custody_from(name: &str) -> Option<Custody> {
    [Custody::KeyFile, Custody::KeyServer, Custody::Target].into_iter().find(|custody| custody.to_string() == name)
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Encrypt => "encrypt",
        Mode::AuthenticateOnly => "authenticate-only",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::protection::Service;
    use crate::retention::Retention;

    pub(crate) fn sample(custody: Custody) -> Volume {
        Volume {
            name: VolumeName::new("data").unwrap(),
            id: VolumeId([1; 16]),
            geometry: Geometry::from_bytes(1 << 30, BlockSize::DEFAULT).unwrap(),
            sealed: Some(Sealed {
                custody,
                domain: SealingDomain([2; 16]),
                suite: Suite::Aes256Gcm,
                mode: Mode::Encrypt,
                epoch: 1,
                wrapping_key: (custody == Custody::Target).then(|| "/etc/strongroom/data.wrap".into()),
                opened_with: None,
            }),
            retention_percent: 10,
            spare_percent: CreateOptions::SPARE_PERCENT_DEFAULT,
            medium: Medium::Directory,
            io: IoChoice::Auto,
            clone_of: None,
            snapshots: Vec::new(),
            schedule: None,
            successor: None,
            succeeds: None,
            access: Access { peers: vec!["alice".into()], ..Access::default() },
        }
    }

    #[test]
    fn reads_as_written() {
        for custody in [Custody::KeyFile, Custody::KeyServer, Custody::Target] {
            let volume = sample(custody);
            assert_eq!(Volume::from_toml(&volume.to_toml()).unwrap(), volume);
        }
        let other = VolumeName::new("other").ok();
        let moving = Volume { successor: other.clone(), succeeds: other, ..sample(Custody::KeyFile) };
        assert_eq!(Volume::from_toml(&moving.to_toml()).unwrap(), moving);
        let plain = Volume { sealed: None, ..sample(Custody::KeyFile) };
        assert_eq!(Volume::from_toml(&plain.to_toml()).unwrap(), plain.clone());
        let protection = Protection { services: vec![Service::CheckedOnArrival], schemes: vec!["S2-3".into()] };
        let asking = Access { protection, previous_versions: true, ..Access::default() };
        let asking = Volume { access: asking, ..plain.clone() };
        assert_eq!(Volume::from_toml(&asking.to_toml()).unwrap(), asking);
        let mut opened = sample(Custody::KeyFile);
        opened.sealed.as_mut().expect("it is sealed").opened_with = Some("/etc/strongroom/data.key".into());
        assert_eq!(Volume::from_toml(&opened.to_toml()).unwrap(), opened.clone());
        assert!(opened.may_be_sent().unwrap_err().to_string().contains("strongroom copy"));
        assert!(opened.kind_text().contains("plaintext here"), "{}", opened.kind_text());
        assert!(Volume::from_toml(&opened.to_toml().replace("\"keyfile\"", "\"keyserver\"")).is_err());
        for suite in Suite::ALL {
            let mut volume = sample(Custody::KeyFile);
            volume.sealed.as_mut().expect("it is sealed").suite = suite;
            assert_eq!(Volume::from_toml(&volume.to_toml()).unwrap(), volume);
        }
        for medium in [Medium::Memory, Medium::File("/srv/x".into()), Medium::Device("/dev/sdz".into())] {
            let volume = Volume { medium, ..plain.clone() };
            assert_eq!(Volume::from_toml(&volume.to_toml()).unwrap(), volume);
        }
        for io in [IoChoice::DirectUring, IoChoice::Direct, IoChoice::Buffered] {
            let volume = Volume { io, ..plain.clone() };
            assert!(volume.to_toml().contains(&format!("io = \"{io}\"")));
            assert_eq!(Volume::from_toml(&volume.to_toml()).unwrap(), volume);
        }
        let keep = Retention { last: 2, monthly: 12, ..Retention::default() };
        let scheduled = Volume { schedule: Some(Schedule { every_s: 3600, keep }), ..plain.clone() };
        assert_eq!(Volume::from_toml(&scheduled.to_toml()).unwrap(), scheduled.clone());
        assert!(Volume::from_toml(&scheduled.to_toml().replace("every_s = 3600", "every_s = 0")).is_err());
        let roomy = Volume { spare_percent: 100, ..plain.clone() };
        assert_eq!(Volume::from_toml(&roomy.to_toml()).unwrap(), roomy.clone());
        assert_eq!(roomy.create_options().spare_percent, 100);
        let new = ["io =", "spare", "previous_versions", "opened_with", "schedule"]
            .iter()
            .any(|field| plain.to_toml().contains(field));
        assert!(!new, "as before there was a choice");
        let old = plain.to_toml().replace("medium = \"directory\"\n", "");
        assert_eq!(Volume::from_toml(&old).unwrap(), plain, "volumes were made before there was a choice");
    }

    #[test]
    fn nonsense_and_the_future_are_refused() {
        let good = sample(Custody::KeyFile).to_toml();
        for (from, to) in [
            ("version = 1", "version = 2"),
            ("block_size = 4096", "block_size = 4097"),
            ("size_bytes = 1073741824", "size_bytes = 5"),
            ("name = \"data\"", "name = \"../data\""),
            ("custody = \"keyfile\"", "custody = \"mine\""),
            ("custody = \"keyfile\"", "custody = \"target\""),
            ("aes-256-gcm", "rot13"),
            ("medium = \"directory\"", "medium = \"tape\""),
            ("medium = \"directory\"", "medium = \"directory\"\nio = \"mmap\""),
            ("epoch = 1", "epoch = 1\ncolour = 2"),
        ] {
            assert!(good.contains(from), "{from}");
            assert!(Volume::from_toml(&good.replace(from, to)).is_err(), "{to}");
        }
        assert!(Volume::from_toml("").is_err());
    }
}
