//! `strongroom keyserver`: runs a key server until it is asked to stop. Reads the files that the server itself must not know.

use std::ffi::OsString;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_keyserver::{Config, Database, DatabaseError, KeyServer, LocalMasterKey, Role, ServerOptions};
use strongroom_metrics::MetricsAddress;

use crate::sd_notify::{self, Watchdog};
use crate::signals::StopSignals;
use crate::{keys, metrics, process, stats_file};

/// How often metrics are written.
const METRICS_EVERY: Duration = Duration::from_secs(5);
/// The name of the systemd credential that holds the master key.
const CREDENTIAL: &str = "master-key";

/// Keep volume keys, and give them to those who may have them, until SIGTERM or SIGINT.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom key new --for master --out /etc/strongroom/master.key\n  \
    strongroom keyserver --config /etc/strongroom/keyserver.toml\n\n\
    examples/keyserver.toml explains every setting, docs/keys.md the whole. SIGHUP reads roles, limits and the lease again.")]
pub(crate) struct KeyServerCommand {
    /// The configuration.
    #[arg(long, value_name = "FILE", default_value = "/etc/strongroom/keyserver.toml")]
    config: PathBuf,
    /// The file with this server's identity, instead of the configuration's `node_key`.
    #[arg(long, value_name = "FILE")]
    node_key: Option<PathBuf>,
    /// Where to answer collectors of metrics: an address of the loopback (127.0.0.1:9466), or a socket (unix:/run/strongroom-keyserver/metrics.sock);
    /// instead of the configuration's `metrics`.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// Check the configuration, the master key and the whole database, print the head of its audit log, and end.
    #[arg(long)]
    check: bool,
    /// Make the database of this backup, in a directory that is empty, and end. The server then starts as a primary of a newer
    /// generation.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    restore: Option<PathBuf>,
    /// Put the database under the master key in this file, and end. The configuration is to name that file then; keep the old one as
    /// long as backups that were made before, and destroy it with them.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["check", "restore"])]
    new_master_key: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &KeyServerCommand) -> Result<()> {
    // Before any thread exists: they inherit it.
    let signals = StopSignals::block().context("cannot wait for signals")?;
    let config = read_config(&args.config)?;
    // Before any key is read.
    process::lock_memory();
    let node_key = args.node_key.as_ref().or(config.node_key.as_ref()).context(
        "no identity: name its file with `node_key` in the configuration, or with --node-key; make one with: strongroom identity new --out FILE",
    )?;
    let node_key = Arc::new(keys::read_identity(node_key)?);
    let master = read_master_key(config.master_key.as_deref())?;
    // Each connection needs two descriptors.
    process::raise_file_limit();
    if maintain(args, &config, &master)? {
        return Ok(());
    }
    let database = open_database(&config, &master)?;
    tracing::info!(volumes = database.volumes(), audit = %database.head(), "the key database is whole");
    let metrics_file = config.metrics_file.clone();
    let metrics_address = args.metrics.clone().or_else(|| config.metrics.clone());
    let server = KeyServer::start(ServerOptions { config, node_key, database })?;
    let reporter = server.reporter();
    let measure = move || metrics::key_server::exposition(&reporter.report());
    let collected = metrics::start(metrics_address.as_ref(), measure)?;
    for address in server.local_addresses() {
        println!("key server on {address}");
    }
    sd_notify::notify("READY=1");
    let mut watchdog = Watchdog::from_environment();
    let signal = loop {
        write_metrics(metrics_file.as_deref(), &server);
        if server.has_failed() {
            bail!("a thread of the key server has ended; the log says why. Restart the key server");
        }
        watchdog.notify(|patience| server.answers(patience));
        match signals.wait(watchdog.limit(METRICS_EVERY)) {
            Some(signal) if signal.is_hangup() => reload(&args.config, &server),
            Some(signal) => break signal,
            None => {}
        }
    };
    tracing::info!(signal = signal.name(), "stopping");
    sd_notify::notify("STOPPING=1");
    write_metrics(metrics_file.as_deref(), &server);
    drop(collected);
    server.stop();
    Ok(())
}

