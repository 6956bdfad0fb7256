//! What the kernel still waits for: replies by token, and the thread that sends them as completions arrive.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use strongroom_block::{BlockDevice, BufferMut, Completion, DeviceError, DeviceErrorKind, Request, Token};

use crate::completion::lock;

/// How long the reply thread sleeps at most before it looks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(250);

/// Replies that are owed. Bounded by the device's own queue limit: a request enters the device right after it enters here.
#[derive(Debug, Default)]
pub(crate) struct Pending {
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

/// How a request without data is answered.
#[derive(Debug)]
pub(crate) enum PartsReply {
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
    /// Reads into `buffer`, then answers with `len_bytes` of it from `skip_bytes` on.
    pub(crate) fn submit_read(
        &self,
        device: &dyn BlockDevice,
        lba: strongroom_block::Lba,
        buffer: BufferMut,
        skip_bytes: usize,
        len_bytes: usize,
        reply: ReplyData,
    ) {
        let token = self.owe(Owed::Read { reply, skip_bytes, len_bytes });
        device.submit(token, Request::Read { lba, buffer });
    }

    /// Submits every request; answers when the last has completed, with the first error if there was one.
    pub(crate) fn submit_parts(&self, device: &dyn BlockDevice, requests: Vec<Request>, reply: PartsReply) {
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
    pub(crate) fn reply_until_stopped(&self, device: &dyn BlockDevice) {
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
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    fn owe(&self, owed: Owed) -> Token {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        lock(&self.replies).insert(token, owed);
        Token(token)
    }

    fn answer(&self, completion: Completion) {
        let owed = lock(&self.replies).remove(&completion.token.0);
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
