//! SCSI: command descriptor blocks, sense, pages, unit attentions, reservations, the name of a nexus, and what a transport carries.
//!
//! Both sides live here: what a target decodes and answers, and what an initiator builds and parses. Deliberately
//! absent: iSCSI and its header segments, sockets, clocks, and what is done with blocks. [`transport`] is the interface that a transport implements.
//! Commands that SCSI does not have are in [`vendor`]; `docs/vendor-cdbs.md` is their specification.

pub mod alua;
pub mod attention;
mod bytes;
pub mod capacity;
pub mod cdb;
mod command;
pub mod copy;
mod data_direction;
pub mod defects;
pub mod inquiry;
pub mod log;
pub mod luns;
pub mod mode;
pub mod nexus;
pub mod opcode;
pub mod persistent;
pub mod provisioning;
pub mod reservation;
pub mod sense;
pub mod supported;
pub mod transport;
pub mod vendor;

pub use attention::{UnitAttention, UnitAttentions};
pub use command::{CdbError, Command};
pub use data_direction::DataDirection;
pub use nexus::NexusId;
pub use sense::{Sense, SenseKey, Status};
pub use supported::UnitKind;
pub use vendor::VendorCommand;

/// Decodes everything this room can decode; nothing outside bytes may make it panic. For fuzz targets.
#[doc(hidden)]
pub fn fuzz_decode(bytes: &[u8]) {
    if let Ok(command) = Command::decode(bytes) {
        let _ = command.direction(strongroom_block::BlockSize::DEFAULT);
        let _ = UnitKind::Plain.supports(&command);
        let _ = UnitKind::Sealed.supports(&command);
        let _ = UnitKind::SealedWithKeys.supports(&command);
        let _ = UnitKind::SealedWithKeyServer.supports(&command);
    }
    let _ = Sense::parse(bytes);
    let _ = inquiry::StandardInquiry::parse(bytes);
    let _ = inquiry::parse_vpd_pages(bytes);
    let _ = inquiry::parse_serial(bytes);
    let _ = inquiry::BlockLimits::parse(bytes);
    let _ = vendor::UnitPage::parse(bytes);
    let _ = vendor::decode_attach_id(bytes);
    let _ = vendor::lease::Claim::parse(bytes);
    let _ = vendor::lease::parse_writers(bytes);
    let _ = capacity::ReadCapacity16::parse(bytes);
    let _ = capacity::parse_read_capacity_10(bytes);
    let _ = luns::parse(bytes);
    let _ = mode::ModePages::parse_6(bytes);
    let _ = persistent::parameters::parse_full_status(bytes);
    let nexus = NexusId { initiator_name: "iqn.a".into(), isid: [0; 6], target_portal_group: 1 };
    for service_action in 0..8 {
        let _ = persistent::PersistentReservations::default().change(&nexus, service_action, 1, bytes);
    }
    let _ = copy::CopyList::parse(bytes, |_, _, _| Some(()));
    for ten in [false, true] {
        let geometry = strongroom_block::Geometry { block_size: strongroom_block::BlockSize::DEFAULT, blocks: 9 };
        let _ = mode::ModeState::default().select(ten, bytes, geometry);
    }
    let _ = provisioning::parse_unmap(bytes);
    let _ = provisioning::parse_lba_status(bytes);
    let _ = supported::decode_list(bytes);
    for record_bytes in [56, 88] {
        let _ = vendor::decode_holes(bytes, record_bytes);
    }
    let _ = vendor::decode_verified(bytes);
}
