//! Places among a target's connections: how many there are for whom, and who makes way for whom.
//!
//! A connection *arrives* without having proven anything. It becomes *proven* by a channel or by CHAP, or it gets a *plain* session with
//! a volume by names that anybody can say. A session that waits for a connection to recover it keeps a place of its kind. Arriving and
//! plain ones together have a share of the places, plain ones leave some of that to arriving ones, and where a place is needed,
//! arriving ones make way first. Absent: which connection that is, which a worker decides.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Limits;

/// What a place is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceKind {
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

/// Who needs a place; says who may have to make way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceNeed {
    /// A new connection: discovery sessions, then others that are arriving, then plain sessions without a connection.
    Arrival,
    /// A plain login: plain sessions without a connection.
    Plain,
    /// A login with a proof: sessions without a connection, plain ones first.
    Proven,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// One address has as many as it may without a proof.
    Address,
    /// All are taken, and nobody has to make way.
    Full,
}

impl NoPlace {
    /// What the keeper of the target can do about it.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            NoPlace::Address => "raise limits.connections_per_address_max if they are welcome",
            NoPlace::Full => "raise limits.connections_max (or limits.unauthenticated_percent) if it was welcome",
        }
    }
}

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceLimits {
    total: usize,
    /// For arriving and plain ones together.
    unproven: usize,
    /// Of these, for arriving ones alone.
    arriving: usize,
    /// From one address, arriving and plain ones together.
    per_address: usize,
}

impl PlaceLimits {
    pub(crate) fn of(limits: &Limits) -> PlaceLimits {
        let total = limits.connections_max;
        let unproven = (total * usize::from(limits.unauthenticated_percent)).div_ceil(100);
        // A target for very few connections cannot keep one free.
        let arriving = if total < 4 { 0 } else { (unproven / 4).max(1) };
        PlaceLimits { total, unproven, arriving, per_address: limits.connections_per_address_max }
    }
}

/// All places of a target.
#[derive(Debug)]
pub(crate) struct Places(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    /// By [`PlaceKind`].
    kinds: [usize; 5],
    by_address: HashMap<IpAddr, usize>,
    /// The same by worker: who can be asked to make way.
    workers: Vec<[usize; 5]>,
}

/// One place; given back when it is dropped, even if its worker fails.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    kind: PlaceKind,
    worker: usize,
    /// Whose connection it is, if that counts for the address.
    address: Option<IpAddr>,
}

impl Counts {
    fn count(&self, kinds: &[PlaceKind]) -> usize {
        kinds.iter().map(|kind| self.kinds[*kind as usize]).sum()
    }

    fn unproven(&self) -> usize {
        self.count(&[PlaceKind::Arriving, PlaceKind::Plain, PlaceKind::VacantPlain])
    }

    fn total(&self) -> usize {
        self.kinds.iter().sum()
    }

    fn settled(&self) -> usize {
        self.total() - self.count(&[PlaceKind::Arriving])
    }

    fn add(&mut self, kind: PlaceKind, worker: usize) {
        self.kinds[kind as usize] += 1;
        self.workers[worker][kind as usize] += 1;
    }

    fn remove(&mut self, kind: PlaceKind, worker: usize) {
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

    /// A worker that has somebody who makes way; `worker` itself if it has.
    fn who_makes_way(&self, need: PlaceNeed, worker: usize) -> Option<usize> {
        let kinds = need.makes_way();
        kinds.iter().filter(|kind| self.kinds[**kind as usize] > 0).find_map(|kind| {
            let of = |index: &usize| self.workers[*index][*kind as usize];
            let most = (0..self.workers.len()).max_by_key(of).filter(|most| of(most) > 0);
            if of(&worker) > 0 { Some(worker) } else { most }
        })
    }
}

impl PlaceNeed {
    /// In this order.
    fn makes_way(self) -> &'static [PlaceKind] {
        match self {
            PlaceNeed::Arrival => &[PlaceKind::Arriving, PlaceKind::VacantPlain],
            PlaceNeed::Plain => &[PlaceKind::VacantPlain],
            PlaceNeed::Proven => &[PlaceKind::VacantPlain, PlaceKind::VacantProven],
        }
    }
}

