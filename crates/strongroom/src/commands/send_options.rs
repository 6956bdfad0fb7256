//! What `volume send` is told on its command line: which snapshot, and where to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use strongroom_handshake::PublicKey;
use strongroom_initiator::{Transport, UrlParameters, VolumeUrl};
use strongroom_store::Sender;
use strongroom_target::OpenVolume;
use strongroom_target::transfers::Destination;

use super::contents::parse_snapshot;
use super::stream::StreamPosition;
use crate::keys::{self, KEYS, parse_public_key};
use crate::progress::ProgressArgs;
use crate::root_args::RootArgs;
use crate::units::parse_duration;

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
    pub(super) resume_from: Option<StreamPosition>,
    /// The file to write, which must not exist yet. Without it the stream goes to standard output.
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) progress: ProgressArgs,
    #[command(flatten)]
    pub(super) to: ToArgs,
    #[command(flatten)]
    pub(super) target: RootArgs,
}

/// Where `--to` leads, and as whom.
#[derive(Args)]
pub(super) struct ToArgs {
    /// Send it straight into this volume of another target, which must let this node do so (`receive` of its [[peer]]).
    ///
    /// An interrupted transfer goes on where it was, by itself or when the same command is given again.
    #[arg(long, value_name = "URL", conflicts_with_all = ["out", "resume_from"])]
    pub(super) to: Option<VolumeUrl>,
    /// With --to: the file with this node's identity [default: ~/.config/strongroom/identity].
    #[arg(long, value_name = "FILE", env = "STRONGROOM_IDENTITY", help_heading = KEYS)]
    identity: Option<PathBuf>,
    /// With --to: the target's public line, as `strongroom identity show` prints it there; can be repeated.
    #[arg(long = "target-key", value_name = "KEY", value_parser = parse_public_key, help_heading = KEYS)]
    target_keys: Vec<PublicKey>,
    /// With --to: the file that lists known targets [default: ~/.config/strongroom/known_targets].
    #[arg(long = "known", value_name = "FILE", env = "STRONGROOM_KNOWN_TARGETS", help_heading = KEYS)]
    known_targets: Option<PathBuf>,
    /// With --to: how long to go on trying while nothing arrives there; 0 tries for ever.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub(super) timeout: Duration,
    /// With --to: how long one try to connect may take.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    connect_timeout: Duration,
}

impl ToArgs {
    pub(super) fn destination(&self, url: &VolumeUrl) -> Result<Destination> {
        let VolumeUrl::Strongroom {
            host,
            port,
            volume,
            transport: Transport::Iscsi,
            parameters: UrlParameters { scheme: None, suite: None, pipeline: None, parity: None },
        } = url
        else {
            bail!(
                "--to takes strongroom://HOST[:PORT]/VOLUME and nothing behind it: a transfer is always encrypted, and never plain"
            );
        };
        let expected = if self.target_keys.is_empty() {
            let known = self.known_targets.clone().unwrap_or_else(keys::default_known_targets);
            keys::known_keys(&known, keys::Whose::Target, host, *port)?
        } else {
            self.target_keys.clone()
        };
        let identity = self.identity.clone().unwrap_or_else(keys::default_identity);
        Ok(Destination {
            host: host.clone(),
            port: *port,
            volume: volume.clone(),
            node: Arc::new(keys::read_identity(&identity)?),
            expected,
            connect_timeout: self.connect_timeout,
        })
    }
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
