//! Administrative orders at a worker: ends of sessions, jobs, reports. Nothing here waits.

use std::time::{Duration, Instant};

use super::Worker;
use super::connections::Connections;
use super::login_policy::LoginPolicy;
use super::order::{Order, SessionFilter};
use super::order_slices::SlicedOrder;
use super::routing::Routing;
use super::session::Session;
use super::sessions::Sessions;
use crate::names::VolumeName;
use crate::unit::SessionKey;

impl Worker {
    pub(super) fn order(&mut self, order: Order) {
        match order {
            Order::Report(reply) => {
                let volumes = self.routing.units.names().cloned().collect();
                self.orders.push(SlicedOrder::report(volumes, self.routing.sessions.keys().collect(), reply));
            }
            Order::Probe(reply) => drop(reply.send(())),
            Order::Drop { which, reply } => {
                let (routing, connections) = (&mut self.routing, &mut self.connections);
                let _ = reply.send(drop_sessions(&which, &self.logins.policy, routing, connections));
            }
            Order::Drain { volume, grace, reply } => {
                let (sessions, connections) = (&mut self.routing.sessions, &mut self.connections);
                let _ = reply.send(drain_sessions(volume.as_ref(), (self.now, grace), sessions, connections));
            }
            Order::Job { volume, job } => {
                self.lifecycle.take_job(&mut self.routing.units, &volume, *job, self.now);
            }
            Order::Resized { store } => self.routing.units.resize(&store),
            Order::Close { volume } => {
                for name in self.routing.units.unused_of_store(&volume) {
                    self.lifecycle.close(&mut self.routing.units, &name);
                }
            }
            Order::Gone { export } => {
                // It had no sessions a moment ago, but one may have begun in between.
                let users = self.routing.units.open(&export).map(|open| open.unit.users().keys()).unwrap_or_default();
                users.iter().for_each(|key| self.routing.end_session(*key, "what it used was deleted"));
                let logins = self.lifecycle.forget(&mut self.routing.units, &export);
                self.routing.retry_logins(logins);
            }
            Order::Recheck { volume, reply } => {
                self.logins.policy.refresh();
                self.routing.set_limits(self.logins.policy.limits());
                // A snapshot is for those whom its volume is for.
                let concerns = |name: &VolumeName| volume.as_ref().is_none_or(|of| name.volume() == *of);
                let sessions = sessions_where(&self.routing.sessions, |session| {
                    volume.is_none() || session.volume().is_some_and(concerns)
                });
                let volumes = self.routing.units.names().filter(|name| concerns(name)).cloned().collect();
                self.orders.push(SlicedOrder::recheck(volumes, sessions, reply));
            }
        }
    }
}

fn sessions_where(sessions: &Sessions, matches: impl Fn(&Session) -> bool) -> Vec<SessionKey> {
    sessions.iter().filter(|session| matches(session)).map(|session| session.key).collect()
}

/// Ends the sessions that an administrator named; which they are.
fn drop_sessions(
    which: &SessionFilter,
    policy: &LoginPolicy,
    routing: &mut Routing,
    connections: &mut Connections,
) -> Vec<SessionKey> {
    let mut keys = sessions_where(&routing.sessions, |session| {
        let (peer, node) = (&session.peer, policy.peer_name(&session.peer.identity));
        which.matches(session.key, &peer.initiator_name, node, session.volume())
    });
    // Sessions of units here at other workers. No worker has one that is moving: its end follows its connection.
    let users =
        routing.units.iter_open().flat_map(|(name, open)| open.unit.users().sessions().map(move |user| (name, user)));
    keys.extend(users.filter_map(|(name, (key, nexus, identity))| {
        let is_meant = which.matches(key, &nexus.initiator_name, policy.peer_name(identity), Some(name));
        (is_meant && routing.is_remote(key)).then_some(key)
    }));
    for key in &keys {
        routing.end_session(*key, "dropped by order of the target's keeper");
    }
    keys.extend(connections.refuse_new_sessions(|connection, key, grant| {
        let node = policy.peer_name(&connection.identity);
        which.matches(key, &grant.initiator_name, node, grant.volume.as_ref())
    }));
    keys
}

/// Asks the sessions of a volume and its snapshots, or of all, to log out. How many there are.
fn drain_sessions(
    volume: Option<&VolumeName>,
    (now, grace): (Instant, Duration),
    sessions: &mut Sessions,
    connections: &mut Connections,
) -> usize {
    let concerns =
        |name: Option<&VolumeName>| name.is_some_and(|name| volume.is_none_or(|volume| name.volume() == *volume));
    let keys = sessions_where(sessions, |session| concerns(session.volume()));
    let begun = connections.refuse_new_sessions(|_, _, grant| concerns(grant.volume.as_ref()));
    for key in &keys {
        if let Some(session) = sessions.get_mut_ready(*key) {
            session.machine.request_logout(now, grace);
        }
    }
    keys.len() + begun.len()
}
