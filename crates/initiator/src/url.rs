//! Where a volume is, as a person writes it: three kinds of URL, parsed once.
//!
//! `strongroom://HOST[:PORT]/VOLUME[?scheme=SCHEME&suite=SUITE&pipeline=DEPTH&parity=K+M]` always means a channel and never falls back to plain iSCSI.
//! `ecl://` instead of `strongroom://` is the same volume by the transport ECL (UDP beside TCP), `ecl+tcp://` by ECL over TCP alone.
//! `iscsi://HOST[:PORT]/TARGET-IQN/LUN` is plain iSCSI (scheme S0): nothing is protected on the wire.
//! Absent: name resolution.

use std::fmt;
use std::str::FromStr;

use strongroom_block::Suite;
use strongroom_channel::Scheme;
use strongroom_ecl::Parity;

use crate::Pipeline;

/// The port of iSCSI (RFC 7143 §4.1), on which a Strongroom target answers both kinds of session.
pub const DEFAULT_PORT: u16 = 3260;

/// What `strongroom://` target names begin with, unless the caller's options say otherwise.
pub const DEFAULT_BASE_IQN: &str = "iqn.2026-11.org.strongroom";

/// Longest name of a volume, in bytes: an iSCSI name has at most 223 (RFC 7143 §4.2.7.1).
const NAME_BYTES_MAX: usize = 160;

/// What carries the commands of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// iSCSI, inside a channel or plain.
    #[default]
    Iscsi,
    /// The Effective Cross Layer (`docs/ecl.md`).
    Ecl,
    /// The same over TCP alone, where UDP is blocked.
    EclTcp,
}

/// What a URL says of how a volume is reached, behind a question mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UrlParameters {
    /// What the channel protects.
    pub scheme: Option<Scheme>,
    /// The channel's cipher suite.
    pub suite: Option<Suite>,
    /// How many writes are under way at once.
    pub pipeline: Option<Pipeline>,
    /// Over ECL: parity behind the quanta of transfers.
    pub parity: Option<Parity>,
}

/// Where a volume is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VolumeUrl {
    /// Over a channel, by the volume's name.
    Strongroom {
        /// Host name or address (an IPv6 address without brackets).
        host: String,
        /// TCP port.
        port: u16,
        /// The volume's name.
        volume: String,
        /// What carries its commands.
        transport: Transport,
        /// How, if the URL says so.
        parameters: UrlParameters,
    },
    /// Over plain iSCSI, by target name and logical unit.
    Iscsi {
        /// Host name or address (an IPv6 address without brackets).
        host: String,
        /// TCP port.
        port: u16,
        /// The iSCSI target name.
        target_name: String,
        /// The logical unit number.
        lun: u16,
    },
}

/// A URL that names no volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Neither kind of URL.
    #[error(
        "'{0}' is not a volume's URL; write strongroom://HOST[:PORT]/VOLUME, ecl://HOST[:PORT]/VOLUME, ecl+tcp://HOST[:PORT]/VOLUME, or iscsi://HOST[:PORT]/TARGET-IQN/LUN for plain iSCSI"
    )]
    Scheme(String),
    /// No host.
    #[error("'{0}' names no host; write for instance strongroom://storage.example/volume1")]
    Host(String),
    /// Not a port.
    #[error("'{0}' is not a port; give a number from 1 to 65535")]
    Port(String),
    /// Not a name that a volume can have.
    #[error(
        "'{0}' cannot name a volume; use 1 to 160 letters, digits, '.', '-' or '_', for instance strongroom://HOST/volume1"
    )]
    Volume(String),
    /// Not what may follow a `?`.
    #[error(
        "'?{query}' cannot follow a volume: {problem}; write for instance ?scheme=S2-5 or ?scheme=S2-1&suite=aes-128-gcm"
    )]
    Query {
        /// What stands behind the question mark.
        query: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Not an iSCSI target name and a LUN.
    #[error("'{0}' is not TARGET-IQN/LUN; write for instance iscsi://HOST/iqn.2026-11.org.strongroom:disk/0")]
    Target(String),
}

