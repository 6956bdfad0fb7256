//! What goes wrong in a history, and how often.

use super::Profile;
use super::network::{MILLI, Time};
use crate::Random;

/// How often what goes wrong, in nanoseconds on average; `None`: never.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Troubles {
    cut: Option<Time>,
    silence: Option<Time>,
    damage: Option<Time>,
    crash: Option<Time>,
    /// The target closes its store in order, as soon as no session uses it, and opens it at the next login.
    pub(super) idle_close: bool,
    /// The target ends all sessions, closes its store and begins again.
    restart: Option<Time>,
    reset: Option<Time>,
    abort: Option<Time>,
    end_session: Option<Time>,
    death: Option<Time>,
    key_server_away: Option<Time>,
    key_epoch: Option<Time>,
    snapshots: Option<Time>,
    reservations: Option<Time>,
    rot: Option<Time>,
    /// Bits flip anywhere on the disk while the store is closed.
    pub(super) rots_anywhere: bool,
    /// The disk fails to read while the store is opened.
    pub(super) failing_reads: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Cut,
    Silence,
    Damage,
    Crash,
    Restart,
    /// LOGICAL UNIT RESET.
    Reset,
    /// CLEAR TASK SET.
    Abort,
    EndSession,
    Death,
    KeyServerAway,
    KeyEpoch,
    Snapshots,
    Reservations,
    Rot,
    Idle,
}

impl Troubles {
    /// Those of a history.
    pub(super) fn choose(random: &mut Random, profile: Profile) -> Troubles {
        Troubles::of_everything(random).within(profile)
    }

    /// Some of everything.
    fn of_everything(random: &mut Random) -> Troubles {
        let mut every = |once_in: u64, least: Time, most: Time| {
            let chosen = random.once_in(once_in);
            let average = least + random.below(most - least);
            chosen.then_some(average)
        };
        Troubles {
            cut: every(2, 3 * MILLI, 20 * MILLI),
            silence: every(6, 20 * MILLI, 100 * MILLI),
            damage: every(6, 3 * MILLI, 30 * MILLI),
            crash: every(2, 10 * MILLI, 80 * MILLI),
            restart: every(5, 10 * MILLI, 60 * MILLI),
            reset: every(6, 5 * MILLI, 50 * MILLI),
            abort: every(6, 2 * MILLI, 30 * MILLI),
            end_session: every(6, 5 * MILLI, 50 * MILLI),
            death: every(6, 10 * MILLI, 80 * MILLI),
            key_server_away: every(8, 10 * MILLI, 80 * MILLI),
            key_epoch: every(5, 10 * MILLI, 60 * MILLI),
            snapshots: every(4, 2 * MILLI, 20 * MILLI),
            reservations: every(5, MILLI, 8 * MILLI),
            rot: every(6, 5 * MILLI, 40 * MILLI),
            rots_anywhere: false,
            idle_close: random.once_in(2),
            failing_reads: random.once_in(5),
        }
    }

    /// Those of a profile, which has them in every run.
    fn within(self, profile: Profile) -> Troubles {
        let cut = Some(self.cut.unwrap_or(8 * MILLI));
        let crash = Some(self.crash.unwrap_or(20 * MILLI));
        match profile {
            Profile::Everything | Profile::OneInitiator => self,
            Profile::Clones => Troubles { snapshots: Some(4 * MILLI), ..Troubles::default() },
            Profile::Cuts => Troubles { cut, ..Troubles::default() },
            Profile::Closes => Troubles { cut, restart: Some(15 * MILLI), idle_close: true, ..Troubles::default() },
            Profile::Crashes => Troubles { crash, ..Troubles::default() },
            Profile::Flushes => Troubles { crash: Some(20 * MILLI), ..Troubles::default() },
            Profile::Rot => Troubles { crash, rot: Some(6 * MILLI), ..Troubles::default() },
            Profile::RotAnywhere => Troubles {
                rots_anywhere: true,
                restart: Some(12 * MILLI),
                idle_close: true,
                crash,
                snapshots: self.snapshots,
                ..Troubles::default()
            },
            Profile::Reservations => Troubles {
                cut: self.cut,
                crash,
                abort: self.abort,
                reservations: Some(2 * MILLI),
                restart: self.restart,
                idle_close: self.idle_close,
                ..Troubles::default()
            },
            Profile::Keys => Troubles {
                cut,
                crash: self.crash,
                key_epoch: Some(8 * MILLI),
                key_server_away: self.key_server_away,
                ..Troubles::default()
            },
            Profile::Halves => Troubles { cut, crash: self.crash, ..Troubles::default() },
            Profile::Large => Troubles::default(),
        }
    }

    /// Whether the key server lends keys for a time only.
    pub(super) fn lends_keys(&self) -> bool {
        self.key_server_away.is_some() || self.key_epoch.is_some()
    }

    /// Those that come at times of their own.
    pub(super) fn timed(&self) -> impl Iterator<Item = (Trouble, Time)> + use<> {
        let all = [
            (Trouble::Cut, self.cut),
            (Trouble::Silence, self.silence),
            (Trouble::Damage, self.damage),
            (Trouble::Crash, self.crash),
            (Trouble::Restart, self.restart),
            (Trouble::Reset, self.reset),
            (Trouble::Abort, self.abort),
            (Trouble::EndSession, self.end_session),
            (Trouble::Death, self.death),
            (Trouble::KeyServerAway, self.key_server_away),
            (Trouble::KeyEpoch, self.key_epoch),
            (Trouble::Snapshots, self.snapshots),
            (Trouble::Reservations, self.reservations),
            (Trouble::Rot, self.rot),
            (Trouble::Idle, Some(30 * MILLI)),
        ];
        all.into_iter().filter_map(|(trouble, every)| Some((trouble, every?)))
    }
}
