//! Connections, logins, sessions and task management, as the worker does them, with one connection for each session.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use strongroom_handshake::PublicKey;
use strongroom_iscsi::target::{
    Config, ConnectionId, Event, Login, LoginEvent, LoginRequested, ManagementId, Session, SessionKind, TaskId,
    TaskManagement, TaskManagementResult,
};
use strongroom_iscsi::{CloseReason, LoginStatus, Offer};
use strongroom_net::{Link, LinkEvent};
use strongroom_scsi::NexusId;
use strongroom_target::machine::{Finished, Verdict};

use super::served_store::ServedStore;
use crate::Random;
use crate::system::layout::{BLOCK_BYTES, VIEWS};

/// Bytes of a data-in entry beside a block: its sequence and its record.
const ENTRY_BYTES: usize = 8 + 56;

/// How far the login of a connection is.
enum LoginStage {
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
    stage: LoginStage,
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
pub(in crate::system) enum Output {
    Bytes(u64, Vec<u8>),
    Close(u64),
}

/// The sessions of the target.
#[derive(Default)]
pub(in crate::system) struct SessionTable {
    connections: BTreeMap<u64, Connection>,
    sessions: BTreeMap<u64, ServedSession>,
    managements: Vec<Management>,
    last_session: u64,
    last_tsih: u16,
    output: Vec<Output>,
    /// Commands that units were given.
    pub(in crate::system) commands: u64,
}

fn view_of(target_name: &str) -> Option<usize> {
    VIEWS.iter().position(|name| target_name.ends_with(&format!(":{name}")))
}

impl SessionTable {
    /// Whether there is no session.
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The process is gone, with everything that it had in memory.
    pub(super) fn crash(&mut self) {
        self.connections.clear();
        self.sessions.clear();
        self.managements.clear();
        self.output.clear();
    }

    /// Whether a session is not closed.
    pub(super) fn is_open(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|one| !one.machine.is_closed())
    }

    /// A connection from a node.
    pub(in crate::system) fn accept(&mut self, id: u64, link: Link, node: PublicKey) {
        let connection = Connection { link, node, login: None, stage: LoginStage::Before, is_over: false };
        self.connections.insert(id, connection);
    }

