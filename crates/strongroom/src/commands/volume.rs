//! `strongroom volume`: makes, lists, shows and deletes volumes on the target's machine; formats and recovers them from
//! an initiator's.
//!
//! Absent: what a volume is (the target's catalogue) and how one is sealed (the initiator).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use strongroom_block::{Custody, Mode, Suite, WRAPPED_KEY_BYTES};
use strongroom_store::{CreateOptions, IoChoice, Medium};
use strongroom_target::admin::{Client, Reply, Request, VolumeReport};
use strongroom_target::{
    Access, Catalogue, Config, Protection, Sealed, SealedSpec, Service, Volume, VolumeSpec, VolumeStatus,
};

use super::space::{free_text, space_text, warn_of_little_space};
use super::{check, contents, erase, format, recover, reseal, transfer, verify};
use crate::admin::ask;
use crate::config;
use crate::table::Table;
use crate::units::{parse_size, show_size};

/// Where a target's configuration is unless told otherwise.
pub(crate) const DEFAULT_CONFIG: &str = "/etc/strongroom/strongroom.toml";

/// What the connections must have that use a volume.
#[derive(Args, Default, Clone)]
pub(crate) struct ProtectionArgs {
    /// A service that every session must have: integrity, confidentiality, or checked-on-arrival (the target itself
    /// notices a changed block before it acknowledges it); can be repeated.
    #[arg(long = "require", value_name = "SERVICE", value_parser = parse_service)]
    services: Vec<Service>,
    /// The schemes that sessions may have, and no others: S0 (plain), S1-1 (mac-all), S1-2 (lazy-auth), S2-1 (encrypt-all), S2-3
    /// (lazy-decrypt+mac-all), S2-5 (lazy); S2-2, S2-4 and S2-6 are the same as S2-1, S2-3 and S2-5 on processors with AES
    /// instructions. Can be repeated.
    #[arg(long = "scheme", value_name = "SCHEME")]
    schemes: Vec<String>,
}

impl From<ProtectionArgs> for Protection {
    fn from(args: ProtectionArgs) -> Protection {
        Protection { services: args.services, schemes: args.schemes }
    }
}

fn parse_service(text: &str) -> Result<Service, String> {
    Service::ALL.into_iter().find(|service| service.name() == text).ok_or_else(|| {
        format!("there is no service '{text}'; there are {}", Service::ALL.map(Service::name).join(", "))
    })
}

/// Make, list, show, delete, format or recover volumes.
#[derive(Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume on this target.
    #[command(after_help = "Examples:\n  \
        strongroom volume create vault --size 10GiB --peer alice --root /srv/strongroom\n  \
        strongroom volume create scratch --size 1GiB --plain --initiator '*'\n  \
        strongroom volume create fast --size 1TiB --peer alice --medium device:/dev/nvme0n1\n\n\
        A volume with --medium memory loses everything when the target closes it: use it for benchmarks and tests only.\n\n\
        A sealed volume must be formatted once, from an initiator that has its key: strongroom volume format URL --yes")]
    Create(CreateArgs),
    /// List the volumes of this target.
    #[command(after_help = "Example: strongroom volume list --root /srv/strongroom")]
    List(ListArgs),
    /// Show one volume of this target.
    #[command(after_help = "Example: strongroom volume show vault --root /srv/strongroom")]
    Show(ShowArgs),
    Check(check::CheckArgs),
    /// Delete a volume of this target, and everything in it.
    #[command(after_help = "Example: strongroom volume delete vault --yes --root /srv/strongroom")]
    Delete(DeleteArgs),
    Erase(erase::EraseArgs),
    #[command(subcommand)]
    Snapshot(contents::SnapshotCommand),
    /// Make a volume that begins as a snapshot and shares its blocks.
    Clone(contents::CloneArgs),
    /// Make a volume of this target larger, while it is used.
    Resize(contents::ResizeArgs),
    /// Say who may use a volume of this target.
    Access(contents::AccessArgs),
    Send(transfer::SendArgs),
    Receive(transfer::ReceiveArgs),
    Grow(format::GrowArgs),
    Format(format::FormatArgs),
    Recover(recover::RecoverArgs),
    Reseal(reseal::ResealArgs),
    Verify(verify::VerifyArgs),
}

