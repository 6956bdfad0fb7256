//! Why a schedule of snapshots cannot be kept.

use strongroom_store::Op;

use super::KEPT_MAX;

/// A schedule that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Too short or too long.
    #[error("an interval is between one second and a year")]
    Interval,
    /// Nothing deletes snapshots.
    #[error(
        "without a rule of what to keep there would soon be too many snapshots; say --keep-last, --keep-daily or another"
    )]
    KeepsNothing,
    /// More are kept than a volume can have.
    #[error("a volume has at most {} snapshots; keep at most {KEPT_MAX}", Op::SNAPSHOTS_MAX)]
    KeepsTooMany,
}
