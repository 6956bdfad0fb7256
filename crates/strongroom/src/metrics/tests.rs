//! Proves that the lists of metrics are well formed, that `docs/metrics.md` has them as they are, and that the dashboard and the alert rules in
//! `contrib/` ask for nothing else. `STRONGROOM_WRITE_METRICS=1` writes the tables of the document.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strongroom_metrics::{Definition, MetricKind};

/// The lists, by the heading of their table in the document, and what the names in each begin with.
static LISTS: [(&str, &str, &[Definition]); 3] = [
    ("Targets", "strongroom_target_", super::target::ALL),
    ("Attachments", "strongroom_attachment_", super::attachment::ALL),
    ("Key servers", "strongroom_keyserver_", super::key_server::ALL),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn all() -> impl Iterator<Item = &'static Definition> {
    LISTS.iter().flat_map(|(_, _, list)| list.iter())
}

#[test]
fn metrics_are_named_and_described_as_is_usual() {
    let mut names = BTreeSet::new();
    for (_, prefix, list) in LISTS {
        for Definition { name, kind, labels, help } in list {
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.starts_with(prefix), "{name}");
            let is_plain =
                |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte));
            assert!(is_plain(name) && labels.iter().all(|label| is_plain(label)), "{name}");
            assert!(!name.ends_with("_total"), "{name}: a counter gets this suffix by itself");
            assert!(*kind != MetricKind::Histogram || name.ends_with("_seconds"), "{name}");
            let is_sentence = help.starts_with(|letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit());
            assert!(is_sentence && help.ends_with('.') && !help.contains(['\n', '\\', '|']), "{name}: {help}");
        }
    }
}

/// The table of one list, as the document has it.
fn table(list: &[Definition]) -> String {
    let row = |definition: &Definition| {
        let suffix = if definition.kind == MetricKind::Counter { "_total" } else { "" };
        format!(
            "| `{}{suffix}` | {} | {} | {} | {} |\n",
            definition.name,
            definition.kind.name(),
            definition.unit().unwrap_or(""),
            definition.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", "),
            definition.help
        )
    };
    let rows: String = list.iter().map(row).collect();
    format!("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n{rows}")
}

#[test]
fn the_document_has_every_metric() {
    let mut text = read("docs/metrics.md");
    for (heading, _, list) in LISTS {
        let section = text.find(&format!("## {heading}\n")).unwrap_or_else(|| panic!("a section {heading}"));
        let begin = section + text[section..].find("| metric |").expect("a table");
        let end = text[begin..].find("\n\n").map_or(text.len(), |end| begin + end + 1);
        if std::env::var_os("STRONGROOM_WRITE_METRICS").is_some() {
            text.replace_range(begin..end, &table(list));
        } else {
            assert_eq!(text[begin..end], table(list), "{heading}: run this test with STRONGROOM_WRITE_METRICS=1");
        }
    }
    if std::env::var_os("STRONGROOM_WRITE_METRICS").is_some() {
        fs::write(root().join("docs/metrics.md"), text).unwrap();
    }
}

/// Every expression of a dashboard, wherever it stands.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if ["expr", "query", "definition"].contains(&name.as_str()) => {
                        found.push(text.clone());
                    }
                    value => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

/// The samples that an expression names, each with the labels that it selects by.
fn selected(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("strongroom_") {
        rest = &rest[at..];
        let end = rest.find(|letter| !is_name(letter)).unwrap_or(rest.len());
        let name = rest[..end].to_owned();
        rest = &rest[end..];
        let selector = rest.strip_prefix('{').and_then(|inside| inside.split('}').next()).unwrap_or("");
        let labels = selector.split(',').filter_map(|matcher| matcher.split(['=', '!']).next());
        let labels = labels.map(|label| label.trim().to_owned()).filter(|label| !label.is_empty()).collect();
        found.push((name, labels));
    }
    found
}

/// What is wrong with an expression, if anything is.
fn mistake(expression: &str) -> Option<String> {
    let from_outside = ["instance", "job", "le"];
    selected(expression).into_iter().find_map(|(name, labels)| {
        let Some(definition) = all().find(|definition| definition.sample_names().contains(&name)) else {
            return Some(format!("{name} is not exported"));
        };
        let is_known =
            |label: &&String| from_outside.contains(&label.as_str()) || definition.labels.contains(&label.as_str());
        let unknown = labels.iter().find(|label| !is_known(label))?;
        Some(format!("{name} has no label {unknown}"))
    })
}

#[test]
fn a_query_for_what_is_not_exported_is_noticed() {
    assert_eq!(mistake("rate(strongroom_target_commands_total{instance=~\"$i\"}[5m])"), None);
    for wrong in [
        "strongroom_target_commands",
        "rate(strongroom_target_sessions_total[5m])",
        "strongroom_target_command_seconds",
        "strongroom_target_commands_total{volume=\"a\"}",
    ] {
        assert!(mistake(wrong).is_some(), "{wrong}");
    }
}

#[test]
fn the_dashboard_asks_for_exported_metrics_only() {
    let dashboard: Value = serde_json::from_str(&read("contrib/grafana/strongroom.json")).expect("JSON");
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    let queries = found.iter().filter(|expression| expression.contains("strongroom_")).count();
    assert!(queries > 40, "{queries}");
    for expression in &found {
        assert_eq!(mistake(expression), None, "{expression}");
    }
    let ids: Vec<&Value> = dashboard["panels"].as_array().unwrap().iter().map(|panel| &panel["id"]).collect();
    assert!((1..ids.len()).all(|at| !ids[..at].contains(&ids[at])), "two panels have one number");
}

#[test]
fn the_alert_rules_ask_for_exported_metrics_only() {
    let rules = read("contrib/prometheus/strongroom.rules.yml");
    let found: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert_eq!(found.len(), rules.matches("- alert: ").count(), "each rule has its expression in one line");
    for expression in found {
        assert_eq!(mistake(expression), None, "{expression}");
    }
}

#[test]
fn promtool_accepts_the_rules_and_the_example() {
    let directory = root().join("contrib/prometheus");
    for arguments in [["check", "rules", "strongroom.rules.yml"], ["check", "config", "strongroom.yml"]] {
        let output = Command::new("promtool").args(arguments).current_dir(&directory).output();
        let output = output.unwrap_or_else(|error| panic!("promtool: {error}; scripts/deps.sh installs it"));
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "promtool {arguments:?}: {said}");
    }
}
