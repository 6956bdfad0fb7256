//! A short secret text for one node, signed by another: how a volume's key travels from one initiator to the next, by any channel.
//!
//! HPKE (RFC 9180) in base mode to the X25519 key that belongs to the recipient's Ed25519 key, and an Ed25519 signature of the sender over all
//! of it. `docs/pairing.md` has it bit by bit. Absent: what the text means.

use std::fmt;

use aws_lc_rs::digest::{SHA512, digest};
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use curve25519_dalek::edwards::CompressedEdwardsY;
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256 as SUITE;
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke, HpkePrivateKey, HpkePublicKey};
use zeroize::{Zeroize, Zeroizing};

use crate::{NodeKey, PublicKey};

/// Longest text that is shared, in bytes.
pub const SHARED_TEXT_BYTES_MAX: usize = 256 * 1024;

const BEGIN: &str = "-----BEGIN STRONGROOM SHARED KEY-----";
const END: &str = "-----END STRONGROOM SHARED KEY-----";
const LINE_CHARACTERS: usize = 64;

const VERSION: u8 = 1;
const INFO_LABEL: &[u8] = b"strongroom shared key 1";
const SIGNATURE_LABEL: &[u8] = b"strongroom shared key signature 1";
const ENCAPSULATED_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const SIGNATURE_BYTES: usize = 64;
const HEADER_BYTES: usize = 1 + 2 * PublicKey::BYTES + ENCAPSULATED_BYTES;
const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + SHARED_TEXT_BYTES_MAX + TAG_BYTES + SIGNATURE_BYTES;

/// Why a text is not shared, or not received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedKeyError {
    /// Longer than anything that is shared.
    #[error("only short texts are shared, of at most {max} bytes", max = SHARED_TEXT_BYTES_MAX)]
    TooLong,
    /// The recipient's public key is not one that a node can have.
    #[error(
        "'{0}' is not a key that a node can have; copy the line that `strongroom identity show` prints there again"
    )]
    NoNodesKey(PublicKey),
    /// Something else than a shared key.
    #[error("that is no shared key; it begins with '{begin}', as `strongroom key share` prints it", begin = BEGIN)]
    NotASharedKey,
    /// Of a version that this program does not know.
    #[error("the shared key is of another version; run compatible Strongroom versions on both ends")]
    OtherVersion,
    /// Cut off, altered, or not signed by the node that it names.
    #[error("the shared key is cut off or altered, or another node than its sender has signed it; have it sent again")]
    Damaged,
    /// Made for another node.
    #[error(
        "the key is shared with another node, '{recipient}', and this one cannot open it; have it shared with '{own}'"
    )]
    ForAnother {
        /// For whom it is.
        recipient: PublicKey,
        /// Who we are.
        own: PublicKey,
    },
    /// Signed by another node than the one that was expected.
    #[error(
        "the key was sent by '{sender}'. Compare that with the line that `strongroom identity show` prints for the person who you think sent \
         it; if it is the same, say so: --from '{sender}'"
    )]
    OtherSender {
        /// Who signed it.
        sender: PublicKey,
    },
}

/// A text on its way to one node. What is in it, only that node can read.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedKey {
    message: Vec<u8>,
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKey").field("sender", &self.sender()).field("recipient", &self.recipient()).finish()
    }
}

