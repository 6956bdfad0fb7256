//! An initiator with something to do: requests of its own, connections that it makes again, and what it was answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, BufferMut, DeviceError, DeviceErrorKind, Lba, Request, Token};
use strongroom_initiator::machine::Initiator;
use strongroom_initiator::{AttachOptions, Limits, Pipeline, Scheme};

use super::content::{self, HALVES};
use super::history::{Action, FailedRead, Flush, History, LostWrite, Moment, Operation, Value};
use super::keys::{KeyServer, Lease};
use super::network::{MICRO, MILLI, Time};
use super::target::{BLOCK_BYTES, VIEWS};
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
    /// The key epoch that it knew of when it asked.
    epoch: Option<u32>,
}

/// What all initiators of a run have in common.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) scheme: Scheme,
    /// Of 24 requests, so many are flushes.
    pub(super) flushes: u64,
    /// Initiators write halves of blocks too.
    pub(super) halves: bool,
    pub(super) late_flush_marks: bool,
    pub(super) forgets_operations: bool,
    pub(super) key_server: KeyServer,
}

/// The ISID of an initiator's sessions.
pub(super) fn isid_of(number: u64) -> [u8; 6] {
    [0x80, 0, 0, 0, (number >> 8) as u8, number as u8]
}

/// One initiator.
pub(super) struct Client {
    /// Names it in the history; another one takes its place when it dies.
    pub(super) number: u64,
    pub(super) machine: Initiator,
    pub(super) connection: Option<u64>,
    pub(super) retry_at: Time,
    pub(super) next_request_at: Time,
    /// Requests that it will still make.
    pub(super) requests_left: u64,
    /// How long it may use the volume's keys, once it is attached.
    pub(super) lease: Option<Lease>,
    /// Which view it uses.
    pub(super) view: usize,
    setup: Setup,
    random: Random,
    blocks: u64,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    think_max: Time,
}

impl Client {
    pub(super) fn new(number: u64, view: usize, mut random: Random, blocks: u64, setup: Setup) -> Client {
        let url = format!("strongroom://simulation/{}", VIEWS[view]);
        let mut options = AttachOptions::new(url.parse().expect("a URL"));
        options.initiator_name = format!("iqn.2026-11.org.strongroom:simulation.{number}");
        options.key_source = Some(Arc::new(setup.key_server.clone()));
        options.scheme = Some(setup.scheme);
        options.marks_flushes_late = setup.late_flush_marks;
        options.forgets_operations = setup.forgets_operations;
        options.verified_feedback = random.once_in(2);
        if random.once_in(3) {
            options.pipeline = Pipeline::Fixed { depth: 1 + random.below(4) as u32, workers: 1 };
        }
        if random.once_in(3) {
            options.limits = Limits { unflushed_bytes_max: 8 * BLOCK_BYTES, ..Limits::default() };
        }
        options.timeouts.connect = Duration::from_millis(200);
        options.lease.is_claimed = false;
        let think_max = [200 * MICRO, MILLI, 4 * MILLI][random.below(3) as usize];
        Client {
            number,
            machine: Initiator::new(options, isid_of(number)),
            connection: None,
            retry_at: 0,
            next_request_at: 0,
            requests_left: 0,
            lease: None,
            view,
            setup,
            random,
            blocks,
            pending: BTreeMap::new(),
            next_token: 0,
            think_max,
        }
    }

    /// Whether everything that it wanted was answered.
    pub(super) fn is_done(&self) -> bool {
        self.requests_left == 0 && self.pending.is_empty()
    }

    /// Whether it waits for nothing.
    pub(super) fn is_quiet(&self) -> bool {
        self.pending.is_empty()
    }

    /// When it makes its next request, if it may.
    pub(super) fn next_request(&self) -> Option<Time> {
        let may = self.machine.is_attached() && self.requests_left > 0 && self.pending.len() < DEPTH_MAX;
        may.then_some(self.next_request_at)
    }

    /// Makes a request.
    pub(super) fn request(&mut self, now: Time, history: &mut History, next_write: &mut u64) {
        self.requests_left -= 1;
        self.next_request_at = now + self.random.below(self.think_max);
        let lba = self.random.below(self.blocks);
        let count = 1 + self.random.below(BLOCKS_MAX.min(self.blocks - lba));
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
        self.submit(what, history);
    }

    /// Writes nothing but zeros everywhere: a new sealed volume cannot be read before.
    pub(super) fn format(&mut self, history: &mut History) {
        self.submit(What::Discard { lba: 0, count: self.blocks }, history);
    }

    /// Discards the volume, with so many blocks that nobody looks at.
    pub(super) fn discard_all(&mut self, more_blocks: u64, history: &mut History) {
        self.submit(What::Discard { lba: 0, count: self.blocks + more_blocks }, history);
    }

    /// Asks for everything to be durable.
    pub(super) fn flush(&mut self, history: &mut History) {
        self.submit(What::Flush, history);
    }

    /// Reads everything.
    pub(super) fn read_all(&mut self, history: &mut History) {
        for lba in 0..self.blocks {
            self.submit(What::Read { lba, count: 1 }, history);
        }
    }

    fn submit(&mut self, what: What, history: &mut History) {
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
            self.pending.insert(token, Pending { what, invoked, epoch });
        }
    }

    /// Takes what was answered into the history.
    pub(super) fn take_answers(&mut self, history: &mut History) {
        for (token, result) in self.machine.take_finished() {
            let pending = self.pending.remove(&token.0).expect("a request ends once");
            let returned = history.now();
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
        let &Pending { what, invoked, epoch } = pending;
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
            history.registers_of(lba).start..history.registers_of(self.blocks.min(lba + count)).start
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
    pub(super) fn poll_timeout(&self, base: Instant) -> Option<Time> {
        let machine = self.machine.poll_timeout().map(|at| at.saturating_duration_since(base).as_nanos() as Time);
        let retry = self.connection.is_none().then_some(self.retry_at);
        let lease = self.lease.as_ref().map(Lease::poll_timeout);
        [machine, retry, self.next_request(), lease].into_iter().flatten().min()
    }
}
