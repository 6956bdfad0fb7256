//! Operation codes and service actions (SPC-4 annex F.2, SBC-3 §5), as constants.

/// TEST UNIT READY.
pub const TEST_UNIT_READY: u8 = 0x00;
/// REQUEST SENSE.
pub const REQUEST_SENSE: u8 = 0x03;
/// READ (6).
pub const READ_6: u8 = 0x08;
/// WRITE (6).
pub const WRITE_6: u8 = 0x0a;
/// INQUIRY.
pub const INQUIRY: u8 = 0x12;
/// RESERVE (6).
pub const RESERVE_6: u8 = 0x16;
/// RELEASE (6).
pub const RELEASE_6: u8 = 0x17;
/// MODE SENSE (6).
pub const MODE_SENSE_6: u8 = 0x1a;
/// START STOP UNIT.
pub const START_STOP_UNIT: u8 = 0x1b;
/// PREVENT ALLOW MEDIUM REMOVAL.
pub const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1e;
/// READ CAPACITY (10).
pub const READ_CAPACITY_10: u8 = 0x25;
/// READ (10).
pub const READ_10: u8 = 0x28;
/// WRITE (10).
pub const WRITE_10: u8 = 0x2a;
/// VERIFY (10).
pub const VERIFY_10: u8 = 0x2f;
/// SYNCHRONIZE CACHE (10).
pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
/// WRITE SAME (10).
pub const WRITE_SAME_10: u8 = 0x41;
/// UNMAP.
pub const UNMAP: u8 = 0x42;
/// MODE SENSE (10).
pub const MODE_SENSE_10: u8 = 0x5a;
/// PERSISTENT RESERVE IN.
pub const PERSISTENT_RESERVE_IN: u8 = 0x5e;
/// PERSISTENT RESERVE OUT.
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
/// READ (16).
pub const READ_16: u8 = 0x88;
/// COMPARE AND WRITE.
pub const COMPARE_AND_WRITE: u8 = 0x89;
/// WRITE (16).
pub const WRITE_16: u8 = 0x8a;
/// VERIFY (16).
pub const VERIFY_16: u8 = 0x8f;
/// SYNCHRONIZE CACHE (16).
pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
/// WRITE SAME (16).
pub const WRITE_SAME_16: u8 = 0x93;
/// SERVICE ACTION IN (16): READ CAPACITY (16), GET LBA STATUS.
pub const SERVICE_ACTION_IN_16: u8 = 0x9e;
/// REPORT LUNS.
pub const REPORT_LUNS: u8 = 0xa0;
/// MAINTENANCE IN: REPORT SUPPORTED OPERATION CODES and its relatives.
pub const MAINTENANCE_IN: u8 = 0xa3;
/// READ (12).
pub const READ_12: u8 = 0xa8;
/// WRITE (12).
pub const WRITE_12: u8 = 0xaa;
/// Strongroom's own commands (`docs/vendor-cdbs.md`).
pub const STRONGROOM: u8 = 0xc1;

/// Service action of READ CAPACITY (16) under [`SERVICE_ACTION_IN_16`].
pub const SA_READ_CAPACITY_16: u8 = 0x10;
/// Service action of GET LBA STATUS under [`SERVICE_ACTION_IN_16`].
pub const SA_GET_LBA_STATUS: u8 = 0x12;
/// Service action of REPORT SUPPORTED OPERATION CODES under [`MAINTENANCE_IN`].
pub const SA_REPORT_SUPPORTED_OPERATION_CODES: u8 = 0x0c;
/// Service action of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS under [`MAINTENANCE_IN`].
pub const SA_REPORT_SUPPORTED_TMFS: u8 = 0x0d;

/// Service action of SEAL HOLE under [`STRONGROOM`].
pub const SA_SEAL_HOLE: u8 = 0x01;
/// Service action of READ VERSION under [`STRONGROOM`].
pub const SA_READ_VERSION: u8 = 0x02;
/// Service action of VERIFIED under [`STRONGROOM`].
pub const SA_VERIFIED: u8 = 0x03;
/// Service action of CONDITIONAL WRITE under [`STRONGROOM`].
pub const SA_CONDITIONAL_WRITE: u8 = 0x04;
