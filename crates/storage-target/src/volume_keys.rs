//! What the binary hands the target for volumes whose blocks the target is trusted to open or wrap: factories of wrapping keys, openers and
//! resealers. The target itself knows no keys.

use std::sync::Arc;

use strongroom_block::{BlockKeyWrap, CryptoCounters, Opener, Resealer};

use crate::error::{CatalogueError, KeyError, ProviderError};
use crate::volume::Volume;

/// Hands out what wraps block keys of a volume of custody `target` on their way to rest.
pub type WrapFactory = Arc<dyn Fn(&Volume) -> Result<Arc<dyn BlockKeyWrap>, ProviderError> + Send + Sync>;

/// Hands out what opens the blocks of a volume of custody `target`, for background verification; the bytes that it opens are counted
/// in the counters given.
pub type OpenerFactory =
    Arc<dyn Fn(&Volume, Arc<CryptoCounters>) -> Result<Arc<dyn Opener>, ProviderError> + Send + Sync>;

/// Hands out what opens the blocks of a volume when they arrive, and seals them again when they are read (open-at-target); the bytes are
/// counted in the counters given.
pub type ResealerFactory =
    Arc<dyn Fn(&Volume, Arc<CryptoCounters>) -> Result<Arc<dyn Resealer>, ProviderError> + Send + Sync>;

/// The factories that a target was started with.
pub(crate) struct VolumeKeys {
    pub(crate) wraps: Option<WrapFactory>,
    pub(crate) openers: Option<OpenerFactory>,
    pub(crate) resealers: Option<ResealerFactory>,
    pub(crate) renew_wrap: Option<WrapFactory>,
    /// Counts what openers and resealers do.
    pub(crate) counters: Arc<CryptoCounters>,
}

impl VolumeKeys {
    /// What wraps the block keys of a volume, if its custody has any to wrap.
    pub(crate) fn wrap(&self, volume: &Volume) -> Result<Option<Arc<dyn BlockKeyWrap>>, CatalogueError> {
        if volume.sealed.as_ref().is_none_or(|sealed| sealed.custody.is_blind()) {
            return Ok(None);
        }
        let unusable = |problem: KeyError| CatalogueError::WrappingKey { name: volume.name.to_string(), problem };
        let factory = self.wraps.as_ref().ok_or_else(|| unusable(KeyError::NoAccess("wrapping keys")))?;
        factory(volume).map(Some).map_err(|problem| unusable(problem.into()))
    }

    /// What opens the volume's blocks when they arrive, if it is stored open. Without it nothing in it can be read or written.
    pub(crate) fn resealer(&self, volume: &Volume) -> Result<Option<Arc<dyn Resealer>>, CatalogueError> {
        if volume.sealed.as_ref().is_none_or(|sealed| sealed.opened_with.is_none()) {
            return Ok(None);
        }
        let unusable = |problem: KeyError| CatalogueError::OpeningKey { name: volume.name.to_string(), problem };
        let factory = self.resealers.as_ref().ok_or_else(|| unusable(KeyError::NoAccess("volumes' keys")))?;
        factory(volume, Arc::clone(&self.counters)).map(Some).map_err(|problem| unusable(problem.into()))
    }

    /// What opens the blocks of a volume, if the target is trusted to. Without it the volume is served, but not verified.
    pub(crate) fn opener(&self, volume: &Volume) -> Option<Arc<dyn Opener>> {
        let factory = self.openers.as_ref()?;
        volume.sealed.as_ref().filter(|sealed| !sealed.custody.is_blind())?;
        match factory(volume, Arc::clone(&self.counters)) {
            Ok(opener) => Some(opener),
            Err(problem) => {
                tracing::error!(volume = %volume.name, %problem, "the volume is not verified in the background");
                None
            }
        }
    }
}
