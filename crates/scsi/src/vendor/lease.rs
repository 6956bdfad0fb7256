//! Writer leases as CLAIM WRITER LEASE and REPORT WRITERS carry them (`docs/vendor-cdbs.md`, "Writer leases"). Deliberately absent: who
//! gets one and what it forbids others, which is the target's to decide.

use std::fmt;

use crate::bytes::{array, be16, be32};

/// Longest description of a holder, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 128;
/// How long a lease outlives the last session that has it where the initiator names no time, in seconds.
pub const LEASE_SECONDS_DEFAULT: u32 = 60;
/// Longest such time that a target grants, in seconds.
pub const LEASE_SECONDS_MAX: u32 = 3600;
/// Most entries of REPORT WRITERS.
pub const WRITERS_MAX: usize = 128;
/// Bytes that hold [`WRITERS_MAX`] entries with the longest iSCSI names and descriptions.
pub const REPORT_BYTES_MAX: u32 = 64 * 1024;

/// Names a lease: drawn at random for each attachment, and kept over its sessions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub [u8; 16]);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({self})")
    }
}

/// What a session wants of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseMode {
    /// It does not change the medium. Nothing is kept of it beyond the session.
    Reader = 0,
    /// It alone changes the medium.
    Exclusive = 1,
    /// Others with a shared lease, and sessions without any, may change the medium too.
    Shared = 2,
    /// It changes nothing that a holder of another lease has written: conditional writes, absences of blocks that were never written.
    Maintenance = 3,
}

impl LeaseMode {
    /// From its number.
    pub fn from_byte(byte: u8) -> Option<LeaseMode> {
        Some(match byte {
            0 => LeaseMode::Reader,
            1 => LeaseMode::Exclusive,
            2 => LeaseMode::Shared,
            3 => LeaseMode::Maintenance,
            _ => return None,
        })
    }
}

/// The Data-Out of CLAIM WRITER LEASE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which lease.
    pub id: LeaseId,
    /// For what.
    pub mode: LeaseMode,
    /// Leases that stand against it end, and what their holders have under way is aborted.
    pub take_over: bool,
    /// Refused while any other session is logged in to the unit.
    pub sole: bool,
    /// The lease is held already, and is given up if that is not so.
    pub resume: bool,
    /// How long it outlives the last session that has it; 0: [`LEASE_SECONDS_DEFAULT`].
    pub seconds: u32,
    /// Who it is, for people: at most [`DESCRIPTION_BYTES_MAX`] bytes.
    pub description: String,
}

/// A parameter list of CLAIM WRITER LEASE that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Its length is not what its fields say.
    #[error("a claim of {0} bytes is cut short, or too long")]
    Length(usize),
    /// A field has a value that is not known here.
    #[error("the field at byte {0} of a claim has a value that is not known here")]
    Field(u16),
}

const TAKE_OVER: u8 = 1;
const SOLE: u8 = 1 << 1;
const RESUME: u8 = 1 << 2;

impl Claim {
    /// The version of the parameter list.
    const FORMAT: u8 = 1;
    /// Bytes before the description.
    const FIXED_BYTES: usize = 28;
    /// Longest parameter list.
    pub const BYTES_MAX: u32 = (Claim::FIXED_BYTES + DESCRIPTION_BYTES_MAX) as u32;

    /// The parameter list. A description that is too long is cut.
    pub fn encode(&self) -> Vec<u8> {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags = flag(self.take_over, TAKE_OVER) | flag(self.sole, SOLE) | flag(self.resume, RESUME);
        let description = cut(&self.description).as_bytes();
        let mut list = vec![Claim::FORMAT, self.mode as u8, flags, 0];
        list.extend_from_slice(&self.seconds.to_be_bytes());
        list.extend_from_slice(&self.id.0);
        list.extend_from_slice(&(description.len() as u16).to_be_bytes());
        list.extend_from_slice(&[0, 0]);
        debug_assert_eq!(list.len(), Claim::FIXED_BYTES);
        list.extend_from_slice(description);
        list
    }

    /// Reads a parameter list.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn parse(list: &[u8]) -> Result<Claim, ClaimError> {
        let length = ClaimError::Length(list.len());
        let (fixed, description) = list.split_at_checked(Claim::FIXED_BYTES).ok_or(length)?;
        if fixed[0] != Claim::FORMAT {
            return Err(ClaimError::Field(0));
        }
        let mode = LeaseMode::from_byte(fixed[1]).ok_or(ClaimError::Field(1))?;
        let flags = fixed[2];
        if flags & !(TAKE_OVER | SOLE | RESUME) != 0 || flags & RESUME != 0 && flags != RESUME {
            return Err(ClaimError::Field(2));
        }
        let id = LeaseId(array(fixed, 8).ok_or(length)?);
        if id.0 == [0; 16] {
            return Err(ClaimError::Field(8));
        }
        let said = usize::from(be16(fixed, 24).ok_or(length)?);
        if description.len() != said || said > DESCRIPTION_BYTES_MAX {
            return Err(length);
        }
        let description = std::str::from_utf8(description).map_err(|_| ClaimError::Field(Claim::FIXED_BYTES as u16))?;
        Ok(Claim {
            id,
            mode,
            take_over: flags & TAKE_OVER != 0,
            sole: flags & SOLE != 0,
            resume: flags & RESUME != 0,
            seconds: be32(fixed, 4).ok_or(length)?,
            description: description.to_owned(),
        })
    }

    /// How long the lease outlives the last session that has it, as a target grants it, in seconds.
    pub fn granted_seconds(&self) -> u32 {
        match self.seconds {
            0 => LEASE_SECONDS_DEFAULT,
            seconds => seconds.min(LEASE_SECONDS_MAX),
        }
    }
}

