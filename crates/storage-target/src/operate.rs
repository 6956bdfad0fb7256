//! What can be done to a volume's contents as a whole: snapshots, clones, rollback, size. The same steps whether a target has its
//! store open (then its worker does them, over `Job`s) or no process has (then it is opened for the purpose).
//!
//! The store's step comes first and is durable before the description is changed: what a crash leaves is seen and mended when
//! the volume is opened, because the store is what counts.

mod description;
pub(crate) mod error;
pub(crate) mod operation;
mod prune;
mod scheduled;
mod store_access;

use std::sync::Arc;

use strongroom_block::{Geometry, VolumeId};
use strongroom_store::{BranchId, Op, Outcome, SnapshotInfo, View};

use crate::catalogue::{Catalogue, random_id};
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::services::TargetServices;
use crate::unit::StoreContents;
use crate::volume::{Access, CloneOf, Volume, of_branch};
use crate::worker::message::Message;
use crate::worker::order::Order;
use description::describe;
pub use description::{CloneReport, Description, SnapshotReport};
pub use error::OperationError;
pub use operation::Operation;
pub use prune::{Pruned, PrunedSnapshot};
pub(crate) use scheduled::run_scheduled;
pub(crate) use store_access::Served;
use store_access::{StoreAccess, find};

impl Catalogue {
    /// Does something to a volume that no target serves now.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn operate(&self, volume: &str, operation: &Operation) -> Result<Description, OperationError> {
        let mut opened = self.open_volume(volume)?;
        let described = opened.volume().clone();
        let outcome = operate(self, &mut opened, &described, operation);
        opened.close()?;
        outcome
    }
}

/// Does something to a volume that this target serves, or could.
pub(crate) fn operate_served(
    shared: &Arc<TargetServices>,
    volume: &str,
    operation: &Operation,
) -> Result<Description, OperationError> {
    let described = load(&shared.catalogue, volume)?;
    // One at a time on each store and each name: it reads descriptions, does its step, and writes them.
    let new_name = match operation {
        Operation::Clone { name, .. } => VolumeName::new(name).ok(),
        _ => None,
    };
    let _turn =
        shared.operations.turns.take([described.store_name(), described.name.clone()].into_iter().chain(new_name));
    let mut served = Served { shared, store: described.store_name() };
    let outcome = operate(&shared.catalogue, &mut served, &described, operation);
    // Also if it could not be written down: who has it open sees what it is.
    if matches!(operation, Operation::Resize { .. }) {
        shared.tell_all(|| Message::Order(Order::Resized { store: described.store_name() }));
    }
    outcome
}

pub(crate) fn load(catalogue: &Catalogue, volume: &str) -> Result<Volume, OperationError> {
    let name = VolumeName::new(volume)?;
    Ok(catalogue.load(&name)?)
}

fn operate(
    catalogue: &Catalogue,
    access: &mut dyn StoreAccess,
    volume: &Volume,
    operation: &Operation,
) -> Result<Description, OperationError> {
    if *operation != Operation::Describe {
        not_moving(catalogue, access, volume)?;
    }
    if let Operation::Resize { .. } | Operation::SnapshotCreate { .. } | Operation::Clone { .. } = operation {
        // What is done in the store cannot be taken back, or takes space: not where it could not be written down.
        catalogue.rehearse_change(&volume.name)?;
    }
    if *operation == Operation::DeleteClone {
        return delete_clone(catalogue, access, volume);
    }
    let pruned = execute(catalogue, access, volume, operation)?;
    let contents = access.contents()?;
    match note(catalogue, volume, &contents) {
        Err(source) if *operation != Operation::Describe => {
            return Err(OperationError::NotDescribed { volume: volume.name.to_string(), source });
        }
        _ => {}
    }
    Ok(Description { pruned, ..describe(volume, &contents, &access.pinned()?) })
}

