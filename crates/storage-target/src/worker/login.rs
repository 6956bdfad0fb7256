//! Logins: who it is, what it may use, which worker owns that, and the sessions that it replaces.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::target::{LoginRequested, MayAdd, SessionKind};
use strongroom_scsi::NexusId;

use super::connection::{Connection, Moved, Stage};
use super::crossing::Place;
use super::session::{Admitted, Session};
use super::units::Slot;
use super::{Flow, Worker};
use crate::access::{Admission, ChapDemand, Identity, Refusal};
use crate::error::CatalogueError;
use crate::names::{self, VolumeName, for_log};
use crate::neighbours::Origin;
use crate::protection;
use crate::stats::Counters;
use crate::volume::Volume;

/// Why a login is refused that access rules would admit.
const NO_PLACE: &str = "there is no place for another one; raise limits.connections_max if it was welcome";

const NO_MEMORY: &str = "there is no memory for another session; raise limits.memory_bytes, or see `strongroom status`";

/// Why a login is not let in.
enum Denied {
    Refused(LoginStatus, String),
    /// The volume is being drained; inside, where its initiators go instead.
    Drained(Option<String>),
}

impl Worker {
    /// Somebody names itself. Ends in an answer, in waiting, or in a move to the worker that owns the volume.
    pub(super) fn login_requested(&mut self, connection: &mut Connection, request: LoginRequested) -> Flow {
        let peer = self.settings.rules.peer_name(&connection.identity).unwrap_or("plain").to_owned();
        tracing::debug!(address = %connection.peer, peer, initiator = %for_log(&request.initiator_name), "login");
        if self.stopping.is_some() {
            self.reject(connection, &request, LoginStatus::SERVICE_UNAVAILABLE, "the target stops; try again later");
            return Flow::Stay;
        }
        match self.chap_demand(connection, &request) {
            None => self.identified(connection, request),
            Some(demand) => {
                self.demand_chap(connection, request, &demand);
                Flow::Stay
            }
        }
    }

    /// What a login over plain iSCSI has to prove before anything else.
    fn chap_demand(&self, connection: &Connection, request: &LoginRequested) -> Option<ChapDemand> {
        if connection.identity != Identity::Plain {
            return None;
        }
        let SessionKind::Normal { target_name } = &request.kind else {
            return self.settings.rules.chap_for_discovery();
        };
        let name = names::volume_of(&self.settings.config.base_name, target_name)?;
        // A volume that cannot be read is refused where it is looked at again.
        let volume = self.shared.catalogue.load(&name).ok()?;
        self.settings.rules.chap_for(connection.peer.ip(), &request.initiator_name, &volume)
    }

    fn demand_chap(&self, connection: &mut Connection, request: LoginRequested, demand: &ChapDemand) {
        let mut random = [0; 33];
        if let Err(error) = getrandom::fill(&mut random) {
            return self.reject(connection, &request, LoginStatus::TARGET_ERROR, &format!("no randomness: {error}"));
        }
        connection.stage = Stage::Proving { request, asked_under: Arc::clone(&self.settings) };
        if let Some(login) = &mut connection.login {
            login.require_chap(self.settings.rules.chap_policy(demand, random));
        }
    }

    /// An initiator has proven who it is, or need not.
    pub(super) fn authenticated(&mut self, connection: &mut Connection, user: Option<String>) -> Flow {
        let Stage::Proving { request, asked_under } = std::mem::replace(&mut connection.stage, Stage::Before) else {
            return Flow::Stay;
        };
        if let Some(user) = user {
            // A reload came in between: whoever did that was told that the new secrets hold.
            if !self.settings.rules.proves_as(&asked_under.rules, &user) {
                let reason = "its secret was changed while it logged in; it may try again with the new one";
                self.reject(connection, &request, LoginStatus::AUTHENTICATION_FAILED, reason);
                return Flow::Stay;
            }
            connection.identity = Identity::Chap(user.into());
            if !self.settle_proven(connection) {
                self.reject(connection, &request, LoginStatus::SERVICE_UNAVAILABLE, NO_PLACE);
                return Flow::Stay;
            }
        }
        self.identified(connection, request)
    }

