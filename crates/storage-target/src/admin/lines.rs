//! One request and one reply per line, on the target's side.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::{CLIENT_PATIENCE, REQUEST_BYTES_MAX, Reply};

/// The next line without its end; `None` at the end of the stream. `held` keeps what came after it.
pub(super) fn read_line(stream: &mut UnixStream, held: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + CLIENT_PATIENCE;
    let mut looked = 0;
    loop {
        if let Some(at) = held[looked..].iter().position(|&byte| byte == b'\n') {
            let rest = held.split_off(looked + at + 1);
            let mut line = std::mem::replace(held, rest);
            line.pop();
            return Ok(Some(line));
        }
        looked = held.len();
        if held.len() >= REQUEST_BYTES_MAX {
            return Err(io::Error::other(format!("longer than {REQUEST_BYTES_MAX} bytes")));
        }
        // One limit for the whole line: a byte now and then does not hold a place for ever.
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut piece = [0; 4096];
        let wanted = piece.len().min(REQUEST_BYTES_MAX - held.len());
        match stream.read(&mut piece[..wanted]) {
            Ok(0) if held.is_empty() => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => held.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
}

/// Sends a reply.
pub(super) fn send(stream: &mut UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line)
}
