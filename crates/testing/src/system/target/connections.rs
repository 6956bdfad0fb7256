//! Connections and logins, as the workers do them, with one connection for each session. A connection is accepted by any worker, and handed
//! over to the one that owns the volume, and then to the one that gets the session.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use strongroom_ecl::Transmit;
use strongroom_handshake::PublicKey;
use strongroom_iscsi::target::{Config, ConnectionId, Login, LoginEvent, LoginRequested, SessionKind};
use strongroom_iscsi::{CloseReason, LoginStatus, Offer};
use strongroom_net::{Link, LinkEvent};
use strongroom_scsi::NexusId;
use strongroom_target::machine::{Admission, Grant, Sending};

use super::volume::ServedVolume;
use super::workers::Workers;
use crate::system::layout::VIEWS;

/// How far the login of a connection is.
enum LoginStage {
    Before,
    /// Its login waits: for the volume to be opened, or for the end of the session that it replaces.
    Waiting {
        request: LoginRequested,
        /// It is tried now.
        is_due: bool,
    },
    /// Its login is answered, and begins this session.
    Admitted(Box<Grant>),
    InSession(u64, ConnectionId),
}

struct Connection {
    link: Link,
    node: PublicKey,
    login: Option<Box<Login>>,
    stage: LoginStage,
    is_over: bool,
    /// The worker that has it.
    worker: usize,
    /// It is on its way to another worker.
    is_moving: bool,
}

/// What is to be sent, and what is to be closed.
pub(in crate::system) enum Output {
    Bytes(u64, Vec<u8>),
    /// Of the association of this connection.
    Datagram(u64, Transmit),
    Close(u64),
}

/// The connections of the target.
#[derive(Default)]
pub(in crate::system) struct ConnectionTable {
    table: BTreeMap<u64, Connection>,
    last_session: u64,
    last_tsih: u16,
    output: Vec<Output>,
    /// Sessions that did not begin at the worker of their unit.
    pub(in crate::system) remote_sessions: u64,
}

fn view_of(request: &LoginRequested) -> Option<usize> {
    let SessionKind::Normal { target_name } = &request.kind else { return None };
    VIEWS.iter().position(|name| target_name.ends_with(&format!(":{name}")))
}

impl Connection {
    fn close(&mut self, reason: CloseReason, now: Instant, workers: &mut Workers) {
        match (&self.stage, &mut self.login) {
            (LoginStage::InSession(session, id), _) => {
                if let Some(session) = workers.get_mut(self.worker).session(*session) {
                    session.handle_closed(now, *id, reason);
                }
            }
            (_, Some(login)) => login.handle_closed(reason),
            _ => {}
        }
    }

    fn transmit_login(&mut self) {
        while let Some(pdu) = self.login.as_mut().and_then(|login| login.poll_transmit()) {
            self.link.send_pdu(pdu);
        }
    }

    fn flush(&mut self, id: u64, output: &mut Vec<Output>) {
        let mut buffers = Vec::new();
        self.link.poll_transmit(&mut buffers);
        let bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        if !bytes.is_empty() {
            output.push(Output::Bytes(id, bytes));
        }
    }

    fn nexus(request: &LoginRequested) -> NexusId {
        NexusId {
            initiator_name: request.initiator_name.to_ascii_lowercase().into(),
            isid: request.isid,
            target_portal_group: 1,
        }
    }
}

impl ConnectionTable {
    /// The process is gone, with everything that it had in memory.
    pub(super) fn crash(&mut self) {
        self.table.clear();
        self.output.clear();
    }

    /// The process ends in order.
    pub(super) fn close_all(&mut self) {
        for (id, mut connection) in std::mem::take(&mut self.table) {
            connection.link.close();
            connection.flush(id, &mut self.output);
            self.output.push(Output::Close(id));
        }
    }

    /// A connection from a node has come to a worker.
    pub(super) fn accept(&mut self, id: u64, link: Link, node: PublicKey, worker: usize) {
        let stage = LoginStage::Before;
        let connection = Connection { link, node, login: None, stage, is_over: false, worker, is_moving: false };
        self.table.insert(id, connection);
    }

