//! How to reach key servers: the arguments that every command shares which may call one. Absent: what they are asked.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use strongroom_handshake::PublicKey;
use strongroom_keyserver::{Client, ClientOptions, DEFAULT_PORT};

use crate::command_line::option;
use crate::keys::{self, KEYS, parse_public_key};
use crate::units::parse_duration;

/// Where the keys are.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = KEYS)]
pub(crate) struct KeyServerArgs {
    /// The key server, for volumes of custody `keyserver`; can be repeated: the primary first, then its standby.
    #[arg(
        long = "key-server",
        value_name = "HOST[:PORT]",
        env = "STRONGROOM_KEY_SERVER",
        value_delimiter = ',',
        value_parser = parse_server
    )]
    pub(crate) key_servers: Vec<String>,
    /// The key server's public line, as `strongroom identity show` prints it there; can be repeated [default: the lines of known
    /// targets with its HOST:PORT].
    #[arg(long = "key-server-key", value_name = "KEY", value_parser = parse_public_key)]
    pub(crate) key_server_keys: Vec<PublicKey>,
    /// The file with the identity to ask key servers as, if not this node's: one that several nodes share.
    #[arg(long = "key-server-identity", value_name = "FILE")]
    pub(crate) key_server_identity: Option<PathBuf>,
    /// How long to wait for a key server's answer.
    #[arg(long = "key-server-timeout", value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub(crate) key_server_timeout: Duration,
}

/// `HOST`, `HOST:PORT`, or either behind `keyserver://`.
fn parse_server(text: &str) -> Result<String, String> {
    let server = text.strip_prefix("keyserver://").unwrap_or(text).trim_end_matches('/');
    if server.is_empty() || server.contains(['/', ' ', '@']) {
        return Err("a key server is HOST, HOST:PORT or keyserver://HOST:PORT".into());
    }
    Ok(server.to_owned())
}

impl KeyServerArgs {
    /// Whether any key server was named.
    pub(crate) fn is_given(&self) -> bool {
        !self.key_servers.is_empty()
    }

    /// The options that say the same, without an identity.
    pub(crate) fn to_options(&self) -> Vec<OsString> {
        let servers = self.key_servers.iter().map(|server| option("key-server", server));
        servers.chain(self.key_server_keys.iter().map(|key| option("key-server-key", key.to_string()))).collect()
    }

    /// A client that calls as the identity in this file [default: ~/.config/strongroom/identity].
    ///
    /// # Errors
    /// If no server was named, or its key or our identity is not known.
    pub(crate) fn client(&self, identity: Option<&Path>, known: Option<&Path>) -> Result<Client> {
        if !self.is_given() {
            bail!("no key server was named; give one with --key-server HOST, or set STRONGROOM_KEY_SERVER");
        }
        let identity = self.key_server_identity.as_deref().or(identity);
        let identity = identity.map_or_else(keys::default_identity, PathBuf::from);
        let node_key = Arc::new(keys::read_identity(&identity)?);
        let mut server_keys = self.key_server_keys.clone();
        if server_keys.is_empty() {
            let known = known.map_or_else(keys::default_known_targets, PathBuf::from);
            for server in &self.key_servers {
                let (host, port) = host_and_port(server);
                let found = keys::known_keys(&known, keys::Whose::KeyServer, host, port)?;
                server_keys.extend(found);
            }
        }
        let (servers, timeout) = (self.key_servers.clone(), self.key_server_timeout);
        Ok(Client::new(ClientOptions { servers, server_keys, node_key, timeout }))
    }
}

fn host_and_port(server: &str) -> (&str, u16) {
    let split = server.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let (host, port) = match split.map(|(host, port)| (host, port.parse())) {
        Some((host, Ok(port))) => (host, port),
        _ => (server, DEFAULT_PORT),
    };
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_with_or_without_a_port() {
        assert_eq!(parse_server("keyserver://keys:9/").as_deref(), Ok("keys:9"));
        assert!(parse_server("keyserver://").is_err() && parse_server("http://keys").is_err());
        assert_eq!(host_and_port("keys"), ("keys", DEFAULT_PORT));
        assert_eq!(host_and_port("keys:9"), ("keys", 9));
        assert_eq!(host_and_port("[::1]:9"), ("::1", 9));
        assert_eq!(host_and_port("::1"), ("::1", DEFAULT_PORT));
    }
}