/// Which target: its directory of volumes, or its configuration.
#[derive(Args)]
pub(crate) struct RootArgs {
    /// The directory with the target's volumes.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    root: Option<PathBuf>,
    /// The target's configuration, which names that directory.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

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
    /// Store blocks as they come, for any iSCSI initiator, instead of sealed ones.
    #[arg(long, conflicts_with_all = ["custody", "suite", "wrapping_key", "authenticate_only"])]
    plain: bool,
    /// Who holds the keys of a sealed volume.
    #[arg(long, default_value = "keyfile")]
    custody: CustodyArg,
    /// The cipher that seals its blocks: aes-256-gcm, aes-128-gcm, or chacha20-poly1305 for processors without AES instructions.
    #[arg(long, default_value_t = Suite::default())]
    suite: Suite,
    /// Custody `target`: the file that wraps block keys at rest; outside the directory with the volumes. Whoever destroys it erases the
    /// volume [default: a new one in `wrapping-keys` beside the configuration].
    #[arg(long, value_name = "FILE")]
    wrapping_key: Option<PathBuf>,
    /// Seal blocks so that changes are noticed, but leave them readable by anyone.
    #[arg(long)]
    authenticate_only: bool,
    /// The target opens what arrives, with the volume's key in this file, and stores PLAINTEXT: blocks are sealed on the wire only, and a
    /// block that does not open is refused before anything is written. Whoever has the disk, the store's files or the target reads
    /// everything. The file is a copy of the initiators' key file, outside the directory with the volumes.
    #[arg(long, value_name = "KEY_FILE", conflicts_with_all = ["plain", "authenticate_only", "wrapping_key"])]
    open_at_target: Option<PathBuf>,
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

/// `volume list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: RootArgs,
}

/// `volume show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The volume's name.
    name: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: RootArgs,
}

/// `volume delete`.
#[derive(Args)]
pub(crate) struct DeleteArgs {
    /// The volume's name.
    name: String,
    /// Really delete it; there is no way back.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    target: RootArgs,
}

/// Runs the command.
pub(crate) fn run(command: VolumeCommand) -> Result<()> {
    match command {
        VolumeCommand::Create(args) => create(args),
        VolumeCommand::List(args) => list(&args),
        VolumeCommand::Show(args) => show(&args),
        VolumeCommand::Check(args) => check::check(&args),
        VolumeCommand::Delete(args) => delete(&args),
        VolumeCommand::Erase(args) => erase::erase(&args),
        VolumeCommand::Snapshot(command) => contents::snapshot(command),
        VolumeCommand::Clone(args) => contents::clone(args),
        VolumeCommand::Resize(args) => contents::resize(&args),
        VolumeCommand::Access(args) => contents::access(args),
        VolumeCommand::Send(args) => transfer::send(&args),
        VolumeCommand::Receive(args) => transfer::receive(&args),
        VolumeCommand::Grow(args) => format::grow(&args),
        VolumeCommand::Format(args) => format::run(&args),
        VolumeCommand::Recover(args) => recover::run(&args),
        VolumeCommand::Reseal(args) => reseal::run(&args),
        VolumeCommand::Verify(args) => verify::run(&args),
    }
}

impl RootArgs {
    /// The directory with the volumes.
    pub(crate) fn root(&self) -> Result<PathBuf> {
        match self.configuration()? {
            Some(config) => Ok(config.root),
            None => Ok(self.root.clone().expect("without it there is a configuration, or an error")),
        }
    }

    /// The configuration, unless the directory itself was named.
    pub(crate) fn configuration(&self) -> Result<Option<Config>> {
        if self.root.is_some() {
            return Ok(None);
        }
        if !self.config.exists() {
            bail!(
                "there is no configuration {}; say which directory holds the volumes with --root DIR, or which \
                 configuration with --config FILE",
                self.config.display()
            );
        }
        Ok(Some(crate::config::read(&self.config)?))
    }

    /// Where wrapping keys are made: beside the configuration, else among a person's own settings.
    pub(crate) fn wrapping_keys(&self) -> PathBuf {
        let beside = self.config.parent().filter(|_| self.root.is_none() && self.config.exists());
        beside.map_or_else(config::personal_dir, Path::to_owned).join("wrapping-keys")
    }

    pub(crate) fn open(&self) -> Result<Catalogue> {
        Ok(Catalogue::open(self.root()?)?)
    }
}

