//! The numbers of a cell that are shown: where each comes from, and what columns and axes call it.

use crate::Cell;

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
    /// How busy the target's processors were, of what it may use of them.
    TargetBusy,
    /// How busy the initiators' were.
    InitiatorBusy,
    /// How busy all processors were.
    AllBusy,
    /// How busy the busiest thread of an attachment was.
    BusiestThread,
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
    /// What a TCP connection carried meanwhile over the same link, MiB a second.
    TcpBeside,
    /// Jain's index of what each initiator moved.
    Fairness,
}

impl Measure {
    /// From a cell.
    pub fn of(self, cell: &Cell) -> Option<f64> {
        match self {
            Measure::Throughput => cell.throughput.mib_s,
            Measure::Kiops => cell.throughput.iops.map(|iops| iops / 1000.0),
            Measure::Seconds => Some(cell.throughput.elapsed_s).filter(|seconds| *seconds > 0.0),
            Measure::P50 => cell.latency.p50_us,
            Measure::P99 => cell.latency.p99_us,
            Measure::P999 => cell.latency.p999_us,
            Measure::TargetPerGib => cell.cpu.target_cpu_s_per_gib,
            Measure::TargetPerKio => cell.cpu.target_cpu_ms_per_kio,
            Measure::InitiatorPerGib => cell.cpu.initiator_cpu_s_per_gib,
            Measure::InitiatorPerKio => cell.cpu.initiator_cpu_ms_per_kio,
            Measure::TargetBusy => {
                let share = f64::from(cell.key.target_quota_percent.unwrap_or(100)) / 100.0;
                // What else ran there is in it too.
                cell.cpu.target_busy.map(|busy| (busy / share).min(1.0))
            }
            Measure::InitiatorBusy => cell.cpu.initiator_busy,
            Measure::AllBusy => cell.cpu.all_busy,
            Measure::BusiestThread => cell.cpu.busiest_thread,
            Measure::TargetCrypto => cell.crypto.target_crypto_per_byte,
            Measure::InitiatorCrypto => cell.crypto.initiator_crypto_per_byte,
            Measure::Model => cell.model.model_mib_s,
            Measure::OfModel => Some(cell.throughput.mib_s? / cell.model.model_mib_s.filter(|rate| *rate > 0.0)?),
            Measure::InitiatorCpu => cell.cpu.initiator_cpu.filter(|_| cell.link.delay_ms.is_some()),
            Measure::Wire => cell.model.wire_per_byte,
            Measure::TcpBeside => cell.link.tcp_beside_mib_s,
            Measure::Fairness => cell.throughput.fairness,
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
            Measure::AllBusy => "processors busy",
            Measure::BusiestThread => "busiest thread",
            Measure::TargetCrypto => "crypto B/B target",
            Measure::InitiatorCrypto => "crypto B/B initiator",
            Measure::Model => "model MiB/s",
            Measure::OfModel => "measured / model",
            Measure::InitiatorCpu => "initiator CPU s/s",
            Measure::Wire => "packets B/B",
            Measure::TcpBeside => "TCP beside it MiB/s",
            Measure::Fairness => "fairness",
        }
    }

    /// The title of an axis.
    pub(crate) fn axis(self) -> &'static str {
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
