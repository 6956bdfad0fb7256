//! What goes wrong in a history, how often, and when.

use std::collections::BTreeMap;

use super::clock::{MILLI, Time};
use super::profile::Profile;
use crate::Random;

/// The store has time to tidy up this often.
const IDLE_EVERY: Time = 30 * MILLI;

/// What goes wrong in a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Troubles {
    /// How often each of them occurs, in nanoseconds on average.
    rates: BTreeMap<Trouble, Time>,
    /// The target closes its store in order, as soon as no session uses it, and opens it at the next login.
    pub(super) idle_close: bool,
    /// Bits flip anywhere on the disk while the store is closed.
    pub(super) rots_anywhere: bool,
    /// The disk fails to read while the store is opened.
    pub(super) failing_reads: bool,
}

/// Something that goes wrong at a time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// A connection is cut.
    Cut,
    /// A connection becomes half-open.
    Silence,
    /// A bit is flipped on the wire.
    Damage,
    /// The target crashes.
    Crash,
    /// The target ends all sessions, closes its store and begins again.
    Restart,
    /// LOGICAL UNIT RESET.
    Reset,
    /// CLEAR TASK SET.
    Abort,
    /// The target ends one session.
    EndSession,
    /// An initiator dies, and another one takes its place.
    Death,
    /// An initiator does not reach the target for longer than its writer lease lasts.
    Partition,
    /// An initiator does not reach the key server for a while.
    KeyServerAway,
    /// A key epoch begins.
    KeyEpoch,
    /// Snapshots are taken, checked and deleted.
    Snapshots,
    /// Persistent reservations change.
    Reservations,
    /// A bit of a block flips on the disk.
    Rot,
    /// The path of datagrams takes longer packets, or only shorter ones.
    Path,
    /// The store has time to tidy up.
    Idle,
}

impl Troubles {
    /// Those of a history.
    pub(super) fn choose(random: &mut Random, profile: Profile) -> Troubles {
        Troubles::of_everything(random).within(profile)
    }

    /// Some of everything.
    fn of_everything(random: &mut Random) -> Troubles {
        let all = [
            (Trouble::Cut, 2, 3 * MILLI, 20 * MILLI),
            (Trouble::Silence, 6, 20 * MILLI, 100 * MILLI),
            (Trouble::Damage, 6, 3 * MILLI, 30 * MILLI),
            (Trouble::Crash, 2, 10 * MILLI, 80 * MILLI),
            (Trouble::Restart, 5, 10 * MILLI, 60 * MILLI),
            (Trouble::Reset, 6, 5 * MILLI, 50 * MILLI),
            (Trouble::Abort, 6, 2 * MILLI, 30 * MILLI),
            (Trouble::EndSession, 6, 5 * MILLI, 50 * MILLI),
            (Trouble::Death, 6, 10 * MILLI, 80 * MILLI),
            (Trouble::KeyServerAway, 8, 10 * MILLI, 80 * MILLI),
            (Trouble::KeyEpoch, 5, 10 * MILLI, 60 * MILLI),
            (Trouble::Snapshots, 4, 2 * MILLI, 20 * MILLI),
            (Trouble::Reservations, 5, MILLI, 8 * MILLI),
            (Trouble::Rot, 6, 5 * MILLI, 40 * MILLI),
            (Trouble::Path, 4, 5 * MILLI, 60 * MILLI),
        ];
        let mut rates = BTreeMap::new();
        for (trouble, once_in, least, most) in all {
            let is_chosen = random.once_in(once_in);
            let average = least + random.below(most - least);
            if is_chosen {
                rates.insert(trouble, average);
            }
        }
        let idle_close = random.once_in(2);
        Troubles { rates, idle_close, rots_anywhere: false, failing_reads: random.once_in(5) }
    }

