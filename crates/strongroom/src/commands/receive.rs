//! `strongroom volume receive`: a snapshot from a stream of bytes, into a target's store. Needs no keys.
//!
//! Absent: the stream itself (the store's; `docs/send-format.md`) and what carries it from machine to machine (ssh, a disk).

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde_json::json;
use strongroom_block::{Mode, Suite, foreign};
use strongroom_store::{
    CreateOptions, IoChoice, Medium, OpError, Receiver, SnapshotId, StreamError, StreamInfo, UnitKind,
};
use strongroom_target::admin::Client;
use strongroom_target::{Access, Catalogue, CatalogueError, OpenVolume, SealedSpec, VolumeSpec};

use super::new_volume::{spare_range, usable_wrapping_key, warn_of_unknown_peers};
use super::send_to::parse_beginning;
use super::stream::{StreamPosition, read_some};
use super::{opening, receive_served};
use crate::progress::{ProgressArgs, ProgressReporter, ProgressUnit};
use crate::root_args::RootArgs;
use crate::units::{parse_duration, show_size};

/// Bytes of a stream that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Take in what `volume send` wrote; the volume is made if there is none. Needs no key.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom volume receive vault --in vault-monday.stream --peer alice\n  \
    ssh storage strongroom volume send vault@tuesday --from monday | strongroom volume receive vault\n  \
    strongroom volume receive vault --position\n\n\
    Everything is checked on arrival, and the snapshot is there whole or not at all. The volume opens with the key of the one that \
    was sent. One that is there already must be what it was at the snapshot that the stream builds on: roll back to that if it was \
    written to. A target that runs takes the stream in while the volume is read: attachments that read go on seeing what they saw, until the \
    last of them detaches; the new snapshot can be attached at once. Attachments that could write are waited for (--wait).")]
pub(crate) struct ReceiveArgs {
    /// The volume's name.
    name: String,
    /// The file with the stream. Without it the stream comes from standard input.
    #[arg(long = "in", value_name = "FILE")]
    input: Option<PathBuf>,
    /// How long to wait for attachments that could write to the volume.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    wait: Duration,
    /// Print where an interrupted transfer goes on: a token for `volume send --resume-from`.
    #[arg(long, conflicts_with = "input")]
    position: bool,
    /// Give up an interrupted transfer, and what arrived of it.
    #[arg(long, conflicts_with_all = ["input", "position"])]
    abandon: bool,
    /// Make a volume for what another target is going to send (`volume send --to`), and take in nothing yet: with the text that the sender
    /// printed when it found no volume.
    #[arg(long, value_name = "BEGINNING", value_parser = parse_beginning, conflicts_with_all = ["input", "position", "abandon"])]
    new_for: Option<StreamInfo>,
    /// New volume: a peer of the configuration that may use it; can be repeated; '*' for all of them.
    #[arg(long = "peer", value_name = "NAME")]
    peers: Vec<String>,
    /// New plain volume: an initiator name that may use it over plain iSCSI; can be repeated; '*' for any.
    #[arg(long = "initiator", value_name = "IQN")]
    initiators: Vec<String>,
    /// New volume in custody `target`: the file with the key that wraps block keys; the same as where it was sent.
    #[arg(long, value_name = "FILE")]
    wrapping_key: Option<PathBuf>,
    /// New volume: the one that is sent was made with --authenticate-only. Needed only where the stream does not say so (format
    /// version 1).
    #[arg(long)]
    authenticate_only: bool,
    /// New volume: how much of its size older versions of blocks may take, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=100))]
    retention: u8,
    /// New volume: space for cleaning, as in `volume create`.
    #[arg(long, value_name = "PERCENT", default_value_t = CreateOptions::SPARE_PERCENT_DEFAULT, value_parser = spare_range())]
    spare: u16,
    /// New volume: what its blocks lie on, as in `volume create`.
    #[arg(long, value_name = "MEDIUM", default_value_t = Medium::Directory)]
    medium: Medium,
    #[command(flatten)]
    progress: ProgressArgs,
    #[command(flatten)]
    target: RootArgs,
}

