//! What can be done to a volume's contents as a whole: snapshots, clones, rollback, size. The same steps whether a target has its
//! store open (then its worker does them, over `Job`s) or nobody has (then it is opened for the purpose).
//!
//! The store's step comes first and is durable before the description is changed: what a crash leaves is seen and mended when
//! the volume is opened, because the store is what counts.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_block::{Geometry, VolumeId};
use strongroom_store::{
    BranchId, Op, OpError, Outcome, PinnedCount, Sender, SnapshotId, SnapshotInfo, View, VolumeInfo,
};

use crate::admin::StoreReport;
use crate::catalogue::{Catalogue, OpenVolume, random_id};
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::retention::Retention;
use crate::server::Shared;
use crate::unit::{Job, StoreContents};
use crate::volume::{Access, CloneOf, Volume, of_branch};
use crate::worker::{Message, Order};

mod prune;
mod scheduled;

pub use prune::{Pruned, PrunedSnapshot};
pub(crate) use scheduled::{ScheduledRun, run_scheduled};

/// How long a store may take for one step; opening it first included.
const STEP_PATIENCE: Duration = Duration::from_secs(300);

/// One operation on a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Operation {
    /// What its store has in it.
    Describe,
    /// Makes it larger.
    Resize {
        /// The new size in bytes.
        size_bytes: u64,
    },
    /// Keeps it as it is now.
    SnapshotCreate {
        /// The snapshot's name.
        snapshot: String,
    },
    /// Lets a snapshot go.
    SnapshotDelete {
        /// The snapshot's name.
        snapshot: String,
    },
    /// Deletes the snapshots that no rule keeps, and tells what stays and why.
    Prune {
        /// What to keep; not empty.
        keep: Retention,
        /// Only snapshots whose names begin so; others stay, and do not count.
        #[serde(default)]
        prefix: Option<String>,
        /// Only tell.
        #[serde(default)]
        dry_run: bool,
    },
    /// Makes it what it was when a snapshot was taken.
    Rollback {
        /// The snapshot's name.
        snapshot: String,
    },
    /// Makes a volume that begins as a snapshot and shares its blocks.
    Clone {
        /// The snapshot's name.
        snapshot: String,
        /// The new volume's name.
        name: String,
        /// Who may use it; without it the same as the volume.
        #[serde(default)]
        access: Option<Access>,
    },
    /// Deletes a clone.
    DeleteClone,
    /// Begins to erase it: everything in its store goes, for good. The description's `erasing` tells how far it is.
    Erase,
    /// The same of a volume of custody `target` by destroying the key that wraps its block keys, instead of overwriting.
    CryptoErase,
}

/// What a store has in it, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Its counters.
    pub store: StoreReport,
    /// Its snapshots.
    pub snapshots: Vec<SnapshotReport>,
    /// The clones that share it.
    pub clones: Vec<CloneReport>,
    /// After pruning: what became of each snapshot, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pruned: Vec<PrunedSnapshot>,
}

/// A snapshot, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// Its name.
    pub name: String,
    /// Its identity, also in stores that it was sent to.
    pub id: String,
    /// The clone that it is of; `None`: of the volume itself.
    pub clone: Option<String>,
    /// When it was taken, in seconds since 1970.
    pub created_seconds: u64,
    /// Bytes written between the snapshot before and this one that are still kept.
    pub bytes_written: u64,
    /// About what deleting it gives back, in bytes.
    pub bytes_pinned: u64,
    /// How many clones were made from it.
    pub clones: u32,
}

/// A clone, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneReport {
    /// Its name.
    pub name: String,
    /// The snapshot that it was made from.
    pub snapshot: String,
    /// When it was made, in seconds since 1970.
    pub created_seconds: u64,
    /// Bytes written to it since its newest snapshot.
    pub bytes_written: u64,
}

/// The store that an operation needs, wherever it is open. Errors are for people.
trait StoreAccess {
    fn run(&mut self, view: View, op: Op) -> Result<Outcome, String>;
    fn contents(&mut self) -> Result<Box<StoreContents>, String>;
    /// What each snapshot alone keeps.
    fn pinned(&mut self) -> Result<PinnedCount, String>;
    /// How many sessions use a volume or snapshot now.
    fn sessions(&self, export: &VolumeName) -> usize;
    /// Whether a snapshot is being sent now, or another one as what was written since it.
    fn is_sent(&self, snapshot: SnapshotId) -> bool;
    /// A clone or snapshot is no more: who serves it lets go of it, before another one of its name can be made.
    fn gone(&self, export: &VolumeName);
}

