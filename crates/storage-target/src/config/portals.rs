//! Portals and their groups (RFC 7143 §4.4.1): where a target listens, and under which tag. A group is a target port to SCSI; a session stays
//! within one.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Config, check_host_port};
use crate::error::ConfigError;

/// The tag of the group that `listen` and `advertise` at the top of the configuration are.
pub const FIRST_GROUP: u16 = 1;
/// Upper bound on portal groups.
const GROUPS_MAX: usize = 64;

/// A further portal group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortalGroupRule {
    /// Its tag, 2 to 65535; the relative target port identifier, too.
    pub tag: u16,
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// Addresses to tell in discovery, `host:port`; empty: those of `listen`.
    #[serde(default)]
    pub advertise: Vec<String>,
}

/// One address of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portal {
    pub(crate) address: SocketAddr,
    /// The tag of its group.
    pub(crate) group: u16,
}

impl Config {
    /// Where to listen, the first group first.
    pub(crate) fn portals(&self) -> Vec<Portal> {
        let first = self.listen.iter().map(|address| Portal { address: *address, group: FIRST_GROUP });
        let of = |rule: &PortalGroupRule| {
            let group = rule.tag;
            rule.listen.iter().map(move |address| Portal { address: *address, group }).collect::<Vec<_>>()
        };
        first.chain(self.portal_groups.iter().flat_map(of)).collect()
    }

    /// The tags of the portal groups.
    pub(crate) fn group_tags(&self) -> Vec<u16> {
        std::iter::once(FIRST_GROUP).chain(self.portal_groups.iter().map(|rule| rule.tag)).collect()
    }

    pub(super) fn check_portals(&self) -> Result<(), ConfigError> {
        let at = |index: usize, field: &str| format!("portal_group[{index}].{field}");
        if self.portal_groups.len() >= GROUPS_MAX {
            return Err(ConfigError::value(
                "portal_group",
                format!("has too many entries; there can be {GROUPS_MAX} groups"),
            ));
        }
        for (index, rule) in self.portal_groups.iter().enumerate() {
            if rule.tag <= FIRST_GROUP {
                let problem = "must be 2 to 65535; group 1 is `listen` at the top";
                return Err(ConfigError::value(at(index, "tag"), problem));
            }
            if self.portal_groups[..index].iter().any(|other| other.tag == rule.tag) {
                return Err(ConfigError::value(
                    at(index, "tag"),
                    "another [[portal_group]] has the same tag; merge the two",
                ));
            }
            if rule.listen.is_empty() {
                return Err(ConfigError::value(
                    at(index, "listen"),
                    "is empty; give an address, for instance \"[::]:3261\"",
                ));
            }
            for address in &rule.advertise {
                check_host_port(address)
                    .map_err(|problem| ConfigError::value(at(index, "advertise"), problem.to_string()))?;
            }
        }
        Ok(())
    }

    /// What to tell an initiator that asks where this target is: TargetAddress values, `host:port,tag` (RFC 7143 §13.8). `portals`: ours with their
    /// true ports; `reached`: the one it came by; `here`: our address on the way to it.
    pub(crate) fn target_addresses(
        &self,
        portals: &[Portal],
        reached: &Portal,
        here: IpAddr,
        from: IpAddr,
    ) -> Vec<String> {
        let advertised = |group: u16| match self.portal_groups.iter().find(|rule| rule.tag == group) {
            Some(rule) => &rule.advertise,
            None => &self.advertise,
        };
        let mut told = Vec::new();
        let mut tell = |address: &str, group: u16| {
            let line = format!("{address},{group}");
            if !told.contains(&line) {
                told.push(line);
            }
        };
        // The way that is known to work comes first.
        let first = [Portal { address: SocketAddr::new(here, reached.address.port()), group: reached.group }];
        for portal in first.iter().chain(portals) {
            let configured = advertised(portal.group);
            configured.iter().for_each(|address| tell(address, portal.group));
            let (ip, port) = (portal.address.ip(), portal.address.port());
            if !configured.is_empty() || ip.is_loopback() && !from.is_loopback() {
                continue;
            }
            match ip.is_unspecified() {
                false => tell(&portal.address.to_string(), portal.group),
                // Every address of ours of that kind: we know the one on the way to this initiator.
                true if ip.is_ipv4() == here.is_ipv4() => tell(&SocketAddr::new(here, port).to_string(), portal.group),
                true => {}
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!("root = '/srv'\nlisten = ['0.0.0.0:3260']\n{more}"))
    }

    #[test]
    fn mistakes_say_where() {
        let cases = [
            ("[[portal_group]]\ntag = 1\nlisten = ['[::]:1']", "portal_group[0].tag"),
            ("[[portal_group]]\ntag = 2\nlisten = []", "portal_group[0].listen"),
            ("[[portal_group]]\ntag = 2\nlisten = ['[::]:1']\nadvertise = ['x']", "portal_group[0].advertise"),
            (
                "[[portal_group]]\ntag = 2\nlisten = ['[::]:1']\n[[portal_group]]\ntag = 2\nlisten = ['[::]:2']",
                "portal_group[1].tag",
            ),
        ];
        for (text, place) in cases {
            let message = config(text).unwrap_err().to_string();
            assert!(message.contains(place), "{text:?}: {message}");
        }
    }

    #[test]
    fn an_initiator_is_told_every_way_that_it_can_use() {
        let mut config =
            config("[[portal_group]]\ntag = 7\nlisten = ['[::]:3261', '192.0.2.9:3262', '127.0.0.1:3263']").unwrap();
        let portals = config.portals();
        assert_eq!(config.group_tags(), [1, 7]);
        let (v4, v6): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        let ask =
            |config: &Config, reached: usize, here| config.target_addresses(&portals, &portals[reached], here, here);
        assert_eq!(ask(&config, 0, v4), ["192.0.2.1:3260,1", "192.0.2.9:3262,7"]);
        assert_eq!(ask(&config, 1, v6), ["[2001:db8::1]:3261,7", "192.0.2.9:3262,7"]);
        let lo: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(ask(&config, 3, lo), ["127.0.0.1:3263,7", "127.0.0.1:3260,1", "192.0.2.9:3262,7"]);
        config.advertise = vec!["one.example:3260".into()];
        assert_eq!(ask(&config, 1, v6), ["[2001:db8::1]:3261,7", "one.example:3260,1", "192.0.2.9:3262,7"]);
    }
}
