//! What the keeper of the target asks of a worker: reports, and ends of sessions. Nothing here waits.

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::time::Duration;

use strongroom_channel::Scheme;

use super::connection::{Connection, Stage};
use super::units::Slot;
use super::{ConnectionKey, Worker};
use crate::admin::{SessionReport, VolumeReport};
use crate::names::{VolumeName, for_log};
use crate::unit::Job;
use crate::volume::Volume;

/// An order to every worker. Whoever gave it may have gone when the answer comes.
pub(crate) enum Order {
    /// Tell about everything.
    Report(Sender<WorkerReport>),
    /// End sessions; how many were there.
    Drop { which: Which, reply: Sender<usize> },
    /// Ask sessions with a volume and its snapshots, or with all, to log out within `grace`; how many there are.
    Drain { volume: Option<VolumeName>, grace: Duration, reply: Sender<usize> },
    /// Do something with a volume's store. Only to the worker that owns it.
    Job { volume: VolumeName, job: Box<Job> },
    /// The store of this volume has grown: its clones have, too.
    Resized { store: VolumeName },
    /// This clone or snapshot is no more. Only to the worker that owns its volume.
    Gone { export: VolumeName },
    /// Look whether the rules still admit each session, of one volume and its snapshots or of all; how many ended, and how many may write now
    /// or no longer.
    Recheck { volume: Option<VolumeName>, reply: Sender<(usize, usize)> },
}

/// A worker's part of a status.
pub(crate) struct WorkerReport {
    pub(crate) sessions: Vec<SessionReport>,
    pub(crate) volumes: Vec<VolumeReport>,
}

/// Which sessions: those that meet every condition given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Which {
    pub(crate) id: Option<u64>,
    pub(crate) initiator: Option<String>,
    pub(crate) peer: Option<String>,
    pub(crate) volume: Option<String>,
}

/// What the rules now say of a session.
enum Standing {
    AsBefore,
    ReadOnly(bool),
    Ended(String),
}

impl Worker {
    pub(super) fn order(&mut self, order: Order) {
        match order {
            Order::Report(reply) => drop(reply.send(self.report())),
            Order::Drop { which, reply } => {
                let keys = self.logged_in_where(|connection, worker| worker.is_meant(connection, &which));
                keys.iter().for_each(|key| self.end_connection(*key, "dropped by order of the target's keeper"));
                let _ = reply.send(keys.len());
            }
            Order::Drain { volume, grace, reply } => {
                let keys = self.logged_in_where(|connection, _| {
                    let of = connection.stage.volume().map(VolumeName::volume);
                    of.is_some() && (volume.is_none() || of == volume)
                });
                let now = self.now;
                for key in &keys {
                    if let Some(connection) = self.connections.get_mut(key) {
                        connection.request_logout(now, grace);
                        connection.touch(&mut self.touched);
                    }
                }
                let _ = reply.send(keys.len());
            }
            Order::Job { volume, job } => self.take_job(&volume, *job),
            Order::Resized { store } => self.resized(&store),
            Order::Gone { export } => {
                // None was there a moment ago, but one may have come in between.
                let keys = self.logged_in_where(|connection, _| connection.stage.volume() == Some(&export));
                keys.iter().for_each(|key| self.end_connection(*key, "what it used was deleted"));
                self.forget_unit(&export);
            }
            Order::Recheck { volume, reply } => {
                self.settings = self.shared.settings();
                let _ = reply.send(self.recheck(volume.as_ref()));
            }
        }
    }

    fn logged_in_where(&self, is_meant: impl Fn(&Connection, &Worker) -> bool) -> Vec<ConnectionKey> {
        let all = self.connections.values().map(|connection| &**connection);
        let logged_in = all.filter(|connection| matches!(connection.stage, Stage::LoggedIn { .. }));
        let meant = logged_in.filter(|connection| is_meant(connection, self));
        meant.map(|connection| connection.key).collect()
    }

    fn is_meant(&self, connection: &Connection, which: &Which) -> bool {
        let fits =
            |wanted: &Option<String>, is: Option<&str>| wanted.as_deref().is_none_or(|wanted| is == Some(wanted));
        which.id.is_none_or(|id| connection.key.0 == id)
            && fits(&which.initiator, Some(connection.initiator_name()))
            && fits(&which.peer, self.settings.rules.peer_name(&connection.identity))
            && fits(&which.volume, connection.stage.volume().map(VolumeName::as_str))
    }

    /// Ends the sessions that the rules do not admit any more. Reads each volume's description once.
    fn recheck(&mut self, of: Option<&VolumeName>) -> (usize, usize) {
        // A snapshot is for those whom its volume is for.
        let keys = self.logged_in_where(|connection, _| {
            of.is_none() || connection.stage.volume().map(VolumeName::volume).as_ref() == of
        });
        let mut described: HashMap<VolumeName, Option<Volume>> = HashMap::new();
        let (mut ended, mut changed) = (0, 0);
        for key in keys {
            let Some(connection) = self.connections.get(&key) else { continue };
            let volume = connection.stage.volume().map(|name| {
                let load = || self.shared.catalogue.load(name).ok();
                (name.clone(), described.entry(name.clone()).or_insert_with(load).as_ref())
            });
            match self.standing(connection, volume.as_ref().map(|(_, volume)| *volume)) {
                Standing::AsBefore => {}
                Standing::ReadOnly(read_only) => {
                    changed += 1;
                    self.set_read_only(key, read_only);
                }
                Standing::Ended(reason) => {
                    ended += 1;
                    tracing::warn!(peer = %connection.peer, initiator = %for_log(connection.initiator_name()), reason,
                        "the rules do not admit a session any more");
                    self.end_connection(key, "the rules do not admit it any more");
                }
            }
        }
        (ended, changed)
    }

