//! Operations on volumes as a whole, one at a time for each volume: a slow one holds up only those that concern the same volumes.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::names::VolumeName;

/// The names that operations work on now. A name that an operation is about to give to a new volume counts too.
#[derive(Debug, Default)]
pub(crate) struct VolumeTurns {
    taken: Mutex<HashSet<VolumeName>>,
    freed: Condvar,
}

/// While it lives nobody else operates on these volumes.
#[derive(Debug)]
pub(crate) struct VolumeTurn<'a> {
    turns: &'a VolumeTurns,
    names: Vec<VolumeName>,
}

impl VolumeTurns {
    /// Waits until all of these are free, and takes them together, so that two operations never wait for each other.
    pub(crate) fn take(&self, names: impl IntoIterator<Item = VolumeName>) -> VolumeTurn<'_> {
        let mut names: Vec<VolumeName> = names.into_iter().collect();
        names.sort();
        names.dedup();
        let is_taken = |taken: &mut HashSet<VolumeName>| names.iter().any(|name| taken.contains(name));
        let mut taken = self.freed.wait_while(self.taken(), is_taken).unwrap_or_else(PoisonError::into_inner);
        taken.extend(names.iter().cloned());
        VolumeTurn { turns: self, names }
    }

    fn taken(&self) -> MutexGuard<'_, HashSet<VolumeName>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for VolumeTurn<'_> {
    fn drop(&mut self) {
        let mut taken = self.turns.taken();
        for name in &self.names {
            taken.remove(name);
        }
        drop(taken);
        self.turns.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn name(name: &str) -> VolumeName {
        VolumeName::new(name).unwrap()
    }

    #[test]
    fn only_the_same_volumes_wait() {
        let turns = VolumeTurns::default();
        let both = turns.take([name("a"), name("b"), name("a")]);
        drop(turns.take([name("c")]));
        std::thread::scope(|scope| {
            let (got, order) = mpsc::channel();
            let turns = &turns;
            scope.spawn(move || {
                let _turn = turns.take([name("b"), name("c")]);
                got.send(()).unwrap();
            });
            assert!(order.recv_timeout(Duration::from_millis(50)).is_err(), "b is taken");
            drop(both);
            assert_eq!(order.recv_timeout(Duration::from_secs(60)), Ok(()));
        });
        assert!(turns.taken().is_empty());
    }
}
