//! What the two ends of a pairing say: messages as bytes and back. `docs/pairing.md`.
//!
//! Absent: the channel that carries them, which also tells where one ends.

use strongroom_handshake::PairingProof;

use super::VOLUMES_MAX;
use super::names::PeerName;
use crate::names::VolumeName;
use crate::roles::PeerRole;

/// Why a target does not let a node join. The words are the initiator's own: nothing that a target says is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairingRefusal {
    /// There is no such invitation, or the proof is none: not told apart.
    #[error(
        "it has no such invitation: it was revoked, or is so old that it is forgotten; ask for another one (strongroom invite)"
    )]
    NotValid,
    /// It was good once.
    #[error("the invitation has expired; ask for another one (strongroom invite)")]
    Expired,
    /// Another node has joined with it, or this one was removed since.
    #[error(
        "the invitation was used already. If that was not you, tell the target's administrator, who ends it with `strongroom peer remove`; \
         else ask for another invitation"
    )]
    Used,
    /// The node is a peer.
    #[error(
        "it knows this node already, and the invitation was not used up: its administrator can give it volumes with `strongroom peer allow`; \
         another identity can join with --identity FILE"
    )]
    KnownNode,
    /// Another node has the name that the invitation gives.
    #[error("another peer has the invitation's name by now; ask for an invitation of another name")]
    NameTaken,
    /// There is no room for another peer.
    #[error("it has as many peers as it can; its administrator can remove some (strongroom peer remove)")]
    Full,
    /// Too many tries from this address.
    #[error("there were too many tries from this address; try again in a minute")]
    Busy,
    /// The target could not write it down.
    #[error("it could not note it; its log says why. Then try again: the invitation was not used up")]
    Failed,
}

impl PairingRefusal {
    const ALL: [PairingRefusal; 8] = [
        PairingRefusal::NotValid,
        PairingRefusal::Expired,
        PairingRefusal::Used,
        PairingRefusal::KnownNode,
        PairingRefusal::NameTaken,
        PairingRefusal::Full,
        PairingRefusal::Busy,
        PairingRefusal::Failed,
    ];
}

/// One message.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// Initiator: it was invited.
    Join(PairingProof),
    /// Target: it is a peer now.
    Joined(JoinedMessage),
    /// Target: no, and why.
    Refused(PairingRefusal),
}

/// What a node that has joined may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinedMessage {
    /// It had joined before.
    pub(crate) was_joined: bool,
    pub(crate) read_only: bool,
    pub(crate) role: PeerRole,
    /// What the target calls it.
    pub(crate) name: PeerName,
    /// `*` for all.
    pub(crate) volumes: Vec<String>,
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub(crate) struct Malformed;

const JOIN: u8 = 1;
const JOINED: u8 = 2;
const REFUSED: u8 = 3;
const WAS_JOINED: u8 = 1;
const READ_ONLY: u8 = 2;
const OPERATOR: u8 = 4;

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Message::Join(proof) => [&[JOIN][..], proof.as_bytes()].concat(),
            Message::Joined(joined) => {
                let flags = [
                    (joined.was_joined, WAS_JOINED),
                    (joined.read_only, READ_ONLY),
                    (joined.role == PeerRole::Operator, OPERATOR),
                ];
                let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
                let mut out = vec![JOINED, flags];
                put_name(&mut out, joined.name.as_str());
                out.push(u8::try_from(joined.volumes.len()).expect("no peer has more than VOLUMES_MAX"));
                joined.volumes.iter().for_each(|volume| put_name(&mut out, volume));
                out
            }
            Message::Refused(refusal) => vec![REFUSED, *refusal as u8 + 1],
        }
    }

    /// From a frame of the channel, which carries no data.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        match bytes.split_first().ok_or(Malformed)? {
            (&JOIN, proof) => Ok(Message::Join(PairingProof::from_bytes(proof.try_into().map_err(|_| Malformed)?))),
            (&JOINED, rest) => decode_joined(rest).map(Message::Joined).ok_or(Malformed),
            (&REFUSED, &[code]) => {
                let refusal = PairingRefusal::ALL.get(usize::from(code).wrapping_sub(1));
                refusal.copied().map(Message::Refused).ok_or(Malformed)
            }
            _ => Err(Malformed),
        }
    }
}

