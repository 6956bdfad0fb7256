//! Damage to one of two: a superblock copy, or a segment table. The other one must do.

use strongroom_store::Survey;

use super::run::Run;

impl Run {
    /// After a crash: damages one superblock copy, if the other one is whole, or one block of one of the two segment tables that the
    /// better copy names. Nothing that was flushed may be lost by it.
    pub(super) fn damage_one_of_two(&mut self) {
        let survey = Survey::of_backend(&mut self.disk.backend(true));
        let [Ok(first), Ok(second)] = &survey.superblocks else { return };
        let (superblock, table) = (self.random.once_in(2), self.random.once_in(2));
        if superblock {
            let offset = if table { first.offset } else { second.offset };
            self.disk.flip(offset + self.random.below(200), self.random.below(8) as u8);
            self.seen.damaged_superblocks += 1;
            return;
        }
        let better = if first.serial > second.serial { first } else { second };
        // A new store has one.
        let Some(offset) = better.second_table_offset else { return };
        let offset = if table { better.table_offset } else { offset };
        match self.random.once_in(2) {
            true => self.disk.overwrite(offset, &[0x5a; 4096]),
            false => self.disk.flip(offset + self.random.below(128), self.random.below(8) as u8),
        }
        self.seen.damaged_tables += 1;
    }
}
