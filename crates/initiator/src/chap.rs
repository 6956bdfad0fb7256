//! CHAP for plain iSCSI: which account to log in with. The exchange is the session machine's; here it gets its randomness.

use strongroom_iscsi::initiator::ChapLogin;

pub use strongroom_iscsi::chap::{Algorithm, Challenge, Credentials, Secret, SecretError};

use crate::AttachError;

/// How to prove who we are over plain iSCSI, and have the target prove who it is. Shows no secret.
#[derive(Clone, Debug)]
pub struct ChapAccount {
    /// Our name and secret.
    pub ourselves: Credentials,
    /// What the target has to prove; an empty name takes any. `None` asks for nothing.
    pub target: Option<Credentials>,
}

impl ChapAccount {
    /// What one login needs, with a fresh challenge.
    pub(crate) fn login(&self) -> Result<ChapLogin, AttachError> {
        let mut random = [0; 33];
        getrandom::fill(&mut random).map_err(|error| AttachError::System(std::io::Error::other(error)))?;
        Ok(ChapLogin {
            ourselves: self.ourselves.clone(),
            target: self.target.clone(),
            algorithms: Algorithm::ALL.to_vec(),
            challenge: Challenge::from_random(random),
        })
    }
}