    /// `volume`: `None` for discovery; inside, its description, `None` if that cannot be read.
    fn standing(&self, connection: &Connection, volume: Option<Option<&Volume>>) -> Standing {
        let (rules, initiator) = (&self.settings.rules, connection.initiator_name());
        let Stage::LoggedIn { read_only, .. } = &connection.stage else { return Standing::AsBefore };
        match volume {
            None => match rules.check_name(&connection.identity, initiator) {
                Ok(()) => Standing::AsBefore,
                Err(refusal) => Standing::Ended(refusal.to_string()),
            },
            // What cannot be read says nothing about who may use it: the session goes on, a new login would not.
            Some(None) => Standing::AsBefore,
            Some(Some(volume)) => match self.may_use(connection, initiator, volume) {
                Ok(admission) if admission.read_only == *read_only => Standing::AsBefore,
                Ok(admission) => Standing::ReadOnly(admission.read_only),
                Err(refusal) => Standing::Ended(refusal.to_string()),
            },
        }
    }

    fn resized(&mut self, store: &VolumeName) {
        let Some(Slot::Open(base)) = self.units.get(store) else { return };
        let geometry = base.unit.volume().geometry;
        for slot in self.units.values_mut() {
            let Slot::Open(open) = slot else { continue };
            let volume = open.unit.volume();
            // A snapshot is what it was.
            if volume.store_name() == *store && volume.name.snapshot().is_none() {
                open.unit.take_size(geometry);
            }
        }
    }

    fn set_read_only(&mut self, key: ConnectionKey, now: bool) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let Stage::LoggedIn { volume, read_only, .. } = &mut connection.stage else { return };
        *read_only = now;
        if let Some(Slot::Open(open)) = volume.as_ref().and_then(|volume| self.units.get_mut(volume)) {
            open.unit.set_read_only(key, now);
        }
    }

    fn report(&self) -> WorkerReport {
        let sessions = self.connections.values().filter_map(|connection| self.session_report(connection)).collect();
        let volumes = self.units.iter().filter_map(|(name, slot)| match slot {
            Slot::Open(open) => Some(self.volume_report(name, &open.unit)),
            Slot::Opening { .. } | Slot::Closing { .. } => None,
        });
        WorkerReport { sessions, volumes: volumes.collect() }
    }

    fn session_report(&self, connection: &Connection) -> Option<SessionReport> {
        let Stage::LoggedIn { initiator_name, volume, read_only } = &connection.stage else { return None };
        let session = connection.session.as_ref()?;
        let done = session.statistics();
        let keys = session.agreed().map(|agreed| {
            let yes = |value: bool| if value { "Yes" } else { "No" }.to_owned();
            let keys = [
                ("MaxRecvDataSegmentLength", agreed.recv_segment_bytes_max.to_string()),
                ("MaxRecvDataSegmentLength (initiator)", agreed.send_segment_bytes_max.to_string()),
                ("FirstBurstLength", agreed.first_burst_bytes.to_string()),
                ("MaxBurstLength", agreed.max_burst_bytes.to_string()),
                ("InitialR2T", yes(agreed.initial_r2t)),
                ("ImmediateData", yes(agreed.immediate_data)),
                ("MaxOutstandingR2T", agreed.max_outstanding_r2t.to_string()),
            ];
            keys.map(|(key, value)| (key.to_owned(), value)).to_vec()
        });
        Some(SessionReport {
            id: connection.key.0,
            address: connection.peer,
            peer: self.settings.rules.peer_name(&connection.identity).map(str::to_owned),
            initiator: for_log(initiator_name),
            volume: volume.as_ref().map(ToString::to_string),
            read_only: *read_only,
            scheme: connection.link.scheme().map_or("S0", Scheme::name).to_owned(),
            age_s: connection.since.map_or(0.0, |since| self.now.saturating_duration_since(since).as_secs_f64()),
            keys: keys.unwrap_or_default(),
            queue_depth: self.settings.config.limits.queue_depth,
            in_flight: volume.as_ref().map_or(0, |volume| self.in_flight_of(volume, connection.key)),
            waiting: connection.queued.len(),
            commands: done.commands,
            bytes_read: done.bytes_read,
            bytes_written: done.bytes_written,
            rejects: done.rejects,
        })
    }

    fn in_flight_of(&self, volume: &VolumeName, key: ConnectionKey) -> usize {
        match self.units.get(volume) {
            Some(Slot::Open(open)) => open.unit.in_flight_of(key),
            _ => 0,
        }
    }

    fn volume_report(&self, name: &VolumeName, unit: &crate::unit::Unit) -> VolumeReport {
        let volume = unit.volume();
        VolumeReport {
            name: name.to_string(),
            kind: volume.kind_text(),
            size_bytes: volume.geometry.bytes(),
            block_size: volume.geometry.block_size.bytes(),
            worker: self.index,
            sessions: unit.connections().len(),
            in_flight: unit.in_flight(),
            io: unit.store().io_kind().to_string(),
            io_reason: unit.store().io_reason(),
            retention_blocks: unit.store().info().retention_blocks,
            store: unit.store_stats().into(),
            bad_blocks: unit.bad_blocks(),
        }
    }
}
