//! What a unit says of itself and of the target around it: INQUIRY with its pages, and the target port groups.

use std::sync::Arc;

use strongroom_scsi::inquiry::{self, BlockLimits};
use strongroom_scsi::{alua, vendor};

use super::commands::{COMPARE_BYTES_MAX, WRITE_SAME_BYTES_MAX};
use super::environment::TargetEnvironment;
use super::image::{self, Pin};
use super::medium::Medium;
use crate::TRANSFER_BYTES_MAX;

/// The names of a unit.
pub(super) struct UnitIdentity {
    target_name: String,
    environment: Arc<TargetEnvironment>,
}

impl UnitIdentity {
    pub(super) fn new(target_name: String, environment: Arc<TargetEnvironment>) -> UnitIdentity {
        UnitIdentity { target_name, environment }
    }

    pub(super) fn environment(&self) -> &TargetEnvironment {
        &self.environment
    }

    /// REPORT TARGET PORT GROUPS.
    pub(super) fn port_groups(&self, extended: bool) -> Vec<u8> {
        alua::report(&self.environment.ports, extended)
    }

    /// INQUIRY; `None`: there is no such page. `port`: the one that is asked through.
    pub(super) fn inquiry(
        &self,
        vpd_page: Option<u8>,
        port: u16,
        medium: &Medium,
        pin: Option<Pin>,
    ) -> Option<Vec<u8>> {
        let (volume, is_thin) = (&medium.volume, medium.is_thin());
        let Some(page) = vpd_page else { return Some(inquiry::standard(!is_thin)) };
        let pages = self.vpd_pages(is_thin);
        if !pages.contains(&page) {
            return None;
        }
        Some(match page {
            inquiry::PAGE_SUPPORTED => inquiry::supported_pages(&pages),
            inquiry::PAGE_SERIAL => inquiry::serial(volume.id),
            inquiry::PAGE_IDENTIFICATION => inquiry::identification(volume.id, &self.target_name, port),
            inquiry::PAGE_MANAGEMENT => inquiry::management(self.environment.management_url.as_deref()?),
            inquiry::PAGE_BLOCK_LIMITS => block_limits(medium).encode(),
            inquiry::PAGE_EXTENDED => inquiry::extended(),
            inquiry::PAGE_MODE_POLICY => inquiry::mode_policy(),
            inquiry::PAGE_PORTS => inquiry::ports(&self.target_name, &self.environment.ports),
            inquiry::PAGE_CHARACTERISTICS => inquiry::characteristics(is_thin),
            inquiry::PAGE_PROVISIONING => inquiry::provisioning(volume.geometry.block_size),
            vendor::UNIT_PAGE => {
                let (incarnation, _) = medium.store.incarnation_and_image();
                volume.unit_page(incarnation, other_views(medium), image::number(pin, &medium.store)).encode()
            }
            _ => return None,
        })
    }

    /// The pages that there are, in ascending order.
    fn vpd_pages(&self, is_thin: bool) -> Vec<u8> {
        use inquiry::*;
        let mut pages = vec![PAGE_SUPPORTED, PAGE_SERIAL, PAGE_IDENTIFICATION];
        pages.extend(self.environment.management_url.is_some().then_some(PAGE_MANAGEMENT));
        pages.extend([PAGE_EXTENDED, PAGE_MODE_POLICY, PAGE_PORTS, PAGE_BLOCK_LIMITS, PAGE_CHARACTERISTICS]);
        pages.extend(is_thin.then_some(PAGE_PROVISIONING));
        pages.push(vendor::UNIT_PAGE);
        pages
    }
}

/// Snapshots and clones, which share the volume's blocks.
fn other_views(medium: &Medium) -> u16 {
    let views = medium.store.snapshots().len() + medium.store.branches().len().saturating_sub(1);
    u16::try_from(views).unwrap_or(u16::MAX)
}

fn block_limits(medium: &Medium) -> BlockLimits {
    let block_bytes = medium.volume.geometry.block_size.bytes();
    let common = BlockLimits {
        write_same_nonzero: true,
        granularity_blocks: (4096 / block_bytes).max(1) as u16,
        transfer_blocks_max: TRANSFER_BYTES_MAX / block_bytes,
        transfer_blocks_optimal: (1 << 20) / block_bytes,
        // The CDB's count has 16 bits.
        atomic_blocks_max: (TRANSFER_BYTES_MAX / block_bytes).min(u16::MAX.into()),
        ..BlockLimits::default()
    };
    if !medium.is_thin() {
        return common;
    }
    BlockLimits {
        compare_and_write_blocks: (COMPARE_BYTES_MAX / block_bytes).min(255) as u8,
        unmap_blocks_max: u32::MAX,
        unmap_descriptors_max: strongroom_scsi::provisioning::UNMAP_DESCRIPTORS_MAX,
        write_same_blocks_max: WRITE_SAME_BYTES_MAX / u64::from(block_bytes),
        ..common
    }
}
