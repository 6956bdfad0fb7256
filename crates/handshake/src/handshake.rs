//! One handshake, without its connection: bytes in, bytes out, channel keys at the end.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::{ClientConnection, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite::TLS13_AES_256_GCM_SHA384, default_provider, kx_group::X25519MLKEM768};
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConnection};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, ClientConfig, Connection, Error, ProtocolVersion, ServerConfig, version::TLS13};
use strongroom_block::Suite;
use strongroom_channel::{ChannelKeys, EXPORTER_BYTES, FRAME_TYPE_MIN, Role, Scheme};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::pairing::{PAIRING_EXPORTER_LABEL, PairingBinding};
use crate::verify::{KeyVerifier, Refused};
use crate::{HandshakeError, NodeKey, PublicKey, TlsError};

/// The label of the exporter that the channel's keys come from. Its context is the application protocol that was agreed
/// on ([`alpn`]), the initiator's public key and the target's public key, one after the other.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-strongroom-channel";
/// Upper bound on what one side takes in for a handshake, in bytes. A regular one needs about 2 KiB.
pub const HANDSHAKE_BYTES_MAX: usize = 16 * 1024;

const RECORD_HEADER_BYTES: usize = 5;
const RECORD_BYTES_MAX: usize = 16_384 + 256;

/// The application protocol (RFC 7301) that stands for a scheme and a cipher suite: names the version of everything above
/// TLS, and what the channel protects, and how. Being part of the handshake, nobody in the middle can downgrade the choice
/// between the two nodes. The usual suite, AES-256-GCM, goes unsaid.
pub fn alpn(scheme: Scheme, suite: Suite) -> Vec<u8> {
    let mut protocol = format!("strongroom/1 {}", scheme.name());
    if suite != Suite::default() {
        protocol.push(' ');
        protocol.push_str(suite.name());
    }
    protocol.into_bytes()
}

/// The application protocol of a key server. Its connections encrypt everything, under the usual suite; being a protocol of
/// its own, no target can be taken for a key server, nor the other way round.
pub const KEYS_ALPN: &[u8] = b"strongroom-keys/1";

/// The application protocol by which a node sends snapshots into volumes of a target, on the target's own port. Everything is
/// encrypted, under the usual suite.
pub const TRANSFER_ALPN: &[u8] = b"strongroom-transfer/1";

/// The application protocol by which a node that a target does not know yet takes up an invitation (`docs/pairing.md`), on the target's
/// own port. Everything is encrypted, under the usual suite. An initiator that offers it offers nothing else.
pub const PAIRING_ALPN: &[u8] = b"strongroom-pairing/1";

/// The application protocol by which an operator asks a target to make and change volumes (`docs/operators.md`), on the target's own port.
/// Everything is encrypted, under the usual suite.
pub const OPERATOR_ALPN: &[u8] = b"strongroom-operator/1";

/// The application protocol of the login of an ECL association (`docs/ecl.md`), which likewise stands for a scheme and a suite. Being another
/// one than [`alpn`], nobody in the middle can make iSCSI of it.
pub fn ecl_alpn(scheme: Scheme, suite: Suite) -> Vec<u8> {
    let blocks = alpn(scheme, suite);
    let choice = blocks.strip_prefix(b"strongroom/1").expect("every name begins so");
    [b"strongroom-ecl/1", choice].concat()
}

/// The schemes whose block data travels as it is stored: those that ECL has.
const ECL_SCHEMES: [Scheme; 2] = [Scheme::Lazy, Scheme::LazyAuth];

/// The label of the exporter that the keys of an ECL association come from. The context is that of [`EXPORTER_LABEL`].
pub const ECL_EXPORTER_LABEL: &[u8] = b"EXPORTER-strongroom-ecl";

/// The secret that the keys of an ECL association come from.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct EclSecret([u8; EXPORTER_BYTES]);

impl EclSecret {
    /// Its bytes; the caller wipes every copy.
    pub fn bytes(&self) -> &[u8; EXPORTER_BYTES] {
        &self.0
    }
}

