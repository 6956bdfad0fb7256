//! Answers those who collect metrics: one thread, a few connections at a time, each with a deadline. A collector that sends garbage, too much
//! or nothing, or that never reads, is dropped; nothing that it does reaches the threads that move data.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, SocketFlags, accept_with, send, shutdown};

use crate::address::MetricsAddress;
use crate::exposition::Exposition;
use crate::request::{REQUEST_BYTES_MAX, RequestState, Status, read_request, response_head};
use crate::socket::ListeningSocket;

/// Connections at a time. For a further one the oldest makes way.
const CONNECTIONS_MAX: usize = 4;
/// From a connection's beginning to the end of its request.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// For taking the answer.
const RESPONSE_PATIENCE: Duration = Duration::from_secs(10);
/// For the collector's end of the connection after the answer. What it still sends is read, or the kernel would discard the answer.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
/// What is read of that at most, in bytes.
const DISCARDED_BYTES_MAX: usize = 64 << 10;
/// Who asks again within this time gets the same answer: collectors cost the process no more than this, however many they are.
const FRESH_FOR: Duration = Duration::from_millis(250);
/// After a failed accept, so that a lack of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The thread's stack: memory may be locked.
const STACK_BYTES: usize = 512 << 10;

/// Why a metrics server did not start.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Cannot listen.
    #[error(
        "cannot listen for collectors of metrics at {address}: {source}; choose another address with `metrics`, or stop what listens there"
    )]
    Listen {
        /// Where.
        address: MetricsAddress,
        /// Why.
        source: io::Error,
    },
    /// The system gives no thread.
    #[error("cannot start a thread for metrics: {0}; raise the limit of processes (ulimit -u)")]
    Thread(io::Error),
}

/// Measures the process.
type Source = Box<dyn FnMut() -> Exposition + Send>;

/// A server that runs; ends when it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: MetricsAddress,
    /// Its end ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens, and answers with what `source` measures. It is called in the server's thread, and may wait for others.
    ///
    /// # Errors
    /// [`MetricsError`]: the address is taken or cannot be listened at.
    pub fn start(
        address: &MetricsAddress,
        source: impl FnMut() -> Exposition + Send + 'static,
    ) -> Result<MetricsServer, MetricsError> {
        let failed = |source| MetricsError::Listen { address: address.clone(), source };
        let socket = ListeningSocket::open(address).map_err(failed)?;
        let (stop, stopped) = UnixStream::pair().map_err(MetricsError::Thread)?;
        let address = socket.address.clone();
        let serving = Serving {
            socket,
            stopped,
            connections: Vec::with_capacity(CONNECTIONS_MAX),
            answers: AnswerSource { source: Box::new(source), last: None },
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || serving.run()).map_err(MetricsError::Thread)?;
        tracing::info!(%address, "metrics");
        Ok(MetricsServer { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens, with the true port.
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that answers for metrics panicked; this is a defect, please report it");
        }
    }
}

/// What the process measures, and the last answer made of it.
struct AnswerSource {
    source: Source,
    last: Option<(Instant, Arc<str>)>,
}

impl AnswerSource {
    fn text(&mut self) -> Arc<str> {
        if let Some((made, text)) = &self.last
            && made.elapsed() < FRESH_FOR
        {
            return Arc::clone(text);
        }
        let text: Arc<str> = (self.source)().into_text().into();
        self.last = Some((Instant::now(), Arc::clone(&text)));
        text
    }
}

/// The thread's state.
struct Serving {
    socket: ListeningSocket,
    stopped: UnixStream,
    /// The oldest first.
    connections: Vec<Connection>,
    answers: AnswerSource,
}

impl Serving {
    fn run(mut self) {
        loop {
            let now = Instant::now();
            self.connections.retain(|connection| connection.deadline > now);
            let next = self.connections.iter().map(|connection| connection.deadline).min();
            let wait = next.map(|at| timespec(at.saturating_duration_since(now)));
            let events = match self.poll(wait.as_ref()) {
                Ok(events) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return tracing::error!(%error, "metrics cannot be collected any more"),
            };
            let [stopped, accepting, connections @ ..] = &events[..] else { return };
            if !stopped.is_empty() {
                return;
            }
            for (connection, events) in self.connections.iter_mut().zip(connections) {
                if !events.is_empty() {
                    connection.advance(&mut self.answers);
                }
            }
            self.connections.retain(|connection| !connection.is_over());
            if !accepting.is_empty() {
                self.accept();
            }
        }
    }

    /// Waits for an event of the stop, of the listening socket, and of each connection, in this order.
    fn poll(&self, wait: Option<&Timespec>) -> Result<Vec<PollFlags>, Errno> {
        let mut fds = Vec::with_capacity(2 + CONNECTIONS_MAX);
        fds.push(PollFd::new(&self.stopped, PollFlags::IN));
        fds.push(PollFd::new(&self.socket.fd, PollFlags::IN));
        fds.extend(self.connections.iter().map(|connection| PollFd::new(&connection.stream, connection.wanted())));
        poll(&mut fds, wait)?;
        Ok(fds.iter().map(PollFd::revents).collect())
    }

