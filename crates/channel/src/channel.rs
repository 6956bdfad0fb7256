//! Both directions of one connection, and the order in which things may happen on it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use strongroom_block::{Buffer, CryptoCounters, Suite};

use crate::frame::Confirmation;
use crate::inbound::{Arrival, Inbound};
use crate::keys::Direction;
use crate::outbound::Outbound;
use crate::{ChannelError, ChannelKeys, ChannelLimits, Frame, FrameKind, Scheme};

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sent the ClientHello; waits for the confirmation.
    Initiator,
    /// Took the ClientHello; confirms.
    Target,
}

/// One end of a protected connection, without the connection.
///
/// ```
/// use std::sync::Arc;
/// use strongroom_block::{Buffer, CryptoCounters, Suite};
/// use strongroom_channel::{Channel, ChannelKeys, ChannelLimits, FrameKind, Scheme};
///
/// # fn main() -> Result<(), strongroom_channel::ChannelError> {
/// let keys = || ChannelKeys::new([7; 32], Scheme::Lazy); // both ends', from the handshake
/// let counters = Arc::new(CryptoCounters::new());
/// let mut wire = Vec::new();
/// let mut target = Channel::target(keys(), ChannelLimits::default(), counters.clone(), &mut wire);
/// let mut initiator = Channel::initiator(keys(), ChannelLimits::default(), counters);
/// for bytes in wire.drain(..) {
///     initiator.handle_input(&bytes)?; // the confirmation
/// }
/// initiator.encode(FrameKind::Sealed, b"header", Buffer::copy_from(b"sealed block"), &mut wire)?;
/// for bytes in &wire {
///     let mut rest = &bytes[..];
///     while !rest.is_empty() {
///         let taken = target.handle_input(rest)?;
///         rest = &rest[taken..];
///         while let Some(frame) = target.poll_frame() {
///             assert_eq!((&frame.header[..], &frame.data[..]), (&b"header"[..], &b"sealed block"[..]));
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Channel {
    role: Role,
    scheme: Scheme,
    suite: Suite,
    confirmed: bool,
    inbound: Inbound,
    outbound: Outbound,
    arrived: Option<Frame>,
    failed: Option<ChannelError>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("role", &self.role)
            .field("scheme", &self.scheme)
            .field("confirmed", &self.confirmed)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Channel {
    /// An initiator's end. Sends nothing until the target's confirmation has arrived.
    pub fn initiator(keys: ChannelKeys, limits: ChannelLimits, counters: Arc<CryptoCounters>) -> Channel {
        Self::new(Role::Initiator, &keys, limits, counters)
    }

    /// A target's end, once the initiator's identity is known and accepted. Puts the confirmation into `out`.
    pub fn target(
        keys: ChannelKeys,
        limits: ChannelLimits,
        counters: Arc<CryptoCounters>,
        out: &mut Vec<Buffer>,
    ) -> Channel {
        let mut channel = Self::new(Role::Target, &keys, limits, counters);
        let limits = limits.capped();
        let confirmation = Confirmation {
            scheme: channel.scheme,
            header_bytes_max: limits.header_bytes_max,
            data_bytes_max: limits.data_bytes_max,
        };
        channel.outbound.confirm(&confirmation.encode(), out);
        channel
    }

    fn new(role: Role, keys: &ChannelKeys, limits: ChannelLimits, counters: Arc<CryptoCounters>) -> Channel {
        let limits = limits.capped();
        let (inward, outward) = match role {
            Role::Initiator => (Direction::ToInitiator, Direction::ToTarget),
            Role::Target => (Direction::ToTarget, Direction::ToInitiator),
        };
        // What the peer takes: an initiator is told by the confirmation; a target knows only the protocol's caps, and
        // keeps to the session's negotiated lengths.
        let ours = ChannelLimits::default();
        let peer_takes = ChannelLimits { rekey_tags: limits.rekey_tags, rekey_bytes: limits.rekey_bytes, ..ours };
        let scheme = keys.scheme();
        let inbound = Inbound::new(scheme, keys.direction(inward), limits, Arc::clone(&counters));
        let outbound = Outbound::new(scheme, keys.direction(outward), peer_takes, counters);
        let suite = keys.suite();
        Channel { role, scheme, suite, confirmed: role == Role::Target, inbound, outbound, arrived: None, failed: None }
    }

    /// What the channel protects.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The cipher that protects it.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Whether PDUs may be sent. An initiator's end learns it from the target's first frame.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// From now on headers, and parameter lists that are encrypted with them, may hold block keys (custody `target`): their memory is
    /// wiped when the last reference to it is dropped.
    pub fn wipe_headers(&mut self) {
        self.inbound.wipe_headers();
    }

    /// Takes bytes from the peer, until one PDU has arrived; returns how many it took.
    ///
    /// It takes nothing while a PDU waits in [`Channel::poll_frame`], so poll after each call and go on with the rest.
    ///
    /// # Errors
    /// [`ChannelError`]: drop the connection. Later calls return the same.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<usize, ChannelError> {
        self.alive()?;
        let mut taken = 0;
        while taken < bytes.len() && self.arrived.is_none() {
            let result = self.inbound.take(&bytes[taken..]);
            let (count, arrival) = result.map_err(|error| self.fail(error))?;
            taken += count;
            if let Some(arrival) = arrival {
                self.accept(arrival)?;
            }
        }
        Ok(taken)
    }

    /// Where the rest of the PDU in the making goes, so that a driver can read from the socket right into it: the
    /// payload then lands in its final buffer without a copy. `None` between frames and while a PDU waits to be polled.
    pub fn input_space(&mut self) -> Option<&mut [u8]> {
        if self.failed.is_some() || self.arrived.is_some() { None } else { self.inbound.space() }
    }

    /// Counts `count` bytes that were read into [`Channel::input_space`].
    ///
    /// # Errors
    /// As [`Channel::handle_input`].
    ///
    /// # Panics
    /// If `count` is more than the space was.
    pub fn input_filled(&mut self, count: usize) -> Result<(), ChannelError> {
        self.alive()?;
        let result = self.inbound.filled(count);
        match result.map_err(|error| self.fail(error))? {
            Some(arrival) => self.accept(arrival),
            None => Ok(()),
        }
    }

    /// The PDU that arrived, if one did.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.arrived.take()
    }

    /// Appends what carries one PDU to `out`, ready for a vectored write. Data that the scheme does not encrypt is passed
    /// on by reference. Changes keys by itself when it is time.
    ///
    /// # Errors
    /// [`ChannelError::NotConfirmed`], [`ChannelError::Closed`], [`ChannelError::TooLong`] and
    /// [`ChannelError::SealedWithoutData`] leave the channel as it was; a dead channel says why it died.
    pub fn encode(
        &mut self,
        kind: FrameKind,
        header: &[u8],
        data: Buffer,
        out: &mut Vec<Buffer>,
    ) -> Result<(), ChannelError> {
        self.alive()?;
        if !self.confirmed {
            return Err(ChannelError::NotConfirmed);
        }
        self.outbound.pdu(kind, header, data, out)
    }

    /// Changes the keys of the sending direction now, for a limit that the channel does not see, such as time. Does nothing if
    /// they have protected nothing yet, on a dead or closed channel, or before the confirmation.
    pub fn rekey(&mut self, out: &mut Vec<Buffer>) {
        if self.failed.is_none() && self.confirmed {
            self.outbound.rekey_if_used(out);
        }
    }

    /// Says goodbye: nothing more will be sent. What the peer still sends can be received. Does nothing twice, on a
    /// dead channel, or before the confirmation.
    pub fn close(&mut self, out: &mut Vec<Buffer>) {
        if self.failed.is_none() && self.confirmed {
            self.outbound.close(out);
        }
    }

    /// Whether this end said goodbye.
    pub fn is_closed(&self) -> bool {
        self.outbound.is_closed()
    }

    /// Whether the peer said goodbye.
    pub fn is_closed_by_peer(&self) -> bool {
        self.inbound.is_closed()
    }

    /// The stream from the peer ended.
    ///
    /// # Errors
    /// [`ChannelError::Truncated`] unless it said goodbye first.
    pub fn handle_eof(&mut self) -> Result<(), ChannelError> {
        self.alive()?;
        if self.inbound.is_closed() { Ok(()) } else { Err(self.fail(ChannelError::Truncated)) }
    }

    /// Longest header and longest data segment that the peer takes, in bytes.
    pub fn peer_limits(&self) -> (usize, usize) {
        (self.outbound.limits.header_bytes_max, self.outbound.limits.data_bytes_max)
    }

    /// How often this end has changed its keys.
    pub fn rekeys(&self) -> u64 {
        self.outbound.generation()
    }

    /// How often the peer has changed its keys.
    pub fn peer_rekeys(&self) -> u64 {
        self.inbound.generation()
    }

    fn accept(&mut self, arrival: Arrival) -> Result<(), ChannelError> {
        match arrival {
            Arrival::Confirmation(header) => {
                let confirmed = self.confirm(&header);
                confirmed.map_err(|error| self.fail(error))
            }
            _ if !self.confirmed => Err(self.fail(ChannelError::Confirmation)),
            Arrival::Pdu(frame) => {
                self.arrived = Some(frame);
                Ok(())
            }
            Arrival::Rekey | Arrival::Close => Ok(()),
        }
    }

    fn confirm(&mut self, header: &Bytes) -> Result<(), ChannelError> {
        if self.confirmed {
            return Err(ChannelError::Confirmation);
        }
        let confirmation = Confirmation::decode(header, self.scheme)?;
        self.outbound.limits.header_bytes_max = confirmation.header_bytes_max;
        self.outbound.limits.data_bytes_max = confirmation.data_bytes_max;
        self.confirmed = true;
        Ok(())
    }

    fn alive(&self) -> Result<(), ChannelError> {
        self.failed.map_or(Ok(()), Err)
    }

    fn fail(&mut self, error: ChannelError) -> ChannelError {
        self.failed = Some(error);
        error
    }
}
