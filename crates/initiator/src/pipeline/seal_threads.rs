//! Threads that seal what is large while other writes are under way, and the choice of who seals what.
//!
//! A handoff to a thread and back costs about as much as sealing 20 to 50 KiB ([`HANDOFF`]), so what is smaller is sealed where it
//! is. Threads are made when they are first needed, as many as the pipeline wants and no more, and sleep in between. Absent: what may
//! be sealed now, which is the engine's to say.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use strongroom_block::{DeviceError, DeviceErrorKind};
use strongroom_net::Waker;

use crate::completion::{device_error, lock};
use crate::pipeline::engine::{SealId, SealJob};
use crate::pipeline::sealing::{SealedBlocks, Sealing};

/// What a handoff to a thread and back costs.
const HANDOFF: Duration = Duration::from_micros(20);
/// What one thread seals in a second, in bytes, before that was measured.
const SEAL_RATE_FIRST: f64 = 1e9;

/// What was sealed.
pub(crate) type Sealed = (SealId, Result<SealedBlocks, DeviceError>);

/// The threads.
pub(crate) struct Sealers {
    shared: Arc<SealWorkers>,
    threads: Vec<JoinHandle<()>>,
}

struct SealWorkers {
    state: Mutex<SealQueue>,
    work: Condvar,
    waker: Waker,
}

#[derive(Default)]
struct SealQueue {
    jobs: VecDeque<(SealJob, Arc<Sealing>)>,
    done: Vec<Sealed>,
    idle: usize,
    ended: bool,
}

impl Sealers {
    /// No thread yet. `waker` is woken when something was sealed.
    pub(crate) fn new(waker: Waker) -> Sealers {
        let shared = SealWorkers { state: Mutex::default(), work: Condvar::new(), waker };
        Sealers { shared: Arc::new(shared), threads: Vec::new() }
    }

    /// Has `job` sealed by one of up to `workers` threads. Gives it back if there is none and none can be made.
    pub(crate) fn push(&mut self, job: SealJob, sealing: &Arc<Sealing>, workers: usize) -> Result<(), SealJob> {
        let mut state = lock(&self.shared.state);
        if state.idle <= state.jobs.len() && self.threads.len() < workers {
            let shared = self.shared.clone();
            let made = std::thread::Builder::new().name("strongroom-seal".into()).spawn(move || shared.run());
            match made {
                Ok(thread) => self.threads.push(thread),
                Err(error) => tracing::warn!(%error, "a thread that seals could not be made"),
            }
        }
        if self.threads.is_empty() {
            return Err(job);
        }
        state.jobs.push_back((job, sealing.clone()));
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    /// What was sealed since the last call.
    pub(crate) fn take_done(&self) -> Vec<Sealed> {
        if self.threads.is_empty() {
            return Vec::new();
        }
        std::mem::take(&mut lock(&self.shared.state).done)
    }
}

impl Drop for Sealers {
    fn drop(&mut self) {
        lock(&self.shared.state).ended = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl SealWorkers {
    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            if state.ended {
                return;
            }
            let Some((job, sealing)) = state.jobs.pop_front() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let sealed = seal(&job, &sealing);
            drop(job.plain);
            state = lock(&self.state);
            state.done.push((job.id, sealed));
            // Woken with each, not with the last: what is sealed is to leave.
            self.waker.wake();
        }
    }
}

/// There is an outcome in any case: the command waits for it, and its share of the window with it.
fn seal(job: &SealJob, sealing: &Sealing) -> Result<SealedBlocks, DeviceError> {
    // What is shared is behind locks, and whole at every step.
    let sealed = catch_unwind(AssertUnwindSafe(|| sealing.seal(job.lba, &job.plain)));
    sealed.unwrap_or_else(|_| {
        let message = "sealing a block panicked (the log says where); please report this as a bug";
        Err(device_error(DeviceErrorKind::Refused, Some(job.lba), message))
    })
}

/// What is sealed where it is, though there are threads for it, in bytes.
pub(crate) fn inline_bytes_max(sealing: &Sealing) -> usize {
    (sealing.bytes_per_second().unwrap_or(SEAL_RATE_FIRST) * HANDOFF.as_secs_f64()) as usize
}

#[cfg(test)]
mod tests {
    //! Proves that what is handed over comes back sealed, each once, and that the threads end.
    use strongroom_block::{BlockSize, Buffer, CryptoCounters, Lba, SealRecord, SealingDomain};
    use strongroom_seal::{KeyPurpose, SealContext, VolumeKeyFile, VolumeSealer};

    use super::*;

    #[test]
    fn what_is_handed_over_comes_back_sealed() {
        let context = SealContext::new(SealingDomain([2; 16]), BlockSize::new(512).unwrap(), 1);
        let keys = VolumeKeyFile::new(KeyPurpose::Volume, &[7; 32]);
        let sealer = VolumeSealer::blind(&keys, context, Arc::new(CryptoCounters::new())).unwrap();
        let sealing = Arc::new(Sealing::new(sealer));
        let mut sealers = Sealers::new(Waker::new().unwrap());
        assert!(sealers.take_done().is_empty());
        let job = |at: u64| SealJob {
            id: SealId::numbered(at),
            lba: Lba(at),
            plain: Buffer::copy_from(&[at as u8; 32 * 512]),
        };
        assert!(sealers.push(job(0), &sealing, 0).is_err(), "no thread, no work for it");
        for at in 0..40 {
            sealers.push(job(at), &sealing, 3).unwrap();
        }
        let mut done = Vec::new();
        while done.len() < 40 {
            done.extend(sealers.take_done());
            std::thread::yield_now();
        }
        done.sort_by_key(|(id, _)| id.number());
        for (at, (id, sealed)) in (0..).zip(done) {
            let sealed = sealed.unwrap();
            assert_eq!(id.number(), at);
            let mut plain = [0; 512];
            let record = SealRecord::decode(&sealed.records[..sealed.records.len() / 32]).unwrap();
            sealing.open_version(Lba(at), &record, &sealed.data[..512], &mut plain).unwrap().unwrap();
            assert_eq!(plain, [at as u8; 512]);
        }
        assert!(sealers.threads.len() <= 3);
        assert!(sealing.bytes_per_second().unwrap() > 0.0);
    }
    #[test]
    fn one_that_panics_is_told_of_and_the_thread_goes_on() {
        let context = SealContext::new(SealingDomain([2; 16]), BlockSize::new(512).unwrap(), 1);
        let mut is_first = true;
        let fill = Box::new(move |out: &mut [u8]| {
            assert!(!std::mem::take(&mut is_first), "no randomness yet");
            out.fill(7);
        });
        let sealer = VolumeSealer::block_keys(context, fill, Arc::new(CryptoCounters::new()));
        let sealing = Arc::new(Sealing::new(sealer));
        let mut sealers = Sealers::new(Waker::new().unwrap());
        let mut seal = |at: u64| {
            let job = SealJob { id: SealId::numbered(at), lba: Lba(at), plain: Buffer::copy_from(&[1; 512]) };
            sealers.push(job, &sealing, 1).unwrap();
            loop {
                if let Some((id, sealed)) = sealers.take_done().pop() {
                    assert_eq!(id.number(), at);
                    return sealed;
                }
                std::thread::yield_now();
            }
        };
        let error = seal(1).unwrap_err();
        assert_eq!((error.kind, error.lba), (DeviceErrorKind::Refused, Some(Lba(1))));
        seal(2).unwrap();
    }
}
