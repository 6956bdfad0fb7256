//! Checks the size of types and functions, the vocabulary, and import cycles between files. The rules are in
//! CONTRIBUTING.md. What breaks them today is listed in `structure/exceptions.txt`, and may only become less: a new or larger
//! exception fails, and so does an exception that is no longer needed, until the list is rewritten with
//! `TIDY_WRITE_EXCEPTIONS=1 cargo test -p strongroom-testing --test structure`.

#[path = "structure/cycles.rs"]
mod cycles;
#[path = "structure/sizes.rs"]
mod sizes;
#[path = "structure/words.rs"]
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One source file of a crate: its path from the workspace's root, and what it contains.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) syntax: syn::File,
}

impl Source {
    /// The directory of the crate, such as `crates/store`.
    pub(crate) fn krate(&self) -> PathBuf {
        self.path.components().take(2).collect()
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is two levels up")
}

/// Paths of all files of the repository with one of these extensions.
pub(crate) fn files(extensions: &[&str]) -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let wanted = |path: &&str| Path::new(path).extension().is_some_and(|has| extensions.iter().any(|one| has == *one));
    // A file that was deleted but not committed is still listed.
    listing.split('\0').filter(wanted).map(PathBuf::from).filter(|path| root().join(path).exists()).collect()
}

/// The sources below `crates/*/src`.
fn sources() -> Vec<Source> {
    let in_src = |path: &PathBuf| path.components().nth(2).is_some_and(|part| part.as_os_str() == "src");
    let parse = |path: PathBuf| {
        let text = fs::read_to_string(root().join(&path)).expect("sources are UTF-8");
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Source { path, syntax }
    };
    files(&["rs"]).into_iter().filter(|path| path.starts_with("crates") && in_src(path)).map(parse).collect()
}

/// What breaks a rule: "rule subject" and by how much.
pub(crate) type Findings = BTreeMap<String, usize>;

#[test]
fn exceptions_only_become_fewer() {
    let sources = sources();
    let mut found = Findings::new();
    sizes::check(&sources, &mut found);
    cycles::check(&sources, &mut found);
    words::check(&mut found);

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/structure/exceptions.txt");
    if std::env::var_os("TIDY_WRITE_EXCEPTIONS").is_some() {
        let lines: String = found.iter().map(|(what, count)| format!("{what} {count}\n")).collect();
        fs::write(&path, lines).expect("the list is writable");
        return;
    }
    let listed: Findings = fs::read_to_string(&path)
        .expect("the list is there")
        .lines()
        .map(|line| {
            let (what, count) = line.rsplit_once(' ').expect("a count ends each line");
            (what.to_owned(), count.parse().expect("a count"))
        })
        .collect();
    let mut wrong = Vec::new();
    for (what, count) in &found {
        match listed.get(what) {
            None => wrong.push(format!("{what}: {count}; CONTRIBUTING.md has the rule")),
            Some(before) if count > before => wrong.push(format!("{what}: {count}, more than the {before} of before")),
            Some(before) if count < before => {
                wrong.push(format!("{what}: {count}, better than {before}: rewrite the list"))
            }
            Some(_) => {}
        }
    }
    wrong.extend(
        listed.keys().filter(|what| !found.contains_key(*what)).map(|what| format!("{what}: gone: rewrite the list")),
    );
    assert!(
        wrong.is_empty(),
        "{}\n(TIDY_WRITE_EXCEPTIONS=1 cargo test -p strongroom-testing --test structure rewrites the list)",
        wrong.join("\n")
    );
}
