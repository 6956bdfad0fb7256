//! REPORT TARGET PORT GROUPS (SPC-4 §6.37): one group with every target port, always active and optimized.
//!
//! A target port is an iSCSI portal group (RFC 7143 §4.4.2); its tag is the relative target port identifier.

/// The target port group that every port is in.
pub const TARGET_PORT_GROUP: u16 = 1;
/// Upper bound on the ports of a target: the group counts them in one byte.
pub const PORTS_MAX: usize = 255;
/// Status code of a group whose state never changed: NO STATUS AVAILABLE.
const NO_STATUS: u8 = 0;
/// AO_SUP: active/optimized is the one state there is.
const ACTIVE_OPTIMIZED_SUPPORTED: u8 = 0x01;

/// The parameter data for the ports of a target, by relative target port identifier.
///
/// # Panics
/// With more than [`PORTS_MAX`] ports.
pub fn report(ports: &[u16], extended: bool) -> Vec<u8> {
    let count = u8::try_from(ports.len()).expect("at most PORTS_MAX ports");
    let [high, low] = TARGET_PORT_GROUP.to_be_bytes();
    // State 0 is active/optimized.
    let mut group = vec![0, ACTIVE_OPTIMIZED_SUPPORTED, high, low, 0, NO_STATUS, 0, count];
    group.extend(ports.iter().flat_map(|port| (u32::from(*port)).to_be_bytes()));
    let header: &[u8] = if extended { &[0x10, 0, 0, 0] } else { &[] };
    let len = (header.len() + group.len()) as u32;
    [&len.to_be_bytes(), header, &group].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(report(&[1], false), [0, 0, 0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(report(&[1], true)[..8], [0, 0, 0, 16, 0x10, 0, 0, 0]);
        assert_eq!(report(&[1], true).len(), 20);
        assert_eq!(report(&[1, 0x102], false)[8..], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 1, 2]);
    }
}
