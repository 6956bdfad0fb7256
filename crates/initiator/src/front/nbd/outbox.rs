//! The replies to one client, on their way into its socket. Short ones are sent by the thread that has them, as long as the socket takes
//! them; the rest by the connection's writer thread. No thread but that one ever waits for a client.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes};
use strongroom_nbd::Message;

use super::stream::{Stream, Wait};
use crate::completion::lock;
use crate::front::credit::{Cost, Credit, CreditLimits};

/// Of one client.
const CREDIT_LIMITS: CreditLimits = CreditLimits { requests_max: 128, bytes_max: 16 << 20 };

/// Up to this many bytes are copied into the socket by the thread that has the reply, which is the device's: less work than waking another.
pub(super) const IN_PLACE_BYTES_MAX: usize = 64 << 10;
/// What a thread that is not the writer sends in a row, while others add to it.
const IN_PLACE_BATCHES_MAX: usize = 4;
/// What is sealed and sent at once, in bytes.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// Pieces of one system call.
const SLICES_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    stream: Arc<Stream>,
    credit: Credit,
    state: Mutex<OutboxState>,
    changed: Condvar,
    is_broken: AtomicBool,
}

#[derive(Debug, Default)]
struct OutboxState {
    queue: VecDeque<Piece>,
    turn: Turn,
    is_closing: bool,
}

/// Who sends. There is one at a time, so that replies stay whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    Nobody,
    /// A thread that had a reply. It looks for more before it ends its turn.
    Sender,
    /// The writer thread, or it is about to.
    Writer,
}

/// Bytes, in the order in which they go.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    is_sealed: bool,
    /// Released once they are sent.
    cost: Cost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Batch {
    /// It was sent; there may be more.
    Sent,
    /// The socket takes no more now; what is left is in the queue again.
    Blocked,
    /// There was none; the turn is over.
    Nothing,
}

impl Outbox {
    pub(super) fn new(stream: Arc<Stream>) -> Outbox {
        Outbox {
            stream,
            credit: Credit::new(CREDIT_LIMITS),
            state: Mutex::default(),
            changed: Condvar::new(),
            is_broken: AtomicBool::new(false),
        }
    }

    /// What its client may have in flight.
    pub(super) fn credit(&self) -> &Credit {
        &self.credit
    }

    /// Nothing can be sent any more.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Sends a reply, now or later, and then releases what its request has cost.
    pub(super) fn send(&self, messages: Vec<Message>, cost: Cost) {
        let mut state = lock(&self.state);
        if self.is_broken() {
            drop(state);
            return self.credit.release(cost);
        }
        let mut len_bytes = 0;
        for bytes in messages.into_iter().flat_map(|message| [message.head.into(), message.body.into_bytes()]) {
            len_bytes += bytes.len();
            state.queue.push_back(Piece { bytes, is_sealed: false, cost: Cost::default() });
        }
        state.queue.push_back(Piece { bytes: Bytes::new(), is_sealed: false, cost });
        if state.turn != Turn::Nobody {
            return;
        }
        if len_bytes > IN_PLACE_BYTES_MAX {
            return self.leave_to_writer(state);
        }
        state.turn = Turn::Sender;
        drop(state);
        for _ in 0..IN_PLACE_BATCHES_MAX {
            match self.send_batch(Wait::No) {
                Batch::Sent => {}
                Batch::Blocked => break,
                Batch::Nothing => return,
            }
        }
        self.leave_to_writer(lock(&self.state));
    }

    /// Sends what the TLS session has to say by itself.
    pub(super) fn send_session_messages(&self) {
        if self.stream.wants_write() {
            self.send(Vec::new(), Cost::default());
        }
    }

    fn leave_to_writer(&self, mut state: MutexGuard<'_, OutboxState>) {
        state.turn = Turn::Writer;
        drop(state);
        self.changed.notify_all();
    }

