//! What a client and a key server say to each other inside a channel: requests and answers to bytes and back. Nothing else.
//!
//! `docs/key-protocol.md` is the specification; golden vectors below pin it.

use std::collections::BTreeMap;
use std::time::Duration;

use strongroom_block::{SealingDomain, VolumeId};
use strongroom_handshake::PublicKey;
use strongroom_seal::{EPOCHS_MAX, KEY_BYTES, VolumeKey, VolumeKeyFile};
use zeroize::Zeroizing;

use crate::audit::{AuditHead, AuditLine, LINE_BYTES};
use crate::volume::{NAME_BYTES_MAX, VolumeInfo};
use crate::wire::{Malformed, Put, Take};
use crate::{Rights, Role};

/// The version of the messages: their first byte.
pub const PROTOCOL_VERSION: u8 = 1;
/// Longest message, in bytes: what fits into a frame's header. Bulk (lists, audit lines, backups) travels as its data.
pub(crate) const MESSAGE_BYTES_MAX: usize = 65_535;
/// Longest bulk data of one message, in bytes.
pub(crate) const BULK_BYTES_MAX: usize = 1 << 20;
/// The longest that a watch can wait; longer ones are cut to this.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

const TEXT_BYTES_MAX: usize = 2048;
/// A volume key file on the wire: one epoch.
const EPOCH_KEY_BYTES: usize = 4 + KEY_BYTES;

/// A volume to be: what its keys are known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// The volume.
    pub id: VolumeId,
    /// For people; see [`is_name`](crate::is_name).
    pub name: String,
    /// What the keys are found by: shared by the volume, its snapshots and its clones.
    pub domain: SealingDomain,
}

/// The keys of a volume, and what may be done with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyGrant {
    /// The volume that the keys were made for.
    pub volume: VolumeId,
    /// What they are found by.
    pub domain: SealingDomain,
    /// For people.
    pub name: String,
    /// Larger after each change of the volume.
    pub revision: u64,
    /// New writes are sealed under it.
    pub current_epoch: u32,
    /// What the caller may do.
    pub rights: Rights,
    /// One key for each epoch that is not destroyed.
    pub keys: VolumeKeyFile,
    /// How long an initiator may go on with them while it cannot reach a key server.
    pub lease: Duration,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Fetch {
        domain: SealingDomain,
    },
    Watch {
        domain: SealingDomain,
        revision: u64,
        wait: Duration,
    },
    Find {
        name: String,
    },
    Info {
        domain: SealingDomain,
    },
    List {
        after: SealingDomain,
    },
    Status,
    Create(NewVolume),
    Import(NewVolume, VolumeKeyFile),
    Export {
        domain: SealingDomain,
    },
    Grant {
        domain: SealingDomain,
        identity: PublicKey,
        rights: Rights,
    },
    Revoke {
        domain: SealingDomain,
        identity: PublicKey,
    },
    Rotate {
        domain: SealingDomain,
    },
    /// `force`: even though an initiator may still write under it.
    DestroyEpoch {
        domain: SealingDomain,
        epoch: u32,
        force: bool,
    },
    Destroy {
        domain: SealingDomain,
    },
    Audit {
        from: u64,
    },
    Backup,
    Follow {
        generation: u64,
        sequence: u64,
        head: AuditHead,
    },
    Promote,
    Fence {
        database: [u8; 16],
        generation: u64,
    },
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Grant(KeyGrant),
    /// Nothing changed.
    Unchanged,
    Info(VolumeInfo),
    Epoch(u32),
    /// Bulk: as many as fit; an empty page is the last.
    Volumes(Vec<VolumeInfo>),
    /// Bulk: lines of the audit log, the head of all, and where its chain begins.
    Lines {
        start: [u8; 32],
        head: AuditHead,
        lines: Vec<AuditLine>,
    },
    /// Bulk: a piece of something larger.
    Part {
        last: bool,
        bytes: Zeroizing<Vec<u8>>,
    },
    Status(ServerStatus),
    Failure(Failure),
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no such volume, or the caller has no right to it: the answer does not say which.
    Refused,
    Conflict(String),
    Unavailable(String),
    NotPrimary(String),
    TooMany,
    Malformed,
    Invalid(String),
}

