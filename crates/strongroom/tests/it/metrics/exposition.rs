//! Reads the OpenMetrics text format, strictly: what is not as OpenMetrics 1.0 has it fails a test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

type Labels = BTreeMap<String, String>;

/// What a process answered.
pub(crate) struct Samples {
    text: String,
    values: BTreeMap<(String, Labels), f64>,
    /// Their types.
    families: BTreeMap<String, String>,
}

impl Samples {
    pub(crate) fn parse(text: &str) -> Samples {
        let mut samples = Samples { text: text.to_owned(), values: BTreeMap::new(), families: BTreeMap::new() };
        let body = text.strip_suffix("# EOF\n").expect("an end");
        let (mut family, mut described) = (String::new(), BTreeSet::new());
        for line in body.lines() {
            if let Some(described_as) = line.strip_prefix("# HELP ") {
                let (name, help) = described_as.split_once(' ').expect("a description");
                assert!(!help.is_empty() && described.insert(name.to_owned()), "{line}");
            } else if let Some(typed) = line.strip_prefix("# TYPE ") {
                let (name, kind) = typed.split_once(' ').expect("a type");
                assert!(["counter", "gauge", "histogram"].contains(&kind) && described.contains(name), "{line}");
                assert!(samples.families.insert(name.to_owned(), kind.to_owned()).is_none(), "twice: {line}");
                family = name.to_owned();
            } else if let Some(unit) = line.strip_prefix("# UNIT ") {
                let (name, unit) = unit.split_once(' ').expect("a unit");
                assert!(name == family && name.ends_with(&format!("_{unit}")), "{line}");
            } else {
                samples.sample(&family, line);
            }
        }
        samples.check_histograms();
        samples
    }

    fn sample(&mut self, family: &str, line: &str) {
        let at = line.find(['{', ' ']).expect("a value");
        let name = &line[..at];
        let (labels, value) = labels(&line[at..]);
        let suffixes: &[&str] = match self.families[family].as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            _ => &["_bucket", "_count", "_sum"],
        };
        assert!(suffixes.iter().any(|suffix| name == format!("{family}{suffix}")), "{line} is not of {family}");
        let value: f64 = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(self.values.insert((name.to_owned(), labels), value).is_none(), "twice: {line}");
    }

    /// Buckets grow, and the last one has everything.
    fn check_histograms(&self) {
        for (family, _) in self.families.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut histograms: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
            let buckets = self.values.iter().filter(|((name, _), _)| *name == format!("{family}_bucket"));
            for ((_, labels), count) in buckets {
                let mut labels = labels.clone();
                let bound: f64 = labels.remove("le").expect("a bound").trim_start_matches('+').parse().unwrap();
                histograms.entry(labels).or_default().push((bound, *count));
            }
            assert!(!histograms.is_empty(), "{family}");
            for (labels, mut buckets) in histograms {
                buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
                assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{family} {labels:?}");
                let (bound, all) = *buckets.last().unwrap();
                assert!(bound.is_infinite(), "{family} {labels:?}");
                assert_eq!(self.values[&(format!("{family}_count"), labels.clone())], all);
                assert!(self.values.contains_key(&(format!("{family}_sum"), labels)));
            }
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Names of the metrics, without what their types append.
    pub(crate) fn families(&self) -> impl Iterator<Item = &String> {
        self.families.keys()
    }

    /// The value of the sample with exactly these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.values.get(&(name.to_owned(), labels)).copied()
    }

    /// Has Prometheus' own tool look at names and descriptions. It reads the older text format.
    pub(crate) fn check_with_promtool(&self) {
        let older = |line: &str| {
            let counter = |name: &str| self.families.get(name).is_some_and(|kind| kind == "counter");
            let mut words = line.splitn(4, ' ');
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("#"), Some("UNIT" | "EOF"), ..) => String::new(),
                (Some("#"), Some(what), Some(name), Some(rest)) if counter(name) => {
                    format!("# {what} {name}_total {rest}\n")
                }
                _ => format!("{line}\n"),
            }
        };
        let text: String = self.text.lines().map(older).collect();
        let started = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut promtool = started.unwrap_or_else(|error| panic!("promtool: {error}; scripts/deps.sh installs it"));
        promtool.stdin.take().expect("it is piped").write_all(text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}");
    }
}

/// The labels of a sample, and its value.
fn labels(rest: &str) -> (Labels, &str) {
    let Some(mut rest) = rest.strip_prefix('{') else { return (Labels::new(), rest.trim_start()) };
    let mut labels = Labels::new();
    loop {
        let (name, quoted) = rest.split_once("=\"").expect("a label");
        let (mut value, mut letters) = (String::new(), quoted.char_indices());
        let end = loop {
            match letters.next().expect("a closing quotation mark") {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next().expect("an escaped letter").1 {
                    'n' => '\n',
                    letter => letter,
                }),
                (_, letter) => value.push(letter),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice");
        rest = &quoted[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return (labels, rest.strip_prefix("} ").expect("a value")),
        }
    }
}
