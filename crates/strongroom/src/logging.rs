//! Logs: lines for people or JSON for machines, always on standard error. Absent: what is logged.

use std::io::{self, Stderr, Write};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use strongroom_block::with_foreign_parts;
use tracing_subscriber::EnvFilter;

/// How to log.
#[derive(Args)]
#[command(next_help_heading = "Logging")]
pub struct LoggingArgs {
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
pub fn start(args: &LoggingArgs, serves: bool) -> Result<()> {
    let usual = if serves { "warn,strongroom=info" } else { "warn" };
    let wanted = args.log.as_deref().unwrap_or(usual);
    let filter = EnvFilter::try_new(wanted)
        .map_err(|error| anyhow!("--log '{wanted}' is no filter: {error}; write for instance --log info"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    match args.log_format {
        LogFormat::Text => builder
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .with_writer(|| EscapingWriter(io::stderr()))
            .init(),
        LogFormat::Json => builder.json().flatten_event(true).with_writer(io::stderr).init(),
    }
    Ok(())
}

/// Lets through of a text log what people can see, line ends, and colours. What peers send is escaped where it is logged; this is for what
/// was overlooked there. (JSON escapes controls by itself, and machines read it.)
struct EscapingWriter<W>(W);

impl Write for EscapingWriter<Stderr> {
    /// An event comes in one piece.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(escaped(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn escaped(mut text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    while !text.is_empty() {
        let plain = text.find(['\n', '\x1b']).unwrap_or(text.len());
        shown.push_str(&with_foreign_parts(&text[..plain]).to_string());
        text = &text[plain..];
        // A line's end, a colour, or an ESC that begins something else.
        let passes = match text.bytes().next() {
            None => 0,
            Some(b'\n') => 1,
            Some(_) => colour_bytes(text),
        };
        shown.push_str(&text[..passes]);
        text = &text[passes..];
        if passes == 0 && !text.is_empty() {
            shown.push_str(&with_foreign_parts("\x1b").to_string());
            text = &text[1..];
        }
    }
    shown
}

/// Length of the sequence at the beginning of `text` that sets a colour (SGR: `ESC [ digits and semicolons m`); 0: there is none.
fn colour_bytes(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\x1b[") else { return 0 };
    let end = parameters.find(|character: char| !character.is_ascii_digit() && character != ';');
    match end {
        Some(end) if parameters[end..].starts_with('m') => 2 + end + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_terminal_controls_in_a_log() {
        let line = "\x1b[2m12:00\x1b[0m INFO größe=1 initiator=iqn.x\n";
        assert_eq!(escaped(line), line, "colours and line ends are ours");
        for (text, shown) in [
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("\x1b", "\\u{1b}"),
            ("\x1b[", "\\u{1b}["),
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("\r\u{9b}31m", "\\u{d}\\u{9b}31m"),
            ("\u{202e}", "\\u{202e}"),
        ] {
            assert_eq!(escaped(text), shown);
        }
    }
}
