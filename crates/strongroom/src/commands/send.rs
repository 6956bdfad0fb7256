//! `strongroom volume send`: a snapshot as a stream of bytes, out of a target's store. Needs no keys.
//!
//! Absent: the stream itself (the store's; `docs/send-format.md`) and what carries it from machine to machine (ssh, a disk; `send_to`).

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use strongroom_store::Sender;
use strongroom_target::OpenVolume;
use strongroom_target::admin::{Client, Request, Resume};

use super::opening;
pub(crate) use super::send_options::SendArgs;
use super::send_options::start;
use super::send_to;
use super::stream::OPEN_PATIENCE;
use crate::progress::{ProgressReporter, ProgressUnit};
use crate::units::show_size;

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
    let bar = args.progress.begin("sending", ProgressUnit::Bytes, Some(size_bytes));
    let sent = copy_slices(&mut client, out.as_mut(), &bar);
    if let (Err(_), Some(path)) = (&sent, made) {
        let _ = fs::remove_file(path);
    }
    bar.finish();
    said(args, sent.with_context(what)?);
    Ok(())
}

fn copy_slices(client: &mut Client, out: &mut dyn Write, bar: &ProgressReporter) -> Result<u64> {
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
    let in_words = || eprintln!("sent {name}@{snapshot}{to}: {}", show_size(bytes));
    let result = json!({ "volume": name, "snapshot": snapshot, "sent_bytes": bytes });
    match args.out {
        Some(_) => args.progress.print_result(&result, in_words),
        // Standard output is the stream.
        None if args.progress.is_json() => eprintln!("{result}"),
        None => in_words(),
    }
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
    let bar = args.progress.begin("sending", ProgressUnit::Bytes, Some(geometry.bytes()));
    let mut sent = 0;
    while let Some(bytes) = sender.send(store)? {
        out.write_all(&bytes).context("the stream cannot be written")?;
        sent += bytes.len() as u64;
        bar.set_position(sender.blocks_done() * u64::from(geometry.block_size.bytes()));
    }
    out.flush().context("the stream cannot be written")?;
    bar.finish();
    Ok(sent)
}
