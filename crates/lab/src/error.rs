//! Why a benchmark could not be run; a cell that fails is not an error but a cell that says so.

use std::io;
use std::path::PathBuf;

/// What went wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The person asked for something that is not there.
    #[error("{0}")]
    Asked(String),
    /// A process of the benchmark did not do what it is for.
    #[error("{name}: {problem}")]
    Process {
        /// What runs in it.
        name: String,
        /// What happened, with the end of its log.
        problem: String,
    },
    /// A file could not be read or written.
    #[error("cannot use {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of results that was not written by `strongroom-lab`.
    #[error("{path}, line {line}: {problem}; give a file that `strongroom-lab … --json FILE` wrote")]
    Results {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The operating system refused.
    #[error("{doing}: {source}")]
    System {
        /// What we were doing.
        doing: String,
        /// Why not.
        source: io::Error,
    },
    /// Somebody asked to stop.
    #[error("stopped on request; what was measured until then is kept")]
    Stopped,
}

impl BenchError {
    /// From an error of the system.
    pub fn system(doing: impl Into<String>, source: impl Into<io::Error>) -> BenchError {
        BenchError::System { doing: doing.into(), source: source.into() }
    }

    /// From an error about a file.
    pub fn file(path: impl Into<PathBuf>, source: io::Error) -> BenchError {
        BenchError::File { path: path.into(), source }
    }

    /// Of a process.
    pub fn process(name: impl Into<String>, problem: impl Into<String>) -> BenchError {
        BenchError::Process { name: name.into(), problem: problem.into() }
    }
}
