//! The keys of a login, one row each: who may use it where, and the rule by which its value is settled (RFC 7143 §13). Both roles
//! negotiate from this table.

use std::ops::RangeInclusive;

use super::offer::{Agreed, DigestOffer, Offer};
use super::values::{LENGTH_RANGE, TIME_MAX_S};

/// One key.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) use_in: UseIn,
    pub(super) rule: Rule,
}

/// Where a key means something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UseIn {
    /// Not part of the negotiation: may appear anywhere, any number of times.
    AnyText,
    /// Each connection has its own value, in discovery sessions too.
    EachConnection,
    /// On the leading connection only, in discovery sessions too.
    LeadingConnection,
    /// On the leading connection of normal sessions; irrelevant in discovery sessions.
    NormalSession,
}

/// How the value of a key is settled.
pub(super) enum Rule {
    /// MaxRecvDataSegmentLength: each side declares its own; there is no answer.
    Declare,
    /// HeaderDigest, DataDigest: the first of the proposed list that the other side accepts (RFC 7143 §6.2.2).
    Digest { offer: fn(&Offer) -> DigestOffer, set: fn(&mut Agreed, bool) },
    /// The smaller or the larger of both sides' numbers.
    Number(NumberRule),
    /// A Boolean.
    Boolean { offer: fn(&Offer) -> bool, result: BooleanResult, set: fn(&mut Agreed, bool) },
    /// Data must be in order here, and `Yes` of either side settles that.
    AlwaysYes,
    /// TaskReporting: only the semantics of RFC 3720.
    TaskReporting,
    /// Always answered in the same way.
    Answer(&'static str),
    /// About names, stages and authentication: handled by the login of each role.
    Elsewhere,
}

/// The rule of a numerical key.
pub(super) struct NumberRule {
    /// What may be proposed to us.
    pub(super) proposals: RangeInclusive<u32>,
    /// What may be answered to our proposal.
    pub(super) answers: fn(&Offer) -> RangeInclusive<u32>,
    /// What we propose, or would like.
    pub(super) offer: fn(&Offer) -> u32,
    /// An upper bound on our answer that depends on another key.
    pub(super) ceiling: Option<fn(&Agreed) -> u32>,
    pub(super) result: NumberResult,
    pub(super) set: fn(&mut Agreed, u32),
}

/// Which of both sides' numbers holds.
#[derive(Clone, Copy)]
pub(super) enum NumberResult {
    Smaller,
    Larger,
}

/// How both sides' Booleans are combined.
#[derive(Clone, Copy)]
pub(super) enum BooleanResult {
    And,
    Or,
}

impl NumberRule {
    /// What holds when the other side has said `theirs`.
    pub(super) fn result(&self, offer: &Offer, theirs: u32) -> u32 {
        match self.result {
            NumberResult::Smaller => theirs.min((self.offer)(offer)),
            NumberResult::Larger => theirs.max((self.offer)(offer)),
        }
    }
}

impl BooleanResult {
    pub(super) fn of(self, ours: bool, theirs: bool) -> bool {
        match self {
            BooleanResult::And => ours && theirs,
            BooleanResult::Or => ours || theirs,
        }
    }
}

/// FirstBurstLength is settled after MaxBurstLength, which bounds it.
pub(super) const FIRST_BURST_LENGTH: &str = "FirstBurstLength";
pub(super) const MAX_RECV_DATA_SEGMENT_LENGTH: &str = "MaxRecvDataSegmentLength";

const WORD: RangeInclusive<u32> = 1..=65535;
const TIME: RangeInclusive<u32> = 0..=TIME_MAX_S as u32;

const fn smaller(range: RangeInclusive<u32>, offer: fn(&Offer) -> u32, set: fn(&mut Agreed, u32)) -> NumberRule {
    NumberRule { proposals: range, answers: |_| WORD, offer, ceiling: None, result: NumberResult::Smaller, set }
}

/// All keys, in the order in which an initiator proposes them.
pub(super) static KEYS: [Key; 34] = [
    Key {
        name: "HeaderDigest",
        use_in: UseIn::EachConnection,
        rule: Rule::Digest { offer: |offer| offer.header_digest, set: |agreed, is_on| agreed.digests.header = is_on },
    },
    Key {
        name: "DataDigest",
        use_in: UseIn::EachConnection,
        rule: Rule::Digest { offer: |offer| offer.data_digest, set: |agreed, is_on| agreed.digests.data = is_on },
    },
    Key {
        name: "ErrorRecoveryLevel",
        use_in: UseIn::LeadingConnection,
        rule: Rule::Number(NumberRule {
            answers: |offer| 0..=u32::from(offer.error_recovery_level),
            ..smaller(
                0..=2,
                |offer| offer.error_recovery_level.into(),
                |agreed, level| agreed.error_recovery_level = level as u8,
            )
        }),
    },
    Key {
        name: "MaxConnections",
        use_in: UseIn::NormalSession,
        rule: Rule::Number(smaller(
            WORD,
            |offer| offer.connections_max.into(),
            |agreed, count| agreed.connections_max = count as u16,
        )),
    },
    Key {
        name: "InitialR2T",
        use_in: UseIn::NormalSession,
        rule: Rule::Boolean {
            offer: |offer| offer.initial_r2t,
            result: BooleanResult::Or,
            set: |agreed, value| agreed.initial_r2t = value,
        },
    },
    Key {
        name: "ImmediateData",
        use_in: UseIn::NormalSession,
        rule: Rule::Boolean {
            offer: |offer| offer.immediate_data,
            result: BooleanResult::And,
            set: |agreed, value| agreed.immediate_data = value,
        },
    },
    Key {
        name: "MaxBurstLength",
        use_in: UseIn::NormalSession,
        rule: Rule::Number(NumberRule {
            answers: |_| LENGTH_RANGE,
            ..smaller(LENGTH_RANGE, |offer| offer.max_burst_bytes, |agreed, bytes| agreed.max_burst_bytes = bytes)
        }),
    },
    Key {
        name: FIRST_BURST_LENGTH,
        use_in: UseIn::NormalSession,
        rule: Rule::Number(NumberRule {
            answers: |_| LENGTH_RANGE,
            ceiling: Some(|agreed| agreed.max_burst_bytes),
            ..smaller(LENGTH_RANGE, |offer| offer.first_burst_bytes, |agreed, bytes| agreed.first_burst_bytes = bytes)
        }),
    },
    Key {
        name: "MaxOutstandingR2T",
        use_in: UseIn::NormalSession,
        rule: Rule::Number(smaller(
            WORD,
            |offer| offer.max_outstanding_r2t.into(),
            |agreed, count| agreed.max_outstanding_r2t = count as u16,
        )),
    },
    Key {
        name: "DefaultTime2Wait",
        use_in: UseIn::LeadingConnection,
        rule: Rule::Number(NumberRule {
            answers: |_| TIME,
            result: NumberResult::Larger,
            ..smaller(TIME, |offer| offer.time2wait_s.into(), |agreed, seconds| agreed.time2wait_s = seconds as u16)
        }),
    },
    Key {
        name: "DefaultTime2Retain",
        use_in: UseIn::LeadingConnection,
        rule: Rule::Number(NumberRule {
            answers: |_| TIME,
            ..smaller(TIME, |offer| offer.time2retain_s.into(), |agreed, seconds| agreed.time2retain_s = seconds as u16)
        }),
    },
    Key { name: "DataPDUInOrder", use_in: UseIn::NormalSession, rule: Rule::AlwaysYes },
    Key { name: "DataSequenceInOrder", use_in: UseIn::NormalSession, rule: Rule::AlwaysYes },
    Key {
        // RFC 7144: level 1 is what RFC 7143 describes, level 2 adds task management functions.
        name: "iSCSIProtocolLevel",
        use_in: UseIn::LeadingConnection,
        rule: Rule::Number(NumberRule {
            answers: |_| 1..=31,
            ..smaller(0..=31, |offer| offer.protocol_level.into(), |agreed, level| agreed.protocol_level = level as u8)
        }),
    },
    Key { name: "TaskReporting", use_in: UseIn::LeadingConnection, rule: Rule::TaskReporting },
    Key { name: MAX_RECV_DATA_SEGMENT_LENGTH, use_in: UseIn::AnyText, rule: Rule::Declare },
    // Obsolete since RFC 7143 §13.25, still sent by initiators.
    Key { name: "IFMarker", use_in: UseIn::AnyText, rule: Rule::Answer("No") },
    Key { name: "OFMarker", use_in: UseIn::AnyText, rule: Rule::Answer("No") },
    Key { name: "IFMarkInt", use_in: UseIn::AnyText, rule: Rule::Answer("Irrelevant") },
    Key { name: "OFMarkInt", use_in: UseIn::AnyText, rule: Rule::Answer("Irrelevant") },
    Key { name: "SendTargets", use_in: UseIn::AnyText, rule: Rule::Answer("Reject") },
    Key { name: "InitiatorName", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "InitiatorAlias", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "TargetName", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "TargetAlias", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "TargetAddress", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "SessionType", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "TargetPortalGroupTag", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "AuthMethod", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "CHAP_A", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "CHAP_I", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "CHAP_C", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "CHAP_N", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
    Key { name: "CHAP_R", use_in: UseIn::AnyText, rule: Rule::Elsewhere },
];

/// The row of a key.
pub(super) fn key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}