    /// The writer thread: sends what others leave to it, until the connection is closed or broken.
    pub(super) fn write_until_closed(&self) {
        let mut state = lock(&self.state);
        loop {
            if state.turn == Turn::Writer {
                drop(state);
                while self.send_batch(Wait::Yes) == Batch::Sent {}
                state = lock(&self.state);
            } else if self.is_broken() || (state.is_closing && state.turn == Turn::Nobody) {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Sends what is still there, and nothing after it.
    pub(super) fn close(&self) {
        self.stream.close_session();
        self.send_session_messages();
        lock(&self.state).is_closing = true;
        self.changed.notify_all();
    }

    /// Gives the connection up: nothing is sent any more, and nobody waits for it.
    pub(super) fn break_off(&self) {
        self.stream.shut_down();
        let mut state = lock(&self.state);
        self.is_broken.store(true, Ordering::Release);
        let unsent = state.queue.drain(..).fold(Cost::default(), |sum, piece| sum.and(piece.cost));
        drop(state);
        self.changed.notify_all();
        self.credit.release(unsent);
        self.credit.give_up();
    }

    /// For who has the turn.
    fn send_batch(&self, wait: Wait) -> Batch {
        let mut state = lock(&self.state);
        let mut batch = take_batch(&mut state.queue);
        if batch.is_empty() {
            state.turn = Turn::Nobody;
            drop(state);
            self.changed.notify_all();
            return Batch::Nothing;
        }
        drop(state);
        match self.seal_and_send(&mut batch, wait) {
            Ok(()) => Batch::Sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut state = lock(&self.state);
                batch.append(&mut state.queue);
                state.queue = batch;
                Batch::Blocked
            }
            Err(error) => {
                tracing::debug!(%error, "cannot send to an NBD client");
                let unsent = batch.drain(..).fold(Cost::default(), |sum, piece| sum.and(piece.cost));
                self.credit.release(unsent);
                self.break_off();
                // With an empty queue, the next call ends the turn.
                Batch::Sent
            }
        }
    }

    fn seal_and_send(&self, batch: &mut VecDeque<Piece>, wait: Wait) -> io::Result<()> {
        if batch.iter().any(|piece| !piece.is_sealed) {
            self.seal(batch)?;
        }
        loop {
            while batch.front().is_some_and(|piece| piece.bytes.is_empty()) {
                self.credit.release(batch.pop_front().expect("it is there").cost);
            }
            if batch.is_empty() {
                return Ok(());
            }
            let slices: Vec<IoSlice<'_>> =
                batch.iter().take(SLICES_MAX).map(|piece| IoSlice::new(&piece.bytes)).collect();
            let mut sent = self.stream.send(&slices, wait)?;
            for piece in batch.iter_mut() {
                let part = sent.min(piece.bytes.len());
                piece.bytes.advance(part);
                sent -= part;
                if sent == 0 {
                    break;
                }
            }
        }
    }

    /// What is not sealed yet comes after what is.
    fn seal(&self, batch: &mut VecDeque<Piece>) -> io::Result<()> {
        let first = batch.iter().take_while(|piece| piece.is_sealed).count();
        let sealed = self.stream.seal(batch.iter().skip(first).map(|piece| &piece.bytes))?;
        let Some(bytes) = sealed else {
            batch.iter_mut().for_each(|piece| piece.is_sealed = true);
            return Ok(());
        };
        let cost = batch.drain(first..).fold(Cost::default(), |sum, piece| sum.and(piece.cost));
        batch.push_back(Piece { bytes, is_sealed: true, cost });
        Ok(())
    }
}

/// The first pieces, a long one only in part.
fn take_batch(queue: &mut VecDeque<Piece>) -> VecDeque<Piece> {
    let mut batch = VecDeque::new();
    let mut room = BATCH_BYTES_MAX;
    while let Some(mut piece) = queue.pop_front() {
        if piece.bytes.len() > room {
            let bytes = piece.bytes.split_to(room);
            batch.push_back(Piece { bytes, is_sealed: piece.is_sealed, cost: Cost::default() });
            queue.push_front(piece);
            break;
        }
        room -= piece.bytes.len();
        batch.push_back(piece);
    }
    batch
}
