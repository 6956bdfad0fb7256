//! Persistent reservations on disk: `reservations.toml` beside the volume's description, replaced whole, and synced before PERSISTENT RESERVE
//! OUT is answered. Writing is done by a thread of its own, one after the other, so that a sync holds up no other command.
//!
//! A file that cannot be read keeps the volume from being opened: reservations fence nodes off, and forgetting them could let two write.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use serde::{Deserialize, Serialize};
use strongroom_scsi::NexusId;
use strongroom_scsi::persistent::{Held, Kept, Registration, ReservationType};

use crate::catalogue::modes;
use crate::error::CatalogueError;

const FILE: &str = "reservations.toml";
/// The version of the file that this build writes.
const VERSION: u32 = 1;
/// Largest file that is read, in bytes: 256 registrations take less than a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Keeps the reservations of one volume.
pub(crate) struct Keeper {
    /// `None`: nothing is ever kept.
    dir: Option<PathBuf>,
    /// Called by the thread when it is done.
    wake: Arc<dyn Fn() + Send + Sync>,
    /// What is on disk, as far as is known; asking for the same again writes nothing. After a write that failed anything may be there.
    on_disk: Option<Kept>,
    /// What the thread writes.
    writing: Option<(Kept, Receiver<io::Result<()>>)>,
}

impl Keeper {
    /// Reads what was kept in `dir`.
    ///
    /// # Errors
    /// [`CatalogueError`] for a file that is there and cannot be understood.
    pub(crate) fn open(dir: PathBuf, wake: Arc<dyn Fn() + Send + Sync>) -> Result<(Keeper, Kept), CatalogueError> {
        let kept = read(&dir.join(FILE))?;
        let keeper = Keeper { dir: Some(dir), wake, on_disk: Some(kept.clone()), writing: None };
        Ok((keeper, kept))
    }

    /// For a unit that nobody may write to, and so nobody can reserve.
    pub(crate) fn nowhere() -> (Keeper, Kept) {
        let keeper = Keeper { dir: None, wake: Arc::new(|| {}), on_disk: None, writing: None };
        (keeper, Kept::default())
    }

    /// Has `kept` written instead of what was kept before. Whether that must be waited for: otherwise it is on disk already. One write at a
    /// time: the caller waits for [`Keeper::poll`] in between.
    pub(super) fn keep(&mut self, kept: Kept) -> bool {
        assert!(self.writing.is_none(), "one change of reservations is written at a time");
        let Some(dir) = self.dir.clone().filter(|_| self.on_disk.as_ref() != Some(&kept)) else { return false };
        let (done, outcome) = mpsc::channel();
        let (text, wake) = (to_toml(&kept), Arc::clone(&self.wake));
        let before = self.on_disk.take();
        self.writing = Some((kept, outcome));
        let body = move || {
            let written = replace(&dir, text.as_deref());
            // What is refused must not be there after a restart, if that can be helped.
            if let (Err(_), Some(before)) = (&written, before)
                && let Err(error) = replace(&dir, to_toml(&before).as_deref())
            {
                tracing::error!(dir = %dir.display(), %error, "a refused change of reservations may come back after a restart: look at {FILE}");
            }
            let _ = done.send(written);
            wake();
        };
        // If there is no thread the channel is closed, which `poll` takes for the failure that it is.
        if let Err(error) = std::thread::Builder::new().name("reservations".to_owned()).spawn(body) {
            tracing::error!(%error, "no thread to write reservations");
        }
        true
    }

    /// Whether something is being written.
    pub(super) fn is_busy(&self) -> bool {
        self.writing.is_some()
    }

    /// What has become of the writing.
    pub(super) fn poll(&mut self) -> Option<io::Result<()>> {
        let result = match self.writing.as_ref()?.1.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the thread that writes it is gone")),
        };
        let (kept, _) = self.writing.take().expect("looked at above");
        if result.is_ok() {
            self.on_disk = Some(kept);
        }
        Some(result)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some((_, outcome)) = self.writing.take() {
            let _ = outcome.recv();
        }
    }
}

/// Replaces the file whole; without text it goes.
fn replace(dir: &Path, text: Option<&str>) -> io::Result<()> {
    let path = dir.join(FILE);
    match text {
        Some(text) => {
            let temporary = dir.join(format!(".{FILE}"));
            let mut file = modes::make_file(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
        }
        None => match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        },
    }
    File::open(dir)?.sync_all()
}

fn read(path: &Path) -> Result<Kept, CatalogueError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
        Err(source) => return Err(CatalogueError::Io { what: "read", path: path.to_owned(), source }),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(broken(path, "it is far too large")),
        Ok(_) => {}
    }
    let text = fs::read_to_string(path).map_err(CatalogueError::io("read", path))?;
    from_toml(&text).map_err(|problem| broken(path, &problem))
}

