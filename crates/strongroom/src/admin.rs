//! Connects to a running target: which socket, and what to say if nothing listens there. Absent: what is asked.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use strongroom_target::admin::{Client, Reply, Request, StatusReport};

use crate::root_args::RootArgs;

/// How long a target may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which running target.
#[derive(Args)]
pub(crate) struct AdminArgs {
    #[command(flatten)]
    target: RootArgs,
    /// The target's admin socket, if it is not where its configuration says.
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
}

/// A list of what a running target has.
#[derive(Args)]
pub(crate) struct AdminListArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) target: AdminArgs,
}

impl AdminArgs {
    /// Where the target listens, when it runs.
    pub(crate) fn socket(&self) -> Result<PathBuf> {
        match &self.socket {
            Some(path) => Ok(path.clone()),
            None => self.target.admin_socket(),
        }
    }

    /// The target, which must be running.
    pub(crate) fn connect(&self) -> Result<Client> {
        let path = self.socket()?;
        match Client::connect(&path)? {
            Some(client) => Ok(client),
            None => bail!(
                "no target answers at {}; start it with `strongroom serve`, or say which one with --root, --config or --socket",
                path.display()
            ),
        }
    }

    /// Asks for something that is answered by a number of sessions.
    pub(crate) fn sessions(&self, request: &Request) -> Result<usize> {
        match ask(&mut self.connect()?, request)? {
            Reply::Sessions(count) => Ok(count),
            other => bail!("the target answered something else: {other:?}; it is of another version, restart it"),
        }
    }
}

/// Asks a running target.
pub(crate) fn ask(client: &mut Client, request: &Request) -> Result<Reply> {
    Ok(client.ask(request, PATIENCE)?)
}

/// Asks a target for its status.
pub(crate) fn ask_status(client: &mut Client) -> Result<StatusReport> {
    match ask(client, &Request::Status)? {
        Reply::Status(report) => Ok(*report),
        other => bail!("the target answered something else: {other:?}; it is of another version, restart it"),
    }
}
