//! The store that an operation needs: in a worker of this target, or opened for the purpose.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use strongroom_store::{Op, Outcome, PinnedCount, Sender, SnapshotId, SnapshotInfo, View, VolumeInfo};

use super::error::OperationError;
use crate::catalogue::OpenVolume;
use crate::names::VolumeName;
use crate::services::TargetServices;
use crate::unit::{Job, StoreContents};
use crate::volume::Volume;
use crate::worker::message::Message;
use crate::worker::order::Order;

/// How long a store may take for one step; opening it first included.
const STEP_PATIENCE: Duration = Duration::from_secs(300);

/// The store that an operation needs, wherever it is open.
pub(super) trait StoreAccess {
    fn run(&mut self, view: View, op: Op) -> Result<Outcome, OperationError>;
    fn contents(&mut self) -> Result<Box<StoreContents>, OperationError>;
    /// What each snapshot alone keeps.
    fn pinned(&mut self) -> Result<PinnedCount, OperationError>;
    /// How many sessions use a volume or snapshot now.
    fn sessions(&self, export: &VolumeName) -> usize;
    /// Whether a snapshot is being sent now, or another one as what was written since it.
    fn is_sent(&self, snapshot: SnapshotId) -> bool;
    /// A clone or snapshot is no more: who serves it lets go of it, before another one of its name can be made.
    fn gone(&self, export: &VolumeName);
}

/// In a worker of this target.
pub(crate) struct Served<'a> {
    pub(super) shared: &'a Arc<TargetServices>,
    pub(super) store: VolumeName,
}

impl StoreAccess for Served<'_> {
    fn run(&mut self, view: View, op: Op) -> Result<Outcome, OperationError> {
        Ok(self.ask(|reply| Job::Run { view, op, reply })??)
    }

    fn contents(&mut self) -> Result<Box<StoreContents>, OperationError> {
        self.ask(Job::Describe)
    }

    fn pinned(&mut self) -> Result<PinnedCount, OperationError> {
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
        let sessions = self.shared.metrics.counters.sessions();
        sessions.iter().filter(|session| session.volume.as_deref() == Some(export.as_str())).count()
    }

    fn is_sent(&self, snapshot: SnapshotId) -> bool {
        self.shared.operations.sends.concern(snapshot)
    }

    fn gone(&self, export: &VolumeName) {
        // By the same way as the jobs: what is asked of its store next finds it gone.
        self.shared.tell(self.shared.owner(&self.store), Message::Order(Order::Gone { export: export.clone() }));
    }
}

impl<'a> Served<'a> {
    /// The store of a volume, and the snapshots of that volume by name.
    pub(crate) fn with_snapshots(
        shared: &'a Arc<TargetServices>,
        volume: &Volume,
        names: &[&str],
    ) -> Result<(Served<'a>, VolumeInfo, Vec<SnapshotId>), OperationError> {
        let mut served = Served { shared, store: volume.store_name() };
        let found =
            names.iter().map(|name| find(&mut served, volume, name).map(|info| info.id)).collect::<Result<_, _>>()?;
        let info = served.contents()?.info;
        Ok((served, info, found))
    }

    /// The next bytes of a stream.
    pub(crate) fn send(&self, stream: Box<Sender>) -> Result<(Box<Sender>, Option<Vec<u8>>), OperationError> {
        Ok(self.ask(|reply| Job::Send { stream, reply })??)
    }

    /// The store of a volume.
    pub(crate) fn of(shared: &'a Arc<TargetServices>, volume: &Volume) -> Served<'a> {
        Served { shared, store: volume.store_name() }
    }

    pub(crate) fn ask<T>(&self, job: impl FnOnce(mpsc::Sender<T>) -> Job) -> Result<T, OperationError> {
        let (reply, answer) = mpsc::channel();
        let order = Order::Job { volume: self.store.clone(), job: Box::new(job(reply)) };
        self.shared.tell(self.shared.owner(&self.store), Message::Order(order));
        answer.recv_timeout(STEP_PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => OperationError::StoreSilent,
            RecvTimeoutError::Disconnected => OperationError::NotOpened { volume: self.store.to_string() },
        })
    }
}

impl StoreAccess for OpenVolume {
    fn run(&mut self, view: View, op: Op) -> Result<Outcome, OperationError> {
        if matches!(op, Op::CryptoErase) {
            return Err(OperationError::NoKeyRenewer);
        }
        Ok(self.store.execute_on(view, op)?)
    }

    fn contents(&mut self) -> Result<Box<StoreContents>, OperationError> {
        Ok(Box::new(StoreContents {
            info: self.store.info().clone(),
            stats: self.store.stats(),
            snapshots: self.store.index().snapshots(),
            branches: self.store.index().branches(),
        }))
    }

    fn pinned(&mut self) -> Result<PinnedCount, OperationError> {
        let mut count = PinnedCount::default();
        while self.store.index().count_pinned(&mut count) {}
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

/// A snapshot of a volume, by name.
pub(super) fn find(
    access: &mut dyn StoreAccess,
    volume: &Volume,
    snapshot: &str,
) -> Result<SnapshotInfo, OperationError> {
    let contents = access.contents()?;
    let mine = contents.snapshots.into_iter().filter(|info| info.branch == volume.branch());
    let found = mine.into_iter().find(|info| info.name == snapshot);
    let (volume, snapshot) = (volume.name.to_string(), snapshot.to_owned());
    found.ok_or(OperationError::NoSnapshot { volume, snapshot })
}