impl fmt::Debug for EclSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EclSecret")
    }
}

/// What an initiator offers, or a target admits: any of these schemes with any of these suites, the preferred ones first.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The schemes.
    pub schemes: &'a [Scheme],
    /// The suites.
    pub suites: &'a [Suite],
}

/// What is spoken above the channel.
#[derive(Clone, Copy, Debug)]
pub enum Protocols<'a> {
    /// Block storage, with these schemes and suites.
    Blocks(Offer<'a>),
    /// Volume keys: [`KEYS_ALPN`].
    Keys,
    /// Snapshots on their way to another target: [`TRANSFER_ALPN`].
    Transfer,
    /// Taking up an invitation: [`PAIRING_ALPN`].
    Pairing,
    /// Requests of an operator: [`OPERATOR_ALPN`].
    Operator,
    /// Block storage over ECL, with those of these schemes that it has.
    Ecl(Offer<'a>),
    /// What a target's port admits: block storage, and as it says ECL, transfers, pairing and operators.
    Port {
        /// The schemes and suites of block storage, by whichever transport.
        blocks: Offer<'a>,
        /// Whether ECL is admitted.
        ecl: bool,
        /// Whether transfers are.
        transfer: bool,
        /// Whether invitations can be taken up, by nodes with any key.
        pairing: bool,
        /// Whether operators are.
        operator: bool,
    },
}

/// Which of [`Protocols`] both ends agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Block storage.
    Blocks,
    /// Volume keys.
    Keys,
    /// Snapshots.
    Transfer,
    /// An invitation. At a target the peer's key is proven, and any: what it may do is for the invitation to say.
    Pairing,
    /// Requests of an operator.
    Operator,
    /// Block storage over ECL: what follows on the connection is its login.
    Ecl,
}

impl<'a> From<&'a [Scheme]> for Offer<'a> {
    /// These schemes with the usual suite.
    fn from(schemes: &'a [Scheme]) -> Offer<'a> {
        Offer { schemes, suites: &[Suite::Aes256Gcm] }
    }
}

impl<'a, const N: usize> From<&'a [Scheme; N]> for Offer<'a> {
    fn from(schemes: &'a [Scheme; N]) -> Offer<'a> {
        schemes.as_slice().into()
    }
}

impl<'a, T: Into<Offer<'a>>> From<T> for Protocols<'a> {
    fn from(offer: T) -> Protocols<'a> {
        Protocols::Blocks(offer.into())
    }
}

impl Protocols<'_> {
    fn names(self) -> Vec<Vec<u8>> {
        let named = |offer: Offer<'_>, name: fn(Scheme, Suite) -> Vec<u8>, has: fn(&&Scheme) -> bool| {
            let with_every_suite = |&scheme| offer.suites.iter().map(move |&suite| name(scheme, suite));
            offer.schemes.iter().filter(has).flat_map(with_every_suite).collect::<Vec<_>>()
        };
        let blocks = |offer| named(offer, alpn, |_| true);
        let ecl = |offer| named(offer, ecl_alpn, |scheme| ECL_SCHEMES.contains(scheme));
        match self {
            Protocols::Blocks(offer) => blocks(offer),
            Protocols::Ecl(offer) => ecl(offer),
            Protocols::Keys => vec![KEYS_ALPN.to_vec()],
            Protocols::Transfer => vec![TRANSFER_ALPN.to_vec()],
            Protocols::Pairing => vec![PAIRING_ALPN.to_vec()],
            Protocols::Operator => vec![OPERATOR_ALPN.to_vec()],
            Protocols::Port { blocks: offer, ecl: has_ecl, transfer, pairing, operator } => {
                let ecl = if has_ecl { ecl(offer) } else { Vec::new() };
                let others = [(transfer, TRANSFER_ALPN), (pairing, PAIRING_ALPN), (operator, OPERATOR_ALPN)];
                let others = others.into_iter().filter(|(is_admitted, _)| *is_admitted).map(|(_, name)| name.to_vec());
                blocks(offer).into_iter().chain(ecl).chain(others).collect()
            }
        }
    }
}

