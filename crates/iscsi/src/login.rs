//! What the two sides of a login settle: offers, the values agreed on, and the rules of each key (RFC 7143 §13). Who says
//! what when is in the session machines, authentication in `chap`.

#[cfg(test)]
mod tests;

use crate::PeerMisbehaved;
use crate::framer::Digests;
use crate::text::Pairs;

/// Bytes of data segment that every side takes before a login settles more (RFC 7143 §13.12).
pub const LOGIN_SEGMENT_BYTES: u32 = 8192;
/// Requests that one login may take, continued text included.
pub const LOGIN_ROUNDS_MAX: u32 = 64;
/// Ours (RFC 7143 §6.1, `X-`): why a login is refused, for people, in the response that refuses it.
pub(crate) const REASON_KEY: &str = "X-org.strongroom.Reason";
/// Longest reason that we give, in characters, and that we show, in bytes.
pub(crate) const REASON_CHARS_MAX: usize = 400;
pub(crate) const REASON_BYTES_MAX: usize = 2048;

/// RFC 7143 §13: lengths of segments and bursts.
const LENGTH_RANGE: std::ops::RangeInclusive<u32> = 512..=0xff_ffff;
/// RFC 7143 §13.15, §13.16: Time2Wait and Time2Retain, in seconds.
const TIME_MAX_S: u16 = 3600;
/// How much of a peer's value a message shows.
const SHOWN_BYTES: usize = 64;

/// Stages of a login (RFC 7143 §11.12.3).
pub(crate) mod stage {
    pub(crate) const SECURITY: u8 = 0;
    pub(crate) const OPERATIONAL: u8 = 1;
    pub(crate) const FULL_FEATURE: u8 = 3;
}

/// What this side says about digests (RFC 7143 §13.1). A target takes what the initiator prefers, as far as it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DigestOffer {
    /// None at all; a target rejects an initiator that insists.
    Never,
    /// Rather none, but CRC32C if the peer wants it.
    #[default]
    Allow,
    /// Rather CRC32C, but none if the peer does not have it.
    Prefer,
    /// CRC32C; a target refuses an initiator without, an initiator such a target.
    Require,
}

impl DigestOffer {
    fn list(self) -> &'static str {
        match self {
            DigestOffer::Never => "None",
            DigestOffer::Allow => "None,CRC32C",
            DigestOffer::Prefer => "CRC32C,None",
            DigestOffer::Require => "CRC32C",
        }
    }

    fn takes(self, choice: &str) -> bool {
        match choice {
            "None" => self != DigestOffer::Require,
            "CRC32C" => self != DigestOffer::Never,
            _ => false,
        }
    }
}

/// What this side declares and would like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// MaxRecvDataSegmentLength: the longest data segment that this side takes, in bytes.
    pub recv_segment_bytes_max: u32,
    /// FirstBurstLength: unsolicited data per command, immediate data included, in bytes.
    pub first_burst_bytes: u32,
    /// MaxBurstLength: solicited data per R2T, and data per Data-In burst, in bytes.
    pub max_burst_bytes: u32,
    /// InitialR2T: whether the first Data-Out waits for an R2T.
    pub initial_r2t: bool,
    /// ImmediateData: whether a command may carry data.
    pub immediate_data: bool,
    /// MaxOutstandingR2T: R2Ts in flight per command, at most 8.
    pub max_outstanding_r2t: u16,
    /// HeaderDigest; none inside a channel.
    pub header_digest: DigestOffer,
    /// DataDigest; none inside a channel.
    pub data_digest: DigestOffer,
    /// iSCSIProtocolLevel, at most 2. An initiator proposes what is above 1.
    pub protocol_level: u8,
    /// ErrorRecoveryLevel, at most 2; inside a channel, where nothing arrives damaged, 0 or 2.
    pub error_recovery_level: u8,
    /// MaxConnections: connections of one session.
    pub connections_max: u16,
    /// DefaultTime2Wait: how long to wait, after a connection was lost, before reconnecting, in seconds; the larger of both
    /// sides' holds.
    pub time2wait_s: u16,
    /// DefaultTime2Retain: for how long after that its tasks are kept, in seconds; the smaller of both sides' holds.
    pub time2retain_s: u16,
}

