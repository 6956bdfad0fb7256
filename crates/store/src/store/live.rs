//! What is live in a segment that was read: the entries of its units that the index still refers to.

use std::ops::Range;

use strongroom_block::{Buffer, keyless_checksum};

use super::volume::Volume;
use crate::holes::ItemPlace;
use crate::index::Version;
use crate::layout::{RECORD_BLOCK, item_checksum};
use crate::map::BlockMap;
use crate::segments::Segments;
use crate::unit::{Entry, LogAddress, decode_entries, decode_header};

/// Bytes of a segment, in pieces of the same length.
pub(super) struct Pieces {
    pieces: Vec<Buffer>,
    piece_bytes: usize,
    len: usize,
}

impl Pieces {
    #[cfg(test)]
    pub(super) fn whole(bytes: Buffer) -> Pieces {
        Pieces { piece_bytes: bytes.len().max(1), len: bytes.len(), pieces: vec![bytes] }
    }

    pub(super) fn new(pieces: Vec<Buffer>, piece_bytes: usize, len: usize) -> Pieces {
        Pieces { pieces, piece_bytes, len }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// These bytes. What lies in one piece is not copied.
    pub(super) fn slice(&self, range: Range<usize>) -> Buffer {
        let (piece, at) = (range.start / self.piece_bytes, range.start % self.piece_bytes);
        if at + range.len() <= self.piece_bytes {
            return self.pieces[piece].slice(at..at + range.len());
        }
        let mut bytes = Vec::with_capacity(range.len());
        let mut at = range.start;
        while at < range.end {
            let within = at % self.piece_bytes;
            let now = (self.piece_bytes - within).min(range.end - at);
            bytes.extend_from_slice(&self.pieces[at / self.piece_bytes][within..within + now]);
            at += now;
        }
        Buffer::copy_from(&bytes)
    }

    /// The item and the data of a block; `None` if they do not match.
    pub(super) fn block(&self, item_at: usize, data_at: usize, volume: &Volume) -> Option<(Buffer, Buffer)> {
        let item = self.slice(item_at..item_at + volume.layout.item_bytes as usize);
        let data = self.slice(data_at..data_at + volume.block_bytes());
        (keyless_checksum(&data) == item_checksum(&item)).then_some((item, data))
    }
}

/// Something live in a segment. Ranges are bytes of the segment as read.
pub(super) enum Live {
    Block { branch: u32, lba: u64, version: Version, item_at: usize, data_at: usize, base: Option<u64> },
    Hole { branch: u32, start: u64, sequence: u64, place: ItemPlace },
}

impl Live {
    pub(super) fn sequence(&self) -> u64 {
        match *self {
            Live::Block { version, .. } => version.sequence(),
            Live::Hole { sequence, .. } => sequence,
        }
    }
}

/// Everything live of a segment.
///
/// # Errors
/// What is damaged, in words.
pub(super) fn live_of(
    segment: u32,
    bytes: &Pieces,
    map: &BlockMap,
    segments: &Segments,
    volume: &Volume,
) -> Result<Vec<Live>, String> {
    let layout = &volume.layout;
    let mut live = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let block = (at / RECORD_BLOCK) as u32;
        let place = LogAddress { store_id: volume.info.store_id, segment, block };
        let header = decode_header(&bytes.slice(at..at + RECORD_BLOCK), place, layout)
            .filter(|header| header.generation == segments.segment(segment).generation)
            .ok_or_else(|| format!("no unit at block {block}"))?;
        let data_at = at + usize::from(header.record_blocks) * RECORD_BLOCK;
        if at + header.blocks() as usize * RECORD_BLOCK > bytes.len() {
            return Err("a unit runs over the segment's end".to_owned());
        }
        let records = bytes.slice(at..data_at);
        let entries = decode_entries(&records, &header, place, layout).map_err(|fault| fault.to_string())?;
        for entry in entries {
            push_live(segment, entry, (at, data_at), map, volume, &mut live);
        }
        at += header.blocks() as usize * RECORD_BLOCK;
    }
    Ok(live)
}

fn push_live(
    segment: u32,
    entry: Entry<'_>,
    (unit_at, data_at): (usize, usize),
    map: &BlockMap,
    volume: &Volume,
    live: &mut Vec<Live>,
) {
    let layout = &volume.layout;
    match entry {
        Entry::Blocks { branch, lba, sequence, count, item_at, data_index, base, .. } => {
            for index in 0..count {
                let lba = lba + u64::from(index);
                let item_at = unit_at + (item_at + index * layout.item_bytes) as usize;
                let data_at = data_at + ((data_index + index) * layout.block_bytes) as usize;
                let sequence = sequence + u64::from(index);
                let version = Version::new(layout, sequence, segment, data_at as u32, item_at as u32);
                if map.is_live(branch, lba, version) {
                    live.push(Live::Block { branch, lba, version, item_at, data_at, base });
                }
            }
        }
        Entry::Hole { branch, start, sequence, item_at, .. } => {
            let place = ItemPlace { segment, item_at: unit_at as u32 + item_at };
            if map.hole_at(branch, start, sequence, place).is_some() {
                live.push(Live::Hole { branch, start, sequence, place });
            }
        }
        Entry::Table { .. }
        | Entry::Catalogue { .. }
        | Entry::Windows { .. }
        | Entry::Change { .. }
        | Entry::Verified { .. }
        | Entry::Operation { .. }
        | Entry::Registration { .. } => {}
    }
}