/// In a worker of this target.
pub(crate) struct Served<'a> {
    shared: &'a Arc<Shared>,
    store: VolumeName,
}

impl Catalogue {
    /// Does something to a volume that no target serves now.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn operate(&self, volume: &str, operation: &Operation) -> Result<Description, String> {
        let mut opened = self.open_volume(volume).map_err(|error| error.to_string())?;
        let described = opened.volume().clone();
        let outcome = operate(self, &mut opened, &described, operation);
        opened.close().map_err(|error| error.to_string())?;
        outcome
    }
}

/// Does something to a volume that this target serves, or could.
pub(crate) fn operate_served(shared: &Arc<Shared>, volume: &str, operation: &Operation) -> Result<Description, String> {
    let described = load(&shared.catalogue, volume)?;
    // One at a time on each store and each name: it reads descriptions, does its step, and writes them.
    let new_name = match operation {
        Operation::Clone { name, .. } => VolumeName::new(name).ok(),
        _ => None,
    };
    let _turn = shared.turns.take([described.store_name(), described.name.clone()].into_iter().chain(new_name));
    let mut served = Served { shared, store: described.store_name() };
    let outcome = operate(&shared.catalogue, &mut served, &described, operation);
    // Also if it could not be written down: who has it open sees what it is.
    if matches!(operation, Operation::Resize { .. }) {
        shared.tell_all(|| Message::Order(Order::Resized { store: described.store_name() }));
    }
    outcome
}

pub(crate) fn load(catalogue: &Catalogue, volume: &str) -> Result<Volume, String> {
    let name = VolumeName::new(volume).map_err(|error| error.to_string())?;
    catalogue.load(&name).map_err(|error| error.to_string())
}

fn operate(
    catalogue: &Catalogue,
    access: &mut dyn StoreAccess,
    volume: &Volume,
    operation: &Operation,
) -> Result<Description, String> {
    let head = View::Head(volume.branch());
    let mut pruned = Vec::new();
    if *operation != Operation::Describe {
        not_moving(catalogue, access, volume)?;
    }
    if let Operation::Resize { .. } | Operation::SnapshotCreate { .. } | Operation::Clone { .. } = operation {
        // What is done in the store cannot be taken back, or takes space: not where it could not be written down.
        catalogue.rehearse_change(&volume.name).map_err(|error| error.to_string())?;
    }
    match operation {
        Operation::Describe => {}
        Operation::Resize { size_bytes } => resize(catalogue, access, volume, *size_bytes)?,
        Operation::SnapshotCreate { snapshot } => {
            let snapshot = VolumeName::new(snapshot).map_err(|error| error.to_string())?;
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
                return Err("say what to keep: without a rule every snapshot would go".to_owned());
            }
            let concerns = |name: &str| prefix.as_deref().is_none_or(|prefix| name.starts_with(prefix));
            pruned = prune::prune(catalogue, access, volume, keep, &concerns, *dry_run)?;
        }
        Operation::Rollback { snapshot } => {
            let found = find(access, volume, snapshot)?;
            // Whoever has it mounted would see other blocks under its feet.
            unused(access, &volume.name)?;
            access.run(head, Op::Rollback { to: found.id })?;
        }
        Operation::Clone { snapshot, name, access: who } => clone(catalogue, access, volume, snapshot, name, who)?,
        Operation::DeleteClone => return delete_clone(catalogue, access, volume),
        Operation::Erase => erase(access, volume, Op::Erase)?,
        Operation::CryptoErase => {
            if volume.sealed.as_ref().is_none_or(|sealed| sealed.custody.is_blind()) {
                return Err(format!(
                    "there is no key of '{}' here to destroy (only custody 'target' has one)",
                    volume.name
                ));
            }
            erase(access, volume, Op::CryptoErase)?;
        }
    }
    let contents = access.contents()?;
    match note(catalogue, volume, &contents) {
        Err(problem) if *operation != Operation::Describe => {
            return Err(format!(
                "what was asked for is done, but could not be written down in the description of '{}', which happens when the \
                 volume is opened the next time: {problem}",
                volume.name
            ));
        }
        _ => {}
    }
    Ok(Description { pruned, ..describe(volume, &contents, &access.pinned()?) })
}

