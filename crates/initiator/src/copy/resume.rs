//! How far a copy is, in a file, so that it goes on from there after its process was killed.
//!
//! Only what the destination has made durable is noted. The file names both ends and is authenticated under a key of this node: what
//! others wrote into it, or what belongs to another copy, is refused and never believed, because a copy that is told it is done leaves
//! the destination as it was. Absent: what the ends are called, which is the caller's.
//!
//! ```text
//! strongroom-copy 1
//! source NAME
//! destination NAME
//! bytes 1073741824
//! done 268435456
//! holes 4096
//! crc64 0123456789abcdef
//! mac 64 hexadecimal digits: HMAC-SHA256 of all lines before
//! ```

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use strongroom_handshake::NodeKey;

use super::state_file::StateFile;
use super::{CopyError, NodeMac, NodeMacError};

const MAGIC: &str = "strongroom-copy 1";
const KEY_LABEL: &str = "copy progress";
/// Largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Where a copy notes how far it is, and for which ends.
#[derive(Clone)]
pub struct Resume {
    file: StateFile,
    mac: NodeMac,
    source: String,
    destination: String,
    /// Noted after this many bytes,
    pub every_bytes: u64,
    /// or after this time, whichever is first.
    pub every: Duration,
}

impl std::fmt::Debug for Resume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resume").field("path", &self.file.path()).finish_non_exhaustive()
    }
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// Bytes from the start that are durable at the destination.
    pub(super) done_bytes: u64,
    /// Of those, bytes that were absent.
    pub(super) hole_bytes: u64,
    /// CRC-64 of them.
    pub(super) crc64: u64,
}

impl Resume {
    /// A note at `path` of the copy from `source` to `destination`, whose names tell them from any other and, for the source, from an
    /// earlier state of it where that can be told. Each is one line.
    pub fn new(path: impl Into<PathBuf>, node: &NodeKey, source: &str, destination: &str) -> Resume {
        let one_line = |name: &str| name.replace(['\n', '\r'], " ");
        Resume {
            file: StateFile::new(path, FILE_BYTES_MAX),
            mac: NodeMac::new(node, KEY_LABEL),
            source: one_line(source),
            destination: one_line(destination),
            every_bytes: 256 << 20,
            every: Duration::from_secs(5),
        }
    }

    /// What an earlier copy noted; `None`: there is no note.
    pub(super) fn read(&self, size: u64) -> Result<Option<Noted>, CopyError> {
        let refuse = |problem: &str| self.refuse(problem.to_owned());
        let bytes = self.file.read().map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => refuse("it is far too large"),
            _ => refuse(&error.to_string()),
        })?;
        let Some(bytes) = bytes else { return Ok(None) };
        let text = String::from_utf8(bytes).map_err(|error| refuse(&error.to_string()))?;
        let malformed = || refuse("it is not a copy's note");
        let (body, mac) = text.trim_end_matches('\n').rsplit_once("\nmac ").ok_or_else(malformed)?;
        let body = format!("{body}\n");
        self.mac.check(&body, mac).map_err(|error| match error {
            NodeMacError::Malformed => malformed(),
            NodeMacError::NotOurs => self.refuse(error.to_string()),
        })?;
        let lines: Vec<&str> = body.lines().collect();
        let field = |at: usize, name: &str| {
            lines.get(at).and_then(|line| line.strip_prefix(name)?.strip_prefix(' ')).ok_or_else(malformed)
        };
        if lines.first() != Some(&MAGIC) || lines.len() != 7 {
            return Err(refuse("it is of a version that this build does not know"));
        }
        for (at, name, is, what) in
            [(1, "source", &self.source, "source"), (2, "destination", &self.destination, "destination")]
        {
            if field(at, name)? != is {
                return Err(refuse(&format!(
                    "it belongs to a copy with another {what}, or the {what} has changed since"
                )));
            }
        }
        let number = |at, name| field(at, name)?.parse::<u64>().map_err(|_| malformed());
        let crc64 = u64::from_str_radix(field(6, "crc64")?, 16).map_err(|_| malformed())?;
        let noted = Noted { done_bytes: number(4, "done")?, hole_bytes: number(5, "holes")?, crc64 };
        if number(3, "bytes")? != size || noted.done_bytes > size || noted.hole_bytes > noted.done_bytes {
            return Err(refuse("the source has another size now"));
        }
        Ok(Some(noted))
    }

    /// Replaces the note, whole.
    pub(super) fn write(&self, size: u64, noted: Noted) -> Result<(), CopyError> {
        let Noted { done_bytes, hole_bytes, crc64 } = noted;
        let text = format!(
            "{MAGIC}\nsource {}\ndestination {}\nbytes {size}\ndone {done_bytes}\nholes {hole_bytes}\ncrc64 {crc64:016x}\n",
            self.source, self.destination
        );
        let text = format!("{text}mac {}\n", self.mac.of(&text));
        self.file.replace(text.as_bytes()).map_err(|error| self.refuse(error.to_string()))
    }

    /// The note cannot be used.
    pub(super) fn refuse(&self, problem: String) -> CopyError {
        CopyError::Note { path: self.file.path().to_owned(), problem }
    }

    /// The copy is whole: nothing is to be resumed.
    pub(super) fn remove(&self) -> Result<(), CopyError> {
        self.file.remove().map_err(|error| self.refuse(error.to_string()))
    }
}

