//! The commands, one file each.

pub(crate) mod attach;
pub(crate) mod check;
pub(crate) mod contents;
pub(crate) mod copy;
pub(crate) mod detach;
pub(crate) mod discover;
pub(crate) mod drain;
pub(crate) mod erase;
pub(crate) mod format;
pub(crate) mod identity;
pub(crate) mod key;
pub(crate) mod keyserver;
mod opening;
pub(crate) mod plan;
mod receive_served;
pub(crate) mod recover;
pub(crate) mod reseal;
mod send_to;
pub(crate) mod serve;
pub(crate) mod session;
mod snapshots;
mod space;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod transfer;
pub(crate) mod verify;
pub(crate) mod volume;
