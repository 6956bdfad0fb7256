//! Connections: bytes in both directions that arrive late, in pieces, damaged, or not at all.

use std::collections::{BTreeMap, VecDeque};

use super::clock::{MICRO, Time};
use crate::Random;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Initiator,
    Target,
}

impl End {
    fn other(self) -> End {
        match self {
            End::Initiator => End::Target,
            End::Target => End::Initiator,
        }
    }
}

/// What arrives at an end.
#[derive(Debug)]
pub(super) enum Arrival {
    Bytes(Vec<u8>),
    /// The connection is over.
    Closed,
}

#[derive(Default)]
struct Way {
    arrivals: VecDeque<(Time, Arrival)>,
    /// Nothing that is sent arrives any more, and nobody is told.
    is_silent: bool,
    is_closed: bool,
}

impl Way {
    fn push(&mut self, at: Time, arrival: Arrival) {
        let at = self.arrivals.back().map_or(at, |(last, _)| at.max(*last));
        self.is_closed |= matches!(arrival, Arrival::Closed);
        self.arrivals.push_back((at, arrival));
    }
}

/// The two ways of a connection, by the end at which they arrive.
struct Connection {
    to_initiator: Way,
    to_target: Way,
    /// When the next piece is damaged, towards which end.
    damage: Option<End>,
    /// Something was damaged on the way.
    was_damaged: bool,
}

impl Connection {
    fn way(&mut self, to: End) -> &mut Way {
        match to {
            End::Initiator => &mut self.to_initiator,
            End::Target => &mut self.to_target,
        }
    }
}

/// All connections.
pub(super) struct Network {
    random: Random,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// The longest that a piece takes, in nanoseconds.
    pub(super) delay_max: Time,
}

impl Network {
    pub(super) fn new(random: Random, delay_max: Time) -> Network {
        Network { random, connections: BTreeMap::new(), next: 1, delay_max }
    }

    /// A new connection.
    pub(super) fn connect(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        let (to_initiator, to_target) = (Way::default(), Way::default());
        self.connections.insert(id, Connection { to_initiator, to_target, damage: None, was_damaged: false });
        id
    }

    fn delay(&mut self) -> Time {
        // Now and then something takes much longer.
        let most = if self.random.once_in(50) { 20 * self.delay_max } else { self.delay_max };
        10 * MICRO + self.random.below(most)
    }

    /// Sends bytes from an end.
    pub(super) fn send(&mut self, now: Time, id: u64, from: End, mut bytes: Vec<u8>) {
        let first = now + self.delay();
        let second = first + self.delay();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let to = from.other();
        if connection.damage == Some(to) && !bytes.is_empty() {
            (connection.damage, connection.was_damaged) = (None, true);
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.random.below(8);
        }
        let way = connection.way(to);
        if way.is_silent || way.is_closed || bytes.is_empty() {
            return;
        }
        if self.random.once_in(3) && bytes.len() > 1 {
            let rest = bytes.split_off(1 + self.random.below(bytes.len() as u64 - 1) as usize);
            way.push(first, Arrival::Bytes(bytes));
            way.push(second, Arrival::Bytes(rest));
        } else {
            way.push(first, Arrival::Bytes(bytes));
        }
    }

    /// An end closes in order: the other one learns of it behind what was sent.
    pub(super) fn close(&mut self, now: Time, id: u64, from: End) {
        let at = now + self.delay();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let way = connection.way(from.other());
        if !way.is_silent && !way.is_closed {
            way.push(at, Arrival::Closed);
        }
        let back = connection.way(from);
        back.arrivals.clear();
        back.is_closed = true;
    }

    /// Cuts a connection: a part of what is on its way still arrives, and then each end learns that it is over, one perhaps much later.
    pub(super) fn cut(&mut self, now: Time, id: u64) {
        let late = if self.random.once_in(3) { 20 * self.delay_max } else { self.delay_max };
        for to in [End::Initiator, End::Target] {
            let at = now + self.random.below(late + 1);
            let random = &mut self.random;
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let way = connection.way(to);
            if way.is_closed || way.is_silent {
                continue;
            }
            let kept = random.below(way.arrivals.len() as u64 + 1) as usize;
            if let Some((_, Arrival::Bytes(bytes))) = way.arrivals.get_mut(kept) {
                bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
                way.arrivals.truncate(kept + 1);
            }
            way.push(at, Arrival::Closed);
        }
    }

    /// Makes a connection half-open: from now on nothing arrives at one end, or at both, and nobody is told.
    pub(super) fn silence(&mut self, id: u64) {
        let which = self.random.below(3);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if which != 0 {
            connection.to_initiator.is_silent = true;
            connection.to_initiator.arrivals.clear();
        }
        if which != 1 {
            connection.to_target.is_silent = true;
            connection.to_target.arrivals.clear();
        }
    }

    /// Damages one bit of what is sent next, one way.
    pub(super) fn damage(&mut self, id: u64) {
        let to = if self.random.once_in(2) { End::Initiator } else { End::Target };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.damage = Some(to);
        }
    }

    /// Whether everything that is sent over a connection arrives as it was sent, both ways.
    pub(super) fn is_sound(&self, id: u64) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            let ways = [&connection.to_initiator, &connection.to_target];
            !connection.was_damaged && ways.iter().all(|way| !way.is_silent && !way.is_closed)
        })
    }

    /// Connections that neither end has left.
    pub(super) fn open(&self) -> Vec<u64> {
        let is_open = |one: &Connection| !one.to_initiator.is_closed && !one.to_target.is_closed;
        self.connections.iter().filter(|(_, one)| is_open(one)).map(|(id, _)| *id).collect()
    }

    /// When something arrives next.
    pub(super) fn next_arrival(&self) -> Option<Time> {
        let ways = self.connections.values().flat_map(|one| [&one.to_initiator, &one.to_target]);
        ways.filter_map(|way| way.arrivals.front().map(|(at, _)| *at)).min()
    }

    /// What has arrived.
    pub(super) fn arrived(&mut self, now: Time) -> Vec<(u64, End, Arrival)> {
        let mut arrived = Vec::new();
        for (id, connection) in &mut self.connections {
            for to in [End::Target, End::Initiator] {
                let way = connection.way(to);
                while way.arrivals.front().is_some_and(|(at, _)| *at <= now) {
                    let (_, arrival) = way.arrivals.pop_front().expect("looked at");
                    arrived.push((*id, to, arrival));
                }
            }
        }
        let is_over = |way: &Way| way.arrivals.is_empty() && way.is_closed;
        self.connections.retain(|_, one| !(is_over(&one.to_initiator) && is_over(&one.to_target)));
        arrived
    }

    /// Every connection of the target is gone with it.
    pub(super) fn target_crashed(&mut self, now: Time) {
        for id in self.connections.keys().copied().collect::<Vec<_>>() {
            self.cut(now, id);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.to_target.arrivals.clear();
                connection.to_target.is_closed = true;
            }
        }
    }
}
