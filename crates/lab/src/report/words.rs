//! Results as sentences: what came out, and whether it may be believed. Ratios are of the same run; where the target was not
//! the bottleneck, a ratio of throughputs is not called one of targets.

use super::experiment::is_wan;
use super::measure::Measure;
use super::summary::{Row, Spread, Summary};
use super::wan;
use crate::{Machine, Results};
use strongroom::plot::number;
use strongroom::units::long_size;

/// A target less busy than this was waiting for somebody else.
const BOTTLENECK: f64 = 0.95;
/// Foreign work beyond this share of the processors spoils numbers.
const FOREIGN_MAX: f64 = 0.05;

/// One sentence for each place and contender, against the first contender.
pub(crate) fn findings(summary: &Summary) -> Vec<String> {
    if is_wan(&summary.experiment.bench) {
        return wan::findings(summary);
    }
    let Some(base_name) = summary.contenders.first() else { return Vec::new() };
    let mut sentences = Vec::new();
    for place in summary.points() {
        let Some(base) = summary.row(&place, base_name) else { continue };
        for name in &summary.contenders[1..] {
            if let Some(row) = summary.row(&place, name)
                && let Some(sentence) = comparison(summary, row, base)
            {
                sentences.push(sentence);
            }
        }
    }
    sentences
}

fn comparison(summary: &Summary, row: &Row, base: &Row) -> Option<String> {
    let main = summary.experiment.main;
    let ratio = row.ratio(base, main)?;
    let (own, other) = (row.spread(main)?, base.spread(main)?);
    let unit = main.column();
    let mut sentence = format!(
        "{}: {} {} {} {unit} against {}'s {}: {}",
        row.point.in_words(),
        row.contender,
        if main == Measure::Seconds { "took" } else { "did" },
        number(own.median),
        base.contender,
        number(other.median),
        times(ratio)
    );
    if let Some(cost) = row.ratio(base, Measure::TargetPerKio) {
        sentence += &format!("; its target used {} the CPU time per I/O", times(cost));
    }
    if let Some(cost) = row.ratio(base, Measure::InitiatorPerKio) {
        sentence += &format!(", its initiators {}", times(cost));
    }
    sentence += &bottleneck(row, base);
    Some(sentence + ".")
}

/// What limited both, where that is known.
fn bottleneck(row: &Row, base: &Row) -> String {
    let busy = |row: &Row, measure| row.spread(measure).map(|spread: Spread| spread.median);
    let (Some(own), Some(other)) = (busy(row, Measure::TargetBusy), busy(base, Measure::TargetBusy)) else {
        return String::new();
    };
    let foreign =
        |row: &Row| Spread::of(row.runs.values().filter_map(|cell| cell.cpu.foreign_busy)).map(|it| it.median);
    let foreign = foreign(row).into_iter().chain(foreign(base)).fold(0.0, f64::max);
    if foreign > FOREIGN_MAX {
        let share = foreign * 100.0;
        return format!(" (others took {share:.0}% of the processors: what the bottleneck was cannot be told)");
    }
    if own >= BOTTLENECK && other >= BOTTLENECK {
        return " (the target's processor was the bottleneck in both)".into();
    }
    let initiators = busy(row, Measure::InitiatorBusy).is_some_and(|busy| busy >= BOTTLENECK);
    let limit = if initiators { "the initiators' processor was full" } else { "it waited for round trips" };
    format!(
        " (the target was {:.0}% busy against {:.0}%: {limit}, so this is no ratio of targets)",
        own * 100.0,
        other * 100.0
    )
}

fn times(ratio: Spread) -> String {
    if ratio.high - ratio.low < 0.01 {
        format!("{:.2}×", ratio.median)
    } else {
        format!("{:.2}× ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
    }
}

/// What went wrong, one line for each row that has errors.
pub(crate) fn failures(summary: &Summary) -> Vec<String> {
    let failed = summary.rows.iter().filter(|row| !row.errors.is_empty());
    failed
        .map(|row| {
            let of = row.errors.len() + row.runs.len();
            format!(
                "{}, {}: {} of {of} runs failed: {}",
                row.contender,
                row.point.in_words(),
                row.errors.len(),
                row.errors[0]
            )
        })
        .collect()
}

/// How much of it is noise, and who made it.
pub(crate) fn reliability(summary: &Summary) -> String {
    let mut sentences = Vec::new();
    let seconds = number(summary.seconds);
    sentences.push(format!("{} runs of {seconds} s each, interleaved.", summary.runs));
    match summary.noise() {
        Some(noise) => sentences.push(format!(
            "Half of all rows have runs within {:.0}% of each other (highest against lowest).",
            noise * 100.0
        )),
        None => sentences.push("One run of each: nothing is known of the noise.".into()),
    }
    let cells: Vec<f64> =
        summary.rows.iter().flat_map(|row| row.runs.values().filter_map(|cell| cell.cpu.foreign_busy)).collect();
    let spoilt = cells.iter().filter(|foreign| **foreign > FOREIGN_MAX).count();
    if spoilt > 0 {
        sentences.push(format!(
            "Other programs, or the machine beneath, took more than {:.0}% of the processors during {spoilt} of {} measurements: \
             believe ratios and CPU times before throughputs.",
            FOREIGN_MAX * 100.0,
            cells.len()
        ));
    } else if !cells.is_empty() {
        sentences.push("Nothing else used the processors meanwhile.".into());
    }
    let verified: u64 = summary.rows.iter().flat_map(|row| row.runs.values().filter_map(|cell| cell.verified)).sum();
    if verified > 0 {
        sentences.push(format!(
            "{} of data were compared and found right.",
            long_size((verified * 512).next_multiple_of(1 << 20))
        ));
    }
    sentences.join(" ")
}

/// The machine as one paragraph, and the commands that made the results.
pub(crate) fn machine_and_commands(results: &Results) -> String {
    let Some(machine) = results.machines.first() else { return String::new() };
    let commands: String = results.machines.iter().map(|machine| format!("{}\n", machine.command)).collect();
    format!("{}\n\nCommands:\n\n```\n{commands}```\n\n", machine_in_words(machine))
}

/// The machine, as one paragraph.
pub(crate) fn machine_in_words(machine: &Machine) -> String {
    let kind = if machine.is_virtual { "Virtual machine" } else { "Machine" };
    let mut words = format!(
        "{kind}: {} × {}, {} GiB of memory, {}, TCP congestion control {}. {}. Load average when it began: {}. {}.",
        machine.cpus,
        machine.cpu,
        machine.memory_mib.div_ceil(1024),
        machine.kernel,
        machine.congestion_control,
        machine.strongroom,
        machine.load_before,
        machine.date,
    );
    if !machine.pinning.is_empty() {
        words += &format!(" Pinned: {}.", machine.pinning);
    }
    if !machine.programs.is_empty() {
        words += &format!(" With {}.", machine.programs.join("; "));
    }
    words
}
