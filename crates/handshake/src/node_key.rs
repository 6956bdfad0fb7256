//! A node's private key, and its text form. Text in, text out: reading and writing the file is the caller's.
//!
//! The file is a PKCS#8 private key in PEM (RFC 7468, RFC 8410), so that other tools can read it, with comments before:
//! the public key among them, for people.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use zeroize::{Zeroize, Zeroizing};

use crate::{KeyTextError, PublicKey};

/// Upper bound on the text of a node key file, in bytes.
pub const NODE_KEY_FILE_BYTES_MAX: usize = 16 * 1024;

/// The fixed start of an Ed25519 private key in PKCS#8 version 1 (RFC 8410); the 32 bytes of the seed follow.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
const SEED_BYTES: usize = 32;
const PKCS8_BYTES: usize = PKCS8_PREFIX.len() + SEED_BYTES;

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";

/// The identity of this node. Possession of the key is the identity.
#[derive(Clone)]
pub struct NodeKey {
    seed: Zeroizing<[u8; SEED_BYTES]>,
    public: PublicKey,
    certified: Arc<CertifiedKey>,
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({})", self.public)
    }
}

impl NodeKey {
    /// A new key from the operating system's generator.
    pub fn generate() -> NodeKey {
        let mut seed = Zeroizing::new([0; SEED_BYTES]);
        aws_lc_rs::rand::fill(&mut *seed).expect("the operating system gives randomness");
        Self::from_seed(&seed)
    }

