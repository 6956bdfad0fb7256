//! Forward error correction: parity over groups of quanta of one transfer, by which a receiver restores what was lost without waiting for it to
//! be sent again. Group *g* of `k+m` has the quanta *kg* to *kg + k − 1* of the transfer, as far as they are sealed blocks; absent ones, which
//! a hole covers, count as zeros. P is their sum, Q the sum of 2^i times the i-th, in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1, as in RAID 6
//! (H. P. Anvin, *The mathematics of RAID-6*). The same is made of what stands in front of each quantum: its seal record.

mod field;
pub(crate) mod receiver;
pub(crate) mod sender;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

/// How many packets of parity follow how many quanta: `8+1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parity {
    quanta: u8,
    parity: u8,
}

/// What is no [`Parity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parity is written K+M: 1 or 2 packets of parity for every 2 to 32 quanta, for instance 8+1")]
pub struct ParityError;

impl Parity {
    const QUANTA: std::ops::RangeInclusive<u8> = 2..=32;

    /// `parity` packets, 1 or 2, for every `quanta`, 2 to 32; `None` for other numbers.
    pub fn new(quanta: u8, parity: u8) -> Option<Parity> {
        (Self::QUANTA.contains(&quanta) && (1..=2).contains(&parity)).then_some(Parity { quanta, parity })
    }

    /// As a login has it: both numbers, or zeros for none.
    pub(crate) fn encode(parity: Option<Parity>) -> [u8; 2] {
        parity.map_or([0, 0], |Parity { quanta, parity }| [quanta, parity])
    }

    /// Reads it again.
    pub(crate) fn decode(bytes: [u8; 2]) -> Result<Option<Parity>, ParityError> {
        match bytes {
            [0, 0] => Ok(None),
            [quanta, parity] => Parity::new(quanta, parity).map(Some).ok_or(ParityError),
        }
    }
}

impl fmt::Display for Parity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.quanta, self.parity)
    }
}

impl FromStr for Parity {
    type Err = ParityError;

    fn from_str(text: &str) -> Result<Parity, ParityError> {
        let (quanta, parity) = text.split_once('+').ok_or(ParityError)?;
        let number = |text: &str| text.parse().map_err(|_| ParityError);
        Parity::new(number(quanta)?, number(parity)?).ok_or(ParityError)
    }
}
