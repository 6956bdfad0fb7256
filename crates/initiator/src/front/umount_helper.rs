//! The helper that umount(8) runs for a file system that an attachment has mounted: libmount's table says which, and `--fake` makes mount(8)
//! and umount(8) do everything but the system call. Without the entry umount(8) works as it does anyway.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Where the helper is, if it is installed: a link to the program.
const HELPER: &str = "/sbin/umount.strongroom";

/// Whether there is a helper to run.
pub(super) fn is_installed() -> bool {
    Path::new(HELPER).exists()
}

/// Has umount(8) run the helper for what is mounted there.
pub(super) fn register(directory: &Path, file_system: &str, device: &Path) {
    let options = [OsStr::new("-o"), OsStr::new("helper=strongroom"), OsStr::new("-t"), OsStr::new(file_system)];
    change_table("mount", &[&options[..], &[device.as_os_str(), directory.as_os_str()]].concat());
}

/// It is unmounted.
pub(super) fn forget(directory: &Path) {
    change_table("umount", &[directory.as_os_str()]);
}

fn change_table(program: &str, arguments: &[&OsStr]) {
    match Command::new(program).args(["--fake", "--internal-only"]).args(arguments).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            tracing::warn!(reason = reason.trim(), "{program} cannot change the entry for the helper of umount(8)");
        }
        Err(error) => tracing::warn!(%error, "cannot run {program} to change the entry for the helper of umount(8)"),
    }
}
