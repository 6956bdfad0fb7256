//! Reading the entries of a unit: all of them, or what one record block says of a single version.

use super::{
    BASE, BLOCK_HEADER, ENTRY_HEADER, Entry, KIND_BLOCKS, KIND_CATALOGUE, KIND_CHANGE, KIND_CONDITIONAL_BLOCK,
    KIND_CONDITIONAL_HOLE, KIND_HOLE, KIND_OPERATION, KIND_REGISTRATION, KIND_TABLE, KIND_VERIFIED, KIND_WINDOWS,
    LogAddress, TABLE_ROW, UNIT_HEADER, UnitFault, UnitHeader, VERIFIED_PAIR, operations, record_block_generation,
    record_block_intact, zeros,
};
use crate::layout::{Layout, RECORD_BLOCK, SEQUENCES, be_u16, be_u32, be_u64};

/// What a version of a block was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// Written unconditionally.
    Itself,
    /// Written on condition of a version that was, or was made by further writes on a condition from, the version or hole with this
    /// sequence. 0: that is not known.
    Of(u64),
}

/// What an intact record block says of the version whose item is at this byte of it. `None`: it has no such item.
pub(crate) fn base_of(record_block: &[u8], item_at: usize, sequence: u64, layout: &Layout) -> Option<Base> {
    let start = if be_u16(record_block, 4) == 0 { UNIT_HEADER } else { BLOCK_HEADER };
    let (mut entries, mut data_index) = (Vec::new(), 0);
    decode_block_entries(record_block, start, 0, &mut data_index, layout, &mut entries).ok()?;
    entries.into_iter().find_map(|entry| match entry {
        Entry::Blocks { sequence: first, count, item_at: first_at, base, .. } => {
            let nth = (item_at as u64).checked_sub(u64::from(first_at))? / u64::from(layout.item_bytes);
            let is_it = nth < u64::from(count) && first + nth == sequence;
            is_it.then_some(base.map_or(Base::Itself, Base::Of))
        }
        _ => None,
    })
}

/// Reads all entries of a unit from its record blocks, of which the first is already known to be intact.
///
/// # Errors
/// [`UnitFault`] if any record block is not intact or says what cannot be.
pub(crate) fn decode_entries<'a>(
    records: &'a [u8],
    header: &UnitHeader,
    place: LogAddress,
    layout: &Layout,
) -> Result<Vec<Entry<'a>>, UnitFault> {
    if records.len() != usize::from(header.record_blocks) * RECORD_BLOCK {
        return Err(UnitFault("record blocks are missing"));
    }
    for (index, block) in records.chunks_exact(RECORD_BLOCK).enumerate() {
        let place = LogAddress { block: place.block + index as u32, ..place };
        let same_unit = be_u16(block, 4) as usize == index
            && be_u16(block, 6) == header.record_blocks
            && record_block_generation(block) == header.generation
            && be_u64(block, 24) == header.lsn;
        if !same_unit || !record_block_intact(block, place) {
            return Err(UnitFault("a record block is damaged"));
        }
    }
    intact_entries(records, header, layout)
}

/// As [`decode_entries`], of record blocks that are all known to be intact.
///
/// # Errors
/// [`UnitFault`] if any says what cannot be.
pub(crate) fn intact_entries<'a>(
    records: &'a [u8],
    header: &UnitHeader,
    layout: &Layout,
) -> Result<Vec<Entry<'a>>, UnitFault> {
    let mut entries = Vec::new();
    let mut data_index = 0;
    for (index, block) in records.chunks_exact(RECORD_BLOCK).enumerate() {
        let start = if index == 0 { UNIT_HEADER } else { BLOCK_HEADER };
        decode_block_entries(block, start, index * RECORD_BLOCK, &mut data_index, layout, &mut entries)?;
    }
    if entries.len() != header.entries as usize {
        return Err(UnitFault("the count of entries does not fit"));
    }
    let data = u64::from(data_index) * u64::from(layout.block_bytes);
    if data.next_multiple_of(RECORD_BLOCK as u64) != u64::from(header.data_bytes) {
        return Err(UnitFault("the length of the data does not fit"));
    }
    Ok(entries)
}

