//! Which image of a volume its sessions see. It is the head, except after a reception: sessions that read while a newer snapshot came in go on
//! seeing the snapshot before, write-protected, until the last of them has logged out or has been away for longer than [`ABSENCE_MAX`].
//!
//! That image is *pinned*: a file beside the volume's description names it, and is durable before the volume goes on from the received snapshot. So
//! neither a lost connection nor a crash of the target changes what is below a mounted file system. When it is released, sessions see the new
//! contents at once and the file is removed after that: a target that is killed in between shows the old image once more, which initiators that
//! saw the new one find out by its number. Absent: receiving (`receive`), and the file's form (`format`).

mod format;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_scsi::NexusId;
use strongroom_store::SnapshotId;

use super::persistent_file::PersistentFile;
use crate::store_handle::StoreHandle;

/// How long a reader whose connection is lost finds its image again: as long as a writer lease outlives its session, unless set otherwise.
pub(crate) const ABSENCE_MAX: Duration = Duration::from_secs(60);
/// Absent readers that are known by name; of further ones only the time counts.
const ABSENT_MAX: usize = 64;
/// How long to wait after a failure before the file is written again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// A snapshot that sessions see instead of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    pub(crate) snapshot: SnapshotId,
    /// What the image was called while it was the head: initiators compare it when they reconnect.
    pub(crate) image: u64,
}

/// The number of the image that sessions see: another one whenever the contents are replaced, and only then. `pin`: what they see instead of the
/// head.
pub(super) fn number(pin: Option<Pin>, store: &StoreHandle) -> u64 {
    pin.map_or_else(|| store.incarnation_and_image().1, |pin| pin.image)
}

/// What is to be done after [`PinnedImage::poll`].
#[derive(Debug)]
pub(super) enum PinEvent<T> {
    /// The pin is durable: this may be done now.
    Durable(T),
    /// It could not be made durable.
    Failed(T, io::Error),
    /// There is no pin any more: sessions see the head.
    Released,
}

/// The pin of a unit, and who needs it. `T`: what must not be done before the pin is durable.
pub(super) struct PinnedImage<T> {
    pin: Option<Pin>,
    waiting: Option<T>,
    file: PersistentFile<Option<Pin>>,
    /// What was written last, and so what is on disk, unless that failed.
    on_disk: Option<Pin>,
    /// Set by a failure: the file is written again then.
    retry_at: Option<Instant>,
    absent: AbsentReaders,
    /// The latest time that we were told.
    now: Option<Instant>,
}

impl<T> PinnedImage<T> {
    /// As it was before a restart: sessions that had it may come back. `is_there`: whether the store still has a snapshot.
    pub(super) fn restore(
        (file, on_disk): (PersistentFile<Option<Pin>>, Option<Pin>),
        is_there: impl FnOnce(SnapshotId) -> bool,
    ) -> PinnedImage<T> {
        let pin = on_disk.filter(|pin| is_there(pin.snapshot));
        let absent = AbsentReaders { since_unknown: pin.is_some(), ..AbsentReaders::default() };
        PinnedImage { pin, waiting: None, file, on_disk, retry_at: None, absent, now: None }
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.now = Some(now);
        self.absent.tick(now);
    }

    /// What is shown instead of the head.
    pub(super) fn pin(&self) -> Option<Pin> {
        self.pin
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.pin.is_some()
    }

    /// Whether an image is pinned, or the file is being written.
    pub(super) fn is_busy(&self) -> bool {
        self.is_pinned() || self.file.is_writing()
    }

    /// Pins an image, unless one is pinned. Gives back what is to be done then, if it can be done now; else [`PinnedImage::poll`] does. An image
    /// that no session has seen (`has_sessions`, and none is absent) is pinned without the file, for the moment that it takes.
    pub(super) fn set(&mut self, pin: Pin, then: T, has_sessions: bool) -> Option<T> {
        let pin = *self.pin.get_or_insert(pin);
        let is_needed = has_sessions || self.absent.is_any();
        if is_needed && (self.file.is_writing() || self.write(Some(pin))) {
            self.waiting = Some(then);
            return None;
        }
        Some(then)
    }

    /// Moves the file forward, and releases what no session needs. `is_ending`: the volume is going on from another image.
    pub(super) fn poll(&mut self, has_sessions: bool, is_ending: bool) -> Option<PinEvent<T>> {
        if let Some(result) = self.file.poll()
            && let Some(event) = self.written(result)
        {
            return Some(event);
        }
        if self.file.is_writing() {
            return None;
        }
        let is_needed = has_sessions || self.absent.is_any() || self.waiting.is_some();
        if self.is_pinned() && !is_needed && !is_ending {
            self.pin = None;
            return Some(PinEvent::Released);
        }
        let wanted = self.pin.filter(|_| is_needed);
        let is_retry_due = self.retry_at.is_some_and(|at| self.now.is_some_and(|now| now >= at));
        let is_due = if self.retry_at.is_some() { is_retry_due } else { wanted != self.on_disk };
        if is_due && !self.write(wanted) {
            return self.waiting.take().map(PinEvent::Durable);
        }
        None
    }

