//! `strongroom-lab report`: from files of results to tables, plots and a page.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use strongroom_lab::Results;
use strongroom_lab::report::{self, Outputs};

/// Make tables, plots (SVG, PNG) and one self-contained page from files of results.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom-lab report results.jsonl                                  prints the tables\n  \
    strongroom-lab report results.jsonl --html report.html --plots plots")]
pub(crate) struct ReportArgs {
    /// What `--json` of the experiments wrote.
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// One page with everything in it.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// A directory for the plots.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Put tables, words and plots between the `bench` marks of this Markdown file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Put what laziness buys between the `schemes` marks of this Markdown file: the lazy-crypto paper's comparisons, and the tables.
    #[arg(long, value_name = "FILE")]
    laziness: Option<PathBuf>,
    /// Put the WAN paper's experiment between the `wan` marks of this Markdown file: findings, plots and tables.
    #[arg(long, value_name = "FILE")]
    wan: Option<PathBuf>,
    /// Put CPU profiles (`strongroom-lab profile`) between the `profile` marks of this Markdown file.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Put what programs get from attached volumes (`strongroom-lab attach`) between the `attach` marks of this Markdown file.
    #[arg(long, value_name = "FILE")]
    attach: Option<PathBuf>,
    /// Put our volumes beside other targets (`strongroom-lab peers`) between the `peers` marks of this Markdown file.
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Put ECL beside iSCSI (`strongroom-lab ecl`) between the `ecl` marks of this Markdown file: what was asked, plots and tables.
    #[arg(long, value_name = "FILE")]
    ecl: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    let mut all = Results::default();
    for path in &args.results {
        let results = Results::read(path)?;
        all.machines.extend(results.machines);
        all.cells.extend(results.cells);
    }
    let outputs = Outputs {
        markdown: args.markdown.clone(),
        laziness: args.laziness.clone(),
        wan: args.wan.clone(),
        profile: args.profile.clone(),
        attach: args.attach.clone(),
        peers: args.peers.clone(),
        ecl: args.ecl.clone(),
        html: args.html.clone(),
        plots: args.plots.clone(),
    };
    let written = report::write(&all, &outputs)?;
    if written.is_empty() {
        print!("{}", report::tables(&all));
    }
    for path in written {
        println!("{}", path.display());
    }
    Ok(())
}
