//! Descriptor chains in the guest's memory, which the guest may change at any time: a chain is read once, checked, and used as it was read.
//!
//! The guest is not trusted. Lengths and addresses are checked against its memory before anything is copied, a chain has a limited number of
//! descriptors, and nothing is followed twice. Absent: what the bytes mean (`request`).

use std::sync::Arc;

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap};

/// The guest's memory, as its front end has shared it.
pub(super) type GuestMemory = GuestMemoryMmap<()>;

/// Descriptors of one chain.
pub(super) const DESCRIPTORS_MAX: usize = 1024;
const DESCRIPTOR_BYTES: u64 = 16;

/// Why a chain cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChainError {
    #[error("it names descriptor {index} of a table of {size}")]
    Index { index: u16, size: u16 },
    #[error("it has more than {max} descriptors, or is a loop")]
    TooLong { max: usize },
    #[error("its table at {0:#x} lies outside of the guest's memory")]
    Table(u64),
    #[error("an indirect table has {0} bytes, which is not a number of descriptors from 1 to {DESCRIPTORS_MAX}")]
    IndirectTable(u32),
    #[error("a descriptor of an indirect table, or one with a successor, refers to an indirect table")]
    NestedTable,
    #[error("a descriptor for the driver's data comes after one for the device's")]
    Order,
}

/// Pieces of the guest's memory, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestBuffer {
    pieces: Vec<(GuestAddress, u32)>,
    len_bytes: u64,
}

impl GuestBuffer {
    fn push(&mut self, descriptor: Descriptor) {
        if descriptor.len() > 0 {
            self.pieces.push((descriptor.addr(), descriptor.len()));
            self.len_bytes += u64::from(descriptor.len());
        }
    }

    /// Bytes of all pieces.
    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether all of it is memory.
    pub(super) fn lies_in(&self, memory: &GuestMemory) -> bool {
        self.pieces.iter().all(|(address, len)| {
            // `check_range` takes the last byte's successor for an address.
            address.checked_add(u64::from(*len)).is_some() && memory.check_range(*address, *len as usize)
        })
    }

    /// The parts of the pieces from `skip` on, at most `len` bytes, with where each begins in them.
    fn parts(&self, skip: u64, len: usize) -> impl Iterator<Item = (GuestAddress, std::ops::Range<usize>)> {
        let (mut skip, mut at) = (skip, 0);
        self.pieces.iter().filter_map(move |(address, piece)| {
            let skipped = skip.min(u64::from(*piece));
            skip -= skipped;
            let count = (u64::from(*piece) - skipped).min((len - at) as u64) as usize;
            let range = at..at + count;
            at = range.end;
            (count > 0).then(|| (GuestAddress(address.raw_value().saturating_add(skipped)), range))
        })
    }

    /// Copies bytes from `skip` on, as many as `bytes` has; they have to be there.
    pub(super) fn read(&self, memory: &GuestMemory, skip: u64, bytes: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.parts(skip, bytes.len()).try_for_each(|(address, range)| memory.read_slice(&mut bytes[range], address))
    }

    /// Copies `bytes` to where they fit from `skip` on.
    pub(super) fn write(&self, memory: &GuestMemory, skip: u64, bytes: &[u8]) -> Result<(), GuestMemoryError> {
        self.parts(skip, bytes.len()).try_for_each(|(address, range)| memory.write_slice(&bytes[range], address))
    }

    /// Takes its last byte away, and returns where that is.
    fn take_last_byte(&mut self) -> Option<GuestAddress> {
        let (address, len) = self.pieces.last_mut()?;
        *len -= 1;
        let last = GuestAddress(address.raw_value().checked_add(u64::from(*len))?);
        if *len == 0 {
            self.pieces.pop();
        }
        self.len_bytes -= 1;
        Some(last)
    }
}

/// A request, as the guest has laid it out.
#[derive(Debug)]
pub(super) struct RequestChain {
    /// Written by the driver: the header, and data.
    pub(super) readable: GuestBuffer,
    /// For data of the device.
    pub(super) writable: GuestBuffer,
    /// For the status, which is the chain's last byte; `None` if there is no place for it.
    pub(super) status: Option<GuestAddress>,
    /// Where all that is.
    pub(super) memory: Arc<GuestMemory>,
}

