//! The table that says which stage of an I/O a function belongs to: by its source file, or in the kernel by its name.
//!
//! A sample is a chain of frames, innermost first. Its stage is that of the innermost frame that the table knows. What the table leaves out
//! (the standard library, ciphers, checksums, buffers, the medium below the store) counts to its caller, and so do allocation, copying and
//! page faults; what these take altogether is told by [`Kind`], beside the stages.

/// A function that was executing, or that had called the one before it in the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The kernel's, not the program's.
    pub is_kernel: bool,
    /// Its name as a symbol.
    pub function: String,
    /// Where its instruction comes from: source files of ours from `crates/` on, first that of the innermost inlined function.
    pub files: Vec<String>,
}

/// A part of the way of an I/O, in the order in which tables list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The program that uses the volume: the lab's load generator.
    Program,
    /// Requests into the device and completions out of it.
    FrontEnd,
    /// The initiator's pipeline and engine.
    Pipeline,
    /// Sealing and opening of blocks.
    Seal,
    /// Stamps and seal records, and their translation between channel and store.
    Record,
    /// Headers of PDUs with their additional header segments, CDBs, framing without a channel.
    Codec,
    /// The channel: frames, encryption and authentication of headers, or of everything.
    Channel,
    /// The session with its tasks and sequence numbers.
    Session,
    /// What ECL does that TCP does in the kernel: acknowledgements, recovery, congestion control, packet sizes.
    Recovery,
    /// The event loop and what drives sessions from it.
    Runtime,
    /// TCP, UDP, sockets and io_uring in the kernel.
    Socket,
    /// The logical unit: commands, task set, access control.
    Unit,
    /// The store's index: where the newest version of a block is.
    Index,
    /// The store's older versions.
    Versions,
    /// The store's queue of writes, its log, and the writes to the medium.
    Append,
    /// The store's reads, with its caches.
    Read,
    /// The rest of the store: admission, completions, background work.
    Store,
    /// Responses on their way out of the target, and into the initiator's requests.
    Response,
    /// Feedback on which versions have opened.
    Verification,
    /// Allocation, copying and page faults that no caller was found for.
    Memory,
    /// Scheduling, wake-ups of other threads, and interrupts.
    Scheduler,
    /// What no rule knows.
    Unknown,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 22] = [
        Stage::Program,
        Stage::FrontEnd,
        Stage::Pipeline,
        Stage::Seal,
        Stage::Record,
        Stage::Codec,
        Stage::Channel,
        Stage::Session,
        Stage::Recovery,
        Stage::Runtime,
        Stage::Socket,
        Stage::Unit,
        Stage::Index,
        Stage::Versions,
        Stage::Append,
        Stage::Read,
        Stage::Store,
        Stage::Response,
        Stage::Verification,
        Stage::Memory,
        Stage::Scheduler,
        Stage::Unknown,
    ];

    /// As in tables and results.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Program => "program",
            Stage::FrontEnd => "front end",
            Stage::Pipeline => "pipeline",
            Stage::Seal => "seal, open",
            Stage::Record => "record",
            Stage::Codec => "header and AHS codec",
            Stage::Channel => "channel",
            Stage::Session => "session",
            Stage::Recovery => "recovery, congestion (ECL)",
            Stage::Runtime => "runtime, driver loop",
            Stage::Socket => "socket (kernel)",
            Stage::Unit => "logical unit",
            Stage::Index => "store: index",
            Stage::Versions => "store: versions",
            Stage::Append => "store: log, append",
            Stage::Read => "store: read",
            Stage::Store => "store: the rest",
            Stage::Response => "response",
            Stage::Verification => "verification feedback",
            Stage::Memory => "memory, no caller known",
            Stage::Scheduler => "scheduler, wake-ups, interrupts (kernel)",
            Stage::Unknown => "unknown",
        }
    }
}

/// What code of every stage does and could do less of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Memory from and to the allocator.
    Allocation,
    /// Copies within the program.
    Copying,
    /// Memory set to zero.
    Clearing,
    /// Pages that were touched first.
    PageFault,
    /// Keyless checksums.
    Checksum,
}

