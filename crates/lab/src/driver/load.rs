//! A fixed number of I/Os in flight on a block device, counted between two moments, and compared where that is asked for.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, Buffer, BufferMut, Completion, CryptoBytes, CryptoCounters, Lba, Request, Token};

use super::beforehand::Beforehand;
use super::refuse_impossible;
use crate::latency::Latencies;
use crate::pattern;
use crate::protocol::{Outcome, Shared, Work};

/// How long to wait for a completion before looking for orders again.
const WAIT: Duration = Duration::from_millis(20);
/// Different contents of writes, so that nothing on the way profits from seeing the same twice.
const CONTENTS: u64 = 16;
/// After a measurement that verifies, at most so many bytes of what was written are read back.
const READ_BACK_BYTES_MAX: u64 = 256 << 20;
/// After so many errors nothing new is submitted: the cell is lost anyway.
const ERRORS_MAX: u64 = 100;

/// I/O under way.
pub(crate) struct Load<'a> {
    device: &'a dyn BlockDevice,
    counters: Option<&'a CryptoCounters>,
    pub(super) work: Work,
    pub(super) block_bytes: u64,
    /// I/Os that fit into our part of the volume.
    places: u64,
    random: u64,
    next_place: u64,
    flights: Vec<Flight>,
    idle: Vec<usize>,
    completions: Vec<Completion>,
    contents: Vec<Buffer>,
    spare: Vec<BufferMut>,
    /// What is verified: by place, the last write that was acknowledged.
    written: BTreeMap<u64, u64>,
    busy_places: HashMap<u64, ()>,
    writes: u64,
    /// What is sealed already.
    pub(super) beforehand: Option<Beforehand<'a>>,
    verified: u64,
    marked: Instant,
    /// Counting has ended; what is under way is waited for.
    stopped: Option<Instant>,
    crypto_begun: CryptoBytes,
    crypto_marked: CryptoBytes,
    ios: u64,
    /// I/Os since the beginning, and those since `mark` by their share ([`crate::protocol::Shared`]).
    ios_begun: u64,
    ios_shared: f64,
    latencies: Latencies,
    errors: u64,
    first_error: Option<String>,
}

