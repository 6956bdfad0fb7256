//! An initiator with something to do: requests of its own, connections that it makes again, and what it was answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use strongroom_block::{Buffer, BufferMut, DeviceError, DeviceErrorKind, Lba, Request, Token};
use strongroom_initiator::machine::Initiator;
use strongroom_initiator::{AttachOptions, LeaseMode, LeaseOptions, Limits, Pipeline, Scheme};

use super::clock::{Clock, MICRO, MILLI, Time};
use super::content;
use super::history::{Action, FailedRead, Flush, History, LostWrite, Moment, Operation, Value};
use super::keys::{KeyServer, Lease};
use super::layout::{BLOCK_BYTES, HALVES, VIEWS, initiator_name, isid_of};
use super::leases::{LEASE, LeaseUse};
use crate::Random;

/// Requests that one initiator has under way at once, at most.
const DEPTH_MAX: usize = 4;
/// Blocks of one request, at most: each is one command.
const BLOCKS_MAX: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read {
        lba: u64,
        count: u64,
    },
    Write {
        write: u64,
        lba: u64,
        count: u64,
        fua: bool,
    },
    /// Half of a block.
    WriteHalf {
        write: u64,
        lba: u64,
        half: u64,
        fua: bool,
    },
    Discard {
        lba: u64,
        count: u64,
    },
    Flush,
}

struct Pending {
    what: What,
    invoked: Moment,
    sent_at: Time,
    /// The key epoch that it knew of when it asked.
    epoch: Option<u32>,
}

/// What all initiators of a run have in common.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) scheme: Scheme,
    /// Of 24 requests this many are flushes.
    pub(super) flushes: u64,
    /// Initiators write halves of blocks too.
    pub(super) halves: bool,
    pub(super) late_flush_marks: bool,
    pub(super) forgets_operations: bool,
    pub(super) key_server: KeyServer,
    pub(super) lease_use: LeaseUse,
    /// Blocks that initiators use.
    pub(super) blocks: u64,
}

/// The connection of an initiator, as far as its own side knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClientConnection {
    pub(super) id: Option<u64>,
    /// No other one is made before.
    pub(super) retry_at: Time,
}

/// How many requests an initiator still makes, and when.
#[derive(Clone, Copy, Debug)]
struct Workload {
    requests_left: u64,
    next_at: Time,
    think_max: Time,
}

/// One initiator.
pub(super) struct Client {
    /// Names it in the history; another one takes its place when it dies.
    pub(super) number: u64,
    /// Which view it uses.
    pub(super) view: usize,
    pub(super) machine: Initiator,
    pub(super) connection: ClientConnection,
    /// How long it may use the volume's keys, once it is attached.
    pub(super) lease: Option<Lease>,
    options: AttachOptions,
    setup: Setup,
    random: Random,
    workload: Workload,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    /// It has everything that it wanted, and gives its writer lease back.
    is_leaving: bool,
    /// The latest time at which a write was sent that succeeded.
    pub(super) wrote_at: Time,
}

fn options(number: u64, view: usize, random: &mut Random, setup: &Setup) -> AttachOptions {
    let url = format!("strongroom://simulation/{}", VIEWS[view]);
    let mut options = AttachOptions::new(url.parse().expect("a URL"));
    options.iscsi.initiator_name = initiator_name(number);
    options.sealing.key_source = Some(Arc::new(setup.key_server.clone()));
    options.channel.scheme = Some(setup.scheme);
    options.faults.marks_flushes_late = setup.late_flush_marks;
    options.faults.forgets_operations = setup.forgets_operations;
    options.sealing.verified_feedback = random.once_in(2);
    if random.once_in(3) {
        options.pipeline = Pipeline::Fixed { depth: 1 + random.below(4) as u32, workers: 1 };
    }
    if random.once_in(3) {
        options.limits = Limits { unflushed_bytes_max: 8 * BLOCK_BYTES, ..Limits::default() };
    }
    options.timeouts.connect = Duration::from_millis(200);
    options.lease = LeaseOptions {
        is_claimed: setup.lease_use != LeaseUse::Unclaimed,
        mode: if setup.lease_use == LeaseUse::Exclusive { LeaseMode::Exclusive } else { LeaseMode::Shared },
        duration: Duration::from_nanos(LEASE),
        // Nothing that differs from one process to the next.
        description: "simulation".to_owned(),
        ..LeaseOptions::default()
    };
    options
}

