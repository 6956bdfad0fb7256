//! The target: logins, sessions and task management around the units of one store, on the simulated disk. As the worker does it, with one
//! connection for each session, and without sockets.

mod reservations;
mod views;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{BlockSize, Geometry, SealingDomain};
use strongroom_handshake::PublicKey;
use strongroom_iscsi::target::{
    Config, ConnectionId, Event, Login, LoginEvent, LoginRequested, ManagementId, Session, SessionKind, TaskId,
    TaskManagementResult,
};
use strongroom_iscsi::{CloseReason, LoginStatus, Offer};
use strongroom_net::{Link, LinkEvent};
use strongroom_scsi::NexusId;
use strongroom_store::{CreateOptions, OpenOptions, Planted, Store, StoreError, StoreId, steps_taken};
use strongroom_target::Volume;
use strongroom_target::machine::{Finished, Memory, Unit, Verdict, create_options, sealed_volume};

use super::history::Moment;
use super::keys::KeyServer;
use crate::{Random, SimDisk};
pub(super) use reservations::{Reserve, Reserved};
pub(super) use views::{Sighted, TakenSnapshot};

/// The names of the volume and of its clone: the views that initiators use.
pub(super) const VIEWS: [&str; 2] = ["vault", "clone"];
/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 512;
const DOMAIN: SealingDomain = SealingDomain([9; 16]);
/// Bytes of a data-in entry beside a block: its sequence and its record.
const ENTRY_BYTES: usize = 8 + 56;
/// Steps that one call of a unit may take in the store: what is in proportion to the volume is done in slices.
const STEPS_MAX: u64 = 12_000;

/// What the simulation wants of a store.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Blocks that initiators use.
    pub(super) blocks: u64,
    /// Blocks behind them, which nobody looks at.
    pub(super) more_blocks: u64,
    pub(super) planted: Planted,
    pub(super) key_server: KeyServer,
    /// A planted fault: persistent reservations do not outlive a crash.
    pub(super) forgets_reservations: bool,
}

enum Stage {
    Before,
    /// Its login waits until the tasks of the session that it replaces have ended.
    Waiting(LoginRequested),
    Admitted {
        session: u64,
        view: usize,
    },
    InSession(u64, ConnectionId),
}

struct Connection {
    link: Link,
    node: PublicKey,
    login: Option<Box<Login>>,
    stage: Stage,
    is_over: bool,
}

struct ServedSession {
    machine: Session,
    connection: u64,
    view: usize,
}

struct Management {
    session: u64,
    id: ManagementId,
    waits_for: HashSet<(u64, TaskId)>,
}

/// What is to be sent, and what is to be closed.
pub(super) enum Output {
    Bytes(u64, Vec<u8>),
    Close(u64),
}

/// The target.
pub(super) struct Target {
    disk: SimDisk,
    settings: Settings,
    random: Random,
    /// One for each view; none while the store is closed.
    units: Vec<Unit>,
    connections: BTreeMap<u64, Connection>,
    sessions: BTreeMap<u64, ServedSession>,
    managements: Vec<Management>,
    finished: Vec<Finished>,
    memory: Memory,
    clone_memory: Memory,
    reserved: Vec<Reserved>,
    next_reserve: u64,
    /// Snapshots that were asked for and not answered, by token.
    asked_snapshots: BTreeMap<u64, Moment>,
    /// Those that were answered since they were asked for last.
    taken_snapshots: Vec<TakenSnapshot>,
    next_own: u64,
    next_session: u64,
    next_tsih: u16,
    output: Vec<Output>,
    /// Commands that units were given.
    pub(super) commands: u64,
    /// The most steps of one call of a unit.
    pub(super) steps_max: u64,
}

fn volume(settings: &Settings, view: usize) -> Volume {
    let block_size = BlockSize::new(BLOCK_BYTES as u64).expect("possible");
    let blocks = settings.blocks + settings.more_blocks;
    sealed_volume(VIEWS[view], Geometry { block_size, blocks }, DOMAIN)
}

fn view_of(target_name: &str) -> Option<usize> {
    VIEWS.iter().position(|name| target_name.ends_with(&format!(":{name}")))
}

