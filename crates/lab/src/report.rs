//! From lines of results to what people read: tables, plots, sentences and one page. Nothing here measures, and nothing here
//! knows more than the lines say.

mod attach;
mod bounds;
mod client;
mod comparison;
mod ecl;
mod ecl_figures;
mod ecl_goals;
mod experiment;
mod figures;
mod goal;
mod html;
mod idle;
mod laziness;
mod markdown;
mod measure;
mod peers;
mod png;
mod profile;
mod releases;
mod summary;
mod wan;
mod wan_goals;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use strongroom::plot::draw;

use crate::{BenchError, Results};

pub use experiment::Experiment;
pub use measure::Measure;
pub use summary::{Row, Spread, Summary};

/// Where to put what.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// The tables and plots as a section in this Markdown file, between its two `bench` marks; made if it is not there.
    pub markdown: Option<PathBuf>,
    /// What laziness buys, likewise, between its two `schemes` marks.
    pub laziness: Option<PathBuf>,
    /// The WAN paper's experiment, likewise, between its two `wan` marks.
    pub wan: Option<PathBuf>,
    /// CPU profiles by stage, likewise, between its two `profile` marks.
    pub profile: Option<PathBuf>,
    /// What a program feels on an attached volume, likewise, between its two `attach` marks.
    pub attach: Option<PathBuf>,
    /// Our volumes beside other targets, likewise, between its two `peers` marks.
    pub peers: Option<PathBuf>,
    /// The transport ECL beside iSCSI, likewise, between its two `ecl` marks.
    pub ecl: Option<PathBuf>,
    /// One page with everything in it.
    pub html: Option<PathBuf>,
    /// A directory for plots, as SVG and (if it is built in) PNG.
    pub plots: Option<PathBuf>,
}

