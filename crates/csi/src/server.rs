//! The driver as a server: its socket, its runtime, its services, and how it ends.

use std::fs;
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::Mode;
use strongroom_unix_socket::SocketName;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Router;

use crate::blocking::Blocking;
use crate::controller::{ControllerContext, ControllerService};
use crate::identity::IdentityService;
use crate::names::Names;
use crate::node::{NodeHost, NodeService};
use crate::options::{DriverError, DriverOptions};
use crate::secrets::SecretDir;
use crate::spec::controller_server::ControllerServer;
use crate::spec::identity_server::IdentityServer;
use crate::spec::node_server::NodeServer;

/// Longest request, in bytes: a few strings and maps, the largest of which are secrets.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Requests of one connection at a time.
const REQUESTS_MAX: u32 = 64;
/// Threads that requests wait in.
const THREADS_MAX: usize = 32;
/// Requests to the target at a time. It takes four links of one operator; one is for probes, one for a controller that takes over.
const CONTROLLER_AT_A_TIME: usize = 2;
/// Volumes that a node attaches or detaches at a time.
const NODE_AT_A_TIME: usize = 16;
/// How long requests that are under way may take when the driver ends.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether the server has ended by itself.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest name of a topology segment's value, as Kubernetes has labels.
const LABEL_BYTES_MAX: usize = 63;

/// A driver that serves. Dropped, it ends when the requests that are under way have.
#[derive(Debug)]
pub struct Driver {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), DriverError>>>,
    /// While it takes requests.
    socket: Option<SocketName>,
}

impl Driver {
    /// Starts to serve.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn start(options: &DriverOptions) -> Result<Driver, DriverError> {
        let router = router(options)?;
        let (name, listener) = listen(&options.socket)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(THREADS_MAX)
            .thread_name("csi")
            .enable_all()
            .build()
            .map_err(|error| DriverError::Serve(error.to_string()))?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("csi-server".to_owned())
            .spawn(move || serve(runtime, router, listener, stopped))
            .map_err(|error| DriverError::Serve(error.to_string()))?;
        Ok(Driver { stop: Some(stop), thread: Some(thread), socket: Some(name) })
    }

    /// Whether it serves still.
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Takes no more requests, lets those end that are under way, and removes the socket.
    ///
    /// # Errors
    /// [`DriverError::Serve`] if it had ended by itself.
    pub fn stop(mut self) -> Result<(), DriverError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), DriverError> {
        drop(self.socket.take());
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let ended = self.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        ended.unwrap_or_else(|_| Err(DriverError::Serve("its thread ended early".to_owned())))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "the driver has ended");
        }
    }
}

fn serve(
    runtime: Runtime,
    router: Router,
    listener: StdListener,
    stopped: oneshot::Receiver<()>,
) -> Result<(), DriverError> {
    let served = runtime.block_on(serve_until(router, listener, stopped));
    // What is under way in threads of its own, such as an attach, could not be stopped in the middle.
    runtime.shutdown_timeout(END_PATIENCE);
    served
}

async fn serve_until(
    router: Router,
    listener: StdListener,
    mut stopped: oneshot::Receiver<()>,
) -> Result<(), DriverError> {
    let failed = |error: &dyn std::error::Error| DriverError::Serve(crate::error::in_words(error));
    let listener = UnixListener::from_std(listener).map_err(|error| failed(&error))?;
    let (end, ended) = oneshot::channel::<()>();
    let ended = async {
        let _ = ended.await;
    };
    let mut serving = tokio::spawn(router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), ended));
    while !serving.is_finished() && timeout(LOOK_EVERY, &mut stopped).await.is_err() {}
    let _ = end.send(());
    match timeout(END_PATIENCE, &mut serving).await {
        Ok(Ok(served)) => served.map_err(|error| failed(&error)),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => {
            tracing::warn!("requests are still under way; they are given up, and their commands go on");
            Ok(())
        }
    }
}

fn router(options: &DriverOptions) -> Result<Router, DriverError> {
    check(options)?;
    let target = Arc::new(options.target.clone());
    let identity = IdentityService {
        driver_name: options.driver_name.clone(),
        services: options.services,
        target: target.clone(),
        blocking: Blocking::new(1),
    };
    let identity = IdentityServer::new(identity).max_decoding_message_size(REQUEST_BYTES_MAX);
    let mut server = Server::builder().max_concurrent_streams(REQUESTS_MAX);
    let mut router = server.add_service(identity);
    if options.services.has_controller() {
        let names = Names::new(&options.volume_prefix).map_err(DriverError::Option)?;
        let shared = ControllerContext { target: target.clone(), target_name: options.target_name.clone(), names };
        let service = ControllerService::new(shared, Blocking::new(CONTROLLER_AT_A_TIME));
        router = router.add_service(ControllerServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX));
    }
    if options.services.has_node() {
        let service = NodeService::new(node(options, target)?, Blocking::new(NODE_AT_A_TIME));
        router = router.add_service(NodeServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX));
    }
    Ok(router)
}

fn node(
    options: &DriverOptions,
    target: Arc<strongroom_target::operators::OperatorDestination>,
) -> Result<NodeHost, DriverError> {
    let node_id = options.node_id.clone().filter(|id| !id.is_empty());
    let node_id = node_id.ok_or_else(|| {
        DriverError::Option("say what this node's peer is called at the target, with --node-id".to_owned())
    })?;
    let state = |source| DriverError::State { path: options.state_dir.clone(), source };
    fs::create_dir_all(&options.state_dir).map_err(state)?;
    let secrets = SecretDir::prepare(options.state_dir.join("keys")).map_err(state)?;
    Ok(NodeHost {
        node_id,
        target,
        target_name: options.target_name.clone(),
        program: options.program.clone(),
        state_dir: options.state_dir.clone(),
        secrets,
    })
}

fn check(options: &DriverOptions) -> Result<(), DriverError> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_label = |text: &str| {
        let ends = [text.bytes().next(), text.bytes().last()];
        text.len() <= LABEL_BYTES_MAX
            && text.bytes().all(legal)
            && ends.iter().all(|byte| byte.is_some_and(|byte| byte.is_ascii_alphanumeric()))
    };
    for (what, text) in [("--target-name", &options.target_name), ("--driver-name", &options.driver_name)] {
        if !is_label(text) {
            return Err(DriverError::Option(format!(
                "{what} '{text}' is not 1 to {LABEL_BYTES_MAX} letters, digits, '-', '_' and '.', with a letter or digit at both ends"
            )));
        }
    }
    Ok(())
}

/// Listens at a socket that only this user can connect to.
fn listen(path: &Path) -> Result<(SocketName, StdListener), DriverError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => DriverError::InUse { path: path.to_owned() },
        _ => DriverError::Socket { path: path.to_owned(), source },
    };
    let (name, socket) = strongroom_unix_socket::listen(path, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    let listener = StdListener::from(socket);
    listener.set_nonblocking(true).map_err(failed)?;
    Ok((name, listener))
}
