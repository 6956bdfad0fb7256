//! Names that come from outside: volumes' and targets'. A volume's name is a directory's name too, so it is checked here,
//! once, before it can reach a path.

use strongroom_block::foreign;

use crate::error::CatalogueError;

/// Longest name of a volume, in bytes.
pub const VOLUME_NAME_BYTES_MAX: usize = 64;

/// A volume's name: a-z, 0-9, '-' and '.', starting with a letter or digit. Safe as one component of a path, and legal in an
/// iSCSI name (RFC 7143 §4.2.7.2). Or `volume@snapshot`, the name of what a snapshot is exported as, made of two such names;
/// that is no directory's name, and in a target's name it is `volume:snapshot`, since initiators need not know '@'.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeName(String);

impl VolumeName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`CatalogueError::Name`].
    pub fn new(name: &str) -> Result<VolumeName, CatalogueError> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
        let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if starts_well && name.len() <= VOLUME_NAME_BYTES_MAX && name.bytes().all(legal) {
            Ok(VolumeName(name.to_owned()))
        } else {
            Err(CatalogueError::Name { name: foreign(&name.chars().take(80).collect::<String>()).to_string() })
        }
    }

    /// A volume's name or a snapshot's, `volume@snapshot`.
    ///
    /// # Errors
    /// [`CatalogueError::Name`].
    pub fn of_export(name: &str) -> Result<VolumeName, CatalogueError> {
        match name.split_once('@') {
            Some((volume, snapshot)) => Ok(VolumeName::new(volume)?.at(&VolumeName::new(snapshot)?)),
            None => VolumeName::new(name),
        }
    }

    /// The name of this volume's snapshot.
    pub fn at(&self, snapshot: &VolumeName) -> VolumeName {
        VolumeName(format!("{}@{snapshot}", self.volume()))
    }

    /// The volume's part of it.
    pub fn volume(&self) -> VolumeName {
        VolumeName(self.0.split('@').next().unwrap_or_default().to_owned())
    }

    /// The snapshot's part of it, if it names one.
    pub fn snapshot(&self) -> Option<&str> {
        self.0.split_once('@').map(|(_, snapshot)| snapshot)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for VolumeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text from a peer, fit for a log line or a terminal, and not endless.
pub(crate) fn for_log(text: &str) -> String {
    foreign(text).to_string()
}

/// The iSCSI name of the target that serves a volume.
pub fn target_name(base_name: &str, volume: &VolumeName) -> String {
    format!("{base_name}:{}", volume.as_str().replace('@', ":"))
}

/// The volume that a target name means; iSCSI names have no case. `None` if it is not one of ours.
pub fn volume_of(base_name: &str, target_name: &str) -> Option<VolumeName> {
    let folded = target_name.to_ascii_lowercase();
    let volume = folded.strip_prefix(&base_name.to_ascii_lowercase())?.strip_prefix(':')?;
    if volume.contains('@') {
        return None;
    }
    VolumeName::of_export(&volume.replacen(':', "@", 1)).ok()
}

/// Whether `name` is well-formed as an iSCSI name (RFC 7143 §4.2.7): `iqn.`, `eui.` or `naa.`, of legal characters.
pub fn is_iscsi_name(name: &str) -> bool {
    let prefix = ["iqn.", "eui.", "naa."].iter().any(|prefix| name.starts_with(prefix));
    let legal = |character: char| {
        character.is_alphanumeric() && !character.is_uppercase() || matches!(character, '-' | '.' | ':')
    };
    prefix && name.len() > 4 && name.len() <= strongroom_iscsi::NAME_BYTES_MAX && name.chars().all(legal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_tricks_are_no_names() {
        for good in ["a", "0", "data-1", "vm.disk.7", "a..b"] {
            assert_eq!(VolumeName::new(good).unwrap().as_str(), good);
        }
        let long = "x".repeat(VOLUME_NAME_BYTES_MAX + 1);
        for bad in
            ["", ".", "..", "../x", "a/b", "a\0b", "/etc", "-a", ".hidden", "A", "ä", "a b", "a\nb", "a:b", &long]
        {
            assert!(VolumeName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_bad_name_is_harmless_in_the_message() {
        let message = VolumeName::new("a\x1b[2Jb").unwrap_err().to_string();
        assert!(!message.contains('\x1b'), "{message}");
    }

    #[test]
    fn target_names_lead_back_to_volumes() {
        let base = "iqn.2026-11.org.strongroom";
        let volume = VolumeName::new("data").unwrap();
        assert_eq!(target_name(base, &volume), "iqn.2026-11.org.strongroom:data");
        assert_eq!(volume_of(base, "IQN.2026-11.org.Strongroom:DATA"), Some(volume));
        let snapshot = VolumeName::of_export("data@monday").unwrap();
        assert_eq!((snapshot.volume().as_str(), snapshot.snapshot()), ("data", Some("monday")));
        assert_eq!(target_name(base, &snapshot), "iqn.2026-11.org.strongroom:data:monday");
        assert_eq!(volume_of(base, "iqn.2026-11.org.strongroom:data:monday"), Some(snapshot));
        for foreign in [
            "iqn.2026-11.org.strongroom",
            "iqn.2026-11.org.strongroom:../etc",
            "iqn.2026-11.org.strongroomdata",
            "iqn.2026-11.org.strongroom:a@b",
            "iqn.2026-11.org.strongroom:a:b:c",
            "",
        ] {
            assert_eq!(volume_of(base, foreign), None, "{foreign}");
        }
    }

    #[test]
    fn iscsi_names() {
        assert!(is_iscsi_name("iqn.2026-11.org.example:host.7"));
        assert!(is_iscsi_name("eui.02004567a425678d"));
        for bad in ["", "iqn.", "host", "iqn.2026-11.org.example:A", "iqn.a b", "iqn.a\n"] {
            assert!(!is_iscsi_name(bad), "{bad:?}");
        }
    }
}
