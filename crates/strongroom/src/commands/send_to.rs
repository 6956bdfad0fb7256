//! `strongroom volume send --to`: a snapshot straight into a volume of another target, which goes on where it was interrupted.
//!
//! Absent: what the two targets say to each other (`strongroom_target::transfers`, `docs/transfer.md`).

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use strongroom_block::foreign;
use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_initiator::VolumeUrl;
use strongroom_store::{Sender, StreamInfo};
use strongroom_target::OpenVolume;
use strongroom_target::admin::{AdminError, Client, Request, Resume};
use strongroom_target::transfers::{Begun, Destination, Outgoing, RefusalCode, TransferError};

use super::opening;
use super::send_options::{SendArgs, start};
use super::stream::{OPEN_PATIENCE, StreamPosition};
use crate::progress::{ProgressReporter, ProgressUnit};
use crate::units::{show_duration, show_size};

/// How long to wait before another try, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// What became of one try.
enum Tried {
    WasThere,
    Sent { bytes: u64 },
}

/// Why one try failed.
enum Failure {
    /// Here. `may_pass`: a target that was stopped or killed may be back, or its volume can be opened without it.
    Source { error: anyhow::Error, may_pass: bool },
    /// There, or between.
    Transfer(TransferError),
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Failure {
        Failure::Transfer(error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        let may_pass = matches!(error.downcast_ref(), Some(AdminError::Broken { .. }));
        Failure::Source { error, may_pass }
    }
}

impl Failure {
    fn may_pass(&self) -> bool {
        match self {
            Failure::Source { may_pass, .. } => *may_pass,
            Failure::Transfer(error) => error.may_pass(),
        }
    }

