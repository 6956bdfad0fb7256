//! The sealed block device over a session: a volume behind a network as a [`BlockDevice`], on which every front end stands.
//!
//! ```text
//! callers' threads        submit: check, admit, seal      recover, format, detach
//!                              |  intake  ^                    |
//! the device's thread     driver: sockets, nexus (crate::session), engine (crate::pipeline)
//!                              |          ^
//! further threads         seal_threads: large writes, where one thread is too slow or where a depth was chosen
//! ```
//!
//! Absent: the pipeline (`crate::pipeline`), the session with the target (`crate::session`), and front ends.
//!
//! Requests may be split, retried, and sent again over another connection; a request that was submitted completes once.
//! A block that does not open is a `Medium` error that names it, and never data, unless it was chosen that older versions may be
//! read instead (`previous`).

mod attachment;
mod bounds;
mod contents;
mod driver;
mod erase;
mod failed_reads;
mod grow;
mod holes;
mod intake;
pub(crate) mod machine;
mod presealed;
mod previous;
mod protection;
mod recover;
mod reseal;
mod sealed_note;
mod verify;
mod versions;

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use strongroom_block::{
    BlockDevice, Completion, CompletionSink, DeviceError, DeviceErrorKind, Geometry, Lba, Request, Token,
};
use strongroom_net::Waker;
use strongroom_scsi::vendor::lease::Writer;

use crate::completion::{device_error, lock};
use crate::pipeline::ahead::ReadAhead;
use crate::pipeline::losses::LostRequest;
use crate::pipeline::operation::{Discard, Flush, Hole, Operation, Read, Write, WritePart};
use crate::pipeline::request::{NewRequest, Reply};
use crate::pipeline::sealing::Sealing;
use crate::session::ecl::EclTransport;
use crate::session::iscsi::IscsiTransport;
use crate::session::transport::SessionTransport;
use crate::{
    AttachError, AttachOptions, DamagedReads, FenceReport, FenceRequest, KeyStatus, Pipeline, RequestReport, Transport,
    UnitDescription, WriteLosses,
};
use bounds::Bounds;
use driver::{Attached, Driver, Purpose};
use failed_reads::FailedReads;
use holes::Holes;
use intake::Intake;
use previous::Previous;
use versions::Versions;

pub use contents::VolumeContents;
pub use driver::ConnectionStatus;
pub use erase::Erased;
pub use grow::{Growth, UnsealedGrowth, grow_and_seal, unsealed_part};
pub use presealed::SealedWrite;
pub use previous::PreviousReads;
pub use recover::{RecoverError, Recovered};
pub use reseal::{ResealProgress, ResealReport};
pub use verify::{VerifyProgress, VerifyReport};

/// A volume that is attached. Requests go in and completions come out as [`BlockDevice`] says; dropped, it logs out and
/// forgets what was not flushed.
pub struct RemoteDevice {
    intake: Arc<Intake>,
    status: Arc<Mutex<ConnectionStatus>>,
    unit: Arc<UnitDescription>,
    sealing: Option<Arc<Sealing>>,
    read_only: bool,
    /// The target is told what opened.
    gives_feedback: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// What looks for older versions of blocks that do not open, if that was chosen.
    previous: Option<Previous>,
}

impl std::fmt::Debug for RemoteDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteDevice").field("unit", &self.unit).finish_non_exhaustive()
    }
}

/// Asks what is behind a URL without attaching it: no key is needed, nothing is read or written.
///
/// # Errors
/// [`AttachError`]: not reachable, refused, or nothing there.
pub fn inquire(options: AttachOptions) -> Result<UnitDescription, AttachError> {
    let (attached, _, _, thread) = start(options, Purpose::Inquire)?;
    let _ = thread.join();
    Ok(Arc::unwrap_or_clone(attached.unit))
}

