//! What each experiment asks, in words, and which of its numbers are drawn against what. An experiment that is not listed
//! gets the same figures under its own name, so that a new one needs nothing here to be seen.

use super::summary::{Place, Summary};
use super::wan;
use crate::Cell;
use strongroom::plot::{Chart, Figure, Look, Series, Value};
use strongroom::units::long_size;

/// One number of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// MiB a second.
    Throughput,
    /// Thousand I/Os a second.
    Kiops,
    /// Seconds until it was done.
    Seconds,
    /// Median latency, microseconds.
    P50,
    /// 99th percentile, microseconds.
    P99,
    /// 99.9th percentile, microseconds.
    P999,
    /// CPU seconds of the target for each GiB.
    TargetPerGib,
    /// CPU milliseconds of the target for 1000 I/Os.
    TargetPerKio,
    /// CPU seconds of the initiators for each GiB.
    InitiatorPerGib,
    /// CPU milliseconds of the initiators for 1000 I/Os.
    InitiatorPerKio,
    /// How busy the target's processors were.
    TargetBusy,
    /// How busy the initiators' were.
    InitiatorBusy,
    /// Bytes of cryptography at the target for each byte of data.
    TargetCrypto,
    /// Bytes of cryptography at the initiators for each byte of data.
    InitiatorCrypto,
    /// What the WAN paper's model says, MiB a second.
    Model,
    /// Throughput over what the model says.
    OfModel,
    /// CPU seconds of the initiators in a second.
    InitiatorCpu,
    /// Bytes of packets for each byte of data.
    Wire,
}

impl Measure {
    /// From a cell.
    pub fn of(self, cell: &Cell) -> Option<f64> {
        match self {
            Measure::Throughput => cell.mib_s,
            Measure::Kiops => cell.iops.map(|iops| iops / 1000.0),
            Measure::Seconds => Some(cell.elapsed_s).filter(|seconds| *seconds > 0.0),
            Measure::P50 => cell.p50_us,
            Measure::P99 => cell.p99_us,
            Measure::P999 => cell.p999_us,
            Measure::TargetPerGib => cell.target_cpu_s_per_gib,
            Measure::TargetPerKio => cell.target_cpu_ms_per_kio,
            Measure::InitiatorPerGib => cell.initiator_cpu_s_per_gib,
            Measure::InitiatorPerKio => cell.initiator_cpu_ms_per_kio,
            Measure::TargetBusy => cell.target_busy,
            Measure::InitiatorBusy => cell.initiator_busy,
            Measure::TargetCrypto => cell.target_crypto_per_byte,
            Measure::InitiatorCrypto => cell.initiator_crypto_per_byte,
            Measure::Model => cell.model_mib_s,
            Measure::OfModel => Some(cell.mib_s? / cell.model_mib_s.filter(|rate| *rate > 0.0)?),
            Measure::InitiatorCpu => cell.initiator_cpu.filter(|_| cell.delay_ms.is_some()),
            Measure::Wire => cell.wire_per_byte,
        }
    }

