//! Growing the volume: what a [`Growth`] does to the store.

use std::io;

use strongroom_block::Token;

use super::Store;
use super::growth::Growth;
use crate::layout::Layout;
use crate::op::{OpError, Outcome};

impl Store {
    /// Begins to grow the volume to `blocks`.
    pub(super) fn start_grow(&mut self, token: Token, blocks: u64, bytes: usize) -> Result<(), OpError> {
        self.requests.check_writable()?;
        if self.durability.growth.is_some() {
            return Err(OpError::Busy);
        }
        let old = self.durability.superblocks.current();
        if blocks < old.geometry.blocks {
            return Err(OpError::Misuse("a volume does not shrink; make a smaller one and copy"));
        }
        if blocks == old.geometry.blocks {
            self.requests.complete(token, bytes, Ok(Outcome::Changed));
            return Ok(());
        }
        let growth = Growth::plan(token, bytes, blocks, old)?;
        let layout = Layout { segments: growth.segments, ..self.volume.layout };
        if let Err(error) = self.io.grow(layout.segment_at(growth.segments)) {
            if error.kind() != io::ErrorKind::StorageFull {
                tracing::error!(volume = %self.volume.info.volume_id, %error, "the medium does not grow");
            }
            return Err(OpError::NoSpace);
        }
        self.durability.growth = Some(growth);
        Ok(())
    }

    /// A superblock of a round is durable.
    pub(super) fn growth_synced(&mut self) {
        if let Some(growth) = self.durability.growth.take_if(Growth::superblock_synced) {
            self.volume.layout.segments = growth.segments;
            self.segments.grow(growth.segments);
            self.volume.info = self.durability.superblocks.current().info();
            self.requests.complete(growth.token, growth.bytes, Ok(Outcome::Changed));
        }
    }

    /// Fails a growth in progress. One that has reached a superblock may yet be found after a crash.
    pub(super) fn fail_growth(&mut self, error: OpError) -> bool {
        let Some(growth) = self.durability.growth.take() else { return false };
        self.requests.complete(growth.token, growth.bytes, Err(error));
        true
    }
}
