//! Sessions and units of different workers: what they say to each other, and how it gets there.
//!
//! A unit is touched by its own worker alone, and so is a session. The first session of a unit is where the unit is, and calls it; a further
//! one is where there is least to do. What it asks then crosses to the unit's worker, and what comes of it crosses back: in order, without locks,
//! all of a turn as one [`Message`] with one wake-up. A session has no more on its way than its command window lets in, which bounds both ways.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SendError, Sender};

use strongroom_iscsi::target::{self as iscsi, ManagementId, Response, TaskId, TaskManagement, TaskManagementResult};
use strongroom_net::Waker;
use strongroom_scsi::Sense;

use super::connection::{Connection, Moved};
use super::session::Session;
use super::units::Slot;
use super::{Message, Worker};
use crate::names::VolumeName;
use crate::stats::Counters;
use crate::store_queue::StoreQueue;
use crate::unit::{SessionKey, Verdict};

const UNIT_ENDED: &str = "the worker of its volume has ended";

/// Where a session's unit is, and where the session is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The worker that has the unit.
    pub(super) unit: usize,
    /// The worker that has the session.
    pub(super) home: usize,
    pub(super) volume: Arc<VolumeName>,
    /// Of a sealed volume: the length of a block, and of what goes along with each, in bytes.
    pub(super) sealed: Option<(u32, usize)>,
    /// Headers of commands and answers carry block keys.
    pub(super) holds_block_keys: bool,
    /// The queue of its store.
    pub(super) queue: Arc<StoreQueue>,
}

impl Place {
    fn is_apart(&self) -> bool {
        self.unit != self.home
    }

    /// Most sealed blocks that a PDU of a session takes.
    pub(super) fn sealed_blocks_max(&self, machine: &iscsi::Session) -> usize {
        self.sealed.map_or(0, |(block_bytes, entry_bytes)| machine.sealed_blocks_max(block_bytes, entry_bytes))
    }
}

/// A way to another worker, this worker's own: nobody waits for anybody.
pub(crate) struct Road {
    sender: Sender<Message>,
    waker: Waker,
    /// What goes there at the end of this turn.
    outgoing: Vec<Crossing>,
}

impl Road {
    pub(crate) fn new(sender: Sender<Message>, waker: Waker) -> Road {
        Road { sender, waker, outgoing: Vec::new() }
    }

    /// Gives a connection to that worker; back if it has ended.
    pub(super) fn give(&self, moved: Moved) -> Result<(), Box<Moved>> {
        let sent = self.sender.send(Message::Adopt(Box::new(moved)));
        self.waker.wake();
        match sent {
            Err(SendError(Message::Adopt(moved))) => Err(moved),
            _ => Ok(()),
        }
    }
}

/// One thing that a session and its unit say to each other.
pub(crate) enum Crossing {
    Request { session: SessionKey, volume: Arc<VolumeName>, request: Request },
    Notice { session: SessionKey, notice: Notice },
}

/// What a session asks of its unit.
pub(crate) enum Request {
    Command {
        command: iscsi::Command,
        sealed_blocks_max: usize,
    },
    Manage(TaskManagement),
    /// The rules changed: it may write no longer, or now.
    ReadOnly(bool),
    /// It is over.
    Leave,
}

