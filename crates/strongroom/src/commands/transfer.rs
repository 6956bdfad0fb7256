//! `strongroom volume send` and `receive`: a snapshot as a stream of bytes, out of one target's store and into another's. Needs no keys.
//!
//! Absent: the stream itself (the store's; `docs/send-format.md`) and what carries it from machine to machine (ssh, a disk).

use std::fmt;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use strongroom_block::{Mode, Suite, foreign};
use strongroom_store::{
    CreateOptions, IoChoice, Medium, OpError, Receiver, ReceptionInfo, Sender, SnapshotId, StreamError, StreamInfo,
    UnitKind,
};
use strongroom_target::admin::{Client, Request, Resume};
use strongroom_target::{Access, Catalogue, CatalogueError, OpenVolume, SealedSpec, VolumeSpec};

use super::contents::parse_snapshot;
use super::new_volume::{spare_range, usable_wrapping_key, warn_of_unknown_peers};
use super::send_to::{self, ToArgs, parse_beginning};
use super::{opening, receive_served};
use crate::root_args::RootArgs;
use crate::units::{parse_duration, show_size};

/// How long a target may take to open a volume.
pub(super) const OPEN_PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of a stream that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Write a snapshot of a volume as a stream of bytes, for `volume receive` on another machine. Needs no key.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom volume send vault@monday --out vault-monday.stream\n  \
    strongroom volume send vault@tuesday --from monday --to strongroom://dr.example/vault\n  \
    strongroom volume send vault@tuesday --from monday | ssh backup strongroom volume receive vault\n  \
    strongroom volume send vault@monday --resume-from $(ssh backup strongroom volume receive vault --position) --out rest.stream\n\n\
    The volume may be used meanwhile: a target that runs sends it, slice by slice. Blocks travel \
    as they lie at rest: a sealed volume's are ciphertext, a plain volume's are plain. Send them through something that protects \
    the stream; --to does.")]
pub(crate) struct SendArgs {
    /// VOLUME@SNAPSHOT.
    #[arg(value_parser = parse_snapshot)]
    pub(super) snapshot: (String, String),
    /// Send only what was written since this older snapshot, which the receiving volume must have.
    #[arg(long, value_name = "SNAPSHOT")]
    pub(super) from: Option<String>,
    /// Go on with a transfer that was interrupted: what `volume receive NAME --position` printed.
    #[arg(long, value_name = "TOKEN")]
    resume_from: Option<StreamPosition>,
    /// The file to write, which must not exist yet. Without it the stream goes to standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// No progress bar.
    #[arg(long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) to: ToArgs,
    #[command(flatten)]
    pub(super) target: RootArgs,
}

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
    /// No progress bar.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    target: RootArgs,
}

/// Where a transfer goes on: of which snapshot, building on which, and the sender's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamPosition {
    pub(super) to: SnapshotId,
    pub(super) from: Option<SnapshotId>,
    pub(super) position: u64,
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{:x}", self.to, self.from.unwrap_or(SnapshotId(0)), self.position)
    }
}

impl FromStr for StreamPosition {
    type Err = String;

    fn from_str(text: &str) -> Result<StreamPosition, String> {
        let numbers: Vec<u64> = text.split('-').filter_map(|part| u64::from_str_radix(part, 16).ok()).collect();
        match numbers[..] {
            [to, from, position] if text.matches('-').count() == 2 => Ok(StreamPosition {
                to: SnapshotId(to),
                from: Some(SnapshotId(from)).filter(|from| from.0 != 0),
                position,
            }),
            _ => Err("not a position; take what `strongroom volume receive NAME --position` prints".to_owned()),
        }
    }
}

impl From<&ReceptionInfo> for StreamPosition {
    fn from(reception: &ReceptionInfo) -> StreamPosition {
        StreamPosition { to: reception.id, from: reception.from, position: reception.position }
    }
}

impl From<&Resume> for StreamPosition {
    fn from(resume: &Resume) -> StreamPosition {
        let (to, from) = (SnapshotId(resume.to), resume.from.map(SnapshotId));
        StreamPosition { to, from, position: resume.position }
    }
}

