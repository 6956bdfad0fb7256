//! Front ends: they offer a [`strongroom_block::BlockDevice`] to programs, and see nothing else of a volume. A new one is a module here and
//! a command that opens a device and gives it to the front end; neither the device nor the pipeline knows any of them.

pub mod block_node;
mod block_range;
mod credit;
mod event;
pub mod file_system;
pub mod fuse;
pub mod kernel_nbd;
pub mod leftovers;
pub mod loop_device;
pub mod mount_options;
pub mod mounts;
pub mod nbd;
mod pending;
mod umount_helper;
pub mod vhost;
