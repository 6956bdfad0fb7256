//! Strongroom's own commands and its vital product data page: what SCSI has no word for (`docs/vendor-cdbs.md`).

use strongroom_block::{
    AttachId, BlockSize, Custody, HoleRecord, Lba, Mode, SealingDomain, StoreSequence, Suite, VolumeId,
};

pub mod lease;

use crate::bytes::{array, be16, be32, be64};
use crate::cdb::{Cdb, long};
use crate::data_direction::DataDirection;
use crate::opcode as op;

/// The vital product data page that describes a Strongroom unit.
pub const UNIT_PAGE: u8 = 0xc0;

/// Upper bound on the parameter list of SEAL HOLE and VERIFIED, in bytes.
pub const PARAMETER_LIST_BYTES_MAX: u32 = 64 * 1024;

/// Bytes in one (LBA, store sequence) pair of VERIFIED.
pub const VERIFIED_PAIR_BYTES: usize = 16;

/// Length of the parameter list of REGISTER ATTACHMENT, in bytes: one attach id.
pub const ATTACH_ID_BYTES: u32 = 16;

/// A command of operation code 0xC1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VendorCommand {
    /// Seals ranges of absent blocks; the Data-Out is [`encode_holes`]. Takes UNMAP's place on sealed units. With an EXPECTED STAMP
    /// segment of zeros: one range, if it holds no data.
    SealHole {
        /// Bytes of Data-Out.
        parameter_list_len: u32,
    },
    /// Reads the newest version of one block that is strictly older than the OLDER THAN segment says.
    ReadVersion {
        /// The block.
        lba: Lba,
    },
    /// Names versions that opened, so that strictly older ones may go; the Data-Out is [`encode_verified`].
    Verified {
        /// Bytes of Data-Out.
        parameter_list_len: u32,
    },
    /// Writes if the newest version's stamp is the EXPECTED STAMP segment's.
    ConditionalWrite {
        /// The first block.
        lba: Lba,
        /// How many; 1 for now.
        count: u32,
    },
    /// The unit, which was made to be another one's successor, takes its place; no data. Plain units have it too.
    TakePlace,
    /// Makes an attach id known to the unit, durably, so that operations under it are executed at most once; the Data-Out is the id
    /// ([`decode_attach_id`]).
    RegisterAttachment {
        /// Bytes of Data-Out: [`ATTACH_ID_BYTES`].
        parameter_list_len: u32,
    },
    /// Says what the session wants of the unit, and gives it the lease that this takes; the Data-Out is a [`lease::Claim`]. Plain units
    /// have it too.
    ClaimLease {
        /// Bytes of Data-Out.
        parameter_list_len: u32,
    },
    /// Ends the lease that the session has; no data. Plain units have it too.
    ReleaseLease,
    /// Who writes, and who else is logged in; the Data-In is [`lease::encode_writers`]. Plain units have it too.
    ReportWriters {
        /// Most bytes of Data-In.
        allocation_len: u32,
    },
}

impl VendorCommand {
    /// From a CDB's fields; `None` for an unknown service action.
    pub(crate) fn decode(service_action: u8, lba: Lba, count: u32) -> Option<VendorCommand> {
        Some(match service_action {
            op::SA_SEAL_HOLE => VendorCommand::SealHole { parameter_list_len: count },
            op::SA_READ_VERSION => VendorCommand::ReadVersion { lba },
            op::SA_VERIFIED => VendorCommand::Verified { parameter_list_len: count },
            op::SA_CONDITIONAL_WRITE => VendorCommand::ConditionalWrite { lba, count },
            op::SA_TAKE_PLACE if lba == Lba(0) && count == 0 => VendorCommand::TakePlace,
            op::SA_REGISTER_ATTACHMENT => VendorCommand::RegisterAttachment { parameter_list_len: count },
            op::SA_CLAIM_LEASE => VendorCommand::ClaimLease { parameter_list_len: count },
            op::SA_RELEASE_LEASE if lba == Lba(0) && count == 0 => VendorCommand::ReleaseLease,
            op::SA_REPORT_WRITERS => VendorCommand::ReportWriters { allocation_len: count },
            _ => return None,
        })
    }

