//! `strongroom csi`: serves the CSI driver for Kubernetes and other orchestrators at a Unix socket.
//!
//! Absent: the driver itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use strongroom_csi::{AttachmentHome, Driver, DriverOptions, Program, Services};
use strongroom_target::operators::OperatorDestination;

use crate::access::TargetKeyArgs;
use crate::command_line::option;
use crate::key_server::KeyServerArgs;
use crate::keys::{self, KEYS};
use crate::sd_notify;
use crate::signals::StopSignals;
use crate::target_args::any_volume_of;
use crate::units::parse_duration;

/// How often it is looked whether the driver has ended by itself.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Serve volumes to Kubernetes: the CSI driver (Container Storage Interface 1.13), of a controller or of a node.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom csi --services controller --target storage.example --endpoint unix:///csi/csi.sock\n  \
    strongroom csi --services node --target storage.example --node-id worker-1 --endpoint unix:///csi/csi.sock\n\n\
    The controller's identity is an operator of the target (strongroom invite NAME --operator); a node's is a peer, which is called as the node is. \
    docs/csi.md is the guide, with manifests.")]
pub(crate) struct CsiArgs {
    /// The socket to listen at.
    #[arg(long, value_name = "unix://PATH", env = "CSI_ENDPOINT", value_parser = parse_endpoint)]
    endpoint: PathBuf,
    /// Which services to have.
    #[arg(long, value_name = "WHICH", default_value = "all")]
    services: ServicesArg,
    /// The target that has the volumes.
    #[arg(long, value_name = "HOST[:PORT]")]
    target: String,
    /// What the target is called in topologies (topology.strongroom/target): a label's value [default: its host].
    #[arg(long, value_name = "NAME")]
    target_name: Option<String>,
    /// The driver's name among drivers.
    #[arg(long, value_name = "NAME", default_value = "csi.strongroom.org")]
    driver_name: String,
    /// This node, by the name of its peer at the target.
    #[arg(long, value_name = "NAME", env = "STRONGROOM_NODE_ID")]
    node_id: Option<String>,
    /// What the names of volumes begin with that the driver makes. Another one at the same target needs another prefix.
    #[arg(long, value_name = "PREFIX", default_value = "csi-")]
    volume_prefix: String,
    /// Where a node keeps attachments, and secrets while they are needed: a directory on a tmpfs.
    #[arg(long, value_name = "DIR", default_value = "/run/strongroom-csi")]
    state_dir: PathBuf,
    /// Run attachments as services of the host's systemd, with the program at this path of the host, so that they outlive the driver's container.
    /// Needs hostPID, and --state-dir at the same path of the host.
    #[arg(long, value_name = "PATH")]
    host_program: Option<PathBuf>,
    /// How long connecting to the target may take.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    connect_timeout: Duration,
    /// The file with this node's identity [default: ~/.config/strongroom/identity].
    #[arg(long, value_name = "FILE", env = "STRONGROOM_IDENTITY", help_heading = KEYS)]
    identity: Option<PathBuf>,
    #[command(flatten)]
    target_keys: TargetKeyArgs,
    #[command(flatten)]
    key_server: KeyServerArgs,
}

/// Which services there are.
#[derive(Clone, Copy, ValueEnum)]
enum ServicesArg {
    /// Both of the others, for trying it out.
    All,
    /// Makes and deletes volumes, and says which node may use them.
    Controller,
    /// Attaches and mounts volumes on this machine; needs root.
    Node,
}

/// A socket, as orchestrators write it.
fn parse_endpoint(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    match path.starts_with('/') {
        true => Ok(PathBuf::from(path)),
        false => Err("an endpoint is unix:// and an absolute path; the driver listens at no network".to_owned()),
    }
}

impl CsiArgs {
    fn options(&self) -> Result<DriverOptions> {
        let any = any_volume_of(&self.target)?;
        let identity = self.identity.clone().unwrap_or_else(keys::default_identity);
        let target = OperatorDestination {
            host: any.host().to_owned(),
            port: any.port(),
            node: Arc::new(keys::read_identity(&identity)?),
            expected: self.target_keys.of_target(any.host(), any.port())?,
            connect_timeout: self.connect_timeout,
        };
        let services = match self.services {
            ServicesArg::All => Services::All,
            ServicesArg::Controller => Services::Controller,
            ServicesArg::Node => Services::Node,
        };
        if services != Services::Controller && !rustix::process::geteuid().is_root() {
            bail!("a node mounts volumes, which needs root; for the controller alone: --services controller");
        }
        Ok(DriverOptions {
            socket: self.endpoint.clone(),
            services,
            target_name: self.target_name.clone().unwrap_or_else(|| any.host().replace(':', "-")),
            target,
            driver_name: self.driver_name.clone(),
            node_id: self.node_id.clone(),
            volume_prefix: self.volume_prefix.clone(),
            state_dir: self.state_dir.clone(),
            program: self.program(&identity)?,
        })
    }

    /// How the driver runs this program for what needs keys and devices.
    fn program(&self, identity: &std::path::Path) -> Result<Program> {
        let identity = std::path::absolute(identity).context("cannot tell where the identity is")?;
        let (known, target_keys) = self.target_keys.to_options();
        Ok(Program {
            path: std::env::current_exe().context("cannot tell where this program is")?,
            home: self.host_program.clone().map_or(AttachmentHome::Here, AttachmentHome::Host),
            identity: std::iter::once(option("identity", identity)).chain(known).collect(),
            target_keys,
            key_server: self.key_server.to_options(),
        })
    }
}

/// Runs the command, until it is told to stop.
pub(crate) fn run(args: &CsiArgs) -> Result<()> {
    let signals = StopSignals::block().context("cannot wait for signals")?;
    let options = args.options()?;
    let driver = Driver::start(&options)?;
    tracing::info!(
        socket = %options.socket.display(), driver = options.driver_name, target = options.target.host, node = options.node_id, "serving"
    );
    sd_notify::notify("READY=1");
    while driver.is_serving() {
        if let Some(signal) = signals.wait(LOOK_EVERY) {
            tracing::info!(signal = signal.name(), "ending; attachments go on");
            break;
        }
    }
    sd_notify::notify("STOPPING=1");
    Ok(driver.stop()?)
}