impl VolumeUrl {
    /// The host.
    pub fn host(&self) -> &str {
        match self {
            VolumeUrl::Strongroom { host, .. } | VolumeUrl::Iscsi { host, .. } => host,
        }
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        match self {
            VolumeUrl::Strongroom { port, .. } | VolumeUrl::Iscsi { port, .. } => *port,
        }
    }

    /// Whether the session runs inside a channel.
    pub fn is_channel(&self) -> bool {
        matches!(self, VolumeUrl::Strongroom { .. })
    }

    /// What carries the commands.
    pub fn transport(&self) -> Transport {
        match self {
            VolumeUrl::Strongroom { transport, .. } => *transport,
            VolumeUrl::Iscsi { .. } => Transport::Iscsi,
        }
    }

    /// How it is reached, as far as the URL says so.
    pub fn parameters(&self) -> UrlParameters {
        match self {
            VolumeUrl::Strongroom { parameters, .. } => *parameters,
            VolumeUrl::Iscsi { .. } => UrlParameters::default(),
        }
    }

    /// What the channel protects, if the URL says so.
    pub fn scheme(&self) -> Option<Scheme> {
        self.parameters().scheme
    }

    /// The channel's cipher suite, if the URL says so.
    pub fn suite(&self) -> Option<Suite> {
        self.parameters().suite
    }

    /// How many writes are under way at once, if the URL says so.
    pub fn pipeline(&self) -> Option<Pipeline> {
        self.parameters().pipeline
    }

    /// The URL without how it is carried and protected on the way: the same for everybody who means the same volume.
    pub fn place(&self) -> String {
        let host = if self.host().contains(':') { format!("[{}]", self.host()) } else { self.host().to_owned() };
        let port = if self.port() == DEFAULT_PORT { String::new() } else { format!(":{}", self.port()) };
        match self {
            VolumeUrl::Strongroom { volume, .. } => format!("strongroom://{host}{port}/{volume}"),
            VolumeUrl::Iscsi { target_name, lun, .. } => format!("iscsi://{host}{port}/{target_name}/{lun}"),
        }
    }

    /// The URL without how it is protected on the way.
    pub fn route(&self) -> String {
        let place = self.place();
        match (self.transport(), place.strip_prefix("strongroom")) {
            (Transport::Ecl, Some(rest)) => format!("ecl{rest}"),
            (Transport::EclTcp, Some(rest)) => format!("ecl+tcp{rest}"),
            _ => place,
        }
    }

    /// The iSCSI target name to log in to, for a target whose names begin with `base_iqn`.
    pub fn target_name(&self, base_iqn: &str) -> String {
        match self {
            // A snapshot, `volume@snapshot`, is the target `volume:snapshot`: an iSCSI name has no '@'.
            VolumeUrl::Strongroom { volume, .. } => format!("{base_iqn}:{}", volume.replacen('@', ":", 1)),
            VolumeUrl::Iscsi { target_name, .. } => target_name.clone(),
        }
    }

    /// The logical unit number; 0 for a Strongroom volume.
    pub fn lun(&self) -> u16 {
        match self {
            VolumeUrl::Strongroom { .. } => 0,
            VolumeUrl::Iscsi { lun, .. } => *lun,
        }
    }

    /// Whether it is a snapshot, which does not change.
    pub fn is_snapshot(&self) -> bool {
        matches!(self, VolumeUrl::Strongroom { volume, .. } if volume.contains('@'))
    }

    /// The same with another volume of that target; `None` if it is of plain iSCSI, of a snapshot, or the name is none.
    pub fn with_volume(&self, name: &str) -> Option<VolumeUrl> {
        let mut url = self.clone();
        match &mut url {
            VolumeUrl::Strongroom { volume, .. } if is_volume_name(name) && !volume.contains('@') => {
                name.clone_into(volume);
                Some(url)
            }
            _ => None,
        }
    }

    /// A short name that is fit for a file: the volume's, or what follows the target name's last ':'.
    pub fn file_name(&self) -> &str {
        match self {
            VolumeUrl::Strongroom { volume, .. } => volume,
            VolumeUrl::Iscsi { target_name, .. } => target_name.rsplit(':').next().unwrap_or(target_name),
        }
    }
}

