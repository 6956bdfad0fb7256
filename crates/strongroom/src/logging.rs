//! Logs: lines for people or JSON for machines, always on standard error. Absent: what is logged.

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How to log.
#[derive(Args)]
pub(crate) struct LoggingArgs {
    /// What to log: error, warn, info, debug, trace, or a filter such as `info,strongroom_target=debug`.
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "STRONGROOM_LOG",
        default_value = "warn,strongroom=info,strongroom_target=info"
    )]
    log: String,
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

/// Starts logging, once per process.
pub(crate) fn start(args: &LoggingArgs) -> Result<()> {
    let filter = EnvFilter::try_new(&args.log)
        .map_err(|error| anyhow!("--log '{}' is no filter: {error}; write for instance --log info", args.log))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
