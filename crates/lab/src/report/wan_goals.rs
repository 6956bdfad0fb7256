//! What was asked of writes over a long way, and what came out: the link by itself, the depth that is found by itself against link and
//! fixed depths, the paper's factor, and the model.

use super::goal::{self, Figure, Goal};
use super::summary::{Row, Summary};
use super::wan::{self, EAGER, SEALED, SMALL_BYTES, median};
use crate::Cell;
use strongroom::units::long_size;

/// The experiments of which `auto` is asked to fill the link.
const STEADY: [(&str, &str); 2] = [("wan-steady", "100 Mbit/s"), ("wan-steady-gigabit", "1 Gbit/s")];
/// At this one-way delay, in milliseconds.
const FAR_MS: f64 = 64.0;
/// The paper's factor.
const PAPERS_TIMES: f64 = 6.6;
/// Of the link's payload rate, and of the best fixed depth.
const SHARE: f64 = 0.9;

/// Each question with its answer; nothing where there is nothing to judge.
pub(super) fn table(summaries: &[Summary]) -> String {
    let figures = figures(summaries);
    if figures.iter().all(|figure| figure.came_out.is_none()) {
        return String::new();
    }
    format!("### What was asked, and what came out\n\n{}", goal::table(&figures))
}

fn figures(summaries: &[Summary]) -> Vec<Figure> {
    let of = |bench: &str| summaries.iter().find(|summary| summary.experiment.bench == bench);
    let mut figures = vec![link_alone(of(STEADY[1].0))];
    for (bench, rate) in STEADY {
        figures.extend(steady(of(bench), rate));
    }
    for summary in summaries.iter().filter(|summary| summary.contenders.iter().any(|name| name.starts_with("OP-"))) {
        figures.extend(best_fixed(summary));
    }
    for base in [EAGER, SEALED] {
        figures.push(papers_factor(of("wan"), base));
    }
    figures.extend(summaries.iter().filter_map(model));
    figures
}

fn link_alone(summary: Option<&Summary>) -> Figure {
    let cells = summary.into_iter().flat_map(|summary| &summary.rows).flat_map(|row| row.runs.values());
    let gbit = |cell: &Cell| Some(cell.model.socket_mib_s? * 1_048_576.0 * 8.0 / 1e9);
    Figure {
        what: "the link alone: Gbit/s of payload of one TCP connection".into(),
        at: format!("{FAR_MS} ms one way"),
        goal: Goal::AtLeast(1.0),
        came_out: cells.filter_map(gbit).next().map(|rate| (rate, String::new())),
    }
}

/// Size by size, what `auto` carries of what the link's rate leaves for payload.
fn steady(summary: Option<&Summary>, rate: &str) -> Vec<Figure> {
    let figure = |at: String, came_out| Figure {
        what: "auto after 20 seconds, of the link's payload rate".into(),
        at,
        goal: Goal::AtLeast(SHARE),
        came_out,
    };
    let is_asked = |row: &&Row| row.contender == "auto" && row.point.size >= SMALL_BYTES;
    let rows: Vec<&Row> = summary.into_iter().flat_map(|summary| &summary.rows).filter(is_asked).collect();
    if rows.is_empty() {
        return vec![figure(format!("{rate}, {FAR_MS} ms one way"), None)];
    }
    let share = |row: &Row| {
        let mib_s = median(row, &|cell| cell.throughput.mib_s)?;
        Some((mib_s / median(row, &|cell| cell.model.link_payload_mib_s)?, format!(" ({mib_s:.1} MiB/s)")))
    };
    let at = |row: &Row| format!("{rate}, {}, {}", row.point.pattern, long_size(row.point.size));
    rows.into_iter().map(|row| figure(at(row), share(row))).collect()
}

/// The place where `auto` does worst beside the best fixed depth there.
fn best_fixed(summary: &Summary) -> Option<Figure> {
    let found = wan::auto_beside_best(summary);
    let (share, place) = found.iter().min_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(Figure {
        what: "auto, of the best fixed depth".into(),
        at: format!("{}: the worst of {} places, {place}", summary.experiment.bench, found.len()),
        goal: Goal::AtLeast(SHARE),
        came_out: Some((*share, String::new())),
    })
}

