//! Names: a CSI name becomes the name of a volume or snapshot of the target, another name another one; and ids become names again, checked.
//!
//! An id is the name at the target, a snapshot's is `volume@snapshot`. Absent: whether anything of that name exists.

use aws_lc_rs::digest::{SHA256, digest};
use strongroom_target::names::{VOLUME_NAME_BYTES_MAX, VolumeName};
use tonic::Status;

/// Longest prefix of names, in bytes, so that every derived name fits.
pub const PREFIX_BYTES_MAX: usize = 8;
/// What follows the prefix where a name is not taken as it is. No name that is taken as it is begins so.
const DERIVED: &str = "x-";
/// What follows that in the name of a snapshot from which a volume was cloned. No derived name has a '-' there.
const OF_CLONE: &str = "c-";
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Which names this driver gives.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotId {
    pub(crate) volume: VolumeName,
    pub(crate) snapshot: String,
}

impl std::fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.volume, self.snapshot)
    }
}

impl Names {
    /// Names that begin with `prefix`.
    ///
    /// # Errors
    /// What is wrong with the prefix, for people.
    pub(crate) fn new(prefix: &str) -> Result<Names, String> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
        let starts_well = prefix.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if starts_well && prefix.len() <= PREFIX_BYTES_MAX && prefix.bytes().all(legal) {
            return Ok(Names { prefix: prefix.to_owned() });
        }
        Err(format!("a prefix is 1 to {PREFIX_BYTES_MAX} of a-z, 0-9, '-' and '.', and begins with a letter or digit"))
    }

    /// What a volume or snapshot of this CSI name is called at the target. A short name of legal characters is taken as it is, behind the
    /// prefix; of any other one its SHA-256 is.
    pub(crate) fn of(&self, csi_name: &str) -> String {
        let plain = format!("{}{csi_name}", self.prefix);
        let is_usable = !csi_name.is_empty()
            && !csi_name.starts_with(DERIVED)
            && plain.len() <= VOLUME_NAME_BYTES_MAX
            && VolumeName::new(&plain).is_ok();
        if is_usable { plain } else { format!("{}{DERIVED}{}", self.prefix, fingerprint(csi_name)) }
    }

    /// What the snapshot is called from which this volume is cloned, if it is cloned from a volume.
    pub(crate) fn of_clone(&self, volume: &VolumeName) -> String {
        format!("{}{DERIVED}{OF_CLONE}{}", self.prefix, fingerprint(volume.as_str()))
    }

    /// Whether a snapshot was made to clone a volume from it, and belongs to no one.
    pub(crate) fn is_of_clone(&self, snapshot: &str) -> bool {
        snapshot.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with(&format!("{DERIVED}{OF_CLONE}")))
    }

    /// Whether this driver may have given that name.
    pub(crate) fn is_ours(&self, name: &str) -> bool {
        name.starts_with(&self.prefix)
    }
}

/// The SHA-256 of a text as a volume's name may have it: 52 characters.
fn fingerprint(text: &str) -> String {
    let digest = digest(&SHA256, text.as_bytes());
    let mut bits = digest.as_ref().iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).peekable();
    let mut name = String::with_capacity(52);
    while bits.peek().is_some() {
        let index = (0..5).fold(0, |index, _| index << 1 | usize::from(bits.next().unwrap_or(0)));
        name.push(char::from(BASE32[index]));
    }
    name
}

/// The volume that an id names.
///
/// # Errors
/// `INVALID_ARGUMENT` without an id, `NOT_FOUND` if no volume can have it.
pub(crate) fn volume_of(id: &str) -> Result<VolumeName, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument("name the volume: volume_id is empty"));
    }
    VolumeName::new(id).map_err(|_| Status::not_found("there is no volume of that id, and there cannot be one"))
}

/// The snapshot that an id names; `None` if no snapshot can have it.
pub(crate) fn snapshot_of(id: &str) -> Option<SnapshotId> {
    let (volume, snapshot) = id.split_once('@')?;
    VolumeName::new(snapshot).ok()?;
    Some(SnapshotId { volume: VolumeName::new(volume).ok()?, snapshot: snapshot.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names() -> Names {
        Names::new("csi-").unwrap()
    }

    #[test]
    fn short_names_of_legal_characters_stay_readable() {
        assert_eq!(
            names().of("pvc-2f1c0a4e-6a53-4d1e-b2b4-6f1f3b1b2c3d"),
            "csi-pvc-2f1c0a4e-6a53-4d1e-b2b4-6f1f3b1b2c3d"
        );
        assert_eq!(names().of("a"), "csi-a");
    }

    #[test]
    fn every_name_has_one_of_its_own() {
        let long = "n".repeat(128);
        let other = format!("{}m", "n".repeat(127));
        let derived = names().of("A");
        let looks_derived = derived.strip_prefix("csi-").unwrap();
        let all = ["a", "A", "a ", "ä", "a/b", "../a", "x-a", "x-c-a", looks_derived, &long, &other, "a\0", "a@b"];
        let mapped: BTreeSet<String> = all.iter().map(|name| names().of(name)).collect();
        assert_eq!(mapped.len(), all.len());
        for name in &mapped {
            assert!(VolumeName::new(name).is_ok() && names().is_ours(name), "{name}");
            assert!(!names().is_of_clone(name), "{name}");
        }
    }

    /// A golden value: another mapping would lose the volumes that there are.
    #[test]
    fn golden_derived_name() {
        assert_eq!(fingerprint(""), "4oymiquy7qobjgx36tejs35zeqt24qpemsnzgtfeswmrw6csxbkq");
        assert_eq!(names().of("A"), "csi-x-kwnovuecmtkxsxjzbfyyzxifvpkjk4xij7svleho6mniriep376q");
        let clone = names().of_clone(&VolumeName::new("csi-a").unwrap());
        assert!(names().is_of_clone(&clone) && VolumeName::new(&clone).is_ok(), "{clone}");
    }

    #[test]
    fn a_prefix_leaves_room_for_derived_names() {
        for bad in ["", "-a", "A", "toolong-x", "a/"] {
            assert!(Names::new(bad).is_err(), "{bad}");
        }
        let longest = Names::new("12345678").unwrap();
        assert!(VolumeName::new(&longest.of("A")).is_ok());
        assert!(VolumeName::new(&longest.of_clone(&VolumeName::new("a").unwrap())).is_ok());
    }

    /// Ids come from those who can write to the orchestrator's objects. None leads out of the driver's directories.
    #[test]
    fn attack_csi_ids_with_path_tricks() {
        let hostile =
            ["../x", "a/b", "/etc/passwd", "..", ".", "a\0b", "-rf", "--help", "a b", "a\nb", "a@b", "A", "a:b", "é"];
        for id in hostile {
            assert_eq!(volume_of(id).unwrap_err().code(), tonic::Code::NotFound, "{id:?}");
            assert_eq!(snapshot_of(id).is_some(), id == "a@b", "{id:?}");
        }
        for id in ["../x@s", "a@../s", "a@", "@s", "a@b@c", "a@-b", ""] {
            assert_eq!(snapshot_of(id), None, "{id:?}");
        }
        assert_eq!(volume_of("").unwrap_err().code(), tonic::Code::InvalidArgument);
        assert_eq!(snapshot_of("csi-a@csi-b").unwrap().to_string(), "csi-a@csi-b");
    }
}
