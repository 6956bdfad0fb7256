//! One client: the negotiation if there is one, then its requests, in a thread that receives. The replies go their own way (`outbox`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, BufferMut};
use strongroom_nbd::{
    Command, Decoded, Negotiation, NegotiationError, Progress, ProtocolError, ReplyEncoder, RequestDecoder, RequestId,
    TlsMode, Transmission,
};

use super::answer::ReplyAddress;
use super::input::Input;
use super::outbox::Outbox;
use super::stream::{Socket, Stream};
use super::volume::ServedVolume;

/// From a client's connection until it sends requests.
const NEGOTIATION_PATIENCE: Duration = Duration::from_secs(15);
/// Stack of a connection's threads: memory may be locked.
pub(super) const STACK_BYTES: usize = 512 << 10;

/// A client's connection, as the server knows it.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Arc<Socket>,
    /// Once there are requests.
    outbox: OnceLock<Arc<Outbox>>,
    /// The server ends it; it gets the replies that are due.
    is_ending: AtomicBool,
}

/// Where a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// With the server's greeting.
    Negotiation,
    /// With the client's first request: this was agreed otherwise.
    Transmission(Transmission),
}

/// Why a connection ended without the client's saying so.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("the connection is lost: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Negotiation(#[from] NegotiationError),
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("the client has gone")]
    Gone,
}

/// What the requests of a client come through.
struct RequestStream {
    stream: Arc<Stream>,
    input: Input,
    transmission: Transmission,
}

impl Connection {
    pub(super) fn new(fd: OwnedFd) -> Connection {
        let socket = Arc::new(Socket::new(fd));
        Connection { socket, outbox: OnceLock::new(), is_ending: AtomicBool::new(false) }
    }

    /// Takes no more requests; those that have come are answered.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.socket.end_receiving();
    }

    /// Ends without answering anything.
    pub(super) fn break_off(&self) {
        self.socket.shut_down();
        if let Some(outbox) = self.outbox.get() {
            outbox.break_off();
        }
    }

    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> usize {
        self.outbox.get().map_or(0, |outbox| outbox.credit().used_bytes())
    }

    /// Serves the client until it or the server ends that.
    pub(super) fn serve(&self, volume: &ServedVolume, beginning: Beginning) {
        let begun = match beginning {
            Beginning::Negotiation => negotiate(&self.socket, volume),
            Beginning::Transmission(transmission) => Ok(Some(RequestStream::new(&self.socket, transmission))),
        };
        match begun {
            Ok(Some(requests)) => self.serve_requests(volume, requests),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "an NBD client's negotiation came to nothing"),
        }
        self.socket.shut_down();
    }

    fn serve_requests(&self, volume: &ServedVolume, requests: RequestStream) {
        let outbox = Arc::new(Outbox::new(requests.stream.clone()));
        self.outbox.set(outbox.clone()).expect("a connection is served once");
        let writer = {
            let outbox = outbox.clone();
            let thread = std::thread::Builder::new().name("nbd-writer".into()).stack_size(STACK_BYTES);
            match thread.spawn(move || outbox.write_until_closed()) {
                Ok(writer) => writer,
                Err(error) => return tracing::error!(%error, "no thread for an NBD client; raise `ulimit -u`"),
            }
        };
        match requests.execute_all(volume, &outbox) {
            Err(ConnectionError::Gone) if self.is_ending.load(Ordering::Acquire) => finish(&outbox),
            Ok(()) => finish(&outbox),
            Err(error) => {
                tracing::info!(%error, "an NBD client's connection ends");
                outbox.break_off();
            }
        }
        let _ = writer.join();
    }
}

/// Sends the replies that are due, and ends the connection after them.
fn finish(outbox: &Outbox) {
    outbox.credit().wait_until_unused();
    outbox.close();
}

/// `None`: the client does not want to go on.
fn negotiate(socket: &Arc<Socket>, volume: &ServedVolume) -> Result<Option<RequestStream>, ConnectionError> {
    let until = Instant::now() + NEGOTIATION_PATIENCE;
    let certificates = volume.options.certificates.as_ref();
    let tls = if certificates.is_some() { TlsMode::Required } else { TlsMode::Off };
    let mut negotiation = Negotiation::new(volume.export(), tls);
    let (mut stream, mut input) = (Stream::new(socket.clone()), Input::new());
    loop {
        let (used, progress) = negotiation.handle_input(input.bytes())?;
        input.consume(used);
        stream.send_all(negotiation.take_output(), until)?;
        match progress {
            Progress::Done(transmission) => {
                let stream = Arc::new(stream);
                return Ok(Some(RequestStream { stream, input, transmission }));
            }
            Progress::Aborted => return Ok(None),
            Progress::StartTls => {
                stream.start_tls(certificates.expect("it is begun only where it is required"), until)?;
                negotiation.tls_established();
            }
            Progress::Incomplete => {
                if !input.receive(&stream, Some(until))? {
                    return Ok(None);
                }
            }
        }
    }
}

impl RequestStream {
    fn new(socket: &Arc<Socket>, transmission: Transmission) -> RequestStream {
        RequestStream { stream: Arc::new(Stream::new(socket.clone())), input: Input::new(), transmission }
    }

    /// Until the client disconnects.
    fn execute_all(mut self, volume: &ServedVolume, outbox: &Arc<Outbox>) -> Result<(), ConnectionError> {
        let decoder = RequestDecoder::new(self.transmission);
        let header_bytes = decoder.header_bytes();
        loop {
            if !self.input.has(&self.stream, header_bytes, || outbox.send_session_messages())? {
                return Err(ConnectionError::Gone);
            }
            let decoded = decoder.decode(&self.input.bytes()[..header_bytes], volume.size_bytes())?;
            self.input.consume(header_bytes);
            match decoded {
                Decoded::Disconnect => return Ok(()),
                Decoded::Refused { id, skip_bytes, refusal } => {
                    let reply = self.reply_address(outbox, id, 0)?;
                    self.input.skip(&self.stream, skip_bytes as usize)?;
                    reply.refuse(refusal.error, refusal.reason);
                }
                Decoded::Request(request) => {
                    // Before there is memory for it.
                    let reply = self.reply_address(outbox, request.id, volume.memory_bytes(&request))?;
                    let data = match request.command {
                        Command::Write { .. } => self.read_data(request.len_bytes as usize)?,
                        _ => Buffer::empty(),
                    };
                    volume.execute(request, data, reply);
                }
            }
        }
    }

    fn reply_address(
        &self,
        outbox: &Arc<Outbox>,
        id: RequestId,
        memory_bytes: usize,
    ) -> Result<ReplyAddress, ConnectionError> {
        let cost = outbox.credit().acquire(memory_bytes).ok_or(ConnectionError::Gone)?;
        Ok(ReplyAddress { outbox: outbox.clone(), encoder: ReplyEncoder::new(self.transmission.format), id, cost })
    }

    fn read_data(&mut self, len: usize) -> Result<Buffer, ConnectionError> {
        let mut data = BufferMut::to_fill(len);
        self.input.read_exact(&self.stream, &mut data)?;
        Ok(data.freeze())
    }
}
