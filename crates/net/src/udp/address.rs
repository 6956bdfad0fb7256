//! Socket addresses as the kernel has them. No library gives them for a call with control messages of our own.

#![allow(unsafe_code)] // The kernel's structures.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address in the kernel's form.
#[derive(Clone, Copy)]
pub(super) union RawAddress {
    storage: libc::sockaddr_storage,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    /// Room for one that the kernel fills in.
    pub(super) fn empty() -> RawAddress {
        // SAFETY: all zeros are a valid value of each member, of no address family.
        RawAddress { storage: unsafe { std::mem::zeroed() } }
    }

    pub(super) fn new(address: SocketAddr) -> RawAddress {
        let mut raw = RawAddress::empty();
        match address {
            SocketAddr::V4(address) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(address) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
            }
        }
        raw
    }

    /// Bytes of the address, whichever it is.
    pub(super) const BYTES: libc::socklen_t = size_of::<RawAddress>() as libc::socklen_t;

    pub(super) fn len_bytes(&self) -> libc::socklen_t {
        // SAFETY: every member begins with the family, and all of them are plain bytes that were initialised.
        match i32::from(unsafe { self.storage }.ss_family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>() as libc::socklen_t,
            _ => size_of::<libc::sockaddr_in6>() as libc::socklen_t,
        }
    }

    pub(super) fn decode(&self) -> Option<SocketAddr> {
        // SAFETY: as in `len_bytes`.
        match i32::from(unsafe { self.storage }.ss_family) {
            libc::AF_INET => {
                // SAFETY: as in `len_bytes`.
                let v4 = unsafe { self.v4 };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as in `len_bytes`.
                let v6 = unsafe { self.v6 };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive() {
        for text in ["127.0.0.1:3260", "[::1]:1", "[fe80::2%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::new(address).decode(), Some(address));
        }
        assert_eq!(RawAddress::empty().decode(), None);
    }
}
