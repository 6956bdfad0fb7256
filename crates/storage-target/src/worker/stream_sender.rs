//! The stream of a connection as its link and session see it: what sends bytes, stops reading, and closes. Only this file and the event
//! loop use the runtime for a connection's bytes.

use strongroom_block::Buffer;
use strongroom_net::{Link, Runtime, SendState, StreamId};

pub(super) struct StreamSender {
    id: StreamId,
    /// The runtime has as much to send as it takes.
    is_full: bool,
    is_receiving: bool,
    /// Why the stream is gone: nothing can be sent.
    failure: Option<String>,
    buffers: Vec<Buffer>,
}

impl StreamSender {
    pub(super) fn new(id: StreamId) -> StreamSender {
        StreamSender { id, is_full: false, is_receiving: true, failure: None, buffers: Vec::new() }
    }

    pub(super) fn id(&self) -> StreamId {
        self.id
    }

    /// Whether PDUs can be handed to the link for it.
    pub(super) fn accepts(&self) -> bool {
        !self.is_full && self.failure.is_none()
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Sends what the link has ready.
    pub(super) fn send(&mut self, runtime: &mut Runtime, link: &mut Link) {
        link.poll_transmit(&mut self.buffers);
        if !self.buffers.is_empty() {
            self.is_full = runtime.send(self.id, &mut self.buffers) == SendState::Full;
        }
    }

    /// The runtime accepts more.
    pub(super) fn low(&mut self) {
        self.is_full = false;
    }

    pub(super) fn failed(&mut self, reason: String) {
        self.failure = Some(reason);
    }

    /// Sends the rest and closes the stream behind it.
    pub(super) fn close(&mut self, runtime: &mut Runtime, link: &mut Link) {
        link.poll_transmit(&mut self.buffers);
        let _ = runtime.send(self.id, &mut self.buffers);
        runtime.close(self.id);
    }

    /// Stops or resumes reading.
    pub(super) fn set_receiving(&mut self, runtime: &mut Runtime, is_receiving: bool) {
        if is_receiving != self.is_receiving {
            self.is_receiving = is_receiving;
            runtime.set_receiving(self.id, is_receiving);
        }
    }

    /// The stream has moved to another runtime.
    pub(super) fn moved_to(&mut self, id: StreamId) {
        self.id = id;
    }

    /// Buffers that the runtime has not taken.
    pub(super) fn into_unsent(self) -> Vec<Buffer> {
        self.buffers
    }
}