    pub(in crate::system) fn handle_input(&mut self, now: Instant, id: u64, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.link.handle_input(bytes);
        if let LoginStage::InSession(session, in_session) = connection.stage
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.machine.handle_progress(now, in_session);
        }
    }

    /// The connection is over.
    pub(in crate::system) fn handle_closed(&mut self, now: Instant, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.is_over = true;
        let reason = || CloseReason::ConnectionLost("cut by the simulation".to_owned());
        match (&connection.stage, &mut connection.login) {
            (LoginStage::InSession(session, in_session), _) => {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.machine.handle_closed(now, *in_session, reason());
                }
            }
            (_, Some(login)) => login.handle_closed(reason()),
            _ => {}
        }
    }

    pub(in crate::system) fn handle_timeout(&mut self, now: Instant) {
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

    pub(in crate::system) fn poll_timeout(&self) -> Option<Instant> {
        let links = self.connections.values().filter_map(|one| one.link.poll_timeout());
        let logins = self.connections.values().filter_map(|one| one.login.as_ref()?.poll_timeout());
        links.chain(logins).chain(self.sessions.values().filter_map(|one| one.machine.poll_timeout())).min()
    }

    /// Another initiator ends the tasks of a session, which are answered with TASK ABORTED.
    pub(super) fn abort_tasks(&mut self, session: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.machine.abort_tasks(None);
        }
    }

    /// Ends one session, as an administrator may.
    pub(in crate::system) fn end_one(&mut self, random: &mut Random) {
        let count = self.sessions.len() as u64;
        if count > 0
            && let Some(session) = self.sessions.values_mut().nth(random.below(count) as usize)
        {
            session.machine.close("the simulation wants it");
        }
    }

    /// Ends every session in order; the store can be closed when it is idle then.
    pub(in crate::system) fn end_all(&mut self) {
        for session in self.sessions.values_mut() {
            session.machine.close("the target stops");
        }
    }

    /// Moves connections and sessions forward; whether anything happened.
    pub(super) fn drive(&mut self, now: Instant, store: &mut ServedStore) -> bool {
        let mut moved = false;
        for id in self.connections.keys().copied().collect::<Vec<_>>() {
            moved |= self.drive_connection(now, id, store);
        }
        for key in self.sessions.keys().copied().collect::<Vec<_>>() {
            moved |= self.drive_session(key, store);
        }
        moved
    }

    /// What is to be sent and closed.
    pub(super) fn take_output(&mut self) -> Vec<Output> {
        for (id, connection) in &mut self.connections {
            transmit(*id, connection, &mut self.sessions, &mut self.output);
        }
        std::mem::take(&mut self.output)
    }

    fn drive_connection(&mut self, now: Instant, id: u64, store: &mut ServedStore) -> bool {
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
        if matches!(connection.stage, LoginStage::Waiting(_)) {
            moved |= self.try_login(&mut connection, store);
        }
        if connection.is_over && !matches!(connection.stage, LoginStage::InSession(..)) {
            self.forget(id, connection, store);
            return true;
        }
        self.connections.insert(id, connection);
        moved
    }

    /// A connection that never came to a session, or whose session is over.
    fn forget(&mut self, id: u64, mut connection: Connection, store: &mut ServedStore) {
        if let LoginStage::Admitted { session, view } = connection.stage
            && let Some(unit) = store.unit(view)
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
            LoginStage::InSession(key, id) => self.sessions.get_mut(&key).map(|session| (&mut session.machine, id)),
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
            LoginEvent::Requested(request) => connection.stage = LoginStage::Waiting(request),
            LoginEvent::Authenticated { .. } => {}
            LoginEvent::Done => {
                let LoginStage::Admitted { session: key, view } = connection.stage else { return };
                let Some(login) = connection.login.take() else { return };
                let digests = login.agreed().map(|agreed| agreed.digests).unwrap_or_default();
                let (machine, in_session) = Session::new(now, *login);
                self.sessions.insert(key, ServedSession { machine, connection: id, view });
                connection.stage = LoginStage::InSession(key, in_session);
                connection.link.login_finished(digests);
                connection.link.conceal_parameters();
            }
            LoginEvent::Closed(_) => connection.is_over = true,
        }
    }

    /// Lets a login in if the volume is open and nothing of the session that it replaces is in flight.
    fn try_login(&mut self, connection: &mut Connection, store: &mut ServedStore) -> bool {
        let LoginStage::Waiting(request) = &connection.stage else { return false };
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
        let Some((view, unit)) = view.and_then(|view| Some((view, store.unit(view)?))) else {
            connection.stage = LoginStage::Before;
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
                        if matches!(other.stage, LoginStage::Admitted { session, .. } if session == old) {
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
        self.last_session += 1;
        let key = self.last_session;
        unit.attach(key, nexus, connection.node);
        self.last_tsih = self.last_tsih.wrapping_add(1).max(1);
        login.accept(self.last_tsih);
        connection.stage = LoginStage::Admitted { session: key, view };
        true
    }

    fn drive_session(&mut self, key: u64, store: &mut ServedStore) -> bool {
        let Some(mut session) = self.sessions.remove(&key) else { return false };
        let mut moved = false;
        while let Some(event) = session.machine.poll_event() {
            moved = true;
            match event {
                Event::Command(command) => {
                    self.commands += 1;
                    let task = command.task;
                    let blocks_max = session.machine.sealed_blocks_max(BLOCK_BYTES as u32, ENTRY_BYTES);
                    match store.submit(session.view, key, command, blocks_max) {
                        Verdict::Answer(response) => drop(session.machine.complete(task, response)),
                        Verdict::Later => {}
                        Verdict::Violation(what) => panic!("our initiator broke the frame discipline: {what}"),
                    }
                }
                Event::TaskManagement(request) => self.manage(key, &mut session, &request, store),
                Event::SendTargets(..) | Event::ConnectionClosed { .. } => {}
                Event::Closed(_) => {
                    self.closed(key, session, store);
                    return true;
                }
            }
        }
        self.sessions.insert(key, session);
        moved
    }

    /// An initiator asks for tasks of its own to be ended.
    fn manage(&mut self, key: u64, session: &mut ServedSession, request: &TaskManagement, store: &mut ServedStore) {
        let unit = store.unit(session.view).expect("sessions end before their store is closed");
        let mut waits_for = HashSet::new();
        for task in &request.tasks {
            waits_for.extend(unit.abort(key, Some(*task)).into_iter().map(|task| (key, task)));
        }
        match waits_for.is_empty() {
            true => session.machine.answer_task_management(request.id, TaskManagementResult::Complete),
            false => self.managements.push(Management { session: key, id: request.id, waits_for }),
        }
    }

    /// A session is over.
    fn closed(&mut self, key: u64, mut session: ServedSession, store: &mut ServedStore) {
        if let Some(mut connection) = self.connections.remove(&session.connection) {
            if let LoginStage::InSession(_, id) = connection.stage {
                while let Some(pdu) = session.machine.poll_transmit(id) {
                    connection.link.send_pdu(pdu);
                }
            }
            connection.stage = LoginStage::Before;
            self.forget(session.connection, connection, store);
        }
        if let Some(unit) = store.unit(session.view) {
            unit.detach(key);
        }
    }

    /// Commands have ended: they are answered, and so are requests that waited for their end. Whether any request did.
    pub(super) fn complete(&mut self, finished: Vec<Finished>) -> bool {
        for (key, task, response) in finished {
            for management in &mut self.managements {
                management.waits_for.remove(&(key, task));
            }
            if let (Some(session), Some(response)) = (self.sessions.get_mut(&key), response) {
                session.machine.complete(task, response);
            }
        }
        let done: Vec<Management> = self.managements.extract_if(.., |one| one.waits_for.is_empty()).collect();
        for management in &done {
            if let Some(session) = self.sessions.get_mut(&management.session) {
                session.machine.answer_task_management(management.id, TaskManagementResult::Complete);
            }
        }
        !done.is_empty()
    }
}

fn transmit(
    id: u64,
    connection: &mut Connection,
    sessions: &mut BTreeMap<u64, ServedSession>,
    output: &mut Vec<Output>,
) {
    match connection.stage {
        LoginStage::InSession(key, in_session) => {
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
