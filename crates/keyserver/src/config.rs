//! The configuration of a key server: one TOML file, everything in it checked before anything starts.
//!
//! Reading files (identity, master key) is the binary's: this room gets paths and hands them on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_handshake::PublicKey;
use strongroom_metrics::MetricsAddress;

/// What a key server needs to know to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The directory of the database.
    pub directory: PathBuf,
    /// Where to listen.
    #[serde(default = "listen_default")]
    pub listen: Vec<SocketAddr>,
    /// File with this server's identity, unless the command line names it.
    #[serde(default)]
    pub node_key: Option<PathBuf>,
    /// File with the master key; without it the systemd credential `master-key`.
    #[serde(default)]
    pub master_key: Option<PathBuf>,
    /// How long initiators may go on with their keys while they cannot reach a key server, in seconds.
    #[serde(default = "lease_default")]
    pub lease_s: u32,
    /// How much longer than a lease an old epoch is taken to be written under: for clocks that differ and for what is under way, in
    /// seconds.
    #[serde(default = "margin_default")]
    pub lease_margin_s: u32,
    /// A file for the metrics, in the text format of Prometheus, rewritten every few seconds.
    #[serde(default)]
    pub metrics_file: Option<PathBuf>,
    /// Where to answer those who collect metrics; without it nobody is.
    #[serde(default)]
    pub metrics: Option<MetricsAddress>,
    /// The primary that this server follows, `host:port`; without it, it is one itself.
    #[serde(default)]
    pub standby_of: Option<String>,
    /// The primary's public line, with `standby_of`.
    #[serde(default)]
    pub primary_key: Option<String>,
    /// Whether a change is done only when a standby has it too.
    #[serde(default)]
    pub standby_required: bool,
    /// Bounds on what clients can take.
    #[serde(default)]
    pub limits: Limits,
    /// Who has a role in this server. Who may have a volume's keys is decided volume by volume, by those who administer it.
    #[serde(default, rename = "identity")]
    pub identities: Vec<IdentityRule>,
}

/// An identity with a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityRule {
    /// For people.
    pub name: String,
    /// As `strongroom identity show` prints it.
    pub key: String,
    /// What it may do.
    pub roles: Vec<ServerRole>,
}

/// What an identity may do with the server itself; none of them opens a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerRole {
    /// Make volumes; list all of them; read the audit log; back up; promote.
    Administrator,
    /// Make volumes, which it then administers.
    Creator,
    /// Follow this server: gets everything that is stored, and can take its place.
    Standby,
}

/// The roles of one identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) administer: bool,
    pub(crate) create: bool,
    pub(crate) standby: bool,
}

/// Bounds on what clients can take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections at most; at most half of them may be in the middle of their handshake.
    pub connections_max: usize,
    /// Volumes at most.
    pub volumes_max: usize,
    /// Connections of one identity at most.
    pub connections_per_identity: usize,
    /// From a connection's first byte to the end of its handshake, and for one message once it has begun, in seconds.
    pub setup_timeout_s: u64,
    /// A connection that asks nothing ends after this many seconds.
    pub idle_timeout_s: u64,
    /// Requests a second of one identity, on average over ten seconds; more are made to wait.
    pub requests_per_second: u32,
    /// Refused requests of one identity in a minute, before its connections are ended and its further refusals counted only.
    pub refusals_per_minute: u32,
    /// The same line by the same identity is written into the audit log once in this many seconds, and counted; 0: each time.
    pub repeated_lines_s: u64,
    /// How long a change waits for a required standby, in seconds.
    pub standby_timeout_s: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 1024,
            volumes_max: 100_000,
            connections_per_identity: 256,
            setup_timeout_s: 10,
            idle_timeout_s: 300,
            requests_per_second: 500,
            refusals_per_minute: 20,
            repeated_lines_s: 60,
            standby_timeout_s: 10,
        }
    }
}

fn listen_default() -> Vec<SocketAddr> {
    vec![SocketAddr::from(([0, 0, 0, 0], crate::DEFAULT_PORT))]
}

