//! One TCP connection of a nexus: its way there, its link, and what waits for the socket. No session, no socket.

use std::net::SocketAddr;
use std::time::Instant;

use strongroom_block::{Buffer, Custody};
use strongroom_channel::ChannelLimits;
use strongroom_iscsi::initiator::ConnectionId;
use strongroom_net::{Link, LinkOptions, StreamId};

use crate::{AttachError, AttachOptions};

/// A connection that is being made, or was.
#[derive(Debug)]
pub(crate) struct Wire {
    /// The driver's name for the socket.
    pub(crate) stream: StreamId,
    /// Where it leads, or is tried just now.
    pub(crate) address: SocketAddr,
    /// Further addresses of the same host, the next one last.
    pub(crate) others: Vec<SocketAddr>,
    pub(crate) is_connected: bool,
    /// The socket takes no more now.
    pub(crate) is_blocked: bool,
    /// Its name in the session, once it is logging in.
    pub(crate) id: Option<ConnectionId>,
    /// Its login is over: commands may go by it.
    pub(crate) is_in_session: bool,
    pub(crate) link: Link,
    pub(crate) out: Vec<Buffer>,
}

impl Wire {
    /// For a socket that is being connected to `address`.
    pub(crate) fn new(
        now: Instant,
        options: &AttachOptions,
        stream: StreamId,
        address: SocketAddr,
    ) -> Result<Wire, AttachError> {
        Ok(Wire {
            stream,
            address,
            others: Vec::new(),
            is_connected: false,
            is_blocked: false,
            id: None,
            is_in_session: false,
            link: link(now, options)?,
            out: Vec::new(),
        })
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
            rekey_tags: options.rekey.tags,
            rekey_bytes: options.rekey.bytes,
            ..ChannelLimits::default()
        },
        rekey_after: options.rekey.after,
        suites: vec![options.suite],
        ..LinkOptions::default()
    };
    if !options.url.is_channel() {
        return Ok(Link::initiator_plain(link_options, now));
    }
    let node = options.node_key.as_ref().ok_or_else(|| {
        AttachError::Options("a strongroom:// URL needs an identity; make one with 'strongroom identity new'".into())
    })?;
    Link::initiator_channel(node, &options.target_keys, link_options, now)
        .map_err(|error| AttachError::Handshake(error.to_string()))
}
