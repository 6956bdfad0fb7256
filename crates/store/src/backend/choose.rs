//! How a log is read and written: chosen when a store is opened, by what the kernel and the file system can do.

use std::fmt;
use std::fs::File;
use std::io;
use std::str::FromStr;

use super::direct::make_direct;
use super::uring::UringBackend;
use super::{Backend, FileBackend, PoolBackend};

/// How a log shall be read and written. The results are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// The first of the following that works here.
    #[default]
    Auto,
    /// Past the page cache, through io_uring.
    DirectUring,
    /// Past the page cache, by a few threads.
    Direct,
    /// Through the page cache.
    Buffered,
}

impl fmt::Display for IoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoChoice::Auto => "auto",
            IoChoice::DirectUring => "direct-uring",
            IoChoice::Direct => "direct",
            IoChoice::Buffered => "buffered",
        })
    }
}

/// Not the name of a way to do I/O.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no way to do I/O: use auto, direct-uring, direct or buffered")]
pub struct IoChoiceError(String);

impl FromStr for IoChoice {
    type Err = IoChoiceError;

    fn from_str(text: &str) -> Result<IoChoice, IoChoiceError> {
        [IoChoice::Auto, IoChoice::DirectUring, IoChoice::Direct, IoChoice::Buffered]
            .into_iter()
            .find(|choice| choice.to_string() == text)
            .ok_or_else(|| IoChoiceError(text.to_owned()))
    }
}

/// What reads and writes a log, and why nothing better does; `None`: there is nothing better.
pub(crate) type Chosen = (Box<dyn Backend>, Option<String>);

/// A backend on `file`, open for reading and writing. `keeps_space`: its space was taken for good.
///
/// # Errors
/// If what was chosen does not work here, or a first sync fails.
pub(crate) fn backend_on(file: File, choice: IoChoice, keeps_space: bool) -> io::Result<Chosen> {
    let mut why = Some(format!("it was asked for (io = {choice})"));
    // What an earlier, failed sync left in the page cache is not what the medium has.
    rustix::fs::fdatasync(&file)?;
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    if choice != IoChoice::Buffered {
        match make_direct(&file) {
            Err(error) if choice != IoChoice::Auto => return Err(error),
            Err(error) => why = Some(format!("the file system has no direct I/O that can be used: {error}")),
            Ok(alignment) => {
                let ring = if choice == IoChoice::Direct {
                    Err(io::ErrorKind::Unsupported.into())
                } else {
                    UringBackend::new(&file, alignment, keeps_space)
                };
                match ring {
                    Ok(backend) => return Ok((Box::new(backend), None)),
                    Err(error) if choice == IoChoice::DirectUring => return Err(error),
                    Err(error) => {
                        if choice == IoChoice::Auto {
                            why = Some(format!("the kernel has no io_uring that can be used: {error}"));
                        }
                        return Ok((Box::new(PoolBackend::new(file, alignment, keeps_space)?), why));
                    }
                }
            }
        }
    }
    let backend = FileBackend::new(file)?;
    Ok((Box::new(if keeps_space { backend.keeping_space() } else { backend }), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written() {
        for choice in [IoChoice::Auto, IoChoice::DirectUring, IoChoice::Direct, IoChoice::Buffered] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "fast".parse::<IoChoice>().unwrap_err().to_string();
        assert!(error.contains("'fast'") && error.contains("direct-uring"), "{error}");
    }

    /// A medium that cannot be synced is not used, in no way; nor is one past whose cache nothing goes, if that is asked for.
    #[test]
    fn what_does_not_work_is_an_error() {
        let null = || File::options().read(true).write(true).open("/dev/null").expect("every Linux has it");
        for choice in [IoChoice::Auto, IoChoice::DirectUring, IoChoice::Direct, IoChoice::Buffered] {
            assert!(backend_on(null(), choice, false).is_err(), "{choice}");
        }
        assert!(make_direct(&null()).is_err());
    }
}