impl Kind {
    /// All of them, in order.
    pub const ALL: [Kind; 5] = [Kind::Allocation, Kind::Copying, Kind::Clearing, Kind::PageFault, Kind::Checksum];

    /// As in tables and results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Allocation => "allocation",
            Kind::Copying => "copying",
            Kind::Clearing => "clearing",
            Kind::PageFault => "page faults",
            Kind::Checksum => "checksums",
        }
    }

    /// By a function's name.
    fn of(frame: &Frame) -> Option<Kind> {
        let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| frame.function.starts_with(beginning));
        if frame.is_kernel {
            return begins(&["exc_page_fault", "asm_exc_page_fault"]).then_some(Kind::PageFault);
        }
        if begins(&["__memmove", "__memcpy", "memcpy", "memmove"]) {
            Some(Kind::Copying)
        } else if begins(&["__memset", "memset"]) {
            Some(Kind::Clearing)
        } else if begins(&["crc_fast::", "crc32"]) {
            Some(Kind::Checksum)
        } else if begins(&[
            "mi_",
            "_mi_",
            "malloc",
            "free",
            "calloc",
            "realloc",
            "_int_",
            "__rust_alloc",
            "alloc::raw_vec::",
        ]) {
            Some(Kind::Allocation)
        } else {
            None
        }
    }
}