fn margin_default() -> u32 {
    300
}

fn lease_default() -> u32 {
    8 * 3600
}

/// What is wrong with a configuration, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, or no such setting.
    #[error("{0}")]
    Toml(String),
    /// A setting has a value that it cannot have.
    #[error("{0}")]
    Value(String),
}

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError::Toml(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(ConfigError::Value(text));
        if self.listen.is_empty() {
            return wrong(format!("listen names no address; write listen = [\"0.0.0.0:{}\"]", crate::DEFAULT_PORT));
        }
        if self.lease_s == 0 || self.lease_s > 30 * 24 * 3600 {
            return wrong("lease_s is from 1 to 2592000 (30 days); write lease_s = 28800".into());
        }
        let limits = &self.limits;
        let longest =
            [limits.setup_timeout_s, limits.idle_timeout_s, limits.standby_timeout_s, limits.repeated_lines_s];
        if longest.iter().any(|seconds| *seconds > 24 * 3600) || self.lease_margin_s > 24 * 3600 {
            return wrong("no time among the limits, nor lease_margin_s, is longer than a day (86400)".into());
        }
        if limits.requests_per_second > 1_000_000 {
            return wrong("requests_per_second is at most 1000000".into());
        }
        let positive = limits.connections_max > 1
            && limits.connections_per_identity > 0
            && limits.setup_timeout_s > 0
            && limits.idle_timeout_s > 0
            && limits.requests_per_second > 0
            && limits.refusals_per_minute > 0
            && limits.standby_timeout_s > 0;
        if !positive {
            return wrong(
                "every limit is at least 1, and connections_max at least 2; leave out those that you do not need"
                    .into(),
            );
        }
        if self.standby_of.is_some() != self.primary_key.is_some() {
            return wrong(
                "standby_of and primary_key go together: give the primary's address and its public line".into(),
            );
        }
        self.roles()?;
        self.primary()?;
        Ok(())
    }

    /// The roles of each identity that has any.
    ///
    /// # Errors
    /// If a key is not one.
    pub(crate) fn roles(&self) -> Result<BTreeMap<PublicKey, Roles>, ConfigError> {
        let mut all: BTreeMap<PublicKey, Roles> = BTreeMap::new();
        for rule in &self.identities {
            let key: PublicKey =
                rule.key.parse().map_err(|error| ConfigError::Value(format!("identity {}: {error}", rule.name)))?;
            let roles = all.entry(key).or_default();
            for role in &rule.roles {
                match role {
                    ServerRole::Administrator => (roles.administer, roles.create) = (true, true),
                    ServerRole::Creator => roles.create = true,
                    ServerRole::Standby => roles.standby = true,
                }
            }
        }
        Ok(all)
    }

    /// The primary's key, for a standby.
    pub(crate) fn primary(&self) -> Result<Option<PublicKey>, ConfigError> {
        let key = self.primary_key.as_deref().map(str::parse::<PublicKey>).transpose();
        key.map_err(|error| ConfigError::Value(format!("primary_key: {error}")))
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_s.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_with_what_to_write() {
        let parse = |more: &str| Config::parse(&format!("directory = \"d\"\nnode_key = \"k\"\n{more}"));
        assert!(parse("").is_ok());
        for (more, part) in [
            ("lease_s = 0", "lease_s = 28800"),
            ("listen = []", "3261"),
            ("standby_of = \"a\"", "primary_key"),
            ("[limits]\nidle_timeout_s = 18446744073709551615", "86400"),
            ("[limits]\nconnections_max = 1", "at least"),
            ("[[identity]]\nname = \"a\"\nkey = \"x\"\nroles = []", "identity a"),
            ("metrics = \"0.0.0.0:9464\"", "127.0.0.1:9464"),
            ("unknown = 1", "unknown"),
        ] {
            let error = parse(more).unwrap_err().to_string();
            assert!(error.contains(part), "{more}: {error}");
        }
    }
}
