//! The schedules of snapshots of all volumes: when the next run of each is due, and how the last one went.
//!
//! Schedules are part of the volumes' descriptions. Absent: the thread that waits and runs them (`schedule_runner`), what a run does
//! (`operate::scheduled`), and the times of a schedule (`schedule`).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strongroom_block::VolumeId;

use crate::admin::ScheduleReport;
use crate::names::VolumeName;
use crate::schedule::Schedule;
use crate::volume::Volume;

/// After a run that failed, in seconds; at most one interval.
const RETRY_S: u64 = 60;

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScheduledRun {
    /// The snapshot that was taken; `None`: nothing was written since the last one.
    pub(crate) taken: Option<String>,
    /// Automatic snapshots that were deleted.
    pub(crate) deleted: Vec<String>,
    /// Why something else was not done, for people.
    pub(crate) problem: Option<String>,
}

/// The schedules of all volumes.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    state: Mutex<Schedules>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Schedules {
    volumes: BTreeMap<VolumeName, Entry>,
    is_outdated: bool,
    is_stopping: bool,
}

/// One volume's schedule, and how far it is.
#[derive(Debug)]
struct Entry {
    id: VolumeId,
    schedule: Schedule,
    /// The interval that nothing is left to do in.
    done: Option<u64>,
    /// The last run failed: not before then, in seconds since 1970.
    retry_at: Option<u64>,
    is_running: bool,
    last_seconds: Option<u64>,
    last_outcome: Option<String>,
    error: Option<String>,
}

impl Entry {
    fn new(volume: &Volume, schedule: Schedule, now: u64) -> Entry {
        let names = volume.snapshots.iter().map(String::as_str);
        let done = schedule.taken_in_interval(now, names).map(|time| schedule.interval(time));
        Entry {
            id: volume.id,
            schedule,
            done,
            retry_at: None,
            is_running: false,
            last_seconds: None,
            last_outcome: None,
            error: None,
        }
    }

    /// When the next run is due. Missed intervals are one run: only whether the current one is done counts.
    fn due(&self, now: u64) -> u64 {
        if self.done == Some(self.schedule.interval(now)) {
            return self.schedule.next(now);
        }
        // A clock that was set back does not put it off for long.
        self.retry_at.filter(|retry_at| *retry_at <= now + RETRY_S).unwrap_or(now).max(now)
    }

    /// A run that began at `now` is over. Whether what it says is new.
    fn finish(&mut self, now: u64, outcome: Result<ScheduledRun, impl Display>) -> bool {
        self.is_running = false;
        self.last_seconds = Some(now);
        let error_before = self.error.take();
        self.error = match outcome {
            Ok(run) => {
                (self.done, self.retry_at) = (Some(self.schedule.interval(now)), None);
                self.last_outcome = Some(match &run.taken {
                    Some(name) => format!("took {name}"),
                    None => "nothing was written since the last snapshot".to_owned(),
                });
                run.problem
            }
            Err(problem) => {
                self.retry_at = Some(now + RETRY_S.min(self.schedule.every_s));
                Some(problem.to_string())
            }
        };
        self.error != error_before
    }
}

impl Schedules {
    /// Takes over what the descriptions say. Runs that are under way, and what is known of unchanged schedules, stay.
    fn take_over(&mut self, volumes: &[Arc<Volume>], now: u64) {
        let mut before = std::mem::take(&mut self.volumes);
        for volume in volumes {
            // One whose contents move takes no snapshots; what it says now, its successor will.
            let Some(schedule) = volume.schedule.filter(|_| volume.successor.is_none() && volume.succeeds.is_none())
            else {
                continue;
            };
            let same = |entry: &Entry| entry.id == volume.id && entry.schedule == schedule;
            let known = before.remove(&volume.name).filter(same);
            self.volumes.insert(volume.name.clone(), known.unwrap_or_else(|| Entry::new(volume, schedule, now)));
        }
    }

    /// Marks what is due as running.
    fn take_due(&mut self, now: u64) -> Vec<(VolumeName, Schedule)> {
        let due = self.volumes.iter_mut().filter(|(_, entry)| !entry.is_running && entry.due(now) <= now);
        due.map(|(name, entry)| {
            entry.is_running = true;
            (name.clone(), entry.schedule)
        })
        .collect()
    }

    fn next_due(&self, now: u64) -> Option<u64> {
        self.volumes.values().filter(|entry| !entry.is_running).map(|entry| entry.due(now)).min()
    }
}

impl Scheduler {
    /// No more runs; one that is under way is not waited for.
    pub(crate) fn stop(&self) {
        self.state().is_stopping = true;
        self.changed.notify_all();
    }

    /// A description has changed, perhaps.
    pub(crate) fn look_again(&self) {
        self.state().is_outdated = true;
        self.changed.notify_all();
    }

    /// Whether a description has changed, perhaps, since this was asked last.
    pub(crate) fn take_outdated(&self) -> bool {
        std::mem::take(&mut self.state().is_outdated)
    }

    /// Takes over the schedules of the descriptions.
    pub(crate) fn replace_schedules(&self, volumes: &[Arc<Volume>], now: u64) {
        self.state().take_over(volumes, now);
    }

    /// The schedules that are due; they count as running until [`Scheduler::finished`].
    pub(crate) fn take_due(&self, now: u64) -> Vec<(VolumeName, Schedule)> {
        self.state().take_due(now)
    }

    /// Waits until a schedule is due or something has changed, at most for `longest`. Whether the scheduler goes on.
    pub(crate) fn wait(&self, now: u64, longest: Duration) -> bool {
        let state = self.state();
        if state.is_stopping {
            return false;
        }
        let next = state.next_due(now).map_or(longest, |next| Duration::from_secs(next.saturating_sub(now)));
        let patience = next.clamp(Duration::from_millis(100), longest);
        if !state.is_outdated {
            drop(self.changed.wait_timeout(state, patience));
        }
        true
    }

    /// All schedules, for `status`.
    pub(crate) fn report(&self) -> Vec<ScheduleReport> {
        let now = now_seconds();
        let state = self.state();
        let report = |(name, entry): (&VolumeName, &Entry)| ScheduleReport {
            volume: name.to_string(),
            schedule: entry.schedule,
            next_seconds: entry.due(now),
            last_seconds: entry.last_seconds,
            last_outcome: entry.last_outcome.clone(),
            error: entry.error.clone(),
        };
        state.volumes.iter().map(report).collect()
    }

    fn state(&self) -> MutexGuard<'_, Schedules> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run is over.
    pub(crate) fn finished(
        &self,
        volume: &VolumeName,
        schedule: Schedule,
        now: u64,
        outcome: Result<ScheduledRun, impl Display>,
    ) {
        let mut state = self.state();
        if let Ok(ScheduledRun { taken: Some(snapshot), .. }) = &outcome {
            tracing::info!(%volume, snapshot, "took a snapshot by schedule");
        }
        if let Ok(run) = &outcome
            && !run.deleted.is_empty()
        {
            tracing::info!(%volume, deleted = run.deleted.join(", "), "deleted automatic snapshots that no rule keeps");
        }
        let is_stopping = state.is_stopping;
        // The schedule may have been changed meanwhile.
        let Some(entry) = state.volumes.get_mut(volume).filter(|entry| entry.schedule == schedule) else { return };
        let is_new = entry.finish(now, outcome);
        if let Some(problem) = entry.error.as_ref().filter(|_| is_new && !is_stopping) {
            tracing::error!(%volume, problem, "the schedule of snapshots could not be kept");
        }
        drop(state);
        self.changed.notify_all();
    }
}

pub(crate) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
