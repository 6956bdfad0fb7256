//! Snapshots that other nodes send into volumes of this target, over its ordinary port: `docs/transfer.md`. And the sender's end.
//!
//! A worker finds out in the handshake that a connection is for a transfer, and hands it over. A transfer has a thread of a pool of its
//! own, which waits for the network and gives the stream to the volume's worker in slices (`reception`): no worker waits for it. Absent: the
//! stream itself (the store's; `docs/send-format.md`).

mod connection;
mod incoming;
mod message;
mod outgoing;

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strongroom_handshake::PublicKey;

use crate::detached_connection::DetachedConnection;
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
/// How long a target that stops waits for the threads of transfers.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// The transfers under way.
pub(crate) struct Transfers {
    registry: Arc<TransferRegistry>,
    pool: Pool,
    refusals: Pool,
}

struct TransferRegistry {
    under_way: Mutex<TransfersUnderWay>,
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

/// One of the transfers that may run at the same time, until this is dropped.
struct TransferSlot {
    registry: Arc<TransferRegistry>,
    number: u64,
    peer: PublicKey,
}

/// Keeps other transfers out of a volume, until this is dropped.
struct VolumeClaim {
    registry: Arc<TransferRegistry>,
    volume: VolumeName,
    number: u64,
}

impl Transfers {
    pub(crate) fn new() -> Transfers {
        let registry =
            TransferRegistry { under_way: Mutex::default(), ended: Condvar::new(), stopping: AtomicBool::new(false) };
        Transfers {
            registry: Arc::new(registry),
            pool: Pool::new("transfer", TRANSFERS_MAX),
            refusals: Pool::new("no-transfer", 1),
        }
    }

    /// Begins a transfer, or says that it cannot be, elsewhere: the caller goes on at once.
    pub(crate) fn begin(&self, shared: &Arc<TargetServices>, incoming: DetachedConnection) {
        let peer = incoming.channel.peer;
        let may_send = shared.settings().rules.may_send(&peer);
        let slot = if may_send { self.registry.allocate(peer, &incoming.stream) } else { None };
        let Some(slot) = slot else {
            let code = if may_send { RefusalCode::Overloaded } else { RefusalCode::NotPermitted };
            return self.turn_away(incoming, code);
        };
        let shared = Arc::clone(shared);
        let job = move || incoming::run(&shared, incoming, &slot);
        if let Err(error) = self.pool.submit(job) {
            tracing::warn!(%error, "a transfer was not begun: there is no thread for it");
        }
    }

    fn turn_away(&self, incoming: DetachedConnection, code: RefusalCode) {
        let mut under_way = self.registry.under_way();
        if under_way.refusals == REFUSALS_MAX {
            return;
        }
        under_way.refusals += 1;
        drop(under_way);
        let registry = Arc::clone(&self.registry);
        let job = move || {
            incoming::turn_away(incoming, code);
            registry.under_way().refusals -= 1;
        };
        if self.refusals.submit(job).is_err() {
            self.registry.under_way().refusals -= 1;
        }
    }

    /// Ends all of them, and waits for their threads.
    pub(crate) fn stop(&self) {
        self.registry.stopping.store(true, Ordering::Relaxed);
        let mut under_way = self.registry.under_way();
        under_way.sockets.values().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        let deadline = Instant::now() + STOP_PATIENCE;
        while !under_way.sockets.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return tracing::error!("a transfer does not end; the target stops without it");
            };
            under_way = self.registry.ended.wait_timeout(under_way, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl TransferRegistry {
    fn under_way(&self) -> MutexGuard<'_, TransfersUnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Room for one more; `None` if there is none.
    fn allocate(self: &Arc<Self>, peer: PublicKey, stream: &TcpStream) -> Option<TransferSlot> {
        let socket = stream.try_clone().ok()?;
        let under_way = &mut *self.under_way();
        let of_peer = under_way.by_peer.get(&peer).copied().unwrap_or(0);
        if self.is_stopping() || under_way.sockets.len() == TRANSFERS_MAX || of_peer == TRANSFERS_OF_PEER_MAX {
            return None;
        }
        under_way.next += 1;
        let number = under_way.next;
        under_way.by_peer.insert(peer, of_peer + 1);
        under_way.sockets.insert(number, socket);
        Some(TransferSlot { registry: Arc::clone(self), number, peer })
    }
}

impl TransferSlot {
    /// Takes the volume for this transfer. One by the same node makes way: that node knows best whether it still sends. `None`: another
    /// node sends into it, or the one before does not end.
    fn claim(&self, volume: &VolumeName, patience: Duration) -> Option<VolumeClaim> {
        let deadline = Instant::now() + patience;
        let mut under_way = self.registry.under_way();
        loop {
            match under_way.by_volume.get(volume) {
                None => break,
                Some(occupant) if occupant.peer != self.peer => return None,
                Some(occupant) => {
                    if let Some(socket) = under_way.sockets.get(&occupant.number) {
                        let _ = socket.shutdown(Shutdown::Both);
                    }
                }
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            under_way = self.registry.ended.wait_timeout(under_way, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        under_way.by_volume.insert(volume.clone(), Occupant { number: self.number, peer: self.peer });
        drop(under_way);
        Some(VolumeClaim { registry: Arc::clone(&self.registry), volume: volume.clone(), number: self.number })
    }

    fn is_stopping(&self) -> bool {
        self.registry.is_stopping()
    }
}

impl Drop for TransferSlot {
    fn drop(&mut self) {
        let mut under_way = self.registry.under_way();
        under_way.sockets.remove(&self.number);
        if let Some(count) = under_way.by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                under_way.by_peer.remove(&self.peer);
            }
        }
        drop(under_way);
        self.registry.ended.notify_all();
    }
}

impl Drop for VolumeClaim {
    fn drop(&mut self) {
        let mut under_way = self.registry.under_way();
        if under_way.by_volume.get(&self.volume).is_some_and(|occupant| occupant.number == self.number) {
            under_way.by_volume.remove(&self.volume);
        }
        drop(under_way);
        self.registry.ended.notify_all();
    }
}
