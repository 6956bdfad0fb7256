//! A worker as a machine, for simulations: the routing between sessions and units, with the sessions and units of one worker.
//!
//! Around it the simulation does what takes sockets and threads: it decrypts PDUs, drives logins, opens and closes stores, and carries
//! messages and connections from one worker to another.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use strongroom_channel::Scheme;
use strongroom_ecl::{Config as AssociationConfig, Transmit, target as ecl};
use strongroom_handshake::PublicKey;
use strongroom_iscsi::target::{self as iscsi, ConnectionId, Login};
use strongroom_scsi::NexusId;
use strongroom_scsi::transport::target::{Command, ManagementFunction, ManagementId, Response, TaskId, TaskManagement};

use super::connection::ConnectionKey;
use super::cross_worker::CrossWorkerMessage;
use super::ecl_session::{EclSession, PacketCarrier};
use super::grant::LoginGrant;
use super::open_unit::{OpenStoreLock, OpenUnit};
use super::routing::{CommandBounds, NexusState, Routing};
use super::session::Session;
use super::session_end::SessionEnd;
use super::session_machine::{SessionEvent, SessionMachine};
use super::units::{UnitEntry, UnitOutput};
use crate::access::Identity;
use crate::budget::{MemoryBudget, MemoryClass, SESSION_BYTES};
use crate::config::Limits;
use crate::machine::{Memory, Unit};
use crate::names::VolumeName;
use crate::open_units::Origin;
use crate::session_loads::SessionLoads;
use crate::stats::Counters;
use crate::unit::{SessionKey, Verdict};

/// Memory of a target.
const BUDGET_BYTES: u64 = 1 << 30;

/// A worker of a target. Sessions and logins are named by numbers that are never used again.
pub struct RoutedWorker {
    number: usize,
    routing: Routing,
    budget: Arc<MemoryBudget>,
    counters: Arc<Counters>,
    output: UnitOutput,
    /// Tasks that no session has asked for.
    own_tasks: FxHashSet<(SessionKey, TaskId)>,
    exchanges_responses: bool,
}

/// What a session sends, in terms of its transport.
#[derive(Debug)]
pub enum Sending<'a> {
    /// PDUs that it has for this connection.
    Iscsi(&'a mut iscsi::Session, ConnectionId),
    /// A packet.
    Ecl(Transmit),
}

/// What becomes of a login.
#[derive(Debug)]
pub enum Admission {
    /// It begins a session at the worker that the grant names.
    Granted(Grant),
    /// It is tried again when the volume is open, or the earlier session of its nexus has ended.
    Waits,
    /// The volume is not open.
    NotOpen,
}

/// The session that a login begins.
pub struct Grant {
    session: SessionKey,
    worker: usize,
    login: LoginGrant,
    node: PublicKey,
}

/// A session that was driven.
#[derive(Clone, Copy, Debug)]
pub struct DrivenSession {
    /// Its only connection.
    pub connection: u64,
    /// It has ended, and has left its unit.
    pub is_over: bool,
}

/// What polling the units of a worker has brought.
#[derive(Debug, Default)]
pub struct Polled {
    /// Whether sessions or units have something to do because of it.
    pub has_progressed: bool,
    /// Tasks of [`RoutedWorker::submit_for`] that have ended.
    pub own_tasks: Vec<(TaskId, Option<Response>)>,
}

/// Messages of one worker to another, in their order.
pub struct Messages(Vec<CrossWorkerMessage>);

impl std::fmt::Debug for RoutedWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RoutedWorker").field("number", &self.number).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant").field("session", &self.session).field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Messages").field(&self.0.len()).finish()
    }
}

impl Grant {
    /// Names the session.
    pub fn session(&self) -> u64 {
        self.session.0
    }

    /// The worker that is to have the session.
    pub fn worker(&self) -> usize {
        self.worker
    }
}

