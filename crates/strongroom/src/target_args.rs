//! Which target a command about volumes is for: the one of this machine, or another one, of which this node is an operator.
//!
//! Absent: what is asked for, and what operators may (`docs/operators.md`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use strongroom_block::{foreign, with_foreign_parts};
use strongroom_initiator::VolumeUrl;
use strongroom_target::admin::{Client, Description, Operation, Reply, Request, VolumeEntry, VolumeInfo};
use strongroom_target::operators::{OperatorClient, OperatorDestination};

use crate::access::TargetKeyArgs;
use crate::admin::ask;
use crate::keys;
use crate::root_args::RootArgs;
use crate::units::parse_duration;

/// The heading in `--help` for the options of another target.
const ANOTHER: &str = "Another target";
/// How long a target may take for what an operator asks for: it may have to open a large volume first.
const PATIENCE: Duration = Duration::from_secs(600);

/// Which target.
#[derive(Args)]
pub(crate) struct TargetArgs {
    #[command(flatten)]
    pub(crate) here: RootArgs,
    /// Ask the target at this address instead, of which this node is an operator (strongroom invite NAME --operator).
    #[arg(long = "target", value_name = "HOST[:PORT]", conflicts_with_all = ["root", "config"], help_heading = ANOTHER)]
    there: Option<String>,
    /// The file with this node's identity [default: ~/.config/strongroom/identity].
    #[arg(long, value_name = "FILE", env = "STRONGROOM_IDENTITY", help_heading = ANOTHER)]
    identity: Option<PathBuf>,
    #[command(flatten)]
    keys: TargetKeyArgs,
    /// How long connecting may take.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration, help_heading = ANOTHER)]
    connect_timeout: Duration,
}

/// Another target, which is asked over the network.
pub(crate) struct RemoteTarget {
    client: OperatorClient,
    any: VolumeUrl,
}

impl TargetArgs {
    /// Another target, if that is what the command is for.
    pub(crate) fn remote(&self) -> Result<Option<RemoteTarget>> {
        self.there.as_deref().map(|there| self.connect(there)).transpose()
    }

    fn connect(&self, there: &str) -> Result<RemoteTarget> {
        let any = any_volume_of(there)?;
        let to = OperatorDestination {
            host: any.host().to_owned(),
            port: any.port(),
            node: Arc::new(keys::read_identity(&self.identity.clone().unwrap_or_else(keys::default_identity))?),
            expected: self.keys.of_target(any.host(), any.port())?,
            connect_timeout: self.connect_timeout,
        };
        let client = OperatorClient::connect(&to).with_context(|| format!("cannot ask {there}"))?;
        Ok(RemoteTarget { client, any })
    }

    /// Performs an operation on a volume.
    pub(crate) fn operate(&self, volume: &str, operation: Operation) -> Result<Description> {
        match self.remote()? {
            None => operate(&self.here, volume, operation),
            Some(mut remote) => remote.operate(volume, operation),
        }
    }

    /// What a running target answers, here or there.
    pub(crate) fn ask_running(&self, request: &Request) -> Result<Reply> {
        if let Some(mut remote) = self.remote()? {
            return remote.ask(request);
        }
        let path = self.here.admin_socket()?;
        let mut client = Client::connect(&path)?.ok_or_else(|| {
            anyhow!(
                "no target answers at {}; start it with `strongroom serve`, or name another one with --target",
                path.display()
            )
        })?;
        Ok(client.ask(request, PATIENCE)?)
    }
}

/// Performs an operation on a volume of this machine: through the target that serves it, else on the store itself.
///
/// # Errors
/// What the target or the store says.
pub(crate) fn operate(target: &RootArgs, volume: &str, operation: Operation) -> Result<Description> {
    let Some(mut client) = Client::connect(&target.admin_socket()?)? else {
        return target.open()?.operate(volume, &operation).map_err(anyhow::Error::msg);
    };
    match ask(&mut client, &Request::Volume { volume: volume.to_owned(), operation })? {
        Reply::Volume(description) => Ok(*description),
        other => Err(unexpected(&other)),
    }
}

impl RemoteTarget {
    /// What it answers.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Reply> {
        Ok(self.client.ask(request, PATIENCE)?)
    }

    /// Performs an operation on a volume.
    pub(crate) fn operate(&mut self, volume: &str, operation: Operation) -> Result<Description> {
        match self.ask(&Request::Volume { volume: volume.to_owned(), operation })? {
            Reply::Volume(description) => Ok(*description),
            other => Err(unexpected(&other)),
        }
    }

    /// Its volumes: all, or one.
    pub(crate) fn volumes(&mut self, volume: Option<&str>) -> Result<Vec<VolumeEntry>> {
        match self.ask(&Request::Volumes { volume: volume.map(str::to_owned) })? {
            Reply::Volumes(volumes) => Ok(volumes),
            other => Err(unexpected(&other)),
        }
    }

    /// One of its volumes.
    pub(crate) fn volume(&mut self, volume: &str) -> Result<VolumeInfo> {
        match self.volumes(Some(volume))?.pop() {
            Some(VolumeEntry::Good(info)) if info.name == volume => Ok(*info),
            Some(VolumeEntry::Good(_)) => bail!("the target answered about another volume than '{volume}'"),
            Some(VolumeEntry::Damaged { error, .. }) => bail!("{}", foreign(&error)),
            None => bail!("the target answered with nothing; it is of another version"),
        }
    }

    /// The URL of one of its volumes.
    pub(crate) fn url_of(&self, volume: &str) -> String {
        self.any.with_volume(volume).map_or_else(|| format!("strongroom://HOST/{volume}"), |url| url.place())
    }
}

/// The URL of a volume of the target at HOST or HOST:PORT, which are read as in any URL; the volume's name is not used.
pub(crate) fn any_volume_of(target: &str) -> Result<VolumeUrl> {
    let host = target.strip_prefix("strongroom://").unwrap_or(target).trim_end_matches('/');
    let any = format!("strongroom://{host}/any").parse();
    any.ok().with_context(|| format!("'{target}' is not HOST or HOST:PORT"))
}

/// An answer to another question.
pub(crate) fn unexpected(reply: &Reply) -> anyhow::Error {
    anyhow!("the target answered something else: {reply:?}; it is of another version")
}

/// Prints lines some of which another target may have said.
pub(crate) fn print_lines(text: &str) {
    for line in text.lines() {
        println!("{}", with_foreign_parts(line));
    }
}
