//! The target's end of a pairing: one message in, one answer out, in a thread of a small pool. A node that nobody knows gets no further.
//!
//! Absent: what an invitation is good for, which `registry` knows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::failures::ProofFailures;
use super::message::{JoinedMessage, Message, PairingRefusal};
use super::now_s;
use super::registry::Joining;
use crate::admin::recheck;
use crate::channel_stream::{ChannelStream, ConnectionError};
use crate::connection_slots::network_of;
use crate::detached_connection::DetachedConnection;
use crate::pool::Pool;
use crate::services::TargetServices;

/// Pairings that are served at the same time.
const THREADS_MAX: usize = 4;
/// Those that wait for it, too.
const CONNECTIONS_MAX: usize = 16;
/// Of these, from one address.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 4;
/// How long a node may take to say what it wants, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pairings under way.
pub(crate) struct Pairings {
    pool: Pool,
    table: Arc<Mutex<PairingTable>>,
}

#[derive(Default)]
struct PairingTable {
    by_address: HashMap<IpAddr, usize>,
    failures: ProofFailures,
}

/// One connection's place, until this is dropped.
struct PairingPlace {
    table: Arc<Mutex<PairingTable>>,
    address: IpAddr,
}

impl Pairings {
    pub(crate) fn new() -> Pairings {
        Pairings { pool: Pool::new("pairing", THREADS_MAX), table: Arc::default() }
    }

    /// Serves a connection elsewhere: the caller goes on at once. Where there is no place for it, it ends without a word.
    pub(crate) fn begin(&self, services: &Arc<TargetServices>, incoming: DetachedConnection) {
        let from = incoming.from;
        let Some(place) = self.place(from.ip()) else {
            return tracing::warn!(peer = %from, "too many nodes want to join at the same time; one was turned away");
        };
        let services = Arc::clone(services);
        if let Err(error) = self.pool.submit(move || run(&services, incoming, &place)) {
            tracing::warn!(%error, "a node that wants to join was turned away: there is no thread for it");
        }
    }

    fn place(&self, from: IpAddr) -> Option<PairingPlace> {
        let address = network_of(from);
        let by_address = &mut lock(&self.table).by_address;
        let of_address = by_address.get(&address).copied().unwrap_or(0);
        if by_address.values().sum::<usize>() >= CONNECTIONS_MAX || of_address >= CONNECTIONS_PER_ADDRESS_MAX {
            return None;
        }
        by_address.insert(address, of_address + 1);
        Some(PairingPlace { table: Arc::clone(&self.table), address })
    }
}

impl Drop for PairingPlace {
    fn drop(&mut self) {
        let by_address = &mut lock(&self.table).by_address;
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

fn lock(table: &Mutex<PairingTable>) -> MutexGuard<'_, PairingTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(services: &TargetServices, incoming: DetachedConnection, place: &PairingPlace) {
    let from = incoming.from;
    if let Err(error) = serve(services, incoming, place) {
        tracing::warn!(peer = %from, %error, "a node that said it was invited went away, or broke the rules");
    }
}

fn serve(services: &TargetServices, incoming: DetachedConnection, place: &PairingPlace) -> Result<(), ConnectionError> {
    let deadline = Instant::now() + PATIENCE;
    let DetachedConnection { stream, mut channel, from, slot: _slot } = incoming;
    let (node, binding) = (channel.peer, channel.binding.take().ok_or(ConnectionError::Malformed)?);
    let mut stream = ChannelStream::new(stream, channel, deadline)?;
    let Ok(Message::Join(proof)) = Message::decode(&stream.receive(deadline)?.header) else {
        return Err(ConnectionError::Malformed);
    };
    // Not locked while something is written: workers take a place here.
    let may_try = lock(&place.table).failures.may_try(Instant::now(), place.address);
    let outcome = match may_try {
        true => services.join_peer(node, &proof, &binding, now_s()),
        false => Err(PairingRefusal::Busy),
    };
    let answer = match outcome {
        Ok(Joining { peer, was_joined }) => {
            // Workers judge logins by rules of their own hold: before the node hears that it may come.
            recheck(services, None);
            tracing::info!(peer = %from, key = %node, name = %peer.name, was_joined, "a node has joined");
            let (read_only, role, name, volumes) = (peer.read_only, peer.role, peer.name, peer.volumes);
            Message::Joined(JoinedMessage { was_joined, read_only, role, name, volumes })
        }
        Err(refusal) => {
            if refusal == PairingRefusal::NotValid {
                lock(&place.table).failures.note(Instant::now(), place.address);
            }
            tracing::warn!(peer = %from, key = %node, reason = ?refusal, "a node that said it was invited was refused");
            Message::Refused(refusal)
        }
    };
    stream.send(&answer.encode(), &[], deadline)?;
    stream.close();
    Ok(())
}
