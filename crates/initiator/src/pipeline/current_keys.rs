//! The keys of an attachment, for as long as they may be used: until their lease ends, or their source takes them back.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use strongroom_seal::VolumeSealer;

use crate::pipeline::boot_time::BootTime;

/// See the module.
pub(crate) struct CurrentKeys(RwLock<Keys>);

enum Keys {
    Usable {
        sealer: Arc<VolumeSealer>,
        may_seal: bool,
        /// `None`: as long as the attachment lasts.
        until: Option<BootTime>,
    },
    /// Why. Keys that were not revoked come again when their source is heard of.
    Wiped { why: String, revoked: bool },
}

/// Why nothing can be sealed or opened.
pub(crate) enum NoKeys {
    /// The lease has ended, and nobody has wiped the keys yet.
    LeaseEnded,
    Wiped(String),
}

/// A copy of what there is.
pub(crate) struct KeysInUse {
    pub(crate) epochs: Vec<u32>,
    pub(crate) may_seal: bool,
    /// `None` without a lease.
    pub(crate) lease_left: Option<Duration>,
}

impl Keys {
    fn wipe(&mut self, why: String, revoked: bool) {
        if let Keys::Usable { .. } = self {
            tracing::error!(why, "the volume's keys are wiped: reads and writes fail until there are keys again");
        }
        *self = Keys::Wiped { why, revoked };
    }
}

impl CurrentKeys {
    /// Keys without a lease.
    pub(crate) fn new(sealer: VolumeSealer) -> CurrentKeys {
        CurrentKeys(RwLock::new(Keys::Usable { sealer: Arc::new(sealer), may_seal: true, until: None }))
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keys> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these keys, and no others. The lease stays as it was.
    pub(crate) fn replace(&self, new: VolumeSealer, may_seal: bool) {
        let mut keys = self.write();
        let until = if let Keys::Usable { until, .. } = &*keys { *until } else { None };
        *keys = Keys::Usable { sealer: Arc::new(new), may_seal, until };
    }

    /// The keys are lent until `end`, for writing too if `allowed`.
    pub(crate) fn lend(&self, allowed: bool, end: Option<BootTime>) {
        if let Keys::Usable { may_seal, until, .. } = &mut *self.write() {
            (*may_seal, *until) = (allowed, end);
        }
    }

    /// The lease ends then.
    pub(crate) fn lend_until(&self, end: BootTime) {
        if let Keys::Usable { until, .. } = &mut *self.write() {
            *until = Some(end);
        }
    }

    /// The source has revoked the keys. A thread that is using one finishes its block.
    pub(crate) fn revoke(&self, why: &str) {
        self.write().wipe(why.to_owned(), true);
    }

    /// As [`CurrentKeys::revoke`], without a word in the log: the attachment ends.
    pub(crate) fn end(&self, why: &str) {
        *self.write() = Keys::Wiped { why: why.to_owned(), revoked: true };
    }

    /// How long the keys may still be used; `None` without a lease, or without keys.
    pub(crate) fn lease_left(&self) -> Option<Duration> {
        match &*self.read() {
            Keys::Usable { until, .. } => until.map(|until| BootTime::now().until(until)),
            Keys::Wiped { .. } => None,
        }
    }

    /// Wipes keys whose lease has ended; whether it has.
    pub(crate) fn expire(&self, why: String) -> bool {
        let mut keys = self.write();
        // It may have been renewed just now.
        let is_over = matches!(&*keys, Keys::Usable { until: Some(until), .. } if *until <= BootTime::now());
        if is_over {
            keys.wipe(why, false);
        }
        is_over
    }

    pub(crate) fn exist(&self) -> bool {
        matches!(&*self.read(), Keys::Usable { .. })
    }

    /// Whether the source has revoked the keys: they do not come again by themselves.
    pub(crate) fn are_revoked(&self) -> bool {
        matches!(&*self.read(), Keys::Wiped { revoked: true, .. })
    }

    /// Whether keys were lent that only open.
    pub(crate) fn are_read_only(&self) -> bool {
        matches!(&*self.read(), Keys::Usable { may_seal: false, .. })
    }

    /// What seals and opens, as long as that is allowed.
    pub(crate) fn sealer(&self) -> Result<Arc<VolumeSealer>, NoKeys> {
        match &*self.read() {
            Keys::Usable { sealer, until, .. } if until.is_none_or(|until| BootTime::now() < until) => {
                Ok(sealer.clone())
            }
            Keys::Usable { .. } => Err(NoKeys::LeaseEnded),
            Keys::Wiped { why, .. } => Err(NoKeys::Wiped(why.clone())),
        }
    }

    /// What there is, or why there is nothing.
    pub(crate) fn in_use(&self) -> Result<KeysInUse, String> {
        match &*self.read() {
            Keys::Usable { sealer, may_seal, until } => Ok(KeysInUse {
                epochs: sealer.epochs(),
                may_seal: *may_seal,
                lease_left: until.map(|until| BootTime::now().until(until)),
            }),
            Keys::Wiped { why, .. } => Err(why.clone()),
        }
    }
}
