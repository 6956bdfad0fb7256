//! Where metrics are collected: an address of this machine's loopback, or a Unix socket. Metrics are neither encrypted nor authenticated, so
//! they do not leave the machine by themselves.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What an address of a Unix socket begins with.
const UNIX_PREFIX: &str = "unix:";
/// `sun_path` has 108 bytes, the terminating zero included.
const PATH_BYTES_MAX: usize = 107;

/// An address that only this machine can reach. Written as `127.0.0.1:9464`, `[::1]:9464`, `localhost:9464` or
/// `unix:/run/strongroom-target/metrics.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MetricsAddress {
    /// An address of the loopback; with port 0 the system chooses the port.
    Loopback(SocketAddr),
    /// The absolute path of a socket.
    Unix(PathBuf),
}

/// Why something is no address for metrics, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is neither an address with a port nor a socket.
    #[error(
        "'{0}' is no address for metrics; write for instance 127.0.0.1:9464, [::1]:9464 or unix:/run/strongroom-target/metrics.sock"
    )]
    Form(String),
    /// Others could reach it.
    #[error(
        "metrics at {0} could be read from other machines, without encryption or a password; write a loopback address (127.0.0.1:{port}, \
         [::1]:{port}) or a Unix socket (unix:/run/strongroom-target/metrics.sock), and let a proxy or an agent on this machine pass them on",
        port = .0.port()
    )]
    NotLoopback(SocketAddr),
    /// The path of a socket is relative, empty or too long.
    #[error(
        "'{0}' must be the absolute path of a socket, of at most {PATH_BYTES_MAX} bytes; write for instance unix:/run/strongroom-target/metrics.sock"
    )]
    Path(String),
}

impl FromStr for MetricsAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<MetricsAddress, AddressError> {
        if let Some(path) = text.strip_prefix(UNIX_PREFIX) {
            let is_path = path.starts_with('/') && path.len() <= PATH_BYTES_MAX && !path.contains('\0');
            return if is_path { Ok(MetricsAddress::Unix(path.into())) } else { Err(AddressError::Path(path.into())) };
        }
        let form = || AddressError::Form(text.to_owned());
        let address = match text.strip_prefix("localhost:") {
            Some(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().map_err(|_| form())?)),
            None => text.parse().map_err(|_| form())?,
        };
        if address.ip().is_loopback() {
            Ok(MetricsAddress::Loopback(address))
        } else {
            Err(AddressError::NotLoopback(address))
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAddress::Loopback(address) => address.fmt(f),
            MetricsAddress::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl TryFrom<String> for MetricsAddress {
    type Error = AddressError;

    fn try_from(text: String) -> Result<MetricsAddress, AddressError> {
        text.parse()
    }
}

impl From<MetricsAddress> for String {
    fn from(address: MetricsAddress) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_taken() {
        for text in ["127.0.0.1:9464", "127.1.2.3:0", "[::1]:1", "unix:/run/strongroom-target/metrics.sock"] {
            let address: MetricsAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert_eq!("localhost:9464".parse::<MetricsAddress>().unwrap().to_string(), "127.0.0.1:9464");
    }

    #[test]
    fn others_are_refused_with_what_to_write() {
        let long = format!("unix:/{}", "a".repeat(PATH_BYTES_MAX));
        for (text, part) in [
            ("0.0.0.0:9464", "127.0.0.1:9464"),
            ("[::]:9464", "loopback"),
            ("192.0.2.1:80", "other machines"),
            ("[::ffff:127.0.0.1]:80", "loopback"),
            ("127.0.0.1", "127.0.0.1:9464"),
            ("localhost:http", "127.0.0.1:9464"),
            ("storage.example:9464", "no address"),
            ("", "no address"),
            ("unix:", "absolute"),
            ("unix:metrics.sock", "absolute"),
            ("/run/metrics.sock", "unix:/run"),
            (long.as_str(), "107 bytes"),
        ] {
            let error = text.parse::<MetricsAddress>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