impl Client {
    pub(super) fn new(number: u64, view: usize, mut random: Random, setup: Setup) -> Client {
        let options = options(number, view, &mut random, &setup);
        let think_max = [200 * MICRO, MILLI, 4 * MILLI][random.below(3) as usize];
        Client {
            number,
            view,
            machine: Initiator::new(options.clone(), isid_of(number)),
            connection: ClientConnection::default(),
            lease: None,
            options,
            setup,
            random,
            workload: Workload { requests_left: 0, next_at: 0, think_max },
            pending: BTreeMap::new(),
            next_token: 0,
            is_leaving: false,
            wrote_at: 0,
        }
    }

    /// How many requests it will still make.
    pub(super) fn requests_left(&self) -> u64 {
        self.workload.requests_left
    }

    /// It will make this many requests.
    pub(super) fn set_requests(&mut self, requests: u64) {
        self.workload.requests_left = requests;
    }

    /// The volume is attached for writing elsewhere: tries again, perhaps to take it over.
    pub(super) fn attach_again(&mut self, takes_over: bool) {
        self.options.lease.take_over = takes_over;
        self.machine = Initiator::new(self.options.clone(), isid_of(self.number));
    }

    /// Whether it takes the volume over from another initiator.
    pub(super) fn takes_over(&self) -> bool {
        self.options.lease.take_over
    }

    /// Whether it has left the target, or is about to.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Leaves if it wants nothing any more and others may be waiting for its lease; whether it just began to.
    pub(super) fn leave_if_done(&mut self, clock: &Clock) -> bool {
        let is_exclusive = self.setup.lease_use == LeaseUse::Exclusive;
        if !is_exclusive || !self.machine.is_attached() || !self.is_done() {
            return false;
        }
        self.machine.leave(clock.instant());
        !std::mem::replace(&mut self.is_leaving, true)
    }

    /// Whether everything that it wanted was answered.
    pub(super) fn is_done(&self) -> bool {
        self.workload.requests_left == 0 && self.pending.is_empty()
    }

    /// Whether it waits for nothing.
    pub(super) fn is_quiet(&self) -> bool {
        self.pending.is_empty()
    }

    /// When it submitted the oldest request that is not answered.
    pub(super) fn oldest_request(&self) -> Option<Time> {
        self.pending.values().map(|pending| pending.sent_at).min()
    }

    /// Whether it has the volume's keys, as far as it may lose them.
    pub(super) fn has_keys(&self) -> bool {
        self.lease.as_ref().is_none_or(Lease::has_keys)
    }

    /// When it makes its next request, if it may.
    pub(super) fn next_request(&self) -> Option<Time> {
        let may = self.machine.is_attached() && self.workload.requests_left > 0 && self.pending.len() < DEPTH_MAX;
        may.then_some(self.workload.next_at)
    }

    /// Makes a request.
    pub(super) fn request(&mut self, now: Time, history: &mut History, next_write: &mut u64) {
        self.workload.requests_left -= 1;
        self.workload.next_at = now + self.random.below(self.workload.think_max);
        let lba = self.random.below(self.setup.blocks);
        let count = 1 + self.random.below(BLOCKS_MAX.min(self.setup.blocks - lba));
        let what = match self.random.below(24) {
            kind if kind < self.setup.flushes => What::Flush,
            6..10 if self.setup.halves => {
                *next_write += 1;
                let (half, fua) = (self.random.below(HALVES), self.random.once_in(12));
                What::WriteHalf { write: *next_write, lba, half, fua }
            }
            6..14 => {
                *next_write += 1;
                What::Write { write: *next_write, lba, count, fua: self.random.once_in(12) }
            }
            14 => What::Discard { lba, count },
            _ => What::Read { lba, count },
        };
        self.submit(now, what, history);
    }

