//! What the disk is to a guest: virtio features, and the configuration space (virtio specification 5.2.4). Pure.
//!
//! VIRTIO_BLK_F_CONFIG_WCE is deliberately absent: a back end that was restarted would not know which cache mode the guest has chosen.

use strongroom_block::Geometry;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use super::request::{
    DISCARD_RANGES_MAX, DISCARD_SECTORS_MAX, REQUEST_BYTES_MAX, SECTOR_BYTES, ZERO_RANGES_MAX, ZERO_SECTORS_MAX,
};

/// Data segments of a request: a ring of 128 entries less header and status.
const SEGMENTS_MAX: u32 = 126;
/// Bytes of a segment, so that the largest request fits.
const SEGMENT_BYTES_MAX: u32 = (REQUEST_BYTES_MAX / 128) as u32;
/// A guest's page: kernels refuse disks with larger logical blocks.
const LOGICAL_BLOCK_BYTES_MAX: u32 = 4096;
/// What there is of the configuration space; what is not defined is zero.
pub(super) const CONFIG_BYTES: usize = 256;

/// How the volume is shown.
#[derive(Clone, Debug)]
pub struct VhostOptions {
    /// What guests are told as the serial number, of at most 20 bytes.
    pub serial: String,
    /// Guests may not write.
    pub read_only: bool,
    /// Queues that a front end may use.
    pub queues_max: u16,
    /// Entries of a queue, a power of two.
    pub queue_size_max: u16,
    /// The logical block size that guests see; `None`: the volume's, as far as guests take that. What is smaller than a block of the volume is
    /// read, changed and written back.
    pub logical_block_bytes: Option<u32>,
}

impl VhostOptions {
    /// A writable disk with up to 64 queues.
    pub fn new(serial: impl Into<String>) -> VhostOptions {
        VhostOptions {
            serial: serial.into(),
            read_only: false,
            queues_max: 64,
            queue_size_max: 1024,
            logical_block_bytes: None,
        }
    }

    /// Virtio features that are offered.
    pub(super) fn features(&self) -> u64 {
        let mut bits = vec![
            VIRTIO_BLK_F_SIZE_MAX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_MQ,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_F_VERSION_1,
        ];
        if self.read_only {
            bits.push(VIRTIO_BLK_F_RO);
        } else {
            bits.extend([VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]);
        }
        bits.into_iter().fold(VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(), |all, bit| all | 1 << bit)
    }

    /// Features of the vhost-user protocol that are offered.
    pub(super) fn protocol_features() -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::BACKEND_REQ
    }

    /// The configuration space for a volume of this geometry.
    pub(super) fn config_space(&self, geometry: Geometry) -> [u8; CONFIG_BYTES] {
        let block_bytes = geometry.block_size.bytes();
        let logical = self.logical_block_bytes.unwrap_or(block_bytes).min(block_bytes).min(LOGICAL_BLOCK_BYTES_MAX);
        let block_sectors = block_bytes / SECTOR_BYTES as u32;
        let mut space = ConfigSpace([0; CONFIG_BYTES]);
        space.put(0, &(geometry.bytes() / SECTOR_BYTES).to_le_bytes());
        space.put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
        space.put(12, &SEGMENTS_MAX.to_le_bytes());
        space.put(20, &logical.to_le_bytes());
        // Physical blocks are the volume's; writes of whole ones need no read.
        space.put(24, &[(block_bytes / logical).trailing_zeros() as u8]);
        space.put(26, &((block_bytes / logical) as u16).to_le_bytes());
        space.put(32, &[1]);
        space.put(34, &self.queues_max.to_le_bytes());
        space.put(36, &DISCARD_SECTORS_MAX.to_le_bytes());
        space.put(40, &DISCARD_RANGES_MAX.to_le_bytes());
        space.put(44, &block_sectors.to_le_bytes());
        space.put(48, &ZERO_SECTORS_MAX.to_le_bytes());
        space.put(52, &ZERO_RANGES_MAX.to_le_bytes());
        space.put(56, &[1]);
        space.0
    }
}

/// Whether a guest that has accepted these features flushes; if not, every write has to be durable when it is answered.
pub(super) fn flushes(features: u64) -> bool {
    features & 1 << VIRTIO_BLK_F_FLUSH != 0
}

/// Whether the ends of a queue say from which entry on they want to be notified.
pub(super) fn has_event_index(features: u64) -> bool {
    features & 1 << VIRTIO_RING_F_EVENT_IDX != 0
}

struct ConfigSpace([u8; CONFIG_BYTES]);

impl ConfigSpace {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    //! Proves which bytes a guest reads.

    use strongroom_block::BlockSize;

    use super::*;

    fn space(block_bytes: u64, logical: Option<u32>) -> [u8; CONFIG_BYTES] {
        let geometry = Geometry::from_bytes(1 << 30, BlockSize::new(block_bytes).unwrap()).unwrap();
        VhostOptions { logical_block_bytes: logical, ..VhostOptions::new("") }.config_space(geometry)
    }

    #[test]
    fn the_configuration_space_is_the_specifications() {
        let expected = "0000200000000000 00000400 7e000000 00000000 00100000 00 00 0100 00000000 01 00 4000 \
                        00004000 20000000 08000000 00000100 01000000 01 000000";
        let hex: String = space(4096, None)[..60].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected.replace(char::is_whitespace, ""));
        assert_eq!(space(4096, None)[60..], [0; CONFIG_BYTES - 60]);
    }

    #[test]
    fn logical_blocks_are_no_larger_than_guests_take() {
        let blocks = |space: [u8; CONFIG_BYTES]| {
            (u32::from_le_bytes(space[20..24].try_into().unwrap()), space[24], space[26], space[44])
        };
        assert_eq!(blocks(space(512, None)), (512, 0, 1, 1));
        assert_eq!(blocks(space(4096, None)), (4096, 0, 1, 8));
        assert_eq!(blocks(space(65_536, None)), (4096, 4, 16, 128));
        assert_eq!(blocks(space(4096, Some(512))), (512, 3, 8, 8));
        assert_eq!(blocks(space(512, Some(4096))), (512, 0, 1, 1));
    }

    #[test]
    fn a_read_only_disk_offers_no_writes() {
        let mut options = VhostOptions::new("");
        let bit = |options: &VhostOptions, bit: u32| options.features() & 1 << bit != 0;
        let offered = |options: &VhostOptions| [5, 13, 14].map(|number| bit(options, number));
        assert_eq!(offered(&options), [false, true, true]);
        options.read_only = true;
        assert_eq!(offered(&options), [true, false, false]);
        for needed in [1, 2, 6, 9, 10, 12, 28, 29, 30, 32] {
            assert!(bit(&options, needed), "{needed}");
        }
        assert!(!bit(&options, 11), "a restarted back end would not know the guest's choice");
    }
}