/// Does an operation in the store; what pruning did to each snapshot.
fn execute(
    catalogue: &Catalogue,
    access: &mut dyn StoreAccess,
    volume: &Volume,
    operation: &Operation,
) -> Result<Vec<PrunedSnapshot>, OperationError> {
    let head = View::Head(volume.branch());
    match operation {
        Operation::Describe | Operation::DeleteClone => {}
        Operation::Resize { size_bytes } => resize(catalogue, access, volume, *size_bytes)?,
        Operation::SnapshotCreate { snapshot } => {
            let snapshot = VolumeName::new(snapshot)?;
            access.run(head, Op::SnapshotCreate { name: snapshot.to_string() })?;
        }
        Operation::SnapshotDelete { snapshot } => {
            let found = find(access, volume, snapshot)?;
            let export = export(volume, snapshot)?;
            unused(access, &export)?;
            without_clones(catalogue, &found, &export, &*access.contents()?)?;
            access.run(head, Op::SnapshotDelete { id: found.id })?;
            access.gone(&export);
        }
        Operation::Prune { keep, prefix, dry_run } => {
            if keep.is_empty() {
                return Err(OperationError::NothingToKeep);
            }
            let concerns = |name: &str| prefix.as_deref().is_none_or(|prefix| name.starts_with(prefix));
            return prune::prune(catalogue, access, volume, keep, &concerns, *dry_run);
        }
        Operation::Rollback { snapshot } => {
            let found = find(access, volume, snapshot)?;
            // An initiator that has it mounted would suddenly see other blocks.
            unused(access, &volume.name)?;
            access.run(head, Op::Rollback { to: found.id })?;
        }
        Operation::Clone { snapshot, name, access: who } => clone(catalogue, access, volume, snapshot, name, who)?,
        Operation::Erase => erase(access, volume, Op::Erase)?,
        Operation::CryptoErase => {
            if volume.sealed.as_ref().is_none_or(|sealed| sealed.custody.is_blind()) {
                return Err(OperationError::NoWrappingKey { volume: volume.name.to_string() });
            }
            erase(access, volume, Op::CryptoErase)?;
        }
    }
    Ok(Vec::new())
}

/// Refuses to change a volume whose contents are being resealed.
fn not_moving(catalogue: &Catalogue, access: &mut dyn StoreAccess, volume: &Volume) -> Result<(), OperationError> {
    // With the store open, which keeps it from being frozen, and by what is written down now.
    access.contents()?;
    let now = catalogue.load(&volume.name)?;
    match now.successor.as_ref().or(now.succeeds.as_ref()) {
        None => Ok(()),
        Some(other) => Err(CatalogueError::Moving { name: now.name.to_string(), other: other.to_string() }.into()),
    }
}

fn export(volume: &Volume, snapshot: &str) -> Result<VolumeName, OperationError> {
    Ok(volume.name.at(&VolumeName::new(snapshot)?))
}

fn unused(access: &dyn StoreAccess, export: &VolumeName) -> Result<(), OperationError> {
    match access.sessions(export) {
        0 => Ok(()),
        sessions => Err(OperationError::InUse { export: export.to_string(), sessions }),
    }
}

fn erase(access: &mut dyn StoreAccess, volume: &Volume, op: Op) -> Result<(), OperationError> {
    unused(access, &volume.name)?;
    let contents = access.contents()?;
    if volume.clone_of.is_some() {
        let (volume, store) = (volume.name.to_string(), volume.store_name().to_string());
        return Err(OperationError::EraseOfClone { volume, store });
    }
    if !contents.snapshots.is_empty() || contents.branches.len() > 1 {
        return Err(OperationError::EraseWithViews { volume: volume.name.to_string() });
    }
    access.run(View::default(), op).map(drop)
}

fn resize(
    catalogue: &Catalogue,
    access: &mut dyn StoreAccess,
    volume: &Volume,
    size_bytes: u64,
) -> Result<(), OperationError> {
    if volume.clone_of.is_some() {
        let (volume, store) = (volume.name.to_string(), volume.store_name().to_string());
        return Err(OperationError::ResizeOfClone { volume, store });
    }
    let geometry = Geometry::from_bytes(size_bytes, volume.geometry.block_size)?;
    if geometry.blocks < volume.geometry.blocks {
        return Err(OperationError::Shrink);
    }
    access.run(View::default(), Op::Grow { blocks: geometry.blocks })?;
    for clone in catalogue.clones_of(&volume.name)? {
        catalogue.change(&clone.name, |clone| clone.geometry = geometry)?;
    }
    Ok(())
}

