//! Words that have a standard term in the field; `docs/glossary.md` has the terms.

use std::collections::BTreeMap;
use std::fs;

use crate::{Findings, files, root};

/// Names of types that do not say what the thing is.
const TYPES: &[&str] = &[
    "Held", "Kept", "Told", "Given", "Moved", "Taken", "State", "Step", "Shared", "Work", "Place", "Road", "Errand",
    "Snack", "Crew", "Teller", "Keeper", "Crossing",
];

/// Words of prose and names, in lower case, as whole words.
const WORDS: &[&str] = &[
    "abroad",
    "neighbours",
    "farewell",
    "anew",
    "whoever",
    "whatever",
    "errand",
    "errands",
    "teller",
    "crew",
    "anybody",
    "luxury",
];

pub(crate) fn check(found: &mut Findings) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for path in files(&["rs", "md", "sh", "toml"]) {
        // The lists themselves, the style guide's examples, and what is generated.
        if path.starts_with("crates/testing/tests/structure")
            || path.starts_with("docs/bench")
            || path.ends_with("CHANGELOG.md")
        {
            continue;
        }
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        let area: Vec<_> = path.components().take(if path.starts_with("crates") { 2 } else { 1 }).collect();
        let area = area.iter().collect::<std::path::PathBuf>();
        for line in text.lines() {
            let words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let banned = words
                .flat_map(|word| word.split('_'))
                .filter(|word| WORDS.contains(&word.to_lowercase().as_str()) || is_bare_type(line, word));
            *counts.entry(format!("words {}", area.display())).or_default() += banned.count();
        }
    }
    found.extend(counts.into_iter().filter(|(_, count)| *count > 0));
}

/// Whether a line declares a type of one of the names that say nothing.
fn is_bare_type(line: &str, word: &str) -> bool {
    TYPES.contains(&word)
        && ["struct ", "enum ", "trait ", "type "].iter().any(|kind| {
            line.contains(&format!("{kind}{word}")) && {
                let rest = line.split(&format!("{kind}{word}")).nth(1).unwrap_or("");
                !rest.starts_with(|letter: char| letter.is_alphanumeric())
            }
        })
}
