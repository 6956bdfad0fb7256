//! A login's way to a session: what it may use ([`super::login_policy`]), which worker owns that, whether the unit is open, and the session
//! that it replaces or joins.

use std::sync::Arc;
use std::time::Instant;

use strongroom_handshake::PublicKey;
use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::target::{Login, LoginRequested, MayAdd, SessionKind};
use strongroom_net::LinkPurpose;
use strongroom_scsi::NexusId;

use super::connection::{Connection, Disposition, LoginStage};
use super::grant::LoginGrant;
use super::login_machine::{EclLogin, LoginMachine};
use super::login_policy::{Denied, LoginPolicy};
use super::routing::{NexusState, Routing};
use super::slot_allocator::SlotAllocator;
use super::unit_lifecycle::UnitLifecycle;
use super::units::UnitEntry;
use crate::access::Identity;
use crate::budget::{MemoryClass, SESSION_BYTES};
use crate::names::{VolumeName, for_log};
use crate::services::TargetServices;
use crate::unit::SessionKey;

/// Why a login is refused that access rules would admit.
const NO_SLOT: &str = "there is no place for another one; raise limits.connections_max if it was welcome";
const NO_MEMORY: &str = "there is no memory for another session; raise limits.memory_bytes, or see `strongroom status`";

/// A login that was admitted and has not yet got its session.
struct Applicant {
    volume: VolumeName,
    /// The volume that has the store.
    store: VolumeName,
    nexus: NexusId,
    initiator_name: String,
    tsih: u16,
    cid: u16,
    read_only: bool,
}

/// What decides about logins at a worker.
pub(super) struct Logins {
    worker: usize,
    services: Arc<TargetServices>,
    pub(super) policy: LoginPolicy,
    pub(super) slots: SlotAllocator,
    /// The target stops: no login is admitted any more.
    is_stopping: bool,
}

/// What a login acts on: the sessions and units of its worker, and what opens units.
pub(super) struct LoginContext<'a> {
    pub(super) routing: &'a mut Routing,
    pub(super) lifecycle: &'a mut UnitLifecycle,
    pub(super) now: Instant,
}

impl Logins {
    pub(super) fn new(worker: usize, services: Arc<TargetServices>) -> Logins {
        let policy = LoginPolicy::new(Arc::clone(&services), services.settings());
        let slots = SlotAllocator::new(worker, Arc::clone(&services));
        Logins { worker, services, policy, slots, is_stopping: false }
    }

    /// The handshake of a connection is over, or there is none: what it is for is known.
    pub(super) fn established(
        &mut self,
        connection: &mut Connection,
        peer: Option<PublicKey>,
        now: Instant,
    ) -> Disposition {
        let purpose = connection.link.purpose();
        if purpose == LinkPurpose::Pairing {
            // Anyone's key is proven there: it stays a connection that has proven nothing.
            return Disposition::HandToHandler;
        }
        connection.identity = peer.map_or(Identity::Plain, Identity::Channel);
        if peer.is_some() && !self.slots.settle_proven(connection, self.policy.limits()) {
            connection.link.close();
            return Disposition::End;
        }
        connection.login = Some(match purpose {
            LinkPurpose::Transfer | LinkPurpose::Pairing | LinkPurpose::Operator => return Disposition::HandToHandler,
            LinkPurpose::Ecl => LoginMachine::Ecl(EclLogin::default()),
            LinkPurpose::Blocks => {
                let config = self.policy.session_config(peer.is_some(), connection.portal.group);
                LoginMachine::Iscsi(Box::new(Login::new(now, config)))
            }
        });
        Disposition::Keep
    }

    /// The target stops.
    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// An initiator names itself. Ends in an answer, in waiting, or in a move to the worker that owns the volume.
    pub(super) fn requested(
        &mut self,
        context: &mut LoginContext<'_>,
        connection: &mut Connection,
        request: LoginRequested,
    ) -> Disposition {
        let peer = self.policy.peer_name(&connection.identity).unwrap_or("plain").to_owned();
        tracing::debug!(address = %connection.peer, peer, initiator = %for_log(&request.initiator_name), "login");
        if self.is_stopping {
            let reason = "the target stops; try again later";
            self.policy.reject(connection, &request, LoginStatus::SERVICE_UNAVAILABLE, reason);
            return Disposition::Keep;
        }
        match self.policy.chap_demand(connection, &request) {
            None => self.identified(context, connection, request),
            Some(demand) => {
                self.policy.demand_chap(connection, request, &demand);
                Disposition::Keep
            }
        }
    }

