//! Releases beside each other: what each contender of a release does and costs, over the release that was named first, run by run.

use std::fmt::Write;

use super::measure::Measure;
use super::summary::{Row, Spread, Summary};

/// What is compared, and what columns call it.
const COMPARED: [(&str, Measure); 4] = [
    ("throughput", Measure::Throughput),
    ("p50", Measure::P50),
    ("target CPU per I/O", Measure::TargetPerKio),
    ("initiator CPU per I/O", Measure::InitiatorPerKio),
];

/// The table, with words before it; nothing if there is only one release.
pub(super) fn table(summaries: &[Summary]) -> String {
    let lines: String = summaries.iter().flat_map(lines).collect();
    if lines.is_empty() {
        return String::new();
    }
    let heads = COMPARED.map(|(head, _)| head).join(" | ");
    format!(
        "\n### Releases beside each other\n\nEach over the same contender of the release that was named first, run by run: above 1 is more, which is better \
         for throughput alone.\n\n| experiment | I/O | compared | {heads} |\n|---|---|---|{}\n{lines}",
        "---:|".repeat(COMPARED.len())
    )
}

fn lines(summary: &Summary) -> Vec<String> {
    let Some(first) = summary.releases.first() else { return Vec::new() };
    let mut lines = Vec::new();
    for row in summary.rows.iter().filter(|row| !row.release.is_empty() && row.release != *first) {
        let is_base = |other: &&Row| {
            other.point == row.point
                && other.release == *first
                && other.contender_of_any_release() == row.contender_of_any_release()
        };
        let Some(base) = summary.rows.iter().find(is_base) else { continue };
        let mut line = String::new();
        let (bench, io) = (&summary.experiment.bench, row.point.in_words());
        let _ = write!(line, "| {bench} | {io} | {} over {} |", row.contender, base.contender);
        for (_, measure) in COMPARED {
            let _ = write!(line, " {} |", in_words(row.ratio(base, measure)));
        }
        lines.push(line + "\n");
    }
    lines
}

fn in_words(ratio: Option<Spread>) -> String {
    ratio.map_or("–".into(), |ratio| format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{CellKey, ProgramAccess, Throughput};
    use crate::{Cell, Results};

    fn summary(releases: &[&str]) -> Summary {
        let mut cells = Vec::new();
        for run in 0..3 {
            for (release, mib_s) in releases.iter().zip([100, 150]) {
                for contender in ["S0", "S2-5"] {
                    let key = CellKey {
                        bench: "rawio".into(),
                        contender: format!("{contender} {release}").trim_end().into(),
                        pattern: "seqwrite".into(),
                        size: 4096,
                        run,
                        ..CellKey::default()
                    };
                    let access = ProgramAccess { release: (*release).into(), ..ProgramAccess::default() };
                    let throughput = Throughput::new(1, (mib_s + 10 * u64::from(run)) << 20, 1.0);
                    cells.push(Cell { access, throughput, ..Cell::empty(key) });
                }
            }
        }
        Summary::new(&Results { machines: Vec::new(), cells }, "rawio")
    }

    #[test]
    fn each_contender_is_held_against_itself_in_the_first_release() {
        let text = table(&[summary(&["old", "new"])]);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| rawio")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(lines[1], "| rawio | 4 KiB seqwrite | S2-5 new over S2-5 old | 1.45 (1.42–1.50) | – | – | – |");
        assert_eq!(table(&[summary(&[""])]), "");
    }
}
