//! Namespaces of its own for this process and what it starts: attachments are seen by nobody else, ports are free, and the kernel ends what
//! is left when the first process of the namespace ends.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Set where a process is in its own namespaces already.
const INSIDE_VARIABLE: &str = "STRONGROOM_LAB_NAMESPACES";

/// Runs this program again in namespaces of its own, and does not return; returns there.
///
/// # Errors
/// If the system refuses.
pub(super) fn enter() -> Result<()> {
    if std::env::var_os(INSIDE_VARIABLE).is_none() {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut again = Command::new("unshare");
        again
            .args(["--mount", "--propagation", "slave", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(program);
        let error = again.args(std::env::args_os().skip(1)).env(INSIDE_VARIABLE, "1").exec();
        return Err(error).context("cannot run unshare; install it with scripts/deps.sh (Debian: util-linux)");
    }
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).output().context("cannot run ip")?;
    if !up.status.success() {
        let said = String::from_utf8_lossy(&up.stderr);
        bail!("the network namespace has no loopback: {}", said.trim());
    }
    Ok(())
}