/// How a key server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// What it is.
    pub role: Role,
    /// Larger after each promotion.
    pub generation: u64,
    /// How many batches of changes it has stored.
    pub sequence: u64,
    /// The end of its audit log: keep it elsewhere, to notice if the log is rolled back.
    pub head: AuditHead,
    /// Volumes that it has keys of.
    pub volumes: u64,
    /// The last batch that a standby has stored, if one follows.
    pub standby_sequence: Option<u64>,
}

/// An answer as it is sent: the message, and bulk beside it.
pub(crate) struct Encoded {
    pub(crate) message: Zeroizing<Vec<u8>>,
    pub(crate) bulk: Zeroizing<Vec<u8>>,
}

fn put_keys(put: &mut Put, keys: &VolumeKeyFile) {
    let epochs: Vec<u32> = keys.epochs().collect();
    put.u32(epochs.len() as u32);
    for epoch in epochs {
        put.u32(epoch).bytes(keys.volume_key(epoch).expect("a file of volume keys, of this epoch").expose());
    }
}

fn take_keys(take: &mut Take<'_>) -> Result<VolumeKeyFile, Malformed> {
    let mut keys = BTreeMap::new();
    for _ in 0..take.count(EPOCHS_MAX, EPOCH_KEY_BYTES)? {
        let epoch = take.u32()?;
        let key = VolumeKey::new(take.array()?);
        if epoch == 0 || keys.insert(epoch, key).is_some() {
            return Err(Malformed);
        }
    }
    VolumeKeyFile::of_volume(keys).map_err(|_| Malformed)
}

fn put_new(put: &mut Put, new: &NewVolume) {
    put.bytes(&new.id.0).bytes(&new.domain.0).text(&new.name);
}

fn take_new(take: &mut Take<'_>) -> Result<NewVolume, Malformed> {
    let (id, domain) = (VolumeId(take.array()?), SealingDomain(take.array()?));
    Ok(NewVolume { id, domain, name: take.text(NAME_BYTES_MAX)? })
}

fn put_head(put: &mut Put, head: &AuditHead) {
    put.u64(head.lines).bytes(&head.hash);
}

