//! `strongroom volume receive` where a target runs: the target takes the stream in, while the volume is read.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use strongroom_target::admin::{Client, Reply, Request, Resume};

use crate::admin::ask;
use crate::progress::ProgressReporter;
use crate::units::{show_duration, show_size};

/// How long a target may take to open a volume, or to take in what it was sent.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often to look whether a volume is free.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Bytes of a stream that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Makes the target ready to take a stream into a volume. Waits up to `wait` for users that could write.
pub(super) fn begin(client: &mut Client, volume: &str, wait: Duration) -> Result<()> {
    let started = Instant::now();
    let mut has_told = false;
    loop {
        let users = match client.ask(&Request::Receive { volume: volume.to_owned() }, PATIENCE)? {
            Reply::Stream { .. } => return Ok(()),
            Reply::InUse(users) => users.join(", "),
            _ => bail!("the target answered something else; it is of another version, restart it"),
        };
        if started.elapsed() >= wait {
            bail!(
                "still in use{}: {users}, which could write; detach there, wait longer (--wait 2h), or end sessions: strongroom session drop \
                 --volume {volume}",
                if wait.is_zero() { String::new() } else { format!(" after {}", show_duration(wait)) }
            );
        }
        if !std::mem::replace(&mut has_told, true) {
            eprintln!("waiting for {users}, which could write, at most {}", show_duration(wait));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Sends the stream, of which `start` was read already; how many bytes that were.
pub(super) fn feed(client: &mut Client, start: &[u8], input: &mut dyn Read, bar: &ProgressReporter) -> Result<u64> {
    let mut came = start.len() as u64;
    client.send_piece(start)?;
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let read = super::stream::read_some(input, &mut bytes)?;
        // None at the end.
        client.send_piece(&bytes[..read]).map_err(|error| match read {
            0 => anyhow!(error).context(format!("after {}", show_size(came))),
            _ => error.into(),
        })?;
        if read == 0 {
            return Ok(came);
        }
        came += read as u64;
        bar.set_position(came);
    }
}

/// What was begun and not ended; given up, if that is wanted.
pub(super) fn unfinished(client: &mut Client, volume: &str, abandon: bool) -> Result<Vec<(Resume, String)>> {
    let request = Request::Receptions { volume: volume.to_owned(), abandon };
    match ask(client, &request).context("what arrived is not known")? {
        Reply::Receptions(all) => Ok(all),
        _ => bail!("the target answered something else; it is of another version, restart it"),
    }
}
