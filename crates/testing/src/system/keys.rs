//! The key server, in virtual time: key epochs, and leases of the keys of each initiator.
//!
//! Deliberately absent: its protocol, its audit log, and the end of an epoch, which destroys keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use strongroom_block::Custody;
use strongroom_initiator::machine::Initiator;
use strongroom_initiator::{KeyRequest, KeySource, KeySourceError, VolumeKeys};
use strongroom_seal::{VolumeKey, VolumeKeyFile};

use super::clock::{MILLI, Time};
use crate::Random;

/// Key epochs of one history, at most.
const EPOCHS_MAX: u32 = 6;

/// Lends the volume's keys.
#[derive(Clone, Debug)]
pub(super) struct KeyServer(Arc<AtomicU32>);

impl KeyServer {
    /// One whose volume is in its first key epoch.
    pub(super) fn new() -> KeyServer {
        KeyServer(Arc::new(AtomicU32::new(1)))
    }

    /// The key epoch that is sealed under.
    pub(super) fn epoch(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Begins another key epoch, unless there were many; whether it did.
    pub(super) fn begin_epoch(&self) -> bool {
        let is_possible = self.epoch() < EPOCHS_MAX;
        self.0.fetch_add(is_possible.into(), Ordering::Relaxed);
        is_possible
    }

    /// The keys of all epochs so far.
    pub(super) fn keys(&self) -> VolumeKeyFile {
        let keys: BTreeMap<u32, VolumeKey> =
            (1..=self.epoch()).map(|epoch| (epoch, VolumeKey::new([epoch as u8; 32]))).collect();
        VolumeKeyFile::of_volume(keys).expect("there is at least one epoch")
    }
}

impl KeySource for KeyServer {
    fn custody(&self) -> Custody {
        Custody::KeyFile
    }

    fn volume_keys(&self, _: &KeyRequest) -> Result<VolumeKeys, KeySourceError> {
        let epoch = self.epoch();
        let (keys, revision) = (self.keys(), epoch.into());
        Ok(VolumeKeys { keys, domain: None, current_epoch: epoch, may_seal: true, revision, lease: None })
    }

    fn changed_keys(&self, _: &KeyRequest, _: u64, _: Duration) -> Result<Option<VolumeKeys>, KeySourceError> {
        Ok(None)
    }
}

/// What an initiator knows of the key server, and how long it may use what it was lent.
#[derive(Debug)]
pub(super) struct Lease {
    server: KeyServer,
    lent_for: Time,
    ends_at: Time,
    asks_at: Time,
    /// The server cannot be reached before.
    away_until: Time,
    /// The key epoch that it was told of last.
    pub(super) epoch: u32,
    has_keys: bool,
}

impl Lease {
    /// The lease of an initiator that attaches at `now`.
    pub(super) fn new(server: KeyServer, now: Time, random: &mut Random) -> Lease {
        let lent_for = 4 * MILLI + random.below(30 * MILLI);
        let epoch = server.epoch();
        Lease {
            server,
            lent_for,
            ends_at: now + lent_for,
            asks_at: now + lent_for / 4,
            away_until: 0,
            epoch,
            has_keys: true,
        }
    }

    /// Whether the keys may be used.
    pub(super) fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// The server cannot be reached until then.
    pub(super) fn goes_away(&mut self, until: Time) {
        self.away_until = until;
    }

    /// When something is to be done next.
    pub(super) fn poll_timeout(&self) -> Time {
        if self.has_keys { self.asks_at.min(self.ends_at) } else { self.asks_at }
    }

    /// Asks the server if it is time to, and gives the keys up when the lease has ended; whether it did.
    pub(super) fn handle_timeout(&mut self, now: Time, machine: &mut Initiator) -> bool {
        if self.asks_at <= now {
            self.asks_at = now + self.lent_for / 4;
            if self.away_until <= now {
                self.renew(now, machine);
            }
        }
        let is_over = self.has_keys && self.ends_at <= now;
        if is_over {
            machine.lease_ends();
            self.has_keys = false;
        }
        is_over
    }

    fn renew(&mut self, now: Time, machine: &mut Initiator) {
        self.ends_at = now + self.lent_for;
        let epoch = self.server.epoch();
        if !self.has_keys || epoch != self.epoch {
            machine.lease_renewed().expect("there is a key");
            (self.has_keys, self.epoch) = (true, epoch);
        }
    }
}
