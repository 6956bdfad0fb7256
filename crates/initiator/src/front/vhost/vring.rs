//! One queue of a guest: its rings, its notifications, and which of its requests are in flight.
//!
//! Requests are taken by one thread and answered by others. A guest whose driver breaks the rules breaks its queue: nothing more is taken from
//! it, and the log says why. A queue whose front end is gone is closed: requests that are in flight then end without an answer, and the in-flight
//! buffer keeps them for the next back end. Absent: what requests mean.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, MmapRegion, VolatileMemory};

use super::chain::{ChainError, GuestMemory, RequestChain, read_chain};
use super::inflight::{InflightError, InflightQueue};
use crate::completion::lock;

/// Why a queue cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum VringError {
    #[error("the front end has shared no memory")]
    NoMemory,
    #[error("a ring of {0} entries is not supported; see --queue-size")]
    Size(u32),
    #[error("its rings lie outside of the guest's memory")]
    Rings,
    #[error("the front end changes it while it is in use")]
    InUse,
    #[error("{0}")]
    Queue(virtio_queue::Error),
    #[error(
        "the guest has put descriptor {0} into the available ring, which the ring does not have or which is in flight"
    )]
    Head(u16),
    #[error("the guest's chain at descriptor {head} is wrong: {source}")]
    Chain { head: u16, source: ChainError },
    #[error("the guest's chain at descriptor {0} has no place for a status")]
    NoStatus(u16),
    #[error("{0}")]
    Inflight(#[from] InflightError),
    #[error("the front end's notification of it is broken")]
    Kick,
}

impl From<virtio_queue::Error> for VringError {
    fn from(error: virtio_queue::Error) -> VringError {
        VringError::Queue(error)
    }
}

/// The part of the in-flight buffer that is one queue's.
#[derive(Clone, Debug)]
pub(super) struct InflightRegion {
    pub(super) mapping: Arc<MmapRegion>,
    pub(super) offset: usize,
    pub(super) len_bytes: usize,
}

impl InflightRegion {
    fn bytes(&self) -> vm_memory::VolatileSlice<'_> {
        self.mapping.get_slice(self.offset, self.len_bytes).expect("regions are cut from the mapping")
    }

    fn queue(&self, entries: u16) -> InflightQueue<'_> {
        InflightQueue::at(self.bytes(), entries)
    }
}

/// See the module.
pub(super) struct Vring {
    index: usize,
    size_max: u16,
    ring: Mutex<RingState>,
    /// Nothing is in flight.
    idle: Condvar,
}

struct RingState {
    queue: Queue,
    memory: Option<Arc<GuestMemory>>,
    kick: Option<Arc<OwnedFd>>,
    call: Option<OwnedFd>,
    is_enabled: bool,
    /// The server ends; what is in flight is answered.
    is_paused: bool,
    is_broken: bool,
    /// The front end is gone.
    is_closed: bool,
    region: Option<InflightRegion>,
    /// Of the next request, in the in-flight buffer.
    counter: u64,
    /// Requests that another back end has left, still to be executed.
    left: VecDeque<u16>,
    /// By descriptor.
    is_in_flight: Vec<bool>,
    in_flight: usize,
}

impl fmt::Debug for Vring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vring").field("index", &self.index).finish_non_exhaustive()
    }
}

impl Vring {
    /// A queue of at most `size_max` entries, which is a power of two.
    pub(super) fn new(index: usize, size_max: u16) -> Vring {
        let queue = Queue::new(size_max).expect("the size is a power of two");
        let ring = Mutex::new(RingState {
            queue,
            memory: None,
            kick: None,
            call: None,
            is_enabled: false,
            is_paused: false,
            is_broken: false,
            is_closed: false,
            region: None,
            counter: 0,
            left: VecDeque::new(),
            is_in_flight: Vec::new(),
            in_flight: 0,
        });
        Vring { index, size_max, ring, idle: Condvar::new() }
    }

    pub(super) fn set_memory(&self, memory: &Arc<GuestMemory>) {
        lock(&self.ring).memory = Some(memory.clone());
    }

    /// # Errors
    /// A number of entries that is not supported, or it is in use.
    pub(super) fn set_size(&self, entries: u32) -> Result<(), VringError> {
        let size = u16::try_from(entries).ok().filter(|size| size.is_power_of_two() && *size <= self.size_max);
        self.stopped()?.queue.set_size(size.ok_or(VringError::Size(entries))?);
        Ok(())
    }