/// What a unit tells a session.
pub(crate) enum Notice {
    /// A command is over; its answer, if it has one.
    Finished { task: TaskId, response: Option<Response> },
    /// Its peer broke the frame discipline.
    Violation(&'static str),
    /// A task management function was carried out.
    Managed(Managed),
    /// Another session's function ends its tasks, and itself if it `closes`.
    EndTasks { closes: bool },
    /// It has to end.
    End { why: &'static str },
}

/// What came of a task management function.
pub(crate) struct Managed {
    pub(super) id: ManagementId,
    pub(super) answer: Answer,
    /// The session ends with it.
    pub(super) closes: bool,
}

pub(super) enum Answer {
    Result(TaskManagementResult),
    /// What a query found: sense key, code and qualifier.
    Found([u8; 3]),
}

impl Managed {
    pub(super) fn result(id: ManagementId, result: TaskManagementResult) -> Managed {
        Managed { id, answer: Answer::Result(result), closes: false }
    }
}

impl Worker {
    /// Where a session that is let in goes. The unit's first one stays with it, so that what it asks need not cross.
    pub(super) fn home_for(&self, volume: &VolumeName) -> usize {
        let placed = &self.shared.placed;
        let is_used = |slot: &Slot| matches!(slot, Slot::Open(open) if !open.unit.users().is_empty());
        if self.stopping.is_some() || !self.units.get(volume).is_some_and(is_used) {
            return self.index;
        }
        let load = |worker: &usize| (placed[*worker].load(Ordering::Relaxed), *worker != self.index);
        (0..placed.len()).min_by_key(load).unwrap_or(self.index)
    }

    /// Asks a unit of another worker.
    pub(super) fn ask_unit(&mut self, session: SessionKey, place: &Place, request: Request) {
        let volume = Arc::clone(&place.volume);
        self.roads[place.unit].outgoing.push(Crossing::Request { session, volume, request });
    }

    /// Tells a session something, wherever it is. One that is over hears nothing.
    pub(super) fn tell_session(&mut self, session: SessionKey, notice: Notice) {
        match self.abroad.get(&session) {
            Some(home) => self.roads[*home].outgoing.push(Crossing::Notice { session, notice }),
            None => self.notice(session, notice),
        }
    }

    /// Sends what was said in this turn.
    pub(super) fn depart(&mut self) {
        for worker in 0..self.roads.len() {
            self.depart_to(worker);
        }
    }

    pub(super) fn depart_to(&mut self, worker: usize) {
        let road = &mut self.roads[worker];
        if road.outgoing.is_empty() {
            return;
        }
        let outgoing = std::mem::take(&mut road.outgoing);
        // One that has ended says so to everybody.
        let _ = road.sender.send(Message::Crossings { from: self.index, crossings: outgoing });
        road.waker.wake();
    }

    /// Another worker is no more, nor are its sessions and units.
    pub(super) fn worker_ended(&mut self, worker: usize) {
        let its = self.abroad.iter().filter(|(_, home)| **home == worker);
        for key in its.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.abroad.remove(&key);
            let uses = |slot: &Slot| matches!(slot, Slot::Open(open) if open.unit.users().contains(key));
            if let Some(volume) = self.units.iter().find(|(_, slot)| uses(slot)).map(|(name, _)| name.clone()) {
                self.detach(&volume, key);
            }
        }
        let of_its_unit = |place: &Place| place.unit == worker;
        let sessions = self.sessions.values().filter(|session| session.place.as_ref().is_some_and(of_its_unit));
        let begun = self.connections.values().filter_map(|connection| connection.admitted_to());
        let begun = begun.filter(|(_, place)| of_its_unit(place)).map(|(key, _)| key);
        for key in sessions.map(|session| session.key).chain(begun).collect::<Vec<_>>() {
            self.end_session(key, UNIT_ENDED);
        }
    }

    /// What another worker has said in one of its turns.
    pub(super) fn arrive(&mut self, from: usize, crossings: Vec<Crossing>) {
        for crossing in crossings {
            match crossing {
                Crossing::Request { session, volume, request } => self.request(from, session, &volume, request),
                Crossing::Notice { session, notice } => self.notice(session, notice),
            }
        }
    }

    /// A session of another worker asks something of a unit here.
    fn request(&mut self, from: usize, session: SessionKey, volume: &VolumeName, request: Request) {
        let notice = match request {
            Request::Command { command, sealed_blocks_max } => {
                let task = command.task;
                let verdict = match self.units.get_mut(volume) {
                    // Another unit of the same name knows nothing of the session.
                    Some(Slot::Open(open)) if open.unit.users().contains(session) => {
                        open.activity(self.now);
                        open.unit.submit(session, command, sealed_blocks_max)
                    }
                    _ => Verdict::Answer(Response::check_condition(Sense::INTERNAL_FAILURE.encode())),
                };
                match verdict {
                    Verdict::Answer(response) => Some(Notice::Finished { task, response: Some(response) }),
                    Verdict::Later => None,
                    Verdict::Violation(what) => Some(Notice::Violation(what)),
                }
            }
            Request::Manage(request) => self.manage(session, volume, request).map(Notice::Managed),
            Request::ReadOnly(read_only) => {
                if let Some(Slot::Open(open)) = self.units.get_mut(volume) {
                    open.unit.set_read_only(session, read_only);
                }
                None
            }
            Request::Leave => {
                self.detach(volume, session);
                None
            }
        };
        if let Some(notice) = notice {
            self.roads[from].outgoing.push(Crossing::Notice { session, notice });
        }
    }

    /// A session here is told something by its unit.
    pub(super) fn notice(&mut self, key: SessionKey, notice: Notice) {
        if let Notice::End { why } = notice {
            return self.end_session(key, why);
        }
        let Some(mut session) = self.sessions.remove(&key) else { return };
        match notice {
            Notice::Finished { task, response } => session.finished(task, response),
            Notice::Violation(what) => self.violated(&mut session, what),
            Notice::Managed(managed) => self.managed(&mut session, &managed),
            Notice::EndTasks { closes } => session.end_tasks(closes),
            Notice::End { .. } => {}
        }
        session.touch(&mut self.touched_sessions);
        self.sessions.insert(key, session);
    }

    /// A session's peer broke the frame discipline.
    pub(super) fn violated(&self, session: &mut Session, what: &'static str) {
        Counters::count(&self.shared.counters.misbehaved);
        let volume = session.volume.as_ref().map_or("", VolumeName::as_str);
        tracing::warn!(address = %session.address, volume, what, "broke the frame discipline");
        session.machine.close(format!("{what}: the initiator breaks the frame discipline; update it"));
    }

    /// A session that used a unit is over, or a login came to nothing that would have been one.
    pub(super) fn leave_unit(&mut self, place: &Place, key: SessionKey) {
        self.shared.placed[place.home].fetch_sub(1, Ordering::Relaxed);
        if place.unit == self.index {
            return self.detach(&place.volume, key);
        }
        self.ask_unit(key, place, Request::Leave);
        // Now: who sees that the session is over, and asks something of the unit, must not overtake what it asked before.
        self.depart_to(place.unit);
    }

    /// This worker ends: units and sessions of others are told.
    pub(super) fn leave_everything(&mut self) {
        for (key, mut session) in std::mem::take(&mut self.sessions) {
            self.count_vacant(&mut session, true);
            self.shared.counters.session_ends(key);
            if let Some(place) = session.place.as_ref().filter(|place| place.is_apart()) {
                self.leave_unit(place, key);
            }
        }
        let mut begun: Vec<Box<Connection>> = std::mem::take(&mut self.connections).into_values().collect();
        while let Ok(message) = self.inbox.try_recv() {
            if let Message::Adopt(moved) = message {
                begun.push(moved.connection);
            }
        }
        for connection in begun {
            if let Some((key, place)) = connection.admitted_to().filter(|(_, place)| place.is_apart()) {
                self.leave_unit(&place, key);
            }
        }
        for (session, home) in std::mem::take(&mut self.abroad) {
            let notice = Notice::End { why: UNIT_ENDED };
            self.roads[home].outgoing.push(Crossing::Notice { session, notice });
        }
        self.depart();
    }
}
