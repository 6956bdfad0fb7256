//! The asking side of the admin socket, for the command line. Blocking.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{REPLY_BYTES_MAX, Reply, Request};

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
        match super::socket::connect(path) {
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

    fn exchange(&mut self, line: &[u8], patience: Duration) -> io::Result<Reply> {
        let stream = self.stream.get_mut();
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        // A target that turns us away answers before it has read: its words count more than our broken pipe.
        let sent = stream.write_all(line);
        let mut reply = Vec::new();
        let read = (&mut self.stream).take(REPLY_BYTES_MAX as u64).read_until(b'\n', &mut reply);
        if reply.last() != Some(&b'\n') {
            sent?;
            read?;
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        serde_json::from_slice(&reply).map_err(io::Error::other)
    }
}
