//! The initiator as a machine, for simulations: the engine, the nexus with its session and its channel, and the sealing, driven as the
//! driver drives them, but with bytes and time as arguments.
//!
//! One connection at a time, of iSCSI or of ECL. Deliberately absent: sockets, threads, name resolution, redirections, ECL's login, the thread
//! that follows a key server (a simulation says when a lease ends and when it is renewed).

mod association;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, BufferMut, CryptoCounters, DeviceError, Request, Token};
use strongroom_ecl::{Config, Datagram, Transmit};
use strongroom_handshake::PublicKey;
use strongroom_net::{Link, StreamId};
use strongroom_seal::{SealContext, VolumeSealer};

use self::association::{Association, LoginConnection};
use crate::device::attachment::{Attachment, LeaseAnswer, ProbedUnit};
use crate::pipeline::answer::Answer;
use crate::pipeline::boot_time::BootTime;
use crate::pipeline::engine::{Engine, EngineCounters};
use crate::pipeline::operation::{Discard, Flush, Hole, Operation, Read, Write, WritePart};
use crate::pipeline::request::{FinishedRequest, NewRequest, Reply};
use crate::pipeline::sealing::Sealing;
use crate::pipeline::unit::UnitDescription;
use crate::session::iscsi::{IscsiConnection, IscsiTransport};
use crate::session::nexus::{Nexus, Notice};
use crate::session::transport::{InitiatorPort, Wire};
use crate::session::writer_lease::LeaseOutcome;
use crate::{AttachError, AttachOptions, KeyRequest};

/// What came of a request.
pub type Finished = (Token, Result<Option<BufferMut>, DeviceError>);

/// The session with the target.
enum AnyNexus {
    Iscsi(Box<Nexus<IscsiTransport>>),
    Ecl(Box<Nexus<Association>>),
}

/// What is the same for both.
macro_rules! each {
    ($any:expr, $nexus:ident => $what:expr) => {
        match $any {
            AnyNexus::Iscsi($nexus) => $what,
            AnyNexus::Ecl($nexus) => $what,
        }
    };
}

/// An attachment without a thread.
pub struct Initiator {
    options: AttachOptions,
    port: InitiatorPort,
    nexus: Option<AnyNexus>,
    attachment: Attachment,
    /// Why the last connection ended.
    last_loss: Option<AttachError>,
    connections: u32,
}

