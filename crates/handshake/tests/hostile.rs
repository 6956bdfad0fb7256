//! Proves that a peer which does not play by the rules gets nothing: other TLS versions, algorithms, protocols and kinds
//! of key, a stolen public key without its private half, tickets, garbage, and silence. The peers here are rustls,
//! configured as ours never is, and bytes by hand.

use std::sync::Arc;

use proptest::prelude::*;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ClientConnection};
use rustls::crypto::aws_lc_rs::{default_provider, kx_group::X25519, sign::any_eddsa_type};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ServerConnection};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, Connection, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use strongroom_channel::{Channel, ChannelKeys, ChannelLimits, CryptoCounters, Scheme};
use strongroom_handshake::{Finished, Handshake, HandshakeError, NodeKey, PeerPolicy, PublicKey};

/// What an initiator offers for S2-5.
const ALPN: &[u8] = b"strongroom/1 S2-5";
const INITIATOR_SEED: [u8; 32] = [1; 32];
const TARGET_SEED: [u8; 32] = [2; 32];

fn public(seed: [u8; 32]) -> PublicKey {
    NodeKey::from_seed(&seed).public()
}

fn target() -> Handshake {
    let policy: Arc<dyn PeerPolicy> = Arc::new(|key: &PublicKey| *key == public(INITIATOR_SEED));
    Handshake::target(&NodeKey::from_seed(&TARGET_SEED), policy, Scheme::ALL).unwrap()
}

fn initiator() -> Handshake {
    Handshake::initiator(&NodeKey::from_seed(&INITIATOR_SEED), &[public(TARGET_SEED)], &[Scheme::Lazy]).unwrap()
}

/// A key pair as rustls wants it; `presented` need not be the public half of `seed`.
fn certified(presented: PublicKey, seed: [u8; 32]) -> Arc<CertifiedKey> {
    let spki = [&[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0][..], presented.as_bytes()].concat();
    let pkcs8 = [&[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20][..], &seed].concat();
    let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8)).unwrap();
    Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], signing))
}

/// Believes everything.
#[derive(Debug)]
struct Credulous {
    raw: bool,
}

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.raw
    }
}

impl ClientCertVerifier for Credulous {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.raw
    }
}

/// How a client differs from ours.
struct Client {
    provider: rustls::crypto::CryptoProvider,
    raw: bool,
    alpn: Option<&'static [u8]>,
    key: Option<Arc<CertifiedKey>>,
}

impl Client {
    /// Not at all.
    fn like_ours() -> Client {
        let key = Some(certified(public(INITIATOR_SEED), INITIATOR_SEED));
        Client { provider: default_provider(), raw: true, alpn: Some(ALPN), key }
    }

    /// What the target says to it.
    fn meets_target(self) -> Result<(), HandshakeError> {
        meet(&mut self.connection(), &mut target()).map(drop)
    }

    fn connection(self) -> Connection {
        let builder = ClientConfig::builder_with_provider(Arc::new(self.provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Credulous { raw: self.raw }));
        let mut config = match self.key {
            Some(key) => builder.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key))),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.map(<[u8]>::to_vec).into_iter().collect();
        let name = ServerName::try_from("any.invalid").unwrap();
        ClientConnection::new(Arc::new(config), name).unwrap().into()
    }
}

/// Runs one of ours against rustls until it has finished, failed, or nothing moves.
fn meet(peer: &mut Connection, ours: &mut Handshake) -> Result<Finished, HandshakeError> {
    let mut finished = None;
    loop {
        let mut to_ours = Vec::new();
        while peer.wants_write() {
            peer.write_tls(&mut to_ours).unwrap();
        }
        let mut rest = &to_ours[..];
        while !rest.is_empty() {
            let taken = ours.handle_input(rest)?;
            assert!(taken > 0, "a peer that speaks TLS only sends nothing for the channel");
            rest = &rest[taken..];
        }
        finished = finished.or(ours.finished());
        let to_peer: Vec<u8> = std::iter::from_fn(|| ours.poll_transmit()).flatten().collect();
        let mut rest = &to_peer[..];
        while !rest.is_empty() {
            peer.read_tls(&mut rest).unwrap();
            let _ = peer.process_new_packets();
        }
        if to_ours.is_empty() && to_peer.is_empty() {
            return finished.ok_or_else(|| ours.handle_eof());
        }
    }
}

fn is_incompatible(result: &Result<(), HandshakeError>) -> bool {
    matches!(result, Err(HandshakeError::Incompatible { .. }))
}

/// Any TLS library will do that follows docs/protocol.md: this pins the exporter's label and context.
#[test]
fn a_client_that_does_everything_right_is_taken_and_understood() {
    let mut client = Client::like_ours().connection();
    let finished = meet(&mut client, &mut target()).unwrap();
    let (initiator, target) = (public(INITIATOR_SEED), public(TARGET_SEED));
    let context = [b"strongroom/1 S2-5", &initiator.as_bytes()[..], target.as_bytes()].concat();
    let exported = client.export_keying_material([0; 32], b"EXPORTER-strongroom-channel", Some(&context)).unwrap();

    let counters = Arc::new(CryptoCounters::new());
    let mut wire = Vec::new();
    Channel::target(finished.keys, ChannelLimits::default(), counters.clone(), &mut wire);
    let mut channel = Channel::initiator(ChannelKeys::new(exported, Scheme::Lazy), ChannelLimits::default(), counters);
    channel.handle_input(&wire[0]).unwrap();
    assert!(channel.is_confirmed());
}

