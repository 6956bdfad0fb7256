//! `strongroom key`: makes and names the keys that seal volumes. Never prints one.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use strongroom_seal::{KEY_BYTES, KeyPurpose, VolumeKeyFile};
use zeroize::Zeroizing;

use crate::{keys, secret_file};

/// Make or name the keys that seal volumes.
#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a new key file.
    #[command(after_help = "Example: strongroom key new --out ~/vault.key\n\n\
        Keep a copy in a safe place: without the key the data is gone. Never put a volume key on the storage host.")]
    New(NewArgs),
    /// Show what a key file is for, and its keys' ids, which tell nothing about the keys.
    #[command(after_help = "Example: strongroom key show ~/vault.key")]
    Show(ShowArgs),
}

/// `key new`.
#[derive(Args)]
pub(crate) struct NewArgs {
    /// The file to make; it must not exist yet.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// What the key is for.
    #[arg(long = "for", value_name = "PURPOSE", default_value = "volume")]
    purpose: Purpose,
}

/// `key show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The key file.
    file: PathBuf,
}

/// What a key is for.
#[derive(Clone, Copy, ValueEnum)]
enum Purpose {
    /// Seals volumes of custody `keyfile`; held by initiators only.
    Volume,
    /// Wraps the block keys of volumes of custody `target`; held by the target, outside its store.
    Wrapping,
}

/// Runs the command.
pub(crate) fn run(command: KeyCommand) -> Result<()> {
    match command {
        KeyCommand::New(args) => new(&args),
        KeyCommand::Show(args) => show(&args),
    }
}

fn new(args: &NewArgs) -> Result<()> {
    let purpose = match args.purpose {
        Purpose::Volume => KeyPurpose::Volume,
        Purpose::Wrapping => KeyPurpose::Wrapping,
    };
    let mut random = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(random.as_mut()).context("the operating system gave no random bytes")?;
    let file = VolumeKeyFile::new(purpose, &random);
    secret_file::create(&args.out, &file.to_text())?;
    println!("{}", args.out.display());
    print_ids(&file);
    Ok(())
}

fn show(args: &ShowArgs) -> Result<()> {
    print_ids(&keys::read_key_file(&args.file)?);
    Ok(())
}

fn print_ids(file: &VolumeKeyFile) {
    for (epoch, id) in file.ids() {
        println!("{} epoch {epoch} id {id}", file.purpose());
    }
}
