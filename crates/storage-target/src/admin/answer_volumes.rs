//! Answers requests about volumes as such: which there are, making and deleting them, and which peers may use them. Runs in the thread of
//! who asks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::RequestError;
use super::workers::{ask, recheck};
use super::{NewVolume, Operation, Reply, VolumeEntry, VolumeInfo};
use crate::catalogue::VolumeStatus;
use crate::error::CatalogueError;
use crate::names::{VolumeName, for_log};
use crate::operate::error::OperationError;
use crate::operate::operate_served;
use crate::pairing::{PairingError, PeerChange};
use crate::services::TargetServices;
use crate::worker::message::Message;
use crate::worker::order::Order;

/// How long a volume that nobody uses may take to close before it is deleted.
const CLOSE_PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// All volumes, or one.
pub(super) fn list(services: &TargetServices, volume: Option<&str>) -> Result<Reply, RequestError> {
    let mut all = match volume {
        Some(volume) => vec![(VolumeName::new(volume)?, Ok(services.catalogue.show(volume)?))],
        None => services.catalogue.list()?,
    };
    // A clone's blocks lie in another volume's store, so its lock tells nothing.
    let mut clones = all.iter_mut().filter_map(|(_, status)| status.as_mut().ok()).filter(is_clone).peekable();
    if clones.peek().is_some() {
        let reports = ask(services, Order::Report);
        let is_open = |name: &str| reports.iter().flat_map(|report| &report.volumes).any(|volume| volume.name == name);
        clones.for_each(|clone| clone.in_use = is_open(clone.volume.name.as_str()));
    }
    Ok(Reply::Volumes(all.into_iter().map(VolumeEntry::from).collect()))
}

fn is_clone(status: &&mut VolumeStatus) -> bool {
    status.volume.clone_of.is_some()
}

pub(super) fn create(services: &TargetServices, new: &NewVolume) -> Result<Reply, RequestError> {
    check_peers(services, &new.peers)?;
    let volume = services.catalogue.create(&new.spec()?)?;
    let status = services.catalogue.show(volume.name.as_str())?;
    tracing::info!(volume = %volume.name, size_bytes = volume.geometry.bytes(), "made a volume");
    Ok(Reply::Created(Box::new(VolumeInfo::of(&status))))
}

/// Peers that there are: a right by name must not wait for somebody to get that name.
pub(crate) fn check_peers(services: &TargetServices, peers: &[String]) -> Result<(), PairingError> {
    let settings = services.settings();
    match peers.iter().find(|peer| *peer != "*" && !settings.rules.has_peer(peer)) {
        Some(peer) => Err(PairingError::Missing { name: for_log(peer) }),
        None => Ok(()),
    }
}

/// Deletes a volume that no session uses; the target closes it first.
pub(super) fn delete(services: &Arc<TargetServices>, volume: &str) -> Result<Reply, RequestError> {
    let name = VolumeName::new(volume)?;
    if services.catalogue.load(&name).is_ok_and(|volume| volume.clone_of.is_some()) {
        operate_served(services, volume, &Operation::DeleteClone)?;
        return Ok(Reply::Done);
    }
    let _turn = services.operations.turns.take([name.clone()]);
    let deadline = Instant::now() + CLOSE_PATIENCE;
    loop {
        let uses = |export: &str| VolumeName::of_export(export).is_ok_and(|export| export.volume() == name);
        let sessions = services.metrics.counters.sessions();
        let sessions = sessions.iter().filter(|session| session.volume.as_deref().is_some_and(uses)).count();
        if sessions > 0 {
            return Err(OperationError::InUse { export: name.to_string(), sessions }.into());
        }
        match services.catalogue.delete(name.as_str()) {
            Err(CatalogueError::InUse { .. }) if Instant::now() < deadline => {
                services.tell_all(|| Message::Order(Order::Close { volume: name.clone() }));
                std::thread::sleep(LOOK_EVERY);
            }
            outcome => {
                outcome?;
                tracing::info!(volume = %name, "deleted a volume");
                return Ok(Reply::Done);
            }
        }
    }
}

/// Has the volume name a peer that may use it.
pub(super) fn grant(services: &TargetServices, volume: &str, peer: &str) -> Result<Reply, RequestError> {
    let name = still(services, volume)?;
    check_peers(services, &[peer.to_owned()])?;
    services.catalogue.change(&name, |volume| {
        if !volume.access.peers.iter().any(|named| named == peer) {
            volume.access.peers.push(peer.to_owned());
        }
    })?;
    Ok(access_changed(services, &name, peer))
}

/// Takes a volume from a peer, as far as the volume or the peer database names it.
pub(super) fn revoke(services: &TargetServices, volume: &str, peer: &str) -> Result<Reply, RequestError> {
    let name = still(services, volume)?;
    services.catalogue.change(&name, |volume| volume.access.peers.retain(|named| named != peer))?;
    let names = |paired: &&crate::pairing::PairedPeer| {
        paired.name.as_str() == peer && paired.volumes.iter().any(|listed| listed == name.as_str())
    };
    if services.peers.peers().iter().find(names).is_some() {
        let change = PeerChange::Deny(vec![name.to_string()]);
        services.peers.change_peer(peer, change, &services.settings().rules)?;
        services.replace_database();
    }
    Ok(access_changed(services, &name, peer))
}

/// A volume whose contents do not move: until that is over only one node may use it.
fn still(services: &TargetServices, volume: &str) -> Result<VolumeName, RequestError> {
    let volume = services.catalogue.load(&VolumeName::new(volume)?)?;
    match volume.successor.as_ref().or(volume.succeeds.as_ref()) {
        Some(other) => Err(CatalogueError::Moving { name: volume.name.to_string(), other: other.to_string() }.into()),
        None => Ok(volume.name),
    }
}

fn access_changed(services: &TargetServices, name: &VolumeName, peer: &str) -> Reply {
    let (ended, changed) = recheck(services, Some(name.clone()));
    let volume = services.catalogue.load(name).ok();
    let right = volume.and_then(|volume| services.settings().rules.right_of(peer, &volume));
    Reply::Access { sessions: ended + changed, may_use_because: right.map(str::to_owned) }
}
