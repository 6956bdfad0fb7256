//! The receiving end of one transfer, in a thread of its own: who may send, what the sender is told, and for how long it is waited for.
//!
//! Absent: taking the stream in (`reception`), which is the same for a stream from the admin socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_net::DetachedChannel;
use strongroom_store::{OpError, StreamError, StreamInfo};

use super::connection::Connection;
use super::message::Message;
use super::{RefusalCode, TransferSlot};
use crate::channel_stream::ConnectionError;
use crate::detached_connection::DetachedConnection;
use crate::error::CatalogueError;
use crate::names::{VolumeName, for_log};
use crate::reception::{Reception, ReceptionError};
use crate::services::TargetServices;

/// Bytes of the stream that may be on their way without being acknowledged: what a link of 1 Gbit/s holds over 128 ms, twice.
pub(super) const WINDOW_BYTES: u32 = 32 << 20;
/// After this many bytes they are made durable and acknowledged.
const ACK_BYTES: u64 = WINDOW_BYTES as u64 / 4;
/// A sender says something at least this often, if only that it is there.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long an answer may take to leave.
const SEND_PATIENCE: Duration = Duration::from_secs(30);
/// How long a transfer that is replaced may take to end.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// How often to look whether the sender still has the right: also for one that sends slowly.
const RIGHT_CHECKED_EVERY: Duration = Duration::from_secs(1);

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
pub(super) fn turn_away(incoming: DetachedConnection, code: RefusalCode) {
    let text = match code {
        RefusalCode::Overloaded => "there are as many transfers as may be at the same time",
        _ => "there is no volume of that name that this node may send into",
    };
    tracing::warn!(peer = %incoming.from, key = %incoming.channel.peer, ?code, "turned a transfer away");
    let deadline = Instant::now() + Duration::from_secs(2);
    if let Ok(mut connection) = Connection::new(incoming.stream, incoming.channel, deadline)
        && connection.send(&Message::Refused { code, text: text.to_owned() }, &[], deadline).is_ok()
    {
        connection.close();
    }
}

/// From the handshake to the end.
pub(super) fn run(shared: &Arc<TargetServices>, incoming: DetachedConnection, slot: &TransferSlot) {
    let DetachedConnection { stream, channel, from, slot: _place } = incoming;
    let key = channel.peer;
    let mut volume = String::new();
    let outcome = begin(shared, stream, channel).and_then(|mut connection| {
        let served = IncomingTransfer { shared, slot, connection: &mut connection }.serve(&mut volume);
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

fn begin(shared: &TargetServices, stream: std::net::TcpStream, channel: DetachedChannel) -> Result<Connection, End> {
    let deadline = Instant::now() + shared.settings().config.limits.login_timeout();
    Ok(Connection::new(stream, channel, deadline)?)
}

struct IncomingTransfer<'a> {
    shared: &'a Arc<TargetServices>,
    slot: &'a TransferSlot,
    connection: &'a mut Connection,
}

impl IncomingTransfer<'_> {
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
        let claim = self
            .slot
            .claim(&name, END_PATIENCE)
            .ok_or_else(|| refused(RefusalCode::Busy, "another transfer into this volume is under way"))?;
        let was_there = self.receive(&name, &info).map_err(|failure| failure.into_end(self.shared, &name))?;
        // The volume is free again before the sender hears of it.
        drop(claim);
        let done = Message::Done { snapshot: info.name.clone(), was_there };
        self.connection.send(&done, &[], Instant::now() + SEND_PATIENCE)?;
        Ok(info.name)
    }

    /// Asked again and again: a reload may have taken the right.
    fn check_right(&self, name: &VolumeName) -> Result<(), End> {
        if self.slot.is_stopping() {
            return Err(refused(RefusalCode::Unavailable, "the target stops"));
        }
        if !self.shared.settings().rules.may_send_into(&self.slot.peer, name) {
            return Err(not_permitted());
        }
        if self.shared.drain().of(name).is_some() {
            return Err(refused(RefusalCode::Unavailable, "the target is drained"));
        }
        Ok(())
    }

    /// Takes the stream in; whether the snapshot was here before.
    fn receive(&mut self, name: &VolumeName, info: &StreamInfo) -> Result<bool, Failure> {
        // Memory is not waited for: the sender comes again, and others may have their turn.
        let mut reception = Reception::begin(self.shared, name.as_str(), Duration::ZERO)?;
        if reception.has(info.to)? {
            return Ok(true);
        }
        let position = reception.position(info.to)?;
        self.send(&Message::Position { position, window_bytes: WINDOW_BYTES })?;
        let mut progress = Progress::default();
        let stall = self.shared.settings().config.limits.transfer_stall();
        let mut data_came = Instant::now();
        let mut right_checked = data_came;
        loop {
            let received = self.connection.receive(Instant::now() + SILENCE_MAX.min(stall)).map_err(End::from)?;
            if right_checked.elapsed() >= RIGHT_CHECKED_EVERY {
                self.check_right(name)?;
                right_checked = Instant::now();
            }
            match received {
                (Message::Data { offset }, data) => {
                    progress.take(&mut reception, info, offset, &data)?;
                    data_came = Instant::now();
                }
                (Message::KeepAlive, _) => {}
                (Message::End { bytes }, _) if bytes == progress.taken && reception.is_whole() => {
                    reception.finish()?;
                    return Ok(false);
                }
                (Message::End { .. }, _) => return Err(ReceptionError::Incomplete.into()),
                _ => return Err(misbehaved("that message is not the sender's, or not in its place").into()),
            }
            if data_came.elapsed() >= stall {
                let text = format!("no data came for {} seconds; the place is needed", stall.as_secs());
                return Err(refused(RefusalCode::Stalled, text).into());
            }
            if progress.taken - progress.acknowledged >= ACK_BYTES {
                reception.flush()?;
                progress.acknowledged = progress.taken;
                let position = reception.position(info.to)?;
                self.send(&Message::Ack { offset: progress.taken, position })?;
            }
        }
    }

    fn send(&mut self, message: &Message) -> Result<(), End> {
        Ok(self.connection.send(message, &[], Instant::now() + SEND_PATIENCE)?)
    }
}

