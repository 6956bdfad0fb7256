//! Whom to measure: the seam between the runner and everything that can serve a volume.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{BenchError, InitiatorProcess};

/// What a contender is called in results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// As tables name it.
    pub contender: String,
    /// The paper's row, or the nearest word.
    pub scheme: String,
    /// The paper's name for it, S2-2 for S2-1 done by hardware; empty where it has none.
    pub row: String,
    /// `hardware` or `software`: who does the cryptography; empty where that is not ours to say.
    pub process: String,
    /// The same of the target, where that is different; else empty.
    pub target_process: String,
    /// How much of its processor the target may use, in percent; `None`: all.
    pub target_quota_percent: Option<u32>,
    /// What lies beneath it.
    pub medium: String,
    /// Which of several releases it is; empty where there is only one.
    pub release: String,
}

impl Identity {
    /// The same of a release, which its name then says; no release if that is empty.
    #[must_use]
    pub fn of_release(mut self, release: &str) -> Identity {
        if !release.is_empty() {
            self.contender = format!("{} {release}", self.contender);
        }
        release.clone_into(&mut self.release);
        self
    }
}

/// What a target says that it has done, all from one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetWork {
    /// Bytes encrypted, decrypted or authenticated.
    pub crypto_bytes: u64,
    /// Bytes of block data read and written.
    pub data_bytes: u64,
}

/// Something that serves a volume, in processes of its own, with initiators for it.
pub trait Contender {
    /// What it is called.
    fn identity(&self) -> &Identity;

    /// The processes whose CPU time is the target's: everything that stands between the initiators and the medium. Empty if
    /// they run elsewhere.
    fn target_pids(&self) -> Vec<u32>;

    /// Processes whose CPU time is the initiators', beside the initiators themselves: what stands in front of all of them.
    fn initiator_side_pids(&self) -> Vec<u32> {
        Vec::new()
    }

    /// This many initiators, attached to a volume that takes I/Os of `size` bytes and is filled. Those of the last call stay
    /// attached for the next; more are started as they are needed.
    ///
    /// # Errors
    /// If one cannot be started or attached; the message says why.
    fn initiators(&mut self, count: u32, size: u64) -> Result<&mut [InitiatorProcess], BenchError>;

    /// The initiators of the next call attach again, by new connections: the path to the target is another one.
    fn reconnect(&mut self) {}

    /// Where the target listens; `None` if that is not known.
    fn address(&self) -> Option<SocketAddr> {
        None
    }

    /// What the target says that it has done so far; `None` if it says nothing.
    fn target_work(&mut self) -> Option<TargetWork> {
        None
    }
}