fn origin(node: PublicKey) -> Origin {
    let identity = Identity::Channel(node);
    Origin { identity, from: Ipv4Addr::LOCALHOST.into(), scheme: Some(Scheme::default()) }
}

impl RoutedWorker {
    /// The workers of a target. `read_bytes`: what reads of one session may hold before its further commands wait.
    pub fn of_target(count: usize, read_bytes: u64) -> Vec<RoutedWorker> {
        let limits = Limits { read_memory_bytes: read_bytes, ..Limits::default() };
        let (loads, counters) = (Arc::new(SessionLoads::new(count)), Arc::new(Counters::default()));
        let budget = Arc::new(MemoryBudget::new(BUDGET_BYTES));
        let worker = |number| {
            let bounds = CommandBounds::new(Arc::clone(&budget), &limits);
            RoutedWorker {
                number,
                routing: Routing::new((number, count), bounds, Arc::clone(&loads), Arc::clone(&counters)),
                budget: Arc::clone(&budget),
                counters: Arc::clone(&counters),
                output: UnitOutput::default(),
                own_tasks: FxHashSet::default(),
                exchanges_responses: false,
            }
        };
        (0..count).map(worker).collect()
    }

    /// Plants a fault: responses that two sessions get at the same time are exchanged.
    pub fn exchange_responses(&mut self) {
        self.exchanges_responses = true;
    }

    /// A volume is being opened for these logins.
    pub fn begin_opening(&mut self, volume: &VolumeName, logins: Vec<u64>) {
        let waiting = logins.into_iter().map(ConnectionKey).collect();
        self.routing.units.insert(volume.clone(), UnitEntry::Opening { waiting });
    }

    /// A volume is open, or a clone of it is served too. The logins that waited are tried again.
    pub fn opened(&mut self, now: Instant, unit: Unit) {
        let Unit { unit, ready, has_store } = unit;
        let lock = has_store.then(|| OpenStoreLock::simulated(&self.counters));
        let name = unit.volume().name.clone();
        let open = OpenUnit::new(unit, ready, lock, None, now);
        if let Some(UnitEntry::Opening { waiting }) = self.routing.units.remove(&name) {
            self.routing.retry_logins(waiting);
        }
        self.routing.units.insert(name, UnitEntry::Open(Box::new(open)));
    }