    fn accept(&mut self) {
        match accept_with(&self.socket.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(stream) => {
                if self.connections.len() >= CONNECTIONS_MAX {
                    self.connections.remove(0);
                }
                self.connections.push(Connection::new(stream));
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::warn!(%error, "a collector of metrics cannot be taken; raise the limit of open files (ulimit -n) if it says so");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn timespec(wait: Duration) -> Timespec {
    // Rounded up, or it would end just before the deadline again and again.
    let wait = wait + Duration::from_millis(1);
    Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() }
}

/// A collector.
struct Connection {
    stream: OwnedFd,
    deadline: Instant,
    phase: Phase,
}

enum Phase {
    /// The request, as far as it has arrived.
    Request(Vec<u8>),
    Response(Response),
    /// Everything is sent; how much was discarded of what still arrives.
    Closing(usize),
    Over,
}

/// An answer: its head and body, and how much of both was sent.
struct Response {
    head: Vec<u8>,
    body: Arc<str>,
    sent: usize,
}

impl Connection {
    fn new(stream: OwnedFd) -> Connection {
        Connection { stream, deadline: Instant::now() + REQUEST_PATIENCE, phase: Phase::Request(Vec::new()) }
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// What it waits for.
    fn wanted(&self) -> PollFlags {
        match self.phase {
            Phase::Response(_) => PollFlags::OUT,
            Phase::Request(_) | Phase::Closing(_) | Phase::Over => PollFlags::IN,
        }
    }

    /// Goes on as far as it can without waiting.
    fn advance(&mut self, answers: &mut AnswerSource) {
        loop {
            let phase = std::mem::replace(&mut self.phase, Phase::Over);
            let next = match phase {
                Phase::Request(bytes) => self.receive(bytes, answers),
                Phase::Response(response) => self.send(response),
                Phase::Closing(discarded) => self.discard(discarded),
                Phase::Over => return,
            };
            match next {
                Ok(phase) => self.phase = phase,
                // It goes on when there is an event.
                Err(Waiting(phase)) => return self.phase = phase,
            }
        }
    }

    fn receive(&mut self, mut bytes: Vec<u8>, answers: &mut AnswerSource) -> Result<Phase, Waiting> {
        let mut buffer = [0; 1 << 10];
        let room = buffer.len().min(REQUEST_BYTES_MAX - bytes.len());
        match rustix::io::read(&self.stream, &mut buffer[..room]) {
            Ok(0) => return Ok(Phase::Over),
            Ok(len) => bytes.extend_from_slice(&buffer[..len]),
            Err(Errno::AGAIN | Errno::INTR) => return Err(Waiting(Phase::Request(bytes))),
            Err(_) => return Ok(Phase::Over),
        }
        let (status, is_head) = match read_request(&bytes) {
            RequestState::Incomplete => return Ok(Phase::Request(bytes)),
            RequestState::Complete { status, is_head } => (status, is_head),
        };
        let body = if status == Status::Ok { answers.text() } else { status.explanation().into() };
        let head = response_head(status, body.len()).into_bytes();
        self.deadline = Instant::now() + RESPONSE_PATIENCE;
        Ok(Phase::Response(Response { head, body: if is_head { "".into() } else { body }, sent: 0 }))
    }

    fn send(&mut self, mut response: Response) -> Result<Phase, Waiting> {
        let rest = match response.head.get(response.sent..).filter(|rest| !rest.is_empty()) {
            Some(head) => head,
            None => &response.body.as_bytes()[response.sent - response.head.len()..],
        };
        if rest.is_empty() {
            let _ = shutdown(&self.stream, Shutdown::Write);
            self.deadline = Instant::now() + CLOSE_PATIENCE;
            return Ok(Phase::Closing(0));
        }
        match send(&self.stream, rest, SendFlags::NOSIGNAL) {
            Ok(len) => {
                response.sent += len;
                Ok(Phase::Response(response))
            }
            Err(Errno::AGAIN | Errno::INTR) => Err(Waiting(Phase::Response(response))),
            Err(_) => Ok(Phase::Over),
        }
    }

    fn discard(&self, discarded: usize) -> Result<Phase, Waiting> {
        let mut buffer = [0; 4 << 10];
        match rustix::io::read(&self.stream, &mut buffer) {
            Ok(0) => Ok(Phase::Over),
            Ok(len) if discarded + len > DISCARDED_BYTES_MAX => Ok(Phase::Over),
            Ok(len) => Ok(Phase::Closing(discarded + len)),
            Err(Errno::AGAIN | Errno::INTR) => Err(Waiting(Phase::Closing(discarded))),
            Err(_) => Ok(Phase::Over),
        }
    }
}

/// A phase that goes on with the next event.
struct Waiting(Phase);
