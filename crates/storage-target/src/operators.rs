//! Operators: peers that make, change and delete volumes, and say who may use them, over the target's ordinary port: `docs/operators.md`. And
//! their own end.
//!
//! A worker finds out in the handshake what a connection is for, and hands it over; a link has a thread of a pool of its own. What is asked for
//! is done as for the admin socket (`admin`), as far as operators may ask for it (`message`). Absent: who is an operator (`access`).

mod client;
mod error;
mod incoming;
mod message;

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strongroom_handshake::PublicKey;

use crate::detached_connection::DetachedConnection;
use crate::pool::Pool;
use crate::services::TargetServices;

pub use client::{OperatorClient, OperatorDestination};
pub use error::OperatorError;
pub use message::fuzz_request;

/// Links of operators at the same time.
pub const LINKS_MAX: usize = 16;
/// Of these, of one operator.
pub const LINKS_OF_PEER_MAX: usize = LINKS_MAX / 4;
/// Connections that wait to be told that they are none.
const REFUSALS_MAX: usize = 8;
/// Upper bound on the volumes of a target at which operators may still create one.
pub const VOLUMES_MAX: usize = 4096;
/// How long a target that stops waits for what operators have begun.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// The links of operators.
pub(crate) struct Operators {
    table: Arc<LinkTable>,
    pool: Pool,
    refusals: Pool,
}

#[derive(Default)]
struct LinkTable {
    links: Mutex<Links>,
    /// Notified when one ends.
    ended: Condvar,
    /// Held while a volume is made: there are never more than there may be.
    making: Mutex<()>,
}

#[derive(Default)]
struct Links {
    by_peer: HashMap<PublicKey, usize>,
    /// All of them, to be ended when the target stops.
    sockets: HashMap<u64, TcpStream>,
    next: u64,
    refusals: usize,
    is_stopping: bool,
}

/// One link's place, until this is dropped.
struct LinkPlace {
    table: Arc<LinkTable>,
    number: u64,
    peer: PublicKey,
}

/// The place of one that is refused, until this is dropped.
struct RefusalPlace(Arc<LinkTable>);

impl Operators {
    pub(crate) fn new() -> Operators {
        Operators {
            table: Arc::default(),
            pool: Pool::new("operator", LINKS_MAX),
            refusals: Pool::new("no-operator", 1),
        }
    }

    /// Serves a link elsewhere: the caller goes on at once. Where there is no place for it, it ends without a word.
    pub(crate) fn begin(&self, services: &Arc<TargetServices>, incoming: DetachedConnection) {
        let (from, key) = (incoming.from, incoming.channel.peer);
        let is_operator = services.settings().rules.operator(&key).is_some();
        let place = if is_operator { self.table.place(key, &incoming.stream) } else { None };
        let begun = match place {
            Some(place) => {
                let services = Arc::clone(services);
                self.pool.submit(move || incoming::run(&services, incoming, &place))
            }
            None => {
                tracing::warn!(peer = %from, %key, is_operator, "turned a link away that is for operators");
                let Some(place) = self.table.refusal() else { return };
                self.refusals.submit(move || incoming::turn_away(incoming, is_operator, &place))
            }
        };
        if let Err(error) = begun {
            tracing::warn!(peer = %from, %error, "a link of an operator was not served: there is no thread for it");
        }
    }

    /// Ends all links, and waits for what is under way.
    pub(crate) fn stop(&self) {
        let mut links = self.table.links();
        links.is_stopping = true;
        links.sockets.values().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        let deadline = Instant::now() + STOP_PATIENCE;
        while !links.sockets.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return tracing::error!("what an operator asked for does not end; the target stops without it");
            };
            links = self.table.ended.wait_timeout(links, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl LinkTable {
    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(self: &Arc<Self>, peer: PublicKey, stream: &TcpStream) -> Option<LinkPlace> {
        let socket = stream.try_clone().ok()?;
        let links = &mut *self.links();
        let of_peer = links.by_peer.get(&peer).copied().unwrap_or(0);
        if links.is_stopping || links.sockets.len() == LINKS_MAX || of_peer == LINKS_OF_PEER_MAX {
            return None;
        }
        links.next += 1;
        let number = links.next;
        links.by_peer.insert(peer, of_peer + 1);
        links.sockets.insert(number, socket);
        Some(LinkPlace { table: Arc::clone(self), number, peer })
    }

    fn refusal(self: &Arc<Self>) -> Option<RefusalPlace> {
        let mut links = self.links();
        if links.is_stopping || links.refusals == REFUSALS_MAX {
            return None;
        }
        links.refusals += 1;
        Some(RefusalPlace(Arc::clone(self)))
    }
}

impl Drop for LinkPlace {
    fn drop(&mut self) {
        let mut links = self.table.links();
        links.sockets.remove(&self.number);
        if let Some(count) = links.by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                links.by_peer.remove(&self.peer);
            }
        }
        drop(links);
        self.table.ended.notify_all();
    }
}

impl Drop for RefusalPlace {
    fn drop(&mut self) {
        self.0.links().refusals -= 1;
    }
}
