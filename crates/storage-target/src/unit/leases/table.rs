//! The writer leases of a unit: who has one, who gets one, and what they forbid others. Pure state, with the time as an argument. The
//! commands that change it, and its file, are in `leases`.
//!
//! A lease has *lapsed* when its last session has been gone for longer than the lease's time. It then excludes nobody. Its holder gets it
//! back if no conflicting lease was granted and no session without a lease has changed the medium in between.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_scsi::vendor::lease::{Claim, LeaseId, LeaseMode, Standing, Writer, WriterRole};
use strongroom_scsi::{Command, VendorCommand};

use crate::access::Identity;

/// Most leases of a unit; more are refused.
pub(crate) const LEASES_MAX: usize = 64;
/// Of this many leases that ended against the will of their holders, or in their absence, the reason is remembered.
const ENDED_MAX: usize = 64;

/// Whose a lease is. It takes the same initiator name with the same identity to use it: an id is not a secret between peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) initiator_name: Arc<str>,
    pub(crate) identity: Identity,
}

/// A lease, as it survives a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    pub(crate) id: LeaseId,
    /// Never `Reader`.
    pub(crate) mode: LeaseMode,
    pub(crate) holder: Holder,
    /// How long it outlives its last session, in seconds.
    pub(crate) seconds: u32,
    /// For people; from a peer.
    pub(crate) description: String,
}

impl LeaseRecord {
    /// Whether a lease of `mode` cannot be granted beside it.
    fn conflicts_with(&self, mode: LeaseMode) -> bool {
        use LeaseMode::{Exclusive, Shared};
        matches!((self.mode, mode), (Exclusive, Exclusive | Shared) | (Shared, Exclusive))
    }
}

/// How a session stands to the leases of its unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionStanding {
    /// The lease that it has.
    pub(crate) lease: Option<LeaseId>,
    /// It has declared that it only reads.
    pub(crate) is_reader: bool,
    /// It had a lease that ended against its will: it must not change the medium before it claims another one.
    pub(crate) fenced: Option<Ended>,
    /// It has used a command of leases, so it claims one before it changes the medium.
    pub(crate) knows_leases: bool,
    /// It has changed the medium without a lease.
    pub(crate) has_written: bool,
    /// Its description of itself.
    pub(crate) description: String,
}

/// Why a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Who took it over; `None`: it had lapsed.
    taken_by: Option<(Arc<str>, String)>,
}

impl Ended {
    fn lapsed() -> Ended {
        Ended { taken_by: None }
    }

    /// As REPORT WRITERS tells the former holder.
    pub(crate) fn to_writer(&self) -> Writer {
        let (role, name, description) = match &self.taken_by {
            Some((name, description)) => (WriterRole::TookOver, name.to_string(), description.clone()),
            None => (WriterRole::Ended, String::new(), String::new()),
        };
        Writer { role, is_asker: false, standing: Standing::Connected, initiator_name: name, description }
    }
}

/// Another session of the unit, as a claim sees it.
pub(crate) struct OtherSession<'a> {
    pub(crate) standing: &'a SessionStanding,
    /// It may only read.
    pub(crate) read_only: bool,
    /// It uses plain iSCSI. Our initiator uses a channel, so this is probably another one.
    pub(crate) is_plain: bool,
}

impl OtherSession<'_> {
    /// Whether it may write without a lease.
    pub(crate) fn is_unleased_writer(&self) -> bool {
        let SessionStanding { lease, is_reader, fenced, knows_leases, has_written, .. } = self.standing;
        let writes = *has_written || self.is_plain && !knows_leases;
        writes && lease.is_none() && !is_reader && fenced.is_none() && !self.read_only
    }
}

/// The result of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is granted: the leases after it, and those that it ends.
    Granted { after: Vec<LeaseRecord>, ended: Vec<LeaseId> },
    /// The claimant has that lease already.
    Held,
    /// RESERVATION CONFLICT.
    Conflict,
    /// There are [`LEASES_MAX`] leases.
    Full,
}

/// Whether a session may change the medium now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    Allowed,
    /// RESERVATION CONFLICT.
    Conflict,
    /// As soon as the lapsed leases have been removed.
    AfterLapsed,
}

