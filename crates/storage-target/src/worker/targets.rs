//! SendTargets: answered in a thread of its own, since the answer takes a look at every volume.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use strongroom_iscsi::target::{ConnectionId, SendTargets, TargetEntry};

use super::Worker;
use super::message::Message;
use super::session::Session;
use crate::access::{Identity, Refusal};
use crate::names::{self, VolumeName};
use crate::services::TargetServices;
use crate::settings::Settings;
use crate::volume::Volume;

/// Most targets in one answer to SendTargets.
const TARGETS_MAX: usize = 1024;

/// A question, with everything that its answer depends on.
struct TargetsQuery {
    asked: Instant,
    settings: Arc<Settings>,
    identity: Identity,
    from: IpAddr,
    initiator: String,
    wanted: Wanted,
    /// Where this target is reached, as told to this initiator.
    addresses: Vec<String>,
}

enum Wanted {
    All,
    One(Option<VolumeName>),
}

impl Worker {
    /// Has SendTargets answered with what this initiator may use.
    pub(super) fn send_targets(&self, session: &Session, id: ConnectionId, question: SendTargets) {
        let asking = session.connections.iter().find(|(other, _)| *other == id);
        let Some(connection) = asking.and_then(|(_, key)| self.connections.get(*key)) else { return };
        let wanted = match question {
            SendTargets::All => Wanted::All,
            SendTargets::Named(name) => {
                Wanted::One(names::volume_of(&self.logins.policy.settings().config.base_name, &name))
            }
            SendTargets::ThisTarget => Wanted::One(session.volume().cloned()),
        };
        let query = TargetsQuery {
            asked: self.now,
            settings: Arc::clone(self.logins.policy.settings()),
            identity: connection.identity.clone(),
            from: connection.peer.ip(),
            initiator: session.peer.initiator_name.clone(),
            wanted,
            addresses: {
                let here = our_address_towards(connection.peer);
                let (config, portals) = (&self.logins.policy.settings().config, self.services.endpoint.portals());
                config.target_addresses(portals, &connection.portal, here, connection.peer.ip())
            },
        };
        let (services, worker, session) = (Arc::clone(&self.services), self.index, session.key);
        let answer = move || {
            let targets = query.answer(&services);
            services.tell(worker, Message::TargetsFound { session, connection: id, targets });
        };
        if let Err(error) = self.services.queries.pool.submit(answer) {
            tracing::error!(%error, "discovery finds nothing: no thread to look for the volumes in");
            self.services.tell(worker, Message::TargetsFound { session, connection: id, targets: Vec::new() });
        }
    }
}

impl TargetsQuery {
    fn answer(&self, services: &TargetServices) -> Vec<TargetEntry> {
        let names: Vec<VolumeName> = match &self.wanted {
            Wanted::All => {
                let volumes = &services.queries.index.refresh(self.asked).volumes;
                let visible = volumes.iter().filter(|volume| self.may_see(volume));
                // A snapshot is for those whom its volume is for.
                visible.flat_map(|volume| exports_of(volume)).take(TARGETS_MAX).collect()
            }
            Wanted::One(name) => {
                let name =
                    name.iter().filter(|name| services.catalogue.load(name).is_ok_and(|found| self.may_see(&found)));
                name.cloned().collect()
            }
        };
        let base = &self.settings.config.base_name;
        let entry = |name| TargetEntry { name: names::target_name(base, name), addresses: self.addresses.clone() };
        names.iter().map(entry).collect()
    }

    fn may_see(&self, volume: &Volume) -> bool {
        let rules = &self.settings.rules;
        let admitted = rules.admit(&self.identity, self.from, &self.initiator, volume);
        // What wants CHAP is shown to who has not been asked for it yet: else nobody could find it.
        let asks = rules.chap_for_discovery().is_some();
        admitted.is_ok() || (!asks && matches!(admitted, Err(Refusal::ChapNeeded { .. })))
    }
}

/// A volume's name and its snapshots', as they are exported.
fn exports_of(volume: &Volume) -> impl Iterator<Item = VolumeName> {
    let snapshots = volume.snapshots.iter().filter_map(|snapshot| VolumeName::new(snapshot).ok());
    let snapshots = snapshots.map(|snapshot| volume.name.at(&snapshot));
    std::iter::once(volume.name.clone()).chain(snapshots)
}

/// Our address on the way to a peer, as the kernel's routes have it. A connected datagram socket tells; nothing is sent.
fn our_address_towards(peer: SocketAddr) -> IpAddr {
    let any: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let told = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(peer)?;
        socket.local_addr()
    });
    told.map_or(any.ip(), |address| address.ip())
}
