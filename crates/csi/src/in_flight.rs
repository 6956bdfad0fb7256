//! One operation on a volume at a time: a second one is told to come again, as the specification asks for.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

/// What is under way.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<HashSet<String>>>);

/// An operation that is under way, until it is dropped.
pub(crate) struct Turn {
    in_flight: InFlight,
    names: Vec<String>,
}

impl InFlight {
    /// Begins an operation on these.
    ///
    /// # Errors
    /// `ABORTED` if another one is under way on one of them.
    pub(crate) fn begin(&self, names: impl IntoIterator<Item = String>) -> Result<Turn, Status> {
        let mut turn = Turn { in_flight: self.clone(), names: Vec::new() };
        for name in names {
            if !turn.in_flight.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone()) {
                return Err(Status::aborted("an operation on this is under way already; try again"));
            }
            turn.names.push(name);
        }
        Ok(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.in_flight.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &self.names {
            all.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_operation_is_told_to_come_again() {
        let all = InFlight::default();
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let first = all.begin(names(&["a", "b"])).unwrap();
        assert_eq!(all.begin(names(&["c", "b"])).err().map(|status| status.code()), Some(tonic::Code::Aborted));
        // What the refused one had begun has ended.
        drop(all.begin(names(&["c"])).unwrap());
        drop(first);
        all.begin(names(&["a", "b"])).unwrap();
    }
}
