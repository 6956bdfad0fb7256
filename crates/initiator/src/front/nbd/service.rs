//! A volume that is served over NBD: its connections, and the thread that answers what the device's own thread does not. Absent: where
//! connections come from.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::connection::Beginning;
use super::connections::Connections;
use super::volume::{NbdOptions, ServedVolume};
use crate::copy::SparseDevice;
use crate::front::pending::Pending;

/// How long clients may take for the replies that are due when the service ends.
const REPLY_PATIENCE: Duration = Duration::from_secs(5);

/// See the module. Dropped without having ended, it breaks its connections off.
pub(super) struct Service {
    pub(super) volume: Arc<ServedVolume>,
    pub(super) connections: Arc<Connections>,
    replies: Option<JoinHandle<()>>,
}

impl Service {
    /// Takes over the device's completions.
    pub(super) fn start(
        device: Arc<dyn SparseDevice>,
        options: NbdOptions,
        connections: Connections,
    ) -> io::Result<Service> {
        let pending = Arc::new(Pending::new());
        device.offer_completions(pending.clone());
        let volume = Arc::new(ServedVolume { device, pending, options });
        let replies = {
            let volume = volume.clone();
            let body = move || volume.pending.answer_until_stopped(&*volume.device);
            std::thread::Builder::new().name("nbd-replies".into()).spawn(body)?
        };
        Ok(Service { volume, connections: Arc::new(connections), replies: Some(replies) })
    }

    /// Serves one more client.
    pub(super) fn serve(&self, fd: OwnedFd, beginning: Beginning) {
        self.connections.serve(fd, &self.volume, beginning);
    }

    /// Answers what clients have asked for, and ends their connections. Those that do not read their replies are waited for a few seconds
    /// only. There must be no new ones. From then on nobody else takes completions.
    pub(super) fn end(&mut self) {
        self.connections.end_all(REPLY_PATIENCE);
        self.volume.pending.stop();
        if let Some(replies) = self.replies.take() {
            let _ = replies.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.replies.is_some() {
            self.connections.break_off();
            self.volume.pending.stop();
        }
    }
}
