//! Makes every write durable that was acknowledged before. The command itself is the same for each operation that ends with a flush, so
//! the engine builds it.

use strongroom_scsi::cdb;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Effect, Execute, UnitContext};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::losses::LostRequest;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct Flush;

/// SYNCHRONIZE CACHE.
pub(crate) fn build_flush(context: UnitContext<'_>) -> ScsiCommand {
    context.without_data(cdb::synchronize_cache_10())
}

impl Execute for Flush {
    fn effect(&self) -> Effect {
        Effect::Metadata
    }

    fn is_flush(&self) -> bool {
        true
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::flush()
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        build_flush(context.unit)
    }

    fn lost_request(&self, _: usize) -> Option<LostRequest> {
        Some(LostRequest::Flush)
    }
}
