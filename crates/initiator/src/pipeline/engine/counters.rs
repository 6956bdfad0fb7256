//! What the engine counts.

/// Counters of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Commands sent, those sent again included.
    pub commands_sent: u64,
    /// Commands sent again, after an answer that asked for it or a lost connection.
    pub commands_resent: u64,
    /// Blocks sent again to a target that may have lost them.
    pub blocks_replayed: u64,
    /// Of these, blocks that the target left out because something newer was stored there.
    pub blocks_superseded: u64,
    /// Writes that were sent again and that the target had executed before.
    pub writes_repeated: u64,
    /// Attach ids that the target has registered.
    pub registrations: u64,
    /// Flushes that we made by ourselves, to bound what would be replayed.
    pub own_flushes: u64,
    /// Guarded writes that found another version and were tried again.
    pub guarded_retries: u64,
    /// Blocks that did not open, or could not be read.
    pub blocks_failed: u64,
    /// Blocks that were fetched again because they did not authenticate.
    pub blocks_refetched: u64,
    /// Connections that were ended to fetch such blocks over a new one.
    pub refetch_connections: u64,
    /// Commands whose data authenticated when it was fetched again: it was damaged on the wire, not at the target.
    pub refetches_succeeded: u64,
    /// How often the unit said that its size has changed.
    pub size_changes: u64,
}
