//! What a process measured at one moment, and its text in OpenMetrics 1.0. `prometheus-client` writes it; escaping label values is left to us.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::definition::{Definition, MetricKind};

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Of things that are counted.
    Whole(u64),
    /// Anything else.
    Real(f64),
}

impl From<u64> for Number {
    fn from(value: u64) -> Number {
        Number::Whole(value)
    }
}

impl From<usize> for Number {
    fn from(value: usize) -> Number {
        Number::Whole(value as u64)
    }
}

impl From<u32> for Number {
    fn from(value: u32) -> Number {
        Number::Whole(value.into())
    }
}

impl From<bool> for Number {
    fn from(value: bool) -> Number {
        Number::Whole(value.into())
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Number {
        Number::Real(value)
    }
}

#[derive(Debug)]
enum Value {
    Number(Number),
    Histogram {
        sum: f64,
        /// Upper bounds, and the counts between them.
        buckets: Vec<(f64, u64)>,
    },
}

#[derive(Debug)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: Value,
}

#[derive(Debug)]
struct Family {
    definition: Definition,
    samples: Vec<Sample>,
}

/// Metrics with their values, in the order in which they were added first.
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<Family>,
    positions: HashMap<&'static str, usize>,
}

impl Exposition {
    /// Adds a value of a counter or a gauge. `labels`: the values of its labels, in their order.
    ///
    /// # Panics
    /// If the metric has other labels, or is a histogram.
    pub fn add(&mut self, definition: &Definition, labels: &[&str], value: impl Into<Number>) {
        assert!(definition.kind != MetricKind::Histogram, "{} is a histogram", definition.name);
        self.sample(definition, labels, Value::Number(value.into()));
    }

    /// Adds a value that may be unknown.
    ///
    /// # Panics
    /// As [`Exposition::add`].
    pub fn add_known<N: Into<Number>>(&mut self, definition: &Definition, labels: &[&str], value: Option<N>) {
        if let Some(value) = value {
            self.add(definition, labels, value);
        }
    }

    /// Adds a histogram: its buckets with their upper bounds (`None`: there is none) and the counts between them, and the sum of all that was
    /// counted.
    ///
    /// # Panics
    /// If the metric has other labels, or is no histogram.
    pub fn add_histogram(
        &mut self,
        definition: &Definition,
        labels: &[&str],
        buckets: impl Iterator<Item = (Option<f64>, u64)>,
        sum: f64,
    ) {
        assert!(definition.kind == MetricKind::Histogram, "{} is no histogram", definition.name);
        // `f64::MAX` is what the library writes as +Inf.
        let buckets = buckets.map(|(bound, count)| (bound.unwrap_or(f64::MAX), count)).collect();
        self.sample(definition, labels, Value::Histogram { sum, buckets });
    }

    fn sample(&mut self, definition: &Definition, labels: &[&str], value: Value) {
        assert_eq!(labels.len(), definition.labels.len(), "the labels of {}", definition.name);
        let labels = definition.labels.iter().zip(labels).map(|(name, value)| (*name, escaped(value))).collect();
        let next = self.families.len();
        let position = *self.positions.entry(definition.name).or_insert(next);
        if position == next {
            self.families.push(Family { definition: *definition, samples: Vec::new() });
        }
        self.families[position].samples.push(Sample { labels, value });
    }

    /// The names of the metrics that have a value.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.families.iter().map(|family| family.definition.name)
    }

    /// The text that a collector is sent.
    pub fn into_text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a string takes everything");
        text
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { definition, samples } in &self.families {
            let unit = definition.unit().map(|unit| Unit::Other(unit.to_owned()));
            let kind = match definition.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(definition.stem(), definition.help, unit.as_ref(), kind)?;
            for Sample { labels, value } in samples {
                if labels.is_empty() {
                    encode_value(&mut family, definition.kind, value)?;
                } else {
                    encode_value(&mut family.encode_family(labels)?, definition.kind, value)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_value(encoder: &mut MetricEncoder<'_>, kind: MetricKind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (_, Value::Histogram { sum, buckets }) => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
        (MetricKind::Counter, Value::Number(Number::Whole(value))) => {
            encoder.encode_counter::<NoLabelSet, u64, f64>(value, None)
        }
        (MetricKind::Counter, Value::Number(Number::Real(value))) => {
            encoder.encode_counter::<NoLabelSet, f64, f64>(value, None)
        }
        (_, Value::Number(Number::Whole(value))) => encoder.encode_gauge(&i64::try_from(*value).unwrap_or(i64::MAX)),
        (_, Value::Number(Number::Real(value))) => encoder.encode_gauge(value),
    }
}

/// A label's value as it is written between quotation marks.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for letter in value.chars() {
        match letter {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::metrics! { ALL:
        READ = counter "test_read_bytes" ["volume"] "Bytes read.";
        OPEN = gauge "test_open" [] "Open now.";
        LATENCY = histogram "test_latency_seconds" ["operation"] "How long it took.";
    }

    #[test]
    fn every_type_is_written_as_openmetrics_has_it() {
        let mut exposition = Exposition::default();
        exposition.add(&READ, &["a\"b\\c\nd"], 7_u64);
        exposition.add(&OPEN, &[], 1.5);
        exposition.add(&READ, &["other"], u64::MAX);
        exposition.add_known::<u64>(&OPEN, &[], None);
        let buckets = [(Some(0.5), 1), (Some(1.0), 0), (None, 2)];
        exposition.add_histogram(&LATENCY, &["read"], buckets.into_iter(), 12.25);
        assert_eq!(exposition.names().count(), ALL.len());
        let expected = "\
# HELP test_read_bytes Bytes read.
# TYPE test_read_bytes counter
# UNIT test_read_bytes bytes
test_read_bytes_total{volume=\"a\\\"b\\\\c\\nd\"} 7
test_read_bytes_total{volume=\"other\"} 18446744073709551615
# HELP test_open Open now.
# TYPE test_open gauge
test_open 1.5
# HELP test_latency_seconds How long it took.
# TYPE test_latency_seconds histogram
# UNIT test_latency_seconds seconds
test_latency_seconds_sum{operation=\"read\"} 12.25
test_latency_seconds_count{operation=\"read\"} 3
test_latency_seconds_bucket{le=\"0.5\",operation=\"read\"} 1
test_latency_seconds_bucket{le=\"1.0\",operation=\"read\"} 1
test_latency_seconds_bucket{le=\"+Inf\",operation=\"read\"} 3
# EOF
";
        assert_eq!(exposition.into_text(), expected);
    }

    #[test]
    #[should_panic(expected = "the labels of test_read_bytes")]
    fn a_value_without_its_labels_is_a_defect() {
        Exposition::default().add(&READ, &[], 1_u64);
    }
}
