//! Why requests fail, as clients are told.

/// NBD_E…: why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdError {
    /// NBD_EPERM.
    NotPermitted,
    /// NBD_EIO.
    Io,
    /// NBD_EINVAL.
    Invalid,
    /// NBD_ENOSPC.
    NoSpace,
    /// NBD_EOVERFLOW.
    Overflow,
    /// NBD_ENOTSUP.
    NotSupported,
    /// NBD_ESHUTDOWN.
    Shutdown,
}

impl NbdError {
    /// Its number in the protocol.
    pub fn number(self) -> u32 {
        match self {
            NbdError::NotPermitted => 1,
            NbdError::Io => 5,
            NbdError::Invalid => 22,
            NbdError::NoSpace => 28,
            NbdError::Overflow => 75,
            NbdError::NotSupported => 95,
            NbdError::Shutdown => 108,
        }
    }
}
