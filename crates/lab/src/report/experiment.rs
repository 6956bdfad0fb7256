//! What each experiment asks, in words. An experiment that is not listed gets the same figures under its own name, so that a new one
//! needs nothing here to be seen.

use super::measure::Measure;

/// An experiment, for readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// As in results.
    pub bench: String,
    /// Its title.
    pub title: String,
    /// What was asked.
    pub question: String,
    /// How an answer was sought.
    pub method: String,
    /// The number that it is about.
    pub main: Measure,
}

impl Experiment {
    /// What is known of `bench`.
    pub fn named(bench: &str) -> Experiment {
        let (title, question, method, main) = match KNOWN.iter().find(|known| known.bench == bench) {
            Some(known) => (known.title, known.question, known.method, known.main),
            None if is_wan(bench) => (wan_title(bench), WAN_QUESTION, WAN_METHOD, Measure::Throughput),
            None => (bench, "", "", Measure::Throughput),
        };
        let text = str::to_owned;
        Experiment { bench: text(bench), title: text(title), question: text(question), method: text(method), main }
    }
}

/// Whether an experiment is the WAN paper's: its results are shown in figures and sentences of their own.
pub(crate) fn is_wan(bench: &str) -> bool {
    bench == "wan" || bench.starts_with("wan-")
}

fn wan_title(bench: &str) -> &'static str {
    match bench {
        "wan-loss" => "The same with loss and jitter",
        "wan-loss-percent" => "The same with a loss of 1 %",
        "wan-many" => "Several initiators and several targets at once (the paper's future work)",
        "wan-steady" => "auto in steady state: after 20 seconds",
        "wan-steady-gigabit" => "auto in steady state, over 1 Gbit/s",
        "wan-paper" => "The WAN paper's cipher: 3DES-CBC with a MAC",
        _ => "Writes over a long way (the WAN paper's Figures 9 to 16)",
    }
}

/// What is known of an experiment that is not the WAN paper's.
struct Description {
    bench: &'static str,
    title: &'static str,
    question: &'static str,
    method: &'static str,
    main: Measure,
}

impl Description {
    /// Without a question and a method of its own.
    const fn titled(bench: &'static str, title: &'static str, main: Measure) -> Description {
        Description { bench, title, question: "", method: "", main }
    }
}

const WAN_QUESTION: &str = "What do sealing ahead and several writes under way bring over a long way, and does the paper's model say so beforehand?";
const WAN_METHOD: &str = "Two network namespaces joined by a user-space link. Sequential writes; the same target, R2T and ImmediateData in every \
                 setting, so that only what encrypts and how many writes are under way differ. S2-1 one at a time is what IPsec gives \
                 an initiator that waits for each write. Connections have filled the link before they are measured, so that TCP knows \
                 it; writes count with the share of their time that lies in the measurement. The model (equations (3), (4), (6), and their form with writes and workers \
                 apart) is given the round trip, what a plain TCP connection carried, and what one thread seals, all measured here.";

