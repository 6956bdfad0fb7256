//! What keeps a laboratory from being set up.

use std::io;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A step of the set-up failed.
    #[error("cannot {what}: {error}{advice}")]
    Setup {
        /// The step.
        what: String,
        /// What the system said.
        error: io::Error,
        /// What to do about it; may be empty.
        advice: &'static str,
    },
    /// A program that is needed said no, or is not there.
    #[error("`{command}` failed: {said}")]
    Program {
        /// With its arguments.
        command: String,
        /// Its last words.
        said: String,
    },
    /// Values that contradict each other or that no link can have.
    #[error("{0}")]
    Profile(String),
}

impl LabError {
    pub(crate) fn setup(what: impl Into<String>, error: io::Error) -> LabError {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => "; network namespaces and TUN devices need root",
            io::ErrorKind::NotFound => {
                "; the kernel needs CONFIG_TUN and CONFIG_NET_NS, and iproute2 must be installed"
            }
            _ => "",
        };
        LabError::Setup { what: what.into(), error, advice }
    }
}
