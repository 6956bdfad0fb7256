//! Answers one request: asks every worker, puts their answers together. Runs in the admin client's thread.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::answer_peers::{self, InviteRequest};
use super::answer_volumes;
use super::error::{ReloadError, RequestError};
use super::workers::{ask, recheck};
use super::{PROTOCOL, Reloaded, Reply, Request, StatusReport};
use crate::names::VolumeName;
use crate::operate::operate_served;
use crate::services::TargetServices;
use crate::settings::ChangedSettings;
use crate::worker::message::Message;
use crate::worker::order::{Order, SessionFilter, WorkerReport};

pub(super) fn answer(services: &Arc<TargetServices>, request: Request) -> Reply {
    execute(services, request).unwrap_or_else(|error| Reply::Error(error.to_string()))
}

/// Does what is asked for, but for the requests that a stream belongs to.
pub(crate) fn execute(services: &Arc<TargetServices>, request: Request) -> Result<Reply, RequestError> {
    match request {
        Request::Status => Ok(Reply::Status(Box::new(status(services)))),
        Request::SessionDrop { id, initiator, peer, volume } => {
            drop_sessions(services, &SessionFilter { id, initiator, peer, volume })
        }
        Request::Drain { to, volume, grace_s } => drain(services, to, volume, grace_s),
        Request::Undrain { volume } => undrain(services, volume),
        Request::Reload => Ok(Reply::Reloaded(reload(services)?)),
        Request::Volume { volume, operation } => {
            let description = operate_served(services, &volume, &operation)?;
            Ok(Reply::Volume(Box::new(description)))
        }
        Request::Volumes { volume } => answer_volumes::list(services, volume.as_deref()),
        Request::VolumeCreate { volume } => answer_volumes::create(services, &volume),
        Request::VolumeDelete { volume } => answer_volumes::delete(services, &volume),
        Request::VolumeGrant { volume, peer } => answer_volumes::grant(services, &volume, &peer),
        Request::VolumeRevoke { volume, peer } => answer_volumes::revoke(services, &volume, &peer),
        Request::Send { .. } => Err(RequestError::SendAmongRequests),
        Request::Receive { .. } => Err(RequestError::ReceiveAmongRequests),
        Request::Receptions { volume, abandon } => {
            let all = crate::reception::unfinished(services, &volume, abandon);
            let all = all.map_err(|problem| RequestError::Reception(problem.to_string()))?;
            Ok(Reply::Receptions(all.into_iter().map(super::receive::report).collect()))
        }
        Request::Close { volume } => {
            let volume = VolumeName::new(&volume)?;
            // Not in the midst of an operation on the volume as a whole.
            let store = services.catalogue.load(&volume).map_or_else(|_| volume.clone(), |found| found.store_name());
            let _turn = services.operations.turns.take([volume.clone(), store]);
            services.tell_all(|| Message::Order(Order::Close { volume: volume.clone() }));
            Ok(Reply::Done)
        }
        Request::Refresh { volume } => {
            let (ended, changed) = recheck(services, Some(VolumeName::new(&volume)?));
            services.scheduler.look_again();
            Ok(Reply::Sessions(ended + changed))
        }
        Request::Invite { name, volumes, read_only, role, expires_s, addresses } => {
            let request = InviteRequest { name, volumes, read_only, role, expires_s, addresses };
            Ok(answer_peers::invite(services, request)?)
        }
        Request::Invitations => Ok(answer_peers::invitations(services)),
        Request::Revoke { name } => Ok(answer_peers::revoke(services, &name)?),
        Request::Peers => Ok(answer_peers::peers(services)),
        Request::Peer { name, operation } => Ok(answer_peers::change(services, &name, operation)?),
    }
}

fn drop_sessions(services: &TargetServices, which: &SessionFilter) -> Result<Reply, RequestError> {
    if *which == SessionFilter::default() {
        return Err(RequestError::NoSessionFilter);
    }
    tracing::info!(?which, "asked to drop sessions");
    let dropped = ask(services, |reply| Order::Drop { which: which.clone(), reply });
    Ok(Reply::Sessions(dropped.into_iter().flatten().collect::<HashSet<_>>().len()))
}

/// What the target is and does now. Asks every worker, and waits for the slowest, but not for one that is stuck.
pub(crate) fn status(services: &TargetServices) -> StatusReport {
    let reports = ask(services, Order::Report);
    let root = services.catalogue.root();
    let mut status = StatusReport {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_s: services.metrics.uptime().as_secs_f64(),
        root: std::path::absolute(root).unwrap_or_else(|_| root.to_owned()).display().to_string(),
        addresses: services.endpoint.addresses().to_vec(),
        workers: services.workers.count(),
        channels: services.endpoint.has_identity(),
        drains: services.drain().report(),
        schedules: services.scheduler.report(),
        memory: services.budget.report(),
        counters: services.stats(),
        latencies: super::activity::latencies(&services.metrics.latencies()),
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

fn drain(
    services: &TargetServices,
    to: Option<String>,
    volume: Option<String>,
    grace_s: u64,
) -> Result<Reply, RequestError> {
    if let Some(to) = &to {
        crate::config::check_host_port(to)?;
    }
    let volume = volume.as_deref().map(VolumeName::new).transpose()?;
    if let Some(volume) = &volume {
        services.catalogue.load(volume)?;
    }
    tracing::info!(to, volume = volume.as_ref().map(tracing::field::display), grace_s, "draining");
    services.drain().begin(volume.clone(), to);
    let grace = Duration::from_secs(grace_s.clamp(1, 3600));
    let order = |reply| Order::Drain { volume: volume.clone(), grace, reply };
    Ok(Reply::Sessions(ask(services, order).into_iter().sum()))
}

fn undrain(services: &TargetServices, volume: Option<String>) -> Result<Reply, RequestError> {
    let volume = volume.as_deref().map(VolumeName::new).transpose()?;
    if !services.drain().end(volume.as_ref()) {
        return Err(RequestError::NotDrained);
    }
    tracing::info!(volume = volume.as_ref().map(tracing::field::display), "taking initiators in again");
    Ok(Reply::Done)
}

/// Reads the configuration again, checks all of it, and then puts it in force: as a whole, or not at all.
///
/// # Errors
/// [`ReloadError`]: nothing was changed.
pub(crate) fn reload(services: &TargetServices) -> Result<Reloaded, ReloadError> {
    let (read, _turn) = services.live_settings().reader().ok_or(ReloadError::NoReader)?;
    let (config, secrets) = read()?;
    let ChangedSettings { changed, needs_restart } = services.replace_settings(config, &secrets)?;
    let (sessions_ended, sessions_changed) = recheck(services, None);
    services.scheduler.look_again();
    tracing::info!(?changed, ?needs_restart, sessions_ended, sessions_changed, "read the configuration again");
    Ok(Reloaded { changed, needs_restart, sessions_ended, sessions_changed })
}
