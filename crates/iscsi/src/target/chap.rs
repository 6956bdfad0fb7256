//! CHAP as a target does it (RFC 7143 §12.1.3): which algorithm, our challenge, the initiator's response, and ours to its own.

use super::refusal::Refusal;
use crate::chap::{Algorithm, Challenge, Credentials};
use crate::text::Pairs;

/// Whom a login must prove to be. The challenge must be fresh.
#[derive(Clone, Debug)]
pub struct ChapPolicy {
    /// Who is taken.
    pub users: Vec<ChapUser>,
    /// What may be used; the initiator's order decides among them.
    pub algorithms: Vec<Algorithm>,
    /// What the initiator has to answer.
    pub challenge: Challenge,
    /// An initiator that offers no CHAP is refused; else it goes on unauthenticated.
    pub is_required: bool,
}

/// A user who may log in.
#[derive(Clone, Debug)]
pub struct ChapUser {
    /// What the initiator proves.
    pub initiator: Credentials,
    /// What we prove to this user if it asks; `None` refuses one that does.
    pub target: Option<Credentials>,
}

/// An exchange in progress.
#[derive(Debug)]
pub(super) struct ChapExchange {
    policy: ChapPolicy,
    stage: ChapStage,
    /// What the initiator calls itself.
    name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChapStage {
    Method,
    Algorithm,
    Response(Algorithm),
}

/// What follows from a text of the exchange.
#[derive(Debug)]
pub(super) enum Progress {
    /// More is to come; the answers go out.
    Continues,
    /// It is over: who the initiator is, if it had to prove that.
    Done { user: Option<String> },
}

impl ChapExchange {
    pub(super) fn new(policy: ChapPolicy) -> ChapExchange {
        ChapExchange { policy, stage: ChapStage::Method, name: None }
    }

    pub(super) fn is_required(&self) -> bool {
        self.policy.is_required || self.stage != ChapStage::Method
    }

    /// Takes the keys of one text in the security stage and appends the answers.
    pub(super) fn take(&mut self, pairs: &Pairs, answers: &mut Pairs) -> Result<Progress, Refusal> {
        if self.stage == ChapStage::Method {
            // RFC 7143 §6.2.2: the first of the list that we can.
            let offered = pairs.value("AuthMethod").unwrap_or("None");
            let is_ours = |method: &&str| *method == "CHAP" || (*method == "None" && !self.policy.is_required);
            match offered.split(',').find(is_ours) {
                Some("CHAP") => answers.push("AuthMethod", "CHAP"),
                Some(_) => {
                    if pairs.value("AuthMethod").is_some() {
                        answers.push("AuthMethod", "None");
                    }
                    return Ok(Progress::Done { user: None });
                }
                None => {
                    return Err(Refusal::authentication("the initiator does not offer CHAP, which is required here"));
                }
            }
            self.stage = ChapStage::Algorithm;
            // Some send what belongs to the next text along with the method.
            if pairs.value("CHAP_A").is_none() {
                return Ok(Progress::Continues);
            }
        } else if pairs.value("AuthMethod").is_some() {
            return Err(Refusal::authentication("AuthMethod for the second time"));
        }
        match self.stage {
            ChapStage::Method => unreachable!("left above"),
            ChapStage::Algorithm => self.choose(pairs, answers),
            ChapStage::Response(algorithm) => self.verify(algorithm, pairs, answers),
        }
    }

    fn choose(&mut self, pairs: &Pairs, answers: &mut Pairs) -> Result<Progress, Refusal> {
        let offered = pairs.value("CHAP_A").ok_or_else(|| Refusal::authentication("no CHAP_A"))?;
        let known = |code: &str| Algorithm::from_code(crate::login::number(code)?);
        let algorithm = offered
            .split(',')
            .filter_map(known)
            .find(|algorithm| self.policy.algorithms.contains(algorithm))
            .ok_or_else(|| Refusal::authentication("none of the initiator's CHAP algorithms is allowed here"))?;
        answers.push("CHAP_A", (algorithm as u8).to_string());
        answers.push("CHAP_I", self.policy.challenge.identifier());
        answers.push("CHAP_C", self.policy.challenge.value());
        self.stage = ChapStage::Response(algorithm);
        Ok(Progress::Continues)
    }

    /// The name that the initiator gave, once it has.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn verify(&mut self, algorithm: Algorithm, pairs: &Pairs, answers: &mut Pairs) -> Result<Progress, Refusal> {
        let (Some(name), Some(response)) = (pairs.value("CHAP_N"), pairs.value("CHAP_R")) else {
            return Err(Refusal::authentication("no CHAP_N or no CHAP_R"));
        };
        self.name = Some(name.to_owned());
        let policy = &self.policy;
        // An unknown name takes as long as one with a wrong response.
        let user = policy.users.iter().find(|user| user.initiator.name == name);
        let asked =
            user.or(policy.users.first()).ok_or_else(|| Refusal::authentication("no user may log in by CHAP"))?;
        let is_right = policy.challenge.is_answered_by(algorithm, &asked.initiator.secret, response);
        if !is_right || user.is_none() {
            return Err(Refusal::authentication(match user {
                Some(_) => "the CHAP secret is wrong",
                None => "no CHAP user of that name may log in here",
            }));
        }
        match (pairs.value("CHAP_I"), pairs.value("CHAP_C")) {
            (None, None) => {}
            (Some(identifier), Some(challenge)) => {
                let ourselves = asked
                    .target
                    .as_ref()
                    .ok_or_else(|| Refusal::authentication("this target has no secret to prove itself with"))?;
                let theirs = Challenge::parse(identifier, challenge)
                    .ok_or_else(|| Refusal::authentication("a malformed challenge"))?;
                if theirs.reflects(&policy.challenge) {
                    return Err(Refusal::authentication(
                        "our own challenge came back: an attacker wants us to answer it",
                    ));
                }
                answers.push("CHAP_N", &ourselves.name);
                answers.push("CHAP_R", theirs.answer(algorithm, &ourselves.secret));
            }
            _ => return Err(Refusal::authentication("half a challenge")),
        }
        Ok(Progress::Done { user: Some(name.to_owned()) })
    }
}
