//! The disk that forgets: a file system (FUSE, in memory) that keeps what was not synced only until it is told to forget.
//!
//! A killed process proves nothing about syncs, because the page cache outlives it. Here nothing does: files are opened
//! with direct I/O, and [`ForgettingDisk::forget`] leaves of every file what `fsync` or `fdatasync` made durable, and of
//! the rest what the seed lets survive. Names, sizes and modes are durable at once: what is tested is data.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};

use crate::Random;
use crate::image::{Forgetful, PAGE};

/// Nothing about a file is cached by the kernel.
const TTL: Duration = Duration::ZERO;

enum Node {
    Directory(BTreeMap<OsString, u64>),
    File { bytes: Forgetful, len: u64 },
}

struct Entry {
    node: Node,
    mode: u16,
}

/// What can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailingIo {
    /// Reads, with an I/O error.
    Reads,
    /// Writes, with an I/O error.
    Writes,
    /// Writes and allocations, for want of space.
    Space,
    /// Syncs, with an I/O error.
    Syncs,
    /// Allocations, with an I/O error.
    Allocations,
    /// Discards, with an I/O error.
    Discards,
    /// Making a file longer, for want of space.
    Growth,
}

struct Tree {
    failing: Option<FailingIo>,
    entries: BTreeMap<u64, Entry>,
    next: u64,
    random: Random,
    syncs: u64,
}

/// A mounted disk that forgets. Unmounted when dropped.
pub struct ForgettingDisk {
    tree: Arc<Mutex<Tree>>,
    mount_point: PathBuf,
    session: Option<BackgroundSession>,
}

impl ForgettingDisk {
    /// Mounts an empty one on the directory `mount_point`. Needs `/dev/fuse` and the right to mount.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn mount(mount_point: &Path, seed: u64) -> io::Result<ForgettingDisk> {
        let root = Entry { node: Node::Directory(BTreeMap::new()), mode: 0o755 };
        let entries = BTreeMap::from([(1, root)]);
        let tree = Arc::new(Mutex::new(Tree { entries, next: 2, random: Random::new(seed), syncs: 0, failing: None }));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("forgetting-disk".to_owned())];
        let session = Session::new(ForgettingFs(Arc::clone(&tree)), mount_point, &config)?.spawn()?;
        Ok(ForgettingDisk { tree, mount_point: mount_point.to_owned(), session: Some(session) })
    }

    /// From now on this fails; `None`: nothing.
    pub fn fail(&self, failing: Option<FailingIo>) {
        self.tree().failing = failing;
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Power loss: of what was not synced survives what the seed has chosen: nothing, all, whole writes, or sectors.
    /// Processes that have files open must have been killed before.
    pub fn crash(&self) {
        let tree = &mut *self.tree();
        for entry in tree.entries.values_mut() {
            if let Node::File { bytes, .. } = &mut entry.node {
                bytes.crash(&mut tree.random);
            }
        }
    }

    /// Power loss of the plain kind: nothing that was not synced survives.
    pub fn forget(&self) {
        for entry in self.tree().entries.values_mut() {
            if let Node::File { bytes, .. } = &mut entry.node {
                bytes.forget();
            }
        }
    }

    /// How many syncs were asked for.
    pub fn syncs(&self) -> u64 {
        self.tree().syncs
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().expect("the file system does not panic")
    }
}

impl Drop for ForgettingDisk {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

type Reply<T> = Result<T, Errno>;

impl Tree {
    fn admit(&self, failing: FailingIo, errno: Errno) -> Reply<()> {
        if self.failing == Some(failing) { Err(errno) } else { Ok(()) }
    }

    fn entry(&mut self, ino: INodeNo) -> Reply<&mut Entry> {
        self.entries.get_mut(&ino.0).ok_or(Errno::ENOENT)
    }

    fn names(&mut self, ino: INodeNo) -> Reply<&mut BTreeMap<OsString, u64>> {
        match &mut self.entry(ino)?.node {
            Node::Directory(names) => Ok(names),
            Node::File { .. } => Err(Errno::ENOTDIR),
        }
    }

    fn file(&mut self, ino: INodeNo) -> Reply<(&mut Forgetful, &mut u64)> {
        match &mut self.entry(ino)?.node {
            Node::File { bytes, len } => Ok((bytes, len)),
            Node::Directory(_) => Err(Errno::EISDIR),
        }
    }

    fn lookup(&mut self, parent: INodeNo, name: &OsStr) -> Reply<FileAttr> {
        let ino = *self.names(parent)?.get(name).ok_or(Errno::ENOENT)?;
        self.attributes(INodeNo(ino))
    }

    fn make(&mut self, parent: INodeNo, name: &OsStr, node: Node, mode: u32) -> Reply<FileAttr> {
        let ino = self.next;
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.names(parent)?.insert(name.to_owned(), ino);
        self.next += 1;
        self.entries.insert(ino, Entry { node, mode: (mode & 0o7777) as u16 });
        self.attributes(INodeNo(ino))
    }

    /// Takes a name away; the file stays for those who have it open.
    fn unlink(&mut self, parent: INodeNo, name: &OsStr) -> Reply<()> {
        self.names(parent)?.remove(name).map(drop).ok_or(Errno::ENOENT)
    }

