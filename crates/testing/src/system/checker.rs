//! Decides whether a history of one register can be explained: is it linearizable, with what flushes promise and with what a crash may take?
//!
//! The model of a register is the order of its writes, and a position in it. Without crashes the position is the last write. A crash puts
//! it anywhere from the last durable write on; from there it may only move forward (initiators replay writes that were acknowledged),
//! and a new write comes behind all. A write whose outcome its initiator did not learn takes effect at any later time, once or never;
//! if a crash comes while it waits for its answer, once before the crash and, if that was lost, once after it; but never while a
//! reservation keeps its initiator out.
//!
//! Operations are put into the order when they return, as late as possible ("just in time", G. Lowe, "Testing for linearizability",
//! Concurrency and Computation 29 (4), 2017). Values are unique, so that a read names its write, and what is left to choice is where a
//! write lies that nobody read: last, or hidden right before one that took effect while it was under way. All choices are followed side by side.

use std::collections::HashSet;
use std::fmt;

use super::history::{Action, Fence, History, Look, Moment, Operation, Value};

#[cfg(test)]
mod tests;

/// From this number of choices on, the order among writes that are neither the last nor flushed is forgotten: a crash may then leave any of them.
const EXACT_CHOICES_MAX: usize = 200;
/// More choices than this at once are not followed: the history counts as explained, and is counted.
const CHOICES_MAX: usize = 5_000;

/// Why a history cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Of which view.
    pub view: usize,
    /// Which register: a block, or half of one.
    pub register: u64,
    /// What has no explanation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "view {}, register {}: {}", self.view, self.register, self.what)
    }
}

/// Checks every register, that no command was torn by a crash or a snapshot, and that only what was damaged cannot be read,
/// and that no write is reported as lost without reason. How many registers had too many choices.
///
/// # Errors
/// What has no explanation.
pub fn check(history: &History) -> Result<u64, Violation> {
    let mut registers: Vec<(usize, u64)> = history.operations.iter().map(|one| (one.view, one.register)).collect();
    registers.sort_unstable();
    registers.dedup();
    let mut undecided = 0;
    for (view, register) in registers {
        undecided += u64::from(!check_register(history, view, register)?);
    }
    check_atomicity(history)?;
    check_failed_reads(history)?;
    check_lost_writes(history)?;
    Ok(undecided)
}

/// A write's place in the order of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Element {
    /// Its operation; `None`: what the register held at first.
    write: Option<usize>,
    value: Value,
    /// When it was put into the order: it took effect by then.
    added: Moment,
    /// The latest time at which a read began that saw it: nothing that is behind it had taken effect before then. Noted only where a
    /// reservation may say that a write did.
    seen: Moment,
}

/// One way to explain what was seen so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Explanation {
    order: Vec<Element>,
    /// A crash leaves at least this.
    durable: usize,
    /// From when on the position is at least where.
    least: Vec<(Moment, usize)>,
}

impl Explanation {
    fn least_now(&self) -> usize {
        self.least.last().map_or(0, |(_, at)| *at)
    }

    /// The least position at some time from `from` on.
    fn least_since(&self, from: Moment) -> usize {
        let first = self.least.iter().rposition(|(since, _)| *since <= from).unwrap_or(0);
        self.least[first..].iter().map(|(_, at)| *at).min().unwrap_or(0)
    }

    fn raise(&mut self, now: Moment, to: usize) {
        if to > self.least_now() {
            self.least.push((now, to));
        }
    }

    fn add_last(&self, write: usize, value: Value, now: Moment) -> Explanation {
        let mut next = self.clone();
        next.order.push(Element { write: Some(write), value, added: now, seen: 0 });
        let last = next.order.len() - 1;
        next.raise(now, last);
        next
    }

    /// Puts a write right before another one, which hides it.
    fn hide_before(&self, write: usize, value: Value, at: usize) -> Explanation {
        let mut next = self.clone();
        next.order.insert(at, Element { write: Some(write), value, added: self.order[at].added, seen: 0 });
        next.make_room(at);
        next
    }

    /// Puts a write behind all that took effect before a crash. It may have been undone.
    fn add_before_crash(&self, write: usize, value: Value, crash: Moment) -> Explanation {
        let at = self.order.iter().position(|element| element.added > crash).unwrap_or(self.order.len());
        let mut next = self.clone();
        next.order.insert(at, Element { write: Some(write), value, added: crash - 1, seen: 0 });
        next.make_room(at);
        next
    }

