//! `strongroom join`: takes up an invitation of a target. Makes an identity if there is none, and notes the target's key.
//!
//! The invitation is a secret, so it comes from standard input or a file and never from the command line.

use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use strongroom_handshake::{INVITATION_TEXT_BYTES_MAX, Invitation, NodeKey, is_address};
use strongroom_initiator::DEFAULT_PORT;
use strongroom_keyfiles::secret_file;
use strongroom_target::PeerRole;
use strongroom_target::pairing::{JoinError, Joined, PairingRefusal, join};
use zeroize::Zeroizing;

use crate::keys;
use crate::units::{parse_duration, show_duration};

/// Take up an invitation: this machine becomes a peer of the target that gave it out.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom join                           and paste the line that `strongroom invite` printed on the target\n  \
    strongroom join --token-file invitation\n  \
    ssh storage strongroom invite alice --volume vault | strongroom join\n\n\
    Joining again with the same invitation and identity changes nothing and says that it is done.")]
pub(crate) struct JoinArgs {
    /// Read the invitation from this file instead of standard input.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Where the target is from here, if not where the invitation says; can be repeated.
    #[arg(long = "address", value_name = "HOST[:PORT]")]
    addresses: Vec<String>,
    /// The file with this node's identity; made if it is not there [default: ~/.config/strongroom/identity].
    #[arg(long, value_name = "FILE", env = "STRONGROOM_IDENTITY", help_heading = keys::KEYS)]
    identity: Option<PathBuf>,
    /// The file that lists known targets, to which this one is added [default: ~/.config/strongroom/known_targets].
    #[arg(long = "known", value_name = "FILE", env = "STRONGROOM_KNOWN_TARGETS", help_heading = keys::KEYS)]
    known_targets: Option<PathBuf>,
    /// How long connecting may take, for each address.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    connect_timeout: Duration,
    #[arg(hide = true)]
    given_as_argument: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &JoinArgs) -> Result<()> {
    if args.given_as_argument.is_some() {
        bail!(
            "an invitation is a secret, and other users of this machine can see the arguments of commands: run `strongroom join` without it, \
             and paste it then"
        );
    }
    let invitation = Invitation::parse(&read_text(args.token_file.as_deref())?)?;
    let addresses = args.addresses(&invitation)?;
    let known = args.known_targets.clone().unwrap_or_else(keys::default_known_targets);
    for address in &addresses {
        let (host, port) = split(address)?;
        keys::check_new_target(&known, host, port, &invitation.target)?;
    }
    let node = identity(&args.identity.clone().unwrap_or_else(keys::default_identity))?;
    let joined =
        join(&invitation, &addresses, &node, args.connect_timeout).map_err(|error| explain(error, &invitation))?;
    let (host, port) = split(&joined.address)?;
    keys::add_known_target(&known, host, port, &invitation.target)?;
    print_joined(&joined, host, port, &known);
    Ok(())
}

fn print_joined(joined: &Joined, host: &str, port: u16, known: &Path) {
    let name = match (host.contains(':'), port) {
        (false, DEFAULT_PORT) => host.to_owned(),
        (false, port) => format!("{host}:{port}"),
        (true, DEFAULT_PORT) => format!("[{host}]"),
        (true, port) => format!("[{host}]:{port}"),
    };
    let before = if joined.was_joined { " before" } else { "" };
    let right = if joined.read_only { ", to read only" } else { "" };
    println!("this node has joined {name}{before}, as '{}'{right}; its key is in {}", joined.name, known.display());
    if joined.role == PeerRole::Operator {
        println!("it is an operator there: see the volumes with: strongroom volume list --target {name}");
    }
    for volume in &joined.volumes {
        match volume.as_str() {
            "*" => println!("all of its volumes; see them with: strongroom discover {name}"),
            volume => println!("strongroom://{name}/{volume}"),
        }
    }
}

/// The line, from a person, a pipe or a file.
fn read_text(file: Option<&Path>) -> Result<Zeroizing<String>> {
    // Sized up front: a string that grows leaves unwiped copies behind.
    let mut text = Zeroizing::new(String::with_capacity(INVITATION_TEXT_BYTES_MAX + 1));
    let limit = INVITATION_TEXT_BYTES_MAX as u64;
    match file {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            file.take(limit).read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
        }
        None if io::stdin().is_terminal() => {
            eprint!("paste the invitation: ");
            io::stdin().lock().take(limit).read_line(&mut text)?;
        }
        None => {
            io::stdin().lock().take(limit).read_to_string(&mut text).context("cannot read the invitation")?;
        }
    }
    Ok(text)
}

/// Reads the identity, or makes the first one.
fn identity(path: &Path) -> Result<NodeKey> {
    if path.exists() {
        return keys::read_identity(path);
    }
    let node = NodeKey::generate();
    secret_file::create(path, &node.to_text())?;
    eprintln!("made {}", path.display());
    Ok(node)
}

/// `host:port`, which was looked at before.
fn split(address: &str) -> Result<(&str, u16)> {
    let (host, port) = address.rsplit_once(':').ok_or_else(|| anyhow!("'{address}' has no port"))?;
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port.parse()?))
}

/// If the invitation is over, how long.
fn explain(error: JoinError, invitation: &Invitation) -> anyhow::Error {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let may_be_over = matches!(
        error,
        JoinError::NoInvitations { .. } | JoinError::Refused(PairingRefusal::NotValid | PairingRefusal::Expired)
    );
    match now_s.checked_sub(invitation.expires_at) {
        Some(over_s) if may_be_over => {
            let over = show_duration(Duration::from_secs(over_s));
            anyhow!("{error} (by this machine's clock it expired {over} ago)")
        }
        _ => error.into(),
    }
}

impl JoinArgs {
    fn addresses(&self, invitation: &Invitation) -> Result<Vec<String>> {
        if self.addresses.is_empty() {
            return Ok(invitation.addresses.clone());
        }
        let whole = |address: &String| {
            let with_port = match address.parse::<std::net::Ipv6Addr>() {
                Ok(_) => format!("[{address}]:{DEFAULT_PORT}"),
                Err(_) if is_address(address) => address.clone(),
                Err(_) => format!("{address}:{DEFAULT_PORT}"),
            };
            if is_address(&with_port) { Ok(with_port) } else { Err(anyhow!("'{address}' is not HOST or HOST:PORT")) }
        };
        self.addresses.iter().map(whole).collect()
    }
}
