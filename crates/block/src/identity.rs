//! Names of volumes, domains, attachments and writes.

use std::fmt;

use uuid::Uuid;

/// A name that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a UUID")]
pub struct ParseIdError {
    /// What was given.
    pub text: String,
}

macro_rules! uuid_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// A random (version 4) name from 16 bytes of the operating system's randomness.
            pub fn from_random(random: [u8; 16]) -> Self {
                Self(*uuid::Builder::from_random_bytes(random).as_uuid().as_bytes())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&Uuid::from_bytes(self.0).hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl std::str::FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                Uuid::parse_str(text).map(|id| Self(*id.as_bytes())).map_err(|_| ParseIdError { text: text.to_owned() })
            }
        }
    };
}

uuid_name!(
    /// Names one volume.
    VolumeId
);
uuid_name!(
    /// Shared by a volume, its snapshots and its clones: what associated data binds to.
    SealingDomain
);

/// Sixteen random bytes drawn at every attach (and after 64 GiB sealed, a fork, or a resume): no two writers share one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttachId(pub [u8; 16]);

impl fmt::Debug for AttachId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Names one write and orders nothing: an [`AttachId`] and a counter.
///
/// On the wire and as the XAES-256-GCM nonce: 16 bytes of attach id, then the counter as 8 bytes big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Who wrote.
    pub attach_id: AttachId,
    /// The how-manieth write of this attach id.
    pub counter: u64,
}

impl Stamp {
    /// Encoded length in bytes.
    pub const BYTES: usize = 24;

    /// As bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.attach_id.0);
        bytes[16..].copy_from_slice(&self.counter.to_be_bytes());
        bytes
    }

    /// From bytes; every value is valid.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Stamp {
        let (id, counter) = bytes.split_at(16);
        Stamp {
            attach_id: AttachId(id.try_into().expect("split at 16")),
            counter: u64::from_be_bytes(counter.try_into().expect("24 - 16 = 8")),
        }
    }
}

/// The order in which a store took writes in: strictly increasing within one store, never reused. Zero names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreSequence(pub u64);

impl fmt::Display for StoreSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_its_bytes() {
        let stamp = Stamp { attach_id: AttachId([7; 16]), counter: 0x0102_0304_0506_0708 };
        let bytes = stamp.to_bytes();
        assert_eq!(bytes[16..], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Stamp::from_bytes(bytes), stamp);
    }

    #[test]
    fn names_parse_as_they_print() {
        let id = VolumeId::from_random([0xab; 16]);
        assert_eq!(id.to_string().parse::<VolumeId>(), Ok(id));
        assert!("nonsense".parse::<VolumeId>().is_err());
    }
}
