//! The workers of a target as other threads see them: how each is reached, and which one owns which volume.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use strongroom_net::Waker;

use crate::names::VolumeName;
use crate::session_loads::SessionLoads;
use crate::unit::SessionKey;
use crate::worker::connection::ConnectionKey;
use crate::worker::message::Message;

pub(crate) struct WorkerDirectory {
    mailboxes: OnceLock<Vec<Mailbox>>,
    /// Which worker owns which volume, while it is open or being opened.
    owners: Mutex<HashMap<VolumeName, usize>>,
    pub(crate) loads: Arc<SessionLoads>,
    count: usize,
    next_key: AtomicU64,
    next_tsih: AtomicU16,
}

/// How a worker is reached.
pub(crate) struct Mailbox {
    sender: Mutex<Sender<Message>>,
    waker: Waker,
}

impl Mailbox {
    pub(crate) fn new(sender: Sender<Message>, waker: Waker) -> Mailbox {
        Mailbox { sender: Mutex::new(sender), waker }
    }
}

impl WorkerDirectory {
    pub(crate) fn new(count: usize) -> WorkerDirectory {
        WorkerDirectory {
            mailboxes: OnceLock::new(),
            owners: Mutex::new(HashMap::new()),
            loads: Arc::new(SessionLoads::new(count)),
            count,
            next_key: AtomicU64::new(1),
            next_tsih: AtomicU16::new(1),
        }
    }

    /// Before the first worker starts.
    pub(crate) fn set_mailboxes(&self, mailboxes: Vec<Mailbox>) {
        assert!(self.mailboxes.set(mailboxes).is_ok(), "workers are started once");
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Sends a message to a worker. Messages to one that has ended are dropped.
    pub(crate) fn tell(&self, worker: usize, message: Message) {
        let mailbox = &self.mailboxes()[worker];
        let _ = mailbox.sender.lock().unwrap_or_else(PoisonError::into_inner).send(message);
        mailbox.waker.wake();
    }

    pub(crate) fn tell_all(&self, message: impl Fn() -> Message) {
        (0..self.count).for_each(|worker| self.tell(worker, message()));
    }

    /// The worker that owns a volume; if none does, the one with the fewest volumes from now on.
    pub(crate) fn owner(&self, volume: &VolumeName) -> usize {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = owners.get(volume) {
            return *worker;
        }
        let mut load = vec![0usize; self.count];
        owners.values().for_each(|worker| load[*worker] += 1);
        let running = (0..self.count).filter(|worker| !self.loads.has_ended(*worker));
        let worker = running.min_by_key(|worker| load[*worker]).unwrap_or(0);
        owners.insert(volume.clone(), worker);
        worker
    }

    /// A volume is closed; the next worker that asks may own it.
    pub(crate) fn disown(&self, volume: &VolumeName) {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
    }

    /// A worker has ended: in order, because its runtime failed, or by a panic. The others are told, and nothing is sent there any more.
    pub(crate) fn worker_ended(&self, index: usize) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        self.loads.worker_ended(index);
        owners.retain(|_, worker| *worker != index);
        drop(owners);
        self.tell_all(|| Message::Ended { worker: index });
    }

    pub(crate) fn connection_key(&self) -> ConnectionKey {
        ConnectionKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn session_key(&self) -> SessionKey {
        SessionKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// A session handle: not 0, and not reused soon.
    pub(crate) fn tsih(&self) -> u16 {
        loop {
            let tsih = self.next_tsih.fetch_add(1, Ordering::Relaxed);
            if tsih != 0 {
                return tsih;
            }
        }
    }

    fn mailboxes(&self) -> &[Mailbox] {
        self.mailboxes.get().expect("set before the first worker starts")
    }
}
