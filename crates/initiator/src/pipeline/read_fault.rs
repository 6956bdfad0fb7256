//! Why the data of a read cannot be used.

use strongroom_block::{DeviceError, Lba, StoreSequence};

/// See the module.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// A block does not authenticate. Its record came in an authenticated header, so the data may have been damaged on the wire.
    NotAuthentic { lba: Lba, sequence: StoreSequence },
    /// Fetching it again cannot help.
    Error(DeviceError),
}

impl From<DeviceError> for ReadFault {
    fn from(error: DeviceError) -> ReadFault {
        ReadFault::Error(error)
    }
}
