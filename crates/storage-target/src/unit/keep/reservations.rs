//! Persistent reservations on disk: `reservations.toml` (`docs/scsi.md`).

use serde::{Deserialize, Serialize};
use strongroom_scsi::NexusId;
use strongroom_scsi::persistent::{HeldReservation, Registration, ReservationType, SavedReservations};

use super::KeptState;

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

    fn parse(self) -> Result<NexusId, String> {
        let digits = u64::from_str_radix(&self.isid, 16).ok().filter(|_| self.isid.len() == 12);
        let isid = digits.ok_or_else(|| format!("'{}' is no ISID of twelve hexadecimal digits", self.isid))?;
        let isid = isid.to_be_bytes()[2..].try_into().expect("six of eight bytes");
        Ok(NexusId { initiator_name: self.initiator.into(), isid, target_portal_group: self.portal_group })
    }
}

impl KeptState for SavedReservations {
    const FILE: &'static str = "reservations.toml";
    const WHAT: &'static str = "reservations";
    const REMEDY: &'static str = "it says which nodes are fenced off: restore it, or delete it if no cluster relies on reservations of this volume";

    fn to_toml(&self) -> Option<String> {
        to_toml(self)
    }

    fn from_toml(text: &str) -> Result<SavedReservations, String> {
        from_toml(text)
    }
}

/// `None`: nothing is to be kept.
fn to_toml(kept: &SavedReservations) -> Option<String> {
    if *kept == SavedReservations::default() {
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

fn from_toml(text: &str) -> Result<SavedReservations, String> {
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
            Some(HeldReservation { by: entry.holder.parse()?, kind })
        }
    };
    Ok(SavedReservations { registrations, held })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn sample() -> SavedReservations {
        let nexus = NexusId { initiator_name: "iqn.a".into(), isid: [0x40, 0, 1, 2, 3, 4], target_portal_group: 1 };
        let held = HeldReservation { by: nexus.clone(), kind: ReservationType::WriteExclusiveRegistrantsOnly };
        SavedReservations {
            registrations: vec![Registration { nexus, key: 0xfedc_ba98_7654_3210, all_target_ports: false }],
            held: Some(held),
        }
    }

    pub(in super::super) const GOLDEN: &str = r#"# SCSI persistent reservations (APTPL) of this volume; written by the target.
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
