//! The receiving end of one transfer, in a thread of its own: who may send, where it goes on, every byte checked, what is durable told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_net::TransferChannel;
use strongroom_store::{Op, OpError, Receiver, SnapshotId, StreamError, StreamInfo, View};

use super::connection::{Connection, ConnectionError};
use super::message::Message;
use super::{Claim, Counted, Incoming, RefusalCode};
use crate::budget::{Charge, MemoryClass};
use crate::catalogue::OpenVolume;
use crate::config::Limits;
use crate::error::CatalogueError;
use crate::names::{VolumeName, for_log};
use crate::services::TargetServices;
use crate::worker::message::Message as WorkerMessage;
use crate::worker::order::Order;

/// Bytes of the stream that may be on their way without being acknowledged: what a link of 1 Gbit/s holds over 128 ms, twice.
pub(super) const WINDOW_BYTES: u32 = 32 << 20;
/// After so many bytes they are made durable and acknowledged.
const ACK_BYTES: u64 = WINDOW_BYTES as u64 / 4;
/// What a transfer holds beside its store: a frame of the stream, a group of blocks on its way to the log, and buffers.
const TRANSFER_BYTES: u64 = 8 << 20;
/// Whoever sends says something at least so often, if only that it is there.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long an answer may take to leave.
const SEND_PATIENCE: Duration = Duration::from_secs(30);
/// How long a transfer that is replaced, or a store that nobody uses, may take to close.
const CLOSE_PATIENCE: Duration = Duration::from_secs(60);
/// While something is waited for the sender hears of it so often.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
/// How often to look whether the sender still may: also for one that sends slowly.
const RIGHT_CHECKED_EVERY: Duration = Duration::from_secs(1);
/// How often to look whether a volume is free.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Why a transfer ends before its end.
enum End {
    /// The sender is told.
    Refused(RefusalCode, String),
    /// There is nobody to tell.
    Lost(ConnectionError),
}

impl From<ConnectionError> for End {
    fn from(error: ConnectionError) -> End {
        match error {
            ConnectionError::Malformed => misbehaved("a message could not be read"),
            error => End::Lost(error),
        }
    }
}

fn refused(code: RefusalCode, text: impl Into<String>) -> End {
    End::Refused(code, text.into())
}

fn misbehaved(text: &str) -> End {
    refused(RefusalCode::Misbehaved, text)
}

/// The same for a volume that is not there and for one that is not for this node.
fn not_permitted() -> End {
    refused(RefusalCode::NotPermitted, "there is no volume of that name that this node may send into")
}

/// Says no to a node that need not be heard.
pub(super) fn turn_away(incoming: Incoming, code: RefusalCode) {
    let text = match code {
        RefusalCode::Overloaded => "there are as many transfers as may be at the same time",
        _ => "there is no volume of that name that this node may send into",
    };
    tracing::warn!(peer = %incoming.from, key = %incoming.transfer.peer, ?code, "turned a transfer away");
    let deadline = Instant::now() + Duration::from_secs(2);
    if let Ok(mut connection) = Connection::new(incoming.stream, incoming.transfer, deadline)
        && connection.send(&Message::Refused { code, text: text.to_owned() }, &[], deadline).is_ok()
    {
        connection.close();
    }
}

/// From the handshake to the end.
pub(super) fn run(shared: &Arc<TargetServices>, incoming: Incoming, counted: &Counted) {
    let Incoming { stream, transfer, from, place } = incoming;
    let _place = place;
    let key = transfer.peer;
    let mut volume = String::new();
    let outcome = begin(shared, stream, transfer).and_then(|mut connection| {
        let served = Reception { shared, counted, connection: &mut connection }.serve(&mut volume);
        if let Err(End::Refused(code, text)) = &served {
            let refusal = Message::Refused { code: *code, text: text.clone() };
            let _ = connection.send(&refusal, &[], Instant::now() + SEND_PATIENCE);
        }
        if !matches!(served, Err(End::Lost(_))) {
            connection.close();
        }
        served
    });
    let volume = for_log(&volume);
    match outcome {
        Ok(snapshot) => tracing::info!(peer = %from, %key, volume, snapshot, "received a snapshot"),
        Err(End::Refused(code, text)) => {
            tracing::warn!(peer = %from, %key, volume, ?code, reason = text, "refused a transfer, or broke it off");
        }
        Err(End::Lost(error)) => tracing::warn!(
            peer = %from, %key, volume, reason = %error, "a transfer was interrupted; it goes on when the sender is back"
        ),
    }
}

fn begin(shared: &TargetServices, stream: std::net::TcpStream, transfer: TransferChannel) -> Result<Connection, End> {
    let deadline = Instant::now() + shared.settings().config.limits.login_timeout();
    Ok(Connection::new(stream, transfer, deadline)?)
}

struct Reception<'a> {
    shared: &'a Arc<TargetServices>,
    counted: &'a Counted,
    connection: &'a mut Connection,
}

/// The volume in this transfer's hands.
struct Taken {
    volume: OpenVolume,
    _memory: Charge,
    _claim: Claim,
}

