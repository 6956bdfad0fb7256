//! What the initiators of a run have in common, drawn from its seed.

use strongroom_ecl::Parity;
use strongroom_initiator::Scheme;

use super::association::AssociationSetup;
use super::client::Setup;
use super::keys::KeyServer;
use super::layout::BLOCK_BYTES;
use super::leases::LeaseUse;
use super::profile::{Planted, Profile, Transport};
use crate::Random;

/// How the initiators of a run use writer leases: one in four histories of a profile that is not about them claims none.
fn choose_lease_use(random: &mut Random, profile: Profile) -> LeaseUse {
    match profile {
        Profile::Leases => LeaseUse::Exclusive,
        _ if random.once_in(4) => LeaseUse::Unclaimed,
        _ => LeaseUse::Shared,
    }
}

/// What the initiators of a run have in common.
pub(super) fn choose_setup(
    random: &mut Random,
    (profile, transport): (Profile, Transport),
    planted: Planted,
    blocks: u64,
    key_server: KeyServer,
) -> Setup {
    let schemes: &[Scheme] = match transport {
        Transport::Iscsi => Scheme::ALL,
        Transport::Ecl => &[Scheme::LazyAuth, Scheme::Lazy],
    };
    let scheme = schemes[random.below(schemes.len() as u64) as usize];
    let flushes = match profile {
        Profile::Flushes | Profile::ReplayedHalves => 4,
        _ => 1 + random.below(6),
    };
    let halves = match profile {
        Profile::Halves | Profile::ReplayedHalves => true,
        Profile::Everything | Profile::OneInitiator => random.once_in(4),
        _ => false,
    };
    let lease_use = choose_lease_use(&mut random.fork(), profile);
    Setup {
        transport,
        associations: choose_associations(random, (profile, transport), scheme, planted),
        scheme,
        flushes,
        halves,
        late_flush_marks: planted.late_flush_marks,
        forgets_operations: planted.forgets_operations,
        key_server,
        lease_use,
        blocks,
    }
}

/// Few credits, or more than are ever used; keys that change often, or never; parity, or none.
fn choose_associations(
    random: &mut Random,
    (profile, transport): (Profile, Transport),
    scheme: Scheme,
    planted: Planted,
) -> AssociationSetup {
    let (mut window_bytes, mut rekey_packets, mut parity) = (1 << 20, 1 << 20, None);
    if transport == Transport::Ecl {
        window_bytes = [8 * BLOCK_BYTES as u64, 1 << 20][random.below(2) as usize];
        rekey_packets = [50, 1 << 20][random.below(2) as usize];
        // Requests are of a few blocks.
        parity = [None, Parity::new(2, 1), Parity::new(4, 2)][random.below(3) as usize];
    }
    if profile == Profile::Replays {
        // Packets under older keys are not authentic any more: the window has nothing to keep out.
        rekey_packets = 1 << 20;
    }
    AssociationSetup { scheme, window_bytes, rekey_packets, parity, planted: planted.ecl }
}