    /// The head of a column.
    pub fn column(self) -> &'static str {
        match self {
            Measure::Throughput => "MiB/s",
            Measure::Kiops => "kIO/s",
            Measure::Seconds => "seconds",
            Measure::P50 => "p50 µs",
            Measure::P99 => "p99 µs",
            Measure::P999 => "p99.9 µs",
            Measure::TargetPerGib => "target CPU s/GiB",
            Measure::TargetPerKio => "target CPU ms/kIO",
            Measure::InitiatorPerGib => "initiator CPU s/GiB",
            Measure::InitiatorPerKio => "initiator CPU ms/kIO",
            Measure::TargetBusy => "target busy",
            Measure::InitiatorBusy => "initiator busy",
            Measure::TargetCrypto => "crypto B/B target",
            Measure::InitiatorCrypto => "crypto B/B initiator",
            Measure::Model => "model MiB/s",
            Measure::OfModel => "measured / model",
            Measure::InitiatorCpu => "initiator CPU s/s",
            Measure::Wire => "packets B/B",
        }
    }

    /// The title of an axis.
    fn axis(self) -> &'static str {
        match self {
            Measure::Throughput => "MiB/s",
            Measure::Seconds => "seconds (less is better)",
            Measure::P50 => "median latency, µs; whisker: p99",
            Measure::TargetPerGib => "target CPU seconds per GiB (less is better)",
            Measure::InitiatorPerGib => "initiator CPU seconds per GiB (less is better)",
            Measure::TargetPerKio => "target CPU ms per 1000 I/Os (less is better)",
            other => other.column(),
        }
    }
}

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
        let (title, question, method, main) = match bench {
            "rawio" => (
                "Block I/O in each scheme (the lazy-crypto paper's Figure 6)",
                "How much I/O can initiators do, and what does it cost both ends, if blocks are sealed by initiators instead \
                 of not at all?",
                "A target and each initiator are processes of their own, kept on processors of their own. An initiator keeps a \
                 fixed number of I/Os in flight in its part of a volume that was filled before. The medium lies beneath the whole \
                 store: log, versions and cleaning are at work.",
                Measure::Throughput,
            ),
            "rawio-initiators" => (
                "Several initiators at once",
                "How does it go on with more initiators on one volume?",
                "As above, with 1, 2, 4 and 8 initiators, each with its own part of the volume and its own session. All of them \
                 share the processors that are not the target's.",
                Measure::Throughput,
            ),
            "rawio-depths" => (
                "Longer queues",
                "What does keeping more I/Os in flight bring?",
                "As above, with queues of 1 to 128. With one I/O in flight a round trip is everything: what is seen then is two \
                 processors waking each other.",
                Measure::Kiops,
            ),
            "capacity-hardware" => {
                ("The target's capacity at 64 KiB, with AES instructions", "", "", Measure::TargetPerGib)
            }
            "capacity-4k" => ("The same at 4 KiB", "", "", Measure::TargetPerKio),
            "capacity-software" => ("The same with those instructions masked", "", "", Measure::TargetPerGib),
            "capacity-paper" => ("The same with the paper's ciphers", "", "", Measure::TargetPerGib),
            "capacity-paper-8" => {
                ("The same with the paper's ciphers and eight initiators", "", "", Measure::TargetPerGib)
            }
            "schemes-hardware" => (
                "Initiators that seal: every scheme on a processor with AES instructions",
                "",
                "",
                Measure::TargetPerGib,
            ),
            "schemes-software" => ("The same with those instructions masked", "", "", Measure::TargetPerGib),
            "schemes-chacha" => ("Without AES instructions: AES or ChaCha20", "", "", Measure::TargetPerGib),
            "schemes-paper" => ("The paper's ciphers: AES-192-CBC with HMAC-MD5", "", "", Measure::TargetPerGib),
            "schemes-paper-8" => ("The same with eight initiators", "", "", Measure::TargetPerGib),
            "schemes-keys" => ("What keeping a key for every block costs", "", "", Measure::TargetPerKio),
            "schemes-key-store" => {
                ("Records on files: found in memory, or read with their blocks", "", "", Measure::TargetPerKio)
            }
            "schemes-key-runs" => ("One key for a run of blocks", "", "", Measure::TargetPerGib),
            "schemes-block-sets" => {
                ("Block sets: more or less sealed at once than an I/O has", "", "", Measure::TargetPerKio)
            }
            "stream" => (
                "The bare channel (the lazy-crypto paper's Figure 2, ttcp)",
                "What does protecting a stream cost, without iSCSI and without a disk?",
                "A sender writes messages of one size into a connection, a receiver takes them out, each on a processor of its \
                 own: bare TCP, the channel with its data sealed beforehand or protected by the channel, and TLS 1.3. The receiver is what tables call the target.",
                Measure::Throughput,
            ),
            "peers" => (
                "The same grid through a stock initiator, beside today's targets",
                "How does the target compare with others, and with what people put in front of them to be secure?",
                "libiscsi is the initiator for every plain target, so that only targets differ; the sealed volume has our own. \
                 stunnel (TLS 1.3) and WireGuard (in user space, between two network namespaces) stand in front of the tuned \
                 tgt; QEMU's block layer, raw and with LUKS, is reached by NBD on a Unix socket. All that stands on one side is \
                 on that side's processors, and its CPU time counts there. Volumes were written before they are read.",
                Measure::Throughput,
            ),
            "ipsec" => (
                "The kernel's IPsec",
                "What does transport-mode ESP or AH cost where the kernel does it?",
                "Two network namespaces, joined by a virtual cable, with and without IPsec between them.",
                Measure::Throughput,
            ),
            "btio" => (
                "BTIO, class A (the lazy-crypto paper's Table 3)",
                "How long does a scientific program's output take, in many small pieces from several initiators?",
                "The I/O of NAS BTIO class A without its arithmetic: cells of the grid distributed by multi-partition, each \
                 process writing its own short rows to one shared volume; what does not fill a block is written conditionally \
                 on what was there. Perhaps fewer dumps than the paper's 40: see the command. Afterwards every byte of the \
                 file was compared.",
                Measure::Seconds,
            ),
            "dbench" => (
                "dbench on a file system (the lazy-crypto paper's Table 4)",
                "What does a file server's load reach on an attached volume?",
                "Debian's dbench on ext4 on an attached volume (a file in FUSE, a loop device, a mount), a number of clients at \
                 once, with synchronous writes (dbench-s) and without. The initiator's CPU time is the attachment's process; the \
                 kernel's part is not in it.",
                Measure::Throughput,
            ),
            wan if wan::is_wan(wan) => (
                match wan {
                    "wan-loss" => "The same with loss and jitter",
                    "wan-loss-percent" => "The same with a loss of 1 %",
                    "wan-many" => "Several initiators and several targets at once (the paper's future work)",
                    "wan-steady" => "auto in steady state: after 20 seconds",
                    "wan-steady-gigabit" => "auto in steady state, over 1 Gbit/s",
                    "wan-paper" => "The WAN paper's cipher: 3DES-CBC with a MAC",
                    _ => "Writes over a long way (the WAN paper's Figures 9 to 16)",
                },
                "What do sealing ahead and several writes under way bring over a long way, and does the paper's model say so beforehand?",
                "Two network namespaces joined by a user-space link. Sequential writes; the same target, R2T and ImmediateData in every \
                 setting, so that only what encrypts and how many writes are under way differ. S2-1 one at a time is what IPsec gives \
                 an initiator that waits for each write. Connections have filled the link before they are measured, so that TCP knows \
                 it; writes count with the share of their time that lies in the measurement. The model (equations (3), (4), (6), and their form with writes and workers \
                 apart) is given the round trip, what a plain TCP connection carried, and what one thread seals, all measured here.",
                Measure::Throughput,
            ),
            other => (other, "", "", Measure::Throughput),
        };
        let text = |text: &str| text.to_owned();
        Experiment { bench: text(bench), title: text(title), question: text(question), method: text(method), main }
    }

    /// Bars of the main number, then lines or bars of what it cost, then latencies: each where there are numbers for it.
    pub(crate) fn figures(&self, summary: &Summary) -> Vec<Figure> {
        if wan::is_wan(&self.bench) {
            return wan::figures(summary);
        }
        let mut figures = vec![figure(summary, self.main, Look::Bars, "what it moved")];
        if self.main == Measure::Seconds {
            figures[0] = figure(summary, self.main, Look::Bars, "how long it took");
        }
        for (measure, title) in [
            (Measure::TargetPerGib, "what it cost the target"),
            (Measure::InitiatorPerGib, "what it cost the initiators"),
            (Measure::P50, "how long an I/O took"),
        ] {
            let sizes = distinct(summary, |place| place.size).len();
            let others =
                distinct(summary, |place| place.initiators).len() * distinct(summary, |place| place.depth).len();
            // The slowest of a hundred takes many times as long as most: only a logarithmic axis shows both.
            let look = if measure == Measure::P50 || (sizes >= 3 && others == 1) { Look::Lines } else { Look::Bars };
            figures.push(figure(summary, measure, look, title));
        }
        figures.retain(|figure| figure.charts.iter().any(Chart::has_values));
        figures
    }
}

