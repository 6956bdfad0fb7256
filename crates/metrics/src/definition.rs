//! Descriptions of metrics: name, type, labels and meaning. A process declares its metrics with [`metrics!`](crate::metrics!), so that its
//! code, its document and the tests of its dashboard speak of the same list.

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the process runs.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets.
    Histogram,
}

impl MetricKind {
    /// As OpenMetrics has it.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name with the unit (`…_seconds`, `…_bytes`), without the suffix that a type adds.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it means, in one sentence.
    pub help: &'static str,
}

impl Definition {
    /// A counter.
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Definition {
        Definition { name, kind: MetricKind::Counter, labels, help }
    }

    /// A gauge.
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Definition {
        Definition { name, kind: MetricKind::Gauge, labels, help }
    }

    /// A histogram.
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Definition {
        Definition { name, kind: MetricKind::Histogram, labels, help }
    }

    /// Its unit, if it has one; the name ends in it.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes", "ratio"].into_iter().find(|unit| self.without(unit).is_some())
    }

    /// The name without its unit.
    pub fn stem(&self) -> &'static str {
        self.unit().and_then(|unit| self.without(unit)).unwrap_or(self.name)
    }

    fn without(&self, unit: &str) -> Option<&'static str> {
        self.name.strip_suffix(unit)?.strip_suffix('_')
    }

    /// The names of its samples, which queries use.
    pub fn sample_names(&self) -> Vec<String> {
        let suffixes: &[&str] = match self.kind {
            MetricKind::Counter => &["_total"],
            MetricKind::Gauge => &[""],
            MetricKind::Histogram => &["_bucket", "_count", "_sum"],
        };
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.name)).collect()
    }
}

/// Declares the metrics of a process: a constant for each, and a list of all of them, which can have attributes: a process that needs it for
/// tests alone says `#[cfg(test)]`.
///
/// ```
/// strongroom_metrics::metrics! { ALL:
///     SESSIONS = gauge "example_sessions" [] "Sessions now.";
///     READ = counter "example_read_bytes" ["volume"] "Bytes read.";
/// }
/// assert_eq!(ALL.len(), 2);
/// assert_eq!((READ.unit(), READ.sample_names()), (Some("bytes"), vec!["example_read_bytes_total".to_owned()]));
/// assert_eq!(SESSIONS.unit(), None);
/// ```
#[macro_export]
macro_rules! metrics {
    ($(#[$attribute:meta])* $list:ident: $($name:ident = $kind:ident $metric:literal [$($label:literal),*] $help:literal;)+) => {
        $(
            #[doc = $help]
            pub(crate) const $name: $crate::Definition = $crate::Definition::$kind($metric, &[$($label),*], $help);
        )+

        /// All of these metrics.
        $(#[$attribute])*
        pub(crate) const $list: &[$crate::Definition] = &[$($name),+];
    };
}
