//! `strongroom volume create`: creates a volume and says what to do next. Absent: what a volume is (the target's catalogue).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use strongroom_block::{Custody, Mode, Suite};
use strongroom_store::{CreateOptions, IoChoice, Medium};
use strongroom_target::{Access, Catalogue, Sealed, SealedSpec, Volume, VolumeSpec};

use crate::commands::new_volume::{ProtectionArgs, spare_range, usable_wrapping_key, warn_of_unknown_peers};
use crate::commands::space::warn_of_little_space;
use crate::root_args::RootArgs;
use crate::units::{parse_size, show_size};

/// `volume create`.
#[derive(Args)]
pub(crate) struct CreateArgs {
    /// The volume's name: small letters, digits, '.' and '-'.
    name: String,
    /// Its size, for instance 10GiB; a multiple of the block size.
    #[arg(long, value_parser = parse_size)]
    size: u64,
    /// Bytes in one block, the unit of sealing: a power of two from 512 to 65536.
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = parse_size)]
    block_size: u64,
    #[command(flatten)]
    sealing: SealingArgs,
    #[command(flatten)]
    space: SpaceArgs,
    /// A peer of the configuration that may use it; can be repeated; '*' for all of them.
    #[arg(long = "peer", value_name = "NAME")]
    peers: Vec<String>,
    /// Plain volumes: an initiator name that may use it over plain iSCSI; can be repeated; '*' for any.
    #[arg(long = "initiator", value_name = "IQN")]
    initiators: Vec<String>,
    /// Nobody may write to it.
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    protection: ProtectionArgs,
    #[command(flatten)]
    target: RootArgs,
}

/// Whether and how its blocks are sealed.
#[derive(Args)]
struct SealingArgs {
    /// Store blocks as they come, for any iSCSI initiator, instead of sealed ones.
    #[arg(long, conflicts_with_all = ["custody", "suite", "wrapping_key", "authenticate_only"])]
    plain: bool,
    /// Who holds the keys of a sealed volume.
    #[arg(long, default_value = "keyfile")]
    custody: CustodyArg,
    /// The cipher that seals its blocks: aes-256-gcm, aes-128-gcm, or chacha20-poly1305 for processors without AES instructions.
    #[arg(long, default_value_t = Suite::default())]
    suite: Suite,
    /// Custody `target`: the file that wraps block keys at rest; outside the directory with the volumes. Destroying it erases the
    /// volume [default: a new one in `wrapping-keys` beside the configuration].
    #[arg(long, value_name = "FILE")]
    wrapping_key: Option<PathBuf>,
    /// Seal blocks so that changes are noticed, but leave them readable by anyone.
    #[arg(long)]
    authenticate_only: bool,
    /// The target opens what arrives, with the volume's key in this file, and stores PLAINTEXT: blocks are sealed on the wire only, and a
    /// block that does not open is refused before anything is written. With the disk, the store's files or the target, everything
    /// can be read. The file is a copy of the initiators' key file, outside the directory with the volumes.
    #[arg(long, value_name = "KEY_FILE", conflicts_with_all = ["plain", "authenticate_only", "wrapping_key"])]
    open_at_target: Option<PathBuf>,
}

/// What its blocks lie on, and how much space they may take.
#[derive(Args)]
struct SpaceArgs {
    /// How much of its size older versions of blocks may take, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=100))]
    retention: u8,
    /// Space for cleaning, in percent of what all its blocks take: the more, the less is copied for each block that is overwritten at
    /// random (with 25 about 1.2 blocks, with 100 about 0.2). It is taken from the disk only as it is used.
    #[arg(long, value_name = "PERCENT", default_value_t = CreateOptions::SPARE_PERCENT_DEFAULT, value_parser = spare_range())]
    spare: u16,
    /// What its blocks lie on: `directory` (a sparse file among the volumes), `file:PATH` (a file, all of whose space is
    /// taken at once), `device:PATH` (a whole block device), or `memory` (everything is lost when the target stops).
    #[arg(long, value_name = "MEDIUM", default_value_t = Medium::Directory)]
    medium: Medium,
    /// How its store is read and written: `direct-uring`, `direct` (both past the page cache), `buffered`, or `auto`: the first of
    /// these that works where it lies. `volume show` and `status` say which it came to.
    #[arg(long, value_name = "HOW", default_value_t = IoChoice::Auto)]
    io: IoChoice,
}

