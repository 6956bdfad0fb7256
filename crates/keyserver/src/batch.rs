//! One transaction: what changes, and the lines that the audit log gets for it. What a standby follows is a row of these.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use strongroom_block::SealingDomain;
use strongroom_seal::{KEY_BYTES, Secret};
use zeroize::Zeroizing;

use crate::audit::{AuditHead, AuditLine, LINE_BYTES};
use crate::keys::ShredKey;
use crate::volume::Volume;
use crate::wire::{Malformed, Put, Take};

/// Version 1, which is still read, had lines as text.
const BATCH_VERSION: u8 = 2;
/// Most of anything in one batch.
const ITEMS_MAX: usize = 1 << 20;

/// What a server is to its site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Role {
    /// Serves.
    Primary = 1,
    /// Follows a primary, and serves once it is promoted.
    Standby = 2,
    /// Was a primary, until another one took its place.
    Fenced = 3,
}

impl Role {
    pub(crate) fn from_number(number: u8) -> Option<Role> {
        [Role::Primary, Role::Standby, Role::Fenced].into_iter().find(|role| *role as u8 == number)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Primary => "primary",
            Role::Standby => "standby",
            Role::Fenced => "fenced",
        })
    }
}

/// What is stored at once, or not at all.
pub(crate) struct Batch {
    /// The how-manieth.
    pub(crate) sequence: u64,
    pub(crate) generation: u64,
    /// The longest that keys may be out for, in milliseconds.
    pub(crate) lease_ms: u64,
    pub(crate) lines: Vec<AuditLine>,
    /// The audit log's head with these lines.
    pub(crate) head: AuditHead,
    /// New contents; `None`: destroyed.
    pub(crate) volumes: Vec<(SealingDomain, Option<Volume>)>,
    /// Shred keys of epochs that the volumes have newly.
    pub(crate) slots: Vec<(u32, ShredKey)>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("sequence", &self.sequence).field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl Batch {
    /// Whether it is more than lines of the log.
    pub(crate) fn is_change(&self) -> bool {
        !self.volumes.is_empty()
    }

    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let records: Vec<_> = self.volumes.iter().map(|(_, volume)| volume.as_ref().map(Volume::encode)).collect();
        let lines: usize = self.lines.iter().map(|line| LINE_BYTES + line.text.len()).sum();
        let bytes: usize = records.iter().flatten().map(|record| record.len()).sum();
        let mut put = Put::with_capacity(128 + lines + bytes + 20 * records.len() + (4 + KEY_BYTES) * self.slots.len());
        put.u8(BATCH_VERSION)
            .u64(self.sequence)
            .u64(self.generation)
            .u64(self.lease_ms)
            .u64(self.head.lines)
            .bytes(&self.head.hash);
        put.u32(self.lines.len() as u32);
        self.lines.iter().for_each(|line| line.put(&mut put));
        put.u32(records.len() as u32);
        for ((domain, _), record) in self.volumes.iter().zip(&records) {
            put.bytes(&domain.0).block(record.as_ref().map_or(&[], |record| record));
        }
        put.u32(self.slots.len() as u32);
        for (slot, key) in &self.slots {
            put.u32(*slot).bytes(key.0.expose());
        }
        put.done()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Batch, Malformed> {
        let mut take = Take::new(bytes);
        let take_line = match take.u8()? {
            1 => AuditLine::take_text,
            BATCH_VERSION => AuditLine::take,
            _ => return Err(Malformed),
        };
        let (sequence, generation, lease_ms) = (take.u64()?, take.u64()?, take.u64()?);
        let head = AuditHead { lines: take.u64()?, hash: take.array()? };
        let lines = take.count(ITEMS_MAX, 2)?;
        let lines = (0..lines).map(|_| take_line(&mut take)).collect::<Result<_, _>>()?;
        let mut volumes = Vec::new();
        for _ in 0..take.count(ITEMS_MAX, 20)? {
            let (domain, record) = (SealingDomain(take.array()?), take.block()?);
            let volume = if record.is_empty() { None } else { Some(Volume::decode(record)?) };
            if volume.as_ref().is_some_and(|volume| volume.domain != domain) {
                return Err(Malformed);
            }
            volumes.push((domain, volume));
        }
        let mut slots = Vec::new();
        for _ in 0..take.count(ITEMS_MAX, 4 + KEY_BYTES)? {
            let (slot, key) = (take.u32()?, take.array()?);
            slots.push((slot, ShredKey(Secret::new(key))));
        }
        take.finish()?;
        Ok(Batch { sequence, generation, lease_ms, lines, head, volumes, slots })
    }
}

/// The slots that volumes use.
pub(crate) fn slots_of<'a>(volumes: impl IntoIterator<Item = &'a Volume>) -> BTreeSet<u32> {
    volumes.into_iter().flat_map(|volume| volume.epochs.values()).map(|epoch| epoch.slot).collect()
}
