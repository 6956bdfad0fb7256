//! Limits of this process: open files, and memory that stays out of the swap.

use std::sync::Once;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// Raises the limit of open files as far as this process may: a server needs descriptors for each connection and each volume.
pub(crate) fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files; raise it with LimitNOFILE=");
    }
}

/// Keeps all memory out of the swap from now on, for the keys in it. Does so once.
///
/// Only where the process may lock any amount: with a limit, memory could not be allocated once the limit is reached.
pub(crate) fn lock_memory() {
    static LOCKED: Once = Once::new();
    LOCKED.call_once(|| {
        let is_privileged = capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
        let refused = if is_privileged || getrlimit(Resource::Memlock).current.is_none() {
            // Pages are locked when they are first touched: an allocator may have far more addresses than memory.
            mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).err()
        } else {
            Some(rustix::io::Errno::PERM)
        };
        if let Some(error) = refused {
            tracing::warn!(
                %error,
                "cannot lock memory; run as root or set `ulimit -l unlimited` (LimitMEMLOCK=infinity), or keys may reach the swap"
            );
        }
    });
}
