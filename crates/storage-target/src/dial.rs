//! Connecting to a target to say something else to it than iSCSI, blocking: until the handshake is over and the channel stands.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_net::{DetachedChannel, Link, LinkEnd, LinkEvent, LinkOptions, LinkPurpose, resolve};

/// Where to, and as whom.
pub(crate) struct Dial<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) node: &'a NodeKey,
    /// The keys that the target may have.
    pub(crate) expected: &'a [PublicKey],
}

/// Why no channel came of it.
pub(crate) enum DialError {
    /// Nobody answers there, or the name is none.
    Unreachable(String),
    /// The handshake failed.
    Handshake(LinkEnd),
    /// The connection was lost.
    Broken(String),
}

/// Connects to any of the host's addresses, and shakes hands until the link is for `purpose`, which is one of those that are detached. Returns
/// until when it may take, too.
pub(crate) fn dial(
    to: &Dial<'_>,
    options: LinkOptions,
    purpose: LinkPurpose,
) -> Result<(TcpStream, DetachedChannel, Instant), DialError> {
    let unreachable =
        |problem: &dyn Display| DialError::Unreachable(format!("cannot connect to {}:{}: {problem}", to.host, to.port));
    let addresses = resolve(to.host, to.port).map_err(|error| unreachable(&error))?;
    let deadline = Instant::now() + options.setup_timeout;
    let mut failure = io::Error::from(ErrorKind::NotFound);
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return shake_hands(to, options, stream, deadline, purpose),
            Err(error) => failure = error,
        }
    }
    Err(unreachable(&failure))
}

fn shake_hands(
    to: &Dial<'_>,
    options: LinkOptions,
    mut stream: TcpStream,
    deadline: Instant,
    purpose: LinkPurpose,
) -> Result<(TcpStream, DetachedChannel, Instant), DialError> {
    let broken = |error: io::Error| DialError::Broken(error.to_string());
    stream.set_nodelay(true).map_err(broken)?;
    let link = Link::initiator_channel(to.node, to.expected, options, Instant::now());
    let mut link = link.map_err(|error| DialError::Handshake(error.into()))?;
    let mut input = vec![0; 16 << 10];
    let mut out = Vec::new();
    while link.purpose() != purpose {
        link.poll_transmit(&mut out);
        for buffer in out.drain(..) {
            stream.write_all(&buffer).map_err(broken)?;
        }
        while let Some(event) = link.poll_event() {
            if let LinkEvent::Ended(end) = event {
                return Err(DialError::Handshake(end));
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(DialError::Broken("the handshake took too long".to_owned()));
        }
        stream.set_read_timeout(Some(left)).map_err(broken)?;
        match stream.read(&mut input) {
            Ok(0) => link.handle_eof(),
            Ok(count) => link.handle_input(&input[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(error)),
        }
    }
    let channel = link.into_detached().expect("callers ask for a purpose that has one");
    Ok((stream, channel, deadline))
}