impl Default for Offer {
    /// 256 KiB segments, 1 MiB bursts and as much unsolicited data, some of it immediate: what spares round trips.
    fn default() -> Offer {
        Offer {
            recv_segment_bytes_max: 256 * 1024,
            first_burst_bytes: 1024 * 1024,
            max_burst_bytes: 1024 * 1024,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: 4,
            header_digest: DigestOffer::Allow,
            data_digest: DigestOffer::Allow,
            protocol_level: 2,
            error_recovery_level: 0,
            connections_max: 1,
            time2wait_s: 0,
            time2retain_s: 0,
        }
    }
}

impl Offer {
    /// The nearest offer that RFC 7143 allows: lengths in their ranges, the first burst within a burst. In a channel, which
    /// proves more than a digest could, there are none.
    #[must_use]
    pub(crate) fn clamped(&self, in_channel: bool) -> Offer {
        let digest = |offer: DigestOffer| if in_channel { DigestOffer::Never } else { offer };
        let within = |value: u32| value.clamp(*LENGTH_RANGE.start(), *LENGTH_RANGE.end());
        let max_burst_bytes = within(self.max_burst_bytes);
        Offer {
            recv_segment_bytes_max: within(self.recv_segment_bytes_max),
            first_burst_bytes: within(self.first_burst_bytes).min(max_burst_bytes),
            max_burst_bytes,
            max_outstanding_r2t: self.max_outstanding_r2t.clamp(1, 8),
            header_digest: digest(self.header_digest),
            data_digest: digest(self.data_digest),
            protocol_level: self.protocol_level.clamp(1, 2),
            error_recovery_level: match self.error_recovery_level.min(2) {
                1 if in_channel => 0,
                level => level,
            },
            connections_max: self.connections_max.max(1),
            time2wait_s: self.time2wait_s.min(TIME_MAX_S),
            time2retain_s: self.time2retain_s.min(TIME_MAX_S),
            ..self.clone()
        }
    }
}

/// What a login settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The longest data segment that the peer takes, in bytes.
    pub send_segment_bytes_max: u32,
    /// The longest data segment that this side takes, in bytes.
    pub recv_segment_bytes_max: u32,
    /// Unsolicited data per command, immediate data included, in bytes.
    pub first_burst_bytes: u32,
    /// Data per R2T and per Data-In burst, in bytes.
    pub max_burst_bytes: u32,
    /// Whether the first Data-Out waits for an R2T.
    pub initial_r2t: bool,
    /// Whether a command may carry data.
    pub immediate_data: bool,
    /// R2Ts in flight per command.
    pub max_outstanding_r2t: u16,
    /// Digests from full-feature phase on: tell the framer.
    pub digests: Digests,
    /// iSCSIProtocolLevel: from 2 on there are the task management functions of RFC 7144.
    pub protocol_level: u8,
    /// ErrorRecoveryLevel: 0, 1 with recovery of damaged data within a command, 2 with that of connections too.
    pub error_recovery_level: u8,
    /// MaxConnections: connections of this session at most.
    pub connections_max: u16,
    /// Time2Wait, in seconds.
    pub time2wait_s: u16,
    /// Time2Retain, in seconds.
    pub time2retain_s: u16,
}

impl Default for Agreed {
    /// What applies to a key that was not negotiated (RFC 7143 §13).
    fn default() -> Agreed {
        Agreed {
            send_segment_bytes_max: LOGIN_SEGMENT_BYTES,
            recv_segment_bytes_max: LOGIN_SEGMENT_BYTES,
            first_burst_bytes: 65536,
            max_burst_bytes: 262_144,
            initial_r2t: true,
            immediate_data: true,
            max_outstanding_r2t: 1,
            digests: Digests::default(),
            protocol_level: 1,
            error_recovery_level: 0,
            connections_max: 1,
            time2wait_s: 2,
            time2retain_s: 20,
        }
    }
}

/// One side's progress in settling the operational keys.
#[derive(Debug)]
pub(crate) struct Negotiation {
    offer: Offer,
    agreed: Agreed,
    declared: bool,
    proposed: Vec<&'static str>,
    /// Keys of [`ONCE`] that the peer has proposed.
    answered: Vec<&'static str>,
    is_discovery: bool,
    /// A further connection of a session: what holds for all of it is settled.
    is_joining: bool,
}

/// Operational keys that a login negotiates once (RFC 7143 §6.3: a second time is an error).
const ONCE: [&str; 15] = [
    "HeaderDigest",
    "DataDigest",
    "ErrorRecoveryLevel",
    "MaxConnections",
    "InitialR2T",
    "ImmediateData",
    "MaxBurstLength",
    "FirstBurstLength",
    "MaxOutstandingR2T",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "TaskReporting",
    "iSCSIProtocolLevel",
];
/// Those of them that say nothing in a discovery session.
const OF_NORMAL_SESSIONS: [&str; 8] = [
    "MaxConnections",
    "InitialR2T",
    "ImmediateData",
    "MaxBurstLength",
    "FirstBurstLength",
    "MaxOutstandingR2T",
    "DataPDUInOrder",
    "DataSequenceInOrder",
];

