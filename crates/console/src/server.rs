//! Connections: how many there are, how long each may take, and how much of one is kept in memory. For a further one the oldest makes way.

use std::collections::VecDeque;
use std::net::TcpListener as StdListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::routes::{self, ConsoleState};

/// Connections at a time: browsers use up to six.
const CONNECTIONS_MAX: usize = 32;
/// For the head of a request, from when it is awaited.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// From a connection's beginning to its end, however slow the browser is. A browser makes a new one by itself.
const CONNECTION_LIFE: Duration = Duration::from_secs(120);
/// Then an answer that is on its way may still arrive.
const LAST_ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// What is kept of a request's head, and of an answer that is not yet taken, in bytes.
const BUFFER_BYTES_MAX: usize = 32 << 10;
/// Header fields of a request.
const HEADERS_MAX: usize = 64;
/// After a failed accept, so that a lack of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the target is asked while pages are looked at, so that rates go on between two of them.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);

/// Serves until `stopped` is dropped.
pub(crate) async fn serve(listener: StdListener, state: Arc<ConsoleState>, stopped: oneshot::Receiver<()>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the console cannot listen"),
    };
    let router = routes::router(&state);
    let accepting = tokio::spawn(accept(listener, router));
    let sampling = tokio::spawn(async move {
        loop {
            sleep(SAMPLE_EVERY).await;
            state.target.sample().await;
        }
    });
    // Ends when the console is dropped.
    let _ = stopped.await;
    accepting.abort();
    sampling.abort();
}

async fn accept(listener: TcpListener, router: Router) {
    let mut connections: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS_MAX);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a browser cannot be taken; raise the limit of open files (ulimit -n) if it says so");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS_MAX
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(tokio::spawn(converse(stream, router.clone())).abort_handle());
    }
}

/// One connection, to its end.
async fn converse(stream: TcpStream, router: Router) {
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(BUFFER_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    // What a browser does wrong is told to it; there is nothing to do about it here.
    if timeout(CONNECTION_LIFE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_ANSWER_PATIENCE, connection).await;
    }
}