/// At most [`DESCRIPTION_BYTES_MAX`] bytes of a description, whole characters.
fn cut(description: &str) -> &str {
    let mut end = description.len().min(DESCRIPTION_BYTES_MAX);
    while !description.is_char_boundary(end) {
        end -= 1;
    }
    &description[..end]
}

/// What a writer, or a session, is to the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterRole {
    /// It holds a lease: never of mode `Reader`.
    Holder(LeaseMode),
    /// A session without a lease that may change the medium.
    Unleased,
    /// A session that said that it changes nothing, or that may not.
    Reader,
    /// It took over the lease that the asking session had. It may have gone since.
    TookOver,
    /// The lease that the asking session had ended while the session was away, and the medium was changed, or another lease was granted, since.
    Ended,
}

/// Whether a holder is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A session has it.
    Connected,
    /// No session has it any more. It ends when its time is over and another session claims it or writes.
    Gone {
        /// Since when, in seconds.
        since_s: u32,
        /// How long it goes on, in seconds; 0: it ends as soon as another session claims it or writes.
        left_s: u32,
    },
}

/// An entry of REPORT WRITERS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    /// What it is.
    pub role: WriterRole,
    /// It is the session that asks, or the lease that this session has.
    pub is_asker: bool,
    /// Whether it is there.
    pub standing: Standing,
    /// Its iSCSI name. From a peer: to be shown escaped only.
    pub initiator_name: String,
    /// What it said about itself; may be empty. From a peer: to be shown escaped only.
    pub description: String,
}

/// Format, three bytes of 0, count of entries that follow (u16), two bytes of 0.
const REPORT_HEADER_BYTES: usize = 8;
const REPORT_FORMAT: u8 = 1;
const WRITER_FIXED_BYTES: usize = 16;

const IS_ASKER: u8 = 1;
const IS_CONNECTED: u8 = 1 << 1;

impl Writer {
    fn encode(&self, report: &mut Vec<u8>) {
        let (kind, mode) = match self.role {
            WriterRole::Holder(mode) => (1, mode as u8),
            WriterRole::Unleased => (2, 0),
            WriterRole::Reader => (3, 0),
            WriterRole::TookOver => (4, 0),
            WriterRole::Ended => (5, 0),
        };
        let (connected, since_s, left_s) = match self.standing {
            Standing::Connected => (IS_CONNECTED, 0, 0),
            Standing::Gone { since_s, left_s } => (0, since_s, left_s),
        };
        let asker = if self.is_asker { IS_ASKER } else { 0 };
        let description = cut(&self.description);
        report.extend_from_slice(&[kind, mode, asker | connected, 0]);
        report.extend_from_slice(&since_s.to_be_bytes());
        report.extend_from_slice(&left_s.to_be_bytes());
        report.extend_from_slice(&(self.initiator_name.len() as u16).to_be_bytes());
        report.extend_from_slice(&(description.len() as u16).to_be_bytes());
        report.extend_from_slice(self.initiator_name.as_bytes());
        report.extend_from_slice(description.as_bytes());
    }

    /// The first entry, and what follows it.
    fn parse(bytes: &[u8]) -> Option<(Writer, &[u8])> {
        let (fixed, rest) = bytes.split_at_checked(WRITER_FIXED_BYTES)?;
        let role = match (fixed[0], fixed[1]) {
            (1, mode @ 1..) => WriterRole::Holder(LeaseMode::from_byte(mode)?),
            (2, 0) => WriterRole::Unleased,
            (3, 0) => WriterRole::Reader,
            (4, 0) => WriterRole::TookOver,
            (5, 0) => WriterRole::Ended,
            _ => return None,
        };
        let standing = match fixed[2] & IS_CONNECTED != 0 {
            true => Standing::Connected,
            false => Standing::Gone { since_s: be32(fixed, 4)?, left_s: be32(fixed, 8)? },
        };
        let (name, rest) = rest.split_at_checked(be16(fixed, 12)?.into())?;
        let (description, rest) = rest.split_at_checked(be16(fixed, 14)?.into())?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let is_asker = fixed[2] & IS_ASKER != 0;
        let writer = Writer { role, is_asker, standing, initiator_name: text(name), description: text(description) };
        Some((writer, rest))
    }
}

