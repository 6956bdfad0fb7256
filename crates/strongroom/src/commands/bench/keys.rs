//! `strongroom bench keys`: how many keys a second a key server gives out, each in its audit log and on the disk before it leaves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_bench::Latencies;
use strongroom_block::{SealingDomain, VolumeId};
use strongroom_handshake::NodeKey;
use strongroom_keyserver::{
    Client, ClientOptions, Config, Database, KeyServer, LocalMasterKey, NewVolume, ServerOptions,
};
use strongroom_seal::{KeyPurpose, VolumeKeyFile};

use crate::table::Table;

const DOMAIN: SealingDomain = SealingDomain([1; 16]);

/// Key fetches a second, from a key server of its own on this machine.
#[derive(Args)]
#[command(after_help = "Example: strongroom bench keys --clients 1,16,64 --work-dir /var/tmp\n\n\
    A key is given out when its line of the audit log is on the disk: callers at the same time share one sync. The work directory \
    decides which disk that is.")]
pub(crate) struct KeysArgs {
    /// How many clients call at the same time.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16,64")]
    clients: Vec<usize>,
    /// How long one measurement lasts.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Where the key server keeps its database [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &KeysArgs) -> Result<()> {
    if !(0.05..=3600.0).contains(&args.seconds) || args.clients.iter().any(|clients| !(1..=500).contains(clients)) {
        bail!("give --seconds 0.05 to 3600, and --clients 1 to 500 each");
    }
    let dir = match &args.work_dir {
        Some(path) => tempfile::tempdir_in(path),
        None => tempfile::tempdir(),
    };
    let dir = dir.context("cannot make a directory to work in; name another one with --work-dir")?;
    let admin = Arc::new(NodeKey::generate());
    let (server, server_key) = start(dir.path(), &admin)?;
    let options = ClientOptions {
        servers: server.local_addresses().iter().map(ToString::to_string).collect(),
        server_keys: vec![server_key.public()],
        node_key: admin,
        timeout: Duration::from_secs(30),
    };
    let volume = NewVolume { id: VolumeId([1; 16]), name: "bench".into(), domain: DOMAIN };
    Client::new(options.clone()).create(volume)?;
    let mut table = Table::new(&["CONNECTION", ">CLIENTS", ">FETCHES/S", ">P50 MS", ">P99 MS"]);
    for (name, is_kept) in [("kept", true), ("new for each", false)] {
        for &clients in &args.clients {
            let (rate, latencies) = measure(&options, clients, is_kept, Duration::from_secs_f64(args.seconds))?;
            let millis =
                |quantile| latencies.quantile_us(quantile).map_or_else(String::new, |us| format!("{:.2}", us / 1000.0));
            table.row(vec![name.into(), clients.to_string(), format!("{rate:.0}"), millis(0.5), millis(0.99)]);
        }
    }
    print!("{table}");
    server.stop();
    Ok(())
}

fn start(dir: &Path, admin: &NodeKey) -> Result<(KeyServer, Arc<NodeKey>)> {
    let server_key = Arc::new(NodeKey::generate());
    let directory = dir.join("keys");
    let text = format!(
        "directory = {directory:?}\nlisten = [\"127.0.0.1:0\"]\nnode_key = \"unused\"\n[limits]\nconnections_per_identity = 1000\n\
         connections_max = 2000\nrequests_per_second = 1000000\nrepeated_lines_s = 0\n[[identity]]\nname = \"bench\"\nkey = \"{}\"\nroles = [\"creator\"]\n",
        admin.public()
    );
    let mut random = zeroize::Zeroizing::new([0; strongroom_seal::KEY_BYTES]);
    getrandom::fill(random.as_mut()).context("the operating system gave no random bytes")?;
    let master = LocalMasterKey::new(&VolumeKeyFile::new(KeyPurpose::Master, &random))?;
    let database = Database::open_or_create(&directory, &master)?;
    let options = ServerOptions { config: Config::parse(&text)?, node_key: Arc::clone(&server_key), database };
    Ok((KeyServer::start(options)?, server_key))
}

fn measure(options: &ClientOptions, clients: usize, is_kept: bool, time: Duration) -> Result<(f64, Latencies)> {
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let all = thread::scope(|scope| -> Result<Latencies> {
        let calling: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| -> Result<Latencies> {
                    let mut latencies = Latencies::default();
                    let mut client = Client::new(options.clone());
                    while !stop.load(Ordering::Relaxed) {
                        if !is_kept {
                            client = Client::new(options.clone());
                        }
                        let asked = Instant::now();
                        client.fetch(DOMAIN)?;
                        latencies.record(asked.elapsed().as_nanos() as u64);
                    }
                    Ok(latencies)
                })
            })
            .collect();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let mut all = Latencies::default();
        for thread in calling {
            let latencies = thread.join().expect("a client does not panic")?;
            all.add(&latencies.counts());
        }
        Ok(all)
    })?;
    Ok((all.count() as f64 / started.elapsed().as_secs_f64(), all))
}
