//! Opens a volume's store for a command. A running target may have it open: the target is asked to close it, and the command waits
//! until the sessions that use it have ended.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use strongroom_target::admin::{Client, Request, SessionReport};
use strongroom_target::{Catalogue, CatalogueError, OpenVolume};

use crate::admin::ask;
use crate::admin::ask_status;
use crate::root_args::RootArgs;
use crate::units::show_duration;

/// How often to look whether a volume is free.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A target takes this long at most to close a store that nobody uses.
const CLOSE_PATIENCE: Duration = Duration::from_secs(60);

/// Opens a volume. A target that has it open without users closes it; waits up to `wait` for users. Otherwise says who has it.
pub(super) fn open(target: &RootArgs, catalogue: &Catalogue, name: &str, wait: Duration) -> Result<OpenVolume> {
    let started = Instant::now();
    let mut has_told = false;
    loop {
        let busy = match catalogue.open_volume(name) {
            Err(CatalogueError::InUse { name }) => name,
            outcome => return Ok(outcome?),
        };
        let mut client = Client::connect(&target.admin_socket()?)?.ok_or_else(|| {
            anyhow!(
                "the volume '{busy}' is open in another command, or in a target that does not answer here; wait for that, or name its \
                 configuration with --config FILE"
            )
        })?;
        ask(&mut client, &Request::Close { volume: busy.clone() })?;
        let users = users(&mut client, catalogue, &busy)?;
        let patience = if users.is_empty() { wait.max(CLOSE_PATIENCE) } else { wait };
        if started.elapsed() >= patience {
            return Err(still_open(&busy, &users, wait));
        }
        if !users.is_empty() && !std::mem::replace(&mut has_told, true) {
            eprintln!("waiting for {} at most {}", users.join(", "), show_duration(wait));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn still_open(name: &str, users: &[String], waited: Duration) -> anyhow::Error {
    if users.is_empty() {
        return anyhow!(
            "the volume '{name}' is open in a target or another command that does not close it; look into its log"
        );
    }
    let waited = if waited.is_zero() { String::new() } else { format!(" after {}", show_duration(waited)) };
    anyhow!(
        "still in use{waited}: {}; detach there, wait longer (--wait 2h), or end sessions: strongroom session drop --volume {name}",
        users.join(", ")
    )
}

/// Who uses a volume, its clones or a snapshot of these, for people.
fn users(client: &mut Client, catalogue: &Catalogue, name: &str) -> Result<Vec<String>> {
    let parsed = strongroom_target::names::VolumeName::new(name)?;
    let clones = catalogue.clones_of(&parsed)?;
    let of_store = |export: &str| {
        let volume = export.split('@').next().unwrap_or_default();
        volume == name || clones.iter().any(|clone| clone.name.as_str() == volume)
    };
    let uses = |session: &SessionReport| {
        let volume = session.volume.as_deref().filter(|volume| of_store(volume))?;
        Some(format!("{} with '{volume}'", session.peer.as_ref().unwrap_or(&session.initiator)))
    };
    Ok(ask_status(client)?.sessions.iter().filter_map(uses).collect())
}