    /// An initiator has proven its identity, or need not.
    pub(super) fn authenticated(
        &mut self,
        context: &mut LoginContext<'_>,
        connection: &mut Connection,
        user: Option<String>,
    ) -> Disposition {
        let LoginStage::Proving { request, asked_under } =
            std::mem::replace(&mut connection.stage, LoginStage::Unnamed)
        else {
            return Disposition::Keep;
        };
        if let Some(user) = user {
            // A reload came in between, and its administrator was told that the new secrets hold.
            if !self.policy.still_proves(&asked_under, &user) {
                let reason = "its secret was changed while it logged in; it may try again with the new one";
                self.policy.reject(connection, &request, LoginStatus::AUTHENTICATION_FAILED, reason);
                return Disposition::Keep;
            }
            connection.identity = Identity::Chap(user.into());
            if !self.slots.settle_proven(connection, self.policy.limits()) {
                self.policy.reject(connection, &request, LoginStatus::SERVICE_UNAVAILABLE, NO_SLOT);
                return Disposition::Keep;
            }
        }
        self.identified(context, connection, request)
    }

    /// The identity is known: proven, or as the initiator claims.
    fn identified(
        &mut self,
        context: &mut LoginContext<'_>,
        connection: &mut Connection,
        request: LoginRequested,
    ) -> Disposition {
        let target_name = match &request.kind {
            SessionKind::Discovery => {
                self.accept_discovery(connection, &request);
                return Disposition::Keep;
            }
            SessionKind::Normal { target_name } => target_name.clone(),
        };
        match self.policy.admit(connection, &request, &target_name) {
            Ok((volume, _)) => {
                let store = volume.store_name();
                connection.stage = LoginStage::Waiting { request, target_name, store };
                self.route(context, connection)
            }
            Err(denied) => {
                self.policy.deny(connection, &request, denied);
                Disposition::Keep
            }
        }
    }

    /// A login that waits goes to the worker that owns its volume.
    pub(super) fn route(&mut self, context: &mut LoginContext<'_>, connection: &mut Connection) -> Disposition {
        let LoginStage::Waiting { store, .. } = &connection.stage else { return Disposition::Keep };
        let owner = self.services.owner(store);
        if owner != self.worker && !connection.is_directed {
            return Disposition::HandOver(owner);
        }
        self.try_login(context, connection)
    }

    /// Admits the connection if its volume is open and nothing of the session that it replaces is in flight; otherwise it waits, and this is
    /// called again. Its session may be another worker's.
    pub(super) fn try_login(&mut self, context: &mut LoginContext<'_>, connection: &mut Connection) -> Disposition {
        let Some(applicant) = self.admit_again(connection) else { return Disposition::Keep };
        if applicant.tsih != 0 {
            return self.direct_join(context, connection, applicant);
        }
        if !self.unit_is_ready(context, connection, &applicant) {
            return Disposition::Keep;
        }
        if !self.slots.settle_login(connection, self.policy.limits()) {
            self.policy.reject_waiting(connection, LoginStatus::SERVICE_UNAVAILABLE, NO_SLOT);
            return Disposition::Keep;
        }
        if !self.reserve_session(connection) {
            self.policy.reject_waiting(connection, LoginStatus::OUT_OF_RESOURCES, NO_MEMORY);
            return Disposition::Keep;
        }
        self.begin_session(context, connection, applicant)
    }

