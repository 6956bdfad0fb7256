//! What is told of space: before a volume is made, and while it is scarce.

use std::path::Path;

use strongroom_store::Medium;
use strongroom_target::admin::{SpaceReport, StoreReport};

use crate::units::show_size;

/// What there is to say about space, if it is scarce, and what to do about it.
pub(super) fn space_text(store: &StoreReport) -> Option<String> {
    const WAY_OUT: &str = "delete files on the volume and run fstrim on its file system, delete snapshots, or make room where the store is";
    let room = show_size(store.room_bytes);
    match store.space {
        SpaceReport::Full => Some(format!(
            "new data is refused; what is written can be read, written again and discarded, so its file system can be mounted. {WAY_OUT} \
             (docs/admin.md, \"Space\")"
        )),
        _ if store.space_percent >= 80 => Some(format!(
            "{} % of the space that it can have is used, about {room} more can be written: {WAY_OUT}",
            store.space_percent
        )),
        _ => None,
    }
}

/// What is free in the store, and beneath it.
pub(super) fn free_text(store: &StoreReport) -> String {
    let host = store.host_free_bytes.map_or("it took all its space when it was made".to_owned(), |free| {
        format!("{} free on its host's file system", show_size(free))
    });
    format!(
        "{} free in it, {host}; about {} more can be written",
        show_size(store.log_free_bytes),
        show_size(store.room_bytes)
    )
}

/// A volume may be larger than what its host has left: that is what thin volumes are for, but worth a word. `bytes`: how much may be
/// written to it.
pub(super) fn warn_of_little_space(medium: &Medium, bytes: u64, root: &Path) {
    // All others took their space, or are in memory.
    if *medium != Medium::Directory {
        return;
    }
    let Ok(host) = rustix::fs::statvfs(root) else { return };
    let free = host.f_bavail.saturating_mul(host.f_frsize);
    if bytes > free {
        eprintln!(
            "warning: the file system of {} has {} free, and the volume takes up to {} more. New data will be refused when that is full; \
             `strongroom status` and the log warn at 80 and 95 percent. Make room there, or make a smaller volume (docs/admin.md, \"Space\")",
            root.display(),
            show_size(free),
            show_size(bytes)
        );
    }
}