fn agreement(protocol: &[u8]) -> Option<(Protocol, Scheme, Suite)> {
    match protocol {
        KEYS_ALPN => return Some((Protocol::Keys, Scheme::EncryptAll, Suite::default())),
        TRANSFER_ALPN => return Some((Protocol::Transfer, Scheme::EncryptAll, Suite::default())),
        PAIRING_ALPN => return Some((Protocol::Pairing, Scheme::EncryptAll, Suite::default())),
        OPERATOR_ALPN => return Some((Protocol::Operator, Scheme::EncryptAll, Suite::default())),
        _ => {}
    }
    let of = |agreed| {
        let suites = move |&scheme| Suite::ALL.map(|suite| (agreed, scheme, suite));
        Scheme::ALL.iter().flat_map(suites)
    };
    let mut all = of(Protocol::Blocks).chain(of(Protocol::Ecl));
    all.find(|&(agreed, scheme, suite)| match agreed {
        Protocol::Ecl => ecl_alpn(scheme, suite) == protocol,
        _ => alpn(scheme, suite) == protocol,
    })
}

/// Says which initiators a target admits. Asked in every handshake, so that a change of the access list counts at once.
pub trait PeerPolicy: Send + Sync {
    /// Whether a node with this key may connect at all; to take up an invitation, any node may.
    fn accepts(&self, key: &PublicKey) -> bool;
}

impl<F: Fn(&PublicKey) -> bool + Send + Sync> PeerPolicy for F {
    fn accepts(&self, key: &PublicKey) -> bool {
        self(key)
    }
}

/// What a finished handshake leaves.
#[derive(Debug)]
pub struct Finished {
    /// For [`Channel::initiator`](strongroom_channel::Channel::initiator) or
    /// [`Channel::target`](strongroom_channel::Channel::target).
    pub keys: ChannelKeys,
    /// Who the peer is, proven.
    pub peer: PublicKey,
    /// What is spoken from here on.
    pub protocol: Protocol,
    /// For the keys of the association, with [`Protocol::Ecl`].
    pub ecl: Option<EclSecret>,
    /// What a proof of an invitation is bound to, with [`Protocol::Pairing`].
    pub pairing: Option<PairingBinding>,
}

/// Gives a target's key to every initiator, and notes of each whether it offers pairing and nothing else: only then its own key need not be
/// known. Of a ClientHello that is repeated (RFC 8446 §4.1.4) the last one counts, as it does for what is agreed on.
#[derive(Debug)]
struct TargetKeyResolver {
    key: Arc<CertifiedKey>,
    is_for_pairing: Arc<AtomicBool>,
}

impl ResolvesServerCert for TargetKeyResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_for_pairing = hello.alpn().is_some_and(|offered| offered.eq([PAIRING_ALPN]));
        self.is_for_pairing.store(is_for_pairing, Ordering::Relaxed);
        Some(Arc::clone(&self.key))
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

enum Stage {
    Negotiating,
    /// Keys wait to be fetched.
    Ready(Finished),
    /// Keys were fetched. At an initiator the target may still refuse, until its confirmation has arrived.
    Over,
    Failed(HandshakeError),
}

/// A TLS 1.3 handshake between two nodes.
///
/// A driver loops: send everything from [`Handshake::poll_transmit`]; give what arrives to
/// [`Handshake::handle_input`], which takes at most one TLS record at a time and **0 bytes of what is not for it**;
/// ask [`Handshake::finished`]. A target then makes its channel and needs the handshake no more. An initiator makes its
/// channel, keeps the handshake until [`Channel::is_confirmed`](strongroom_channel::Channel::is_confirmed), and goes on
/// to offer what arrives to the handshake first: a target that refuses says so in TLS.
pub struct Handshake {
    role: Role,
    own: PublicKey,
    connection: Connection,
    refused: Refused,
    /// Of a target: the peer's key was not judged, because it offered pairing alone.
    is_for_pairing: Arc<AtomicBool>,
    record: Vec<u8>,
    taken_bytes: usize,
    stage: Stage,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("role", &self.role).field("taken_bytes", &self.taken_bytes).finish()
    }
}

