//! Cryptographic erase (custody `target`): the key that wraps a unit's block keys is destroyed, when the store says that nothing can
//! bring back any more what it wrapped, and before the store can be used again.
//!
//! A thread of its own does it, so that its syncs hold nobody up. Absent: what such a key is and where it lies, which is the binary's.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use strongroom_block::BlockKeyWrap;
use strongroom_iscsi::target::Response;
use strongroom_scsi::Sense;

use super::modify::Sanitize;
use super::work::Next;
use super::{Unit, check_condition};
use crate::catalogue::Catalogue;
use crate::server::WrapFactory;
use crate::volume::Volume;

/// Destroys a volume's wrapping key and makes another one.
pub(crate) struct KeyRenewal {
    renew: WrapFactory,
    catalogue: Catalogue,
    wake: strongroom_store::Waker,
    under_way: Option<Receiver<Renewed>>,
}

/// What wraps block keys from now on, or why the old key is still there.
type Renewed = Result<Arc<dyn BlockKeyWrap>, String>;

impl KeyRenewal {
    /// `wake` is called when there is something to poll.
    pub(crate) fn new(renew: WrapFactory, catalogue: Catalogue, wake: strongroom_store::Waker) -> KeyRenewal {
        KeyRenewal { renew, catalogue, wake, under_way: None }
    }

    /// A key that wraps for others too is not to be destroyed.
    fn is_possible(&self, volume: &Volume) -> bool {
        match self.catalogue.wrapping_key_is_shared(volume) {
            Ok(is_shared) => !is_shared,
            Err(error) => {
                tracing::error!(volume = %volume.name, %error, "it cannot be told whether another volume has the same wrapping key");
                false
            }
        }
    }

    /// What came of it; begins it if it has not begun.
    fn poll(&mut self, volume: &Arc<Volume>) -> Option<Renewed> {
        let Some(outcome) = &self.under_way else {
            let (told, outcome) = mpsc::channel();
            self.under_way = Some(outcome);
            let (renew, volume, wake) = (Arc::clone(&self.renew), Arc::clone(volume), Arc::clone(&self.wake));
            let body = move || {
                let _ = told.send(renew(&volume));
                wake();
            };
            // If there is no thread the channel is closed, which the next look takes for the failure that it is.
            if let Err(error) = std::thread::Builder::new().name("key-renewal".to_owned()).spawn(body) {
                tracing::error!(%error, "no thread to destroy a key");
                (self.wake)();
            }
            return None;
        };
        let renewed = match outcome.try_recv() {
            Ok(renewed) => renewed,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err("the thread that destroys it is gone".to_owned()),
        };
        self.under_way = None;
        Some(renewed)
    }
}

impl Unit {
    /// Has a way to destroy what wraps its block keys.
    pub(crate) fn with_key_renewal(mut self, renewal: Option<KeyRenewal>) -> Unit {
        self.renewal = renewal;
        self
    }

    /// Whether what wraps its block keys can be destroyed, and wraps nothing else.
    pub(super) fn can_destroy_key(&self) -> bool {
        self.renewal.as_ref().is_some_and(|renewal| renewal.is_possible(&self.volume))
    }

    /// The store may wait for the key to go.
    pub(super) fn watch_key(&mut self) {
        if !self.store.erase_awaits_key() {
            return;
        }
        let renewed = match &mut self.renewal {
            Some(renewal) => renewal.poll(&self.volume),
            None => Some(Err("this target was started without access to wrapping keys".to_owned())),
        };
        let Some(renewed) = renewed else { return };
        let volume = &self.volume.name;
        let is_destroyed = renewed.is_ok();
        match renewed {
            Ok(wrap) => {
                tracing::warn!(%volume, "the key that wrapped the block keys is destroyed");
                self.wrap = Some(wrap);
            }
            Err(problem) => {
                tracing::error!(%volume, problem, "the key that wraps the block keys could not be destroyed: overwriting instead");
            }
        }
        self.key_survived = !is_destroyed;
        self.store.key_destroyed(is_destroyed);
        self.tell_key_jobs(is_destroyed);
    }

    /// Everything is gone, durably; but a cryptographic erase has failed if the key is not.
    pub(super) fn sanitized(&mut self) -> Next {
        if self.key_survived {
            self.sanitize = Sanitize::Failed;
            return Next::Done(check_condition(Sense::SANITIZE_FAILED));
        }
        self.sanitize = Sanitize::Idle;
        Next::Done(Response::good())
    }
}
