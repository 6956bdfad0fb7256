//! The connections that there are, up to a limit, each with a thread.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slab::Slab;

use super::connection::{Beginning, Connection, STACK_BYTES};
use super::volume::ServedVolume;
use crate::completion::lock;
use crate::front::event::Event;

/// See the module.
#[derive(Debug)]
pub(super) struct Connections {
    count_max: usize,
    state: Mutex<ConnectionTable>,
    ended: Condvar,
    /// Happens when a connection ends.
    signalled: Option<Arc<Event>>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    open: Slab<Arc<Connection>>,
    /// That there is no room was said, and there has been none since.
    is_full_reported: bool,
}

/// Takes a connection out of the table, also if its thread panics.
struct Entry {
    connections: Arc<Connections>,
    key: usize,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut table = lock(&self.connections.state);
        table.open.remove(self.key);
        table.is_full_reported = false;
        drop(table);
        self.connections.ended.notify_all();
        if let Some(event) = &self.connections.signalled {
            event.signal();
        }
    }
}

impl Connections {
    pub(super) fn new(count_max: usize) -> Connections {
        Connections { count_max, state: Mutex::default(), ended: Condvar::new(), signalled: None }
    }

    /// The same, and the event happens when a connection ends.
    pub(super) fn signalling(self, event: Arc<Event>) -> Connections {
        Connections { signalled: Some(event), ..self }
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.state).open.len()
    }

    /// What clients have in flight now, in bytes, each.
    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> Vec<usize> {
        lock(&self.state).open.iter().map(|(_, connection)| connection.used_bytes()).collect()
    }

    /// Serves a client in a thread; closes the connection if there are too many already.
    pub(super) fn serve(self: &Arc<Self>, fd: OwnedFd, volume: &Arc<ServedVolume>, beginning: Beginning) {
        let connection = Arc::new(Connection::new(fd));
        let mut table = lock(&self.state);
        if table.open.len() >= self.count_max {
            if !std::mem::replace(&mut table.is_full_reported, true) {
                let count = self.count_max;
                tracing::warn!(count, "as many NBD clients as allowed are connected; further ones are turned away");
            }
            return;
        }
        let key = table.open.insert(connection.clone());
        drop(table);
        let entry = Entry { connections: self.clone(), key };
        let volume = volume.clone();
        let body = move || {
            let _entry = entry;
            connection.serve(&volume, beginning);
        };
        let thread = std::thread::Builder::new().name("nbd-client".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(body) {
            tracing::error!(%error, "no thread for an NBD client; raise `ulimit -u`");
        }
    }

    /// Ends all of them: after the replies that are due, or without those that clients do not take in this time. There must be no new ones.
    pub(super) fn end_all(&self, patience: Duration) {
        lock(&self.state).open.iter().for_each(|(_, connection)| connection.end());
        let until = Instant::now() + patience;
        let mut table = lock(&self.state);
        while !table.open.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            table = self.ended.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(table);
        self.break_off();
        let mut table = lock(&self.state);
        while !table.open.is_empty() {
            table = self.ended.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends them without further replies.
    pub(super) fn break_off(&self) {
        let open: Vec<Arc<Connection>> = lock(&self.state).open.iter().map(|(_, open)| open.clone()).collect();
        open.iter().for_each(|connection| connection.break_off());
    }
}