/// Bytes of the items of an entry.
fn items_len(kind: u8, count: u16, layout: &Layout) -> Result<usize, UnitFault> {
    Ok(match kind {
        KIND_BLOCKS => usize::from(count) * layout.item_bytes as usize,
        KIND_CONDITIONAL_BLOCK if count == 1 => layout.item_bytes as usize + BASE,
        KIND_HOLE | KIND_CONDITIONAL_HOLE => 8 + usize::from(count),
        KIND_TABLE => usize::from(count) * TABLE_ROW,
        KIND_CATALOGUE | KIND_CHANGE | KIND_OPERATION | KIND_REGISTRATION | KIND_WINDOWS => usize::from(count),
        KIND_VERIFIED => usize::from(count) * VERIFIED_PAIR,
        _ => return Err(UnitFault("an entry of unknown kind")),
    })
}

/// An entry of blocks. `at`: where its first item is, and the index of its first block in the unit's data.
fn blocks<'a>(
    kind: u8,
    branch: u32,
    (lba, sequence): (u64, u64),
    count: u16,
    items: &'a [u8],
    (item_at, data_index): (u32, u32),
) -> Result<Entry<'a>, UnitFault> {
    let (items, base) = match kind {
        KIND_BLOCKS => (items, None),
        _ => (&items[..items.len() - BASE], Some(be_u64(items, items.len() - BASE))),
    };
    if base.is_some_and(|base| base >= sequence) {
        return Err(UnitFault("a block that was there before itself"));
    }
    let end = lba.checked_add(u64::from(count)).filter(|_| count > 0);
    let sequences = sequence.checked_add(u64::from(count)).filter(|&end| end <= SEQUENCES);
    end.and(sequences).ok_or(UnitFault("an impossible range of blocks"))?;
    Ok(Entry::Blocks { branch, lba, sequence, items, count: u32::from(count), item_at, data_index, base })
}

fn decode_block_entries<'a>(
    block: &'a [u8],
    mut at: usize,
    base: usize,
    data_index: &mut u32,
    layout: &Layout,
    entries: &mut Vec<Entry<'a>>,
) -> Result<(), UnitFault> {
    while at + ENTRY_HEADER <= RECORD_BLOCK && block[at] != 0 {
        let count = be_u16(block, at + 2);
        let (first, second) = (be_u64(block, at + 8), be_u64(block, at + 16));
        if block[at + 1] != 0 {
            return Err(UnitFault("a reserved byte of an entry is not zero"));
        }
        let branch = be_u32(block, at + 4);
        let items_at = at + ENTRY_HEADER;
        let len = items_len(block[at], count, layout)?;
        let items = block.get(items_at..items_at + len).ok_or(UnitFault("an entry runs over its record block"))?;
        let item_at = (base + items_at) as u32;
        entries.push(match block[at] {
            kind @ (KIND_BLOCKS | KIND_CONDITIONAL_BLOCK) => {
                let at = (item_at, *data_index);
                *data_index += u32::from(count);
                blocks(kind, branch, (first, second), count, items, at)?
            }
            kind @ (KIND_HOLE | KIND_CONDITIONAL_HOLE) => {
                let hole = be_u64(items, 0);
                first.checked_add(hole).filter(|_| hole > 0).ok_or(UnitFault("an impossible hole"))?;
                Entry::Hole {
                    branch,
                    start: first,
                    count: hole,
                    sequence: second,
                    record: &items[8..],
                    item_at,
                    is_conditional: kind == KIND_CONDITIONAL_HOLE,
                }
            }
            KIND_CHANGE => Entry::Change { branch, sequence: second, bytes: items },
            KIND_VERIFIED => Entry::Verified { branch, pairs: items },
            KIND_CATALOGUE => Entry::Catalogue { at: first, total: second, bytes: items },
            KIND_WINDOWS => Entry::Windows { at: first, total: second, bytes: items },
            kind @ (KIND_OPERATION | KIND_REGISTRATION) => operations::decode(kind, branch, (first, second), items)?,
            _ => Entry::Table { rows: items },
        });
        let end = items_at + len;
        at = end.next_multiple_of(8);
        if !zeros(&block[end..at]) {
            return Err(UnitFault("the padding of an entry is not zeros"));
        }
    }
    if !zeros(&block[at.min(RECORD_BLOCK)..]) {
        return Err(UnitFault("the rest of a record block is not zeros"));
    }
    Ok(())
}
