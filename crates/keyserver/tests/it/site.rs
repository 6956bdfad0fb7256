//! A small site for tests: a key server with its database in a temporary directory, and identities. Absent: the tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use strongroom_block::{SealingDomain, VolumeId};
use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_keyserver::{
    Client, ClientOptions, Config, Database, KeyServer, LocalMasterKey, NewVolume, ServerOptions,
};
use strongroom_seal::{KeyPurpose, VolumeKeyFile};
use tempfile::TempDir;

/// Longer than anything takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Site {
    pub(crate) dir: TempDir,
    pub(crate) node: Arc<NodeKey>,
    /// Administers servers, and makes volumes.
    pub(crate) admin: Arc<NodeKey>,
    pub(crate) settings: String,
}

pub(crate) fn node(byte: u8) -> Arc<NodeKey> {
    Arc::new(NodeKey::from_seed(&[byte; 32]))
}

pub(crate) fn master(byte: u8) -> LocalMasterKey {
    LocalMasterKey::new(&VolumeKeyFile::new(KeyPurpose::Master, &[byte; 32])).unwrap()
}

pub(crate) fn domain(byte: u8) -> SealingDomain {
    SealingDomain([byte; 16])
}

pub(crate) fn volume(byte: u8) -> NewVolume {
    NewVolume { id: VolumeId([byte; 16]), name: format!("volume-{byte}"), domain: domain(byte) }
}

impl Site {
    pub(crate) fn new() -> Site {
        Site { dir: tempfile::tempdir().unwrap(), node: node(100), admin: node(101), settings: String::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// With these lines at the front of the configuration.
    pub(crate) fn with(settings: &str) -> Site {
        Site { settings: settings.to_owned(), ..Site::new() }
    }

    pub(crate) fn config(&self, directory: &str, more: &str) -> Config {
        let text = format!(
            "directory = {:?}\nlisten = [\"127.0.0.1:0\"]\nnode_key = \"unused\"\nlease_margin_s = 0\n{}\n[[identity]]\nname = \"admin\"\n\
             key = \"{}\"\nroles = [\"administrator\"]\n{more}",
            self.path(directory),
            self.settings,
            self.admin.public()
        );
        Config::parse(&text).unwrap()
    }

    pub(crate) fn database(&self) -> Database {
        Database::open_or_create(&self.path("keys"), &master(1)).unwrap()
    }

    pub(crate) fn start(&self) -> KeyServer {
        self.start_with("")
    }

    pub(crate) fn start_with(&self, more: &str) -> KeyServer {
        let (config, node_key) = (self.config("keys", more), Arc::clone(&self.node));
        KeyServer::start(ServerOptions { config, node_key, database: self.database() }).unwrap()
    }

    pub(crate) fn client(&self, server: &KeyServer, node_key: &Arc<NodeKey>) -> Client {
        client(&[server], &[self.node.public()], node_key)
    }

    pub(crate) fn admin(&self, server: &KeyServer) -> Client {
        self.client(server, &self.admin)
    }
}

pub(crate) fn client(servers: &[&KeyServer], server_keys: &[PublicKey], node_key: &Arc<NodeKey>) -> Client {
    Client::new(ClientOptions {
        servers: servers.iter().map(|server| server.local_addresses()[0].to_string()).collect(),
        server_keys: server_keys.to_vec(),
        node_key: Arc::clone(node_key),
        timeout: PATIENCE,
    })
}

/// Waits for something to become true.
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < PATIENCE, "gave up waiting: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
