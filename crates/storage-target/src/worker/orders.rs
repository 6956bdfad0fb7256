//! What the keeper of the target asks of a worker: reports, and ends of sessions. Nothing here waits.

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::time::Duration;

use strongroom_channel::Scheme;

use super::Worker;
use super::connection::{Connection, ConnectionKey, Stage};
use super::crossing::Request;
use super::session::{Admitted, Session};
use super::units::Slot;
use crate::access::Identity;
use crate::admin::{ConnectionReport, SessionReport, VerificationReport, VolumeReport};
use crate::names::{VolumeName, for_log};
use crate::unit::{Job, SessionKey};
use crate::volume::Volume;

/// An order to every worker. Whoever gave it may have gone when the answer comes.
pub(crate) enum Order {
    /// Tell about everything.
    Report(Sender<WorkerReport>),
    /// End sessions; which were there. Two workers may name the same one: whoever has the unit tells whoever has the session.
    Drop { which: Which, reply: Sender<Vec<SessionKey>> },
    /// Ask sessions with a volume and its snapshots, or with all, to log out within `grace`; how many there are.
    Drain { volume: Option<VolumeName>, grace: Duration, reply: Sender<usize> },
    /// Do something with a volume's store. Only to the worker that owns it.
    Job { volume: VolumeName, job: Box<Job> },
    /// The store of this volume has grown: its clones have, too.
    Resized { store: VolumeName },
    /// Close this volume, if nobody uses it.
    Close { volume: VolumeName },
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
pub(super) enum Standing {
    AsBefore,
    ReadOnly(bool),
    Ended(String),
}

impl Worker {
    pub(super) fn order(&mut self, order: Order) {
        match order {
            Order::Report(reply) => self.begin_report(reply),
            Order::Drop { which, reply } => {
                let mut keys = self.sessions_where(|session, worker| worker.is_meant(session, &which));
                // One on its way to another worker is with nobody, and is told behind its connection.
                keys.extend(self.abroad_where(&which));
                keys.iter().for_each(|key| self.end_session(*key, "dropped by order of the target's keeper"));
                let begun = self.refuse_begun(|connection, key, admitted, worker| {
                    worker.fits(&which, key, &admitted.initiator_name, &connection.identity, admitted.volume.as_ref())
                });
                keys.extend(begun);
                let _ = reply.send(keys);
            }
            Order::Drain { volume, grace, reply } => {
                let keys = self.sessions_where(|session, _| {
                    let of = session.volume.as_ref().map(VolumeName::volume);
                    of.is_some() && (volume.is_none() || of == volume)
                });
                let begun = self.refuse_begun(|_, _, admitted, _| {
                    let of = admitted.volume.as_ref().map(VolumeName::volume);
                    of.is_some() && (volume.is_none() || of == volume)
                });
                let now = self.now;
                for key in &keys {
                    if let Some(session) = self.sessions.get_mut(key) {
                        session.machine.request_logout(now, grace);
                        session.touch(&mut self.touched_sessions);
                    }
                }
                let _ = reply.send(keys.len() + begun.len());
            }
            Order::Job { volume, job } => self.take_job(&volume, *job),
            Order::Resized { store } => self.resized(&store),
            Order::Close { volume } => self.close_unused(&volume),
            Order::Gone { export } => {
                // None was there a moment ago, but one may have come in between.
                let users = match self.units.get(&export) {
                    Some(Slot::Open(open)) => open.unit.users().keys(),
                    _ => Vec::new(),
                };
                users.iter().for_each(|key| self.end_session(*key, "what it used was deleted"));
                self.forget_unit(&export);
            }
            Order::Recheck { volume, reply } => {
                self.settings = self.shared.settings();
                self.begin_recheck(volume, reply);
            }
        }
    }

    pub(super) fn sessions_where(&self, is_meant: impl Fn(&Session, &Worker) -> bool) -> Vec<SessionKey> {
        let meant = self.sessions.values().filter(|session| is_meant(session, self));
        meant.map(|session| session.key).collect()
    }