fn broken(path: &Path, problem: &str) -> CatalogueError {
    let problem = format!(
        "{problem}; it says which nodes are fenced off: restore it, or delete it if no cluster relies on reservations of this volume"
    );
    CatalogueError::Description { path: path.to_owned(), problem }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    reservation: Option<ReservationEntry>,
    #[serde(default, rename = "registration")]
    registrations: Vec<RegistrationEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NexusEntry {
    initiator: String,
    /// Twelve hexadecimal digits.
    isid: String,
    portal_group: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReservationEntry {
    /// SPC-4's number of the type.
    kind: u8,
    holder: NexusEntry,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistrationEntry {
    /// Sixteen hexadecimal digits.
    key: String,
    all_target_ports: bool,
    nexus: NexusEntry,
}

impl NexusEntry {
    fn of(nexus: &NexusId) -> NexusEntry {
        NexusEntry {
            initiator: nexus.initiator_name.to_string(),
            isid: nexus.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
            portal_group: nexus.target_portal_group,
        }
    }

    fn parse(self) -> Result<NexusId, String> {
        let digits = u64::from_str_radix(&self.isid, 16).ok().filter(|_| self.isid.len() == 12);
        let isid = digits.ok_or_else(|| format!("'{}' is no ISID of twelve hexadecimal digits", self.isid))?;
        let isid = isid.to_be_bytes()[2..].try_into().expect("six of eight bytes");
        Ok(NexusId { initiator_name: self.initiator.into(), isid, target_portal_group: self.portal_group })
    }
}

/// `None`: nothing is to be kept.
fn to_toml(kept: &Kept) -> Option<String> {
    if *kept == Kept::default() {
        return None;
    }
    let document = Document {
        version: VERSION,
        reservation: kept
            .held
            .as_ref()
            .map(|held| ReservationEntry { kind: held.kind as u8, holder: NexusEntry::of(&held.by) }),
        registrations: kept
            .registrations
            .iter()
            .map(|one| RegistrationEntry {
                key: format!("{:016x}", one.key),
                all_target_ports: one.all_target_ports,
                nexus: NexusEntry::of(&one.nexus),
            })
            .collect(),
    };
    let body = toml::to_string(&document).expect("strings and numbers are representable");
    Some(format!("# SCSI persistent reservations (APTPL) of this volume; written by the target.\n{body}"))
}

fn from_toml(text: &str) -> Result<Kept, String> {
    let document: Document = toml::from_str(text).map_err(|error| error.to_string())?;
    if document.version != VERSION {
        return Err(format!("its version is {} and this build knows {VERSION}", document.version));
    }
    let registrations = document
        .registrations
        .into_iter()
        .map(|one| {
            let key = u64::from_str_radix(&one.key, 16).ok().filter(|&key| key != 0 && one.key.len() == 16);
            let key = key.ok_or_else(|| format!("'{}' is no reservation key", one.key))?;
            Ok(Registration { nexus: one.nexus.parse()?, key, all_target_ports: one.all_target_ports })
        })
        .collect::<Result<Vec<_>, String>>()?;
    let held = match document.reservation {
        None => None,
        Some(entry) => {
            let kind = ReservationType::from_bits(entry.kind)
                .ok_or_else(|| format!("{} is no type of reservation", entry.kind))?;
            Some(Held { by: entry.holder.parse()?, kind })
        }
    };
    Ok(Kept { registrations, held })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Kept {
        let nexus = NexusId { initiator_name: "iqn.a".into(), isid: [0x40, 0, 1, 2, 3, 4], target_portal_group: 1 };
        let held = Held { by: nexus.clone(), kind: ReservationType::WriteExclusiveRegistrantsOnly };
        Kept {
            registrations: vec![Registration { nexus, key: 0xfedc_ba98_7654_3210, all_target_ports: false }],
            held: Some(held),
        }
    }

    const GOLDEN: &str = r#"# SCSI persistent reservations (APTPL) of this volume; written by the target.
version = 1

[reservation]
kind = 5

[reservation.holder]
initiator = "iqn.a"
isid = "400001020304"
portal_group = 1

[[registration]]
key = "fedcba9876543210"
all_target_ports = false

[registration.nexus]
initiator = "iqn.a"
isid = "400001020304"
portal_group = 1
"#;

    #[test]
    fn golden_file() {
        assert_eq!(to_toml(&sample()).unwrap(), GOLDEN);
        assert_eq!(from_toml(GOLDEN), Ok(sample()));
        assert_eq!(to_toml(&Kept::default()), None);
    }

    #[test]
    fn a_damaged_file_is_refused_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        for (from, to) in [("version = 1", "version = 2"), ("kind = 5", "kind = 2"), ("4000", "40xx"), ("fedc", "")] {
            fs::write(dir.path().join(FILE), GOLDEN.replace(from, to)).unwrap();
            let opened = Keeper::open(dir.path().to_owned(), Arc::new(|| {}));
            assert!(matches!(opened, Err(CatalogueError::Description { .. })), "{to}");
        }
    }

    #[test]
    fn keeps_and_forgets() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Keeper::open(dir.path().to_owned(), Arc::new(|| {})).unwrap();
        let (mut keeper, before) = open();
        assert_eq!(before, Kept::default());
        assert!(!keeper.keep(Kept::default()), "nothing to write");
        let mut keep = |kept: Kept| {
            assert!(keeper.keep(kept) && keeper.is_busy());
            loop {
                match keeper.poll() {
                    Some(written) => return written,
                    None => std::thread::yield_now(),
                }
            }
        };
        keep(sample()).unwrap();
        assert_eq!(open().1, sample());
        // What cannot be written leaves what was there, and is written when it can.
        let in_the_way = dir.path().join(format!(".{FILE}"));
        fs::create_dir(&in_the_way).unwrap();
        let other = Kept { held: None, ..sample() };
        assert!(keep(other.clone()).is_err());
        assert_eq!(open().1, sample());
        fs::remove_dir(&in_the_way).unwrap();
        keep(other.clone()).unwrap();
        assert_eq!(open().1, other);
        keep(Kept::default()).unwrap();
        assert_eq!(open().1, Kept::default());
        assert!(!dir.path().join(FILE).exists());
    }
}