#[test]
fn attack_initiators_public_key_without_its_private_half() {
    let key = Some(certified(public(INITIATOR_SEED), [9; 32]));
    let result = Client { key, ..Client::like_ours() }.meets_target();
    assert!(matches!(result, Err(HandshakeError::Tls(_))), "{result:?}");
}

#[test]
fn attack_targets_public_key_without_its_private_half() {
    let result = server(certified(public(TARGET_SEED), [9; 32]), 0);
    assert!(matches!(result, Err(HandshakeError::Tls(_))), "{result:?}");
}

#[test]
fn a_client_without_a_key_is_refused() {
    let result = Client { key: None, ..Client::like_ours() }.meets_target();
    assert!(is_incompatible(&result), "{result:?}");
}

#[test]
fn a_client_that_wants_certificates_is_refused() {
    let result = Client { raw: false, ..Client::like_ours() }.meets_target();
    assert!(is_incompatible(&result), "{result:?}");
}

#[test]
fn another_application_protocol_is_refused() {
    for alpn in [None, Some(&b"h2"[..]), Some(b"strongroom/2")] {
        let result = Client { alpn, ..Client::like_ours() }.meets_target();
        assert_eq!(result, Err(HandshakeError::NoCommonScheme), "{alpn:?}");
    }
}

#[test]
fn another_key_exchange_is_refused() {
    let provider = rustls::crypto::CryptoProvider { kx_groups: vec![X25519], ..default_provider() };
    let result = Client { provider, ..Client::like_ours() }.meets_target();
    assert!(is_incompatible(&result), "{result:?}");
}

/// A ClientHello of TLS 1.2, by hand: it lacks the extension that TLS 1.3 is negotiated by.
#[test]
fn tls_1_2_is_refused() {
    let mut body = vec![3, 3];
    body.extend([7; 32]); // random
    body.extend([0, 0, 2, 0xc0, 0x2c, 1, 0]); // no session, ECDHE-ECDSA-AES256-GCM-SHA384, no compression
    let mut extensions = vec![0, 13, 0, 4, 0, 2, 8, 7]; // signature_algorithms: ed25519
    extensions.extend([0, 10, 0, 4, 0, 2, 0, 29]); // supported_groups: x25519
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut record = vec![22, 3, 1];
    record.extend((body.len() as u16 + 4).to_be_bytes());
    record.extend([1, 0, 0, body.len() as u8]);
    record.extend(body);

    let mut target = target();
    let mut rest = &record[..];
    let error = loop {
        match target.handle_input(rest) {
            Ok(taken) => rest = &rest[taken..],
            Err(error) => break error,
        }
    };
    assert!(is_incompatible(&Err(error.clone())), "{error:?}");
    let alert = target.poll_transmit().expect("the peer is told");
    assert_eq!((alert[0], alert[5], alert[6]), (21, 2, 70), "a fatal alert, protocol_version");
}

fn server(key: Arc<CertifiedKey>, tickets: usize) -> Result<(), HandshakeError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(Arc::new(Credulous { raw: true }))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = tickets;
    meet(&mut ServerConnection::new(Arc::new(config)).unwrap().into(), &mut initiator()).map(drop)
}

#[test]
fn a_target_that_sends_tickets_is_refused() {
    let key = certified(public(TARGET_SEED), TARGET_SEED);
    assert_eq!(server(key.clone(), 0), Ok(()));
    let result = server(key, 2);
    assert!(is_incompatible(&result), "{result:?}");
}

#[test]
fn silence_and_every_cut_are_told() {
    let hello = initiator().poll_transmit().unwrap();
    for kept in 0..hello.len() {
        let mut target = target();
        let mut rest = &hello[..kept];
        while !rest.is_empty() {
            rest = &rest[target.handle_input(rest).unwrap()..];
        }
        assert!(target.finished().is_none());
        assert_eq!(target.handle_eof(), HandshakeError::Truncated);
    }
}

#[test]
fn what_is_not_tls_is_told_at_its_first_bytes() {
    for bytes in
        [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-", b"\x00\x00\x00\x00", b"\x16\x02", b"\x16\x03\x03\x00\x00", b"\x43"]
    {
        for mut side in [target(), initiator()] {
            let mut rest = bytes;
            let mut result = Ok(());
            while !rest.is_empty() && result.is_ok() {
                match side.handle_input(rest) {
                    Ok(taken) => rest = &rest[taken..],
                    Err(error) => result = Err(error),
                }
            }
            assert_eq!(result, Err(HandshakeError::NotTls), "{bytes:x?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For all input: an error or a wait, never a panic, never a finish, never an endless loop.
    #[test]
    fn garbage_finishes_nothing(record_type in 0x14u8..0x18, mut body in proptest::collection::vec(any::<u8>(), 1..600),
                                piece in 1usize..700) {
        body[0] %= 3; // often the type of a message that could come
        let mut bytes = vec![record_type, 3, 3];
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend(&body);
        for mut side in [target(), initiator()] {
            for chunk in bytes.chunks(piece) {
                let mut rest = chunk;
                while !rest.is_empty() {
                    match side.handle_input(rest) {
                        Ok(taken) => {
                            prop_assert!(taken > 0);
                            rest = &rest[taken..];
                        }
                        Err(_) => break,
                    }
                }
            }
            prop_assert!(side.finished().is_none());
        }
    }
}
