//! The standby's side: asks its primary for what is new, stores it, and says so by asking for the next. And once it is promoted:
//! tells the old primary, whenever that can be reached, that its time is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use strongroom_handshake::NodeKey;
use zeroize::Zeroizing;

use crate::audit::AuditHead;
use crate::batch::{Batch, Role};
use crate::client::{Client, ClientError, ClientOptions};
use crate::config::{Config, ConfigError};
use crate::database::Snapshot;
use crate::engine::Engine;
use crate::protocol::Request;
use crate::replication::FOLLOW_WAIT;

/// Between two tries.
const RETRY: Duration = Duration::from_millis(500);
/// For connecting and for an answer, beyond what the primary waits for news.
const TIMEOUT: Duration = Duration::from_secs(10);

/// First byte of an answer to a follower.
pub(crate) mod news {
    pub(crate) const NOTHING: u8 = 0;
    pub(crate) const BATCH: u8 = 1;
    pub(crate) const SNAPSHOT: u8 = 2;
}

pub(crate) struct Standby {
    engine: Arc<Engine>,
    primary: Client,
}

/// Why a standby does not follow.
#[derive(Debug, thiserror::Error)]
enum NotFollowed {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("what the primary sent is malformed; run compatible versions on both ends")]
    Malformed,
    #[error(
        "the primary's log is not a continuation of this standby's: it was rolled back, or is another database. If the primary \
         is right, empty this standby's directory and start it again; if it is not, promote this standby"
    )]
    NotOurs,
    #[error(transparent)]
    Database(#[from] crate::DatabaseError),
}

impl Standby {
    /// Of the primary that the configuration names, if it names one.
    pub(crate) fn new(
        config: &Config,
        engine: Arc<Engine>,
        node_key: Arc<NodeKey>,
    ) -> Result<Option<Standby>, ConfigError> {
        let (Some(server), Some(key)) = (config.standby_of.clone(), config.primary()?) else { return Ok(None) };
        let options =
            ClientOptions { servers: vec![server], server_keys: vec![key], node_key, timeout: TIMEOUT + FOLLOW_WAIT };
        Ok(Some(Standby { engine, primary: Client::new(options) }))
    }

    /// Follows until it is promoted; then fences the old primary; until `stopping`.
    pub(crate) fn run(&self, stopping: &AtomicBool) {
        let mut complained = false;
        while !stopping.load(Ordering::SeqCst) {
            let role = self.engine.database.state().role;
            let result = match role {
                Role::Standby => self.follow(),
                Role::Primary => match self.fence() {
                    Ok(()) => return,
                    Err(error) => Err(error),
                },
                Role::Fenced => return,
            };
            match result {
                Ok(()) => complained = false,
                Err(error) => {
                    if !complained {
                        match role {
                            Role::Standby => {
                                tracing::warn!(%error, "this standby does not follow its primary; trying on")
                            }
                            _ => {
                                tracing::warn!(%error, "the old primary could not be told that it is replaced; trying on")
                            }
                        }
                    }
                    complained = true;
                    thread::sleep(RETRY);
                }
            }
        }
    }

    fn fence(&self) -> Result<(), NotFollowed> {
        let (database, generation) = {
            let state = self.engine.database.state();
            (state.id, state.generation)
        };
        self.primary.fence(database, generation)?;
        tracing::info!("the old primary knows that it is replaced");
        Ok(())
    }

    fn follow(&self) -> Result<(), NotFollowed> {
        let (generation, sequence, heads) = {
            let state = self.engine.database.state();
            (state.generation, state.sequence, [state.head, state.previous])
        };
        let mut kind = None;
        let mut batch = Zeroizing::new(Vec::new());
        let mut snapshot = Snapshot::default();
        let mut malformed = false;
        self.primary.pieces(&Request::Follow { generation, sequence, head: heads[0] }, &mut |piece| {
            match kind {
                None => {
                    kind = piece.first().copied();
                    batch.extend_from_slice(piece.get(1..).unwrap_or_default());
                }
                // The last piece is empty.
                Some(news::SNAPSHOT) => malformed |= !piece.is_empty() && snapshot.add(piece).is_err(),
                Some(_) => batch.extend_from_slice(piece),
            }
            Ok(())
        })?;
        if malformed {
            return Err(NotFollowed::Malformed);
        }
        let committing = self.engine.committing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.engine.database.state().role != Role::Standby {
            // Promoted meanwhile: what came late is not taken.
            return Ok(());
        }
        self.engine.database.recover()?;
        match kind {
            Some(news::NOTHING) => {}
            Some(news::BATCH) => self.take(Batch::decode(&batch).map_err(|_| NotFollowed::Malformed)?)?,
            Some(news::SNAPSHOT) => {
                // A standby that has nothing takes anything; another one only what goes on from what it has.
                if sequence > 0 && !snapshot.continues(&heads) {
                    return Err(NotFollowed::NotOurs);
                }
                self.engine.database.install(snapshot, Role::Standby, false)?;
                tracing::info!("this standby has taken over everything from its primary");
                drop(committing);
                thread::sleep(RETRY);
                return Ok(());
            }
            _ => return Err(NotFollowed::Malformed),
        }
        drop(committing);
        Ok(())
    }

    /// Stores one transaction of the primary, if it is the next.
    fn take(&self, mut batch: Batch) -> Result<(), NotFollowed> {
        let (sequence, generation, mut head): (u64, u64, AuditHead) = {
            let state = self.engine.database.state();
            (state.sequence, state.generation, state.head)
        };
        for line in &batch.lines {
            head = head.then(line).map_err(|_| NotFollowed::NotOurs)?;
        }
        if batch.sequence != sequence + 1 || batch.generation < generation || head != batch.head {
            return Err(NotFollowed::NotOurs);
        }
        let keys = std::mem::take(&mut batch.slots).into_iter().collect();
        for (_, volume) in &mut batch.volumes {
            if let Some(volume) = volume {
                let taken = batch.slots.iter().map(|(slot, _)| *slot).collect();
                let slots = self.engine.database.to_own_slots(std::slice::from_mut(volume), &keys, taken)?;
                batch.slots.extend(slots);
            }
        }
        self.engine.database.commit(&batch)??;
        Ok(())
    }
}
