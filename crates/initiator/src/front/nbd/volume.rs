//! The volume that all clients share, and how their requests become requests of its device. One flush covers what any of them was answered:
//! there is one device.
//!
//! Parts of blocks are replaced in the block, atomically with respect to every other writer ([`Request::WritePart`]), so requests need not be
//! aligned. Long ones are submitted in parts, between which those of other clients find their way in.

use std::sync::Arc;

use strongroom_block::{Buffer, DeviceError, Geometry, Lba, Request};
use strongroom_nbd::{Command, Export, Extent, Request as NbdRequest};

use super::answer::{ReadWindow, ReplyAddress, WaitingClient};
use super::tls::NbdCertificates;
use crate::copy::SparseDevice;
use crate::front::block_range::{ByteRange, Zeros};
use crate::front::pending::{Operation, Pending};

/// Extents in one reply, and questions asked for them, each of which takes a few round trips.
const EXTENTS_MAX: usize = 256;
/// Of an extent in a reply, with extended headers.
const EXTENT_BYTES: usize = 16;

/// How a volume is served.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// The export's name: the volume's ([`crate::VolumeUrl::file_name`]). An empty name stands for it too.
    pub export_name: String,
    /// No client may write.
    pub read_only: bool,
    /// The device discards blocks in less time than it takes to write them, so clients may ask for zeros that are written fast.
    pub fast_zero: bool,
    /// Clients have to begin TLS, with certificates that these believe.
    pub certificates: Option<NbdCertificates>,
    /// Clients at once; one that connects beyond that is not served.
    pub connections_max: usize,
}

impl NbdOptions {
    /// A writable export called `export_name`, without TLS, for 64 connections.
    pub fn new(export_name: impl Into<String>) -> NbdOptions {
        NbdOptions {
            export_name: export_name.into(),
            read_only: false,
            fast_zero: false,
            certificates: None,
            connections_max: 64,
        }
    }
}

/// See the module.
pub(super) struct ServedVolume {
    pub(super) device: Arc<dyn SparseDevice>,
    pub(super) pending: Arc<Pending<WaitingClient>>,
    pub(super) options: NbdOptions,
}

impl ServedVolume {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    /// What there is of it now: it may have grown.
    pub(super) fn size_bytes(&self) -> u64 {
        self.geometry().bytes()
    }

    /// What a new client is offered.
    pub(super) fn export(&self) -> Export {
        let Geometry { block_size, .. } = self.geometry();
        let NbdOptions { export_name, read_only, fast_zero, .. } = &self.options;
        Export {
            name: export_name.clone(),
            size_bytes: self.size_bytes(),
            block_size,
            read_only: *read_only,
            fast_zero: *fast_zero,
        }
    }

    /// Memory that a request needs until its reply is sent, in bytes.
    pub(super) fn memory_bytes(&self, request: &NbdRequest) -> usize {
        match request.command {
            Command::Read { .. } => {
                let blocks = self.blocks(request);
                ((blocks.end - blocks.start) << self.geometry().block_size.shift()) as usize
            }
            Command::Write { .. } => request.len_bytes as usize,
            Command::BlockStatus { .. } => EXTENTS_MAX * EXTENT_BYTES,
            Command::Flush | Command::Trim { .. } | Command::WriteZeroes { .. } => 0,
        }
    }

    fn range(&self, request: &NbdRequest) -> ByteRange {
        ByteRange { geometry: self.geometry(), offset: request.id.offset, len_bytes: request.len_bytes }
    }

    /// The blocks that a request touches.
    fn blocks(&self, request: &NbdRequest) -> std::ops::Range<u64> {
        self.range(request).blocks()
    }

    /// Executes a request, which lies inside the volume; `data` are those of a write. It is answered now or later.
    pub(super) fn execute(&self, request: NbdRequest, data: Buffer, reply: ReplyAddress) {
        match request.command {
            Command::Read { dont_fragment } => self.read(&request, dont_fragment, reply),
            Command::Write { fua } => self.write(&request, &data, fua, reply),
            Command::Flush => self.submit(plain(reply), std::iter::once(Request::Flush)),
            Command::Trim { fua } => self.trim(&request, fua, reply),
            Command::WriteZeroes { fua, no_hole } => self.write_zeros(&request, fua, no_hole, reply),
            Command::BlockStatus { only_one } => match self.block_status(&request, only_one) {
                Ok(extents) => reply.send(vec![reply.encoder.block_status(reply.id, &extents)]),
                Err(error) => reply.fail(&error),
            },
        }
    }

    fn submit(&self, operation: Operation<WaitingClient>, requests: impl Iterator<Item = Request>) {
        self.pending.submit(&*self.device, operation, requests);
    }

    fn read(&self, request: &NbdRequest, dont_fragment: bool, reply: ReplyAddress) {
        let range = self.range(request);
        let window = ReadWindow {
            skip_bytes: range.skip_bytes(),
            len_bytes: request.len_bytes as usize,
            block_size: self.geometry().block_size,
            dont_fragment,
        };
        let requests = range.reads();
        self.submit(WaitingClient::read(reply, window, requests.len()), requests);
    }

    fn write(&self, request: &NbdRequest, data: &Buffer, fua: bool, reply: ReplyAddress) {
        self.submit(plain(reply), self.range(request).writes(data, fua));
    }

    /// Only whole blocks can be forgotten, and nothing is promised of the rest.
    fn trim(&self, request: &NbdRequest, fua: bool, reply: ReplyAddress) {
        let operation = if fua { Operation::flushed(WaitingClient::new(reply)) } else { plain(reply) };
        self.submit(operation, self.range(request).discards());
    }

    fn write_zeros(&self, request: &NbdRequest, fua: bool, no_hole: bool, reply: ReplyAddress) {
        let zeros = if no_hole { Zeros::Written } else { Zeros::Discarded };
        // A discard is not durable by itself.
        let is_flushed = fua && zeros == Zeros::Discarded;
        let operation = if is_flushed { Operation::flushed(WaitingClient::new(reply)) } else { plain(reply) };
        self.submit(operation, self.range(request).zeros(zeros, fua));
    }

    /// What is absent, from the request's offset on, as far as a limited number of questions goes. Waits for the device.
    fn block_status(&self, request: &NbdRequest, only_one: bool) -> Result<Vec<Extent>, DeviceError> {
        let (shift, end) = (self.geometry().block_size.shift(), request.id.offset + request.len_bytes);
        let blocks = self.blocks(request);
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = request.id.offset;
        for _ in 0..EXTENTS_MAX {
            if at == end {
                break;
            }
            let lba = at >> shift;
            let found = self.device.extent_at(Lba(lba), blocks.end - lba)?;
            let next = ((lba + found.blocks) << shift).min(end);
            let extent = Extent { len_bytes: next - at, is_hole: found.is_absent };
            match extents.last_mut() {
                Some(last) if last.is_hole == extent.is_hole => last.len_bytes += extent.len_bytes,
                Some(_) if only_one => break,
                _ => extents.push(extent),
            }
            at = next;
        }
        Ok(extents)
    }
}

/// Anything that is answered without data.
fn plain(reply: ReplyAddress) -> Operation<WaitingClient> {
    Operation::plain(WaitingClient::new(reply))
}
