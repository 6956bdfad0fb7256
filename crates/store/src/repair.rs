//! Repair: what can be put right without keys, planned first, done only on demand, with the old bytes saved beside.
//!
//! A lost superblock copy is rewritten from the other one. A log that does not open, because its segment table or a unit
//! that counted is damaged, is rebuilt from the units that are left; that gives up data, so it needs consent. A damaged
//! block stays an error: its older versions are named by the check, and only who has the key can bring one back.

use std::fs::{File, OpenOptions as FileOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use strongroom_block::BufferMut;

use crate::backend::{Backend, Io, IoChoice, blocking};
use crate::error::StoreError;
use crate::layout::{RECORD_BLOCK, SUPERBLOCK_AT};
use crate::planted::Planted;
use crate::random::random;
use crate::recover::{Rebuilt, rebuild, recover, superblocks};
use crate::store::open_recovered;
use crate::superblock::Superblock;

/// What a repair may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairOptions {
    /// Do it; else only say what would be done.
    pub apply: bool,
    /// Also what gives up data.
    pub accept_data_loss: bool,
}

/// One thing to repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairStep {
    /// What is wrong and what is done about it.
    pub what: String,
    /// What that gives up; empty if nothing.
    pub loses: Vec<String>,
    /// Whether it was done.
    pub done: bool,
}

/// What there is to repair, and what was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairPlan {
    /// In the order in which they are done.
    pub steps: Vec<RepairStep>,
    /// Where the bytes are that were changed: (offset, length, bytes) one after the other, numbers of 8 bytes, big-endian.
    pub saved: Option<PathBuf>,
}

/// Where the old bytes go.
type Save<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

impl RepairPlan {
    /// Repairs the store in `dir`, which must not be open, or says what there is to repair. `progress` is told, if the log has to be read, how
    /// many of its bytes were, and how many it has.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::InUse`], [`StoreError::Io`]; [`StoreError::Superblock`] if both copies are
    /// lost: nothing can be told from the log without what they say.
    pub fn carry_out(
        dir: &Path,
        options: RepairOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RepairPlan, StoreError> {
        let (lock, (backend, _)) = crate::store::locked_log(dir, IoChoice::Buffered)?;
        let path = dir.join(format!("repair-{:016x}.saved", u64::from_be_bytes(random()?)));
        let mut file: Option<File> = None;
        let mut save = |offset: u64, bytes: &[u8]| {
            if file.is_none() {
                file = Some(FileOptions::new().write(true).create_new(true).mode(0o600).open(&path)?);
            }
            let file = file.as_mut().expect("just opened");
            file.write_all(&offset.to_be_bytes())?;
            file.write_all(&(bytes.len() as u64).to_be_bytes())?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        let mut plan = RepairPlan::carry_out_on(backend, options, &mut save, progress)?;
        plan.saved = file.is_some().then_some(path);
        drop(lock);
        Ok(plan)
    }

    /// Repairs the store on a backend. `save` is given everything that is changed, before it is.
    ///
    /// # Errors
    /// As [`RepairPlan::carry_out`].
    pub fn carry_out_on(
        mut backend: Box<dyn Backend>,
        options: RepairOptions,
        save: Save<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RepairPlan, StoreError> {
        let copies = superblocks(backend.as_mut());
        let (superblock, copy) = match copies {
            [Err(error), Err(_)] => return Err(error),
            [Err(error @ StoreError::Version { .. }), _] | [_, Err(error @ StoreError::Version { .. })] => {
                return Err(error);
            }
            [Ok(a), Ok(b)] if b.serial > a.serial => (b, 1),
            [Ok(a), Ok(_)] => (a, 0),
            [Ok(whole), Err(_)] => return RepairPlan::renew_superblock(backend, whole, 1, options, save, progress),
            [Err(_), Ok(whole)] => return RepairPlan::renew_superblock(backend, whole, 0, options, save, progress),
        };
        match recover(backend.as_mut(), 0, Planted::default()) {
            Ok(_) => Ok(RepairPlan::default()),
            Err(error @ (StoreError::Damaged { .. } | StoreError::Unreadable { .. })) => {
                let rebuilt = rebuild(backend.as_mut(), &superblock, copy, u64::from_be_bytes(random()?), progress)?;
                let step = RepairPlan::replace_table(backend, rebuilt, &error, options, save)?;
                Ok(RepairPlan { steps: vec![step], saved: None })
            }
            Err(error) => Err(error),
        }
    }

    /// Rewrites a lost copy of the superblock, then looks for more to repair.
    fn renew_superblock(
        mut backend: Box<dyn Backend>,
        whole: Superblock,
        lost: usize,
        options: RepairOptions,
        save: Save<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RepairPlan, StoreError> {
        let what = format!("superblock copy {lost} is damaged: it is rewritten from the other one");
        let mut step = RepairStep { what, loses: Vec::new(), done: false };
        let bytes = whole.encode(lost);
        if !options.apply {
            return Ok(RepairPlan { steps: vec![step], saved: None });
        }
        replace(backend.as_mut(), SUPERBLOCK_AT[lost], bytes, save)?;
        blocking(backend.as_mut(), Io::Sync).map_err(StoreError::io("syncing the superblock"))?;
        step.done = true;
        let mut plan = RepairPlan::carry_out_on(backend, options, save, progress)?;
        plan.steps.insert(0, step);
        Ok(plan)
    }

    /// Opens what could be rebuilt as a new epoch: that writes a segment table and both superblocks.
    fn replace_table(
        mut backend: Box<dyn Backend>,
        rebuilt: Rebuilt,
        error: &StoreError,
        options: RepairOptions,
        save: Save<'_>,
    ) -> Result<RepairStep, StoreError> {
        let Rebuilt { mut recovered, mut losses } = rebuilt;
        losses.push("blocks written there go back to what they held before; which ones is not known".to_owned());
        let what = format!("{error}. The segment table is rebuilt from the units that are intact");
        let mut step = RepairStep { what, loses: losses, done: false };
        if !options.apply || !options.accept_data_loss {
            return Ok(step);
        }
        for offset in SUPERBLOCK_AT {
            save_old(backend.as_mut(), offset, RECORD_BLOCK, save)?;
        }
        if let Some(segment) = recovered.segments.next() {
            let layout = recovered.superblock.layout();
            save_old(backend.as_mut(), layout.segment_at(segment), layout.segment_bytes as usize, save)?;
        }
        for filler in std::mem::take(&mut recovered.fillers) {
            replace(backend.as_mut(), filler.offset, filler.bytes, save)?;
        }
        blocking(backend.as_mut(), Io::Sync).map_err(StoreError::io("syncing the repaired log"))?;
        open_recovered(backend, recovered)?.close()?;
        step.done = true;
        Ok(step)
    }
}

fn save_old(backend: &mut dyn Backend, offset: u64, len: usize, save: Save<'_>) -> Result<(), StoreError> {
    let read = blocking(backend, Io::Read { offset, buffer: BufferMut::zeroed(len) });
    // What cannot be read cannot be saved, and is not lost by being written.
    if let Ok(Some(old)) = read {
        save(offset, &old).map_err(StoreError::io("saving what is replaced"))?;
    }
    Ok(())
}

fn replace(backend: &mut dyn Backend, offset: u64, bytes: BufferMut, save: Save<'_>) -> Result<(), StoreError> {
    save_old(backend, offset, bytes.len(), save)?;
    let write = Io::Write { offset, buffers: vec![bytes.freeze()] };
    blocking(backend, write).map(drop).map_err(StoreError::io("writing the repaired bytes"))
}
