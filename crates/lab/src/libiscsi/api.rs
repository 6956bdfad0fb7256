//! The few functions of libiscsi that a benchmark needs, looked up by name in the shared library.
//!
//! Their types are those of `iscsi/iscsi.h` of libiscsi 1.19 and 1.20 (API version 20170105), which has kept them since
//! 1.17. Absent: any other function.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// `struct iscsi_context`, opaque.
#[repr(C)]
pub(super) struct Context {
    _opaque: [u8; 0],
}

/// `struct scsi_task`, opaque to us.
#[repr(C)]
pub(super) struct Task {
    _opaque: [u8; 0],
}

/// `struct scsi_iovec`, which "must never change".
#[repr(C)]
pub(super) struct IoVec {
    pub(super) base: *mut c_void,
    pub(super) bytes: usize,
}

/// How `struct scsi_readcapacity16` begins.
#[repr(C)]
pub(super) struct ReadCapacity16 {
    pub(super) last_lba: u64,
    pub(super) block_bytes: u32,
}

/// `ISCSI_SESSION_NORMAL`.
pub(super) const SESSION_NORMAL: c_int = 2;
/// `ISCSI_HEADER_DIGEST_NONE`.
pub(super) const HEADER_DIGEST_NONE: c_int = 0;
/// `SCSI_STATUS_GOOD`.
pub(super) const STATUS_GOOD: c_int = 0;

/// `iscsi_command_cb`.
pub(super) type Callback = extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void);

/// The shared library cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("libiscsi, the stock initiator, is not here ({0}); install it with scripts/deps.sh (Debian: libiscsi7)")]
pub struct NotInstalled(String);

/// By which names distributions know it, the one that Debian 12 has first.
const NAMES: &[&str] =
    &["libiscsi.so.7", "libiscsi.so.8", "libiscsi.so.9", "libiscsi.so.10", "libiscsi.so.11", "libiscsi.so"];

/// A table of functions from `field: "symbol" = type` lines.
macro_rules! table {
    ($($field:ident: $symbol:literal = fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, and the library that they live in.
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            _library: Library,
        }

        impl Api {
            fn open() -> Result<Api, String> {
                let mut reason = String::new();
                for name in NAMES {
                    // SAFETY: libiscsi runs no code when it is loaded.
                    match unsafe { Library::new(*name) } {
                        Ok(library) => {
                            return Ok(Api {
                                // SAFETY: the types are those of the header; the library stays loaded as long as the table.
                                $($field: unsafe { *library.get(concat!($symbol, "\0").as_bytes()).map_err(|e| e.to_string())? },)*
                                _library: library,
                            });
                        }
                        Err(error) if reason.is_empty() => reason = error.to_string(),
                        Err(_) => {}
                    }
                }
                Err(reason)
            }
        }
    };
}

table! {
    create_context: "iscsi_create_context" = fn(*const c_char) -> *mut Context;
    destroy_context: "iscsi_destroy_context" = fn(*mut Context) -> c_int;
    set_targetname: "iscsi_set_targetname" = fn(*mut Context, *const c_char) -> c_int;
    set_session_type: "iscsi_set_session_type" = fn(*mut Context, c_int) -> c_int;
    set_header_digest: "iscsi_set_header_digest" = fn(*mut Context, c_int) -> c_int;
    set_initial_r2t: "iscsi_set_initial_r2t" = fn(*mut Context, c_int) -> c_int;
    set_noautoreconnect: "iscsi_set_noautoreconnect" = fn(*mut Context, c_int);
    set_timeout: "iscsi_set_timeout" = fn(*mut Context, c_int) -> c_int;
    full_connect_sync: "iscsi_full_connect_sync" = fn(*mut Context, *const c_char, c_int) -> c_int;
    logout_sync: "iscsi_logout_sync" = fn(*mut Context) -> c_int;
    last_error: "iscsi_get_error" = fn(*mut Context) -> *const c_char;
    get_fd: "iscsi_get_fd" = fn(*mut Context) -> c_int;
    which_events: "iscsi_which_events" = fn(*mut Context) -> c_int;
    service: "iscsi_service" = fn(*mut Context, c_int) -> c_int;
    read_capacity16_sync: "iscsi_readcapacity16_sync" = fn(*mut Context, c_int) -> *mut Task;
    datain_unmarshall: "scsi_datain_unmarshall" = fn(*mut Task) -> *mut c_void;
    free_task: "scsi_free_scsi_task" = fn(*mut Task);
    read16_iov: "iscsi_read16_iov_task" = fn(*mut Context, c_int, u64, u32, c_int, c_int, c_int, c_int, c_int, c_int,
        Callback, *mut c_void, *mut IoVec, c_int) -> *mut Task;
    write16: "iscsi_write16_task" = fn(*mut Context, c_int, u64, *mut u8, u32, c_int, c_int, c_int, c_int, c_int, c_int,
        Callback, *mut c_void) -> *mut Task;
    synchronize_cache16: "iscsi_synchronizecache16_task" = fn(*mut Context, c_int, u64, u32, c_int, c_int,
        Callback, *mut c_void) -> *mut Task;
}

impl Api {
    /// The table; the library is loaded by the first call and stays.
    pub(super) fn load() -> Result<&'static Api, NotInstalled> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        API.get_or_init(Api::open).as_ref().map_err(|reason| NotInstalled(reason.clone()))
    }

    /// What libiscsi says went wrong last.
    pub(super) fn error_text(&self, context: *mut Context) -> String {
        if context.is_null() {
            return "the session is gone".into();
        }
        // SAFETY: the context is alive; its text is a C string that stays until the next call into libiscsi, and is copied.
        let text = unsafe {
            let text = (self.last_error)(context);
            if text.is_null() { c"it gives no reason" } else { CStr::from_ptr(text) }
        };
        text.to_string_lossy().trim().to_owned()
    }
}
