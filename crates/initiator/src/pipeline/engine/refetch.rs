//! Blocks that do not authenticate are fetched again before that is an error.
//!
//! Some schemes leave block data to its seal, so a block that does not open may have been damaged on the wire and be intact at the
//! target. It is fetched again at once over the same connection, and then over a new one, twice over each. Only then it is a medium
//! error. All blocks concerned share one new connection. What is bounded: fetches of a block; new connections, by a pause that grows
//! while they do not help; and a version that did not open over a new connection is remembered, so that reading it again costs none.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use strongroom_block::{DeviceError, DeviceErrorKind, Lba, StoreSequence};

use super::Engine;
use super::command::CommandKind;
use super::{Op, OpWork};
use crate::completion::device_error;
use crate::pipeline::request::{Reply, Work};
use crate::pipeline::sealing::medium;

/// Fetches of a block over one connection.
const FETCHES_PER_CONNECTION: u32 = 2;
/// Connections over which a block is fetched.
const CONNECTIONS_MAX: u32 = 2;
/// Versions that are remembered as damaged at the target.
const ROTTEN_MAX: usize = 1024;
/// After a new connection that did not help, no other is made for this long; doubled each time that this happens in a row.
const PAUSE_MIN: Duration = Duration::from_secs(1);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Why the data of a read cannot be used.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// A block does not authenticate. Its record came in an authenticated header, so the data may have been damaged on the wire.
    NotAuthentic { lba: Lba, sequence: StoreSequence },
    /// Fetching it again cannot help.
    Error(DeviceError),
}

impl From<DeviceError> for ReadFault {
    fn from(error: DeviceError) -> ReadFault {
        ReadFault::Error(error)
    }
}

/// The fetches of the block of a command that does not authenticate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fetches {
    block: Option<Lba>,
    total: u32,
    on_this_connection: u32,
    connections: u32,
    /// The session of the last one.
    session: u64,
}

impl Fetches {
    /// One more was in vain.
    fn failed(&mut self, lba: Lba, session: u64) {
        // The blocks before it opened.
        if self.block.is_none_or(|block| block < lba) {
            *self = Fetches { block: Some(lba), ..Fetches::default() };
        }
        if self.connections == 0 || self.session != session {
            self.session = session;
            self.connections += 1;
            self.on_this_connection = 0;
        }
        self.on_this_connection += 1;
        self.total += 1;
    }

    fn describe(&self, further: &str) -> String {
        let times = if self.total == 1 { "once".to_owned() } else { format!("{} times", self.total) };
        let over = match self.connections {
            1 => "over one connection".to_owned(),
            connections => format!("over {connections} connections"),
        };
        format!("the block does not open: it was fetched {times} {over}{further}")
    }
}

/// Connections that were made, or are to be made, for blocks that do not authenticate.
#[derive(Debug, Default)]
pub(super) struct Refetching {
    /// Sessions so far.
    session: u64,
    /// A read waits for a new connection.
    is_waiting: bool,
    /// The current session was made for such reads.
    is_retry: bool,
    /// Since a new connection did not help, and how long no other is made.
    useless: Option<(Instant, Duration)>,
    rotten: HashSet<(Lba, StoreSequence)>,
    rotten_by_age: VecDeque<(Lba, StoreSequence)>,
}

impl Refetching {
    pub(super) fn connected(&mut self) {
        self.session += 1;
    }

    pub(super) fn disconnected(&mut self) {
        self.is_retry |= std::mem::take(&mut self.is_waiting);
    }

    /// Why a new connection is needed, if it is.
    pub(super) fn needs_connection(&self) -> Option<&'static str> {
        self.is_waiting.then_some("blocks did not authenticate and are fetched again over a new connection")
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.useless.is_some_and(|(since, pause)| now < since + pause)
    }

    fn remember(&mut self, now: Instant, version: (Lba, StoreSequence)) {
        if self.rotten.insert(version) {
            self.rotten_by_age.push_back(version);
        }
        if self.rotten_by_age.len() > ROTTEN_MAX
            && let Some(oldest) = self.rotten_by_age.pop_front()
        {
            self.rotten.remove(&oldest);
        }
        // Once per connection, however many blocks were fetched over it.
        if std::mem::take(&mut self.is_retry) {
            let pause = self.useless.map_or(PAUSE_MIN, |(_, pause)| (pause * 2).min(PAUSE_MAX));
            self.useless = Some((now, pause));
        }
    }
}

impl Engine {
    /// The data of a command did not authenticate: fetches it again, or says that it is a medium error.
    pub(super) fn fetch_again(
        &mut self,
        now: Instant,
        key: usize,
        lba: Lba,
        sequence: StoreSequence,
    ) -> Result<(), DeviceError> {
        let Engine { commands, ops, refetching, counters, .. } = self;
        let command = &mut commands[key];
        let op = &mut ops[command.op];
        let fetches = &mut command.fetches;
        fetches.failed(lba, refetching.session);
        let damaged = |further: &str| Err(medium(lba, &fetches.describe(further)));
        let is_last_here = fetches.on_this_connection >= FETCHES_PER_CONNECTION;
        if is_last_here && fetches.connections >= CONNECTIONS_MAX {
            refetching.remember(now, (lba, sequence));
            return damaged("");
        }
        if is_last_here && refetching.rotten.contains(&(lba, sequence)) {
            return damaged(", and over a new one before");
        }
        if is_last_here && matches!(op.reply, Reply::Ahead(_)) {
            // Nobody waits for it; the read of somebody who does goes further.
            return Err(device_error(DeviceErrorKind::Medium, Some(lba), fetches.describe("")));
        }
        if is_last_here && refetching.is_paused(now) {
            return damaged(
                "; no new connection was made, because one was made a moment ago for another block and did not help: read it again in \
                 a minute",
            );
        }
        tracing::info!(%lba, fetches = fetches.total, new_connection = is_last_here, "a block does not authenticate; fetching it again");
        counters.blocks_refetched += 1;
        command.skip_to(op, lba);
        if is_last_here {
            // It is sent again when the session is another one.
            counters.refetch_connections += u64::from(!refetching.is_waiting);
            refetching.is_waiting = true;
        } else {
            self.again_ready(key);
        }
        Ok(())
    }

    /// The data of a command that was fetched again is good.
    pub(super) fn was_fetched_again(&mut self, key: usize) {
        let fetches = self.commands[key].fetches;
        if fetches.total == 0 {
            return;
        }
        self.counters.refetches_succeeded += 1;
        if fetches.connections > 1 {
            self.refetching.useless = None;
        }
    }
}

impl super::command::Command {
    /// Fetches only what comes from `lba` on again, where what was before it is already in its place.
    fn skip_to(&mut self, op: &mut Op, lba: Lba) {
        match (&mut self.kind, &mut op.work) {
            (CommandKind::Read { lba: first, count }, OpWork::Plain(Work::Read { .. })) => {
                // Data-In comes in order (RFC 7143 §13.19, DataPDUInOrder), and the session checks that.
                let skipped = (lba.0 - first.0) as u32;
                *first = lba;
                *count -= skipped;
            }
            (_, OpWork::Asking(_, found)) => found.forget(),
            _ => {}
        }
    }
}