fn clone(
    catalogue: &Catalogue,
    access: &mut dyn StoreAccess,
    volume: &Volume,
    snapshot: &str,
    name: &str,
    who: &Option<Access>,
) -> Result<(), OperationError> {
    let found = find(access, volume, snapshot)?;
    let name = VolumeName::new(name)?;
    if is_described(catalogue, name.as_str())? {
        return Err(OperationError::NameTaken { name: name.to_string() });
    }
    let id = VolumeId::from_random(random_id());
    // One that a crash left without a description is no volume: it makes room.
    let left = access.contents()?.branches.into_iter().find(|branch| branch.name == name.as_str());
    if let Some(left) = left {
        drop_branch(catalogue, access, left.id)?;
    }
    let op = Op::CloneCreate { from: found.id, name: name.to_string(), volume_id: id };
    let Outcome::CloneCreated { branch } = access.run(View::default(), op)? else {
        return Err(OperationError::OtherOutcome);
    };
    let clone_of = CloneOf {
        volume: volume.store_name().to_string(),
        branch: branch.0,
        snapshot: export(volume, snapshot)?.to_string(),
    };
    let made = Volume {
        name,
        id,
        clone_of: Some(clone_of),
        snapshots: Vec::new(),
        schedule: None,
        successor: None,
        succeeds: None,
        // Others who may use the clone need no less protection: it has the same blocks.
        access: who.as_ref().map_or_else(
            || volume.access.clone(),
            |who| Access { protection: volume.access.protection.clone(), ..who.clone() },
        ),
        ..volume.clone()
    };
    Ok(catalogue.add_clone(&made)?)
}

fn delete_clone(
    catalogue: &Catalogue,
    access: &mut dyn StoreAccess,
    volume: &Volume,
) -> Result<Description, OperationError> {
    if volume.clone_of.is_none() {
        return Err(OperationError::NotAClone { volume: volume.name.to_string() });
    }
    let branch = volume.branch();
    let mut exports = vec![volume.name.clone()];
    let contents = access.contents()?;
    for snapshot in contents.snapshots.iter().filter(|snapshot| snapshot.branch == branch) {
        let export = export(volume, &snapshot.name)?;
        without_clones(catalogue, snapshot, &export, &contents)?;
        exports.push(export);
    }
    exports.iter().try_for_each(|export| unused(access, export))?;
    // Without the description nobody finds the branch any more: so it goes first, and a crash leaves what `clone` clears away.
    catalogue.remove_clone(volume)?;
    exports.iter().for_each(|export| access.gone(export));
    drop_branch(catalogue, access, branch)?;
    Ok(describe(volume, &*access.contents()?, &access.pinned()?))
}

/// Lets a clone's blocks go, its snapshots, and what is left of clones of those that have no description any more.
fn drop_branch(catalogue: &Catalogue, access: &mut dyn StoreAccess, branch: BranchId) -> Result<(), OperationError> {
    for snapshot in access.contents()?.snapshots.into_iter().filter(|snapshot| snapshot.branch == branch) {
        for clone in access.contents()?.branches.into_iter().filter(|clone| clone.from == Some(snapshot.id)) {
            if is_described(catalogue, &clone.name)? {
                let (clone, snapshot) = (clone.name, snapshot.name);
                return Err(OperationError::DependentClone { clone, snapshot });
            }
            drop_branch(catalogue, access, clone.id)?;
        }
        access.run(View::Head(branch), Op::SnapshotDelete { id: snapshot.id })?;
    }
    access.run(View::default(), Op::CloneDelete { branch }).map(drop)
}

/// Refuses what would take a snapshot away from under clones, and names one of them.
fn without_clones(
    catalogue: &Catalogue,
    snapshot: &SnapshotInfo,
    export: &VolumeName,
    contents: &StoreContents,
) -> Result<(), OperationError> {
    let Some(clone) = contents.branches.iter().find(|branch| branch.from == Some(snapshot.id)) else { return Ok(()) };
    let (clone, export) = (clone.name.clone(), export.to_string());
    match is_described(catalogue, &clone)? {
        true => Err(OperationError::DependentClone { clone, snapshot: export }),
        false => Err(OperationError::DependentRemains { clone, export }),
    }
}

/// Whether there is a description of a clone. One that cannot be read is there: nothing of its clone may go.
fn is_described(catalogue: &Catalogue, clone: &str) -> Result<bool, OperationError> {
    let name = VolumeName::new(clone)?;
    match catalogue.load(&name) {
        Ok(_) => Ok(true),
        Err(CatalogueError::Missing { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Writes down what the store now has: initiators are told of it before the store is open.
fn note(catalogue: &Catalogue, volume: &Volume, contents: &StoreContents) -> Result<(), CatalogueError> {
    let noted = catalogue.change(&volume.name, |noted| {
        noted.snapshots = of_branch(&contents.snapshots, volume.branch());
        noted.geometry = contents.info.geometry;
    });
    noted.map(drop)
}

/// The same after a snapshot was received.
pub(crate) fn note_received(shared: &Arc<TargetServices>, volume: &Volume) -> Result<(), OperationError> {
    let contents = Served::of(shared, volume).contents()?;
    Ok(note(&shared.catalogue, volume, &contents)?)
}

#[cfg(test)]
mod tests;