impl Negotiation {
    pub(crate) fn new(offer: &Offer) -> Negotiation {
        Negotiation {
            offer: offer.clamped(false),
            agreed: Agreed::default(),
            declared: false,
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

    /// Whether what holds is what this side insists on.
    pub(crate) fn is_acceptable(&self) -> bool {
        let fits = |offer: DigestOffer, agreed: bool| agreed || offer != DigestOffer::Require;
        let (offer, digests) = (&self.offer, self.agreed.digests);
        fits(offer.header_digest, digests.header) && fits(offer.data_digest, digests.data)
    }

    /// What holds, once the negotiation is over.
    pub(crate) fn agreed(&self) -> Agreed {
        let first_burst_bytes = self.agreed.first_burst_bytes.min(self.agreed.max_burst_bytes);
        Agreed { first_burst_bytes, ..self.agreed.clone() }
    }

    /// Appends MaxRecvDataSegmentLength, once: it is declared, not negotiated.
    pub(crate) fn declare(&mut self, out: &mut Pairs) {
        if !std::mem::replace(&mut self.declared, true) {
            out.push("MaxRecvDataSegmentLength", self.offer.recv_segment_bytes_max.to_string());
            self.agreed.recv_segment_bytes_max = self.offer.recv_segment_bytes_max;
        }
    }

    /// Appends everything that an initiator proposes.
    pub(crate) fn propose(&mut self, out: &mut Pairs) {
        let offer = self.offer.clone();
        let mut propose = |key: &'static str, value: String| {
            self.proposed.push(key);
            out.push(key, value);
        };
        propose("HeaderDigest", offer.header_digest.list().into());
        propose("DataDigest", offer.data_digest.list().into());
        if self.is_joining {
            return self.declare(out);
        }
        propose("ErrorRecoveryLevel", offer.error_recovery_level.to_string());
        propose("MaxConnections", offer.connections_max.to_string());
        propose("InitialR2T", yes_no(offer.initial_r2t).into());
        propose("ImmediateData", yes_no(offer.immediate_data).into());
        propose("MaxBurstLength", offer.max_burst_bytes.to_string());
        propose("FirstBurstLength", offer.first_burst_bytes.to_string());
        propose("MaxOutstandingR2T", offer.max_outstanding_r2t.to_string());
        propose("DefaultTime2Wait", offer.time2wait_s.to_string());
        propose("DefaultTime2Retain", offer.time2retain_s.to_string());
        propose("DataPDUInOrder", "Yes".into());
        propose("DataSequenceInOrder", "Yes".into());
        if offer.protocol_level > 1 {
            propose("iSCSIProtocolLevel", offer.protocol_level.to_string());
        }
        self.declare(out);
    }

    /// Takes the peer's keys: settles what answers our proposals, and appends answers to what the peer proposes. Keys of
    /// names and stages are the session's business and are passed over.
    pub(crate) fn take(&mut self, pairs: &Pairs, out: &mut Pairs) -> Result<(), PeerMisbehaved> {
        // The bound of FirstBurstLength must be known when it is answered.
        let is_late = |key: &str| key == "FirstBurstLength";
        for late in [false, true] {
            for (key, value) in pairs.iter().filter(|(key, _)| is_late(key) == late) {
                match self.proposed.iter().position(|proposed| *proposed == key) {
                    Some(at) => {
                        let key = self.proposed.swap_remove(at);
                        self.settle(key, value)?;
                    }
                    None => {
                        if let Some(answer) = self.answer(key, value)? {
                            out.push(key, answer);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The answer to a key that the peer proposes or declares; `None` when it wants none.
    fn answer(&mut self, key: &str, value: &str) -> Result<Option<String>, PeerMisbehaved> {
        let offer = &self.offer;
        // An answer to nothing that we asked, or to our declaration.
        if ["NotUnderstood", "Irrelevant", "Reject"].contains(&value) {
            return Ok(None);
        }
        if let Some(once) = ONCE.iter().find(|once| **once == key) {
            if self.answered.contains(once) {
                return Err(PeerMisbehaved::Login("a key is negotiated for the second time"));
            }
            self.answered.push(once);
        }
        let is_irrelevant = match key {
            // RFC 7143 §13.14: there is no unsolicited data at all.
            "FirstBurstLength" if self.agreed.initial_r2t && !self.agreed.immediate_data => true,
            _ => self.is_discovery && OF_NORMAL_SESSIONS.contains(&key),
        };
        if is_irrelevant {
            return Ok(Some("Irrelevant".to_owned()));
        }
        let reject = Ok(Some("Reject".to_owned()));
        let is_connections_own = ["HeaderDigest", "DataDigest"].contains(&key);
        if self.is_joining && ONCE.contains(&key) && !is_connections_own {
            return reject;
        }
        let answer = match key {
            "MaxRecvDataSegmentLength" => {
                self.agreed.send_segment_bytes_max = length("MaxRecvDataSegmentLength", value)?;
                return Ok(None);
            }
            // RFC 7143 §6.2.2: the first of the list that we take.
            "HeaderDigest" | "DataDigest" => {
                let is_header = key == "HeaderDigest";
                let ours = if is_header { offer.header_digest } else { offer.data_digest };
                let Some(choice) = value.split(',').find(|choice| ours.takes(choice)) else { return reject };
                let held = if is_header { &mut self.agreed.digests.header } else { &mut self.agreed.digests.data };
                *held = choice == "CRC32C";
                choice.to_owned()
            }
            "ErrorRecoveryLevel" => match number(value) {
                Some(theirs @ 0..=2) => {
                    self.agreed.error_recovery_level = offer.error_recovery_level.min(theirs as u8);
                    self.agreed.error_recovery_level.to_string()
                }
                _ => return reject,
            },
            "MaxConnections" => match number(value) {
                Some(theirs @ 1..=65535) => {
                    self.agreed.connections_max = offer.connections_max.min(theirs as u16);
                    self.agreed.connections_max.to_string()
                }
                _ => return reject,
            },
            "InitialR2T" => match yes_or_no(value) {
                Some(theirs) => {
                    self.agreed.initial_r2t = theirs || offer.initial_r2t;
                    yes_no(self.agreed.initial_r2t).to_owned()
                }
                None => return reject,
            },
            "ImmediateData" => match yes_or_no(value) {
                Some(theirs) => {
                    self.agreed.immediate_data = theirs && offer.immediate_data;
                    yes_no(self.agreed.immediate_data).to_owned()
                }
                None => return reject,
            },
            "MaxBurstLength" => match number(value).filter(|value| LENGTH_RANGE.contains(value)) {
                Some(theirs) => {
                    self.agreed.max_burst_bytes = theirs.min(offer.max_burst_bytes);
                    self.agreed.max_burst_bytes.to_string()
                }
                None => return reject,
            },
            "FirstBurstLength" => match number(value).filter(|value| LENGTH_RANGE.contains(value)) {
                Some(theirs) => {
                    let bound = offer.first_burst_bytes.min(self.agreed.max_burst_bytes);
                    self.agreed.first_burst_bytes = theirs.min(bound);
                    self.agreed.first_burst_bytes.to_string()
                }
                None => return reject,
            },
            "MaxOutstandingR2T" => match number(value) {
                Some(theirs @ 1..=65535) => {
                    self.agreed.max_outstanding_r2t = offer.max_outstanding_r2t.min(theirs as u16);
                    self.agreed.max_outstanding_r2t.to_string()
                }
                _ => return reject,
            },
            "DefaultTime2Wait" => match time(value) {
                Some(theirs) => {
                    self.agreed.time2wait_s = theirs.max(offer.time2wait_s);
                    self.agreed.time2wait_s.to_string()
                }
                None => return reject,
            },
            "DefaultTime2Retain" => match time(value) {
                Some(theirs) => {
                    self.agreed.time2retain_s = theirs.min(offer.time2retain_s);
                    self.agreed.time2retain_s.to_string()
                }
                None => return reject,
            },
            "DataPDUInOrder" | "DataSequenceInOrder" => match yes_or_no(value) {
                Some(_) => "Yes".to_owned(),
                None => return reject,
            },
            // Obsolete since RFC 7143 §13.25, still sent by initiators.
            "IFMarker" | "OFMarker" => "No".to_owned(),
            "IFMarkInt" | "OFMarkInt" => "Irrelevant".to_owned(),
            "TaskReporting" => match value.split(',').any(|choice| choice == "RFC3720") {
                true => "RFC3720".to_owned(),
                false => return reject,
            },
            // RFC 7144: level 1 is what RFC 7143 describes, level 2 adds task management functions.
            "iSCSIProtocolLevel" => match number(value) {
                Some(theirs @ 0..=31) => {
                    self.agreed.protocol_level = offer.protocol_level.min(theirs as u8);
                    self.agreed.protocol_level.to_string()
                }
                _ => return reject,
            },
            "InitiatorName"
            | "InitiatorAlias"
            | "TargetName"
            | "TargetAlias"
            | "TargetAddress"
            | "SessionType"
            | "TargetPortalGroupTag"
            | "AuthMethod"
            | "CHAP_A"
            | "CHAP_I"
            | "CHAP_C"
            | "CHAP_N"
            | "CHAP_R" => return Ok(None),
            "SendTargets" => return reject,
            _ => "NotUnderstood".to_owned(),
        };
        Ok(Some(answer))
    }

    /// The peer's answer to a key that we proposed. What it does not understand or want keeps its default.
    fn settle(&mut self, key: &'static str, value: &str) -> Result<(), PeerMisbehaved> {
        if ["NotUnderstood", "Irrelevant", "Reject"].contains(&value) {
            return Ok(());
        }
        let offer = &self.offer;
        let wrong = || misfit(key, value);
        match key {
            "HeaderDigest" if offer.header_digest.takes(value) => self.agreed.digests.header = value == "CRC32C",
            "DataDigest" if offer.data_digest.takes(value) => self.agreed.digests.data = value == "CRC32C",
            "HeaderDigest" | "DataDigest" => return Err(wrong()),
            "ErrorRecoveryLevel" => {
                let settled = number(value).filter(|level| *level <= u32::from(offer.error_recovery_level));
                self.agreed.error_recovery_level = settled.ok_or_else(wrong)? as u8;
            }
            "DataPDUInOrder" | "DataSequenceInOrder" if value != "Yes" => return Err(wrong()),
            "iSCSIProtocolLevel" => {
                let settled = number(value).filter(|level| (1..=31).contains(level)).ok_or_else(wrong)?;
                self.agreed.protocol_level = offer.protocol_level.min(settled as u8);
            }
            "InitialR2T" => {
                let settled = yes_or_no(value).ok_or_else(wrong)?;
                self.agreed.initial_r2t = settled || offer.initial_r2t;
            }
            "ImmediateData" => {
                let settled = yes_or_no(value).ok_or_else(wrong)?;
                self.agreed.immediate_data = settled && offer.immediate_data;
            }
            "MaxBurstLength" => self.agreed.max_burst_bytes = length(key, value)?.min(offer.max_burst_bytes),
            "FirstBurstLength" => self.agreed.first_burst_bytes = length(key, value)?.min(offer.first_burst_bytes),
            "MaxOutstandingR2T" => {
                let settled = number(value).filter(|value| (1..=65535).contains(value)).ok_or_else(wrong)?;
                self.agreed.max_outstanding_r2t = offer.max_outstanding_r2t.min(settled as u16);
            }
            "MaxConnections" => {
                let settled = number(value).filter(|value| (1..=65535).contains(value)).ok_or_else(wrong)?;
                self.agreed.connections_max = offer.connections_max.min(settled as u16);
            }
            "DefaultTime2Wait" => {
                self.agreed.time2wait_s = time(value).ok_or_else(wrong)?.max(offer.time2wait_s);
            }
            "DefaultTime2Retain" => {
                self.agreed.time2retain_s = time(value).ok_or_else(wrong)?.min(offer.time2retain_s);
            }
            _ => {}
        }
        Ok(())
    }
}

/// A number as RFC 7143 §6.1 writes it: decimal or, behind 0x, hexadecimal.
pub(crate) fn number(value: &str) -> Option<u32> {
    let all = |digits: &str, radix: u32| !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => all(digits, 16).then(|| u32::from_str_radix(digits, 16).ok()).flatten(),
        None => all(value, 10).then(|| value.parse().ok()).flatten(),
    }
}

fn length(key: &'static str, value: &str) -> Result<u32, PeerMisbehaved> {
    number(value).filter(|value| LENGTH_RANGE.contains(value)).ok_or_else(|| misfit(key, value))
}

fn time(value: &str) -> Option<u16> {
    number(value).and_then(|seconds| u16::try_from(seconds).ok()).filter(|seconds| *seconds <= TIME_MAX_S)
}

fn misfit(key: &'static str, value: &str) -> PeerMisbehaved {
    PeerMisbehaved::Key { key, value: value.chars().take(SHOWN_BYTES).collect() }
}

fn yes_or_no(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}