/// Asks who writes to the volume behind a URL, and who else is logged in to it, without attaching it. Empty for a target that keeps no writer
/// leases: nobody can tell there.
///
/// # Errors
/// As [`inquire`].
pub fn writers(options: AttachOptions) -> Result<Vec<Writer>, AttachError> {
    let (attached, _, _, thread) = start(options, Purpose::AskWriters)?;
    let _ = thread.join();
    Ok(attached.writers)
}

/// Carries out a request about reservations: who is registered, fence a node, give up a key. The volume is not attached. With
/// [`FenceRequest::Fence`] it is certain, once this returns, that no write of who was fenced takes effect any more.
///
/// # Errors
/// As [`inquire`], and [`AttachError::Reservation`].
pub fn fence(options: AttachOptions, request: FenceRequest) -> Result<FenceReport, AttachError> {
    let (attached, _, _, thread) = start(options, Purpose::Fence(Arc::new(request)))?;
    let _ = thread.join();
    Ok(attached.report)
}

type Started = (Attached, Arc<Intake>, Arc<Mutex<ConnectionStatus>>, JoinHandle<()>);

fn start(options: AttachOptions, purpose: Purpose) -> Result<Started, AttachError> {
    if options.url.is_channel() && options.channel.target_keys.is_empty() {
        return Err(AttachError::Options(
            "a strongroom:// URL needs the target's public key; 'strongroom identity show' at the target prints it"
                .into(),
        ));
    }
    if options.url.transport() != Transport::Iscsi {
        strongroom_ecl::Scheme::from_number(options.scheme() as u8)
            .map_err(|error| AttachError::Options(error.to_string()))?;
        if options.iscsi.connections > 1 {
            let problem = "an ecl:// or ecl+tcp:// URL has one association and no further connections; several are for strongroom://";
            return Err(AttachError::Options(problem.into()));
        }
    }
    if options.channel.suite.is_for_benchmarks_only() && !options.benchmark_suites {
        let problem = format!(
            "{} protects nothing today and is for benchmarks alone; choose another suite",
            options.channel.suite
        );
        return Err(AttachError::Options(problem));
    }
    if options.sealing.blocks_per_key.get() > 1 && !options.benchmark_suites {
        let problem = "a peer that learns a key that blocks share opens all of them, so that is for benchmarks alone; have a key for each";
        return Err(AttachError::Options(problem.into()));
    }
    let waker = Waker::new().map_err(|error| AttachError::System(std::io::Error::other(error.to_string())))?;
    let intake = Arc::new(Intake::new(waker.clone(), options.limits, options.pipeline, options.busy_poll));
    let status = Arc::new(Mutex::new(ConnectionStatus::default()));
    let (first, attached) = sync_channel(1);
    let thread = {
        let (options, intake, status) = (Arc::new(options), intake.clone(), status.clone());
        // A runtime stays in its thread, so the driver is made there. Here alone the transport is chosen.
        let body = move || match options.url.transport() {
            Transport::Iscsi => drive::<IscsiTransport>(options, intake, status, waker, purpose, first),
            Transport::Ecl | Transport::EclTcp => drive::<EclTransport>(options, intake, status, waker, purpose, first),
        };
        std::thread::Builder::new().name("strongroom-initiator".into()).spawn(body)?
    };
    match attached.recv() {
        Ok(Ok(attached)) => Ok((attached, intake, status, thread)),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(_) => Err(AttachError::System(std::io::Error::other("the device's thread ended unexpectedly"))),
    }
}

fn drive<T: SessionTransport>(
    options: Arc<AttachOptions>,
    intake: Arc<Intake>,
    status: Arc<Mutex<ConnectionStatus>>,
    waker: Waker,
    purpose: Purpose,
    first: SyncSender<Result<Attached, AttachError>>,
) {
    match Driver::<T>::new(options, intake, status, waker, purpose, first.clone()) {
        Ok(driver) => driver.run(),
        Err(error) => drop(first.send(Err(error))),
    }
}