    /// Writes nothing but zeros everywhere: a new sealed volume cannot be read before.
    pub(super) fn format(&mut self, now: Time, history: &mut History) {
        self.submit(now, What::Discard { lba: 0, count: self.setup.blocks }, history);
    }

    /// Discards the volume, with these further blocks that nobody looks at.
    pub(super) fn discard_all(&mut self, now: Time, more_blocks: u64, history: &mut History) {
        self.submit(now, What::Discard { lba: 0, count: self.setup.blocks + more_blocks }, history);
    }

    /// Asks for everything to be durable.
    pub(super) fn flush(&mut self, now: Time, history: &mut History) {
        self.submit(now, What::Flush, history);
    }

    /// Reads everything.
    pub(super) fn read_all(&mut self, now: Time, history: &mut History) {
        for lba in 0..self.setup.blocks {
            self.submit(now, What::Read { lba, count: 1 }, history);
        }
    }

    fn submit(&mut self, now: Time, what: What, history: &mut History) {
        let request = match what {
            What::Read { lba, count } => {
                Request::Read { lba: Lba(lba), buffer: BufferMut::zeroed(count as usize * BLOCK_BYTES) }
            }
            What::Write { write, lba, count, fua } => {
                let data: Vec<u8> = (lba..lba + count).flat_map(|block| content::of_block(write, block)).collect();
                Request::Write { lba: Lba(lba), data: Buffer::copy_from(&data), fua }
            }
            What::WriteHalf { write, lba, half, fua } => Request::WritePart {
                lba: Lba(lba),
                offset_bytes: content::range_of_half(half).start as u32,
                data: Buffer::copy_from(&content::of_half(write, lba, half)),
                fua,
            },
            What::Discard { lba, count } => Request::Discard { lba: Lba(lba), count },
            What::Flush => Request::Flush,
        };
        let token = self.next_token;
        self.next_token += 1;
        let invoked = history.now();
        // Without keys nothing is done.
        if self.machine.submit(Token(token), request).is_ok() {
            let epoch = self.lease.as_ref().map(|lease| lease.epoch);
            self.pending.insert(token, Pending { what, invoked, sent_at: now, epoch });
        }
    }

    /// Takes what was answered into the history.
    pub(super) fn take_answers(&mut self, history: &mut History) {
        for (token, result) in self.machine.take_finished() {
            let pending = self.pending.remove(&token.0).expect("a request ends once");
            let returned = history.now();
            if result.is_ok() && !matches!(pending.what, What::Read { .. } | What::Flush) {
                self.wrote_at = self.wrote_at.max(pending.sent_at);
            }
            self.answered(pending, returned, result, history);
        }
    }

    fn answered(
        &self,
        pending: Pending,
        returned: Moment,
        result: Result<Option<BufferMut>, DeviceError>,
        history: &mut History,
    ) {
        if let Err(error) = &result {
            self.failed(&pending, returned, error, history);
        }
        let Pending { what, invoked, .. } = pending;
        match (what, result) {
            (What::Read { lba, .. }, Ok(Some(buffer))) => {
                for (block, data) in (lba..).zip(buffer.chunks(BLOCK_BYTES)) {
                    let values = content::values_of(block, data).and_then(|values| history.split(block, values));
                    let values =
                        values.unwrap_or_else(|| panic!("block {block} reads as what was never written there"));
                    let read =
                        |(register, value)| self.operation(register, Action::Read(value), invoked, Some(returned));
                    history.operations.extend(values.into_iter().map(read));
                }
            }
            (What::Read { .. }, Ok(None)) => panic!("a read brought nothing"),
            (What::Read { .. }, Err(_)) => {}
            (What::Flush, result) => {
                let (initiator, view, succeeded) = (self.number, self.view, result.is_ok());
                history.flushes.push(Flush { initiator, view, invoked, returned, succeeded });
            }
            (what, Ok(_)) => self.wrote(what, invoked, Some(returned), history),
            (what, Err(_)) => self.wrote(what, invoked, None, history),
        }
    }

