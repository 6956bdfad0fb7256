//! Faults that are planted on purpose, one at a time, so that the simulation can prove that it finds such faults.
//!
//! They are compiled in only with the feature `planted-faults`, which nothing but the tests of `strongroom-testing` enables
//! (the tidy test checks that); without it every question here is answered `false` at compile time.

use strongroom_block::Token;

use crate::view::View;

/// A mistake that a store could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A flush is answered without a sync.
    SyncLeftOut,
    /// The superblock names a segment table that is not known to be durable.
    TableTooEarly,
    /// Recovery replays any intact units that lie behind the end of a segment.
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
    /// A write with a condition is written without checking it.
    ConditionIgnored,
    /// A request of whose counters some were executed passes for a repetition.
    AnyForAll,
    /// What the operation windows say is ignored: a resend is executed again.
    WindowIgnored,
    /// A replay is applied although something was written since.
    StaleReplay,
    /// A replay passes for superseded by anything newer. (The simulation of the whole system finds it: it writes parts of blocks.)
    BaseIgnored,
    /// An opening after a crash keeps the incarnation.
    ConstantIncarnation,
    /// What was read for one view is delivered to another. (The simulation of the whole system finds it: the store's own has one caller.)
    CompletionToAnotherView,
    /// A read of a block that does not match its checksum is answered with the version before. (As above.)
    OlderForDamaged,
    /// A snapshot shows what the volume holds now. (As above.)
    SnapshotFollowsVolume,
    /// What a hole hides is hidden in one go, however much it is. (As above.)
    UnslicedHiding,
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

    /// The view whose contents the request of this token gets. [`PlantedFault::SnapshotFollowsVolume`]: a snapshot's are the volume's.
    /// [`PlantedFault::CompletionToAnotherView`]: now and then a clone gets what was read for the volume.
    pub(crate) fn shown(self, token: Token, view: View, is_read: bool) -> View {
        let follows = self.has(PlantedFault::SnapshotFollowsVolume) && matches!(view, View::Snapshot(_));
        let strays = self.has(PlantedFault::CompletionToAnotherView) && token.0 % 16 == 5;
        if is_read && (follows || strays) { View::default() } else { view }
    }
}
