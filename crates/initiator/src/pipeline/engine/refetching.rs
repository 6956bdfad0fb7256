//! Blocks that do not authenticate are fetched again before that is an error.
//!
//! Some schemes leave block data to its seal, so a block that does not open may have been damaged on the wire and be intact at the
//! target. It is fetched again at once over the same connection, and then over a new one, twice over each. Only then it is a medium
//! error. All blocks concerned share one new connection. What is bounded: fetches of a block; new connections, by a pause that grows
//! while they do not help; and a version that did not open over a new connection is remembered, so that reading it again costs none.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use strongroom_block::{DeviceError, DeviceErrorKind, Lba, StoreSequence};

use super::command::Command;
use super::counters::EngineCounters;
use super::request_table::Request;
use crate::completion::device_error;
use crate::pipeline::operation::execute::Execute;
use crate::pipeline::request::Reply;
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

    /// The data of a command did not authenticate. It is fetched again, or the error says that the block is damaged.
    pub(super) fn fetch_again(
        &mut self,
        now: Instant,
        command: &mut Command,
        request: &mut Request,
        (lba, sequence): (Lba, StoreSequence),
        counters: &mut EngineCounters,
    ) -> Result<FetchAgain, DeviceError> {
        let fetches = &mut command.fetches;
        fetches.failed(lba, self.session);
        let damaged = |further: &str| Err(medium(lba, &fetches.describe(further)));
        let is_last_here = fetches.on_this_connection >= FETCHES_PER_CONNECTION;
        if is_last_here && fetches.connections >= CONNECTIONS_MAX {
            self.remember(now, (lba, sequence));
            return damaged("");
        }
        if is_last_here && self.rotten.contains(&(lba, sequence)) {
            return damaged(", and over a new one before");
        }
        if is_last_here && matches!(request.reply, Reply::Ahead(_)) {
            // Nobody waits for it; a read that somebody waits for goes further.
            return Err(device_error(DeviceErrorKind::Medium, Some(lba), fetches.describe("")));
        }
        if is_last_here && self.is_paused(now) {
            return damaged(
                "; no new connection was made, because one was made a moment ago for another block and did not help: read it again in \
                 a minute",
            );
        }
        tracing::info!(%lba, fetches = fetches.total, new_connection = is_last_here, "a block does not authenticate; fetching it again");
        counters.blocks_refetched += 1;
        request.operation.refetch_from(&mut command.plan, lba);
        if !is_last_here {
            return Ok(FetchAgain::Now);
        }
        counters.refetch_connections += u64::from(!self.is_waiting);
        self.is_waiting = true;
        Ok(FetchAgain::OverNewConnection)
    }

    /// The data of a command that was fetched again is good.
    pub(super) fn succeeded(&mut self, command: &Command, counters: &mut EngineCounters) {
        if command.fetches.total == 0 {
            return;
        }
        counters.refetches_succeeded += 1;
        if command.fetches.connections > 1 {
            self.useless = None;
        }
    }
}

/// When a block is fetched again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchAgain {
    Now,
    /// When the session is another one: its commands are sent again then.
    OverNewConnection,
}
