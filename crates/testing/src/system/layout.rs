//! What both ends of the simulation know of the volume: its views, its blocks, and the names of its initiators.

use std::net::SocketAddr;

use strongroom_block::SealingDomain;
use strongroom_handshake::PublicKey;

/// The names of the volume and of its clone: the views that initiators use.
pub(super) const VIEWS: [&str; 2] = ["vault", "clone"];
/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 512;
/// The domain that blocks are sealed for.
pub(super) const DOMAIN: SealingDomain = SealingDomain([9; 16]);
/// Halves of a block: a write of a part of a block writes one of them.
pub(super) const HALVES: u64 = 2;

/// The iSCSI name of an initiator.
pub(super) fn initiator_name(number: u64) -> String {
    format!("iqn.2026-11.org.strongroom:simulation.{number}")
}

/// The ISID of an initiator's sessions.
pub(super) fn isid_of(number: u64) -> [u8; 6] {
    [0x80, 0, 0, 0, (number >> 8) as u8, number as u8]
}

/// Names the initiator of task management functions that concern everybody; it has no other part.
pub(super) const OPERATOR: u64 = 0;

/// The key of an initiator's node.
pub(super) fn node(number: u64) -> PublicKey {
    let mut bytes = [0; PublicKey::BYTES];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    PublicKey::from_bytes(bytes)
}

/// The target name of a view.
pub(super) fn target_name(view: &str) -> String {
    format!("iqn.2026-11.org.strongroom:{view}")
}

/// Where datagrams of an initiator come from.
pub(super) fn initiator_address(number: u64) -> SocketAddr {
    SocketAddr::from(([10, 0, (number >> 8) as u8, number as u8], 5000))
}

/// Where datagrams of the target come from.
pub(super) fn target_address() -> SocketAddr {
    SocketAddr::from(([10, 255, 0, 1], 3260))
}