fn take_head(take: &mut Take<'_>) -> Result<AuditHead, Malformed> {
    Ok(AuditHead { lines: take.u64()?, hash: take.array()? })
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

impl Request {
    /// A message with this number, which the answer repeats.
    pub(crate) fn encode(&self, number: u32) -> Zeroizing<Vec<u8>> {
        let key_bytes = match self {
            Request::Import(_, keys) => EPOCH_KEY_BYTES * keys.epochs().count(),
            _ => 0,
        };
        let mut put = Put::with_capacity(512 + key_bytes);
        put.u8(PROTOCOL_VERSION).u8(self.kind()).u32(number);
        match self {
            Request::Fetch { domain }
            | Request::Info { domain }
            | Request::Export { domain }
            | Request::Rotate { domain }
            | Request::Destroy { domain }
            | Request::List { after: domain } => {
                put.bytes(&domain.0);
            }
            Request::Watch { domain, revision, wait } => {
                put.bytes(&domain.0).u64(*revision).u32(millis(*wait));
            }
            Request::Find { name } => {
                put.text(name);
            }
            Request::Create(new) => put_new(&mut put, new),
            Request::Import(new, keys) => {
                put_new(&mut put, new);
                put_keys(&mut put, keys);
            }
            Request::Grant { domain, identity, rights } => {
                put.bytes(&domain.0).public_key(identity).u8(rights.bits());
            }
            Request::Revoke { domain, identity } => {
                put.bytes(&domain.0).public_key(identity);
            }
            Request::DestroyEpoch { domain, epoch, force } => {
                put.bytes(&domain.0).u32(*epoch).u8(u8::from(*force));
            }
            Request::Audit { from } => {
                put.u64(*from);
            }
            Request::Follow { generation, sequence, head } => {
                put.u64(*generation).u64(*sequence);
                put_head(&mut put, head);
            }
            Request::Fence { database, generation } => {
                put.bytes(database).u64(*generation);
            }
            Request::Status | Request::Backup | Request::Promote => {}
        }
        put.done()
    }

    /// For logs and counters.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Request::Fetch { .. } => "fetch",
            Request::Watch { .. } => "watch",
            Request::Find { .. } => "find",
            Request::Info { .. } => "info",
            Request::List { .. } => "list",
            Request::Status => "status",
            Request::Create(_) => "create",
            Request::Import(..) => "import",
            Request::Export { .. } => "export",
            Request::Grant { .. } => "grant",
            Request::Revoke { .. } => "revoke",
            Request::Rotate { .. } => "rotate",
            Request::DestroyEpoch { .. } => "destroy-epoch",
            Request::Destroy { .. } => "destroy",
            Request::Audit { .. } => "audit",
            Request::Backup => "backup",
            Request::Follow { .. } => "follow",
            Request::Promote => "promote",
            Request::Fence { .. } => "fence",
        }
    }

    /// The volume that it is about, if it names one by its domain.
    pub(crate) fn domain(&self) -> Option<SealingDomain> {
        match self {
            Request::Fetch { domain }
            | Request::Watch { domain, .. }
            | Request::Info { domain }
            | Request::Export { domain }
            | Request::Grant { domain, .. }
            | Request::Revoke { domain, .. }
            | Request::Rotate { domain }
            | Request::DestroyEpoch { domain, .. }
            | Request::Destroy { domain } => Some(*domain),
            Request::Create(new) | Request::Import(new, _) => Some(new.domain),
            _ => None,
        }
    }

    /// Whether it changes what is kept of volumes.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self.kind(), 0x10 | 0x11 | 0x13..=0x17)
    }

    /// Whether it changes nothing, so that it may be asked again.
    pub(crate) fn is_repeatable(&self) -> bool {
        matches!(self.kind(), 0x01..=0x06 | 0x12 | 0x20 | 0x21 | 0x30)
    }

    fn kind(&self) -> u8 {
        match self {
            Request::Fetch { .. } => 0x01,
            Request::Watch { .. } => 0x02,
            Request::Find { .. } => 0x03,
            Request::Info { .. } => 0x04,
            Request::List { .. } => 0x05,
            Request::Status => 0x06,
            Request::Create(_) => 0x10,
            Request::Import(..) => 0x11,
            Request::Export { .. } => 0x12,
            Request::Grant { .. } => 0x13,
            Request::Revoke { .. } => 0x14,
            Request::Rotate { .. } => 0x15,
            Request::DestroyEpoch { .. } => 0x16,
            Request::Destroy { .. } => 0x17,
            Request::Audit { .. } => 0x20,
            Request::Backup => 0x21,
            Request::Follow { .. } => 0x30,
            Request::Promote => 0x31,
            Request::Fence { .. } => 0x32,
        }
    }

    /// The number and the request. A message whose version or kind is unknown still tells its number.
    pub(crate) fn decode(message: &[u8]) -> Result<(u32, Result<Request, Malformed>), Malformed> {
        let mut take = Take::new(message);
        let (version, kind, number) = (take.u8()?, take.u8()?, take.u32()?);
        if version != PROTOCOL_VERSION {
            return Ok((number, Err(Malformed)));
        }
        Ok((number, Self::body(kind, take)))
    }

    fn body(kind: u8, mut take: Take<'_>) -> Result<Request, Malformed> {
        let domain = |take: &mut Take<'_>| take.array().map(SealingDomain);
        let request = match kind {
            0x01 => Request::Fetch { domain: domain(&mut take)? },
            0x02 => {
                let (domain, revision) = (domain(&mut take)?, take.u64()?);
                Request::Watch { domain, revision, wait: Duration::from_millis(take.u32()?.into()) }
            }
            0x03 => Request::Find { name: take.text(NAME_BYTES_MAX)? },
            0x04 => Request::Info { domain: domain(&mut take)? },
            0x05 => Request::List { after: domain(&mut take)? },
            0x06 => Request::Status,
            0x10 => Request::Create(take_new(&mut take)?),
            0x11 => Request::Import(take_new(&mut take)?, take_keys(&mut take)?),
            0x12 => Request::Export { domain: domain(&mut take)? },
            0x13 => Request::Grant { domain: domain(&mut take)?, identity: take.public_key()?, rights: take.rights()? },
            0x14 => Request::Revoke { domain: domain(&mut take)?, identity: take.public_key()? },
            0x15 => Request::Rotate { domain: domain(&mut take)? },
            0x16 => Request::DestroyEpoch { domain: domain(&mut take)?, epoch: take.u32()?, force: take.flag()? },
            0x17 => Request::Destroy { domain: domain(&mut take)? },
            0x20 => Request::Audit { from: take.u64()? },
            0x21 => Request::Backup,
            0x30 => Request::Follow { generation: take.u64()?, sequence: take.u64()?, head: take_head(&mut take)? },
            0x31 => Request::Promote,
            0x32 => Request::Fence { database: take.array()?, generation: take.u64()? },
            _ => return Err(Malformed),
        };
        take.finish()?;
        Ok(request)
    }
}

