//! The I/O of NAS BTIO without its arithmetic: which bytes of the solution file each process writes, and what is in them.
//!
//! BT solves on a cube of `points`³ points with five numbers each. Its p = q² processes own q cells each, arranged
//! diagonally (the *multi-partition* scheme of the NAS Parallel Benchmarks, `make_set`), so a process's share of each dump is
//! scattered over the whole file in rows that are much shorter than a block. Absent: blocks and devices.

/// Numbers at each point.
const NUMBERS: u64 = 5;
/// Bytes at each point: five doubles.
pub(super) const POINT_BYTES: u64 = NUMBERS * 8;

/// Contents of this many runs differ.
const RUNS_APART: u32 = 1024;

/// A size of the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its letter in the NAS Parallel Benchmarks.
    pub class: char,
    /// Points along each edge of the cube.
    pub points: u64,
    /// How often the solution is written: every fifth time step.
    pub dumps: u32,
}

impl Problem {
    /// The classes that there are here: S for tests, A as in the lazy-crypto paper.
    pub const ALL: [Problem; 4] = [
        Problem { class: 'S', points: 12, dumps: 12 },
        Problem { class: 'W', points: 24, dumps: 40 },
        Problem { class: 'A', points: 64, dumps: 40 },
        Problem { class: 'B', points: 102, dumps: 40 },
    ];

    /// By its letter.
    pub fn of_class(class: char) -> Option<Problem> {
        Problem::ALL.into_iter().find(|problem| problem.class == class)
    }

    /// Bytes of one dump.
    pub fn dump_bytes(&self) -> u64 {
        self.points.pow(3) * POINT_BYTES
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.dump_bytes() * u64::from(self.dumps)
    }

    /// The content of the file from `offset` on in run `run`, the same for every writer: doubles, all different, and different ones
    /// in the next run, so that what an earlier run left behind is not taken for this one's.
    pub(super) fn content(&self, run: u32, offset: u64, bytes: &mut [u8]) {
        assert!(offset.is_multiple_of(8) && bytes.len().is_multiple_of(8), "the file holds doubles");
        let fraction = f64::from(run % RUNS_APART) / f64::from(RUNS_APART);
        for (index, double) in (offset / 8..).zip(bytes.chunks_exact_mut(8)) {
            double.copy_from_slice(&(index as f64 + fraction).to_le_bytes());
        }
    }
}

/// A run of bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// `count` processes are possible if it is a square, and no cell is empty.
pub fn is_possible(problem: &Problem, count: u32) -> bool {
    let edge = u64::from(count).isqrt();
    count > 0 && edge * edge == u64::from(count) && edge <= problem.points
}

/// What process `rank` of `count` writes of one dump, in the order in which it writes it. Rows that follow each other in the
/// file are one run, as they are for MPI-IO.
pub(super) fn runs(problem: &Problem, rank: u32, count: u32) -> Vec<Run> {
    let edge = u64::from(count).isqrt();
    let (column, line) = (u64::from(rank) % edge, u64::from(rank) / edge);
    let mut runs: Vec<Run> = Vec::new();
    for cell in 0..edge {
        let x = extent(problem.points, edge, (column + cell) % edge);
        let y = extent(problem.points, edge, (line + edge - cell) % edge);
        let z = extent(problem.points, edge, cell);
        for layer in z.0..z.1 {
            for row in y.0..y.1 {
                let offset = ((layer * problem.points + row) * problem.points + x.0) * POINT_BYTES;
                let len = (x.1 - x.0) * POINT_BYTES;
                match runs.last_mut() {
                    Some(last) if last.offset + last.len == offset => last.len += len,
                    _ => runs.push(Run { offset, len }),
                }
            }
        }
    }
    runs
}

/// Where the `index`th of `parts` parts of an edge begins and ends; the first ones take what is left over.
fn extent(points: u64, parts: u64, index: u64) -> (u64, u64) {
    let (size, more) = (points / parts, points % parts);
    let start = index * size + index.min(more);
    (start, start + size + u64::from(index < more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_a_is_the_papers() {
        let problem = Problem::of_class('A').unwrap();
        assert_eq!(problem.dump_bytes(), 10 << 20);
        assert_eq!(problem.file_bytes(), 400 << 20);
        // Alone, a process writes each dump in one piece; with others, rows of its cells.
        assert_eq!(runs(&problem, 0, 1), [Run { offset: 0, len: 10 << 20 }]);
        assert_eq!(runs(&problem, 0, 4).len(), 2 * 32 * 32);
        assert!(runs(&problem, 0, 4).iter().all(|run| run.len == 1280));
        // One cell of this process ends where its next one begins.
        assert_eq!(runs(&problem, 3, 4).iter().filter(|run| run.len == 2560).count(), 1);
        assert!(runs(&problem, 5, 9).iter().all(|run| [840, 880].contains(&run.len)));
        assert!(Problem::of_class('Q').is_none());
    }

    #[test]
    fn together_the_processes_write_every_byte_once() {
        for problem in &Problem::ALL[..3] {
            for count in [1, 4, 9, 16] {
                let mut all: Vec<Run> = (0..count).flat_map(|rank| runs(problem, rank, count)).collect();
                all.sort_unstable_by_key(|run| run.offset);
                let mut end = 0;
                for run in all {
                    assert_eq!(run.offset, end, "class {}, {count} processes", problem.class);
                    end += run.len;
                }
                assert_eq!(end, problem.dump_bytes());
            }
        }
    }

    #[test]
    fn a_process_owns_one_cell_in_every_layer_row_and_column() {
        let problem = Problem::of_class('W').unwrap();
        for rank in 0..9 {
            let runs = runs(&problem, rank, 9);
            let point = |run: &Run| run.offset / POINT_BYTES;
            for parts in [
                runs.iter().map(|run| point(run) % 24 / 8).collect::<std::collections::BTreeSet<_>>(),
                runs.iter().map(|run| point(run) / 24 % 24 / 8).collect(),
                runs.iter().map(|run| point(run) / 576 / 8).collect(),
            ] {
                assert_eq!(parts.len(), 3);
            }
        }
    }

    #[test]
    fn counts_that_are_no_squares_are_impossible() {
        let problem = Problem::of_class('S').unwrap();
        let possible: Vec<u32> = (0..=20).filter(|&count| is_possible(&problem, count)).collect();
        assert_eq!(possible, [1, 4, 9, 16]);
        assert!(!is_possible(&problem, 169));
    }

    #[test]
    fn content_does_not_depend_on_where_one_begins() {
        let problem = Problem::of_class('S').unwrap();
        let mut whole = [0; 96];
        problem.content(128, 1000, &mut whole);
        let mut part = [0; 32];
        problem.content(128, 1016, &mut part);
        assert_eq!(whole[16..48], part);
        assert_eq!(f64::from_le_bytes(whole[..8].try_into().unwrap()), 125.125);
        problem.content(129, 1016, &mut part);
        assert!(whole[16..48].chunks(8).zip(part.chunks(8)).all(|(one, other)| one != other));
    }
}
