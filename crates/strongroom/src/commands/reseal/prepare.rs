//! The target's part of moving a volume to another custody: the volume is written to no more, and its successor is made beside it. Or that
//! is given up.
//!
//! Absent: the contents, which an initiator moves, and the change of places, which it asks for over the wire.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use strongroom_block::{Mode, Suite};
use strongroom_store::Medium;
use strongroom_target::admin::{Client, Request};
use strongroom_target::{CatalogueError, SUCCESSOR_SUFFIX, SealedSpec, SuccessorSpec, Volume};

use super::args::{ResealArgs, To};
use crate::admin::ask;
use crate::commands::new_volume::{usable_wrapping_key, warn_of_unknown_peers};
use crate::units::show_size;

/// How long a target may take to close a volume that nobody uses, and how often it is looked at.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
const CLOSE_PAUSE: Duration = Duration::from_millis(50);

/// `volume reseal NAME --to …` on the target's machine.
pub(super) fn prepare(args: &ResealArgs, to: &To) -> Result<()> {
    let (name, catalogue) = (&args.volume, args.target.open()?);
    let volume = catalogue.show(name)?.volume;
    check_move(args, to, &volume)?;
    if args.dry_run {
        let successor = format!("{name}{SUCCESSOR_SUFFIX}");
        args.progress.print_result(&json!({ "volume": name, "successor": successor, "is_made": false }), || {
            println!(
                "'{name}' ({}, {}) would be frozen, and an empty volume '{successor}' made beside it: {}; nothing is done",
                volume.kind_text(),
                show_size(volume.geometry.bytes()),
                to.in_words()
            );
        });
        return Ok(());
    }
    warn_of_unknown_peers(&args.target, &args.peers);
    let given = args.wrapping_key.as_deref().map(usable_wrapping_key).transpose()?;
    let made = (*to == To::Target && given.is_none())
        .then(|| strongroom_keyfiles::wrapping::create(&args.target.wrapping_keys(), name))
        .transpose()?;
    let sealed = to.custody().map(|custody| SealedSpec {
        suite: args.new_suite.unwrap_or_else(|| volume.sealed.as_ref().map_or(Suite::default(), |sealed| sealed.suite)),
        mode: volume.sealed.as_ref().map_or(Mode::Encrypt, |sealed| sealed.mode),
        wrapping_key: given.or_else(|| made.clone()),
        ..SealedSpec::new(custody)
    });
    let medium = args.medium.clone().unwrap_or(Medium::Directory);
    let spec = SuccessorSpec { sealed, medium, peers: args.peers.clone() };
    let next = match when_closed(args, name, || catalogue.successions().begin(name, &spec)) {
        Ok(next) => next,
        Err(error) => {
            // A key that nothing was wrapped under.
            made.iter().for_each(|path| drop(std::fs::remove_file(path)));
            let how = "nothing was begun; who uses it must detach first (`strongroom session list`, `strongroom session drop`)";
            return Err(match &error {
                CatalogueError::InUse { .. } => anyhow::Error::from(error).context(how),
                _ => error.into(),
            });
        }
    };
    let result = json!({
        "volume": name, "successor": next.name.to_string(), "is_made": true, "id": next.id.to_string(), "wrapping_key": made,
        "domain": next.sealed.as_ref().map(|sealed| sealed.domain.to_string()),
    });
    args.progress.print_result(&result, || print_next(name, to, &next, made.as_deref()));
    Ok(())
}

/// Refuses a move that cannot be made as asked.
fn check_move(args: &ResealArgs, to: &To, volume: &Volume) -> Result<()> {
    let name = &volume.name;
    if matches!(to, To::KeyFile(Some(_)) | To::KeyServer(Some(_))) {
        bail!("only the initiator says where the keys are: leave out what follows '=' here");
    }
    if volume.sealed.as_ref().is_some_and(|sealed| sealed.opened_with.is_some()) {
        bail!("'{name}' is opened at the target and cannot be moved; copy it into a new volume: strongroom copy");
    }
    if volume.medium != Medium::Directory && args.medium.is_none() {
        bail!("'{name}' lies on {}; say with --medium where its new form is to lie", volume.medium);
    }
    if volume.sealed.is_some() && *to == To::Plain && !args.plaintext {
        bail!("everything in '{name}' will lie in PLAINTEXT on this target; if that is meant, add --plaintext");
    }
    if *to == To::Plain && (args.new_suite.is_some() || args.wrapping_key.is_some()) {
        bail!("a plain volume has neither a suite nor a wrapping key; leave them out");
    }
    Ok(())
}

/// What was done, and what to do next.
fn print_next(name: &str, to: &To, next: &Volume, made: Option<&Path>) {
    println!("'{name}' can be read and not written; '{}' is made beside it, {}", next.name, to.in_words());
    if let Some(path) = made {
        println!("its block keys will be wrapped under {}; keep a copy", path.display());
    }
    if let (To::KeyServer(_), Some(sealed)) = (to, &next.sealed) {
        println!(
            "next, as its owner: strongroom key create {name} --domain {} --id {} --key-server KEYS",
            sealed.domain, next.id
        );
    }
    let (whither, plaintext) = match to {
        To::Plain => ("plain", " --plaintext"),
        To::KeyFile(_) => ("keyfile=NEW_KEY_FILE", ""),
        To::KeyServer(_) => ("keyserver=KEYS", ""),
        To::Target => ("target", ""),
    };
    println!(
        "next, from an initiator with the keys of both: strongroom volume reseal strongroom://HOST/{name} --to {whither}{plaintext} \
         --state FILE\nto give it up: strongroom volume reseal {name} --abandon"
    );
}

/// `volume reseal NAME --abandon` there.
pub(super) fn abandon(args: &ResealArgs) -> Result<()> {
    let (name, catalogue) = (&args.volume, args.target.open()?);
    let next = format!("{name}{SUCCESSOR_SUFFIX}");
    let what = || format!("'{name}' stays as it is; if '{next}' is in use: strongroom session drop --volume {next}");
    when_closed(args, &next, || catalogue.successions().abandon(name)).with_context(what)?;
    refresh(args)?;
    args.progress.print_result(&json!({ "volume": name, "given_up": next }), || {
        println!("given up: '{name}' is as it was, and can be written again");
    });
    Ok(())
}

/// Does something that a volume must be closed for. A target keeps it open for a while when nobody uses it any more, and closes it if it is
/// asked to; if it is in use there, or a target has it that does not answer here, it stays open.
fn when_closed<T>(
    args: &ResealArgs,
    volume: &str,
    mut attempt: impl FnMut() -> Result<T, CatalogueError>,
) -> Result<T, CatalogueError> {
    let until = Instant::now() + CLOSE_PATIENCE;
    loop {
        match attempt() {
            Err(CatalogueError::InUse { .. }) if Instant::now() < until => {
                let client = args.target.admin_socket().ok().and_then(|path| Client::connect(&path).ok().flatten());
                if let Some(mut client) = client {
                    // One of an older version knows no such request: the volume stays open.
                    let _ = ask(&mut client, &Request::Close { volume: volume.to_owned() });
                }
                std::thread::sleep(CLOSE_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Has a target that runs look at the rules again: who only reads may write.
fn refresh(args: &ResealArgs) -> Result<()> {
    let Some(mut client) = Client::connect(&args.target.admin_socket()?)? else { return Ok(()) };
    ask(&mut client, &Request::Refresh { volume: args.volume.clone() }).map(drop)
}