    /// The rules are asked again: while the login waited, or moved here, they may have changed or a drain begun, and the administrator was
    /// told that it holds.
    fn admit_again(&self, connection: &mut Connection) -> Option<Applicant> {
        let LoginStage::Waiting { request, target_name, store } = &connection.stage else { return None };
        let denied = match self.policy.admit(connection, request, target_name) {
            Ok((volume, admission)) if volume.store_name() == *store => {
                return Some(Applicant {
                    volume: volume.name,
                    store: store.clone(),
                    nexus: nexus_of(request, connection.portal.group),
                    initiator_name: request.initiator_name.clone(),
                    tsih: request.tsih,
                    cid: request.cid,
                    read_only: admission.read_only,
                });
            }
            Ok(_) => {
                let reason = "the volume was created again while the login waited; try again".to_owned();
                Denied::Refused(LoginStatus::SERVICE_UNAVAILABLE, reason)
            }
            Err(denied) => denied,
        };
        if let Some(request) = connection.stage.take_waiting() {
            self.policy.deny(connection, &request, denied);
        }
        None
    }

    /// A further connection goes to the worker that has its session.
    fn direct_join(
        &mut self,
        context: &mut LoginContext<'_>,
        connection: &mut Connection,
        applicant: Applicant,
    ) -> Disposition {
        let Applicant { volume, nexus, initiator_name, tsih, cid, read_only, .. } = applicant;
        let worker = context.routing.remote_session_of(&volume, &nexus);
        if let Some(worker) = worker.filter(|_| !connection.is_directed) {
            connection.is_directed = true;
            return Disposition::HandOver(worker);
        }
        let grant = LoginGrant { nexus, initiator_name, volume: Some(volume), unit: None, read_only };
        self.join_session(context, connection, (tsih, cid), grant);
        Disposition::Keep
    }

    /// A further connection of a session (RFC 7143 §4.2.1): of the same initiator, target and portal group, with the same proof and the
    /// same rights. Any other peer that knows the session's names and handle is turned away, and the session does not notice.
    fn join_session(
        &mut self,
        context: &mut LoginContext<'_>,
        connection: &mut Connection,
        (tsih, cid): (u16, u16),
        grant: LoginGrant,
    ) {
        let found = context.routing.sessions.find_mut(|session| {
            let names = (&session.peer.nexus, session.volume());
            session.machine.iscsi().is_some_and(|machine| machine.tsih() == tsih)
                && names == (&grant.nexus, grant.volume.as_ref())
        });
        let Some(session) = found else {
            let reason = "there is no such session to join; the initiator must log in again";
            return self.policy.reject_waiting(connection, LoginStatus::SESSION_DOES_NOT_EXIST, reason);
        };
        let is_same = session.peer.is_same(&connection.identity, connection.peer.ip(), connection.link.scheme());
        if !is_same || session.read_only != grant.read_only {
            let reason = "it would join a session of somebody else: another identity, or (over plain iSCSI without CHAP) another \
                          address, or other rights; only who logged in first may add connections";
            return self.policy.reject_waiting(connection, LoginStatus::AUTHORIZATION_FAILED, reason);
        }
        let (key, machine) = (session.key, session.machine.iscsi_mut());
        let verdict = machine.map_or(MayAdd::Over, |machine| machine.may_add(context.now, cid));
        // A connection with this CID may have been closed by that.
        let Some(session) = context.routing.sessions.get_mut_ready(key) else { return };
        match verdict {
            MayAdd::Yes => {
                if !self.slots.settle_login(connection, self.policy.limits()) {
                    return self.policy.reject_waiting(connection, LoginStatus::SERVICE_UNAVAILABLE, NO_SLOT);
                }
                let session = context.routing.sessions.get(key).and_then(|session| session.machine.iscsi());
                if let (Some(login), Some(session)) = (&mut connection.login, session) {
                    login.accept_into(session);
                }
                connection.stage = LoginStage::Admitted { key, joins: true, grant };
            }
            MayAdd::Later => session.joining.push(connection.key),
            MayAdd::TooMany => {
                let reason = "its session has as many connections as were agreed on";
                self.policy.reject_waiting(connection, LoginStatus::TOO_MANY_CONNECTIONS, reason);
            }
            MayAdd::Over => {
                let reason = "the session that it would join is over; the initiator must log in again";
                self.policy.reject_waiting(connection, LoginStatus::SESSION_DOES_NOT_EXIST, reason);
            }
        }
    }