fn decode_joined(bytes: &[u8]) -> Option<JoinedMessage> {
    let (&flags, mut rest) = bytes.split_first()?;
    if flags & !(WAS_JOINED | READ_ONLY | OPERATOR) != 0 {
        return None;
    }
    let name = take_name(&mut rest)?.parse().ok()?;
    let (&count, mut rest) = rest.split_first()?;
    if usize::from(count) > VOLUMES_MAX {
        return None;
    }
    let volumes = (0..count).map(|_| {
        let volume = take_name(&mut rest)?;
        (volume == "*" || VolumeName::new(volume).is_ok()).then(|| volume.to_owned())
    });
    let volumes = volumes.collect::<Option<Vec<String>>>()?;
    let (was_joined, read_only) = (flags & WAS_JOINED != 0, flags & READ_ONLY != 0);
    let role = if flags & OPERATOR == 0 { PeerRole::Initiator } else { PeerRole::Operator };
    rest.is_empty().then_some(JoinedMessage { was_joined, read_only, role, name, volumes })
}

/// Behind its length in one byte: names are short.
fn put_name(out: &mut Vec<u8>, name: &str) {
    out.push(u8::try_from(name.len()).expect("names of peers and volumes are short"));
    out.extend_from_slice(name.as_bytes());
}

fn take_name<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let (&len, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(len))?;
    *bytes = rest;
    std::str::from_utf8(name).ok()
}

/// For fuzzing: what is read is written the same.
#[doc(hidden)]
pub fn fuzz_message(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(message.encode(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use strongroom_net::PAIRING_MESSAGE_BYTES_MAX;

    use super::*;

    fn joined() -> JoinedMessage {
        let volumes = vec!["vault".into(), "*".into()];
        let (role, name) = (PeerRole::Initiator, "alice".parse().unwrap());
        JoinedMessage { was_joined: true, read_only: false, role, name, volumes }
    }

    /// The messages of `docs/pairing.md`.
    #[test]
    fn golden_pairing_messages() {
        let proof = PairingProof::from_bytes([0x55; PairingProof::BYTES]);
        assert_eq!(Message::Join(proof).encode(), [&[1][..], &[0x55; 32]].concat());
        assert_eq!(Message::Joined(joined()).encode(), b"\x02\x01\x05alice\x02\x05vault\x01*");
        let operator = JoinedMessage { role: PeerRole::Operator, volumes: Vec::new(), ..joined() };
        assert_eq!(Message::Joined(operator).encode(), b"\x02\x05\x05alice\x00");
        assert_eq!(Message::Refused(PairingRefusal::NotValid).encode(), [3, 1]);
        assert_eq!(Message::Refused(PairingRefusal::Failed).encode(), [3, 8]);
    }

    #[test]
    fn what_is_written_is_read_and_fits_a_frame() {
        let volumes = vec!["v".repeat(64); VOLUMES_MAX];
        let largest = JoinedMessage { read_only: true, role: PeerRole::Operator, volumes, ..joined() };
        let bytes = Message::Joined(largest.clone()).encode();
        assert!(bytes.len() <= PAIRING_MESSAGE_BYTES_MAX);
        assert!(matches!(Message::decode(&bytes), Ok(Message::Joined(read)) if read == largest));
        for refusal in PairingRefusal::ALL {
            let bytes = Message::Refused(refusal).encode();
            assert!(matches!(Message::decode(&bytes), Ok(Message::Refused(read)) if read == refusal));
        }
    }

    #[test]
    fn attack_pairing_malformed_messages() {
        let good = Message::Joined(joined()).encode();
        for cut in 0..good.len() {
            assert!(Message::decode(&good[..cut]).is_err(), "{cut}");
        }
        let bad: [&[u8]; 9] = [
            &[],
            &[0],
            &[1; 32],
            &[1; 34],
            &[3],
            &[3, 0],
            &[3, 9],
            b"\x02\x00\x05al\x1b[m\x00",
            b"\x02\x00\x05alice\x01\x04../x",
        ];
        for bytes in bad {
            assert!(Message::decode(bytes).is_err(), "{bytes:?}");
        }
        assert!(Message::decode(&[&good[..], &[0]].concat()).is_err());
        assert!(Message::decode(b"\x02\x08\x05alice\x00").is_err());
    }
}