    /// Sessions of units here that other workers have, or are about to have.
    fn abroad_where(&self, which: &Which) -> Vec<SessionKey> {
        let open = self.units.iter().filter_map(|(name, slot)| match slot {
            Slot::Open(open) => Some((name, open)),
            Slot::Opening { .. } | Slot::Closing { .. } => None,
        });
        let users = open.flat_map(|(name, open)| open.unit.users().sessions().map(move |user| (name, user)));
        let meant = users.filter(|(name, (key, nexus, identity))| {
            self.abroad.contains_key(key) && self.fits(which, *key, &nexus.initiator_name, identity, Some(*name))
        });
        meant.map(|(_, (key, ..))| key).collect()
    }

    /// Refuses logins that were let in and are not over: they would make sessions that the order did not see. How many.
    fn refuse_begun(
        &mut self,
        is_meant: impl Fn(&Connection, SessionKey, &Admitted, &Worker) -> bool,
    ) -> Vec<SessionKey> {
        let begun = self.connections.values().filter_map(|connection| match &connection.stage {
            Stage::Admitted { key, joins: false, admitted } if is_meant(connection, *key, admitted, self) => {
                Some((connection.key, *key))
            }
            _ => None,
        });
        let begun: Vec<(ConnectionKey, SessionKey)> = begun.collect();
        for (key, _) in &begun {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.refuse();
                connection.touch(&mut self.touched);
            }
        }
        begun.into_iter().map(|(_, session)| session).collect()
    }

    fn is_meant(&self, session: &Session, which: &Which) -> bool {
        self.fits(which, session.key, &session.initiator_name, &session.identity, session.volume.as_ref())
    }

    fn fits(
        &self,
        which: &Which,
        key: SessionKey,
        initiator: &str,
        identity: &Identity,
        volume: Option<&VolumeName>,
    ) -> bool {
        let fits =
            |wanted: &Option<String>, is: Option<&str>| wanted.as_deref().is_none_or(|wanted| is == Some(wanted));
        // Names that differ in case alone are one (RFC 7143 §4.2.7.1).
        let is_named = |wanted: &String| wanted.eq_ignore_ascii_case(initiator);
        which.id.is_none_or(|id| key.0 == id)
            && which.initiator.as_ref().is_none_or(is_named)
            && fits(&which.peer, self.settings.rules.peer_name(identity))
            && fits(&which.volume, volume.map(VolumeName::as_str))
    }

    /// Has what the rules say of a session hold. `described`: descriptions that have been read.
    pub(super) fn recheck_session(
        &mut self,
        key: SessionKey,
        described: &mut HashMap<VolumeName, Option<Volume>>,
    ) -> Standing {
        let Some(session) = self.sessions.get(&key) else { return Standing::AsBefore };
        let volume = session.volume.as_ref().map(|name| {
            let load = || self.shared.catalogue.load(name).ok();
            described.entry(name.clone()).or_insert_with(load).as_ref()
        });
        let standing = self.standing(session, volume);
        match &standing {
            Standing::AsBefore => {}
            Standing::ReadOnly(read_only) => self.set_read_only(key, *read_only),
            Standing::Ended(reason) => {
                tracing::warn!(address = %session.address, initiator = %for_log(&session.initiator_name), reason,
                    "the rules do not admit a session any more");
                self.end_session(key, "the rules do not admit it any more");
            }
        }
        standing
    }

