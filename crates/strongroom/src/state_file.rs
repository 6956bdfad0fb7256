//! Where a long piece of work notes how far it is, so that it goes on from there: the argument, and reading and writing as a whole.
//!
//! Absent: what is noted, and who must not be able to change it, which is each command's own.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow};
use clap::Args;
use strongroom_initiator::copy::StateFile;

/// Largest state that is read, in bytes.
const BYTES_MAX: u64 = 64 << 20;

/// Where the state is kept.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StateArgs {
    /// Keep the position in this file, and go on from there if it exists; removed at the end.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

impl StateArgs {
    /// The file, if one was named.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.state.as_deref()
    }

    fn file(&self) -> Option<StateFile> {
        self.state.as_ref().map(|path| StateFile::new(path, BYTES_MAX))
    }

    /// What an earlier run left.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.file() else { return Ok(None) };
        match file.read() {
            Err(error) if error.kind() == ErrorKind::FileTooLarge => Err(self.refused("is far too large for a state")),
            read => read.with_context(|| format!("cannot read {}", file.path().display())),
        }
    }

    /// Replaces it, as a whole or not at all; durable when it returns. Nothing without a file.
    pub(crate) fn replace(&self, bytes: &[u8]) -> Result<()> {
        let Some(file) = self.file() else { return Ok(()) };
        file.replace(bytes).with_context(|| format!("cannot write {}", file.path().display()))
    }

    /// The work is done: there is nothing to go on with.
    pub(crate) fn remove(&self) -> Result<()> {
        let Some(file) = self.file() else { return Ok(()) };
        file.remove().with_context(|| format!("cannot remove {}", file.path().display()))
    }

    /// An error about what is in it.
    pub(crate) fn refused(&self, problem: &str) -> Error {
        let path = self.state.as_deref().unwrap_or(Path::new("the state"));
        anyhow!("{} {problem}; name another file, or remove it to start over", path.display())
    }

    /// What a person does after a stop; `otherwise`, if no file was named.
    pub(crate) fn how_to_go_on(&self, otherwise: String) -> String {
        match &self.state {
            Some(path) => format!("the same command goes on from there, with --state {}", path.display()),
            None => otherwise,
        }
    }
}

#[cfg(test)]
impl StateArgs {
    /// In this file.
    pub(crate) fn at(path: &Path) -> StateArgs {
        StateArgs { state: Some(path.to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateArgs::at(&dir.path().join("state"));
        assert_eq!(state.read().unwrap(), None);
        state.replace(b"one").unwrap();
        state.replace(b"two").unwrap();
        assert_eq!(state.read().unwrap().as_deref(), Some(&b"two"[..]));
        state.remove().unwrap();
        state.remove().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(state.refused("is odd").to_string().contains("remove it to start over"));
        let none = StateArgs::default();
        none.replace(b"one").unwrap();
        assert_eq!((none.read().unwrap(), none.how_to_go_on("again".into())), (None, "again".into()));
    }
}