/// Who holds the keys of a sealed volume.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CustodyArg {
    /// Initiators, in a file. The target cannot open a block.
    Keyfile,
    /// A key server, which lends them to initiators. The target cannot open a block.
    Keyserver,
    /// The trusted target: a fresh key per block, wrapped at rest.
    Target,
}

pub(super) fn create(args: CreateArgs) -> Result<()> {
    let root = args.target.root()?;
    warn_of_unknown_peers(&args.target, &args.peers);
    let custody = match args.sealing.custody {
        CustodyArg::Keyfile => Custody::KeyFile,
        CustodyArg::Keyserver => Custody::KeyServer,
        CustodyArg::Target => Custody::Target,
    };
    let given = args.sealing.wrapping_key.as_deref().map(usable_wrapping_key).transpose()?;
    let made = (custody == Custody::Target && given.is_none())
        .then(|| strongroom_keyfiles::wrapping::create(&args.target.wrapping_keys(), &args.name))
        .transpose()?;
    let wrapping_key = given.or_else(|| made.clone());
    let sealed = (!args.sealing.plain).then_some(SealedSpec {
        custody,
        suite: args.sealing.suite,
        mode: if args.sealing.authenticate_only { Mode::AuthenticateOnly } else { Mode::Encrypt },
        wrapping_key,
        opened_with: args.sealing.open_at_target.as_deref().map(usable_opening_key).transpose()?,
    });
    let nobody = args.peers.is_empty() && args.initiators.is_empty();
    let spec = VolumeSpec {
        name: args.name,
        size_bytes: args.size,
        block_size: args.block_size,
        sealed,
        retention_percent: args.space.retention,
        spare_percent: args.space.spare,
        medium: args.space.medium,
        io: args.space.io,
        access: Access {
            peers: args.peers,
            initiators: args.initiators,
            read_only: args.read_only,
            previous_versions: false,
            read_only_if_damaged: false,
            protection: args.protection.into(),
        },
    };
    let at = root.clone();
    let volume = match Catalogue::open_or_create(root).and_then(|catalogue| catalogue.create(&spec)) {
        Ok(volume) => volume,
        Err(error) => {
            // A key that nothing was wrapped under.
            made.iter().for_each(|path| drop(std::fs::remove_file(path)));
            return Err(error.into());
        }
    };
    print_created(&volume, made.as_deref(), &at);
    if nobody {
        println!("nobody may use it yet, unless the configuration lists it for a peer; see --peer and --initiator");
    }
    Ok(())
}

/// What was created, and what its owner has to know about it.
fn print_created(volume: &Volume, made: Option<&Path>, root: &Path) {
    println!(
        "made the {} volume '{}', {}",
        kind(volume.sealed.is_some()),
        volume.name,
        show_size(volume.geometry.bytes())
    );
    warn_of_little_space(&volume.medium, volume.geometry.bytes(), root);
    if !volume.medium.is_durable() {
        println!("it is in memory: everything in it is lost whenever the target stops; for benchmarks and tests only");
    }
    if let Some(path) = made {
        println!(
            "its block keys are wrapped under {}; without that file nothing in it opens: keep a copy",
            path.display()
        );
    }
    if volume.sealed.as_ref().is_some_and(|sealed| sealed.opened_with.is_some()) {
        println!(
            "blocks are sealed on the wire only: this target opens them and stores plaintext, which can be read from its disk"
        );
    }
    if let Some(sealed) = &volume.sealed {
        tell_what_is_next(volume, sealed);
    }
}

fn tell_what_is_next(volume: &Volume, sealed: &Sealed) {
    let opened = if sealed.opened_with.is_some() { " --opened-at-target" } else { "" };
    let format = format!("strongroom volume format strongroom://HOST/{} --yes{opened}", volume.name);
    match sealed.custody {
        Custody::Target => println!("next, from an initiator: {format}"),
        Custody::KeyFile => println!("next, from an initiator with its key: {format}"),
        Custody::KeyServer => println!(
            "next, as its owner: strongroom key create {} --domain {} --id {} --key-server KEYS\nand then, from an initiator: {format} \
             --key-server KEYS",
            volume.name, sealed.domain, volume.id
        ),
    }
}

/// The same of the key that opens what arrives.
fn usable_opening_key(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).with_context(|| format!("cannot tell where {} is", path.display()))?;
    let keys =
        strongroom_keyfiles::read_key_file(&path).context("the target needs the volume's key to open what arrives")?;
    keys.volume_key(1).context("that file's key is for something else; give a copy of the initiators' --key-file")?;
    Ok(path)
}

fn kind(is_sealed: bool) -> &'static str {
    if is_sealed { "sealed" } else { "plain" }
}