/// Where the server will find the wrapping key, wherever it is started; refused now if it could not use it then.
pub(crate) fn usable_wrapping_key(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).with_context(|| format!("cannot tell where {} is", path.display()))?;
    strongroom_keyfiles::wrapping::successor_of(&path)?;
    let keys = strongroom_keyfiles::read_key_file(&path)
        .context("the volume needs its wrapping key: strongroom key new --for wrapping --out FILE")?;
    keys.wrapping_key(1).context("that file's key is for something else; see `strongroom key new --for wrapping`")?;
    Ok(path)
}

/// The same of the key that opens what arrives.
fn usable_opening_key(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).with_context(|| format!("cannot tell where {} is", path.display()))?;
    let keys =
        strongroom_keyfiles::read_key_file(&path).context("the target needs the volume's key to open what arrives")?;
    keys.volume_key(1).context("that file's key is for something else; give a copy of the initiators' --key-file")?;
    Ok(path)
}

/// What may be set aside for cleaning, in percent.
pub(super) fn spare_range() -> clap::builder::RangedI64ValueParser<u16> {
    let (least, most) = (CreateOptions::SPARE_PERCENT_DEFAULT, CreateOptions::SPARE_PERCENT_MAX);
    clap::value_parser!(u16).range(i64::from(least)..=i64::from(most))
}

