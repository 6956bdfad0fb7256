//! The negotiation of operational keys (RFC 7143 §6.2, §13): what one side proposes and answers, and what holds in the end. The same for
//! both roles: the initiator proposes, either side answers what the other proposes.

use super::keys::{FIRST_BURST_LENGTH, KEYS, Key, MAX_RECV_DATA_SEGMENT_LENGTH, Rule, UseIn, key};
use super::offer::{Agreed, DigestOffer, Offer};
use super::values::{LENGTH_RANGE, misfit, number, yes_no, yes_or_no};
use crate::error::PeerMisbehaved;
use crate::text::Pairs;

/// Answers that settle nothing: the key keeps its default.
const REFUSALS: [&str; 3] = ["NotUnderstood", "Irrelevant", "Reject"];

/// One side's progress in settling the operational keys.
#[derive(Debug)]
pub(crate) struct Negotiation {
    offer: Offer,
    agreed: Agreed,
    is_declared: bool,
    /// Keys that we have proposed and that were not answered yet.
    proposed: Vec<&'static str>,
    /// Keys that the peer has proposed.
    answered: Vec<&'static str>,
    is_discovery: bool,
    /// A further connection of a session: what holds for all of it is settled.
    is_joining: bool,
}

impl Negotiation {
    pub(crate) fn new(offer: &Offer) -> Negotiation {
        Negotiation {
            offer: offer.clamped(false),
            agreed: Agreed::default(),
            is_declared: false,
            proposed: Vec::new(),
            answered: Vec::new(),
            is_discovery: false,
            is_joining: false,
        }
    }

    /// For a further connection of a session, whose leading login settled `session`: only digests and segment lengths are a
    /// connection's own (RFC 7143 §13: the others may be used on the leading connection only).
    pub(crate) fn joining(offer: &Offer, session: &Agreed) -> Negotiation {
        let mut negotiation = Negotiation::new(offer);
        negotiation.join(session);
        negotiation
    }

    /// The same for one that has begun.
    pub(crate) fn join(&mut self, session: &Agreed) {
        self.is_joining = true;
        self.agreed = Agreed {
            send_segment_bytes_max: self.agreed.send_segment_bytes_max,
            recv_segment_bytes_max: self.agreed.recv_segment_bytes_max,
            digests: self.agreed.digests,
            ..session.clone()
        };
    }

    /// Keys that are about commands and their data are irrelevant.
    pub(crate) fn set_discovery(&mut self) {
        self.is_discovery = true;
    }

    /// Whether the result is what this side insists on.
    pub(crate) fn is_acceptable(&self) -> bool {
        let fits = |offer: DigestOffer, agreed: bool| agreed || offer != DigestOffer::Require;
        let (offer, digests) = (&self.offer, self.agreed.digests);
        fits(offer.header_digest, digests.header) && fits(offer.data_digest, digests.data)
    }

    /// The result, once the negotiation is over.
    pub(crate) fn agreed(&self) -> Agreed {
        let first_burst_bytes = self.agreed.first_burst_bytes.min(self.agreed.max_burst_bytes);
        Agreed { first_burst_bytes, ..self.agreed.clone() }
    }

    /// Appends MaxRecvDataSegmentLength, once: it is declared, not negotiated.
    pub(crate) fn declare(&mut self, out: &mut Pairs) {
        if !std::mem::replace(&mut self.is_declared, true) {
            out.push(MAX_RECV_DATA_SEGMENT_LENGTH, self.offer.recv_segment_bytes_max.to_string());
            self.agreed.recv_segment_bytes_max = self.offer.recv_segment_bytes_max;
        }
    }

    /// Appends everything that an initiator proposes.
    pub(crate) fn propose(&mut self, out: &mut Pairs) {
        for key in &KEYS {
            if self.is_joining && key.use_in != UseIn::EachConnection {
                continue;
            }
            if let Some(value) = proposal(key, &self.offer) {
                self.proposed.push(key.name);
                out.push(key.name, value);
            }
        }
        self.declare(out);
    }

    /// Takes the peer's keys: settles what answers our proposals, and appends answers to what the peer proposes.
    pub(crate) fn take(&mut self, pairs: &Pairs, out: &mut Pairs) -> Result<(), PeerMisbehaved> {
        // MaxBurstLength must be known when FirstBurstLength is answered.
        for is_late in [false, true] {
            for (name, value) in pairs.iter().filter(|(name, _)| (*name == FIRST_BURST_LENGTH) == is_late) {
                if let Some(at) = self.proposed.iter().position(|proposed| *proposed == name) {
                    self.proposed.swap_remove(at);
                    self.settle(key(name).expect("we proposed it from the table"), value)?;
                } else if let Some(answer) = self.answer(name, value)? {
                    out.push(name, answer);
                }
            }
        }
        Ok(())
    }