/// Runs `volume receive`.
pub(crate) fn receive(args: &ReceiveArgs) -> Result<()> {
    if args.position || args.abandon {
        return unfinished(args);
    }
    if let Some(info) = &args.new_for {
        return make_for(args, info);
    }
    let (mut input, total): (Box<dyn Read>, _) = match &args.input {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let total = file.metadata().ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len());
            (Box::new(file), total)
        }
        None if io::stdin().is_terminal() => {
            bail!("a stream does not come from a terminal; name its file with --in FILE, or pipe it from `volume send`")
        }
        None => (Box::new(io::stdin().lock()), None),
    };
    let (info, start) = beginning(input.as_mut())?;
    let catalogue = Catalogue::open_or_create(args.target.root()?)?;
    make_if_missing(args, &catalogue, &info)?;
    if let Some(client) = Client::connect(&args.target.admin_socket()?)? {
        return receive_served(args, client, &info, &start, input.as_mut(), total);
    }
    let mut volume = opening::open(&args.target, &catalogue, &args.name, args.wait)?;
    if volume.volume().clone_of.is_some() {
        bail!("'{}' is a clone, which takes in no stream; receive into a new volume, under another name", args.name);
    }
    let bar = args.progress.begin("receiving", ProgressUnit::Bytes, total);
    let received = receive_all(args, &mut volume, &info, &start, input.as_mut(), &bar);
    bar.finish();
    let noted = volume.note();
    let rest =
        volume.store().index().receptions().iter().find(|reception| reception.id == info.to).map(StreamPosition::from);
    volume.close()?;
    let bytes = received.with_context(|| not_received(args, &info, rest))?;
    noted?;
    told_received(args, &info, bytes);
    Ok(())
}

/// Into a running target, which goes on serving the volume to those who read it.
fn receive_served(
    args: &ReceiveArgs,
    mut client: Client,
    info: &StreamInfo,
    start: &[u8],
    input: &mut dyn Read,
    total: Option<u64>,
) -> Result<()> {
    receive_served::begin(&mut client, &args.name, args.wait).with_context(|| not_received(args, info, None))?;
    let bar = args.progress.begin("receiving", ProgressUnit::Bytes, total);
    let received = receive_served::feed(&mut client, start, input, &bar);
    bar.finish();
    drop(client);
    let rest = || {
        let mut client = Client::connect(&args.target.admin_socket().ok()?).ok()??;
        let all = receive_served::unfinished(&mut client, &args.name, false).ok()?;
        all.iter().map(|(resume, _)| StreamPosition::from(resume)).find(|place| place.to == info.to)
    };
    let bytes = received.with_context(|| not_received(args, info, rest()))?;
    told_received(args, info, bytes);
    Ok(())
}

fn not_received(args: &ReceiveArgs, info: &StreamInfo, rest: Option<StreamPosition>) -> String {
    let what = format!("cannot receive the snapshot '{}' into '{}'", info.name, args.name);
    match rest {
        Some(rest) => format!(
            "{what}; what arrived is kept (`--abandon` gives it up), the rest comes with: strongroom volume send \
             VOLUME@{} --resume-from {rest}",
            info.name
        ),
        None => what,
    }
}

fn told_received(args: &ReceiveArgs, info: &StreamInfo, bytes: u64) {
    let result = json!({ "volume": args.name, "snapshot": info.name, "received_bytes": bytes });
    args.progress.print_result(&result, || {
        println!("received {}@{}: {} came and all of it was checked", args.name, info.name, show_size(bytes));
    });
}

/// `--new-for`.
fn make_for(args: &ReceiveArgs, info: &StreamInfo) -> Result<()> {
    let catalogue = Catalogue::open_or_create(args.target.root()?)?;
    let name = &args.name;
    if catalogue.show(name).is_ok() {
        bail!("there is a volume '{name}' already; what is sent into it must fit it, or choose another name");
    }
    make_if_missing(args, &catalogue, info)?;
    println!("made '{name}' for the snapshot '{}'; it can be sent now", foreign(&info.name));
    Ok(())
}

