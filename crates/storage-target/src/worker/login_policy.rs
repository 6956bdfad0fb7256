//! Who may log in to what: the decisions about logins and sessions that the settings in force, the catalogue and drains determine, and how a
//! login is refused. Absent: whether the unit is open, which sessions there are, and where a session is placed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use strongroom_iscsi::target::{self as iscsi, LoginRequested, SessionKind};
use strongroom_iscsi::{CloseReason, LoginStatus, Offer};
use strongroom_net::LinkPurpose;

use super::connection::{Connection, LoginStage};
use super::connections::Connections;
use super::routing::Routing;
use super::session::Session;
use crate::access::{Admission, ChapDemand, Identity, Refusal};
use crate::config::Limits;
use crate::error::CatalogueError;
use crate::names::{self, VolumeName, for_log};
use crate::open_units::{CrossUnitRequest, Origin};
use crate::protection;
use crate::services::TargetServices;
use crate::settings::Settings;
use crate::stats::Counters;
use crate::unit::SessionKey;
use crate::volume::Volume;

pub(super) struct LoginPolicy {
    services: Arc<TargetServices>,
    /// The settings in force; replaced by a reload.
    settings: Arc<Settings>,
}

/// Why a login is not admitted.
pub(super) enum Denied {
    Refused(LoginStatus, String),
    /// The volume is being drained. `to`: where its initiators go instead.
    Drained {
        to: Option<String>,
    },
}

/// What the rules now say of a session.
pub(super) enum Standing {
    Unchanged,
    ReadOnly(bool),
    Ended(String),
}

/// Descriptions of volumes that were read for a check of many sessions; `None`: it cannot be read.
pub(super) type DescribedVolumes = HashMap<VolumeName, Option<Volume>>;

impl LoginPolicy {
    pub(super) fn new(services: Arc<TargetServices>, settings: Arc<Settings>) -> LoginPolicy {
        LoginPolicy { services, settings }
    }