impl Handshake {
    /// An initiator's side, for a target that has one of the `expected` keys.
    ///
    /// # Errors
    /// [`HandshakeError::NoTargetKey`] if `expected` is empty.
    pub fn initiator<'a>(
        node: &NodeKey,
        expected: &[PublicKey],
        offered: impl Into<Protocols<'a>>,
    ) -> Result<Handshake, HandshakeError> {
        if expected.is_empty() {
            return Err(HandshakeError::NoTargetKey);
        }
        let expected = expected.to_vec();
        let (provider, refused) = (provider(), Refused::default());
        let accepts = Box::new(move |key: &PublicKey| expected.contains(key));
        let verifier = KeyVerifier::new(accepts, Arc::clone(&refused), Arc::clone(&provider));
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(tls)?
            .dangerous() // No certificates: the verifier compares raw public keys, which is stricter.
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(node.certified())));
        config.alpn_protocols = offered.into().names();
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        config.enable_early_data = false;
        // Never sent and never checked: the library wants a name.
        let name = ServerName::try_from("strongroom.invalid").expect("a valid DNS name");
        let connection = ClientConnection::new(Arc::new(config), name).map_err(tls)?;
        Ok(Self::new(Role::Initiator, node, connection.into(), refused, Arc::default()))
    }

    /// A target's side. Of what is `admitted` it takes the first that the initiator offers. `policy` is not asked of one that offers pairing
    /// alone: where that is admitted, nothing but [`Protocol::Pairing`] comes of it.
    ///
    /// # Errors
    /// [`HandshakeError::Tls`] if the library refuses our own configuration.
    pub fn target<'a>(
        node: &NodeKey,
        policy: Arc<dyn PeerPolicy>,
        admitted: impl Into<Protocols<'a>>,
    ) -> Result<Handshake, HandshakeError> {
        let (provider, refused) = (provider(), Refused::default());
        let is_for_pairing = Arc::new(AtomicBool::new(false));
        let offers_pairing_alone = Arc::clone(&is_for_pairing);
        // With that offer nothing else can be agreed on, and nothing at all where pairing is not admitted.
        let accepts =
            Box::new(move |key: &PublicKey| offers_pairing_alone.load(Ordering::Relaxed) || policy.accepts(key));
        let verifier = KeyVerifier::new(accepts, Arc::clone(&refused), Arc::clone(&provider));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(tls)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(TargetKeyResolver {
                key: node.certified(),
                is_for_pairing: Arc::clone(&is_for_pairing),
            }));
        config.alpn_protocols = admitted.into().names();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        let connection = ServerConnection::new(Arc::new(config)).map_err(tls)?;
        Ok(Self::new(Role::Target, node, connection.into(), refused, is_for_pairing))
    }

    fn new(
        role: Role,
        node: &NodeKey,
        connection: Connection,
        refused: Refused,
        is_for_pairing: Arc<AtomicBool>,
    ) -> Handshake {
        let (own, record, stage) = (node.public(), Vec::new(), Stage::Negotiating);
        Handshake { role, own, connection, refused, is_for_pairing, record, taken_bytes: 0, stage }
    }

    /// Takes bytes from the peer, at most up to the end of one TLS record; returns how many it took. 0 means that the
    /// bytes are the channel's.
    ///
    /// # Errors
    /// [`HandshakeError`]. Send what [`Handshake::poll_transmit`] still has, so that the peer learns why, and close.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError> {
        if let Stage::Failed(error) = &self.stage {
            return Err(error.clone());
        }
        if bytes.is_empty() || self.is_for_channel(bytes[0]) {
            return Ok(0);
        }
        let taken = self.take_record(bytes);
        if let Err(error) = &taken {
            self.stage = Stage::Failed(error.clone());
        }
        taken
    }

    /// Bytes to send, if there are any.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut bytes).expect("writing into memory");
        }
        (!bytes.is_empty()).then_some(bytes)
    }

    /// The channel's keys and the peer, once, when the handshake is finished. What [`Handshake::poll_transmit`] has is
    /// still to be sent, before anything of the channel.
    pub fn finished(&mut self) -> Option<Finished> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Ready(finished) => Some(finished),
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// What an end of the peer's stream means now. Call it when the stream ends before the channel is confirmed.
    pub fn handle_eof(&self) -> HandshakeError {
        match &self.stage {
            Stage::Failed(error) => error.clone(),
            Stage::Ready(_) | Stage::Over if self.role == Role::Initiator => {
                HandshakeError::NotConfirmed { own: self.own }
            }
            _ => HandshakeError::Truncated,
        }
    }

    /// After a target has finished, everything is the channel's; after an initiator has, everything that starts a frame.
    fn is_for_channel(&self, first: u8) -> bool {
        match (&self.stage, self.role) {
            (Stage::Negotiating | Stage::Failed(_), _) => false,
            (_, Role::Target) => true,
            (_, Role::Initiator) => self.record.is_empty() && first >= FRAME_TYPE_MIN,
        }
    }

    /// rustls is fed one whole record at a time, so that it never swallows bytes of the channel behind it.
    fn take_record(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError> {
        let before = self.record.len();
        let header_missing = RECORD_HEADER_BYTES.saturating_sub(before).min(bytes.len());
        self.record.extend_from_slice(&bytes[..header_missing]);
        check_record_start(&self.record)?;
        let mut taken = header_missing;
        if let Some(header) = self.record.first_chunk::<RECORD_HEADER_BYTES>() {
            let body = usize::from(u16::from_be_bytes([header[3], header[4]]));
            let record_bytes = RECORD_HEADER_BYTES + body;
            if body == 0 || body > RECORD_BYTES_MAX {
                return Err(HandshakeError::NotTls);
            }
            if self.taken_bytes + record_bytes > HANDSHAKE_BYTES_MAX {
                return Err(HandshakeError::TooLong { limit: HANDSHAKE_BYTES_MAX });
            }
            let missing = (record_bytes - self.record.len()).min(bytes.len() - taken);
            self.record.extend_from_slice(&bytes[taken..taken + missing]);
            taken += missing;
            if self.record.len() == record_bytes {
                self.taken_bytes += record_bytes;
                self.process_record()?;
            }
        }
        Ok(taken)
    }

    fn process_record(&mut self) -> Result<(), HandshakeError> {
        let record = std::mem::take(&mut self.record);
        let mut rest = &record[..];
        while !rest.is_empty() {
            let taken = self.connection.read_tls(&mut rest).map_err(|_| HandshakeError::NotTls)?;
            if taken == 0 {
                return Err(HandshakeError::NotTls);
            }
        }
        self.connection.process_new_packets().map_err(|error| self.explain(error))?;
        match self.stage {
            Stage::Negotiating if !self.connection.is_handshaking() => {
                self.stage = Stage::Ready(self.finish()?);
                Ok(())
            }
            Stage::Negotiating => Ok(()),
            // Tickets, key updates and TLS data have no place here; only an alert has, and that is an error above.
            _ => Err(HandshakeError::Incompatible { reason: "the target goes on in TLS after the handshake" }),
        }
    }

    fn finish(&mut self) -> Result<Finished, HandshakeError> {
        let connection = &self.connection;
        if connection.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
            return Err(HandshakeError::Incompatible { reason: "not TLS 1.3" });
        }
        let protocol = connection.alpn_protocol().ok_or(HandshakeError::NoCommonScheme)?;
        let (agreed, scheme, suite) = agreement(protocol).ok_or(HandshakeError::NoCommonScheme)?;
        let presented = connection.peer_certificates().and_then(|keys| keys.first());
        let peer = presented
            .and_then(|spki| PublicKey::from_spki(spki))
            .ok_or(HandshakeError::Incompatible { reason: "no raw public key" })?;
        // Cannot be; and if it could, a key that nobody has judged would get to volumes.
        if agreed != Protocol::Pairing && self.is_for_pairing.load(Ordering::Relaxed) {
            return Err(HandshakeError::UnknownPeer { key: peer });
        }
        let (initiator, target) = match self.role {
            Role::Initiator => (self.own, peer),
            Role::Target => (peer, self.own),
        };
        let context = [protocol, initiator.as_bytes(), target.as_bytes()].concat();
        let mut exporter = [0; EXPORTER_BYTES];
        connection.export_keying_material(&mut exporter, EXPORTER_LABEL, Some(&context)).map_err(tls)?;
        let keys = ChannelKeys::new(exporter, scheme).with_suite(suite);
        exporter.zeroize();
        let ecl = match agreed {
            Protocol::Ecl => {
                let mut secret = EclSecret([0; EXPORTER_BYTES]);
                connection.export_keying_material(&mut secret.0, ECL_EXPORTER_LABEL, Some(&context)).map_err(tls)?;
                Some(secret)
            }
            _ => None,
        };
        let pairing = match agreed {
            Protocol::Pairing => {
                let mut bytes = [0; EXPORTER_BYTES];
                connection.export_keying_material(&mut bytes, PAIRING_EXPORTER_LABEL, Some(&context)).map_err(tls)?;
                let binding = PairingBinding::new(&bytes, initiator, target);
                bytes.zeroize();
                Some(binding)
            }
            _ => None,
        };
        Ok(Finished { keys, peer, protocol: agreed, ecl, pairing })
    }

    /// From what the library says to what a person can act on.
    fn explain(&self, error: Error) -> HandshakeError {
        if let Some(key) = *self.refused.lock().unwrap_or_else(PoisonError::into_inner) {
            return match self.role {
                Role::Initiator => HandshakeError::WrongTarget { presented: key },
                Role::Target => HandshakeError::UnknownPeer { key },
            };
        }
        match error {
            Error::AlertReceived(AlertDescription::AccessDenied) => match self.role {
                Role::Initiator => HandshakeError::RefusedByTarget { own: self.own },
                Role::Target => HandshakeError::RefusedByInitiator { own: self.own },
            },
            Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                HandshakeError::NoCommonScheme
            }
            Error::AlertReceived(AlertDescription::ProtocolVersion) => {
                HandshakeError::Incompatible { reason: "another TLS version" }
            }
            Error::PeerIncompatible(_)
            | Error::AlertReceived(
                AlertDescription::HandshakeFailure
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRequired,
            ) => HandshakeError::Incompatible { reason: "TLS versions, algorithms or key types that do not meet" },
            Error::NoCertificatesPresented => HandshakeError::Incompatible { reason: "the peer presented no key" },
            other => tls(other),
        }
    }
}

/// Refuses what cannot be a record of TLS 1.3 from its first bytes on: type 0x14 to 0x17, version 3.x.
fn check_record_start(record: &[u8]) -> Result<(), HandshakeError> {
    let type_fits = record.first().is_none_or(|byte| (0x14..=0x17).contains(byte));
    let version_fits = record.get(1).is_none_or(|&byte| byte == 3);
    if type_fits && version_fits { Ok(()) } else { Err(HandshakeError::NotTls) }
}

fn tls(error: Error) -> HandshakeError {
    HandshakeError::Tls(TlsError(error))
}

/// One cipher suite and one key exchange (hybrid, so that headers recorded today stay closed to a quantum computer):
/// both ends are ours, so nothing is negotiated.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![TLS13_AES_256_GCM_SHA384],
        kx_groups: vec![X25519MLKEM768],
        ..default_provider()
    })
}
