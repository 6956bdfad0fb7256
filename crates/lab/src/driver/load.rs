//! A fixed number of I/Os in flight on a block device, counted between two moments, and compared where that is asked for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, BufferMut, Completion, CryptoCounters, Lba, Request, Token};

use super::addresses::Addresses;
use super::beforehand::Beforehand;
use super::contents::Contents;
use super::pace::Pace;
use super::refuse_impossible;
use super::tally::Tally;
use crate::pattern;
use crate::protocol::{IoJob, Outcome};

/// How long to wait for a completion before looking for orders again.
const WAIT: Duration = Duration::from_millis(20);
/// After a measurement that verifies, at most this many bytes of what was written are read back.
const READ_BACK_BYTES_MAX: u64 = 256 << 20;
/// After this many errors nothing new is submitted: the cell is lost anyway.
const ERRORS_MAX: u64 = 100;

/// A job in progress on a device.
pub(crate) struct Load<'a> {
    device: &'a dyn BlockDevice,
    pub(super) job: IoJob,
    pub(super) block_bytes: u64,
    pub(super) addresses: Addresses,
    /// `None`: I/Os begin when others have completed.
    pace: Option<Pace>,
    pub(super) contents: Contents,
    /// What is in flight under each token.
    flights: Vec<Flight>,
    /// Tokens that are free.
    idle: Vec<usize>,
    completions: Vec<Completion>,
    /// Buffers of reads that have completed.
    spare: Vec<BufferMut>,
    /// What is verified: by slot, the last write that was acknowledged.
    written: BTreeMap<u64, u64>,
    /// What is sealed already.
    pub(super) beforehand: Option<Beforehand<'a>>,
    tally: Tally<'a>,
}

/// One I/O in flight.
#[derive(Clone, Copy)]
struct Flight {
    begun: Instant,
    /// Where ([`Addresses`]).
    slot: u64,
    write: u64,
}

