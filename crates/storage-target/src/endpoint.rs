//! What initiators connect to: the target's portals and its identity.

use std::net::SocketAddr;
use std::sync::Arc;

use strongroom_handshake::{NodeKey, PublicKey};

use crate::config::Portal;

pub(crate) struct Endpoint {
    /// Without it there are no channels.
    identity: Option<Arc<NodeKey>>,
    portals: Vec<Portal>,
    /// Of the portals.
    addresses: Vec<SocketAddr>,
}

impl Endpoint {
    /// `portals`: with the ports that the system has assigned.
    pub(crate) fn new(identity: Option<NodeKey>, portals: Vec<Portal>) -> Endpoint {
        let addresses = portals.iter().map(|portal| portal.address).collect();
        Endpoint { identity: identity.map(Arc::new), portals, addresses }
    }

    pub(crate) fn identity(&self) -> Option<&Arc<NodeKey>> {
        self.identity.as_ref()
    }

    pub(crate) fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    pub(crate) fn public_key(&self) -> Option<PublicKey> {
        self.identity.as_ref().map(|identity| identity.public())
    }

    pub(crate) fn portals(&self) -> &[Portal] {
        &self.portals
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}
