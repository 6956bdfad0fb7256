//! How a client is answered once its operation has ended: with data, without, or with an error.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, BufferMut, DeviceError, DeviceErrorKind, with_foreign_parts};
use strongroom_nbd::{Message, NbdError, ReplyEncoder, RequestId};

use super::outbox::{IN_PLACE_BYTES_MAX, Outbox};
use crate::front::credit::Cost;
use crate::front::pending::{Asker, Operation, OperationError};

/// Where a reply goes, and what it releases.
#[derive(Debug)]
pub(super) struct ReplyAddress {
    pub(super) outbox: Arc<Outbox>,
    pub(super) encoder: ReplyEncoder,
    pub(super) id: RequestId,
    pub(super) cost: Cost,
}

impl ReplyAddress {
    pub(super) fn send(&self, messages: Vec<Message>) {
        self.outbox.send(messages, self.cost);
    }

    pub(super) fn refuse(&self, error: NbdError, reason: &str) {
        self.send(vec![self.encoder.error(self.id, error, reason)]);
    }

    /// A request of the device has failed.
    pub(super) fn fail(&self, error: &DeviceError) {
        self.refuse(nbd_error(error.kind), &with_foreign_parts(&error.to_string()).to_string());
    }
}

/// What of the blocks that were read is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadWindow {
    pub(super) skip_bytes: usize,
    pub(super) len_bytes: usize,
    pub(super) block_size: BlockSize,
    pub(super) dont_fragment: bool,
}

impl ReadWindow {
    fn cut(self, blocks: Vec<BufferMut>) -> Vec<Buffer> {
        let (mut skip, mut left) = (self.skip_bytes, self.len_bytes);
        let cut = |blocks: BufferMut| {
            let end = blocks.len().min(skip + left);
            let part = Buffer::from(blocks).slice(skip..end);
            (skip, left) = (0, left - part.len());
            part
        };
        blocks.into_iter().map(cut).collect()
    }
}

/// A client that waits.
#[derive(Debug)]
pub(super) struct WaitingClient {
    reply: ReplyAddress,
    /// Of a read.
    window: Option<ReadWindow>,
}

impl WaitingClient {
    /// For anything that is answered without data.
    pub(super) fn new(reply: ReplyAddress) -> WaitingClient {
        WaitingClient { reply, window: None }
    }

    /// A read, in this many requests.
    pub(super) fn read(reply: ReplyAddress, window: ReadWindow, requests: usize) -> Operation<WaitingClient> {
        let is_long = window.len_bytes > IN_PLACE_BYTES_MAX;
        Operation::read(WaitingClient { reply, window: Some(window) }, requests, is_long)
    }
}

impl Asker for WaitingClient {
    fn answer(&self, outcome: Result<Vec<BufferMut>, OperationError>) {
        let ReplyAddress { encoder, id, .. } = self.reply;
        match (outcome, self.window) {
            (Err(OperationError::Device(error)), _) => self.reply.fail(&error),
            (Err(OperationError::GivenUp), _) => self.reply.refuse(NbdError::Shutdown, "the connection ends"),
            (Ok(_), None) => self.reply.send(vec![encoder.done(id)]),
            (Ok(data), Some(window)) => {
                let data = window.cut(data);
                self.reply.send(encoder.read(id, &data, window.block_size, window.dont_fragment));
            }
        }
    }

    fn is_gone(&self) -> bool {
        self.reply.outbox.is_broken()
    }
}

/// What a client sees.
fn nbd_error(kind: DeviceErrorKind) -> NbdError {
    match kind {
        DeviceErrorKind::Medium | DeviceErrorKind::Hardware | DeviceErrorKind::Unreachable | DeviceErrorKind::NoKey => {
            NbdError::Io
        }
        DeviceErrorKind::OutOfRange => NbdError::Invalid,
        DeviceErrorKind::NoSpace => NbdError::NoSpace,
        DeviceErrorKind::ReadOnly | DeviceErrorKind::ReservationConflict | DeviceErrorKind::Refused => {
            NbdError::NotPermitted
        }
    }
}
