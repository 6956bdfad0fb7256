//! `strongroom key share` and `key receive`: a key file on its way from one initiator to another. The target has no part in it: it has no keys.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_handshake::{PublicKey, SHARED_TEXT_BYTES_MAX, SharedKey};
use strongroom_keyfiles::secret_file;
use strongroom_seal::{KeyPurpose, VolumeKeyFile};

use super::print_ids;
use crate::keys;

/// `key share`.
#[derive(Args)]
pub(crate) struct ShareArgs {
    /// The key file.
    file: PathBuf,
    /// The public line of the node that it is for.
    #[arg(long, value_name = "KEY", value_parser = keys::parse_public_key)]
    to: PublicKey,
    /// The file with this node's identity, which signs [default: ~/.config/strongroom/identity].
    #[arg(long, value_name = "FILE", env = "STRONGROOM_IDENTITY")]
    identity: Option<PathBuf>,
}

/// `key receive`.
#[derive(Args)]
pub(crate) struct ReceiveArgs {
    /// The public line of the node that must have sent it.
    #[arg(long, value_name = "KEY", value_parser = keys::parse_public_key)]
    from: Option<PublicKey>,
    /// The key file to make; it must not exist yet.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Read what was sent from this file instead of standard input.
    #[arg(long = "in", value_name = "FILE")]
    input: Option<PathBuf>,
    /// The file with this node's identity, which opens it [default: ~/.config/strongroom/identity].
    #[arg(long, value_name = "FILE", env = "STRONGROOM_IDENTITY")]
    identity: Option<PathBuf>,
}

/// Runs `key share`.
pub(super) fn share(args: &ShareArgs) -> Result<()> {
    let node = keys::read_identity(&args.identity.clone().unwrap_or_else(keys::default_identity))?;
    let file = strongroom_keyfiles::read_key_file(&args.file)?;
    if file.purpose() != KeyPurpose::Volume {
        bail!("{} is a {}, which stays where it is; keys of volumes are shared", args.file.display(), file.purpose());
    }
    print!("{}", SharedKey::seal(&node, args.to, &file.to_text())?.to_text());
    eprintln!(
        "only the node with the key '{}' can open this; it needs your line, to know that it is yours: --from '{}'",
        args.to,
        node.public()
    );
    Ok(())
}

/// Runs `key receive`.
pub(super) fn receive(args: &ReceiveArgs) -> Result<()> {
    let node = keys::read_identity(&args.identity.clone().unwrap_or_else(keys::default_identity))?;
    // Twice: base64, and what a mail program puts around it.
    let limit = 2 * SHARED_TEXT_BYTES_MAX as u64;
    let mut text = String::new();
    match &args.input {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            file.take(limit).read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
        }
        None => drop(io::stdin().lock().take(limit).read_to_string(&mut text).context("cannot read what was sent")?),
    }
    let opened = SharedKey::parse(&text)?.open(&node, args.from)?;
    let file = VolumeKeyFile::parse(&opened).context("what was sent opens but is no key file; have it sent again")?;
    if file.purpose() != KeyPurpose::Volume {
        bail!("what was sent is a {}, not a volume's key file", file.purpose());
    }
    secret_file::create(&args.out, &file.to_text())?;
    println!("{}", args.out.display());
    print_ids(&file);
    Ok(())
}
