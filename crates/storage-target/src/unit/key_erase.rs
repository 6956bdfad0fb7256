//! Cryptographic erase (custody `target`): the key that wraps a unit's block keys is destroyed, when the store says that nothing can
//! bring back any more what it wrapped, and before the store can be used again.
//!
//! A thread of its own does it, so that its syncs hold nobody up. Custody `keyserver`: whoever asks for the erase has had the keys
//! destroyed before. Absent: what such a key is and where it lies, which is the binary's.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use strongroom_block::{BLOCK_KEY_BYTES, BlockKeyWrap, WRAPPED_KEY_BYTES, WrapError};
use strongroom_iscsi::target::Response;
use strongroom_scsi::Sense;

use super::modify::Sanitize;
use super::work::Next;
use super::{Unit, check_condition};
use crate::catalogue::Catalogue;
use crate::server::WrapFactory;
use crate::volume::Volume;

/// How a volume's wrapping key is destroyed and another one made.
#[derive(Clone)]
pub(crate) struct KeyRenewer {
    /// Destroys the key.
    pub(crate) renew: WrapFactory,
    /// Finds out what wraps, when that failed.
    pub(crate) open: WrapFactory,
    /// Knows whose else it is.
    pub(crate) catalogue: Catalogue,
}

/// What came of it.
pub(crate) enum Renewed {
    /// The old key is gone, and this one wraps.
    Destroyed(Arc<dyn BlockKeyWrap>),
    /// It was not touched.
    Untouched(String),
    /// It may still be there, whole or not; and what wraps now, if that can be told.
    Unknown { problem: String, wrap: Result<Arc<dyn BlockKeyWrap>, String> },
}

impl KeyRenewer {
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

    /// Does it, here and now.
    pub(crate) fn run(&self, volume: &Volume) -> Renewed {
        if !self.is_possible(volume) {
            return Renewed::Untouched("another volume has the same wrapping key, or that cannot be told".to_owned());
        }
        match (self.renew)(volume) {
            Ok(wrap) => Renewed::Destroyed(wrap),
            Err(problem) => Renewed::Unknown { problem, wrap: (self.open)(volume) },
        }
    }
}

/// Destroys a volume's wrapping key while its unit goes on.
pub(crate) struct KeyRenewal {
    renewer: KeyRenewer,
    wake: strongroom_store::Waker,
    under_way: Option<Receiver<Renewed>>,
}

impl KeyRenewal {
    /// `wake` is called when there is something to poll.
    pub(crate) fn new(renewer: KeyRenewer, wake: strongroom_store::Waker) -> KeyRenewal {
        KeyRenewal { renewer, wake, under_way: None }
    }

    /// What came of it; begins it if it has not begun.
    fn poll(&mut self, volume: &Arc<Volume>) -> Option<Renewed> {
        let Some(outcome) = &self.under_way else {
            let (told, outcome) = mpsc::channel();
            self.under_way = Some(outcome);
            let (renewer, volume, wake) = (self.renewer.clone(), Arc::clone(volume), Arc::clone(&self.wake));
            let to_tell = told.clone();
            let body = move || {
                let _ = to_tell.send(renewer.run(&volume));
                wake();
            };
            if let Err(error) = std::thread::Builder::new().name("key-renewal".to_owned()).spawn(body) {
                let _ = told.send(Renewed::Untouched(format!("no thread to do it in: {error}")));
                (self.wake)();
            }
            return None;
        };
        let renewed = match outcome.try_recv() {
            Ok(renewed) => renewed,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                let problem = "the thread that destroys it broke off".to_owned();
                Renewed::Unknown { wrap: Err(problem.clone()), problem }
            }
        };
        self.under_way = None;
        Some(renewed)
    }
}

/// Wraps nothing: what it should wrap under is not known, and may be destroyed.
struct Lost;

impl BlockKeyWrap for Lost {
    fn wrap(&self, _: &[u8; BLOCK_KEY_BYTES]) -> Result<[u8; WRAPPED_KEY_BYTES], WrapError> {
        Err(WrapError)
    }

    fn unwrap(&self, _: &[u8; WRAPPED_KEY_BYTES]) -> Result<[u8; BLOCK_KEY_BYTES], WrapError> {
        Err(WrapError)
    }
}

impl Unit {
    /// Has a way to destroy what wraps its block keys.
    pub(crate) fn with_key_renewal(mut self, renewal: Option<KeyRenewal>) -> Unit {
        self.renewal = renewal;
        self
    }

    /// The store goes on with an erase from before, which may have been one that destroys the key; and the key is still there.
    pub(crate) fn key_survived(&mut self) {
        (self.erasing, self.key_survived, self.sanitize) = (true, true, Sanitize::Failed);
    }

    /// Whether what wraps its block keys can be destroyed, and wraps nothing else.
    pub(super) fn can_destroy_key(&self) -> bool {
        self.renewal.as_ref().is_some_and(|renewal| renewal.renewer.is_possible(&self.volume))
    }

    /// Whether what wraps its block keys is being destroyed.
    pub(super) fn is_renewing_key(&self) -> bool {
        self.renewal.as_ref().is_some_and(|renewal| renewal.under_way.is_some())
    }

    /// The store may wait for the key to go. What has begun is seen through even if it does not wait any more. A unit that has no way to do
    /// it is not the one that was asked: one of a clone or snapshot on the same store.
    pub(super) fn watch_key(&mut self) {
        if !self.store.erase_awaits_key() && !self.is_renewing_key() {
            return;
        }
        if std::mem::take(&mut self.keys_destroyed) {
            return self.store.key_destroyed(true);
        }
        let Some(renewed) = self.renewal.as_mut().and_then(|renewal| renewal.poll(&self.volume)) else { return };
        let volume = &self.volume.name;
        let is_destroyed = matches!(renewed, Renewed::Destroyed(_));
        match renewed {
            Renewed::Destroyed(wrap) => {
                tracing::warn!(%volume, "the key that wrapped the block keys is destroyed");
                self.wrap = Some(wrap);
            }
            Renewed::Untouched(problem) => {
                tracing::error!(%volume, problem, "the key that wraps the block keys was not destroyed: overwriting instead");
            }
            Renewed::Unknown { problem, wrap } => {
                tracing::error!(%volume, problem, "the key that wraps the block keys could not be destroyed: overwriting instead");
                self.wrap = Some(wrap.unwrap_or_else(|problem| {
                    let lost =
                        "its wrapping key cannot be read: nothing is written or read until the volume is opened again";
                    tracing::error!(%volume, problem, lost);
                    Arc::new(Lost)
                }));
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
