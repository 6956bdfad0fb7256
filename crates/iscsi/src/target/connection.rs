//! The connections of a session: how they come, what each has of its own, and how they go (RFC 7143 §6.3.4, §7.14, §11.14). Commands
//! are ordered over all of them; a command's data and answer stay with the one that brought it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use strongroom_block::Buffer;

use super::login::Login;
use super::manage::Asked;
use super::outbox::{AnswerKind, Outbox};
use super::question::Question;
use super::respond::{Again, Turn};
use super::retransmit::{KEPT_BYTES_MAX, RetransmitBuffer};
use super::{Event, ManagementFunction, Session, SessionKind};
use crate::liveness::Liveness;
use crate::login::Agreed;
use crate::pdu::{AsyncEvent, LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, Sequence};
use crate::{CloseReason, PeerMisbehaved};

/// Lost connections whose tasks wait, for each that the session may have.
const LOST_PER_PLACE_MAX: usize = 4;
/// As much of Time2Wait as counts when the initiator wants more than we do, in seconds: it must not choose how long a session without a
/// connection stays.
const TIME2WAIT_MAX_S: u16 = 5;

/// Names a connection of one session; never used again there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub(super) u32);

/// What every connection has of its own.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) cid: u16,
    pub(super) agreed: Agreed,
    pub(super) liveness: Liveness,
    pub(super) outbox: Outbox,
    /// Whose turn it is to be answered.
    pub(super) responding: VecDeque<Turn>,
    /// From error recovery level 1 on.
    pub(super) kept: Option<Box<RetransmitBuffer>>,
    pub(super) question: Option<Question>,
    pub(super) ping_tag: u32,
    /// It takes nothing any more: it is over but for its last words, or will be when its tasks have ended.
    pub(super) is_leaving: bool,
    /// Nothing but `outbox` is left of it.
    pub(super) is_over: bool,
}

/// A connection that is gone, at error recovery level 2. Its tasks wait for another one.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) id: ConnectionId,
    cid: u16,
    until: Instant,
    pub(super) kept: Option<Box<RetransmitBuffer>>,
    /// Answers that were on their way for the second time.
    pub(super) again: Vec<Again>,
}

/// Whether a connection with some CID may be added now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayAdd {
    /// Yes.
    Yes,
    /// Tasks of an earlier connection with this CID are being ended: ask again when the session has answered its management.
    Later,
    /// There are as many as were agreed on.
    TooMany,
    /// The session is over.
    Over,
}

impl Session {
    /// A session of its leading connection.
    ///
    /// # Panics
    /// If the login is not [`super::LoginEvent::Done`].
    pub fn new(now: Instant, login: Login) -> (Session, ConnectionId) {
        let mut session = Session::empty(now, &login);
        let id = session.add_connection(now, login);
        (session, id)
    }

    /// Whether a connection with this CID may join (RFC 7143 §6.3.4). One that has it already is replaced, as if it had been logged
    /// out: at error recovery level 2 for recovery, below that with its tasks.
    pub fn may_add(&mut self, now: Instant, cid: u16) -> MayAdd {
        self.now = now;
        if self.is_closed || self.is_discovery() {
            return MayAdd::Over;
        }
        let of_cid = |connection: &&Connection| connection.cid == cid && !connection.is_over;
        if let Some(old) = self.connections.iter().find(of_cid) {
            let (id, is_leaving) = (old.id, old.is_leaving);
            if !is_leaving {
                self.reinstate(id, cid);
            }
            if self.connections.iter().any(|connection| connection.id == id && !connection.is_over) {
                return MayAdd::Later;
            }
        }
        if self.is_ending(cid) {
            return MayAdd::Later;
        }
        if self.is_full() { MayAdd::TooMany } else { MayAdd::Yes }
    }

    /// Whether a login that `may_add` let begin may still become a connection: the session may have ended meanwhile, and others come, one
    /// with the same CID among them.
    pub fn has_place_for(&self, login: &Login) -> bool {
        let is_there = |connection: &Connection| connection.cid == login.cid() && !connection.is_over;
        !self.is_closed && !self.is_full() && !self.connections.iter().any(is_there)
    }

