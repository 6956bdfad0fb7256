//! One of BTIO's processes: writes its share of each dump to a shared volume, and reads the whole file back.
//!
//! Whole blocks go out as writes. What does not fill a block goes out as a *part* of one, conditional on what was there, so
//! that two processes that share a block both find their rows in it afterwards: nobody gathers rows for the others, as
//! MPI-IO's collective mode would. Absent: processes, and how the device was attached.

use std::time::Instant;

use strongroom_block::{BlockDevice, Buffer, BufferMut, Completion, DeviceError, Lba, Request, Token};

use super::partition::{Problem, runs};
use crate::latency::Latencies;

/// Longest single write or read, in bytes.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;

/// What a process did.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) ios: u64,
    pub(super) bytes: u64,
    pub(super) latencies: Latencies,
}

/// Keeps some requests in flight on a device that nobody else uses.
struct InFlight<'a> {
    device: &'a dyn BlockDevice,
    depth: usize,
    /// By token: when it was submitted, where it is, how long.
    slots: Vec<Option<(Instant, u64, u64)>>,
    free: Vec<usize>,
    completions: Vec<Completion>,
    done: Done,
}

impl<'a> InFlight<'a> {
    fn new(device: &'a dyn BlockDevice, depth: u32) -> InFlight<'a> {
        let depth = depth.max(1) as usize;
        InFlight {
            device,
            depth,
            slots: vec![None; depth],
            free: (0..depth).collect(),
            completions: Vec::new(),
            done: Done::default(),
        }
    }

    /// Submits one request, after waiting for a place. `check` sees what reads have brought.
    fn submit(
        &mut self,
        offset: u64,
        len: u64,
        request: Request,
        check: &mut dyn FnMut(u64, &BufferMut) -> Result<(), String>,
    ) -> Result<(), String> {
        while self.free.is_empty() {
            self.collect(check)?;
        }
        let slot = self.free.pop().expect("one is free");
        self.slots[slot] = Some((Instant::now(), offset, len));
        self.device.submit(Token(slot as u64), request);
        Ok(())
    }

    fn collect(&mut self, check: &mut dyn FnMut(u64, &BufferMut) -> Result<(), String>) -> Result<(), String> {
        self.device.wait(None);
        self.device.poll_completions(&mut self.completions);
        for Completion { token, result } in self.completions.drain(..) {
            let slot = token.0 as usize;
            let (since, offset, len) = self.slots[slot].take().ok_or("a request completed that was not in flight")?;
            self.free.push(slot);
            let buffer = result.map_err(|error: DeviceError| format!("at byte {offset} of the file: {error}"))?;
            if let Some(buffer) = buffer {
                check(offset, &buffer)?;
            }
            self.done.ios += 1;
            self.done.bytes += len;
            self.done.latencies.record(since.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    fn finish(mut self, check: &mut dyn FnMut(u64, &BufferMut) -> Result<(), String>) -> Result<Done, String> {
        while self.free.len() < self.depth {
            self.collect(check)?;
        }
        Ok(self.done)
    }
}

/// Writes the share of `rank` of every dump, `depth` writes in flight, and makes it durable.
///
/// # Errors
/// What the device said first.
pub(super) fn write(
    device: &dyn BlockDevice,
    problem: &Problem,
    (rank, count): (u32, u32),
    (run, depth): (u32, u32),
) -> Result<Done, String> {
    let block_bytes: u64 = device.geometry().block_size.bytes().into();
    let runs = runs(problem, rank, count);
    let no_reads = &mut |_: u64, _: &BufferMut| Ok(());
    let mut in_flight = InFlight::new(device, depth);
    for dump in 0..u64::from(problem.dumps) {
        for share in &runs {
            let mut at = dump * problem.dump_bytes() + share.offset;
            let end = at + share.len;
            while at < end {
                let len = piece_bytes(at, end, block_bytes);
                let mut data = BufferMut::zeroed(len as usize);
                problem.content(run, at, &mut data);
                in_flight.submit(at, len, request(at, data.freeze(), block_bytes), no_reads)?;
                at += len;
            }
        }
    }
    let mut done = in_flight.finish(no_reads)?;
    let mut flush = InFlight::new(device, 1);
    flush.submit(0, 0, Request::Flush, no_reads)?;
    flush.finish(no_reads)?;
    done.ios += 1;
    Ok(done)
}

/// How much of the file from `at` to `end` one request can write: whole blocks, or what is left of one.
fn piece_bytes(at: u64, end: u64, block_bytes: u64) -> u64 {
    let in_block = at % block_bytes;
    if in_block == 0 && end - at >= block_bytes {
        ((end - at) / block_bytes * block_bytes).min(TRANSFER_BYTES_MAX.max(block_bytes))
    } else {
        (block_bytes - in_block).min(end - at)
    }
}

fn request(at: u64, data: Buffer, block_bytes: u64) -> Request {
    let lba = Lba(at / block_bytes);
    let offset_bytes = (at % block_bytes) as u32;
    if offset_bytes == 0 && data.len() as u64 >= block_bytes {
        Request::Write { lba, data, fua: false }
    } else {
        Request::WritePart { lba, offset_bytes, data, fua: false }
    }
}

/// Reads the whole file and compares it with what all processes together must have written.
///
/// # Errors
/// The first byte that differs, or what the device said first.
pub(super) fn verify(device: &dyn BlockDevice, problem: &Problem, (run, depth): (u32, u32)) -> Result<Done, String> {
    let block_bytes: u64 = device.geometry().block_size.bytes().into();
    let step = TRANSFER_BYTES_MAX.max(block_bytes);
    let file_bytes = problem.file_bytes();
    let mut expected = vec![0; step as usize];
    let mut check = |offset: u64, found: &BufferMut| {
        let len = (file_bytes - offset).min(found.len() as u64) as usize;
        problem.content(run, offset, &mut expected[..len]);
        match expected[..len].iter().zip(&found[..len]).position(|(expected, found)| expected != found) {
            None => Ok(()),
            Some(at) => {
                let at = offset + at as u64;
                let dump = at / problem.dump_bytes();
                Err(format!("byte {at} of the file, in dump {dump}, is not what was written: a row was lost"))
            }
        }
    };
    let mut in_flight = InFlight::new(device, depth);
    let mut at = 0;
    while at < file_bytes {
        let len = step.min((file_bytes - at).next_multiple_of(block_bytes));
        let read = Request::Read { lba: Lba(at / block_bytes), buffer: BufferMut::zeroed(len as usize) };
        in_flight.submit(at, len, read, &mut check)?;
        at += len;
    }
    in_flight.finish(&mut check)
}

#[cfg(test)]
mod tests {
    use strongroom_block::{BlockSize, Geometry};
    use strongroom_initiator::MemoryDevice;

    use super::*;

    #[test]
    fn all_shares_together_are_the_file_and_a_missing_row_is_found() {
        let problem = Problem { dumps: 2, ..Problem::of_class('S').unwrap() };
        for block_bytes in [512, 4096] {
            let geometry =
                Geometry { block_size: BlockSize::new(block_bytes).unwrap(), blocks: (1 << 20) / block_bytes };
            let device = MemoryDevice::new(geometry);
            for count in [1, 4, 9] {
                let mut bytes = 0;
                for rank in 0..count {
                    assert!(
                        rank == 0 || verify(&device, &problem, (count, 4)).is_err(),
                        "{rank} of {count} have written"
                    );
                    bytes += write(&device, &problem, (rank, count), (count, 4)).unwrap().bytes;
                }
                assert_eq!(bytes, problem.file_bytes());
                let read = verify(&device, &problem, (count, 4)).unwrap();
                assert_eq!(read.bytes, problem.file_bytes().next_multiple_of(block_bytes));
            }
        }
    }

    #[test]
    fn a_file_that_does_not_fit_is_an_error() {
        let problem = Problem::of_class('S').unwrap();
        let device = MemoryDevice::new(Geometry { block_size: BlockSize::new(4096).unwrap(), blocks: 8 });
        let error = write(&device, &problem, (0, 1), (0, 8)).unwrap_err();
        assert!(error.contains("of the file"), "{error}");
    }
}