impl SharedKey {
    /// Encrypts a text for `recipient`, and signs it as `sender`.
    ///
    /// # Errors
    /// [`SharedKeyError::TooLong`], [`SharedKeyError::NoNodesKey`].
    pub fn seal(sender: &NodeKey, recipient: PublicKey, text: &str) -> Result<SharedKey, SharedKeyError> {
        if text.len() > SHARED_TEXT_BYTES_MAX {
            return Err(SharedKeyError::TooLong);
        }
        let refused = SharedKeyError::NoNodesKey(recipient);
        let to = x25519_public(&recipient).ok_or_else(|| refused.clone())?;
        let mut message = [&[VERSION][..], sender.public().as_bytes(), recipient.as_bytes()].concat();
        let info = info(&message);
        let (encapsulated, sealed) =
            SUITE.seal(&info, &[], text.as_bytes(), &HpkePublicKey(to.to_vec())).map_err(|_| refused)?;
        message.extend_from_slice(&encapsulated.0);
        message.extend_from_slice(&sealed);
        let signature = sender.sign(&[SIGNATURE_LABEL, &message].concat());
        message.extend_from_slice(&signature);
        Ok(SharedKey { message })
    }

    /// Who says to have sent it; [`SharedKey::open`] checks that.
    pub fn sender(&self) -> PublicKey {
        self.key_at(1)
    }

    /// Whom it is for.
    pub fn recipient(&self) -> PublicKey {
        self.key_at(1 + PublicKey::BYTES)
    }

    /// The text, if it is for this node, and the expected one has signed it. Wiped when dropped.
    ///
    /// # Errors
    /// [`SharedKeyError`].
    pub fn open(&self, own: &NodeKey, expected: Option<PublicKey>) -> Result<Zeroizing<String>, SharedKeyError> {
        let (sender, recipient) = (self.sender(), self.recipient());
        let (signed, signature) = self.message.split_at(self.message.len() - SIGNATURE_BYTES);
        UnparsedPublicKey::new(&ED25519, sender.as_bytes())
            .verify(&[SIGNATURE_LABEL, signed].concat(), signature)
            .map_err(|_| SharedKeyError::Damaged)?;
        if recipient != own.public() {
            return Err(SharedKeyError::ForAnother { recipient, own: own.public() });
        }
        // Before anything is opened: a key from nobody in particular is one that an attacker knows.
        if expected != Some(sender) {
            return Err(SharedKeyError::OtherSender { sender });
        }
        let (header, sealed) = signed.split_at(HEADER_BYTES);
        let (named, encapsulated) = header.split_at(HEADER_BYTES - ENCAPSULATED_BYTES);
        let private = HpkePrivateKey::from(x25519_private(own).to_vec());
        let opened = SUITE
            .open(&EncapsulatedSecret(encapsulated.to_vec()), &info(named), &[], sealed, &private)
            .map_err(|_| SharedKeyError::Damaged)?;
        match String::from_utf8(opened) {
            Ok(text) => Ok(Zeroizing::new(text)),
            Err(error) => {
                error.into_bytes().zeroize();
                Err(SharedKeyError::Damaged)
            }
        }
    }

    /// Lines that pass through mails and chats.
    pub fn to_text(&self) -> String {
        let encoded = STANDARD.encode(&self.message);
        let lines = encoded.as_bytes().chunks(LINE_CHARACTERS).map(|line| std::str::from_utf8(line).expect("ASCII"));
        let body: String = lines.flat_map(|line| [line, "\n"]).collect();
        format!("{BEGIN}\n{body}{END}\n")
    }

    /// Reads such lines; what is before and behind them does not count.
    ///
    /// # Errors
    /// [`SharedKeyError`]; never panics, for any text.
    pub fn parse(text: &str) -> Result<SharedKey, SharedKeyError> {
        let (_, after_begin) = text.split_once(BEGIN).ok_or(SharedKeyError::NotASharedKey)?;
        let (body, _) = after_begin.split_once(END).ok_or(SharedKeyError::Damaged)?;
        let encoded: Vec<u8> = body.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        if encoded.len() > MESSAGE_BYTES_MAX.div_ceil(3) * 4 {
            return Err(SharedKeyError::TooLong);
        }
        let message = STANDARD.decode(&encoded).map_err(|_| SharedKeyError::Damaged)?;
        match message.first() {
            Some(&VERSION) if message.len() >= HEADER_BYTES + TAG_BYTES + SIGNATURE_BYTES => Ok(SharedKey { message }),
            Some(&VERSION) | None => Err(SharedKeyError::Damaged),
            Some(_) => Err(SharedKeyError::OtherVersion),
        }
    }