    /// # Errors
    /// Addresses that are not aligned.
    pub(super) fn set_addresses(
        &self,
        descriptors: GuestAddress,
        available: GuestAddress,
        used: GuestAddress,
    ) -> Result<(), VringError> {
        let queue = &mut lock(&self.ring).queue;
        queue.try_set_desc_table_address(descriptors)?;
        queue.try_set_avail_ring_address(available)?;
        queue.try_set_used_ring_address(used)?;
        Ok(())
    }

    /// Where the available ring is read from next.
    ///
    /// # Errors
    /// It is in use.
    pub(super) fn set_base(&self, base: u16) -> Result<(), VringError> {
        self.stopped()?.queue.set_next_avail(base);
        Ok(())
    }

    pub(super) fn set_event_index(&self, is_used: bool) {
        lock(&self.ring).queue.set_event_idx(is_used);
    }

    pub(super) fn set_enabled(&self, is_enabled: bool) {
        lock(&self.ring).is_enabled = is_enabled;
    }

    /// # Errors
    /// It is in use.
    pub(super) fn set_region(&self, region: InflightRegion) -> Result<(), VringError> {
        self.stopped()?.region = Some(region);
        Ok(())
    }

    fn stopped(&self) -> Result<MutexGuard<'_, RingState>, VringError> {
        Some(lock(&self.ring)).filter(|ring| !ring.queue.ready() && ring.in_flight == 0).ok_or(VringError::InUse)
    }

    /// How the guest is notified.
    pub(super) fn set_call(&self, call: Option<OwnedFd>) {
        let mut ring = lock(&self.ring);
        ring.call = call;
        if ring.queue.ready() {
            // The one before may have been lost with a back end that was killed.
            ring.notify();
        }
    }

    /// Begins, or goes on where a back end that was killed has left off. Requests are taken once it is enabled too.
    ///
    /// # Errors
    /// Its rings, or the in-flight buffer, cannot be used.
    pub(super) fn start(&self, kick: OwnedFd) -> Result<(), VringError> {
        let mut ring = lock(&self.ring);
        if !ring.queue.ready() {
            ring.start(self.index)?;
        }
        ring.kick = Some(Arc::new(kick));
        ring.notify();
        Ok(())
    }

    /// Takes no more requests, waits for those in flight, and returns where the available ring would be read from next.
    pub(super) fn stop(&self) -> u16 {
        let mut ring = lock(&self.ring);
        ring.queue.set_ready(false);
        let mut ring = self.until_idle(ring);
        ring.kick = None;
        ring.queue.next_avail()
    }

    /// Takes no more requests.
    pub(super) fn pause(&self) {
        lock(&self.ring).is_paused = true;
    }

    /// Takes no more requests and answers none.
    pub(super) fn close(&self) {
        lock(&self.ring).is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.ring).is_closed
    }

    /// Waits until nothing is in flight.
    pub(super) fn wait_until_idle(&self) {
        drop(self.until_idle(lock(&self.ring)));
    }

    fn until_idle<'a>(&self, ring: MutexGuard<'a, RingState>) -> MutexGuard<'a, RingState> {
        self.idle.wait_while(ring, |ring| ring.in_flight > 0).unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes readable when the guest has put requests into the available ring; `None` while none are taken.
    pub(super) fn kick(&self) -> Option<Arc<OwnedFd>> {
        let ring = lock(&self.ring);
        ring.is_serving().then(|| ring.kick.clone()).flatten()
    }

    /// The next request, and its descriptor.
    pub(super) fn take(&self) -> Option<(u16, RequestChain)> {
        let mut ring = lock(&self.ring);
        if !ring.is_serving() {
            return None;
        }
        ring.take().unwrap_or_else(|error| {
            ring.give_up(self.index, &error);
            None
        })
    }

    /// Asks to be notified of the next request. True: there is one already.
    pub(super) fn rearm(&self) -> bool {
        let mut ring = lock(&self.ring);
        let Some(memory) = ring.memory.clone().filter(|_| ring.is_serving()) else { return false };
        ring.queue.enable_notification(&*memory).unwrap_or_else(|error| {
            ring.give_up(self.index, &error.into());
            false
        })
    }

    /// Answers a request: the guest's memory has its status, and `written_bytes` in all.
    pub(super) fn answer(&self, head: u16, written_bytes: u32) {
        let mut ring = lock(&self.ring);
        if !ring.is_closed
            && let Err(error) = ring.answer(head, written_bytes)
        {
            ring.give_up(self.index, &error);
        }
        self.end(ring, head);
    }

    /// Ends a request without an answer: its queue is closed.
    pub(super) fn forget(&self, head: u16) {
        self.end(lock(&self.ring), head);
    }

    fn end(&self, mut ring: MutexGuard<'_, RingState>, head: u16) {
        ring.is_in_flight[usize::from(head)] = false;
        ring.in_flight -= 1;
        if ring.in_flight == 0 {
            drop(ring);
            self.idle.notify_all();
        }
    }

    /// Takes nothing more from it.
    pub(super) fn give_up(&self, error: &VringError) {
        lock(&self.ring).give_up(self.index, error);
    }
}

