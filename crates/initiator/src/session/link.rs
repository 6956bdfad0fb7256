//! The initiator's end of a connection, as the URL says: the channel, or plain iSCSI.

use std::time::Instant;

use strongroom_channel::ChannelLimits;
use strongroom_handshake::HandshakeError;
use strongroom_net::{Link, LinkEnd, LinkOptions, ProtocolUse};

use crate::{AttachError, AttachOptions};

/// `ecl`: whether it is the login of an ECL association.
pub(super) fn link(now: Instant, options: &AttachOptions, ecl: ProtocolUse) -> Result<Link, AttachError> {
    let link_options = LinkOptions {
        setup_timeout: options.timeouts.connect,
        counters: options.counters.clone(),
        schemes: vec![options.scheme()],
        channel: ChannelLimits {
            rekey_tags: options.channel.rekey.tags,
            rekey_bytes: options.channel.rekey.bytes,
            ..ChannelLimits::default()
        },
        rekey_after: options.channel.rekey.after,
        suites: vec![options.channel.suite],
        ecl,
        ..LinkOptions::default()
    };
    if !options.url.is_channel() {
        return Ok(Link::initiator_plain(link_options, now));
    }
    let node = options.channel.node_key.as_ref().ok_or_else(|| {
        AttachError::Options(
            "this URL needs an identity, by which the target knows us; make one with 'strongroom identity new'".into(),
        )
    })?;
    Link::initiator_channel(node, &options.channel.target_keys, link_options, now)
        .map_err(|error| AttachError::Handshake(error.to_string()))
}

/// The error of a link that has ended.
pub(super) fn link_lost(end: &LinkEnd) -> AttachError {
    use HandshakeError as H;
    match end {
        LinkEnd::Handshake(H::WrongTarget { .. } | H::RefusedByTarget { .. } | H::Incompatible { .. } | H::NotTls) => {
            AttachError::Handshake(end.to_string())
        }
        _ => AttachError::Unreachable(end.to_string()),
    }
}
