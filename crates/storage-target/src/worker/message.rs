//! Messages to a worker from other threads: from workers, from the threads that open and close stores, and from administrative requests.

use std::sync::mpsc::{Receiver, SendError, Sender};
use std::time::Duration;

use strongroom_iscsi::target::{ConnectionId, TargetEntry};
use strongroom_net::{DetachedStream, Waker};

use super::connection::Connection;
use super::cross_worker::CrossWorkerMessage;
use super::opened_unit::OpenedUnit;
use super::order::Order;
use crate::connection_slots::SlotNeed;
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::open_units::{CrossUnitOutcome, CrossUnitRequest};
use crate::unit::SessionKey;

pub(crate) enum Message {
    /// A connection that belongs here: this worker owns its volume, or has its session.
    Adopt(Box<DetachedConnection>),
    /// Messages between sessions and units of another worker and of this one, in the order in which they were sent.
    CrossWorker { from: usize, messages: Vec<CrossWorkerMessage> },
    /// A volume was opened, or could not be opened.
    Opened { volume: VolumeName, outcome: Box<Result<OpenedUnit, CatalogueError>> },
    /// A volume's store was closed.
    Closed { volume: VolumeName },
    /// An administrative request.
    Order(Order),
    /// An operation that a unit of any worker requests of a unit here.
    CrossUnit(Box<CrossUnitRequest>),
    /// The outcome of an operation that a unit here requested of another unit.
    CrossUnitOutcome(Box<CrossUnitOutcome>),
    /// A connection slot is needed, and this worker has a connection or a session that can be evicted.
    SlotNeeded(SlotNeed),
    /// The answer to a session's SendTargets.
    TargetsFound { session: SessionKey, connection: ConnectionId, targets: Vec<TargetEntry> },
    /// Another worker has ended, and its sessions and units with it.
    Ended { worker: usize },
    /// Stop: initiators have `grace` to finish.
    Stop { grace: Duration },
}

/// A connection between two workers.
pub(crate) struct DetachedConnection {
    pub(super) stream: DetachedStream,
    pub(super) connection: Box<Connection>,
}

/// What a worker receives messages by, and sends them to other workers.
pub(crate) struct WorkerMail {
    pub(super) inbox: Receiver<Message>,
    /// To every worker, by number.
    pub(super) links: Vec<WorkerLink>,
}

impl WorkerMail {
    pub(crate) fn new(inbox: Receiver<Message>, links: Vec<WorkerLink>) -> WorkerMail {
        WorkerMail { inbox, links }
    }
}

/// One worker's sender to another worker.
pub(crate) struct WorkerLink {
    sender: Sender<Message>,
    waker: Waker,
}

impl WorkerLink {
    pub(crate) fn new(sender: Sender<Message>, waker: Waker) -> WorkerLink {
        WorkerLink { sender, waker }
    }

    /// Sends what sessions and units said in one iteration, with one wake-up. A worker that has ended has told so, or will.
    pub(super) fn send(&self, from: usize, messages: Vec<CrossWorkerMessage>) {
        let _ = self.sender.send(Message::CrossWorker { from, messages });
        self.waker.wake();
    }

    /// Hands a connection over; returns it if that worker has ended.
    pub(super) fn hand_over(&self, detached: DetachedConnection) -> Result<(), Box<DetachedConnection>> {
        let sent = self.sender.send(Message::Adopt(Box::new(detached)));
        self.waker.wake();
        match sent {
            Err(SendError(Message::Adopt(detached))) => Err(detached),
            _ => Ok(()),
        }
    }
}