impl FromStr for VolumeUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<VolumeUrl, UrlError> {
        let (channel, rest) = if let Some(rest) = text.strip_prefix("strongroom://") {
            (Some(Transport::Iscsi), rest)
        } else if let Some(rest) = text.strip_prefix("ecl://") {
            (Some(Transport::Ecl), rest)
        } else if let Some(rest) = text.strip_prefix("ecl+tcp://") {
            (Some(Transport::EclTcp), rest)
        } else if let Some(rest) = text.strip_prefix("iscsi://") {
            (None, rest)
        } else {
            return Err(UrlError::Scheme(text.to_owned()));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = parse_authority(authority, text)?;
        if let Some(transport) = channel {
            let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
            let parameters = query.map_or(Ok(UrlParameters::default()), |query| parse_query(query, transport))?;
            let volume = path.strip_suffix('/').unwrap_or(path);
            let (base, snapshot) = volume.split_once('@').unwrap_or((volume, volume));
            if !is_volume_name(base) || !is_volume_name(snapshot) {
                return Err(UrlError::Volume(volume.to_owned()));
            }
            let volume = volume.to_owned();
            Ok(VolumeUrl::Strongroom { host, port, volume, transport, parameters })
        } else {
            let bad = || UrlError::Target(path.to_owned());
            let (target_name, lun) = path.rsplit_once('/').ok_or_else(bad)?;
            let lun = lun.parse::<u16>().ok().filter(|lun| *lun < 16384).ok_or_else(bad)?;
            if !is_target_name(target_name) {
                return Err(bad());
            }
            Ok(VolumeUrl::Iscsi { host, port, target_name: target_name.to_owned(), lun })
        }
    }
}

impl fmt::Display for VolumeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.route())?;
        let UrlParameters { scheme, suite, pipeline, parity } = self.parameters();
        let parts = [
            scheme.map(|scheme| format!("scheme={scheme}")),
            suite.map(|suite| format!("suite={}", suite.name().replace('+', "%2B"))),
            pipeline.map(|pipeline| format!("pipeline={pipeline}")),
            parity.map(|parity| format!("parity={parity}")),
        ];
        for (part, separator) in parts.into_iter().flatten().zip(['?', '&', '&', '&']) {
            write!(f, "{separator}{part}")?;
        }
        Ok(())
    }
}

/// `scheme=S2-5&suite=aes-128-gcm&pipeline=8&parity=8+1`, each at most once, in any order.
fn parse_query(query: &str, transport: Transport) -> Result<UrlParameters, UrlError> {
    let wrong = |problem: String| UrlError::Query { query: query.to_owned(), problem };
    let mut parameters = UrlParameters::default();
    for part in query.split('&') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        // The only character here that a URL may spell otherwise.
        let value = value.replace("%2B", "+").replace("%2b", "+");
        let is_twice = match name {
            "scheme" if ["S0", "PLAIN"].contains(&value.to_ascii_uppercase().as_str()) => {
                return Err(wrong("S0 is plain iSCSI, without a channel, and has an iscsi:// URL".to_owned()));
            }
            "parity" if transport == Transport::Iscsi => {
                return Err(wrong("parity is ECL's, which has ecl:// URLs".to_owned()));
            }
            "scheme" => set(&mut parameters.scheme, &value).map_err(wrong)?,
            "suite" => set(&mut parameters.suite, &value).map_err(wrong)?,
            "pipeline" => set(&mut parameters.pipeline, &value).map_err(wrong)?,
            "parity" => set(&mut parameters.parity, &value).map_err(wrong)?,
            _ => return Err(wrong(format!("'{name}' is neither 'scheme', 'suite', 'pipeline' nor 'parity'"))),
        };
        if is_twice {
            return Err(wrong(format!("'{name}' is said twice")));
        }
    }
    Ok(parameters)
}

/// Sets a parameter. Whether it was set before.
fn set<T: FromStr<Err: fmt::Display>>(parameter: &mut Option<T>, value: &str) -> Result<bool, String> {
    Ok(parameter.replace(value.parse().map_err(|error: T::Err| error.to_string())?).is_some())
}