impl RemoteDevice {
    /// Connects, proves who both sides are, logs in, and asks what the volume is; fetches its key if it is sealed.
    ///
    /// # Errors
    /// [`AttachError`]; the first failure is final, later ones (after an attach) are retried where that can help.
    pub fn attach(options: AttachOptions) -> Result<RemoteDevice, AttachError> {
        let (read_only, damaged_reads) = (options.read_only, options.sealing.damaged_reads);
        if damaged_reads == DamagedReads::Previous && !read_only {
            // A page cache or a file system would write an older version back, with what was changed in the rest of it.
            return Err(AttachError::Options(
                "older versions are only read where nothing is written, or one could become the newest unnoticed; attach read-only, \
                 or bring single blocks back with 'strongroom volume recover'"
                    .into(),
            ));
        }
        let gives_feedback = options.sealing.verified_feedback && !read_only;
        // One at a time means it of reads as well.
        let readahead = options.readahead && !matches!(options.pipeline, Pipeline::Fixed { depth: 1, .. });
        let (attached, intake, status, thread) = start(options, Purpose::Attach)?;
        let Attached { unit, sealing, .. } = attached;
        tracing::info!(
            target = unit.target_name,
            bytes = unit.geometry.bytes(),
            sealed = unit.sealed.is_some(),
            "attached"
        );
        let thread = Mutex::new(Some(thread));
        let mut device =
            RemoteDevice { intake, status, unit, sealing, read_only, gives_feedback, thread, previous: None };
        if damaged_reads == DamagedReads::Previous
            && let Some(versions) = device.versions()
        {
            let (failed_reads, receiver) = FailedReads::new();
            device.previous = Some(Previous::start(versions, receiver)?);
            assert!(device.intake.failed_reads.set(failed_reads).is_ok(), "a device is attached once");
        }
        if readahead {
            let Geometry { block_size, blocks } = device.unit.geometry;
            device.intake.fetch_ahead(ReadAhead::new(block_size.shift(), blocks));
        }
        Ok(device)
    }

    /// What the unit said about itself when it was attached. (It may have grown since: [`BlockDevice::geometry`].)
    pub fn unit(&self) -> &UnitDescription {
        &self.unit
    }

    /// Blocks of which an older version was read ([`DamagedReads::Previous`]); none under the other policy.
    pub fn previous_reads(&self) -> PreviousReads {
        self.previous.as_ref().map(Previous::found).unwrap_or_default()
    }

    /// How the connection is doing.
    pub fn status(&self) -> ConnectionStatus {
        let status = lock(&self.status).clone();
        ConnectionStatus { busy_poll_completions: self.intake.completions.poll_counters(), ..status }
    }

    /// What its requests came to since it was attached.
    pub fn requests(&self) -> RequestReport {
        self.intake.meter.report()
    }

    /// Users' writes and flushes that failed since it was attached.
    pub fn losses(&self) -> WriteLosses {
        self.intake.losses()
    }

    /// How it stands with keys that a server lends; `None` for others, and for plain volumes.
    pub fn key_status(&self) -> Option<KeyStatus> {
        self.sealing.as_ref()?.key_status()
    }

    /// Bytes of requests that it takes in at once now, before `submit` waits. Grows with the product of bandwidth and delay.
    pub fn queue_bytes(&self) -> u64 {
        self.intake.bytes_max() as u64
    }

    /// Makes everything written durable, logs out, and ends the device's thread. Requests in flight complete first.
    ///
    /// # Errors
    /// What the flush says, or that somebody else has taken the volume over since it was attached: what was written from here may be gone
    /// then. The device is detached in any case.
    pub fn detach(&self) -> Result<(), DeviceError> {
        let flushed = if self.read_only { Ok(()) } else { self.flush() };
        self.end();
        match self.status().lease_lost {
            Some(why) => flushed.and(Err(device_error(DeviceErrorKind::ReservationConflict, None, why))),
            None => flushed,
        }
    }

    /// Gives up what is not durable at the target: every request fails at once, those that wait for a target that is away
    /// included, and so does every later one. For a detach that must not wait; call [`RemoteDevice::detach`] after it.
    pub fn abandon(&self) {
        self.intake.abandon();
    }