const KNOWN: &[Description] = &[
    Description {
        bench: "rawio",
        title: "Block I/O in each scheme (the lazy-crypto paper's Figure 6)",
        question: "How much I/O can initiators do, and what does it cost both ends, if blocks are sealed by initiators instead \
                 of not at all?",
        method: "A target and each initiator are processes of their own, kept on processors of their own. An initiator keeps a \
                 fixed number of I/Os in flight in its part of a volume that was filled before. The medium lies beneath the whole \
                 store: log, versions and cleaning are at work.",
        main: Measure::Throughput,
    },
    Description {
        bench: "rawio-initiators",
        title: "Several initiators at once",
        question: "How does it go on with more initiators on one volume?",
        method: "As above, with 1, 2, 4 and 8 initiators, each with its own part of the volume and its own session. All of them \
                 share the processors that are not the target's.",
        main: Measure::Throughput,
    },
    Description {
        bench: "rawio-depths",
        title: "Longer queues",
        question: "What does keeping more I/Os in flight bring?",
        method: "As above, with queues of 1 to 128. With one I/O in flight a round trip is everything: what is seen then is two \
                 processors waking each other.",
        main: Measure::Kiops,
    },
    Description::titled(
        "capacity-hardware",
        "The target's capacity at 64 KiB, with AES instructions",
        Measure::TargetPerGib,
    ),
    Description::titled(
        "client",
        "Client throughput: initiators that seal, the processor of each end its own",
        Measure::Throughput,
    ),
    Description::titled(
        "client-first-second",
        "The first second of a target and of initiators that have just started",
        Measure::TargetPerGib,
    ),
    Description::titled(
        "client-quota",
        "Client throughput: the target limited to a share of its processor",
        Measure::Throughput,
    ),
    Description::titled(
        "client-target-software",
        "Client throughput: AES instructions masked at the target alone",
        Measure::Throughput,
    ),
    Description::titled(
        "client-quota-paper",
        "Client throughput: the paper's ciphers, the target limited to a share of its processor",
        Measure::Throughput,
    ),
    Description::titled("capacity-4k", "The same at 4 KiB", Measure::TargetPerKio),
    Description::titled("capacity-software", "The same with those instructions masked", Measure::TargetPerGib),
    Description::titled("capacity-paper", "The same with the paper's ciphers", Measure::TargetPerGib),
    Description::titled(
        "capacity-paper-8",
        "The same with the paper's ciphers and eight initiators",
        Measure::TargetPerGib,
    ),
    Description::titled(
        "schemes-hardware",
        "Initiators that seal: every scheme on a processor with AES instructions",
        Measure::TargetPerGib,
    ),
    Description::titled("schemes-software", "The same with those instructions masked", Measure::TargetPerGib),
    Description::titled("schemes-chacha", "Without AES instructions: AES or ChaCha20", Measure::TargetPerGib),
    Description::titled("schemes-paper", "The paper's ciphers: AES-192-CBC with HMAC-MD5", Measure::TargetPerGib),
    Description::titled("schemes-paper-8", "The same with eight initiators", Measure::TargetPerGib),
    Description::titled("schemes-keys", "What keeping a key for every block costs", Measure::TargetPerKio),
    Description::titled(
        "schemes-key-store",
        "Records on files: found in memory, or read with their blocks",
        Measure::TargetPerKio,
    ),
    Description::titled("schemes-key-runs", "One key for a run of blocks", Measure::TargetPerGib),
    Description::titled(
        "schemes-block-sets",
        "Block sets: more or less sealed at once than an I/O has",
        Measure::TargetPerKio,
    ),
    Description {
        bench: "attach",
        title: "A program on an attached volume, as a file and by NBD",
        question: "What does a program get from a volume that is attached as a file or served by NBD, compared with our own client without either?",
        method: "fio with direct I/O on the file that `strongroom attach` shows in FUSE, and by one NBD connection to the Unix socket of `strongroom nbd \
                 serve`; our own client does the same I/O in a process of the lab, on another volume of the same target. nbdkit has a disk in its own \
                 memory; qemu-nbd has LUKS on a tuned tgt. Both ends and the program share the processors unless they are pinned.",
        main: Measure::Throughput,
    },
    Description {
        bench: "attach-ext4",
        title: "A program in ext4, mounted by --mount",
        question: "What does a program get from a file system on an attached volume?",
        method: "fio on a file in ext4. Sequential I/O goes through the page cache over the whole file, of which nothing is cached at the beginning; what is \
                 written counts when it is durable. Random reads are direct I/O.",
        main: Measure::Throughput,
    },
    Description {
        bench: "attach-idle",
        title: "Volumes that are attached and that nobody uses",
        question: "What do idle attachments cost, with busy polling enabled and without?",
        method: "Each volume is attached as a file in FUSE by a process of its own; nobody opens it. CPU time of the target's process and of all attachments together.",
        main: Measure::InitiatorCpu,
    },
    Description {
        bench: "ecl-64k",
        title: "64 KiB I/Os, the target as the bottleneck",
        question: "",
        method: "A veth cable with an MTU of 9000 and offloads; initiators seal and open, and the target may use 40 % of its processor, so that it is the \
                 bottleneck. Depth 16.",
        main: Measure::TargetPerGib,
    },
    Description {
        bench: "ecl-64k-software",
        title: "The same with AES instructions masked at the target",
        question: "",
        method: "",
        main: Measure::TargetPerGib,
    },
    Description {
        bench: "ecl-4k",
        title: "4 KiB I/Os with long queues",
        question: "",
        method: "As with 64 KiB: a cable, initiators that seal and open, a target limited to 40 % of its processor.",
        main: Measure::TargetPerKio,
    },
    Description::titled("ecl-4k-four", "4 KiB I/Os of four initiators", Measure::TargetPerKio),
    Description {
        bench: "ecl-latency",
        title: "One 4 KiB I/O at a time, both ends block",
        question: "",
        method: "The same cable, without a limit. A round trip is two wake-ups of an idle processor and little else.",
        main: Measure::P50,
    },
    Description::titled("ecl-latency-polling", "One 4 KiB I/O at a time, both ends poll", Measure::P50),
    Description {
        bench: "ecl-mtu",
        title: "Throughput over the length of packets (the quanta paper's Figures 6 to 9)",
        question: "",
        method: "64 KiB I/Os at depth 16, quanta of 4 KiB. Without offloads, the device takes no trains of packets: every packet crosses the cable by itself, as \
                 on the paper's network. Targets are not limited. The local disk is a file on the disk of this machine: fio with direct I/O, which no packet \
                 concerns.",
        main: Measure::Throughput,
    },
    Description {
        bench: "ecl-quantum",
        title: "Throughput over the length of quanta (the quanta paper's Figure 10)",
        question: "",
        method: "As before; the volume's blocks are the quanta.",
        main: Measure::Throughput,
    },
    Description {
        bench: "ecl-depths",
        title: "4 KiB I/Os with queues of every depth",
        question: "",
        method: "Targets are not limited.",
        main: Measure::Kiops,
    },
    Description {
        bench: "ecl-loss",
        title: "4 KiB reads over links that lose packets",
        question: "",
        method: "The link emulator, BBR at both ends in both transports, MTU 9000, 1000 reads a second, which all sustain. How long a read took counts from when it was due.",
        main: Measure::P99,
    },
    Description {
        bench: "ecl-loss-parity",
        title: "64 KiB reads over links that lose 1 % of packets, with parity",
        question: "",
        method: "As before, 200 reads a second; a packet of parity for each eight quanta.",
        main: Measure::P99,
    },
    Description {
        bench: "ecl-long",
        title: "64 KiB writes over 100 Mbit/s, 64 ms one way",
        question: "",
        method: "The link emulator, BBR, MTU 9000, 64 writes offered at once.",
        main: Measure::Throughput,
    },
    Description {
        bench: "ecl-beside-tcp",
        title: "64 KiB writes beside a TCP connection through one bottleneck",
        question: "",
        method: "The link emulator: 100 Mbit/s, 10 ms one way. A plain TCP connection with BBR sends in the same direction meanwhile.",
        main: Measure::Throughput,
    },
    Description {
        bench: "ecl-several",
        title: "Several initiators through one bottleneck",
        question: "",
        method: "The link emulator: 100 Mbit/s, 10 ms one way, 64 KiB writes. Fairness is Jain's index of what each initiator moved: 1 if all moved the same, 1/n if \
                 one of n moved everything.",
        main: Measure::Throughput,
    },
    Description {
        bench: "ecl-flood",
        title: "4 KiB reads while the target's UDP port is flooded",
        question: "",
        method: "50,000 packets of 1200 bytes a second that belong to no association, to the target's port, or to a socket on the target's processor that discards \
                 them. Initiators do not open what they read.",
        main: Measure::Kiops,
    },
    Description {
        bench: "ecl-files",
        title: "bonnie++ on the local disk and on file systems on volumes (the quanta paper's Figure 5)",
        question: "",
        method: "Volumes with ext4, attached by `strongroom attach --mount` over loopback; their stores are on the local disk. A file of 256 MiB, direct I/O, one \
                 request at a time. Of a phase that takes less than half a second bonnie++ says no number.",
        main: Measure::Throughput,
    },
    Description {
        bench: "ecl-verify",
        title: "Reads and writes that are compared",
        question: "",
        method: "A cable. Each sector says where it belongs and by which write it came. What is read is compared, and after a measurement up to 256 MiB of what was \
                 written is read back and must be what the last acknowledged write wrote: data that is wrong, was lost, or was overwritten by an older write makes the \
                 measurement fail.",
        main: Measure::Throughput,
    },
    Description {
        bench: "ecl-verify-loss",
        title: "The same over a link that loses 2 % of packets, with parity and without",
        question: "",
        method: "The link emulator, a round trip of 1 ms, MTU 9000.",
        main: Measure::Throughput,
    },
    Description {
        bench: "stream",
        title: "The bare channel (the lazy-crypto paper's Figure 2, ttcp)",
        question: "What does protecting a stream cost, without iSCSI and without a disk?",
        method: "A sender writes messages of one size into a connection, a receiver takes them out, each on a processor of its \
                 own: bare TCP, the channel with its data sealed beforehand or protected by the channel, and TLS 1.3. The receiver is what tables call the target.",
        main: Measure::Throughput,
    },
    Description {
        bench: "peers",
        title: "The same grid through a stock initiator, beside today's targets",
        question: "How does the target compare with others, and with what people put in front of them to be secure?",
        method: "libiscsi is the initiator for every plain target, so that only targets differ; the sealed volume has our own. \
                 stunnel (TLS 1.3) and WireGuard (in user space, between two network namespaces) stand in front of the tuned \
                 tgt; QEMU's block layer, raw and with LUKS, is reached by NBD on a Unix socket. All that stands on one side is \
                 on that side's processors, and its CPU time counts there. Volumes were written before they are read.",
        main: Measure::Throughput,
    },
    Description {
        bench: "ipsec",
        title: "The kernel's IPsec",
        question: "What does transport-mode ESP or AH cost where the kernel does it?",
        method: "Two network namespaces, joined by a virtual cable, with and without IPsec between them.",
        main: Measure::Throughput,
    },
    Description {
        bench: "btio",
        title: "BTIO, class A (the lazy-crypto paper's Table 3)",
        question: "How long does a scientific program's output take, in many small pieces from several initiators?",
        method: "The I/O of NAS BTIO class A without its arithmetic: cells of the grid distributed by multi-partition, each \
                 process writing its own short rows to one shared volume; what does not fill a block is written conditionally \
                 on what was there. Perhaps fewer dumps than the paper's 40: see the command. Afterwards every byte of the \
                 file was compared.",
        main: Measure::Seconds,
    },
    Description {
        bench: "dbench",
        title: "dbench on a file system (the lazy-crypto paper's Table 4)",
        question: "What does a file server's load reach on an attached volume?",
        method: "Debian's dbench on ext4 on an attached volume (a file in FUSE, a loop device, a mount), a number of clients at \
                 once, with synchronous writes (dbench-s) and without. The initiator's CPU time is the attachment's process; the \
                 kernel's part is not in it.",
        main: Measure::Throughput,
    },
];
