//! What lazy cryptography means to the users of a volume: the throughput of initiators that really seal, beside the target's capacity, in every
//! cell that was measured so, those where it loses included.

use std::fmt::Write;

use super::comparison::{self, Compared, Comparison, IoClass};
use super::goal::Goal;
use super::measure::Measure;
use super::summary::{Row, Spread, Summary};
use strongroom::plot::number;

/// A lazy scheme, and the one that it is held against.
const PAIRS: [(&str, &str); 3] = [("S2-5", "S2-1"), ("S2-5", "S0"), ("S1-2", "S1-1")];
/// Experiments in which initiators have sealed beforehand: their throughput is no client's.
const BEFOREHAND: &str = "capacity-";
/// From here on a target counts as the bottleneck.
const SATURATED: f64 = 0.95;

/// What was asked of the processor time of both ends.
const COSTS: [Comparison; 2] = [
    Comparison {
        what: "an initiator's CPU time for a sealed write, more than S0's, µs",
        bench: "client",
        io: IoClass { size: 4096, depth: None, is_write: true },
        own: "S2-5",
        other: "S0",
        compared: Compared::Difference(Measure::InitiatorPerKio),
        goal: Goal::AtMost(0.9),
    },
    Comparison {
        what: "the target's CPU time per GiB over S0's, in the first second of target and initiator",
        bench: "client-first-second",
        io: IoClass { size: 65536, depth: None, is_write: true },
        own: "S2-5",
        other: "S0",
        compared: Compared::Ratio(Measure::TargetPerGib),
        goal: Goal::AtMost(1.08),
    },
];

/// The tables, with words before them; nothing if no cell has a pair.
pub(super) fn table(summaries: &[Summary]) -> String {
    let client =
        |summary: &&Summary| !summary.experiment.bench.starts_with(BEFOREHAND) && summary.experiment.bench != "stream";
    let lines: String = summaries.iter().filter(client).flat_map(lines).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!(
        "\n### Client throughput beside the target's capacity\n\nInitiators really seal and open here. The ratio of throughputs is what a client sees, the \
         ratio of capacities is that of the data that a CPU second of the target carries; both run by run, above 1 where the lazy scheme \
         wins. Busy is the target's share of the processor time that it may use, of the lazy scheme and of the other; where both are below \
         {SATURATED}, something else limits the throughput, usually the initiators' processor.\n\n\
         | experiment | I/O | compared | MiB/s | client throughput | asked | | target capacity | target busy |\n\
         |---|---|---|---:|---:|---|---|---:|---:|\n{lines}\n### What sealing costs both ends\n\n{}",
        comparison::table(&COSTS, summaries)
    )
}

fn lines(summary: &Summary) -> Vec<String> {
    let mut lines = Vec::new();
    for row in &summary.rows {
        for (lazy, eager) in PAIRS {
            if let Some(base) = is_of(row, lazy).then(|| opponent(summary, row, lazy, eager)).flatten() {
                lines.push(line(summary, row, base, (lazy, eager)));
            }
        }
    }
    lines
}

fn is_of(row: &Row, scheme: &str) -> bool {
    row.runs.values().next().is_some_and(|cell| cell.key.scheme == scheme)
}

/// Who differs from `row` in its scheme alone. S0 has neither suite nor processes that could differ.
fn opponent<'a>(summary: &'a Summary, row: &Row, lazy: &str, eager: &str) -> Option<&'a Row> {
    let name = row.contender.replacen(lazy, eager, 1);
    let quota = |row: &Row| row.runs.values().next().and_then(|cell| cell.key.target_quota_percent);
    summary.rows.iter().find(|other| {
        let is_same = other.contender == name || (eager == "S0" && is_of(other, "S0") && quota(other) == quota(row));
        other.point == row.point && is_same
    })
}

fn line(summary: &Summary, row: &Row, base: &Row, (lazy, eager): (&str, &str)) -> String {
    let rate = |row: &Row| row.spread(Measure::Throughput).map_or("error".into(), |spread| number(spread.median));
    let throughput = row.ratio(base, Measure::Throughput);
    // A second carries more where a GiB costs less.
    let capacity = base.ratio(row, Measure::TargetPerGib);
    let goal = goal(summary, (row, base), (lazy, eager));
    let (asked, verdict) = match goal.zip(throughput) {
        Some((goal, ratio)) => (goal.in_words(), goal.verdict(ratio.median)),
        None => ("–".to_owned(), ""),
    };
    let busy = |row: &Row| row.spread(Measure::TargetBusy).map_or("–".into(), |spread| number(spread.median));
    let mut line = String::new();
    let _ = writeln!(
        line,
        "| {} | {} | {} over {} | {} / {} | {} | {asked} | {verdict} | {} | {}, {} |",
        summary.experiment.bench,
        row.point.in_words(),
        row.contender,
        base.contender,
        rate(row),
        rate(base),
        in_words(throughput),
        in_words(capacity),
        busy(row),
        busy(base)
    );
    line
}

fn in_words(ratio: Option<Spread>) -> String {
    ratio.map_or("–".into(), |ratio| format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high))
}

