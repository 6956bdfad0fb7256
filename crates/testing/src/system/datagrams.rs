//! Datagrams of associations: lost, late, out of order, repeated, damaged, or too long for the path.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use strongroom_block::Buffer;
use strongroom_ecl::{Datagram, Transmit};

use super::clock::{MICRO, SECOND, Time};
use super::layout::{initiator_address, target_address};
use super::profile::Profile;
use crate::Random;

/// What the path takes: each of the packet sizes of ECL, one that a tunnel makes shorter, and a jumbo frame. The blocks of the simulation are so
/// short that packets fit all of them; `sim_ecl` has longer ones.
const PATH_BYTES: [usize; 6] = [700, 1300, 1472, 2300, 4300, 9000];

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Initiator,
    Target,
}

impl End {
    /// The one that hears what this one says.
    pub(super) fn other(self) -> End {
        match self {
            End::Initiator => End::Target,
            End::Target => End::Initiator,
        }
    }
}

/// How bad the path is. Shares are in thousandths.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathConditions {
    pub(super) lost: u64,
    pub(super) repeated: u64,
    pub(super) damaged: u64,
    pub(super) delay_max: Time,
    /// Repeated packets come up to this much later.
    pub(super) repeat_delay_max: Time,
    pub(super) packet_bytes_max: usize,
    /// Each packet comes again when this many behind it have arrived.
    pub(super) repeats_behind: Option<usize>,
}

impl PathConditions {
    /// Nothing goes wrong.
    fn good(delay_max: Time) -> PathConditions {
        PathConditions {
            lost: 0,
            repeated: 0,
            damaged: 0,
            delay_max,
            repeat_delay_max: 0,
            packet_bytes_max: PATH_BYTES[1],
            repeats_behind: None,
        }
    }

    /// Of a run.
    pub(super) fn choose(random: &mut Random, profile: Profile, delay_max: Time) -> PathConditions {
        if profile == Profile::Replays {
            let repeats_behind = Some(strongroom_ecl::REPLAY_WINDOW as usize);
            // Nothing is too long either: packets are counted.
            let packet_bytes_max = PATH_BYTES[PATH_BYTES.len() - 1];
            return PathConditions { repeats_behind, packet_bytes_max, ..PathConditions::good(delay_max) };
        }
        // Or there are as many losses as congestion control can live with.
        let lost = if profile == Profile::Datagrams { 100 } else { 60 };
        PathConditions {
            lost: random.below(lost),
            repeated: random.below(100),
            damaged: random.below(30),
            repeat_delay_max: [MICRO, 500 * MICRO, SECOND / 10][random.below(3) as usize],
            packet_bytes_max: PATH_BYTES[random.below(PATH_BYTES.len() as u64) as usize],
            ..PathConditions::good(delay_max)
        }
    }
}

/// What happened on the path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PathCounts {
    pub(super) lost: u64,
    pub(super) repeated: u64,
    pub(super) damaged: u64,
    pub(super) too_long: u64,
}

/// A packet on its way, in the pieces in which it was sent.
#[derive(Clone, Debug)]
struct Flying {
    association: u64,
    to: End,
    source: SocketAddr,
    /// The same for each copy of it.
    number: u64,
    head: Vec<u8>,
    payload: Buffer,
}

impl Flying {
    fn arrived(self) -> Arrived {
        let Flying { association, to, source, number, head, payload } = self;
        // As a driver receives it: in two pieces where it was sent in two.
        let datagram = Datagram { rest: payload, ..Datagram::whole(source, head) };
        Arrived { association, at: to, number, datagram }
    }
}

/// A packet that has arrived.
pub(super) struct Arrived {
    pub(super) association: u64,
    pub(super) at: End,
    /// The same for each copy of it.
    pub(super) number: u64,
    pub(super) datagram: Datagram,
}

/// See the module.
pub(super) struct Datagrams {
    random: Random,
    conditions: PathConditions,
    flying: BTreeMap<(Time, u64), Flying>,
    sent: u64,
    /// Packets of which a copy was used.
    used: HashSet<u64>,
    /// The last packets that arrived, by association and end, where they come again.
    old: HashMap<(u64, bool), VecDeque<Flying>>,
    /// Associations of which nothing arrives any more, by the end that hears nothing.
    silent: BTreeSet<(u64, bool)>,
    pub(super) counts: PathCounts,
}

