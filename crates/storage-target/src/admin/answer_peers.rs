//! Answers requests about peers and invitations. Runs in the admin client's thread.

use strongroom_handshake::{INVITATION_ADDRESSES_MAX, Invitation, PairingSecret, is_address};

use super::workers::recheck;
use super::{InvitationReport, InvitationText, PeerOperation, PeerOrigin, PeerReport, Reply};
use crate::names::{VolumeName, for_log};
use crate::pairing::{InvitationRecord, NewInvitation, PairingError, PeerChange, PeerName, now_s};
use crate::roles::PeerRole;
use crate::services::TargetServices;

/// What is asked for with an invitation.
pub(super) struct InviteRequest {
    pub(super) name: String,
    pub(super) volumes: Vec<String>,
    pub(super) read_only: bool,
    pub(super) role: PeerRole,
    pub(super) expires_s: u64,
    pub(super) addresses: Vec<String>,
}

pub(super) fn invite(services: &TargetServices, request: InviteRequest) -> Result<Reply, PairingError> {
    let target = services.endpoint.public_key().ok_or(PairingError::NoIdentity)?;
    let name = request.name.parse::<PeerName>()?;
    if !request.volumes.is_empty() || request.role == PeerRole::Initiator {
        check_volumes(services, &request.volumes)?;
    }
    let addresses = addresses(services, &request.addresses)?;
    let secret = PairingSecret::generate();
    let new = NewInvitation {
        name,
        volumes: request.volumes,
        read_only: request.read_only,
        role: request.role,
        expires_s: request.expires_s,
        key: secret.key(),
    };
    let expires_at = services.peers.invite(new, &services.settings().rules, now_s())?;
    tracing::info!(name = request.name, role = %request.role, expires_s = request.expires_s, "gave out an invitation");
    let invitation = Invitation { target, secret, expires_at, addresses: addresses.clone() };
    let invitation = InvitationText(invitation.to_text().to_string());
    Ok(Reply::Invited { invitation, addresses, expires_at })
}

pub(super) fn invitations(services: &TargetServices) -> Reply {
    let now_s = now_s();
    let report = |invitation: &InvitationRecord| InvitationReport {
        name: invitation.name.to_string(),
        volumes: invitation.volumes.clone(),
        read_only: invitation.read_only,
        role: invitation.role,
        expires_at: invitation.expires_at,
        expires_in_s: invitation.expires_at.saturating_sub(now_s),
    };
    Reply::Invitations(services.peers.invitations(now_s).iter().map(report).collect())
}

pub(super) fn revoke(services: &TargetServices, name: &str) -> Result<Reply, PairingError> {
    services.peers.revoke(&name.parse::<PeerName>()?, now_s())?;
    tracing::info!(name, "ended an invitation");
    Ok(Reply::Done)
}

pub(super) fn peers(services: &TargetServices) -> Reply {
    let settings = services.settings();
    let configured = settings.config.peers.iter().map(|peer| PeerReport {
        name: peer.name.clone(),
        key: peer.key.trim().to_owned(),
        volumes: peer.volumes.clone(),
        read_only: peer.read_only,
        role: peer.role,
        origin: PeerOrigin::Configuration,
        since: None,
    });
    let invited = settings.rules.database().iter().map(|peer| PeerReport {
        name: peer.name.to_string(),
        key: peer.key.to_string(),
        volumes: peer.volumes.clone(),
        read_only: peer.read_only,
        role: peer.role,
        origin: if settings.rules.overrides(peer) { PeerOrigin::Overridden } else { PeerOrigin::Invitation },
        since: Some(peer.since),
    });
    Reply::Peers(configured.chain(invited).collect())
}

pub(super) fn change(services: &TargetServices, name: &str, operation: PeerOperation) -> Result<Reply, PairingError> {
    tracing::info!(name = for_log(name), ?operation, "asked to change a peer");
    let change = match operation {
        PeerOperation::Remove => PeerChange::Remove,
        PeerOperation::Rename { to } => PeerChange::Rename(to.parse::<PeerName>()?),
        PeerOperation::Allow { volumes, read_only } => {
            if !volumes.is_empty() || read_only.is_none() {
                check_volumes(services, &volumes)?;
            }
            PeerChange::Allow { volumes, read_only }
        }
        // A volume that is no longer there, too.
        PeerOperation::Deny { volumes } => PeerChange::Deny(volumes),
        PeerOperation::Role { role } => PeerChange::Role(role),
    };
    services.peers.change_peer(name, change, &services.settings().rules)?;
    services.replace_database();
    let (ended, changed) = recheck(services, None);
    Ok(Reply::Peer { sessions: ended + changed, named_by: volumes_that_name(services, name) })
}

/// The volumes whose own lists have this name. What cannot be read names nobody.
fn volumes_that_name(services: &TargetServices, name: &str) -> Vec<String> {
    let names = services.catalogue.names().unwrap_or_default();
    let volumes = names.iter().filter_map(|volume| services.catalogue.load(volume).ok());
    let naming = volumes.filter(|volume| volume.access.peers.iter().any(|peer| peer == name));
    naming.map(|volume| volume.name.to_string()).collect()
}

/// Volumes that are there, or all of them: a slip of the pen would be noticed only by the node that is invited.
fn check_volumes(services: &TargetServices, volumes: &[String]) -> Result<(), PairingError> {
    if volumes.is_empty() {
        return Err(PairingError::NoVolumes);
    }
    for volume in volumes.iter().filter(|volume| *volume != "*") {
        services.catalogue.load(&VolumeName::new(volume)?)?;
    }
    Ok(())
}

/// Where initiators reach this target: as asked for; else what discovery tells; else where it listens, and for a wildcard this machine's name.
fn addresses(services: &TargetServices, asked: &[String]) -> Result<Vec<String>, PairingError> {
    let portals = services.endpoint.addresses();
    let port = portals.first().map_or(strongroom_iscsi::DEFAULT_PORT, std::net::SocketAddr::port);
    let advertised = services.settings().config.advertise.clone();
    let mut addresses: Vec<String> = match (asked.is_empty(), advertised.is_empty()) {
        (false, _) => asked.iter().map(|address| with_port(address, port)).collect(),
        (true, false) => advertised,
        (true, true) => portals.iter().filter(|at| !at.ip().is_unspecified()).map(ToString::to_string).collect(),
    };
    if addresses.is_empty() {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let address = format!("{machine}:{port}");
        if machine.starts_with("localhost") || !is_address(&address) {
            return Err(PairingError::NoAddress);
        }
        addresses.push(address);
    }
    if let Some(bad) = addresses.iter().find(|address| !is_address(address)) {
        return Err(PairingError::Address { address: for_log(bad) });
    }
    addresses.truncate(INVITATION_ADDRESSES_MAX);
    Ok(addresses)
}

/// `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address, with a port.
fn with_port(address: &str, port: u16) -> String {
    if address.parse::<std::net::Ipv6Addr>().is_ok() {
        return format!("[{address}]:{port}");
    }
    match is_address(address) {
        true => address.to_owned(),
        false => format!("{address}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gets_the_port_that_it_has_not() {
        for (given, whole) in [
            ("storage", "storage:3260"),
            ("storage:4000", "storage:4000"),
            ("2001:db8::1", "[2001:db8::1]:3260"),
            ("[2001:db8::1]", "[2001:db8::1]:3260"),
            ("[2001:db8::1]:4000", "[2001:db8::1]:4000"),
        ] {
            assert_eq!(with_port(given, 3260), whole);
            assert!(is_address(whole));
        }
        assert!(!is_address(&with_port("a\u{1b}[2J", 3260)));
    }
}
