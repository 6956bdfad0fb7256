//! The login: one request and one answer, inside the channel that the handshake on the target's TCP port has made. `docs/ecl.md` is the
//! specification.

use crate::parity::Parity;

/// The version of the login's messages.
pub const LOGIN_VERSION: u16 = 1;
/// Longest name of an initiator or a target, in bytes, as in iSCSI (RFC 7143 §4.2.7.1).
pub const NAME_BYTES_MAX: usize = 223;
/// Longest reason for a refusal, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;
const REQUEST_BYTES: usize = 16;
const ANSWER_BYTES: usize = 32;
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;

/// What carries the packets of an association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// UDP, beside the connection of the login.
    #[default]
    Udp,
    /// The connection of the login itself, where UDP is blocked.
    Stream,
}

/// An initiator asks for an association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// What is to carry its packets.
    pub carrier: Carrier,
    /// Parity behind the quanta of its transfers, both ways.
    pub parity: Option<Parity>,
    /// The initiator's part of the nexus, beside its name.
    pub isid: [u8; 6],
    /// Who it is; its key must be bound to the name.
    pub initiator_name: String,
    /// The volume's target name.
    pub target_name: String,
}

/// What the target grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginGrant {
    /// The UDP port to send to; 0 if the connection carries the packets.
    pub udp_port: u16,
    /// Goes into every packet.
    pub connection_id: u32,
    /// Bytes in a block of the volume.
    pub quantum_bytes: u32,
    /// Bytes of write data that the target takes before it has answered.
    pub window_bytes: u64,
    /// Longest write of one command, in bytes.
    pub transfer_bytes_max: u32,
    /// Commands that may be outstanding.
    pub queue_depth: u16,
    /// The target's part of the nexus.
    pub portal_group_tag: u16,
}

/// The answer to a [`LoginRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginAnswer {
    /// The association is there: packets may be sent.
    Granted(LoginGrant),
    /// It is not.
    Refused {
        /// The status that an iSCSI login would have got (RFC 7143 §11.13.5); not 0.
        status: u16,
        /// Why, and what to do, for a person.
        reason: String,
    },
}

/// A message of a login that does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// Of another version.
    #[error(
        "the peer speaks version {0} of the ECL login, and this build version 1: run compatible versions on both ends"
    )]
    Version(u16),
    /// Too short, too long, or of another kind.
    #[error("a malformed message in an ECL login: {0}")]
    Malformed(&'static str),
}

impl LoginRequest {
    /// The message.
    ///
    /// # Panics
    /// If a name is longer than [`NAME_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let names = [&self.initiator_name, &self.target_name];
        assert!(names.iter().all(|name| name.len() <= NAME_BYTES_MAX), "names were checked when they were configured");
        let mut out = start(REQUEST);
        out[3] = self.carrier as u8;
        out.extend_from_slice(&self.isid);
        for name in names {
            out.extend_from_slice(&(name.len() as u16).to_be_bytes());
        }
        out.extend_from_slice(&Parity::encode(self.parity));
        for name in names {
            out.extend_from_slice(name.as_bytes());
        }
        out
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`LoginError`].
    pub fn decode(bytes: &[u8]) -> Result<LoginRequest, LoginError> {
        let (fixed, names) = split(bytes, REQUEST, REQUEST_BYTES)?;
        let initiator_bytes = usize::from(u16_at(fixed, 10));
        let target_bytes = usize::from(u16_at(fixed, 12));
        if initiator_bytes > NAME_BYTES_MAX || target_bytes > NAME_BYTES_MAX {
            return Err(LoginError::Malformed("a name is too long"));
        }
        if names.len() != initiator_bytes + target_bytes {
            return Err(LoginError::Malformed("its length does not fit its names"));
        }
        let (initiator, target) = names.split_at(initiator_bytes);
        let carrier = match fixed[3] {
            0 => Carrier::Udp,
            1 => Carrier::Stream,
            _ => return Err(LoginError::Malformed("a carrier of packets that this build does not know")),
        };
        let isid = fixed[4..10].try_into().expect("6 bytes");
        let parity = Parity::decode([fixed[14], fixed[15]]);
        let parity = parity.map_err(|_| LoginError::Malformed("parity that there is not"))?;
        Ok(LoginRequest { carrier, parity, isid, initiator_name: text(initiator)?, target_name: text(target)? })
    }
}