    /// Puts a write somewhere; it took effect by `added`.
    fn insert(&self, write: usize, value: Value, at: usize, added: Moment, now: Moment) -> Explanation {
        let mut next = self.clone();
        next.order.insert(at, Element { write: Some(write), value, added, seen: 0 });
        next.make_room(at);
        if at + 1 == next.order.len() {
            next.raise(now, at);
        }
        next
    }

    /// Something was put into the order at `at`.
    fn make_room(&mut self, at: usize) {
        let shift = |place: &mut usize| *place += usize::from(*place >= at);
        shift(&mut self.durable);
        self.least.iter_mut().for_each(|(_, place)| shift(place));
    }

    /// Forgets what nobody can see any more: nothing that is under way began before `oldest`.
    fn settle(&mut self, oldest: Moment, is_over: impl Fn(usize) -> bool) {
        let first = self.least.iter().rposition(|(since, _)| *since <= oldest).unwrap_or(0);
        self.least.drain(..first);
        self.least[0].0 = 0;
        let unseen = self.least.iter().map(|(_, at)| *at).min().unwrap_or(0).min(self.durable);
        self.order.drain(..unseen);
        self.durable -= unseen;
        self.least.iter_mut().for_each(|(_, at)| *at -= unseen);
        for element in &mut self.order {
            if element.added < oldest && element.write.is_none_or(&is_over) {
                element.added = 0;
            }
        }
    }

    /// Forgets the order among the writes that a crash may leave, but for the last of all.
    fn forget_order(&mut self, oldest: Moment) {
        let old = self.order.iter().take_while(|element| element.added < oldest).count();
        let end = old.min(self.order.len() - 1);
        if self.durable >= end {
            return;
        }
        let from = self.durable;
        self.order[from..end].sort_by_key(|element| element.write);
        for (_, at) in &mut self.least {
            if (from..end).contains(at) {
                *at = from;
            }
        }
    }

    fn last_of(&self, write: usize) -> Option<usize> {
        self.order.iter().rposition(|element| element.write == Some(write))
    }
}

/// A time within which a write may take effect.
#[derive(Clone, Copy, Debug)]
struct Window {
    since: Moment,
    /// `None`: until now, and on.
    until: Option<Moment>,
}

enum Event {
    Return(usize),
    Flushed(usize),
    Crash,
}

struct Register<'a> {
    operations: Vec<&'a Operation>,
    crashes: &'a [Moment],
    fences: &'a [Fence],
}

