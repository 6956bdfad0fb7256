//! A client's connection as a stream of bytes, plain or through TLS. One thread receives; another one may send at the same time.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown,
    sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay},
};

use super::tls::{NbdCertificates, TlsSession};
use crate::completion::lock;

/// After this time without a word of it, a client's machine is asked whether it is still there; three times, this far apart.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 3;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl Socket {
    pub(super) fn new(fd: OwnedFd) -> Socket {
        // None of it is there for Unix sockets, whose ends always know of each other.
        let _ = set_tcp_nodelay(&fd, true);
        let _ = set_socket_keepalive(&fd, true);
        let _ = set_tcp_keepidle(&fd, KEEPALIVE);
        let _ = set_tcp_keepintvl(&fd, KEEPALIVE_EVERY);
        let _ = set_tcp_keepcnt(&fd, KEEPALIVE_COUNT);
        Socket(fd)
    }

    /// Nothing more is received, but for what has come already.
    pub(super) fn end_receiving(&self) {
        let _ = shutdown(&self.0, Shutdown::Read);
    }

    /// Wakes who waits on it, and lets nothing through any more.
    pub(super) fn shut_down(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(&self.0, &mut *buffer, RecvFlags::empty()) {
                Ok((len, _)) => return Ok(len),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait(&self, flags: PollFlags, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.0, flags)], Some(&timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether to wait until there is room for what is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Yes,
    No,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Arc<Socket>,
    tls: Option<Tls>,
}

#[derive(Debug)]
struct Tls {
    session: Mutex<TlsSession>,
    /// Of the thread that receives, so that it need not keep the session from the one that sends.
    buffer: Mutex<Vec<u8>>,
}

impl Stream {
    /// Without TLS.
    pub(super) fn new(socket: Arc<Socket>) -> Stream {
        Stream { socket, tls: None }
    }

    /// Makes a TLS session.
    pub(super) fn start_tls(&mut self, certificates: &NbdCertificates, until: Instant) -> io::Result<()> {
        let mut session = TlsSession::new(certificates)?;
        let mut buffer = TlsSession::buffer();
        let outcome = loop {
            let advanced = session.open_more();
            if session.wants_write() {
                // Also the alert that says what was wrong.
                self.send_before(&session.seal(std::iter::empty())?, until)?;
            }
            match advanced {
                Err(error) => break Err(error),
                Ok(_) if !session.is_handshaking() => break Ok(()),
                Ok(true) => continue,
                Ok(false) => {}
            }
            self.socket.wait(PollFlags::IN, until)?;
            match self.socket.receive(&mut buffer)? {
                0 => break Err(io::ErrorKind::UnexpectedEof.into()),
                len => session.received(&buffer[..len]),
            }
        };
        self.tls = Some(Tls { session: Mutex::new(session), buffer: Mutex::new(buffer) });
        outcome
    }

    /// Receives something; 0 at the end. Waits until the given time, or for ever.
    pub(super) fn receive(&self, buffer: &mut [u8], until: Option<Instant>) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return self.receive_raw(buffer, until);
        };
        loop {
            let mut session = lock(&tls.session);
            if let Some(len) = session.read(buffer)? {
                return Ok(len);
            }
            if session.open_more()? {
                continue;
            }
            drop(session);
            let mut raw = lock(&tls.buffer);
            match self.receive_raw(&mut raw, until)? {
                // Not the end of the session, which would be a message.
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => lock(&tls.session).received(&raw[..len]),
            }
        }
    }

    fn receive_raw(&self, buffer: &mut [u8], until: Option<Instant>) -> io::Result<usize> {
        if let Some(until) = until {
            self.socket.wait(PollFlags::IN, until)?;
        }
        self.socket.receive(buffer)
    }

    /// Sends bytes of the negotiation.
    pub(super) fn send_all(&self, bytes: Vec<u8>, until: Instant) -> io::Result<()> {
        let bytes = Bytes::from(bytes);
        match self.seal(std::iter::once(&bytes))? {
            Some(sealed) => self.send_before(&sealed, until),
            None => self.send_before(&bytes, until),
        }
    }

    fn send_before(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.send(&[IoSlice::new(bytes)], Wait::No) {
                Ok(len) => bytes = &bytes[len..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.socket.wait(PollFlags::OUT, until)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the TLS session has to send something by itself.
    pub(super) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| lock(&tls.session).wants_write())
    }

    /// What has to be sent in place of these bytes, if that is something else. What was sealed is to be sent in the same order.
    pub(super) fn seal<'a>(&self, parts: impl Iterator<Item = &'a Bytes>) -> io::Result<Option<Bytes>> {
        self.tls.as_ref().map(|tls| lock(&tls.session).seal(parts)).transpose()
    }

    /// Has the TLS session end with the next bytes that are sealed.
    pub(super) fn close_session(&self) {
        if let Some(tls) = &self.tls {
            lock(&tls.session).close();
        }
    }

    /// Sends some of the bytes, which are sealed already; says how many.
    pub(super) fn send(&self, slices: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        let flags = match wait {
            Wait::Yes => SendFlags::NOSIGNAL,
            Wait::No => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        };
        loop {
            match sendmsg(&self.socket.0, slices, &mut SendAncillaryBuffer::default(), flags) {
                Err(Errno::INTR) => {}
                outcome => return outcome.map_err(io::Error::from),
            }
        }
    }

    /// Lets nothing through any more.
    pub(super) fn shut_down(&self) {
        self.socket.shut_down();
    }
}