impl std::fmt::Debug for Initiator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Initiator").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Initiator {
    /// Not connected yet. `options` name the volume and the source of its keys.
    pub fn new(options: AttachOptions, isid: [u8; 6]) -> Initiator {
        Initiator {
            port: InitiatorPort { isid },
            attachment: Attachment::new(&options, InitiatorPort { isid }, Arc::default()),
            options,
            nexus: None,
            last_loss: None,
            connections: 0,
        }
    }

    /// Uses a connection of iSCSI that stands; only while there is no other one.
    pub fn connected(&mut self, now: Instant, link: Link) {
        let wire = self.wire(IscsiConnection::over(link));
        self.nexus = Some(AnyNexus::Iscsi(Box::new(Nexus::new(now, &self.options, wire))));
        self.process(now);
    }

    /// Uses an association of ECL, whose login is over, with a target that has proven to be `target_key`; only while there is no connection.
    pub fn associated(&mut self, now: Instant, config: Config, target_key: PublicKey) {
        let wire = self.wire(LoginConnection { config: Some(config), target_key });
        self.nexus = Some(AnyNexus::Ecl(Box::new(Nexus::new(now, &self.options, wire))));
        self.process(now);
    }

    fn wire<C>(&mut self, connection: C) -> Wire<C> {
        assert!(self.nexus.is_none(), "one connection at a time");
        self.connections += 1;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let mut wire = Wire::new(StreamId::simulated(self.connections), address, connection);
        wire.is_connected = true;
        wire
    }

    /// Whether there is a connection; if not, the last one is to be closed and another one made.
    pub fn is_connected(&self) -> bool {
        self.nexus.is_some()
    }

    /// Whether the unit has answered all questions once: requests may be submitted.
    pub fn is_attached(&self) -> bool {
        self.attachment.engine.is_some()
    }

    /// Why the last connection ended.
    pub fn last_loss(&self) -> Option<String> {
        self.last_loss.as_ref().map(ToString::to_string)
    }

    /// Whether trying again cannot help.
    pub fn is_refused(&self) -> bool {
        self.last_loss.as_ref().is_some_and(|error| !error.is_temporary())
    }

    /// Whether it was refused because the volume is attached for writing elsewhere.
    pub fn is_in_use(&self) -> bool {
        matches!(self.last_loss, Some(AttachError::InUse(_)))
    }

    /// Why nothing more may be written, if another initiator has the volume by now.
    pub fn lease_lost(&self) -> Option<&DeviceError> {
        self.attachment.lost()
    }

    /// Bytes from the target.
    pub fn handle_input(&mut self, now: Instant, bytes: &[u8]) {
        if let Some(any) = &mut self.nexus {
            each!(any, nexus => nexus.handle_input(now, StreamId::simulated(self.connections), bytes));
        }
        self.process(now);
    }

    /// A datagram from the target. Whether it was used.
    pub fn handle_datagram(&mut self, now: Instant, datagram: Datagram) -> bool {
        let Some(AnyNexus::Ecl(nexus)) = &mut self.nexus else { return false };
        let is_used = nexus.transport_mut().handle_datagram(now, datagram);
        self.process(now);
        is_used
    }

    /// The connection was cut.
    pub fn connection_lost(&mut self, now: Instant) {
        let stream = StreamId::simulated(self.connections);
        let Some(any) = &mut self.nexus else { return };
        let why = "cut by the simulation".to_owned();
        if let Some(notice) = each!(any, nexus => nexus.wire_failed(now, &self.options, stream, why)) {
            self.act(now, notice);
        }
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(any) = &mut self.nexus {
            each!(any, nexus => nexus.handle_timeout(now));
        }
        if let Some(engine) = &mut self.attachment.engine {
            engine.handle_timeout(now);
            if let Some(why) = engine.needs_new_connection(now) {
                self.lose(AttachError::Unreachable(why.to_owned()));
            }
        }
        self.process(now);
    }

    /// When `handle_timeout` wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let nexus = self.nexus.as_ref().and_then(|any| each!(any, nexus => nexus.poll_timeout()));
        let engine = self.attachment.engine.as_ref().and_then(Engine::poll_timeout);
        [nexus, engine].into_iter().flatten().min()
    }

    /// What is to be sent.
    pub fn poll_transmit(&mut self, now: Instant) -> Vec<Buffer> {
        self.seal();
        let Some(AnyNexus::Iscsi(nexus)) = &mut self.nexus else { return Vec::new() };
        if nexus.wires().is_empty() {
            return Vec::new();
        }
        let made = nexus.transmit(0, self.attachment.engine.as_mut());
        if let Some(engine) = &mut self.attachment.engine {
            engine.in_flight.transmitted(now, made.iter().map(|buffer| buffer.len()).sum());
        }
        made
    }

    /// The next datagram to send.
    pub fn poll_datagram(&mut self, now: Instant) -> Option<Transmit> {
        self.seal();
        let Some(AnyNexus::Ecl(nexus)) = &mut self.nexus else { return None };
        if nexus.wires().is_empty() {
            return None;
        }
        // The connection of the login has nothing to say.
        nexus.transmit(0, self.attachment.engine.as_mut());
        nexus.transport_mut().poll_datagram(now)
    }

    /// Takes a request in, once attached.
    ///
    /// # Errors
    /// There is no key to seal it with: nothing was done.
    pub fn submit(&mut self, token: Token, request: Request) -> Result<(), DeviceError> {
        let operation: Operation = match request {
            Request::Read { lba, buffer } => Read { lba, buffer }.into(),
            Request::Write { lba, data, fua } => Write { lba, data, records: None, fua }.into(),
            Request::WritePart { lba, offset_bytes, data, fua } => WritePart::new(lba, offset_bytes, data, fua).into(),
            Request::Flush => Flush.into(),
            Request::Discard { lba, count } => match &self.attachment.sealing {
                Some(sealing) => Hole(sealing.seal_hole(lba, count)?).into(),
                None => Discard { lba, count }.into(),
            },
        };
        let engine = self.attachment.engine.as_mut().expect("requests come after the attachment");
        engine.submit(NewRequest { reply: Reply::Token(token), cost_bytes: 0, operation });
        Ok(())
    }

    /// Requests that have ended.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        let Some(engine) = &mut self.attachment.engine else { return Vec::new() };
        let ended = |op: FinishedRequest| {
            let Reply::Token(token) = op.reply else { return None };
            let result = op.result.map(|answer| match answer {
                Answer::Read(buffer) => Some(buffer),
                _ => None,
            });
            Some((token, result))
        };
        engine.table.take_finished().into_iter().filter_map(ended).collect()
    }

    /// Asks whether the writer lease still is ours, gives it back, and then logs out: one step at each call, as soon as the last one is
    /// answered.
    pub fn leave(&mut self, now: Instant) {
        if let Some(any) = &mut self.nexus {
            each!(any, nexus => if nexus.is_open() && !nexus.talks_of_lease() {
                self.attachment.leave(now, nexus);
            });
        }
    }

    /// The lease of the keys ends: they are wiped, and what was sealed with them is not sent any more.
    pub fn lease_ends(&mut self) {
        let Some(sealing) = &self.attachment.sealing else { return };
        sealing.keys().lend_until(BootTime::now());
        sealing.expire();
        if let Some(engine) = &mut self.attachment.engine {
            engine.keys_changed();
            if engine.table.has_unanswered_writes() {
                self.lose(AttachError::Unreachable("the keys are gone, and writes were not answered".into()));
            }
        }
    }

    /// The source of the keys is heard of again.
    ///
    /// # Errors
    /// It has none.
    pub fn lease_renewed(&mut self) -> Result<(), AttachError> {
        let (Some(sealing), Some(unit)) = (&self.attachment.sealing, &self.attachment.unit) else { return Ok(()) };
        sealing.keys().replace(self.sealer(unit)?, true);
        if let Some(engine) = &mut self.attachment.engine {
            engine.keys_changed();
        }
        Ok(())
    }

    /// What the engine did.
    pub fn counters(&self) -> EngineCounters {
        self.attachment.engine.as_ref().map(|engine| engine.counters).unwrap_or_default()
    }

    fn process(&mut self, now: Instant) {
        let engine = self.attachment.engine.as_mut();
        let Some(any) = &mut self.nexus else { return };
        let notice = each!(any, nexus => nexus.process(now, &self.options, &self.port, engine));
        if let Some(notice) = notice {
            self.act(now, notice);
        }
        if let Some(any) = &mut self.nexus {
            each!(any, nexus => {
                nexus.take_ended();
                self.attachment.check_lease(now, nexus);
            });
        }
    }

    fn act(&mut self, now: Instant, notice: Notice) {
        match notice {
            Notice::Lost(error) => self.lose(error),
            Notice::Probed(unit) => {
                if let Err(error) = self.probed(now, *unit) {
                    self.lose(error);
                }
            }
            Notice::Reservation(outcome) => {
                let answer = self.attachment.reservation_answered(outcome);
                if let Err(error) = self.heed(now, answer) {
                    self.lose(error);
                }
            }
            Notice::Lease(outcome) => {
                if let Err(error) = self.lease_answered(now, outcome) {
                    self.lose(error);
                }
            }
            Notice::Suspended(_) | Notice::Continued => unreachable!("there is one connection, and no recovery of it"),
        }
    }

    fn probed(&mut self, now: Instant, unit: UnitDescription) -> Result<(), AttachError> {
        let restarted = match &self.attachment.unit {
            None => false,
            Some(before) if !before.is_same_unit(&unit) => {
                return Err(AttachError::Unsupported("it is not the volume that was attached before".into()));
            }
            Some(before) => {
                before.check_image(&unit)?;
                before.may_have_lost_writes(&unit)
            }
        };
        let Some(any) = &mut self.nexus else { return Ok(()) };
        let probed = ProbedUnit { unit: Arc::new(unit), restarted };
        match each!(any, nexus => self.attachment.claim(now, probed, nexus)) {
            Some(probed) => self.opened(now, &probed),
            None => Ok(()),
        }
    }

    fn lease_answered(&mut self, now: Instant, outcome: LeaseOutcome) -> Result<(), AttachError> {
        let answer = self.attachment.lease_answered(outcome)?;
        self.heed(now, answer)
    }

    fn heed(&mut self, now: Instant, answer: LeaseAnswer) -> Result<(), AttachError> {
        let opened = match answer {
            LeaseAnswer::Open(probed) => Some(probed),
            LeaseAnswer::Claimed(probed) => match &mut self.nexus {
                Some(any) => each!(any, nexus => self.attachment.register(now, probed, nexus)),
                None => None,
            },
            LeaseAnswer::CheckRegistration => {
                if let Some(any) = &mut self.nexus {
                    each!(any, nexus => self.attachment.check_registration(now, nexus));
                }
                None
            }
            LeaseAnswer::Writers(..) | LeaseAnswer::Reported(..) | LeaseAnswer::Noted => None,
        };
        opened.map_or(Ok(()), |probed| self.opened(now, &probed))
    }

    fn opened(&mut self, now: Instant, probed: &ProbedUnit) -> Result<(), AttachError> {
        match &self.attachment.sealing {
            Some(sealing) => sealing.renew(None),
            None if probed.unit.sealed.is_some() => {
                self.attachment.sealing = Some(Arc::new(Sealing::new(self.sealer(&probed.unit)?)));
            }
            None => {}
        }
        if let Some(any) = &mut self.nexus {
            let options = &self.options;
            each!(any, nexus => self.attachment.open(now, options, Duration::ZERO, probed, Some(&mut **nexus)));
        }
        Ok(())
    }

    fn sealer(&self, unit: &UnitDescription) -> Result<VolumeSealer, AttachError> {
        let sealed = unit.sealed.ok_or(AttachError::KeyNeeded)?;
        let source = self.options.sealing.key_source.as_ref().ok_or(AttachError::KeyNeeded)?;
        let claims = sealed.claims;
        let keys = source.volume_keys(&KeyRequest {
            volume: self.options.url.file_name().to_owned(),
            volume_id: claims.volume_id,
            domain: claims.domain,
        })?;
        let context = SealContext::new(keys.domain.unwrap_or(claims.domain), claims.block_size, keys.current_epoch)
            .with_mode(sealed.mode)
            .with_suite(claims.suite);
        VolumeSealer::blind(&keys.keys, context, Arc::new(CryptoCounters::new()))
            .map_err(|error| AttachError::Unsupported(error.to_string()))
    }

    fn seal(&mut self) {
        let (Some(engine), Some(sealing)) = (&mut self.attachment.engine, &self.attachment.sealing) else { return };
        while let Some(job) = engine.next_to_seal() {
            let sealed = sealing.seal(job.lba, &job.plain);
            engine.sealed(job.id, sealed);
        }
    }

    fn lose(&mut self, error: AttachError) {
        self.nexus = None;
        self.last_loss = Some(error);
        self.attachment.disconnected();
    }
}