/// Refuses what would change a volume whose contents are being sealed anew.
fn not_moving(catalogue: &Catalogue, access: &mut dyn StoreAccess, volume: &Volume) -> Result<(), String> {
    // With the store open, which keeps it from being frozen, and by what is written down now.
    access.contents()?;
    let now = catalogue.load(&volume.name).map_err(|error| error.to_string())?;
    match now.successor.as_ref().or(now.succeeds.as_ref()) {
        None => Ok(()),
        Some(other) => Err(CatalogueError::Moving { name: now.name.to_string(), other: other.to_string() }.to_string()),
    }
}

fn export(volume: &Volume, snapshot: &str) -> Result<VolumeName, String> {
    Ok(volume.name.at(&VolumeName::new(snapshot).map_err(|error| error.to_string())?))
}

fn find(access: &mut dyn StoreAccess, volume: &Volume, snapshot: &str) -> Result<SnapshotInfo, String> {
    let contents = access.contents()?;
    let mine = contents.snapshots.into_iter().filter(|info| info.branch == volume.branch());
    mine.into_iter().find(|info| info.name == snapshot).ok_or_else(|| {
        format!("'{}' has no snapshot '{snapshot}'; `strongroom volume snapshot list` shows what there is", volume.name)
    })
}

fn unused(access: &dyn StoreAccess, export: &VolumeName) -> Result<(), String> {
    match access.sessions(export) {
        0 => Ok(()),
        count => Err(format!(
            "{} '{export}'; detach first, or see `strongroom drain` and `strongroom session drop`",
            if count == 1 { "a session uses".to_owned() } else { format!("{count} sessions use") }
        )),
    }
}

fn erase(access: &mut dyn StoreAccess, volume: &Volume, op: Op) -> Result<(), String> {
    unused(access, &volume.name)?;
    let contents = access.contents()?;
    if volume.clone_of.is_some() {
        return Err(format!(
            "'{}' is a clone and shares its blocks with '{}'; delete it instead",
            volume.name,
            volume.store_name()
        ));
    }
    if !contents.snapshots.is_empty() || contents.branches.len() > 1 {
        let name = &volume.name;
        return Err(format!(
            "'{name}' has snapshots or clones, of which an erase would leave nothing; delete those first (`strongroom volume \
             snapshot list {name}` shows them)"
        ));
    }
    access.run(View::default(), op).map(drop)
}

