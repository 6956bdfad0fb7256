//! TLS 1.3 with X.509 certificates, for clients on other machines: who has no certificate of our authority is not served. The files have the
//! names that qemu and nbdkit use.
//!
//! Absent: sockets. A session is given what has come and asked what to send.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use zeroize::{Zeroize, Zeroizing};

/// Upper bound on a file of certificates, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// What is received at once: some records of 16 KiB.
const RECEIVED_BYTES_MAX: usize = 64 << 10;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}; docs/nbd.md shows how the certificates are made")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read the private key.
    #[error("others can read {0}, the server's private key: chmod 600 it")]
    Mode(PathBuf),
    /// A file holds something else.
    #[error("{path} does not hold what it should ({reason}); it must be in PEM")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// They do not belong together.
    #[error("the certificates in {path} cannot be used: {reason}")]
    Refused {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// What the server proves itself by, and whom it believes.
#[derive(Clone, Debug)]
pub struct NbdCertificates(Arc<ServerConfig>);

impl NbdCertificates {
    /// Reads `ca-cert.pem`, `server-cert.pem` and `server-key.pem`, and `ca-crl.pem` if it is there.
    ///
    /// # Errors
    /// [`CertificateError`] says which file is missing or wrong.
    pub fn load(directory: &Path) -> Result<NbdCertificates, CertificateError> {
        let refused = |reason: String| CertificateError::Refused { path: directory.to_owned(), reason };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        for root in certificates(&directory.join("ca-cert.pem"))? {
            roots.add(root).map_err(|error| refused(error.to_string()))?;
        }
        let revoked = revocations(&directory.join("ca-crl.pem"))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .with_crls(revoked)
            .build()
            .map_err(|error| refused(error.to_string()))?;
        let chain = certificates(&directory.join("server-cert.pem"))?;
        let certified = CertifiedKey::new(chain, private_key(&directory.join("server-key.pem"))?);
        certified.keys_match().map_err(|error| refused(format!("server-cert.pem and server-key.pem: {error}")))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| refused(error.to_string()))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        // Connections last: resuming sessions would save nothing.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(NbdCertificates(Arc::new(config)))
    }
}

fn read_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, CertificateError> {
    let mut content = Zeroizing::new(Vec::new());
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut content));
    read.map_err(|source| CertificateError::Read { path: path.to_owned(), source })?;
    Ok(content)
}

fn wrong(path: &Path, reason: impl ToString) -> CertificateError {
    CertificateError::Content { path: path.to_owned(), reason: reason.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let content = read_file(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    let all = all.map_err(|error| wrong(path, error))?;
    if all.is_empty() { Err(wrong(path, "no certificate")) } else { Ok(all) }
}

/// None, where there is no such file.
fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, CertificateError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let content = read_file(path)?;
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&content).collect();
    all.map_err(|error| wrong(path, error))
}

fn private_key(path: &Path) -> Result<Arc<dyn rustls::sign::SigningKey>, CertificateError> {
    let metadata = fs::metadata(path);
    let metadata = metadata.map_err(|source| CertificateError::Read { path: path.to_owned(), source })?;
    if metadata.mode() & 0o077 != 0 {
        return Err(CertificateError::Mode(path.to_owned()));
    }
    let mut key = PrivateKeyDer::from_pem_slice(&read_file(path)?).map_err(|error| wrong(path, error))?;
    let signing = aws_lc_rs::sign::any_supported_type(&key).map_err(|error| wrong(path, error));
    key.zeroize();
    signing
}

/// The server's end of one session.
#[derive(Debug)]
pub(super) struct TlsSession {
    connection: ServerConnection,
    /// What has come and was not looked at yet.
    received: Vec<u8>,
}

impl TlsSession {
    pub(super) fn new(certificates: &NbdCertificates) -> io::Result<TlsSession> {
        let mut connection = ServerConnection::new(certificates.0.clone()).map_err(io::Error::other)?;
        // What is sent is limited by who sends it.
        connection.set_buffer_limit(None);
        Ok(TlsSession { connection, received: Vec::new() })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Where to put what comes next; to be given to [`TlsSession::received`].
    pub(super) fn buffer() -> Vec<u8> {
        vec![0; RECEIVED_BYTES_MAX]
    }

    /// Takes what has come.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// Opens what has come, as far as that is possible before [`TlsSession::read`] has taken something; whether it got any further.
    pub(super) fn open_more(&mut self) -> io::Result<bool> {
        if self.received.is_empty() {
            return Ok(false);
        }
        let mut rest = &self.received[..];
        let used = self.connection.read_tls(&mut rest)?;
        self.received.drain(..used);
        self.connection.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(used > 0)
    }

    /// What the client has sent; `None` if more has to come for that, 0 at the client's end of the session.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.connection.reader().read(buffer) {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the session itself has something to send.
    pub(super) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Encrypts these bytes, behind what the session has to send by itself.
    pub(super) fn seal<'a>(&mut self, parts: impl Iterator<Item = &'a Bytes>) -> io::Result<Bytes> {
        let mut sealed = Vec::new();
        for part in parts {
            self.connection.writer().write_all(part)?;
        }
        while self.connection.wants_write() {
            self.connection.write_tls(&mut sealed)?;
        }
        Ok(sealed.into())
    }

    /// Nothing is sent after this but what [`TlsSession::seal`] still gives.
    pub(super) fn close(&mut self) {
        self.connection.send_close_notify();
    }
}
