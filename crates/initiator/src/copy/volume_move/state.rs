//! The note of how far a move is: one line of JSON, and the digits of the node that wrote it.

use serde::{Deserialize, Serialize};
use strongroom_block::SealingDomain;

use super::describe_unit;
use crate::UnitDescription;
use crate::copy::{ContentSums, NodeMac, NodeMacError};

const VERSION: u32 = 1;

/// How far a move is, as this node wrote it down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveState {
    version: u32,
    /// Which volume, and what its successor was when it was formatted.
    volume: String,
    successor: String,
    /// The domain of its keys at a key server, which are to be destroyed at the end.
    doomed_domain: Option<String>,
    /// The checksums of the contents, once all of it was read back and found to be the same.
    verified: Option<String>,
    /// It was seen to have its place.
    placed: bool,
}

/// Why a note is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveStateError {
    /// Something else.
    #[error("is no state of a move")]
    Malformed,
    /// Another node's, or damaged.
    #[error("was not written by this node, or was changed since")]
    NotOurs,
    /// A later build's.
    #[error("is of another version")]
    OtherVersion,
    /// Another move's.
    #[error("is of another volume or version")]
    OtherVolume,
}

impl MoveState {
    /// The label of the [`NodeMac`] of such notes.
    pub const KEY_LABEL: &str = "reseal state";

    /// Nothing was moved yet. `volume` tells it from any other.
    pub fn new(volume: String, successor: &UnitDescription) -> MoveState {
        MoveState {
            version: VERSION,
            volume,
            successor: describe_unit(successor),
            doomed_domain: None,
            verified: None,
            placed: false,
        }
    }

    /// Whether a unit is the successor that the note is about.
    pub fn is_successor(&self, unit: &UnitDescription) -> bool {
        self.successor == describe_unit(unit)
    }

    /// The checksums of the contents, once all of it was read back and found to be the same.
    pub fn verified(&self) -> Option<&str> {
        self.verified.as_deref()
    }

    /// All of it was read back and found to be the same.
    pub fn set_verified(&mut self, sums: &ContentSums) {
        self.verified = Some(sums.to_string());
    }

    /// Whether the successor was seen to have the volume's place.
    pub fn is_placed(&self) -> bool {
        self.placed
    }

    /// The successor was seen to have the volume's place.
    pub fn set_placed(&mut self) {
        self.placed = true;
    }

    /// Keys of this domain are to be destroyed at the end.
    pub fn destroy_at_end(&mut self, domain: SealingDomain) {
        self.doomed_domain = Some(domain.to_string());
    }

    /// The domain whose keys are to be destroyed at the end.
    ///
    /// # Errors
    /// [`MoveStateError::OtherVersion`]
    pub fn doomed_domain(&self) -> Result<Option<SealingDomain>, MoveStateError> {
        let domain = self.doomed_domain.as_ref().map(|domain| domain.parse());
        domain.transpose().map_err(|_| MoveStateError::OtherVersion)
    }

    /// Whether the successor's blocks are sealed in a domain.
    pub fn is_successors_domain(&self, domain: SealingDomain) -> bool {
        self.successor.contains(&domain.to_string())
    }

    /// The note as it is stored.
    pub fn encode(&self, mac: &NodeMac) -> String {
        let body = serde_json::to_string(self).expect("strings and flags have a JSON form");
        let digits = mac.of(&body);
        format!("{body}\n{digits}\n")
    }

    /// Reads a note about `volume`.
    ///
    /// # Errors
    /// [`MoveStateError`]
    pub fn decode(bytes: &[u8], mac: &NodeMac, volume: &str) -> Result<MoveState, MoveStateError> {
        let text = std::str::from_utf8(bytes).map_err(|_| MoveStateError::Malformed)?;
        let (body, digits) = text.trim_end().rsplit_once('\n').ok_or(MoveStateError::Malformed)?;
        mac.check(body, digits).map_err(|error| match error {
            NodeMacError::Malformed => MoveStateError::Malformed,
            NodeMacError::NotOurs => MoveStateError::NotOurs,
        })?;
        let state: MoveState = serde_json::from_str(body).map_err(|_| MoveStateError::OtherVersion)?;
        if state.version != VERSION || state.volume != volume {
            return Err(MoveStateError::OtherVolume);
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use strongroom_handshake::NodeKey;

    use super::*;

    /// The bytes that earlier builds wrote.
    #[test]
    fn a_note_keeps_its_form() {
        let mac = NodeMac::new(&NodeKey::from_seed(&[1; 32]), MoveState::KEY_LABEL);
        let body =
            r#"{"version":1,"volume":"v","successor":"plain","doomed_domain":null,"verified":"s","placed":false}"#;
        let bytes = format!("{body}\n{}\n", mac.of(body));
        let state = MoveState::decode(bytes.as_bytes(), &mac, "v").expect("ours");
        assert_eq!((state.verified(), state.is_placed(), state.doomed_domain()), (Some("s"), false, Ok(None)));
        assert_eq!(state.encode(&mac), bytes);
        assert_eq!(MoveState::decode(bytes.as_bytes(), &mac, "w"), Err(MoveStateError::OtherVolume));
        assert_eq!(MoveState::decode(&bytes.as_bytes()[1..], &mac, "v"), Err(MoveStateError::NotOurs));
        assert_eq!(MoveState::decode(b"x", &mac, "v"), Err(MoveStateError::Malformed));
    }
}
