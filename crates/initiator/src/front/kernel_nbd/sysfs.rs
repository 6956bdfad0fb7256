//! What the kernel says about its NBD devices in `/sys/class/block`. (NBD_CMD_STATUS says less: it has a device as connected that somebody
//! has only opened.)

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The name of a device: `nbd7`.
pub(super) fn name(index: u32) -> String {
    format!("nbd{index}")
}

/// The number in the path of a device, `/dev/nbd7`.
pub(super) fn index_of(path: &Path) -> Option<u32> {
    path.strip_prefix("/dev").ok()?.to_str()?.strip_prefix("nbd")?.parse().ok()
}

/// What a device that is connected is known by (NBD_ATTR_BACKEND_IDENTIFIER).
pub(super) fn backend(index: u32) -> Option<String> {
    let line = fs::read_to_string(attribute(index, "backend")).ok()?;
    Some(line.strip_suffix('\n').unwrap_or(&line).to_owned())
}

/// The major and minor number of a device.
pub(super) fn numbers(index: u32) -> io::Result<(u32, u32)> {
    let line = fs::read_to_string(attribute(index, "dev"))?;
    let numbers =
        line.trim().split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{line:?} is no device number")))
}

fn attribute(index: u32, attribute: &str) -> PathBuf {
    Path::new("/sys/class/block").join(name(index)).join(attribute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_devices_have_a_number() {
        assert_eq!(index_of(Path::new("/dev/nbd17")), Some(17));
        for other in ["/dev/nbd", "/dev/nbd0p1", "/dev/loop0", "nbd0", "/tmp/nbd0", "/dev/strongroom/nbd0"] {
            assert_eq!(index_of(Path::new(other)), None, "{other}");
        }
    }
}