    /// Makes every write that completed before this call durable, and waits for it. For callers beside the consumer of the
    /// completions.
    ///
    /// # Errors
    /// What the target says.
    pub fn flush(&self) -> Result<(), DeviceError> {
        self.intake.ask(Flush, 0).map(drop)
    }

    /// Makes the whole volume absent: what the first initiator does with a new sealed volume, whose blocks are otherwise
    /// errors. All data is gone. Durable when it returns.
    ///
    /// # Errors
    /// What the target says.
    pub fn format(&self) -> Result<(), DeviceError> {
        self.bounds().check_writable(None)?;
        let discard = self.discard(Lba(0), self.geometry().blocks)?;
        self.intake.ask(discard, 0)?;
        self.flush()
    }

    /// Makes the blocks from `from` on absent, after the volume grew by them: until then each of them is an error. Refused if they
    /// are formatted already, or if the block before is not. Durable when it returns.
    ///
    /// # Errors
    /// `OutOfRange` if it is refused; what the target says.
    pub fn format_grown(&self, from: Lba) -> Result<(), DeviceError> {
        self.bounds().check_writable(None)?;
        let blocks = self.geometry().blocks;
        let refused = |what: &str| device_error(DeviceErrorKind::OutOfRange, Some(from), what);
        if from.0 == 0 || from.0 >= blocks {
            return Err(refused("the volume did not grow from there; give the size that it had before"));
        }
        // What is neither data nor a hole cannot be read; anything else must not be destroyed.
        self.hole_at(Lba(from.0 - 1), 1)
            .map_err(|_| refused("the block before cannot be read: this is not the size that the volume had before"))?;
        match self.hole_at(from, 1) {
            Err(error) if error.kind == DeviceErrorKind::Medium => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(refused("the blocks from there on are formatted already; nothing is to be done")),
        }
        let discard = self.discard(from, blocks - from.0)?;
        self.intake.ask(discard, 0)?;
        self.flush()
    }

    /// How many blocks from `lba` on are absent, at most `count`; 0 if `lba` holds data or it cannot be told. Looks at a few
    /// GiB in one call at most: ask again behind them. On a sealed volume absence is proved by its seal, on a plain one it is
    /// what the target says.
    ///
    /// # Errors
    /// What the target says, or `Medium` for a hole whose seal does not open.
    pub fn hole_at(&self, lba: Lba, count: u64) -> Result<u64, DeviceError> {
        self.holes().find(lba, count).map(|absence| absence.blocks)
    }

    /// How many blocks from `lba` on are alike, at most `count` (which is not 0), and whether they are absent. As [`RemoteDevice::hole_at`]; how
    /// far data go is what the target says.
    ///
    /// # Errors
    /// As [`RemoteDevice::hole_at`].
    pub fn extent_at(&self, lba: Lba, count: u64) -> Result<(u64, bool), DeviceError> {
        let holes = self.holes();
        match holes.find(lba, count)?.blocks {
            0 => holes.data(lba, count).map(|blocks| (blocks, false)),
            blocks => Ok((blocks, true)),
        }
    }

