//! What a front end (qemu, cloud-hypervisor) says over its connection: memory, queues, features, the configuration space, the in-flight buffer.
//!
//! The messages themselves are decoded by the crate `vhost`. Absent: dirty-page logs and state transfer for live migration, memory slots that come
//! and go one by one, and queues that are polled instead of notified.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use vm_memory::{GuestAddress, GuestMemoryRegion, GuestRegionMmap, VolatileMemory};

use super::chain::GuestMemory;
use super::config::{VhostOptions, flushes, has_event_index};
use super::disk::ServedDisk;
use super::inflight::{InflightLayout, InflightQueue};
use super::mapping::{map, map_guest};
use super::queues::GuestQueues;
use super::vring::{InflightRegion, Vring, VringError};

/// See the module.
pub(super) struct Session {
    disk: Arc<ServedDisk>,
    queues: Arc<GuestQueues>,
    features: u64,
    mappings: Vec<FrontEndMapping>,
}

/// Where the front end has a part of the guest's memory. Rings are given by its addresses.
struct FrontEndMapping {
    begin: u64,
    len_bytes: u64,
    guest: u64,
}

impl From<VringError> for Error {
    fn from(error: VringError) -> Error {
        Error::ReqHandlerError(io::Error::other(error))
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

fn not_supported<T>() -> Result<T> {
    Err(Error::InvalidOperation("this back end does not offer that"))
}

impl Session {
    pub(super) fn new(disk: Arc<ServedDisk>, queues: Arc<GuestQueues>) -> Session {
        Session { disk, queues, features: 0, mappings: Vec::new() }
    }

    fn options(&self) -> &VhostOptions {
        &self.disk.options
    }

    fn ring(&self, index: u32) -> Result<&Arc<Vring>> {
        self.queues.rings.get(index as usize).ok_or(Error::InvalidParam)
    }

    fn guest_address(&self, front_end: u64) -> Result<GuestAddress> {
        let mapping = self
            .mappings
            .iter()
            .find(|mapping| front_end.checked_sub(mapping.begin).is_some_and(|offset| offset < mapping.len_bytes));
        let mapping = mapping.ok_or(VringError::Rings)?;
        Ok(GuestAddress(front_end - mapping.begin + mapping.guest))
    }

    fn layout(&self, inflight: &VhostUserInflight) -> Result<InflightLayout> {
        let (queues, queue_size) = (inflight.num_queues, inflight.queue_size);
        if queues > self.options().queues_max || queue_size > self.options().queue_size_max {
            return Err(failed(VringError::Size(queue_size.into())));
        }
        Ok(InflightLayout { queues, queue_size })
    }
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        not_supported()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.options().features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.options().features() != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.features = features;
        let negotiates_rings = features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0;
        self.queues.guest.is_write_through.store(!flushes(features), Ordering::Relaxed);
        for ring in &self.queues.rings {
            ring.set_event_index(has_event_index(features));
            if !negotiates_rings {
                ring.set_enabled(true);
            }
        }
        self.queues.look_again();
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let (mut mapped, mut mappings) = (Vec::new(), Vec::new());
        for (region, file) in regions.iter().zip(files) {
            let VhostUserMemoryRegion { guest_phys_addr: guest, memory_size: len_bytes, user_addr: begin, mmap_offset } =
                *region;
            let mapping = map_guest(file, mmap_offset, len_bytes).map_err(failed)?;
            mapped.push(GuestRegionMmap::new(mapping, GuestAddress(guest)).ok_or(Error::InvalidParam)?);
            mappings.push(FrontEndMapping { begin, len_bytes, guest });
        }
        mapped.sort_by_key(|region: &GuestRegionMmap| region.start_addr());
        let memory = Arc::new(GuestMemory::from_regions(mapped).map_err(failed)?);
        self.mappings = mappings;
        self.queues.rings.iter().for_each(|ring| ring.set_memory(&memory));
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        Ok(self.ring(index)?.set_size(num)?)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let [descriptor, available, used] =
            [self.guest_address(descriptor)?, self.guest_address(available)?, self.guest_address(used)?];
        Ok(self.ring(index)?.set_addresses(descriptor, available, used)?)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(self.ring(index)?.set_base(base)?)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.ring(index)?.stop();
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = fd.ok_or(Error::InvalidOperation("queues without notifications are not supported"))?;
        self.ring(index.into())?.start(kick.into())?;
        self.queues.look_again();
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring(index.into())?.set_call(fd.map(OwnedFd::from));
        Ok(())
    }

    /// A broken queue is reported in the log.
    fn set_vring_err(&mut self, _index: u8, _fd: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostOptions::protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let is_offered = features & !VhostOptions::protocol_features().bits() == 0;
        if is_offered { Ok(()) } else { Err(Error::FeatureMismatch) }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.options().queues_max.into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.set_enabled(enable);
        self.queues.look_again();
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let space = self.options().config_space(self.disk.device.geometry());
        let end = offset.checked_add(size).ok_or(Error::InvalidParam)?;
        let part = space.get(offset as usize..end as usize).ok_or(Error::InvalidParam)?;
        Ok(part.to_vec())
    }

    /// Nothing of it can be changed.
    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        not_supported()
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        not_supported()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        not_supported()
    }

    fn get_inflight_fd(&mut self, inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let layout = self.layout(inflight)?;
        let len_bytes = layout.total_bytes() as u64;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("strongroom-inflight", flags).map_err(failed)?);
        file.set_len(len_bytes).map_err(failed)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
        let mapping = map(file.try_clone().map_err(failed)?, 0, len_bytes).map_err(failed)?;
        for queue in 0..usize::from(layout.queues) {
            let region = mapping.get_slice(queue * layout.region_bytes(), layout.region_bytes()).map_err(failed)?;
            InflightQueue::create(region, layout.queue_size);
        }
        Ok((VhostUserInflight::new(len_bytes, 0, inflight.num_queues, inflight.queue_size), file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let layout = self.layout(inflight)?;
        layout.check_size(inflight.mmap_size).map_err(failed)?;
        let mapping = Arc::new(map(file, inflight.mmap_offset, inflight.mmap_size).map_err(failed)?);
        let len_bytes = layout.region_bytes();
        for (index, ring) in self.queues.rings.iter().take(layout.queues.into()).enumerate() {
            let region = InflightRegion { mapping: mapping.clone(), offset: index * len_bytes, len_bytes };
            ring.set_region(region)?;
        }
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        not_supported()
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        not_supported()
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        not_supported()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        not_supported()
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_supported()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_supported()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        not_supported()
    }
}
