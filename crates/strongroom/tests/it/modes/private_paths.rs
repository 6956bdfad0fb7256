//! The modes of all paths that a command makes: for tests of the binary, and of the lab's.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Everything below `root`, with what it is and its mode.
fn walk(root: &Path, found: &mut Vec<(PathBuf, &'static str, u32)>) {
    // What a process at work has removed meanwhile, or renamed.
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries {
        let Ok(entry) = entry else { continue };
        let path = entry.path();
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let kind = metadata.file_type();
        let what = match () {
            () if kind.is_symlink() => continue,
            () if kind.is_dir() => "directory",
            () if kind.is_socket() => "socket",
            () => "file",
        };
        // What is on a volume that is mounted here has the modes that it was given there.
        let is_mounted = fs::symlink_metadata(root).is_ok_and(|root| root.dev() != metadata.dev());
        if is_mounted {
            continue;
        }
        found.push((path.clone(), what, metadata.mode() & 0o7777));
        if kind.is_dir() {
            walk(&path, found);
        }
    }
}

/// Every path below `root` is for its owner alone, but for those that the test itself wrote (`is_own`); says which there are.
pub(crate) fn assert_private(root: &Path, is_own: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    walk(root, &mut found);
    let wrong: Vec<String> = found
        .iter()
        .filter(|(path, what, mode)| {
            // A socket is made with all that the umask leaves.
            let is_private = match *what {
                "directory" => *mode == 0o700,
                "socket" => [0o600, 0o700].contains(mode),
                _ => *mode == 0o600,
            };
            !is_private && !is_own(path)
        })
        .map(|(path, what, mode)| format!("{what} {} has mode {mode:o}", path.display()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    found.iter().map(|(path, _, _)| path.strip_prefix(root).unwrap().display().to_string()).collect()
}
