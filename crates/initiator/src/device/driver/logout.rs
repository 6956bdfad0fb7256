//! The end of an attachment: requests from before it are answered, the session is logged out, its sockets are closed.

use std::time::{Duration, Instant};

use strongroom_net::Runtime;

use super::datagrams::DatagramSocket;
use super::{Driver, SessionState};
use crate::session::nexus::Nexus;
use crate::session::transport::SessionTransport;

/// How long a detach may take to say goodbye.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the answer to a logout is waited for at the end, where the goodbye needs it.
const LOGOUT_ANSWER_MAX: Duration = Duration::from_millis(500);

impl<T: SessionTransport> Driver<T> {
    /// Says goodbye on a connection that is still there, and waits for an answer only where the goodbye needs it.
    pub(super) fn leave(&mut self) {
        if let SessionState::Active(nexus) = &mut self.state {
            nexus.log_out(Instant::now());
        }
        self.transmit(Instant::now());
        // The end of its connection could overtake a logout that goes by datagrams, and look like a loss.
        let until = Instant::now() + LOGOUT_ANSWER_MAX;
        while self.datagrams.is_some() && Instant::now() < until {
            let next = self.next_timeout().map_or(until, |at| at.min(until));
            let pause = next.saturating_duration_since(Instant::now());
            if self.runtime.poll(Some(pause)).is_err() {
                break;
            }
            self.receive();
            let now = Instant::now();
            if let SessionState::Active(nexus) = &mut self.state {
                nexus.handle_timeout(now);
            }
            self.process(now);
            self.transmit(now);
        }
        if let SessionState::Active(nexus) = &mut self.state {
            hang_up(&mut self.runtime, nexus, self.datagrams.take());
        }
        // What waits in a socket's queue goes out as far as the kernel takes it.
        let _ = self.runtime.poll(Some(Duration::ZERO));
    }

    /// Asks whether the lease still is ours, gives it back, and then logs out.
    pub(super) fn say_goodbye(&mut self, now: Instant) {
        let SessionState::Active(nexus) = &mut self.state else { return };
        if nexus.talks_of_lease() {
            self.logout_deadline.get_or_insert(now + LOGOUT_TIMEOUT);
            return;
        }
        self.attachment.leave(now, nexus);
        self.logout_deadline = Some(now + LOGOUT_TIMEOUT);
        self.transmit(now);
    }

    /// Whether a detach waits for a connection that is lost: the target is asked once whether the lease still is ours. `false`: it waited for
    /// long enough, or there is nothing to ask.
    pub(super) fn waits_to_ask(&mut self, now: Instant) -> bool {
        let asks =
            self.attachment.is_held() && !self.intake.is_abandoned() && !matches!(self.state, SessionState::Refused);
        asks && *self.logout_deadline.get_or_insert(now + LOGOUT_TIMEOUT) > now
    }

    /// Whether the thread has nothing left to do.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        if self.first.is_none() && self.attachment.engine.is_none() {
            return true;
        }
        if !self.intake.is_detaching() {
            return false;
        }
        match &mut self.state {
            SessionState::Active(nexus) if nexus.is_connected() && (nexus.is_open() || nexus.is_logging_out()) => {
                if self.attachment.engine.as_ref().is_some_and(|engine| engine.table.has_waiting_callers())
                    && self.logout_deadline.is_none()
                {
                    // Requests from before the detach are answered first; new ones are refused at the door.
                    self.logout_deadline = Some(now + LOGOUT_TIMEOUT);
                } else if !nexus.is_logging_out()
                    && !self.attachment.engine.as_ref().is_some_and(|engine| engine.table.has_waiting_callers())
                {
                    self.say_goodbye(now);
                }
                self.logout_deadline.is_some_and(|deadline| deadline <= now)
            }
            _ => !self.waits_to_ask(now),
        }
    }
}

/// Says goodbye on every wire, and by a datagram, and closes them.
pub(super) fn hang_up<T: SessionTransport>(
    runtime: &mut Runtime,
    nexus: &mut Nexus<T>,
    datagrams: Option<DatagramSocket>,
) {
    nexus.close();
    if let Some(datagrams) = datagrams {
        datagrams.close(runtime, nexus);
    }
    for at in 0..nexus.wires().len() {
        let mut last = nexus.transmit(at, None);
        let stream = nexus.wires()[at].stream;
        let _ = runtime.send(stream, &mut last);
        runtime.close(stream);
    }
    for stream in nexus.take_ended() {
        runtime.close(stream);
    }
}