    /// Whether the unit is open and no earlier session of the nexus is in the way; otherwise the login waits or is refused.
    fn unit_is_ready(
        &mut self,
        context: &mut LoginContext<'_>,
        connection: &mut Connection,
        applicant: &Applicant,
    ) -> bool {
        let Applicant { volume, store, nexus, .. } = applicant;
        if !context.routing.units.contains(volume) {
            let (units, settings) = (&mut context.routing.units, self.policy.settings());
            let opened = context.lifecycle.open_for(units, (volume, store), connection.key, settings, context.now);
            if let Err(error) = opened {
                self.policy.reject_unopened(connection, &error);
                return false;
            }
        }
        match context.routing.units.entry_mut(volume) {
            Some(UnitEntry::Open(_)) => {}
            Some(UnitEntry::Opening { waiting } | UnitEntry::Closing { waiting }) => {
                if !waiting.contains(&connection.key) {
                    waiting.push(connection.key);
                }
                return false;
            }
            // A clone or snapshot, whose store is being opened.
            None => return false,
        }
        match context.routing.clear_nexus(volume, (nexus, &connection.identity), connection.key) {
            NexusState::Free => true,
            NexusState::Ending => false,
            NexusState::Foreign => {
                let reason =
                    "another node is logged in under the same initiator name and ISID; give each node its own name";
                self.policy.reject_waiting(connection, LoginStatus::AUTHORIZATION_FAILED, reason);
                false
            }
        }
    }

    /// Begins the session of an admitted login, here or at another worker.
    fn begin_session(
        &mut self,
        context: &mut LoginContext<'_>,
        connection: &mut Connection,
        applicant: Applicant,
    ) -> Disposition {
        let Applicant { volume, nexus, initiator_name, read_only, .. } = applicant;
        let worker = if self.is_stopping { self.worker } else { context.routing.worker_for_session(&volume) };
        let key = self.services.workers.session_key();
        let rights = (nexus.clone(), connection.origin(), read_only);
        let Some(unit) = context.routing.attach(&volume, key, rights, worker) else { return Disposition::Keep };
        let grant = LoginGrant { nexus, initiator_name, volume: Some(volume), unit: Some(unit), read_only };
        self.accept_login(connection, key, grant);
        if worker == self.worker { Disposition::Keep } else { Disposition::HandOver(worker) }
    }

    fn accept_discovery(&mut self, connection: &mut Connection, request: &LoginRequested) {
        if let Err(denied) = self.policy.admit_discovery(connection, request) {
            return self.policy.deny(connection, request, denied);
        }
        if !self.reserve_session(connection) {
            return self.policy.reject(connection, request, LoginStatus::OUT_OF_RESOURCES, NO_MEMORY);
        }
        let (nexus, initiator_name) = (nexus_of(request, connection.portal.group), request.initiator_name.clone());
        let key = self.services.workers.session_key();
        let grant = LoginGrant { nexus, initiator_name, volume: None, unit: None, read_only: true };
        self.accept_login(connection, key, grant);
    }

    /// Answers a login that begins a session.
    fn accept_login(&self, connection: &mut Connection, key: SessionKey, grant: LoginGrant) {
        let tsih = self.services.workers.tsih();
        if let Some(login) = &mut connection.login {
            login.accept(tsih);
        }
        connection.stage = LoginStage::Admitted { key, joins: false, grant };
    }

    /// Takes memory for the session that a login begins; whether there is enough.
    fn reserve_session(&self, connection: &mut Connection) -> bool {
        connection.session_memory = self.services.budget.try_charge(MemoryClass::Sessions, SESSION_BYTES);
        connection.session_memory.is_some()
    }
}

/// The nexus that a login is for.
fn nexus_of(request: &LoginRequested, portal_group: u16) -> NexusId {
    NexusId {
        initiator_name: request.initiator_name.to_ascii_lowercase().into(),
        isid: request.isid,
        target_portal_group: portal_group,
    }
}
