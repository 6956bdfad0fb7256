//! Asks every worker, and puts their answers together.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::names::VolumeName;
use crate::services::TargetServices;
use crate::worker::message::Message;
use crate::worker::order::Order;

/// A worker that answers nothing for so long is stuck; the others' answers count.
const WORKER_PATIENCE: Duration = Duration::from_secs(5);

/// Sends every worker an order and collects the answers.
pub(super) fn ask<T>(services: &TargetServices, order: impl Fn(Sender<T>) -> Order) -> Vec<T> {
    let (sender, answers) = mpsc::channel();
    let count = services.workers.count();
    services.tell_all(|| Message::Order(order(sender.clone())));
    drop(sender);
    let until = Instant::now() + WORKER_PATIENCE;
    (0..count).map_while(|_| answers.recv_timeout(until.saturating_duration_since(Instant::now())).ok()).collect()
}

/// Whether every worker takes a message within `patience`. One that has ended counts as if it did: the others have taken over its volumes.
pub(crate) fn workers_answer(services: &TargetServices, patience: Duration) -> bool {
    let (sender, answers) = mpsc::channel();
    services.tell_all(|| Message::Order(Order::Probe(sender.clone())));
    drop(sender);
    let until = Instant::now() + patience;
    loop {
        // Once every message was taken, or dropped with its worker, no sender is left.
        match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

/// Has every session looked at again, of one volume or of all: how many ended, and how many may write now or no longer.
pub(crate) fn recheck(services: &TargetServices, volume: Option<VolumeName>) -> (usize, usize) {
    let counts = ask(services, |reply| Order::Recheck { volume: volume.clone(), reply });
    counts.into_iter().fold((0, 0), |(ended, changed), (more, others)| (ended + more, changed + others))
}
