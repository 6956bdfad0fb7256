//! Decides whether a history of one block can be explained: is it linearizable, with what flushes promise and with what a crash may take?
//!
//! The model of a block is the order of its writes, and a position in it. Without crashes the position is the last write. A crash puts
//! it anywhere from the last durable write on; from there it may only move forward (initiators replay writes that were acknowledged),
//! and a new write comes behind all. A write whose outcome its initiator did not learn takes effect at any later time, once or never;
//! if a crash comes while it waits for its answer, once before the crash and, if that was lost, once after it.
//!
//! Operations are put into the order when they return, as late as possible ("just in time", G. Lowe, "Testing for linearizability",
//! Concurrency and Computation 29 (4), 2017). Values are unique, so that a read names its write, and what is left to choice is where a
//! write lies that nobody read: last, or hidden right before one that took effect while it was under way. All choices are followed side by side.

use std::collections::HashSet;
use std::fmt;

use super::history::{Action, History, Moment, Operation, Value};

#[cfg(test)]
mod tests;

/// From so many choices on, the order among writes that are neither the last nor flushed is forgotten: a crash may then leave any of them.
const EXACT_CHOICES_MAX: usize = 200;
/// More choices than this at once are not followed: the history counts as explained, and is counted.
const CHOICES_MAX: usize = 5_000;

/// Why a history cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Of which view.
    pub view: usize,
    /// Which block.
    pub block: u64,
    /// What has no explanation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "view {}, block {}: {}", self.view, self.block, self.what)
    }
}

/// Checks every block, and that no command was torn by a crash. How many blocks had too many choices.
///
/// # Errors
/// What has no explanation.
pub fn check(history: &History) -> Result<u64, Violation> {
    let mut blocks: Vec<(usize, u64)> = history.operations.iter().map(|one| (one.view, one.block)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let mut undecided = 0;
    for (view, block) in blocks {
        undecided += u64::from(!check_block(history, view, block)?);
    }
    check_atomicity(history)?;
    Ok(undecided)
}

/// A write's place in the order of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Element {
    /// Its operation; `None`: what the block held at first.
    write: Option<usize>,
    value: Value,
    /// When it was put into the order: it took effect by then.
    added: Moment,
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
        next.order.push(Element { write: Some(write), value, added: now });
        let last = next.order.len() - 1;
        next.raise(now, last);
        next
    }

    /// Puts a write right before another one, which hides it.
    fn hide_before(&self, write: usize, value: Value, at: usize) -> Explanation {
        let mut next = self.clone();
        next.order.insert(at, Element { write: Some(write), value, added: self.order[at].added });
        next.make_room(at);
        next
    }

    /// Puts a write behind all that took effect before a crash. It may have been undone.
    fn add_before_crash(&self, write: usize, value: Value, crash: Moment) -> Explanation {
        let at = self.order.iter().position(|element| element.added > crash).unwrap_or(self.order.len());
        let mut next = self.clone();
        next.order.insert(at, Element { write: Some(write), value, added: crash - 1 });
        next.make_room(at);
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

enum Step {
    Return(usize),
    Flushed(usize),
    Crash,
}

struct Block<'a> {
    operations: Vec<&'a Operation>,
    crashes: Vec<Moment>,
}

