//! What happened in the runs: a simulation in which nothing goes wrong proves nothing.

macro_rules! seen {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one run, or of many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Seen { $($(#[$doc])* pub $name: u64,)* }

        impl Seen {
            /// Adds those of another run.
            pub fn merge(&mut self, other: Seen) {
                let steps_of_a_call_max = self.steps_of_a_call_max.max(other.steps_of_a_call_max);
                let longest_wait_us = self.longest_wait_us.max(other.longest_wait_us);
                $(self.$name += other.$name;)*
                (self.steps_of_a_call_max, self.longest_wait_us) = (steps_of_a_call_max, longest_wait_us);
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
    /// Datagrams lost on the way.
    datagrams_lost,
    /// Datagrams that came again.
    datagrams_repeated,
    /// Datagrams damaged on the way.
    datagrams_damaged,
    /// Datagrams that were too long for the path.
    datagrams_too_long,
    /// Blocks of writes that were lost on the way and restored from parity.
    datagrams_repaired,
    /// Messages that one worker of the target sent to another.
    messages,
    /// Sessions that did not begin at the worker of their unit.
    remote_sessions,
    /// Crashes of the target.
    crashes,
    /// Stores that were closed in order.
    orderly_closes,
    /// Orderly restarts of the target.
    restarts,
    /// Resets of the unit.
    resets,
    /// Tasks of all initiators aborted.
    aborts,
    /// Initiators that died.
    deaths,
    /// Initiators that did not reach the target for longer.
    partitions,
    /// Histories in which initiators have shared writer leases.
    shared_leases,
    /// Exclusive writer leases that an initiator got after another one had gone.
    leases_passed_on,
    /// Exclusive writer leases that an initiator took over.
    leases_taken_over,
    /// Leases of keys that ended.
    leases_ended,
    /// Key epochs that began.
    key_epochs,
    /// Histories with a clone.
    clones,
    /// Histories in which halves of blocks were written.
    halves,
    /// Snapshots taken, looked at and deleted.
    snapshot_changes,
    /// Snapshots whose contents were checked.
    snapshots_checked,
    /// Initiators that a reservation kept out.
    fences,
    /// Blocks damaged on the disk.
    rotten_blocks,
    /// Histories that ended because a damaged store did not open.
    refused_openings,
    /// Reads that failed because of that.
    failed_reads,
    /// Openings at which the disk failed to read.
    openings_failed,
    /// Commands that were sent again.
    resent,
    /// Blocks that were replayed.
    replayed,
    /// The most steps of one call of a unit.
    steps_of_a_call_max,
    /// The longest that a request was not answered although nothing stood in its way, in microseconds.
    longest_wait_us,
    /// Registers whose histories were checked: blocks, or halves of them.
    registers,
    /// Registers whose histories had too many explanations to follow.
    undecided,
}