fn distinct<T: PartialEq + Copy>(summary: &Summary, of: impl Fn(&Place) -> T) -> Vec<T> {
    let mut values = Vec::new();
    for row in &summary.rows {
        let value = of(&row.place);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// One figure: a chart for each pattern; in it, groups for what else varies, and a bar or line for each contender.
fn figure(summary: &Summary, measure: Measure, look: Look, what: &str) -> Figure {
    let varies = |of: fn(&Place) -> u64| distinct(summary, of).len() > 1;
    let (sizes, depths, initiators) =
        (varies(|place| place.size), varies(|place| place.depth.into()), varies(|place| place.initiators.into()));
    let label = |place: &Place| {
        let mut parts = Vec::new();
        if sizes || !(depths || initiators) {
            parts.push(if place.size == 0 { String::new() } else { long_size(place.size) });
        }
        if depths {
            parts.push(format!("depth {}", place.depth));
        }
        if initiators {
            parts.push(format!("{} init.", place.initiators));
        }
        parts.join("\n")
    };
    let mut charts = Vec::new();
    for pattern in patterns(summary) {
        let places: Vec<Place> = summary.places().into_iter().filter(|place| place.pattern == pattern).collect();
        let value = |place: &Place, contender: &str| -> Option<Value> {
            let row = summary.row(place, contender)?;
            if !row.errors.is_empty() {
                return Some(Value::Failed);
            }
            let spread = row.spread(measure)?;
            let high = if measure == Measure::P50 { row.spread(Measure::P99)?.median } else { spread.high };
            let low = if measure == Measure::P50 { spread.median } else { spread.low };
            Some(Value::Measured { middle: spread.median, low, high })
        };
        let series = |contender: &String| Series {
            name: contender.clone(),
            values: places.iter().map(|place| value(place, contender)).collect(),
        };
        charts.push(Chart {
            title: pattern_title(&pattern),
            axis: measure.axis().to_owned(),
            groups: places.iter().map(label).collect(),
            series: summary.contenders.iter().map(series).collect(),
            look,
        });
    }
    let fixed = fixed_in_words(summary, sizes, depths, initiators);
    Figure {
        name: format!("{}-{}", summary.experiment.bench, what.replace(|c: char| !c.is_ascii_alphanumeric(), "-")),
        title: format!("{}: {what}", summary.experiment.bench),
        note: if summary.runs == 1 {
            format!("One run; {fixed}")
        } else {
            format!("Medians of {} runs; whiskers: all of them; {fixed}", summary.runs)
        },
        charts,
    }
}

fn fixed_in_words(summary: &Summary, sizes: bool, depths: bool, initiators: bool) -> String {
    let Some(row) = summary.rows.first() else { return String::new() };
    let mut parts = Vec::new();
    if !sizes && row.place.size > 0 {
        parts.push(long_size(row.place.size));
    }
    if !depths && row.place.depth > 0 {
        parts.push(format!("queue depth {}", row.place.depth));
    }
    if !initiators && row.place.initiators > 0 {
        let plural = if row.place.initiators == 1 { "" } else { "s" };
        parts.push(format!("{} initiator{plural}", row.place.initiators));
    }
    parts.push(format!("medium: {}", summary.media.join(", ")));
    parts.join("; ") + "."
}

fn patterns(summary: &Summary) -> Vec<String> {
    let mut patterns: Vec<String> = Vec::new();
    for row in &summary.rows {
        if !patterns.contains(&row.place.pattern) {
            patterns.push(row.place.pattern.clone());
        }
    }
    patterns
}

fn pattern_title(pattern: &str) -> String {
    match pattern {
        "seqread" => "Sequential reads".into(),
        "seqwrite" => "Sequential writes".into(),
        "randread" => "Random reads".into(),
        "randwrite" => "Random writes".into(),
        other => other.into(),
    }
}