    /// It is known who logs in: as itself, or as whatever it calls itself.
    fn identified(&mut self, connection: &mut Connection, request: LoginRequested) -> Flow {
        let target_name = match &request.kind {
            SessionKind::Discovery => {
                self.accept_discovery(connection, &request);
                return Flow::Stay;
            }
            SessionKind::Normal { target_name } => target_name.clone(),
        };
        match self.admit(connection, &request, &target_name) {
            Ok((volume, _)) => {
                let store = volume.store_name();
                connection.stage = Stage::Waiting { request, target_name, store };
                self.route(connection)
            }
            Err(denied) => {
                self.deny(connection, &request, denied);
                Flow::Stay
            }
        }
    }

    /// A login that waits goes to the worker that owns its volume.
    fn route(&mut self, connection: &mut Connection) -> Flow {
        let Stage::Waiting { store, .. } = &connection.stage else { return Flow::Stay };
        let owner = self.shared.owner(store);
        if owner != self.index && !connection.is_directed {
            return Flow::Move(owner);
        }
        self.try_login(connection)
    }

    fn admit(
        &self,
        connection: &Connection,
        request: &LoginRequested,
        target_name: &str,
    ) -> Result<(Volume, Admission), Denied> {
        let refused = |refusal: Refusal| Denied::Refused(refusal.status(), refusal.to_string());
        let (rules, initiator) = (&self.settings.rules, request.initiator_name.as_str());
        rules.check_name(&connection.identity, initiator).map_err(refused)?;
        let missing = || {
            let reason = format!("there is no target '{}' here; see `strongroom volume list`", for_log(target_name));
            // Who has proven nothing does not learn which volumes there are: a forbidden one is refused in the same way.
            let status = match connection.identity {
                Identity::Plain | Identity::Chap(_) => LoginStatus::AUTHORIZATION_FAILED,
                Identity::Channel(_) => LoginStatus::NOT_FOUND,
            };
            Denied::Refused(status, reason)
        };
        let name = names::volume_of(&self.settings.config.base_name, target_name).ok_or_else(missing)?;
        let volume = self.shared.catalogue.load(&name).map_err(|error| match error {
            CatalogueError::Missing { .. } => missing(),
            other => Denied::Refused(LoginStatus::TARGET_ERROR, other.to_string()),
        })?;
        let admission = self.may_use(&connection.origin(), initiator, &volume).map_err(refused)?;
        match self.shared.drain().of(&name) {
            Some(to) => Err(Denied::Drained(to.map(str::to_owned))),
            None => Ok((volume, admission)),
        }
    }

    /// Whether the rules let somebody use a volume, and the protection on the way is what the volume asks for.
    pub(super) fn may_use(&self, origin: &Origin, initiator: &str, volume: &Volume) -> Result<Admission, Refusal> {
        let admission = self.settings.rules.admit(&origin.identity, origin.from, initiator, volume)?;
        protection::suffices(volume, origin.scheme)
            .map_err(|reason| Refusal::Unprotected { volume: volume.name.to_string(), reason })?;
        Ok(admission)
    }

    fn deny(&self, connection: &mut Connection, request: &LoginRequested, denied: Denied) {
        match denied {
            Denied::Refused(status, reason) => self.reject(connection, request, status, &reason),
            Denied::Drained(to) => self.send_away(connection, request, to.as_deref()),
        }
    }

