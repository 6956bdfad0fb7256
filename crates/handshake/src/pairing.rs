//! What an invitation is proven with: its secret, the key that a target keeps of it, and the proof, which is good for one connection.
//!
//! `docs/pairing.md` is the specification. Absent: who is invited to what, and the text that carries the secret (`invitation`).

use std::fmt;

use aws_lc_rs::hmac;
use strongroom_channel::EXPORTER_BYTES;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::PublicKey;

/// The label of the exporter that a proof is bound to. Its context is that of [`EXPORTER_LABEL`](crate::EXPORTER_LABEL).
pub(crate) const PAIRING_EXPORTER_LABEL: &[u8] = b"EXPORTER-strongroom-pairing";

const KEY_LABEL: &[u8] = b"strongroom pairing key 1";
const PROOF_LABEL: &[u8] = b"strongroom pairing proof 1";
const TAG_BYTES: usize = 32;

/// What only the invited node is told: 128 random bits.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PairingSecret([u8; Self::BYTES]);

impl PairingSecret {
    /// Bytes in a secret.
    pub const BYTES: usize = 16;

    /// A new one from the operating system's generator.
    pub fn generate() -> PairingSecret {
        let mut secret = PairingSecret([0; Self::BYTES]);
        aws_lc_rs::rand::fill(&mut secret.0).expect("the operating system gives randomness");
        secret
    }

    /// The secret of these bytes. The caller wipes its copy.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> PairingSecret {
        PairingSecret(bytes)
    }

    /// Its bytes; the caller wipes every copy.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// What proofs are made and checked with.
    pub fn key(&self) -> PairingKey {
        PairingKey(tag(&self.0, &[KEY_LABEL]))
    }
}

impl fmt::Debug for PairingSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairingSecret")
    }
}

/// What a target keeps of an invitation's secret: it checks proofs, and the secret cannot be found from it.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PairingKey([u8; Self::BYTES]);

impl PairingKey {
    /// Bytes in a key.
    pub const BYTES: usize = TAG_BYTES;

    /// The key of these bytes. The caller wipes its copy.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> PairingKey {
        PairingKey(bytes)
    }

    /// Its bytes; the caller wipes every copy.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Shows on one connection that this node knows the secret.
    pub fn prove(&self, binding: &PairingBinding) -> PairingProof {
        PairingProof(tag(&self.0, &[PROOF_LABEL, &binding.0]))
    }

    /// Whether a proof is this invitation's on this connection; in constant time.
    pub fn is_proven_by(&self, proof: &PairingProof, binding: &PairingBinding) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        hmac::verify(&key, &[PROOF_LABEL, &binding.0].concat(), &proof.0).is_ok()
    }
}

impl fmt::Debug for PairingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairingKey")
    }
}

/// One connection, as a proof sees it: its exporter, the initiator's key and the target's key. A proof from one connection is none on
/// another, even between the same two nodes.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PairingBinding([u8; EXPORTER_BYTES + 2 * PublicKey::BYTES]);

impl PairingBinding {
    /// Of a connection with this exporter. Handshakes make it; so do those who test what is bound to it.
    pub fn new(exporter: &[u8; EXPORTER_BYTES], initiator: PublicKey, target: PublicKey) -> PairingBinding {
        let mut bytes = [0; EXPORTER_BYTES + 2 * PublicKey::BYTES];
        let (first, keys) = bytes.split_at_mut(EXPORTER_BYTES);
        first.copy_from_slice(exporter);
        keys[..PublicKey::BYTES].copy_from_slice(initiator.as_bytes());
        keys[PublicKey::BYTES..].copy_from_slice(target.as_bytes());
        PairingBinding(bytes)
    }
}

impl fmt::Debug for PairingBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairingBinding")
    }
}

/// Shows that a node knows an invitation's secret, without telling it.
#[derive(Clone, Copy)]
pub struct PairingProof([u8; Self::BYTES]);

impl PairingProof {
    /// Bytes in a proof.
    pub const BYTES: usize = TAG_BYTES;

    /// What arrived.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> PairingProof {
        PairingProof(bytes)
    }

    /// What is sent.
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for PairingProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairingProof")
    }
}

fn tag(key: &[u8], parts: &[&[u8]]) -> [u8; TAG_BYTES] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    parts.iter().for_each(|part| context.update(part));
    context.sign().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(exporter: u8, initiator: u8, target: u8) -> PairingBinding {
        let key = |byte| PublicKey::from_bytes([byte; PublicKey::BYTES]);
        PairingBinding::new(&[exporter; EXPORTER_BYTES], key(initiator), key(target))
    }

    /// The vector of `docs/pairing.md`; recomputed with Python's `hmac`.
    #[test]
    fn golden_proof() {
        let key = PairingSecret::from_bytes([0x11; PairingSecret::BYTES]).key();
        assert_eq!(hex(key.bytes()), "290778501f13ccee9a94964d37f996acb2efe32e86682636220c8cc3fd12fc75");
        let proof = key.prove(&binding(0x22, 0x33, 0x44));
        assert_eq!(hex(proof.as_bytes()), "92b77dbc1b7083f2f93cb63641967830927e03d0801fcba504eb30258662e0ca");
    }

    #[test]
    fn attack_pairing_proof_of_another_connection() {
        let key = PairingSecret::from_bytes([1; PairingSecret::BYTES]).key();
        let proof = key.prove(&binding(2, 3, 4));
        assert!(key.is_proven_by(&proof, &binding(2, 3, 4)));
        for other in [binding(9, 3, 4), binding(2, 9, 4), binding(2, 3, 9), binding(2, 4, 3)] {
            assert!(!key.is_proven_by(&proof, &other));
        }
        let mut flipped = *proof.as_bytes();
        for index in 0..flipped.len() {
            flipped[index] ^= 1;
            assert!(!key.is_proven_by(&PairingProof::from_bytes(flipped), &binding(2, 3, 4)), "{index}");
            flipped[index] ^= 1;
        }
        assert!(!PairingSecret::from_bytes([2; PairingSecret::BYTES]).key().is_proven_by(&proof, &binding(2, 3, 4)));
    }

    #[test]
    fn nothing_secret_is_shown() {
        let secret = PairingSecret::from_bytes([0xa7; PairingSecret::BYTES]);
        let shown = format!("{secret:?} {:?} {:?}", secret.key(), secret.key().prove(&binding(1, 2, 3)));
        assert_eq!(shown, "PairingSecret PairingKey PairingProof");
        assert_ne!(PairingSecret::generate().bytes(), PairingSecret::generate().bytes());
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