fn parse_authority(authority: &str, url: &str) -> Result<(String, u16), UrlError> {
    let no_host = || UrlError::Host(url.to_owned());
    let (host, port) = if let Some(bracketed) = authority.strip_prefix('[') {
        let (host, after) = bracketed.split_once(']').ok_or_else(no_host)?;
        host.parse::<std::net::Ipv6Addr>().map_err(|_| no_host())?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(no_host()),
        }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let plausible = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(plausible) {
        return Err(no_host());
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(text) => text.parse().ok().filter(|port| *port != 0).ok_or_else(|| UrlError::Port(text.to_owned()))?,
    };
    Ok((host.to_owned(), port))
}

/// Host and port of a TargetAddress (RFC 7143 §13.8): `host[:port][,portal-group]`, an IPv6 host in brackets.
pub(crate) fn parse_target_address(text: &str) -> Option<(String, u16)> {
    let address = text.split_once(',').map_or(text, |(address, _)| address);
    parse_authority(address, text).ok()
}

/// Whether `name` can name a volume: it becomes part of an iSCSI name, of a path on the target, and of a file name here.
pub fn is_volume_name(name: &str) -> bool {
    let plausible = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with('.') && name.chars().all(plausible)
}

/// RFC 7143 §4.2.7: `iqn.`, `eui.` or `naa.` and a restricted alphabet.
fn is_target_name(name: &str) -> bool {
    let plausible = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_');
    ["iqn.", "eui.", "naa."].iter().any(|prefix| name.starts_with(prefix))
        && name.len() <= 223
        && name.chars().all(plausible)
}

#[cfg(test)]
mod tests {
    //! Proves that a URL means one thing, prints as it parses, and that nonsense is refused with an example.
    use super::*;

