//! Other programs of this machine: found also where only root's path leads, and run to their end.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::BenchError;

/// A program, perhaps run by another one; found also where only root's path leads.
pub(crate) fn program(name: &str, prefix: &[String]) -> Command {
    let mut words = prefix.iter().map(String::as_str).chain([name]);
    let mut command = Command::new(words.next().expect("the name at least"));
    command.args(words).env("PATH", path()).stdin(Stdio::null());
    command
}

/// Our path, and root's directories.
fn path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// Whether a program is there.
pub(crate) fn is_installed(name: &str) -> bool {
    if name.contains('/') {
        return Path::new(name).exists();
    }
    path().split(':').any(|directory| !directory.is_empty() && Path::new(directory).join(name).exists())
}

/// Runs a command to its end; what it printed.
pub(crate) fn run(mut command: Command) -> Result<String, BenchError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| BenchError::process(&name, format!("cannot run it: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    Err(BenchError::process(name, format!("`{}` failed ({}): {}", words.join(" "), output.status, said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_run_and_reported() {
        assert!(is_installed("sh") && is_installed("/bin/sh"));
        assert!(!is_installed("no-such-program") && !is_installed("/no/such/program"));
        let mut echo = program("echo", &["env".into()]);
        echo.arg("hello");
        assert_eq!(run(echo).unwrap(), "hello\n");
        let mut shell = program("sh", &[]);
        shell.args(["-c", "echo the disk is full >&2; exit 3"]);
        let error = run(shell).unwrap_err().to_string();
        assert!(error.contains("the disk is full") && error.contains("exit 3"), "{error}");
        assert!(run(program("no-such-program", &[])).unwrap_err().to_string().contains("no-such-program"));
    }
}
