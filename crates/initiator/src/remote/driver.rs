//! The thread that owns the socket: connects, reconnects, and moves bytes between runtime, connection and engine.
//!
//! While the connection is down, requests wait in the engine. It is tried again with growing pauses; after the time-out
//! `give_up` the requests fail with `Unreachable`, and so do new ones, until a try succeeds. A *refusal* (an unknown key, a
//! login turned down, another volume than before) is final and not tried again. Name resolution blocks this thread, which
//! has nothing else to do at that moment: its one connection is gone.

use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use strongroom_block::{CryptoCounters, Custody, DeviceError, DeviceErrorKind, Mode};
use strongroom_net::{Event, Runtime, RuntimeOptions, SendState, StreamFailure, StreamId, Waker, resolve};
use strongroom_seal::{BlockKeys, SealContext, VolumeSealer};

use super::connection::{Connection, Identity, Notice};
use super::engine::{Engine, EngineCounters};
use super::intake::{Intake, detached};
use super::sealing::Sealing;
use super::stamps::{fill_random, random};
use super::unit::UnitDescription;
use crate::completion::{device_error, lock};
use crate::url::parse_target_address;
use crate::{AttachError, AttachOptions, KeyRequest};

/// More than a ping takes: a message of this size or more carries commands or data.
const DATA_BYTES_MIN: usize = 1024;
/// Redirections followed in a row.
const HOPS_MAX: u32 = 8;
/// How long a detach may take to say goodbye.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(3);

/// What the first connection gave.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) unit: Arc<UnitDescription>,
    pub(super) sealing: Option<Arc<Sealing>>,
}

/// How the connection is doing, for people and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Commands can flow now.
    pub is_connected: bool,
    /// Connections made so far.
    pub connections: u64,
    /// Why the last one ended.
    pub last_loss: Option<String>,
    /// What the engine did.
    pub engine: EngineCounters,
}

/// What the thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Ask what the unit is, then leave.
    Inquire,
    Attach,
}

enum State {
    Idle {
        retry_at: Instant,
    },
    Calling {
        stream: StreamId,
        others: Vec<SocketAddr>,
        connection: Box<Connection>,
    },
    Connected {
        stream: StreamId,
        connection: Box<Connection>,
        blocked: bool,
    },
    /// Refused for good.
    Refused,
}

/// Where the target is instead of at its URL's address.
struct Detour {
    host: String,
    port: u16,
    /// Until it fails; else for one connection.
    is_permanent: bool,
}

pub(super) struct Driver {
    options: Arc<AttachOptions>,
    identity: Identity,
    intake: Arc<Intake>,
    status: Arc<Mutex<ConnectionStatus>>,
    runtime: Runtime,
    purpose: Purpose,
    state: State,
    engine: Option<Engine>,
    sealing: Option<Arc<Sealing>>,
    unit: Option<Arc<UnitDescription>>,
    first: Option<SyncSender<Result<Attached, AttachError>>>,
    backoff: Duration,
    /// Where the target has sent us, and since when in a row.
    detour: Option<Detour>,
    hops: u32,
    lost_at: Option<Instant>,
    gave_up: bool,
    logout_deadline: Option<Instant>,
}

impl Driver {
    pub(super) fn new(
        options: Arc<AttachOptions>,
        intake: Arc<Intake>,
        status: Arc<Mutex<ConnectionStatus>>,
        waker: Waker,
        purpose: Purpose,
        first: SyncSender<Result<Attached, AttachError>>,
    ) -> Result<Driver, AttachError> {
        let runtime_options =
            RuntimeOptions { streams_max: 8, connect_timeout: options.timeouts.connect, ..RuntimeOptions::default() };
        let runtime = Runtime::with_waker(runtime_options, waker)
            .map_err(|error| AttachError::System(std::io::Error::other(error.to_string())))?;
        let mut isid: [u8; 6] = random();
        // RFC 7143 §11.12.5: type "random", so that no two attachments share a nexus; kept over reconnects.
        isid[0] = 0x80;
        let target_name = options.url.target_name(&options.base_iqn);
        Ok(Driver {
            identity: Identity { isid, target_name },
            intake,
            status,
            runtime,
            purpose,
            state: State::Idle { retry_at: Instant::now() },
            engine: None,
            sealing: None,
            unit: None,
            first: Some(first),
            backoff: options.timeouts.backoff_min,
            detour: None,
            hops: 0,
            lost_at: None,
            gave_up: false,
            logout_deadline: None,
            options,
        })
    }

