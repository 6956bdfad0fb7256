//! `strongroom console`: serves the web console of a target on the loopback, and prints links that log in a browser.
//!
//! Absent: the console itself.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use strongroom_console::{Console, ConsoleOptions};

use crate::admin::AdminArgs;
use crate::signals::StopSignals;
use crate::units::parse_duration;

/// Show a target in a web browser: volumes, sessions, rates, damaged blocks; and manage its peers.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom console                        and open the link that it prints, in a browser on this machine\n  \
    strongroom console --root /srv/strongroom --listen [::1]:9000\n\n\
    From another machine, through SSH, and then open the link there:\n  \
    ssh -t -L 8640:127.0.0.1:8640 root@storage strongroom console\n\n\
    A link logs in one browser, once, within ten minutes; who has it first is in. Enter prints another one. The console runs as the user of the \
    target, or as root, and talks to its admin socket only.")]
pub(crate) struct ConsoleArgs {
    /// Where to listen: an address of the loopback.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8640")]
    listen: SocketAddr,
    /// How long a login lasts while nobody does anything.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    idle: Duration,
    #[command(flatten)]
    target: AdminArgs,
}

/// Runs the command, until it is told to stop.
pub(crate) fn run(args: &ConsoleArgs) -> Result<()> {
    let signals = StopSignals::block().context("cannot wait for signals")?;
    let options = ConsoleOptions { listen: args.listen, socket: args.target.socket()?, idle: args.idle };
    let console = Arc::new(Console::start(&options)?);
    println!("console of the target at {}; Ctrl+C ends it", options.socket.display());
    println!("open this link within ten minutes; it is good once, and a secret:\n{}", console.login_link());
    if io::stdin().is_terminal() {
        println!("Enter prints another one");
        let console = Arc::clone(&console);
        let body = move || {
            for _ in io::stdin().lock().lines().map_while(Result::ok) {
                println!("{}", console.login_link());
            }
        };
        std::thread::Builder::new().name("links".to_owned()).spawn(body).context("cannot start a thread")?;
    }
    while signals.wait(Duration::from_secs(3600)).is_none() {}
    Ok(())
}
