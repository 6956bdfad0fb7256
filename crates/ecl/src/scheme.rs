//! Which of the lazy-crypto paper's schemes protects an association. ECL has the two whose blocks travel as they are stored.

use std::fmt;

/// What the packets of an association protect beside the sealed quanta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scheme {
    /// S1-2, lazy authentication: headers are authenticated; CDBs, seal records and all other bodies are encrypted too.
    LazyAuth = 12,
    /// S2-5, lazy both: headers are encrypted, but for what routes a packet.
    #[default]
    Lazy = 25,
}

/// A scheme that ECL does not carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ECL carries the schemes S1-2 and S2-5, whose blocks are stored as they are sent; scheme number {0} is not one of them: use a strongroom:// \
     URL (iSCSI) for it"
)]
pub struct SchemeNotCarried(pub u8);

impl Scheme {
    /// From the number in `docs/protocol.md`.
    ///
    /// # Errors
    /// [`SchemeNotCarried`].
    pub const fn from_number(number: u8) -> Result<Scheme, SchemeNotCarried> {
        match number {
            12 => Ok(Scheme::LazyAuth),
            25 => Ok(Scheme::Lazy),
            _ => Err(SchemeNotCarried(number)),
        }
    }

    /// Bytes of a header that are in the clear, and authenticated.
    pub(crate) const fn clear_bytes(self) -> usize {
        match self {
            Scheme::LazyAuth => 48,
            Scheme::Lazy => 16,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::LazyAuth => "S1-2",
            Scheme::Lazy => "S2-5",
        })
    }
}
