//! What the kernel still waits for: replies by token. Short ones are sent by the device's own thread as soon as a request has ended; a thread
//! of ours sends the long ones, whose copying would keep the device from its network.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use strongroom_block::{
    BlockDevice, BufferMut, Completion, CompletionSink, DeviceError, DeviceErrorKind, Lba, Request, Token,
};

use crate::completion::lock;

/// Up to this many bytes of a read are copied to the kernel by the device's thread: less work than waking another one.
const REPLY_IN_PLACE_BYTES_MAX: usize = 64 << 10;
/// How long the reply thread sleeps at most before it looks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(250);

/// Replies that are owed. Bounded by the device's own queue limit: a request enters the device right after it enters here.
#[derive(Debug, Default)]
pub(super) struct Pending {
    replies: Mutex<HashMap<u64, Owed>>,
    next_token: AtomicU64,
    stopping: AtomicBool,
}

#[derive(Debug)]
enum Owed {
    Read { reply: ReplyData, skip_bytes: usize, len_bytes: usize },
    Part(Arc<Parts>),
}

/// One kernel request that became several device requests; the last completion answers it.
#[derive(Debug)]
struct Parts {
    remaining: AtomicUsize,
    outcome: Mutex<Outcome>,
}

#[derive(Debug)]
struct Outcome {
    error: Option<DeviceError>,
    reply: Option<PartsReply>,
}

/// A read of whole blocks, and which of their bytes are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadRange {
    pub(super) lba: Lba,
    /// Whole blocks.
    pub(super) blocks_bytes: usize,
    pub(super) skip_bytes: usize,
    pub(super) len_bytes: usize,
}

/// How a request without data is answered.
#[derive(Debug)]
pub(super) enum PartsReply {
    /// A write of this many bytes.
    Write(ReplyWrite, u32),
    /// Anything else.
    Empty(ReplyEmpty),
}

impl PartsReply {
    fn send(self, error: Option<DeviceError>) {
        match (self, error) {
            (PartsReply::Write(reply, written), None) => reply.written(written),
            (PartsReply::Write(reply, _), Some(error)) => reply.error(errno(&error)),
            (PartsReply::Empty(reply), None) => reply.ok(),
            (PartsReply::Empty(reply), Some(error)) => reply.error(errno(&error)),
        }
    }
}

impl Pending {
    /// Reads the blocks of `range`, then answers with the bytes that were asked for.
    pub(super) fn submit_read(&self, device: &dyn BlockDevice, range: ReadRange, reply: ReplyData) {
        let ReadRange { lba, blocks_bytes, skip_bytes, len_bytes } = range;
        // A read that succeeds fills all of it.
        let buffer = BufferMut::to_fill(blocks_bytes);
        let token = self.owe(Owed::Read { reply, skip_bytes, len_bytes });
        device.submit(token, Request::Read { lba, buffer });
    }

    /// Submits every request; answers when the last has completed, with the first error if there was one.
    pub(super) fn submit_parts(&self, device: &dyn BlockDevice, requests: Vec<Request>, reply: PartsReply) {
        if requests.is_empty() {
            return reply.send(None);
        }
        let parts = Arc::new(Parts {
            remaining: AtomicUsize::new(requests.len()),
            outcome: Mutex::new(Outcome { error: None, reply: Some(reply) }),
        });
        for request in requests {
            let token = self.owe(Owed::Part(parts.clone()));
            device.submit(token, request);
        }
    }

    /// The reply thread: runs until [`Pending::stop`] was called and nothing is owed any more.
    pub(super) fn reply_until_stopped(&self, device: &dyn BlockDevice) {
        let mut completions = Vec::new();
        loop {
            device.wait(Some(STOP_CHECK));
            device.poll_completions(&mut completions);
            for completion in completions.drain(..) {
                self.answer(completion);
            }
            if self.stopping.load(Ordering::Acquire) && lock(&self.replies).is_empty() {
                return;
            }
        }
    }

    /// Lets the reply thread end once nothing is owed.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    fn owe(&self, owed: Owed) -> Token {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        lock(&self.replies).insert(token, owed);
        Token(token)
    }

    fn answer(&self, completion: Completion) {
        let owed = lock(&self.replies).remove(&completion.token.0);
        self.answer_owed(owed, completion);
    }

    fn answer_owed(&self, owed: Option<Owed>, completion: Completion) {
        if let Err(error) = &completion.result {
            tracing::error!(%error, kind = ?error.kind, "request failed");
        }
        match owed {
            Some(Owed::Read { reply, skip_bytes, len_bytes }) => match completion.result {
                Ok(Some(buffer)) => reply.data(&buffer[skip_bytes..skip_bytes + len_bytes]),
                Ok(None) => reply.error(Errno::EIO),
                Err(error) => reply.error(errno(&error)),
            },
            Some(Owed::Part(parts)) => parts.completed(completion.result.err()),
            None => tracing::error!(token = completion.token.0, "a completion that nobody waits for"),
        }
    }
}

impl CompletionSink for Pending {
    fn complete(&self, completion: Completion) -> Option<Completion> {
        let mut replies = lock(&self.replies);
        match replies.get(&completion.token.0) {
            // What is not ours is the last flush's.
            None => return Some(completion),
            Some(Owed::Read { len_bytes, .. }) if *len_bytes > REPLY_IN_PLACE_BYTES_MAX => {
                return Some(completion);
            }
            Some(_) => {}
        }
        let owed = replies.remove(&completion.token.0);
        drop(replies);
        self.answer_owed(owed, completion);
        None
    }
}

impl Parts {
    fn completed(&self, error: Option<DeviceError>) {
        let mut outcome = lock(&self.outcome);
        if outcome.error.is_none() {
            outcome.error = error;
        }
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            let (reply, error) = (outcome.reply.take(), outcome.error.take());
            drop(outcome);
            reply.expect("only the last part takes the reply").send(error);
        }
    }
}

/// What a program sees.
fn errno(error: &DeviceError) -> Errno {
    Errno::from_i32(match error.kind {
        DeviceErrorKind::Medium | DeviceErrorKind::Hardware => libc::EIO,
        DeviceErrorKind::OutOfRange => libc::EINVAL,
        DeviceErrorKind::NoSpace => libc::ENOSPC,
        DeviceErrorKind::ReadOnly => libc::EROFS,
        // As the kernel's own block layer says it.
        DeviceErrorKind::ReservationConflict => libc::EBADE,
        DeviceErrorKind::Refused => libc::EACCES,
        DeviceErrorKind::Unreachable => libc::ETIMEDOUT,
        DeviceErrorKind::NoKey => libc::ENOKEY,
    })
}
