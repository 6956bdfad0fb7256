//! What umount(8) runs for a file system that `attach --mount` has mounted, if this program is installed as `/sbin/umount.strongroom` (a link):
//! it detaches the volume, so that an unmount says what was lost, as `strongroom detach` does.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Parser;

use super::detach;
use crate::attachments;

/// The name under which umount(8) runs this program.
const NAME: &str = "umount.strongroom";

/// Unmount a file system of an attached volume, and detach the volume: what umount(8) runs.
#[derive(Parser)]
#[command(name = NAME, version)]
struct UmountArgs {
    /// Where it is mounted.
    directory: PathBuf,
    /// Do not wait for a target that is away, nor for programs that use it: as `strongroom detach --force`.
    #[arg(short)]
    force: bool,
    /// Take it from its directory now, without detaching the volume.
    #[arg(short)]
    lazy: bool,
    /// Passed on by umount(8), without a meaning here.
    #[arg(short)]
    no_table: bool,
    /// Mount it read-only if it cannot be unmounted: not done here.
    #[arg(short)]
    read_only: bool,
    /// Say what is done.
    #[arg(short)]
    verbose: bool,
    /// Another mount namespace: not supported.
    #[arg(short = 'N')]
    namespace: Option<OsString>,
    /// The file system's type, without a meaning here.
    #[arg(short = 't')]
    file_system: Option<OsString>,
}

/// Whether a command line, the program's name first, is one of umount(8).
pub(crate) fn is_meant(arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|program| Path::new(program).file_name() == Some(NAME.as_ref()))
}

/// Runs it.
pub(crate) fn run(arguments: &[OsString]) -> Result<ExitCode> {
    let args = UmountArgs::try_parse_from(arguments).unwrap_or_else(|error| error.exit());
    anyhow::ensure!(
        args.namespace.is_none(),
        "run umount inside the other mount namespace: an attachment cannot be ended from outside it"
    );
    let mounted = attachments::absolute(&args.directory.to_string_lossy());
    let attachment =
        attachments::list()?.into_iter().find(|attachment| attachment.mount.as_deref() == Some(mounted.as_path()));
    let Some(attachment) = attachment.filter(|_| !args.lazy) else {
        return without_helper(&args);
    };
    if args.verbose {
        println!("{}: detaching {}", args.directory.display(), attachment.url);
    }
    detach::run(&detach::DetachArgs::of(&args.directory.to_string_lossy(), args.force))
}

/// What umount(8) does by itself.
fn without_helper(args: &UmountArgs) -> Result<ExitCode> {
    let mut command = Command::new("umount");
    command.arg("--internal-only");
    for (is_given, flag) in
        [(args.force, "-f"), (args.lazy, "-l"), (args.no_table, "-n"), (args.read_only, "-r"), (args.verbose, "-v")]
    {
        if is_given {
            command.arg(flag);
        }
    }
    let status = command.arg(&args.directory).status().context("cannot run umount(8)")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
