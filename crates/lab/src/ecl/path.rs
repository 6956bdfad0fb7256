//! The path between both ends: a cable between two network namespaces, or the emulated link, where packets are late or lost.

use std::net::IpAddr;
use std::time::Duration;

use strongroom_wan::{Congestion, End, Lab, LabError, Loss, Profile};

use crate::cell::LinkConditions;
use crate::namespaces::{Namespaces, TARGET};
use crate::{BenchError, Hosts};

/// What a path is like.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PathConditions {
    /// Lossless, and as fast as both ends.
    Cable { mtu: u32, has_offloads: bool },
    /// An emulated link, with BBR as TCP's congestion control, which ECL has as well.
    Link { delay: Duration, loss: Loss, rate_bits_per_s: Option<u64>, mtu: u16 },
}

impl PathConditions {
    /// A cable with jumbo frames, on which trains of packets cross as one.
    pub(super) const USUAL: PathConditions = PathConditions::Cable { mtu: 9000, has_offloads: true };

    fn profile(&self) -> Option<Profile> {
        match *self {
            PathConditions::Cable { .. } => None,
            PathConditions::Link { delay, loss, rate_bits_per_s, mtu } => {
                Some(Profile { delay, loss, rate_bits_per_s, mtu, congestion: Congestion::Bbr, ..Profile::default() })
            }
        }
    }

    /// As a cell has it.
    pub(super) fn describe(&self) -> LinkConditions {
        match *self {
            PathConditions::Cable { mtu, has_offloads } => {
                LinkConditions { mtu: Some(mtu), offloads: Some(has_offloads), ..LinkConditions::default() }
            }
            PathConditions::Link { delay, loss, rate_bits_per_s, mtu } => {
                let (share, bursts) = match loss {
                    Loss::None => (0.0, String::new()),
                    Loss::Random(share) => (share, String::new()),
                    Loss::Bursts { share, length } => (share, format!(", in bursts of {length} packets")),
                };
                let rate =
                    rate_bits_per_s.map_or("unlimited".to_owned(), |rate| format!("{} Mbit/s", rate / 1_000_000));
                LinkConditions {
                    delay_ms: Some(delay.as_secs_f64() * 1e3),
                    description: format!("{rate}, MTU {mtu}, BBR, {:.1} % lost{bursts}", share * 100.0),
                    mtu: Some(mtu.into()),
                    loss_percent: Some((f64::from(share) * 1e5).round() / 1e3),
                    ..LinkConditions::default()
                }
            }
        }
    }
}

/// A path that is there. Removed when dropped.
#[derive(Debug)]
pub(super) enum NetworkPath {
    Cable(Namespaces),
    Link(Lab),
}

impl NetworkPath {
    /// Makes namespaces and what is between them.
    ///
    /// # Errors
    /// Without root, or where the kernel cannot.
    pub(super) fn open(conditions: &PathConditions) -> Result<NetworkPath, BenchError> {
        match (conditions, conditions.profile()) {
            (_, Some(profile)) => Lab::new(&profile).map(NetworkPath::Link).map_err(refused),
            (PathConditions::Cable { mtu, .. }, _) => Namespaces::new(*mtu).map(NetworkPath::Cable),
            (PathConditions::Link { .. }, None) => unreachable!("a link has a profile"),
        }
    }

    /// From now on it is like that. A link keeps its MTU and its congestion control, and no path becomes one of the other kind.
    ///
    /// # Errors
    /// If a device or the link refuses.
    pub(super) fn change(&self, conditions: &PathConditions) -> Result<(), BenchError> {
        match (self, conditions) {
            (NetworkPath::Cable(namespaces), PathConditions::Cable { mtu, has_offloads }) => {
                namespaces.set_mtu(*mtu)?;
                namespaces.set_offloads(*has_offloads)
            }
            (NetworkPath::Link(lab), PathConditions::Link { .. }) => {
                lab.change(&conditions.profile().expect("a link has a profile")).map_err(refused)
            }
            _ => Err(BenchError::Asked("a series is over cables or over links, not over both".into())),
        }
    }

    /// Where both ends are.
    pub(super) fn hosts(&self) -> Hosts {
        let (target, address, initiators) = match self {
            NetworkPath::Cable(namespaces) => (namespaces.target(), TARGET, namespaces.initiator()),
            NetworkPath::Link(lab) => (lab.namespace(End::Far), End::Far.address(), lab.namespace(End::Near)),
        };
        Hosts { target: Some((target, IpAddr::V4(address))), initiators: Some(initiators) }
    }
}

fn refused(error: LabError) -> BenchError {
    BenchError::Asked(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_told() {
        let usual = PathConditions::USUAL.describe();
        assert_eq!((usual.mtu, usual.offloads, usual.loss_percent), (Some(9000), Some(true), None));
        let lossy = PathConditions::Link {
            delay: Duration::from_micros(500),
            loss: Loss::Bursts { share: 0.01, length: 5.0 },
            rate_bits_per_s: Some(100_000_000),
            mtu: 9000,
        };
        let told = lossy.describe();
        assert_eq!((told.delay_ms, told.loss_percent), (Some(0.5), Some(1.0)));
        assert!(told.description.contains("100 Mbit/s") && told.description.contains("bursts of 5"), "{told:?}");
        lossy.profile().unwrap().check().unwrap();
    }
}
