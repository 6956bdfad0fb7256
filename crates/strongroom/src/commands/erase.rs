//! `strongroom volume erase`: everything in a volume goes, and the volume stays. Through the target if one runs, which goes on with
//! its other volumes meanwhile; else here.
//!
//! Absent: how (the store's), and what SANITIZE of an initiator does, which is the same.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::json;
use strongroom_block::Token;
use strongroom_initiator::{AttachError, VolumeUrl};
use strongroom_store::Op;
use strongroom_target::admin::{Client, Operation, StoreReport};
use strongroom_target::{OpenVolume, Volume};

use super::format::attach_alone;
use crate::access::AccessArgs;
use crate::confirmation::{Confirmation, ForceArgs};
use crate::progress::{ProgressArgs, ProgressReporter, ProgressUnit};
use crate::root_args::RootArgs;
use crate::target_args::operate;
use crate::wrapping;

/// How often a target is asked how far it is.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// What the store counts its progress in.
const WHOLE: u64 = 1 << 16;

/// Erase everything in a volume of this target, for good; the volume stays. By URL: destroy its keys at the key server.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom volume erase vault --yes --root /srv/strongroom\n  \
    strongroom volume erase strongroom://storage/vault --crypto --yes --key-server keys\n\n\
    With a URL, for custody keyserver: a new key epoch begins, the keys of all before are destroyed, the target gives the space back \
    (SANITIZE, CRYPTOGRAPHIC ERASE), and the volume is formatted under the new epoch. It needs the right 'administer'; destroying \
    them does not depend on the target. Refused while any initiator is attached, unless --force names them.\n\n\
    Everything that its store ever held is overwritten and given back, older versions and what was deleted included. No session \
    may use it meanwhile, and it may have neither snapshots nor clones. A plain volume reads as zeros afterwards; a sealed one \
    must be formatted again: strongroom volume format URL --yes. Once begun it cannot be stopped: interrupted, it goes on when \
    the volume is opened the next time, or with the same command. Not reached is what others copied: backups, replicas, \
    snapshots of the host's file system, and blocks that a drive has set aside.")]
