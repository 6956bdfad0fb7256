//! Our volumes beside other people's targets and stacks, as Markdown: what was asked of them and what came out, releases beside each other, and
//! every number.

use std::fmt::Write;

use super::comparison::{self, Compared, Comparison, IoClass};
use super::goal::Goal;
use super::markdown;
use super::measure::Measure;
use super::releases;
use super::summary::Summary;
use super::words;
use crate::Results;
use crate::peers::{OURS_PLAIN, OURS_POLLING, OURS_SEALED, QEMU_LUKS, STUNNEL, TGT_TUNED};

const BENCH: &str = "peers";
/// With many I/Os in flight, and with one.
const MANY: u32 = 16;
const ONE: u32 = 1;

const QUESTIONS: [Comparison; 5] = [
    throughput("sealed volume, whole stack, over tgt behind stunnel (TLS 1.3)", 65536, STUNNEL, 4.0),
    throughput("sealed volume, whole stack, over tgt behind stunnel (TLS 1.3)", 4096, STUNNEL, 3.0),
    throughput("sealed volume, whole stack, over QEMU's LUKS in front of tgt", 65536, QEMU_LUKS, 5.0),
    latency("p50 of a stock initiator over that with tgt, our target polls", OURS_POLLING, 0.42),
    latency("p50 of a stock initiator over that with tgt, our target does not poll", OURS_PLAIN, 0.9),
];

const fn throughput(what: &'static str, size: u64, other: &'static str, at_least: f64) -> Comparison {
    Comparison {
        what,
        bench: BENCH,
        io: IoClass { size, depth: Some(MANY), is_write: false },
        own: OURS_SEALED,
        other,
        compared: Compared::Ratio(Measure::Throughput),
        goal: Goal::AtLeast(at_least),
    }
}

const fn latency(what: &'static str, own: &'static str, at_most: f64) -> Comparison {
    Comparison {
        what,
        bench: BENCH,
        io: IoClass { size: 4096, depth: Some(ONE), is_write: false },
        own,
        other: TGT_TUNED,
        compared: Compared::Ratio(Measure::P50),
        goal: Goal::AtMost(at_most),
    }
}

/// The section between the marks.
pub(crate) fn section(results: &Results, summaries: &[Summary]) -> String {
    let summaries: Vec<Summary> =
        summaries.iter().filter(|summary| summary.experiment.bench == BENCH).cloned().collect();
    let judged: Vec<Summary> = summaries.iter().map(Summary::of_last_release).collect();
    let mut out = format!("## Beside other targets\n\n{}", words::machine_and_commands(results));
    let _ = write!(
        out,
        "Medians, with the lowest and highest run in brackets; ratios are taken run by run. tgt is the tuned one in all of them.\n\n{}{}",
        comparison::table(&QUESTIONS, &judged),
        releases::table(&summaries)
    );
    for summary in &summaries {
        let Summary { experiment, .. } = summary;
        let _ = writeln!(out, "\n### {}\n\n{}\n", experiment.title, experiment.method);
        let _ = writeln!(out, "{}\n", words::reliability(summary));
        for failure in words::failures(summary) {
            let _ = writeln!(out, "- **Failed:** {failure}");
        }
        let _ = writeln!(out, "{}", markdown::table(summary));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cell;
    use crate::cell::{CellKey, LatencyQuantiles, Throughput};

    fn cell(contender: &str, (pattern, size, depth): (&str, u64, u32), run: u32, mib_s: u64, p50_us: f64) -> Cell {
        let key = CellKey {
            bench: BENCH.into(),
            contender: contender.into(),
            pattern: pattern.into(),
            size,
            depth,
            initiators: 1,
            run,
            ..CellKey::default()
        };
        let latency = LatencyQuantiles { p50_us: Some(p50_us), ..LatencyQuantiles::default() };
        Cell { latency, throughput: Throughput::new(1, mib_s << 20, 1.0), ..Cell::empty(key) }
    }

    #[test]
    fn every_question_is_answered_from_the_same_run() {
        let mut cells = Vec::new();
        for run in 0..5 {
            let faster = 1 + u64::from(run);
            for (contender, mib_s) in [(OURS_SEALED, 1000), (STUNNEL, 200), (QEMU_LUKS, 250)] {
                cells.push(cell(contender, ("seqread", 65536, 16), run, mib_s * faster, 1.0));
                cells.push(cell(contender, ("randwrite", 4096, 16), run, mib_s * faster / 2, 1.0));
            }
            for (contender, us) in [(OURS_PLAIN, 95.0), (OURS_POLLING, 40.0), (TGT_TUNED, 100.0)] {
                cells.push(cell(contender, ("randread", 4096, 1), run, 1, us * faster as f64));
            }
        }
        let results = Results { machines: Vec::new(), cells };
        let text = section(&results, &[Summary::new(&results, BENCH)]);
        let line = |what: &str, at: &str| {
            let found = text.lines().find(|line| line.contains(what) && line.contains(at));
            found.unwrap_or_else(|| panic!("{what} {at}: {text}")).to_owned()
        };
        assert!(line("stunnel (TLS 1.3)", "64 KiB seqread").contains("| at least 4 | 5.00 (5.00–5.00) | met |"));
        assert!(line("stunnel (TLS 1.3)", "4 KiB randwrite").contains("| at least 3 | 5.00 (5.00–5.00) | met |"));
        assert!(line("LUKS", "64 KiB seqread").contains("| at least 5 | 4.00 (4.00–4.00) | **not met** |"));
        assert!(
            line("our target polls", "4 KiB randread, depth 1").contains("| at most 0.42 | 0.40 (0.40–0.40) | met |")
        );
        assert!(line("does not poll", "depth 1").contains("| at most 0.9 | 0.95 (0.95–0.95) | **not met** |"));
    }

    #[test]
    fn what_did_not_take_part_is_said() {
        let cells = (0..5).map(|run| cell(OURS_SEALED, ("seqread", 65536, 16), run, 1000, 1.0)).collect();
        let results = Results { machines: Vec::new(), cells };
        let text = section(&results, &[Summary::new(&results, BENCH)]);
        assert!(text.contains("| 64 KiB seqread, depth 16 | at least 4 | – | not measured |"), "{text}");
        assert!(text.contains("| 4 KiB I/Os | at most 0.42 | – | not measured |"), "{text}");
    }
}