/// Does what `--check`, `--restore` or `--new-master-key` asks for. Returns whether one of them was given.
fn maintain(args: &KeyServerCommand, config: &Config, master: &LocalMasterKey) -> Result<bool> {
    if args.check {
        let database = match Database::inspect(&config.directory, master) {
            Err(missing @ DatabaseError::Missing { .. }) => {
                println!("configuration, identity and master key are in order; {missing}");
                return Ok(true);
            }
            inspected => inspected?,
        };
        println!("{} volumes, audit log {}", database.volumes(), database.head());
        return Ok(true);
    }
    if let Some(backup) = &args.restore {
        let file = fs::File::open(backup).with_context(|| format!("cannot open the backup {}", backup.display()))?;
        let database = Database::restore(&config.directory, master, &mut BufReader::new(file))
            .with_context(|| format!("backup {}", backup.display()))?;
        println!("{} volumes, audit log {}", database.volumes(), database.head());
        return Ok(true);
    }
    if let Some(new) = &args.new_master_key {
        let (database, new_master) = (Database::open(&config.directory, master)?, read_master_key(Some(new))?);
        database.change_master_key(&new_master)?;
        println!("the database is under the master key in {}: name it in the configuration", new.display());
        return Ok(true);
    }
    Ok(false)
}

/// Opens the database in the role that the configuration gives it.
fn open_database(config: &Config, master: &LocalMasterKey) -> Result<Database> {
    let database = match config.standby_of {
        Some(_) => Database::open_or_create_standby(&config.directory, master)?,
        None => Database::open_or_create(&config.directory, master)?,
    };
    match (database.role(), config.standby_of.is_some()) {
        (Role::Primary, true) => {
            tracing::warn!("this standby was promoted and is the primary: take standby_of out of its configuration")
        }
        (Role::Standby, false) => {
            bail!("this is the database of a standby: name its primary with standby_of, or promote it there first")
        }
        (Role::Fenced, _) => tracing::error!(
            "another key server has taken this one's place, and it serves nothing; to make it a standby, empty {} and name the new \
             primary with standby_of",
            config.directory.display()
        ),
        _ => {}
    }
    Ok(database)
}

fn reload(path: &Path, server: &KeyServer) {
    sd_notify::notify("RELOADING=1");
    match read_config(path).and_then(|config| Ok(server.reload(config)?)) {
        Ok(()) => tracing::info!("the configuration was read again"),
        Err(error) => {
            tracing::error!(
                error = format!("{error:#}"),
                "the configuration was not read again; the old one stays in force"
            );
        }
    }
    sd_notify::notify("READY=1");
}

fn read_config(path: &Path) -> Result<Config> {
    let text = fs::read_to_string(path).with_context(|| {
        format!("cannot read the configuration {}; examples/keyserver.toml explains one", path.display())
    })?;
    Config::parse(&text).with_context(|| format!("configuration {}", path.display()))
}

/// From a file, or from the credential that systemd hands to the service.
pub(crate) fn read_master_key(file: Option<&Path>) -> Result<LocalMasterKey> {
    let (path, keys) = match file {
        Some(file) => (file.to_owned(), strongroom_keyfiles::read_key_file(file)?),
        None => {
            let path = credential(std::env::var_os("CREDENTIALS_DIRECTORY"))?;
            let keys = strongroom_keyfiles::read_credential(&path)?;
            (path, keys)
        }
    };
    LocalMasterKey::new(&keys).with_context(|| format!("master key {}", path.display()))
}

fn credential(directory: Option<OsString>) -> Result<PathBuf> {
    let Some(directory) = directory else {
        bail!(
            "no master key: name its file with `master_key`, or hand it to the service with LoadCredentialEncrypted={CREDENTIAL}; make \
             one with: strongroom key new --for master --out FILE"
        );
    };
    Ok(PathBuf::from(directory).join(CREDENTIAL))
}

fn write_metrics(path: Option<&Path>, server: &KeyServer) {
    if let Some(path) = path {
        stats_file::write_text(path, &server.metrics());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_configuration_is_one() {
        let example = include_str!("../../../../examples/keyserver.toml");
        let config = Config::parse(example).unwrap();
        // What stands there as a comment is a setting with its default.
        let is_setting = |line: &str| line.starts_with('#') && line.contains(" = ") && !line.starts_with("# ");
        let skipped = ["metrics_file", "standby_of", "primary_key"];
        let uncommented: String =
            example
                .lines()
                .map(|line| {
                    if is_setting(line) && !skipped.iter().any(|name| line.contains(name)) { &line[1..] } else { line }
                })
                .map(|line| format!("{line}\n"))
                .collect();
        let all = Config::parse(&uncommented.replace("#[[", "[[")).unwrap();
        assert_eq!((&all.limits, &all.listen, all.lease_s), (&config.limits, &config.listen, config.lease_s));
        assert_eq!(all.identities.len(), 2);
    }

    #[test]
    fn a_credential_is_the_master_key_if_no_file_is_named() {
        assert!(credential(None).unwrap_err().to_string().contains("LoadCredentialEncrypted=master-key"));
        assert_eq!(credential(Some("/run/credentials/x".into())).unwrap(), Path::new("/run/credentials/x/master-key"));
    }
}
