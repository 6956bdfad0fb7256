//! Time from the wish to attach a sealed volume to its first block, opened: with its key in a file, with a key server, and with a key
//! server that has a standby. Both ends, the key servers and the target are in this process; each attachment is a new one, and so is its
//! key server's client.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use strongroom_block::{Custody, Lba};
use strongroom_handshake::NodeKey;
use strongroom_initiator::{AttachOptions, KeyFileSource, KeyServerSource, KeySource, RemoteDevice, read_blocking};
use strongroom_keyserver::{Client, ClientOptions, Config, Database, KeyServer, NewVolume, ServerOptions};
use strongroom_lab::Latencies;
use strongroom_seal::{KeyPurpose, VolumeKeyFile};
use strongroom_target::config::PeerRule;
use strongroom_target::{Catalogue, SealedSpec, Target, TargetHandle, TargetOptions, VolumeSpec};

use super::{Site, master};
use strongroom_keyfiles::secret_file::create as create_secret_file;

const VOLUME_BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A way to come to a key.
pub(super) struct Way {
    /// Its name in results.
    pub(super) name: &'static str,
    volume: &'static str,
    servers: Vec<String>,
    /// How long it took, each time.
    pub(super) times: Latencies,
}

/// A target with a volume for each custody, and a standby of the site's key server.
pub(super) struct FirstRead<'a> {
    site: &'a Site,
    target: TargetHandle,
    standby: KeyServer,
    key_file: std::path::PathBuf,
    pub(super) ways: [Way; 3],
}

impl<'a> FirstRead<'a> {
    /// Formats the volumes, and waits until the standby has everything.
    pub(super) fn new(site: &'a Site, directory: &Path) -> Result<FirstRead<'a>> {
        let root = directory.join("volumes");
        std::fs::create_dir(&root)?;
        let catalogue = Catalogue::open(&root)?;
        for (name, custody) in [("filed", Custody::KeyFile), ("lent", Custody::KeyServer)] {
            let sealed = Some(SealedSpec::new(custody));
            let volume = catalogue.create(&VolumeSpec { sealed, ..VolumeSpec::plain(name, VOLUME_BYTES) })?;
            if let Some(sealed) = volume.sealed.filter(|_| custody == Custody::KeyServer) {
                let new = NewVolume { id: volume.id, name: name.into(), domain: sealed.domain };
                Client::new(site.options()).create(new)?;
            }
        }
        let mut config = strongroom_target::Config::new(&root);
        config.listen = vec!["127.0.0.1:0".parse().expect("an address")];
        config.limits.stop_timeout_s = 1;
        config.peers.push(PeerRule {
            name: "bench".into(),
            key: site.admin.public().to_string(),
            initiators: vec!["*".into()],
            volumes: vec!["*".into()],
            ..PeerRule::default()
        });
        let mut options = TargetOptions::new(config);
        options.node_key = Some(NodeKey::generate());
        let target = Target::start(options)?;
        let standby = start_standby(site, &directory.join("standby"))?;
        let primary = site.options().servers;
        let both: Vec<String> = primary.iter().cloned().chain(addresses(&standby)).collect();
        let way = |name, volume, servers| Way { name, volume, servers, times: Latencies::default() };
        let ways = [
            way("key file", "filed", Vec::new()),
            way("key server", "lent", primary),
            way("key server, standby named", "lent", both),
        ];
        let key_file = directory.join("filed.key");
        let mut random = zeroize::Zeroizing::new([0; strongroom_seal::KEY_BYTES]);
        getrandom::fill(random.as_mut()).context("the operating system gave no random bytes")?;
        create_secret_file(&key_file, &VolumeKeyFile::new(KeyPurpose::Volume, &random).to_text())?;
        let all = FirstRead { site, target, standby, key_file, ways };
        for way in &all.ways[..2] {
            let device = all.attach(way)?;
            device.format()?;
            device.detach()?;
        }
        Ok(all)
    }

    /// Each way once, in an order that turns from round to round.
    pub(super) fn round(&mut self, round: usize) -> Result<()> {
        let count = self.ways.len();
        for at in (0..count).map(|step| (round + step) % count) {
            let began = Instant::now();
            let device = self.attach(&self.ways[at])?;
            read_blocking(&device, Lba(0), 1)?;
            self.ways[at].times.record(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
            device.detach()?;
        }
        Ok(())
    }

    pub(super) fn stop(self) {
        self.target.stop();
        self.standby.stop();
    }

    fn attach(&self, way: &Way) -> Result<RemoteDevice> {
        let url = format!("strongroom://{}/{}", self.target.local_addresses()[0], way.volume);
        let mut options = AttachOptions::new(url.parse()?);
        options.channel.node_key = Some(Arc::clone(&self.site.admin));
        options.channel.target_keys = self.target.public_key().into_iter().collect();
        options.sealing.key_source = Some(match way.servers.is_empty() {
            true => Arc::new(KeyFileSource::new(&self.key_file)) as Arc<dyn KeySource>,
            false => {
                let client = Client::new(ClientOptions { servers: way.servers.clone(), ..self.site.options() });
                Arc::new(KeyServerSource::new(client, None))
            }
        });
        Ok(RemoteDevice::attach(options)?)
    }
}

fn addresses(server: &KeyServer) -> Vec<String> {
    server.local_addresses().iter().map(ToString::to_string).collect()
}

fn start_standby(site: &Site, directory: &Path) -> Result<KeyServer> {
    let text = format!(
        "directory = {directory:?}\nlisten = [\"127.0.0.1:0\"]\nnode_key = \"unused\"\nstandby_of = \"{}\"\nprimary_key = \"{}\"\n\
         [[identity]]\nname = \"bench\"\nkey = \"{}\"\nroles = [\"administrator\"]\n",
        addresses(&site.server)[0],
        site.server_key.public(),
        site.admin.public()
    );
    let database = Database::open_or_create_standby(directory, &master()?)?;
    let node_key = Arc::clone(&site.server_key);
    let standby = KeyServer::start(ServerOptions { config: Config::parse(&text)?, node_key, database })?;
    let client = Client::new(ClientOptions { servers: addresses(&standby), ..site.options() });
    let (primary, deadline) = (Client::new(site.options()), Instant::now() + PATIENCE);
    while client.status()?.sequence < primary.status()?.sequence {
        anyhow::ensure!(Instant::now() < deadline, "the standby does not follow; its log says why");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(standby)
}