    /// The command as a CDB.
    pub fn encode(&self) -> Cdb {
        match *self {
            VendorCommand::SealHole { parameter_list_len } => {
                long(op::STRONGROOM, op::SA_SEAL_HOLE, Lba(0), parameter_list_len)
            }
            VendorCommand::ReadVersion { lba } => long(op::STRONGROOM, op::SA_READ_VERSION, lba, 1),
            VendorCommand::Verified { parameter_list_len } => {
                long(op::STRONGROOM, op::SA_VERIFIED, Lba(0), parameter_list_len)
            }
            VendorCommand::ConditionalWrite { lba, count } => {
                long(op::STRONGROOM, op::SA_CONDITIONAL_WRITE, lba, count)
            }
            VendorCommand::TakePlace => long(op::STRONGROOM, op::SA_TAKE_PLACE, Lba(0), 0),
            VendorCommand::RegisterAttachment { parameter_list_len } => {
                long(op::STRONGROOM, op::SA_REGISTER_ATTACHMENT, Lba(0), parameter_list_len)
            }
            VendorCommand::ClaimLease { parameter_list_len } => {
                long(op::STRONGROOM, op::SA_CLAIM_LEASE, Lba(0), parameter_list_len)
            }
            VendorCommand::ReleaseLease => long(op::STRONGROOM, op::SA_RELEASE_LEASE, Lba(0), 0),
            VendorCommand::ReportWriters { allocation_len } => {
                long(op::STRONGROOM, op::SA_REPORT_WRITERS, Lba(0), allocation_len)
            }
        }
    }

    /// The service action.
    pub fn service_action(&self) -> u8 {
        match self {
            VendorCommand::SealHole { .. } => op::SA_SEAL_HOLE,
            VendorCommand::ReadVersion { .. } => op::SA_READ_VERSION,
            VendorCommand::Verified { .. } => op::SA_VERIFIED,
            VendorCommand::ConditionalWrite { .. } => op::SA_CONDITIONAL_WRITE,
            VendorCommand::TakePlace => op::SA_TAKE_PLACE,
            VendorCommand::RegisterAttachment { .. } => op::SA_REGISTER_ATTACHMENT,
            VendorCommand::ClaimLease { .. } => op::SA_CLAIM_LEASE,
            VendorCommand::ReleaseLease => op::SA_RELEASE_LEASE,
            VendorCommand::ReportWriters { .. } => op::SA_REPORT_WRITERS,
        }
    }

    /// Which way its data goes and how much there is.
    pub fn direction(&self, block_size: BlockSize) -> DataDirection {
        match *self {
            VendorCommand::SealHole { parameter_list_len }
            | VendorCommand::Verified { parameter_list_len }
            | VendorCommand::RegisterAttachment { parameter_list_len }
            | VendorCommand::ClaimLease { parameter_list_len } => DataDirection::Out(parameter_list_len.into()),
            VendorCommand::ReportWriters { allocation_len } => DataDirection::In(allocation_len.into()),
            VendorCommand::ReadVersion { .. } => DataDirection::In(block_size.bytes().into()),
            VendorCommand::ConditionalWrite { count, .. } => DataDirection::Out(u64::from(count) << block_size.shift()),
            VendorCommand::TakePlace | VendorCommand::ReleaseLease => DataDirection::None,
        }
    }

    /// Whether it is about writer leases: units of every kind have these, and they obey no reservation.
    pub fn is_about_leases(&self) -> bool {
        use VendorCommand as V;
        matches!(self, V::ClaimLease { .. } | V::ReleaseLease | V::ReportWriters { .. })
    }

    /// Whether the Data-Out or Data-In is sealed block data (frame type SEALED in a channel), not parameters.
    pub fn moves_sealed_blocks(&self) -> bool {
        matches!(self, VendorCommand::ReadVersion { .. } | VendorCommand::ConditionalWrite { .. })
    }
}

/// A parameter list that is not what the command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// Not a whole number of entries, none, or more than [`PARAMETER_LIST_BYTES_MAX`].
    #[error("a parameter list of {len_bytes} bytes where entries have {entry_bytes}")]
    Length {
        /// Its length.
        len_bytes: usize,
        /// The length of one entry.
        entry_bytes: usize,
    },
    /// An entry that does not decode.
    #[error("entry {index} of the parameter list does not decode")]
    Entry {
        /// Which.
        index: usize,
    },
}

/// The Data-Out of SEAL HOLE. All records must have the same length.
pub fn encode_holes(holes: &[HoleRecord]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for hole in holes {
        hole.encode(&mut bytes);
    }
    bytes
}