/// Runs `volume send`.
pub(crate) fn send(args: &SendArgs) -> Result<()> {
    let (name, snapshot) = &args.snapshot;
    if let Some(url) = &args.to.to {
        return send_to::send(args, url);
    }
    if args.out.is_none() && io::stdout().is_terminal() {
        bail!("the stream is no text for a terminal; name a file with --out FILE, or pipe it to where it is received");
    }
    if let Some(client) = Client::connect(&args.target.admin_socket()?)? {
        return send_served(args, client);
    }
    let mut volume = opening::open(&args.target, &args.target.open()?, name, Duration::ZERO)?;
    let may = volume.volume().may_be_sent().map_err(anyhow::Error::msg);
    let sent = may.and_then(|()| start(args, &volume, args.resume_from)).and_then(|sender| {
        let (mut out, made) = output(args.out.as_deref())?;
        let sent = send_all(args, &mut volume, sender, &mut out);
        if let (Err(_), Some(path)) = (&sent, made) {
            let _ = fs::remove_file(path);
        }
        sent
    });
    volume.close()?;
    let bytes = sent.with_context(|| format!("cannot send {name}@{snapshot}"))?;
    said(args, bytes);
    Ok(())
}

/// Out of a running target, which goes on serving the volume.
fn send_served(args: &SendArgs, mut client: Client) -> Result<()> {
    let (name, snapshot) = &args.snapshot;
    let resume = args.resume_from.map(|place| Resume {
        to: place.to.0,
        from: place.from.map(|from| from.0),
        position: place.position,
    });
    let request = Request::Send { volume: name.clone(), snapshot: snapshot.clone(), from: args.from.clone(), resume };
    let what = || format!("cannot send {name}@{snapshot}");
    let size_bytes = client.begin_stream(&request, OPEN_PATIENCE).with_context(what)?;
    let (mut out, made) = output(args.out.as_deref())?;
    let bar = progress_bar("sending", Some(size_bytes), args.quiet);
    let sent = copy_slices(&mut client, out.as_mut(), &bar);
    if let (Err(_), Some(path)) = (&sent, made) {
        let _ = fs::remove_file(path);
    }
    bar.finish_and_clear();
    said(args, sent.with_context(what)?);
    Ok(())
}

fn copy_slices(client: &mut Client, out: &mut dyn Write, bar: &ProgressBar) -> Result<u64> {
    let mut sent = 0;
    while let Some((slice, done_bytes)) = client.next_slice()? {
        out.write_all(&slice).context("the stream cannot be written")?;
        sent += slice.len() as u64;
        bar.set_position(done_bytes);
    }
    out.flush().context("the stream cannot be written")?;
    Ok(sent)
}

fn said(args: &SendArgs, bytes: u64) {
    let (name, snapshot) = &args.snapshot;
    let to = args.out.as_deref().map(|path| format!(" to {}", path.display())).unwrap_or_default();
    eprintln!("sent {name}@{snapshot}{to}: {}", show_size(bytes));
}

/// What is to be sent, from where on.
pub(super) fn start(args: &SendArgs, volume: &OpenVolume, resume_from: Option<StreamPosition>) -> Result<Sender> {
    let (name, snapshot) = &args.snapshot;
    let find = |snapshot: &String| {
        volume.snapshot(snapshot).ok_or_else(|| {
            anyhow!(
                "'{name}' has no snapshot '{snapshot}'; `strongroom volume snapshot list {name}` shows what there is"
            )
        })
    };
    let to = find(snapshot)?;
    let from = args.from.as_ref().map(find).transpose()?;
    let Some(place) = resume_from else { return Ok(volume.sender(from, to, 0)) };
    if place.to != to {
        bail!(
            "that position is of another snapshot ({}) than {snapshot} ({to}); name the one that was being sent",
            place.to
        );
    }
    if args.from.is_some() && place.from != from {
        bail!("that position is of a transfer that builds on something else than --from says; leave --from out");
    }
    Ok(volume.sender(place.from, to, place.position))
}

