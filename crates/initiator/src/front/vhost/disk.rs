//! The disk that a guest sees: how its requests become requests of the device, and how the guest is answered.
//!
//! Absent: queues, and the front end's messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_block::{BlockDevice, BufferMut, Geometry, Request};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK};
use vm_memory::{Bytes, GuestMemoryError};

use super::chain::{RequestChain, fuzz_chains};
use super::config::VhostOptions;
use super::request::{BlockRequest, HEADER_BYTES, RequestError, SectorRange, VolumeLimits};
use super::vring::Vring;
use crate::front::block_range::{ByteRange, Zeros};
use crate::front::credit::{Cost, Credit, CreditLimits};
use crate::front::pending::{Asker, Operation, OperationError, Pending};

/// What one guest may have in flight.
const CREDIT_LIMITS: CreditLimits = CreditLimits { requests_max: 1024, bytes_max: 32 << 20 };
/// Up to this many bytes are copied into the guest's memory by the device's own thread: less work than waking another.
const IN_PLACE_BYTES_MAX: u64 = 64 << 10;

/// The guest of one front end.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) credit: Credit,
    /// It does not flush: what is answered has to be durable.
    pub(super) is_write_through: AtomicBool,
}

impl Guest {
    pub(super) fn new() -> Guest {
        Guest { credit: Credit::new(CREDIT_LIMITS), is_write_through: AtomicBool::new(false) }
    }
}

/// See the module.
pub(super) struct ServedDisk {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) pending: Arc<Pending<WaitingGuest>>,
    pub(super) options: VhostOptions,
}

/// A request that is executed, and how it is answered.
#[derive(Debug)]
pub(super) struct WaitingGuest {
    guest: Arc<Guest>,
    ring: Arc<Vring>,
    head: u16,
    chain: RequestChain,
    cost: Cost,
    /// Of the blocks that a read gets, how much lies before what is wanted.
    skip_bytes: usize,
}

impl ServedDisk {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    pub(super) fn limits(&self) -> VolumeLimits {
        VolumeLimits { size_bytes: self.geometry().bytes(), read_only: self.options.read_only }
    }

    /// Executes a request of a guest, which is answered now or later. Waits while the guest has too much in flight, and for the device.
    pub(super) fn execute(&self, guest: &Arc<Guest>, ring: &Arc<Vring>, head: u16, chain: RequestChain) {
        let request = decode(&chain, self.limits());
        let block_bytes = self.geometry().block_size.bytes().into();
        let needed = request.map_or(0, |request| request.memory_bytes(block_bytes));
        // Before there is memory for it.
        let Some(cost) = guest.credit.acquire(needed) else { return ring.forget(head) };
        let (guest, ring) = (guest.clone(), ring.clone());
        let waiting = WaitingGuest { guest, ring, head, chain, cost, skip_bytes: 0 };
        match request {
            Ok(request) => self.start(request, waiting),
            Err(error) => waiting.refuse(error),
        }
    }

    fn start(&self, request: BlockRequest, waiting: WaitingGuest) {
        let fua = waiting.guest.is_write_through.load(Ordering::Relaxed);
        match request {
            BlockRequest::Read { offset, len_bytes } => self.read(self.range(offset, len_bytes), waiting),
            BlockRequest::Write { offset, len_bytes } => self.write(self.range(offset, len_bytes), fua, waiting),
            BlockRequest::Flush => self.submit(Operation::plain(waiting), std::iter::once(Request::Flush)),
            BlockRequest::Identify => waiting.identify(&self.options.serial),
            BlockRequest::Discard { ranges_bytes } => {
                let ranges = waiting.ranges(ranges_bytes);
                match ranges.and_then(|bytes| SectorRange::decode_discard(&bytes, self.limits())) {
                    Ok(ranges) => self.discard(ranges, fua, waiting),
                    Err(error) => waiting.refuse(error),
                }
            }
            BlockRequest::WriteZeroes { ranges_bytes } => {
                let ranges = waiting.ranges(ranges_bytes);
                match ranges.and_then(|bytes| SectorRange::decode_zeroes(&bytes, self.limits())) {
                    Ok(ranges) => self.write_zeroes(ranges, fua, waiting),
                    Err(error) => waiting.refuse(error),
                }
            }
        }
    }

    fn range(&self, offset: u64, len_bytes: u64) -> ByteRange {
        ByteRange { geometry: self.geometry(), offset, len_bytes }
    }

    fn submit(&self, operation: Operation<WaitingGuest>, requests: impl Iterator<Item = Request>) {
        self.pending.submit(&*self.device, operation, requests);
    }

    fn read(&self, range: ByteRange, mut waiting: WaitingGuest) {
        waiting.skip_bytes = range.skip_bytes();
        let requests = range.reads();
        let is_long = range.len_bytes > IN_PLACE_BYTES_MAX;
        self.submit(Operation::read(waiting, requests.len(), is_long), requests);
    }

    fn write(&self, range: ByteRange, fua: bool, waiting: WaitingGuest) {
        let mut data = BufferMut::to_fill(range.len_bytes as usize);
        let chain = &waiting.chain;
        // What the guest changes from here on is not seen.
        if chain.readable.read(&chain.memory, HEADER_BYTES as u64, &mut data).is_err() {
            return waiting.refuse(RequestError::Memory);
        }
        self.submit(Operation::plain(waiting), range.writes(&data.freeze(), fua));
    }