    /// Runs until detached (or, before the first success, until the first failure).
    pub(super) fn run(mut self) {
        while self.step() {}
        if let Some(engine) = &mut self.engine {
            engine.fail_all(&detached());
        }
        // Requests that were pushed and not yet taken end as well.
        self.take_requests();
        if let Some(engine) = &mut self.engine {
            engine.fail_all(&detached());
        }
        self.publish();
        self.leave();
    }

    /// Says goodbye on a connection that is still there, without waiting for an answer.
    fn leave(&mut self) {
        if let State::Connected { stream, connection, .. } = &mut self.state {
            connection.log_out(Instant::now());
            let mut last = connection.transmit(None);
            connection.close();
            last.append(&mut connection.transmit(None));
            let _ = self.runtime.send(*stream, &mut last);
            self.runtime.close(*stream);
        }
        // What waits in a socket's queue goes out as far as the kernel takes it.
        let _ = self.runtime.poll(Some(Duration::ZERO));
    }

    fn step(&mut self) -> bool {
        let now = Instant::now();
        if matches!(self.state, State::Idle { retry_at } if retry_at <= now) && !self.intake.is_detaching() {
            self.call(now);
        }
        self.take_requests();
        self.handle_timeouts(now);
        self.process(now);
        self.transmit(now);
        self.publish();
        if self.is_over(now) {
            return false;
        }
        let timeout = self.next_timeout().map(|at| at.saturating_duration_since(Instant::now()));
        if let Err(error) = self.runtime.poll(timeout) {
            tracing::error!(%error, "the network runtime failed");
            self.lose(Instant::now(), AttachError::System(std::io::Error::other(error.to_string())));
            return false;
        }
        self.receive();
        true
    }

    /// Whether the thread has nothing left to do.
    fn is_over(&mut self, now: Instant) -> bool {
        if self.first.is_none() && self.engine.is_none() {
            return true;
        }
        if !self.intake.is_detaching() {
            return false;
        }
        match &mut self.state {
            State::Connected { connection, .. } => {
                if self.engine.as_ref().is_some_and(Engine::has_waiting_callers) && self.logout_deadline.is_none() {
                    // Requests from before the detach are answered first; new ones are refused at the door.
                    self.logout_deadline = Some(now + LOGOUT_TIMEOUT);
                } else if !connection.is_logging_out() && !self.engine.as_ref().is_some_and(Engine::has_waiting_callers)
                {
                    connection.log_out(now);
                    self.logout_deadline = Some(now + LOGOUT_TIMEOUT);
                    self.transmit(now);
                }
                self.logout_deadline.is_some_and(|deadline| deadline <= now)
            }
            _ => true,
        }
    }

    fn take_requests(&mut self) {
        let requests = self.intake.take();
        if let Some(engine) = &mut self.engine {
            for request in requests {
                engine.submit(request);
            }
        }
    }

    fn publish(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        self.intake.finish(engine.take_finished());
        lock(&self.status).engine = engine.counters;
    }

    fn next_timeout(&self) -> Option<Instant> {
        let state = match &self.state {
            State::Idle { retry_at } => Some(*retry_at),
            State::Calling { connection, .. } | State::Connected { connection, .. } => connection.poll_timeout(),
            State::Refused => None,
        };
        let give_up = self.give_up_at().filter(|_| !self.gave_up);
        let engine = self.engine.as_ref().and_then(Engine::poll_timeout);
        [state, give_up, engine, self.logout_deadline].into_iter().flatten().min()
    }

    fn give_up_at(&self) -> Option<Instant> {
        let after = self.options.timeouts.give_up;
        self.lost_at.filter(|_| !after.is_zero()).map(|lost_at| lost_at + after)
    }

    fn handle_timeouts(&mut self, now: Instant) {
        if let State::Calling { connection, .. } | State::Connected { connection, .. } = &mut self.state {
            connection.handle_timeout(now);
        }
        if let Some(engine) = &mut self.engine {
            engine.handle_timeout(now);
            if let Some(why) = engine.needs_new_connection(now) {
                self.lose(now, AttachError::Unreachable(why.to_owned()));
            }
        }
        if !self.gave_up && self.give_up_at().is_some_and(|at| at <= now) {
            self.give_up();
        }
    }