impl Answer {
    /// The answer to the request with this number, from a server of this generation.
    pub(crate) fn encode(&self, number: u32, generation: u64) -> Encoded {
        let key_bytes = match self {
            Answer::Grant(grant) => EPOCH_KEY_BYTES * grant.keys.epochs().count(),
            _ => 0,
        };
        let mut put = Put::with_capacity(512 + key_bytes);
        let mut bulk = Zeroizing::new(Vec::new());
        put.u8(PROTOCOL_VERSION).u8(self.kind()).u32(number).u64(generation);
        match self {
            Answer::Done | Answer::Unchanged => {}
            Answer::Grant(grant) => {
                put.bytes(&grant.volume.0).bytes(&grant.domain.0).text(&grant.name).u64(grant.revision);
                put.u32(grant.current_epoch).u8(grant.rights.bits()).u32(millis(grant.lease));
                put_keys(&mut put, &grant.keys);
            }
            Answer::Info(info) => info.put(&mut put),
            Answer::Epoch(epoch) => {
                put.u32(*epoch);
            }
            Answer::Volumes(volumes) => {
                let mut page = Put::with_capacity(1 << 16);
                volumes.iter().for_each(|volume| volume.put(&mut page));
                bulk = page.done();
            }
            Answer::Lines { start, head, lines } => {
                put.bytes(start);
                put_head(&mut put, head);
                let bytes = lines.iter().map(|line| LINE_BYTES + line.text.len()).sum();
                let mut page = Put::with_capacity(bytes);
                lines.iter().for_each(|line| line.put(&mut page));
                bulk = page.done();
            }
            Answer::Part { last, bytes } => {
                put.u8(u8::from(*last));
                bulk = bytes.clone();
            }
            Answer::Status(status) => {
                put.u8(status.role as u8).u64(status.generation).u64(status.sequence);
                put_head(&mut put, &status.head);
                put.u64(status.volumes).u64(status.standby_sequence.map_or(0, |sequence| sequence + 1));
            }
            Answer::Failure(failure) => match failure {
                Failure::Conflict(text)
                | Failure::Unavailable(text)
                | Failure::NotPrimary(text)
                | Failure::Invalid(text) => {
                    put.text(text);
                }
                Failure::Refused | Failure::TooMany | Failure::Malformed => {}
            },
        }
        Encoded { message: put.done(), bulk }
    }

    fn kind(&self) -> u8 {
        match self {
            Answer::Done => 0x00,
            Answer::Grant(_) => 0x01,
            Answer::Unchanged => 0x02,
            Answer::Info(_) => 0x03,
            Answer::Epoch(_) => 0x04,
            Answer::Volumes(_) => 0x05,
            // 0x06 was lines that were not encrypted anywhere.
            Answer::Lines { .. } => 0x09,
            Answer::Part { .. } => 0x07,
            Answer::Status(_) => 0x08,
            Answer::Failure(Failure::Refused) => 0x80,
            Answer::Failure(Failure::Conflict(_)) => 0x81,
            Answer::Failure(Failure::Unavailable(_)) => 0x82,
            Answer::Failure(Failure::NotPrimary(_)) => 0x83,
            Answer::Failure(Failure::TooMany) => 0x84,
            Answer::Failure(Failure::Malformed) => 0x85,
            Answer::Failure(Failure::Invalid(_)) => 0x86,
        }
    }

