//! The network between two simulated ends: packets that are lost, late, repeated, damaged, or too long.

use std::collections::BTreeMap;

use strongroom_testing::Random;

/// Microseconds since the beginning.
pub(crate) type Micros = u64;

/// Which end a packet goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Initiator,
    Target,
}

/// A packet on its way, in the pieces in which it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Flying {
    pub(crate) to: End,
    pub(crate) head: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// How bad the network is. Shares are in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    pub(crate) damaged: u64,
    pub(crate) delay_max: Micros,
    /// Repeated packets come up to this much later.
    pub(crate) repeat_delay_max: Micros,
    pub(crate) packet_bytes_max: usize,
}

impl Conditions {
    pub(crate) const GOOD: Conditions =
        Conditions { lost: 0, repeated: 0, damaged: 0, delay_max: 200, repeat_delay_max: 200, packet_bytes_max: 9000 };
}

/// See the module.
pub(crate) struct Network {
    random: Random,
    pub(crate) conditions: Conditions,
    flying: BTreeMap<(Micros, u64), Flying>,
    sent: u64,
    pub(crate) damaged: u64,
    pub(crate) too_long: u64,
}

impl Network {
    pub(crate) fn new(random: Random, conditions: Conditions) -> Network {
        Network { random, conditions, flying: BTreeMap::new(), sent: 0, damaged: 0, too_long: 0 }
    }

    pub(crate) fn send(&mut self, now: Micros, flying: Flying) {
        let conditions = self.conditions;
        if flying.head.len() + flying.payload.len() > conditions.packet_bytes_max {
            self.too_long += 1;
            return;
        }
        if self.random.below(1000) < conditions.repeated {
            let delay = self.random.below(conditions.repeat_delay_max + 1);
            self.put(now + delay, flying.clone());
        }
        if self.random.below(1000) >= conditions.lost {
            let delay = 20 + self.random.below(conditions.delay_max + 1);
            self.put(now + delay, flying);
        }
    }

    fn put(&mut self, at: Micros, mut flying: Flying) {
        if self.random.below(1000) < self.conditions.damaged {
            self.damaged += 1;
            let len = (flying.head.len() + flying.payload.len()) as u64;
            let (at, bit) = (self.random.below(len) as usize, 1 << self.random.below(8));
            match at.checked_sub(flying.head.len()) {
                None => flying.head[at] ^= bit,
                Some(at) => flying.payload[at] ^= bit,
            }
        }
        self.sent += 1;
        self.flying.insert((at, self.sent), flying);
    }

    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.flying.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn arrival(&mut self, now: Micros) -> Option<Flying> {
        self.flying.first_entry().filter(|entry| entry.key().0 <= now).map(|entry| entry.remove())
    }
}
