//! The lab: the papers' experiments and today's, and a wide-area link on one machine. Built separately from the product.

mod commands;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use strongroom::{LoggingArgs, end_quietly_without_a_reader, in_words, keep_files_private, start_logging};
use strongroom_lab::PRODUCT;

/// Measure this machine's Strongroom, or a target elsewhere: the papers' experiments, and today's.
#[derive(Parser)]
#[command(
    name = "strongroom-lab",
    version,
    propagate_version = true,
    after_help = "Examples:\n  \
    strongroom-lab rawio --schemes S0,S2-5 --patterns randread --sizes 4k --depths 16 --seconds 2 --runs 3 --json r.jsonl\n  \
    strongroom-lab stream --sizes 512,64k,1m --json r.jsonl --append\n  \
    strongroom-lab report r.jsonl --html report.html\n\n\
    Numbers of different runs must not be compared: a run interleaves what it compares, and only that is fair."
)]
struct Cli {
    #[command(flatten)]
    logging: LoggingArgs,
    #[command(subcommand)]
    command: commands::LabCommand,
}

/// The command line of the product that stands behind `product`: what the experiments start their targets and attachments by.
fn product_arguments() -> Option<Vec<OsString>> {
    let mut arguments = std::env::args_os().skip(1);
    let is_product = arguments.next().is_some_and(|first| first == PRODUCT);
    is_product.then(|| std::iter::once("strongroom".into()).chain(arguments).collect())
}

fn main() -> ExitCode {
    strongroom_lab::ecl::substitute_if_asked();
    if let Some(arguments) = product_arguments() {
        return strongroom::run(&arguments);
    }
    keep_files_private();
    end_quietly_without_a_reader();
    let cli = Cli::parse();
    if let Err(error) = start_logging(&cli.logging, false) {
        eprintln!("strongroom-lab: {}", in_words(&error));
        return ExitCode::from(2);
    }
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strongroom-lab: {}", in_words(&error));
            ExitCode::FAILURE
        }
    }
}
