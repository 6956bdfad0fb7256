//! Orders that concern every session and every volume of a worker: a few of them in each iteration, so that no session waits for them.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::time::Instant;

use super::connections::Connections;
use super::login_policy::{DescribedVolumes, LoginPolicy, Standing};
use super::order::WorkerReport;
use super::report::{session_report, volume_report};
use super::routing::Routing;
use crate::catalogue::Catalogue;
use crate::iterations::IterationClock;
use crate::names::VolumeName;
use crate::unit::SessionKey;

/// Slices between two looks at the clock: a session or a volume each.
const SLICES_PER_LOOK: usize = 8;

/// The orders of a worker that take many iterations, the oldest first.
#[derive(Default)]
pub(super) struct OrderQueue(VecDeque<SlicedOrder>);

/// What orders look at.
pub(super) struct OrderContext<'a> {
    pub(super) routing: &'a mut Routing,
    pub(super) connections: &'a Connections,
    pub(super) policy: &'a LoginPolicy,
    pub(super) catalogue: &'a Catalogue,
    pub(super) worker: usize,
    pub(super) now: Instant,
}

impl OrderQueue {
    pub(super) fn push(&mut self, order: SlicedOrder) {
        self.0.push_back(order);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Goes on with orders until this iteration has taken its time.
    pub(super) fn advance(&mut self, clock: &IterationClock, mut context: OrderContext<'_>) {
        let mut slices = 0;
        while let Some(mut order) = self.0.pop_front() {
            while let Some(slice) = order.next_slice() {
                match slice {
                    Slice::Volume(name) => order.task.visit_volume(&name, &mut context),
                    Slice::Session(key) => order.task.visit_session(key, &mut context),
                }
                slices += 1;
                if slices % SLICES_PER_LOOK == 0 && clock.is_over() {
                    return self.0.push_front(order);
                }
            }
            order.answer();
        }
    }
}

/// An order in progress.
pub(super) struct SlicedOrder {
    /// What is left to visit. Sessions and volumes that come meanwhile need not be visited: they come under the settings in force.
    volumes: Vec<VolumeName>,
    sessions: Vec<SessionKey>,
    task: Task,
}

enum Task {
    Report {
        report: WorkerReport,
        reply: Sender<WorkerReport>,
    },
    /// Ends the sessions that the rules do not admit any more.
    Recheck {
        described: DescribedVolumes,
        ended: usize,
        changed: usize,
        reply: Sender<(usize, usize)>,
    },
}

/// What an order visits next.
enum Slice {
    Volume(VolumeName),
    Session(SessionKey),
}

impl SlicedOrder {
    pub(super) fn report(
        volumes: Vec<VolumeName>,
        sessions: Vec<SessionKey>,
        reply: Sender<WorkerReport>,
    ) -> SlicedOrder {
        SlicedOrder { volumes, sessions, task: Task::Report { report: WorkerReport::default(), reply } }
    }

    pub(super) fn recheck(
        volumes: Vec<VolumeName>,
        sessions: Vec<SessionKey>,
        reply: Sender<(usize, usize)>,
    ) -> SlicedOrder {
        let task = Task::Recheck { described: DescribedVolumes::new(), ended: 0, changed: 0, reply };
        SlicedOrder { volumes, sessions, task }
    }

    /// Volumes come first: a session's rights follow from its volume's.
    fn next_slice(&mut self) -> Option<Slice> {
        let volume = self.volumes.pop().map(Slice::Volume);
        volume.or_else(|| self.sessions.pop().map(Slice::Session))
    }

    /// Everything was visited. The sender of the order may no longer wait for the reply.
    fn answer(self) {
        match self.task {
            Task::Report { report, reply } => drop(reply.send(report)),
            Task::Recheck { ended, changed, reply, .. } => drop(reply.send((ended, changed))),
        }
    }
}

impl Task {
    fn visit_volume(&mut self, name: &VolumeName, context: &mut OrderContext<'_>) {
        let units = &mut context.routing.units;
        match self {
            Task::Report { report, .. } => {
                let by = (&**context.policy.settings(), context.worker);
                report.volumes.extend(units.open(name).map(|open| volume_report(name, &open.unit, by)));
            }
            Task::Recheck { .. } => {
                if let Some(open) = units.open_mut(name)
                    && let Ok(volume) = context.catalogue.load(name)
                {
                    open.unit.take_access(volume.access);
                }
            }
        }
    }

    fn visit_session(&mut self, key: SessionKey, context: &mut OrderContext<'_>) {
        let OrderContext { routing, connections, policy, worker, now, .. } = context;
        match self {
            Task::Report { report, .. } => {
                let by = (&**policy.settings(), *worker, *now);
                report
                    .sessions
                    .extend(routing.sessions.get(key).map(|session| session_report(session, connections, by)));
            }
            Task::Recheck { described, ended, changed, .. } => {
                match policy.recheck(key, routing, connections, described) {
                    Standing::Unchanged => {}
                    Standing::ReadOnly(_) => *changed += 1,
                    Standing::Ended(_) => *ended += 1,
                }
            }
        }
    }
}