    fn key_at(&self, start: usize) -> PublicKey {
        let bytes = &self.message[start..start + PublicKey::BYTES];
        PublicKey::from_bytes(bytes.try_into().expect("as long as a key"))
    }
}

/// Both nodes' keys are part of it: what somebody else signs as their own does not open.
fn info(named: &[u8]) -> Vec<u8> {
    [INFO_LABEL, named].concat()
}

/// The X25519 key of the same secret: the birational map of RFC 7748 §4.1. `None` for what is no point, or one of a small subgroup.
fn x25519_public(key: &PublicKey) -> Option<[u8; 32]> {
    let point = CompressedEdwardsY(*key.as_bytes()).decompress()?;
    (point.is_torsion_free() && !point.is_small_order()).then(|| point.to_montgomery().to_bytes())
}

/// What RFC 8032 §5.1.5 makes of the seed is the scalar of both curves.
fn x25519_private(node: &NodeKey) -> Zeroizing<[u8; 32]> {
    let hash = digest(&SHA512, node.seed());
    let mut scalar = Zeroizing::new([0; 32]);
    scalar.copy_from_slice(&hash.as_ref()[..32]);
    scalar[0] &= 248;
    scalar[31] = scalar[31] & 127 | 64;
    scalar
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(seed: u8) -> NodeKey {
        NodeKey::from_seed(&[seed; 32])
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The vector of libsodium's test `ed25519_convert`.
    #[test]
    fn golden_conversion() {
        let seed: Vec<u8> = (0..32)
            .map(|at| {
                let text = "421151a459faeade3d247115f94aedae42318124095afabe4d1451a559faedee";
                u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()
            })
            .collect();
        let node = NodeKey::from_seed((&seed[..]).try_into().unwrap());
        let public = "f1814f0e8ff1043d8a44d25babff3cedcae6c22c3edaa48f857ae70de2baae50";
        assert_eq!(hex(&x25519_public(&node.public()).unwrap()), public);
        let private = "8052030376d47112be7f73ed7a019293dd12ad910b654455798b4667d73de166";
        assert_eq!(hex(&*x25519_private(&node)), private);
    }

    /// A whole shared key from seed 0x11 × 32 to seed 0x22 × 32 with the ephemeral key 0x33 × 32. Computed by scripts/golden-shared-key.py.
    const GOLDEN: &str = "\
-----BEGIN STRONGROOM SHARED KEY-----
AdBKsjJ0K7SrOhNovUYV5ObQIkq3GgFrr4UgozLJd4c3oJql9HpnWYAv+VX43C0q
FKXJnSO+l/hkEn/5ODRVpPB7DUfZNCf4MRFgeBx8cz/Yn4iXCu9JDYqg7hmky4ob
FBi2PtUuTisDT183t9P24T1DX87SEI8Soq71hC16OtN7CBCcKzC0dhzV1fUE4jWI
/rkrMMmU+JiGr8h5uzqp++2EFq2zd0yKKqCL9KjgPTCPdD+d5FrwWja+3bdTNMZe
P1eTLy49rg8=
-----END STRONGROOM SHARED KEY-----
";

    #[test]
    fn golden_shared_key() {
        let shared = SharedKey::parse(GOLDEN).unwrap();
        let text = shared.open(&node(0x22), Some(node(0x11).public())).unwrap();
        assert_eq!(*text, "the text of a key file\n");
        assert_eq!(shared.to_text(), GOLDEN);
    }

    #[test]
    fn only_the_recipient_opens_it_and_knows_who_sent_it() {
        let (alice, bob) = (node(1), node(2));
        let shared = SharedKey::seal(&alice, bob.public(), "the key").unwrap();
        let read = SharedKey::parse(&format!("Hello Bob,\r\n\r\n{}\r\n-- \r\nA.", shared.to_text())).unwrap();
        assert_eq!(*read.open(&bob, Some(alice.public())).unwrap(), "the key");
        assert_eq!((read.sender(), read.recipient()), (alice.public(), bob.public()));
        assert_eq!(
            read.open(&node(3), Some(alice.public())).unwrap_err(),
            SharedKeyError::ForAnother { recipient: bob.public(), own: node(3).public() }
        );
        assert!(!shared.to_text().contains("the key") && !format!("{shared:?}").contains("the key"));
    }

    #[test]
    fn attack_shared_key_of_another_sender() {
        let (alice, bob, mallory) = (node(1), node(2), node(3));
        let forged = SharedKey::seal(&mallory, bob.public(), "a key that mallory knows").unwrap();
        for expected in [None, Some(alice.public())] {
            let error = forged.open(&bob, expected).unwrap_err();
            assert_eq!(error, SharedKeyError::OtherSender { sender: mallory.public() });
        }
        // Alice's name over mallory's signature.
        let mut renamed = forged.clone();
        renamed.message[1..33].copy_from_slice(alice.public().as_bytes());
        assert_eq!(renamed.open(&bob, Some(alice.public())).unwrap_err(), SharedKeyError::Damaged);
        // What alice encrypted, signed by mallory as her own.
        let taken = SharedKey::seal(&alice, bob.public(), "the key").unwrap();
        let mut message = taken.message[..taken.message.len() - SIGNATURE_BYTES].to_vec();
        message[1..33].copy_from_slice(mallory.public().as_bytes());
        let signature = mallory.sign(&[SIGNATURE_LABEL, &message].concat());
        message.extend_from_slice(&signature);
        let resigned = SharedKey { message };
        assert_eq!(resigned.open(&bob, Some(mallory.public())).unwrap_err(), SharedKeyError::Damaged);
    }

    #[test]
    fn attack_shared_key_flip_every_byte() {
        let (alice, bob) = (node(1), node(2));
        let shared = SharedKey::seal(&alice, bob.public(), "the key").unwrap();
        for index in 1..shared.message.len() {
            let mut flipped = shared.clone();
            flipped.message[index] ^= 1;
            assert_eq!(flipped.open(&bob, Some(flipped.sender())).unwrap_err(), SharedKeyError::Damaged, "{index}");
        }
        let text = shared.to_text();
        assert_eq!(SharedKey::parse(text.trim_end().trim_end_matches('-')), Err(SharedKeyError::Damaged));
        assert_eq!(SharedKey::parse("x"), Err(SharedKeyError::NotASharedKey));
        let mut later = shared.clone();
        later.message[0] = 2;
        assert_eq!(SharedKey::parse(&later.to_text()), Err(SharedKeyError::OtherVersion));
        assert_eq!(
            SharedKey::seal(&alice, bob.public(), &"x".repeat(SHARED_TEXT_BYTES_MAX + 1)),
            Err(SharedKeyError::TooLong)
        );
    }

    #[test]
    fn keys_that_no_node_has_are_refused() {
        // The neutral element, a point of order 8, and what is on no curve.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let order_8 = curve25519_dalek::constants::EIGHT_TORSION[1].compress().to_bytes();
        let off_curve = (2..).map(|byte| [byte; 32]).find(|bytes| CompressedEdwardsY(*bytes).decompress().is_none());
        for bytes in [neutral, order_8, off_curve.unwrap()] {
            let key = PublicKey::from_bytes(bytes);
            assert_eq!(SharedKey::seal(&node(1), key, "x"), Err(SharedKeyError::NoNodesKey(key)));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(body in "[A-Za-z0-9+/= \n]{0,400}") {
            if let Ok(read) = SharedKey::parse(&format!("{BEGIN}{body}{END}")) {
                let _ = read.open(&node(2), None);
            }
        }
    }
}