/// Where the stream goes, and the file that was made for it.
fn output(path: Option<&Path>) -> Result<(Box<dyn Write>, Option<&Path>)> {
    let Some(path) = path else { return Ok((Box::new(io::stdout().lock()), None)) };
    // A tape or a pipe is not made, and not removed.
    let is_there = fs::metadata(path).map(|metadata| metadata.file_type());
    let is_device = is_there.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device() || kind.is_fifo());
    let mut options = File::options();
    options.write(true).create_new(!is_device).mode(0o600);
    let file = options.open(path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok((Box::new(SyncedFile { file, is_device }), (!is_device).then_some(path)))
}

/// A file whose flush is durable.
struct SyncedFile {
    file: File,
    is_device: bool,
}

impl Write for SyncedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_device { self.file.flush() } else { self.file.sync_all() }
    }
}

/// Returns how many bytes the stream has.
fn send_all(args: &SendArgs, volume: &mut OpenVolume, mut sender: Sender, out: &mut dyn Write) -> Result<u64> {
    let store = volume.store();
    let geometry = store.info().geometry;
    let bar = progress_bar("sending", Some(geometry.bytes()), args.quiet);
    let mut sent = 0;
    while let Some(bytes) = store.send(&mut sender)? {
        out.write_all(&bytes).context("the stream cannot be written")?;
        sent += bytes.len() as u64;
        bar.set_position(sender.blocks_done() * u64::from(geometry.block_size.bytes()));
    }
    out.flush().context("the stream cannot be written")?;
    bar.finish_and_clear();
    Ok(sent)
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
    let bar = progress_bar("receiving", total, args.quiet);
    let received = receive_all(args, &mut volume, &info, &start, input.as_mut(), &bar);
    bar.finish_and_clear();
    let noted = volume.note();
    let rest = volume.store().receptions().iter().find(|reception| reception.id == info.to).map(StreamPosition::from);
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
    let bar = progress_bar("receiving", total, args.quiet);
    let received = receive_served::feed(&mut client, start, input, &bar);
    bar.finish_and_clear();
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
    println!("received {}@{}: {} came and all of it was checked", args.name, info.name, show_size(bytes));
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

pub(super) fn read_some(input: &mut dyn Read, bytes: &mut [u8]) -> Result<usize> {
    loop {
        match input.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read.context("the stream cannot be read"),
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
    println!(
        "made the volume '{name}', {}; it opens with the key of the one that was sent",
        show_size(made.geometry.bytes())
    );
    if made.id != info.volume_id {
        println!(
            "a volume with the identity of the one that was sent is here already; this one has its own, {}",
            made.id
        );
    }
    if nobody {
        println!("nobody may use it yet, unless the configuration lists it for a peer; see `strongroom volume access`");
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
    bar: &ProgressBar,
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
    let Err(error) = volume.store().receive(receiver, bytes) else { return Ok(()) };
    let name = &args.name;
    if receiver.is_done() {
        bail!("the snapshot '{}' is here, but more follows in the stream, which was not taken: {error}", info.name);
    }
    let snapshots = volume.store().snapshots();
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
    let receptions = volume.store().receptions();
    let mut abandoned = Ok(());
    if args.abandon {
        abandoned = receptions.iter().try_for_each(|reception| volume.store().receive_abandon(reception.id));
    }
    volume.close()?;
    abandoned.context("what arrived cannot be given up")?;
    Ok(receptions.iter().map(|reception| (StreamPosition::from(reception), reception.name.clone())).collect())
}

pub(super) fn progress_bar(what: &'static str, total: Option<u64>, quiet: bool) -> ProgressBar {
    if quiet || !io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let template = match total {
        Some(_) => "{prefix} {bar:30} {percent:>3} %  {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        None => "{prefix} {spinner} {bytes}, {bytes_per_sec}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is constant");
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(style.progress_chars("=> ")).with_prefix(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_written() {
        for from in [None, Some(SnapshotId(7))] {
            let place = StreamPosition { to: SnapshotId(u64::MAX), from, position: (1 << 62) + 9 };
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for bad in ["", "1-2", "1-2-3-4", "x-1-2", "1--2", "1-2-x-3"] {
            assert!(bad.parse::<StreamPosition>().is_err(), "{bad}");
        }
    }
}