pub(crate) struct EraseArgs {
    /// The volume's name, on this machine; or its URL.
    name: String,
    /// Really erase it; there is no way back.
    #[arg(long)]
    yes: bool,
    /// Destroy keys instead of overwriting: quick, and it reaches what was copied elsewhere too. On this machine the key that wraps the
    /// volume's block keys (custody target), but not copies of that file; by URL all keys that the key server has of it.
    #[arg(long)]
    crypto: bool,
    #[command(flatten)]
    force: ForceArgs,
    #[command(flatten)]
    progress: ProgressArgs,
    #[command(flatten)]
    target: RootArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub(crate) fn erase(args: &EraseArgs) -> Result<()> {
    if args.name.contains("://") {
        return destroy_keys(args, &args.name.parse()?);
    }
    let name = &args.name;
    let volume = args.target.open()?.show(name)?.volume;
    if !args.yes {
        bail!("everything in '{name}' will be lost, for good; say --yes to go on");
    }
    let bar = args.progress.begin("erasing", ProgressUnit::Parts, Some(WHOLE));
    let socket = args.target.admin_socket()?;
    if Client::connect(&socket)?.is_some() {
        let operation = if args.crypto { Operation::CryptoErase } else { Operation::Erase };
        erase_served(args, operation, &socket, &bar)?;
    } else {
        erase_closed(args, &volume, &bar)?;
    }
    bar.finish();
    args.progress.print_result(&json!({ "erased": name }), || {
        println!("'{name}' is erased");
        if volume.sealed.is_some() {
            println!("next, from an initiator with its key: strongroom volume format strongroom://HOST/{name} --yes");
        }
    });
    Ok(())
}

/// Has the running target erase the volume, and waits for the end.
fn erase_served(args: &EraseArgs, operation: Operation, socket: &Path, bar: &ProgressReporter) -> Result<()> {
    let name = &args.name;
    let mut store = operate(&args.target, name, operation)?.store;
    while let Some(progress) = store.erasing {
        refused(&store)?;
        bar.set_position(progress.into());
        std::thread::sleep(ASK_EVERY);
        // To ask here instead would open the store and close it again, and the erase would start from the beginning each time.
        ensure!(
            Client::connect(socket)?.is_some(),
            "the target ended while '{name}' was being erased: the erase goes on when a target opens the volume, or with the same \
             command"
        );
        store = operate(&args.target, name, Operation::Describe)?.store;
    }
    Ok(())
}

/// Erases a volume that no target serves.
fn erase_closed(args: &EraseArgs, volume: &Volume, bar: &ProgressReporter) -> Result<()> {
    let name = &args.name;
    let catalogue = args.target.open()?;
    if volume.clone_of.is_some() {
        bail!("'{name}' is a clone and shares its blocks; delete it instead");
    }
    let has_key = volume.sealed.as_ref().is_some_and(|sealed| !sealed.custody.is_blind());
    let own_key = has_key && !catalogue.wrapping_key_is_shared(volume)?;
    if args.crypto {
        ensure!(
            has_key,
            "there is no key of '{name}' here to destroy: only custody 'target' has one; in custody 'keyserver' its owner destroys \
             them by URL, in custody 'keyfile' by destroying the file"
        );
        ensure!(own_key, "another volume has the same wrapping key, and would be lost too; erase without --crypto");
    }
    let mut opened = catalogue.open_volume(name)?;
    let renew = || match own_key {
        // Somebody may have made another volume meanwhile.
        true if catalogue.wrapping_key_is_shared(volume)? => {
            bail!("another volume has the same wrapping key by now")
        }
        true => renew(volume),
        false => Ok(()),
    };
    let erased = erase_here(&mut opened, renew, args.crypto, bar);
    opened.close()?;
    erased
}

/// The keys go first, by the key server's word alone: a target may be away, stolen, or hostile, and does not say whose keys they are.
fn destroy_keys(args: &EraseArgs, url: &VolumeUrl) -> Result<()> {
    let missing = match (args.crypto, args.access.key_server.is_given()) {
        (true, true) => None,
        (true, false) => Some("--key-server"),
        (false, true) => Some("--crypto"),
        (false, false) => Some("--crypto and --key-server"),
    };
    if let Some(missing) = missing {
        bail!(
            "by URL only keys at a key server can be destroyed: add {missing}; to overwrite a volume, on the target's machine: strongroom \
             volume erase {} --yes",
            url.file_name()
        );
    }
    let name = args.access.key_name.as_deref().unwrap_or(url.file_name());
    let client = args.access.key_client()?;
    let info = client.find(name)?;
    if !args.yes {
        bail!(
            "everything sealed with the keys of '{name}' will be lost, for good, in its snapshots, clones and copies too; say --yes to \
             go on"
        );
    }
    let confirmation = be_alone(args, url)?;
    let epoch = client.destroy_keys(info.domain)?;
    println!("the keys of '{name}' are destroyed; key epoch {epoch} begins");
    let settles_in = client.info(info.domain)?.settles_in;
    if !settles_in.is_zero() {
        println!(
            "who was lent keys before and cannot reach the key server may read, and write under a destroyed epoch, for another {} s: \
             what is written so is lost. Detach the volume everywhere, or use it after that",
            settles_in.as_secs() + 1
        );
    }
    let erased = attach_alone(&args.access, url, confirmation, "volume erase --crypto").and_then(|device| {
        let erased = device.forget_destroyed(epoch)?;
        device.detach()?;
        Ok(erased)
    });
    let erased = erased.with_context(|| {
        format!(
            "the keys are destroyed, and nothing that was sealed with them opens any more; but the volume was not formatted under the new \
             ones: strongroom volume format {url} --yes --reformat"
        )
    })?;
    println!("{url} is formatted again");
    if !erased.is_given_back {
        println!(
            "its target keeps what nobody can open any more: delete its snapshots and clones there; then, without sessions: strongroom \
             volume erase {} --yes",
            url.file_name()
        );
    }
    Ok(())
}

/// Nobody else uses the volume, or those who do were named. Asked before the keys go: there is no way back.
fn be_alone(args: &EraseArgs, url: &VolumeUrl) -> Result<Confirmation> {
    if args.force.is_forced() {
        return match args.force.ask(&args.access, url) {
            // The keys need no target to be destroyed, and a target that is stolen does not answer.
            Err(error) if is_out_of_reach(&error) => {
                args.force.ask_blindly(url.file_name())?;
                Ok(Confirmation::Given)
            }
            asked => asked,
        };
    }
    let device = attach_alone(&args.access, url, Confirmation::NotForced, "volume erase --crypto").context(
        "who uses the volume is asked of its target before its keys are destroyed (a target that is away cannot be asked: --force)",
    )?;
    device.detach()?;
    Ok(Confirmation::NotForced)
}

fn is_out_of_reach(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref()).any(AttachError::is_temporary)
}

/// `renew`: destroys the wrapping key, if it is the volume's own.
fn erase_here(
    opened: &mut OpenVolume,
    renew: impl Fn() -> Result<()>,
    by_key: bool,
    bar: &ProgressReporter,
) -> Result<()> {
    let store = opened.store();
    // One that goes on from before may have been one that destroys the key. It overwrites everything in any case.
    let mut renewed = if store.erase_progress().is_some() { renew() } else { Ok(()) };
    if let Err(error) = &renewed
        && !by_key
    {
        tracing::warn!(error = format!("{error:#}"), "the volume's wrapping key could not be destroyed");
        renewed = Ok(());
    }
    store.submit(Token(0), if by_key { Op::CryptoErase } else { Op::Erase });
    let mut done = Vec::new();
    while store.poll_completions(&mut done) == 0 {
        bar.set_position(store.erase_progress().unwrap_or(0).into());
        if store.erase_awaits_key() {
            renewed = renew();
            store.key_destroyed(renewed.is_ok());
        }
        store.wait();
    }
    for completion in done {
        completion.result?;
    }
    renewed.context(
        "everything in the volume is overwritten, but the key that wrapped its block keys could not be destroyed: destroy its file, \
         and every copy of it",
    )
}

fn renew(volume: &Volume) -> Result<()> {
    wrapping::renewing()(volume).map(drop).map_err(anyhow::Error::msg)
}

fn refused(store: &StoreReport) -> Result<()> {
    if store.writes_refused {
        bail!(
            "the medium failed while the volume was being erased; the target's log says how. What is left of it cannot be \
             read; mend the medium and restart the target, and the erase goes on"
        );
    }
    Ok(())
}
