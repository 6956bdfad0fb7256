//! The volumes that streams are being received into.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::names::VolumeName;

/// The volumes that receive a stream now: one stream at a time for each.
#[derive(Debug, Default)]
pub(crate) struct ReceptionsUnderWay(Mutex<HashSet<VolumeName>>);

impl ReceptionsUnderWay {
    /// Begins a reception. False: the volume receives another stream.
    pub(crate) fn begin(&self, volume: &VolumeName) -> bool {
        self.lock().insert(volume.clone())
    }

    /// The reception of a volume has ended.
    pub(crate) fn end(&self, volume: &VolumeName) {
        self.lock().remove(volume);
    }

    /// Whether a volume receives a stream.
    pub(crate) fn contains(&self, volume: &VolumeName) -> bool {
        self.lock().contains(volume)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<VolumeName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
