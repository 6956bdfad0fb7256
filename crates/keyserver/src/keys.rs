//! The key hierarchy: a master key from outside opens the root key; the root key opens records; in a record each epoch's key
//! is wrapped once more under a shred key of its own, which lies in a file that can be overwritten.

use std::fmt;

use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::hmac;
use strongroom_block::{SealingDomain, Suite, TAG_BYTES};
use strongroom_cipher::{AeadKey, NONCE_BYTES};
use strongroom_seal::{KEY_BYTES, KeyFileError, KeyId, Secret, VolumeKey, VolumeKeyFile};
use zeroize::Zeroizing;

/// A key, wrapped: nonce, key, tag.
pub(crate) const WRAPPED_BYTES: usize = NONCE_BYTES + KEY_BYTES + TAG_BYTES;

/// Why a master key did not do what was asked of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MasterKeyError {
    /// What is to be opened was wrapped under another master key.
    #[error(
        "the database was made under the master key {needed}, and the one given is {given}; give the right file, or the one \
         that the master key was last changed to"
    )]
    Other {
        /// Of the key that wrapped it.
        needed: KeyId,
        /// Of the key at hand.
        given: KeyId,
    },
    /// It is damaged.
    #[error("what the master key should open is damaged; restore the database from a backup, or promote the standby")]
    Damaged,
    /// The file holds no master key.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// A service that keeps the key did not answer, or refused.
    #[error("{0}")]
    Service(String),
}

/// Wraps and unwraps the database's root key. Called at the start and for backups only, so that it may be a service far away.
pub trait MasterKey: Send + Sync {
    /// The key's public name.
    fn id(&self) -> KeyId;

    /// Wraps a key; `context` is to be given again to unwrap it.
    ///
    /// # Errors
    /// [`MasterKeyError::Service`].
    fn wrap(&self, context: &[u8], key: &[u8; KEY_BYTES]) -> Result<Vec<u8>, MasterKeyError>;

    /// Opens what [`MasterKey::wrap`] made.
    ///
    /// # Errors
    /// [`MasterKeyError`].
    fn unwrap(&self, context: &[u8], wrapped: &[u8]) -> Result<Secret<KEY_BYTES>, MasterKeyError>;
}

/// A master key in this process's memory, from a file or a credential.
pub struct LocalMasterKey {
    id: KeyId,
    key: AeadKey,
}

impl fmt::Debug for LocalMasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalMasterKey({})", self.id)
    }
}

impl LocalMasterKey {
    /// The newest key of a file of master keys.
    ///
    /// # Errors
    /// [`MasterKeyError::KeyFile`] if it is one of another purpose.
    pub fn new(file: &VolumeKeyFile) -> Result<LocalMasterKey, MasterKeyError> {
        let key = derived(file.master_key()?.expose(), b"wrap");
        let (_, id) = *file.ids().last().expect("a key file has at least one epoch");
        Ok(LocalMasterKey { id, key: AeadKey::new(Suite::Aes256Gcm, &key) })
    }
}

impl MasterKey for LocalMasterKey {
    fn id(&self) -> KeyId {
        self.id
    }

    fn wrap(&self, context: &[u8], key: &[u8; KEY_BYTES]) -> Result<Vec<u8>, MasterKeyError> {
        Ok([&self.id.0[..], &seal(&self.key, context, key)].concat())
    }

    fn unwrap(&self, context: &[u8], wrapped: &[u8]) -> Result<Secret<KEY_BYTES>, MasterKeyError> {
        let (id, sealed) = wrapped.split_first_chunk().ok_or(MasterKeyError::Damaged)?;
        if KeyId(*id) != self.id {
            return Err(MasterKeyError::Other { needed: KeyId(*id), given: self.id });
        }
        let opened = open(&self.key, context, sealed).ok_or(MasterKeyError::Damaged)?;
        let opened: &[u8; KEY_BYTES] = opened[..].try_into().map_err(|_| MasterKeyError::Damaged)?;
        Ok(Secret::filled(|bytes| bytes.copy_from_slice(opened)))
    }
}

/// Fresh random bytes.
///
/// # Panics
/// If the operating system has none: nothing can go on safely then.
pub(crate) fn random<const N: usize>() -> Zeroizing<[u8; N]> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(&mut *bytes).expect("the operating system gives randomness");
    bytes
}

fn derived(key: &[u8; KEY_BYTES], purpose: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
    let mut out = Zeroizing::new([0; KEY_BYTES]);
    let root = Salt::new(HKDF_SHA256, b"strongroom keyserver 1").extract(key);
    let info = [purpose];
    let expanded = root.expand(&info, HKDF_SHA256).expect("32 bytes are within HKDF's bounds");
    expanded.fill(&mut *out).expect("as many bytes as were announced");
    out
}

/// Nonce, sealed bytes, tag. The nonce is random: a key seals far fewer than 2^32 messages before it is changed.
fn seal(key: &AeadKey, context: &[u8], plain: &[u8]) -> Vec<u8> {
    let nonce = random::<NONCE_BYTES>();
    let mut out = Vec::with_capacity(NONCE_BYTES + plain.len() + TAG_BYTES);
    out.extend_from_slice(&*nonce);
    out.extend_from_slice(plain);
    let tag = key.seal(*nonce, context, &mut out[NONCE_BYTES..]);
    out.extend_from_slice(&tag);
    out
}

fn open(key: &AeadKey, context: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (nonce, rest) = sealed.split_first_chunk::<NONCE_BYTES>()?;
    let (body, tag) = rest.split_last_chunk::<TAG_BYTES>()?;
    let mut plain = Zeroizing::new(body.to_vec());
    key.open(*nonce, context, tag, &mut plain).ok()?;
    Some(plain)
}

