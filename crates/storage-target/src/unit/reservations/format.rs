//! Persistent reservations on disk: `reservations.toml` (`docs/scsi.md`).

use serde::{Deserialize, Serialize};
use strongroom_scsi::NexusId;
use strongroom_scsi::persistent::{HeldReservation, Registration, ReservationType, SavedReservations};

use crate::unit::persistent_file::{ContentsError, FileContents};

/// The version of the file that this build writes.
const VERSION: u32 = 1;

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

    fn parse(self) -> Result<NexusId, ContentsError> {
        let digits = u64::from_str_radix(&self.isid, 16).ok().filter(|_| self.isid.len() == 12);
        let isid = digits.ok_or_else(|| ContentsError::value(self.isid, "ISID of twelve hexadecimal digits"))?;
        let isid = isid.to_be_bytes()[2..].try_into().expect("six of eight bytes");
        Ok(NexusId { initiator_name: self.initiator.into(), isid, target_portal_group: self.portal_group })
    }
}

impl FileContents for SavedReservations {
    const FILE: &'static str = "reservations.toml";
    const WHAT: &'static str = "reservations";
    const REMEDY: &'static str = "it says which nodes are fenced off: restore it, or delete it if no cluster relies on reservations of this volume";

    fn to_toml(&self) -> Option<String> {
        to_toml(self)
    }

    fn from_toml(text: &str) -> Result<SavedReservations, ContentsError> {
        from_toml(text)
    }
}

/// `None`: there is nothing to store.
fn to_toml(saved: &SavedReservations) -> Option<String> {
    if *saved == SavedReservations::default() {
        return None;
    }
    let document = Document {
        version: VERSION,
        reservation: saved
            .held
            .as_ref()
            .map(|held| ReservationEntry { kind: held.kind as u8, holder: NexusEntry::of(&held.by) }),
        registrations: saved
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

fn from_toml(text: &str) -> Result<SavedReservations, ContentsError> {
    let document: Document = toml::from_str(text)?;
    ContentsError::check_version(document.version, VERSION)?;
    let registrations = document
        .registrations
        .into_iter()
        .map(|one| {
            let key = u64::from_str_radix(&one.key, 16).ok().filter(|&key| key != 0 && one.key.len() == 16);
            let key = key.ok_or_else(|| ContentsError::value(one.key, "reservation key"))?;
            Ok(Registration { nexus: one.nexus.parse()?, key, all_target_ports: one.all_target_ports })
        })
        .collect::<Result<Vec<_>, ContentsError>>()?;
    let held = match document.reservation {
        None => None,
        Some(entry) => {
            let kind = ReservationType::from_bits(entry.kind)
                .ok_or_else(|| ContentsError::value(entry.kind.to_string(), "type of reservation"))?;
            Some(HeldReservation { by: entry.holder.parse()?, kind })
        }
    };
    Ok(SavedReservations { registrations, held })
}

#[cfg(test)]
pub(in crate::unit) mod tests {
    use super::*;

    pub(in crate::unit) fn sample() -> SavedReservations {
        let nexus = NexusId { initiator_name: "iqn.a".into(), isid: [0x40, 0, 1, 2, 3, 4], target_portal_group: 1 };
        let held = HeldReservation { by: nexus.clone(), kind: ReservationType::WriteExclusiveRegistrantsOnly };
        SavedReservations {
            registrations: vec![Registration { nexus, key: 0xfedc_ba98_7654_3210, all_target_ports: false }],
            held: Some(held),
        }
    }

    pub(in crate::unit) const GOLDEN: &str = r#"# SCSI persistent reservations (APTPL) of this volume; written by the target.
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
        assert_eq!(to_toml(&SavedReservations::default()), None);
    }
}
