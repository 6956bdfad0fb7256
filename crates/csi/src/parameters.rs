//! What a StorageClass says of new volumes, and what a node is told of one: its volume context.
//!
//! Absent: secrets. The context is stored in clear by the orchestrator.

use std::collections::{BTreeMap, HashMap};

use strongroom_target::admin::{BlindCustody, NewSealing, NewVolume, VolumeInfo};
use tonic::Status;

/// What sidecars add to parameters.
const OF_SIDECARS: &str = "csi.storage.k8s.io/";
const PARAMETERS: [&str; 5] = ["custody", "suite", "blockSize", "retentionPercent", "sparePercent"];
/// Space for cleaning, in percent, as `volume create` has it.
const SPARE_PERCENT: u16 = 25;
const RETENTION_PERCENT: u8 = 10;
const BLOCK_BYTES: u64 = 4096;
const SUITE: &str = "aes-256-gcm";

/// Who has a volume's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyCustody {
    /// A secret of the orchestrator.
    KeyFile,
    /// A key server.
    KeyServer,
    /// Nobody: it is plain.
    Plain,
}

impl KeyCustody {
    const ALL: [KeyCustody; 3] = [KeyCustody::KeyFile, KeyCustody::KeyServer, KeyCustody::Plain];

    fn name(self) -> &'static str {
        match self {
            KeyCustody::KeyFile => "keyfile",
            KeyCustody::KeyServer => "keyserver",
            KeyCustody::Plain => "none",
        }
    }

    fn parse(text: &str) -> Result<KeyCustody, Status> {
        KeyCustody::ALL.into_iter().find(|custody| custody.name() == text).ok_or_else(|| {
            let names = KeyCustody::ALL.map(KeyCustody::name).join(", ");
            Status::invalid_argument(format!("custody is one of {names} (custody 'target' is not for this driver)"))
        })
    }

    /// That of a volume.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` for one that this driver cannot use.
    pub(crate) fn of(info: &VolumeInfo) -> Result<KeyCustody, Status> {
        match &info.sealed {
            None => Ok(KeyCustody::Plain),
            Some(sealed) => KeyCustody::parse(&sealed.custody)
                .map_err(|_| Status::failed_precondition("that volume's keys are at its target; attach it by hand")),
        }
    }
}

/// What a StorageClass says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassParameters {
    pub(crate) custody: KeyCustody,
    suite: String,
    pub(crate) block_bytes: u64,
    retention_percent: u8,
    spare_percent: u16,
}

impl ClassParameters {
    /// # Errors
    /// `INVALID_ARGUMENT` for what is not known or no value.
    pub(crate) fn parse(parameters: &HashMap<String, String>) -> Result<ClassParameters, Status> {
        check_names(parameters, &PARAMETERS)?;
        let value = |name: &str| parameters.get(name).map(String::as_str);
        Ok(ClassParameters {
            custody: value("custody").map_or(Ok(KeyCustody::KeyFile), KeyCustody::parse)?,
            suite: value("suite").unwrap_or(SUITE).to_owned(),
            block_bytes: block_bytes(value("blockSize"))?,
            retention_percent: number(parameters, "retentionPercent", RETENTION_PERCENT)?,
            spare_percent: number(parameters, "sparePercent", SPARE_PERCENT)?,
        })
    }

    /// The volume to be made. Nobody may use it until it is published to a node.
    pub(crate) fn volume(&self, name: String, size_bytes: u64) -> NewVolume {
        let sealed = |custody| NewSealing { custody, suite: self.suite.clone(), authenticate_only: false };
        NewVolume {
            name,
            size_bytes,
            block_size: self.block_bytes,
            sealed: match self.custody {
                KeyCustody::KeyFile => Some(sealed(BlindCustody::KeyFile)),
                KeyCustody::KeyServer => Some(sealed(BlindCustody::KeyServer)),
                KeyCustody::Plain => None,
            },
            retention_percent: self.retention_percent,
            spare_percent: self.spare_percent,
            peers: Vec::new(),
            read_only: false,
            protection: strongroom_target::Protection::default(),
        }
    }
}

/// Refuses what is neither known nor of a sidecar: a misspelt parameter would count for nothing.
pub(crate) fn check_names(parameters: &HashMap<String, String>, known: &[&str]) -> Result<(), Status> {
    let is_known = |name: &&String| known.contains(&name.as_str()) || name.starts_with(OF_SIDECARS);
    // The same one each time.
    match parameters.keys().filter(|name| !is_known(name)).min() {
        None => Ok(()),
        Some(name) if known.is_empty() => {
            Err(Status::invalid_argument(format!("there is no parameter {name:?}; leave it out")))
        }
        Some(name) => {
            Err(Status::invalid_argument(format!("there is no parameter {name:?}; there are {}", known.join(", "))))
        }
    }
}

fn number<N: std::str::FromStr>(parameters: &HashMap<String, String>, name: &str, usual: N) -> Result<N, Status> {
    parameters.get(name).map_or(Ok(usual), |text| {
        text.parse().map_err(|_| Status::invalid_argument(format!("{name} is no number or is too large")))
    })
}

fn block_bytes(text: Option<&str>) -> Result<u64, Status> {
    let Some(text) = text else { return Ok(BLOCK_BYTES) };
    let bytes = text.parse::<u64>().ok().filter(|bytes| bytes.is_power_of_two() && (512..=65536).contains(bytes));
    bytes.ok_or_else(|| Status::invalid_argument("blockSize is a power of two from 512 to 65536, in bytes"))
}