    /// The connection has been lost for too long: nobody waits any longer, but it is still tried.
    fn give_up(&mut self) {
        self.gave_up = true;
        let seconds = self.options.timeouts.give_up.as_secs();
        let why = lock(&self.status).last_loss.clone().unwrap_or_default();
        tracing::error!(seconds, why, "the target stays away: waiting requests fail now");
        let error = device_error(
            DeviceErrorKind::Unreachable,
            None,
            format!("no connection to the target for {seconds} s ({why}); requests fail until it is back"),
        );
        self.intake.refuse(Some(error.clone()));
        if let Some(engine) = &mut self.engine {
            engine.fail_all(&error);
        }
    }

    /// Begins a try.
    fn call(&mut self, now: Instant) {
        let url = &self.options.url;
        let (host, port) = match &self.detour {
            Some(detour) => (detour.host.as_str(), detour.port),
            None => (url.host(), url.port()),
        };
        let addresses = match resolve(host, port) {
            Ok(addresses) => addresses,
            Err(error) => return self.lose(now, AttachError::Unreachable(error.to_string())),
        };
        let connection = match Connection::new(now, &self.options) {
            Ok(connection) => Box::new(connection),
            Err(error) => return self.lose(now, error),
        };
        let mut others = addresses;
        others.reverse();
        match others.pop().map(|address| self.runtime.connect(address)) {
            Some(Ok(stream)) => self.state = State::Calling { stream, others, connection },
            Some(Err(error)) => self.lose(now, AttachError::Unreachable(error.to_string())),
            None => {
                let nowhere = format!("the host of {} has no address", self.options.url);
                self.lose(now, AttachError::Unreachable(nowhere));
            }
        }
    }

    /// Takes what happened on the socket.
    fn receive(&mut self) {
        let mut failed: Option<StreamFailure> = None;
        while let Some(event) = self.runtime.next_event() {
            let now = Instant::now();
            match (event, &mut self.state) {
                (Event::Received { stream: from, bytes }, State::Connected { stream, connection, .. })
                    if from == *stream =>
                {
                    connection.handle_input(now, bytes);
                    let engine = self.engine.as_mut();
                    // Nothing may be lent from the runtime while a notice is acted upon.
                    if let Some(notice) = connection.process(now, &self.options, &self.identity, engine) {
                        self.act(now, notice);
                    }
                }
                (Event::PeerFinished { stream: from }, State::Connected { stream, connection, .. })
                    if from == *stream =>
                {
                    connection.handle_eof();
                }
                (Event::SendLow { stream: from }, State::Connected { stream, blocked, .. }) if from == *stream => {
                    *blocked = false;
                }
                (Event::Connected { stream: from }, State::Calling { stream, .. }) if from == *stream => {
                    let idle = State::Idle { retry_at: now };
                    if let State::Calling { stream, connection, .. } = std::mem::replace(&mut self.state, idle) {
                        self.state = State::Connected { stream, connection, blocked: false };
                    }
                }
                (
                    Event::Closed { stream: from, failure },
                    State::Calling { stream, .. } | State::Connected { stream, .. },
                ) if from == *stream => {
                    failed = Some(failure);
                }
                _ => {}
            }
            if failed.is_some() {
                break;
            }
        }
        if let Some(failure) = failed {
            self.stream_failed(Instant::now(), &failure);
        }
    }

    fn stream_failed(&mut self, now: Instant, failure: &StreamFailure) {
        // Another address of the same host may answer.
        if let State::Calling { stream, others, .. } = &mut self.state
            && let Some(address) = others.pop()
            && let Ok(next) = self.runtime.connect(address)
        {
            *stream = next;
            return;
        }
        self.lose(now, AttachError::Unreachable(failure.to_string()));
    }

    fn process(&mut self, now: Instant) {
        if let State::Connected { connection, .. } = &mut self.state
            && let Some(notice) = connection.process(now, &self.options, &self.identity, self.engine.as_mut())
        {
            self.act(now, notice);
        }
    }

    fn act(&mut self, now: Instant, notice: Notice) {
        match notice {
            Notice::Lost(error) => self.lose(now, error),
            Notice::Probed(unit) => {
                if let Err(error) = self.probed(*unit) {
                    self.lose(now, error);
                }
            }
        }
    }

    fn transmit(&mut self, now: Instant) {
        if let State::Connected { stream, connection, blocked } = &mut self.state {
            while !*blocked {
                let mut buffers = connection.transmit(self.engine.as_mut());
                if buffers.is_empty() {
                    break;
                }
                let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
                *blocked = self.runtime.send(*stream, &mut buffers) == SendState::Full;
                // Data on its way, not a question whether the target is there.
                if bytes >= DATA_BYTES_MIN
                    && let Some(engine) = &mut self.engine
                {
                    engine.moved(now);
                }
            }
        }
    }