impl Reception<'_> {
    /// Returns the snapshot that is here afterwards.
    fn serve(&mut self, asked: &mut String) -> Result<String, End> {
        let deadline = Instant::now() + self.shared.settings().config.limits.login_timeout();
        let (Message::Hello { volume, begin }, _) = self.connection.receive(deadline)? else {
            return Err(misbehaved("a transfer begins with HELLO"));
        };
        asked.clone_from(&volume);
        let name = VolumeName::new(&volume).map_err(|_| not_permitted())?;
        self.check_right(&name)?;
        let info = match StreamInfo::peek(&begin) {
            Ok(Some(info)) => info,
            Ok(None) => return Err(misbehaved("HELLO has no beginning of a stream")),
            Err(error) => return Err(of_stream(&name, &error)),
        };
        let mut taken = self.take_volume(&name)?;
        let outcome = self.receive(&name, &mut taken.volume, &info);
        let was_there = outcome.as_ref().is_ok_and(|was_there| *was_there);
        let noted = taken.volume.note();
        let closed = taken.volume.close();
        outcome?;
        noted.and(closed).map_err(|error| self.failed(&name, &error))?;
        // The volume is free again before the sender hears of it.
        drop((taken._claim, taken._memory));
        let done = Message::Done { snapshot: info.name.clone(), was_there };
        self.connection.send(&done, &[], Instant::now() + SEND_PATIENCE)?;
        Ok(info.name)
    }

    /// Asked again and again: a reload may have taken the right.
    fn check_right(&self, name: &VolumeName) -> Result<(), End> {
        if self.counted.is_stopping() {
            return Err(refused(RefusalCode::Unavailable, "the target stops"));
        }
        if !self.shared.settings().rules.may_send_into(&self.counted.peer, name) {
            return Err(not_permitted());
        }
        if self.shared.drain().of(name).is_some() {
            return Err(refused(RefusalCode::Unavailable, "the target is drained"));
        }
        Ok(())
    }

    /// Details stay in the log of whoever runs this target.
    fn failed(&self, name: &VolumeName, error: &CatalogueError) -> End {
        tracing::error!(volume = %name, %error, "a volume could not be opened or closed for a transfer");
        refused(RefusalCode::Failed, "the volume cannot be opened or closed; the log of the target says why")
    }

    /// Opens the volume, as `strongroom volume receive` does: a worker that has it open for nobody closes it.
    fn take_volume(&mut self, name: &VolumeName) -> Result<Taken, End> {
        let catalogue = &self.shared.catalogue;
        let described = catalogue.load(name).map_err(|error| match error {
            CatalogueError::Missing { .. } => refused(RefusalCode::NoSuchVolume, "there is no such volume yet"),
            error => self.failed(name, &error),
        })?;
        if described.clone_of.is_some() || name.snapshot().is_some() {
            return Err(refused(RefusalCode::DoesNotFit, "it is a clone or a snapshot, which takes in no stream"));
        }
        let claim = self
            .counted
            .claim(name, CLOSE_PATIENCE)
            .ok_or_else(|| refused(RefusalCode::Busy, "another transfer into this volume is under way"))?;
        let limits = Limits::default();
        let bytes = TRANSFER_BYTES + (limits.record_cache_bytes + limits.data_cache_bytes) as u64;
        let mut memory = self.shared.budget.try_charge(MemoryClass::Stores, bytes).ok_or_else(|| {
            refused(
                RefusalCode::Overloaded,
                "the target has too little memory for a transfer now (limits.memory_bytes)",
            )
        })?;
        let began = Instant::now();
        let mut said = began;
        let mut volume = loop {
            match catalogue.open_volume(name.as_str()) {
                Ok(volume) => break volume,
                Err(CatalogueError::InUse { .. }) => {}
                Err(error) => return Err(self.failed(name, &error)),
            }
            self.check_right(name)?;
            if self.is_used(name) {
                return Err(refused(RefusalCode::InUse, "the volume, or a snapshot or clone of it, is attached there"));
            }
            self.have_closed(name);
            if began.elapsed() > CLOSE_PATIENCE {
                return Err(refused(RefusalCode::InUse, "another command has the volume open there"));
            }
            if said.elapsed() > KEEP_ALIVE_EVERY {
                self.connection.send(&Message::KeepAlive, &[], Instant::now() + SEND_PATIENCE)?;
                said = Instant::now();
            }
            std::thread::sleep(LOOK_EVERY);
        };
        memory.set(bytes + volume.store().stats().memory_bytes);
        Ok(Taken { volume, _memory: memory, _claim: claim })
    }

    /// Whether a session uses the volume, a snapshot or a clone of it.
    fn is_used(&self, name: &VolumeName) -> bool {
        let clones = self.shared.catalogue.clones_of(name).unwrap_or_default();
        let of_store = |export: &str| {
            let volume = export.split('@').next().unwrap_or_default();
            volume == name.as_str() || clones.iter().any(|clone| clone.name.as_str() == volume)
        };
        let sessions = self.shared.metrics.counters.sessions();
        sessions.iter().any(|session| session.volume.as_deref().is_some_and(of_store))
    }

    /// As the admin socket's `close`.
    fn have_closed(&self, name: &VolumeName) {
        let _turn = self.shared.operations.turns.take([name.clone()]);
        self.shared.tell_all(|| WorkerMessage::Order(Order::Close { volume: name.clone() }));
    }

    /// Takes the stream in; whether the snapshot was here before.
    fn receive(&mut self, name: &VolumeName, volume: &mut OpenVolume, info: &StreamInfo) -> Result<bool, End> {
        if volume.store().snapshots().iter().any(|snapshot| snapshot.id == info.to) {
            return Ok(true);
        }
        let position = position(volume, info.to);
        let window_bytes = WINDOW_BYTES;
        self.send(&Message::Position { position, window_bytes })?;
        let mut stream = Stream { receiver: Receiver::new(), taken: 0, acknowledged: 0 };
        let stall = self.shared.settings().config.limits.transfer_stall();
        let mut moved = Instant::now();
        let mut right_checked = moved;
        loop {
            let deadline = Instant::now() + SILENCE_MAX.min(stall);
            let received = self.connection.receive(deadline)?;
            if right_checked.elapsed() >= RIGHT_CHECKED_EVERY {
                self.check_right(name)?;
                right_checked = Instant::now();
            }
            match received {
                (Message::Data { offset }, data) => {
                    if offset != stream.taken {
                        return Err(misbehaved("a piece of the stream is missing, or out of its order"));
                    }
                    stream.take(name, volume, info, &data)?;
                    moved = Instant::now();
                }
                (Message::KeepAlive, _) => {}
                (Message::End { bytes }, _) if bytes == stream.taken && stream.receiver.is_done() => return Ok(false),
                (Message::End { .. }, _) => {
                    return Err(refused(RefusalCode::Damaged, "the stream ended before its end"));
                }
                _ => return Err(misbehaved("that message is not the sender's, or not in its place")),
            }
            if moved.elapsed() >= stall {
                let text = format!("no data came for {} seconds; the place is needed", stall.as_secs());
                return Err(refused(RefusalCode::Stalled, text));
            }
            if stream.taken - stream.acknowledged >= ACK_BYTES {
                let flushed = volume.store().execute_on(View::default(), Op::Flush);
                flushed.map_err(|error| of_stream(name, &error.into()))?;
                stream.acknowledged = stream.taken;
                self.send(&Message::Ack { offset: stream.taken, position: self::position(volume, info.to) })?;
            }
        }
    }

    fn send(&mut self, message: &Message) -> Result<(), End> {
        Ok(self.connection.send(message, &[], Instant::now() + SEND_PATIENCE)?)
    }
}

