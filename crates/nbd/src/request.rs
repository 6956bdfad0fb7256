//! Requests: decoded, and checked against what was agreed and the export's size, before anything is done for them.

use crate::PAYLOAD_BYTES_MAX;
use crate::error::NbdError;
use crate::export::{ReplyFormat, Transmission};
use crate::wire::{EXTENDED_REQUEST_MAGIC, FieldReader, REQUEST_MAGIC, command, command_flag};

const HEADER_BYTES: usize = 28;
const EXTENDED_HEADER_BYTES: usize = 32;

/// What a reply has to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The client's own, opaque.
    pub cookie: u64,
    /// As in the request.
    pub offset: u64,
}

/// A request that can be executed: inside the export, allowed, of a length that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// For the reply. Its offset is where the request begins.
    pub id: RequestId,
    /// How many bytes it concerns: at least one, but for a flush. At most [`PAYLOAD_BYTES_MAX`] where it carries data.
    pub len_bytes: u64,
    /// What is to be done.
    pub command: Command,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read {
        /// All of it in one chunk.
        dont_fragment: bool,
    },
    /// Write the data that follow the header.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make every write that was answered durable, on whichever connection.
    Flush,
    /// The contents are not needed any more.
    Trim {
        /// Durable before the reply.
        fua: bool,
    },
    /// Write zeros.
    WriteZeroes {
        /// Durable before the reply.
        fua: bool,
        /// Blocks must be there afterwards.
        no_hole: bool,
    },
    /// Say what is allocated.
    BlockStatus {
        /// One extent is enough.
        only_one: bool,
    },
}

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub error: NbdError,
    /// For people.
    pub reason: &'static str,
}

/// What a header came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// To be executed.
    Request(Request),
    /// To be answered with an error, once `skip_bytes` of data behind the header were read.
    Refused {
        /// For the reply.
        id: RequestId,
        /// Data that come with it, at most [`PAYLOAD_BYTES_MAX`].
        skip_bytes: u32,
        /// Why.
        refusal: Refusal,
    },
    /// The client sends nothing more. It gets its outstanding replies, and no other one.
    Disconnect,
}

/// The client misbehaved in a way after which its bytes mean nothing: the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Not a request.
    #[error("the client sends {0:#x} where a request begins")]
    Magic(u32),
    /// More data than a request may have.
    #[error("the client announces a request with {0} bytes of data; at most {PAYLOAD_BYTES_MAX} are taken")]
    PayloadLength(u64),
}

/// Decodes the requests of one connection.
#[derive(Clone, Copy, Debug)]
pub struct RequestDecoder {
    transmission: Transmission,
}

struct Header {
    flags: u16,
    kind: u16,
    id: RequestId,
    len: u64,
}

impl RequestDecoder {
    /// As was agreed.
    pub fn new(transmission: Transmission) -> RequestDecoder {
        RequestDecoder { transmission }
    }

    /// Bytes of a header.
    pub fn header_bytes(&self) -> usize {
        if self.is_extended() { EXTENDED_HEADER_BYTES } else { HEADER_BYTES }
    }

    /// Decodes a header, of which all bytes are there.
    ///
    /// # Errors
    /// [`ProtocolError`]; the connection is to be closed.
    pub fn decode(&self, header: &[u8], export_bytes: u64) -> Result<Decoded, ProtocolError> {
        let header = self.read(header)?;
        if header.kind == command::DISC {
            return Ok(Decoded::Disconnect);
        }
        let has_payload = if self.is_extended() {
            header.flags & command_flag::PAYLOAD_LEN != 0
        } else {
            header.kind == command::WRITE
        };
        let payload_bytes = if has_payload { header.len } else { 0 };
        if payload_bytes > u64::from(PAYLOAD_BYTES_MAX) {
            return Err(ProtocolError::PayloadLength(payload_bytes));
        }
        Ok(match self.check(&header, has_payload, export_bytes) {
            Ok(command) => Decoded::Request(Request { id: header.id, len_bytes: header.len, command }),
            Err(refusal) => Decoded::Refused { id: header.id, skip_bytes: payload_bytes as u32, refusal },
        })
    }

    fn is_extended(&self) -> bool {
        self.transmission.format == ReplyFormat::Extended
    }

