//! The nexus: SCSI's identity of an initiator, the same type for iSCSI and ECL.

use std::fmt;
use std::sync::Arc;

/// Initiator name, ISID and target portal group (RFC 7143 §4.4.2): reservations, unit attentions and task sets hang on it.
///
/// Two sessions of one initiator with different ISIDs are different nexuses; a session that logs in again with the same three
/// reinstates the old one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusId {
    /// The iSCSI name, as the initiator gave it (already case-folded by the text layer).
    pub initiator_name: Arc<str>,
    /// Initiator session identifier.
    pub isid: [u8; 6],
    /// The target portal group tag.
    pub target_portal_group: u16,
}

impl fmt::Display for NexusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // RFC 7143 §4.2.7.2 writes SCSI port names as "name,i,0xISID".
        write!(f, "{},i,0x", self.initiator_name)?;
        self.isid.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ",t,0x{:04x}", self.target_portal_group)
    }
}

impl fmt::Debug for NexusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NexusId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_scsi_port_names_do() {
        let nexus = NexusId {
            initiator_name: "iqn.2026-11.org.example:a".into(),
            isid: [0x40, 0, 1, 0x37, 0, 9],
            target_portal_group: 1,
        };
        assert_eq!(nexus.to_string(), "iqn.2026-11.org.example:a,i,0x400001370009,t,0x0001");
    }
}