impl Outputs {
    /// The Markdown files, with the marks and the text of the section of each.
    fn sections(&self, results: &Results, summaries: &[Summary]) -> Vec<(&Path, [&'static str; 2], String)> {
        let plots = |path: &Path| self.plots.as_deref().map(|plots| relative(plots, path));
        let mut sections = Vec::new();
        if let Some(path) = self.markdown.as_deref() {
            let plots = plots(path);
            let section = markdown::section(results, summaries, plots.as_deref(), "What the experiments say", "");
            sections.push((path, MARKS, section));
        }
        if let Some(path) = self.wan.as_deref() {
            let (plots, judged) = (plots(path), wan_goals::table(summaries));
            let section = markdown::section(results, summaries, plots.as_deref(), "Writes over a long way", &judged);
            sections.push((path, WAN_MARKS, section));
        }
        if let Some(path) = self.laziness.as_deref() {
            sections.push((path, LAZINESS_MARKS, laziness::section(results, summaries)));
        }
        if let Some(path) = self.profile.as_deref() {
            sections.push((path, PROFILE_MARKS, profile::section(results)));
        }
        if let Some(path) = self.attach.as_deref() {
            sections.push((path, ATTACH_MARKS, attach::section(results, summaries)));
        }
        if let Some(path) = self.peers.as_deref() {
            sections.push((path, PEERS_MARKS, peers::section(results, summaries)));
        }
        if let Some(path) = self.ecl.as_deref() {
            let plots = plots(path);
            sections.push((path, ECL_MARKS, ecl::section(results, summaries, plots.as_deref())));
        }
        sections
    }
}

/// Text before which, and after which, a Markdown file is left as it is.
const MARKS: [&str; 2] = ["<!-- bench: begin (made by `make bench`; do not edit) -->", "<!-- bench: end -->"];
/// The same of the section about laziness.
const LAZINESS_MARKS: [&str; 2] =
    ["<!-- schemes: begin (made by `make bench-schemes`; do not edit) -->", "<!-- schemes: end -->"];

/// The same of the WAN paper's experiment.
const WAN_MARKS: [&str; 2] = ["<!-- wan: begin (made by `make bench-wan`; do not edit) -->", "<!-- wan: end -->"];

/// The same of CPU profiles.
const PROFILE_MARKS: [&str; 2] =
    ["<!-- profile: begin (made by `make bench-profile`; do not edit) -->", "<!-- profile: end -->"];

/// The same of attached volumes.
const ATTACH_MARKS: [&str; 2] =
    ["<!-- attach: begin (made by `make bench-attach`; do not edit) -->", "<!-- attach: end -->"];

/// The same of other targets.
const PEERS_MARKS: [&str; 2] =
    ["<!-- peers: begin (made by `make bench-peers`; do not edit) -->", "<!-- peers: end -->"];

/// The same of ECL.
const ECL_MARKS: [&str; 2] = ["<!-- ecl: begin (made by `make bench-ecl`; do not edit) -->", "<!-- ecl: end -->"];

/// Makes them; which files were written.
///
/// # Errors
/// If there is nothing to report, or a file cannot be written.
pub fn write(results: &Results, outputs: &Outputs) -> Result<Vec<PathBuf>, BenchError> {
    if results.cells.is_empty() {
        return Err(BenchError::Asked(
            "there are no cells in these results; run a benchmark with --json FILE first".into(),
        ));
    }
    let summaries: Vec<Summary> = results.benches().iter().map(|bench| Summary::new(results, bench)).collect();
    let mut written = Vec::new();
    if let Some(directory) = &outputs.plots {
        fs::create_dir_all(directory).map_err(|error| BenchError::file(directory, error))?;
        for summary in &summaries {
            for figure in figures::figures(summary) {
                let svg = draw(&figure);
                let path = directory.join(format!("{}.svg", figure.name));
                put(&path, svg.as_bytes(), &mut written)?;
                if let Some(png) = png::from_svg(&svg)? {
                    put(&path.with_extension("png"), &png, &mut written)?;
                }
            }
        }
    }
    if let Some(path) = &outputs.html {
        put(path, html::page(results, &summaries).as_bytes(), &mut written)?;
    }
    for (path, marks, section) in outputs.sections(results, &summaries) {
        let before = fs::read_to_string(path).unwrap_or_default();
        put(path, replace_section(&before, &section, marks).as_bytes(), &mut written)?;
    }
    Ok(written)
}

/// The tables alone, for a terminal.
pub fn tables(results: &Results) -> String {
    if results.cells.iter().any(|cell| cell.profile.is_some()) {
        return profile::tables(results);
    }
    let summaries = results.benches().iter().map(|bench| Summary::new(results, bench)).collect::<Vec<_>>();
    let table = |summary: &Summary| match attach::is_shown_here(&summary.experiment.bench) {
        true => attach::table(summary),
        false => markdown::table(summary),
    };
    summaries.iter().map(table).collect::<Vec<_>>().join("\n")
}

fn put(path: &Path, bytes: &[u8], written: &mut Vec<PathBuf>) -> Result<(), BenchError> {
    fs::write(path, bytes).map_err(|error| BenchError::file(path, error))?;
    written.push(path.to_owned());
    Ok(())
}

/// How `file` names `directory`.
fn relative(directory: &Path, file: &Path) -> PathBuf {
    let parent = file.parent().unwrap_or(Path::new(""));
    directory.strip_prefix(parent).unwrap_or(directory).to_owned()
}

/// A machine in a sentence, for a report.
pub fn machine_in_words(machine: &crate::Machine) -> String {
    words::machine_in_words(machine)
}

/// Puts `section` between the marks, or at the end.
pub fn replace_section(text: &str, section: &str, [begin_mark, end_mark]: [&str; 2]) -> String {
    let section = format!("{begin_mark}\n{}\n{end_mark}\n", section.trim());
    let found = text.find(begin_mark).zip(text.find(end_mark)).filter(|(begin, end)| begin < end);
    match found {
        Some((begin, end)) => {
            let rest = text[end + end_mark.len()..].trim_start_matches('\n');
            let gap = if rest.is_empty() { "" } else { "\n" };
            format!("{}{section}{gap}{rest}", &text[..begin])
        }
        None if text.trim().is_empty() => section,
        None => format!("{}\n\n{section}", text.trim_end()),
    }
}

#[cfg(test)]
mod tests;
