//! CHAP as an initiator does it (RFC 7143 §12.1.3): our answer to the target's challenge, and its answer to ours.

use super::types::ChapLogin;
use crate::chap::{Algorithm, Challenge};
use crate::text::Pairs;

/// An exchange in progress.
#[derive(Debug)]
pub(super) struct ChapExchange {
    chap: ChapLogin,
    stage: ChapStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChapStage {
    /// The target has not chosen a method yet.
    Method,
    /// It has chosen CHAP, and is to choose an algorithm and ask.
    Challenge,
    /// We have answered; the target is to let us on, and to answer our own challenge if there is one.
    Verdict(Algorithm),
    Done,
}

/// What follows from an answer of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There is more to come.
    Continues,
    /// Nothing is left to prove to us.
    Done,
    /// The target has not proven what it must, or broke the exchange.
    Failed,
}

impl ChapExchange {
    pub(super) fn new(chap: ChapLogin) -> ChapExchange {
        ChapExchange { chap, stage: ChapStage::Method }
    }

    /// What AuthMethod offers. An initiator that wants the target's proof does not accept a login without it.
    pub(super) fn methods(&self) -> &'static str {
        if self.chap.target.is_some() { "CHAP" } else { "CHAP,None" }
    }

    /// Takes an answer in the security stage, which ends with it if it `transits`, and appends what to say next.
    pub(super) fn take(&mut self, pairs: &Pairs, transits: bool, answers: &mut Pairs) -> Outcome {
        let outcome = match self.stage {
            ChapStage::Method => self.take_method(pairs, answers),
            ChapStage::Challenge => self.take_challenge(pairs, answers),
            ChapStage::Verdict(algorithm) => self.take_verdict(algorithm, pairs),
            ChapStage::Done => Outcome::Done,
        };
        match outcome {
            Outcome::Done => self.stage = ChapStage::Done,
            // The stage cannot end before the exchange has.
            Outcome::Continues if transits => return Outcome::Failed,
            _ => {}
        }
        // Our answer to the challenge asks for the next stage, though the verdict is still to come.
        if matches!(self.stage, ChapStage::Verdict(_)) && outcome == Outcome::Continues {
            Outcome::Done
        } else {
            outcome
        }
    }

    fn take_method(&mut self, pairs: &Pairs, answers: &mut Pairs) -> Outcome {
        match pairs.value("AuthMethod") {
            Some("CHAP") => {
                let codes: Vec<String> =
                    self.chap.algorithms.iter().map(|algorithm| (*algorithm as u8).to_string()).collect();
                answers.push("CHAP_A", codes.join(","));
                self.stage = ChapStage::Challenge;
                Outcome::Continues
            }
            None | Some("None") if self.chap.target.is_none() => Outcome::Done,
            _ => Outcome::Failed,
        }
    }

    fn take_challenge(&mut self, pairs: &Pairs, answers: &mut Pairs) -> Outcome {
        let value = |key| pairs.value(key).unwrap_or_default();
        let algorithm = crate::login::number(value("CHAP_A")).and_then(Algorithm::from_code);
        let Some(algorithm) = algorithm.filter(|algorithm| self.chap.algorithms.contains(algorithm)) else {
            return Outcome::Failed;
        };
        let Some(theirs) = Challenge::parse(value("CHAP_I"), value("CHAP_C")) else { return Outcome::Failed };
        let ourselves = &self.chap.ourselves;
        answers.push("CHAP_N", &ourselves.name);
        answers.push("CHAP_R", theirs.answer(algorithm, &ourselves.secret));
        if self.chap.target.is_some() {
            if theirs.reflects(&self.chap.challenge) {
                return Outcome::Failed;
            }
            answers.push("CHAP_I", self.chap.challenge.identifier());
            answers.push("CHAP_C", self.chap.challenge.value());
        }
        self.stage = ChapStage::Verdict(algorithm);
        Outcome::Continues
    }

    fn take_verdict(&self, algorithm: Algorithm, pairs: &Pairs) -> Outcome {
        let Some(target) = &self.chap.target else { return Outcome::Done };
        let (Some(name), Some(response)) = (pairs.value("CHAP_N"), pairs.value("CHAP_R")) else {
            return Outcome::Failed;
        };
        let is_named = target.name.is_empty() || target.name == name;
        // With our own secret a target could prove itself by asking us (RFC 7143 §9.2.1).
        let is_own = target.secret == self.chap.ourselves.secret;
        match is_named && !is_own && self.chap.challenge.is_answered_by(algorithm, &target.secret, response) {
            true => Outcome::Done,
            false => Outcome::Failed,
        }
    }
}
