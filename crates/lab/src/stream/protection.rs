//! What protects a stream: nothing, a channel of a scheme and suite, or TLS.

use serde::{Deserialize, Serialize};
use strongroom_block::Suite;
use strongroom_channel::Scheme;

use crate::BenchError;

/// What stands between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Protection {
    /// Nothing.
    Tcp,
    /// A channel of this scheme and suite, with block data in it: sealed by somebody else where the scheme leaves that to others.
    Channel(Scheme, Suite),
    /// TLS 1.3 with AES-256-GCM, by the library that our handshakes use.
    Tls,
}

impl Protection {
    /// All of them with the usual suite, in the paper's order between nothing and TLS.
    pub fn all() -> Vec<Protection> {
        let channels = Scheme::ALL.iter().map(|&scheme| Protection::Channel(scheme, Suite::default()));
        [Protection::Tcp].into_iter().chain(channels).chain([Protection::Tls]).collect()
    }

    /// The same with another suite, where there is a choice of one.
    #[must_use]
    pub fn with_suite(self, suite: Suite) -> Protection {
        match self {
            Protection::Channel(scheme, _) => Protection::Channel(scheme, suite),
            Protection::Tcp | Protection::Tls => self,
        }
    }

    /// As on the command line and in results: `tcp`, `S2-5`, `S2-1 aes-128-gcm`.
    pub fn name(self) -> String {
        match self {
            Protection::Tcp => "tcp".into(),
            Protection::Channel(scheme, suite) if suite == Suite::default() => scheme.name().into(),
            Protection::Channel(scheme, suite) => format!("{scheme} {suite}"),
            Protection::Tls => "tls".into(),
        }
    }

    /// The suite as results name it.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Protection::Tcp => "none",
            Protection::Channel(_, suite) => suite.name(),
            Protection::Tls => Suite::Aes256Gcm.name(),
        }
    }

    /// The scheme as results name it.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Protection::Tcp => "none",
            Protection::Channel(scheme, _) => scheme.name(),
            Protection::Tls => "TLS 1.3",
        }
    }
}

impl From<Protection> for String {
    fn from(protection: Protection) -> String {
        protection.name()
    }
}

impl TryFrom<String> for Protection {
    type Error = BenchError;
    fn try_from(text: String) -> Result<Protection, BenchError> {
        text.parse()
    }
}

impl std::str::FromStr for Protection {
    type Err = BenchError;
    fn from_str(text: &str) -> Result<Protection, BenchError> {
        let (name, suite) = text.split_once(' ').map_or((text, None), |(name, suite)| (name, Some(suite)));
        let suite = suite.map(str::parse::<Suite>).transpose().map_err(|error| BenchError::Asked(error.to_string()))?;
        let found = match name.parse::<Scheme>() {
            Ok(scheme) => Some(Protection::Channel(scheme, suite.unwrap_or_default())),
            Err(_) => [Protection::Tcp, Protection::Tls].into_iter().find(|it| it.name().eq_ignore_ascii_case(text)),
        };
        found.ok_or_else(|| {
            let names = Protection::all().into_iter().map(Protection::name).collect::<Vec<_>>().join(", ");
            BenchError::Asked(format!("'{text}' is no protection of a stream; choose from {names}"))
        })
    }
}
