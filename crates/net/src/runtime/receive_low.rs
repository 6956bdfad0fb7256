//! SO_RCVLOWAT: how many bytes must be there before a stream counts as readable. rustix has no name for it.

#![allow(unsafe_code)] // One socket option.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Sets it. The kernel tells of fewer bytes all the same when the stream ends, or when its buffers have no room for more (`tcp(7)`).
pub(super) fn set_receive_low(socket: &OwnedFd, bytes: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`, which is there until the call returns.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const value).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
