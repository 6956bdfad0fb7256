//! Fencing: who is to be kept out is removed from the registered nodes (PREEMPT AND ABORT), and it is seen to it that only those can write.
//!
//! The command registers a port of its own under the node's key before it looks who is there: who fences this node from then on removes that,
//! too, so that of two nodes that fence each other one wins. It is kept only where the node has no other registration, for the reservation
//! lasts as long as somebody is registered.

use std::collections::BTreeSet;
use std::time::Duration;

use strongroom_scsi::persistent::parameters::ReportedRegistration;
use strongroom_scsi::vendor::lease::{Claim, LeaseId, LeaseMode, Standing, Writer, WriterRole};

use super::{Answer, Next, OwnPort, Question, ReservationOutcome, registrants};
use crate::lease::describe_process;
use crate::pipeline::stamps::random;
use crate::reservation::{FenceReport, Registrant, ReservationError, ReservationKey, Victim};

/// How often victims are removed that registered again in between, or whose removal conflicted with another change.
const ROUNDS_MAX: u32 = 3;
/// How long the lease lasts that ends the victim's, should this process die before it gives it back.
const LEASE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FenceStep {
    Looking,
    Registering,
    Choosing,
    Reserving,
    Preempting,
    Verifying,
    AskingWriters,
    EndingLease,
    ReleasingLease,
    Leaving,
    Withdrawing,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Fence {
    key: ReservationKey,
    joins: bool,
    victim: Victim,
    own: OwnPort,
    has_leases: bool,
    step: FenceStep,
    /// Keys that are still to be removed.
    left: Vec<ReservationKey>,
    /// Keys, and names of who had them.
    victims: BTreeSet<ReservationKey>,
    nodes: BTreeSet<String>,
    rounds: u32,
    /// There was a reservation before: who was not registered could not write.
    was_reserved: bool,
    /// The command's own registration stays.
    keeps: bool,
    report: FenceReport,
    failed: Option<ReservationError>,
}

impl Fence {
    pub(super) fn new((key, joins): (ReservationKey, bool), victim: Victim, own: OwnPort, has_leases: bool) -> Fence {
        Fence {
            key,
            joins,
            victim,
            own,
            has_leases,
            step: FenceStep::Looking,
            left: Vec::new(),
            victims: BTreeSet::new(),
            nodes: BTreeSet::new(),
            rounds: 0,
            was_reserved: false,
            keeps: false,
            report: FenceReport::default(),
            failed: None,
        }
    }

    pub(super) fn next(&mut self, answer: Answer) -> Next {
        match (self.step, answer) {
            (FenceStep::Looking, Answer::Status(status)) => self.looked(&status),
            (FenceStep::Registering, Answer::Good) => self.ask(FenceStep::Choosing, Question::Status),
            (FenceStep::Choosing, Answer::Status(status)) => match self.choose(&status) {
                Ok(()) => self.ask(FenceStep::Reserving, Question::Reserve { key: self.key.value() }),
                Err(error) => self.withdraw(error),
            },
            // It conflicts where there is another reservation, which keeps out who is not registered as well; where the victim has left by itself;
            // and where we were fenced, which is seen next.
            (FenceStep::Reserving | FenceStep::Preempting, Answer::Good | Answer::Conflict) => self.preempt(),
            (FenceStep::Verifying, Answer::Status(status)) => self.verified(&status),
            (FenceStep::AskingWriters, Answer::Writers(writers)) => self.end_lease(&writers),
            (FenceStep::EndingLease, Answer::Good) => {
                self.report.ended_lease = true;
                self.ask(FenceStep::ReleasingLease, Question::ReleaseLease)
            }
            // Somebody else has the volume by now.
            (FenceStep::EndingLease, Answer::Conflict) | (FenceStep::ReleasingLease, _) => self.leave(),
            (FenceStep::Leaving, _) => self.done(),
            (FenceStep::Withdrawing, _) => Next::Fail(self.failed.take().unwrap_or(ReservationError::Conflict)),
            _ => Next::Fail(ReservationError::Conflict),
        }
    }

    fn ask(&mut self, step: FenceStep, question: Question) -> Next {
        self.step = step;
        Next::Ask(question)
    }

    /// Nothing was changed yet.
    fn looked(&mut self, status: &[ReportedRegistration]) -> Next {
        if let Err(error) = self.own.check_ours(self.key, status) {
            return Next::Fail(error);
        }
        if self.victim == Victim::Key(self.key) || self.victim == Victim::Node(self.own.name.clone()) {
            return Next::Fail(ReservationError::OwnKey(self.key));
        }
        if !self.joins && !status.iter().any(|one| one.key == self.key.value()) {
            return Next::Fail(ReservationError::NotRegistered { key: self.key });
        }
        self.was_reserved = status.iter().any(|one| one.holds.is_some());
        self.ask(FenceStep::Registering, Question::Register { old: None, new: self.key.value() })
    }

    /// Who is to be removed, now that who fences us removes this command too.
    fn choose(&mut self, status: &[ReportedRegistration]) -> Result<(), ReservationError> {
        self.own.check_ours(self.key, status)?;
        let is_ours = |one: &ReportedRegistration| one.key == self.key.value();
        let has_another = status.iter().any(|one| is_ours(one) && !self.own.made(one));
        if !status.iter().any(|one| is_ours(one) && self.own.made(one)) || !(has_another || self.joins) {
            return Err(ReservationError::FencedFirst { key: self.key });
        }
        self.keeps = !has_another;
        let others = registrants(status).into_iter().filter(|one| one.key != self.key);
        let chosen: Vec<Registrant> = match &self.victim {
            Victim::Key(key) => others.filter(|one| one.key == *key).collect(),
            Victim::Node(name) => others.filter(|one| one.initiator_name == name.to_lowercase()).collect(),
            Victim::Other => others.collect(),
        };
        let keys: BTreeSet<ReservationKey> = chosen.iter().map(|one| one.key).collect();
        if self.victim == Victim::Other && keys.len() > 1 {
            let keys: Vec<String> = keys.iter().map(ReservationKey::to_string).collect();
            return Err(ReservationError::WhichOne(keys.join(", ")));
        }
        self.nodes.extend(chosen.iter().map(|one| one.initiator_name.clone()));
        if let Victim::Node(name) = &self.victim {
            self.nodes.insert(name.to_lowercase());
        }
        self.left = keys.iter().copied().collect();
        self.victims.extend(keys);
        self.report.fenced = chosen;
        Ok(())
    }

    fn preempt(&mut self) -> Next {
        match self.left.pop() {
            Some(victim) => {
                let question = Question::Preempt { key: self.key.value(), victim: victim.value() };
                self.ask(FenceStep::Preempting, question)
            }
            None => self.ask(FenceStep::Verifying, Question::Status),
        }
    }

    /// It is seen that who was fenced cannot write.
    fn verified(&mut self, status: &[ReportedRegistration]) -> Next {
        if !status.iter().any(|one| self.own.made(one) && one.key == self.key.value()) {
            return Next::Fail(ReservationError::FencedFirst { key: self.key });
        }
        let still: BTreeSet<ReservationKey> =
            registrants(status).into_iter().map(|one| one.key).filter(|key| self.victims.contains(key)).collect();
        let is_reserved = status.iter().any(|one| one.holds.is_some());
        self.rounds += 1;
        if !still.is_empty() || !is_reserved {
            self.left = still.into_iter().collect();
            return match self.rounds < ROUNDS_MAX {
                true => self.ask(FenceStep::Reserving, Question::Reserve { key: self.key.value() }),
                false => self.withdraw(ReservationError::Conflict),
            };
        }
        self.report.registered = registrants(status);
        match self.has_leases {
            true => self.ask(FenceStep::AskingWriters, Question::Writers),
            false => self.leave(),
        }
    }

    /// Ends the exclusive lease of who was fenced: another node can attach the volume at once. (A shared one keeps nobody out.)
    fn end_lease(&mut self, writers: &[Writer]) -> Next {
        if let Some(without_key) = self.writer_without_key(writers) {
            return self.withdraw(ReservationError::VictimWithoutKey(without_key));
        }
        let is_theirs = |writer: &Writer| self.nodes.contains(&writer.initiator_name.to_lowercase());
        let holds = |writer: &Writer| writer.role == WriterRole::Holder(LeaseMode::Exclusive);
        if !writers.iter().any(|writer| holds(writer) && is_theirs(writer)) {
            return self.leave();
        }
        let claim = Claim {
            id: LeaseId(random()),
            mode: LeaseMode::Exclusive,
            take_over: true,
            sole: false,
            resume: false,
            seconds: LEASE.as_secs() as u32,
            description: describe_process("fence"),
        };
        self.ask(FenceStep::EndingLease, Question::Claim(claim))
    }

    /// A node that may be the victim, was never registered, and could write until just now: what it had under way can still take effect.
    fn writer_without_key(&self, writers: &[Writer]) -> Option<String> {
        if self.was_reserved || !self.report.fenced.is_empty() {
            return None;
        }
        let writes = |writer: &Writer| matches!(writer.role, WriterRole::Holder(_) | WriterRole::Unleased);
        let is_there = |writer: &Writer| writer.standing == Standing::Connected && !writer.is_asker;
        let may_be_meant = |name: &str| match &self.victim {
            Victim::Node(victim) => victim.to_lowercase() == name,
            Victim::Key(_) | Victim::Other => true,
        };
        let registered = |name: &str| self.report.registered.iter().any(|one| one.initiator_name == name);
        let names = writers.iter().filter(|writer| writes(writer) && is_there(writer));
        names.map(|writer| writer.initiator_name.to_lowercase()).find(|name| may_be_meant(name) && !registered(name))
    }

    fn leave(&mut self) -> Next {
        match self.keeps {
            true => self.done(),
            false => self.ask(FenceStep::Leaving, Question::Register { old: Some(self.key.value()), new: 0 }),
        }
    }

    fn done(&mut self) -> Next {
        Next::Done(ReservationOutcome::Reported(std::mem::take(&mut self.report)))
    }

    fn withdraw(&mut self, error: ReservationError) -> Next {
        self.failed = Some(error);
        self.ask(FenceStep::Withdrawing, Question::Register { old: Some(self.key.value()), new: 0 })
    }
}