    /// What finds absent blocks.
    fn holes(&self) -> Holes<'_> {
        Holes { intake: &self.intake, is_sealed: self.sealing.is_some() }
    }

    fn end(&self) {
        self.intake.detach();
        if let (Some(failed_reads), Some(previous)) = (self.intake.failed_reads.get(), &self.previous) {
            failed_reads.close();
            previous.join();
        }
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        if let Some(sealing) = &self.sealing {
            sealing.end();
        }
    }

    /// The kept versions of its blocks; `None` if it is plain.
    fn versions(&self) -> Option<Versions> {
        let sealing = self.sealing.clone()?;
        Some(Versions { intake: self.intake.clone(), sealing })
    }

    /// Whether there are keys.
    fn check_keys(&self) -> Result<(), DeviceError> {
        self.sealing.as_ref().map_or(Ok(()), |sealing| sealing.sealer().map(drop))
    }

    /// Which requests it takes.
    fn bounds(&self) -> Bounds {
        Bounds { geometry: self.geometry(), read_only: self.read_only }
    }

    fn discard(&self, lba: Lba, count: u64) -> Result<Operation, DeviceError> {
        match &self.sealing {
            Some(sealing) => sealing.seal_hole(lba, count).map(|hole| Hole(hole).into()),
            None => Ok(Discard { lba, count }.into()),
        }
    }

    /// Serves a read from what was fetched ahead; what a write overlaps there is forgotten.
    fn look_ahead(&self, token: Token, request: Request) -> Option<Request> {
        let block_bytes = self.unit.geometry.block_size.len();
        match request {
            // Not for an initiator that has lost the keys.
            Request::Read { .. } if self.check_keys().is_err() => {
                self.intake.forget_ahead();
                Some(request)
            }
            Request::Read { lba, buffer } => {
                let plain = self.intake.read_ahead(token, lba, buffer);
                plain.map(|(lba, buffer)| Request::Read { lba, buffer })
            }
            Request::Write { lba, ref data, .. } => {
                self.intake.writing(token, lba, (data.len() / block_bytes) as u64);
                Some(request)
            }
            Request::WritePart { lba, .. } => {
                self.intake.writing(token, lba, 1);
                Some(request)
            }
            Request::Discard { lba, count } => {
                self.intake.writing(token, lba, count);
                Some(request)
            }
            Request::Flush => Some(request),
        }
    }

    /// Seals what a request writes, here in the caller's thread, unless the pipeline has threads for it.
    fn prepare(&self, request: Request) -> Result<Operation, DeviceError> {
        Ok(match request {
            Request::Read { lba, buffer } => {
                // What could not be opened need not be fetched.
                self.check_keys()?;
                Read { lba, buffer }.into()
            }
            Request::Write { lba, data, fua } => match &self.sealing {
                Some(sealing) if self.intake.is_sealed_here(data.len()) => {
                    let sealed = sealing.seal(lba, &data)?;
                    Write { lba, data: sealed.data, records: Some(sealed.records), fua }.into()
                }
                _ => Write { lba, data, records: None, fua }.into(),
            },
            Request::WritePart { lba, offset_bytes, data, fua } => WritePart::new(lba, offset_bytes, data, fua).into(),
            Request::Flush => Flush.into(),
            Request::Discard { lba, count } => self.discard(lba, count)?,
        })
    }
}

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> Geometry {
        self.intake.grown(self.unit.geometry)
    }

    fn submit(&self, token: Token, request: Request) {
        if self.read_only && matches!(request, Request::Flush) {
            // Nothing was written here, and the target might refuse even to be asked.
            return self.intake.completions.push(Completion { token, result: Ok(None) });
        }
        let loss = LostRequest::of(&request, self.unit.geometry.block_size.len());
        let cost_bytes = match self.bounds().check(&request) {
            Ok(cost_bytes) => cost_bytes,
            Err(error) => return self.intake.fail(token, loss, error),
        };
        let Some(request) = self.look_ahead(token, request) else { return };
        if let Err(error) = self.intake.admit(cost_bytes) {
            return self.intake.fail(token, loss, error);
        }
        match self.prepare(request) {
            Ok(operation) => self.intake.push(NewRequest { reply: Reply::Token(token), cost_bytes, operation }),
            Err(error) => {
                self.intake.release(cost_bytes);
                self.intake.fail(token, loss, error);
            }
        }
    }

    fn poll_completions(&self, completions: &mut Vec<Completion>) -> usize {
        self.intake.completions.poll(completions)
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        self.intake.completions.wait(timeout)
    }

    fn offer_completions(&self, sink: Arc<dyn CompletionSink>) {
        self.intake.completions.offer_to(sink);
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        self.end();
    }
}
