//! The FUSE operations of a directory with one file in it, turned into requests of a block device.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request as FuseRequest, TimeOrNow, WriteFlags,
};
use strongroom_block::{BlockDevice, Buffer, BufferMut, Geometry, Lba, Request};

use super::pending::{PartsReply, Pending, ReadRange};
use super::{FuseOptions, MAX_WRITE_BYTES};
use crate::front::block_range::{RangePart, cut_at_blocks};

const ROOT: INodeNo = INodeNo(1);
pub(super) const FILE: INodeNo = INodeNo(2);
/// Attributes change only when the volume grows, which the kernel is told ([`super::ShownSize`]).
const ATTRIBUTES_VALID: Duration = Duration::from_secs(3600);
/// Requests that the kernel may keep waiting in the background (asynchronous direct I/O).
const MAX_BACKGROUND: u16 = 256;

/// The file system: one directory, one file.
pub(super) struct VolumeFile {
    device: Arc<dyn BlockDevice>,
    pending: Arc<Pending>,
    name: std::ffi::OsString,
    read_only: bool,
    attached_at: SystemTime,
}

impl VolumeFile {
    pub(super) fn new(device: Arc<dyn BlockDevice>, pending: Arc<Pending>, options: &FuseOptions) -> VolumeFile {
        VolumeFile {
            device,
            pending,
            name: options.file_name.clone().into(),
            read_only: options.read_only,
            attached_at: SystemTime::now(),
        }
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_file = ino == FILE;
        let size = if is_file { self.geometry().bytes() } else { 0 };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: self.attached_at,
            mtime: self.attached_at,
            ctime: self.attached_at,
            crtime: self.attached_at,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: match (is_file, self.read_only) {
                (true, true) => 0o400,
                (true, false) => 0o600,
                (false, _) => 0o500,
            },
            nlink: if is_file { 1 } else { 2 },
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: self.geometry().block_size.bytes(),
            flags: 0,
        }
    }
}

impl Filesystem for VolumeFile {
    fn init(&mut self, _req: &FuseRequest, config: &mut KernelConfig) -> io::Result<()> {
        // Each is a help, none is needed: an older kernel only sends smaller or fewer requests.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _req: &FuseRequest, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == ROOT && name == self.name {
            reply.entry(&ATTRIBUTES_VALID, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &FuseRequest, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        if ino == ROOT || ino == FILE {
            reply.attr(&ATTRIBUTES_VALID, &self.attributes(ino));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    /// As on a block device: the size is not the user's to change, and `O_TRUNC` (a size of 0) means nothing. Times are not kept; mode and
    /// owner do not change.
    fn setattr(
        &self,
        _req: &FuseRequest,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
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
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        match size {
            Some(size) if size != 0 && size != self.geometry().bytes() => reply.error(Errno::EINVAL),
            _ => reply.attr(&ATTRIBUTES_VALID, &self.attributes(ino)),
        }
    }

    fn open(&self, _req: &FuseRequest, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if ino != FILE {
            return reply.error(Errno::EISDIR);
        }
        if self.read_only && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _req: &FuseRequest,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size).min(self.geometry().bytes().saturating_sub(offset));
        if len == 0 {
            return reply.data(&[]);
        }
        let shift = self.geometry().block_size.shift();
        let (first, end) = (offset >> shift, (offset + len).div_ceil(1 << shift));
        let range = ReadRange {
            lba: Lba(first),
            blocks_bytes: ((end - first) << shift) as usize,
            skip_bytes: (offset - (first << shift)) as usize,
            len_bytes: len as usize,
        };
        self.pending.submit_read(&*self.device, range, reply);
    }

    fn write(
        &self,
        _req: &FuseRequest,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        let len = (data.len() as u64).min(self.geometry().bytes().saturating_sub(offset));
        if len == 0 && !data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        let fua = flags.0 & (libc::O_SYNC | libc::O_DSYNC) != 0;
        // The kernel's request buffer is used again as soon as we return.
        let data = Buffer::copy_from(&data[..len as usize]);
        let shift = self.geometry().block_size.shift();
        let request = |part| match part {
            RangePart::Whole { lba, count, at } => {
                let data = data.slice(at as usize..(at + (count << shift)) as usize);
                Request::Write { lba, data, fua }
            }
            RangePart::Piece { lba, offset_bytes, at, len_bytes } => {
                let data = data.slice(at as usize..(at + len_bytes) as usize);
                Request::WritePart { lba, offset_bytes, data, fua }
            }
        };
        let requests = cut_at_blocks(self.geometry(), offset, len, u64::MAX).map(request).collect();
        self.pending.submit_parts(&*self.device, requests, PartsReply::Write(reply, len as u32));
    }

    /// Called at each close: nothing is held back here, so there is nothing to do (durability is `fsync`'s).
    fn flush(&self, _req: &FuseRequest, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _req: &FuseRequest, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        if self.read_only {
            return reply.ok();
        }
        self.pending.submit_parts(&*self.device, vec![Request::Flush], PartsReply::Empty(reply));
    }

    fn fsyncdir(&self, _req: &FuseRequest, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Punching a hole and zeroing a range both forget whole blocks and zero the ragged ends; allocation has no meaning.
    fn fallocate(
        &self,
        _req: &FuseRequest,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let len = length.min(self.geometry().bytes().saturating_sub(offset));
        let request = |part| match part {
            RangePart::Whole { lba, count, .. } => Request::Discard { lba, count },
            RangePart::Piece { lba, offset_bytes, len_bytes, .. } => {
                let data = Buffer::from(BufferMut::zeroed(len_bytes as usize));
                Request::WritePart { lba, offset_bytes, data, fua: false }
            }
        };
        let requests = cut_at_blocks(self.geometry(), offset, len, u64::MAX).map(request).collect();
        self.pending.submit_parts(&*self.device, requests, PartsReply::Empty(reply));
    }

    fn readdir(&self, _req: &FuseRequest, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if ino != ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries: [(INodeNo, FileType, &OsStr); 3] = [
            (ROOT, FileType::Directory, OsStr::new(".")),
            (ROOT, FileType::Directory, OsStr::new("..")),
            (FILE, FileType::RegularFile, &self.name),
        ];
        for (at, (ino, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(ino, at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _req: &FuseRequest, _ino: INodeNo, reply: ReplyStatfs) {
        let block_bytes = self.geometry().block_size.bytes();
        reply.statfs(self.geometry().blocks, 0, 0, 1, 0, block_bytes, 255, block_bytes);
    }

    // One file, for good: nothing can be made, removed or renamed.

    fn create(&self, _: &FuseRequest, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::EPERM);
    }

    fn mknod(&self, _: &FuseRequest, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &FuseRequest, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &FuseRequest, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &FuseRequest, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(&self, _: &FuseRequest, _: INodeNo, _: &OsStr, _: INodeNo, _: &OsStr, _: RenameFlags, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }
}