/// What a stream says of itself, and the bytes that were read to know it.
fn beginning(input: &mut dyn Read) -> Result<(StreamInfo, Vec<u8>)> {
    let mut start = Vec::new();
    loop {
        let from = start.len();
        start.resize(from + 4096, 0);
        let read = read_some(input, &mut start[from..])?;
        start.truncate(from + read);
        if let Some(info) = StreamInfo::peek(&start)? {
            return Ok((info, start));
        }
        if read == 0 {
            bail!("the stream ends before it says what it is; see what `volume send` said at the other end");
        }
    }
}

fn make_if_missing(args: &ReceiveArgs, catalogue: &Catalogue, info: &StreamInfo) -> Result<()> {
    let name = &args.name;
    let is_new = match catalogue.show(name) {
        Ok(_) => false,
        Err(CatalogueError::Missing { .. }) => true,
        Err(error) => return Err(error.into()),
    };
    let nobody = args.peers.is_empty() && args.initiators.is_empty();
    if !is_new {
        if !nobody {
            eprintln!("note: '{name}' is there already; `strongroom volume access {name}` says who may use it");
        }
        return Ok(());
    }
    if let Some(from) = info.from {
        bail!(
            "there is no volume '{name}', and the stream builds on a snapshot ({from}) that it would need: send in full \
             first (without --from), or name the volume that has it"
        );
    }
    warn_of_unknown_peers(&args.target, &args.peers);
    let made = catalogue.create_for(&spec_of_new(args, info)?, info)?;
    args.progress.say(&format!(
        "made the volume '{name}', {}; it opens with the key of the one that was sent",
        show_size(made.geometry.bytes())
    ));
    if made.id != info.volume_id {
        args.progress.say(&format!(
            "a volume with the identity of the one that was sent is here already; this one has its own, {}",
            made.id
        ));
    }
    if nobody {
        args.progress
            .say("nobody may use it yet, unless the configuration lists it for a peer; see `strongroom volume access`");
    }
    Ok(())
}

/// The volume that is made for a stream.
fn spec_of_new(args: &ReceiveArgs, info: &StreamInfo) -> Result<VolumeSpec> {
    if args.authenticate_only && info.sealing.is_some_and(|sealing| sealing.mode != Mode::AuthenticateOnly) {
        bail!("the stream says that the volume's blocks are encrypted; leave --authenticate-only out");
    }
    let sealed = match info.kind {
        UnitKind::Plain => None,
        UnitKind::Sealed { custody, .. } => Some(SealedSpec {
            custody,
            suite: info.sealing.map_or_else(Suite::default, |sealing| sealing.suite),
            mode: if args.authenticate_only { Mode::AuthenticateOnly } else { Mode::Encrypt },
            wrapping_key: args.wrapping_key.as_deref().map(usable_wrapping_key).transpose()?,
            opened_with: None,
        }),
    };
    Ok(VolumeSpec {
        name: args.name.clone(),
        size_bytes: info.geometry.bytes(),
        block_size: info.geometry.block_size.bytes().into(),
        sealed,
        retention_percent: args.retention,
        spare_percent: args.spare,
        medium: args.medium.clone(),
        io: IoChoice::Auto,
        access: Access { peers: args.peers.clone(), initiators: args.initiators.clone(), ..Access::default() },
    })
}

/// Returns how many bytes came.
fn receive_all(
    args: &ReceiveArgs,
    volume: &mut OpenVolume,
    info: &StreamInfo,
    start: &[u8],
    input: &mut dyn Read,
    bar: &ProgressReporter,
) -> Result<u64> {
    let mut receiver = Receiver::new();
    let mut came = start.len();
    take(args, volume, info, &mut receiver, start)?;
    let mut bytes = vec![0; READ_BYTES];
    while !receiver.is_done() {
        let read = read_some(input, &mut bytes)?;
        if read == 0 {
            bail!("the stream ended after {}, before its end", show_size(came as u64));
        }
        came += read;
        take(args, volume, info, &mut receiver, &bytes[..read])?;
        bar.set_position(came as u64);
    }
    Ok(came as u64)
}

