//! What a channel protects: the rows of the lazy-crypto paper's Table 2 that have a channel.

use std::fmt;
use std::str::FromStr;

use strongroom_block::Mode;

use crate::FrameKind;
use crate::frame::FrameType;

/// Which parts of a PDU a channel encrypts and authenticates (lazy-crypto paper, Tables 1 and 2). S0 is no channel at
/// all.
///
/// The paper's hardware rows (S2-2, S2-4, S2-6) do the same cryptography as the software rows before them: whether a
/// processor's AES instructions do it is a property of the process and nothing that two ends agree on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Scheme {
    /// S1-1, as IPsec AH: header and body authenticated at both ends, in the clear.
    MacAll = 11,
    /// S1-2: header authenticated; block data left to the tags of the initiators that wrote it.
    LazyAuth = 12,
    /// S2-1, as IPsec ESP: header and body encrypted and authenticated at both ends.
    EncryptAll = 21,
    /// S2-3: header encrypted; block data sealed by initiators, and authenticated by the channel all the same.
    LazyDecrypt = 23,
    /// S2-5: header encrypted and authenticated; block data left to the seals of the initiators that wrote it.
    #[default]
    Lazy = 25,
}

impl Scheme {
    /// Every scheme that this build speaks, in the paper's order.
    pub const ALL: &[Scheme] =
        &[Scheme::MacAll, Scheme::LazyAuth, Scheme::EncryptAll, Scheme::LazyDecrypt, Scheme::Lazy];

    /// The paper's name: `S2-5`.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::MacAll => "S1-1",
            Scheme::LazyAuth => "S1-2",
            Scheme::EncryptAll => "S2-1",
            Scheme::LazyDecrypt => "S2-3",
            Scheme::Lazy => "S2-5",
        }
    }

    /// A name that says what it does: `lazy`.
    pub fn alias(self) -> &'static str {
        match self {
            Scheme::MacAll => "mac-all",
            Scheme::LazyAuth => "lazy-auth",
            Scheme::EncryptAll => "encrypt-all",
            Scheme::LazyDecrypt => "lazy-decrypt+mac-all",
            Scheme::Lazy => "lazy",
        }
    }

    /// Whether an attacker on the wire cannot read headers, nor block data that its initiator sealed.
    pub fn is_confidential(self) -> bool {
        matches!(self, Scheme::EncryptAll | Scheme::LazyDecrypt | Scheme::Lazy)
    }

    /// Whether the channel encrypts block data itself, so that even data that is not sealed is unreadable.
    pub fn encrypts_block_data(self) -> bool {
        self == Scheme::EncryptAll
    }

    /// Whether it would show sealed block data that its name promises to hide: blocks sealed in the mode authenticate-only are
    /// readable, and S2-3 and S2-5 leave them as they are. Neither end uses such a pair.
    pub fn would_show(self, mode: Mode) -> bool {
        mode == Mode::AuthenticateOnly && self.is_confidential() && !self.encrypts_block_data()
    }

    /// Whether block data is authenticated when it arrives, not only when a reader opens it.
    pub fn checks_on_arrival(self) -> bool {
        matches!(self, Scheme::MacAll | Scheme::EncryptAll | Scheme::LazyDecrypt)
    }

    /// The frame that carries a PDU of this kind.
    pub(crate) fn frame_type(self, kind: FrameKind) -> FrameType {
        match (kind, self) {
            (FrameKind::Private, _) => FrameType::Encrypted,
            (FrameKind::Protected, Scheme::MacAll | Scheme::LazyAuth) => FrameType::Authentic,
            (FrameKind::Protected, _) => FrameType::Encrypted,
            (FrameKind::Sealed, Scheme::MacAll) => FrameType::AuthenticBlocks,
            (FrameKind::Sealed, Scheme::LazyAuth) => FrameType::AuthenticHeader,
            (FrameKind::Sealed, Scheme::EncryptAll) => FrameType::EncryptedBlocks,
            (FrameKind::Sealed, Scheme::LazyDecrypt) => FrameType::CheckedBlocks,
            (FrameKind::Sealed, Scheme::Lazy) => FrameType::EncryptedHeader,
        }
    }

    /// What a frame of this type carries, if the scheme has such frames.
    pub(crate) fn kind_of(self, frame_type: FrameType) -> Option<FrameKind> {
        let kinds = [FrameKind::Protected, FrameKind::Sealed, FrameKind::Private];
        kinds.into_iter().find(|&kind| self.frame_type(kind) == frame_type)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no scheme's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no scheme of a channel; there are S1-1 (mac-all), S1-2 (lazy-auth), S2-1 (encrypt-all), S2-3 \
     (lazy-decrypt+mac-all) and S2-5 (lazy)"
)]
pub struct UnknownScheme(String);

impl FromStr for Scheme {
    type Err = UnknownScheme;

    /// By the paper's name or by the one that says what it does, in any case. The hardware rows' names stand for the
    /// software rows before them.
    fn from_str(text: &str) -> Result<Scheme, UnknownScheme> {
        let software = match text.to_ascii_uppercase().as_str() {
            "S2-2" => "S2-1",
            "S2-4" => "S2-3",
            "S2-6" => "S2-5",
            _ => text,
        };
        let named = |scheme: &&Scheme| {
            scheme.name().eq_ignore_ascii_case(software) || scheme.alias().eq_ignore_ascii_case(software)
        };
        Scheme::ALL.iter().find(named).copied().ok_or_else(|| UnknownScheme(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.name().to_lowercase().parse(), Ok(*scheme));
            assert_eq!(scheme.alias().parse(), Ok(*scheme));
        }
        assert_eq!("s2-6".parse(), Ok(Scheme::Lazy));
        for wrong in ["S0", "plain", "", "S2-7", "lazy "] {
            assert_eq!(wrong.parse::<Scheme>(), Err(UnknownScheme(wrong.to_owned())), "no channel has it");
        }
    }

    #[test]
    fn readable_blocks_go_under_no_scheme_that_promises_secrecy() {
        let showing = |mode| Scheme::ALL.iter().copied().filter(|scheme| scheme.would_show(mode)).collect::<Vec<_>>();
        assert_eq!(showing(Mode::AuthenticateOnly), [Scheme::LazyDecrypt, Scheme::Lazy]);
        assert_eq!(showing(Mode::Encrypt), []);
    }

    #[test]
    fn a_scheme_tells_block_data_from_all_else_by_the_frame() {
        for scheme in Scheme::ALL {
            let sealed = scheme.frame_type(FrameKind::Sealed);
            assert_eq!(scheme.kind_of(sealed), Some(FrameKind::Sealed));
            assert_eq!(scheme.kind_of(scheme.frame_type(FrameKind::Protected)), Some(FrameKind::Protected));
            assert_ne!(scheme.kind_of(scheme.frame_type(FrameKind::Private)), Some(FrameKind::Sealed));
            assert_eq!(scheme.kind_of(FrameType::Rekey), None);
        }
        assert_eq!(Scheme::EncryptAll.kind_of(FrameType::EncryptedHeader), None, "a lazy frame is no eager one");
    }
}