/// The leases of a unit, and which of their holders are gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseTable {
    leases: Vec<LeaseRecord>,
    /// Leases without a session, and since when; `None`: since before the first tick.
    gone: HashMap<LeaseId, Option<Instant>>,
    /// Leases that ended against the will of their holders, or in their absence; the newest last.
    ended: VecDeque<(LeaseId, Ended)>,
    /// The time of the last tick.
    now: Option<Instant>,
}

impl LeaseTable {
    /// The leases from before a restart. Every holder counts as gone from now on.
    pub(crate) fn restore(leases: Vec<LeaseRecord>) -> LeaseTable {
        let gone = leases.iter().map(|lease| (lease.id, None)).collect();
        LeaseTable { leases, gone, ..LeaseTable::default() }
    }

    /// Continues with the times from before the unit was closed. The leases are those of the file, which may have changed meanwhile.
    pub(crate) fn resume(&mut self, before: LeaseTable) {
        for (id, since) in &mut self.gone {
            *since = before.gone.get(id).copied().flatten();
        }
        self.ended = before.ended;
    }

    /// Advances the time.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.now = Some(now);
        for since in self.gone.values_mut() {
            since.get_or_insert(now);
        }
    }

    /// A session has a lease.
    pub(crate) fn joined(&mut self, id: LeaseId) {
        self.gone.remove(&id);
    }

    /// The last session that had it is gone.
    pub(crate) fn left(&mut self, id: LeaseId) {
        if self.leases.iter().any(|lease| lease.id == id) {
            self.gone.insert(id, self.now);
        }
    }

    fn find(&self, id: LeaseId) -> Option<&LeaseRecord> {
        self.leases.iter().find(|lease| lease.id == id)
    }

    /// Since when its last session is gone.
    fn gone_for(&self, id: LeaseId) -> Option<Duration> {
        let since = *self.gone.get(&id)?;
        Some(self.now.zip(since).map_or(Duration::ZERO, |(now, since)| now.saturating_duration_since(since)))
    }

    fn has_lapsed(&self, lease: &LeaseRecord) -> bool {
        self.gone_for(lease.id).is_some_and(|gone| gone >= Duration::from_secs(lease.seconds.into()))
    }

    /// Whether a session may do what a command does to the medium.
    pub(crate) fn permits(&self, session: &SessionStanding, command: &Command) -> Permission {
        if session.fenced.is_some() || session.is_reader {
            return Permission::Conflict;
        }
        let own = session.lease.and_then(|id| self.find(id));
        let is_maintenance = own.is_some_and(|lease| lease.mode == LeaseMode::Maintenance);
        if is_maintenance {
            return if is_maintaining(command) { Permission::Allowed } else { Permission::Conflict };
        }
        let stands_against =
            |lease: &&LeaseRecord| lease.mode == LeaseMode::Exclusive && Some(lease.id) != session.lease;
        let against: Vec<&LeaseRecord> = self.leases.iter().filter(stands_against).collect();
        match against.as_slice() {
            [] => Permission::Allowed,
            all if all.iter().all(|lease| self.has_lapsed(lease)) => Permission::AfterLapsed,
            _ => Permission::Conflict,
        }
    }

    /// Decides a claim.
    pub(crate) fn judge<'a>(
        &self,
        claim: &Claim,
        holder: &Holder,
        others: impl Iterator<Item = OtherSession<'a>>,
    ) -> Verdict {
        let own = self.find(claim.id);
        if own.is_some_and(|lease| lease.holder != *holder) {
            return Verdict::Conflict;
        }
        if claim.resume {
            return match own {
                Some(lease) if lease.mode == claim.mode => Verdict::Held,
                _ => Verdict::Conflict,
            };
        }
        let mut ended = Vec::new();
        for lease in self.leases.iter().filter(|lease| lease.id != claim.id) {
            let is_against = lease.conflicts_with(claim.mode) || claim.sole;
            if !is_against {
                continue;
            }
            let gives_way = self.has_lapsed(lease) || claim.take_over && lease.conflicts_with(claim.mode);
            if !gives_way {
                return Verdict::Conflict;
            }
            ended.push(lease.id);
        }
        for other in others {
            let is_against =
                claim.sole || claim.mode == LeaseMode::Exclusive && !claim.take_over && other.is_unleased_writer();
            if is_against {
                return Verdict::Conflict;
            }
        }
        let record = LeaseRecord {
            id: claim.id,
            mode: claim.mode,
            holder: holder.clone(),
            seconds: claim.granted_seconds(),
            description: claim.description.clone(),
        };
        let stays = |lease: &&LeaseRecord| lease.id != claim.id && !ended.contains(&lease.id);
        let mut after: Vec<LeaseRecord> = self.leases.iter().filter(stays).cloned().collect();
        if after.len() >= LEASES_MAX {
            // A lapsed lease makes room: the one whose holder has been gone for longest.
            let lapsed = self.leases.iter().filter(stays).filter(|lease| self.has_lapsed(lease));
            let Some(oldest) = lapsed.max_by_key(|lease| self.gone_for(lease.id)).map(|lease| lease.id) else {
                return Verdict::Full;
            };
            after.retain(|lease| lease.id != oldest);
            ended.push(oldest);
        }
        after.push(record);
        Verdict::Granted { after, ended }
    }

    /// The leases without the lapsed ones that exclude writers without a lease; and the ids of those.
    pub(crate) fn without_lapsed(&self) -> (Vec<LeaseRecord>, Vec<LeaseId>) {
        let ends = |lease: &&LeaseRecord| lease.mode == LeaseMode::Exclusive && self.has_lapsed(lease);
        let ended: Vec<LeaseId> = self.leases.iter().filter(ends).map(|lease| lease.id).collect();
        let left = self.leases.iter().filter(|lease| !ended.contains(&lease.id)).cloned().collect();
        (left, ended)
    }

    /// The leases without one of them.
    pub(crate) fn without(&self, id: LeaseId) -> Vec<LeaseRecord> {
        self.leases.iter().filter(|lease| lease.id != id).cloned().collect()
    }

    /// Replaces the leases; `ended` are those that ended by the claim of `by`, or because they had lapsed. The caller reports the leases that
    /// a session has by [`LeaseTable::joined`].
    pub(crate) fn put_in_force(&mut self, after: Vec<LeaseRecord>, ended: &[LeaseId], by: Option<&LeaseRecord>) {
        for id in ended {
            let has_lapsed = self.find(*id).is_none_or(|lease| self.has_lapsed(lease));
            let taken_by = by.filter(|_| !has_lapsed);
            let taken_by = taken_by.map(|by| (Arc::clone(&by.holder.initiator_name), by.description.clone()));
            self.ended.push_back((*id, Ended { taken_by }));
            if self.ended.len() > ENDED_MAX {
                self.ended.pop_front();
            }
        }
        self.leases = after;
        let leases = &self.leases;
        self.gone.retain(|id, _| leases.iter().any(|lease| lease.id == *id));
        for lease in leases {
            if by.is_some_and(|by| by.id == lease.id) {
                self.gone.entry(lease.id).or_insert(self.now);
            }
        }
    }

    /// Why a lease ended.
    pub(crate) fn why_ended(&self, id: LeaseId) -> Ended {
        let found = self.ended.iter().rev().find(|(ended, _)| *ended == id);
        found.map_or_else(Ended::lapsed, |(_, ended)| ended.clone())
    }

    /// The holders, for REPORT WRITERS.
    pub(crate) fn writers(&self, asker: Option<LeaseId>) -> impl Iterator<Item = Writer> {
        self.leases.iter().map(move |lease| {
            let standing = match self.gone_for(lease.id) {
                None => Standing::Connected,
                Some(gone) => {
                    let since_s = u32::try_from(gone.as_secs()).unwrap_or(u32::MAX);
                    Standing::Gone { since_s, left_s: lease.seconds.saturating_sub(since_s) }
                }
            };
            Writer {
                role: WriterRole::Holder(lease.mode),
                is_asker: asker == Some(lease.id),
                standing,
                initiator_name: lease.holder.initiator_name.to_string(),
                description: lease.description.clone(),
            }
        })
    }
}

/// What a maintenance lease permits.
fn is_maintaining(command: &Command) -> bool {
    use VendorCommand as V;
    matches!(
        command,
        Command::Vendor(
            V::ConditionalWrite { .. } | V::SealHole { .. } | V::RegisterAttachment { .. } | V::Verified { .. }
        )
    )
}

#[cfg(test)]
mod tests;
