//! Reads identities, CHAP secrets and known targets. Key files are read by the crate `keyfiles`.
//!
//! Absent: what the keys do. Volume keys of an attachment are read by the initiator's key source.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_initiator::chap::Secret;
use strongroom_keyfiles::secret_file;
use strongroom_target::{ChapSecrets, Config};

use crate::config;

/// The heading in `--help` for options about keys and identities.
pub(crate) const KEYS: &str = "Keys and identities";

/// The default place of this machine's identity.
pub(crate) fn default_identity() -> PathBuf {
    config::personal_dir().join("identity")
}

/// The default list of targets that may be trusted to be who they say.
pub(crate) fn default_known_targets() -> PathBuf {
    config::personal_dir().join("known_targets")
}

/// Reads a node's identity.
pub(crate) fn read_identity(path: &Path) -> Result<NodeKey> {
    if !path.exists() {
        bail!(
            "there is no identity {path}. If there was one, bring it back from its backup. Else make one with: strongroom identity new --out \
             {path}; a new one has to be made known: an initiator's to the targets ([[peer]] of their configuration) and key servers (strongroom \
             key grant) that it uses, a server's to those who use it (their known_targets)",
            path = path.display()
        );
    }
    let text = secret_file::read(path, "identity")?;
    NodeKey::parse(&text).with_context(|| format!("identity {}", path.display()))
}

/// Reads a CHAP secret: one line of text.
pub(crate) fn read_chap_secret(path: &Path) -> Result<Secret> {
    let text = secret_file::read(path, "CHAP secret")?;
    Secret::new(text.trim_end_matches(['\r', '\n']).as_bytes()).with_context(|| path.display().to_string())
}

/// Reads the secrets of a configuration's `[[chap]]` users.
pub(crate) fn read_chap_secrets(config: &Config) -> Result<ChapSecrets> {
    let mut secrets = ChapSecrets::default();
    for rule in &config.chap {
        let ours = rule.target_secret_file.as_deref().map(read_chap_secret).transpose()?;
        secrets.insert(&rule.user, read_chap_secret(&rule.secret_file)?, ours);
    }
    Ok(secrets)
}

/// Whose public lines are looked for.
#[derive(Clone, Copy)]
pub(crate) enum Whose {
    Target,
    KeyServer,
}

/// The keys that the target at `host` and `port` may have, from a file of lines `HOST[:PORT] strongroom-ed25519 …`.
///
/// # Errors
/// If none is known: a key is never trusted because it was the first to be seen.
pub(crate) fn known_keys(path: &Path, whose: Whose, host: &str, port: u16) -> Result<Vec<PublicKey>> {
    let keys = known_keys_of(path, host, port)?;
    if keys.is_empty() {
        let name = address(host, port);
        let (what, option) = match whose {
            Whose::Target => ("target", "--target-key"),
            Whose::KeyServer => ("key server", "--key-server-key"),
        };
        bail!(
            "no key is known for the {what} {name}. Ask who runs it for {invitation}the line that `strongroom identity show` prints \
             there, and give it with {option} '…', or add it to {path} as: {name} strongroom-ed25519 …",
            invitation = match whose {
                Whose::Target => "an invitation (strongroom invite; strongroom join), or ",
                Whose::KeyServer => "",
            },
            path = path.display()
        );
    }
    Ok(keys)
}

/// Whether a target's key may be added: the file does not know another one at that address.
///
/// # Errors
/// If it does. An invitation from anywhere must not make a stranger's key one that is accepted there.
pub(crate) fn check_new_target(path: &Path, host: &str, port: u16, key: &PublicKey) -> Result<()> {
    let known = known_keys_of(path, host, port)?;
    if known.is_empty() || known.contains(key) {
        return Ok(());
    }
    bail!(
        "{path} has another key for {name} than the invitation. If the target was set up again, remove its line there; otherwise the invitation is \
         not from that target",
        path = path.display(),
        name = address(host, port)
    );
}