/// Reads the chain that begins at descriptor `head` of the table of `size` descriptors at `table`.
///
/// # Errors
/// [`ChainError`]: the guest's driver is wrong.
pub(super) fn read_chain(
    memory: &Arc<GuestMemory>,
    table: GuestAddress,
    size: u16,
    head: u16,
) -> Result<RequestChain, ChainError> {
    let (mut table, mut size, mut index) = (table, size, head);
    let (mut readable, mut writable) = (GuestBuffer::default(), GuestBuffer::default());
    let mut is_indirect = false;
    let mut left = usize::from(size).min(DESCRIPTORS_MAX);
    loop {
        if index >= size {
            return Err(ChainError::Index { index, size });
        }
        let outside = || ChainError::Table(table.raw_value());
        let at = table.checked_add(DESCRIPTOR_BYTES * u64::from(index)).ok_or_else(outside)?;
        let descriptor: Descriptor = memory.read_obj(at).map_err(|_| outside())?;
        if descriptor.refers_to_indirect_table() {
            if is_indirect || descriptor.has_next() {
                return Err(ChainError::NestedTable);
            }
            let bytes = descriptor.len();
            let entries = usize::try_from(bytes).unwrap_or(usize::MAX) / DESCRIPTOR_BYTES as usize;
            if entries == 0 || entries > DESCRIPTORS_MAX || !u64::from(bytes).is_multiple_of(DESCRIPTOR_BYTES) {
                return Err(ChainError::IndirectTable(bytes));
            }
            (table, size, index, left, is_indirect) = (descriptor.addr(), entries as u16, 0, entries, true);
            continue;
        }
        if left == 0 {
            return Err(ChainError::TooLong { max: usize::from(size).min(DESCRIPTORS_MAX) });
        }
        left -= 1;
        if descriptor.is_write_only() {
            writable.push(descriptor);
        } else if writable.len_bytes() > 0 {
            return Err(ChainError::Order);
        } else {
            readable.push(descriptor);
        }
        if !descriptor.has_next() {
            break;
        }
        index = descriptor.next();
    }
    let status = writable.take_last_byte().filter(|status| memory.address_in_range(*status));
    Ok(RequestChain { readable, writable, status, memory: memory.clone() })
}

