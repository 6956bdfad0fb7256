//! What was asked of ECL, and what came out: its costs beside those of iSCSI over TCP in the same run, and what it does on lossy and shared
//! links.

use super::goal::{self, Figure, Goal};
use super::measure::Measure;
use super::summary::{Row, Spread, Summary};
use crate::Cell;
use crate::ecl::{DISCARDED, lossy_rate};
use crate::pattern::SECTOR;
use strongroom::plot::number;

/// The contender that all is about, and the one that it is held against.
pub(super) const ECL: &str = "ECL-S2-5";
pub(super) const TCP: &str = "S2-5";
/// A target less busy than this was waiting for somebody else.
const SATURATED: f64 = 0.95;
/// At the rate that was asked for, or nearly.
const SUSTAINED: f64 = 0.97;

/// Which number is judged.
#[derive(Clone, Copy)]
enum Number {
    /// ECL's.
    Own(Measure),
    /// ECL's over another contender's.
    Over(Measure, &'static str),
    /// Another contender's over ECL's.
    Under(Measure, &'static str),
    /// What ECL's writes carry of what a link leaves for the payload of TCP.
    OfLink,
    /// What ECL's writes carry over what the TCP connection beside them carried.
    OverTcpBeside,
    /// Measurements of ECL, with parity and in frames too, in which something was not read as it was written.
    Wrong,
}

/// One question.
struct Question {
    what: &'static str,
    bench: &'static str,
    /// Only places whose pattern begins so.
    patterns: &'static str,
    number: Number,
    goal: Goal,
}

const fn question(
    what: &'static str,
    bench: &'static str,
    patterns: &'static str,
    number: Number,
    goal: Goal,
) -> Question {
    Question { what, bench, patterns, number, goal }
}

const WRONG: &str = "measurements that failed, as with wrong bytes, a lost acknowledged write, or a stale overwrite";

const QUESTIONS: [Question; 20] = [
    question(
        "target CPU per GiB, over S2-5 by TCP",
        "ecl-64k",
        "",
        Number::Over(Measure::TargetPerGib, TCP),
        Goal::AtMost(1.25),
    ),
    question(
        "target CPU per GiB, over S2-1",
        "ecl-64k",
        "",
        Number::Over(Measure::TargetPerGib, "S2-1"),
        Goal::AtMost(1.0),
    ),
    question(
        "target CPU per GiB, over S2-1, the target's AES instructions masked",
        "ecl-64k-software",
        "",
        Number::Over(Measure::TargetPerGib, "S2-1"),
        Goal::AtMost(0.25),
    ),
    question(
        "target CPU per GiB, over S0",
        "ecl-64k",
        "",
        Number::Over(Measure::TargetPerGib, "S0"),
        Goal::Beside(
            "the quanta paper's 63 % more read throughput, which is 0.61 of the CPU time where that is the limit",
        ),
    ),
    question("target CPU per I/O, µs", "ecl-4k", "", Number::Own(Measure::TargetPerKio), Goal::AtMost(3.3)),
    question(
        "I/Os per target CPU second, over S2-5 by TCP",
        "ecl-4k",
        "",
        Number::Under(Measure::TargetPerKio, TCP),
        Goal::AtLeast(1.1),
    ),
    question("target CPU per I/O, µs", "ecl-4k-four", "", Number::Own(Measure::TargetPerKio), Goal::AtMost(3.7)),
    question(
        "I/Os per target CPU second, over S2-5 by TCP",
        "ecl-4k-four",
        "",
        Number::Under(Measure::TargetPerKio, TCP),
        Goal::AtLeast(1.1),
    ),
    question(
        "p50, over S2-5 by TCP, both block",
        "ecl-latency",
        "",
        Number::Over(Measure::P50, TCP),
        Goal::AtMost(1.0),
    ),
    question(
        "p50, over S2-5 by TCP, both poll",
        "ecl-latency-polling",
        "",
        Number::Over(Measure::P50, TCP),
        Goal::AtMost(0.92),
    ),
    question(
        "p99 of reads, over S2-5 by TCP",
        "ecl-loss",
        "1 % lost: randread, round trip 1 ms",
        Number::Over(Measure::P99, TCP),
        Goal::AtMost(0.5),
    ),
    question(
        "p99 of reads, over S2-5 by TCP",
        "ecl-loss",
        "1 % lost: randread, round trip 20 ms",
        Number::Over(Measure::P99, TCP),
        Goal::AtMost(0.5),
    ),
    question(
        "p99 of reads with parity 8+1, over S2-5 by TCP",
        "ecl-loss-parity",
        "1 % lost: randread, round trip 1 ms",
        Number::Over(Measure::P99, TCP),
        Goal::AtMost(0.25),
    ),
    question(
        "p99 of reads with parity 8+1, over S2-5 by TCP",
        "ecl-loss-parity",
        "1 % lost: randread, round trip 20 ms",
        Number::Over(Measure::P99, TCP),
        Goal::AtMost(0.25),
    ),
    question("writes, of the link's rate for payload", "ecl-long", "1 % lost", Number::OfLink, Goal::AtLeast(0.9)),
    question(
        "throughput, over a TCP connection's through the same bottleneck",
        "ecl-beside-tcp",
        "",
        Number::OverTcpBeside,
        Goal::AtLeast(0.67),
    ),
    question(
        "throughput, over a TCP connection's through the same bottleneck",
        "ecl-beside-tcp",
        "",
        Number::OverTcpBeside,
        Goal::AtMost(1.5),
    ),
    question(
        "throughput with its UDP port flooded, over that beside a socket that discards the flood",
        "ecl-flood",
        "",
        Number::Over(Measure::Throughput, DISCARDED),
        Goal::AtLeast(0.9),
    ),
    question(WRONG, "ecl-verify", "", Number::Wrong, Goal::AtMost(0.0)),
    question(WRONG, "ecl-verify-loss", "", Number::Wrong, Goal::AtMost(0.0)),
];

/// What was met and what was not; then each question with its answers, one for each place.
pub(super) fn table(summaries: &[&Summary]) -> String {
    let figures: Vec<Figure> = QUESTIONS.iter().flat_map(|question| figures(question, summaries)).collect();
    goal::in_short(&figures) + &goal::table(&figures)
}

fn figures(question: &Question, summaries: &[&Summary]) -> Vec<Figure> {
    let figure = |at: String, came_out| Figure { what: question.what.into(), at, goal: question.goal, came_out };
    let summary = summaries.iter().find(|summary| summary.experiment.bench == question.bench);
    if let (Number::Wrong, Some(summary)) = (question.number, summary) {
        return vec![figure(format!("{}: all of it", question.bench), Some(wrong(summary)))];
    }
    let is_asked = |row: &&Row| row.contender == ECL && row.point.pattern.starts_with(question.patterns);
    let rows: Vec<&Row> = summary.iter().flat_map(|summary| &summary.rows).filter(is_asked).collect();
    let (Some(summary), false) = (summary, rows.is_empty()) else {
        return vec![figure(question.bench.to_owned(), None)];
    };
    let place = |row: &Row| format!("{}: {}", question.bench, row.point.in_words());
    rows.into_iter().map(|row| figure(place(row), answer(question.number, summary, row))).collect()
}

/// The median, and in words how far runs lie apart, both numbers of a ratio, and what spoils them.
fn answer(number: Number, summary: &Summary, row: &Row) -> Option<(f64, String)> {
    let other = |name: &str| summary.row(&row.point, name);
    let (spread, words) = match number {
        Number::Own(measure) => (row.spread(measure)?, format!(" ({})", with_spread(row.spread(measure)?))),
        Number::Over(measure, name) => ratio(row, other(name)?, (row, other(name)?), measure)?,
        Number::Under(measure, name) => ratio(other(name)?, row, (row, other(name)?), measure)?,
        Number::OfLink => {
            let shares = Spread::of(row.runs.values().filter_map(of_link))?;
            (shares, format!(" ({})", with_spread(shares)))
        }
        Number::OverTcpBeside => {
            let over =
                |cell: &Cell| Some(cell.throughput.mib_s? / cell.link.tcp_beside_mib_s.filter(|rate| *rate > 0.0)?);
            let ratios = Spread::of(row.runs.values().filter_map(over))?;
            (ratios, format!(" ({})", with_spread(ratios)))
        }
        // Of all rows at once.
        Number::Wrong => return None,
    };
    let compared = match number {
        Number::Over(_, name) | Number::Under(_, name) => other(name),
        _ => None,
    };
    let spoilt: String = [Some(row), compared].into_iter().flatten().map(|row| caveat(number, row)).collect();
    Some((spread.median, words + &spoilt))
}

/// How many measurements failed, of how many, and how much was compared in the others.
fn wrong(summary: &Summary) -> (f64, String) {
    let rows = || summary.rows.iter().filter(|row| row.contender.starts_with(ECL));
    let failed: usize = rows().map(|row| row.errors.len()).sum();
    let cells: Vec<&Cell> = rows().flat_map(|row| row.runs.values()).collect();
    let compared_bytes = cells.iter().filter_map(|cell| cell.verified).sum::<u64>() * SECTOR as u64;
    (failed as f64, format!(" (of {}; {} MiB compared)", failed + cells.len(), compared_bytes >> 20))
}

/// One row over another, and both numbers of `shown`.
fn ratio(above: &Row, below: &Row, shown: (&Row, &Row), measure: Measure) -> Option<(Spread, String)> {
    let ratio = above.ratio(below, measure)?;
    let (own, other) = (shown.0.spread(measure)?.median, shown.1.spread(measure)?.median);
    Some((ratio, format!(" ({}; {own:.2} and {other:.2})", with_spread(ratio))))
}

/// The rate that the link leaves for the payload of TCP is what is measured against, though ECL's packets have longer headers.
fn of_link(cell: &Cell) -> Option<f64> {
    const TCP_HEADERS: f64 = 52.0;
    let mtu = f64::from(cell.link.mtu?);
    let mbit: f64 = cell.link.description.split(' ').next()?.parse().ok()?;
    let payload_mib_s = mbit * 1e6 / 8.0 / 1_048_576.0 * (mtu - TCP_HEADERS) / mtu;
    Some(cell.throughput.mib_s? / payload_mib_s)
}

/// A number and its spread over runs.
fn with_spread(spread: Spread) -> String {
    format!("{}–{}", number(spread.low), number(spread.high))
}

/// What spoils a number of a contender: its target was not the bottleneck where CPU time is asked for, or it did not sustain the rate.
fn caveat(number: Number, row: &Row) -> String {
    let name = &row.contender;
    let is_cpu = matches!(
        number,
        Number::Own(Measure::TargetPerKio)
            | Number::Over(Measure::TargetPerGib, _)
            | Number::Under(Measure::TargetPerKio, _)
    );
    if is_cpu && let Some(busy) = row.spread(Measure::TargetBusy).filter(|busy| busy.median < SATURATED) {
        return format!("; {name}'s target was {:.0} % busy", busy.median * 100.0);
    }
    if matches!(number, Number::Over(Measure::P99, _)) {
        let asked = f64::from(lossy_rate(row.point.size));
        if let Some(kiops) = row.spread(Measure::Kiops).filter(|kiops| kiops.median * 1000.0 < SUSTAINED * asked) {
            return format!("; {name} did {:.0} of the {asked} reads a second that were asked", kiops.median * 1000.0);
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Results;
    use crate::cell::{CellKey, CpuCost, LinkConditions, Throughput};

    fn cell(bench: &str, contender: &str, pattern: &str, cpu: f64) -> Cell {
        Cell {
            key: CellKey {
                bench: bench.into(),
                contender: contender.into(),
                pattern: pattern.into(),
                ..CellKey::default()
            },
            cpu: CpuCost { target_cpu_s_per_gib: Some(cpu), target_busy: Some(0.5), ..CpuCost::default() },
            throughput: Throughput { mib_s: Some(10.0), ..Throughput::default() },
            link: LinkConditions {
                mtu: Some(9000),
                description: "100 Mbit/s, MTU 9000".into(),
                tcp_beside_mib_s: Some(5.0),
                ..LinkConditions::default()
            },
            ..Cell::default()
        }
    }

    #[test]
    fn every_question_is_answered_or_said_not_to_be_measured() {
        let cells = vec![
            cell("ecl-64k", "S2-5", "seqread", 1.0),
            cell("ecl-64k", "S2-1", "seqread", 2.0),
            cell("ecl-64k", "ECL-S2-5", "seqread", 1.5),
            cell("ecl-long", "ECL-S2-5", "1 % lost: seqwrite, 64 ms one way", 1.0),
            cell("ecl-beside-tcp", "ECL-S2-5", "seqwrite", 1.0),
            cell("ecl-64k", "S0", "seqread", 3.0),
            Cell { verified: Some(4096), ..cell("ecl-verify", "ECL-S2-5", "randread", 1.0) },
            Cell { verified: Some(4096), ..cell("ecl-verify", "ECL-S2-5 in Ethernet frames", "randread", 1.0) },
            cell("ecl-verify-loss", "ECL-S2-5, parity", "randwrite", 1.0).failed("sector 7 has other data"),
        ];
        let results = Results { machines: Vec::new(), cells };
        let summaries: Vec<Summary> = results.benches().iter().map(|bench| Summary::new(&results, bench)).collect();
        let text = table(&summaries.iter().collect::<Vec<_>>());
        let line =
            |part: &str| text.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {text}"));
        assert!(
            line("over S2-5 by TCP | ecl-64k")
                .contains("| 1.50 (1.5–1.5; 1.50 and 1.00); ECL-S2-5's target was 50 % busy; S2-5's target was 50 % busy | **not met** |"),
            "{text}"
        );
        assert!(line("over S2-1 | ecl-64k").contains("| 0.75 "), "{text}");
        assert!(line("of the link's rate for payload |").contains("| 0.84 "), "{text}");
        assert!(text.contains("| at least 0.67 | 2.00 (2–2) | met |"), "{text}");
        assert!(text.contains("| at most 1.5 | 2.00 (2–2) | **not met** |"), "{text}");
        assert!(
            line("over S0 | ecl-64k").contains("63 %") && line("over S0 | ecl-64k").ends_with("| reported |"),
            "{text}"
        );
        assert!(
            line("| ecl-verify: all of it").ends_with("| at most 0 | 0.00 (of 2; 4 MiB compared) | met |"),
            "{text}"
        );
        assert!(line("| ecl-verify-loss: all").ends_with("| 1.00 (of 1; 0 MiB compared) | **not met** |"), "{text}");
        assert!(
            text.starts_with("**Not met**: target CPU per GiB, over S2-5 by TCP: at most 1.25 (ecl-64k); "),
            "{text}"
        );
        assert!(
            line("**Met**: ")
                .contains("; throughput, over a TCP connection's through the same bottleneck: at least 0.67"),
            "{text}"
        );
        assert!(line("both poll |").ends_with("not measured |"), "{text}");
    }
}