/// Files of ours, from `crates/` on, by how their paths begin; the longest that fits decides. `None`: the caller does.
#[rustfmt::skip]
const FILES: &[(&str, Option<Stage>)] = &[
    // The vocabulary of all rooms: buffers, checksums, addresses. Records are a stage of their own.
    ("block/src/record", Some(Stage::Record)),
    ("channel/src/", Some(Stage::Channel)),
    ("handshake/src/", Some(Stage::Channel)),
    // Who calls the cipher is the stage: sealing or the channel.
    ("cipher/src/", None),

    ("ecl/src/", Some(Stage::Session)),
    ("ecl/src/acknowledgement", Some(Stage::Recovery)),
    ("ecl/src/body", Some(Stage::Codec)),
    ("ecl/src/congestion", Some(Stage::Recovery)),
    ("ecl/src/header", Some(Stage::Codec)),
    ("ecl/src/keys", Some(Stage::Channel)),
    ("ecl/src/mtu", Some(Stage::Recovery)),
    ("ecl/src/quantum", Some(Stage::Record)),
    ("ecl/src/recovery", Some(Stage::Recovery)),
    ("ecl/src/replay", Some(Stage::Recovery)),
    ("ecl/src/target/respond", Some(Stage::Response)),

    ("lab/src/", Some(Stage::Program)),

    ("seal/src/", Some(Stage::Seal)),
    ("seal/src/stamp", Some(Stage::Record)),
    ("seal/src/associated", Some(Stage::Record)),

    ("initiator/src/", Some(Stage::FrontEnd)),
    ("initiator/src/device/driver", Some(Stage::Runtime)),
    ("initiator/src/device/presealed", Some(Stage::Seal)),
    ("initiator/src/pipeline", Some(Stage::Pipeline)),
    ("initiator/src/pipeline/answer", Some(Stage::Response)),
    ("initiator/src/pipeline/engine/finish", Some(Stage::Response)),
    ("initiator/src/pipeline/engine/seal", Some(Stage::Seal)),
    ("initiator/src/pipeline/feedback", Some(Stage::Verification)),
    ("initiator/src/pipeline/operation/verified", Some(Stage::Verification)),
    ("initiator/src/pipeline/outcome", Some(Stage::Response)),
    ("initiator/src/pipeline/read_data", Some(Stage::Seal)),
    ("initiator/src/pipeline/seal", Some(Stage::Seal)),
    ("initiator/src/pipeline/stamps", Some(Stage::Record)),
    ("initiator/src/session", Some(Stage::Session)),

    ("iscsi/src/", Some(Stage::Session)),
    ("iscsi/src/ahs", Some(Stage::Codec)),
    ("iscsi/src/framer", Some(Stage::Codec)),
    ("iscsi/src/pdu", Some(Stage::Codec)),
    ("iscsi/src/initiator/session/answers", Some(Stage::Response)),
    ("iscsi/src/target/outbox", Some(Stage::Response)),
    ("iscsi/src/target/respond", Some(Stage::Response)),
    ("iscsi/src/target/segment", Some(Stage::Codec)),
    ("scsi/src/", Some(Stage::Codec)),
    ("scsi/src/transport/records", Some(Stage::Record)),

    ("net/src/", Some(Stage::Runtime)),

    ("storage-target/src/", Some(Stage::Unit)),
    ("storage-target/src/iterations", Some(Stage::Runtime)),
    ("storage-target/src/unit/codec", Some(Stage::Record)),
    ("storage-target/src/unit/commands/verified", Some(Stage::Verification)),
    ("storage-target/src/unit/response", Some(Stage::Response)),
    ("storage-target/src/unit/verify", Some(Stage::Verification)),
    ("storage-target/src/worker", Some(Stage::Runtime)),
    ("storage-target/src/worker/open_unit", Some(Stage::Unit)),
    ("storage-target/src/worker/routing", Some(Stage::Session)),
    ("storage-target/src/worker/session", Some(Stage::Session)),
    ("storage-target/src/worker/unit", Some(Stage::Unit)),

    ("store/src/", Some(Stage::Store)),
    // The medium's copies belong to who reads or writes.
    ("store/src/backend", None),
    ("store/src/cache", Some(Stage::Read)),
    ("store/src/catalogue", Some(Stage::Index)),
    ("store/src/head", Some(Stage::Append)),
    ("store/src/holes", Some(Stage::Index)),
    ("store/src/index", Some(Stage::Index)),
    ("store/src/layout", None),
    ("store/src/map", Some(Stage::Index)),
    ("store/src/operations", Some(Stage::Append)),
    ("store/src/segments", Some(Stage::Append)),
    ("store/src/store/append", Some(Stage::Append)),
    ("store/src/store/apply", Some(Stage::Index)),
    ("store/src/store/conditions", Some(Stage::Append)),
    ("store/src/store/hiding", Some(Stage::Index)),
    ("store/src/store/io", None),
    ("store/src/store/queue", Some(Stage::Append)),
    ("store/src/store/read", Some(Stage::Read)),
    ("store/src/store/read_parts", Some(Stage::Index)),
    ("store/src/store/request.rs", Some(Stage::Append)),
    ("store/src/store/retention", Some(Stage::Versions)),
    ("store/src/store/runs", Some(Stage::Index)),
    ("store/src/store/submit", Some(Stage::Append)),
    ("store/src/store/update", Some(Stage::Index)),
    ("store/src/store/volume_index", Some(Stage::Index)),
    ("store/src/unit", Some(Stage::Append)),
    ("store/src/verified", Some(Stage::Verification)),
    ("store/src/versions", Some(Stage::Versions)),
    ("store/src/view", Some(Stage::Index)),
];

