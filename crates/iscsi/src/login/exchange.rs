//! The text exchange of a login, the same for both roles (RFC 7143 §6.2, §6.3): rounds, stages, text that comes in several PDUs, and the
//! negotiation that its text feeds.

use super::LOGIN_ROUNDS_MAX;
use super::negotiation::Negotiation;
use crate::text::{Collector, Pairs, TextError};

/// One side of a login's exchange.
#[derive(Debug)]
pub(crate) struct LoginExchange {
    pub(crate) negotiation: Negotiation,
    collector: Collector,
    text_bytes_max: usize,
    rounds: u32,
    stage: u8,
}

impl LoginExchange {
    /// An exchange that begins in `stage`; a text may have `text_bytes_max` bytes.
    pub(crate) fn new(negotiation: Negotiation, stage: u8, text_bytes_max: usize) -> LoginExchange {
        LoginExchange { negotiation, collector: Collector::default(), text_bytes_max, rounds: 0, stage }
    }

    /// Counts a PDU of the peer; false if there were too many.
    pub(crate) fn count_round(&mut self) -> bool {
        self.rounds += 1;
        self.rounds <= LOGIN_ROUNDS_MAX
    }

    /// The current stage (RFC 7143 §11.12.3).
    pub(crate) fn stage(&self) -> u8 {
        self.stage
    }

    pub(crate) fn enter(&mut self, stage: u8) {
        self.stage = stage;
    }

    /// Takes the text of one PDU; gives the whole once it is complete (the C bit is clear).
    pub(crate) fn collect(&mut self, text: &[u8], continues: bool) -> Result<Option<Pairs>, TextError> {
        self.collector.push(text, continues, self.text_bytes_max)
    }
}
