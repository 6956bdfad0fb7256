//! The pipeline's part of the device's thread: has sealed what may be, asks the kernel about the connection now and then, and passes on
//! what was found.

use std::time::{Duration, Instant};

use strongroom_net::{PathInfo, Waker};

use super::{Driver, SessionState};
use crate::Pipeline;
use crate::completion::lock;
use crate::pipeline::engine::Engine;
use crate::pipeline::seal_threads::{Sealers, inline_bytes_max};
use crate::pipeline::{PathSample, processors};
use crate::session::transport::SessionTransport;

/// How often the kernel is asked about the connection, and the limits follow what was found.
const INTERVAL: Duration = Duration::from_millis(50);

/// When that was, and the threads that seal.
pub(super) struct Pace {
    looked_at: Option<Instant>,
    /// How many threads may seal.
    workers: usize,
    threads: Sealers,
}

impl Pace {
    /// No thread yet. `waker` is woken when something was sealed.
    pub(super) fn new(waker: Waker) -> Pace {
        Pace { looked_at: None, workers: 0, threads: Sealers::new(waker) }
    }
}

impl<T: SessionTransport> Driver<T> {
    /// Looks at the connection, from time to time.
    pub(super) fn adapt(&mut self, now: Instant) {
        if self.pace.looked_at.is_some_and(|at| now < at + INTERVAL) {
            return;
        }
        let (Some(engine), SessionState::Active(nexus)) = (&mut self.attachment.engine, &self.state) else { return };
        self.pace.looked_at = Some(now);
        // Commands may go by datagrams, of which the wires' sockets know nothing.
        let wires = nexus.wires().iter().filter(|wire| wire.is_in_session && nexus.datagram_peer().is_none());
        let paths: Vec<_> = wires.filter_map(|wire| self.runtime.path(wire.stream)).collect();
        // All take the same way; the one that waits least shows it best.
        if let (Some(round_trip), Some(smallest)) =
            (paths.iter().map(|path| path.round_trip).min(), paths.iter().map(|path| path.smallest_round_trip).min())
        {
            engine.windows.path(PathSample {
                round_trip,
                smallest,
                unsent_bytes: paths.iter().map(|path| u64::from(path.unsent_bytes)).sum(),
                retransmits: paths.iter().map(|path| u64::from(path.retransmits)).sum(),
                is_paused: paths.iter().any(PathInfo::is_paused),
            });
        }
        if let Some(packets) = nexus.packet_status()
            && let (Some(round_trip), Some(smallest)) = (packets.round_trip, packets.smallest_round_trip)
        {
            let retransmits = packets.packets_lost;
            engine.windows.path(PathSample { round_trip, smallest, unsent_bytes: 0, retransmits, is_paused: false });
        }
        let seal_rate = self.attachment.sealing.as_ref().and_then(|sealing| sealing.bytes_per_second());
        let workers = engine.windows.workers(seal_rate.unwrap_or(0.0), processors());
        self.pace.workers = workers as usize;
        let seal_here_bytes_max = match (self.options.pipeline, &self.attachment.sealing, workers) {
            (Pipeline::Fixed { .. }, ..) => 0,
            (Pipeline::Auto, Some(sealing), 1..) => inline_bytes_max(sealing),
            (Pipeline::Auto, ..) => usize::MAX,
        };
        self.intake.adapt(seal_here_bytes_max, engine.windows.request_bytes_max());
        self.intake.set_ahead_bytes(engine.windows.ahead_bytes());
        let mut status = engine.windows.status();
        (status.workers, status.seal_bytes_per_second) = (workers, seal_rate);
        status.congestion = paths.into_iter().next().and_then(|path| path.congestion);
        lock(&self.status).pipeline = status;
    }

    /// How long there is nothing to do.
    pub(super) fn pause(&self) -> Option<Duration> {
        // Where keys are gone, sending fails writes, and others take their places.
        if self.has_more || self.attachment.engine.as_ref().is_some_and(Engine::has_to_seal) {
            return Some(Duration::ZERO);
        }
        let timeout = self.next_timeout().map(|at| at.saturating_duration_since(Instant::now()));
        let lease = self.attachment.sealing.as_ref().and_then(|sealing| sealing.lease_left());
        timeout.into_iter().chain(lease).min()
    }

    /// Has sealed what the pipeline has room for: what is small here, the rest by other threads.
    pub(super) fn seal(&mut self) {
        let (Some(engine), Some(sealing)) = (&mut self.attachment.engine, &self.attachment.sealing) else { return };
        for (id, sealed) in self.pace.threads.take_done() {
            engine.sealed(id, sealed);
        }
        while let Some(job) = engine.next_to_seal() {
            let is_here = self.pace.workers == 0 || job.plain.len() <= inline_bytes_max(sealing);
            let job = match is_here {
                true => job,
                false => match self.pace.threads.push(job, sealing, self.pace.workers) {
                    Ok(()) => continue,
                    Err(job) => job,
                },
            };
            let sealed = sealing.seal(job.lba, &job.plain);
            engine.sealed(job.id, sealed);
        }
    }
}
