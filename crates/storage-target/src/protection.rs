//! What a volume asks of the connections that use it, and which of the paper's schemes give that.

use std::fmt;

use serde::{Deserialize, Serialize};
use strongroom_block::Mode;
use strongroom_channel::{Scheme, UnknownScheme};

/// A service that a volume can demand of every session (lazy-crypto paper, Table 2: what the security levels offer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// Nobody changes a header or a block on the way without being noticed: any channel (S1, S2).
    Integrity,
    /// And nobody reads headers or blocks on the way (S2).
    Confidentiality,
    /// And the target itself notices a changed block before it acknowledges the write, instead of the next reader: S1-1,
    /// S2-1, S2-3.
    CheckedOnArrival,
}

impl Service {
    /// All of them.
    pub const ALL: [Service; 3] = [Service::Integrity, Service::Confidentiality, Service::CheckedOnArrival];

    /// As in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Service::Integrity => "integrity",
            Service::Confidentiality => "confidentiality",
            Service::CheckedOnArrival => "checked-on-arrival",
        }
    }
}

/// What a volume asks of its sessions, in `[access]` of its description. Nothing asked: a sealed volume takes any channel
/// that does not show its blocks where its name says that it would not; a plain one is so under any configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protection {
    /// All of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// One of these schemes, if any is named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schemes: Vec<String>,
}

impl Protection {
    /// Checks that there is a way to use the volume: that the names are schemes', and that some scheme fits.
    ///
    /// # Errors
    /// [`ProtectionError`].
    pub fn check(&self, is_sealed: bool) -> Result<(), ProtectionError> {
        for name in &self.schemes {
            match name.parse::<Scheme>() {
                Ok(_) => {}
                Err(_) if is_plain(name) && !is_sealed => {}
                Err(_) if is_plain(name) => return Err(ProtectionError::PlainForSealed),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn lists(&self, scheme: Option<Scheme>) -> bool {
        self.schemes.iter().any(|name| match scheme {
            Some(scheme) => name.parse() == Ok(scheme),
            None => is_plain(name),
        })
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let services: Vec<&str> = self.services.iter().map(|service| service.name()).collect();
        let schemes = self.schemes.join(" or ");
        let parts = [services.join(" and "), schemes];
        f.write_str(&parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", by "))
    }
}

fn is_plain(name: &str) -> bool {
    name.eq_ignore_ascii_case("S0") || name.eq_ignore_ascii_case("plain")
}

/// What a volume asks for that cannot be had by any session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtectionError {
    /// A sealed volume that lists scheme S0.
    #[error("a sealed volume refuses plain sessions, scheme S0")]
    PlainForSealed,
    /// Not a scheme.
    #[error("{0}, and S0 (plain) for none")]
    Scheme(#[from] UnknownScheme),
}

/// What a volume asks for that a session does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtectionUnmet {
    /// The volume lists other schemes.
    #[error("it takes only scheme {listed}, not {scheme}")]
    OtherScheme {
        /// Those that it lists.
        listed: String,
        /// That of the session.
        scheme: &'static str,
    },
    /// The scheme would show blocks that are not encrypted.
    #[error(
        "it is sealed in the mode authenticate-only, and {scheme} leaves sealed blocks as they are, readable here; use \
         S1-2 (lazy-auth), S1-1 or S2-1"
    )]
    ShowsBlocks {
        /// That of the session.
        scheme: &'static str,
    },
    /// A service that the scheme does not give.
    #[error("it asks for {service}, which {scheme} does not give; use {schemes}")]
    NoService {
        /// The service.
        service: &'static str,
        /// The session's scheme.
        scheme: &'static str,
        /// Schemes that give it.
        schemes: &'static str,
    },
}