/// One I/O in flight.
#[derive(Clone, Copy)]
struct Flight {
    begun: Instant,
    place: u64,
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
        work: Work,
    ) -> Result<Load<'a>, String> {
        refuse_impossible(&work, device)?;
        let places = work.len / work.size;
        // What is verified must not be in flight twice.
        let depth = if work.verify { u64::from(work.depth).min(places) as u32 } else { work.depth };
        let now = Instant::now();
        let contents =
            if work.pattern.is_write() && !work.verify { contents(work.size, work.seed) } else { Vec::new() };
        let crypto_begun = counters.map_or_else(CryptoBytes::default, CryptoCounters::snapshot);
        Ok(Load {
            device,
            counters,
            block_bytes: device.geometry().block_size.len() as u64,
            places,
            random: pattern::mix(work.seed),
            next_place: 0,
            flights: vec![Flight { begun: now, place: 0, write: 0 }; depth as usize],
            idle: (0..depth as usize).collect(),
            completions: Vec::new(),
            contents,
            spare: Vec::new(),
            written: BTreeMap::new(),
            busy_places: HashMap::new(),
            writes: 0,
            beforehand: None,
            verified: 0,
            marked: now,
            stopped: None,
            crypto_begun,
            crypto_marked: crypto_begun,
            ios: 0,
            ios_begun: 0,
            ios_shared: 0.0,
            latencies: Latencies::default(),
            errors: 0,
            first_error: None,
            work,
        })
    }

    /// Keeps the queue full and takes in what has completed; waits a little if nothing has.
    pub(crate) fn step(&mut self) {
        if self.errors < ERRORS_MAX {
            while let Some(slot) = self.idle.pop() {
                if !self.submit(slot) {
                    self.idle.push(slot);
                    break;
                }
            }
        }
        self.device.wait(Some(WAIT));
        self.take_in();
    }

    /// Whether there will soon be nothing more to do.
    pub(crate) fn is_spent(&self) -> bool {
        self.beforehand.as_ref().is_some_and(Beforehand::is_spent)
    }

    /// Forgets what was counted, and begins to count.
    pub(crate) fn mark(&mut self) {
        (self.ios, self.ios_shared) = (0, 0.0);
        self.latencies.clear();
        self.crypto_marked = self.crypto();
        self.marked = Instant::now();
    }

    /// Ends counting, waits for what is in flight, and reads back what was written if that is asked for.
    ///
    /// # Errors
    /// If what is in flight never completes.
    pub(crate) fn stop(mut self) -> Result<Outcome, String> {
        let mut outcome = Outcome {
            elapsed_ns: self.marked.elapsed().as_nanos() as u64,
            ios: self.ios,
            bytes: self.ios * self.work.size,
            latency: self.latencies.counts(),
            crypto_bytes: self.counters.map(|_| self.crypto().total() - self.crypto_marked.total()),
            encrypted_bytes: self.counters.map(|_| self.crypto().encrypted - self.crypto_marked.encrypted),
            ..Outcome::default()
        };
        let begun = Instant::now();
        self.stopped = Some(begun);
        while self.idle.len() < self.flights.len() {
            self.device.wait(Some(WAIT));
            self.take_in();
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("I/Os did not complete within a minute".into());
            }
        }
        outcome.shared = self.shared();
        if self.work.verify {
            self.read_back();
            if let Some(device) = self.beforehand.as_ref().map(Beforehand::device)
                && !self.work.pattern.is_write()
            {
                self.open_everything(device)?;
            }
            outcome.verified = Some(self.verified);
        }
        outcome.errors = self.errors;
        outcome.first_error = self.first_error;
        Ok(outcome)
    }

    fn shared(&self) -> Shared {
        let (crypto, begun) = (self.crypto(), self.crypto_begun);
        let part = self.ios_shared / self.ios_begun.max(1) as f64;
        let of = |bytes: u64| (bytes as f64 * part).round() as u64;
        Shared {
            bytes: (self.ios_shared * self.work.size as f64).round() as u64,
            crypto_bytes: of(crypto.total() - begun.total()),
            encrypted_bytes: of(crypto.encrypted - begun.encrypted),
        }
    }

    /// The share of an I/O's time that was counted.
    fn share(&self, begun: Instant, now: Instant) -> f64 {
        let counted =
            self.stopped.map_or(now, |stopped| stopped.min(now)).saturating_duration_since(begun.max(self.marked));
        let whole = now - begun;
        if whole.is_zero() { 1.0 } else { counted.as_secs_f64() / whole.as_secs_f64() }
    }

    fn crypto(&self) -> CryptoBytes {
        self.counters.map_or_else(CryptoBytes::default, CryptoCounters::snapshot)
    }

    /// False: there is nothing to submit.
    fn submit(&mut self, slot: usize) -> bool {
        let (begun, token) = (Instant::now(), Token(slot as u64));
        if let Some(beforehand) = self.beforehand.as_mut().filter(|_| self.work.pattern.is_write()) {
            let Some((place, write)) = beforehand.write(token) else { return false };
            self.flights[slot] = Flight { begun, place, write };
            return true;
        }
        let place = self.choose();
        let at = self.work.start + place * self.work.size;
        let lba = Lba(at / self.block_bytes);
        self.flights[slot] = Flight { begun, place, write: 0 };
        if let Some(beforehand) = &self.beforehand {
            beforehand.device().submit_fetch(token, lba, (self.work.size / self.block_bytes) as u32);
            return true;
        }
        let request = if !self.work.pattern.is_write() {
            let bytes = self.work.size.max(self.block_bytes) as usize;
            Request::Read { lba, buffer: self.spare.pop().unwrap_or_else(|| BufferMut::zeroed(bytes)) }
        } else if self.work.size < self.block_bytes {
            let offset_bytes = (at % self.block_bytes) as u32;
            Request::WritePart { lba, offset_bytes, data: self.content(slot, place), fua: false }
        } else {
            Request::Write { lba, data: self.content(slot, place), fua: false }
        };
        self.device.submit(token, request);
        true
    }

    fn choose(&mut self) -> u64 {
        loop {
            let place = self.next_place();
            if !self.work.verify || self.busy_places.insert(place, ()).is_none() {
                return place;
            }
        }
    }

    pub(super) fn next_place(&mut self) -> u64 {
        if !self.work.pattern.is_random() {
            let place = self.next_place;
            self.next_place = (place + 1) % self.places;
            return place;
        }
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The high half of the product is uniform enough for any number of places.
        ((u128::from(pattern::mix(self.random)) * u128::from(self.places)) >> 64) as u64
    }

    fn content(&mut self, slot: usize, place: u64) -> Buffer {
        let (write, data) = self.next_content(place);
        self.flights[slot].write = write;
        data
    }

    /// What is written next, and the number of the write.
    pub(super) fn next_content(&mut self, place: u64) -> (u64, Buffer) {
        self.writes += 1;
        if !self.work.verify {
            return (self.writes, self.contents[(self.writes % CONTENTS) as usize].clone());
        }
        let mut data = BufferMut::zeroed(self.work.size as usize);
        pattern::fill(&mut data, self.work.start + place * self.work.size, self.write_number(self.writes));
        (self.writes, data.freeze())
    }

    /// Tells the writes of one measurement from those of another.
    fn write_number(&self, write: u64) -> u64 {
        (self.work.seed << 40) ^ write
    }

    fn take_in(&mut self) {
        let now = Instant::now();
        self.device.poll_completions(&mut self.completions);
        for completion in std::mem::take(&mut self.completions) {
            let slot = completion.token.0 as usize;
            let flight = self.flights[slot];
            self.idle.push(slot);
            self.busy_places.remove(&flight.place);
            match completion.result {
                Ok(buffer) => {
                    self.ios += 1;
                    self.ios_begun += 1;
                    self.ios_shared += self.share(flight.begun, now);
                    self.latencies.record((now - flight.begun).as_nanos() as u64);
                    self.look_at(flight, buffer);
                }
                Err(error) => self.failed(error.to_string()),
            }
        }
    }

    fn look_at(&mut self, flight: Flight, buffer: Option<BufferMut>) {
        if let Some(buffer) = buffer {
            if self.work.verify {
                self.compare(&buffer, flight.place, None);
            }
            self.spare.push(buffer);
        } else if self.work.verify && self.work.pattern.is_write() {
            self.written.insert(flight.place, flight.write);
        }
    }

    /// `blocks` are the whole blocks that the I/O is in.
    pub(super) fn compare(&mut self, blocks: &[u8], place: u64, write: Option<u64>) {
        let at = self.work.start + place * self.work.size;
        let offset = (at % self.block_bytes) as usize;
        let data = &blocks[offset..offset + self.work.size as usize];
        match pattern::check(data, at, write) {
            Ok(()) => self.verified += (data.len() / pattern::SECTOR) as u64,
            Err(problem) => self.failed(problem),
        }
    }

    fn read_back(&mut self) {
        let blocks = (self.work.size / self.block_bytes).max(1);
        let places_max = (READ_BACK_BYTES_MAX / self.work.size) as usize;
        let written: Vec<(u64, u64)> = std::mem::take(&mut self.written).into_iter().take(places_max).collect();
        for (place, write) in written {
            let lba = Lba((self.work.start + place * self.work.size) / self.block_bytes);
            match strongroom_initiator::read_blocking(self.device, lba, blocks) {
                Ok(data) => self.compare(&data, place, Some(self.write_number(write))),
                Err(error) => self.failed(error.to_string()),
            }
        }
    }

    fn failed(&mut self, problem: String) {
        self.errors += 1;
        self.first_error.get_or_insert(problem);
    }
}

