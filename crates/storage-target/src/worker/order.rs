//! What administrative requests ask of workers, and what workers report.

use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::admin::{SessionReport, VolumeReport};
use crate::names::VolumeName;
use crate::unit::{Job, SessionKey};

/// An order to every worker. Its sender may no longer wait for the reply.
pub(crate) enum Order {
    /// Report sessions and volumes.
    Report(Sender<WorkerReport>),
    /// Say that this worker still takes messages.
    Probe(Sender<()>),
    /// End sessions; the reply names them. Two workers may name the same session: the worker of its unit ends it at its own worker.
    Drop { which: SessionFilter, reply: Sender<Vec<SessionKey>> },
    /// Ask sessions with a volume and its snapshots, or with all, to log out within `grace`; the reply is their number.
    Drain { volume: Option<VolumeName>, grace: Duration, reply: Sender<usize> },
    /// Run a job on a volume's store. Only to the worker that owns it.
    Job { volume: VolumeName, job: Box<Job> },
    /// The store of this volume has grown, and its clones with it.
    Resized { store: VolumeName },
    /// Close this volume if no session uses it.
    Close { volume: VolumeName },
    /// This clone or snapshot was deleted. Only to the worker that owns its volume.
    Gone { export: VolumeName },
    /// Check each session against the current rules, of one volume and its snapshots or of all. The reply: how many sessions ended, and how
    /// many gained or lost the right to write.
    Recheck { volume: Option<VolumeName>, reply: Sender<(usize, usize)> },
}

/// A worker's part of a status report.
#[derive(Default)]
pub(crate) struct WorkerReport {
    pub(crate) sessions: Vec<SessionReport>,
    pub(crate) volumes: Vec<VolumeReport>,
}

/// Selects the sessions that meet every condition given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionFilter {
    pub(crate) id: Option<u64>,
    pub(crate) initiator: Option<String>,
    pub(crate) peer: Option<String>,
    pub(crate) volume: Option<String>,
}

impl SessionFilter {
    /// `peer`: the name that the configuration gives to the session's node.
    pub(crate) fn matches(
        &self,
        key: SessionKey,
        initiator: &str,
        peer: Option<&str>,
        volume: Option<&VolumeName>,
    ) -> bool {
        let matches =
            |wanted: &Option<String>, is: Option<&str>| wanted.as_deref().is_none_or(|wanted| is == Some(wanted));
        // Names that differ in case alone are one (RFC 7143 §4.2.7.1).
        let is_named = |wanted: &String| wanted.eq_ignore_ascii_case(initiator);
        self.id.is_none_or(|id| key.0 == id)
            && self.initiator.as_ref().is_none_or(is_named)
            && matches(&self.peer, peer)
            && matches(&self.volume, volume.map(VolumeName::as_str))
    }
}