    /// `volume`: `None` for discovery; inside, its description, `None` if that cannot be read.
    fn standing(&self, session: &Session, volume: Option<Option<&Volume>>) -> Standing {
        let (rules, initiator) = (&self.settings.rules, session.initiator_name.as_str());
        let volume = match volume {
            None => {
                return match rules.check_name(&session.identity, initiator) {
                    Ok(()) => Standing::AsBefore,
                    Err(refusal) => Standing::Ended(refusal.to_string()),
                };
            }
            // What cannot be read says nothing about who may use it: the session goes on, a new login would not.
            Some(None) => return Standing::AsBefore,
            Some(Some(volume)) => volume,
        };
        // Every connection must be welcome, wherever it comes from; the strictest rule holds.
        let connections = session.connections.iter().filter_map(|(_, key)| self.connections.get(key));
        let admissions = connections.map(|connection| self.may_use(&connection.origin(), initiator, volume));
        let leading = rules.admit(&session.identity, session.address, initiator, volume);
        let mut read_only = false;
        for admission in admissions.chain([leading]) {
            match admission {
                Ok(admission) => read_only |= admission.read_only,
                Err(refusal) => return Standing::Ended(refusal.to_string()),
            }
        }
        match read_only == session.read_only {
            true => Standing::AsBefore,
            false => Standing::ReadOnly(read_only),
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

    fn set_read_only(&mut self, key: SessionKey, now: bool) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        session.read_only = now;
        let Some(place) = session.place.clone() else { return };
        if place.unit != self.index {
            self.ask_unit(key, &place, Request::ReadOnly(now));
        } else if let Some(Slot::Open(open)) = self.units.get_mut(&*place.volume) {
            open.unit.set_read_only(key, now);
        }
    }

    pub(super) fn session_report(&self, session: &Session) -> SessionReport {
        let done = session.machine.statistics();
        let agreed = session.machine.session_keys();
        let yes = |value: bool| if value { "Yes" } else { "No" }.to_owned();
        let keys = [
            ("MaxRecvDataSegmentLength", agreed.recv_segment_bytes_max.to_string()),
            ("MaxRecvDataSegmentLength (initiator)", agreed.send_segment_bytes_max.to_string()),
            ("FirstBurstLength", agreed.first_burst_bytes.to_string()),
            ("MaxBurstLength", agreed.max_burst_bytes.to_string()),
            ("InitialR2T", yes(agreed.initial_r2t)),
            ("ImmediateData", yes(agreed.immediate_data)),
            ("MaxOutstandingR2T", agreed.max_outstanding_r2t.to_string()),
            ("MaxConnections", agreed.connections_max.to_string()),
            ("ErrorRecoveryLevel", agreed.error_recovery_level.to_string()),
        ];
        let connections = session.connections.iter().filter_map(|(id, key)| {
            let connection = self.connections.get(key)?;
            let digests = session.machine.agreed(*id)?.digests;
            let crc = |on: bool| if on { "CRC32C" } else { "None" }.to_owned();
            let (rekeys, peer_rekeys) = connection.link.rekeys();
            Some(ConnectionReport {
                rekeys,
                peer_rekeys,
                cid: session.machine.cid(*id)?,
                address: connection.peer,
                suite: connection.link.suite().map(|suite| suite.to_string()),
                header_digest: crc(digests.header),
                data_digest: crc(digests.data),
            })
        });
        let connections: Vec<ConnectionReport> = connections.collect();
        let mut links = session.connections.iter().filter_map(|(_, key)| self.connections.get(key));
        SessionReport {
            id: session.key.0,
            address: links.next().map_or((session.address, 0).into(), |connection| connection.peer),
            peer: self.settings.rules.peer_name(&session.identity).map(str::to_owned),
            initiator: for_log(&session.initiator_name),
            volume: session.volume.as_ref().map(ToString::to_string),
            read_only: session.read_only,
            scheme: session.scheme.map_or("S0", Scheme::name).to_owned(),
            age_s: self.now.saturating_duration_since(session.since).as_secs_f64(),
            keys: keys.map(|(key, value)| (key.to_owned(), value)).to_vec(),
            connections,
            queue_depth: self.settings.config.limits.queue_depth,
            worker: self.index,
            in_flight: session.machine.executing().saturating_sub(session.queued.len()),
            waiting: session.queued.len(),
            commands: done.commands,
            bytes_read: done.bytes_read,
            bytes_written: done.bytes_written,
            rejects: done.rejects,
        }
    }

    pub(super) fn volume_report(&self, name: &VolumeName, unit: &crate::unit::Unit) -> VolumeReport {
        let volume = unit.volume();
        VolumeReport {
            name: name.to_string(),
            kind: volume.kind_text(),
            size_bytes: volume.geometry.bytes(),
            block_size: volume.geometry.block_size.bytes(),
            worker: self.index,
            sessions: unit.users().len(),
            in_flight: unit.in_flight(),
            io: unit.store().io_kind().to_string(),
            io_reason: unit.store().io_reason(),
            retention_blocks: unit.store().info().retention_blocks,
            store: unit.store().stats().into(),
            bad_blocks: unit.store().bad_blocks(),
            verification: unit
                .verification()
                .map(|done| VerificationReport { opened: done.opened, bad_blocks: done.bad }),
        }
    }
}