/// What does not compress and does not repeat within one I/O.
fn contents(size: u64, seed: u64) -> Vec<Buffer> {
    let content = |index: u64| {
        let mut data = BufferMut::zeroed(size as usize);
        for (at, bytes) in (0u64..).zip(data.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&pattern::mix(seed ^ (index << 48) ^ at).to_le_bytes());
        }
        data.freeze()
    };
    (0..CONTENTS).map(content).collect()
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

    fn work(pattern: Pattern, verify: bool) -> Work {
        Work {
            pattern,
            size: 8192,
            depth: 8,
            start: 64 * 4096,
            len: 128 * 4096,
            verify,
            parts: false,
            sealed_beforehand_bytes: 0,
            seed: 3,
        }
    }

    fn run(device: &MemoryDevice, work: Work) -> Outcome {
        let counters = CryptoCounters::new();
        let mut load = Load::new(device, Some(&counters), work).unwrap();
        (0..20).for_each(|_| load.step());
        load.mark();
        (0..50).for_each(|_| load.step());
        load.stop().unwrap()
    }

    #[test]
    fn counts_what_completed_between_mark_and_stop() {
        let device = device();
        for pattern in Pattern::ALL {
            let outcome = run(&device, work(pattern, false));
            assert_eq!((outcome.ios, outcome.bytes), (400, 400 * 8192), "{pattern}: 50 steps of 8");
            assert_eq!(outcome.latency.0.iter().map(|(_, count)| count).sum::<u64>(), 400);
            assert_eq!((outcome.errors, outcome.verified), (0, None));
        }
    }

    #[test]
    fn an_io_counts_with_the_share_of_its_time_that_is_counted() {
        let (device, counters) = (device(), CryptoCounters::new());
        let mut load = Load::new(&device, Some(&counters), work(Pattern::SeqWrite, false)).unwrap();
        let at = |ms| load.marked + Duration::from_millis(ms);
        let (begun, marked, stopped) = (at(0), at(100), at(300));
        let times =
            [(0, 50), (0, 400), (50, 150), (120, 220), (250, 350), (310, 400), (200, 200)].map(|(a, b)| (at(a), at(b)));
        (load.marked, load.stopped) = (marked, Some(stopped));
        let shares = times.map(|(from, to)| load.share(from, to));
        assert_eq!(shares.map(|share| (share * 100.0).round()), [0.0, 50.0, 50.0, 100.0, 50.0, 0.0, 100.0]);
        (load.marked, load.stopped) = (begun, None);
        (load.ios_begun, load.ios_shared) = (10, 2.5);
        assert_eq!(load.shared().bytes, 5 * 4096);
    }

    #[test]
    fn stays_in_its_part_of_the_volume() {
        let device = device();
        run(&device, work(Pattern::RandWrite, false));
        run(&device, work(Pattern::SeqWrite, false));
        for lba in (0..64).chain(192..BLOCKS) {
            let data = strongroom_initiator::read_blocking(&device, Lba(lba), 1).unwrap();
            pattern::check(&data, lba * 4096, Some(0)).unwrap();
        }
    }

    #[test]
    fn verifying_reads_and_writes_finds_them_right() {
        let device = device();
        for pattern in [Pattern::RandRead, Pattern::SeqWrite, Pattern::RandWrite, Pattern::SeqRead] {
            let outcome = run(&device, work(pattern, true));
            assert_eq!((outcome.errors, &outcome.first_error), (0, &None), "{pattern}");
            assert!(outcome.verified.unwrap() > 16, "{pattern}: {outcome:?}");
        }
    }

    #[test]
    fn parts_of_blocks_are_read_and_written_where_they_belong() {
        let device = device();
        for pattern in Pattern::ALL {
            let outcome = run(&device, Work { size: 512, parts: true, ..work(pattern, true) });
            assert_eq!((outcome.errors, &outcome.first_error), (0, &None), "{pattern}");
            assert!(outcome.verified.unwrap() > 16 && outcome.bytes == outcome.ios * 512, "{pattern}: {outcome:?}");
        }
    }

    #[test]
    fn verifying_finds_wrong_data_and_errors_are_counted() {
        let device = device();
        let data = strongroom_initiator::read_blocking(&device, Lba(70), 1).unwrap().freeze();
        strongroom_initiator::write_blocking(&device, Lba(71), data, false).unwrap();
        let outcome = run(&device, work(Pattern::SeqRead, true));
        assert!(outcome.errors > 0 && outcome.first_error.unwrap().contains("was written to sector"));
        device.fail_at(Lba(100), DeviceErrorKind::Medium);
        let outcome = run(&device, work(Pattern::SeqRead, false));
        assert!(outcome.errors > 0, "{outcome:?}");
    }

    #[test]
    fn what_the_volume_cannot_take_is_refused() {
        let (device, counters) = (device(), CryptoCounters::new());
        let refused = |change: &dyn Fn(&mut Work)| {
            let mut work = work(Pattern::SeqRead, false);
            change(&mut work);
            Load::new(&device, Some(&counters), work).err().expect("refused")
        };
        assert!(refused(&|work| work.size = 512).contains("whole blocks of 4096"));
        assert!(refused(&|work| (work.size, work.parts) = (3072, true)).contains("parts of blocks"));
        assert!(refused(&|work| work.len = 1 << 30).contains("larger"));
        assert!(refused(&|work| work.depth = 0).contains("depth"));
    }
}