    fn read(&self, bytes: &[u8]) -> Result<Header, ProtocolError> {
        let mut fields = FieldReader::new(bytes);
        let expected = if self.is_extended() { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let all_there = "the caller passes whole headers";
        let magic = fields.u32().expect(all_there);
        if magic != expected {
            return Err(ProtocolError::Magic(magic));
        }
        let (flags, kind) = (fields.u16().expect(all_there), fields.u16().expect(all_there));
        let id = RequestId { cookie: fields.u64().expect(all_there), offset: fields.u64().expect(all_there) };
        let len = if self.is_extended() { fields.u64() } else { fields.u32().map(u64::from) };
        Ok(Header { flags, kind, id, len: len.expect(all_there) })
    }

    fn check(&self, header: &Header, has_payload: bool, export_bytes: u64) -> Result<Command, Refusal> {
        let command = self.command(header, has_payload)?;
        let writes = matches!(command, Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. });
        if writes && self.transmission.read_only {
            return Err(refusal(NbdError::NotPermitted, "the export is read-only"));
        }
        if command == Command::Flush {
            let is_plain = header.id.offset == 0 && header.len == 0;
            return if is_plain { Ok(command) } else { Err(invalid("a flush has neither offset nor length")) };
        }
        if header.len == 0 {
            return Err(invalid("the length is zero"));
        }
        if header.id.offset.checked_add(header.len).is_none_or(|end| end > export_bytes) {
            let reason = "the request reaches beyond the end of the export";
            let takes_space = matches!(command, Command::Write { .. } | Command::WriteZeroes { .. });
            return Err(if takes_space { refusal(NbdError::NoSpace, reason) } else { invalid(reason) });
        }
        if matches!(command, Command::Read { .. }) && header.len > u64::from(PAYLOAD_BYTES_MAX) {
            let reason = "a read has at most 32 MiB";
            let has_chunks = self.transmission.format != ReplyFormat::Simple;
            return Err(if has_chunks { refusal(NbdError::Overflow, reason) } else { invalid(reason) });
        }
        Ok(command)
    }

    /// The command, if its flags are those that it may have.
    fn command(&self, header: &Header, has_payload: bool) -> Result<Command, Refusal> {
        use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE};
        let Transmission { format, has_allocation, fast_zero, .. } = self.transmission;
        let has = |flag| header.flags & flag != 0;
        let fua = has(FUA);
        let (command, its_flags) = match header.kind {
            command::READ if format == ReplyFormat::Simple => (Command::Read { dont_fragment: false }, 0),
            command::READ => (Command::Read { dont_fragment: has(DF) }, DF),
            command::WRITE if !has_payload => {
                return Err(invalid("a write needs its data: set NBD_CMD_FLAG_PAYLOAD_LEN"));
            }
            command::WRITE => (Command::Write { fua }, if self.is_extended() { PAYLOAD_LEN } else { 0 }),
            command::FLUSH => (Command::Flush, 0),
            command::TRIM => (Command::Trim { fua }, 0),
            command::WRITE_ZEROES => {
                let flags = NO_HOLE | if fast_zero { FAST_ZERO } else { 0 };
                (Command::WriteZeroes { fua, no_hole: has(NO_HOLE) }, flags)
            }
            command::BLOCK_STATUS if has_allocation => (Command::BlockStatus { only_one: has(REQ_ONE) }, REQ_ONE),
            command::BLOCK_STATUS => return Err(invalid("no metadata context was selected")),
            _ => return Err(invalid("this command is not known here")),
        };
        // FUA is allowed with every command, and means nothing where nothing is written.
        if header.flags & !(its_flags | FUA) != 0 {
            return Err(invalid("the command has flags that it cannot have"));
        }
        if header.kind == command::WRITE_ZEROES && has(FAST_ZERO) && has(NO_HOLE) {
            return Err(refusal(NbdError::NotSupported, "zeros that take space are not written faster than data"));
        }
        Ok(command)
    }
}

fn refusal(error: NbdError, reason: &'static str) -> Refusal {
    Refusal { error, reason }
}

fn invalid(reason: &'static str) -> Refusal {
    refusal(NbdError::Invalid, reason)
}
