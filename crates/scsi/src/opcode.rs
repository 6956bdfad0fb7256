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
/// MODE SELECT (6).
pub const MODE_SELECT_6: u8 = 0x15;
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
/// WRITE AND VERIFY (10).
pub const WRITE_AND_VERIFY_10: u8 = 0x2e;
/// VERIFY (10).
pub const VERIFY_10: u8 = 0x2f;
/// PRE-FETCH (10).
pub const PRE_FETCH_10: u8 = 0x34;
/// SYNCHRONIZE CACHE (10).
pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
/// READ DEFECT DATA (10).
pub const READ_DEFECT_DATA_10: u8 = 0x37;
/// WRITE SAME (10).
pub const WRITE_SAME_10: u8 = 0x41;
/// UNMAP.
pub const UNMAP: u8 = 0x42;
/// SANITIZE.
pub const SANITIZE: u8 = 0x48;
/// LOG SENSE.
pub const LOG_SENSE: u8 = 0x4d;
/// MODE SELECT (10).
pub const MODE_SELECT_10: u8 = 0x55;
/// RESERVE (10).
pub const RESERVE_10: u8 = 0x56;
/// RELEASE (10).
pub const RELEASE_10: u8 = 0x57;
/// MODE SENSE (10).
pub const MODE_SENSE_10: u8 = 0x5a;
/// PERSISTENT RESERVE IN.
pub const PERSISTENT_RESERVE_IN: u8 = 0x5e;
/// PERSISTENT RESERVE OUT.
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
/// EXTENDED COPY; its service action 0 is the LID1 form.
pub const EXTENDED_COPY: u8 = 0x83;
/// RECEIVE COPY RESULTS.
pub const RECEIVE_COPY_RESULTS: u8 = 0x84;
/// READ (16).
pub const READ_16: u8 = 0x88;
/// COMPARE AND WRITE.
pub const COMPARE_AND_WRITE: u8 = 0x89;
/// WRITE (16).
pub const WRITE_16: u8 = 0x8a;
/// ORWRITE (16).
pub const ORWRITE: u8 = 0x8b;
/// WRITE AND VERIFY (16).
pub const WRITE_AND_VERIFY_16: u8 = 0x8e;
/// VERIFY (16).
pub const VERIFY_16: u8 = 0x8f;
/// PRE-FETCH (16).
pub const PRE_FETCH_16: u8 = 0x90;
/// SYNCHRONIZE CACHE (16).
pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
/// WRITE SAME (16).
pub const WRITE_SAME_16: u8 = 0x93;
/// WRITE ATOMIC (16).
pub const WRITE_ATOMIC_16: u8 = 0x9c;
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
/// WRITE AND VERIFY (12).
pub const WRITE_AND_VERIFY_12: u8 = 0xae;
/// VERIFY (12).
pub const VERIFY_12: u8 = 0xaf;
/// READ DEFECT DATA (12).
pub const READ_DEFECT_DATA_12: u8 = 0xb7;
/// Strongroom's own commands (`docs/vendor-cdbs.md`).
pub const STRONGROOM: u8 = 0xc1;

/// Service action of READ CAPACITY (16) under [`SERVICE_ACTION_IN_16`].
pub const SA_READ_CAPACITY_16: u8 = 0x10;
/// Service action of GET LBA STATUS under [`SERVICE_ACTION_IN_16`].
pub const SA_GET_LBA_STATUS: u8 = 0x12;
/// Service action of REPORT TARGET PORT GROUPS under [`MAINTENANCE_IN`].
pub const SA_REPORT_TARGET_PORT_GROUPS: u8 = 0x0a;
/// Service action of REPORT SUPPORTED OPERATION CODES under [`MAINTENANCE_IN`].
pub const SA_REPORT_SUPPORTED_OPERATION_CODES: u8 = 0x0c;
/// Service action of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS under [`MAINTENANCE_IN`].
pub const SA_REPORT_SUPPORTED_TMFS: u8 = 0x0d;

