//! What a thread that opened a volume hands to the worker: all that the volume's unit is made of.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strongroom_block::{BlockKeyWrap, Opener, Resealer};
use strongroom_store::Store;

use crate::catalogue::VolumeLock;
use crate::unit::UnitFiles;
use crate::volume::Volume;

pub(crate) struct OpenedUnit {
    pub(super) volume: Volume,
    pub(super) target_name: String,
    pub(super) store: Store,
    pub(super) wrap: Option<Arc<dyn BlockKeyWrap>>,
    /// An interrupted erase goes on that may have been meant to destroy the key, and the key still exists.
    pub(super) key_survived: bool,
    pub(super) opener: Option<Arc<dyn Opener>>,
    pub(super) resealer: Option<Arc<dyn Resealer>>,
    pub(super) files: UnitFiles,
    pub(super) lock: VolumeLock,
    pub(super) ready: Arc<AtomicBool>,
    /// Of records, and of data.
    pub(super) cache_bytes_max: (usize, usize),
}
