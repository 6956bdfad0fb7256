//! A stream from an admin client into a volume that is being used.
//!
//! Absent: taking it in (`reception`), and the stream itself (the store's; `docs/send-format.md`).

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use strongroom_store::ReceptionInfo;

use super::{CLIENT_PATIENCE, Reply, Resume, SLICE_PATIENCE, lines};
use crate::reception::{FEED_BYTES_MAX, ROOM_PATIENCE, Reception, ReceptionError};
use crate::services::TargetServices;

/// Bytes of a stream that a client sends in one piece, at most.
pub(super) const PIECE_BYTES_MAX: usize = FEED_BYTES_MAX;

/// Takes it all in. `unread`: what came behind the request. An error says that the client is gone, or broke the protocol.
pub(super) fn receive(
    client: &mut UnixStream,
    unread: Vec<u8>,
    shared: &Arc<TargetServices>,
    volume: &str,
) -> io::Result<Reply> {
    let mut reception = match Reception::begin(shared, volume, ROOM_PATIENCE) {
        Ok(reception) => reception,
        Err(ReceptionError::InUse(users)) => return Ok(Reply::InUse(users)),
        Err(error) => return Ok(Reply::Error(error.to_string())),
    };
    let size_bytes = reception.size_bytes();
    lines::send(client, &Reply::Stream { size_bytes })?;
    client.set_read_timeout(Some(SLICE_PATIENCE))?;
    let mut input = unread.as_slice().chain(client.try_clone()?);
    let mut piece = Vec::new();
    loop {
        let mut len = [0; 4];
        input.read_exact(&mut len)?;
        let len = u32::from_be_bytes(len) as usize;
        if len == 0 {
            break;
        }
        if len > PIECE_BYTES_MAX {
            drop(reception);
            return refuse(client, format!("a piece of {len} bytes; at most {PIECE_BYTES_MAX}"));
        }
        piece.resize(len, 0);
        input.read_exact(&mut piece)?;
        if let Err(problem) = reception.feed(&piece) {
            // Who is told may try again at once.
            drop(reception);
            return refuse(client, problem.to_string());
        }
    }
    client.set_read_timeout(Some(CLIENT_PATIENCE))?;
    Ok(reception.finish().map_or_else(|problem| Reply::Error(problem.to_string()), |_| Reply::Done))
}

/// Behind this nothing is read any more: what the client has sent meanwhile is no request.
fn refuse(client: &mut UnixStream, problem: String) -> io::Result<Reply> {
    lines::send(client, &Reply::Error(problem))?;
    Err(io::ErrorKind::InvalidData.into())
}

pub(super) fn report(reception: ReceptionInfo) -> (Resume, String) {
    let ReceptionInfo { id, from, name, position, .. } = reception;
    (Resume { to: id.0, from: from.map(|from| from.0), position }, name)
}