impl<'a> Load<'a> {
    /// Begins nothing yet.
    ///
    /// # Errors
    /// If the volume cannot take such I/Os.
    pub(crate) fn new(
        device: &'a dyn BlockDevice,
        counters: Option<&'a CryptoCounters>,
        job: IoJob,
    ) -> Result<Load<'a>, String> {
        refuse_impossible(&job, device)?;
        // What is verified must not be in flight twice.
        let depth = if job.verify { u64::from(job.depth).min(job.len / job.size) as usize } else { job.depth as usize };
        Ok(Load {
            device,
            job,
            block_bytes: device.geometry().block_size.len() as u64,
            addresses: Addresses::new(&job),
            pace: Pace::new(job.rate, Instant::now()),
            contents: Contents::new(job),
            flights: vec![Flight { begun: Instant::now(), slot: 0, write: 0 }; depth],
            idle: (0..depth).collect(),
            completions: Vec::new(),
            spare: Vec::new(),
            written: BTreeMap::new(),
            beforehand: None,
            tally: Tally::new(counters),
        })
    }

    /// Keeps the queue full and takes in what has completed; waits a little if nothing has.
    pub(crate) fn step(&mut self) {
        if self.tally.errors() < ERRORS_MAX {
            while let Some(token) = self.idle.pop() {
                if !self.submit(token) {
                    self.idle.push(token);
                    break;
                }
            }
        }
        let until_due = self.pace.as_ref().filter(|_| !self.idle.is_empty()).map(|pace| pace.until_due(Instant::now()));
        self.device.wait(Some(until_due.map_or(WAIT, |time| time.min(WAIT))));
        self.take_in();
    }

    /// Whether there will soon be nothing more to do.
    pub(crate) fn is_spent(&self) -> bool {
        self.beforehand.as_ref().is_some_and(Beforehand::is_spent)
    }

    /// Forgets what was counted, and begins to count.
    pub(crate) fn mark(&mut self) {
        self.tally.mark();
    }

    /// Ends counting, waits for what is in flight, and reads back what was written if that is asked for.
    ///
    /// # Errors
    /// If what is in flight never completes.
    pub(crate) fn stop(mut self) -> Result<Outcome, String> {
        let begun = Instant::now();
        let mut outcome = self.tally.stop(self.job.size);
        while self.idle.len() < self.flights.len() {
            self.device.wait(Some(WAIT));
            self.take_in();
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("I/Os did not complete within a minute".into());
            }
        }
        outcome.prorated = self.tally.prorated(self.job.size);
        if self.job.verify {
            self.read_back();
            if let Some(device) = self.beforehand.as_ref().map(Beforehand::device)
                && !self.job.pattern.is_write()
            {
                self.open_everything(device)?;
            }
        }
        Ok(self.tally.complete(outcome, self.job.verify))
    }

    /// False: there is nothing to submit.
    fn submit(&mut self, index: usize) -> bool {
        let (now, token) = (Instant::now(), Token(index as u64));
        let Some(begun) = self.pace.as_mut().map_or(Some(now), |pace| pace.take_due(now)) else { return false };
        if let Some(beforehand) = self.beforehand.as_mut().filter(|_| self.job.pattern.is_write()) {
            let Some((slot, write)) = beforehand.write(token) else { return false };
            self.flights[index] = Flight { begun, slot, write };
            return true;
        }
        let slot = self.addresses.claim();
        let at = self.job.start + slot * self.job.size;
        let lba = Lba(at / self.block_bytes);
        self.flights[index] = Flight { begun, slot, write: 0 };
        if let Some(beforehand) = &self.beforehand {
            beforehand.device().submit_fetch(token, lba, (self.job.size / self.block_bytes) as u32);
            return true;
        }
        let request = if !self.job.pattern.is_write() {
            let bytes = self.job.size.max(self.block_bytes) as usize;
            Request::Read { lba, buffer: self.spare.pop().unwrap_or_else(|| BufferMut::zeroed(bytes)) }
        } else {
            let (write, data) = self.contents.next(slot);
            self.flights[index].write = write;
            if self.job.size < self.block_bytes {
                Request::WritePart { lba, offset_bytes: (at % self.block_bytes) as u32, data, fua: false }
            } else {
                Request::Write { lba, data, fua: false }
            }
        };
        self.device.submit(token, request);
        true
    }

    fn take_in(&mut self) {
        let now = Instant::now();
        self.device.poll_completions(&mut self.completions);
        for completion in std::mem::take(&mut self.completions) {
            let index = completion.token.0 as usize;
            let flight = self.flights[index];
            self.idle.push(index);
            self.addresses.release(flight.slot);
            match completion.result {
                Ok(buffer) => {
                    self.tally.record(flight.begun, now);
                    self.look_at(flight, buffer);
                }
                Err(error) => self.tally.fail(error.to_string()),
            }
        }
    }

    fn look_at(&mut self, flight: Flight, buffer: Option<BufferMut>) {
        if let Some(buffer) = buffer {
            if self.job.verify {
                self.compare(&buffer, flight.slot, None);
            }
            self.spare.push(buffer);
        } else if self.job.verify && self.job.pattern.is_write() {
            self.written.insert(flight.slot, flight.write);
        }
    }

    /// `blocks` are the whole blocks that the I/O is in.
    pub(super) fn compare(&mut self, blocks: &[u8], slot: u64, write: Option<u64>) {
        let at = self.job.start + slot * self.job.size;
        let offset = (at % self.block_bytes) as usize;
        let data = &blocks[offset..offset + self.job.size as usize];
        match pattern::check(data, at, write) {
            Ok(()) => self.tally.add_verified((data.len() / pattern::SECTOR) as u64),
            Err(problem) => self.tally.fail(problem),
        }
    }

    fn read_back(&mut self) {
        let blocks = (self.job.size / self.block_bytes).max(1);
        let slots_max = (READ_BACK_BYTES_MAX / self.job.size) as usize;
        let written: Vec<(u64, u64)> = std::mem::take(&mut self.written).into_iter().take(slots_max).collect();
        for (slot, write) in written {
            let lba = Lba((self.job.start + slot * self.job.size) / self.block_bytes);
            match strongroom_initiator::read_blocking(self.device, lba, blocks) {
                Ok(data) => self.compare(&data, slot, Some(self.contents.write_number(write))),
                Err(error) => self.tally.fail(error.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use strongroom_block::{BlockSize, DeviceErrorKind, Geometry};
    use strongroom_initiator::MemoryDevice;

    use super::*;
    use crate::Pattern;

    const BLOCKS: u64 = 256;

    fn device() -> MemoryDevice {
        let device = MemoryDevice::new(Geometry { block_size: BlockSize::new(4096).unwrap(), blocks: BLOCKS });
        super::super::fill(&device).unwrap();
        device
    }

    fn job(pattern: Pattern, verify: bool) -> IoJob {
        IoJob {
            pattern,
            size: 8192,
            depth: 8,
            start: 64 * 4096,
            len: 128 * 4096,
            verify,
            parts: false,
            sealed_beforehand_bytes: 0,
            rate: 0,
            seed: 3,
        }
    }

    fn run(device: &MemoryDevice, job: IoJob) -> Outcome {
        let counters = CryptoCounters::new();
        let mut load = Load::new(device, Some(&counters), job).unwrap();
        (0..20).for_each(|_| load.step());
        load.mark();
        (0..50).for_each(|_| load.step());
        load.stop().unwrap()
    }

    #[test]
    fn counts_what_completed_between_mark_and_stop() {
        let device = device();
        for pattern in Pattern::ALL {
            let outcome = run(&device, job(pattern, false));
            assert_eq!((outcome.ios, outcome.bytes), (400, 400 * 8192), "{pattern}: 50 steps of 8");
            assert_eq!(outcome.latency.0.iter().map(|(_, count)| count).sum::<u64>(), 400);
            assert_eq!((outcome.errors, outcome.verified), (0, None));
        }
    }

    #[test]
    fn an_io_counts_with_the_share_of_its_time_that_is_counted() {
        let (device, counters) = (device(), CryptoCounters::new());
        let mut load = Load::new(&device, Some(&counters), job(Pattern::SeqWrite, false)).unwrap();
        let at = |ms| load.tally.marked + Duration::from_millis(ms);
        let (begun, marked, stopped) = (at(0), at(100), at(300));
        let times =
            [(0, 50), (0, 400), (50, 150), (120, 220), (250, 350), (310, 400), (200, 200)].map(|(a, b)| (at(a), at(b)));
        (load.tally.marked, load.tally.stopped) = (marked, Some(stopped));
        let shares = times.map(|(from, to)| load.tally.share(from, to));
        assert_eq!(shares.map(|share| (share * 100.0).round()), [0.0, 50.0, 50.0, 100.0, 50.0, 0.0, 100.0]);
        (load.tally.marked, load.tally.stopped) = (begun, None);
        (load.tally.ios_begun, load.tally.ios_prorated) = (10, 2.5);
        assert_eq!(load.tally.prorated(load.job.size).bytes, 5 * 4096);
    }

    #[test]
    fn stays_in_its_part_of_the_volume() {
        let device = device();
        run(&device, job(Pattern::RandWrite, false));
        run(&device, job(Pattern::SeqWrite, false));
        for lba in (0..64).chain(192..BLOCKS) {
            let data = strongroom_initiator::read_blocking(&device, Lba(lba), 1).unwrap();
            pattern::check(&data, lba * 4096, Some(0)).unwrap();
        }
    }

    #[test]
    fn verifying_reads_and_writes_finds_them_right() {
        let device = device();
        for pattern in [Pattern::RandRead, Pattern::SeqWrite, Pattern::RandWrite, Pattern::SeqRead] {
            let outcome = run(&device, job(pattern, true));
            assert_eq!((outcome.errors, &outcome.first_error), (0, &None), "{pattern}");
            assert!(outcome.verified.unwrap() > 16, "{pattern}: {outcome:?}");
        }
    }

    #[test]
    fn parts_of_blocks_are_read_and_written_where_they_belong() {
        let device = device();
        for pattern in Pattern::ALL {
            let outcome = run(&device, IoJob { size: 512, parts: true, ..job(pattern, true) });
            assert_eq!((outcome.errors, &outcome.first_error), (0, &None), "{pattern}");
            assert!(outcome.verified.unwrap() > 16 && outcome.bytes == outcome.ios * 512, "{pattern}: {outcome:?}");
        }
    }

    #[test]
    fn verifying_finds_wrong_data_and_errors_are_counted() {
        let device = device();
        let data = strongroom_initiator::read_blocking(&device, Lba(70), 1).unwrap().freeze();
        strongroom_initiator::write_blocking(&device, Lba(71), data, false).unwrap();
        let outcome = run(&device, job(Pattern::SeqRead, true));
        assert!(outcome.errors > 0 && outcome.first_error.unwrap().contains("was written to sector"));
        device.fail_at(Lba(100), DeviceErrorKind::Medium);
        let outcome = run(&device, job(Pattern::SeqRead, false));
        assert!(outcome.errors > 0, "{outcome:?}");
    }

    #[test]
    fn what_the_volume_cannot_take_is_refused() {
        let (device, counters) = (device(), CryptoCounters::new());
        let refused = |change: &dyn Fn(&mut IoJob)| {
            let mut job = job(Pattern::SeqRead, false);
            change(&mut job);
            Load::new(&device, Some(&counters), job).err().expect("refused")
        };
        assert!(refused(&|job| job.size = 512).contains("whole blocks of 4096"));
        assert!(refused(&|job| (job.size, job.parts) = (3072, true)).contains("parts of blocks"));
        assert!(refused(&|job| job.len = 1 << 30).contains("larger"));
        assert!(refused(&|job| job.depth = 0).contains("depth"));
    }
}
