//! Vouches for what this node wrote down for itself: HMAC-SHA256 under a key of its own, in hexadecimal, so that it fits into any text.

use aws_lc_rs::hmac;
use strongroom_handshake::NodeKey;

/// Makes and checks the digits behind a text.
#[derive(Clone)]
pub struct NodeMac(hmac::Key);

/// Digits that are not those of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeMacError {
    /// No 64 hexadecimal digits.
    #[error("it has no check digits of a node")]
    Malformed,
    /// Another node's, of another use, or of another text.
    #[error("it was not written by this node, or was changed since")]
    NotOurs,
}

impl std::fmt::Debug for NodeMac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeMac")
    }
}

impl NodeMac {
    /// By `node`, for one use, which `label` names: what was written for one is not taken for the other.
    pub fn new(node: &NodeKey, label: &str) -> NodeMac {
        NodeMac(hmac::Key::new(hmac::HMAC_SHA256, &*node.local_key(label)))
    }

    /// The digits of `text`.
    pub fn of(&self, text: &str) -> String {
        hmac::sign(&self.0, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether `digits` are those of `text`, in constant time.
    ///
    /// # Errors
    /// [`NodeMacError`] if not.
    pub fn check(&self, text: &str, digits: &str) -> Result<(), NodeMacError> {
        let tag = from_hex(digits).ok_or(NodeMacError::Malformed)?;
        hmac::verify(&self.0, text.as_bytes(), &tag).map_err(|_| NodeMacError::NotOurs)
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_of_a_node_a_use_and_a_text() {
        let node = NodeKey::from_seed(&[1; 32]);
        let mac = NodeMac::new(&node, "a use");
        let digits = mac.of("text");
        assert_eq!((digits.len(), mac.check("text", &digits)), (64, Ok(())));
        for other in [NodeMac::new(&NodeKey::from_seed(&[2; 32]), "a use"), NodeMac::new(&node, "another")] {
            assert_eq!(other.check("text", &digits), Err(NodeMacError::NotOurs));
        }
        assert_eq!(mac.check("texts", &digits), Err(NodeMacError::NotOurs));
        assert_eq!(mac.check("text", &digits[2..]), Err(NodeMacError::NotOurs));
        for bad in ["zz", &digits[1..], "ä"] {
            assert_eq!(mac.check("text", bad), Err(NodeMacError::Malformed), "{bad}");
        }
        assert_eq!(format!("{mac:?}"), "NodeMac");
    }
}