    /// Lets the connection in if its volume is open and nothing of the session that it replaces is in flight; otherwise it
    /// waits, and this is called again. Its session may be another worker's.
    pub(super) fn try_login(&mut self, connection: &mut Connection) -> Flow {
        let Stage::Waiting { request, target_name, store } = &connection.stage else { return Flow::Stay };
        // Asked again: while it waited, or moved here, the rules may have changed or a drain begun, and whoever did that was told
        // that it holds.
        let (volume, read_only) = match self.admit(connection, request, target_name) {
            Ok((volume, admission)) if volume.store_name() == *store => (volume.name, admission.read_only),
            outcome => {
                let denied = outcome.err().unwrap_or_else(|| {
                    let reason = "the volume was made anew while the login waited; try again".to_owned();
                    Denied::Refused(LoginStatus::SERVICE_UNAVAILABLE, reason)
                });
                if let Stage::Waiting { request, .. } = std::mem::replace(&mut connection.stage, Stage::Before) {
                    self.deny(connection, &request, denied);
                }
                return Flow::Stay;
            }
        };
        let store = store.clone();
        let (nexus, initiator_name) = (nexus_of(request, connection.portal.group), request.initiator_name.clone());
        let (tsih, cid) = (request.tsih, request.cid);
        if tsih != 0 {
            if let Some(home) = self.home_of(&volume, &nexus).filter(|_| !connection.is_directed) {
                connection.is_directed = true;
                return Flow::Move(home);
            }
            let admitted = Admitted { nexus, initiator_name, volume: Some(volume), place: None, read_only };
            self.try_join(connection, tsih, cid, &admitted);
            return Flow::Stay;
        }
        if !self.units.contains_key(&volume)
            && let Err(error) = self.open_for(&volume, &store, connection.key)
        {
            self.reject_waiting(connection, &error);
            return Flow::Stay;
        }
        let unit = match self.units.get_mut(&volume) {
            Some(Slot::Open(open)) => open,
            Some(Slot::Opening { waiting } | Slot::Closing { waiting }) => {
                if !waiting.contains(&connection.key) {
                    waiting.push(connection.key);
                }
                return Flow::Stay;
            }
            // A clone or snapshot, whose store is on its way.
            None => return Flow::Stay,
        };
        // RFC 7143 §6.3.5: the same nexus again replaces the old session, and is let in when the old one's tasks have ended.
        // But names prove nothing: nobody's session is ended by another node, or by plain iSCSI if it has a channel.
        let old = unit.unit.users().session_of(&nexus);
        if old.as_ref().is_some_and(|(_, identity)| *identity != connection.identity) {
            let reason =
                "another node is logged in under the same initiator name and ISID; give each node its own name";
            self.refuse_waiting(connection, LoginStatus::AUTHORIZATION_FAILED, reason);
            return Flow::Stay;
        }
        if old.is_some() || unit.unit.users().is_leaving(&nexus) {
            unit.replacing.push(connection.key);
            if let Some((old, _)) = old {
                self.end_session(old, "replaced by a new login of the same initiator");
            }
            return Flow::Stay;
        }
        if !self.settle_login(connection) {
            self.refuse_waiting(connection, LoginStatus::SERVICE_UNAVAILABLE, NO_PLACE);
            return Flow::Stay;
        }
        if !self.reserve_session(connection) {
            self.refuse_waiting(connection, LoginStatus::OUT_OF_RESOURCES, NO_MEMORY);
            return Flow::Stay;
        }
        let home = self.home_for(&volume);
        let Some(Slot::Open(unit)) = self.units.get_mut(&volume) else { return Flow::Stay };
        let key = self.shared.session_key();
        unit.unit.attach(key, nexus.clone(), connection.origin(), read_only);
        unit.unit_in_use();
        let sealed = unit.unit.volume().sealed.as_ref().map(|sealed| {
            let block_bytes = unit.unit.volume().geometry.block_size.bytes();
            (block_bytes, 8 + sealed.custody.record_bytes_in_channel())
        });
        let holds_block_keys = unit.unit.volume().sealed.as_ref().is_some_and(|sealed| !sealed.custody.is_blind());
        let queue = unit.unit.store().queue();
        let place = Place { unit: self.index, home, volume: Arc::new(volume.clone()), sealed, holds_block_keys, queue };
        self.shared.placed[home].fetch_add(1, Ordering::Relaxed);
        self.admit_new(
            connection,
            key,
            Admitted { nexus, initiator_name, volume: Some(volume), place: Some(place), read_only },
        );
        if home == self.index {
            return Flow::Stay;
        }
        self.abroad.insert(key, home);
        Flow::Move(home)
    }