/// Reads the Data-Out of SEAL HOLE; `record_bytes` is the unit's record length in a channel.
///
/// # Errors
/// [`ParameterError`].
pub fn decode_holes(bytes: &[u8], record_bytes: usize) -> Result<Vec<HoleRecord>, ParameterError> {
    let entry_bytes = HoleRecord::PREFIX_BYTES + record_bytes;
    let entries = whole_entries(bytes, entry_bytes)?;
    // Never grows: that would leave copies of block keys behind.
    let mut holes = Vec::with_capacity(entries.len());
    for (index, entry) in entries.enumerate() {
        holes.push(HoleRecord::decode(entry).map_err(|_| ParameterError::Entry { index })?);
    }
    Ok(holes)
}

/// The Data-Out of VERIFIED.
pub fn encode_verified(pairs: &[(Lba, StoreSequence)]) -> Vec<u8> {
    pairs.iter().flat_map(|(lba, sequence)| [lba.0.to_be_bytes(), sequence.0.to_be_bytes()].concat()).collect()
}

/// Reads the Data-Out of VERIFIED.
///
/// # Errors
/// [`ParameterError::Length`].
pub fn decode_verified(bytes: &[u8]) -> Result<Vec<(Lba, StoreSequence)>, ParameterError> {
    let pair = |entry: &[u8]| Some((Lba(be64(entry, 0)?), StoreSequence(be64(entry, 8)?)));
    whole_entries(bytes, VERIFIED_PAIR_BYTES)?
        .enumerate()
        .map(|(index, entry)| pair(entry).ok_or(ParameterError::Entry { index }))
        .collect()
}

/// Reads the Data-Out of REGISTER ATTACHMENT.
///
/// # Errors
/// [`ParameterError::Length`].
pub fn decode_attach_id(bytes: &[u8]) -> Result<AttachId, ParameterError> {
    let wrong = ParameterError::Length { len_bytes: bytes.len(), entry_bytes: ATTACH_ID_BYTES as usize };
    bytes.try_into().map(AttachId).map_err(|_| wrong)
}

fn whole_entries(bytes: &[u8], entry_bytes: usize) -> Result<std::slice::ChunksExact<'_, u8>, ParameterError> {
    if bytes.is_empty() || !bytes.len().is_multiple_of(entry_bytes) || bytes.len() > PARAMETER_LIST_BYTES_MAX as usize {
        return Err(ParameterError::Length { len_bytes: bytes.len(), entry_bytes });
    }
    Ok(bytes.chunks_exact(entry_bytes))
}

/// In the policy byte of page 0xC0: older versions may be read in the place of blocks that do not open.
const ALLOWS_PREVIOUS: u8 = 1;
/// SEAL HOLE heeds an EXPECTED STAMP segment.
const CONDITIONAL_HOLES: u8 = 1 << 1;
/// SANITIZE, CRYPTOGRAPHIC ERASE heeds a KEYS DESTROYED segment.
const KEYS_DESTROYED: u8 = 1 << 2;
/// The unit keeps writer leases; plain units too.
const WRITER_LEASES: u8 = 1 << 3;

/// How a sealed unit is sealed, as far as its target knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealing {
    /// Who holds the keys.
    pub custody: Custody,
    /// The cipher of new writes.
    pub suite: Suite,
    /// What sealing does.
    pub mode: Mode,
    /// What associated data binds to.
    pub domain: SealingDomain,
    /// Length of a seal record inside a channel, in bytes.
    pub record_bytes: u32,
    /// The key epoch of new writes.
    pub epoch: u32,
    /// An initiator may choose to read older versions of blocks that do not open.
    pub allows_previous: bool,
    /// SEAL HOLE heeds the segment EXPECTED STAMP. A target that does not know it would seal over data.
    pub conditional_holes: bool,
    /// SANITIZE, CRYPTOGRAPHIC ERASE heeds the segment KEYS DESTROYED.
    pub heeds_keys_destroyed: bool,
}

impl Sealing {
    fn policy(&self) -> u8 {
        (u8::from(self.allows_previous) * ALLOWS_PREVIOUS)
            | (u8::from(self.conditional_holes) * CONDITIONAL_HOLES)
            | (u8::from(self.heeds_keys_destroyed) * KEYS_DESTROYED)
    }
}

