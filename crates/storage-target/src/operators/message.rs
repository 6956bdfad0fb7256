//! Requests and answers as bytes and back: one line of JSON each. What operators may ask for.

use serde::Serialize;

use super::error::OperatorError;
use crate::admin::{Operation, Reply, Request};
use crate::volume::Access;

/// Bytes that are no request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error("a request is one line")]
    NoLine,
    #[error("not a request that this target knows: {0}; use the same version of Strongroom on both sides")]
    Json(#[from] serde_json::Error),
}

/// A request that is not for operators.
#[derive(Debug, thiserror::Error)]
#[error("that is not for operators to ask for; do it on the target's machine")]
pub(super) struct NotForOperators;

pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("requests and answers have a form in JSON");
    line.push(b'\n');
    line
}

/// One request, which fills a message.
pub(super) fn decode_request(bytes: &[u8]) -> Result<Request, Malformed> {
    let line = bytes.strip_suffix(b"\n").ok_or(Malformed::NoLine)?;
    Ok(serde_json::from_slice(line)?)
}

pub(super) fn decode_reply(line: &[u8]) -> Result<Reply, OperatorError> {
    serde_json::from_slice(line).map_err(|_| OperatorError::Misbehaved)
}

/// Whether operators may ask for it. No request that may be names a file, an address or an initiator without a key; what else the admin socket
/// takes is for the target's own administrator.
pub(super) fn check(request: &Request) -> Result<(), NotForOperators> {
    let may = match request {
        Request::Volumes { .. }
        | Request::VolumeCreate { .. }
        | Request::VolumeDelete { .. }
        | Request::VolumeGrant { .. }
        | Request::VolumeRevoke { .. } => true,
        Request::Volume { operation, .. } => match operation {
            Operation::Describe
            | Operation::Resize { .. }
            | Operation::SnapshotCreate { .. }
            | Operation::SnapshotDelete { .. }
            | Operation::DeleteClone => true,
            Operation::Clone { access, .. } => access.as_ref().is_none_or(names_peers_only),
            Operation::Prune { .. } | Operation::Rollback { .. } | Operation::Erase | Operation::CryptoErase => false,
        },
        Request::Status
        | Request::SessionDrop { .. }
        | Request::Drain { .. }
        | Request::Undrain { .. }
        | Request::Reload
        | Request::Send { .. }
        | Request::Receive { .. }
        | Request::Receptions { .. }
        | Request::Close { .. }
        | Request::Refresh { .. }
        | Request::Invite { .. }
        | Request::Invitations
        | Request::Revoke { .. }
        | Request::Peers
        | Request::Peer { .. } => false,
    };
    if may { Ok(()) } else { Err(NotForOperators) }
}

fn names_peers_only(access: &Access) -> bool {
    *access == Access { peers: access.peers.clone(), ..Access::default() }
}

/// The peers that a request gives something to when it makes a volume.
pub(super) fn peers(request: &Request) -> &[String] {
    match request {
        Request::Volume { operation: Operation::Clone { access: Some(access), .. }, .. } => &access.peers,
        _ => &[],
    }
}

/// Whether a request makes a volume.
pub(super) fn makes_a_volume(request: &Request) -> bool {
    let is_clone = |operation: &Operation| matches!(operation, Operation::Clone { .. });
    match request {
        Request::VolumeCreate { .. } => true,
        Request::Volume { operation, .. } => is_clone(operation),
        _ => false,
    }
}

/// For fuzzing: any message. What is accepted says itself, and is judged.
#[doc(hidden)]
pub fn fuzz_request(bytes: &[u8]) {
    if let Ok(request) = decode_request(bytes) {
        let again = decode_request(&encode(&request)).expect("what is said can be heard");
        assert_eq!(again, request);
        let _ = (check(&request), peers(&request), makes_a_volume(&request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Request {
        decode_request(format!("{text}\n").as_bytes()).unwrap()
    }

    /// Every request of docs/admin.md is either in the list of docs/operators.md or refused.
    #[test]
    fn attack_operator_requests_beyond_the_list() {
        for text in [
            r#"{"request":"volumes"}"#,
            r#"{"request":"volume-create","volume":{"name":"a","size_bytes":1,"block_size":4096,"retention_percent":1,"spare_percent":25}}"#,
            r#"{"request":"volume-delete","volume":"a"}"#,
            r#"{"request":"volume-grant","volume":"a","peer":"b"}"#,
            r#"{"request":"volume-revoke","volume":"a","peer":"b"}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"describe"}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"resize","size_bytes":1}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"snapshot-create","snapshot":"b"}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"snapshot-delete","snapshot":"b"}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"clone","snapshot":"b","name":"c"}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"clone","snapshot":"b","name":"c","access":{"peers":["d"]}}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"delete-clone"}}"#,
        ] {
            assert!(check(&request(text)).is_ok(), "{text}");
        }
        for text in [
            r#"{"request":"status"}"#,
            r#"{"request":"session-drop","peer":"a"}"#,
            r#"{"request":"drain","to":"evil.example:3260","grace_s":1}"#,
            r#"{"request":"undrain"}"#,
            r#"{"request":"reload"}"#,
            r#"{"request":"send","volume":"a","snapshot":"b"}"#,
            r#"{"request":"receive","volume":"a"}"#,
            r#"{"request":"receptions","volume":"a","abandon":true}"#,
            r#"{"request":"close","volume":"a"}"#,
            r#"{"request":"refresh","volume":"a"}"#,
            r#"{"request":"invite","name":"eve","volumes":["*"],"expires_s":60}"#,
            r#"{"request":"invitations"}"#,
            r#"{"request":"revoke","name":"a"}"#,
            r#"{"request":"peers"}"#,
            r#"{"request":"peer","name":"eve","operation":{"do":"role","role":"operator"}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"rollback","snapshot":"b"}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"erase"}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"crypto-erase"}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"prune","keep":{"last":1}}}"#,
            r#"{"request":"volume","volume":"a","operation":{"do":"clone","snapshot":"b","name":"c","access":{"initiators":["*"]}}}"#,
        ] {
            assert!(check(&request(text)).is_err(), "{text}");
        }
    }

    /// There is no field for a path, a medium, or a key at the target.
    #[test]
    fn attack_operator_paths_have_no_place_in_a_request() {
        let new = r#"{"request":"volume-create","volume":{"name":"a","size_bytes":1,"block_size":4096,"retention_percent":1,"spare_percent":25"#;
        for more in [
            r#","medium":"file:/etc/shadow""#,
            r#","io":"direct""#,
            r#","root":"/""#,
            r#","initiators":["*"]"#,
            r#","sealed":{"custody":"target","suite":"aes-256-gcm"}"#,
            r#","sealed":{"custody":"keyfile","suite":"aes-256-gcm","wrapping_key":"/etc/shadow"}"#,
            r#","sealed":{"custody":"keyfile","suite":"aes-256-gcm","opened_with":"/etc/shadow"}"#,
        ] {
            assert!(decode_request(format!("{new}{more}}}}}\n").as_bytes()).is_err(), "{more}");
        }
        assert!(decode_request(format!("{new}}}}}\n").as_bytes()).is_ok());
        assert!(decode_request(format!("{new}}}}}").as_bytes()).is_err(), "no line");
        assert!(decode_request(b"\n").is_err() && decode_request(&[0xff, b'\n']).is_err());
        let deep = [&b"[".repeat(8000)[..], b"\n"].concat();
        assert!(decode_request(&deep).is_err());
    }
}
