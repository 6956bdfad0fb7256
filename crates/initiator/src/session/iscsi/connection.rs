//! What iSCSI keeps for each connection: its link, its name in the session, and what waits for the socket. No session, no socket.

use std::time::Instant;

use strongroom_block::{Buffer, Custody};
use strongroom_channel::ChannelLimits;
use strongroom_iscsi::initiator::ConnectionId;
use strongroom_net::{Link, LinkOptions};

use crate::{AttachError, AttachOptions};

/// See the module.
#[derive(Debug)]
pub(crate) struct IscsiConnection {
    /// Its name in the session, once it is logging in.
    pub(super) id: Option<ConnectionId>,
    pub(super) link: Link,
    out: Vec<Buffer>,
}

impl IscsiConnection {
    /// For a socket that is being connected.
    pub(super) fn new(now: Instant, options: &AttachOptions) -> Result<IscsiConnection, AttachError> {
        link(now, options).map(IscsiConnection::over)
    }

    /// Over a link that was made elsewhere.
    pub(crate) fn over(link: Link) -> IscsiConnection {
        IscsiConnection { id: None, link, out: Vec::new() }
    }

    /// What the link has for the socket.
    pub(super) fn take_output(&mut self) -> Vec<Buffer> {
        self.link.poll_transmit(&mut self.out);
        std::mem::take(&mut self.out)
    }

    /// Parameters of a sealed unit are encrypted under every scheme, and headers that carry block keys are wiped.
    pub(super) fn protect(&mut self, custody: Option<Custody>) {
        let Some(custody) = custody else { return };
        self.link.conceal_parameters();
        if !custody.is_blind() {
            self.link.wipe_headers();
        }
    }
}

/// The initiator's end of what the URL says.
fn link(now: Instant, options: &AttachOptions) -> Result<Link, AttachError> {
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
        ..LinkOptions::default()
    };
    if !options.url.is_channel() {
        return Ok(Link::initiator_plain(link_options, now));
    }
    let node = options.channel.node_key.as_ref().ok_or_else(|| {
        AttachError::Options("a strongroom:// URL needs an identity; make one with 'strongroom identity new'".into())
    })?;
    Link::initiator_channel(node, &options.channel.target_keys, link_options, now)
        .map_err(|error| AttachError::Handshake(error.to_string()))
}
