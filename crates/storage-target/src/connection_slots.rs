//! Slots for a target's connections: how many there are for which kind of peer, and which connection is evicted for which.
//!
//! A connection *arrives* without having proven anything. It becomes *proven* by a channel or by CHAP, or it gets a *plain* session with
//! a volume by names that any peer can claim. A session that waits for a connection to recover it keeps a slot of its kind. Arriving and
//! plain ones together have a share of the slots, plain ones leave some of that to arriving ones, and where a slot is needed,
//! arriving ones are evicted first. Absent: which connection that is, which a worker decides.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Limits;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// A connection that is logging in, or a discovery session that has proven nothing.
    Arriving,
    /// A connection of a session with a volume, without a proof.
    Plain,
    /// A connection whose other end has proven who it is.
    Proven,
    /// A plain session without a connection.
    VacantPlain,
    /// A proven session without a connection.
    VacantProven,
}

/// Who needs a slot; determines who may be evicted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotNeed {
    /// A new connection: discovery sessions, then others that are arriving, then plain sessions without a connection.
    Arrival,
    /// A plain login: plain sessions without a connection.
    Plain,
    /// A login with a proof: sessions without a connection, plain ones first.
    Proven,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// One address has as many as it may without a proof.
    Address,
    /// All are taken, and none can be evicted.
    Full,
}

impl NoSlot {
    /// What the administrator can do about it.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            NoSlot::Address => "raise limits.connections_per_address_max if they are welcome",
            NoSlot::Full => "raise limits.connections_max (or limits.unauthenticated_percent) if it was welcome",
        }
    }
}

/// How many slots there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotLimits {
    total: usize,
    /// For arriving and plain ones together.
    unproven: usize,
    /// Of these, for arriving ones alone.
    arriving: usize,
    /// From one address, arriving and plain ones together.
    per_address: usize,
}

impl SlotLimits {
    pub(crate) fn of(limits: &Limits) -> SlotLimits {
        let total = limits.connections_max;
        let unproven = (total * usize::from(limits.unauthenticated_percent)).div_ceil(100);
        // A target for very few connections cannot keep one free.
        let arriving = if total < 4 { 0 } else { (unproven / 4).max(1) };
        SlotLimits { total, unproven, arriving, per_address: limits.connections_per_address_max }
    }
}

/// All slots of a target.
#[derive(Debug)]
pub(crate) struct ConnectionSlots(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    /// By [`SlotKind`].
    kinds: [usize; 5],
    by_address: HashMap<IpAddr, usize>,
    /// The same by worker.
    workers: Vec<[usize; 5]>,
}

/// One slot; given back when it is dropped, even if its worker fails.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    kind: SlotKind,
    worker: usize,
    /// Whose connection it is, if that counts for the address.
    address: Option<IpAddr>,
}

impl Counts {
    fn count(&self, kinds: &[SlotKind]) -> usize {
        kinds.iter().map(|kind| self.kinds[*kind as usize]).sum()
    }

    fn unproven(&self) -> usize {
        self.count(&[SlotKind::Arriving, SlotKind::Plain, SlotKind::VacantPlain])
    }

    fn total(&self) -> usize {
        self.kinds.iter().sum()
    }

    fn settled(&self) -> usize {
        self.total() - self.count(&[SlotKind::Arriving])
    }

    fn add(&mut self, kind: SlotKind, worker: usize) {
        self.kinds[kind as usize] += 1;
        self.workers[worker][kind as usize] += 1;
    }

    fn remove(&mut self, kind: SlotKind, worker: usize) {
        self.kinds[kind as usize] -= 1;
        self.workers[worker][kind as usize] -= 1;
    }

    fn leave_address(&mut self, address: IpAddr) {
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// A worker with a connection or session to evict; `worker` itself if it has one.
    fn evicted_from(&self, need: SlotNeed, worker: usize) -> Option<usize> {
        let kinds = need.evicts();
        kinds.iter().filter(|kind| self.kinds[**kind as usize] > 0).find_map(|kind| {
            let of = |index: &usize| self.workers[*index][*kind as usize];
            let most = (0..self.workers.len()).max_by_key(of).filter(|most| of(most) > 0);
            if of(&worker) > 0 { Some(worker) } else { most }
        })
    }
}

impl SlotNeed {
    /// In this order.
    fn evicts(self) -> &'static [SlotKind] {
        match self {
            SlotNeed::Arrival => &[SlotKind::Arriving, SlotKind::VacantPlain],
            SlotNeed::Plain => &[SlotKind::VacantPlain],
            SlotNeed::Proven => &[SlotKind::VacantPlain, SlotKind::VacantProven],
        }
    }
}