    /// The unit has said what it is.
    fn probed(&mut self, unit: UnitDescription) -> Result<(), AttachError> {
        if let Some(sealed) = &unit.sealed {
            if !self.options.url.is_channel() {
                return Err(AttachError::Unsupported(
                    "a sealed volume is only served inside a channel; use its strongroom:// URL".into(),
                ));
            }
            self.options.expected.check(&sealed.claims)?;
        }
        self.check_protection(&unit)?;
        if self.purpose == Purpose::Inquire {
            self.tell_first(Ok(Attached { unit: Arc::new(unit), sealing: None }));
            return Ok(());
        }
        let before = self.unit.clone();
        if before.as_ref().is_some_and(|before| !before.is_same_unit(&unit)) {
            return Err(AttachError::Unsupported(
                "it is not the volume that was attached before the connection was lost; detach, and attach again"
                    .into(),
            ));
        }
        let epoch = |unit: &UnitDescription| unit.sealed.map(|sealed| sealed.claims.epoch);
        let keys_are_current = before.as_ref().is_some_and(|before| epoch(before) == epoch(&unit));
        if !keys_are_current || self.sealing.is_none() {
            let sealer = self.sealer(&unit)?;
            match (&self.sealing, sealer) {
                (Some(sealing), sealer) => sealing.renew(sealer),
                (None, sealer) => self.sealing = sealer.map(|sealer| Arc::new(Sealing::new(sealer))),
            }
        } else if let Some(sealing) = &self.sealing {
            // A machine resumed from a snapshot has lost its connection: its stamps must not be used again.
            sealing.renew(None);
        }
        let restarted = before.as_ref().is_some_and(|before| match (before.incarnation, unit.incarnation) {
            (Some(before), Some(now)) => before != now,
            _ => true,
        });
        self.opened(Arc::new(unit), restarted);
        Ok(())
    }