    /// Only whole blocks can be forgotten, and nothing is promised of the rest.
    fn discard(&self, ranges: Vec<SectorRange>, fua: bool, waiting: WaitingGuest) {
        let ranges = ranges.into_iter().map(|range| self.range(range.offset, range.len_bytes));
        self.submit(durable(waiting, fua), ranges.flat_map(|range| range.discards()));
    }

    fn write_zeroes(&self, ranges: Vec<SectorRange>, fua: bool, waiting: WaitingGuest) {
        let requests = ranges.into_iter().flat_map(|SectorRange { offset, len_bytes, may_unmap }| {
            let zeros = if may_unmap { Zeros::Discarded } else { Zeros::Written };
            self.range(offset, len_bytes).zeros(zeros, fua)
        });
        self.submit(durable(waiting, fua), requests);
    }
}

/// A discard is not durable by itself.
fn durable(waiting: WaitingGuest, fua: bool) -> Operation<WaitingGuest> {
    if fua { Operation::flushed(waiting) } else { Operation::plain(waiting) }
}

fn decode(chain: &RequestChain, limits: VolumeLimits) -> Result<BlockRequest, RequestError> {
    if !chain.readable.lies_in(&chain.memory) || !chain.writable.lies_in(&chain.memory) {
        return Err(RequestError::Memory);
    }
    let out_bytes = chain.readable.len_bytes().checked_sub(HEADER_BYTES as u64).ok_or(RequestError::NoHeader)?;
    let mut header = [0; HEADER_BYTES];
    chain.readable.read(&chain.memory, 0, &mut header).map_err(|_| RequestError::Memory)?;
    BlockRequest::decode(&header, out_bytes, chain.writable.len_bytes(), limits)
}

/// What a guest's queue and memory with these bytes would come to. For fuzzing.
pub fn fuzz_guest(bytes: &[u8]) {
    let limits = VolumeLimits { size_bytes: 1 << 30, read_only: false };
    fuzz_chains(bytes, |chain| {
        if let Ok(BlockRequest::Read { offset, len_bytes } | BlockRequest::Write { offset, len_bytes }) =
            decode(chain, limits)
        {
            assert!(offset + len_bytes <= limits.size_bytes);
        }
    });
    for decode in [SectorRange::decode_discard, SectorRange::decode_zeroes] {
        for range in decode(bytes, limits).into_iter().flatten() {
            assert!(range.offset + range.len_bytes <= limits.size_bytes);
        }
    }
}

impl WaitingGuest {
    fn ranges(&self, len_bytes: usize) -> Result<Vec<u8>, RequestError> {
        let mut bytes = vec![0; len_bytes];
        let read = self.chain.readable.read(&self.chain.memory, HEADER_BYTES as u64, &mut bytes);
        read.map(|()| bytes).map_err(|_| RequestError::Memory)
    }

    /// The serial number, and zeros behind it.
    fn identify(&self, serial: &str) {
        let mut bytes = [0; VIRTIO_BLK_ID_BYTES as usize];
        let len = serial.len().min(bytes.len());
        bytes[..len].copy_from_slice(&serial.as_bytes()[..len]);
        let room = self.chain.writable.len_bytes().min(bytes.len() as u64) as usize;
        match self.chain.writable.write(&self.chain.memory, 0, &bytes[..room]) {
            Ok(()) => self.end(VIRTIO_BLK_S_OK as u8, room as u32),
            Err(_) => self.refuse(RequestError::Memory),
        }
    }

    fn refuse(&self, error: RequestError) {
        tracing::debug!(%error, "a guest's request is refused");
        self.end(error.status(), 0);
    }

    /// Copies what was read to where the guest wants it; returns how many bytes that are.
    fn deliver(&self, blocks: &[BufferMut]) -> Result<u32, GuestMemoryError> {
        let buffer = &self.chain.writable;
        if blocks.is_empty() || self.ring.is_closed() {
            return Ok(0);
        }
        let (mut skip, mut at) = (self.skip_bytes, 0);
        for block in blocks {
            let wanted = (buffer.len_bytes() - at).min((block.len() - skip) as u64);
            buffer.write(&self.chain.memory, at, &block[skip..skip + wanted as usize])?;
            (skip, at) = (0, at + wanted);
        }
        Ok(at as u32)
    }

    fn end(&self, status: u8, written_bytes: u32) {
        if let Some(at) = self.chain.status.filter(|_| !self.ring.is_closed()) {
            // It was checked when the chain was read; the queue would show that the status is missing.
            let _ = self.chain.memory.write_obj(status, at);
        }
        self.ring.answer(self.head, written_bytes + 1);
        self.guest.credit.release(self.cost);
    }
}

impl Asker for WaitingGuest {
    fn answer(&self, outcome: Result<Vec<BufferMut>, OperationError>) {
        match outcome.ok().and_then(|blocks| self.deliver(&blocks).ok()) {
            Some(written_bytes) => self.end(VIRTIO_BLK_S_OK as u8, written_bytes),
            None => self.end(VIRTIO_BLK_S_IOERR as u8, 0),
        }
    }

    fn is_gone(&self) -> bool {
        self.ring.is_closed()
    }
}
