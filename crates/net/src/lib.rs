//! The network room: the runtime that owns sockets, and the link that turns their bytes into PDUs and back.
//!
//! - [`Runtime`]: one per thread; listens, connects, moves bytes, wakes, tells events.
//! - [`Link`]: one per connection; handshake and channel, or plain framing; takes bytes, gives PDUs; no sockets inside.
//! - [`UdpSocket`]: packets in trains, quanta in memory of their own.
//! - [`affinity`]: threads on processors.
//!
//! Deliberately absent: what a PDU means, sessions, volumes, keys at rest. This is the one room that reads the clock on
//! behalf of the machines, and the one that names the kernel's interfaces.

pub mod affinity;
mod error;
mod link;
mod runtime;
mod udp;

pub use error::{NetError, StreamFailure};
#[doc(hidden)]
pub use link::fuzz_link;
pub use link::{
    Admission, DetachedChannel, ECL_MESSAGE_BYTES_MAX, Link, LinkEnd, LinkEvent, LinkOptions, LinkPacket, LinkPurpose,
    OPERATOR_MESSAGE_BYTES_MAX, PAIRING_MESSAGE_BYTES_MAX, ProtocolUse, TRANSFER_MESSAGE_BYTES_MAX,
    TRANSFER_PIECE_BYTES_MAX,
};
pub use runtime::{
    BusyPoll, BusyPollError, BusyPoller, DatagramId, DetachedStream, Event, Flavour, FlavourChoice, Listener,
    ListenerId, Look, PathInfo, PollCounters, Runtime, RuntimeCounters, RuntimeOptions, SendState, StreamId,
    StreamOptions, WaitEstimator, Waker, resolve,
};
pub use udp::{
    PacketSocket, PacketSocketOpener, PacketSplit, UdpCounters, UdpPacket, UdpPath, UdpSent, UdpSocket, UdpTransmit,
    substitute_udp,
};