impl Places {
    pub(crate) fn new(workers: usize) -> Places {
        let workers = vec![[0; 5]; workers];
        Places(Mutex::new(Counts { kinds: [0; 5], by_address: HashMap::new(), workers }))
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.counts().count(&[PlaceKind::Arriving, PlaceKind::Plain, PlaceKind::Proven])
    }

    /// A place for a new connection, and the worker that has to make way for it, if one does. Until it has, there is one connection
    /// more than there are places.
    pub(crate) fn arrive(
        self: &Arc<Self>,
        limits: &PlaceLimits,
        from: IpAddr,
        worker: usize,
    ) -> Result<(Place, Option<usize>), NoPlace> {
        let address = network_of(from);
        let counts = &mut *self.counts();
        if counts.by_address.get(&address).is_some_and(|count| *count >= limits.per_address) {
            return Err(NoPlace::Address);
        }
        let is_full = counts.unproven() >= limits.unproven || counts.total() >= limits.total;
        let makes_way = match is_full {
            true => Some(counts.who_makes_way(PlaceNeed::Arrival, worker).ok_or(NoPlace::Full)?),
            false => None,
        };
        counts.add(PlaceKind::Arriving, worker);
        *counts.by_address.entry(address).or_default() += 1;
        let place = Place { places: Arc::clone(self), kind: PlaceKind::Arriving, worker, address: Some(address) };
        Ok((place, makes_way))
    }