    /// The other worker that has the session of a nexus.
    fn home_of(&self, volume: &VolumeName, nexus: &NexusId) -> Option<usize> {
        let Some(Slot::Open(open)) = self.units.get(volume) else { return None };
        let (key, _) = open.unit.users().session_of(nexus)?;
        self.abroad.get(&key).copied()
    }

    /// A further connection of a session (RFC 7143 §4.2.1): of the same initiator, target and portal group, with the same proof and the
    /// same rights. Whoever else knows the session's names and handle is turned away, and the session does not notice.
    fn try_join(&mut self, connection: &mut Connection, tsih: u16, cid: u16, admitted: &Admitted) {
        let is_meant = |session: &&mut Box<Session>| {
            session.machine.tsih() == tsih && session.nexus == admitted.nexus && session.volume == admitted.volume
        };
        let Some(session) = self.sessions.values_mut().find(is_meant) else {
            let reason = "there is no such session to join; the initiator must log in anew";
            return self.refuse_waiting(connection, LoginStatus::SESSION_DOES_NOT_EXIST, reason);
        };
        let is_same = session.is_of(&connection.identity, connection.peer.ip(), connection.link.scheme());
        if !is_same || session.read_only != admitted.read_only {
            let reason = "it would join a session of somebody else: another identity, or (over plain iSCSI without CHAP) another \
                          address, or other rights; only who logged in first may add connections";
            return self.refuse_waiting(connection, LoginStatus::AUTHORIZATION_FAILED, reason);
        }
        let verdict = session.machine.may_add(self.now, cid);
        // A connection with this CID may have gone by that.
        session.touch(&mut self.touched_sessions);
        match verdict {
            MayAdd::Yes => {
                let key = session.key;
                if !self.settle_login(connection) {
                    return self.refuse_waiting(connection, LoginStatus::SERVICE_UNAVAILABLE, NO_PLACE);
                }
                if let (Some(login), Some(session)) = (&mut connection.login, self.sessions.get(&key)) {
                    login.accept_into(&session.machine);
                }
                connection.stage = Stage::Admitted { key, joins: true, admitted: admitted.clone() };
            }
            MayAdd::Later => session.joining.push(connection.key),
            MayAdd::TooMany => {
                let reason = "its session has as many connections as were agreed on";
                self.refuse_waiting(connection, LoginStatus::TOO_MANY_CONNECTIONS, reason);
            }
            MayAdd::Over => {
                let reason = "the session that it would join is over; the initiator must log in anew";
                self.refuse_waiting(connection, LoginStatus::SESSION_DOES_NOT_EXIST, reason);
            }
        }
    }

    fn refuse_waiting(&self, connection: &mut Connection, status: LoginStatus, reason: &str) {
        if let Stage::Waiting { request, .. } = std::mem::replace(&mut connection.stage, Stage::Before) {
            self.reject(connection, &request, status, reason);
        }
    }

    fn accept_discovery(&mut self, connection: &mut Connection, request: &LoginRequested) {
        if let Err(refusal) = self.settings.rules.check_name(&connection.identity, &request.initiator_name) {
            self.reject(connection, request, refusal.status(), &refusal.to_string());
            return;
        }
        if request.tsih != 0 {
            let reason = "a discovery session has one connection";
            return self.reject(connection, request, LoginStatus::SESSION_DOES_NOT_EXIST, reason);
        }
        if !self.reserve_session(connection) {
            return self.reject(connection, request, LoginStatus::OUT_OF_RESOURCES, NO_MEMORY);
        }
        let (nexus, initiator_name) = (nexus_of(request, connection.portal.group), request.initiator_name.clone());
        let key = self.shared.session_key();
        self.admit_new(connection, key, Admitted { nexus, initiator_name, volume: None, place: None, read_only: true });
    }