impl Datagrams {
    pub(super) fn new(random: Random, conditions: PathConditions) -> Datagrams {
        let (flying, silent) = (BTreeMap::new(), BTreeSet::new());
        let (used, old) = (HashSet::new(), HashMap::new());
        Datagrams { random, conditions, flying, sent: 0, used, old, silent, counts: PathCounts::default() }
    }

    /// Sends a packet of an association from an end; `initiator`: whose.
    pub(super) fn send(&mut self, now: Time, (association, initiator): (u64, u64), from: End, packet: Transmit) {
        let (to, source) = match from {
            End::Initiator => (End::Target, initiator_address(initiator)),
            End::Target => (End::Initiator, target_address()),
        };
        if packet.len_bytes() > self.conditions.packet_bytes_max {
            self.counts.too_long += 1;
            return;
        }
        if self.silent.contains(&(association, to == End::Target)) {
            return;
        }
        let Transmit { head, payload } = packet;
        self.sent += 1;
        let flying = Flying { association, to, source, number: self.sent, head, payload };
        if self.random.below(1000) < self.conditions.repeated {
            self.counts.repeated += 1;
            let late = self.random.below(self.conditions.repeat_delay_max + 1);
            self.put(now + self.conditions.delay_max + late, flying.clone());
        }
        if self.random.below(1000) < self.conditions.lost {
            self.counts.lost += 1;
            if self.random.once_in(3) {
                // So late that it counts as lost: it was sent again, and may be of a transfer that is over.
                let late = self.random.below(self.conditions.repeat_delay_max + 1);
                self.put(now + self.conditions.delay_max + late, flying);
            }
            return;
        }
        let delay = match self.conditions.repeats_behind {
            // In order.
            Some(_) => self.conditions.delay_max,
            None => self.random.below(self.conditions.delay_max),
        };
        self.put(now + 10 * MICRO + delay, flying);
    }

    fn put(&mut self, at: Time, mut flying: Flying) {
        if self.random.below(1000) < self.conditions.damaged {
            self.counts.damaged += 1;
            let len = (flying.head.len() + flying.payload.len()) as u64;
            let (at, bit) = (self.random.below(len) as usize, 1 << self.random.below(8));
            match at.checked_sub(flying.head.len()) {
                None => flying.head[at] ^= bit,
                Some(at) => {
                    let mut payload = flying.payload.to_vec();
                    payload[at] ^= bit;
                    flying.payload = Buffer::copy_from(&payload);
                }
            }
        }
        self.sent += 1;
        self.flying.insert((at, self.sent), flying);
    }

    /// From now on nothing of an association arrives at one end, or at both.
    pub(super) fn silence(&mut self, association: u64) {
        let which = self.random.below(3);
        for (is_target, not_of) in [(false, 0), (true, 1)] {
            if which != not_of {
                self.silent.insert((association, is_target));
            }
        }
    }

    /// Whether packets of an association arrive, but for those that are lost.
    pub(super) fn is_sound(&self, association: u64) -> bool {
        !self.silent.contains(&(association, false)) && !self.silent.contains(&(association, true))
    }

    /// The path takes longer packets, or only shorter ones.
    pub(super) fn change_path(&mut self) {
        self.conditions.packet_bytes_max = PATH_BYTES[self.random.below(PATH_BYTES.len() as u64) as usize];
    }

    /// Nothing goes wrong from now on.
    pub(super) fn heal(&mut self) {
        self.conditions = PathConditions::good(self.conditions.delay_max);
    }

    /// When something arrives next.
    pub(super) fn next_arrival(&self) -> Option<Time> {
        self.flying.keys().next().map(|(at, _)| *at)
    }

    /// What has arrived.
    pub(super) fn arrived(&mut self, now: Time) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        while let Some(first) = self.flying.first_entry().filter(|first| first.key().0 <= now) {
            let flying = first.remove();
            let again = self.old_one(&flying);
            arrived.push(flying.arrived());
            arrived.extend(again.map(Flying::arrived));
        }
        arrived
    }

    /// Keeps a packet that arrives; the one that is as far behind it as packets are repeated.
    fn old_one(&mut self, arriving: &Flying) -> Option<Flying> {
        let behind = self.conditions.repeats_behind?;
        let old = self.old.entry((arriving.association, arriving.to == End::Target)).or_default();
        old.push_back(arriving.clone());
        let again = if old.len() > behind { old.pop_front() } else { None };
        self.counts.repeated += u64::from(again.is_some());
        again
    }

    /// A copy of a packet was used.
    ///
    /// # Panics
    /// If another one was before.
    pub(super) fn used(&mut self, number: u64) {
        assert!(self.used.insert(number), "a packet is used twice");
    }
}
