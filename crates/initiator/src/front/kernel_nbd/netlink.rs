//! The kernel's NBD driver, asked by generic netlink: one request, and its answer. Absent: what the bytes mean (`message`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use neli::consts::socket::{Msg, NlFamily};
use neli::socket::NlSocket;
use neli::utils::Groups;

use super::message::{self, Answer, Attribute, Command};

/// Of the kernel's answers, in bytes: netlink's own limit of a datagram.
const ANSWER_BYTES_MAX: usize = 32 << 10;

/// See the module.
pub(super) struct Driver {
    socket: NlSocket,
    family: u16,
    sequence: AtomicU32,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("family", &self.family).finish_non_exhaustive()
    }
}

impl Driver {
    /// `None`: this kernel does not have it.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn find() -> io::Result<Option<Driver>> {
        let socket = match NlSocket::connect(NlFamily::Generic, None, Groups::empty()) {
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(None),
            socket => socket?,
        };
        let mut driver = Driver { socket, family: 0, sequence: AtomicU32::new(1) };
        let sequence = driver.next_sequence();
        match driver.exchange(&message::family_request(sequence), sequence, message::family_of) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
            Ok(family) => {
                driver.family = family.ok_or_else(|| io::Error::other("the kernel does not number its NBD driver"))?;
                Ok(Some(driver))
            }
        }
    }

    /// Makes a device from a connected socket; returns its number.
    pub(super) fn connect(&self, attributes: &[Attribute<'_>], socket: BorrowedFd<'_>) -> io::Result<u32> {
        let sockets = [socket.as_raw_fd()];
        let all = [attributes, &[Attribute::Sockets(&sockets)]].concat();
        let index = self.request(Command::Connect, &all, message::index_of)?;
        index.ok_or_else(|| io::Error::other("the kernel does not say which device it has made"))
    }

    /// Changes a device, and gives it a new connection in the place of one that has ended, if there is one.
    pub(super) fn reconfigure(&self, attributes: &[Attribute<'_>], socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let sockets: Vec<i32> = socket.iter().map(AsRawFd::as_raw_fd).collect();
        let mut all = attributes.to_vec();
        if !sockets.is_empty() {
            all.push(Attribute::Sockets(&sockets));
        }
        self.request(Command::Reconfigure, &all, |_| Some(())).map(drop)
    }

    /// Ends a device: what it has not answered fails.
    pub(super) fn disconnect(&self, index: u32) -> io::Result<()> {
        self.request(Command::Disconnect, &[Attribute::Index(index)], |_| Some(())).map(drop)
    }

    fn request<T>(
        &self,
        command: Command,
        attributes: &[Attribute<'_>],
        read: impl Fn(&message::Attributes) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let sequence = self.next_sequence();
        self.exchange(&message::request(self.family, sequence, command, attributes), sequence, read)
    }

    fn next_sequence(&self) -> u32 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    fn exchange<T>(
        &self,
        request: &[u8],
        sequence: u32,
        read: impl Fn(&message::Attributes) -> Option<T>,
    ) -> io::Result<Option<T>> {
        self.socket.send(request, Msg::empty())?;
        let mut found = None;
        let mut datagram = vec![0; ANSWER_BYTES_MAX];
        loop {
            let len = match self.socket.recv(&mut datagram[..], Msg::empty()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?.0,
            };
            for answer in message::answers(&datagram[..len], sequence)? {
                match answer {
                    Answer::Attributes(attributes) => found = found.or_else(|| read(&attributes)),
                    Answer::Refused(code) => return Err(io::Error::from_raw_os_error(code)),
                    Answer::Done => return Ok(found),
                }
            }
        }
    }
}
