//! The asking side of the admin socket, for the command line. Blocking.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::{PROTOCOL, REPLY_BYTES_MAX, Reply, Request, SLICE_BYTES_MAX};

/// A connection to a running target.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

/// A target that could not be asked, or that refused.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The socket is there and cannot be used.
    #[error("cannot reach the target at {}: {source}; ask as the user that runs it, or as root", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The conversation broke off, or made no sense.
    #[error("the target at {} did not answer in order: {problem}; look into its log", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What happened.
        problem: String,
    },
    /// The target says no.
    #[error("{0}")]
    Refused(String),
}

impl Client {
    /// Connects to the target at `path`; `None` if none serves there.
    ///
    /// # Errors
    /// [`AdminError::Connect`].
    pub fn connect(path: &Path) -> Result<Option<Client>, AdminError> {
        match strongroom_unix_socket::connect(path) {
            Ok(stream) => Ok(Some(Client { stream: BufReader::new(stream), path: path.to_owned() })),
            // A socket that nobody listens at was left by a target that was killed.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(source) => Err(AdminError::Connect { path: path.to_owned(), source }),
        }
    }

    /// Asks, and waits for the answer at most `patience`.
    ///
    /// # Errors
    /// [`AdminError`].
    pub fn ask(&mut self, request: &Request, patience: Duration) -> Result<Reply, AdminError> {
        let mut line = serde_json::to_vec(request).expect("requests are strings and numbers");
        line.push(b'\n');
        match self.exchange(&line, patience) {
            Ok(Reply::Error(problem)) => Err(AdminError::Refused(problem)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(AdminError::Broken { path: self.path.clone(), problem: error.to_string() }),
        }
    }

    /// Asks for a stream; the volume's size in bytes. [`Client::next_slice`] brings the stream.
    ///
    /// # Errors
    /// [`AdminError`].
    pub fn begin_stream(&mut self, request: &Request, patience: Duration) -> Result<u64, AdminError> {
        match self.ask(request, patience)? {
            Reply::Stream { size_bytes } => Ok(size_bytes),
            _ => Err(self.broken("it answered something else; it is of another version, restart it")),
        }
    }

    /// The next bytes of a stream, and how much of the volume is done with them, in bytes; `None` at its end.
    ///
    /// # Errors
    /// [`AdminError`]: then the stream ends in the middle.
    pub fn next_slice(&mut self) -> Result<Option<(Vec<u8>, u64)>, AdminError> {
        match self.read_reply().map_err(|error| self.broken(error))? {
            Reply::Slice { bytes, done_bytes } if bytes <= SLICE_BYTES_MAX => {
                let mut slice = vec![0; bytes];
                self.stream.read_exact(&mut slice).map_err(|error| self.broken(error))?;
                Ok(Some((slice, done_bytes)))
            }
            Reply::Done => Ok(None),
            Reply::Error(problem) => Err(AdminError::Refused(problem)),
            _ => Err(self.broken("it broke the stream off with something else")),
        }
    }

    /// Sends bytes of a stream that the target takes in; none at its end, and then waits for the target's last word.
    ///
    /// # Errors
    /// [`AdminError`]: the target took in no more.
    pub fn send_piece(&mut self, bytes: &[u8]) -> Result<(), AdminError> {
        let stream = self.stream.get_mut();
        let mut sent = Ok(());
        for piece in bytes.chunks(super::receive::PIECE_BYTES_MAX) {
            sent = sent.and_then(|()| stream.write_all(&(piece.len() as u32).to_be_bytes()));
            sent = sent.and_then(|()| stream.write_all(piece));
        }
        if bytes.is_empty() {
            sent = stream.write_all(&0_u32.to_be_bytes());
        } else if sent.is_ok() {
            return Ok(());
        }
        match self.read_reply() {
            Ok(Reply::Done) if sent.is_ok() => Ok(()),
            Ok(Reply::Error(problem)) => Err(AdminError::Refused(problem)),
            Ok(_) => Err(self.broken("it broke the stream off with something else")),
            Err(error) => Err(self.broken(sent.err().unwrap_or(error))),
        }
    }

    fn broken(&self, problem: impl ToString) -> AdminError {
        AdminError::Broken { path: self.path.clone(), problem: problem.to_string() }
    }

    fn read_reply(&mut self) -> io::Result<Reply> {
        let mut reply = Vec::new();
        (&mut self.stream).take(REPLY_BYTES_MAX as u64).read_until(b'\n', &mut reply)?;
        if reply.last() != Some(&b'\n') {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        serde_json::from_slice(&reply).map_err(|error| match other_protocol(&reply) {
            Some(theirs) => io::Error::other(format!(
                "it speaks version {theirs} of the admin protocol, and this program version {PROTOCOL}; use programs of one version"
            )),
            None => io::Error::other(error),
        })
    }

    fn exchange(&mut self, line: &[u8], patience: Duration) -> io::Result<Reply> {
        let stream = self.stream.get_mut();
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        // A target that turns us away answers before it has read: its words count more than our broken pipe.
        let sent = stream.write_all(line);
        let reply = self.read_reply();
        if reply.is_err() {
            sent?;
        }
        reply
    }
}

/// The version of the protocol in a status report that this program does not understand, if it is another one.
fn other_protocol(reply: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Versioned {
        Status { protocol: u32 },
    }
    let Versioned::Status { protocol } = serde_json::from_slice(reply).ok()?;
    (protocol != PROTOCOL).then_some(protocol)
}