/// What the database is sealed under: drawn when it is made and whenever the master key is changed.
pub(crate) struct RootKey {
    records: AeadKey,
    /// Lines of the audit log are many: they do not count against what the records' key may seal.
    audit: AeadKey,
    digests: hmac::Key,
    wrapped: Vec<u8>,
}

impl RootKey {
    const CONTEXT: &[u8] = b"strongroom keyserver root key 1";

    pub(crate) fn fresh(master: &dyn MasterKey) -> Result<RootKey, MasterKeyError> {
        let key = random();
        Ok(Self::of(&key, master.wrap(Self::CONTEXT, &key)?))
    }

    pub(crate) fn unwrap(master: &dyn MasterKey, wrapped: &[u8]) -> Result<RootKey, MasterKeyError> {
        let key = master.unwrap(Self::CONTEXT, wrapped)?;
        Ok(Self::of(key.expose(), wrapped.to_vec()))
    }

    fn of(key: &[u8; KEY_BYTES], wrapped: Vec<u8>) -> RootKey {
        let records = AeadKey::new(Suite::Aes256Gcm, &derived(key, b"records"));
        let audit = AeadKey::new(Suite::Aes256Gcm, &derived(key, b"audit"));
        RootKey { records, audit, digests: hmac::Key::new(hmac::HMAC_SHA256, &*derived(key, b"digests")), wrapped }
    }

    /// To be stored in the clear.
    pub(crate) fn wrapped(&self) -> &[u8] {
        &self.wrapped
    }

    pub(crate) fn seal(&self, context: &[u8], plain: &[u8]) -> Vec<u8> {
        seal(&self.records, context, plain)
    }

    pub(crate) fn open(&self, context: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        open(&self.records, context, sealed)
    }

    pub(crate) fn seal_audit(&self, context: &[u8], plain: &[u8]) -> Vec<u8> {
        seal(&self.audit, context, plain)
    }

    pub(crate) fn open_audit(&self, context: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        open(&self.audit, context, sealed)
    }

    /// What one stored record adds to the digest of all.
    pub(crate) fn digest(&self, context: &[u8], sealed: &[u8]) -> [u8; 32] {
        let mut hmac = hmac::Context::with_key(&self.digests);
        hmac.update(&(context.len() as u64).to_be_bytes());
        hmac.update(context);
        hmac.update(sealed);
        hmac.sign().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

/// The key that one epoch's key is wrapped under; when its slot is overwritten, every copy of the wrapped key is worthless.
#[derive(Clone)]
pub(crate) struct ShredKey(pub(crate) Secret<KEY_BYTES>);

impl ShredKey {
    pub(crate) fn fresh() -> ShredKey {
        let bytes = random::<KEY_BYTES>();
        ShredKey(Secret::filled(|secret| secret.copy_from_slice(&*bytes)))
    }

    pub(crate) fn wrap(&self, domain: SealingDomain, epoch: u32, key: &VolumeKey) -> [u8; WRAPPED_BYTES] {
        let aead = AeadKey::new(Suite::Aes256Gcm, self.0.expose());
        seal(&aead, &epoch_context(domain, epoch), key.expose()).try_into().expect("a key has 32 bytes")
    }

    pub(crate) fn unwrap(&self, domain: SealingDomain, epoch: u32, wrapped: &[u8]) -> Option<VolumeKey> {
        let aead = AeadKey::new(Suite::Aes256Gcm, self.0.expose());
        let opened = open(&aead, &epoch_context(domain, epoch), wrapped)?;
        Some(VolumeKey::new(opened[..].try_into().ok()?))
    }
}

fn epoch_context(domain: SealingDomain, epoch: u32) -> Vec<u8> {
    [b"strongroom epoch key 1", &domain.0[..], &epoch.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use strongroom_seal::KeyPurpose;

    use super::*;

    fn master(byte: u8) -> LocalMasterKey {
        LocalMasterKey::new(&VolumeKeyFile::new(KeyPurpose::Master, &[byte; 32])).unwrap()
    }

    #[test]
    fn a_wrapped_key_opens_for_its_epoch_and_volume_alone() {
        let (shred, key, domain) = (ShredKey::fresh(), VolumeKey::new([5; 32]), SealingDomain([1; 16]));
        let wrapped = shred.wrap(domain, 3, &key);
        assert_eq!(shred.unwrap(domain, 3, &wrapped), Some(key));
        assert!(shred.unwrap(domain, 4, &wrapped).is_none());
        assert!(shred.unwrap(SealingDomain([2; 16]), 3, &wrapped).is_none());
        assert!(ShredKey::fresh().unwrap(domain, 3, &wrapped).is_none());
    }

    #[test]
    fn another_master_key_is_named() {
        let root = RootKey::fresh(&master(1)).unwrap();
        assert!(RootKey::unwrap(&master(1), root.wrapped()).is_ok());
        let error = RootKey::unwrap(&master(2), root.wrapped()).err().unwrap();
        assert_eq!(error, MasterKeyError::Other { needed: master(1).id(), given: master(2).id() });
        let mut damaged = root.wrapped().to_vec();
        damaged[20] ^= 1;
        assert_eq!(RootKey::unwrap(&master(1), &damaged).err(), Some(MasterKeyError::Damaged));
        assert_eq!(RootKey::unwrap(&master(1), b"short").err(), Some(MasterKeyError::Damaged));
        let volume = VolumeKeyFile::new(KeyPurpose::Volume, &[1; 32]);
        assert!(LocalMasterKey::new(&volume).unwrap_err().to_string().contains("master key is needed"));
    }

    #[test]
    fn debug_shows_no_key() {
        assert!(!format!("{:?}", master(0xa7)).contains("a7a7"));
    }
}
