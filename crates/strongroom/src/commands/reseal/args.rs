//! The options of `strongroom volume reseal`, and what a volume can be moved to.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use strongroom_block::{Custody, Suite};
use strongroom_store::Medium;

use crate::access::AccessArgs;
use crate::progress::ProgressArgs;
use crate::root_args::RootArgs;
use crate::state_file::StateArgs;
use crate::units::parse_size;

/// Reseal what was written under older key epochs, and then destroy those epochs at the key server; or, with --to, move the whole volume
/// to another custody, or from plain to sealed and back, while nobody writes to it.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom volume reseal strongroom://storage/vault --key-server keys --state /var/tmp/vault.reseal --rate 100MiB\n  \
    strongroom volume reseal vault --to keyserver --peer alice --root /srv/strongroom      (on the target's machine)\n  \
    strongroom volume reseal strongroom://storage/vault --key-file vault.key --to keyserver=keys --state /var/tmp/vault.move\n\n\
    To another custody: prepared on the target's machine, moved by an initiator that has the keys of both. The volume keeps its name, \
    size, identity and what is absent in it; until all of it was read back it can be read as before, and nobody writes to it. Killed, \
    the same command goes on. The target needs room for both. A volume with snapshots or clones is refused.\n\n\
    Older epochs: after `strongroom key rotate` or `key revoke`. Stopped, or killed, it goes on later where it was, if a state file was given. \
    Destroying needs the right 'administer'. Snapshots and clones keep their blocks under the epochs that those were written under: \
    while there are any, nothing is destroyed unless that is forced, and what they hold from then is lost with it.")]
// One field for each option: they belong to one command, and groups of two or three would only rename them.
pub(crate) struct ResealArgs {
    /// The volume's URL; with --to on the target's machine its name.
    pub(super) volume: String,
    /// What the volume is to become: plain, keyfile, keyserver or target; from an initiator with where the new keys are, keyfile=FILE or
    /// keyserver=HOST.
    #[arg(long, value_name = "CUSTODY", conflicts_with_all = ["keep_epochs", "force"])]
    pub(super) to: Option<To>,
    /// On the target's machine: give up what was prepared with --to; the volume is as it was.
    #[arg(long, conflicts_with_all = ["to", "state"])]
    pub(super) abandon: bool,
    /// With --to: say what would be done, and do nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// With --to plain: the volume's contents will lie in plaintext on the target, and that is meant.
    #[arg(long)]
    pub(super) plaintext: bool,
    /// With --to, from custody keyserver: when all is done destroy the old keys, for copies and backups too (right 'administer').
    #[arg(long)]
    pub(super) destroy_old_keys: bool,
    /// With --to: note how far it is after this many bytes, or five seconds.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub(super) state_every: u64,
    /// With --to on the target's machine: the cipher of the new seals [default: the one that it has].
    #[arg(long = "suite", value_name = "SUITE")]
    pub(super) new_suite: Option<Suite>,
    /// With --to target, there: the file that wraps block keys [default: a new one, as `volume create` makes it].
    #[arg(long, value_name = "FILE")]
    pub(super) wrapping_key: Option<PathBuf>,
    /// With --to, there: what the new blocks lie on, as for `volume create` [default: directory].
    #[arg(long, value_name = "MEDIUM")]
    pub(super) medium: Option<Medium>,
    /// With --to, there: the peer that moves it; can be repeated [default: the volume's].
    #[arg(long = "peer", value_name = "NAME")]
    pub(super) peers: Vec<String>,
    #[command(flatten)]
    pub(super) state: StateArgs,
    /// Read and write no more than this in a second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) rate: Option<u64>,
    /// Only reseal; destroy nothing.
    #[arg(long)]
    pub(super) keep_epochs: bool,
    /// Destroy the older epochs although snapshots or clones may still need them, or blocks do not open: what is under them is lost.
    #[arg(long, conflicts_with = "keep_epochs")]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) progress: ProgressArgs,
    #[command(flatten)]
    pub(super) target: RootArgs,
    #[command(flatten)]
    pub(super) access: AccessArgs,
}

/// What a volume is to become, and, for the initiator, where its keys are then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum To {
    Plain,
    KeyFile(Option<PathBuf>),
    KeyServer(Option<String>),
    Target,
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<To, String> {
        let (what, place) = match text.split_once('=') {
            Some((_, "")) => return Err(format!("'{text}' names nothing behind '='")),
            Some((what, place)) => (what, Some(place)),
            None => (text, None),
        };
        match (what, place) {
            ("plain", None) => Ok(To::Plain),
            ("target", None) => Ok(To::Target),
            ("keyfile", place) => Ok(To::KeyFile(place.map(PathBuf::from))),
            ("keyserver", place) => Ok(To::KeyServer(place.map(str::to_owned))),
            _ => Err(format!("'{text}' is none of plain, keyfile[=FILE], keyserver[=HOST[:PORT]], target")),
        }
    }
}

impl To {
    pub(super) fn custody(&self) -> Option<Custody> {
        match self {
            To::Plain => None,
            To::KeyFile(_) => Some(Custody::KeyFile),
            To::KeyServer(_) => Some(Custody::KeyServer),
            To::Target => Some(Custody::Target),
        }
    }

    pub(super) fn in_words(&self) -> String {
        self.custody().map_or_else(|| "plain".to_owned(), |custody| format!("custody {custody}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_is_a_custody_and_a_place() {
        assert_eq!("plain".parse(), Ok(To::Plain));
        assert_eq!("keyfile=/k=y".parse(), Ok(To::KeyFile(Some("/k=y".into()))));
        assert_eq!("keyserver".parse(), Ok(To::KeyServer(None)));
        for bad in ["", "plain=x", "target=x", "keyfile=", "vault"] {
            assert!(bad.parse::<To>().is_err(), "{bad}");
        }
    }
}
