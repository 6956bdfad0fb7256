//! What iSCSI keeps for each connection: its link, its name in the session, and what waits for the socket. No session, no socket.

use std::time::Instant;

use strongroom_block::{Buffer, Custody};
use strongroom_iscsi::initiator::ConnectionId;
use strongroom_net::{Link, ProtocolUse};

use crate::session::link::link;
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
        link(now, options, ProtocolUse::Never).map(IscsiConnection::over)
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
