//! What the runs came across: a simulation in which nothing goes wrong proves nothing.

macro_rules! seen {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one run, or of many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Seen { $($(#[$doc])* pub $name: u64,)* }

        impl Seen {
            /// Adds those of another run.
            pub fn merge(&mut self, other: Seen) {
                $(self.$name += other.$name;)*
            }

            /// What never happened.
            pub fn never(&self) -> Vec<&'static str> {
                [$((stringify!($name), self.$name)),*].into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
            }
        }
    };
}

seen! {
    /// Histories that were checked.
    histories,
    /// Blocks read and written, by the requests of initiators.
    requests,
    /// Commands at the target.
    commands,
    /// Steps of the simulation.
    steps,
    /// Connections made.
    connections,
    /// Connections cut.
    cuts,
    /// Connections that became half-open.
    silences,
    /// Damages on the way.
    damages,
    /// Crashes of the target.
    crashes,
    /// Stores that were closed in order.
    orderly_closes,
    /// Orderly restarts of the target.
    restarts,
    /// Resets of the unit.
    resets,
    /// Initiators that died.
    deaths,
    /// Leases of keys that ended.
    leases_ended,
    /// Histories with a clone.
    clones,
    /// Snapshots taken and deleted.
    snapshot_changes,
    /// Openings at which the disk failed to read.
    openings_failed,
    /// Commands that were sent again.
    resent,
    /// Blocks that were replayed.
    replayed,
    /// Blocks whose histories were checked.
    blocks,
    /// Blocks whose histories had too many explanations to follow.
    undecided,
}
