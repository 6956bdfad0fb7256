//! Volume keys from a key server: what is asked, and what of an answer is believed.
//!
//! Keys are named by the sealing domain, which the target claims. So that a target cannot answer for one volume with another that
//! this identity may open too, the server's own name for the keys must be that of the volume. Absent: the protocol (`keyserver`),
//! leases and epochs over time (`pipeline::key_renewal`).

use std::time::Duration;

use strongroom_block::Custody;
use strongroom_keyserver::{Client, ClientError, KeyGrant};

use crate::{KeyRequest, KeySource, KeySourceError, VolumeKeys};

/// Keys that a server lends.
#[derive(Debug)]
pub struct KeyServerSource {
    client: Client,
    name: Option<String>,
}

impl KeyServerSource {
    /// Keys that `client` fetches, which the server calls `name`; `None`: as the volume is called in its URL, or, if that is of a
    /// snapshot, the volume that it is of.
    pub fn new(client: Client, name: Option<String>) -> KeyServerSource {
        KeyServerSource { client, name }
    }

    /// The name that the keys have at the server, if they are this volume's.
    fn check_name(&self, request: &KeyRequest, name: &str) -> Result<(), KeySourceError> {
        let of_volume = request.volume.split('@').next().unwrap_or_default();
        let expected = self.name.as_deref().unwrap_or(of_volume);
        if name != expected {
            return Err(KeySourceError::Refused(format!(
                "the target names the keys that the key server calls '{name}', not those of '{expected}'; if they are this volume's (it \
                 is a clone, or was given another name there), say so with --key-name {name}, and do not trust this target if not"
            )));
        }
        Ok(())
    }

    fn believed(&self, request: &KeyRequest, grant: KeyGrant) -> Result<VolumeKeys, KeySourceError> {
        self.check_name(request, &grant.name)?;
        Ok(VolumeKeys {
            keys: grant.keys,
            // The server's record ties one domain to one name, and each domain has keys of its own.
            domain: None,
            current_epoch: grant.current_epoch,
            may_seal: grant.rights.seal,
            revision: grant.revision,
            lease: Some(grant.lease),
        })
    }
}

impl KeySource for KeyServerSource {
    fn custody(&self) -> Custody {
        Custody::KeyServer
    }

    fn volume_keys(&self, request: &KeyRequest) -> Result<VolumeKeys, KeySourceError> {
        let grant = self.client.fetch(request.domain).map_err(not_had)?;
        self.believed(request, grant)
    }

    fn changed_keys(
        &self,
        request: &KeyRequest,
        seen: u64,
        wait: Duration,
    ) -> Result<Option<VolumeKeys>, KeySourceError> {
        let grant = self.client.watch(request.domain, seen, wait).map_err(not_had)?;
        grant.map(|grant| self.believed(request, grant)).transpose()
    }

    fn destroy_keys(&self, request: &KeyRequest) -> Result<u32, KeySourceError> {
        let info = self.client.info(request.domain).map_err(not_had)?;
        self.check_name(request, &info.name)?;
        self.client.destroy_keys(request.domain).map_err(not_had)
    }
}

fn not_had(error: ClientError) -> KeySourceError {
    let words = error.to_string();
    if error.is_temporary() { KeySourceError::Unreachable(words) } else { KeySourceError::Refused(words) }
}