/// Vital product data page 0xC0: what an initiator must know to seal and open a unit's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitPage {
    /// The volume behind the unit.
    pub volume: VolumeId,
    /// The unit's block size.
    pub block_size: BlockSize,
    /// `None` on a plain unit.
    pub sealing: Option<Sealing>,
    /// Snapshots and clones that share the unit's blocks, itself not counted.
    pub other_views: u16,
    /// Changes when the store may have lost acknowledged writes that were not flushed, and only then; it orders nothing. After a
    /// lost connection an initiator compares it and sends such writes again only if it has changed.
    pub incarnation: u64,
    /// CLAIM WRITER LEASE works, and keeps others from writing.
    pub has_leases: bool,
    /// Another number whenever the contents were replaced (a received snapshot, a rollback), and only then. `None`: the target does not say.
    pub image: Option<u64>,
}

impl UnitPage {
    /// Encoded length, page header included, in bytes.
    pub const BYTES: usize = 72;
    /// Without the number of the image, which older targets leave out.
    const BYTES_MIN: usize = 64;
    /// Format 2: the incarnation survives an orderly close, operations are executed at most once, and REGISTER ATTACHMENT exists.
    const FORMAT: u8 = 2;

    /// The page with its header.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = if self.image.is_some() { Self::BYTES } else { Self::BYTES_MIN };
        let mut page = vec![0, UNIT_PAGE, 0, (bytes - 4) as u8, Self::FORMAT];
        let (custody, suite, mode) = match &self.sealing {
            Some(sealing) => (sealing.custody as u8, sealing.suite as u8, sealing.mode as u8),
            None => (0, 0, 0),
        };
        let leases = if self.has_leases { WRITER_LEASES } else { 0 };
        let policy = self.sealing.map_or(0, |sealing| sealing.policy()) | leases;
        let [views_high, views_low] = self.other_views.to_be_bytes();
        page.extend_from_slice(&[self.sealing.is_some().into(), custody, suite, mode, views_high, views_low, policy]);
        page.extend_from_slice(&self.sealing.map_or([0; 16], |sealing| sealing.domain.0));
        page.extend_from_slice(&self.volume.0);
        page.extend_from_slice(&self.block_size.bytes().to_be_bytes());
        page.extend_from_slice(&self.sealing.map_or(0, |sealing| sealing.record_bytes).to_be_bytes());
        page.extend_from_slice(&self.sealing.map_or(0, |sealing| sealing.epoch).to_be_bytes());
        page.extend_from_slice(&self.incarnation.to_be_bytes());
        page.extend(self.image.into_iter().flat_map(u64::to_be_bytes));
        debug_assert_eq!(page.len(), bytes);
        page
    }

    /// Reads the page; `None` if it is not this page, is cut short, or speaks of a format, custody, suite or mode that this
    /// build does not know.
    pub fn parse(page: &[u8]) -> Option<UnitPage> {
        if *page.get(1)? != UNIT_PAGE || usize::from(be16(page, 2)?) < Self::BYTES_MIN - 4 {
            return None;
        }
        if *page.get(4)? != Self::FORMAT {
            return None;
        }
        let block_size = BlockSize::new(be32(page, 44)?.into()).ok()?;
        let volume = VolumeId(array(page, 28)?);
        let sealing = match *page.get(5)? {
            0 => None,
            1 => Some(Sealing {
                custody: Custody::from_byte(page[6]).ok()?,
                suite: Suite::from_byte(page[7]).ok()?,
                mode: match page[8] {
                    1 => Mode::Encrypt,
                    2 => Mode::AuthenticateOnly,
                    _ => return None,
                },
                domain: SealingDomain(array(page, 12)?),
                record_bytes: be32(page, 48)?,
                epoch: be32(page, 52)?,
                allows_previous: page[11] & ALLOWS_PREVIOUS != 0,
                conditional_holes: page[11] & CONDITIONAL_HOLES != 0,
                heeds_keys_destroyed: page[11] & KEYS_DESTROYED != 0,
            }),
            _ => return None,
        };
        if let Some(sealing) = &sealing
            && sealing.record_bytes as usize != sealing.custody.record_bytes_in_channel()
        {
            return None;
        }
        let incarnation = u64::from_be_bytes(array(page, 56)?);
        let has_leases = page[11] & WRITER_LEASES != 0;
        let image = (usize::from(be16(page, 2)?) >= Self::BYTES - 4).then(|| array(page, 64)).flatten();
        let image = image.map(u64::from_be_bytes);
        Some(UnitPage { volume, block_size, sealing, other_views: be16(page, 9)?, incarnation, has_leases, image })
    }
}

#[cfg(test)]
mod tests;