/// Whether it was decided (it may have too many explanations to follow); an error if it has none.
fn check_block(history: &History, view: usize, block: u64) -> Result<bool, Violation> {
    let operations: Vec<&Operation> =
        history.operations.iter().filter(|one| (one.view, one.block) == (view, block)).collect();
    let flushes: Vec<_> = history.flushes.iter().filter(|flush| flush.view == view).collect();
    let crashes: Vec<Moment> = history.crashes.iter().map(|crash| crash.at).collect();
    let mut steps: Vec<(Moment, Step)> = Vec::new();
    steps.extend(operations.iter().enumerate().filter_map(|(at, one)| Some((one.returned?, Step::Return(at)))));
    let succeeded = flushes.iter().enumerate().filter(|(_, flush)| flush.succeeded);
    steps.extend(succeeded.map(|(at, flush)| (flush.returned, Step::Flushed(at))));
    steps.extend(crashes.iter().map(|&at| (at, Step::Crash)));
    steps.sort_by_key(|(at, _)| *at);
    let block_model = Block { operations, crashes };
    let first = Element { write: None, value: Value::Zeros, added: 0 };
    let mut explanations = HashSet::from([Explanation { order: vec![first], durable: 0, least: vec![(0, 0)] }]);
    for (now, step) in steps {
        let mut next = HashSet::with_capacity(explanations.len());
        for explanation in &explanations {
            match &step {
                Step::Return(at) => block_model.returned(explanation, *at, now, &mut next),
                Step::Flushed(at) => {
                    let flush = flushes[*at];
                    let earlier = flushes.iter().filter(|one| one.initiator == flush.initiator && !one.succeeded);
                    let since = earlier.map(|one| one.returned).filter(|at| *at < flush.returned).max().unwrap_or(0);
                    let covered = |one: &&Operation| {
                        one.initiator == flush.initiator
                            && one.returned.is_some_and(|at| (since..flush.invoked).contains(&at))
                    };
                    next.insert(block_model.made_durable(explanation.clone(), now, covered));
                }
                Step::Crash => {
                    let mut after = explanation.clone();
                    after.least.push((now, after.durable));
                    next.insert(after);
                }
            }
        }
        if next.is_empty() {
            let Step::Return(at) = step else { unreachable!("only answers can have no explanation") };
            let mut what = block_model.describe(at, &explanations);
            for flush in flushes.iter().filter(|flush| flush.invoked < now) {
                what += &format!("\n    {}..{}: flush by {}", flush.invoked, flush.returned, flush.initiator);
            }
            return Err(Violation { view, block, what });
        }
        let oldest = block_model.oldest_under_way(now);
        let is_over = |write: usize| block_model.operations[write].returned.is_some_and(|at| at <= now);
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

impl Block<'_> {
    fn returned(&self, before: &Explanation, at: usize, now: Moment, next: &mut HashSet<Explanation>) {
        let operation = self.operations[at];
        match operation.action {
            Action::Write(value) => {
                let mut found = Vec::new();
                let earliest = self.may_take_effect_since(before, at, now);
                if before.last_of(at).is_some() {
                    found.push(before.clone());
                }
                if let Some(since) = earliest {
                    self.place(before, at, value, since, now, &mut found);
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

    /// When the oldest of what will still be answered was asked.
    fn oldest_under_way(&self, now: Moment) -> Moment {
        let under_way = self.operations.iter().filter(|one| one.returned.is_some_and(|at| at > now));
        under_way.map(|one| one.invoked).min().map_or(now, |at| at.min(now))
    }

    /// From when on a write that was not over until now may take effect (once more); `None`: not any more.
    fn may_take_effect_since(&self, before: &Explanation, at: usize, now: Moment) -> Option<Moment> {
        let Some(place) = before.last_of(at) else { return Some(self.operations[at].invoked) };
        // A crash may have undone it, and it was sent again.
        let added = before.order[place].added;
        self.crashes.iter().rev().find(|crash| (added + 1..now).contains(crash)).copied()
    }

    /// Every place that a write can take, of which nobody has seen anything yet.
    fn place(
        &self,
        before: &Explanation,
        write: usize,
        value: Value,
        since: Moment,
        now: Moment,
        found: &mut Vec<Explanation>,
    ) {
        found.push(before.add_last(write, value, now));
        // It took effect before a crash, which undid it; its initiator has the answer all the same, and replays it.
        let crashes = self.crashes.iter().filter(|crash| (since + 1..now).contains(crash));
        found.extend(crashes.map(|crash| before.add_before_crash(write, value, *crash)));
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
        let mut saw = |mut after: Explanation, at: usize| {
            if !crashed_meanwhile {
                after.raise(now, at);
            }
            next.insert(after);
        };
        for at in least..before.order.len() {
            if before.order[at].value == value {
                saw(before.clone(), at);
            }
        }
        // A write that is under way, or whose outcome nobody knows.
        for (write, one) in self.operations.iter().enumerate() {
            let is_it = one.action == Action::Write(value) && one.invoked < now;
            if !is_it || one.returned.is_some_and(|at| at < now) {
                continue;
            }
            let Some(since) = self.may_take_effect_since(before, write, now) else { continue };
            let last = before.add_last(write, value, now);
            let at = last.order.len() - 1;
            saw(last, at);
            for at in (least + 1..before.order.len()).filter(|at| before.order[*at].added > since) {
                saw(before.hide_before(write, value, at), at);
            }
            // It was read before a crash, which perhaps undid it.
            let from = since.max(operation.invoked) + 1;
            let crashes = self.crashes.iter().filter(|crash| (from..now).contains(crash));
            for crash in crashes {
                saw(before.add_before_crash(write, value, *crash), 0);
            }
        }
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

/// After a crash a command is there as a whole or not at all, but for what later ones wrote over it.
fn check_atomicity(history: &History) -> Result<(), Violation> {
    for crash in &history.crashes {
        for (view, found) in crash.found.iter().enumerate() {
            for (block, value) in found.iter().enumerate() {
                let Some(Value::Written(number)) = *value else { continue };
                check_command(history, (view, found), number, block, crash.at)?;
            }
        }
    }
    Ok(())
}

/// Of a write that is there in one block, looks at all other blocks that it wrote.
fn check_command(
    history: &History,
    (view, found): (usize, &[Option<Value>]),
    number: u64,
    block: usize,
    at: Moment,
) -> Result<(), Violation> {
    let written = Action::Write(Value::Written(number));
    let in_view = || history.operations.iter().filter(|one| one.view == view);
    for part in in_view().filter(|one| one.action == written) {
        let Some(instead) = found[part.block as usize].filter(|value| *value != Value::Written(number)) else {
            continue;
        };
        // What lies there must not be older for sure.
        let may_be_newer = |one: &Operation| one.returned.is_none_or(|at| at > part.invoked);
        let is_it = |one: &&Operation| one.block == part.block && one.action == Action::Write(instead);
        // Its replay after an earlier crash left this block out if something newer was written there, which this crash may have taken.
        let is_replayed = history.crashes.iter().any(|crash| (part.invoked..at).contains(&crash.at));
        let hides = |one: &&Operation| {
            let is_write = matches!(one.action, Action::Write(_)) && one.action != written;
            one.block == part.block && is_write && one.invoked < at && may_be_newer(one)
        };
        if is_replayed && in_view().any(|one| hides(&one)) {
            continue;
        }
        if !in_view().filter(is_it).any(may_be_newer) {
            let what = format!(
                "after the crash at {at} write {number} is there in block {block}, and here the older {instead:?}"
            );
            return Err(Violation { view, block: part.block, what });
        }
    }
    Ok(())
}