    /// Whether the disk must be waited for.
    fn write(&mut self, pin: Option<Pin>) -> bool {
        (self.on_disk, self.retry_at) = (pin, None);
        self.file.write(pin)
    }

    fn written(&mut self, result: io::Result<()>) -> Option<PinEvent<T>> {
        match result {
            // It was the removal of an older one, and this one comes next.
            Ok(()) if self.on_disk.is_none() => None,
            Ok(()) => self.waiting.take().map(PinEvent::Durable),
            Err(error) => {
                tracing::warn!(%error, "the file that names the image that sessions see could not be written");
                self.retry_at = self.now.map(|now| now + RETRY_AFTER);
                self.waiting.take().map(|waiting| PinEvent::Failed(waiting, error))
            }
        }
    }

    /// When [`PinnedImage::poll`] may have something to do although nothing was asked for.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let retry = self.retry_at.filter(|at| self.now.is_none_or(|now| *at > now));
        [self.absent.deadline().filter(|_| self.is_pinned()), retry].into_iter().flatten().min()
    }

    /// A session begins.
    pub(super) fn session_began(&mut self, nexus: &NexusId) {
        self.absent.returned(nexus);
    }

    /// A session ended without a logout: it may come back, and finds its image again if it does so soon.
    pub(super) fn session_lost(&mut self, nexus: NexusId) {
        self.absent.left(nexus);
    }

    /// For people: sessions that may come back.
    pub(super) fn absent(&self) -> Vec<AbsentReader> {
        self.absent.report()
    }

    /// Who is absent, to be remembered while the unit is closed.
    pub(super) fn absent_readers(&self) -> AbsentReaders {
        self.absent.clone()
    }

    pub(super) fn resume(&mut self, absent: AbsentReaders) {
        let since_unknown = self.absent.since_unknown;
        self.absent = AbsentReaders { since_unknown, ..absent };
    }
}

/// A reader that may come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AbsentReader {
    /// `None`: one that was logged in before the target was restarted.
    pub(crate) initiator_name: Option<Arc<str>>,
    /// How long it has to come back, in seconds.
    pub(crate) left_s: u64,
}

/// Sessions that ended without a logout, and until when they may come back.
#[derive(Clone, Debug, Default)]
pub(crate) struct AbsentReaders {
    by_nexus: HashMap<NexusId, Instant>,
    /// Those that are not known by name.
    unnamed_until: Option<Instant>,
    /// There may be unnamed ones, and the time is not known yet.
    since_unknown: bool,
    now: Option<Instant>,
}

impl AbsentReaders {
    fn tick(&mut self, now: Instant) {
        if self.since_unknown {
            self.since_unknown = false;
            self.unnamed_until = Some(now + ABSENCE_MAX);
        }
        self.now = Some(now);
    }

    fn left(&mut self, nexus: NexusId) {
        // Without the time nothing was asked of the unit, so the session has read nothing.
        let Some(now) = self.now else { return };
        self.by_nexus.retain(|_, until| *until > now);
        if self.by_nexus.len() >= ABSENT_MAX && !self.by_nexus.contains_key(&nexus) {
            self.unnamed_until = Some(now + ABSENCE_MAX);
        } else {
            self.by_nexus.insert(nexus, now + ABSENCE_MAX);
        }
    }

    fn returned(&mut self, nexus: &NexusId) {
        self.by_nexus.remove(nexus);
    }

    fn is_any(&self) -> bool {
        self.since_unknown || self.deadline().is_some()
    }

    fn may_return(&self, until: Instant) -> bool {
        self.now.is_none_or(|now| until > now)
    }

    /// When none of them may come back any more; `None`: now.
    fn deadline(&self) -> Option<Instant> {
        let deadlines = self.by_nexus.values().copied().chain(self.unnamed_until);
        deadlines.filter(|until| self.may_return(*until)).max()
    }

