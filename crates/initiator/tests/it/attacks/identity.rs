//! Attacks on who talks to whom and by which scheme: they end in the handshake or at the login, and nothing was read or written.

use strongroom_block::Suite;
use strongroom_channel::Scheme;
use strongroom_handshake::alpn;
use strongroom_initiator::{AttachError, RemoteDevice};

use super::{AT, assert_holds, host};
use crate::axes::{pairs, schemes};
use crate::support::{BOB, Wire, key_of};

/// Somebody strikes the scheme that is offered and puts another one in its place.
#[test]
fn attack_downgrade_the_negotiation() {
    let host = host();
    for (offered, instead) in pairs(&schemes(), &schemes()) {
        let wire = Wire::before(&host);
        let (from, to) = (alpn(offered, Suite::default()), alpn(instead, Suite::default()));
        assert_eq!(from.len(), to.len(), "lengths stay as they are");
        wire.tamper_towards_target(move |message| {
            let found = message.bytes.windows(from.len()).position(|window| window == from);
            if let Some(at) = found.filter(|_| !message.is_frame()) {
                message.bytes[at..at + to.len()].copy_from_slice(&to);
            }
        });
        let mut options = host.options(wire.url("vault"));
        options.channel.scheme = Some(offered);
        let attached = RemoteDevice::attach(options);
        match attached {
            Ok(device) if offered == instead => assert_holds(&device, AT, 2),
            Ok(_) => panic!("{offered} became {instead}"),
            Err(error) => {
                assert_ne!(offered, instead, "{error}");
                assert!(matches!(error, AttachError::Handshake(_) | AttachError::Unreachable(_)), "{error:?}");
            }
        }
    }
}

/// Somebody cuts the suite off the name that is offered: what is left names the same scheme with the usual suite, and the rest passes
/// for a name that nobody knows. All lengths around them stay as they are.
#[test]
fn attack_downgrade_the_suite_alone() {
    let host = host();
    for (offered, tampers) in
        [Suite::Aes128Gcm, Suite::ChaCha20Poly1305].map(|one| [(one, false), (one, true)]).concat()
    {
        let wire = Wire::before(&host);
        let (whole, left) = (alpn(Scheme::Lazy, offered), alpn(Scheme::Lazy, Suite::default()));
        assert!(whole.starts_with(&left), "the usual suite has no name of its own");
        wire.tamper_towards_target(move |message| {
            let found = message.bytes.windows(whole.len()).position(|window| window == whole);
            if let Some(at) = found.filter(|_| tampers && !message.is_frame()) {
                assert_eq!(
                    usize::from(message.bytes[at - 1]),
                    whole.len(),
                    "RFC 7301 §3.1: a length in front of each name"
                );
                message.bytes[at - 1] = left.len() as u8;
                message.bytes[at + left.len()] = (whole.len() - left.len() - 1) as u8;
            }
        });
        let mut options = host.options(wire.url("vault"));
        (options.channel.scheme, options.channel.suite) = (Some(Scheme::Lazy), offered);
        match RemoteDevice::attach(options) {
            Ok(device) => {
                assert!(!tampers, "{offered} became another suite");
                assert_holds(&device, AT, 2);
            }
            Err(error) => {
                assert!(tampers, "{error}");
                assert!(matches!(error, AttachError::Handshake(_) | AttachError::Unreachable(_)), "{error:?}");
            }
        }
    }
}

/// A target that does not have the key it should have, and an initiator that nobody let in.
#[test]
fn attack_another_nodes_identity() {
    let host = host();
    for &scheme in Scheme::ALL {
        let refused = |change: fn(&mut strongroom_initiator::AttachOptions)| {
            let error = host.attach_error(|options| {
                options.channel.scheme = Some(scheme);
                change(options);
            });
            assert!(!error.is_temporary(), "{scheme}: {error}");
            error.to_string()
        };
        let message = refused(|options| options.channel.target_keys = vec![key_of(0x11).public()]);
        assert!(message.contains("not the expected one"), "{message}");
        let message = refused(|options| options.channel.node_key = Some(key_of(0x99)));
        assert!(message.contains("[[peer]]"), "{message}");
    }
}

#[test]
fn attack_another_nodes_initiator_name() {
    let host = host();
    for &scheme in Scheme::ALL {
        let error = host.attach_error(|options| {
            options.channel.scheme = Some(scheme);
            options.iscsi.initiator_name = BOB.into();
        });
        assert!(matches!(error, AttachError::LoginRefused(_)), "{scheme}: {error:?}");
    }
}
