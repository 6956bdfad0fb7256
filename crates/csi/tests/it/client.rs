//! A client of the driver, blocking; capabilities as orchestrators send them; and a driver whose target is away.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use strongroom_csi::spec::controller_client::ControllerClient;
use strongroom_csi::spec::identity_client::IdentityClient;
use strongroom_csi::spec::node_client::NodeClient;
use strongroom_csi::spec::volume_capability::access_mode::Mode;
use strongroom_csi::spec::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use strongroom_csi::spec::{CapacityRange, VolumeCapability};
use strongroom_csi::{AttachmentHome, Driver, DriverOptions, Program, Services};
use strongroom_handshake::NodeKey;
use strongroom_target::operators::OperatorDestination;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// The runtime and a connection.
pub(crate) struct Client {
    pub(crate) runtime: Runtime,
    channel: Channel,
}

/// Calls a method and waits for the answer: the message, or the status.
macro_rules! call {
    ($client:expr, $service:ident . $method:ident ( $request:expr )) => {
        // Evaluated once: a client that is gone answers nothing.
        match &$client {
            client => {
                let mut service = client.$service();
                let request = $request;
                client.runtime.block_on(async move { service.$method(request).await }).map(tonic::Response::into_inner)
            }
        }
    };
}
pub(crate) use call;

impl Client {
    /// Connects to a driver's socket.
    pub(crate) fn connect(socket: &Path) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let socket = socket.to_owned();
        let connect = service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://driver");
        let channel = runtime.block_on(endpoint.connect_with_connector(connect)).unwrap();
        Client { runtime, channel }
    }

    pub(crate) fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }
}

pub(crate) fn files(fs_type: &str, mode: Mode) -> VolumeCapability {
    let mount = MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
    VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn blocks(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn bytes(required_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes: 0 })
}

/// A driver whose target is away, in a directory in memory. Its program is one that writes down how it was run.
pub(crate) struct Lonely {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) driver: Driver,
}

impl Lonely {
    pub(crate) fn start() -> Lonely {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let driver = Driver::start(&Lonely::options(dir.path())).unwrap();
        Lonely { dir, driver }
    }

    pub(crate) fn options(dir: &Path) -> DriverOptions {
        let node = Arc::new(NodeKey::from_seed(&[7; 32]));
        let expected = vec![NodeKey::from_seed(&[8; 32]).public()];
        // Nobody listens there: the port is reserved.
        let connect_timeout = Duration::from_secs(5);
        let target = OperatorDestination { host: "127.0.0.1".into(), port: 1, node, expected, connect_timeout };
        DriverOptions {
            socket: dir.join("csi.sock"),
            services: Services::All,
            target,
            target_name: "here".into(),
            driver_name: "csi.strongroom.org".into(),
            node_id: Some("worker-1".into()),
            volume_prefix: "csi-".into(),
            state_dir: dir.join("state"),
            program: Program {
                path: recorder(dir),
                home: AttachmentHome::Here,
                identity: vec!["--identity=/nowhere".into()],
                target_keys: Vec::new(),
                key_server: Vec::new(),
            },
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.dir.path().join("csi.sock"))
    }

    /// How the program was run: its arguments, its environment, and the key file that it was given.
    pub(crate) fn recorded(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("recorded")).unwrap_or_default()
    }

    /// The key file that the program was given, and its mode.
    pub(crate) fn key_file(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("key-file")).unwrap_or_default()
    }
}

/// A program that lists no attachments, and fails at everything else.
fn recorder(dir: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = dir.join("recorder");
    let text = format!(
        "#!/bin/sh\n\
         {{ printf '%s\\n' \"$@\"; env; }} >> {dir}/recorded\n\
         [ \"$1 $2\" = 'attach list' ] && {{ echo '[]'; exit 0; }}\n\
         for argument; do case $argument in --key-file=*) file=${{argument#--key-file=}}\n\
         {{ stat -c %a \"$file\"; cat \"$file\"; }} > {dir}/key-file;; esac; done\n\
         echo 'strongroom: the recorder does nothing' >&2; exit 1\n",
        dir = dir.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
