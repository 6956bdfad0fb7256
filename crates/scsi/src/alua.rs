//! REPORT TARGET PORT GROUPS (SPC-4 §6.37): one group with one port, always active and optimized.

/// Status code of a group whose state never changed: NO STATUS AVAILABLE.
const NO_STATUS: u8 = 0;
/// AO_SUP: active/optimized is the one state there is.
const ACTIVE_OPTIMIZED_SUPPORTED: u8 = 0x01;

/// The parameter data for portal group `portal_group`, which is the target port group too.
pub fn report(portal_group: u16, extended: bool) -> Vec<u8> {
    let [high, low] = portal_group.to_be_bytes();
    // State 0 is active/optimized; one port, with relative identifier 1 as in page 83h.
    let group = [0, ACTIVE_OPTIMIZED_SUPPORTED, high, low, 0, NO_STATUS, 0, 1, 0, 0, high, low];
    let header: &[u8] = if extended { &[0x10, 0, 0, 0] } else { &[] };
    let len = (header.len() + group.len()) as u32;
    [&len.to_be_bytes(), header, &group].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(report(1, false), [0, 0, 0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(report(1, true)[..8], [0, 0, 0, 16, 0x10, 0, 0, 0]);
        assert_eq!(report(1, true).len(), 20);
    }
}