    fn rename(&mut self, parent: INodeNo, name: &OsStr, new_parent: INodeNo, new_name: &OsStr) -> Reply<()> {
        self.names(new_parent)?;
        let ino = self.names(parent)?.remove(name).ok_or(Errno::ENOENT)?;
        self.names(new_parent)?.insert(new_name.to_owned(), ino);
        Ok(())
    }

    fn resize(&mut self, ino: INodeNo, size: u64) -> Reply<()> {
        self.admit(FailingIo::Growth, Errno::ENOSPC)?;
        let (bytes, len) = self.file(ino)?;
        if size < *len {
            let gone = vec![0; ((*len).min(size.next_multiple_of(PAGE as u64)) - size) as usize];
            bytes.overwrite(size, &gone);
            bytes.punch(size, len.next_multiple_of(PAGE as u64) - size);
        }
        *len = size;
        Ok(())
    }

    fn read(&mut self, ino: INodeNo, offset: u64, size: u32) -> Reply<Vec<u8>> {
        self.admit(FailingIo::Reads, Errno::EIO)?;
        let (bytes, len) = self.file(ino)?;
        let mut data = vec![0; len.saturating_sub(offset).min(u64::from(size)) as usize];
        bytes.read(offset, &mut data);
        Ok(data)
    }

    fn write(&mut self, ino: INodeNo, offset: u64, data: &[u8]) -> Reply<u32> {
        self.admit(FailingIo::Writes, Errno::EIO)?;
        self.admit(FailingIo::Space, Errno::ENOSPC)?;
        let (bytes, len) = self.file(ino)?;
        bytes.write(offset, data.to_vec());
        *len = (*len).max(offset + data.len() as u64);
        Ok(data.len() as u32)
    }

    fn sync(&mut self, ino: INodeNo) -> Reply<()> {
        self.admit(FailingIo::Syncs, Errno::EIO)?;
        self.syncs += 1;
        let mut random = self.random.fork();
        let (bytes, _) = self.file(ino)?;
        bytes.sync(usize::MAX, &mut random);
        Ok(())
    }

    fn allocate(&mut self, ino: INodeNo, offset: u64, length: u64, mode: i32) -> Reply<()> {
        self.admit(FailingIo::Space, Errno::ENOSPC)?;
        let discards = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        self.admit(if discards { FailingIo::Discards } else { FailingIo::Allocations }, Errno::EIO)?;
        let (bytes, len) = self.file(ino)?;
        if discards {
            bytes.punch(offset, length);
        } else if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
            *len = (*len).max(offset + length);
        }
        Ok(())
    }

    fn attributes(&mut self, ino: INodeNo) -> Reply<FileAttr> {
        let entry = self.entry(ino)?;
        let (kind, size, pages) = match &entry.node {
            Node::Directory(_) => (FileType::Directory, 0, 0),
            Node::File { bytes, len } => (FileType::RegularFile, *len, bytes.pages()),
        };
        Ok(FileAttr {
            ino,
            size,
            blocks: (pages * PAGE / 512) as u64,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: entry.mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: PAGE as u32,
            flags: 0,
        })
    }
}

struct ForgettingFs(Arc<Mutex<Tree>>);

impl ForgettingFs {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().expect("tests do not panic while they hold the tree")
    }
}

fn empty(result: Reply<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn entry(result: Reply<FileAttr>, reply: ReplyEntry) {
    match result {
        Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for ForgettingFs {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.tree().lookup(parent, name), reply);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree().attributes(ino) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut tree = self.tree();
        if let (Some(mode), Ok(entry)) = (mode, tree.entry(ino)) {
            entry.mode = (mode & 0o7777) as u16;
        }
        let resized = size.map_or(Ok(()), |size| tree.resize(ino, size));
        match resized.and_then(|()| tree.attributes(ino)) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        entry(self.tree().make(parent, name, Node::Directory(BTreeMap::new()), mode & !umask), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.tree().unlink(parent, name), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.tree().unlink(parent, name), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        empty(self.tree().rename(parent, name, newparent, newname), reply);
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let file = Node::File { bytes: Forgetful::default(), len: 0 };
        match self.tree().make(parent, name, file, mode & !umask) {
            Ok(attributes) => {
                reply.created(&TTL, &attributes, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
            }
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.tree().read(ino, offset, size) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.tree().write(ino, offset, data) {
            Ok(count) => reply.written(count),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.ok(); // close(2) makes nothing durable
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        empty(self.tree().sync(ino), reply);
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty(self.tree().allocate(ino, offset, length, mode), reply);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut tree = self.tree();
        let names: Vec<(OsString, u64)> = match tree.names(ino) {
            Ok(names) => names.iter().map(|(name, &ino)| (name.clone(), ino)).collect(),
            Err(error) => return reply.error(error),
        };
        for (at, (name, ino)) in names.into_iter().enumerate().skip(offset as usize) {
            let kind = match tree.entries.get(&ino).map(|entry| &entry.node) {
                Some(Node::Directory(_)) => FileType::Directory,
                _ => FileType::RegularFile,
            };
            if reply.add(INodeNo(ino), at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