/// The stream of this connection.
struct Stream {
    receiver: Receiver,
    taken: u64,
    acknowledged: u64,
}

impl Stream {
    fn take(&mut self, name: &VolumeName, volume: &mut OpenVolume, info: &StreamInfo, data: &[u8]) -> Result<(), End> {
        let was_known = self.receiver.info().is_some();
        volume.store().receive(&mut self.receiver, data).map_err(|error| of_stream(name, &error))?;
        self.taken += data.len() as u64;
        match self.receiver.info() {
            Some(begun) if !was_known && begun != info => Err(misbehaved("the stream is another one than HELLO said")),
            _ => Ok(()),
        }
    }
}

/// Where an interrupted stream of this snapshot goes on.
fn position(volume: &mut OpenVolume, snapshot: SnapshotId) -> u64 {
    volume.store().receive_position(snapshot).unwrap_or(0)
}

/// What the sender is told of a stream that cannot be taken in.
fn of_stream(name: &VolumeName, error: &StreamError) -> End {
    let (code, text) = match error {
        StreamError::Damaged(_) | StreamError::NoBeginning => (RefusalCode::Damaged, error.to_string()),
        StreamError::Ahead => (RefusalCode::Misbehaved, error.to_string()),
        StreamError::Version { .. } => (RefusalCode::DoesNotFit, error.to_string()),
        StreamError::Differs(what) => (
            RefusalCode::DoesNotFit,
            format!(
                "the stream is not of this volume ({what}); if the volume has grown at the source, resize it here as well: strongroom \
                 volume resize {name}; if the transfer was begun on another base: strongroom volume receive {name} --abandon"
            ),
        ),
        StreamError::MissingBase(_) | StreamError::Unrelated => (RefusalCode::MissingBase, error.to_string()),
        StreamError::Diverged => (
            RefusalCode::Diverged,
            format!(
                "the volume was written to, or has other snapshots, since the snapshot that the stream builds on; to give that up, \
                 there: strongroom volume snapshot rollback {name}@SNAPSHOT --yes. In full a stream goes only into a new volume"
            ),
        ),
        StreamError::Store(OpError::NameTaken(taken)) => (
            RefusalCode::DoesNotFit,
            format!(
                "the volume has another snapshot of the name '{taken}'; delete that there, or take one of another name"
            ),
        ),
        StreamError::Store(_) => {
            tracing::error!(volume = %name, %error, "a transfer failed in the store");
            (RefusalCode::Failed, "the store refused it, or has no room; the log of the target says why".to_owned())
        }
    };
    End::Refused(code, text)
}
