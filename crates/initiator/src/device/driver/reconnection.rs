//! Where the target is called, when it is called again, and for how long it has been away.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strongroom_block::foreign;

use crate::url::parse_target_address;

/// Redirections followed in a row.
const HOPS_MAX: u32 = 8;

/// Where the target is instead of at its URL's address.
struct Detour {
    host: String,
    port: u16,
    /// Until it fails; else for one connection.
    is_permanent: bool,
}

/// See the module.
pub(super) struct Reconnection {
    backoff: Duration,
    /// Where the last connection that stood led.
    pub(super) address: Option<SocketAddr>,
    /// Where the target has sent us, and how often in a row.
    detour: Option<Detour>,
    hops: u32,
    lost_at: Option<Instant>,
    pub(super) gave_up: bool,
}

impl Reconnection {
    pub(super) fn new(backoff: Duration) -> Reconnection {
        Reconnection { backoff, address: None, detour: None, hops: 0, lost_at: None, gave_up: false }
    }

    /// Host and port, if the target has sent us elsewhere.
    pub(super) fn detour(&self) -> Option<(&str, u16)> {
        self.detour.as_ref().map(|detour| (detour.host.as_str(), detour.port))
    }

    /// How long to wait before the next try.
    pub(super) fn pause(&self) -> Duration {
        self.backoff
    }

    /// A try has failed: the next pause is longer.
    pub(super) fn failed(&mut self, backoff_max: Duration) {
        self.backoff = (self.backoff * 2).min(backoff_max);
    }

    /// Commands flow over a new session.
    pub(super) fn succeeded(&mut self, backoff_min: Duration) {
        self.backoff = backoff_min;
        self.hops = 0;
    }

    /// The session, or its last connection, is lost.
    pub(super) fn lost(&mut self, now: Instant) {
        self.lost_at.get_or_insert(now);
    }

    /// Requests need not wait any more. Since when they had to.
    pub(super) fn found(&mut self) -> Option<Instant> {
        self.gave_up = false;
        self.lost_at.take()
    }

    /// When requests stop waiting, `after` the loss of the session; zero: never.
    pub(super) fn give_up_at(&self, after: Duration) -> Option<Instant> {
        self.lost_at.filter(|_| !after.is_zero()).map(|lost_at| lost_at + after)
    }

    /// The target has sent us elsewhere (`moved`: where, and whether for good), or a try has failed otherwise. Whether to go there at once.
    /// The keys that the target must have there are those of the URL.
    pub(super) fn follows(&mut self, moved: Option<(&str, bool)>) -> bool {
        let was_permanent = self.detour.take().is_some_and(|detour| detour.is_permanent);
        let Some((address, is_permanent)) = moved else {
            if was_permanent {
                tracing::info!("the target is not where it said that it has moved; asking at its URL's address again");
            }
            return false;
        };
        self.hops += 1;
        let Some((host, port)) = parse_target_address(address).filter(|_| self.hops <= HOPS_MAX) else { return false };
        tracing::info!(address = %foreign(address), is_permanent, "the target sends us elsewhere");
        self.detour = Some(Detour { host, port, is_permanent });
        true
    }
}