/// Compares what a session has (`None`: S0, plain iSCSI) with what its volume asks for. `mode`: of a sealed volume.
pub(crate) fn suffices(asked: &Protection, mode: Option<Mode>, scheme: Option<Scheme>) -> Result<(), ProtectionUnmet> {
    let name = scheme.map_or("S0", Scheme::name);
    if !asked.schemes.is_empty() && !asked.lists(scheme) {
        return Err(ProtectionUnmet::OtherScheme { listed: asked.schemes.join(", "), scheme: name });
    }
    if let (Some(scheme), Some(mode)) = (scheme, mode)
        && scheme.would_show(mode)
    {
        return Err(ProtectionUnmet::ShowsBlocks { scheme: name });
    }
    let is_confidential = scheme.is_some_and(Scheme::is_confidential);
    // What a plain unit reads and writes is protected with the headers in every channel.
    let is_checked = scheme.is_some_and(|scheme| scheme.checks_on_arrival() || mode.is_none());
    for service in &asked.services {
        let (is_given, schemes) = match service {
            Service::Integrity => (scheme.is_some(), "any scheme of a strongroom:// URL"),
            Service::Confidentiality if mode == Some(Mode::AuthenticateOnly) => (is_confidential, "S2-1"),
            Service::Confidentiality => (is_confidential, "S2-5, S2-3 or S2-1"),
            Service::CheckedOnArrival => (is_checked, "S2-3, S2-1 or S1-1"),
        };
        if !is_given {
            return Err(ProtectionUnmet::NoService { service: service.name(), scheme: name, schemes });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Proves that each level of the paper's Table 2 is given by the schemes that offer it, and by no others.

    use strongroom_block::Custody;

    use super::*;
    use crate::volume::Volume;
    use crate::volume::tests::sample;

    fn suffices(volume: &Volume, scheme: Option<Scheme>) -> Result<(), ProtectionUnmet> {
        let mode = volume.sealed.as_ref().map(|sealed| sealed.mode);
        super::suffices(&volume.access.protection, mode, scheme)
    }

    fn plain() -> Volume {
        Volume { sealed: None, ..sample(Custody::KeyFile) }
    }

    fn sealed(mode: Mode) -> Volume {
        let mut volume = sample(Custody::KeyFile);
        volume.sealed.as_mut().expect("it is sealed").mode = mode;
        volume
    }

    fn fitting(volume: &Volume) -> Vec<&'static str> {
        let schemes = std::iter::once(None).chain(Scheme::ALL.iter().copied().map(Some));
        schemes
            .filter(|scheme| suffices(volume, *scheme).is_ok())
            .map(|scheme| scheme.map_or("S0", Scheme::name))
            .collect()
    }

    fn asking(mut volume: Volume, services: &[Service], schemes: &[&str]) -> Volume {
        volume.access.protection =
            Protection { services: services.to_vec(), schemes: schemes.iter().map(|&name| name.to_owned()).collect() };
        volume
    }

    #[test]
    fn services_are_given_by_the_schemes_that_offer_them() {
        use Service::{CheckedOnArrival, Confidentiality, Integrity};
        assert_eq!(fitting(&plain()), ["S0", "S1-1", "S1-2", "S2-1", "S2-3", "S2-5"]);
        assert_eq!(fitting(&asking(plain(), &[Integrity], &[])), ["S1-1", "S1-2", "S2-1", "S2-3", "S2-5"]);
        assert_eq!(fitting(&asking(plain(), &[Confidentiality], &[])), ["S2-1", "S2-3", "S2-5"]);
        // A plain unit's blocks are protected with the headers under every scheme.
        assert_eq!(fitting(&asking(plain(), &[CheckedOnArrival], &[])), ["S1-1", "S1-2", "S2-1", "S2-3", "S2-5"]);
        let sealed = || sealed(Mode::Encrypt);
        assert_eq!(fitting(&asking(sealed(), &[Confidentiality], &[])), ["S2-1", "S2-3", "S2-5"]);
        assert_eq!(fitting(&asking(sealed(), &[CheckedOnArrival], &[])), ["S1-1", "S2-1", "S2-3"]);
        assert_eq!(fitting(&asking(sealed(), &[CheckedOnArrival, Confidentiality], &[])), ["S2-1", "S2-3"]);
        assert_eq!(fitting(&asking(sealed(), &[], &["lazy", "S2-1"])), ["S2-1", "S2-5"]);
        assert_eq!(fitting(&asking(plain(), &[], &["plain"])), ["S0"]);
    }

    /// S2-3 and S2-5 leave block data to its seal, which does not hide it here: they would not give what they promise.
    #[test]
    fn an_authenticate_only_volume_is_never_shown_by_a_scheme_that_promises_secrecy() {
        let volume = || sealed(Mode::AuthenticateOnly);
        assert_eq!(fitting(&volume()), ["S0", "S1-1", "S1-2", "S2-1"], "S0 is refused for being plain, elsewhere");
        assert_eq!(fitting(&asking(volume(), &[Service::Confidentiality], &[])), ["S2-1"]);
        let error = suffices(&volume(), Some(Scheme::Lazy)).unwrap_err().to_string();
        assert!(error.contains("authenticate-only") && error.contains("S1-2"), "{error}");
    }

    #[test]
    fn names_that_mean_nothing_are_refused() {
        let check =
            |name: &str, is_sealed| Protection { services: vec![], schemes: vec![name.into()] }.check(is_sealed);
        assert!(check("S2-7", true).unwrap_err().to_string().contains("S2-7"));
        assert!(check("S0", true).unwrap_err().to_string().contains("refuses plain"));
        assert_eq!(check("S0", false), Ok(()));
        assert_eq!(check("encrypt-all", true), Ok(()));
    }
}
