//! What a login settles for both ends of an association, and how each end behaves.

use std::net::SocketAddr;

use strongroom_block::Custody;

use crate::congestion::CongestionAlgorithm;
use crate::keys::{EclKeys, RekeyLimits};
use crate::parity::Parity;
use crate::planted::Planted;

/// Longest quantum, in bytes. A volume with longer blocks is served by iSCSI alone.
pub const QUANTUM_BYTES_MAX: u32 = 4096;
/// Shortest quantum, in bytes.
pub const QUANTUM_BYTES_MIN: u32 = 512;

/// A volume that ECL cannot carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCarried {
    /// Its blocks are longer than a quantum can be.
    #[error(
        "the volume has blocks of {0} bytes, and a quantum of ECL has 512, 1024, 2048 or 4096: use a strongroom:// URL (iSCSI) for it, or \
         copy it to a volume with --block-size 4096"
    )]
    BlockBytes(u32),
    /// It is not sealed.
    #[error("the volume is plain, and ECL carries sealed volumes only: use an iscsi:// URL for it")]
    Plain,
}

/// Whether ECL carries a volume with blocks of `block_bytes`; `custody`: who holds its keys, if it is sealed.
///
/// # Errors
/// [`NotCarried`], which says what to do instead.
pub fn check_volume(block_bytes: u32, custody: Option<Custody>) -> Result<(), NotCarried> {
    if custody.is_none() {
        return Err(NotCarried::Plain);
    }
    let is_carried = (QUANTUM_BYTES_MIN..=QUANTUM_BYTES_MAX).contains(&block_bytes) && block_bytes.is_power_of_two();
    if is_carried { Ok(()) } else { Err(NotCarried::BlockBytes(block_bytes)) }
}

/// One end of an association, as its login has settled it.
#[derive(Debug)]
pub struct Config {
    /// From the login's handshake.
    pub keys: EclKeys,
    /// The number that the target gave the association. Its port has no other with the same.
    pub connection_id: u32,
    /// The target's address, or where the initiator's TCP connection comes from. A target learns the port of the initiator's UDP socket
    /// from the first authentic packet.
    pub peer: SocketAddr,
    /// Bytes in a block of the volume: 512 to 4096.
    pub quantum_bytes: u32,
    /// Bytes of write data that the target takes before it has answered.
    pub window_bytes: u64,
    /// Longest write of one command, in bytes.
    pub transfer_bytes_max: u32,
    /// Commands that may be outstanding.
    pub queue_depth: u16,
    /// Seal records hold block keys (custody `target`): memory that they were in is wiped.
    pub holds_keys: bool,
    /// A stream (TCP) carries the packets: it takes any size, so there is no MTU to discover, and it controls congestion.
    pub is_stream: bool,
    /// Parity behind the quanta of transfers, both ways, if the login has settled it.
    pub parity: Option<Parity>,
    /// How much this end sends at once.
    pub congestion: CongestionAlgorithm,
    /// Spreads what should not happen at the same time everywhere.
    pub seed: u64,
    /// When this end changes its keys.
    pub rekey: RekeyLimits,
    /// None, but in a simulation.
    pub planted: Planted,
}

impl Config {
    /// Defaults for all but what a login says.
    pub fn new(keys: EclKeys, connection_id: u32, peer: SocketAddr, quantum_bytes: u32) -> Config {
        Config {
            keys,
            connection_id,
            peer,
            quantum_bytes,
            window_bytes: 64 << 20,
            transfer_bytes_max: 32 << 20,
            queue_depth: crate::tag::SINKS_MAX as u16,
            holds_keys: false,
            is_stream: false,
            parity: None,
            congestion: CongestionAlgorithm::default(),
            seed: u64::from(connection_id),
            rekey: RekeyLimits::default(),
            planted: Planted::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_that_ecl_does_not_carry_are_refused_with_advice() {
        for block_bytes in [512, 1024, 2048, 4096] {
            assert_eq!(check_volume(block_bytes, Some(Custody::KeyFile)), Ok(()));
        }
        let long = check_volume(8192, Some(Custody::Target)).expect_err("too long").to_string();
        assert!(long.contains("8192") && long.contains("strongroom://"), "{long}");
        let plain = check_volume(512, None).expect_err("plain").to_string();
        assert!(plain.contains("plain") && plain.contains("iscsi://"), "{plain}");
    }
}