/// Takes in some bytes; if that cannot be, says what to do.
fn take(
    args: &ReceiveArgs,
    volume: &mut OpenVolume,
    info: &StreamInfo,
    receiver: &mut Receiver,
    bytes: &[u8],
) -> Result<()> {
    let Err(error) = receiver.receive(volume.store(), bytes) else { return Ok(()) };
    let name = &args.name;
    if receiver.is_done() {
        bail!("the snapshot '{}' is here, but more follows in the stream, which was not taken: {error}", info.name);
    }
    let snapshots = volume.store().index().snapshots();
    let known = |id: SnapshotId| snapshots.iter().find(|snapshot| snapshot.id == id).map(|snapshot| &snapshot.name);
    let here = volume.store().info().clone();
    Err(match error {
        StreamError::MissingBase(base) => anyhow!(
            "'{name}' has not the snapshot {base} that the stream builds on: send that one first, or send in full (without \
             --from) to a new volume; `strongroom volume snapshot list {name}` shows what is here"
        ),
        StreamError::Diverged => match info.from.and_then(known) {
            Some(base) => anyhow!(
                "'{name}' was written to, or has other snapshots, since the snapshot '{base}' that the stream builds on; \
                 to give that up: strongroom volume snapshot rollback {name}@{base} --yes"
            ),
            None => anyhow!(
                "'{name}' has been used already, and a stream in full goes only into a new volume: choose another name, \
                 or send what '{name}' lacks with --from SNAPSHOT"
            ),
        },
        StreamError::Store(OpError::NameTaken(taken)) if known(info.to).is_some() => {
            anyhow!("the snapshot '{taken}' is here already; there is nothing to do")
        }
        StreamError::Store(OpError::NameTaken(taken)) => anyhow!(
            "'{name}' has another snapshot of the name '{taken}'; delete it first (strongroom volume snapshot delete \
             {name}@{taken}), or receive into a new volume"
        ),
        StreamError::Differs(_) if here.kind == info.kind && here.geometry.blocks < info.geometry.blocks => anyhow!(
            "the volume that was sent has grown to {size} bytes; first: strongroom volume resize {name} --size {size}",
            size = info.geometry.bytes()
        ),
        StreamError::Differs(what) => {
            anyhow!("the stream is not of '{name}' but of another volume ({what}); receive it under another name")
        }
        other => other.into(),
    })
}

/// `--position` and `--abandon`.
fn unfinished(args: &ReceiveArgs) -> Result<()> {
    let name = &args.name;
    let receptions = match Client::connect(&args.target.admin_socket()?)? {
        Some(mut client) => {
            let all = receive_served::unfinished(&mut client, name, args.abandon)?;
            all.into_iter().map(|(resume, snapshot)| (StreamPosition::from(&resume), snapshot)).collect()
        }
        None => unfinished_here(args)?,
    };
    if receptions.is_empty() {
        bail!("no transfer into '{name}' was interrupted; `strongroom volume snapshot list {name}` shows what is here");
    }
    for (place, snapshot) in &receptions {
        if args.abandon {
            println!("what had arrived of the snapshot '{snapshot}' is given up");
        } else {
            println!("{place}");
        }
    }
    Ok(())
}

fn unfinished_here(args: &ReceiveArgs) -> Result<Vec<(StreamPosition, String)>> {
    let mut volume = opening::open(&args.target, &args.target.open()?, &args.name, args.wait)?;
    let receptions = volume.store().index().receptions();
    let mut abandoned = Ok(());
    if args.abandon {
        abandoned = receptions.iter().try_for_each(|reception| Receiver::abandon(volume.store(), reception.id));
    }
    volume.close()?;
    abandoned.context("what arrived cannot be given up")?;
    Ok(receptions.iter().map(|reception| (StreamPosition::from(reception), reception.name.clone())).collect())
}
