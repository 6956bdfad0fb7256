//! Logs: lines for people or JSON for machines, always on standard error. Absent: what is logged.

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How to log.
#[derive(Args)]
pub(crate) struct LoggingArgs {
    /// What to log: error, warn, info, debug, trace, or a filter such as `info,strongroom_target=debug`.
    ///
    /// By default info for what serves (serve, attach), and warn for the rest.
    #[arg(long, global = true, value_name = "FILTER", env = "STRONGROOM_LOG")]
    log: Option<String>,
    /// The form of log lines.
    #[arg(long, global = true, value_name = "FORM", env = "STRONGROOM_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// The form of log lines.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging, once per process. `serves`: the command stays, and its log is how people see what it does.
pub(crate) fn start(args: &LoggingArgs, serves: bool) -> Result<()> {
    let usual = if serves { "warn,strongroom=info" } else { "warn" };
    let wanted = args.log.as_deref().unwrap_or(usual);
    let filter = EnvFilter::try_new(wanted)
        .map_err(|error| anyhow!("--log '{wanted}' is no filter: {error}; write for instance --log info"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