/// The Data-In of REPORT WRITERS: at most [`WRITERS_MAX`] entries.
pub fn encode_writers(writers: &[Writer]) -> Vec<u8> {
    let writers = &writers[..writers.len().min(WRITERS_MAX)];
    let [high, low] = (writers.len() as u16).to_be_bytes();
    let mut report = vec![REPORT_FORMAT, 0, 0, 0, high, low, 0, 0];
    debug_assert_eq!(report.len(), REPORT_HEADER_BYTES);
    writers.iter().for_each(|writer| writer.encode(&mut report));
    report
}

/// Reads the Data-In of REPORT WRITERS; `None` if it is of a format that is not known here, or is cut short.
pub fn parse_writers(report: &[u8]) -> Option<Vec<Writer>> {
    let (header, mut rest) = report.split_at_checked(REPORT_HEADER_BYTES)?;
    let count = usize::from(be16(header, 4)?);
    if header[0] != REPORT_FORMAT || count > WRITERS_MAX {
        return None;
    }
    let mut writers = Vec::with_capacity(count);
    for _ in 0..count {
        let (writer, behind) = Writer::parse(rest)?;
        writers.push(writer);
        rest = behind;
    }
    Some(writers)
}

#[cfg(test)]
mod tests {
    //! Proves claims and reports byte by byte, as `docs/vendor-cdbs.md` gives them, and that no bytes from a peer are taken for others.
    use proptest::prelude::*;

    use super::*;

    fn claim() -> Claim {
        Claim {
            id: LeaseId([0x0a; 16]),
            mode: LeaseMode::Exclusive,
            take_over: true,
            sole: false,
            resume: false,
            seconds: 90,
            description: "host a".to_owned(),
        }
    }

    #[test]
    fn golden_claim() {
        let mut golden = vec![1, 1, 1, 0, 0, 0, 0, 90];
        golden.extend_from_slice(&[0x0a; 16]);
        golden.extend_from_slice(&[0, 6, 0, 0, b'h', b'o', b's', b't', b' ', b'a']);
        assert_eq!(claim().encode(), golden);
        assert_eq!(Claim::parse(&golden), Ok(claim()));
        let field = |at: usize, value: u8| {
            let mut bad = golden.clone();
            bad[at] = value;
            Claim::parse(&bad)
        };
        for (at, value, wrong) in [(0, 2, 0), (1, 4, 1), (2, 8, 2), (2, 5, 2), (28, 0xff, 28)] {
            assert_eq!(field(at, value), Err(ClaimError::Field(wrong)), "byte {at} = {value}");
        }
        assert_eq!(field(25, 7), Err(ClaimError::Length(34)));
        assert_eq!(Claim::parse(&golden[..27]), Err(ClaimError::Length(27)));
        let nameless = Claim { id: LeaseId([0; 16]), ..claim() };
        assert_eq!(Claim::parse(&nameless.encode()), Err(ClaimError::Field(8)));
        let long = Claim { description: "é".repeat(100), ..claim() };
        assert_eq!(long.encode().len(), Claim::BYTES_MAX as usize);
        assert_eq!(Claim::parse(&long.encode()).unwrap().description, "é".repeat(64));
        assert_eq!(Claim { seconds: 0, ..claim() }.granted_seconds(), LEASE_SECONDS_DEFAULT);
        assert_eq!(Claim { seconds: u32::MAX, ..claim() }.granted_seconds(), LEASE_SECONDS_MAX);
    }

    fn writer(role: WriterRole, standing: Standing) -> Writer {
        Writer { role, is_asker: false, standing, initiator_name: "iqn.a".into(), description: "b".into() }
    }

    #[test]
    fn golden_report() {
        let writers = [
            writer(WriterRole::Holder(LeaseMode::Shared), Standing::Gone { since_s: 3, left_s: 57 }),
            Writer { is_asker: true, ..writer(WriterRole::Unleased, Standing::Connected) },
        ];
        let golden = [
            &[1, 0, 0, 0, 0, 2, 0, 0][..],
            &[1, 2, 0, 0, 0, 0, 0, 3, 0, 0, 0, 57, 0, 5, 0, 1],
            b"iqn.ab",
            &[2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1],
            b"iqn.ab",
        ]
        .concat();
        assert_eq!(encode_writers(&writers), golden);
        assert_eq!(parse_writers(&golden), Some(writers.to_vec()));
        for end in 0..golden.len() {
            assert_eq!(parse_writers(&golden[..end]), None, "{end}");
        }
        for (at, value) in [(0, 2), (4, 1), (8, 6), (9, 0), (9, 4)] {
            let mut bad = golden.clone();
            bad[at] = value;
            assert_eq!(parse_writers(&bad), None, "byte {at} = {value}");
        }
        let many = vec![writers[0].clone(); WRITERS_MAX + 1];
        assert_eq!(parse_writers(&encode_writers(&many)).unwrap().len(), WRITERS_MAX);
    }

    proptest! {
        #[test]
        fn bytes_from_a_peer_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(claim) = Claim::parse(&bytes) {
                prop_assert_eq!(Claim::parse(&claim.encode()), Ok(claim));
            }
            let _ = parse_writers(&bytes);
        }
    }
}