/// How many bytes of the stream came on this connection.
#[derive(Default)]
struct Progress {
    taken: u64,
    acknowledged: u64,
}

impl Progress {
    fn take(&mut self, reception: &mut Reception, info: &StreamInfo, offset: u64, data: &[u8]) -> Result<(), Failure> {
        if offset != self.taken {
            return Err(misbehaved("a piece of the stream is missing, or out of its order").into());
        }
        let was_known = reception.info().is_some();
        reception.feed(data)?;
        self.taken += data.len() as u64;
        match reception.info() {
            Some(begun) if !was_known && begun != info => {
                Err(misbehaved("the stream is another one than HELLO said").into())
            }
            _ => Ok(()),
        }
    }
}

/// Why a stream does not come in: what the sender is to be told, or what the volume says, which is put into words for the sender.
enum Failure {
    End(End),
    Reception(ReceptionError),
}

impl From<End> for Failure {
    fn from(end: End) -> Failure {
        Failure::End(end)
    }
}

impl From<ReceptionError> for Failure {
    fn from(error: ReceptionError) -> Failure {
        Failure::Reception(error)
    }
}

impl Failure {
    fn into_end(self, shared: &TargetServices, name: &VolumeName) -> End {
        match self {
            Failure::End(end) => end,
            Failure::Reception(error) => of_reception(shared, name, &error),
        }
    }
}

/// What the sender is told of a volume that does not take its stream in. Names of others, and details, stay in this target's log.
fn of_reception(shared: &TargetServices, name: &VolumeName, error: &ReceptionError) -> End {
    match error {
        ReceptionError::Stream(error) => of_stream(name, error),
        ReceptionError::Incomplete => refused(RefusalCode::Damaged, error.to_string()),
        ReceptionError::Clone(_) => refused(RefusalCode::DoesNotFit, "it is a clone, which takes in no stream"),
        ReceptionError::Busy(_) => refused(RefusalCode::Busy, "the volume takes in another stream"),
        ReceptionError::InUse(_) => refused(
            RefusalCode::InUse,
            "an initiator that could write has the volume attached there; detach it, or attach read-only",
        ),
        ReceptionError::Memory => refused(
            RefusalCode::Overloaded,
            "the target has too little memory for a transfer now (limits.memory_bytes)",
        ),
        ReceptionError::Catalogue(CatalogueError::Missing { .. }) => {
            refused(RefusalCode::NoSuchVolume, "there is no such volume yet")
        }
        ReceptionError::Catalogue(CatalogueError::Moving { .. }) => {
            refused(RefusalCode::InUse, "the volume is being resealed there")
        }
        // A command that has the volume's lock is done some time.
        ReceptionError::Operation(_) if is_locked(shared, name) => {
            refused(RefusalCode::InUse, "another command has the volume open there")
        }
        ReceptionError::Catalogue(_)
        | ReceptionError::Operation(_)
        | ReceptionError::Stuck
        | ReceptionError::NotPinned(_) => {
            tracing::error!(volume = %name, %error, "a transfer could not be taken in");
            refused(RefusalCode::Failed, "the volume cannot be opened or written; the log of the target says why")
        }
    }
}

fn is_locked(shared: &TargetServices, name: &VolumeName) -> bool {
    matches!(shared.catalogue.lock(name), Err(CatalogueError::InUse { .. }))
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