    fn report(&self) -> Vec<AbsentReader> {
        let left_s = |until: Instant| self.now.map_or(0, |now| until.saturating_duration_since(now).as_secs());
        let named = self.by_nexus.iter().map(|(nexus, until)| (Some(Arc::clone(&nexus.initiator_name)), *until));
        let all = named.chain(self.unnamed_until.map(|until| (None, until)));
        all.filter(|(_, until)| self.may_return(*until))
            .map(|(initiator_name, until)| AbsentReader { initiator_name, left_s: left_s(until) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    //! Proves that a pin is durable before the volume goes on, and released when no session needs it; who is waited for, and for how long.
    use super::*;
    use crate::unit::{SimulatedFiles, UnitFiles};

    const PIN: Pin = Pin { snapshot: SnapshotId(7), image: 40 };

    fn image(memory: &SimulatedFiles) -> PinnedImage<&'static str> {
        PinnedImage::restore(UnitFiles::simulated(memory).image, |snapshot| snapshot == PIN.snapshot)
    }

    #[test]
    fn a_pin_is_durable_before_the_volume_goes_on() {
        let (memory, start) = (SimulatedFiles::default(), Instant::now());
        let mut first = image(&memory);
        first.tick(start);
        assert_eq!(first.set(PIN, "go on", true), None, "not before it is written");
        assert!(matches!(first.poll(true, false), Some(PinEvent::Durable("go on"))));
        assert!(first.poll(true, true).is_none() && first.poll(true, false).is_none());
        // The target is killed.
        let mut second = image(&memory);
        assert_eq!(second.pin(), Some(PIN));
        second.tick(start);
        assert!(second.poll(false, false).is_none(), "its session may come back");
        second.tick(start + ABSENCE_MAX);
        assert!(matches!(second.poll(false, false), Some(PinEvent::Released)));
        assert!(second.poll(false, false).is_none() && second.poll(false, false).is_none());
        assert!(!second.is_busy() && image(&memory).pin().is_none());
    }

    #[test]
    fn nobody_waits_for_an_image_that_no_session_sees() {
        let (memory, start) = (SimulatedFiles::default(), Instant::now());
        let mut pinned = image(&memory);
        pinned.tick(start);
        assert_eq!(pinned.set(PIN, "go on", false), Some("go on"));
        assert!(pinned.poll(false, true).is_none() && pinned.is_pinned());
        assert!(matches!(pinned.poll(false, false), Some(PinEvent::Released)));
        assert!(pinned.poll(false, false).is_none() && !pinned.is_busy());
        // But for one that logs in while the volume goes on.
        assert_eq!(pinned.set(PIN, "go on", false), Some("go on"));
        assert!(pinned.poll(true, true).is_none() && pinned.poll(true, false).is_none());
        assert_eq!(image(&memory).pin(), Some(PIN));
        // A removal under way comes first.
        assert!(matches!(pinned.poll(false, false), Some(PinEvent::Released)));
        assert!(pinned.poll(false, false).is_none());
        assert_eq!(pinned.set(PIN, "go on", true), None);
        assert!(pinned.poll(true, false).is_none());
        assert!(matches!(pinned.poll(true, false), Some(PinEvent::Durable("go on"))));
        assert_eq!(image(&memory).pin(), Some(PIN));
    }

    fn nexus(number: u8) -> NexusId {
        NexusId { initiator_name: format!("iqn.{number}").into(), isid: [0; 6], target_portal_group: 1 }
    }

    #[test]
    fn a_reader_may_be_away_for_a_minute() {
        let (mut absent, start) = (AbsentReaders::default(), Instant::now());
        absent.tick(start);
        absent.left(nexus(1));
        absent.tick(start + ABSENCE_MAX / 2);
        absent.left(nexus(2));
        assert_eq!(absent.deadline(), Some(start + ABSENCE_MAX / 2 + ABSENCE_MAX));
        absent.returned(&nexus(2));
        assert_eq!(absent.deadline(), Some(start + ABSENCE_MAX));
        assert_eq!(absent.report()[0].left_s, ABSENCE_MAX.as_secs() / 2);
        absent.tick(start + ABSENCE_MAX);
        assert!(!absent.is_any());
    }

    #[test]
    fn after_a_restart_and_of_too_many_only_the_time_counts() {
        let (mut absent, start) = (AbsentReaders { since_unknown: true, ..AbsentReaders::default() }, Instant::now());
        assert!(absent.is_any());
        absent.tick(start);
        assert_eq!(absent.deadline(), Some(start + ABSENCE_MAX));
        absent.tick(start + ABSENCE_MAX);
        assert!(!absent.is_any());
        (0..=ABSENT_MAX as u8).for_each(|number| absent.left(nexus(number)));
        assert_eq!(absent.report().len(), ABSENT_MAX + 1);
        (0..=ABSENT_MAX as u8).for_each(|number| absent.returned(&nexus(number)));
        assert!(absent.is_any(), "the one without a name");
    }
}
