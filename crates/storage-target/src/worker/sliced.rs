//! Orders that look at every session and every volume of a worker: a slice in each iteration, so that nobody waits for them.

use std::collections::HashMap;
use std::sync::mpsc::Sender;

use super::Worker;
use super::orders::{Standing, WorkerReport};
use super::units::Slot;
use crate::iterations::IterationClock;
use crate::names::VolumeName;
use crate::unit::SessionKey;
use crate::volume::Volume;

/// Steps between two looks at the clock: a session or a volume each.
const STEPS_PER_LOOK: usize = 8;

/// An order on its way.
pub(super) struct SlicedOrder {
    /// What is still to be looked at. Sessions and volumes that come meanwhile need not be: they come under the settings that hold now.
    volumes: Vec<VolumeName>,
    sessions: Vec<SessionKey>,
    work: Work,
}

enum Work {
    Report {
        report: WorkerReport,
        reply: Sender<WorkerReport>,
    },
    Recheck {
        described: HashMap<VolumeName, Option<Volume>>,
        ended: usize,
        changed: usize,
        reply: Sender<(usize, usize)>,
    },
}

impl SlicedOrder {
    fn answer(self) {
        // Whoever gave the order may have gone.
        match self.work {
            Work::Report { report, reply } => drop(reply.send(report)),
            Work::Recheck { ended, changed, reply, .. } => drop(reply.send((ended, changed))),
        }
    }
}

impl Worker {
    /// Tells about everything.
    pub(super) fn begin_report(&mut self, reply: Sender<WorkerReport>) {
        let report = WorkerReport { sessions: Vec::new(), volumes: Vec::new() };
        let (volumes, sessions) = (self.units.keys().cloned().collect(), self.sessions.keys().copied().collect());
        self.sliced_orders.push_back(SlicedOrder { volumes, sessions, work: Work::Report { report, reply } });
    }

    /// Ends the sessions that the rules do not admit any more, of one volume and its snapshots or of all.
    pub(super) fn begin_recheck(&mut self, of: Option<VolumeName>, reply: Sender<(usize, usize)>) {
        // A snapshot is for those whom its volume is for.
        let is_meant = |name: &VolumeName| of.as_ref().is_none_or(|of| name.volume() == *of);
        let sessions = self.sessions_where(|session, _| of.is_none() || session.volume.as_ref().is_some_and(&is_meant));
        let volumes = self.units.keys().filter(|name| is_meant(name)).cloned().collect();
        let work = Work::Recheck { described: HashMap::new(), ended: 0, changed: 0, reply };
        self.sliced_orders.push_back(SlicedOrder { volumes, sessions, work });
    }

    /// Goes on with orders until this iteration has taken its time.
    pub(super) fn advance_orders(&mut self, clock: &IterationClock) {
        let mut steps = 0;
        while let Some(mut order) = self.sliced_orders.pop_front() {
            loop {
                if let Some(name) = order.volumes.pop() {
                    self.look_at_volume(&name, &mut order.work);
                } else if let Some(key) = order.sessions.pop() {
                    self.look_at_session(key, &mut order.work);
                } else {
                    order.answer();
                    break;
                }
                steps += 1;
                if steps % STEPS_PER_LOOK == 0 && clock.is_over() {
                    return self.sliced_orders.push_front(order);
                }
            }
        }
    }

    fn look_at_volume(&mut self, name: &VolumeName, work: &mut Work) {
        match work {
            Work::Report { report, .. } => {
                if let Some(Slot::Open(open)) = self.units.get(name) {
                    report.volumes.push(self.volume_report(name, &open.unit));
                }
            }
            Work::Recheck { .. } => {
                if let Some(Slot::Open(open)) = self.units.get_mut(name)
                    && let Ok(volume) = self.shared.catalogue.load(name)
                {
                    open.unit.take_access(volume.access);
                }
            }
        }
    }

    fn look_at_session(&mut self, key: SessionKey, work: &mut Work) {
        match work {
            Work::Report { report, .. } => {
                report.sessions.extend(self.sessions.get(&key).map(|session| self.session_report(session)));
            }
            Work::Recheck { described, ended, changed, .. } => match self.recheck_session(key, described) {
                Standing::AsBefore => {}
                Standing::ReadOnly(_) => *changed += 1,
                Standing::Ended(_) => *ended += 1,
            },
        }
    }
}