impl LoginAnswer {
    /// The message. A reason that is too long is cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = start(ANSWER);
        match self {
            LoginAnswer::Granted(grant) => {
                out.extend_from_slice(&0u16.to_be_bytes());
                out.extend_from_slice(&grant.udp_port.to_be_bytes());
                out.extend_from_slice(&grant.connection_id.to_be_bytes());
                out.extend_from_slice(&grant.quantum_bytes.to_be_bytes());
                out.extend_from_slice(&grant.window_bytes.to_be_bytes());
                out.extend_from_slice(&grant.transfer_bytes_max.to_be_bytes());
                out.extend_from_slice(&grant.queue_depth.to_be_bytes());
                out.extend_from_slice(&grant.portal_group_tag.to_be_bytes());
            }
            LoginAnswer::Refused { status, reason } => {
                out.extend_from_slice(&status.to_be_bytes());
                out.resize(ANSWER_BYTES, 0);
                let mut cut = reason.len().min(REASON_BYTES_MAX);
                while !reason.is_char_boundary(cut) {
                    cut -= 1;
                }
                out.extend_from_slice(&reason.as_bytes()[..cut]);
            }
        }
        out
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`LoginError`].
    pub fn decode(bytes: &[u8]) -> Result<LoginAnswer, LoginError> {
        let (fixed, reason) = split(bytes, ANSWER, ANSWER_BYTES)?;
        let status = u16_at(fixed, 4);
        if reason.len() > REASON_BYTES_MAX || status == 0 && !reason.is_empty() {
            return Err(LoginError::Malformed("its length does not fit its status"));
        }
        if status != 0 {
            return Ok(LoginAnswer::Refused { status, reason: text(reason)? });
        }
        let u32_at = |at: usize| u32::from_be_bytes(fixed[at..at + 4].try_into().expect("4 bytes"));
        let grant = LoginGrant {
            udp_port: u16_at(fixed, 6),
            connection_id: u32_at(8),
            quantum_bytes: u32_at(12),
            window_bytes: u64::from_be_bytes(fixed[16..24].try_into().expect("8 bytes")),
            transfer_bytes_max: u32_at(24),
            queue_depth: u16_at(fixed, 28),
            portal_group_tag: u16_at(fixed, 30),
        };
        if !matches!(grant.quantum_bytes, 512 | 1024 | 2048 | 4096) || grant.queue_depth == 0 {
            return Err(LoginError::Malformed("a quantum that there is not, or no room for any command"));
        }
        Ok(LoginAnswer::Granted(grant))
    }
}

fn start(kind: u8) -> Vec<u8> {
    let mut out = LOGIN_VERSION.to_be_bytes().to_vec();
    out.extend_from_slice(&[kind, 0]);
    out
}

fn split(bytes: &[u8], kind: u8, fixed_bytes: usize) -> Result<(&[u8], &[u8]), LoginError> {
    let (fixed, rest) = bytes.split_at_checked(fixed_bytes).ok_or(LoginError::Malformed("it is cut short"))?;
    match (u16_at(fixed, 0), fixed[2] == kind) {
        (LOGIN_VERSION, true) => Ok((fixed, rest)),
        (LOGIN_VERSION, false) => Err(LoginError::Malformed("a message of another kind")),
        (version, _) => Err(LoginError::Version(version)),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn text(bytes: &[u8]) -> Result<String, LoginError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| LoginError::Malformed("text that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_decode_as_encoded() {
        let request = LoginRequest {
            carrier: Carrier::Stream,
            parity: Parity::new(8, 2),
            isid: [1, 2, 3, 4, 5, 6],
            initiator_name: "iqn.i".into(),
            target_name: "iqn.t".into(),
        };
        assert_eq!(LoginRequest::decode(&request.encode()), Ok(request.clone()));
        let mut unknown = request.encode();
        unknown[3] = 2;
        assert!(matches!(LoginRequest::decode(&unknown), Err(LoginError::Malformed(_))));
        let mut odd = request.encode();
        odd[15] = 3;
        assert!(matches!(LoginRequest::decode(&odd), Err(LoginError::Malformed(_))));
        let grant = LoginGrant {
            udp_port: 3260,
            connection_id: 7,
            quantum_bytes: 4096,
            window_bytes: 1 << 26,
            transfer_bytes_max: 1 << 20,
            queue_depth: 128,
            portal_group_tag: 1,
        };
        let refused = LoginAnswer::Refused { status: 0x0202, reason: "größe".repeat(300) };
        for answer in [LoginAnswer::Granted(grant), LoginAnswer::Refused { status: 1, reason: String::new() }] {
            assert_eq!(LoginAnswer::decode(&answer.encode()), Ok(answer.clone()));
            assert!(LoginRequest::decode(&answer.encode()).is_err(), "another kind");
        }
        assert!(matches!(LoginAnswer::decode(&refused.encode()), Ok(LoginAnswer::Refused { status: 0x0202, .. })));
        let mut newer = request.encode();
        newer[1] = 2;
        assert_eq!(LoginRequest::decode(&newer), Err(LoginError::Version(2)));
        for len in 0..request.encode().len() {
            assert!(LoginRequest::decode(&request.encode()[..len]).is_err());
        }
        let odd = LoginAnswer::Granted(LoginGrant { quantum_bytes: 8192, ..grant });
        assert!(LoginAnswer::decode(&odd.encode()).is_err());
    }
}
