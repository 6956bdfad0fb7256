//! The parameter data of PERSISTENT RESERVE IN and OUT, and the TransportIDs in it (SPC-4 §6.15, §6.16, §7.6.4.6).

use crate::bytes::{be16, be32, be64};
use crate::nexus::NexusId;
use crate::opcode as op;
use crate::sense::Sense;

use super::{PersistentReservations, ReservationType};

/// Length of the basic parameter list of PERSISTENT RESERVE OUT, in bytes.
pub const BASIC_BYTES: usize = 24;
/// Upper bound on a parameter list, in bytes.
pub const LIST_BYTES_MAX: u32 = 16 * 1024;

const PROTOCOL_ISCSI: u8 = 5;

/// The basic parameter list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Register {
    /// RESERVATION KEY.
    pub(super) key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub(super) action_key: u64,
    /// APTPL.
    pub(super) persist: bool,
    /// ALL_TG_PT.
    pub(super) all_target_ports: bool,
    /// SPEC_I_PT was set.
    specified: bool,
    /// Whom SPEC_I_PT names.
    pub(super) others: Vec<NexusId>,
}

impl Register {
    pub(super) fn parse(list: &[u8], portal_group: u16) -> Result<Register, Sense> {
        let (Some(key), Some(action_key), Some(&flags)) = (be64(list, 0), be64(list, 8), list.get(20)) else {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        };
        let specified = flags & 0x08 != 0;
        let others = if specified { transport_ids(list, portal_group)? } else { Vec::new() };
        // SPC-4 §6.16.3: without SPEC_I_PT the list has exactly this length.
        if !specified && list.len() != BASIC_BYTES {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        Ok(Register {
            key,
            action_key,
            persist: flags & 0x01 != 0,
            all_target_ports: flags & 0x04 != 0,
            specified,
            others,
        })
    }

    pub(super) fn names_others(&self) -> bool {
        self.specified
    }
}

/// SPEC_I_PT: a length, then TransportIDs back to back.
fn transport_ids(list: &[u8], portal_group: u16) -> Result<Vec<NexusId>, Sense> {
    let len = be32(list, 24).ok_or(Sense::PARAMETER_LIST_LENGTH)? as usize;
    let mut rest = list.get(28..).and_then(|rest| rest.get(..len)).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let at = (list.len() - rest.len()) as u16;
        let (nexus, whole) =
            parse_transport_id(rest, portal_group).ok_or(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(at))?;
        found.push(nexus);
        rest = &rest[whole..];
    }
    Ok(found)
}

/// The parameter list of REGISTER AND MOVE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) key: u64,
    pub(super) action_key: u64,
    /// UNREG.
    pub(super) unregister: bool,
    /// APTPL.
    pub(super) persist: bool,
    pub(super) to: NexusId,
}

impl Move {
    /// `ports`: relative identifiers of the target's ports.
    pub(super) fn parse(list: &[u8], ports: &[u16]) -> Result<Move, Sense> {
        let (Some(key), Some(action_key), Some(&flags), Some(port), Some(len)) =
            (be64(list, 0), be64(list, 8), list.get(17), be16(list, 18), be32(list, 20))
        else {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        };
        let id = list.get(24..).filter(|id| id.len() == len as usize).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        if !ports.contains(&port) {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(18));
        }
        let (to, _) = parse_transport_id(id, port).ok_or(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(24))?;
        Ok(Move { key, action_key, unregister: flags & 0x02 != 0, persist: flags & 0x01 != 0, to })
    }
}

/// The basic parameter list as an initiator makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReserveOutList {
    /// RESERVATION KEY: the one that the nexus is registered with.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the new key, or the victim's.
    pub action_key: u64,
    /// APTPL.
    pub persist: bool,
    /// ALL_TG_PT.
    pub all_target_ports: bool,
}

impl ReserveOutList {
    /// The list.
    pub fn encode(&self) -> [u8; BASIC_BYTES] {
        let mut list = [0; BASIC_BYTES];
        list[..8].copy_from_slice(&self.key.to_be_bytes());
        list[8..16].copy_from_slice(&self.action_key.to_be_bytes());
        list[20] = u8::from(self.all_target_ports) << 2 | u8::from(self.persist);
        list
    }
}

/// A registration as READ FULL STATUS reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedRegistration {
    /// Its reservation key.
    pub key: u64,
    /// The type of the reservation, if the nexus holds it. Not checked.
    pub holds: Option<u8>,
    /// What the initiator is called, as the target says: an iSCSI name in lower case, or what else a TransportID names it by.
    pub initiator_name: String,
    /// Its session identifier, if the target names the port.
    pub isid: Option<[u8; 6]>,
}

