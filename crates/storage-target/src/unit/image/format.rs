//! The pinned image of a volume on disk: `image.toml` (`docs/snapshots.md`, "Receiving while somebody reads").

use serde::{Deserialize, Serialize};
use strongroom_store::SnapshotId;

use super::Pin;
use crate::unit::persistent_file::{ContentsError, FileContents};

/// The version of the file that this build writes.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    /// 16 hexadecimal digits, as the next.
    snapshot: String,
    image: String,
}

impl FileContents for Option<Pin> {
    const FILE: &'static str = "image.toml";
    const WHAT: &'static str = "pinned image";
    const REMEDY: &'static str = "it says what sessions see until they detach: restore it, or delete it when no initiator has the volume attached";
    // Without it a reception is refused, which needs space itself.
    const HAS_SPARE: bool = false;

    fn to_toml(&self) -> Option<String> {
        let Pin { snapshot, image } = (*self)?;
        let (snapshot, image) = (format!("{:016x}", snapshot.0), format!("{image:016x}"));
        let body = toml::to_string(&Document { version: VERSION, snapshot, image });
        let body = body.expect("strings and numbers are representable");
        Some(format!(
            "# The snapshot that sessions of this volume see until they detach; written by the target.\n{body}"
        ))
    }

    fn from_toml(text: &str) -> Result<Option<Pin>, ContentsError> {
        let document: Document = toml::from_str(text)?;
        ContentsError::check_version(document.version, VERSION)?;
        let number = |text: &str| {
            let number = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
            number.ok_or_else(|| ContentsError::value(text, "number of 16 hexadecimal digits"))
        };
        Ok(Some(Pin { snapshot: SnapshotId(number(&document.snapshot)?), image: number(&document.image)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_file() {
        let pin = Some(Pin { snapshot: SnapshotId(0xfedc_ba98_7654_3210), image: 4096 });
        let golden = "# The snapshot that sessions of this volume see until they detach; written by the target.\n\
                      version = 1\nsnapshot = \"fedcba9876543210\"\nimage = \"0000000000001000\"\n";
        assert_eq!(pin.to_toml().unwrap(), golden);
        assert_eq!(FileContents::from_toml(golden), Ok(pin));
        assert_eq!(None::<Pin>.to_toml(), None);
        for (from, to) in [("version = 1", "version = 2"), ("fedc", ""), ("1000", "10g0")] {
            assert!(<Option<Pin>>::from_toml(&golden.replace(from, to)).is_err(), "{to}");
        }
    }
}
