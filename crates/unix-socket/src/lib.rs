//! Unix sockets that a server listens at: who may connect is settled before the first can, the path may be of any length, what a killed server
//! has left is replaced, and the name goes with the server.
//!
//! Deliberately absent: accepting connections, and what is said on them.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// `sun_path` has 108 bytes (unix(7)); a longer path is reached through a descriptor of its directory.
const PATH_BYTES_MAX: usize = 100;
/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 128;

/// The name of a socket. Dropped, it is removed, unless another server has it by then; so drop it before the socket, which until then
/// shows others that somebody listens.
#[derive(Debug)]
pub struct SocketName {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Drop for SocketName {
    fn drop(&mut self) {
        let is_ours = |there: Metadata| (there.dev(), there.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, blocking. Only users whom `mode` lets write can connect, from the first moment.
///
/// # Errors
/// `AddrInUse` if another process answers there, `AlreadyExists` if something lies there that is no socket; else what the system says.
pub fn listen(path: &Path, mode: Mode) -> io::Result<(SocketName, OwnedFd)> {
    remove_abandoned(path)?;
    let (_directory, short) = shortened(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux gives the file the mode of the socket, less the umask: never more than is allowed. What the umask takes away is given back below.
    rustix::fs::fchmod(&socket, mode)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(short.as_os_str().as_bytes())?)?;
    let metadata = fs::symlink_metadata(path)?;
    let name = SocketName { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() };
    fs::set_permissions(path, fs::Permissions::from_mode(mode.as_raw_mode()))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((name, socket))
}

/// Connects to a socket, however long its path.
///
/// # Errors
/// What the system says; `ConnectionRefused` if nobody listens there.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let (_directory, short) = shortened(path)?;
    UnixStream::connect(short)
}

/// A path to the same file that fits into an address, while the descriptor of its directory is open.
fn shortened(path: &Path) -> io::Result<(Option<File>, PathBuf)> {
    if path.as_os_str().len() <= PATH_BYTES_MAX {
        return Ok((None, path.to_owned()));
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = File::open(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok((Some(directory), short))
}

/// Removes a socket that nobody listens at. Anything else of that name is not ours to remove.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            let problem = "there is something that is no socket; remove it, or choose another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
        }
        Ok(_) => {}
    }
    match connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    //! Proves who can connect and from when on, and that no server removes what is another one's.

    use std::os::unix::net::UnixListener;

    use super::*;

    const OWN: Mode = Mode::RUSR.union(Mode::WUSR);

    fn mode_of(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn it_is_its_users_own_and_goes_with_the_server() {
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("d".repeat(120));
        fs::create_dir(&long).unwrap();
        for path in [directory.path().join("short"), long.join("long")] {
            let (name, socket) = listen(&path, OWN).unwrap();
            assert_eq!(mode_of(&path), 0o600);
            connect(&path).unwrap();
            rustix::net::accept(&socket).unwrap();
            drop(name);
            assert!(!path.exists());
        }
    }

    /// Also where the umask would take it from them.
    #[test]
    fn others_may_be_let_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (_name, _socket) = listen(&path, OWN | Mode::RGRP | Mode::WGRP).unwrap();
        assert_eq!(mode_of(&path), 0o660);
    }

    #[test]
    fn one_that_is_served_is_left_alone_and_one_that_was_left_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (name, socket) = listen(&path, OWN).unwrap();
        let error = listen(&path, OWN).unwrap_err();
        assert!(error.kind() == io::ErrorKind::AddrInUse && error.to_string().contains("another process answers"));
        // The server is killed: its name stays.
        std::mem::forget(name);
        drop(socket);
        let (name, _socket) = listen(&path, OWN).unwrap();
        connect(&path).unwrap();
        // Somebody has removed it, and another server has come.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(name);
        connect(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "a file").unwrap();
        let error = listen(&path, OWN).unwrap_err();
        assert!(error.to_string().contains("no socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"a file");
        // Nor is it followed.
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path().join("elsewhere"), &link).unwrap();
        assert!(listen(&link, OWN).is_err());
        assert!(!directory.path().join("elsewhere").exists());
    }
}
