//! Options for a command of this program that another one runs. Absent: running it.

use std::ffi::{OsStr, OsString};

/// `--NAME=VALUE`, for another command.
pub(crate) fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(value);
    option
}
