//! Which numbers of an experiment are drawn against what.

use super::ecl_figures;
use super::experiment::is_wan;
use super::measure::Measure;
use super::summary::{GridPoint, Summary};
use super::wan;
use strongroom::plot::{Chart, Figure, Look, Series, Value};
use strongroom::units::long_size;

/// Bars of the main number, then lines or bars of what it cost, then latencies: each where there are numbers for it.
pub(crate) fn figures(summary: &Summary) -> Vec<Figure> {
    let main = summary.experiment.main;
    if is_wan(&summary.experiment.bench) {
        return wan::figures(summary);
    }
    if ecl_figures::has_groups(summary) {
        return ecl_figures::grouped_figures(summary);
    }
    if ecl_figures::is_ecl(&summary.experiment.bench) {
        let mut figures = vec![figure(summary, main, Look::Bars, "what came out")];
        figures.retain(|figure| figure.charts.iter().any(Chart::has_values));
        return figures;
    }
    let mut figures = vec![figure(summary, main, Look::Bars, "what it moved")];
    if main == Measure::Seconds {
        figures[0] = figure(summary, main, Look::Bars, "how long it took");
    }
    for (measure, title) in [
        (Measure::TargetPerGib, "what it cost the target"),
        (Measure::InitiatorPerGib, "what it cost the initiators"),
        (Measure::P50, "how long an I/O took"),
    ] {
        let sizes = distinct(summary, |point| point.size).len();
        let others = distinct(summary, |point| point.initiators).len() * distinct(summary, |point| point.depth).len();
        // The slowest of a hundred takes many times as long as most: only a logarithmic axis shows both.
        let look = if measure == Measure::P50 || (sizes >= 3 && others == 1) { Look::Lines } else { Look::Bars };
        figures.push(figure(summary, measure, look, title));
    }
    figures.retain(|figure| figure.charts.iter().any(Chart::has_values));
    figures
}

fn distinct<T: PartialEq + Copy>(summary: &Summary, of: impl Fn(&GridPoint) -> T) -> Vec<T> {
    let mut values = Vec::new();
    for row in &summary.rows {
        let value = of(&row.point);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// One figure: a chart for each pattern; in it, groups for what else varies, and a bar or line for each contender.
fn figure(summary: &Summary, measure: Measure, look: Look, what: &str) -> Figure {
    let varies = |of: fn(&GridPoint) -> u64| distinct(summary, of).len() > 1;
    let (sizes, depths, initiators) =
        (varies(|point| point.size), varies(|point| point.depth.into()), varies(|point| point.initiators.into()));
    let label = |point: &GridPoint| {
        let mut parts = Vec::new();
        if sizes || !(depths || initiators) {
            parts.push(if point.size == 0 { String::new() } else { long_size(point.size) });
        }
        if depths {
            parts.push(format!("depth {}", point.depth));
        }
        if initiators {
            parts.push(format!("{} init.", point.initiators));
        }
        parts.join("\n")
    };
    let mut charts = Vec::new();
    for pattern in patterns(summary) {
        let points: Vec<GridPoint> = summary.points().into_iter().filter(|point| point.pattern == pattern).collect();
        let value = |point: &GridPoint, contender: &str| -> Option<Value> {
            let row = summary.row(point, contender)?;
            if !row.errors.is_empty() {
                return Some(Value::Failed);
            }
            let spread = row.spread(measure)?;
            let high = if measure == Measure::P50 { row.spread(Measure::P99)?.median } else { spread.high };
            let low = if measure == Measure::P50 { spread.median } else { spread.low };
            Some(Value::Measured { middle: spread.median, low, high })
        };
        let series = |contender: &String| Series {
            name: contender.clone(),
            values: points.iter().map(|point| value(point, contender)).collect(),
        };
        charts.push(Chart {
            title: pattern_title(&pattern),
            axis: measure.axis().to_owned(),
            groups: points.iter().map(label).collect(),
            series: summary.contenders.iter().map(series).collect(),
            look,
        });
    }
    let fixed = fixed_in_words(summary, sizes, depths, initiators);
    Figure {
        name: format!("{}-{}", summary.experiment.bench, what.replace(|c: char| !c.is_ascii_alphanumeric(), "-")),
        title: format!("{}: {what}", summary.experiment.bench),
        note: if summary.runs == 1 {
            format!("One run; {fixed}")
        } else {
            format!("Medians of {} runs; whiskers: all of them; {fixed}", summary.runs)
        },
        charts,
    }
}

fn fixed_in_words(summary: &Summary, sizes: bool, depths: bool, initiators: bool) -> String {
    let Some(row) = summary.rows.first() else { return String::new() };
    let mut parts = Vec::new();
    if !sizes && row.point.size > 0 {
        parts.push(long_size(row.point.size));
    }
    if !depths && row.point.depth > 0 {
        parts.push(format!("queue depth {}", row.point.depth));
    }
    if !initiators && row.point.initiators > 0 {
        let plural = if row.point.initiators == 1 { "" } else { "s" };
        parts.push(format!("{} initiator{plural}", row.point.initiators));
    }
    parts.push(format!("medium: {}", summary.media.join(", ")));
    parts.join("; ") + "."
}

fn patterns(summary: &Summary) -> Vec<String> {
    let mut patterns: Vec<String> = Vec::new();
    for row in &summary.rows {
        if !patterns.contains(&row.point.pattern) {
            patterns.push(row.point.pattern.clone());
        }
    }
    patterns
}

fn pattern_title(pattern: &str) -> String {
    match pattern {
        "seqread" => "Sequential reads".into(),
        "seqwrite" => "Sequential writes".into(),
        "randread" => "Random reads".into(),
        "randwrite" => "Random writes".into(),
        other => other.into(),
    }
}