/// Reads every chain of a small memory with these bytes, as a queue's table and everything else, and decodes its request.
pub(super) fn fuzz_chains(bytes: &[u8], decode: impl Fn(&RequestChain)) {
    const BYTES: usize = 4096;
    let Ok(memory) = GuestMemory::from_ranges(&[(GuestAddress(0), BYTES)]) else { return };
    let bytes = &bytes[..bytes.len().min(BYTES)];
    memory.write_slice(bytes, GuestAddress(0)).expect("it fits");
    let memory = Arc::new(memory);
    for head in 0..8 {
        if let Ok(chain) = read_chain(&memory, GuestAddress(0), 8, head) {
            decode(&chain);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves that chains are read as they are, that pieces are copied in their order, and that no chain of a guest is followed for ever.

    use super::*;

    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;
    const TABLE: GuestAddress = GuestAddress(0x1000);

    fn memory() -> Arc<GuestMemory> {
        Arc::new(GuestMemory::from_ranges(&[(GuestAddress(0), 0x10000), (GuestAddress(0x20000), 0x1000)]).unwrap())
    }

    fn place(memory: &GuestMemory, table: GuestAddress, descriptors: &[(u64, u32, u16, u16)]) {
        for (index, (address, len, flags, next)) in descriptors.iter().enumerate() {
            let at = GuestAddress(table.0 + 16 * index as u64);
            memory.write_obj(Descriptor::new(*address, *len, *flags, *next), at).unwrap();
        }
    }

    fn read(memory: &Arc<GuestMemory>, head: u16) -> Result<RequestChain, ChainError> {
        read_chain(memory, TABLE, 8, head)
    }

    #[test]
    fn pieces_are_copied_in_their_order() {
        let memory = memory();
        // A header in two pieces, data, an empty piece, and the status behind the data for the driver.
        let chain = [
            (0x3000, 10, NEXT, 1),
            (0x4000, 6, NEXT, 2),
            (0x5000, 4, NEXT, 4),
            (0, 0, 0, 0),
            (0xdead_0000_0000, 0, NEXT, 5),
            (0x6000, 3, NEXT | WRITE, 6),
            (0x7000, 6, WRITE, 0),
        ];
        place(&memory, TABLE, &chain);
        for (address, text) in [(0x3000, "0123456789"), (0x4000, "abcdef"), (0x5000, "DATA")] {
            memory.write_slice(text.as_bytes(), GuestAddress(address)).unwrap();
        }
        let chain = read(&memory, 0).unwrap();
        assert_eq!((chain.readable.len_bytes(), chain.writable.len_bytes()), (20, 8));
        assert_eq!(chain.status, Some(GuestAddress(0x7005)));
        assert!(chain.readable.lies_in(&memory) && chain.writable.lies_in(&memory));
        let mut bytes = [0; 9];
        chain.readable.read(&memory, 8, &mut bytes).unwrap();
        assert_eq!(&bytes, b"89abcdefD");
        chain.writable.write(&memory, 1, b"vwxyz").unwrap();
        let mut bytes = [0; 4];
        memory.read_slice(&mut bytes, GuestAddress(0x6000)).unwrap();
        assert_eq!(&bytes, b"\0vw\0");
        memory.read_slice(&mut bytes, GuestAddress(0x7000)).unwrap();
        assert_eq!(&bytes, b"xyz\0");
    }

    #[test]
    fn indirect_tables_are_followed_once() {
        let memory = memory();
        place(
            &memory,
            TABLE,
            &[(0x2000, 48, INDIRECT, 0), (0x2000, 40, INDIRECT, 0), (0x2000, 48, INDIRECT | NEXT, 0)],
        );
        place(
            &memory,
            GuestAddress(0x2000),
            &[(0x3000, 16, NEXT, 1), (0x4000, 8, WRITE | NEXT, 2), (0x5000, 1, WRITE, 0)],
        );
        let chain = read(&memory, 0).unwrap();
        assert_eq!((chain.readable.len_bytes(), chain.writable.len_bytes()), (16, 8));
        assert_eq!(chain.status, Some(GuestAddress(0x5000)));
        assert!(matches!(read(&memory, 1), Err(ChainError::IndirectTable(40))));
        assert!(matches!(read(&memory, 2), Err(ChainError::NestedTable)));
        place(&memory, GuestAddress(0x2000), &[(0x2000, 48, INDIRECT, 0)]);
        assert!(matches!(read(&memory, 0), Err(ChainError::NestedTable)));
        place(&memory, TABLE, &[(0x2000, 0, INDIRECT, 0), (0x2000, u32::MAX - 15, INDIRECT, 0)]);
        assert!(matches!(read(&memory, 0), Err(ChainError::IndirectTable(0))));
        assert!(matches!(read(&memory, 1), Err(ChainError::IndirectTable(_))));
    }

    #[test]
    fn attack_vhost_user_chains_that_loop_or_lead_outside() {
        let memory = memory();
        place(&memory, TABLE, &[(0x3000, 16, NEXT, 1), (0x3000, 16, NEXT, 0)]);
        assert!(matches!(read(&memory, 0), Err(ChainError::TooLong { max: 8 })));
        place(&memory, TABLE, &[(0x3000, 16, NEXT, 8)]);
        assert!(matches!(read(&memory, 0), Err(ChainError::Index { index: 8, size: 8 })));
        assert!(matches!(read(&memory, 4711), Err(ChainError::Index { index: 4711, size: 8 })));
        place(&memory, TABLE, &[(0x3000, 16, WRITE | NEXT, 1), (0x3000, 16, 0, 0)]);
        assert!(matches!(read(&memory, 0), Err(ChainError::Order)));
        for table in [GuestAddress(0xfff8), GuestAddress(u64::MAX - 4), GuestAddress(0x5000_0000)] {
            assert!(matches!(read_chain(&memory, table, 8, 0), Err(ChainError::Table(_))), "{table:?}");
        }
        // A loop in an indirect table.
        place(&memory, TABLE, &[(0x2000, 32, INDIRECT, 0)]);
        place(&memory, GuestAddress(0x2000), &[(0x3000, 16, NEXT, 1), (0x3000, 16, NEXT, 0)]);
        assert!(matches!(read(&memory, 0), Err(ChainError::TooLong { max: 2 })));
    }

    #[test]
    fn attack_vhost_user_addresses_outside_of_memory() {
        let memory = memory();
        for (address, len) in
            [(0xffff, 2), (0x15000, 1), (0x20000, 0x1001), (u64::MAX, 1), (u64::MAX - 1, 9), (0, u32::MAX)]
        {
            place(&memory, TABLE, &[(address, len, NEXT, 1), (0x6000, 1, WRITE, 0)]);
            let chain = read(&memory, 0).unwrap();
            assert!(!chain.readable.lies_in(&memory), "{address:#x} {len}");
            // Even if nobody had looked.
            let mut bytes = vec![0; (len as usize).min(0x20000)];
            assert!(chain.readable.read(&memory, 0, &mut bytes).is_err());
        }
        for (address, len) in [(0x10000, 1), (0xffff, 2), (u64::MAX, 1), (u64::MAX, 2)] {
            place(&memory, TABLE, &[(0x3000, 16, NEXT, 1), (address, len, WRITE, 0)]);
            assert_eq!(read(&memory, 0).unwrap().status, None, "{address:#x} {len}");
        }
        place(&memory, TABLE, &[(0x3000, 16, 0, 0)]);
        assert_eq!(read(&memory, 0).unwrap().status, None, "nothing to write the status to");
    }
}
