//! `strongroom discover`: which volumes a target has for us.

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_block::foreign;
use strongroom_initiator::{DEFAULT_PORT, VolumeUrl, discover};

use crate::access::AccessArgs;

/// Ask a target which volumes this node may use.
#[derive(Args)]
#[command(after_help = "Examples:\n  strongroom discover storage.example\n  strongroom discover 10.0.0.5:3261 --plain")]
pub(crate) struct DiscoverArgs {
    /// The target, HOST or HOST:PORT; strongroom://HOST is the same.
    host: String,
    /// Ask over plain iSCSI: what is shown then is what anyone may use.
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub(crate) fn run(args: DiscoverArgs) -> Result<()> {
    // The host and port are read as in any URL; the volume's name is not used.
    let host = args.host.strip_prefix("strongroom://").unwrap_or(&args.host).trim_end_matches('/');
    let url: VolumeUrl = format!("strongroom://{host}/any")
        .parse()
        .ok()
        .with_context(|| format!("'{}' is not HOST or HOST:PORT", args.host))?;
    let access = &args.access;
    let base_name = access.names.base_name.clone().unwrap_or_else(|| strongroom_initiator::DEFAULT_BASE_IQN.to_owned());
    let options = access.portal(&url, !args.plain)?;
    let targets = discover(&options).with_context(|| format!("cannot ask {}", args.host))?;
    if targets.is_empty() {
        bail!("{} has no volume for this node; its administrator can list one for it", args.host);
    }
    for target in targets {
        let host = if url.host().contains(':') { format!("[{}]", url.host()) } else { url.host().to_owned() };
        let port = if url.port() == DEFAULT_PORT { String::new() } else { format!(":{}", url.port()) };
        match target.name.strip_prefix(&format!("{base_name}:")) {
            Some(volume) if !args.plain => println!("strongroom://{host}{port}/{}", foreign(volume)),
            _ => println!("iscsi://{host}{port}/{}/0", foreign(&target.name)),
        }
    }
    Ok(())
}