    /// Whether there are as many connections as were agreed on.
    fn is_full(&self) -> bool {
        self.connections_count() >= usize::from(self.agreed.connections_max.max(1))
    }

    /// Adds a connection whose login is done, after [`Login::accept_into`].
    ///
    /// # Panics
    /// If the login is not [`super::LoginEvent::Done`].
    pub fn add_connection(&mut self, now: Instant, login: Login) -> ConnectionId {
        assert!(login.agreed().is_some(), "a login is over before its connection is used");
        self.now = now;
        self.vacant_until = None;
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let config = &self.config;
        self.connections.push(Connection {
            id,
            cid: login.cid(),
            liveness: Liveness::new(now, config.ping_after, config.ping_timeout),
            outbox: login.outbox,
            responding: VecDeque::new(),
            kept: (login.agreed.error_recovery_level > 0).then(Box::default),
            agreed: login.agreed,
            question: None,
            ping_tag: 0,
            is_leaving: false,
            is_over: false,
        });
        id
    }

    /// How many connections there are.
    pub fn connections_count(&self) -> usize {
        self.connections.iter().filter(|connection| !connection.is_leaving).count()
    }

    /// The CID of a connection.
    pub fn cid(&self, connection: ConnectionId) -> Option<u16> {
        self.connection(connection).map(|connection| connection.cid)
    }

    /// The connection ended underneath, or its framing failed. Below error recovery level 2 the session ends with it; emits
    /// `ConnectionClosed` or `Closed` unless that was already done.
    pub fn handle_closed(&mut self, now: Instant, connection: ConnectionId, reason: CloseReason) {
        self.now = now;
        let Some(gone) = self.connections.iter_mut().find(|gone| gone.id == connection) else { return };
        gone.outbox.clear();
        if gone.is_over {
            return self.connections.retain(|gone| gone.id != connection);
        }
        self.lose(connection, reason);
    }

    pub(super) fn lose(&mut self, id: ConnectionId, reason: CloseReason) {
        if self.agreed.error_recovery_level < 2 {
            return self.end(reason);
        }
        self.keep_tasks_of(id);
        self.close_connection(id, reason);
    }

    /// RFC 7143 §6.3.4: a login with the CID of a connection that is still there.
    fn reinstate(&mut self, id: ConnectionId, cid: u16) {
        let reason = CloseReason::ClosedHere("replaced by a new connection with the same CID".to_owned());
        if self.agreed.error_recovery_level == 2 {
            self.keep_tasks_of(id);
            return self.close_connection(id, reason);
        }
        if self.connections_count() == 1 {
            // Its login may come to nothing.
            self.vacant_until = Some(self.now + self.config.login_timeout);
        }
        self.leave(id, Asked::Nothing { closes: id, cid });
    }

    /// Has a connection's tasks kept for another one.
    fn keep_tasks_of(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else { return };
        let (cid, kept) = (connection.cid, connection.kept.take());
        let (tasks, again): (VecDeque<Turn>, VecDeque<Turn>) =
            std::mem::take(&mut connection.responding).into_iter().partition(|turn| matches!(turn, Turn::Task(_)));
        connection.responding = tasks;
        let again: Vec<Again> = again
            .into_iter()
            .filter_map(|turn| match turn {
                Turn::Again(again) => Some(*again),
                Turn::Task(_) => None,
            })
            .collect();
        self.unsent_bytes -= again.iter().map(|again| again.responding.held_bytes()).sum::<u64>();
        // What may not have been seen to arrive is sent again by the initiator, under the same number.
        self.held.forget(id);
        self.early.retain(|(connection, _)| *connection != id);
        let wait_s = self.agreed.time2wait_s.min(TIME2WAIT_MAX_S.max(self.config.offer.time2wait_s));
        let seconds = u64::from(wait_s) + u64::from(self.agreed.time2retain_s);
        let until = self.now + Duration::from_secs(seconds);
        self.lost.push(Lost { id, cid, until, kept, again });
        // As much as as many connections that stand could have kept; a session that is cut again and again has several to a place.
        let places = usize::from(self.agreed.connections_max.max(1));
        let bytes = |lost: &[Lost]| lost.iter().filter_map(|lost| Some(lost.kept.as_ref()?.bytes())).sum::<usize>();
        while self.lost.len() > LOST_PER_PLACE_MAX * places
            || (self.lost.len() > places && bytes(&self.lost) > KEPT_BYTES_MAX * places)
        {
            let oldest = self.lost.remove(0);
            self.end_tasks_of(oldest.id, Asked::Nothing { closes: oldest.id, cid: oldest.cid });
        }
    }