fn papers_factor(summary: Option<&Summary>, base: &str) -> Figure {
    let small = |row: &Row| row.point.size <= SMALL_BYTES;
    let times = summary.and_then(|summary| wan::mean_ratio(summary, FAR_MS, "OP-10", base, &small));
    Figure {
        what: format!("OP-10, times as much as {base}"),
        at: format!("{FAR_MS} ms one way, mean over writes up to {}", long_size(SMALL_BYTES)),
        goal: Goal::AtLeast(PAPERS_TIMES),
        came_out: times.map(|times| (times, String::new())),
    }
}

/// Of the places that link or latency limits, and nothing else that was seen there, the share where measurement and model agree.
fn model(summary: &Summary) -> Option<Figure> {
    let compared = wan::beside_model(summary);
    let count = compared.iter().filter(|place| place.reason.is_empty()).count();
    let within = compared.iter().filter(|place| place.reason.is_empty() && place.is_within()).count();
    let explained = compared.iter().filter(|place| !place.reason.is_empty() && !place.is_within()).count();
    (count > 0).then(|| Figure {
        what: format!("measured within {:.0} % of the model, share of places", wan::TOLERANCE * 100.0),
        at: format!("{}: where link or latency limits", summary.experiment.bench),
        goal: Goal::AtLeast(1.0),
        came_out: Some((
            within as f64 / count as f64,
            format!(" ({within} of {count}; {explained} others are off, for a reason that was seen there)"),
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Results;
    use crate::cell::{CellKey, LinkConditions, ModelPrediction, Throughput};

    fn cell(bench: &str, contender: &str, size: u64, mib_s: f64) -> Cell {
        Cell {
            key: CellKey {
                bench: bench.into(),
                contender: contender.into(),
                pattern: "64 ms one way".into(),
                size,
                initiators: 1,
                ..CellKey::default()
            },
            link: LinkConditions { delay_ms: Some(64.0), ..LinkConditions::default() },
            throughput: Throughput { mib_s: Some(mib_s), ..Throughput::default() },
            model: ModelPrediction {
                model_mib_s: Some(10.0),
                limit: "link".into(),
                link_payload_mib_s: Some(11.5),
                socket_mib_s: Some(120.0),
                ..ModelPrediction::default()
            },
            ..Cell::default()
        }
    }

    #[test]
    fn every_figure_that_was_asked_is_judged() {
        let mut busy = cell("wan", "S2-5 one at a time", 16384, 1.0);
        busy.cpu.initiator_busy = Some(0.99);
        let cells = vec![
            cell("wan", "S2-1 one at a time", 16384, 1.0),
            busy,
            cell("wan", "OP-10", 16384, 9.0),
            cell("wan", "auto", 16384, 7.0),
            cell("wan-steady", "auto", 65536, 11.0),
            cell("wan-steady", "auto", 1 << 20, 10.0),
            cell("wan-steady", "auto", 16384, 1.0),
        ];
        let results = Results { machines: Vec::new(), cells };
        let summaries: Vec<Summary> = results.benches().iter().map(|bench| Summary::new(&results, bench)).collect();
        let text = table(&summaries);
        let line =
            |part: &str| text.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {text}"));
        assert!(line("link alone").ends_with("| at least 1 | – | not measured |"));
        assert!(
            line("100 Mbit/s, 64 ms one way, 64 KiB").ends_with("| at least 0.9 | 0.96 (11.0 MiB/s) | met |"),
            "{text}"
        );
        assert!(line("100 Mbit/s, 64 ms one way, 1 MiB").ends_with("0.87 (10.0 MiB/s) | **not met** |"), "{text}");
        assert!(!text.contains("100 Mbit/s, 64 ms one way, 16 KiB"), "only larger blocks were asked: {text}");
        assert!(line("1 Gbit/s, 64 ms").ends_with("not measured |"), "{text}");
        assert!(
            line("best fixed").contains("1 places, 16 KiB 64 ms one way, where OP-10 was best | at least 0.9 | 0.78 |")
        );
        assert!(line("as much as S2-1").ends_with("| at least 6.6 | 9.00 | met |"), "{text}");
        let model = text.lines().filter(|line| line.contains("of the model")).collect::<Vec<_>>();
        assert!(model[0].contains("| 0.33 (1 of 3; 1 others are off, for a reason"), "{text}");
        assert!(model[1].contains("| 0.67 (2 of 3; 0 others"), "{text}");
        assert_eq!(table(&[]), "");
    }
}