    /// Those of a profile, which has them in every run.
    fn within(self, profile: Profile) -> Troubles {
        let chosen = |trouble: Trouble| Some((trouble, *self.rates.get(&trouble)?));
        let always = |trouble: Trouble, every: Time| Some((trouble, every));
        let cut = chosen(Trouble::Cut).or(always(Trouble::Cut, 8 * MILLI));
        let crash = chosen(Trouble::Crash).or(always(Trouble::Crash, 20 * MILLI));
        let some = |rates: &[Option<(Trouble, Time)>]| Troubles {
            rates: rates.iter().flatten().copied().collect(),
            ..Troubles::default()
        };
        match profile {
            Profile::Everything | Profile::OneInitiator => self,
            Profile::Clones => some(&[always(Trouble::Snapshots, 4 * MILLI)]),
            Profile::Cuts => some(&[cut]),
            Profile::Closes => Troubles { idle_close: true, ..some(&[cut, always(Trouble::Restart, 15 * MILLI)]) },
            Profile::Crashes => some(&[crash]),
            Profile::Flushes => some(&[always(Trouble::Crash, 20 * MILLI)]),
            Profile::Rot => some(&[crash, always(Trouble::Rot, 6 * MILLI)]),
            Profile::RotAnywhere => Troubles {
                rots_anywhere: true,
                idle_close: true,
                ..some(&[crash, always(Trouble::Restart, 12 * MILLI), chosen(Trouble::Snapshots)])
            },
            Profile::Reservations => {
                let every = always(Trouble::Reservations, 2 * MILLI);
                let others = [Trouble::Cut, Trouble::Abort, Trouble::Restart].map(chosen);
                Troubles { idle_close: self.idle_close, ..some(&[&[crash, every][..], &others].concat()) }
            }
            Profile::Leases => {
                // A lease lasts much longer than anything else here.
                let rarely =
                    |trouble: Trouble, every: Time| self.rates.contains_key(&trouble).then_some((trouble, every));
                Troubles {
                    idle_close: self.idle_close,
                    ..some(&[
                        always(Trouble::Partition, 150 * MILLI),
                        always(Trouble::Cut, 100 * MILLI),
                        rarely(Trouble::Crash, 300 * MILLI),
                        rarely(Trouble::Restart, 300 * MILLI),
                        rarely(Trouble::Death, 300 * MILLI),
                        rarely(Trouble::Abort, 50 * MILLI),
                    ])
                }
            }
            Profile::Keys => some(&[
                cut,
                chosen(Trouble::Crash),
                always(Trouble::KeyEpoch, 8 * MILLI),
                chosen(Trouble::KeyServerAway),
            ]),
            Profile::Halves => some(&[cut, chosen(Trouble::Crash)]),
            Profile::ReplayedHalves => some(&[always(Trouble::Crash, 8 * MILLI)]),
            Profile::Datagrams => some(&[always(Trouble::Path, 20 * MILLI)]),
            Profile::Replays | Profile::Large => Troubles::default(),
        }
    }

    /// Whether the key server lends keys for a time only.
    pub(super) fn lends_keys(&self) -> bool {
        [Trouble::KeyServerAway, Trouble::KeyEpoch].iter().any(|trouble| self.rates.contains_key(trouble))
    }

    /// Those that come at times of their own.
    fn timed(&self) -> impl Iterator<Item = (Trouble, Time)> {
        self.rates.iter().map(|(trouble, every)| (*trouble, *every)).chain([(Trouble::Idle, IDLE_EVERY)])
    }
}

/// When what goes wrong occurs.
#[derive(Debug, Default)]
pub(super) struct TroubleSchedule {
    troubles: Troubles,
    due: Vec<(Time, Trouble)>,
    is_healed: bool,
}

impl TroubleSchedule {
    /// Everything begins to go wrong.
    pub(super) fn begin(&mut self, troubles: Troubles, now: Time, random: &mut Random) {
        self.troubles = troubles;
        for (trouble, every) in self.troubles.timed() {
            self.due.push((now + random.below(2 * every), trouble));
        }
    }

    /// What goes wrong in this run.
    pub(super) fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// Nothing goes wrong from now on.
    pub(super) fn heal(&mut self) {
        *self = TroubleSchedule { is_healed: true, ..TroubleSchedule::default() };
    }

    /// Whether nothing goes wrong any more.
    pub(super) fn is_healed(&self) -> bool {
        self.is_healed
    }

    /// One more is due at `at`.
    pub(super) fn add(&mut self, at: Time, trouble: Trouble) {
        self.due.push((at, trouble));
    }

    /// When something goes wrong next.
    pub(super) fn next(&self) -> Option<Time> {
        self.due.iter().map(|(at, _)| *at).min()
    }

    /// What goes wrong now.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<Trouble> {
        let due: Vec<_> = self.due.extract_if(.., |(at, _)| *at <= now).collect();
        due.into_iter().map(|(_, trouble)| trouble).collect()
    }

    /// It went wrong, and will again.
    pub(super) fn repeat(&mut self, trouble: Trouble, now: Time, random: &mut Random) {
        if let Some((_, every)) = self.troubles.timed().find(|(one, _)| *one == trouble) {
            self.due.push((now + random.below(2 * every), trouble));
        }
    }
}