    /// A place for a session that has lost its last connection: it had one until now.
    pub(crate) fn vacate(self: &Arc<Self>, is_proven: bool, worker: usize) -> Place {
        let kind = if is_proven { PlaceKind::VacantProven } else { PlaceKind::VacantPlain };
        self.counts().add(kind, worker);
        Place { places: Arc::clone(self), kind, worker, address: None }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(crate) fn kind(&self) -> PlaceKind {
        self.kind
    }

    /// Its connection has proven who it is. The worker that has to make way, if one does.
    pub(crate) fn prove(&mut self, limits: &PlaceLimits) -> Result<Option<usize>, NoPlace> {
        self.settle(PlaceKind::Proven, PlaceNeed::Proven, |counts| counts.settled() >= limits.total - limits.arriving)
    }

    /// Its connection gets a plain session with a volume. The worker that has to make way, if one does.
    pub(crate) fn begin_plain(&mut self, limits: &PlaceLimits) -> Result<Option<usize>, NoPlace> {
        self.settle(PlaceKind::Plain, PlaceNeed::Plain, |counts| {
            let plain = counts.count(&[PlaceKind::Plain, PlaceKind::VacantPlain]);
            plain >= limits.unproven - limits.arriving || counts.settled() >= limits.total - limits.arriving
        })
    }

    fn settle(
        &mut self,
        kind: PlaceKind,
        need: PlaceNeed,
        is_full: impl FnOnce(&Counts) -> bool,
    ) -> Result<Option<usize>, NoPlace> {
        if self.kind != PlaceKind::Arriving {
            return Ok(None);
        }
        let counts = &mut *self.places.counts();
        let makes_way = match is_full(counts) {
            true => Some(counts.who_makes_way(need, self.worker).ok_or(NoPlace::Full)?),
            false => None,
        };
        counts.remove(self.kind, self.worker);
        counts.add(kind, self.worker);
        if kind == PlaceKind::Proven
            && let Some(address) = self.address.take()
        {
            counts.leave_address(address);
        }
        self.kind = kind;
        Ok(makes_way)
    }

    /// Its connection moved to another worker.
    pub(crate) fn move_to(&mut self, worker: usize) {
        let counts = &mut *self.places.counts();
        counts.remove(self.kind, self.worker);
        counts.add(self.kind, worker);
        self.worker = worker;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let counts = &mut *self.places.counts();
        counts.remove(self.kind, self.worker);
        if let Some(address) = self.address {
            counts.leave_address(address);
        }
    }
}

/// What counts as one address: over IPv6 the network, in which one host has as many addresses as it likes.
fn network_of(address: IpAddr) -> IpAddr {
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
    //! Proves how places are shared: what has proven nothing never takes the places of what has.
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn limits(total: usize, per_address: usize) -> PlaceLimits {
        let limits = Limits { connections_max: total, connections_per_address_max: per_address, ..Limits::default() };
        PlaceLimits::of(&limits)
    }

    fn arrive(places: &Arc<Places>, limits: &PlaceLimits) -> Result<(Place, Option<usize>), NoPlace> {
        places.arrive(limits, HERE, 0)
    }

    #[test]
    fn what_has_proven_nothing_has_a_share() {
        let (places, limits) = (Arc::new(Places::new(2)), limits(16, 100));
        let arriving: Vec<Place> = (0..12).map(|_| arrive(&places, &limits).unwrap()).map(|(place, _)| place).collect();
        let (newest, makes_way) = arrive(&places, &limits).unwrap();
        assert_eq!(makes_way, Some(0), "three quarters are taken: an older one makes way");
        drop((arriving, newest));
        // Plain sessions leave a quarter of the share to those that arrive.
        let mut plain = Vec::new();
        for _ in 0..9 {
            let (mut place, _) = arrive(&places, &limits).unwrap();
            assert_eq!(place.begin_plain(&limits), Ok(None));
            plain.push(place);
        }
        let (mut tenth, _) = arrive(&places, &limits).unwrap();
        assert_eq!(tenth.begin_plain(&limits), Err(NoPlace::Full));
        // Who proves something takes the rest, and leaves those places too.
        let mut proven = Vec::new();
        while let (mut place, None) = arrive(&places, &limits).unwrap()
            && place.prove(&limits) == Ok(None)
        {
            proven.push(place);
        }
        assert_eq!((plain.len(), proven.len()), (9, 4));
        assert_eq!(arrive(&places, &limits).map(|(_, makes_way)| makes_way), Ok(None), "there is room to arrive");
        drop((plain, proven, tenth));
        assert_eq!(places.connections(), 0);
        assert!(places.counts().by_address.is_empty());
    }

    #[test]
    fn a_recoverable_session_with_a_proof_makes_way_only_for_one_with_a_proof() {
        let (places, limits) = (Arc::new(Places::new(2)), limits(8, 100));
        let vacant: Vec<Place> = (0..7).map(|_| places.vacate(true, 1)).collect();
        let (first, _) = arrive(&places, &limits).unwrap();
        // All places are taken: the next one is given the place of the one before it.
        let (mut second, makes_way) = arrive(&places, &limits).unwrap();
        assert_eq!(makes_way, Some(0));
        drop(first);
        assert_eq!(second.begin_plain(&limits), Err(NoPlace::Full));
        assert_eq!(second.prove(&limits), Ok(Some(1)), "the worker with the vacant sessions");
        drop((vacant, second));
        let _plain = places.vacate(false, 1);
        let others: Vec<Place> = (0..7).map(|_| places.vacate(true, 0)).collect();
        assert_eq!(arrive(&places, &limits).map(|(_, makes_way)| makes_way), Ok(Some(1)), "the plain one");
        drop(others);
    }

    #[test]
    fn an_address_has_no_more_than_its_share_until_it_proves_something() {
        let (places, limits) = (Arc::new(Places::new(1)), limits(64, 3));
        let mut held: Vec<Place> = (0..3).map(|_| arrive(&places, &limits).unwrap().0).collect();
        assert_eq!(arrive(&places, &limits).map(drop), Err(NoPlace::Address));
        assert!(places.arrive(&limits, "192.0.2.2".parse().unwrap(), 0).is_ok());
        held[0].prove(&limits).unwrap();
        let fourth = arrive(&places, &limits).unwrap();
        held[1].begin_plain(&limits).unwrap();
        assert_eq!(arrive(&places, &limits).map(drop), Err(NoPlace::Address), "names prove nothing");
        drop(fourth);
        assert!(arrive(&places, &limits).is_ok());
        let of = |address: &str| network_of(address.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), HERE);
    }
}
