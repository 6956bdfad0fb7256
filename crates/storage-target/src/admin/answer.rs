//! Answers one request: asks every worker, puts their answers together. Runs in the admin client's thread.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use super::{Reloaded, Reply, Request, StatusReport};
use crate::names::VolumeName;
use crate::operate::operate_served;
use crate::server::Shared;
use crate::worker::{Message, Order, Which, WorkerReport};

/// A worker that answers nothing for so long is stuck; the others' answers count.
const WORKER_PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn answer(shared: &Arc<Shared>, request: Request) -> Reply {
    match request {
        Request::Status => Reply::Status(Box::new(status(shared))),
        Request::SessionDrop { id, initiator, peer, volume } => {
            let which = Which { id, initiator, peer, volume };
            if which == Which::default() {
                return Reply::Error("say which sessions: an id, an initiator, a peer or a volume".to_owned());
            }
            tracing::info!(?which, "asked to drop sessions");
            let dropped = ask(shared, |reply| Order::Drop { which: which.clone(), reply });
            Reply::Sessions(dropped.into_iter().flatten().collect::<HashSet<_>>().len())
        }
        Request::Drain { to, volume, grace_s } => in_words(drain(shared, to, volume, grace_s)),
        Request::Undrain { volume } => in_words(undrain(shared, volume)),
        Request::Reload => in_words(shared.reload().map(Reply::Reloaded)),
        Request::Volume { volume, operation } => in_words(
            operate_served(shared, &volume, &operation).map(|description| Reply::Volume(Box::new(description))),
        ),
        Request::Send { .. } => Reply::Error("a stream is asked for on a connection of its own".to_owned()),
        Request::Receive { .. } => Reply::Error("a stream is sent on a connection of its own".to_owned()),
        Request::Receptions { volume, abandon } => in_words(
            crate::reception::unfinished(shared, &volume, abandon)
                .map(|all| Reply::Receptions(all.into_iter().map(super::receive::report).collect())),
        ),
        Request::Close { volume } => in_words(parse(&volume).map(|volume| {
            // Not in the midst of what is done to it as a whole.
            let store = shared.catalogue.load(&volume).map_or_else(|_| volume.clone(), |found| found.store_name());
            let _turn = shared.turns.take([volume.clone(), store]);
            shared.tell_all(|| Message::Order(Order::Close { volume: volume.clone() }));
            Reply::Done
        })),
        Request::Refresh { volume } => in_words(parse(&volume).map(|volume| {
            let (ended, changed) = recheck(shared, Some(volume));
            shared.scheduler.look_again();
            Reply::Sessions(ended + changed)
        })),
    }
}

fn in_words(result: Result<Reply, String>) -> Reply {
    result.unwrap_or_else(Reply::Error)
}

fn parse(volume: &str) -> Result<VolumeName, String> {
    VolumeName::new(volume).map_err(|error| error.to_string())
}

/// Sends every worker an order and collects the answers.
fn ask<T>(shared: &Shared, order: impl Fn(Sender<T>) -> Order) -> Vec<T> {
    let (sender, answers) = mpsc::channel();
    let count = shared.workers();
    shared.tell_all(|| Message::Order(order(sender.clone())));
    drop(sender);
    let until = Instant::now() + WORKER_PATIENCE;
    (0..count).map_while(|_| answers.recv_timeout(until.saturating_duration_since(Instant::now())).ok()).collect()
}

/// Has every session looked at again, of one volume or of all: how many ended, and how many may write now or no longer.
pub(crate) fn recheck(shared: &Shared, volume: Option<VolumeName>) -> (usize, usize) {
    let counts = ask(shared, |reply| Order::Recheck { volume: volume.clone(), reply });
    counts.into_iter().fold((0, 0), |(ended, changed), (more, others)| (ended + more, changed + others))
}

fn status(shared: &Shared) -> StatusReport {
    let reports = ask(shared, Order::Report);
    let root = shared.catalogue.root();
    let mut status = StatusReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_s: shared.started.elapsed().as_secs_f64(),
        root: std::path::absolute(root).unwrap_or_else(|_| root.to_owned()).display().to_string(),
        addresses: shared.local_addresses.clone(),
        workers: shared.workers(),
        channels: shared.has_identity(),
        drains: shared.drain().report(),
        schedules: shared.scheduler.report(),
        memory: shared.budget.report(),
        counters: shared.stats(),
        sessions: Vec::new(),
        volumes: Vec::new(),
    };
    for WorkerReport { sessions, volumes } in reports {
        status.sessions.extend(sessions);
        status.volumes.extend(volumes);
    }
    status.sessions.sort_by_key(|session| session.id);
    status.volumes.sort_by(|a, b| a.name.cmp(&b.name));
    status
}

fn drain(shared: &Shared, to: Option<String>, volume: Option<String>, grace_s: u64) -> Result<Reply, String> {
    if let Some(to) = &to {
        crate::config::check_host_port(to)?;
    }
    let volume = volume.as_deref().map(parse).transpose()?;
    if let Some(volume) = &volume {
        shared.catalogue.load(volume).map_err(|error| error.to_string())?;
    }
    tracing::info!(to, volume = volume.as_ref().map(tracing::field::display), grace_s, "draining");
    shared.drain().begin(volume.clone(), to);
    let grace = Duration::from_secs(grace_s.clamp(1, 3600));
    let order = |reply| Order::Drain { volume: volume.clone(), grace, reply };
    Ok(Reply::Sessions(ask(shared, order).into_iter().sum()))
}

fn undrain(shared: &Shared, volume: Option<String>) -> Result<Reply, String> {
    let volume = volume.as_deref().map(parse).transpose()?;
    if !shared.drain().end(volume.as_ref()) {
        return Err("nothing of that is being drained; `strongroom status` shows what is".to_owned());
    }
    tracing::info!(volume = volume.as_ref().map(tracing::field::display), "taking initiators in again");
    Ok(Reply::Done)
}

impl Shared {
    /// Reads the configuration again, checks all of it, and then puts it in force: as a whole, or not at all.
    ///
    /// # Errors
    /// Why nothing was changed, for people.
    pub(crate) fn reload(&self) -> Result<Reloaded, String> {
        let read = self.reread.as_ref().ok_or("this target was started without a configuration to read again")?;
        // One at a time: the second of two then reads what is newest.
        let _turn = self.reloading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (config, secrets) = read()?;
        let (changed, needs_restart) = self.replace_settings(config, &secrets).map_err(|error| error.to_string())?;
        let (sessions_ended, sessions_changed) = recheck(self, None);
        self.scheduler.look_again();
        tracing::info!(?changed, ?needs_restart, sessions_ended, sessions_changed, "read the configuration again");
        Ok(Reloaded { changed, needs_restart, sessions_ended, sessions_changed })
    }
}