    pub(super) fn handle_input(&mut self, now: Instant, id: u64, bytes: &[u8], workers: &mut Workers) {
        let Some(connection) = self.table.get_mut(&id) else { return };
        connection.link.handle_input(bytes);
        if let LoginStage::InSession(session, in_session) = connection.stage
            && let Some(session) = workers.get_mut(connection.worker).session(session)
        {
            session.handle_progress(now, in_session);
        }
    }

    /// The connection is over.
    pub(super) fn handle_closed(&mut self, now: Instant, id: u64, workers: &mut Workers) {
        let Some(connection) = self.table.get_mut(&id) else { return };
        connection.is_over = true;
        connection.close(CloseReason::ConnectionLost("cut by the simulation".to_owned()), now, workers);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for connection in self.table.values_mut() {
            connection.link.handle_timeout(now);
            if let Some(login) = &mut connection.login {
                login.handle_timeout(now);
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let links = self.table.values().filter_map(|one| one.link.poll_timeout());
        links.chain(self.table.values().filter_map(|one| one.login.as_ref()?.poll_timeout())).min()
    }

    /// A connection arrives at the worker to which it was handed over. If it waits, the volume may have another owner by now.
    pub(super) fn arrive(&mut self, id: u64, worker: usize) {
        let Some(connection) = self.table.get_mut(&id) else { return };
        (connection.worker, connection.is_moving) = (worker, false);
        self.retry_login(id);
    }

    /// A login that waited is tried again.
    pub(super) fn retry_login(&mut self, id: u64) {
        if let Some(connection) = self.table.get_mut(&id)
            && let LoginStage::Waiting { is_due, .. } = &mut connection.stage
        {
            *is_due = true;
        }
    }

    /// A login that waited is rejected.
    pub(super) fn reject(&mut self, id: u64) {
        if let Some(connection) = self.table.get_mut(&id)
            && matches!(connection.stage, LoginStage::Waiting { .. })
        {
            connection.stage = LoginStage::Before;
            if let Some(login) = &mut connection.login {
                login.reject(LoginStatus::SERVICE_UNAVAILABLE);
            }
        }
    }

    /// A session was ended before its login was over.
    pub(super) fn reject_session(&mut self, session: u64) {
        let begins = |stage: &LoginStage| matches!(stage, LoginStage::Admitted(grant) if grant.session() == session);
        for connection in self.table.values_mut().filter(|connection| begins(&connection.stage)) {
            if let Some(login) = &mut connection.login {
                login.reject(LoginStatus::SERVICE_UNAVAILABLE);
            }
        }
    }

    /// The next name of a session.
    pub(super) fn next_session(&mut self) -> u64 {
        self.last_session += 1;
        self.last_session
    }

    /// Moves connections forward; whether anything happened.
    pub(super) fn drive(&mut self, now: Instant, workers: &mut Workers, volume: &mut ServedVolume) -> bool {
        let mut has_progressed = false;
        for id in self.table.keys().copied().collect::<Vec<_>>() {
            has_progressed |= self.drive_connection(now, id, workers, volume);
        }
        has_progressed
    }

    /// Sends what a session has; `id`: the connection of its login.
    pub(super) fn transmit(&mut self, id: u64, sending: Sending<'_>) {
        match sending {
            Sending::Iscsi(session, in_session) => {
                let Some(connection) = self.table.get_mut(&id) else { return };
                while let Some(pdu) = session.poll_transmit(in_session) {
                    connection.link.send_pdu(pdu);
                }
            }
            Sending::Ecl(packet) => self.output.push(Output::Datagram(id, packet)),
        }
    }

    /// The session of a connection has ended.
    pub(super) fn session_ended(&mut self, id: u64) {
        if let Some(connection) = self.table.remove(&id) {
            self.forget(id, connection);
        }
    }

    /// What is to be sent and closed.
    pub(super) fn take_output(&mut self) -> Vec<Output> {
        for (id, connection) in self.table.iter_mut().filter(|(_, connection)| !connection.is_moving) {
            connection.transmit_login();
            connection.flush(*id, &mut self.output);
        }
        std::mem::take(&mut self.output)
    }

    fn drive_connection(&mut self, now: Instant, id: u64, workers: &mut Workers, volume: &mut ServedVolume) -> bool {
        if self.table.get(&id).is_none_or(|connection| connection.is_moving) {
            return false;
        }
        let Some(mut connection) = self.table.remove(&id) else { return false };
        let mut has_progressed = false;
        loop {
            if let Some(event) = connection.login.as_mut().and_then(|login| login.poll_event()) {
                self.on_login(now, &mut connection, id, event, workers);
            } else if let Some(event) = connection.link.poll_event() {
                on_link(now, &mut connection, event, workers);
            } else {
                break;
            }
            has_progressed = true;
        }
        has_progressed |= self.try_login(now, id, &mut connection, workers, volume);
        if connection.is_over && !connection.is_moving && !matches!(connection.stage, LoginStage::InSession(..)) {
            if let LoginStage::Admitted(grant) = &connection.stage {
                workers.get_mut(connection.worker).abandon(now, grant);
            }
            self.forget(id, connection);
            return true;
        }
        self.table.insert(id, connection);
        has_progressed
    }

    /// A connection that never came to a session, or whose session is over.
    fn forget(&mut self, id: u64, mut connection: Connection) {
        connection.transmit_login();
        connection.link.close();
        connection.flush(id, &mut self.output);
        self.output.push(Output::Close(id));
    }

    fn on_login(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        id: u64,
        event: LoginEvent,
        workers: &mut Workers,
    ) {
        match event {
            LoginEvent::Requested(request) => connection.stage = LoginStage::Waiting { request, is_due: true },
            LoginEvent::Authenticated { .. } => {}
            LoginEvent::Done => {
                if !matches!(connection.stage, LoginStage::Admitted(_)) {
                    return;
                }
                let Some(login) = connection.login.take() else { return };
                let LoginStage::Admitted(grant) = std::mem::replace(&mut connection.stage, LoginStage::Before) else {
                    return;
                };
                let digests = login.agreed().map(|agreed| agreed.digests).unwrap_or_default();
                let session = grant.session();
                let in_session = workers.get_mut(connection.worker).begin(now, *grant, *login, id);
                connection.stage = LoginStage::InSession(session, in_session);
                connection.link.login_finished(digests);
                connection.link.conceal_parameters();
                if connection.is_over {
                    connection.close(CloseReason::ConnectionLost("cut by the simulation".to_owned()), now, workers);
                }
            }
            LoginEvent::Closed(_) => connection.is_over = true,
        }
    }

    /// Lets a login in at the worker that owns the volume, if the volume is open and nothing of the session that it replaces is left.
    fn try_login(
        &mut self,
        now: Instant,
        id: u64,
        connection: &mut Connection,
        workers: &mut Workers,
        volume: &mut ServedVolume,
    ) -> bool {
        let LoginStage::Waiting { request, is_due } = &mut connection.stage else { return false };
        if connection.is_over || !std::mem::take(is_due) {
            return false;
        }
        let (nexus, view) = (Connection::nexus(request), view_of(request));
        let Some(login) = &mut connection.login else { return false };
        let owner = volume.take_owner(workers);
        if owner != connection.worker {
            workers.hand_over(now, connection.worker, owner, id);
            connection.is_moving = true;
            return true;
        }
        let session = self.next_session();
        let admission = match view {
            Some(view) => volume.admit(now, workers, (id, session), view, (&nexus, connection.node)),
            None => Admission::NotOpen,
        };
        match admission {
            Admission::Waits => {}
            Admission::NotOpen => {
                connection.stage = LoginStage::Before;
                login.reject(LoginStatus::SERVICE_UNAVAILABLE);
            }
            Admission::Granted(grant) => {
                self.last_tsih = self.last_tsih.wrapping_add(1).max(1);
                login.accept(self.last_tsih);
                if grant.worker() != owner {
                    self.remote_sessions += 1;
                    connection.transmit_login();
                    connection.flush(id, &mut self.output);
                    workers.hand_over(now, owner, grant.worker(), id);
                    connection.is_moving = true;
                }
                connection.stage = LoginStage::Admitted(Box::new(grant));
            }
        }
        true
    }
}

fn on_link(now: Instant, connection: &mut Connection, event: LinkEvent, workers: &mut Workers) {
    let session = match connection.stage {
        LoginStage::InSession(key, id) => workers.get_mut(connection.worker).session(key).map(|one| (one, id)),
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
        (LinkEvent::Pdu(_) | LinkEvent::Corrupt(_) | LinkEvent::Message(_) | LinkEvent::Packet(_), ..) => {}
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