    /// Ends what the time to recover has run out for.
    pub(super) fn expire_lost(&mut self) {
        while let Some(at) = self.lost.iter().position(|lost| lost.until <= self.now) {
            let lost = self.lost.remove(at);
            self.end_tasks_of(lost.id, Asked::Nothing { closes: lost.id, cid: lost.cid });
        }
        if self.connections_count() == 0 && self.lost.is_empty() && !self.is_closed {
            self.end(CloseReason::NotRecovered);
        }
    }

    pub(super) fn lost_deadline(&self) -> Option<Instant> {
        self.lost.iter().map(|lost| lost.until).min()
    }

    pub(super) fn handle_logout(&mut self, id: ConnectionId, logout: LogoutRequest) -> Result<(), PeerMisbehaved> {
        const SESSION: u8 = LogoutReason::CloseSession as u8;
        const CONNECTION: u8 = LogoutReason::CloseConnection as u8;
        const RECOVERY: u8 = LogoutReason::RemoveForRecovery as u8;
        let tag = logout.initiator_task_tag;
        let meant = self.connections.iter().find(|connection| connection.cid == logout.cid && !connection.is_leaving);
        let meant = meant.map(|connection| connection.id);
        let lost = self.lost.iter().position(|lost| lost.cid == logout.cid);
        match logout.reason {
            SESSION => self.log_out(id, tag),
            CONNECTION if meant.is_some() && self.connections_count() == 1 => self.log_out(id, tag),
            CONNECTION => match (meant, lost) {
                (Some(meant), _) => {
                    let cid = logout.cid;
                    self.leave(meant, Asked::Logout { connection: id, initiator_task_tag: tag, closes: meant, cid });
                    Ok(())
                }
                (None, Some(lost)) => {
                    let lost = self.lost.remove(lost);
                    let (closes, cid) = (lost.id, lost.cid);
                    let asked = Asked::Logout { connection: id, initiator_task_tag: tag, closes, cid };
                    self.end_tasks_of(lost.id, asked);
                    Ok(())
                }
                (None, None) => self.answer_logout(id, tag, LogoutResult::CidNotFound),
            },
            RECOVERY if self.agreed.error_recovery_level < 2 => {
                self.answer_logout(id, tag, LogoutResult::RecoveryNotSupported)
            }
            RECOVERY if meant.is_none() && lost.is_none() => self.answer_logout(id, tag, LogoutResult::CidNotFound),
            RECOVERY => {
                self.answer_logout(id, tag, LogoutResult::Closed)?;
                if let Some(meant) = meant {
                    self.keep_tasks_of(meant);
                    self.close_connection(meant, CloseReason::LoggedOut);
                }
                Ok(())
            }
            _ => self.answer_logout(id, tag, LogoutResult::RecoveryNotSupported),
        }
    }

    fn log_out(&mut self, id: ConnectionId, initiator_task_tag: u32) -> Result<(), PeerMisbehaved> {
        self.answer_logout(id, initiator_task_tag, LogoutResult::Closed)?;
        self.end(CloseReason::LoggedOut);
        Ok(())
    }

    fn answer_logout(&mut self, id: ConnectionId, tag: u32, result: LogoutResult) -> Result<(), PeerMisbehaved> {
        let answer = LogoutResponse {
            result,
            initiator_task_tag: tag,
            sequence: Sequence::default(),
            time2wait_s: self.agreed.time2wait_s,
            time2retain_s: self.agreed.time2retain_s,
        };
        self.answer(id, answer.encode(), Buffer::empty(), AnswerKind::Numbered)
    }

    /// A connection takes nothing any more, and goes when its tasks have ended: none may take effect once the initiator knows that it
    /// is gone.
    fn leave(&mut self, id: ConnectionId, asked: Asked) {
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else { return };
        connection.is_leaving = true;
        self.held.end(id);
        self.early.retain(|(connection, _)| *connection != id);
        self.end_tasks_of(id, asked);
    }