impl ConnectionSlots {
    pub(crate) fn new(workers: usize) -> ConnectionSlots {
        let workers = vec![[0; 5]; workers];
        ConnectionSlots(Mutex::new(Counts { kinds: [0; 5], by_address: HashMap::new(), workers }))
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.counts().count(&[SlotKind::Arriving, SlotKind::Plain, SlotKind::Proven])
    }

    /// A slot for a new connection, and the worker that has to evict one for it, if any. Until it has, there is one connection
    /// more than there are slots.
    pub(crate) fn arrive(
        self: &Arc<Self>,
        limits: &SlotLimits,
        from: IpAddr,
        worker: usize,
    ) -> Result<(ConnectionSlot, Option<usize>), NoSlot> {
        let address = network_of(from);
        let counts = &mut *self.counts();
        if counts.by_address.get(&address).is_some_and(|count| *count >= limits.per_address) {
            return Err(NoSlot::Address);
        }
        let is_full = counts.unproven() >= limits.unproven || counts.total() >= limits.total;
        let evicts = match is_full {
            true => Some(counts.evicted_from(SlotNeed::Arrival, worker).ok_or(NoSlot::Full)?),
            false => None,
        };
        counts.add(SlotKind::Arriving, worker);
        *counts.by_address.entry(address).or_default() += 1;
        let slot = ConnectionSlot { slots: Arc::clone(self), kind: SlotKind::Arriving, worker, address: Some(address) };
        Ok((slot, evicts))
    }

