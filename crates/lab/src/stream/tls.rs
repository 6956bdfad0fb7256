//! TLS 1.3 as most programs use it, record layer and all, for comparison. Whose key it is, nobody checks: the peer is our own
//! process, and what is measured comes after the handshake.

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite::TLS13_AES_256_GCM_SHA384, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme,
};

/// PKCS #8 around 32 bytes of an Ed25519 key (RFC 8410 §7).
const PKCS8_ED25519: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// One end.
pub(crate) struct Tls(Connection);

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// The same cipher as everywhere else here.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { cipher_suites: vec![TLS13_AES_256_GCM_SHA384], ..default_provider() })
}

/// The sender's end, handshake done.
pub(crate) fn client(stream: &mut TcpStream) -> io::Result<Tls> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth();
    let name = ServerName::try_from("bench.invalid").map_err(other)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(other)?;
    handshake(connection.into(), stream)
}

/// The receiver's end, handshake done.
pub(crate) fn server(stream: &mut TcpStream) -> io::Result<Tls> {
    let provider = provider();
    let key = [&PKCS8_ED25519[..], &[9; 32]].concat();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
    let key = provider.key_provider.load_private_key(key).map_err(other)?;
    let certified = CertifiedKey::new(vec![CertificateDer::from(vec![0; 4])], key);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(other)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    // A sender that never reads would leave them behind, and its end would look like a failure.
    config.send_tls13_tickets = 0;
    let connection = ServerConnection::new(Arc::new(config)).map_err(other)?;
    handshake(connection.into(), stream)
}

fn handshake(mut connection: Connection, stream: &mut TcpStream) -> io::Result<Tls> {
    // A message is given over whole, however long it is.
    connection.set_buffer_limit(None);
    while connection.is_handshaking() {
        connection.complete_io(stream)?;
    }
    Ok(Tls(connection))
}

impl Tls {
    /// Encrypts one message and writes it.
    pub(crate) fn send(&mut self, message: &[u8], stream: &mut TcpStream) -> io::Result<()> {
        io::Write::write_all(&mut self.0.writer(), message)?;
        while self.0.wants_write() {
            self.0.write_tls(stream)?;
        }
        Ok(())
    }

    /// Sends close_notify, if the peer still listens.
    pub(crate) fn close(&mut self, stream: &mut TcpStream) {
        self.0.send_close_notify();
        let _ = self.0.write_tls(stream);
    }

    /// One read, and what it decrypts to; `None` at the end.
    pub(crate) fn receive(&mut self, stream: &mut TcpStream, output: &mut [u8]) -> io::Result<Option<u64>> {
        let read = self.0.read_tls(stream)?;
        let state = self.0.process_new_packets().map_err(other)?;
        let mut left = state.plaintext_bytes_to_read();
        let total = left as u64;
        while left > 0 {
            left -= self.0.reader().read(output)?;
        }
        Ok((read > 0 && !state.peer_has_closed() || total > 0).then_some(total))
    }
}

/// Accepts every certificate: a benchmark measures what TLS costs, not whom it proves.
#[derive(Debug)]
struct AcceptAnyCertificate;

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 only".into()))
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
