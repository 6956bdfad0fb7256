//! CHAP users and their secrets, and what a login has to prove by them. The files of the secrets are read by the binary.

use std::collections::HashMap;

use strongroom_iscsi::chap::{Algorithm, Challenge, Credentials, Secret};
use strongroom_iscsi::target::{ChapPolicy, ChapUser};

use crate::config::{ChapRule, Config};
use crate::error::ConfigError;

/// The secrets of a configuration's `[[chap]]` users, by user name.
#[derive(Clone, Debug, Default)]
pub struct ChapSecrets(HashMap<String, UserSecrets>);

/// What one user and the target prove themselves with.
#[derive(Clone, Debug)]
struct UserSecrets {
    initiator: Secret,
    target: Option<Secret>,
}

impl ChapSecrets {
    /// Adds a user's secret, and the one that the target proves itself with to this user.
    pub fn insert(&mut self, user: impl Into<String>, initiator: Secret, target: Option<Secret>) {
        self.0.insert(user.into(), UserSecrets { initiator, target });
    }
}

/// The users of a configuration with their secrets.
#[derive(Clone, Debug, Default)]
pub(super) struct ChapUsers(Vec<ChapUser>);

/// What a login has to prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChapDemand {
    /// As one of these users.
    pub users: Vec<String>,
    /// Or not at all, if the initiator offers nothing.
    pub is_required: bool,
}

impl ChapUsers {
    pub(super) fn new(config: &Config, secrets: &ChapSecrets) -> Result<ChapUsers, ConfigError> {
        let user = |(index, rule): (usize, &ChapRule)| {
            let at = |field| format!("chap[{index}] ('{}').{field}", rule.user);
            let found = secrets.0.get(&rule.user).ok_or_else(|| {
                ConfigError::value(at("secret_file"), "has not been read; name a file that only its owner can read")
            })?;
            let target = match (&rule.target_user, &found.target) {
                (_, Some(secret)) if *secret == found.initiator => {
                    let problem = "holds the user's own secret, which would let each side play the other; make another";
                    return Err(ConfigError::value(at("target_secret_file"), problem));
                }
                (name, Some(secret)) => {
                    let name = name.clone().unwrap_or_else(|| config.base_name.clone());
                    Some(Credentials { name, secret: secret.clone() })
                }
                (_, None) => None,
            };
            let initiator = Credentials { name: rule.user.clone(), secret: found.initiator.clone() };
            Ok(ChapUser { initiator, target })
        };
        config.chap.iter().enumerate().map(user).collect::<Result<_, _>>().map(ChapUsers)
    }

    /// What a user proves itself with.
    pub(super) fn secret_of(&self, user: &str) -> Option<&Secret> {
        self.0.iter().map(|known| &known.initiator).find(|known| known.name == user).map(|known| &known.secret)
    }

    /// What the session machine needs to see to a demand; `random` must be fresh.
    pub(super) fn policy(&self, demand: &ChapDemand, random: [u8; 33]) -> ChapPolicy {
        let is_wanted = |user: &&ChapUser| demand.users.contains(&user.initiator.name);
        ChapPolicy {
            users: self.0.iter().filter(is_wanted).cloned().collect(),
            algorithms: Algorithm::ALL.to_vec(),
            challenge: Challenge::from_random(random),
            is_required: demand.is_required,
        }
    }
}