impl RingState {
    fn is_serving(&self) -> bool {
        self.queue.ready() && self.is_enabled && !self.is_paused && !self.is_broken && !self.is_closed
    }

    fn start(&mut self, index: usize) -> Result<(), VringError> {
        let memory = self.memory.clone().ok_or(VringError::NoMemory)?;
        self.queue.set_ready(true);
        if !self.queue.is_valid(&*memory) {
            self.queue.set_ready(false);
            return Err(VringError::Rings);
        }
        self.recover(index, &memory).inspect_err(|_| self.queue.set_ready(false))?;
        self.is_in_flight = vec![false; self.queue.size().into()];
        self.is_broken = false;
        Ok(())
    }

    fn recover(&mut self, index: usize, memory: &GuestMemory) -> Result<(), VringError> {
        let used_index = self.queue.used_idx(memory, Ordering::Acquire)?.0;
        self.queue.set_next_used(used_index);
        self.left.clear();
        let Some(region) = &self.region else { return Ok(()) };
        let recovery = InflightQueue::open(region.bytes(), self.queue.size())?.recover(used_index)?;
        if !recovery.heads.is_empty() {
            let requests = recovery.heads.len();
            tracing::info!(queue = index, requests, "executing requests again that were not answered");
        }
        // Everything that was taken is answered or in flight.
        self.queue.set_next_avail(used_index.wrapping_add(recovery.heads.len() as u16));
        self.counter = recovery.counter;
        self.left = recovery.heads.into();
        Ok(())
    }

    fn take(&mut self) -> Result<Option<(u16, RequestChain)>, VringError> {
        let memory = self.memory.clone().ok_or(VringError::NoMemory)?;
        let left = self.left.pop_front();
        let head = match left {
            Some(head) => head,
            None => match self.queue.iter(&*memory)?.next() {
                Some(chain) => chain.head_index(),
                None => return Ok(None),
            },
        };
        if self.is_in_flight.get(usize::from(head)) != Some(&false) {
            return Err(VringError::Head(head));
        }
        let table = GuestAddress(self.queue.desc_table());
        let chain =
            read_chain(&memory, table, self.queue.size(), head).map_err(|source| VringError::Chain { head, source })?;
        if chain.status.is_none() {
            return Err(VringError::NoStatus(head));
        }
        if let (None, Some(region)) = (left, &self.region) {
            region.queue(self.queue.size()).take(head, self.counter);
            self.counter = self.counter.wrapping_add(1);
        }
        self.is_in_flight[usize::from(head)] = true;
        self.in_flight += 1;
        Ok(Some((head, chain)))
    }

    fn answer(&mut self, head: u16, written_bytes: u32) -> Result<(), VringError> {
        let memory = self.memory.clone().ok_or(VringError::NoMemory)?;
        let size = self.queue.size();
        if let Some(region) = &self.region {
            region.queue(size).begin_answer(head);
        }
        self.queue.add_used(&*memory, head, written_bytes)?;
        if let Some(region) = &self.region {
            region.queue(size).end_answer(head, self.queue.next_used());
        }
        if self.queue.needs_notification(&*memory)? {
            self.notify();
        }
        Ok(())
    }

    fn notify(&self) {
        if let Some(call) = &self.call
            && let Err(error) = rustix::io::write(call, &1_u64.to_ne_bytes())
        {
            tracing::warn!(%error, "cannot notify a guest");
        }
    }

    fn give_up(&mut self, index: usize, error: &VringError) {
        if !self.is_broken {
            tracing::error!(
                queue = index,
                %error,
                "a queue of the guest is broken, and no more requests are taken from it until its device is reset"
            );
        }
        self.is_broken = true;
    }
}