/// Adds a target's key to the known ones, unless it is there.
pub(crate) fn add_known_target(path: &Path, host: &str, port: u16, key: &PublicKey) -> Result<()> {
    if known_keys_of(path, host, port)?.contains(key) {
        return Ok(());
    }
    let failed = || format!("cannot write {}", path.display());
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).with_context(failed)?;
    }
    let before = read_known_targets(path)?;
    // A last line without an end is no reason to make two lines one.
    let end = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    let line = format!("{end}{} {key}\n", address(host, port));
    let mut file = fs::File::options().create(true).append(true).open(path).with_context(failed)?;
    file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).with_context(failed)
}

fn read_known_targets(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn known_keys_of(path: &Path, host: &str, port: u16) -> Result<Vec<PublicKey>> {
    parse_known_targets(&read_known_targets(path)?, host, port).with_context(|| path.display().to_string())
}

fn address(host: &str, port: u16) -> String {
    if port == strongroom_initiator::DEFAULT_PORT {
        host.to_owned()
    } else if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn parse_known_targets(text: &str, host: &str, port: u16) -> Result<Vec<PublicKey>> {
    let wanted = address(host, port);
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines()).map(|(number, line)| (number, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let malformed = || anyhow!("line {number} is not `HOST[:PORT] strongroom-ed25519 …`");
        let (name, key) = line.split_once(char::is_whitespace).ok_or_else(malformed)?;
        let key = key.trim().parse::<PublicKey>().with_context(malformed)?;
        if name.eq_ignore_ascii_case(&wanted) {
            keys.push(key);
        }
    }
    Ok(keys)
}

/// Parses a public line given on the command line.
pub(crate) fn parse_public_key(text: &str) -> Result<PublicKey, String> {
    text.parse().map_err(|error| format!("{error}; give the whole line in quotes, 'strongroom-ed25519 …'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey::from_bytes([byte; 32])
    }

    #[test]
    fn known_targets_are_found_by_host_and_port() {
        let text = format!("# ours\nstorage {}\nstorage:4000 {} spare\n\n[::1]:9 {}\n", key(1), key(2), key(3));
        assert_eq!(parse_known_targets(&text, "storage", 3260).unwrap(), [key(1)]);
        assert_eq!(parse_known_targets(&text, "Storage", 4000).unwrap(), [key(2)]);
        assert_eq!(parse_known_targets(&text, "::1", 9).unwrap(), [key(3)]);
        assert!(parse_known_targets(&text, "other", 3260).unwrap().is_empty());
    }

    #[test]
    fn a_malformed_line_is_named_even_if_it_is_of_another_host() {
        let error = parse_known_targets("storage nonsense\n", "other", 1).unwrap_err();
        assert!(format!("{error:#}").contains("line 1"), "{error:#}");
    }

    #[test]
    fn a_target_is_added_once_and_never_beside_another_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/known_targets");
        for _ in 0..2 {
            check_new_target(&path, "storage", 3260, &key(1)).unwrap();
            add_known_target(&path, "storage", 3260, &key(1)).unwrap();
        }
        add_known_target(&path, "::1", 4000, &key(2)).unwrap();
        let text = format!("storage {}\n[::1]:4000 {}", key(1), key(2));
        assert_eq!(fs::read_to_string(&path).unwrap().trim_end(), text);
        // Without the end of its last line.
        fs::write(&path, &text).unwrap();
        add_known_target(&path, "other", 3260, &key(3)).unwrap();
        assert_eq!(known_keys_of(&path, "other", 3260).unwrap(), [key(3)]);
        let refused = check_new_target(&path, "STORAGE", 3260, &key(9)).unwrap_err().to_string();
        assert!(refused.contains("another key for STORAGE"), "{refused}");
    }

    #[test]
    fn a_chap_secret_is_one_line_that_others_cannot_read() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        secret_file::create(&path, "a secret of bob\n").unwrap();
        assert_eq!(read_chap_secret(&path).unwrap(), Secret::new(b"a secret of bob").unwrap());
        fs::write(&path, "short\n").unwrap();
        assert!(format!("{:#}", read_chap_secret(&path).unwrap_err()).contains("5 bytes"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(format!("{:#}", read_chap_secret(&path).unwrap_err()).contains("chmod 600"));
    }

    #[test]
    fn an_unknown_target_is_refused_with_advice() {
        let error =
            known_keys(Path::new("/nonexistent/known"), Whose::Target, "storage", 3260).unwrap_err().to_string();
        assert!(error.contains("strongroom identity show") && error.contains("--target-key"), "{error}");
    }
}
