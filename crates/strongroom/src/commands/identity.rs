//! `strongroom identity`: makes and shows a node's identity. Only its public half is ever printed.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use strongroom_handshake::NodeKey;

use crate::keys;
use strongroom_keyfiles::secret_file;

/// Make or show the identity of this node.
#[derive(Subcommand)]
pub(crate) enum IdentityCommand {
    /// Make a new identity and print its public line, to be given to the other side, as with SSH keys.
    #[command(
        after_help = "Examples:\n  strongroom identity new\n  strongroom identity new --out /etc/strongroom/identity"
    )]
    New(NewArgs),
    /// Print the public line of an identity, and the name by which it logs in.
    #[command(after_help = "Example: strongroom identity show\n\n\
        A target's public line goes into its initiators' known_targets; an initiator's into the target's configuration.")]
    Show(ShowArgs),
}

/// `identity new`.
#[derive(Args)]
pub(crate) struct NewArgs {
    /// The file to make; it must not exist yet [default: ~/.config/strongroom/identity].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// `identity show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The identity's file [default: ~/.config/strongroom/identity].
    file: Option<PathBuf>,
    /// Print the name by which this machine logs in, too.
    #[arg(long)]
    initiator_name: bool,
}

/// Runs the command.
pub(crate) fn run(command: IdentityCommand) -> Result<()> {
    match command {
        IdentityCommand::New(args) => {
            let path = args.out.unwrap_or_else(keys::default_identity);
            let key = NodeKey::generate();
            secret_file::create(&path, &key.to_text())?;
            eprintln!("made {}", path.display());
            println!("{}", key.public());
        }
        IdentityCommand::Show(args) => {
            let key = keys::read_identity(&args.file.unwrap_or_else(keys::default_identity))?;
            println!("{}", key.public());
            if args.initiator_name {
                println!("{}", strongroom_initiator::default_initiator_name(Some(&key.public())));
            }
        }
    }
    Ok(())
}