/// Functions of the kernel, by how their names begin. The innermost frame that fits decides; what none fits counts to the program's frame
/// that made the system call, as page faults do.
#[rustfmt::skip]
const KERNEL: &[(&str, Stage)] = &[
    ("schedule", Stage::Scheduler),
    ("__schedule", Stage::Scheduler),
    ("finish_task_switch", Stage::Scheduler),
    ("try_to_wake_up", Stage::Scheduler),
    ("wake_up_q", Stage::Scheduler),
    ("__wake_up", Stage::Scheduler),
    ("futex_", Stage::Scheduler),
    ("do_futex", Stage::Scheduler),
    ("eventfd_", Stage::Scheduler),
    ("hrtimer_", Stage::Scheduler),
    ("__hrtimer_", Stage::Scheduler),
    ("sysvec_", Stage::Scheduler),
    ("asm_sysvec_", Stage::Scheduler),
    ("irqentry_exit", Stage::Scheduler),
    ("exit_to_user_mode", Stage::Scheduler),
    ("io_cqring_wait", Stage::Scheduler),
    ("tcp_", Stage::Socket),
    ("__tcp_", Stage::Socket),
    ("udp_", Stage::Socket),
    ("__udp_", Stage::Socket),
    ("udpv6_", Stage::Socket),
    ("veth_", Stage::Socket),
    ("sock_", Stage::Socket),
    // Wakes who waits for the other end of the connection.
    ("sock_def_readable", Stage::Scheduler),
    ("__sock_", Stage::Socket),
    ("inet_", Stage::Socket),
    ("ip_", Stage::Socket),
    ("__ip_", Stage::Socket),
    ("skb_", Stage::Socket),
    ("__skb_", Stage::Socket),
    ("net_rx_action", Stage::Socket),
    ("__napi_poll", Stage::Socket),
    ("__dev_queue_xmit", Stage::Socket),
    ("__netif_receive_skb", Stage::Socket),
    ("lock_sock", Stage::Socket),
    ("release_sock", Stage::Socket),
    ("io_", Stage::Socket),
    ("__io_", Stage::Socket),
    ("__do_sys_io_uring_enter", Stage::Socket),
    ("__x64_sys_io_uring_enter", Stage::Socket),
    ("__sys_send", Stage::Socket),
    ("__sys_recv", Stage::Socket),
];

/// What a sample counts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The stage.
    pub stage: Stage,
    /// What the stage was doing, if it is one of these.
    pub kind: Option<Kind>,
    /// The source file, or the kernel's function, that decided.
    pub place: String,
}

/// Which stage a chain of frames belongs to, innermost first.
pub fn classify(chain: &[Frame]) -> Verdict {
    let mut kind = None;
    for frame in chain {
        let known = if frame.is_kernel {
            longest(KERNEL, &frame.function).map(|stage| (stage, frame.function.clone()))
        } else {
            let known = |file: &String| longest(FILES, file).flatten().map(|stage| (stage, file.clone()));
            frame.files.iter().find_map(known)
        };
        kind = kind.or_else(|| Kind::of(frame));
        if let Some((stage, place)) = known {
            return Verdict { stage, kind, place };
        }
    }
    let stage = if kind.is_some() { Stage::Memory } else { Stage::Unknown };
    Verdict { stage, kind, place: chain.first().map(|frame| frame.function.clone()).unwrap_or_default() }
}