impl Target {
    /// A target with a new volume, not formatted yet.
    pub(super) fn new(disk: SimDisk, settings: Settings, mut random: Random) -> Target {
        let mut options: CreateOptions = create_options(&volume(&settings, 0));
        options.segment_bytes = [64 << 10, 64 << 10, 256 << 10][random.below(3) as usize];
        options.retention_percent = [10, 100][random.below(2) as usize];
        options.store_id = Some(StoreId([8; 16]));
        Store::create_on(Box::new(disk.backend(true)), &options).expect("the disk is new");
        Target {
            disk,
            settings,
            random,
            units: Vec::new(),
            connections: BTreeMap::new(),
            sessions: BTreeMap::new(),
            managements: Vec::new(),
            finished: Vec::new(),
            memory: Memory::default(),
            clone_memory: Memory::default(),
            reserved: Vec::new(),
            next_reserve: 0,
            asked_snapshots: BTreeMap::new(),
            taken_snapshots: Vec::new(),
            next_own: 1 << 32,
            next_session: 1,
            next_tsih: 1,
            output: Vec::new(),
            commands: 0,
            steps_max: 0,
        }
    }

    /// Opens the store unless it is open.
    ///
    /// # Errors
    /// What the store says: the disk may fail to read.
    pub(super) fn open(&mut self) -> Result<(), StoreError> {
        if self.is_open() {
            return Ok(());
        }
        let options = OpenOptions {
            open_id: Some(self.random.number()),
            planted: self.settings.planted,
            checkpoint_log_bytes: [None, Some(self.random.below(20_000)), Some(100_000)][self.random.below(3) as usize],
            append_unit_bytes_max: [12 << 10, 264 << 10][self.random.below(2) as usize],
            data_cache_bytes: if self.random.once_in(2) { 0 } else { 64 << 10 },
            clock_seconds: || 1_700_000_000,
            ..OpenOptions::default()
        };
        let store = Store::open_on(Box::new(self.disk.backend(false)), &options, Arc::new(|| {}))?;
        self.units = vec![Unit::new(volume(&self.settings, 0), store, &self.memory)];
        self.serve_clone();
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        !self.units.is_empty()
    }

