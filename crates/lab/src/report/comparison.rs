//! Questions that compare two contenders of one experiment, run by run, with what is asked of the answer. A question has a figure for each I/O
//! that it is about. Absent: what is asked (`client`, `peers`, `profile`).

use super::goal::{self, Figure, Goal};
use super::measure::Measure;
use super::summary::{Row, Spread, Summary};
use strongroom::units::long_size;

/// How the number of a contender is compared with that of another one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Compared {
    /// Its own over the other's.
    Ratio(Measure),
    /// Its own less the other's.
    Difference(Measure),
}

/// Which I/Os a question is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct IoClass {
    pub(super) size: u64,
    /// `None`: any.
    pub(super) depth: Option<u32>,
    /// Writes alone, not reads.
    pub(super) is_write: bool,
}

/// One question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    pub(super) what: &'static str,
    pub(super) bench: &'static str,
    pub(super) io: IoClass,
    pub(super) own: &'static str,
    pub(super) other: &'static str,
    pub(super) compared: Compared,
    pub(super) goal: Goal,
}

/// What came out for one I/O.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer<'a> {
    pub(super) row: &'a Row,
    /// Whom it is held against, if that was measured.
    pub(super) base: Option<&'a Row>,
    pub(super) spread: Option<Spread>,
}

impl IoClass {
    fn has(&self, row: &Row) -> bool {
        let point = &row.point;
        point.size == self.size
            && self.depth.is_none_or(|depth| point.depth == depth)
            && (!self.is_write || point.pattern.ends_with("write"))
    }
}

impl Comparison {
    /// What came out for each I/O that it is about.
    pub(super) fn answers<'a>(&self, summary: &'a Summary) -> Vec<Answer<'a>> {
        let own = summary.rows.iter().filter(|row| row.contender == self.own && self.io.has(row));
        let answer = |row: &'a Row| {
            let base = summary.row(&row.point, self.other);
            let spread = base.and_then(|base| match self.compared {
                Compared::Ratio(measure) => row.ratio(base, measure),
                Compared::Difference(measure) => row.difference(base, measure),
            });
            Answer { row, base, spread }
        };
        own.map(answer).collect()
    }

    /// The same as figures; one without a number if nothing was measured.
    fn figures(&self, summaries: &[Summary]) -> Vec<Figure> {
        let figure = |at: String, came_out| Figure { what: self.what.to_owned(), at, goal: self.goal, came_out };
        let of_bench = summaries.iter().find(|summary| summary.experiment.bench == self.bench);
        let answers = of_bench.map_or(Vec::new(), |summary| self.answers(summary));
        if answers.is_empty() {
            let kind = if self.io.is_write { "writes" } else { "I/Os" };
            return vec![figure(format!("{} {kind}", long_size(self.io.size)), None)];
        }
        let of_answer = |Answer { row, spread, .. }: Answer<'_>| {
            let came_out = spread.map(|spread| (spread.median, goal::in_brackets(spread, row.runs.len())));
            figure(row.point.in_words(), came_out)
        };
        answers.into_iter().map(of_answer).collect()
    }
}

/// A line for each answer.
pub(super) fn table(questions: &[Comparison], summaries: &[Summary]) -> String {
    let figures: Vec<Figure> = questions.iter().flat_map(|question| question.figures(summaries)).collect();
    goal::table(&figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{CellKey, CpuCost, ProgramAccess, Throughput};
    use crate::{Cell, Results};

    const ONE: Comparison = Comparison {
        what: "throughput",
        bench: "x",
        io: IoClass { size: 4096, depth: Some(16), is_write: true },
        own: "S2-5",
        other: "S0",
        compared: Compared::Ratio(Measure::Throughput),
        goal: Goal::AtLeast(0.9),
    };

    fn cell(scheme: &str, release: &str, pattern: &str, run: u32, (mib_s, us): (u64, f64)) -> Cell {
        let key = CellKey {
            bench: "x".into(),
            contender: format!("{scheme} {release}").trim_end().into(),
            pattern: pattern.into(),
            size: 4096,
            depth: 16,
            run,
            ..CellKey::default()
        };
        let access = ProgramAccess { release: release.into(), ..ProgramAccess::default() };
        let cpu = CpuCost { initiator_cpu_ms_per_kio: Some(us), ..CpuCost::default() };
        Cell { access, cpu, throughput: Throughput::new(1, mib_s << 20, 1.0), ..Cell::empty(key) }
    }

    fn summary(cells: Vec<Cell>) -> Summary {
        Summary::new(&Results { machines: Vec::new(), cells }, "x")
    }

    #[test]
    fn a_question_has_an_answer_for_each_io_that_it_is_about_and_few_runs_are_marked() {
        let mut cells = Vec::new();
        for run in 0..5 {
            // Slower from run to run, and all alike: ratios and differences stay.
            let drift = 10 * u64::from(run);
            cells.push(cell("S0", "", "seqwrite", run, (100 + drift, 3.0 + drift as f64)));
            cells.push(cell("S2-5", "", "seqwrite", run, (50 + drift / 2, 5.5 + drift as f64)));
            cells.push(cell("S2-5", "", "seqread", run, (1, 1.0)));
        }
        cells.push(cell("S0", "", "randwrite", 0, (100, 3.0)));
        cells.push(cell("S2-5", "", "randwrite", 0, (95, 3.0)));
        let summaries = [summary(cells)];
        let text = table(&[ONE], &summaries);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines.len(), 2, "reads are not asked: {text}");
        assert_eq!(
            lines[0],
            "| throughput | 4 KiB seqwrite, depth 16 | at least 0.9 | 0.50 (0.50–0.50) | **not met** |"
        );
        assert_eq!(
            lines[1],
            "| throughput | 4 KiB randwrite, depth 16 | at least 0.9 | 0.95 (0.95–0.95), of 1 runs only | met |"
        );
        let more =
            Comparison { compared: Compared::Difference(Measure::InitiatorPerKio), goal: Goal::AtMost(2.5), ..ONE };
        assert!(table(&[more], &summaries).contains("| at most 2.5 | 2.50 (2.50–2.50) | met |"));
        assert!(table(&[ONE], &[]).contains("| 4 KiB writes | at least 0.9 | – | not measured |"));
    }

    #[test]
    fn the_release_that_was_named_last_is_judged() {
        let mut cells = Vec::new();
        for run in 0..5 {
            for (release, mib_s) in [("old", 50), ("new", 95)] {
                cells.push(cell("S0", release, "seqwrite", run, (100, 3.0)));
                cells.push(cell("S2-5", release, "seqwrite", run, (mib_s, 3.0)));
            }
        }
        let text = table(&[ONE], &[summary(cells).of_last_release()]);
        assert!(text.contains("| 0.95 (0.95–0.95) | met |") && text.lines().count() == 3, "{text}");
    }
}