    /// The key of this seed (RFC 8032). The caller wipes its copy.
    pub fn from_seed(seed: &[u8; SEED_BYTES]) -> NodeKey {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are a seed");
        let public = PublicKey::from_bytes(pair.public_key().as_ref().try_into().expect("an Ed25519 key has 32 bytes"));
        let mut pkcs8 = pkcs8_of(seed);
        let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(&pkcs8[..])).expect("made right here");
        pkcs8.zeroize();
        let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public.to_spki())], signing));
        NodeKey { seed: Zeroizing::new(*seed), public, certified }
    }

    /// What others know this node by.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Reads a node key file.
    ///
    /// # Errors
    /// [`KeyTextError`]; never panics, for any text.
    pub fn parse(text: &str) -> Result<NodeKey, KeyTextError> {
        if text.len() > NODE_KEY_FILE_BYTES_MAX {
            return Err(KeyTextError::TooLong);
        }
        let (_, after_begin) = text.split_once(BEGIN).ok_or(KeyTextError::NotANodeKey)?;
        let (body, _) = after_begin.split_once(END).ok_or(KeyTextError::MalformedNodeKey)?;
        let mut encoded = Zeroizing::new(Vec::with_capacity(body.len()));
        encoded.extend(body.bytes().filter(|byte| !byte.is_ascii_whitespace()));
        let mut pkcs8 = Zeroizing::new([0; PKCS8_BYTES]);
        let decoded = STANDARD.decode_slice(&*encoded, &mut *pkcs8).map_err(|_| KeyTextError::MalformedNodeKey)?;
        let seed = pkcs8[..decoded].strip_prefix(&PKCS8_PREFIX).ok_or(KeyTextError::MalformedNodeKey)?;
        Ok(Self::from_seed(seed.try_into().map_err(|_| KeyTextError::MalformedNodeKey)?))
    }

    /// The text to write into a file that only its owner may read (mode 0600). Wiped when dropped.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut pkcs8 = pkcs8_of(&self.seed);
        let mut encoded = Zeroizing::new([0; 2 * PKCS8_BYTES]);
        let written = STANDARD.encode_slice(pkcs8, &mut *encoded).expect("base64 needs less than twice the bytes");
        pkcs8.zeroize();
        let encoded = std::str::from_utf8(&encoded[..written]).expect("base64 is ASCII");
        // Sized up front: a string that grows leaves unwiped copies behind.
        let mut text = Zeroizing::new(String::with_capacity(1024));
        text.push_str(
            "# Strongroom node key. Anyone who has this file can act as this node: keep it secret, never copy it to another machine.\n\
             # The public key, for the other side:\n",
        );
        text.push_str(&format!("# {}\n", self.public));
        for part in [BEGIN, "\n", encoded, "\n", END, "\n"] {
            text.push_str(part);
        }
        text
    }

    /// A key for something that only this node reads again (HMAC-SHA256 of the label under the private key): it tells what this node
    /// wrote from what others did, and nothing of the private key.
    pub fn local_key(&self, label: &str) -> Zeroizing<[u8; 32]> {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &*self.seed);
        let tag = aws_lc_rs::hmac::sign(&key, format!("strongroom local key: {label}").as_bytes());
        Zeroizing::new(tag.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Signs what begins with a label of its own: this key signs in TLS, too.
    pub(crate) fn sign(&self, labelled: &[u8]) -> Vec<u8> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&*self.seed).expect("any 32 bytes are a seed");
        pair.sign(labelled).as_ref().to_vec()
    }

    pub(crate) fn seed(&self) -> &[u8; SEED_BYTES] {
        &self.seed
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

fn pkcs8_of(seed: &[u8; SEED_BYTES]) -> [u8; PKCS8_BYTES] {
    let mut pkcs8 = [0; PKCS8_BYTES];
    pkcs8[..PKCS8_PREFIX.len()].copy_from_slice(&PKCS8_PREFIX);
    pkcs8[PKCS8_PREFIX.len()..].copy_from_slice(seed);
    pkcs8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 8410 §10.3: the example key, in PEM.
    const RFC_8410: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
        -----END PRIVATE KEY-----\n";

    #[test]
    fn the_example_of_rfc_8410_parses() {
        let key = NodeKey::parse(RFC_8410).unwrap();
        // §10.1: its public key, without the SubjectPublicKeyInfo around it.
        assert_eq!(key.public().to_string(), "strongroom-ed25519 Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=");
        assert!(key.to_text().ends_with(RFC_8410));
    }

    #[test]
    fn local_keys_are_the_nodes_and_the_labels_own() {
        let (one, other) = (NodeKey::from_seed(&[1; 32]), NodeKey::from_seed(&[2; 32]));
        assert_eq!(one.local_key("a"), NodeKey::from_seed(&[1; 32]).local_key("a"));
        assert!(one.local_key("a") != one.local_key("b") && one.local_key("a") != other.local_key("a"));
    }

    #[test]
    fn what_is_printed_parses_and_names_its_public_key() {
        let key = NodeKey::generate();
        let text = key.to_text();
        assert!(text.contains(&key.public().to_string()));
        assert_eq!(NodeKey::parse(&text).unwrap().public(), key.public());
        assert_ne!(NodeKey::generate().public(), key.public());
    }

    #[test]
    fn damage_is_named() {
        let parse = |text: &str| NodeKey::parse(text).unwrap_err();
        assert_eq!(parse("hello"), KeyTextError::NotANodeKey);
        assert_eq!(parse(BEGIN), KeyTextError::MalformedNodeKey);
        assert_eq!(parse(&RFC_8410.replace("MC4C", "MC4D")), KeyTextError::MalformedNodeKey);
        assert_eq!(parse(&RFC_8410.replace("VhC\n", "\n")), KeyTextError::MalformedNodeKey);
        assert_eq!(parse(&"#".repeat(NODE_KEY_FILE_BYTES_MAX + 1)), KeyTextError::TooLong);
    }

    #[test]
    fn debug_shows_only_the_public_key() {
        let key = NodeKey::from_seed(&[0xa7; 32]);
        assert_eq!(format!("{key:?}"), format!("NodeKey({})", key.public()));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(-----BEGIN PRIVATE KEY-----)?[A-Za-z0-9+/= \n]*(-----END PRIVATE KEY-----)?") {
            let _ = NodeKey::parse(&text);
        }
    }
}
