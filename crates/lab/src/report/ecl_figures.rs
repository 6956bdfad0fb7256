//! Figures of experiments about ECL that are over the length of packets, or over losses.
//!
//! Such an experiment has in its patterns what a figure is over, a colon, and which chart it is: `1500 B: seqread, with offloads`.

use super::measure::Measure;
use super::summary::Summary;
use strongroom::plot::{Chart, Figure, Look, Series, Value};

/// What begins the names of these experiments.
const PREFIX: &str = "ecl-";

/// Whether an experiment is about ECL.
pub(crate) fn is_ecl(bench: &str) -> bool {
    bench.starts_with(PREFIX)
}

/// Whether figures of an experiment are drawn over what is in front of the colon of its patterns: the length of packets, or the loss.
pub(crate) fn has_groups(summary: &Summary) -> bool {
    is_ecl(&summary.experiment.bench) && summary.rows.iter().all(|row| row.point.pattern.contains(": "))
}

/// Lines over the groups, a chart for each thing that is behind the colon.
pub(crate) fn grouped_figures(summary: &Summary) -> Vec<Figure> {
    let kinds = [(Measure::Throughput, "throughput"), (Measure::TargetPerGib, "target-cpu"), (Measure::P99, "p99")];
    let mut figures: Vec<Figure> = kinds
        .into_iter()
        .map(|(measure, name)| Figure {
            name: format!("{}-{name}", summary.experiment.bench),
            title: format!("{}: {}", summary.experiment.bench, measure.axis()),
            note: format!("Medians of {} runs; whiskers: all of them.", summary.runs),
            charts: charts(summary, measure),
        })
        .collect();
    figures.retain(|figure| figure.charts.iter().any(Chart::has_values));
    figures
}

fn charts(summary: &Summary, measure: Measure) -> Vec<Chart> {
    let mut titles: Vec<&str> = Vec::new();
    let mut groups: Vec<&str> = Vec::new();
    for (group, title) in summary.rows.iter().filter_map(|row| row.point.pattern.split_once(": ")) {
        if !titles.contains(&title) {
            titles.push(title);
        }
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let value = |group: &str, title: &str, contender: &str| {
        let pattern = format!("{group}: {title}");
        let row = summary.rows.iter().find(|row| row.point.pattern == pattern && row.contender == contender)?;
        if !row.errors.is_empty() {
            return Some(Value::Failed);
        }
        let spread = row.spread(measure)?;
        Some(Value::Measured { middle: spread.median, low: spread.low, high: spread.high })
    };
    let chart = |title: &str| Chart {
        title: title.to_owned(),
        axis: measure.axis().to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        series: summary
            .contenders
            .iter()
            .map(|name| Series {
                name: name.clone(),
                values: groups.iter().map(|group| value(group, title, name)).collect(),
            })
            .collect(),
        look: Look::Lines,
    };
    titles.into_iter().map(chart).collect()
}
