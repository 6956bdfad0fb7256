//! `strongroom generate`: the manual pages and the shells' completions, made from the commands themselves. For packages, so it is hidden.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use clap_complete::Shell;

/// Write the manual pages and the completions of bash, zsh and fish, for a package.
#[derive(Args)]
pub(crate) struct GenerateArgs {
    /// A directory, made if missing: gets `man/strongroom*.1` and `completions/{bash,zsh,fish}/…`.
    #[arg(value_name = "DIR")]
    to: PathBuf,
}

/// Runs the command; `command` is the whole command line.
pub(crate) fn run(args: &GenerateArgs, command: clap::Command) -> Result<()> {
    let man = make(&args.to.join("man"))?;
    clap_mangen::generate_to(command.clone(), &man).with_context(|| format!("cannot write to {}", man.display()))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let directory = make(&args.to.join("completions").join(shell.to_string()))?;
        clap_complete::generate_to(shell, &mut command.clone(), "strongroom", &directory)
            .with_context(|| format!("cannot write to {}", directory.display()))?;
    }
    Ok(())
}

fn make(directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make the directory {}", directory.display()))?;
    Ok(directory.to_owned())
}
