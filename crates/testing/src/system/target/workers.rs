//! The workers of the target, and what is on its way from one to another: messages between sessions and units, and connections that are
//! handed over. Both arrive late, in the order in which they were sent from one worker to another.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use strongroom_target::machine::{DrivenSession, Messages, Polled, RoutedWorker, Sending};

use super::steps::StepCounter;
use crate::Random;

/// How long messages take between workers that are not busy.
const DELAY_MAX: Duration = Duration::from_micros(60);
/// The same if the other worker is busy.
const BUSY_MAX: Duration = Duration::from_millis(2);
/// What reads of one session may hold before its further commands wait, in bytes: a few blocks, or more than they ever do.
const READ_BYTES: [u64; 2] = [2 << 10, 64 << 20];
/// Of the messages between workers one in this many is lost, where that is planted.
const LOST_ONE_IN: u64 = 40;

/// Faults that are planted in the workers.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::system) struct PlantedRouting {
    /// Messages between workers are lost.
    pub(in crate::system) loses_messages: bool,
    /// Responses reach each other's sessions.
    pub(in crate::system) exchanges_responses: bool,
}

/// What one worker sends to another.
enum Parcel {
    Messages(Messages),
    /// A connection is handed over.
    Connection(u64),
}

/// All workers of the target's process.
pub(super) struct Workers {
    random: Random,
    planted: PlantedRouting,
    workers: Vec<RoutedWorker>,
    read_bytes: u64,
    /// What is on its way, by sender and receiver, with its arrival.
    links: BTreeMap<(usize, usize), VecDeque<(Instant, Parcel)>>,
    /// Messages that arrived.
    pub(super) arrived: u64,
    /// Commands of processes that have ended.
    commands_before: u64,
    pub(super) steps: StepCounter,
}

impl Workers {
    /// Two or three of them.
    pub(super) fn new(mut random: Random, planted: PlantedRouting) -> Workers {
        let count = 2 + random.below(2) as usize;
        let read_bytes = READ_BYTES[random.below(2) as usize];
        let mut workers = Workers {
            random,
            planted,
            workers: Vec::new(),
            read_bytes,
            links: BTreeMap::new(),
            arrived: 0,
            commands_before: 0,
            steps: StepCounter::default(),
        };
        workers.begin_again(count);
        workers
    }

    fn begin_again(&mut self, count: usize) {
        self.workers = RoutedWorker::of_target(count, self.read_bytes);
        if self.planted.exchanges_responses {
            self.workers.iter_mut().for_each(RoutedWorker::exchange_responses);
        }
        self.links.clear();
    }

    /// The process has ended, and another one begins.
    pub(super) fn restart(&mut self) {
        self.commands_before = self.commands();
        self.begin_again(self.workers.len());
    }

    /// Commands that units were given.
    pub(super) fn commands(&self) -> u64 {
        self.commands_before + self.workers[0].commands()
    }

    /// One of them, by chance.
    pub(super) fn any(&mut self) -> usize {
        self.random.below(self.workers.len() as u64) as usize
    }

    pub(super) fn count(&self) -> usize {
        self.workers.len()
    }

    pub(super) fn get(&self, number: usize) -> &RoutedWorker {
        &self.workers[number]
    }

    pub(super) fn get_mut(&mut self, number: usize) -> &mut RoutedWorker {
        &mut self.workers[number]
    }

    /// All sessions, with their workers.
    pub(super) fn sessions(&self) -> Vec<(usize, u64)> {
        let of_worker =
            |(number, worker): (usize, &RoutedWorker)| worker.sessions().into_iter().map(move |key| (number, key));
        self.workers.iter().enumerate().flat_map(of_worker).collect()
    }

    /// Whether one of them has a session that is not closed.
    pub(super) fn has_open_session(&self, session: u64) -> bool {
        self.workers.iter().any(|worker| worker.has_open_session(session))
    }

    /// Whether nobody uses a unit, nothing is in flight, and no worker has to learn anything.
    pub(super) fn are_idle(&self) -> bool {
        self.links.values().all(VecDeque::is_empty) && self.workers.iter().all(RoutedWorker::is_idle)
    }

    /// Whether one of them is to be driven again.
    pub(super) fn have_work(&self) -> bool {
        self.workers.iter().any(RoutedWorker::has_work)
    }

    /// Polls the units of a worker.
    pub(super) fn poll_units(&mut self, number: usize) -> Polled {
        self.steps.count(|| self.workers[number].poll_units())
    }

    /// Drives the next session of a worker that has something to do.
    pub(super) fn drive_session(
        &mut self,
        now: Instant,
        number: usize,
        transmit: impl FnMut(u64, Sending<'_>),
    ) -> Option<DrivenSession> {
        self.steps.count(|| self.workers[number].drive_session(now, transmit))
    }

    /// Hands a connection over.
    pub(super) fn hand_over(&mut self, now: Instant, from: usize, to: usize, connection: u64) {
        self.push(now, from, to, Parcel::Connection(connection));
    }

    /// Sends what the workers have for each other.
    pub(super) fn send(&mut self, now: Instant) {
        for from in 0..self.workers.len() {
            for to in 0..self.workers.len() {
                let Some(messages) = self.workers[from].take_messages(to) else { continue };
                if !(self.planted.loses_messages && self.random.once_in(LOST_ONE_IN)) {
                    self.push(now, from, to, Parcel::Messages(messages));
                }
            }
        }
    }

    fn push(&mut self, now: Instant, from: usize, to: usize, parcel: Parcel) {
        let most = if self.random.once_in(20) { BUSY_MAX } else { DELAY_MAX };
        let arrival = now + Duration::from_nanos(self.random.below(most.as_nanos() as u64));
        let link = self.links.entry((from, to)).or_default();
        let after = link.back().map_or(now, |(at, _)| *at);
        link.push_back((arrival.max(after), parcel));
    }

    /// When something arrives next.
    pub(super) fn next_arrival(&self) -> Option<Instant> {
        self.links.values().filter_map(|link| link.front()).map(|(at, _)| *at).min()
    }

    /// Delivers what has arrived; the connections, with the workers to which they were handed over.
    pub(super) fn deliver(&mut self, now: Instant) -> Vec<(usize, u64)> {
        let mut connections = Vec::new();
        for (&(from, to), link) in &mut self.links {
            while link.front().is_some_and(|(at, _)| *at <= now) {
                let (_, parcel) = link.pop_front().expect("just seen");
                match parcel {
                    Parcel::Messages(messages) => {
                        self.arrived += 1;
                        self.steps.count(|| self.workers[to].receive(now, from, messages));
                    }
                    Parcel::Connection(connection) => connections.push((to, connection)),
                }
            }
        }
        connections
    }
}
