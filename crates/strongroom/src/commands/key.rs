//! `strongroom key`: makes and names the keys that seal volumes, and administers those that a key server has. Never prints one.

mod server;
mod share;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use strongroom_initiator::VolumeUrl;
use strongroom_seal::{KEY_BYTES, KeyPurpose, VolumeKeyFile};
use zeroize::Zeroizing;

use crate::access::AccessArgs;
use strongroom_keyfiles::secret_file;
use strongroom_keyfiles::volume_records::{Domain, Others};

/// Make or name the keys that seal volumes, in files or at a key server.
#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a new key file.
    #[command(after_help = "Example: strongroom key new --out ~/vault.key\n\n\
        Keep a copy in a safe place: without the key the data is gone. Never put a volume key on the storage host.")]
    New(NewArgs),
    /// Show what a key file is for, or who has which right to a volume at the key server; and the keys' ids, which tell nothing
    /// about the keys.
    #[command(
        after_help = "Examples:\n  strongroom key show ~/vault.key\n  strongroom key show vault --key-server keys.example"
    )]
    Show(ShowArgs),
    /// Have a key file record a volume that is sealed with it already: one that was formatted with another copy of the file, or before key
    /// files recorded volumes, or a clone.
    #[command(
        after_help = "Examples:\n  strongroom key record strongroom://storage/vault --formatted-before --key-file ~/vault.key\n  \
        strongroom key record strongroom://storage/twin --same-as vault --key-file ~/vault.key"
    )]
    Record(Box<RecordArgs>),
    /// Encrypt a key file for another node, as text that can be sent by any channel.
    #[command(after_help = "Example: strongroom key share ~/vault.key --to 'strongroom-ed25519 …' > for-bob\n\n\
        The line is what `strongroom identity show` prints on the other machine, or `strongroom peer list` on the target; ask its owner, not the \
        target, whether it is right. With a key server there is nothing to send: strongroom key grant.")]
    Share(share::ShareArgs),
    /// Store a key that another node has shared with this one.
    #[command(
        after_help = "Example: strongroom key receive --from 'strongroom-ed25519 …' --out ~/vault.key < for-bob\n\n\
        --from says who must have sent it: a key from another node could be one that an attacker knows."
    )]
    Receive(share::ReceiveArgs),
    #[command(flatten)]
    Server(server::ServerCommand),
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

/// `key record`.
#[derive(Args)]
pub(crate) struct RecordArgs {
    /// The volume.
    url: VolumeUrl,
    /// It has the blocks of the volume that the file records under this name: a clone, or received by another target.
    #[arg(long, value_name = "NAME", conflicts_with = "formatted_before")]
    same_as: Option<String>,
    /// It was formatted before key files recorded volumes: the target says in which domain it is sealed.
    #[arg(long)]
    formatted_before: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// `key show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The key file; or, with a key server, a volume's name or sealing domain.
    what: String,
    #[command(flatten)]
    server: server::CallArgs,
}

/// What a key is for.
#[derive(Clone, Copy, ValueEnum)]
enum Purpose {
    /// Seals volumes of custody `keyfile`; held by initiators only.
    Volume,
    /// Wraps the block keys of volumes of custody `target`; held by the target, outside its store.
    Wrapping,
    /// Wraps the volume keys of a key server; held by it, outside its database.
    Master,
}

/// Runs the command.
pub(crate) fn run(command: KeyCommand) -> Result<()> {
    match command {
        KeyCommand::New(args) => new(&args),
        KeyCommand::Show(args) => show(&args),
        KeyCommand::Record(args) => record(&args),
        KeyCommand::Share(args) => share::share(&args),
        KeyCommand::Receive(args) => share::receive(&args),
        KeyCommand::Server(command) => server::run(command),
    }
}

fn new(args: &NewArgs) -> Result<()> {
    let purpose = match args.purpose {
        Purpose::Volume => KeyPurpose::Volume,
        Purpose::Wrapping => KeyPurpose::Wrapping,
        Purpose::Master => KeyPurpose::Master,
    };
    make(&args.out, purpose)
}

/// Makes a key file, and says what its key is called.
pub(super) fn make(path: &Path, purpose: KeyPurpose) -> Result<()> {
    let mut random = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(random.as_mut()).context("the operating system gave no random bytes")?;
    let file = VolumeKeyFile::new(purpose, &random);
    secret_file::create(path, &file.to_text())?;
    println!("{}", path.display());
    print_ids(&file);
    Ok(())
}

fn show(args: &ShowArgs) -> Result<()> {
    let file = Path::new(&args.what);
    if args.server.is_given() && !file.exists() {
        return server::show(&args.server, &args.what);
    }
    print_ids(&strongroom_keyfiles::read_key_file(file)?);
    Ok(())
}

fn record(args: &RecordArgs) -> Result<()> {
    let Some(path) = &args.access.key_file else { bail!("name the key file with --key-file") };
    let domain = match (&args.same_as, args.formatted_before) {
        (Some(name), _) => Domain::SameAs(name),
        (None, true) => Domain::Claimed,
        (None, false) => Domain::Drawn,
    };
    let others = if args.access.forget_volume { Others::Forget } else { Others::Refuse };
    args.access.record_volume(&args.url, &[args.url.file_name()], domain, others)?;
    print_ids(&strongroom_keyfiles::read_key_file(path)?);
    Ok(())
}

fn print_ids(file: &VolumeKeyFile) {
    for (epoch, id) in file.ids() {
        println!("{} epoch {epoch} id {id}", file.purpose());
    }
    for volume in file.volumes() {
        println!("volume {} domain {}", volume.name, volume.domain);
    }
}
