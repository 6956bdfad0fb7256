//! The channel for messages from the back end to the front end, of which one is sent: the configuration has changed, because the volume has
//! grown. The crate `vhost` has that channel (0.18) but not that message, so its descriptor is copied before the crate takes it.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send};
use vhost::vhost_user::message::{BackendReq, FrontendReq};

/// Request, flags, and bytes of what follows.
const HEADER_BYTES: usize = 12;
/// The version of the protocol, in a message's flags.
const VERSION: u32 = 1;

/// See the module.
#[derive(Debug)]
pub(super) struct BackendChannel(OwnedFd);

impl BackendChannel {
    /// A copy of the channel, if the next message on `connection` brings one. The message stays there.
    pub(super) fn peek(connection: impl AsFd) -> Option<BackendChannel> {
        let mut header = [0; HEADER_BYTES];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let (_, len) = recv(&connection, &mut header[..], flags).ok()?;
        let request = u32::from_ne_bytes(header[..4].try_into().expect("four bytes"));
        if len < HEADER_BYTES || request != u32::from(FrontendReq::SET_BACKEND_REQ_FD) {
            return None;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut header)];
        recvmsg(&connection, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC).ok()?;
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        descriptors.next()?.next().map(BackendChannel)
    }

    /// Tells the front end that the configuration has changed. It reads it then, and does not answer.
    pub(super) fn config_changed(&self) {
        let fields = [u32::from(BackendReq::CONFIG_CHANGE_MSG), VERSION, 0];
        let message: Vec<u8> = fields.into_iter().flat_map(u32::to_ne_bytes).collect();
        if let Err(error) = send(&self.0, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            tracing::warn!(%error, "cannot tell the front end that the volume has grown");
        }
    }
}