    /// The protection that the caller counts on, not the one that the target claims: a key was given to be used, by us. Asked
    /// at every connection, before anything is sealed or sent.
    fn check_protection(&self, unit: &UnitDescription) -> Result<(), AttachError> {
        let attaches = self.purpose == Purpose::Attach;
        let has_key = attaches && self.options.key_source.is_some();
        let refused = |what: &str| Err(AttachError::Unsupported(what.to_owned()));
        let scheme = self.options.scheme();
        let shows_blocks = unit.sealed.as_ref().is_some_and(|sealed| sealed.mode == Mode::AuthenticateOnly);
        if attaches && shows_blocks && scheme.is_confidential() && !scheme.encrypts_block_data() {
            return refused(
                "the volume is sealed in the mode authenticate-only, so its blocks would be readable on the way, which the \
                 chosen scheme promises against; use --scheme S1-2 (lazy-auth) or S2-1 (encrypt-all)",
            );
        }
        match &unit.sealed {
            None => {
                self.options.expected.check_plain()?;
                if has_key {
                    return refused(
                        "a key was given, but the target says that the volume is plain: nothing would be sealed; leave the \
                         key out if that is right, and do not trust this target if not",
                    );
                }
            }
            Some(sealed) if has_key && !sealed.claims.custody.is_blind() => {
                return refused(
                    "a key was given, but the target says that it holds the keys itself and would be sent the key of every \
                     block; leave the key out if that is right, and do not trust this target if not",
                );
            }
            // Reading reveals nothing, whatever the mode.
            Some(sealed) if attaches && !self.options.read_only && sealed.mode != self.options.mode => {
                return refused(match sealed.mode {
                    Mode::AuthenticateOnly => {
                        "the target says that the volume is sealed in the mode authenticate-only: it could read what is \
                         written; add --authenticate-only if that is right, and do not trust this target if not"
                    }
                    Mode::Encrypt => "the volume is encrypted, and --authenticate-only was asked for; leave that out",
                });
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Commands may flow.
    fn opened(&mut self, unit: Arc<UnitDescription>, restarted: bool) {
        self.unit = Some(unit.clone());
        let engine = self.engine.get_or_insert_with(|| {
            let feedback = self.options.verified_feedback && !self.options.read_only;
            Engine::new(unit.clone(), self.sealing.clone(), self.options.limits, feedback)
        });
        engine.connected(unit.clone(), restarted);
        if let State::Connected { connection, .. } = &mut self.state {
            connection.open();
        }
        self.backoff = self.options.timeouts.backoff_min;
        self.hops = 0;
        if let Some(lost_at) = self.lost_at.take() {
            tracing::info!(seconds = lost_at.elapsed().as_secs_f32(), restarted, "connected to the target again");
        }
        self.gave_up = false;
        if !self.intake.is_detaching() {
            self.intake.refuse(None);
        }
        let mut status = lock(&self.status);
        status.is_connected = true;
        status.connections += 1;
        drop(status);
        let sealing = self.sealing.clone();
        self.tell_first(Ok(Attached { unit, sealing }));
    }

    /// What seals and opens for this unit; `None` for a plain one.
    fn sealer(&self, unit: &UnitDescription) -> Result<Option<VolumeSealer>, AttachError> {
        let Some(sealed) = &unit.sealed else { return Ok(None) };
        let claims = &sealed.claims;
        let context = SealContext::new(claims.domain, claims.block_size, claims.epoch).with_mode(sealed.mode);
        let counters: Arc<CryptoCounters> = self.options.counters.clone();
        if claims.custody == Custody::Target {
            let keys = BlockKeys::new(context, Box::new(fill_random), counters);
            return Ok(Some(VolumeSealer::BlockKeys(Box::new(keys))));
        }
        let source = self.options.key_source.as_ref().ok_or(AttachError::KeyNeeded)?;
        let request = KeyRequest {
            volume: self.options.url.file_name().to_owned(),
            volume_id: claims.volume_id,
            domain: claims.domain,
            epoch: claims.epoch,
        };
        let keys = source.volume_keys(&request)?;
        let sealer = VolumeSealer::blind(&keys, context, counters)
            .map_err(|error| AttachError::Key(crate::KeySourceError::Refused(error.to_string())))?;
        Ok(Some(sealer))
    }

    /// The connection (or a try) has ended.
    fn lose(&mut self, now: Instant, error: AttachError) {
        if let State::Calling { stream, connection, .. } | State::Connected { stream, connection, .. } = &mut self.state
        {
            connection.close();
            let mut last = connection.transmit(None);
            let _ = self.runtime.send(*stream, &mut last);
            self.runtime.close(*stream);
        }
        self.state = State::Idle { retry_at: now + self.backoff };
        if let Some(engine) = &mut self.engine {
            engine.disconnected();
        }
        if self.follows(now, &error) {
            return;
        }
        let mut status = lock(&self.status);
        let was_connected = std::mem::replace(&mut status.is_connected, false);
        status.last_loss = Some(error.to_string());
        drop(status);
        if self.first.is_some() {
            return self.tell_first(Err(error));
        }
        if self.intake.is_detaching() {
            self.logout_deadline = Some(now);
            return;
        }
        if !error.is_temporary() {
            return self.refused(error);
        }
        if was_connected {
            tracing::warn!(%error, "the connection is lost; requests wait until it is back");
            self.lost_at = Some(now);
        } else {
            tracing::debug!(%error, "the target is not back yet");
        }
        self.backoff = (self.backoff * 2).min(self.options.timeouts.backoff_max);
    }

    /// Goes where the target sends us, if that can be. The keys that it must have there are those of the URL.
    fn follows(&mut self, now: Instant, error: &AttachError) -> bool {
        let was_permanent = self.detour.take().is_some_and(|detour| detour.is_permanent);
        let AttachError::Moved { address, is_permanent } = error else {
            if was_permanent {
                tracing::info!("the target is not where it said that it has moved; asking at its URL's address again");
            }
            return false;
        };
        self.hops += 1;
        let Some((host, port)) = parse_target_address(address).filter(|_| self.hops <= HOPS_MAX) else { return false };
        tracing::info!(address, is_permanent, "the target sends us elsewhere");
        self.detour = Some(Detour { host, port, is_permanent: *is_permanent });
        lock(&self.status).is_connected = false;
        self.state = State::Idle { retry_at: now };
        true
    }

    /// Trying again would not help.
    fn refused(&mut self, error: AttachError) {
        tracing::error!(%error, "the target refuses us now: every request fails");
        let error: DeviceError = device_error(DeviceErrorKind::Refused, None, error.to_string());
        self.state = State::Refused;
        self.intake.refuse(Some(error.clone()));
        self.take_requests();
        if let Some(engine) = &mut self.engine {
            engine.fail_all(&error);
        }
    }

    fn tell_first(&mut self, result: Result<Attached, AttachError>) {
        if let Some(first) = self.first.take() {
            // The caller waits for exactly this.
            let _ = first.send(result);
        }
    }
}