/// Whether it was decided (it may have too many explanations to follow); an error if it has none.
fn check_register(history: &History, view: usize, register: u64) -> Result<bool, Violation> {
    let operations: Vec<&Operation> =
        history.operations.iter().filter(|one| (one.view, one.register) == (view, register)).collect();
    let flushes: Vec<_> = history.flushes.iter().filter(|flush| flush.view == view).collect();
    let mut steps: Vec<(Moment, Event)> = Vec::new();
    steps.extend(operations.iter().enumerate().filter_map(|(at, one)| Some((one.returned?, Event::Return(at)))));
    let succeeded = flushes.iter().enumerate().filter(|(_, flush)| flush.succeeded);
    steps.extend(succeeded.map(|(at, flush)| (flush.returned, Event::Flushed(at))));
    steps.extend(history.crashes.iter().map(|&at| (at, Event::Crash)));
    steps.sort_by_key(|(at, _)| *at);
    let model = Register { operations, crashes: &history.crashes, fences: &history.fences };
    let first = Element { write: None, value: history.initial_of(view, register), added: 0, seen: 0 };
    let mut explanations = HashSet::from([Explanation { order: vec![first], durable: 0, least: vec![(0, 0)] }]);
    for (now, step) in steps {
        let mut next = HashSet::with_capacity(explanations.len());
        for explanation in &explanations {
            match &step {
                Event::Return(at) => model.returned(explanation, *at, now, &mut next),
                Event::Flushed(at) => {
                    let flush = flushes[*at];
                    let earlier = flushes.iter().filter(|one| one.initiator == flush.initiator && !one.succeeded);
                    let since = earlier.map(|one| one.returned).filter(|at| *at < flush.returned).max().unwrap_or(0);
                    let covered = |one: &&Operation| {
                        one.initiator == flush.initiator
                            && one.returned.is_some_and(|at| (since..flush.invoked).contains(&at))
                    };
                    next.insert(model.made_durable(explanation.clone(), now, covered));
                }
                Event::Crash => {
                    let mut after = explanation.clone();
                    after.least.push((now, after.durable));
                    next.insert(after);
                }
            }
        }
        if next.is_empty() {
            let Event::Return(at) = step else { unreachable!("only answers can have no explanation") };
            let mut what = model.describe(at, &explanations);
            for flush in flushes.iter().filter(|flush| flush.invoked < now) {
                what += &format!("\n    {}..{}: flush by {}", flush.invoked, flush.returned, flush.initiator);
            }
            return Err(Violation { view, register, what });
        }
        let oldest = model.oldest_under_way(now);
        let is_over = |write: usize| model.operations[write].returned.is_some_and(|at| at <= now);
        let forgets = next.len() > EXACT_CHOICES_MAX;
        explanations.clear();
        for mut explanation in next {
            explanation.settle(oldest, is_over);
            if forgets {
                explanation.forget_order(oldest);
            }
            explanations.insert(explanation);
        }
        if explanations.len() > CHOICES_MAX {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Register<'_> {
    fn returned(&self, before: &Explanation, at: usize, now: Moment, next: &mut HashSet<Explanation>) {
        let operation = self.operations[at];
        match operation.action {
            Action::Write(value) => {
                let mut found = Vec::new();
                if before.last_of(at).is_some() {
                    found.push(before.clone());
                }
                for window in self.windows(before, at, now) {
                    self.place(before, at, value, window, now, &mut found);
                }
                for after in found {
                    next.insert(match operation.durable {
                        true => self.made_durable(after, now, |one| std::ptr::eq(*one, operation)),
                        false => after,
                    });
                }
            }
            Action::Read(value) => self.read(before, operation, value, now, next),
        }
    }

    /// When the oldest of what will still be answered, or seen for the first time, was asked.
    fn oldest_under_way(&self, now: Moment) -> Moment {
        let is_read_later = |value: Value| {
            let mut reads = self.operations.iter().filter(|one| one.action == Action::Read(value));
            reads.any(|one| one.returned.is_some_and(|at| at > now))
        };
        // Whose outcome nobody knows may come to light after a crash, behind what hid it.
        let is_under_way = |one: &&Operation| match (one.returned, one.action) {
            (Some(at), _) => at > now,
            (None, Action::Write(value)) => value != Value::Zeros && one.invoked < now && is_read_later(value),
            (None, Action::Read(_)) => false,
        };
        let under_way = self.operations.iter().filter(|one| is_under_way(one));
        under_way.map(|one| one.invoked).min().map_or(now, |at| at.min(now))
    }

    /// When a write that was not over until now may take effect (once more): while no reservation keeps its initiator out.
    fn windows(&self, before: &Explanation, at: usize, now: Moment) -> Vec<Window> {
        let operation = self.operations[at];
        let mut since = match before.last_of(at) {
            None => operation.invoked,
            // A crash may have undone it, and it was sent again.
            Some(place) => {
                let added = before.order[place].added;
                match self.crashes.iter().rev().find(|crash| (added + 1..now).contains(crash)) {
                    Some(crash) => *crash,
                    None => return Vec::new(),
                }
            }
        };
        let mut windows = Vec::new();
        for fence in self.fences.iter().filter(|fence| fence.initiator == operation.initiator && fence.from < now) {
            if since < fence.from {
                windows.push(Window { since, until: Some(fence.from) });
            }
            match fence.until.filter(|until| *until <= now) {
                Some(until) => since = since.max(until),
                None => return windows,
            }
        }
        windows.push(Window { since, until: None });
        windows
    }

    /// Where in the order a write can be that took effect in a window that is over.
    fn places_within(&self, before: &Explanation, since: Moment, until: Moment) -> Vec<usize> {
        let may_precede = |element: &Element| {
            element.seen <= until && element.write.is_none_or(|write| self.operations[write].invoked < until)
        };
        let first = before.order.iter().rposition(|element| element.added <= since).map_or(0, |at| at + 1);
        let last = before.order.iter().take_while(|element| may_precede(element)).count();
        (first.max(1)..=last).collect()
    }

    /// Every place that a write can take, of which nobody has seen anything yet.
    fn place(
        &self,
        before: &Explanation,
        write: usize,
        value: Value,
        Window { since, until }: Window,
        now: Moment,
        found: &mut Vec<Explanation>,
    ) {
        // It took effect before a crash, which undid it; its initiator has the answer all the same, and replays it.
        let crashes = self.crashes.iter().filter(|crash| (since + 1..now).contains(crash));
        found.extend(crashes.map(|crash| before.add_before_crash(write, value, *crash)));
        if let Some(until) = until {
            let places = self.places_within(before, since, until).into_iter();
            return found.extend(places.map(|at| before.insert(write, value, at, until, now)));
        }
        found.push(before.add_last(write, value, now));
        let hides = |at: &usize| before.order[*at].added > since;
        found.extend((1..before.order.len()).filter(hides).map(|at| before.hide_before(write, value, at)));
    }

    fn read(
        &self,
        before: &Explanation,
        operation: &Operation,
        value: Value,
        now: Moment,
        next: &mut HashSet<Explanation>,
    ) {
        let least = before.least_since(operation.invoked);
        let crashed_meanwhile = self.crashes.iter().any(|at| (operation.invoked..now).contains(at));
        let mut saw = |mut after: Explanation, at: Option<usize>| {
            if let Some(at) = at.filter(|_| !crashed_meanwhile) {
                after.raise(now, at);
                if !self.fences.is_empty() {
                    after.order[at].seen = after.order[at].seen.max(operation.invoked);
                }
            }
            next.insert(after);
        };
        for at in least..before.order.len() {
            if before.order[at].value == value && !self.appears_in_a_fence(before, at, now) {
                saw(before.clone(), Some(at));
            }
        }
        // A write that is under way, or whose outcome nobody knows.
        for (write, one) in self.operations.iter().enumerate() {
            let is_it = one.action == Action::Write(value) && one.invoked < now;
            if !is_it || one.returned.is_some_and(|at| at < now) {
                continue;
            }
            for Window { since, until } in self.windows(before, write, now) {
                match until {
                    Some(until) => {
                        let places = self.places_within(before, since, until).into_iter();
                        for at in places.filter(|at| *at > least || *at == before.order.len()) {
                            saw(before.insert(write, value, at, until, now), Some(at));
                        }
                    }
                    None => {
                        saw(before.add_last(write, value, now), Some(before.order.len()));
                        for at in (least + 1..before.order.len()).filter(|at| before.order[*at].added > since) {
                            saw(before.hide_before(write, value, at), Some(at));
                        }
                    }
                }
                // It was read before a crash, which perhaps undid it.
                let from = since.max(operation.invoked) + 1;
                let crashes = self.crashes.iter().filter(|crash| (from..now).contains(crash));
                for crash in crashes {
                    saw(before.add_before_crash(write, value, *crash), None);
                }
            }
        }
    }

    /// Whether a write was not to be seen when its initiator was kept out already, and is now: it was replayed.
    fn appears_in_a_fence(&self, before: &Explanation, at: usize, now: Moment) -> bool {
        let Some(write) = before.order[at].write else { return false };
        let of_it = self.fences.iter().filter(|fence| fence.initiator == self.operations[write].initiator);
        let mut in_force = of_it.filter(|fence| fence.from < now && fence.until.is_none_or(|until| now < until));
        in_force.any(|fence| before.order[..at].iter().any(|earlier| earlier.seen > fence.from))
    }

    /// The last of these writes, and so everything before it, survives crashes from now on.
    fn made_durable(&self, mut after: Explanation, now: Moment, covered: impl Fn(&&Operation) -> bool) -> Explanation {
        let is_covered = |element: &Element| element.write.is_some_and(|write| covered(&self.operations[write]));
        if let Some(at) = after.order.iter().rposition(is_covered) {
            after.durable = after.durable.max(at);
            after.raise(now, at);
        }
        after
    }

    fn describe(&self, at: usize, explanations: &HashSet<Explanation>) -> String {
        let operation = self.operations[at];
        let example = explanations.iter().next();
        let order = example.map(|one| {
            let values: Vec<Value> = one.order.iter().map(|element| element.value).collect();
            let durable = one.order[one.durable].value;
            let least = one.order[one.least_since(operation.invoked)].value;
            format!("the order is {values:?}, durable up to {durable:?}, and at least {least:?} must be seen")
        });
        let mut lines = vec![format!(
            "{:?} by initiator {} at {}..{:?} has no explanation; {}",
            operation.action,
            operation.initiator,
            operation.invoked,
            operation.returned,
            order.unwrap_or_default()
        )];
        let from = operation.invoked.saturating_sub(400);
        let until = operation.returned.unwrap_or(Moment::MAX);
        let crashes = self.crashes.iter().filter(|at| (from..until).contains(at));
        lines.extend(crashes.map(|at| format!("    {at}: crash")));
        for one in self.operations.iter().filter(|one| one.returned.is_none_or(|at| at > from)) {
            if one.invoked <= until {
                lines.push(format!(
                    "    {}..{:?}: {:?} by {}{}",
                    one.invoked,
                    one.returned,
                    one.action,
                    one.initiator,
                    if one.durable { ", durable" } else { "" }
                ));
            }
        }
        lines.join("\n")
    }
}

/// After a crash, and in a snapshot, a command is there as a whole or not at all, but for what later ones wrote over it.
fn check_atomicity(history: &History) -> Result<(), Violation> {
    for look in &history.looks {
        for (register, value) in look.found.iter().enumerate() {
            let Some(Value::Written(number)) = *value else { continue };
            check_command(history, look, number, register)?;
        }
    }
    Ok(())
}

/// Of a write that is there in one register, looks at all other registers that it wrote.
fn check_command(history: &History, look: &Look, number: u64, register: usize) -> Result<(), Violation> {
    let Look { view, at, found } = look;
    let written = Action::Write(Value::Written(number));
    let in_view = || history.operations.iter().filter(|one| one.view == *view);
    for part in in_view().filter(|one| one.action == written) {
        let Some(instead) = found[part.register as usize].filter(|value| *value != Value::Written(number)) else {
            continue;
        };
        // What lies there must not be older for sure.
        let may_be_newer = |one: &Operation| one.returned.is_none_or(|at| at > part.invoked);
        let is_it = |one: &&Operation| one.register == part.register && one.action == Action::Write(instead);
        // Its replay after an earlier crash left this block out if something newer was written there, which this crash may have taken, or
        // to the other half of the block: then the next flush fails (docs/iscsi.md, REPLAY LOST).
        let is_replayed = history.crashes.iter().any(|crash| (part.invoked..*at).contains(crash));
        let hides = |one: &&Operation| {
            let is_write = matches!(one.action, Action::Write(_)) && one.action != written;
            let is_in_block = history.beside(part.register).contains(&one.register);
            is_in_block && is_write && one.invoked < *at && may_be_newer(one)
        };
        if is_replayed && in_view().any(|one| hides(&one)) {
            continue;
        }
        if !in_view().filter(is_it).any(may_be_newer) {
            let what =
                format!("at {at} write {number} is there in register {register}, and here the older {instead:?}");
            return Err(Violation { view: *view, register: part.register, what });
        }
    }
    Ok(())
}

/// A block that cannot be read was damaged, and not written since.
fn check_failed_reads(history: &History) -> Result<(), Violation> {
    for read in &history.failed_reads {
        let is_here = |view: usize, register: u64| (view, register) == (read.view, read.register);
        let rots = history.rots.iter().filter(|rot| is_here(rot.view, rot.register) && rot.at < read.returned);
        let Some(rot) = rots.map(|rot| rot.at).max() else {
            let what = format!(
                "initiator {} cannot read it at {}..{}, and it was never damaged",
                read.initiator, read.invoked, read.returned
            );
            return Err(Violation { view: read.view, register: read.register, what });
        };
        let is_rewritten = |one: &&Operation| {
            let no_crash = |returned| !history.crashes.iter().any(|crash| (one.invoked..returned).contains(crash));
            is_here(one.view, one.register)
                && matches!(one.action, Action::Write(_))
                && one.invoked > rot
                && one.returned.is_some_and(|at| at < read.invoked)
                && no_crash(read.returned)
        };
        if let Some(write) = history.operations.iter().find(is_rewritten) {
            let what = format!(
                "initiator {} cannot read it at {}..{}: it was damaged at {rot}, but {:?} was written at {}..{:?}",
                read.initiator, read.invoked, read.returned, write.action, write.invoked, write.returned
            );
            return Err(Violation { view: read.view, register: read.register, what });
        }
    }
    Ok(())
}

/// A write is reported as lost only if a crash can have taken it, and if another initiator wrote a part of the block (not all of it) since.
fn check_lost_writes(history: &History) -> Result<(), Violation> {
    for lost in &history.lost_writes {
        let block = history.beside(lost.register);
        let writes = || {
            let in_block = |one: &&Operation| one.view == lost.view && block.contains(&one.register);
            history.operations.iter().filter(in_block).filter(|one| matches!(one.action, Action::Write(_)))
        };
        let of_part =
            |one: &Operation| !writes().any(|other| other.action == one.action && other.register != one.register);
        let is_explained = |crash: Moment| {
            let is_taken = |one: &Operation| one.initiator == lost.initiator && one.invoked < crash;
            let is_in_between = |one: &Operation| {
                one.initiator != lost.initiator
                    && one.invoked < lost.at
                    && one.returned.is_none_or(|at| at > crash)
                    && of_part(one)
            };
            crash < lost.at && writes().any(is_taken) && writes().any(is_in_between)
        };
        if !history.crashes.iter().any(|crash| is_explained(*crash)) {
            let what = format!(
                "initiator {} is told at {} that its write is lost, and nothing took it",
                lost.initiator, lost.at
            );
            return Err(Violation { view: lost.view, register: lost.register, what });
        }
    }
    Ok(())
}