/// Service action BLOCK ERASE of [`SANITIZE`].
pub const SA_SANITIZE_BLOCK_ERASE: u8 = 0x02;
/// Service action CRYPTOGRAPHIC ERASE of [`SANITIZE`].
pub const SA_SANITIZE_CRYPTO_ERASE: u8 = 0x03;
/// Service action EXIT FAILURE MODE of [`SANITIZE`].
pub const SA_SANITIZE_EXIT_FAILURE_MODE: u8 = 0x1f;
/// Service action COPY STATUS (LID1) of [`RECEIVE_COPY_RESULTS`].
pub const SA_COPY_STATUS: u8 = 0x00;
/// Service action OPERATING PARAMETERS of [`RECEIVE_COPY_RESULTS`].
pub const SA_COPY_OPERATING_PARAMETERS: u8 = 0x03;

/// Service action READ KEYS of [`PERSISTENT_RESERVE_IN`].
pub const SA_PR_READ_KEYS: u8 = 0x00;
/// Service action READ RESERVATION of [`PERSISTENT_RESERVE_IN`].
pub const SA_PR_READ_RESERVATION: u8 = 0x01;
/// Service action REPORT CAPABILITIES of [`PERSISTENT_RESERVE_IN`].
pub const SA_PR_REPORT_CAPABILITIES: u8 = 0x02;
/// Service action READ FULL STATUS of [`PERSISTENT_RESERVE_IN`].
pub const SA_PR_READ_FULL_STATUS: u8 = 0x03;
/// Service action REGISTER of [`PERSISTENT_RESERVE_OUT`].
pub const SA_PR_REGISTER: u8 = 0x00;
/// Service action RESERVE of [`PERSISTENT_RESERVE_OUT`].
pub const SA_PR_RESERVE: u8 = 0x01;
/// Service action RELEASE of [`PERSISTENT_RESERVE_OUT`].
pub const SA_PR_RELEASE: u8 = 0x02;
/// Service action CLEAR of [`PERSISTENT_RESERVE_OUT`].
pub const SA_PR_CLEAR: u8 = 0x03;
/// Service action PREEMPT of [`PERSISTENT_RESERVE_OUT`].
pub const SA_PR_PREEMPT: u8 = 0x04;
/// Service action PREEMPT AND ABORT of [`PERSISTENT_RESERVE_OUT`].
pub const SA_PR_PREEMPT_AND_ABORT: u8 = 0x05;
/// Service action REGISTER AND IGNORE EXISTING KEY of [`PERSISTENT_RESERVE_OUT`].
pub const SA_PR_REGISTER_AND_IGNORE: u8 = 0x06;
/// Service action REGISTER AND MOVE of [`PERSISTENT_RESERVE_OUT`].
pub const SA_PR_REGISTER_AND_MOVE: u8 = 0x07;

/// Service action of SEAL HOLE under [`STRONGROOM`].
pub const SA_SEAL_HOLE: u8 = 0x01;
/// Service action of READ VERSION under [`STRONGROOM`].
pub const SA_READ_VERSION: u8 = 0x02;
/// Service action of VERIFIED under [`STRONGROOM`].
pub const SA_VERIFIED: u8 = 0x03;
/// Service action of CONDITIONAL WRITE under [`STRONGROOM`].
pub const SA_CONDITIONAL_WRITE: u8 = 0x04;
/// Service action of TAKE PLACE under [`STRONGROOM`].
pub const SA_TAKE_PLACE: u8 = 0x05;
/// Service action of REGISTER ATTACHMENT under [`STRONGROOM`].
pub const SA_REGISTER_ATTACHMENT: u8 = 0x06;
/// Service action of CLAIM WRITER LEASE under [`STRONGROOM`].
pub const SA_CLAIM_LEASE: u8 = 0x07;
/// Service action of RELEASE WRITER LEASE under [`STRONGROOM`].
pub const SA_RELEASE_LEASE: u8 = 0x08;
/// Service action of REPORT WRITERS under [`STRONGROOM`].
pub const SA_REPORT_WRITERS: u8 = 0x09;