/// What is asked of a client's throughput with the lazy scheme, `row`, over that with the other one, `base`.
fn goal(summary: &Summary, (row, base): (&Row, &Row), pair: (&str, &str)) -> Option<Goal> {
    let is_saturated = base.spread(Measure::TargetBusy).is_some_and(|busy| busy.median >= SATURATED);
    let is_read = row.point.pattern.ends_with("read");
    let bound = match (&*summary.experiment.bench, pair, row.point.initiators) {
        ("client", ("S2-5", "S2-1"), _) if is_saturated => 1.15,
        ("client", ("S2-5", "S2-1"), _) => 0.97,
        ("client", ("S2-5", "S0"), _) => {
            if row.point.size == 65536 {
                0.92
            } else {
                0.88
            }
        }
        ("client-quota", ("S2-5", "S2-1"), _) => {
            if is_read {
                1.4
            } else {
                1.1
            }
        }
        ("client-target-software", ("S2-5", "S2-1"), _) => 5.0,
        ("client-quota-paper", ("S2-5", "S2-1"), 8) => 2.7,
        ("client-quota-paper", ("S1-2", "S1-1"), 1) => 1.46,
        ("client-quota-paper", ("S1-2", "S1-1"), 8) => 1.92,
        _ => return None,
    };
    Some(Goal::AtLeast(bound))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{CellKey, CpuCost, Throughput};
    use crate::{Cell, Results};

    fn cell(bench: &str, scheme: &str, run: u32, mib_s: u64, target_cost: f64) -> Cell {
        let key = CellKey {
            bench: bench.into(),
            contender: format!("{scheme} target at 40%"),
            scheme: scheme.into(),
            target_quota_percent: Some(40),
            pattern: "seqwrite".into(),
            size: 65536,
            depth: 16,
            initiators: 1,
            run,
            ..CellKey::default()
        };
        let cpu = CpuCost { target_cpu_s_per_gib: Some(target_cost), target_busy: Some(0.4), ..CpuCost::default() };
        Cell { cpu, throughput: Throughput::new(1, mib_s << 20, 1.0), ..Cell::empty(key) }
    }

    fn text(bench: &str) -> String {
        let cells = (0..3).flat_map(|run| {
            let more = u64::from(run);
            [
                cell(bench, "S2-5", run, 120 + more, 0.8),
                cell(bench, "S2-1", run, 100 + more, 1.0),
                cell(bench, "S0", run, 200, 0.5),
            ]
        });
        let results = Results { machines: Vec::new(), cells: cells.collect() };
        table(&[Summary::new(&results, bench)])
    }

    #[test]
    fn throughput_and_capacity_stand_side_by_side_where_lazy_schemes_win_and_where_they_lose() {
        let text = text("client-quota");
        let wins = text.lines().find(|line| line.contains("S2-5 target at 40% over S2-1 target at 40%")).unwrap();
        assert!(
            wins.contains("| 121 / 101 | 1.20 (1.20–1.20) | at least 1.1 | met | 1.25 (1.25–1.25) | 1, 1 |"),
            "{wins}"
        );
        let loses = text.lines().find(|line| line.contains("S2-5 target at 40% over S0 target at 40%")).unwrap();
        assert!(loses.contains("| 121 / 200 | 0.60 (0.60–0.61) | – |  | 0.62 (0.62–0.62) |"), "{loses}");
    }

    #[test]
    fn what_sealing_costs_is_judged_in_writes() {
        let cells = (0..5).flat_map(|run| {
            [("S2-5", 4.8, 1.10), ("S0", 4.0, 1.0)].into_iter().flat_map(move |(scheme, us, target)| {
                let (client, first) = ("client", "client-first-second");
                [(client, "seqwrite", 4096), (client, "seqread", 4096), (first, "seqwrite", 65536)].map(
                    |(bench, pattern, size)| {
                        let mut cell = cell(bench, scheme, run, 100, target);
                        cell.key = CellKey { contender: scheme.into(), pattern: pattern.into(), size, ..cell.key };
                        cell.cpu.initiator_cpu_ms_per_kio = Some(us);
                        cell
                    },
                )
            })
        });
        let results = Results { machines: Vec::new(), cells: cells.collect() };
        let text = table(&["client", "client-first-second"].map(|bench| Summary::new(&results, bench)));
        let judged: Vec<&str> = text.lines().filter(|line| line.contains("CPU time")).collect();
        assert_eq!(judged.len(), 2, "{text}");
        assert!(judged[0].contains("| 4 KiB seqwrite, depth 16 | at most 0.9 | 0.80 (0.80–0.80) | met |"), "{text}");
        assert!(judged[1].contains("| 64 KiB seqwrite, depth 16 | at most 1.08 | 1.10 (1.10–1.10) | **not met** |"));
    }

    #[test]
    fn what_was_sealed_beforehand_is_no_clients_throughput() {
        assert_eq!(text("capacity-hardware"), "");
        assert!(
            text("client").contains("| at least 1.15 | met |")
                && text("client").contains("| at least 0.92 | **not met** |")
        );
    }
}