    /// Whether no session uses the volume, and nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.is_open() && self.units.iter().all(Unit::is_idle)
    }

    /// Closes the store in order. What the unit has in flight is finished first. Whether that went well.
    pub(super) fn close_store(&mut self) -> bool {
        // The last handle takes the store.
        let store = self.units.drain(..).rev().fold(None, |_, unit| unit.into_store());
        // A store whose disk has failed cannot; it will be opened as after a crash.
        store.is_some_and(|store| store.close().is_ok())
    }

    /// The process is gone, with everything that it had in memory.
    pub(super) fn crash(&mut self) {
        self.units.clear();
        self.connections.clear();
        self.sessions.clear();
        self.managements.clear();
        self.finished.clear();
        self.output.clear();
        self.asked_snapshots.clear();
        if self.settings.forgets_reservations {
            self.memory.forget_reservations();
        }
    }

    /// A connection from a node.
    pub(super) fn accept(&mut self, id: u64, link: Link, node: PublicKey) {
        let connection = Connection { link, node, login: None, stage: Stage::Before, is_over: false };
        self.connections.insert(id, connection);
    }

    pub(super) fn handle_input(&mut self, now: Instant, id: u64, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.link.handle_input(bytes);
        if let Stage::InSession(session, in_session) = connection.stage
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.machine.handle_progress(now, in_session);
        }
    }

    /// The connection is over.
    pub(super) fn handle_closed(&mut self, now: Instant, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.is_over = true;
        let reason = || CloseReason::ConnectionLost("cut by the simulation".to_owned());
        match (&connection.stage, &mut connection.login) {
            (Stage::InSession(session, in_session), _) => {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.machine.handle_closed(now, *in_session, reason());
                }
            }
            (_, Some(login)) => login.handle_closed(reason()),
            _ => {}
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for connection in self.connections.values_mut() {
            connection.link.handle_timeout(now);
            if let Some(login) = &mut connection.login {
                login.handle_timeout(now);
            }
        }
        for session in self.sessions.values_mut() {
            if session.machine.poll_timeout().is_some_and(|at| at <= now) {
                session.machine.handle_timeout(now);
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let links = self.connections.values().filter_map(|one| one.link.poll_timeout());
        let logins = self.connections.values().filter_map(|one| one.login.as_ref()?.poll_timeout());
        links.chain(logins).chain(self.sessions.values().filter_map(|one| one.machine.poll_timeout())).min()
    }

    /// Whether the store works on something: it is to be driven again soon.
    pub(super) fn is_working(&self) -> bool {
        self.units.first().is_some_and(|unit| unit.ios_in_flight() > 0) || self.units.iter().any(Unit::has_mail)
    }

    /// Lets the store tidy up.
    pub(super) fn idle(&mut self) {
        if let Some(unit) = self.units.first_mut() {
            unit.idle();
        }
    }

    /// LOGICAL UNIT RESET, as if another initiator had asked for it: every task is aborted, and its initiator is told so.
    pub(super) fn reset(&mut self) {
        self.clear_task_set();
        if let Some(unit) = self.units.first_mut() {
            unit.reset();
        }
    }

    /// CLEAR TASK SET, as if another initiator had asked for it.
    pub(super) fn clear_task_set(&mut self) {
        let Some(unit) = self.units.first_mut() else { return };
        for key in unit.sessions_at_work() {
            unit.abort_for_others(key);
            if let Some(session) = self.sessions.get_mut(&key) {
                session.machine.abort_tasks(None);
            }
        }
    }

    /// Ends one session, as an administrator may.
    pub(super) fn end_session(&mut self) {
        let keys: Vec<u64> = self.sessions.keys().copied().collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.random.below(keys.len() as u64) as usize];
        if let Some(session) = self.sessions.get_mut(&key) {
            session.machine.close("the simulation wants it");
        }
    }

    /// Ends every session in order; the store can be closed when it is idle then.
    pub(super) fn end_all_sessions(&mut self) {
        for session in self.sessions.values_mut() {
            session.machine.close("the target stops");
        }
    }

    /// Moves everything forward as far as it goes now; what is to be sent.
    pub(super) fn drive(&mut self, now: Instant) -> Vec<Output> {
        loop {
            let mut moved = false;
            for id in self.connections.keys().copied().collect::<Vec<_>>() {
                moved |= self.drive_connection(now, id);
            }
            for key in self.sessions.keys().copied().collect::<Vec<_>>() {
                moved |= self.drive_session(key);
            }
            moved |= self.poll_units();
            if !moved {
                break;
            }
        }
        for (id, connection) in &mut self.connections {
            transmit(*id, connection, &mut self.sessions, &mut self.output);
        }
        std::mem::take(&mut self.output)
    }

    fn drive_connection(&mut self, now: Instant, id: u64) -> bool {
        let Some(mut connection) = self.connections.remove(&id) else { return false };
        let mut moved = false;
        loop {
            if let Some(event) = connection.login.as_mut().and_then(|login| login.poll_event()) {
                moved = true;
                self.on_login(now, &mut connection, id, event);
            } else if let Some(event) = connection.link.poll_event() {
                moved = true;
                self.on_link(now, &mut connection, event);
            } else {
                break;
            }
        }
        if matches!(connection.stage, Stage::Waiting(_)) {
            moved |= self.try_login(&mut connection);
        }
        if connection.is_over && !matches!(connection.stage, Stage::InSession(..)) {
            self.forget(id, connection);
            return true;
        }
        self.connections.insert(id, connection);
        moved
    }

    /// A connection that never came to a session, or whose session is over.
    fn forget(&mut self, id: u64, mut connection: Connection) {
        if let Stage::Admitted { session, view } = connection.stage
            && let Some(unit) = self.units.get_mut(view)
        {
            unit.detach(session);
        }
        while let Some(pdu) = connection.login.as_mut().and_then(|login| login.poll_transmit()) {
            connection.link.send_pdu(pdu);
        }
        connection.link.close();
        flush_link(id, &mut connection.link, &mut self.output);
        self.output.push(Output::Close(id));
    }

    fn on_link(&mut self, now: Instant, connection: &mut Connection, event: LinkEvent) {
        let session = match connection.stage {
            Stage::InSession(key, id) => self.sessions.get_mut(&key).map(|session| (&mut session.machine, id)),
            _ => None,
        };
        match (event, &mut connection.login, session) {
            (LinkEvent::Established { .. }, ..) => {
                connection.login = Some(Box::new(Login::new(now, session_config())));
            }
            (LinkEvent::Pdu(pdu), Some(login), _) => login.handle_pdu(&pdu),
            (LinkEvent::Pdu(pdu), None, Some((session, id))) => session.handle_pdu(now, id, pdu),
            (LinkEvent::Corrupt(pdu), _, Some((session, id))) => session.handle_corrupt_pdu(now, id, &pdu),
            (LinkEvent::Ended(end), Some(login), _) => {
                login.handle_closed(CloseReason::ConnectionLost(end.to_string()));
                connection.is_over = true;
            }
            (LinkEvent::Ended(end), None, Some((session, id))) => {
                session.handle_closed(now, id, CloseReason::ConnectionLost(end.to_string()));
            }
            (LinkEvent::Ended(_), None, None) => connection.is_over = true,
            (LinkEvent::Pdu(_) | LinkEvent::Corrupt(_), ..) => {}
        }
    }

    fn on_login(&mut self, now: Instant, connection: &mut Connection, id: u64, event: LoginEvent) {
        match event {
            LoginEvent::Requested(request) => connection.stage = Stage::Waiting(request),
            LoginEvent::Authenticated { .. } => {}
            LoginEvent::Done => {
                let Stage::Admitted { session: key, view } = connection.stage else { return };
                let Some(login) = connection.login.take() else { return };
                let digests = login.agreed().map(|agreed| agreed.digests).unwrap_or_default();
                let (machine, in_session) = Session::new(now, *login);
                self.sessions.insert(key, ServedSession { machine, connection: id, view });
                connection.stage = Stage::InSession(key, in_session);
                connection.link.login_finished(digests);
                connection.link.conceal_parameters();
            }
            LoginEvent::Closed(_) => connection.is_over = true,
        }
    }

    /// Lets a login in if the volume is open and nothing of the session that it replaces is in flight.
    fn try_login(&mut self, connection: &mut Connection) -> bool {
        let Stage::Waiting(request) = &connection.stage else { return false };
        let nexus = NexusId {
            initiator_name: request.initiator_name.to_ascii_lowercase().into(),
            isid: request.isid,
            target_portal_group: 1,
        };
        let Some(login) = &mut connection.login else { return false };
        let view = match &request.kind {
            SessionKind::Normal { target_name } => view_of(target_name),
            SessionKind::Discovery => None,
        };
        let Some((view, unit)) = view.and_then(|view| Some((view, self.units.get_mut(view)?))) else {
            connection.stage = Stage::Before;
            login.reject(LoginStatus::SERVICE_UNAVAILABLE);
            return true;
        };
        if let Some(old) = unit.session_of(&nexus) {
            return match self.sessions.get_mut(&old) {
                Some(session) if !session.machine.is_closed() => {
                    session.machine.close("replaced by a new login of the same initiator");
                    true
                }
                Some(_) => false,
                None => {
                    // It was on its way in: its connection is given up.
                    for other in self.connections.values_mut() {
                        if matches!(other.stage, Stage::Admitted { session, .. } if session == old) {
                            other.is_over = true;
                        }
                    }
                    true
                }
            };
        }
        if unit.is_leaving(&nexus) {
            return false;
        }
        let key = self.next_session;
        self.next_session += 1;
        unit.attach(key, nexus, connection.node);
        self.next_tsih = self.next_tsih.wrapping_add(1).max(1);
        login.accept(self.next_tsih);
        connection.stage = Stage::Admitted { session: key, view };
        true
    }

    fn drive_session(&mut self, key: u64) -> bool {
        let Some(mut session) = self.sessions.remove(&key) else { return false };
        let mut moved = false;
        while let Some(event) = session.machine.poll_event() {
            moved = true;
            match event {
                Event::Command(command) => {
                    self.commands += 1;
                    let task = command.task;
                    let blocks_max = session.machine.sealed_blocks_max(BLOCK_BYTES as u32, ENTRY_BYTES);
                    let unit = self.units.get_mut(session.view).expect("sessions end before their store is closed");
                    let verdict = counted(&mut self.steps_max, || unit.submit(key, command, blocks_max));
                    match verdict {
                        Verdict::Answer(response) => drop(session.machine.complete(task, response)),
                        Verdict::Later => {}
                        Verdict::Violation(what) => panic!("our initiator broke the frame discipline: {what}"),
                    }
                }
                Event::TaskManagement(request) => {
                    let unit = self.units.get_mut(session.view).expect("sessions end before their store is closed");
                    let mut waits_for = HashSet::new();
                    for task in request.tasks {
                        waits_for.extend(unit.abort(key, Some(task)).into_iter().map(|task| (key, task)));
                    }
                    match waits_for.is_empty() {
                        true => session.machine.answer_task_management(request.id, TaskManagementResult::Complete),
                        false => self.managements.push(Management { session: key, id: request.id, waits_for }),
                    }
                }
                Event::SendTargets(..) | Event::ConnectionClosed { .. } => {}
                Event::Closed(_) => {
                    if let Some(mut connection) = self.connections.remove(&session.connection) {
                        if let Stage::InSession(_, id) = connection.stage {
                            while let Some(pdu) = session.machine.poll_transmit(id) {
                                connection.link.send_pdu(pdu);
                            }
                        }
                        connection.stage = Stage::Before;
                        self.forget(session.connection, connection);
                    }
                    if let Some(unit) = self.units.get_mut(session.view) {
                        unit.detach(key);
                    }
                    return true;
                }
            }
        }
        self.sessions.insert(key, session);
        moved
    }

    fn poll_units(&mut self) -> bool {
        for unit in &mut self.units {
            counted(&mut self.steps_max, || unit.poll(&mut self.finished));
        }
        self.take_own_answers();
        let moved = !self.finished.is_empty();
        for (key, task, response) in std::mem::take(&mut self.finished) {
            if self.is_reserved(task, response.as_ref()) {
                continue;
            }
            for management in &mut self.managements {
                management.waits_for.remove(&(key, task));
            }
            if let (Some(session), Some(response)) = (self.sessions.get_mut(&key), response) {
                session.machine.complete(task, response);
            }
        }
        let (done, waiting) =
            std::mem::take(&mut self.managements).into_iter().partition(|one| one.waits_for.is_empty());
        self.managements = waiting;
        let done: Vec<Management> = done;
        for management in &done {
            if let Some(session) = self.sessions.get_mut(&management.session) {
                session.machine.answer_task_management(management.id, TaskManagementResult::Complete);
            }
        }
        moved || !done.is_empty()
    }
}