    /// A slot for a session that has lost its last connection: it had one until now.
    pub(crate) fn vacate(self: &Arc<Self>, is_proven: bool, worker: usize) -> ConnectionSlot {
        let kind = if is_proven { SlotKind::VacantProven } else { SlotKind::VacantPlain };
        self.counts().add(kind, worker);
        ConnectionSlot { slots: Arc::clone(self), kind, worker, address: None }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionSlot {
    pub(crate) fn kind(&self) -> SlotKind {
        self.kind
    }

    /// Its connection has proven its identity. The worker that has to evict one, if any.
    pub(crate) fn prove(&mut self, limits: &SlotLimits) -> Result<Option<usize>, NoSlot> {
        self.settle(SlotKind::Proven, SlotNeed::Proven, |counts| counts.settled() >= limits.total - limits.arriving)
    }

    /// Its connection gets a plain session with a volume. The worker that has to evict one, if any.
    pub(crate) fn begin_plain(&mut self, limits: &SlotLimits) -> Result<Option<usize>, NoSlot> {
        self.settle(SlotKind::Plain, SlotNeed::Plain, |counts| {
            let plain = counts.count(&[SlotKind::Plain, SlotKind::VacantPlain]);
            plain >= limits.unproven - limits.arriving || counts.settled() >= limits.total - limits.arriving
        })
    }

    fn settle(
        &mut self,
        kind: SlotKind,
        need: SlotNeed,
        is_full: impl FnOnce(&Counts) -> bool,
    ) -> Result<Option<usize>, NoSlot> {
        if self.kind != SlotKind::Arriving {
            return Ok(None);
        }
        let counts = &mut *self.slots.counts();
        let evicts = match is_full(counts) {
            true => Some(counts.evicted_from(need, self.worker).ok_or(NoSlot::Full)?),
            false => None,
        };
        counts.remove(self.kind, self.worker);
        counts.add(kind, self.worker);
        if kind == SlotKind::Proven
            && let Some(address) = self.address.take()
        {
            counts.leave_address(address);
        }
        self.kind = kind;
        Ok(evicts)
    }

    /// Its connection moved to another worker.
    pub(crate) fn move_to(&mut self, worker: usize) {
        let counts = &mut *self.slots.counts();
        counts.remove(self.kind, self.worker);
        counts.add(self.kind, worker);
        self.worker = worker;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let counts = &mut *self.slots.counts();
        counts.remove(self.kind, self.worker);
        if let Some(address) = self.address {
            counts.leave_address(address);
        }
    }
}

/// What counts as one address: over IPv6 the network, in which one host has as many addresses as it likes.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            const NETWORK: u128 = !0 << 64;
            Ipv6Addr::from_bits(address.to_bits() & NETWORK).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    //! Proves how slots are shared: what has proven nothing never takes the slots of what has.
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn limits(total: usize, per_address: usize) -> SlotLimits {
        let limits = Limits { connections_max: total, connections_per_address_max: per_address, ..Limits::default() };
        SlotLimits::of(&limits)
    }

    fn arrive(slots: &Arc<ConnectionSlots>, limits: &SlotLimits) -> Result<(ConnectionSlot, Option<usize>), NoSlot> {
        slots.arrive(limits, HERE, 0)
    }

    #[test]
    fn what_has_proven_nothing_has_a_share() {
        let (slots, limits) = (Arc::new(ConnectionSlots::new(2)), limits(16, 100));
        let arriving: Vec<ConnectionSlot> =
            (0..12).map(|_| arrive(&slots, &limits).unwrap()).map(|(slot, _)| slot).collect();
        let (newest, evicts) = arrive(&slots, &limits).unwrap();
        assert_eq!(evicts, Some(0), "three quarters are taken: an older one makes way");
        drop((arriving, newest));
        // Plain sessions leave a quarter of the share to those that arrive.
        let mut plain = Vec::new();
        for _ in 0..9 {
            let (mut slot, _) = arrive(&slots, &limits).unwrap();
            assert_eq!(slot.begin_plain(&limits), Ok(None));
            plain.push(slot);
        }
        let (mut tenth, _) = arrive(&slots, &limits).unwrap();
        assert_eq!(tenth.begin_plain(&limits), Err(NoSlot::Full));
        // Who proves something takes the rest, and leaves those slots too.
        let mut proven = Vec::new();
        while let (mut slot, None) = arrive(&slots, &limits).unwrap()
            && slot.prove(&limits) == Ok(None)
        {
            proven.push(slot);
        }
        assert_eq!((plain.len(), proven.len()), (9, 4));
        assert_eq!(arrive(&slots, &limits).map(|(_, evicts)| evicts), Ok(None), "there is room to arrive");
        drop((plain, proven, tenth));
        assert_eq!(slots.connections(), 0);
        assert!(slots.counts().by_address.is_empty());
    }

    #[test]
    fn a_recoverable_session_with_a_proof_evicts_only_for_one_with_a_proof() {
        let (slots, limits) = (Arc::new(ConnectionSlots::new(2)), limits(8, 100));
        let vacant: Vec<ConnectionSlot> = (0..7).map(|_| slots.vacate(true, 1)).collect();
        let (first, _) = arrive(&slots, &limits).unwrap();
        // All slots are taken: the next one is given the slot of the one before it.
        let (mut second, evicts) = arrive(&slots, &limits).unwrap();
        assert_eq!(evicts, Some(0));
        drop(first);
        assert_eq!(second.begin_plain(&limits), Err(NoSlot::Full));
        assert_eq!(second.prove(&limits), Ok(Some(1)), "the worker with the vacant sessions");
        drop((vacant, second));
        let _plain = slots.vacate(false, 1);
        let others: Vec<ConnectionSlot> = (0..7).map(|_| slots.vacate(true, 0)).collect();
        assert_eq!(arrive(&slots, &limits).map(|(_, evicts)| evicts), Ok(Some(1)), "the plain one");
        drop(others);
    }

    #[test]
    fn an_address_has_no_more_than_its_share_until_it_proves_something() {
        let (slots, limits) = (Arc::new(ConnectionSlots::new(1)), limits(64, 3));
        let mut held: Vec<ConnectionSlot> = (0..3).map(|_| arrive(&slots, &limits).unwrap().0).collect();
        assert_eq!(arrive(&slots, &limits).map(drop), Err(NoSlot::Address));
        assert!(slots.arrive(&limits, "192.0.2.2".parse().unwrap(), 0).is_ok());
        held[0].prove(&limits).unwrap();
        let fourth = arrive(&slots, &limits).unwrap();
        held[1].begin_plain(&limits).unwrap();
        assert_eq!(arrive(&slots, &limits).map(drop), Err(NoSlot::Address), "names prove nothing");
        drop(fourth);
        assert!(arrive(&slots, &limits).is_ok());
        let of = |address: &str| network_of(address.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), HERE);
    }
}
