//! Faults that are planted on purpose, one at a time, so that the simulation can prove that it finds such faults.
//!
//! They are compiled in only with the feature `planted-faults`, which nothing but the tests of `strongroom-testing` enables
//! (the tidy test checks that); without it every question here is answered `false` at compile time.

use crate::op::{Completion, Outcome};

/// A mistake that a store could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A flush is answered without a sync.
    SyncLeftOut,
    /// The superblock names a segment table that is not known to be durable.
    TableTooEarly,
    /// Recovery replays whatever intact units lie behind the end of a segment.
    StaleUnitReplayed,
    /// Now and then a retained version goes although no reader has verified a newer one.
    VersionReclaimedTooSoon,
    /// A dead segment is used again before the table without it is durable.
    SegmentReusedTooSoon,
    /// A dead segment is used again when one copy of the superblock names the table without it. (Only damage to that copy shows it.)
    OneSuperblockForBoth,
    /// Recovery trusts the data of units that are not known to be synced.
    TailUnchecked,
    /// The superblock names a checkpoint that is not known to be durable.
    CheckpointTooEarly,
    /// Recovery takes in a group of which only the first units arrived.
    GroupCut,
    /// A write with a condition is written whatever is there.
    ConditionIgnored,
    /// A request of whose counters some were executed passes for a repetition.
    AnyForAll,
    /// What the operation windows say is ignored: a resend is executed again.
    WindowIgnored,
    /// A replay is applied whatever was written since.
    StaleReplay,
    /// An opening after a crash keeps the incarnation.
    ConstantIncarnation,
    /// What was read for one view is delivered to another. (The simulation of the whole system finds it: the store's own has one caller.)
    CompletionToAnotherView,
}

impl PlantedFault {
    /// Those that only show where requests are sent again.
    pub const RESENDS: [PlantedFault; 4] = [
        PlantedFault::AnyForAll,
        PlantedFault::WindowIgnored,
        PlantedFault::StaleReplay,
        PlantedFault::ConstantIncarnation,
    ];

    /// All others.
    pub const ALL: [PlantedFault; 10] = [
        PlantedFault::CheckpointTooEarly,
        PlantedFault::SyncLeftOut,
        PlantedFault::TableTooEarly,
        PlantedFault::StaleUnitReplayed,
        PlantedFault::VersionReclaimedTooSoon,
        PlantedFault::SegmentReusedTooSoon,
        PlantedFault::OneSuperblockForBoth,
        PlantedFault::TailUnchecked,
        PlantedFault::GroupCut,
        PlantedFault::ConditionIgnored,
    ];
}

/// Which fault a store was opened with: none, but in a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted(Option<PlantedFault>);

impl Planted {
    /// This one. Only a build with the feature has this function.
    #[cfg(feature = "planted-faults")]
    pub fn fault(fault: PlantedFault) -> Planted {
        Planted(Some(fault))
    }

    /// Whether the store shall make this mistake.
    pub(crate) fn has(self, fault: PlantedFault) -> bool {
        cfg!(feature = "planted-faults") && self.0 == Some(fault)
    }

    /// [`PlantedFault::CompletionToAnotherView`]: now and then a read is answered to another caller. The upper bits of a token name
    /// the caller, and the simulation's first two views are callers 0 and 2.
    pub(crate) fn misdeliver(self, done: &mut [Completion]) {
        if !self.has(PlantedFault::CompletionToAnotherView) {
            return;
        }
        let is_due = |one: &&mut Completion| matches!(one.result, Ok(Outcome::Read(_))) && one.token.0 % 16 == 5;
        done.iter_mut().filter(is_due).for_each(|one| one.token.0 ^= 2 << 48);
    }
}