    /// Ends the tasks that belong to a connection; `asked` is answered when the application has let go of them.
    fn end_tasks_of(&mut self, id: ConnectionId, asked: Asked) {
        let keys: Vec<_> = self.tasks.iter().filter(|(_, task)| task.connection == id).map(|(key, _)| key).collect();
        let held = self.freeze(&keys);
        if held.is_empty() {
            return self.carried_out(asked, keys);
        }
        self.ask_application(asked, ManagementFunction::ConnectionEnded, keys, held);
    }

    /// A connection's tasks have ended: it is over.
    pub(super) fn left(&mut self, asked: &Asked) {
        match *asked {
            Asked::Logout { connection, initiator_task_tag, closes, .. } => {
                if let Err(flood) = self.answer_logout(connection, initiator_task_tag, LogoutResult::Closed) {
                    return self.end(CloseReason::Misbehaved(flood));
                }
                self.close_connection(closes, CloseReason::LoggedOut);
            }
            Asked::Nothing { closes, .. } => {
                let reason = CloseReason::ClosedHere("replaced by a new connection with the same CID".to_owned());
                self.close_connection(closes, reason);
            }
            Asked::Function { .. } => {}
        }
    }

    /// Ends one connection. Its last words may still be sent.
    fn close_connection(&mut self, id: ConnectionId, reason: CloseReason) {
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else { return };
        if connection.is_over {
            return;
        }
        (connection.is_leaving, connection.is_over) = (true, true);
        connection.outbox.keep_last_words();
        connection.question = None;
        connection.kept = None;
        let turns = std::mem::take(&mut connection.responding);
        self.forget_turns(turns);
        self.connections.retain(|connection| connection.id != id || !connection.outbox.is_empty());
        self.events.push_back(Event::ConnectionClosed { connection: id, reason });
        self.drop_barriers(id);
    }

    /// The session ends: every connection has its last words.
    pub(super) fn close_all_connections(&mut self) {
        for connection in &mut self.connections {
            (connection.is_leaving, connection.is_over) = (true, true);
            connection.outbox.keep_last_words();
            connection.responding.clear();
            connection.question = None;
            connection.kept = None;
        }
        self.connections.retain(|connection| !connection.outbox.is_empty());
        self.lost.clear();
    }

    /// The tag names another task from now on: no connection, nor a lost one, may answer for what it named before.
    pub(super) fn retire_tag(&mut self, tag: u32) {
        let kept = self.connections.iter_mut().filter_map(|connection| connection.kept.as_mut());
        let kept = kept.chain(self.lost.iter_mut().filter_map(|lost| lost.kept.as_mut()));
        kept.for_each(|kept| kept.retire(tag));
        for lost in &mut self.lost {
            lost.again.retain(|again| again.initiator_task_tag != tag);
        }
    }

    /// Whether an older task of this tag is being answered once more.
    pub(super) fn is_answered_again(&self, tag: u32) -> bool {
        let is_its = |turn: &Turn| matches!(turn, Turn::Again(again) if again.initiator_task_tag == tag);
        self.agreed.error_recovery_level > 0 && self.connections.iter().any(|open| open.responding.iter().any(is_its))
    }

    /// Has every connection told something.
    pub(super) fn announce(&mut self, event: AsyncEvent, parameters: impl Fn(u16) -> [u16; 3]) {
        let ids: Vec<(ConnectionId, u16)> =
            self.connections.iter().filter(|open| !open.is_leaving).map(|open| (open.id, open.cid)).collect();
        for (id, cid) in ids {
            let message =
                crate::pdu::AsyncMessage { event, sequence: Sequence::default(), parameters: parameters(cid) };
            // A flooded session is about to end anyway; the message is a courtesy.
            let _ = self.answer(id, message.encode(), Buffer::empty(), AnswerKind::Numbered);
        }
    }

    /// A connection that still talks.
    pub(super) fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.iter().find(|connection| connection.id == id && !connection.is_over)
    }

    pub(super) fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.id == id && !connection.is_over)
    }

    /// A login for a discovery session has no further connections.
    pub(super) fn is_discovery(&self) -> bool {
        self.kind == SessionKind::Discovery
    }
}
