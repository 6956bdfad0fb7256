//! The volume as the workers see it: which of them owns it, and whether a thread of the target opens or closes its store.

use std::time::{Duration, Instant};

use strongroom_handshake::PublicKey;
use strongroom_scsi::NexusId;
use strongroom_store::StoreError;
use strongroom_target::machine::{Admission, VolumeName};

use super::served_store::ServedStore;
use super::workers::Workers;
use crate::Random;
use crate::system::layout::VIEWS;

/// How long a thread takes to open or close the store, beside what the disk takes.
const THREAD_MAX: Duration = Duration::from_micros(400);
/// When a volume is closed that is to stay open.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// The volume and its clone.
pub(in crate::system) struct ServedVolume {
    pub(in crate::system) store: ServedStore,
    random: Random,
    names: [VolumeName; VIEWS.len()],
    /// The worker that owns the volume, from its opening until it is closed.
    owner: Option<usize>,
    opens_at: Option<Instant>,
    /// The thread that closes the store ends then.
    closed_at: Option<Instant>,
    /// A volume that nobody uses is closed after this time.
    idle_close: Duration,
}

impl ServedVolume {
    pub(super) fn new(store: ServedStore, random: Random) -> ServedVolume {
        ServedVolume {
            store,
            random,
            names: VIEWS.map(|name| VolumeName::new(name).expect("a name")),
            owner: None,
            opens_at: None,
            closed_at: None,
            idle_close: NEVER,
        }
    }

    /// From now on the volume is closed soon after the last session, or never.
    pub(in crate::system) fn close_when_idle(&mut self, closes: bool) {
        self.idle_close = if closes { Duration::from_nanos(self.random.below(1_000_000)) } else { NEVER };
    }

    pub(super) fn name(&self, view: usize) -> &VolumeName {
        &self.names[view]
    }

    /// The worker that owns the volume, if one does.
    pub(super) fn owner(&self) -> Option<usize> {
        self.owner
    }

    /// The same; one of them owns it from now on.
    pub(super) fn take_owner(&mut self, workers: &mut Workers) -> usize {
        *self.owner.get_or_insert_with(|| workers.any())
    }

    /// A login at the worker that owns the volume. The store is opened for it, and the clone is served, if necessary.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        workers: &mut Workers,
        (login, session): (u64, u64),
        view: usize,
        (nexus, node): (&NexusId, PublicKey),
    ) -> Admission {
        let owner = self.take_owner(workers);
        let worker = workers.get_mut(owner);
        let names = (&self.names[view], &self.names[0]);
        let admission = worker.admit((login, session), names, nexus.clone(), node);
        if !matches!(admission, Admission::NotOpen) {
            return admission;
        }
        if !self.store.is_open() {
            worker.begin_opening(&self.names[0], vec![login]);
            self.opens_at = Some(now + thread_time(&mut self.random));
            return Admission::Waits;
        }
        let Some(unit) = self.store.unit(view) else { return Admission::NotOpen };
        worker.opened(now, unit);
        worker.admit((login, session), names, nexus.clone(), node)
    }

    /// Whether the store is to be opened now: [`ServedVolume::open`] follows.
    pub(in crate::system) fn is_opening_due(&self, now: Instant) -> bool {
        self.opens_at.is_some_and(|at| at <= now)
    }

    /// Opens the store unless it is open; logins that waited for it are tried again. After an error they are returned, to be rejected.
    pub(super) fn open(&mut self, now: Instant, workers: &mut Workers) -> Result<(), (StoreError, Vec<u64>)> {
        self.opens_at = None;
        if self.store.is_open() {
            return Ok(());
        }
        let owner = self.take_owner(workers);
        if let Err(error) = self.store.open() {
            self.owner = None;
            return Err((error, workers.get_mut(owner).forget(&self.names[0])));
        }
        let unit = self.store.unit(0).expect("it is open");
        workers.get_mut(owner).opened(now, unit);
        Ok(())
    }

    /// Closes the store in order, while nobody uses it. Whether that went well.
    pub(super) fn close(&mut self, now: Instant, workers: &mut Workers) -> bool {
        if let Some(owner) = self.owner {
            for (view, name) in self.names.iter().enumerate().rev() {
                workers.get_mut(owner).close(name, self.store.memory(view), view == 0);
            }
            self.closed_at = Some(now + thread_time(&mut self.random));
        }
        self.store.close()
    }

    /// The process is gone.
    pub(super) fn process_ended(&mut self) {
        (self.owner, self.opens_at, self.closed_at) = (None, None, None);
        self.store.process_ended();
    }

    /// Lets units do what is due at the workers. Whether the store is to be closed: [`ServedVolume::close`] follows.
    pub(super) fn handle_timeout(&mut self, now: Instant, workers: &mut Workers) -> bool {
        if self.closed_at.take_if(|at| *at <= now).is_some()
            && let Some(owner) = self.owner
        {
            let waiting = workers.get_mut(owner).forget(&self.names[0]);
            match waiting.is_empty() {
                true => self.owner = None,
                false => {
                    workers.get_mut(owner).begin_opening(&self.names[0], waiting);
                    self.opens_at = Some(now + thread_time(&mut self.random));
                }
            }
        }
        let mut closes = false;
        for number in 0..workers.count() {
            for name in workers.get_mut(number).handle_timeout(now, self.idle_close) {
                match name == self.names[0] {
                    true => closes = true,
                    false => workers.get_mut(number).close(&name, self.store.memory(1), false),
                }
            }
        }
        closes
    }

    pub(super) fn poll_timeout(&self, workers: &Workers) -> Option<Instant> {
        let units = (0..workers.count()).filter_map(|number| workers.get(number).poll_timeout(self.idle_close));
        units.chain(self.opens_at).chain(self.closed_at).min()
    }
}

fn thread_time(random: &mut Random) -> Duration {
    Duration::from_nanos(random.below(THREAD_MAX.as_nanos() as u64))
}
