//! `strongroom volume create`: creates a volume and says what to do next. Absent: what a volume is (the target's catalogue).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use strongroom_block::{Custody, Mode, Suite};
use strongroom_store::{CreateOptions, IoChoice, Medium};
use strongroom_target::admin::{BlindCustody, NewSealing, NewVolume, Reply, Request, VolumeInfo};
use strongroom_target::volume::custody_from;
use strongroom_target::{Access, Catalogue, SealedSpec, Volume, VolumeSpec};

use crate::commands::new_volume::{ProtectionArgs, spare_range, usable_wrapping_key, warn_of_unknown_peers};
use crate::commands::space::warn_of_little_space;
use crate::target_args::{RemoteTarget, TargetArgs, print_lines, unexpected};
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
    /// A peer that may use it; can be repeated; '*' for all of them.
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
    target: TargetArgs,
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

impl SealingArgs {
    fn spec(&self, custody: Custody, wrapping_key: Option<PathBuf>) -> Result<Option<SealedSpec>> {
        Ok((!self.plain).then_some(SealedSpec {
            custody,
            suite: self.suite,
            mode: if self.authenticate_only { Mode::AuthenticateOnly } else { Mode::Encrypt },
            wrapping_key,
            opened_with: self.open_at_target.as_deref().map(usable_opening_key).transpose()?,
        }))
    }
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
    match args.target.remote()? {
        Some(remote) => create_there(args, remote),
        None => create_here(args),
    }
}

/// At another target, where nothing but the volume is made: no file on that machine has a part in it.
fn create_there(args: CreateArgs, mut remote: RemoteTarget) -> Result<()> {
    let CreateArgs { name, size, block_size, sealing, space, peers, initiators, read_only, protection, target: _ } =
        args;
    let custody = match sealing.custody {
        CustodyArg::Keyfile => Some(BlindCustody::KeyFile),
        CustodyArg::Keyserver => Some(BlindCustody::KeyServer),
        CustodyArg::Target => None,
    };
    let of_the_machine = [
        (custody.is_none() || sealing.wrapping_key.is_some(), "--custody target: its keys are files there"),
        (sealing.open_at_target.is_some(), "--open-at-target: the key is a file there"),
        (space.medium != Medium::Directory, "--medium: only that machine knows its media"),
        (space.io != IoChoice::Auto, "--io"),
        (!initiators.is_empty(), "--initiator: nothing proves such a name; name peers"),
    ];
    if let Some((_, what)) = of_the_machine.into_iter().find(|(is_given, _)| *is_given) {
        bail!("with --target there is no {what}. Make such a volume on the target's machine");
    }
    let (suite, authenticate_only) = (sealing.suite.name().to_owned(), sealing.authenticate_only);
    let sealed = custody.filter(|_| !sealing.plain).map(|custody| NewSealing { custody, suite, authenticate_only });
    let nobody = peers.is_empty();
    let volume = NewVolume {
        name: name.clone(),
        size_bytes: size,
        block_size,
        sealed,
        retention_percent: space.retention,
        spare_percent: space.spare,
        peers,
        read_only,
        protection: protection.into(),
    };
    let info = match remote.ask(&Request::VolumeCreate { volume })? {
        Reply::Created(info) if info.name == name => *info,
        other => return Err(unexpected(&other)),
    };
    print_lines(&created_text(&info));
    print_lines(&next_text(&info, &remote.url_of(&info.name)));
    if nobody {
        println!(
            "nobody may use it yet, unless the target's configuration lists it for a peer: strongroom volume grant {} PEER",
            info.name
        );
    }
    Ok(())
}

fn create_here(args: CreateArgs) -> Result<()> {
    let here = &args.target.here;
    let root = here.root()?;
    warn_of_unknown_peers(here, &args.peers);
    let custody = match args.sealing.custody {
        CustodyArg::Keyfile => Custody::KeyFile,
        CustodyArg::Keyserver => Custody::KeyServer,
        CustodyArg::Target => Custody::Target,
    };
    let given = args.sealing.wrapping_key.as_deref().map(usable_wrapping_key).transpose()?;
    let made = (custody == Custody::Target && given.is_none())
        .then(|| strongroom_keyfiles::wrapping::create(&here.wrapping_keys(), &args.name))
        .transpose()?;
    let wrapping_key = given.or_else(|| made.clone());
    let sealed = args.sealing.spec(custody, wrapping_key)?;
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
    let info = VolumeInfo::of(&Catalogue::open(&at)?.show(volume.name.as_str())?);
    println!("{}", created_text(&info));
    warn_of_little_space(&volume.medium, info.shape.size_bytes, &at);
    print_cautions(&volume, made.as_deref());
    print!("{}", next_text(&info, &format!("strongroom://HOST/{}", info.name)));
    if nobody {
        println!(
            "nobody may use it yet, unless the configuration lists it for a peer. To let a machine use it: strongroom invite NAME --volume {}",
            info.name
        );
    }
    Ok(())
}

fn created_text(info: &VolumeInfo) -> String {
    let kind = if info.sealed.is_some() { "sealed" } else { "plain" };
    format!("made the {kind} volume '{}', {}", info.name, show_size(info.shape.size_bytes))
}

/// What its owner has to know about it.
fn print_cautions(volume: &Volume, made: Option<&Path>) {
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
}

/// What to do with a sealed volume next: lines, or nothing.
fn next_text(info: &VolumeInfo, url: &str) -> String {
    let Some(sealed) = &info.sealed else { return String::new() };
    let opened = if sealed.opened_with.is_some() { " --opened-at-target" } else { "" };
    let format = format!("strongroom volume format {url} --yes{opened}");
    match custody_from(&sealed.custody) {
        Some(Custody::KeyFile) => format!("next, from an initiator with its key: {format}\n"),
        Some(Custody::KeyServer) => format!(
            "next, as its owner: strongroom key create {} --domain {} --id {} --key-server KEYS\nand then, from an initiator: {format} \
             --key-server KEYS\n",
            info.name, sealed.domain, info.volume_id
        ),
        _ => format!("next, from an initiator: {format}\n"),
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
