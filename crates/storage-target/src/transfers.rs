//! Snapshots that other nodes send into volumes of this target, over its ordinary port: `docs/transfer.md`. And the sender's end.
//!
//! A worker finds out in the handshake that a connection is for a transfer, and hands it over. A transfer has a thread of a pool of its
//! own, with the volume's store in its hands like `strongroom volume receive`: no worker waits for it. Absent: the stream itself (the
//! store's; `docs/send-format.md`).

mod connection;
mod message;
mod outgoing;
mod reception;

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strongroom_handshake::PublicKey;
use strongroom_net::TransferChannel;

use crate::connection_slots::ConnectionSlot;
use crate::names::VolumeName;
use crate::pool::Pool;
use crate::services::TargetServices;
pub use message::{RefusalCode, fuzz_message};
pub use outgoing::{Begun, Destination, Outgoing, TransferError};

/// Transfers at the same time.
const TRANSFERS_MAX: usize = 8;
/// Of these, from one node.
const TRANSFERS_OF_PEER_MAX: usize = TRANSFERS_MAX / 2;
/// Connections that wait to be told that there is no room.
const REFUSALS_MAX: usize = 16;
/// How long a target that stops waits for stores that transfers had open.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// A connection that is to be a transfer.
pub(crate) struct Incoming {
    pub(crate) stream: TcpStream,
    pub(crate) transfer: TransferChannel,
    pub(crate) from: SocketAddr,
    pub(crate) place: ConnectionSlot,
}

/// The transfers under way.
pub(crate) struct Transfers {
    inner: Arc<Inner>,
    pool: Pool,
    refusals: Pool,
}

struct Inner {
    state: Mutex<TransfersUnderWay>,
    /// Notified when one ends.
    ended: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct TransfersUnderWay {
    by_peer: HashMap<PublicKey, usize>,
    by_volume: HashMap<VolumeName, Occupant>,
    /// All of them, to be ended when the target stops.
    sockets: HashMap<u64, TcpStream>,
    next: u64,
    refusals: usize,
}

/// Who sends into a volume now.
struct Occupant {
    number: u64,
    peer: PublicKey,
}

/// A transfer that counts, until this is dropped.
struct Counted {
    inner: Arc<Inner>,
    number: u64,
    peer: PublicKey,
}

/// A volume that a transfer has for itself, until this is dropped.
struct Claim {
    inner: Arc<Inner>,
    volume: VolumeName,
    number: u64,
}

impl Transfers {
    pub(crate) fn new() -> Transfers {
        let inner = Inner { state: Mutex::default(), ended: Condvar::new(), stopping: AtomicBool::new(false) };
        Transfers {
            inner: Arc::new(inner),
            pool: Pool::new("transfer", TRANSFERS_MAX),
            refusals: Pool::new("no-transfer", 1),
        }
    }

    /// Begins a transfer, or says that it cannot be, elsewhere: the caller goes on at once.
    pub(crate) fn begin(&self, shared: &Arc<TargetServices>, incoming: Incoming) {
        let peer = incoming.transfer.peer;
        let may_send = shared.settings().rules.may_send(&peer);
        let counted = if may_send { self.inner.count(peer, &incoming.stream) } else { None };
        let Some(counted) = counted else {
            let code = if may_send { RefusalCode::Overloaded } else { RefusalCode::NotPermitted };
            return self.turn_away(incoming, code);
        };
        let shared = Arc::clone(shared);
        let job = move || reception::run(&shared, incoming, &counted);
        if let Err(error) = self.pool.submit(job) {
            tracing::warn!(%error, "a transfer was not begun: there is no thread for it");
        }
    }

    fn turn_away(&self, incoming: Incoming, code: RefusalCode) {
        let mut state = self.inner.state();
        if state.refusals == REFUSALS_MAX {
            return;
        }
        state.refusals += 1;
        drop(state);
        let inner = Arc::clone(&self.inner);
        let job = move || {
            reception::turn_away(incoming, code);
            inner.state().refusals -= 1;
        };
        if self.refusals.submit(job).is_err() {
            self.inner.state().refusals -= 1;
        }
    }

    /// Ends all of them, and waits until their stores are closed.
    pub(crate) fn stop(&self) {
        self.inner.stopping.store(true, Ordering::Relaxed);
        let mut state = self.inner.state();
        state.sockets.values().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        let deadline = Instant::now() + STOP_PATIENCE;
        while !state.sockets.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return tracing::error!("a transfer does not end; its store is left as after a crash");
            };
            state = self.inner.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, TransfersUnderWay> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Counts one more; `None` if there are as many as may be.
    fn count(self: &Arc<Self>, peer: PublicKey, stream: &TcpStream) -> Option<Counted> {
        let socket = stream.try_clone().ok()?;
        let state = &mut *self.state();
        let of_peer = state.by_peer.get(&peer).copied().unwrap_or(0);
        if self.is_stopping() || state.sockets.len() == TRANSFERS_MAX || of_peer == TRANSFERS_OF_PEER_MAX {
            return None;
        }
        state.next += 1;
        let number = state.next;
        state.by_peer.insert(peer, of_peer + 1);
        state.sockets.insert(number, socket);
        Some(Counted { inner: Arc::clone(self), number, peer })
    }
}

impl Counted {
    /// Takes the volume for this transfer. One by the same node makes way: that node knows best whether it still sends. `None`: another
    /// node sends into it, or the one before does not end.
    fn claim(&self, volume: &VolumeName, patience: Duration) -> Option<Claim> {
        let deadline = Instant::now() + patience;
        let mut state = self.inner.state();
        loop {
            match state.by_volume.get(volume) {
                None => break,
                Some(occupant) if occupant.peer != self.peer => return None,
                Some(occupant) => {
                    if let Some(socket) = state.sockets.get(&occupant.number) {
                        let _ = socket.shutdown(Shutdown::Both);
                    }
                }
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            state = self.inner.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.by_volume.insert(volume.clone(), Occupant { number: self.number, peer: self.peer });
        drop(state);
        Some(Claim { inner: Arc::clone(&self.inner), volume: volume.clone(), number: self.number })
    }

    fn is_stopping(&self) -> bool {
        self.inner.is_stopping()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        state.sockets.remove(&self.number);
        if let Some(count) = state.by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                state.by_peer.remove(&self.peer);
            }
        }
        drop(state);
        self.inner.ended.notify_all();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        if state.by_volume.get(&self.volume).is_some_and(|occupant| occupant.number == self.number) {
            state.by_volume.remove(&self.volume);
        }
        drop(state);
        self.inner.ended.notify_all();
    }
}