    /// A volume that was being opened or closed is neither any more. The logins that waited for it.
    pub fn forget(&mut self, volume: &VolumeName) -> Vec<u64> {
        match self.routing.units.remove(volume) {
            Some(UnitEntry::Opening { waiting } | UnitEntry::Closing { waiting }) => {
                waiting.into_iter().map(|login| login.0).collect()
            }
            Some(open) => {
                self.routing.units.insert(volume.clone(), open);
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// Withdraws a unit; what its initiators have set is kept in `memory`. `closes_store`: logins wait until [`RoutedWorker::forget`] is called.
    pub fn close(&mut self, volume: &VolumeName, memory: &Memory, closes_store: bool) {
        let Some(open) = self.routing.units.remove_open(volume) else { return };
        let (unit, _) = open.into_parts();
        memory.keep(unit.closed());
        if closes_store {
            self.routing.units.insert(volume.clone(), UnitEntry::Closing { waiting: Vec::new() });
        }
    }

    /// Whether units of this worker use nothing and are used by nobody.
    pub fn is_idle(&self) -> bool {
        self.routing.sessions.is_empty() && self.routing.units.iter_open().all(|(_, open)| open.may_close())
    }

    /// Starts what is due at idle units and sessions. The volumes that are to be closed: nobody has used them for `idle_close`.
    pub fn handle_timeout(&mut self, now: Instant, idle_close: Duration) -> Vec<VolumeName> {
        for key in self.sessions() {
            let session = self.routing.sessions.get_mut(SessionKey(key));
            if session.is_some_and(|session| session.poll_timeout().is_some_and(|at| at <= now))
                && let Some(session) = self.routing.sessions.get_mut_ready(SessionKey(key))
            {
                session.handle_timeout(now);
            }
        }
        let is_awaited = self.routing.has_ready_logins();
        self.routing.units.tend(now, (idle_close, 0), is_awaited)
    }

    /// When [`RoutedWorker::handle_timeout`] has something to do.
    pub fn poll_timeout(&self, idle_close: Duration) -> Option<Instant> {
        let sessions = self.routing.sessions.iter().filter_map(Session::poll_timeout);
        sessions.chain(self.routing.units.deadline(idle_close, 0)).min()
    }

    /// A node's login asks for a session of a volume, which would be named `session`. `store`: the volume that has the store.
    pub fn admit(
        &mut self,
        (login, session): (u64, u64),
        (volume, store): (&VolumeName, &VolumeName),
        nexus: NexusId,
        node: PublicKey,
    ) -> Admission {
        let login = ConnectionKey(login);
        let is_served = self.routing.units.contains(volume);
        match self.routing.units.entry_mut(if is_served { volume } else { store }) {
            None => return Admission::NotOpen,
            Some(UnitEntry::Open(_)) if !is_served => return Admission::NotOpen,
            Some(UnitEntry::Opening { waiting } | UnitEntry::Closing { waiting }) => {
                if !waiting.contains(&login) {
                    waiting.push(login);
                }
                return Admission::Waits;
            }
            Some(UnitEntry::Open(_)) => {}
        }
        match self.routing.clear_nexus(volume, (&nexus, &Identity::Channel(node)), login) {
            NexusState::Free => {}
            NexusState::Ending => return Admission::Waits,
            NexusState::Foreign => panic!("each node of the simulation has a name of its own"),
        }
        let (session, worker) = (SessionKey(session), self.routing.worker_for_session(volume));
        let unit = self.routing.attach(volume, session, (nexus.clone(), origin(node), false), worker);
        let initiator_name = nexus.initiator_name.to_string();
        let login = LoginGrant { nexus, initiator_name, volume: Some(volume.clone()), unit, read_only: false };
        Admission::Granted(Grant { session, worker, login, node })
    }

    /// Whether it is to be driven again: logins that waited are to be tried again, or units got answers while another one was polled.
    pub fn has_work(&self) -> bool {
        self.routing.has_ready_logins() || self.routing.units.have_mail()
    }

    /// Logins that waited are tried again: the next one.
    pub fn pop_ready_login(&mut self) -> Option<u64> {
        self.routing.pop_ready_login().map(|login| login.0)
    }

    /// A session that was ended before its login was over: the login is to be rejected.
    pub fn pop_ended_login(&mut self) -> Option<u64> {
        self.routing.pop_ended_login().map(|session| session.0)
    }

    /// A login is over, and begins its session here.
    pub fn begin(&mut self, now: Instant, grant: Grant, login: Login, connection: u64) -> ConnectionId {
        let (machine, id) = iscsi::Session::new(now, login);
        self.begin_session(now, grant, machine, (id, ConnectionKey(connection)));
        id
    }

    /// A login of ECL is over, and begins its association here.
    pub fn begin_association(&mut self, now: Instant, grant: Grant, config: &AssociationConfig, connection: u64) {
        let names = (config.connection_id, config.quantum_bytes);
        // No socket, and no address: the simulation takes its packets.
        let carrier = PacketCarrier::Udp { socket: 0, local: None };
        let promise = self.budget.promise(config.window_bytes);
        let machine = EclSession::new(ecl::Session::new(now, config), names, carrier, promise);
        self.begin_session(now, grant, machine, (ConnectionId::ONLY, ConnectionKey(connection)));
    }

    fn begin_session(
        &mut self,
        now: Instant,
        grant: Grant,
        machine: impl Into<SessionMachine>,
        connection: (ConnectionId, ConnectionKey),
    ) {
        let Grant { session: key, login: granted, node, .. } = grant;
        let from = origin(node);
        let charge = |class, bytes| self.budget.charge(class, bytes);
        let memory = (charge(MemoryClass::Sessions, SESSION_BYTES), charge(MemoryClass::Commands, 0));
        let mut session = Session::new(key, machine, granted, (from.identity, from.from, from.scheme), now, memory);
        session.connections.push(connection);
        self.routing.sessions.mark_checked_out(&mut session);
        self.routing.sessions.insert(Box::new(session), false);
    }

    /// The login that was to begin a session is given up.
    pub fn abandon(&mut self, now: Instant, grant: &Grant) {
        if let Some(address) = &grant.login.unit {
            self.routing.logged_out(address, grant.session);
            self.routing.leave_unit(now, address, grant.session);
        }
    }

    /// The sessions of this worker.
    pub fn sessions(&self) -> Vec<u64> {
        let mut keys: Vec<u64> = self.routing.sessions.keys().map(|key| key.0).collect();
        keys.sort_unstable();
        keys
    }

    /// Whether this worker has a session that is not closed.
    pub fn has_open_session(&self, session: u64) -> bool {
        self.routing.sessions.get(SessionKey(session)).is_some_and(|session| !session.machine.is_closed())
    }

    /// A session of iSCSI, which will be driven.
    pub fn session(&mut self, session: u64) -> Option<&mut iscsi::Session> {
        self.routing.sessions.get_mut_ready(SessionKey(session))?.machine.iscsi_mut()
    }

    /// One of ECL, which will be driven.
    pub fn association(&mut self, session: u64) -> Option<&mut ecl::Session> {
        let session = self.routing.sessions.get_mut_ready(SessionKey(session))?;
        session.machine.ecl_mut().map(|association| &mut association.machine)
    }

    /// Ends a session of this worker in order.
    pub fn close_session(&mut self, session: u64, why: &str) {
        if let Some(session) = self.routing.sessions.get_mut_ready(SessionKey(session)) {
            session.machine.close(why);
        }
    }

    /// Drives the next session that has something to do. `transmit` sends what it has for the connection of its login.
    ///
    /// # Panics
    /// If an initiator broke the protocol: ours do not.
    pub fn drive_session(&mut self, now: Instant, mut transmit: impl FnMut(u64, Sending<'_>)) -> Option<DrivenSession> {
        let mut session = loop {
            let key = self.routing.sessions.pop_ready()?;
            if let Some(session) = self.routing.sessions.check_out(key) {
                break session;
            }
        };
        session.is_ready = false;
        let &(id, ConnectionKey(connection)) = session.connections.first().expect("it has one as long as it lives");
        let mut closed = None;
        while let Some(event) = self.routing.next_event(now, &mut session) {
            match event {
                SessionEvent::SendTargets(..) | SessionEvent::ConnectionClosed(..) | SessionEvent::PathReduced(_) => {}
                SessionEvent::Closed(reason) => {
                    closed = Some(reason);
                    break;
                }
            }
        }
        match &mut session.machine {
            SessionMachine::Iscsi(machine) => transmit(connection, Sending::Iscsi(machine, id)),
            SessionMachine::Ecl(association) => {
                while let Some(packet) = association.poll_transmit(now) {
                    transmit(connection, Sending::Ecl(packet));
                }
            }
        }
        let Some(reason) = closed else {
            self.routing.advance(now, &mut session);
            self.routing.sessions.check_in(session);
            return Some(DrivenSession { connection, is_over: false });
        };
        session.count(&self.counters);
        assert!(!matches!(reason, SessionEnd::Misbehaved(_)), "an initiator broke the rules: {reason}");
        let address = session.unit.as_ref().expect("none is for discovery");
        if matches!(reason, SessionEnd::LoggedOut) {
            self.routing.logged_out(address, session.key);
        }
        self.routing.leave_unit(now, address, session.key);
        Some(DrivenSession { connection, is_over: true })
    }

    /// Commands at all workers of this target, as far as their sessions have counted them.
    ///
    /// # Panics
    /// If an initiator broke the frame discipline of sealed units: ours do not.
    pub fn commands(&self) -> u64 {
        let misbehaved = self.counters.misbehaved.load(Ordering::Relaxed);
        assert_eq!(misbehaved, 0, "our initiator broke the frame discipline");
        self.counters.commands.load(Ordering::Relaxed)
    }

    /// Polls the units, and delivers what they bring to sessions and logins.
    pub fn poll_units(&mut self) -> Polled {
        let mut output = std::mem::take(&mut self.output);
        let is_whole = self.routing.units.poll(|| false, &mut output);
        assert!(output.requests.is_empty(), "sealed units request nothing of others");
        let mut polled = Polled::default();
        for one in output.finished.extract_if(.., |one| self.own_tasks.remove(&(one.connection, one.task))) {
            polled.own_tasks.push((one.task, one.response));
        }
        polled.has_progressed =
            !output.finished.is_empty() || !output.managements.is_empty() || !polled.own_tasks.is_empty();
        if self.exchanges_responses
            && let Some(at) = output.finished.windows(2).position(|pair| pair[0].connection != pair[1].connection)
        {
            let (first, second) = output.finished.split_at_mut(at + 1);
            std::mem::swap(&mut first[at].response, &mut second[0].response);
        }
        self.routing.deliver(&mut output);
        self.output = output;
        polled.has_progressed |= !is_whole || self.routing.units.have_mail();
        polled
    }

    /// The session that a nexus has with a unit here.
    pub fn session_of(&self, volume: &VolumeName, nexus: &NexusId) -> Option<u64> {
        self.routing.units.open(volume)?.unit.users().session_of(nexus).map(|(key, _)| key.0)
    }

    /// Gives a unit here a command of a session, as another application of its node does. The response, or `None` if
    /// [`RoutedWorker::poll_units`] will bring it.
    pub fn submit_for(
        &mut self,
        now: Instant,
        volume: &VolumeName,
        session: u64,
        command: Command,
    ) -> Option<Option<Response>> {
        let (key, task) = (SessionKey(session), command.task);
        let Some(open) = self.routing.units.with_session(volume, key) else { return Some(None) };
        open.activity(now);
        match open.unit.submit(key, command, 0) {
            Verdict::Answer(response) => Some(Some(response)),
            Verdict::Later => {
                self.own_tasks.insert((key, task));
                None
            }
            Verdict::Violation(what) => panic!("a command without blocks breaks the frame discipline: {what}"),
        }
    }

    /// Carries out a task management function at a unit here, for a node that has no other part in the simulation. `session`: names
    /// the session that it has meanwhile.
    pub fn manage(
        &mut self,
        now: Instant,
        volume: &VolumeName,
        (session, nexus, node): (u64, NexusId, PublicKey),
        function: ManagementFunction,
    ) {
        let key = SessionKey(session);
        let attached = self.routing.attach(volume, key, (nexus, origin(node), false), self.number);
        let Some(address) = attached else { return };
        let request = TaskManagement { id: ManagementId(session), function, tasks: Vec::new() };
        let _ = self.routing.manage(now, key, volume, request);
        self.routing.logged_out(&address, key);
        self.routing.leave_unit(now, &address, key);
    }

    /// Ends a session, wherever it is.
    pub fn end_session(&mut self, session: u64) {
        self.routing.end_session(SessionKey(session), "the simulation wants it");
    }

    /// What is to be sent to another worker.
    pub fn take_messages(&mut self, to: usize) -> Option<Messages> {
        self.routing.take_outgoing(to).map(Messages)
    }

    /// Messages of another worker have arrived.
    pub fn receive(&mut self, now: Instant, from: usize, messages: Messages) {
        self.routing.receive(now, from, messages.0);
    }
}
