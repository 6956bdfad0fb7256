//! What a finished command said: for tests of the binary, and of the lab's.

use std::process::Output;

pub(crate) struct CommandOutput {
    /// Its exit status, unless a signal ended it.
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    pub(crate) fn new(output: Output) -> CommandOutput {
        CommandOutput {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub(crate) fn is_success(&self) -> bool {
        self.status == Some(0)
    }

    /// Its standard output, if it succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.is_success(), "it failed: {}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Its standard error, if it failed; it must contain every one of `parts`.
    #[track_caller]
    pub(crate) fn failed(self, parts: &[&str]) -> String {
        assert!(!self.is_success(), "it succeeded: {}", self.stdout);
        for part in parts {
            assert!(self.stderr.contains(part), "'{part}' is missing in: {}", self.stderr);
        }
        self.stderr
    }
}