    /// The answer to a key that the peer proposes or declares; `None` when it wants none.
    fn answer(&mut self, name: &str, value: &str) -> Result<Option<String>, PeerMisbehaved> {
        // An answer to a proposal that was answered before, or to our declaration.
        if REFUSALS.contains(&value) {
            return Ok(None);
        }
        let Some(key) = key(name) else { return Ok(Some("NotUnderstood".to_owned())) };
        if key.use_in != UseIn::AnyText {
            if self.answered.contains(&key.name) {
                return Err(PeerMisbehaved::Login("a key is negotiated for the second time"));
            }
            self.answered.push(key.name);
        }
        // RFC 7143 §13.14: without unsolicited data FirstBurstLength means nothing.
        let has_no_first_burst = self.agreed.initial_r2t && !self.agreed.immediate_data;
        if (self.is_discovery && key.use_in == UseIn::NormalSession)
            || (key.name == FIRST_BURST_LENGTH && has_no_first_burst)
        {
            return Ok(Some("Irrelevant".to_owned()));
        }
        if self.is_joining && matches!(key.use_in, UseIn::LeadingConnection | UseIn::NormalSession) {
            return Ok(Some("Reject".to_owned()));
        }
        match key.rule {
            Rule::Elsewhere => Ok(None),
            Rule::Declare => {
                let is_length = |bytes: &u32| LENGTH_RANGE.contains(bytes);
                let bytes = number(value).filter(is_length).ok_or_else(|| misfit(key.name, value))?;
                self.agreed.send_segment_bytes_max = bytes;
                Ok(None)
            }
            _ => Ok(Some(self.answer_by_rule(&key.rule, value).unwrap_or_else(|| "Reject".to_owned()))),
        }
    }

    /// The answer to a proposed value, which is settled by it; `None`: the value is none that the key can have.
    fn answer_by_rule(&mut self, rule: &Rule, value: &str) -> Option<String> {
        let offer = &self.offer;
        match rule {
            Rule::Digest { offer: digest, set } => {
                let choice = value.split(',').find(|choice| digest(offer).takes(choice))?;
                set(&mut self.agreed, choice == "CRC32C");
                Some(choice.to_owned())
            }
            Rule::Number(rule) => {
                let theirs = number(value).filter(|theirs| rule.proposals.contains(theirs))?;
                let ceiling = rule.ceiling.map_or(u32::MAX, |ceiling| ceiling(&self.agreed));
                let result = rule.result(offer, theirs).min(ceiling);
                (rule.set)(&mut self.agreed, result);
                Some(result.to_string())
            }
            Rule::Boolean { offer: ours, result, set } => {
                let result = result.of(ours(offer), yes_or_no(value)?);
                set(&mut self.agreed, result);
                Some(yes_no(result).to_owned())
            }
            Rule::AlwaysYes => yes_or_no(value).map(|_| "Yes".to_owned()),
            Rule::TaskReporting => value.split(',').any(|choice| choice == "RFC3720").then(|| "RFC3720".to_owned()),
            Rule::Answer(answer) => Some((*answer).to_owned()),
            Rule::Declare | Rule::Elsewhere => None,
        }
    }

    /// The peer's answer to a key that we proposed. A key that it refuses keeps its default.
    fn settle(&mut self, key: &Key, value: &str) -> Result<(), PeerMisbehaved> {
        if REFUSALS.contains(&value) {
            return Ok(());
        }
        let offer = &self.offer;
        let wrong = || misfit(key.name, value);
        match &key.rule {
            Rule::Digest { offer: digest, set } => {
                if !digest(offer).takes(value) {
                    return Err(wrong());
                }
                set(&mut self.agreed, value == "CRC32C");
            }
            Rule::Number(rule) => {
                let answers = (rule.answers)(offer);
                let theirs = number(value).filter(|theirs| answers.contains(theirs)).ok_or_else(wrong)?;
                (rule.set)(&mut self.agreed, rule.result(offer, theirs));
            }
            Rule::Boolean { offer: ours, result, set } => {
                let theirs = yes_or_no(value).ok_or_else(wrong)?;
                set(&mut self.agreed, result.of(ours(offer), theirs));
            }
            Rule::AlwaysYes if value != "Yes" => return Err(wrong()),
            Rule::AlwaysYes | Rule::TaskReporting | Rule::Answer(_) | Rule::Declare | Rule::Elsewhere => {}
        }
        Ok(())
    }
}

/// What an initiator proposes for a key; `None` for nothing.
fn proposal(key: &Key, offer: &Offer) -> Option<String> {
    match &key.rule {
        Rule::Digest { offer: digest, .. } => Some(digest(offer).list().to_owned()),
        // RFC 7144 §5: level 1 is what a peer assumes without the key.
        Rule::Number(_) if key.name == "iSCSIProtocolLevel" && offer.protocol_level <= 1 => None,
        Rule::Number(rule) => Some((rule.offer)(offer).to_string()),
        Rule::Boolean { offer: ours, .. } => Some(yes_no(ours(offer)).to_owned()),
        Rule::AlwaysYes => Some("Yes".to_owned()),
        Rule::Declare | Rule::TaskReporting | Rule::Answer(_) | Rule::Elsewhere => None,
    }
}
