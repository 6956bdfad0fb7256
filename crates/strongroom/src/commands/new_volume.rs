//! What the commands that create a volume share: its protection, its wrapping key, its spare space, and the peers that may use it.
//!
//! Absent: creating one (`volume create`, `volume receive`, `volume reseal`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use strongroom_store::CreateOptions;
use strongroom_target::pairing::paired_names;
use strongroom_target::{Protection, Service};

use crate::config;
use crate::root_args::RootArgs;

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

/// Where the server will find the wrapping key, wherever it is started; refused now if it could not use it then.
pub(crate) fn usable_wrapping_key(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).with_context(|| format!("cannot tell where {} is", path.display()))?;
    strongroom_keyfiles::wrapping::successor_of(&path)?;
    let keys = strongroom_keyfiles::read_key_file(&path)
        .context("the volume needs its wrapping key: strongroom key new --for wrapping --out FILE")?;
    keys.wrapping_key(1).context("that file's key is for something else; see `strongroom key new --for wrapping`")?;
    Ok(path)
}

/// What may be set aside for cleaning, in percent.
pub(crate) fn spare_range() -> clap::builder::RangedI64ValueParser<u16> {
    let (least, most) = (CreateOptions::SPARE_PERCENT_DEFAULT, CreateOptions::SPARE_PERCENT_MAX);
    clap::value_parser!(u16).range(i64::from(least)..=i64::from(most))
}

/// A misspelt peer is no error (it may be added later), but worth a word.
pub(crate) fn warn_of_unknown_peers(target: &RootArgs, peers: &[String]) {
    let Ok(config) = config::read(target.config_file()) else { return };
    let invited = paired_names(&config.root).unwrap_or_default();
    let known = |name: &String| config.peers.iter().any(|peer| peer.name == *name) || invited.contains(name);
    for peer in peers.iter().filter(|peer| *peer != "*" && !known(peer)) {
        eprintln!("note: {} has no [[peer]] named '{peer}' yet, and none was invited", target.config_file().display());
    }
}
