//! Destroys the key that wraps a volume's block keys (custody `target`) and makes another one, for a cryptographic erase: when the store says
//! that nothing can bring back the blocks that it wrapped, and before the store can be used again.
//!
//! A thread of its own does it, so that its syncs delay nothing. In custody `keyserver` the initiator that asks for the erase has had the
//! keys destroyed before. What such a key is and where it is stored is up to the binary.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use strongroom_block::{BLOCK_KEY_BYTES, BlockKeyWrap, WRAPPED_KEY_BYTES, WrapError};

use crate::catalogue::Catalogue;
use crate::error::ProviderError;
use crate::volume::Volume;
use crate::volume_keys::WrapFactory;

/// How a volume's wrapping key is destroyed and another one made.
#[derive(Clone)]
pub(crate) struct KeyRenewer {
    /// Destroys the key and makes another one.
    pub(crate) renew: WrapFactory,
    /// Opens the key that there is, when that failed.
    pub(crate) open: WrapFactory,
    /// Knows whether another volume has the same key.
    pub(crate) catalogue: Catalogue,
}

/// Why a wrapping key was not destroyed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewalError {
    #[error("another volume has the same wrapping key, or that cannot be told")]
    Shared,
    #[error("no thread to do it in: {0}")]
    NoThread(#[source] io::Error),
    #[error("the thread that destroys it broke off")]
    ThreadEnded,
    /// What the binary says about the key.
    #[error(transparent)]
    Key(#[from] ProviderError),
}

/// The result of a renewal.
pub(crate) enum Renewed {
    /// The old key is destroyed, and this one wraps.
    Destroyed(Arc<dyn BlockKeyWrap>),
    /// The old key was not touched.
    Untouched(RenewalError),
    /// The old key may still exist, complete or damaged; `wrap` is the key that wraps now, if one can be opened.
    Unknown { error: RenewalError, wrap: Result<Arc<dyn BlockKeyWrap>, RenewalError> },
}

impl KeyRenewer {
    /// A key that another volume needs must not be destroyed.
    fn is_possible(&self, volume: &Volume) -> bool {
        match self.catalogue.wrapping_key_is_shared(volume) {
            Ok(is_shared) => !is_shared,
            Err(error) => {
                tracing::error!(volume = %volume.name, %error, "it cannot be told whether another volume has the same wrapping key");
                false
            }
        }
    }

    /// Renews the key in the calling thread.
    pub(crate) fn run(&self, volume: &Volume) -> Renewed {
        if !self.is_possible(volume) {
            return Renewed::Untouched(RenewalError::Shared);
        }
        match (self.renew)(volume) {
            Ok(wrap) => Renewed::Destroyed(wrap),
            Err(problem) => Renewed::Unknown {
                error: RenewalError::Key(problem),
                wrap: (self.open)(volume).map_err(RenewalError::Key),
            },
        }
    }
}

/// Renews a volume's wrapping key while its unit continues.
pub(crate) struct KeyRenewal {
    renewer: KeyRenewer,
    wake: strongroom_store::Waker,
    running: Option<Receiver<Renewed>>,
}

impl KeyRenewal {
    /// `wake` is called when there is something to poll.
    pub(crate) fn new(renewer: KeyRenewer, wake: strongroom_store::Waker) -> KeyRenewal {
        KeyRenewal { renewer, wake, running: None }
    }

    /// Whether the key can be destroyed, and wraps nothing of another volume.
    pub(super) fn is_possible(&self, volume: &Volume) -> bool {
        self.renewer.is_possible(volume)
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The result, if there is one; begins if it has not begun.
    pub(super) fn poll(&mut self, volume: &Arc<Volume>) -> Option<Renewed> {
        let Some(outcome) = &self.running else {
            self.begin(volume);
            return None;
        };
        let renewed = match outcome.try_recv() {
            Ok(renewed) => renewed,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Renewed::Unknown { error: RenewalError::ThreadEnded, wrap: Err(RenewalError::ThreadEnded) }
            }
        };
        self.running = None;
        Some(renewed)
    }

    fn begin(&mut self, volume: &Arc<Volume>) {
        let (sender, outcome) = mpsc::channel();
        self.running = Some(outcome);
        let (renewer, volume, wake) = (self.renewer.clone(), Arc::clone(volume), Arc::clone(&self.wake));
        let thread_sender = sender.clone();
        let body = move || {
            let _ = thread_sender.send(renewer.run(&volume));
            wake();
        };
        if let Err(error) = std::thread::Builder::new().name("key-renewal".to_owned()).spawn(body) {
            let _ = sender.send(Renewed::Untouched(RenewalError::NoThread(error)));
            (self.wake)();
        }
    }
}

/// Wraps nothing: the key is unknown, and may be destroyed.
pub(super) struct UnknownKey;

impl BlockKeyWrap for UnknownKey {
    fn wrap(&self, _: &[u8; BLOCK_KEY_BYTES]) -> Result<[u8; WRAPPED_KEY_BYTES], WrapError> {
        Err(WrapError)
    }

    fn unwrap(&self, _: &[u8; WRAPPED_KEY_BYTES]) -> Result<[u8; BLOCK_KEY_BYTES], WrapError> {
        Err(WrapError)
    }
}