/// What a node is told of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeContext {
    pub(crate) custody: KeyCustody,
    /// The volume in whose store its blocks lie, if it is a clone: they are sealed as that one's, with its key.
    pub(crate) sealed_as: Option<String>,
    /// Its sealing domain and identity, for the key server.
    pub(crate) domain: Option<String>,
    pub(crate) id: Option<String>,
}

impl VolumeContext {
    /// Of a volume.
    ///
    /// # Errors
    /// Those of [`KeyCustody::of`].
    pub(crate) fn of(info: &VolumeInfo) -> Result<VolumeContext, Status> {
        let custody = KeyCustody::of(info)?;
        let is_lent = custody == KeyCustody::KeyServer;
        Ok(VolumeContext {
            custody,
            sealed_as: info.clone_of.as_ref().filter(|_| info.sealed.is_some()).map(|of| of.volume.clone()),
            domain: info.sealed.as_ref().filter(|_| is_lent).map(|sealed| sealed.domain.clone()),
            id: is_lent.then(|| info.volume_id.clone()),
        })
    }

    /// As the orchestrator keeps it.
    pub(crate) fn to_map(&self) -> HashMap<String, String> {
        let fields = [("sealedAs", &self.sealed_as), ("domain", &self.domain), ("id", &self.id)];
        let mut map: HashMap<String, String> =
            fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect();
        map.insert("custody".to_owned(), self.custody.name().to_owned());
        map
    }

    /// What the orchestrator has kept, or a person has written into a PersistentVolume.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for what cannot be.
    pub(crate) fn parse(map: &HashMap<String, String>) -> Result<VolumeContext, Status> {
        let value = |name: &str| map.get(name).cloned();
        let sealed_as = value("sealedAs");
        if let Some(name) = &sealed_as {
            crate::names::volume_of(name).map_err(|_| Status::invalid_argument("sealedAs is no volume's name"))?;
        }
        let is_uuid = |text: &String| text.len() == 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        let (domain, id) = (value("domain"), value("id"));
        if [&domain, &id].into_iter().flatten().any(|text| !is_uuid(text)) {
            return Err(Status::invalid_argument("domain and id are UUIDs"));
        }
        let custody = value("custody").as_deref().map_or(Ok(KeyCustody::KeyFile), KeyCustody::parse)?;
        Ok(VolumeContext { custody, sealed_as, domain, id })
    }
}

/// Topology: the segment that says which target a node reaches and a volume is at.
pub(crate) fn topology(target_name: &str) -> crate::spec::Topology {
    let segments = BTreeMap::from([(TOPOLOGY_KEY.to_owned(), target_name.to_owned())]);
    crate::spec::Topology { segments: segments.into_iter().collect() }
}

/// The name of that segment.
pub(crate) const TOPOLOGY_KEY: &str = "topology.strongroom/target";

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn map(entries: &[(&str, &str)]) -> HashMap<String, String> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn refused(entries: &[(&str, &str)]) -> bool {
        ClassParameters::parse(&map(entries)).is_err_and(|status| status.code() == Code::InvalidArgument)
    }

    #[test]
    fn a_class_says_what_it_wants_and_nothing_else() {
        let usual = ClassParameters::parse(&map(&[("csi.storage.k8s.io/pvc/name", "a")])).unwrap();
        assert_eq!((usual.custody, usual.block_bytes), (KeyCustody::KeyFile, 4096));
        let volume = usual.volume("csi-a".into(), 8192);
        assert!(volume.peers.is_empty(), "nobody may use it before it is published");
        assert_eq!(volume.sealed.unwrap().custody, BlindCustody::KeyFile);
        let plain = ClassParameters::parse(&map(&[("custody", "none"), ("blockSize", "65536")])).unwrap();
        assert_eq!(plain.volume("csi-a".into(), 65536).sealed, None);
        for wrong in [
            ("custody", "target"),
            ("custody", ""),
            ("Custody", "none"),
            ("blockSize", "1000"),
            ("blockSize", "4KiB"),
            ("retentionPercent", "-1"),
            ("sparePercent", "many"),
        ] {
            assert!(refused(&[wrong]), "{wrong:?}");
        }
    }

    #[test]
    fn a_context_is_read_as_it_was_written() {
        let uuid = "5f0c0000-0000-0000-0000-00000000000a";
        let context = VolumeContext {
            custody: KeyCustody::KeyServer,
            sealed_as: Some("csi-a".into()),
            domain: Some(uuid.into()),
            id: Some(uuid.into()),
        };
        assert_eq!(VolumeContext::parse(&context.to_map()).unwrap(), context);
        let usual = VolumeContext::parse(&HashMap::new()).unwrap();
        assert_eq!((usual.custody, usual.sealed_as), (KeyCustody::KeyFile, None));
    }

    /// Those who make a PersistentVolume write the context, which ends in arguments of commands.
    #[test]
    fn attack_csi_volume_context_as_arguments() {
        for hostile in [
            [("sealedAs", "--force")],
            [("sealedAs", "../x")],
            [("domain", "--key-server=evil")],
            [("id", "-")],
            [("custody", "keyfile --force")],
        ] {
            let refused = VolumeContext::parse(&map(&hostile)).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{hostile:?}");
        }
    }
}
