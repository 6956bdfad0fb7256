//! `strongroom doctor`: says what of this machine should be changed before it serves or attaches volumes. It only looks; what is to be done,
//! it leaves to the administrator.

mod host;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::root_args::DEFAULT_CONFIG;
use crate::table::Table;
use host::{Finding, FindingState, Host};

/// Check this machine: kernel, limits, network, clock, permissions, swap. Ends with status 1 if anything needs attention.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  strongroom doctor\n  strongroom doctor --json --config /etc/strongroom/strongroom.toml"
)]
pub(crate) struct DoctorArgs {
    /// A target's configuration: its files and the directory of its volumes are looked at, if it is there.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// As JSON has it.
#[derive(Serialize)]
struct Report<'a> {
    /// Nothing needs attention.
    ok: bool,
    findings: &'a [Finding],
}

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let host = Host::this_machine();
    let mut findings = host.findings();
    let configuration = args.config.exists().then(|| crate::config::read(&args.config));
    if let Some(Err(error)) = &configuration {
        let advice = format!("correct it, and look with: strongroom serve --config {} --check", args.config.display());
        findings.push(Finding::attention("settings", format!("{error:#}"), advice));
    }
    let volumes = configuration.and_then(Result::ok).map(|config| config.root);
    findings.extend(host.permissions(&args.config, volumes.as_deref()));
    let ok = findings.iter().all(|finding| finding.state != FindingState::Attention);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&Report { ok, findings: &findings })?);
    } else {
        print!("{}", table(&findings));
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(findings: &[Finding]) -> Table {
    let mut table = Table::new(&["", "check", "found"]);
    for Finding { check, state, found, advice } in findings {
        let mark = match state {
            FindingState::Ok => "ok",
            FindingState::Attention => "!!",
            FindingState::Unknown => "?",
        };
        table.row(vec![mark.to_owned(), (*check).to_owned(), found.clone()]);
        if let Some(advice) = advice {
            table.row(vec![String::new(), format!("→ {advice}")]);
        }
    }
    table
}