/// What the longest beginning of `name` says.
fn longest<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    let fitting = table.iter().filter(|(beginning, _)| name.starts_with(beginning));
    fitting.max_by_key(|(beginning, _)| beginning.len()).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(function: &str) -> Frame {
        Frame { is_kernel: true, function: function.into(), files: Vec::new() }
    }

    fn ours(function: &str, files: &[&str]) -> Frame {
        Frame { is_kernel: false, function: function.into(), files: files.iter().map(|file| (*file).into()).collect() }
    }

    fn stage(chain: &[Frame]) -> Stage {
        classify(chain).stage
    }

    #[test]
    fn the_innermost_known_file_decides() {
        let chain = [
            ours("aes_gcm_encrypt_avx512", &[]),
            ours("AeadKey::seal", &["cipher/src/lib.rs"]),
            ours("Outbound::send", &["channel/src/keys.rs", "channel/src/outbound.rs"]),
            ours("Worker::run", &["net/src/link.rs", "storage-target/src/worker.rs"]),
        ];
        let verdict = classify(&chain);
        assert_eq!((verdict.stage, verdict.kind, &*verdict.place), (Stage::Channel, None, "channel/src/keys.rs"));
        let sealing = [chain[0].clone(), chain[1].clone(), ours("seal", &["seal/src/aead.rs"]), chain[3].clone()];
        assert_eq!(stage(&sealing), Stage::Seal, "the same cipher, called from elsewhere");
        assert_eq!(stage(&chain[3..]), Stage::Runtime);
        assert_eq!(stage(&[ours("f", &["storage-target/src/worker/units.rs"])]), Stage::Unit, "the longest that fits");
        assert_eq!(stage(&[ours("f", &["storage-target/src/worker/session_driver.rs"])]), Stage::Session);
        assert_eq!(stage(&[ours("f", &["store/src/index.rs"])]), Stage::Index);
        assert_eq!(stage(&[ours("f", &["initiator/src/pipeline/engine/request_table.rs"])]), Stage::Pipeline);
    }

    #[test]
    fn memory_counts_to_its_caller_and_is_told_beside() {
        let append = ours("Appender::poll", &["store/src/backend/memory.rs", "store/src/store/appender.rs"]);
        let copying = classify(&[ours("__memmove_avx512_unaligned_erms", &[]), append.clone()]);
        assert_eq!((copying.stage, copying.kind), (Stage::Append, Some(Kind::Copying)));
        let fault = [kernel("clear_page_erms"), kernel("asm_exc_page_fault"), ours("mi_malloc", &[]), append.clone()];
        let fault = classify(&fault);
        assert_eq!((fault.stage, fault.kind), (Stage::Append, Some(Kind::PageFault)));
        let lost = classify(&[ours("mi_free", &[]), ours("[unknown]", &[])]);
        assert_eq!((lost.stage, lost.kind), (Stage::Memory, Some(Kind::Allocation)));
        assert_eq!(classify(std::slice::from_ref(&append)).kind, None);
    }

    #[test]
    fn the_kernels_part_is_split_and_plain_system_calls_count_to_their_caller() {
        let uring = ours("syscall", &["net/src/runtime/uring.rs"]);
        let sending = [kernel("_copy_from_iter"), kernel("tcp_sendmsg_locked"), kernel("do_syscall_64"), uring.clone()];
        assert_eq!(stage(&sending), Stage::Socket);
        let waking =
            [kernel("_raw_spin_unlock_irqrestore"), kernel("sock_def_readable"), kernel("tcp_rcv_established")];
        assert_eq!(stage(&waking), Stage::Scheduler, "waking the other end is not sending");
        assert_eq!(stage(&[kernel("finish_task_switch.isra.0"), kernel("io_cqring_wait"), uring]), Stage::Scheduler);
        let clock =
            [kernel("thread_cpu_clock_get"), kernel("do_syscall_64"), ours("f", &["storage-target/src/iterations.rs"])];
        assert_eq!(stage(&clock), Stage::Runtime);
    }

    #[test]
    fn what_nothing_is_known_of_is_unknown() {
        assert_eq!(stage(&[]), Stage::Unknown);
        let library = [ours("core::iter::next", &["core_arch/src/x86/sse2.rs"]), ours("main", &[])];
        let verdict = classify(&library);
        assert_eq!((verdict.stage, &*verdict.place), (Stage::Unknown, "core::iter::next"));
    }

    /// A file that was moved or renamed would count to its caller's stage, unnoticed.
    #[test]
    fn every_rule_names_files_that_exist() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (beginning, _) in FILES {
            let path = crates.join(beginning);
            let (directory, name) = if beginning.ends_with('/') {
                (path.as_path(), "")
            } else {
                (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap())
            };
            let begins = |entry: std::io::Result<std::fs::DirEntry>| {
                entry.unwrap().file_name().to_str().unwrap().starts_with(name)
            };
            let is_there = std::fs::read_dir(directory).is_ok_and(|entries| entries.into_iter().any(begins));
            assert!(is_there, "{beginning} fits no file");
        }
    }

    #[test]
    fn stages_have_different_names_and_none_is_left_out() {
        let names: std::collections::BTreeSet<_> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        assert_eq!(names.len(), Stage::ALL.len());
        assert!(Stage::ALL.is_sorted() && *Stage::ALL.last().unwrap() == Stage::Unknown);
    }
}
