//! Which addresses a rule is about: single ones and whole networks, of both families.

use std::net::IpAddr;
use std::str::FromStr;

/// An address, or all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    bits: u128,
    prefix: u32,
    is_v4: bool,
}

impl Network {
    /// Whether `address` is in it. An IPv4 address that came in IPv6's clothes is one of IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (bits, is_v4) = bits_of(address.to_canonical());
        let width = if is_v4 { 32 } else { 128 };
        let differing = self.bits ^ bits;
        is_v4 == self.is_v4 && (self.prefix == 0 || differing >> (width - self.prefix) == 0)
    }
}

fn bits_of(address: IpAddr) -> (u128, bool) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), true),
        IpAddr::V6(address) => (address.to_bits(), false),
    }
}

/// What is neither an address nor a network.
#[derive(Debug, thiserror::Error)]
#[error("'{text}' is no address; write for instance \"192.0.2.7\", \"192.0.2.0/24\" or \"2001:db8::/32\"")]
pub struct NetworkError {
    text: String,
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = || NetworkError { text: crate::names::for_log(text) };
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let (bits, is_v4) = bits_of(address.parse::<IpAddr>().map_err(|_| wrong())?.to_canonical());
        let width = if is_v4 { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(width), str::parse).ok().filter(|prefix| *prefix <= width).ok_or_else(wrong)?;
        Ok(Network { bits, prefix, is_v4 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_what_they_say() {
        let holds =
            |network: &str, address: &str| network.parse::<Network>().unwrap().contains(address.parse().unwrap());
        assert!(holds("192.0.2.7", "192.0.2.7") && !holds("192.0.2.7", "192.0.2.8"));
        assert!(holds("192.0.2.0/24", "192.0.2.255") && !holds("192.0.2.0/24", "192.0.3.0"));
        assert!(holds("192.0.2.77/24", "192.0.2.1"), "bits behind the prefix do not count");
        assert!(holds("0.0.0.0/0", "203.0.113.1") && !holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("::/0", "2001:db8::1") && !holds("::/0", "192.0.2.1"));
        assert!(holds("2001:db8::/33", "2001:db8:7fff::1") && !holds("2001:db8::/33", "2001:db8:8000::1"));
        assert!(holds("192.0.2.0/24", "::ffff:192.0.2.9"), "a listener on [::] sees it so");
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "host", "192.0.2.0/33", "192.0.2/24", "::/129", "192.0.2.0/-1", "192.0.2.0/", "*"] {
            assert!(text.parse::<Network>().unwrap_err().to_string().contains("192.0.2.0/24"), "{text}");
        }
    }
}
