//! `strongroom drain`: sends a running target's initiators away, for maintenance. And `strongroom reload`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use strongroom_target::admin::{Reloaded, Reply, Request};

use super::status;
use crate::admin::{AdminArgs, ask, ask_status};
use crate::units::parse_duration;

/// Send the initiators of a running target away: new logins are redirected or refused, sessions asked to log out.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom drain --to 192.0.2.7:3260 --wait     every volume moves there\n  \
    strongroom drain --volume vault --grace 5m      nobody may use it for a while\n  \
    strongroom drain --end                          back to normal")]
pub(crate) struct DrainArgs {
    /// Where initiators are sent (RFC 7143 "target moved temporarily"); without it logins are refused for the time being.
    #[arg(long, value_name = "HOST:PORT")]
    to: Option<String>,
    /// Only this volume.
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// How long sessions have to log out before they are dropped.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    grace: Duration,
    /// Wait until no session is left.
    #[arg(long, conflicts_with = "end")]
    wait: bool,
    /// Take initiators in again.
    #[arg(long, conflicts_with_all = ["to", "grace"])]
    end: bool,
    #[command(flatten)]
    target: AdminArgs,
}

/// Have a running target read its configuration again. Nothing changes if anything in it is wrong.
#[derive(Args)]
#[command(after_help = "Example: strongroom reload --config /etc/strongroom/strongroom.toml\n\n\
    Rules (peer, plain), limits and `advertise` change at once, and sessions that the new rules do not admit end. Limits \
    hold for new sessions. SIGHUP does the same.")]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    target: AdminArgs,
}

/// Runs `drain`.
pub(crate) fn run(args: DrainArgs) -> Result<()> {
    if args.end {
        ask(&mut args.target.connect()?, &Request::Undrain { volume: args.volume })?;
        println!("logins are accepted again");
        return Ok(());
    }
    let volume = args.volume.clone();
    let request = Request::Drain { to: args.to, volume: args.volume, grace_s: args.grace.as_secs().max(1) };
    let count = args.target.sessions(&request)?;
    println!("asked {} to log out", status::sessions(count));
    if !args.wait {
        return Ok(());
    }
    let until = std::time::Instant::now() + args.grace + Duration::from_secs(10);
    loop {
        let report = ask_status(&mut args.target.connect()?)?;
        let left = report.sessions.iter().filter(|session| session.volume.is_some());
        let left = left.filter(|session| volume.is_none() || session.volume == volume).count();
        if left == 0 {
            println!("no session is left");
            return Ok(());
        }
        if std::time::Instant::now() > until {
            bail!("{} are left after the grace period; see `strongroom session list`", status::sessions(left));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Runs `reload`.
pub(crate) fn reload(args: &ReloadArgs) -> Result<()> {
    let Reply::Reloaded(Reloaded { changed, needs_restart, sessions_ended, sessions_changed }) =
        ask(&mut args.target.connect()?, &Request::Reload)?
    else {
        bail!("the target answered something else; it is of another version, restart it");
    };
    if changed.is_empty() {
        println!("nothing changed");
    } else {
        println!("in force now: {}", changed.join(", "));
    }
    if !needs_restart.is_empty() {
        println!("only after a restart: {}", needs_restart.join(", "));
    }
    if sessions_ended > 0 {
        println!("{} ended, which the rules do not admit any more", status::sessions(sessions_ended));
    }
    if sessions_changed > 0 {
        println!("{} may now write, or no longer may", status::sessions(sessions_changed));
    }
    Ok(())
}
