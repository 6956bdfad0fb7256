//! The queue of reads that failed because of what they read, between the intake and the thread that looks for older versions.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use strongroom_block::{BufferMut, DeviceError, Lba, Token};

use crate::completion::lock;

/// A read that failed because of what it read.
#[derive(Debug)]
pub(super) struct FailedRead {
    pub(super) token: Token,
    pub(super) lba: Lba,
    pub(super) buffer: BufferMut,
    pub(super) error: DeviceError,
}

/// The end at which reads are put in.
#[derive(Debug)]
pub(super) struct FailedReads(Mutex<Option<Sender<FailedRead>>>);

impl FailedReads {
    /// The queue, and the end at which reads are taken out.
    pub(super) fn new() -> (FailedReads, Receiver<FailedRead>) {
        let (sender, receiver) = channel();
        (FailedReads(Mutex::new(Some(sender))), receiver)
    }

    /// Takes a failed read in; gives it back if nothing takes them out any more.
    pub(super) fn push(&self, read: FailedRead) -> Result<(), FailedRead> {
        match &*lock(&self.0) {
            Some(sender) => sender.send(read).map_err(|error| error.0),
            None => Err(read),
        }
    }

    /// The receiver ends once it has taken out what is in.
    pub(super) fn close(&self) {
        lock(&self.0).take();
    }
}
