//! Orders that concern every session and every volume of a worker: a few of them in each iteration, so that no session waits for them.

use std::sync::mpsc::Sender;
use std::time::Instant;

use super::connections::Connections;
use super::login_policy::{DescribedVolumes, LoginPolicy, Standing};
use super::order::WorkerReport;
use super::report::{session_report, volume_report};
use super::routing::Routing;
use super::units::Units;
use crate::catalogue::Catalogue;
use crate::names::VolumeName;
use crate::settings::Settings;
use crate::unit::SessionKey;

/// An order in progress.
pub(super) struct SlicedOrder {
    /// What is left to visit. Sessions and volumes that come meanwhile need not be visited: they come under the settings in force.
    volumes: Vec<VolumeName>,
    sessions: Vec<SessionKey>,
    pub(super) task: Task,
}

pub(super) enum Task {
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
pub(super) enum Slice {
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
    pub(super) fn next_slice(&mut self) -> Option<Slice> {
        let volume = self.volumes.pop().map(Slice::Volume);
        volume.or_else(|| self.sessions.pop().map(Slice::Session))
    }

    /// Everything was visited. The sender of the order may no longer wait for the reply.
    pub(super) fn answer(self) {
        match self.task {
            Task::Report { report, reply } => drop(reply.send(report)),
            Task::Recheck { ended, changed, reply, .. } => drop(reply.send((ended, changed))),
        }
    }
}

impl Task {
    pub(super) fn visit_volume(
        &mut self,
        name: &VolumeName,
        units: &mut Units,
        catalogue: &Catalogue,
        (settings, worker): (&Settings, usize),
    ) {
        match self {
            Task::Report { report, .. } => {
                report.volumes.extend(units.open(name).map(|open| volume_report(name, &open.unit, (settings, worker))));
            }
            Task::Recheck { .. } => {
                if let Some(open) = units.open_mut(name)
                    && let Ok(volume) = catalogue.load(name)
                {
                    open.unit.take_access(volume.access);
                }
            }
        }
    }

    pub(super) fn visit_session(
        &mut self,
        key: SessionKey,
        routing: &mut Routing,
        connections: &Connections,
        policy: &LoginPolicy,
        (worker, now): (usize, Instant),
    ) {
        match self {
            Task::Report { report, .. } => {
                let (session, settings) = (routing.sessions.get(key), policy.settings());
                let reported = session.map(|session| session_report(session, connections, (settings, worker, now)));
                report.sessions.extend(reported);
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