/// When the next note is due.
#[derive(Debug)]
pub(super) struct Due {
    at: Instant,
    bytes: u64,
}

impl Due {
    pub(super) fn first(bytes: u64) -> Due {
        Due { at: Instant::now(), bytes }
    }

    /// Whether it is, at `bytes`; then the next one is counted from here.
    pub(super) fn is_over(&mut self, resume: &Resume, bytes: u64) -> bool {
        let over =
            bytes > self.bytes && (bytes - self.bytes >= resume.every_bytes || self.at.elapsed() >= resume.every);
        if over {
            *self = Due::first(bytes);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use super::*;

    fn resume(dir: &Path, seed: u8, source: &str) -> Resume {
        Resume::new(dir.join("note"), &NodeKey::from_seed(&[seed; 32]), source, "volume vault")
    }

    const NOTED: Noted = Noted { done_bytes: 4096, hole_bytes: 512, crc64: 0x1234 };

    #[test]
    fn a_note_is_read_as_it_was_written_and_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let note = resume(dir.path(), 1, "file a\nb");
        assert_eq!(note.read(8192).unwrap(), None);
        // A link in the place of the file that is written first is not followed.
        fs::write(dir.path().join("foreign"), "foreign").unwrap();
        std::os::unix::fs::symlink(dir.path().join("foreign"), dir.path().join("note.new")).unwrap();
        note.write(8192, Noted::default()).unwrap();
        note.write(8192, NOTED).unwrap();
        assert_eq!(note.read(8192).unwrap(), Some(NOTED));
        let metadata = fs::symlink_metadata(dir.path().join("note")).unwrap();
        assert!(metadata.is_file() && metadata.mode() & 0o777 == 0o600, "{metadata:?}");
        assert_eq!(fs::read(dir.path().join("foreign")).unwrap(), b"foreign");
        fs::remove_file(dir.path().join("foreign")).unwrap();
        let text = fs::read_to_string(dir.path().join("note")).unwrap();
        let golden = "strongroom-copy 1\nsource file a b\ndestination volume vault\nbytes 8192\ndone 4096\nholes 512\n\
            crc64 0000000000001234\nmac ";
        assert!(text.starts_with(golden), "{text}");
        note.remove().unwrap();
        note.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// Who can write the note must not be able to have blocks left out.
    #[test]
    fn attack_a_forged_note_of_a_copy_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let note = resume(dir.path(), 1, "file a");
        note.write(8192, NOTED).unwrap();
        let path = dir.path().join("note");
        let good = fs::read_to_string(&path).unwrap();
        let told = |result: Result<Option<Noted>, CopyError>| result.unwrap_err().to_string();
        for (from, to) in
            [("done 4096", "done 8192"), ("crc64 0", "crc64 1"), ("holes 512", "holes 513"), ("vault", "other")]
        {
            fs::write(&path, good.replace(from, to)).unwrap();
            assert!(told(note.read(8192)).contains("not written by this node"), "{to}");
        }
        for (bad, part) in
            [("", "not a copy's note"), ("x\nmac zz\n", "not a copy's note"), (&good[..good.len() - 9], "not written")]
        {
            fs::write(&path, bad).unwrap();
            assert!(told(note.read(8192)).contains(part), "{bad}");
        }
        fs::write(&path, vec![b'x'; 70_000]).unwrap();
        assert!(told(note.read(8192)).contains("too large"));
        fs::write(&path, &good).unwrap();
        assert!(told(resume(dir.path(), 2, "file a").read(8192)).contains("not written by this node"));
        assert!(told(resume(dir.path(), 1, "file b").read(8192)).contains("another source"));
        assert!(told(note.read(16384)).contains("another size"));
        let sentence = told(note.read(16384));
        assert!(sentence.contains("remove it to copy from the start"), "{sentence}");
    }
}