    fn in_words(&self) -> String {
        match self {
            Failure::Source { error, .. } => format!("{error:#}"),
            Failure::Transfer(TransferError::Refused { text, .. }) => format!("the target refused: {}", foreign(text)),
            Failure::Transfer(error) => error.to_string(),
        }
    }
}

/// Runs it.
pub(super) fn send(args: &SendArgs, url: &VolumeUrl) -> Result<()> {
    let (name, snapshot) = &args.snapshot;
    let to = args.to.destination(url)?;
    let place = url.place();
    let bar = args.progress.begin("sending", ProgressUnit::Bytes, None);
    let mut progress = TransferProgress { bar, moved: Instant::now(), reached: None, info: None };
    let [mut pause, longest] = PAUSES;
    let mut told = None;
    loop {
        let began = progress.reached;
        let failure = match attempt(args, &to, &mut progress) {
            Ok(tried) => {
                progress.bar.finish();
                let sent_bytes = if let Tried::Sent { bytes } = tried { bytes } else { 0 };
                let result = json!({ "volume": name, "snapshot": snapshot, "to": place, "sent_bytes": sent_bytes });
                args.progress.print_result(&result, || match tried {
                    Tried::WasThere => eprintln!("{place} has {name}@{snapshot} already; there was nothing to send"),
                    Tried::Sent { bytes } => eprintln!("sent {name}@{snapshot} to {place}: {}", show_size(bytes)),
                });
                return Ok(());
            }
            Err(failure) => failure,
        };
        if progress.reached > began {
            pause = PAUSES[0];
        }
        let tries_on = args.to.timeout.is_zero() || progress.moved.elapsed() + pause < args.to.timeout;
        if !failure.may_pass() || !tries_on {
            progress.bar.finish();
            let what = format!("cannot send {name}@{snapshot} to {place}: {}", failure.in_words());
            bail!("{what}{}", advice(args, &to, &progress, &failure));
        }
        let why = failure.in_words();
        if told.as_ref() != Some(&why) {
            let time = if args.to.timeout.is_zero() {
                String::new()
            } else {
                format!(" for {}", show_duration(args.to.timeout))
            };
            progress.bar.suspend(|| eprintln!("{why}; trying again{time}"));
            told = Some(why);
        }
        sleep(pause);
        pause = (pause * 2).min(longest);
    }
}

/// What is known of the transfer so far.
struct TransferProgress {
    bar: ProgressReporter,
    /// When the other end last had more than before.
    moved: Instant,
    /// The furthest place that it has told.
    reached: Option<u64>,
    info: Option<(StreamInfo, Vec<u8>)>,
}

impl TransferProgress {
    fn reach(&mut self, position: u64) {
        if self.reached.is_none_or(|reached| reached < position) {
            (self.reached, self.moved) = (Some(position), Instant::now());
        }
    }
}

fn attempt(args: &SendArgs, to: &Destination, progress: &mut TransferProgress) -> Result<Tried, Failure> {
    let mut source = Source::open(args)?;
    let sent = send_from(&mut source, args, to, progress);
    let closed = source.close();
    let sent = sent?;
    closed?;
    Ok(sent)
}

fn send_from(
    source: &mut Source,
    args: &SendArgs,
    to: &Destination,
    progress: &mut TransferProgress,
) -> Result<Tried, Failure> {
    let mut first = source.begin(args, None)?;
    let info = StreamInfo::peek(&first).map_err(anyhow::Error::from)?;
    let info =
        info.ok_or_else(|| anyhow!("the stream does not begin with what it is; this is a defect, please report it"))?;
    progress.info = Some((info.clone(), first.clone()));
    let (position, mut outgoing) = match Outgoing::begin(to, &first)? {
        Begun::WasThere => return Ok(Tried::WasThere),
        Begun::At { position, outgoing } => (position, outgoing),
    };
    progress.reach(position);
    if position > 0 {
        first = source.begin(args, Some(StreamPosition { to: info.to, from: info.from, position }))?;
    }
    progress.bar.set_total(info.geometry.bytes());
    let mut bytes = first.len() as u64;
    let sent = feed(source, &mut outgoing, &first, progress, &mut bytes);
    // Also of one that broke: what is durable there need not be sent again.
    if outgoing.acknowledged() > 0 {
        progress.reach(outgoing.position());
    }
    sent?;
    outgoing.finish()?;
    Ok(Tried::Sent { bytes })
}

fn feed(
    source: &mut Source,
    outgoing: &mut Outgoing,
    first: &[u8],
    progress: &mut TransferProgress,
    bytes: &mut u64,
) -> Result<(), Failure> {
    outgoing.send(first)?;
    while let Some((slice, done_bytes)) = source.next()? {
        outgoing.send(&slice)?;
        *bytes += slice.len() as u64;
        progress.bar.set_position(done_bytes);
        progress.reach(outgoing.position());
    }
    Ok(())
}

/// What the person can do now.
fn advice(args: &SendArgs, to: &Destination, progress: &TransferProgress, failure: &Failure) -> String {
    let volume = &to.volume;
    let Failure::Transfer(error) = failure else { return String::new() };
    let mut advice = match error {
        TransferError::Refused { code: RefusalCode::NotPermitted, .. } => format!(
            "\nThere, in the configuration, `receive = [\"{volume}\"]` in the [[peer]] with this node's key lets it; then: strongroom \
             reload. This node's key: {}",
            node_key(&to.node)
        ),
        TransferError::Refused { code: RefusalCode::NoSuchVolume, .. } => no_such_volume(volume, progress),
        TransferError::Refused { code: RefusalCode::MissingBase, .. } => format!(
            "\nSend that snapshot first, or choose with --from one that both have (there: strongroom volume snapshot list {volume})"
        ),
        TransferError::Handshake(_) => {
            "\nIf the target there is older than `volume send --to`, replace it first, or use a file or ssh".to_owned()
        }
        _ => String::new(),
    };
    if progress.reached.is_some_and(|position| position > 0) {
        let (name, snapshot) = &args.snapshot;
        advice
            .push_str(&format!("\nWhat arrived of {name}@{snapshot} is kept there; the same command goes on from it"));
    }
    advice
}

fn node_key(node: &NodeKey) -> PublicKey {
    node.public()
}

fn no_such_volume(volume: &str, progress: &TransferProgress) -> String {
    match &progress.info {
        Some((info, begin)) if info.from.is_none() => format!(
            "\nMake one for it there: strongroom volume receive {volume} --new-for {}\nthen give the same command again",
            hex(begin)
        ),
        _ => "\nSend in full first (without --from)".to_owned(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The beginning of a stream, as the sender's advice has it.
pub(super) fn parse_beginning(text: &str) -> Result<StreamInfo, String> {
    let wrong =
        || "not the beginning of a stream; take the whole line that `strongroom volume send --to` printed".to_owned();
    let digits = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2 && !pair.starts_with('+'))?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Vec<u8> = digits.collect::<Option<_>>().ok_or_else(wrong)?;
    StreamInfo::peek(&bytes).ok().flatten().ok_or_else(wrong)
}

/// Where the stream comes from: out of a running target, which goes on serving the volume, or out of a store that nobody has.
enum Source {
    Served { client: Client },
    Open { volume: Box<OpenVolume>, sender: Option<Sender> },
}

impl Source {
    fn open(args: &SendArgs) -> Result<Source> {
        let target = &args.target;
        if let Some(client) = Client::connect(&target.admin_socket()?)? {
            return Ok(Source::Served { client });
        }
        let volume = opening::open(target, &target.open()?, &args.snapshot.0, Duration::ZERO)?;
        let source = Source::Open { volume: Box::new(volume), sender: None };
        Ok(source)
    }

    /// The first bytes of the stream, or of the rest of it.
    fn begin(&mut self, args: &SendArgs, place: Option<StreamPosition>) -> Result<Vec<u8>> {
        let (name, snapshot) = &args.snapshot;
        match self {
            Source::Served { client } => {
                if place.is_some() {
                    let again = Client::connect(&args.target.admin_socket()?)?;
                    *client = again.context("the target that serves the volume has gone; try again")?;
                }
                let resume = place.map(|place| Resume {
                    to: place.to.0,
                    from: place.from.map(|from| from.0),
                    position: place.position,
                });
                let from = args.from.clone();
                let request = Request::Send { volume: name.clone(), snapshot: snapshot.clone(), from, resume };
                client.begin_stream(&request, OPEN_PATIENCE)?;
            }
            Source::Open { volume, sender } => {
                volume.volume().may_be_sent().map_err(anyhow::Error::msg)?;
                *sender = Some(start(args, volume, place)?);
            }
        }
        while let Some((bytes, _)) = self.next()? {
            if !bytes.is_empty() {
                return Ok(bytes);
            }
        }
        bail!("the stream ended before it began; this is a defect, please report it")
    }

    /// The next bytes, and how much of the volume is done with them.
    fn next(&mut self) -> Result<Option<(Vec<u8>, u64)>> {
        match self {
            Source::Served { client } => Ok(client.next_slice()?),
            Source::Open { volume, sender } => {
                let store = volume.store();
                let sender = sender.as_mut().expect("the stream was begun");
                let bytes = sender.send(store)?;
                let block_bytes = u64::from(store.info().geometry.block_size.bytes());
                Ok(bytes.map(|bytes| (bytes, sender.blocks_done() * block_bytes)))
            }
        }
    }

    fn close(self) -> Result<()> {
        match self {
            Source::Served { .. } => Ok(()),
            Source::Open { volume, .. } => Ok(volume.close()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_that_is_none_is_refused_with_words() {
        for text in ["", "0", "zz", "+1", "5352736401", "ü"] {
            assert!(parse_beginning(text).unwrap_err().contains("volume send --to"), "{text}");
        }
    }
}