/// READ FULL STATUS, as an initiator reads it; `None` if it is cut short or contradicts itself.
pub fn parse_full_status(bytes: &[u8]) -> Option<Vec<ReportedRegistration>> {
    let len = be32(bytes, 4)? as usize;
    let mut rest = bytes.get(8..)?.get(..len)?;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (key, flags, kind, id_len) = (be64(rest, 0)?, *rest.get(12)?, *rest.get(13)? & 0x0f, be32(rest, 20)?);
        let id = rest.get(24..)?.get(..id_len as usize)?;
        let (initiator_name, isid) = match parse_transport_id(id, 0) {
            Some((nexus, _)) => (nexus.initiator_name.to_string(), Some(nexus.isid)),
            None => (name_in(id), None),
        };
        let holds = (flags & 0x01 != 0).then_some(kind);
        found.push(ReportedRegistration { key, holds, initiator_name, isid });
        rest = &rest[24 + id_len as usize..];
    }
    Some(found)
}

/// The text of a TransportID that names no initiator port of iSCSI, for people.
fn name_in(id: &[u8]) -> String {
    let name = id.get(4..).unwrap_or_default();
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).to_ascii_lowercase()
}

/// A TransportID of an iSCSI initiator port: `name,i,0xISID`, zero-terminated and padded to a multiple of four.
pub fn transport_id(nexus: &NexusId) -> Vec<u8> {
    let isid: String = nexus.isid.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut name = format!("{},i,0x{isid}", nexus.initiator_name).into_bytes();
    name.push(0);
    name.resize(name.len().next_multiple_of(4).max(20), 0);
    let [high, low] = (name.len() as u16).to_be_bytes();
    [[0x40 | PROTOCOL_ISCSI, 0, high, low].as_slice(), &name].concat()
}

/// The nexus that a TransportID names, and how many bytes it takes. Only initiator ports (format 01b) name a nexus.
pub fn parse_transport_id(bytes: &[u8], portal_group: u16) -> Option<(NexusId, usize)> {
    let len = usize::from(be16(bytes, 2)?);
    let name = bytes.get(4..4 + len)?;
    if *bytes.first()? != 0x40 | PROTOCOL_ISCSI {
        return None;
    }
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let text = std::str::from_utf8(&name[..end]).ok()?;
    let (initiator_name, isid) = text.rsplit_once(",i,0x")?;
    // 223 bytes are the longest iSCSI name (RFC 7143 §4.2.7.2).
    if initiator_name.is_empty() || initiator_name.len() > 223 || isid.len() != 12 || !isid.is_ascii() {
        return None;
    }
    let mut parsed = [0; 6];
    for (byte, digits) in parsed.iter_mut().zip(isid.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    let nexus = NexusId {
        initiator_name: initiator_name.to_ascii_lowercase().into(),
        isid: parsed,
        target_portal_group: portal_group,
    };
    Some((nexus, 4 + len))
}

impl PersistentReservations {
    /// PERSISTENT RESERVE IN data.
    pub fn report(&self, service_action: u8) -> Vec<u8> {
        match service_action {
            op::SA_PR_READ_KEYS => {
                let keys: Vec<u8> = self.registrations().iter().flat_map(|one| one.key.to_be_bytes()).collect();
                self.with_header(&keys)
            }
            op::SA_PR_READ_RESERVATION => match self.held() {
                None => self.with_header(&[]),
                Some(held) => {
                    let key = self.registrations().iter().find(|one| one.nexus == held.by).map_or(0, |one| one.key);
                    let key = if held.kind.is_all_registrants() { 0 } else { key };
                    let rest = [0, 0, 0, 0, 0, held.kind as u8, 0, 0];
                    self.with_header(&[key.to_be_bytes(), rest].concat())
                }
            },
            op::SA_PR_REPORT_CAPABILITIES => self.capabilities(),
            _ => self.full_status(),
        }
    }

    fn with_header(&self, body: &[u8]) -> Vec<u8> {
        [&self.generation().to_be_bytes(), &(body.len() as u32).to_be_bytes(), body].concat()
    }

    fn capabilities(&self) -> Vec<u8> {
        use ReservationType as T;
        // CRH, SIP_C, ATP_C, PTPL_C; TMV and PTPL_A.
        let active = 0x80 | u8::from(self.is_kept());
        let mask = [
            T::WriteExclusive,
            T::ExclusiveAccess,
            T::WriteExclusiveRegistrantsOnly,
            T::ExclusiveAccessRegistrantsOnly,
            T::WriteExclusiveAllRegistrants,
        ]
        .into_iter()
        .fold(0, |mask, kind| mask | 1 << kind as u8);
        // SPC-4 table 216: EX_AC_AR alone is in the second byte.
        vec![0, 8, 0x10 | 0x08 | 0x04 | 0x01, active, mask, 0x01, 0, 0]
    }

    fn full_status(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for one in self.registrations() {
            let holds = self.holds(&one.nexus);
            let kind = self.held().filter(|_| holds).map_or(0, |held| held.kind as u8);
            let id = transport_id(&one.nexus);
            body.extend_from_slice(&one.key.to_be_bytes());
            body.extend_from_slice(&[0, 0, 0, 0]);
            body.extend_from_slice(&[u8::from(one.all_target_ports) << 1 | u8::from(holds), kind, 0, 0, 0, 0]);
            body.extend_from_slice(&one.nexus.target_portal_group.to_be_bytes());
            body.extend_from_slice(&(id.len() as u32).to_be_bytes());
            body.extend_from_slice(&id);
        }
        self.with_header(&body)
    }
}
