//! The ways in which a log is read and written.

use std::fmt;

/// How a log is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Past the page cache, through io_uring.
    DirectUring,
    /// Past the page cache, by a few threads.
    Direct,
    /// Through the page cache.
    Buffered,
    /// In memory.
    Memory,
}

impl fmt::Display for IoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoKind::DirectUring => "direct-uring",
            IoKind::Direct => "direct",
            IoKind::Buffered => "buffered",
            IoKind::Memory => "memory",
        })
    }
}
