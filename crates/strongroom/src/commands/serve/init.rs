//! The first configuration of a target, and its identity. Absent: what the settings mean.

use std::path::{Path, absolute};

use anyhow::{Context, Result};
use strongroom_handshake::NodeKey;
use strongroom_keyfiles::secret_file;

/// Where volumes are kept unless a configuration says otherwise.
const ROOT: &str = "/srv/strongroom";

/// Makes a configuration, unless there is one, and beside it an identity, unless there is one.
///
/// Where there is a configuration, an identity that it names and that is missing is not made: it was lost, and every initiator would refuse
/// another one.
pub(super) fn make_configuration(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let path = absolute(path).with_context(|| format!("'{}' is no path", path.display()))?;
    let identity = path.with_file_name("identity");
    if !identity.exists() {
        secret_file::create(&identity, &NodeKey::generate().to_text())?;
        println!("made {}", identity.display());
    }
    let identity = identity.to_str().with_context(|| format!("{} is not UTF-8", identity.display()))?;
    let text = format!(
        "# Made by `strongroom serve --init`; examples/strongroom.toml explains every setting.\n\
         root = {}\nnode_key = {}\n",
        toml_text(ROOT),
        toml_text(identity)
    );
    secret_file::create(&path, &text)?;
    println!("made {}", path.display());
    Ok(())
}

/// A basic string of TOML. JSON's are written the same, but for a character that no path here should have.
fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use strongroom_target::Config;

    use super::*;

    #[test]
    fn a_configuration_is_made_once_and_can_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep \"er\"/strongroom.toml");
        make_configuration(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let config = Config::parse(&text).unwrap();
        let identity = path.with_file_name("identity");
        assert_eq!((config.root.as_path(), config.node_key.as_deref()), (Path::new(ROOT), Some(identity.as_path())));
        let key = std::fs::read_to_string(&identity).unwrap();
        // What was lost is not made again, and what is there stays.
        std::fs::remove_file(&identity).unwrap();
        make_configuration(&path).unwrap();
        assert!(!identity.exists());
        std::fs::write(&identity, &key).unwrap();
        std::fs::remove_file(&path).unwrap();
        make_configuration(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&identity).unwrap(), key);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}
