//! Connections that were lost at error recovery level 2: their tasks wait for another connection (RFC 7143 §7.2.2).

use std::time::Instant;

use super::connection_id::ConnectionId;
use super::respond::RepeatedResponse;
use super::retransmit::{KEPT_BYTES_MAX, Resumption, RetransmitBuffer};

/// Lost connections whose tasks wait, for each that the session may have.
const LOST_PER_CONNECTION_MAX: usize = 4;

/// A lost connection.
#[derive(Debug)]
pub(super) struct LostConnection {
    pub(super) id: ConnectionId,
    pub(super) cid: u16,
    /// Until when its tasks wait.
    pub(super) until: Instant,
    pub(super) retransmit: Option<Box<RetransmitBuffer>>,
    /// Responses that were being sent for the second time.
    pub(super) repeats: Vec<RepeatedResponse>,
}

/// All lost connections of a session.
#[derive(Debug, Default)]
pub(super) struct LostConnections(Vec<LostConnection>);

impl LostConnections {
    pub(super) fn add(&mut self, lost: LostConnection) {
        self.0.push(lost);
    }

    /// Takes out the oldest one if there are more than a session of `connections_max` may leave behind, in number or in bytes. A session
    /// whose connections are cut repeatedly has several for each.
    pub(super) fn take_excess(&mut self, connections_max: usize) -> Option<LostConnection> {
        let stored = || self.0.iter().filter_map(|lost| Some(lost.retransmit.as_ref()?.bytes())).sum::<usize>();
        let is_excess = self.0.len() > LOST_PER_CONNECTION_MAX * connections_max
            || (self.0.len() > connections_max && stored() > KEPT_BYTES_MAX * connections_max);
        is_excess.then(|| self.0.remove(0))
    }

    /// Takes out one whose time is over.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<LostConnection> {
        let at = self.0.iter().position(|lost| lost.until <= now)?;
        Some(self.0.remove(at))
    }

    pub(super) fn take_cid(&mut self, cid: u16) -> Option<LostConnection> {
        let at = self.0.iter().position(|lost| lost.cid == cid)?;
        Some(self.0.remove(at))
    }

    pub(super) fn has_cid(&self, cid: u16) -> bool {
        self.0.iter().any(|lost| lost.cid == cid)
    }

    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.0.iter().any(|lost| lost.id == id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|lost| lost.until).min()
    }

    /// The tag names another task from now on: nothing of what it named before may be sent.
    pub(super) fn retire_tag(&mut self, tag: u32) {
        for lost in &mut self.0 {
            if let Some(buffer) = &mut lost.retransmit {
                buffer.retire(tag);
            }
            lost.repeats.retain(|repeated| repeated.initiator_task_tag != tag);
        }
    }

    /// What has to be sent once more of a response that connection `from` had begun, from the Data-In `first` on; `position`: where it
    /// was. `None`: it is no longer stored.
    pub(super) fn resume(
        &mut self,
        from: ConnectionId,
        tag: u32,
        first: u32,
        position: Resumption,
    ) -> Option<Resumption> {
        let buffer = self.0.iter_mut().find(|lost| lost.id == from)?.retransmit.as_mut()?;
        if !buffer.has_sent(tag) {
            // Nothing was sent by that connection.
            return Some(position);
        }
        let resumption = buffer.resume(tag, first);
        buffer.forget(tag);
        resumption
    }

    /// The response to a task that is over and whose response may not have arrived, to be sent once more under a new number. `None` if
    /// nothing is known of it.
    pub(super) fn response_to(&mut self, tag: u32, first: u32) -> Option<RepeatedResponse> {
        let unfinished = self.0.iter_mut().find_map(|lost| {
            let at = lost.repeats.iter().position(|repeated| repeated.initiator_task_tag == tag)?;
            let mut repeated = lost.repeats.swap_remove(at);
            repeated.stat_sn = None;
            repeated.transfer.set_snack_tag(0);
            if let Some(buffer) = lost.retransmit.as_mut().filter(|buffer| buffer.has_sent(tag)) {
                repeated.transfer.resume(buffer.resume(tag, first));
                buffer.forget(tag);
            }
            Some(repeated)
        });
        if unfinished.is_some() {
            return unfinished;
        }
        let (answer, resumption) = self.0.iter_mut().find_map(|lost| {
            let buffer = lost.retransmit.as_mut()?;
            let answer = buffer.answer_to(tag)?.clone();
            let resumption = buffer.resume(tag, first);
            buffer.forget_answer(tag);
            Some((answer, resumption))
        })?;
        RepeatedResponse::of(tag, &answer, resumption)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