fn resize(catalogue: &Catalogue, access: &mut dyn StoreAccess, volume: &Volume, size_bytes: u64) -> Result<(), String> {
    if volume.clone_of.is_some() {
        return Err(format!("'{}' is a clone and has the size of '{}'; resize that", volume.name, volume.store_name()));
    }
    let geometry = Geometry::from_bytes(size_bytes, volume.geometry.block_size).map_err(|error| error.to_string())?;
    if geometry.blocks < volume.geometry.blocks {
        return Err("a volume does not shrink; make a smaller one and `strongroom copy` to it".to_owned());
    }
    access.run(View::default(), Op::Grow { blocks: geometry.blocks })?;
    for clone in catalogue.clones_of(&volume.name).map_err(|error| error.to_string())? {
        catalogue.change(&clone.name, |clone| clone.geometry = geometry).map_err(|error| error.to_string())?;
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
) -> Result<(), String> {
    let found = find(access, volume, snapshot)?;
    let name = VolumeName::new(name).map_err(|error| error.to_string())?;
    if is_described(catalogue, name.as_str())? {
        return Err(format!("there is a volume '{name}' already; choose another name"));
    }
    let id = VolumeId::from_random(random_id());
    // One that a crash left without a description is no volume: it makes room.
    let left = access.contents()?.branches.into_iter().find(|branch| branch.name == name.as_str());
    if let Some(left) = left {
        drop_branch(catalogue, access, left.id)?;
    }
    let op = Op::CloneCreate { from: found.id, name: name.to_string(), volume_id: id };
    let Outcome::CloneCreated { branch } = access.run(View::default(), op)? else {
        return Err("the store answered another question; this is a defect, please report it".to_owned());
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
        // Whoever else may use the clone needs no less protection: it has the same blocks.
        access: who.as_ref().map_or_else(
            || volume.access.clone(),
            |who| Access { protection: volume.access.protection.clone(), ..who.clone() },
        ),
        ..volume.clone()
    };
    catalogue.add_clone(&made).map_err(|error| error.to_string())
}

fn delete_clone(catalogue: &Catalogue, access: &mut dyn StoreAccess, volume: &Volume) -> Result<Description, String> {
    if volume.clone_of.is_none() {
        return Err(format!("'{}' is no clone; use `strongroom volume delete`", volume.name));
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
    catalogue.remove_clone(volume).map_err(|error| error.to_string())?;
    exports.iter().for_each(|export| access.gone(export));
    drop_branch(catalogue, access, branch)?;
    Ok(describe(volume, &*access.contents()?, &access.pinned()?))
}

/// Lets a clone's blocks go, its snapshots, and what is left of clones of those that have no description any more.
fn drop_branch(catalogue: &Catalogue, access: &mut dyn StoreAccess, branch: BranchId) -> Result<(), String> {
    for snapshot in access.contents()?.snapshots.into_iter().filter(|snapshot| snapshot.branch == branch) {
        for clone in access.contents()?.branches.into_iter().filter(|clone| clone.from == Some(snapshot.id)) {
            if is_described(catalogue, &clone.name)? {
                return Err(depended(&clone.name, &snapshot.name));
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
) -> Result<(), String> {
    let Some(clone) = contents.branches.iter().find(|branch| branch.from == Some(snapshot.id)) else { return Ok(()) };
    let name = &clone.name;
    if is_described(catalogue, name)? {
        return Err(depended(name, export.as_str()));
    }
    // A crash left it, or somebody removed its directory.
    Err(format!(
        "what is left of the clone '{name}', which has no description any more, depends on '{export}'; to be rid of it make it \
         anew and delete it: strongroom volume clone {export} {name}, then strongroom volume delete {name}"
    ))
}

/// Whether there is a description of a clone. One that cannot be read is there: nothing of its clone may go.
fn is_described(catalogue: &Catalogue, clone: &str) -> Result<bool, String> {
    let name = VolumeName::new(clone).map_err(|error| error.to_string())?;
    match catalogue.load(&name) {
        Ok(_) => Ok(true),
        Err(CatalogueError::Missing { .. }) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

fn depended(clone: &str, snapshot: &str) -> String {
    format!(
        "the clone '{clone}' depends on the snapshot '{snapshot}'; delete it first: strongroom volume delete {clone}"
    )
}

/// Writes down what the store now has: initiators are told of it before the store is open.
fn note(catalogue: &Catalogue, volume: &Volume, contents: &StoreContents) -> Result<(), String> {
    let noted = catalogue.change(&volume.name, |noted| {
        noted.snapshots = of_branch(&contents.snapshots, volume.branch());
        noted.geometry = contents.info.geometry;
    });
    noted.map(drop).map_err(|error| error.to_string())
}

/// The same after a snapshot was received.
pub(crate) fn note_received(shared: &Arc<Shared>, volume: &Volume) -> Result<(), String> {
    let contents = Served::of(shared, volume).contents()?;
    note(&shared.catalogue, volume, &contents)
}

fn describe(volume: &Volume, contents: &StoreContents, pinned: &PinnedCount) -> Description {
    let clone_name = |branch: BranchId| {
        let found = contents.branches.iter().find(|info| info.id == branch && branch != BranchId::VOLUME);
        found.map(|info| info.name.clone())
    };
    let own = volume.branch();
    // Of a clone its own; of the volume itself all.
    let shown = contents.snapshots.iter().filter(|info| own == BranchId::VOLUME || info.branch == own);
    let snapshots = shown.map(|info| SnapshotReport {
        name: info.name.clone(),
        id: info.id.to_string(),
        clone: clone_name(info.branch),
        created_seconds: info.created_seconds,
        bytes_written: info.bytes_written,
        bytes_pinned: pinned.bytes(info.id),
        clones: info.clones,
    });
    let of_snapshot = |id| contents.snapshots.iter().find(|info| Some(info.id) == id).map(|info| info.name.clone());
    let clones = contents.branches.iter().filter(|info| info.id != BranchId::VOLUME).map(|info| CloneReport {
        name: info.name.clone(),
        snapshot: of_snapshot(info.from).unwrap_or_default(),
        created_seconds: info.created_seconds,
        bytes_written: info.bytes_written,
    });
    Description {
        store: contents.stats.into(),
        snapshots: snapshots.collect(),
        clones: clones.collect(),
        pruned: Vec::new(),
    }
}

impl StoreAccess for Served<'_> {
    fn run(&mut self, view: View, op: Op) -> Result<Outcome, String> {
        self.ask(|reply| Job::Run { view, op, reply })?.map_err(|error: OpError| error.to_string())
    }

    fn contents(&mut self) -> Result<Box<StoreContents>, String> {
        self.ask(Job::Describe)
    }

    fn pinned(&mut self) -> Result<PinnedCount, String> {
        let mut count = PinnedCount::default();
        loop {
            let (counted, goes_on) = self.ask(|reply| Job::CountPinned { count, reply })?;
            if !goes_on {
                return Ok(counted);
            }
            count = counted;
        }
    }

    fn sessions(&self, export: &VolumeName) -> usize {
        let sessions = self.shared.counters.sessions();
        sessions.iter().filter(|session| session.volume.as_deref() == Some(export.as_str())).count()
    }

    fn is_sent(&self, snapshot: SnapshotId) -> bool {
        self.shared.sends.concern(snapshot)
    }

    fn gone(&self, export: &VolumeName) {
        // By the same way as the jobs: what is asked of its store next finds it gone.
        self.shared.tell(self.shared.owner(&self.store), Message::Order(Order::Gone { export: export.clone() }));
    }
}

impl<'a> Served<'a> {
    /// The store of a volume, and the snapshots of that volume by name.
    pub(crate) fn with_snapshots(
        shared: &'a Arc<Shared>,
        volume: &Volume,
        names: &[&str],
    ) -> Result<(Served<'a>, VolumeInfo, Vec<SnapshotId>), String> {
        let mut served = Served { shared, store: volume.store_name() };
        let found =
            names.iter().map(|name| find(&mut served, volume, name).map(|info| info.id)).collect::<Result<_, _>>()?;
        let info = served.contents()?.info;
        Ok((served, info, found))
    }

    /// The next bytes of a stream.
    pub(crate) fn send(&self, stream: Box<Sender>) -> Result<(Box<Sender>, Option<Vec<u8>>), String> {
        self.ask(|reply| Job::Send { stream, reply })?.map_err(|error| error.to_string())
    }

    /// The store of a volume.
    pub(crate) fn of(shared: &'a Arc<Shared>, volume: &Volume) -> Served<'a> {
        Served { shared, store: volume.store_name() }
    }

    pub(crate) fn ask<T>(&self, job: impl FnOnce(mpsc::Sender<T>) -> Job) -> Result<T, String> {
        let (reply, answer) = mpsc::channel();
        let order = Order::Job { volume: self.store.clone(), job: Box::new(job(reply)) };
        self.shared.tell(self.shared.owner(&self.store), Message::Order(order));
        answer.recv_timeout(STEP_PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => "the store does not answer; look into the target's log".to_owned(),
            RecvTimeoutError::Disconnected => {
                format!("the volume '{}' cannot be opened; the target's log says why", self.store)
            }
        })
    }
}

impl StoreAccess for OpenVolume {
    fn run(&mut self, view: View, op: Op) -> Result<Outcome, String> {
        if matches!(op, Op::CryptoErase) {
            return Err("nobody here destroys the key; use `strongroom volume erase --crypto`".to_owned());
        }
        self.store.execute_on(view, op).map_err(|error| error.to_string())
    }

    fn contents(&mut self) -> Result<Box<StoreContents>, String> {
        Ok(Box::new(StoreContents {
            info: self.store.info().clone(),
            stats: self.store.stats(),
            snapshots: self.store.snapshots(),
            branches: self.store.branches(),
        }))
    }

    fn pinned(&mut self) -> Result<PinnedCount, String> {
        let mut count = PinnedCount::default();
        while self.store.count_pinned(&mut count) {}
        Ok(count)
    }

    fn sessions(&self, _export: &VolumeName) -> usize {
        0 // The lock says so.
    }

    fn is_sent(&self, _snapshot: SnapshotId) -> bool {
        false // Likewise.
    }

    fn gone(&self, _export: &VolumeName) {}
}

#[cfg(test)]
mod tests;