    pub(super) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.settings.config.limits
    }

    /// Takes over the settings in force.
    pub(super) fn refresh(&mut self) {
        self.settings = self.services.settings();
    }

    /// What the session machine of a login offers.
    pub(super) fn session_config(&self, in_channel: bool, portal_group_tag: u16) -> iscsi::Config {
        let limits = &self.settings.config.limits;
        let ping = Duration::from_secs(limits.ping_after_s);
        let digests = self.settings.config.digests.offer();
        iscsi::Config {
            in_channel,
            portal_group_tag,
            queue_depth: limits.queue_depth,
            login_timeout: limits.login_timeout(),
            ping_after: ping,
            ping_timeout: ping,
            transfer_bytes_max: crate::TRANSFER_BYTES_MAX,
            write_memory_bytes_max: limits.write_memory_bytes,
            send_targets_all_in_normal_session: self.settings.config.send_targets_all,
            offer: Offer {
                header_digest: digests,
                data_digest: digests,
                error_recovery_level: 2,
                connections_max: limits.session_connections_max,
                time2wait_s: 0,
                time2retain_s: limits.time2retain_s,
                ..Offer::default()
            },
        }
    }

    /// What a login over plain iSCSI has to prove before anything else.
    pub(super) fn chap_demand(&self, connection: &Connection, request: &LoginRequested) -> Option<ChapDemand> {
        if connection.identity != Identity::Plain {
            return None;
        }
        let SessionKind::Normal { target_name } = &request.kind else {
            return self.settings.rules.chap_for_discovery();
        };
        let name = names::volume_of(&self.settings.config.base_name, target_name)?;
        // A volume that cannot be read is refused where it is read again.
        let volume = self.services.catalogue.load(&name).ok()?;
        self.settings.rules.chap_for(connection.peer.ip(), &request.initiator_name, &volume)
    }

    pub(super) fn demand_chap(&self, connection: &mut Connection, request: LoginRequested, demand: &ChapDemand) {
        let mut random = [0; 33];
        if let Err(error) = getrandom::fill(&mut random) {
            return self.reject(connection, &request, LoginStatus::TARGET_ERROR, &format!("no randomness: {error}"));
        }
        connection.stage = LoginStage::Proving { request, asked_under: Arc::clone(&self.settings) };
        if let Some(login) = &mut connection.login {
            login.require_chap(self.settings.rules.chap_policy(demand, random));
        }
    }

    /// Whether a user whose secret was proven under earlier settings counts as the same under these.
    pub(super) fn still_proves(&self, asked_under: &Settings, user: &str) -> bool {
        self.settings.rules.proves_as(&asked_under.rules, user)
    }

    /// Whether a login may use the target that it names.
    pub(super) fn admit(
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
            // A peer without a channel does not learn which volumes exist: a forbidden one is refused in the same way.
            let status = match connection.identity {
                Identity::Plain | Identity::Chap(_) => LoginStatus::AUTHORIZATION_FAILED,
                Identity::Channel(_) => LoginStatus::NOT_FOUND,
            };
            Denied::Refused(status, reason)
        };
        let name = names::volume_of(&self.settings.config.base_name, target_name).ok_or_else(missing)?;
        let volume = self.services.catalogue.load(&name).map_err(|error| match error {
            CatalogueError::Missing { .. } => missing(),
            other => Denied::Refused(LoginStatus::TARGET_ERROR, other.to_string()),
        })?;
        let admission = self.may_use(&connection.origin(), initiator, &volume).map_err(refused)?;
        if connection.link.purpose() == LinkPurpose::Ecl {
            let custody = volume.sealed.as_ref().map(|sealed| sealed.custody);
            strongroom_ecl::check_volume(volume.geometry.block_size.bytes(), custody)
                .map_err(|error| Denied::Refused(LoginStatus::UNSUPPORTED_VERSION, error.to_string()))?;
        }
        match self.services.drain().of(&name) {
            Some(to) => Err(Denied::Drained { to: to.map(str::to_owned) }),
            None => Ok((volume, admission)),
        }
    }

    /// Whether a discovery session may begin.
    pub(super) fn admit_discovery(&self, connection: &Connection, request: &LoginRequested) -> Result<(), Denied> {
        let checked = self.settings.rules.check_name(&connection.identity, &request.initiator_name);
        checked.map_err(|refusal| Denied::Refused(refusal.status(), refusal.to_string()))?;
        if request.tsih != 0 {
            let reason = "a discovery session has one connection".to_owned();
            return Err(Denied::Refused(LoginStatus::SESSION_DOES_NOT_EXIST, reason));
        }
        Ok(())
    }

    /// Whether the rules let an initiator use a volume, and the protection in transit is what the volume asks for.
    pub(super) fn may_use(&self, origin: &Origin, initiator: &str, volume: &Volume) -> Result<Admission, Refusal> {
        let admission = self.settings.rules.admit(&origin.identity, origin.from, initiator, volume)?;
        let mode = volume.sealed.as_ref().map(|sealed| sealed.mode);
        protection::suffices(&volume.access.protection, mode, origin.scheme)
            .map_err(|reason| Refusal::Unprotected { volume: volume.name.to_string(), reason })?;
        Ok(admission)
    }

    /// Whether the requester of a cross-unit operation could log in to the unit. `Some`: whether it could write.
    pub(super) fn cross_unit_may_write(&self, request: &CrossUnitRequest) -> Option<bool> {
        let (volume, requester) = (self.services.catalogue.load(&request.volume).ok()?, &request.requester);
        self.settings.rules.check_name(&requester.origin.identity, &requester.initiator_name).ok()?;
        // With less protection than the volume asks for, others could see what is read from it, or change what is written to it.
        let admission = self.may_use(&requester.origin, &requester.initiator_name, &volume).ok()?;
        let is_drained = self.services.drain().of(&request.volume).is_some();
        (!is_drained).then_some(!admission.read_only)
    }

    /// What the rules say of a session now. `described`: descriptions that have been read.
    fn standing(&self, session: &Session, connections: &Connections, described: &mut DescribedVolumes) -> Standing {
        let (rules, peer) = (&self.settings.rules, &session.peer);
        let Some(name) = session.volume() else {
            return match rules.check_name(&peer.identity, &peer.initiator_name) {
                Ok(()) => Standing::Unchanged,
                Err(refusal) => Standing::Ended(refusal.to_string()),
            };
        };
        let load = || self.services.catalogue.load(name).ok();
        // A description that cannot be read does not say who may use the volume: the session goes on, a new login would not.
        let Some(volume) = described.entry(name.clone()).or_insert_with(load) else { return Standing::Unchanged };
        // Every connection must be admitted, wherever it comes from; the strictest rule holds.
        let connections = session.connections.iter().filter_map(|(_, key)| connections.get(*key));
        let admissions = connections.map(|connection| self.may_use(&connection.origin(), &peer.initiator_name, volume));
        let leading = rules.admit(&peer.identity, peer.address, &peer.initiator_name, volume);
        let mut read_only = false;
        for admission in admissions.chain([leading]) {
            match admission {
                Ok(admission) => read_only |= admission.read_only,
                Err(refusal) => return Standing::Ended(refusal.to_string()),
            }
        }
        match read_only == session.read_only {
            true => Standing::Unchanged,
            false => Standing::ReadOnly(read_only),
        }
    }

    /// Applies what the rules now say of a session. `described`: descriptions that have been read.
    pub(super) fn recheck(
        &self,
        key: SessionKey,
        routing: &mut Routing,
        connections: &Connections,
        described: &mut DescribedVolumes,
    ) -> Standing {
        let Some(session) = routing.sessions.get(key) else { return Standing::Unchanged };
        let standing = self.standing(session, connections, described);
        match &standing {
            Standing::Unchanged => {}
            Standing::ReadOnly(read_only) => routing.set_read_only(key, *read_only),
            Standing::Ended(reason) => {
                tracing::warn!(address = %session.peer.address, initiator = %for_log(&session.peer.initiator_name), reason,
                    "the rules do not admit a session any more");
                routing.end_session(key, "the rules do not admit it any more");
            }
        }
        standing
    }

    /// The name that the configuration gives to a node.
    pub(super) fn peer_name<'a>(&'a self, identity: &'a Identity) -> Option<&'a str> {
        self.settings.rules.peer_name(identity)
    }

    pub(super) fn deny(&self, connection: &mut Connection, request: &LoginRequested, denied: Denied) {
        match denied {
            Denied::Refused(status, reason) => self.reject(connection, request, status, &reason),
            Denied::Drained { to } => self.redirect(connection, request, to.as_deref()),
        }
    }

    /// Refuses a login to a volume that is being drained: it is elsewhere now, or will be back.
    fn redirect(&self, connection: &mut Connection, request: &LoginRequested, to: Option<&str>) {
        let Some(to) = to else {
            let reason = "the volume is being drained; `strongroom drain --end` takes initiators in again";
            return self.reject(connection, request, LoginStatus::SERVICE_UNAVAILABLE, reason);
        };
        tracing::info!(address = %connection.peer, initiator = %for_log(&request.initiator_name), to, "redirected a login");
        if let Some(login) = &mut connection.login {
            login.redirect(to, false);
        }
    }

    /// Refuses a login, with the reason in the target's log.
    pub(super) fn reject(
        &self,
        connection: &mut Connection,
        request: &LoginRequested,
        status: LoginStatus,
        reason: &str,
    ) {
        Counters::count(&self.services.metrics.counters.logins_refused);
        tracing::warn!(
            address = %connection.peer,
            peer = self.peer_name(&connection.identity).unwrap_or("plain"),
            initiator = %for_log(&request.initiator_name),
            ?status,
            reason,
            "refused a login"
        );
        // Unauthenticated peers learn nothing, and no peer learns what is wrong inside the target, such as paths.
        let may_know = matches!(connection.identity, Identity::Channel(_)) && status != LoginStatus::TARGET_ERROR;
        if let Some(login) = &mut connection.login {
            match may_know {
                true => login.reject_because(status, reason),
                false => login.reject(status),
            }
        }
    }

    /// The same for a login that waits.
    pub(super) fn reject_waiting(&self, connection: &mut Connection, status: LoginStatus, reason: &str) {
        if let Some(request) = connection.stage.take_waiting() {
            self.reject(connection, &request, status, reason);
        }
    }

    /// The same for one that waited for a volume which could not be opened.
    pub(super) fn reject_unopened(&self, connection: &mut Connection, error: &CatalogueError) {
        let status = match error {
            CatalogueError::Missing { .. } => LoginStatus::NOT_FOUND,
            CatalogueError::InUse { .. } => LoginStatus::SERVICE_UNAVAILABLE,
            _ => LoginStatus::TARGET_ERROR,
        };
        self.reject_waiting(connection, status, &error.to_string());
    }

    /// A login was not finished.
    pub(super) fn login_failed(&self, connection: &Connection, reason: &CloseReason) {
        let counters = &self.services.metrics.counters;
        let (peer, initiator) = (connection.peer, for_log(connection.initiator_name()));
        match (&connection.stage, reason) {
            (LoginStage::Proving { request, .. }, CloseReason::Misbehaved(why)) => {
                Counters::count(&counters.logins_refused);
                let target = match &request.kind {
                    SessionKind::Normal { target_name } => for_log(target_name),
                    SessionKind::Discovery => "discovery".into(),
                };
                let user =
                    connection.login.as_ref().and_then(|login| login.chap_name()).map(for_log).unwrap_or_default();
                tracing::warn!(%peer, initiator, target, user, reason = %why, "refused a login: CHAP failed");
            }
            (_, CloseReason::Misbehaved(_)) => {
                Counters::count(&counters.misbehaved);
                tracing::warn!(%peer, %initiator, %reason, "a login ended");
            }
            // Refused logins were logged where they were refused.
            (_, CloseReason::LoginRefused(_)) => {}
            (_, reason) => {
                Counters::count(&counters.setups_failed);
                tracing::warn!(%peer, %initiator, %reason, "a login was not finished");
            }
        }
    }
}