/// Counts the steps of one call of a unit.
fn counted<T>(steps_max: &mut u64, call: impl FnOnce() -> T) -> T {
    let before = steps_taken();
    let result = call();
    let steps = steps_taken() - before;
    *steps_max = steps.max(*steps_max);
    assert!(steps <= STEPS_MAX, "one call of a unit took {steps} steps in the store: it is to be done in slices");
    result
}

fn transmit(
    id: u64,
    connection: &mut Connection,
    sessions: &mut BTreeMap<u64, ServedSession>,
    output: &mut Vec<Output>,
) {
    match connection.stage {
        Stage::InSession(key, in_session) => {
            if let Some(session) = sessions.get_mut(&key) {
                while let Some(pdu) = session.machine.poll_transmit(in_session) {
                    connection.link.send_pdu(pdu);
                }
            }
        }
        _ => {
            while let Some(pdu) = connection.login.as_mut().and_then(|login| login.poll_transmit()) {
                connection.link.send_pdu(pdu);
            }
        }
    }
    flush_link(id, &mut connection.link, output);
}

fn flush_link(id: u64, link: &mut Link, output: &mut Vec<Output>) {
    let mut buffers = Vec::new();
    link.poll_transmit(&mut buffers);
    let bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
    if !bytes.is_empty() {
        output.push(Output::Bytes(id, bytes));
    }
}

fn session_config() -> Config {
    Config {
        in_channel: true,
        queue_depth: 64,
        ping_after: Duration::from_millis(500),
        ping_timeout: Duration::from_millis(500),
        offer: Offer { connections_max: 1, error_recovery_level: 0, time2wait_s: 0, ..Offer::default() },
        ..Config::default()
    }
}