    /// The number of the request, the server's generation, and what it answers.
    pub(crate) fn decode(message: &[u8], bulk: &[u8]) -> Result<(u32, u64, Answer), Malformed> {
        let mut take = Take::new(message);
        if take.u8()? != PROTOCOL_VERSION {
            return Err(Malformed);
        }
        let (kind, number, generation) = (take.u8()?, take.u32()?, take.u64()?);
        let has_bulk = matches!(kind, 0x05 | 0x07 | 0x09);
        if !has_bulk && !bulk.is_empty() {
            return Err(Malformed);
        }
        let answer = match kind {
            0x00 => Answer::Done,
            0x01 => Answer::Grant(KeyGrant {
                volume: VolumeId(take.array()?),
                domain: SealingDomain(take.array()?),
                name: take.text(NAME_BYTES_MAX)?,
                revision: take.u64()?,
                current_epoch: take.u32()?,
                rights: take.rights()?,
                lease: Duration::from_millis(take.u32()?.into()),
                keys: take_keys(&mut take)?,
            }),
            0x02 => Answer::Unchanged,
            0x03 => Answer::Info(VolumeInfo::take(&mut take)?),
            0x04 => Answer::Epoch(take.u32()?),
            0x05 => Answer::Volumes(all(bulk, VolumeInfo::take)?),
            0x07 => Answer::Part { last: take.flag()?, bytes: Zeroizing::new(bulk.to_vec()) },
            0x09 => {
                let (start, head) = (take.array()?, take_head(&mut take)?);
                Answer::Lines { start, head, lines: all(bulk, AuditLine::take)? }
            }
            0x08 => Answer::Status(ServerStatus {
                role: Role::from_number(take.u8()?).ok_or(Malformed)?,
                generation: take.u64()?,
                sequence: take.u64()?,
                head: take_head(&mut take)?,
                volumes: take.u64()?,
                standby_sequence: take.u64()?.checked_sub(1),
            }),
            0x80 => Answer::Failure(Failure::Refused),
            0x81 => Answer::Failure(Failure::Conflict(take.text(TEXT_BYTES_MAX)?)),
            0x82 => Answer::Failure(Failure::Unavailable(take.text(TEXT_BYTES_MAX)?)),
            0x83 => Answer::Failure(Failure::NotPrimary(take.text(TEXT_BYTES_MAX)?)),
            0x84 => Answer::Failure(Failure::TooMany),
            0x85 => Answer::Failure(Failure::Malformed),
            0x86 => Answer::Failure(Failure::Invalid(take.text(TEXT_BYTES_MAX)?)),
            _ => return Err(Malformed),
        };
        take.finish()?;
        if let Answer::Grant(grant) = &answer
            && grant.keys.volume_key(grant.current_epoch).is_err()
        {
            return Err(Malformed);
        }
        Ok((number, generation, answer))
    }
}

/// As many as there are, up to the end.
fn all<T>(bytes: &[u8], one: impl Fn(&mut Take<'_>) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
    let mut take = Take::new(bytes);
    let mut found = Vec::new();
    while !take.is_empty() {
        found.push(one(&mut take)?);
    }
    Ok(found)
}

/// For the fuzzer: what decodes is encoded to the same bytes again.
#[doc(hidden)]
pub fn fuzz_decode(bytes: &[u8]) {
    if let Ok((number, Ok(request))) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode(number)), Ok((number, Ok(request))));
    }
    let (message, bulk) = bytes.split_at(bytes.len() / 2);
    for (message, bulk) in [(bytes, &[][..]), (message, bulk)] {
        if let Ok((number, generation, answer)) = Answer::decode(message, bulk) {
            let encoded = answer.encode(number, generation);
            assert_eq!(Answer::decode(&encoded.message, &encoded.bulk), Ok((number, generation, answer)));
        }
    }
    crate::volume::fuzz_record(bytes);
    if let Ok(batch) = crate::batch::Batch::decode(bytes) {
        let encoded = batch.encode();
        let again = crate::batch::Batch::decode(&encoded).map(|again| again.encode());
        assert_eq!(again, Ok(encoded));
    }
}

#[cfg(test)]
mod tests;
