//! The operations: one type for each kind of request. A new one is a file here and a line in the list below.

pub(crate) mod capacity;
mod conditional_block;
pub(crate) mod conditional_write;
pub(crate) mod crypto_erase;
pub(crate) mod discard;
pub(crate) mod execute;
pub(crate) mod fetch;
pub(crate) mod flush;
pub(crate) mod hole;
pub(crate) mod lba_status;
pub(crate) mod probe_hole;
pub(crate) mod read;
pub(crate) mod read_version;
pub(crate) mod register;
pub(crate) mod reseal_block;
pub(crate) mod reseal_hole;
pub(crate) mod survey;
pub(crate) mod take_place;
pub(crate) mod verified;
pub(crate) mod write;
pub(crate) mod write_part;

use strongroom_block::{Buffer, BufferMut, DeviceError, IoKind, Lba};
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::losses::LostRequest;
use crate::pipeline::outcome::Outcome;
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::sealing::{SealedBlocks, Sealing};
use crate::pipeline::unflushed::Logged;
use crate::pipeline::write_order::Range;
use execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord, Next, UnitContext};

/// The sum of the operations. It passes every call on to the one that it is: no allocation and no dynamic dispatch for a command.
macro_rules! operations {
    ($($name:ident in $module:ident),* $(,)?) => {
        $(pub(crate) use $module::$name;)*

        /// A request: one of the operations.
        #[derive(Debug)]
        pub(crate) enum Operation {
            $($name($name),)*
        }

        $(impl From<$name> for Operation {
            fn from(operation: $name) -> Operation {
                Operation::$name(operation)
            }
        })*

        impl Execute for Operation {
            operations!(@ref effect() -> Effect; $($name)*);
            operations!(@ref range(block_bytes: usize) -> Range; $($name)*);
            operations!(@ref is_flush() -> bool; $($name)*);
            operations!(@ref is_supported(capabilities: &Capabilities) -> bool; $($name)*);
            operations!(@mut next_command(capabilities: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan; $($name)*);
            operations!(@ref build(plan: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand; $($name)*);
            operations!(@mut data_in(plan: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault>; $($name)*);
            operations!(@ref expected_bytes(plan: &CommandPlan, shift: u32) -> Option<u32>; $($name)*);
            operations!(@ref accepts_damage() -> bool; $($name)*);
            operations!(@ref measures_path() -> bool; $($name)*);
            operations!(@mut succeeded(plan: &CommandPlan, context: UnitContext<'_>) -> Next; $($name)*);
            operations!(@mut declined(plan: &CommandPlan, outcome: &Outcome, capabilities: &mut Capabilities) -> Next; $($name)*);
            operations!(@ref log_entry(plan: &CommandPlan, sealed: Option<SealedBlocks>, block_bytes: usize) -> Option<(Range, Logged)>; $($name)*);
            operations!(@mut restart() -> (); $($name)*);
            operations!(@mut refetch_from(plan: &mut CommandPlan, lba: Lba) -> (); $($name)*);
            operations!(@ref instead_of_lost_flush(is_sealed: bool) -> Option<CommandPlan>; $($name)*);
            operations!(@ref instead_of_stale(sealing: &Sealing) -> Option<CommandPlan>; $($name)*);
            operations!(@ref is_plain_write() -> bool; $($name)*);
            operations!(@ref plain_blocks(plan: &CommandPlan, block_bytes: usize) -> Option<Buffer>; $($name)*);
            operations!(@ref first_record(plan: &CommandPlan, block_bytes: usize) -> Option<FirstRecord>; $($name)*);
            operations!(@mut reseal(plan: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError>; $($name)*);
            operations!(@ref lost_request(block_bytes: usize) -> Option<LostRequest>; $($name)*);
            operations!(@own into_failed_read() -> Option<(Lba, BufferMut)>; $($name)*);
            operations!(@own answer() -> Answer; $($name)*);
        }
    };
    (@ref $method:ident($($argument:ident: $type:ty),*) -> $result:ty; $($name:ident)*) => {
        fn $method(&self, $($argument: $type),*) -> $result {
            operations!(@match self $method ($($argument),*) $($name)*)
        }
    };
    (@mut $method:ident($($argument:ident: $type:ty),*) -> $result:ty; $($name:ident)*) => {
        fn $method(&mut self, $($argument: $type),*) -> $result {
            operations!(@match self $method ($($argument),*) $($name)*)
        }
    };
    (@own $method:ident($($argument:ident: $type:ty),*) -> $result:ty; $($name:ident)*) => {
        fn $method(self, $($argument: $type),*) -> $result {
            operations!(@match self $method ($($argument),*) $($name)*)
        }
    };
    (@match $self:ident $method:ident $arguments:tt $($name:ident)*) => {
        match $self { $(Operation::$name(operation) => operation.$method $arguments,)* }
    };
}

operations! {
    Capacity in capacity,
    ConditionalWrite in conditional_write,
    CryptoErase in crypto_erase,
    Discard in discard,
    Fetch in fetch,
    Flush in flush,
    Hole in hole,
    LbaStatus in lba_status,
    ProbeHole in probe_hole,
    Read in read,
    ReadVersion in read_version,
    Register in register,
    ResealBlock in reseal_block,
    ResealHole in reseal_hole,
    Survey in survey,
    TakePlace in take_place,
    Verified in verified,
    Write in write,
    WritePart in write_part,
}

impl Operation {
    /// What its latency counts as.
    pub(crate) fn io_kind(&self) -> IoKind {
        match self {
            Operation::Read(_) | Operation::ReadVersion(_) | Operation::Fetch(_) => IoKind::Read,
            Operation::Write(_) => IoKind::Write,
            // A part of a block is read, changed, and written if the block is still the same.
            Operation::WritePart(_) | Operation::ConditionalWrite(_) | Operation::ResealBlock(_) => {
                IoKind::ConditionalWrite
            }
            Operation::Flush(_) => IoKind::Flush,
            Operation::Discard(_) | Operation::Hole(_) | Operation::ResealHole(_) => IoKind::Discard,
            Operation::Verified(_) => IoKind::Feedback,
            Operation::Capacity(_)
            | Operation::CryptoErase(_)
            | Operation::LbaStatus(_)
            | Operation::ProbeHole(_)
            | Operation::Register(_)
            | Operation::Survey(_)
            | Operation::TakePlace(_) => IoKind::Other,
        }
    }
}
