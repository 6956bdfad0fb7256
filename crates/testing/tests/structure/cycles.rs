//! Import cycles between the files of a crate: files that can only be understood together.
//!
//! An edge is a `use crate::…`, `use super::…` or a path that begins so, to the file that defines the module named. A child that uses what its
//! parent module declares, and a parent that declares its children, is no cycle in itself: re-exports of a parent do not count as edges from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use crate::{Findings, Source};

/// The module path of a source file: `["store", "send"]` for `src/store/send.rs`.
fn module(path: &Path) -> Vec<String> {
    let mut parts: Vec<String> = path
        .with_extension("")
        .components()
        .skip(3)
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    if parts.last().is_some_and(|last| last == "mod" || parts.len() == 1 && (last == "lib" || last == "main")) {
        parts.pop();
    }
    parts
}

struct Imports<'a> {
    own: &'a [String],
    modules: &'a BTreeMap<Vec<String>, PathBuf>,
    used: BTreeSet<PathBuf>,
}

impl Imports<'_> {
    /// Resolves a path that begins with `crate`, `super` or `self` to the file of its longest prefix that is a module.
    fn resolve(&mut self, segments: &[String]) {
        let mut base: Vec<String> = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super") => self.own[..self.own.len().saturating_sub(1)].to_vec(),
            Some("self") => self.own.to_vec(),
            _ => return,
        };
        let mut rest = &segments[1..];
        while let Some((first, more)) = rest.split_first().filter(|(first, _)| *first == "super") {
            debug_assert_eq!(first, "super");
            base.pop();
            rest = more;
        }
        for segment in rest {
            let mut longer = base.clone();
            longer.push(segment.clone());
            if !self.modules.contains_key(&longer) {
                break;
            }
            base = longer;
        }
        if let Some(path) = self.modules.get(&base) {
            self.used.insert(path.clone());
        }
    }

    fn tree(&mut self, prefix: &[String], tree: &syn::UseTree) {
        let mut path = prefix.to_vec();
        match tree {
            syn::UseTree::Path(next) => {
                path.push(next.ident.to_string());
                self.tree(&path, &next.tree);
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(&path, item)),
            syn::UseTree::Name(name) => {
                path.push(name.ident.to_string());
                self.resolve(&path);
            }
            syn::UseTree::Rename(rename) => {
                path.push(rename.ident.to_string());
                self.resolve(&path);
            }
            syn::UseTree::Glob(_) => self.resolve(&path),
        }
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test = item.attrs.iter().any(|attribute| attribute.path().is_ident("cfg"));
        if !is_test {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // `pub use` of a child is how a parent shows its interface; it needs nothing of the child.
        if matches!(item.vis, syn::Visibility::Inherited) {
            self.tree(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.resolve(&segments);
        }
        visit::visit_path(self, path);
    }
}

/// The strongly connected components with more than one member (Tarjan).
fn components(edges: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<Vec<PathBuf>> {
    let reach = |from: &PathBuf| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(path) = open.pop() {
            for next in edges.get(path).into_iter().flatten() {
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> = edges.keys().map(|path| (path, reach(path))).collect();
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for (path, forward) in &reached {
        let mutual: Vec<PathBuf> = forward
            .iter()
            .filter(|other| reached.get(**other).is_some_and(|back| back.contains(*path)))
            .map(|path| (*path).clone())
            .collect();
        if mutual.len() > 1 && done.insert(mutual.clone()) {
            found.push(mutual);
        }
    }
    found
}

pub(crate) fn check(sources: &[Source], found: &mut Findings) {
    let mut crates: BTreeMap<PathBuf, Vec<&Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| {
        !source.path.ends_with("tests.rs") && !source.path.components().any(|part| part.as_os_str() == "tests")
    }) {
        crates.entry(source.krate()).or_default().push(source);
    }
    for (krate, files) in crates {
        let modules: BTreeMap<Vec<String>, PathBuf> =
            files.iter().map(|source| (module(&source.path), source.path.clone())).collect();
        let mut edges = BTreeMap::new();
        for source in &files {
            let own = module(&source.path);
            let mut imports = Imports { own: &own, modules: &modules, used: BTreeSet::new() };
            imports.visit_file(&source.syntax);
            imports.used.remove(&source.path);
            edges.insert(source.path.clone(), imports.used);
        }
        let count: usize = components(&edges).iter().map(Vec::len).sum();
        if count > 0 {
            found.insert(format!("files-in-cycles {}", krate.display()), count);
        }
    }
}
