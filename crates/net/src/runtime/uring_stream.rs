//! What the io_uring driver keeps of each stream: which operations the kernel works on. Submitting them is the driver's.

#![allow(unsafe_code)] // A send in flight carries raw pointers and moves between threads with its stream.

use std::fmt;

/// io_uring's part of a stream: what the kernel works on.
#[derive(Debug, Default)]
pub(super) struct UringStream {
    pub(super) receiving: bool,
    pub(super) cancelling: bool,
    pub(super) connecting: bool,
    pub(super) send: Option<Box<SendOperation>>,
}

impl UringStream {
    pub(super) fn is_idle(&self) -> bool {
        !self.receiving && !self.connecting && self.send.is_none()
    }
}

/// A vectored send in the kernel's hands. The bytes are the stream's queue's, which is not advanced before the
/// completion.
pub(super) struct SendOperation {
    pub(super) message: libc::msghdr,
    pub(super) slices: Vec<libc::iovec>,
}

// SAFETY: the pointers lead to the heap memory of `slices` and to buffers that are shared and constant; neither is
// bound to a thread. (The operation is only ever in flight in the ring's own thread.)
unsafe impl Send for SendOperation {}

impl fmt::Debug for SendOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendOperation({} slices)", self.slices.len())
    }
}
