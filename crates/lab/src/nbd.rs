//! An NBD client as a block device, on a Unix socket: how a benchmark reaches QEMU's block layer.
//!
//! The fixed newstyle handshake with `NBD_OPT_EXPORT_NAME`, simple replies, and three commands, from the NBD protocol's
//! document (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>). Everything happens on the thread that
//! submits and waits. Deliberately absent: structured replies, TLS, several connections, reconnecting.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strongroom_block::{
    BlockDevice, BlockSize, BufferMut, Completion, DeviceError, DeviceErrorKind, Geometry, Lba, Request, Token,
};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const FLAG_FIXED_NEWSTYLE: u16 = 1;
const FLAG_NO_ZEROES: u16 = 2;
const OPTION_EXPORT_NAME: u32 = 1;
const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const COMMAND_FLUSH: u16 = 3;
const COMMAND_FLAG_FUA: u16 = 1;

/// How long the server may be silent in the middle of a message.
const STALLED: Duration = Duration::from_secs(60);

/// One connection to an export.
pub(crate) struct NbdDevice {
    geometry: Geometry,
    connection: Mutex<Connection>,
}

struct Connection {
    stream: UnixStream,
    in_flight: HashMap<u64, Flight>,
    finished: Vec<Completion>,
    lost: Option<String>,
}

struct Flight {
    lba: Lba,
    read: Option<BufferMut>,
}

impl NbdDevice {
    /// Connects to the default export of the server at `socket`, used in blocks of `block_size`.
    ///
    /// # Errors
    /// If nobody listens there, or does not speak NBD.
    pub(crate) fn attach(socket: &Path, block_size: BlockSize) -> io::Result<NbdDevice> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(STALLED))?;
        stream.set_write_timeout(Some(STALLED))?;
        let bytes = shake_hands(&mut stream)?;
        let geometry = Geometry { block_size, blocks: bytes / u64::from(block_size.bytes()) };
        let connection = Connection { stream, in_flight: HashMap::new(), finished: Vec::new(), lost: None };
        Ok(NbdDevice { geometry, connection: Mutex::new(connection) })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The size of the export.
fn shake_hands(stream: &mut UnixStream) -> io::Result<u64> {
    let strange = || io::Error::other("what answers there does not speak NBD's fixed newstyle handshake");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
    let magics = [NBD_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
    if greeting[..16] != magics[..] || flags & FLAG_FIXED_NEWSTYLE == 0 {
        return Err(strange());
    }
    let without_zeroes = flags & FLAG_NO_ZEROES;
    let mut answer = u32::from(FLAG_FIXED_NEWSTYLE | without_zeroes).to_be_bytes().to_vec();
    answer.extend(OPTION_MAGIC.to_be_bytes());
    answer.extend(OPTION_EXPORT_NAME.to_be_bytes());
    answer.extend(0u32.to_be_bytes());
    stream.write_all(&answer)?;
    // The size, flags that say what we do not ask for, and zeroes unless they are left out.
    let mut export = vec![0; if without_zeroes != 0 { 10 } else { 134 }];
    stream.read_exact(&mut export)?;
    Ok(u64::from_be_bytes(export[..8].try_into().expect("8 bytes")))
}

impl Connection {
    fn send(&mut self, token: Token, lba: Lba, request: &Head, data: &[u8], read: Option<BufferMut>) {
        if let Some(lost) = &self.lost {
            let result = Err(device_error(lba, lost.clone()));
            return self.finished.push(Completion { token, result });
        }
        let mut head = Vec::with_capacity(28);
        head.extend(REQUEST_MAGIC.to_be_bytes());
        head.extend(request.flags.to_be_bytes());
        head.extend(request.command.to_be_bytes());
        head.extend(token.0.to_be_bytes());
        head.extend(request.offset.to_be_bytes());
        head.extend(request.len.to_be_bytes());
        self.in_flight.insert(token.0, Flight { lba, read });
        let sent = self.stream.write_all(&head).and_then(|()| self.stream.write_all(data));
        if let Err(error) = sent {
            self.lose(&error);
        }
    }

    /// Takes in one reply.
    fn receive(&mut self) -> io::Result<()> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let handle = u64::from_be_bytes(head[8..].try_into().expect("8 bytes"));
        let flight = self.in_flight.get_mut(&handle);
        let Some(flight) = flight.filter(|_| word(0) == REPLY_MAGIC) else {
            return Err(io::Error::other("the server answered something that was not asked"));
        };
        let failed = word(4);
        if let Some(buffer) = flight.read.as_mut().filter(|_| failed == 0) {
            self.stream.read_exact(buffer)?;
        }
        let flight = self.in_flight.remove(&handle).expect("it was just found");
        let result = match failed {
            0 => Ok(flight.read),
            errno => Err(device_error(flight.lba, format!("the NBD server answered with error {errno}"))),
        };
        self.finished.push(Completion { token: Token(handle), result });
        Ok(())
    }

    /// Everything in flight fails, and every later request.
    fn lose(&mut self, error: &io::Error) {
        let reason = format!("the connection to the NBD server was lost: {error}");
        for (handle, flight) in self.in_flight.drain() {
            let result = Err(device_error(flight.lba, reason.clone()));
            self.finished.push(Completion { token: Token(handle), result });
        }
        self.lost = Some(reason);
    }

    /// Whether there is something to read within `timeout`.
    fn is_readable(&self, timeout: Option<Duration>) -> bool {
        let timeout =
            timeout.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

/// What a request says of itself.
struct Head {
    command: u16,
    flags: u16,
    offset: u64,
    len: u32,
}

impl BlockDevice for NbdDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, token: Token, request: Request) {
        let mut connection = self.connection();
        let head = |command, flags, lba: Lba, len: usize| Head {
            command,
            flags,
            offset: lba.0 << self.geometry.block_size.shift(),
            len: len as u32,
        };
        match request {
            Request::Read { lba, buffer } => {
                connection.send(token, lba, &head(COMMAND_READ, 0, lba, buffer.len()), &[], Some(buffer));
            }
            Request::Write { lba, data, fua } => {
                let flags = if fua { COMMAND_FLAG_FUA } else { 0 };
                connection.send(token, lba, &head(COMMAND_WRITE, flags, lba, data.len()), &data, None);
            }
            Request::Flush => connection.send(token, Lba(0), &head(COMMAND_FLUSH, 0, Lba(0), 0), &[], None),
            Request::WritePart { lba, .. } | Request::Discard { lba, .. } => {
                let result = Err(device_error(lba, "this driver has reads, writes and flushes only".into()));
                connection.finished.push(Completion { token, result });
            }
        }
    }

    fn poll_completions(&self, completions: &mut Vec<Completion>) -> usize {
        let mut connection = self.connection();
        // What has come already is taken along, so that one turn of the caller's loop serves many.
        while !connection.in_flight.is_empty() && connection.is_readable(Some(Duration::ZERO)) {
            if let Err(error) = connection.receive() {
                connection.lose(&error);
            }
        }
        let count = connection.finished.len();
        completions.append(&mut connection.finished);
        count
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        let connection = self.connection();
        if !connection.finished.is_empty() {
            return true;
        }
        if connection.in_flight.is_empty() {
            // Nothing will come.
            std::thread::sleep(timeout.unwrap_or(STALLED));
            return false;
        }
        connection.is_readable(timeout)
    }
}

fn device_error(lba: Lba, message: String) -> DeviceError {
    DeviceError { kind: DeviceErrorKind::Hardware, lba: Some(lba), message }
}