fn create(args: CreateArgs) -> Result<()> {
    let root = args.target.root()?;
    warn_of_unknown_peers(&args.target, &args.peers);
    let custody = match args.custody {
        CustodyArg::Keyfile => Custody::KeyFile,
        CustodyArg::Keyserver => Custody::KeyServer,
        CustodyArg::Target => Custody::Target,
    };
    let given = args.wrapping_key.as_deref().map(usable_wrapping_key).transpose()?;
    let made = (custody == Custody::Target && given.is_none())
        .then(|| strongroom_keyfiles::wrapping::create(&args.target.wrapping_keys(), &args.name))
        .transpose()?;
    let wrapping_key = given.or_else(|| made.clone());
    let sealed = (!args.plain).then_some(SealedSpec {
        custody,
        suite: args.suite,
        mode: if args.authenticate_only { Mode::AuthenticateOnly } else { Mode::Encrypt },
        wrapping_key,
        opened_with: args.open_at_target.as_deref().map(usable_opening_key).transpose()?,
    });
    let is_opened = args.open_at_target.is_some();
    let nobody = args.peers.is_empty() && args.initiators.is_empty();
    let spec = VolumeSpec {
        name: args.name,
        size_bytes: args.size,
        block_size: args.block_size,
        sealed,
        retention_percent: args.retention,
        spare_percent: args.spare,
        medium: args.medium,
        io: args.io,
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
    println!(
        "made the {} volume '{}', {}",
        kind(volume.sealed.is_some()),
        volume.name,
        show_size(volume.geometry.bytes())
    );
    warn_of_little_space(&volume.medium, volume.geometry.bytes(), &at);
    if !volume.medium.is_durable() {
        println!("it is in memory: everything in it is lost whenever the target stops; for benchmarks and tests only");
    }
    if let Some(path) = &made {
        println!(
            "its block keys are wrapped under {}; without that file nothing in it opens: keep a copy",
            path.display()
        );
    }
    if is_opened {
        println!(
            "blocks are sealed on the wire only: this target opens them and stores plaintext, for whoever has its disk to read"
        );
    }
    if let Some(sealed) = &volume.sealed {
        tell_what_is_next(&volume, sealed);
    }
    if nobody {
        println!("nobody may use it yet, unless the configuration lists it for a peer; see --peer and --initiator");
    }
    Ok(())
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

/// A misspelt peer is no error (it may be added later), but worth a word.
pub(crate) fn warn_of_unknown_peers(target: &RootArgs, peers: &[String]) {
    let Ok(config) = crate::config::read(&target.config) else { return };
    let unknown = |peer: &&String| *peer != "*" && config.peers.iter().all(|known| known.name != **peer);
    for peer in peers.iter().filter(unknown) {
        eprintln!("note: {} has no [[peer]] named '{peer}' yet", target.config.display());
    }
}

fn kind(is_sealed: bool) -> &'static str {
    if is_sealed { "sealed" } else { "plain" }
}

fn list(args: &ListArgs) -> Result<()> {
    let mut volumes = args.target.open()?.list()?;
    let clones: Vec<_> = volumes.iter_mut().filter_map(|(_, status)| status.as_mut().ok()).collect();
    tell_clones_in_use(&args.target, clones);
    if args.json {
        let rows: Vec<_> = volumes
            .iter()
            .map(|(name, status)| match status {
                Ok(status) => as_json(status),
                Err(error) => json!({ "name": name.to_string(), "error": error.to_string() }),
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let mut table = Table::new(&["NAME", ">SIZE", ">BLOCK", "KIND", ">ON DISK", "IN USE"]);
    for (name, status) in &volumes {
        table.row(match status {
            Ok(status) => vec![
                name.to_string(),
                show_size(status.volume.geometry.bytes()),
                status.volume.geometry.block_size.to_string(),
                status.volume.kind_text(),
                show_size(status.host_bytes),
                if status.in_use { "yes" } else { "no" }.to_owned(),
            ],
            Err(error) => vec![name.to_string(), format!("damaged: {error}")],
        });
    }
    print!("{table}");
    Ok(())
}

fn show(args: &ShowArgs) -> Result<()> {
    let mut status = args.target.open()?.show(&args.name)?;
    tell_clones_in_use(&args.target, vec![&mut status]);
    let served = served(&args.target, &status)?;
    if args.json {
        let mut shown = as_json(&status);
        shown["served"] = serde_json::to_value(&served)?;
        println!("{}", serde_json::to_string_pretty(&shown)?);
        return Ok(());
    }
    let volume = &status.volume;
    let line = |name: &str, value: String| println!("{name:<16} {value}");
    line("name", volume.name.to_string());
    line("volume id", volume.id.to_string());
    line("size", format!("{} ({} bytes)", show_size(volume.geometry.bytes()), volume.geometry.bytes()));
    line("block size", volume.geometry.block_size.to_string());
    line("kind", volume.kind_text());
    if let Some(sealed) = &volume.sealed {
        line("sealing domain", sealed.domain.to_string());
        line("suite", sealed.suite.to_string());
        line("mode", format!("{:?}", sealed.mode));
        let at_the_server = sealed.custody == Custody::KeyServer;
        line("key epoch", if at_the_server { "at the key server".into() } else { sealed.epoch.to_string() });
        if let Some(path) = &sealed.wrapping_key {
            line("wrapping key", path.display().to_string());
        }
        if let Some(path) = &sealed.opened_with {
            line("opened here", format!("with {}; what lies in the store is PLAINTEXT", path.display()));
            line("trust", "this target, its disk and its backups read everything; on the wire it is sealed".to_owned());
        }
        let cost = record_cost(volume);
        let keys = if sealed.custody.is_blind() { 0 } else { volume.geometry.blocks * WRAPPED_KEY_BYTES as u64 };
        let keys = if keys == 0 { String::new() } else { format!("; {} of that are block keys", show_size(keys)) };
        line("seal records", format!("{} bytes a block, {} for all blocks{keys}", cost.0, show_size(cost.1)));
        line("older versions", format!("up to {} % of the size", volume.retention_percent));
    }
    if let Some(clone) = &volume.clone_of {
        line("clone of", clone.snapshot.clone());
    }
    if let Some(successor) = &volume.successor {
        line("being moved", format!("its contents are sealed anew in '{successor}'; nobody writes to it until then"));
    }
    if let Some(succeeds) = &volume.succeeds {
        line("being filled", format!("takes the place of '{succeeds}' when that is done"));
    }
    if !volume.snapshots.is_empty() {
        line("snapshots", volume.snapshots.join(", "));
    }
    line("peers", or_none(&volume.access.peers));
    if volume.sealed.is_none() {
        line("initiators", or_none(&volume.access.initiators));
    }
    if volume.access.protection != Protection::default() {
        line("asks for", volume.access.protection.to_string());
    }
    if volume.access.previous_versions {
        line("damaged blocks", "initiators may choose to read older versions of them".to_owned());
    }
    if volume.access.read_only_if_damaged {
        line("damaged log", "opened read-only; blocks may be missing or old".to_owned());
    }
    line("read only", if volume.access.read_only { "yes" } else { "no" }.to_owned());
    line("medium", medium_text(&volume.medium));
    line("spare", format!("{} % of what is stored, for cleaning", volume.spare_percent));
    line("I/O", volume.io.to_string());
    if let Some(served) = &served {
        show_served(served, &line);
    }
    line("on disk", show_size(status.host_bytes));
    line("in use", if status.in_use { "yes" } else { "no" }.to_owned());
    Ok(())
}

/// What records take at rest: for one block, and when every block is written once.
fn record_cost(volume: &Volume) -> (u64, u64) {
    let bytes = volume.sealed.as_ref().map_or(0, |sealed| sealed.custody.record_bytes_at_rest() as u64);
    (bytes, bytes * volume.geometry.blocks)
}

/// A clone's blocks lie in another volume's store, so only who serves that knows whether it is in use.
fn tell_clones_in_use(target: &RootArgs, statuses: Vec<&mut VolumeStatus>) {
    let mut clones = statuses.into_iter().filter(|status| status.volume.clone_of.is_some()).peekable();
    if clones.peek().is_none() {
        return;
    }
    let socket = target.admin_socket().ok();
    let Some(mut client) = socket.and_then(|socket| Client::connect(&socket).ok().flatten()) else { return };
    let Ok(Reply::Status(report)) = ask(&mut client, &Request::Status) else { return };
    for clone in clones {
        clone.in_use = report.volumes.iter().any(|volume| volume.name == clone.volume.name.as_str());
    }
}

/// What a running target says of the volume's open store.
fn served(target: &RootArgs, status: &VolumeStatus) -> Result<Option<VolumeReport>> {
    if !status.in_use {
        return Ok(None);
    }
    let Some(mut client) = Client::connect(&target.admin_socket()?)? else { return Ok(None) };
    let Reply::Status(report) = ask(&mut client, &Request::Status)? else { return Ok(None) };
    Ok(report.volumes.into_iter().find(|volume| volume.name == status.volume.name.as_str()))
}

fn show_served(served: &VolumeReport, line: &dyn Fn(&str, String)) {
    let because = served.io_reason.as_ref().map(|why| format!(", because {why}")).unwrap_or_default();
    line("I/O now", format!("{}{because}", served.io));
    let store = &served.store;
    line("space", store.space.to_string());
    line("store", free_text(store));
    if let Some(told) = space_text(store) {
        line("", told);
    }
    if let Some(progress) = store.erasing {
        line("erasing", format!("{} %", u32::from(progress) * 100 / 65536));
    }
    if served.retention_blocks > 0 {
        line(
            "versions kept",
            format!(
                "{} of at most {}, and {} for snapshots; since it was opened {} were verified by readers and let go, {} went \
                 for want of room",
                store.versions_retained,
                served.retention_blocks,
                store.versions_pinned,
                store.versions_released,
                store.versions_evicted
            ),
        );
    }
    if let Some(done) = &served.verification {
        line("verified here", format!("{} blocks open, {} do not", done.opened, done.bad_blocks.len()));
    }
}

fn medium_text(medium: &Medium) -> String {
    let warning = if medium.is_durable() { "" } else { ": everything is lost when the target closes the volume" };
    format!("{medium}{warning}")
}

fn or_none(names: &[String]) -> String {
    if names.is_empty() { "none here; see the configuration".to_owned() } else { names.join(", ") }
}

fn as_json(status: &VolumeStatus) -> serde_json::Value {
    let volume = &status.volume;
    json!({
        "name": volume.name.to_string(),
        "volume_id": volume.id.to_string(),
        "size_bytes": volume.geometry.bytes(),
        "block_size": volume.geometry.block_size.bytes(),
        "sealed": volume.sealed.as_ref().map(|sealed| json!({
            "custody": sealed.custody.to_string(),
            "domain": sealed.domain.to_string(),
            "suite": sealed.suite.name(),
            "epoch": sealed.epoch,
            "record_bytes": record_cost(volume).0,
            "record_bytes_in_all": record_cost(volume).1,
            "wrapping_key": sealed.wrapping_key,
            "opened_with": sealed.opened_with,
        })),
        "medium": volume.medium.to_string(),
        "io": volume.io.to_string(),
        "retention_percent": volume.retention_percent,
        "spare_percent": volume.spare_percent,
        "clone_of": volume.clone_of,
        "snapshots": volume.snapshots,
        "successor": volume.successor.as_ref().map(ToString::to_string),
        "succeeds": volume.succeeds.as_ref().map(ToString::to_string),
        "access": volume.access,
        "on_disk_bytes": status.host_bytes,
        "in_use": status.in_use,
    })
}

fn delete(args: &DeleteArgs) -> Result<()> {
    let catalogue = args.target.open()?;
    if !args.yes {
        bail!("this deletes '{}' and everything in it, for ever; if that is meant, add --yes", args.name);
    }
    contents::delete(&args.target, &catalogue, &args.name).with_context(|| format!("cannot delete '{}'", args.name))?;
    println!("deleted '{}'", args.name);
    Ok(())
}