    /// What cannot be read is named, and is one of the blocks that were asked for; nothing else fails for the disk's sake.
    fn failed(&self, pending: &Pending, returned: Moment, error: &DeviceError, history: &mut History) {
        let &Pending { what, invoked, epoch, .. } = pending;
        let asked = match what {
            What::Read { lba, count } => lba..lba + count,
            // The rest of the block is read.
            What::WriteHalf { lba, .. } => lba..lba + 1,
            _ => 0..0,
        };
        // What was written before and is to be durable now.
        let may_tell_of_loss = match what {
            What::Flush | What::WriteHalf { .. } => true,
            What::Write { fua, .. } => fua,
            What::Read { .. } | What::Discard { .. } => false,
        };
        let is_named = || error.lba.is_some_and(|lba| asked.contains(&lba.0));
        match error.kind {
            DeviceErrorKind::Medium if is_named() => {
                let block = error.lba.expect("it is named").0;
                let (initiator, view, register) = (self.number, self.view, history.registers_of(block).start);
                history.failed_reads.push(FailedRead { initiator, view, register, invoked, returned });
            }
            // It has not asked the key server since the key epoch of that block began.
            DeviceErrorKind::NoKey if is_named() => {
                let current = self.setup.key_server.epoch();
                assert!(epoch.is_some_and(|epoch| epoch < current), "initiator {}: {what:?}: {error}", self.number);
            }
            // The checker asks for the crash and for the other initiator's part; see `LostWrite`.
            DeviceErrorKind::Hardware if history.has_halves && may_tell_of_loss && error.lba.is_some() => {
                let block = error.lba.expect("it is named").0;
                let (initiator, view, register) = (self.number, self.view, history.registers_of(block).start);
                history.lost_writes.push(LostWrite { initiator, view, register, at: returned });
            }
            DeviceErrorKind::Medium | DeviceErrorKind::Hardware => {
                panic!("initiator {}: {what:?} failed: {error}", self.number)
            }
            _ => {}
        }
    }

    fn operation(&self, register: u64, action: Action, invoked: Moment, returned: Option<Moment>) -> Operation {
        Operation { initiator: self.number, view: self.view, register, action, durable: false, invoked, returned }
    }

    fn wrote(&self, what: What, invoked: Moment, returned: Option<Moment>, history: &mut History) {
        let registers = |lba: u64, count: u64| {
            history.registers_of(lba).start..history.registers_of(self.setup.blocks.min(lba + count)).start
        };
        let (registers, value, durable) = match what {
            What::Write { write, lba, count, fua } => (registers(lba, count), Value::Written(write), fua),
            // Flushed before it is answered.
            What::WriteHalf { write, lba, half, .. } => {
                let register = history.registers_of(lba).start + half;
                (register..register + 1, Value::Written(write), true)
            }
            What::Discard { lba, count } => (registers(lba, count), Value::Zeros, false),
            What::Read { .. } | What::Flush => return,
        };
        for register in registers {
            let operation = self.operation(register, Action::Write(value), invoked, returned);
            history.operations.push(Operation { durable, ..operation });
        }
    }

    /// It dies, and its memory with it: what it asked for may have happened, or may yet.
    pub(super) fn die(&mut self, history: &mut History) {
        for Pending { what, invoked, .. } in std::mem::take(&mut self.pending).into_values() {
            self.wrote(what, invoked, None, history);
        }
    }

    /// The next time at which it has something to do by itself.
    pub(super) fn poll_timeout(&self, clock: &Clock) -> Option<Time> {
        let machine = self.machine.poll_timeout().map(|at| clock.time_of(at));
        let retry = (self.connection.id.is_none() && !self.is_leaving).then_some(self.connection.retry_at);
        let lease = self.lease.as_ref().map(Lease::poll_timeout);
        [machine, retry, self.next_request(), lease].into_iter().flatten().min()
    }
}