    /// Refuses a login to a volume that is being drained: it is elsewhere now, or will be back.
    fn send_away(&self, connection: &mut Connection, request: &LoginRequested, to: Option<&str>) {
        let Some(to) = to else {
            let reason = "the volume is being drained; `strongroom drain --end` takes initiators in again";
            return self.reject(connection, request, LoginStatus::SERVICE_UNAVAILABLE, reason);
        };
        tracing::info!(address = %connection.peer, initiator = %for_log(&request.initiator_name), to, "redirected a login");
        if let Some(login) = &mut connection.login {
            login.redirect(to, false);
        }
    }

    /// Refuses a login, and says why where the keeper of the target reads it.
    fn reject(&self, connection: &mut Connection, request: &LoginRequested, status: LoginStatus, reason: &str) {
        Counters::count(&self.shared.counters.logins_refused);
        tracing::warn!(
            address = %connection.peer,
            peer = self.settings.rules.peer_name(&connection.identity).unwrap_or("plain"),
            initiator = %for_log(&request.initiator_name),
            ?status,
            reason,
            "refused a login"
        );
        // Strangers learn nothing, and nobody learns what is wrong inside, paths among it.
        let may_know = matches!(connection.identity, Identity::Channel(_)) && status != LoginStatus::TARGET_ERROR;
        if let Some(login) = &mut connection.login {
            match may_know {
                true => login.reject_because(status, reason),
                false => login.reject(status),
            }
        }
    }

    /// Refuses a login that waited for a volume which could not be opened.
    pub(super) fn reject_waiting(&self, connection: &mut Connection, error: &CatalogueError) {
        let Stage::Waiting { request, .. } = std::mem::replace(&mut connection.stage, Stage::Before) else { return };
        let status = match error {
            CatalogueError::Missing { .. } => LoginStatus::NOT_FOUND,
            CatalogueError::InUse { .. } => LoginStatus::SERVICE_UNAVAILABLE,
            _ => LoginStatus::TARGET_ERROR,
        };
        self.reject(connection, &request, status, &error.to_string());
    }

    /// Gives a connection to the worker that owns its volume. Nothing is lost: what is queued and received goes along.
    pub(super) fn hand_over(&mut self, mut connection: Box<Connection>, worker: usize) {
        connection.transmit(&mut self.runtime, None);
        self.by_stream.remove(&connection.stream);
        self.forget_arrival(connection.key);
        self.disarm(&mut connection);
        match self.runtime.detach(connection.stream) {
            Ok(stream) => {
                if let Err(moved) = self.roads[worker].give(Moved { stream, connection }) {
                    let Moved { stream, mut connection } = *moved;
                    drop(stream);
                    connection.lost("the worker that it belongs to has ended".to_owned());
                    tracing::warn!(peer = %connection.peer, "the worker of a connection has ended; it may log in again");
                    self.finish(connection, None);
                }
            }
            Err(error) => {
                connection.lost(error.to_string());
                self.finish(connection, None);
            }
        }
    }

    /// Takes a connection from another worker.
    pub(super) fn adopt(&mut self, moved: Moved) {
        let Moved { stream, mut connection } = moved;
        match self.runtime.attach(stream) {
            Ok(stream) => connection.stream = stream,
            Err(error) => {
                tracing::warn!(peer = %connection.peer, %error, "a connection could not be moved between workers");
                connection.lost(error.to_string());
            }
        }
        (connection.send_full, connection.touched) = (false, false);
        // A drain that began while it was on its way did not see it.
        let is_drained = |volume: &VolumeName| self.shared.drain().of(volume).is_some();
        let is_late = match &connection.stage {
            Stage::Admitted { admitted, .. } => admitted.volume.as_ref().is_some_and(is_drained),
            _ => false,
        };
        if self.stopping.is_some() || is_late {
            connection.refuse();
            return self.insert(connection);
        }
        // Ownership may have changed while it was on its way: its volume was closed, and opened elsewhere.
        match self.route(&mut connection) {
            Flow::Move(worker) => {
                self.by_stream.insert(connection.stream, connection.key);
                self.hand_over(connection, worker);
            }
            _ => self.insert(connection),
        }
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