    #[test]
    fn both_kinds_parse_and_print_the_same() {
        for text in [
            "strongroom://storage/vol1",
            "strongroom://10.0.0.1:4000/a.b-c_d",
            "strongroom://[fe80::1]:4000/v",
            "strongroom://[::1]/v",
            "strongroom://storage/vol1@monday",
            "ecl://storage/vol1",
            "ecl://[::1]:4000/v@monday",
            "ecl+tcp://[::1]:4000/v@monday",
            "ecl://storage/vol1?scheme=S2-5&parity=8+1",
            "ecl://storage/vol1?scheme=S1-2&suite=aes-128-gcm&pipeline=8",
            "iscsi://host/iqn.2026-11.org.strongroom:disk/0",
            "iscsi://host:3261/iqn.2003-01.org.linux-iscsi:x/16383",
        ] {
            assert_eq!(text.parse::<VolumeUrl>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_target_name_and_the_file_name() {
        let url: VolumeUrl = "strongroom://h/vol1".parse().unwrap();
        assert_eq!(url.target_name(DEFAULT_BASE_IQN), "iqn.2026-11.org.strongroom:vol1");
        let snapshot: VolumeUrl = "strongroom://storage/vol1@monday".parse().unwrap();
        assert_eq!(snapshot.target_name(DEFAULT_BASE_IQN), "iqn.2026-11.org.strongroom:vol1:monday");
        assert_eq!((url.port(), url.lun(), url.file_name(), url.is_channel()), (3260, 0, "vol1", true));
        assert!(snapshot.is_snapshot() && !url.is_snapshot());
        let url: VolumeUrl = "iscsi://h/iqn.2026-11.org.strongroom:disk/3".parse().unwrap();
        assert_eq!((url.lun(), url.file_name(), url.is_channel()), (3, "disk", false));
    }

    #[test]
    fn what_protects_the_way_is_part_of_the_url_and_not_of_the_place() {
        for (text, scheme, suite, printed) in [
            ("strongroom://h/v?scheme=lazy", Some(Scheme::Lazy), None, "strongroom://h/v?scheme=S2-5"),
            ("strongroom://h/v?scheme=S2-2", Some(Scheme::EncryptAll), None, "strongroom://h/v?scheme=S2-1"),
            ("strongroom://h/v?suite=aes-128-gcm", None, Some(Suite::Aes128Gcm), "strongroom://h/v?suite=aes-128-gcm"),
            (
                "strongroom://h/v?suite=chacha20-poly1305&scheme=mac-all",
                Some(Scheme::MacAll),
                Some(Suite::ChaCha20Poly1305),
                "strongroom://h/v?scheme=S1-1&suite=chacha20-poly1305",
            ),
            (
                "strongroom://h/v?scheme=lazy-decrypt+mac-all&suite=paper",
                Some(Scheme::LazyDecrypt),
                Some(Suite::Aes192CbcHmacMd5),
                "strongroom://h/v?scheme=S2-3&suite=aes192-cbc%2Bhmac-md5",
            ),
        ] {
            let url: VolumeUrl = text.parse().unwrap();
            assert_eq!((url.scheme(), url.suite()), (scheme, suite), "{text}");
            assert_eq!((url.to_string().as_str(), url.place().as_str()), (printed, "strongroom://h/v"));
            assert_eq!(printed.parse::<VolumeUrl>().unwrap(), url);
        }
        let url: VolumeUrl = "ecl://h/v?scheme=S1-2".parse().unwrap();
        assert_eq!(
            (url.transport(), url.place().as_str(), url.is_channel()),
            (Transport::Ecl, "strongroom://h/v", true)
        );
    }

    #[test]
    fn the_depth_of_the_pipeline_is_part_of_the_url_and_not_of_the_place() {
        // More workers than a depth of 8 has by itself, on however many processors.
        let url: VolumeUrl = "strongroom://h/v?pipeline=8/9&scheme=S2-5".parse().unwrap();
        assert_eq!(url.pipeline(), Some(Pipeline::Fixed { depth: 8, workers: 9 }));
        assert_eq!(url.to_string(), "strongroom://h/v?scheme=S2-5&pipeline=8/9");
        assert_eq!(url.place(), "strongroom://h/v");
        for query in ["pipeline=0", "pipeline=", "pipeline=1&pipeline=2"] {
            assert!(format!("strongroom://h/v?{query}").parse::<VolumeUrl>().is_err(), "{query}");
        }
    }

    #[test]
    fn target_addresses_are_read() {
        for (text, host, port) in [
            ("10.0.0.1:3261,1", "10.0.0.1", 3261),
            ("[2001:db8::1]:3261,1", "2001:db8::1", 3261),
            ("[::1]", "::1", 3260),
            ("storage.example", "storage.example", 3260),
        ] {
            assert_eq!(parse_target_address(text), Some((host.to_owned(), port)));
        }
        for text in ["", ",1", "a:b", "::1", "a b", "host:0"] {
            assert_eq!(parse_target_address(text), None, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        for (text, part) in [
            ("http://h/v", "strongroom://HOST"),
            ("strongroom://h/v?parity=8+1", "ecl://"),
            ("ecl://h/v?parity=8+3", "8+1"),
            ("/dev/sda", "strongroom://HOST"),
            ("strongroom:///v", "names no host"),
            ("strongroom://h", "cannot name a volume"),
            ("strongroom://h/../etc", "cannot name a volume"),
            ("strongroom://h/a/b", "cannot name a volume"),
            ("strongroom://h:0/v", "not a port"),
            ("strongroom://h:99999/v", "not a port"),
            ("strongroom://[zz]/v", "names no host"),
            ("strongroom://user@h/v", "names no host"),
            ("strongroom://h/v?scheme=S0", "iscsi:// URL"),
            ("strongroom://h/v?scheme=S9", "no scheme"),
            ("strongroom://h/v?scheme=S2-5&scheme=S1-1", "twice"),
            ("strongroom://h/v?suite=rot13", "no cipher suite"),
            ("strongroom://h/v?colour=red", "neither"),
            ("strongroom://h/v?", "neither"),
            ("iscsi://h/iqn.x:y/0?scheme=S0", "not TARGET-IQN/LUN"),
            ("iscsi://h/iqn.x", "not TARGET-IQN/LUN"),
            ("iscsi://h/disk/0", "not TARGET-IQN/LUN"),
            ("iscsi://h/iqn.x:y/70000", "not TARGET-IQN/LUN"),
        ] {
            let error = text.parse::<VolumeUrl>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
