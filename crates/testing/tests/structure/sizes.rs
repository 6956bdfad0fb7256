//! Fields and methods of a type, and lines of a function.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::{Findings, Source};

const FIELDS_MAX: usize = 15;
const METHODS_MAX: usize = 40;
const FUNCTION_LINES_MAX: usize = 60;

/// A type's definition: the file, its name and its fields.
struct Definition<'a> {
    path: &'a Path,
    name: String,
    fields: usize,
}

#[derive(Default)]
struct Collector {
    /// Name and fields of the structs of one file.
    structs: Vec<(String, usize)>,
    /// Name of the type of each inherent method of one file.
    methods: Vec<String>,
    /// Name and lines of each long function.
    long: Vec<(String, usize)>,
}

/// Whether an item is compiled for tests only.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        attribute.path().is_ident("test")
            || is_cfg && attribute.parse_args::<syn::Path>().is_ok_and(|argument| argument.is_ident("test"))
    })
}

impl Collector {
    fn function(&mut self, name: &syn::Ident, whole: proc_macro2::Span) {
        let lines = whole.end().line - whole.start().line + 1;
        if lines > FUNCTION_LINES_MAX {
            self.long.push((name.to_string(), lines));
        }
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if !is_test(&item.attrs) {
            self.structs.push((item.ident.to_string(), item.fields.len()));
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        if let (None, syn::Type::Path(path)) = (&item.trait_, &*item.self_ty)
            && let Some(last) = path.path.segments.last()
        {
            let is_method =
                |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(function) if !is_test(&function.attrs));
            let count = item.items.iter().filter(is_method).count();
            self.methods.extend(std::iter::repeat_n(last.ident.to_string(), count));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig.ident, item.sig.span().join(item.block.span()).unwrap_or(item.block.span()));
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig.ident, item.sig.span().join(item.block.span()).unwrap_or(item.block.span()));
        }
    }
}

/// How many leading components two paths share: the definition that an `impl` means is the nearest of its name.
fn nearness(one: &Path, other: &Path) -> usize {
    let stem = |path: &Path| path.with_extension("");
    stem(one).components().zip(stem(other).components()).take_while(|(a, b)| a == b).count()
}

pub(crate) fn check(sources: &[Source], found: &mut Findings) {
    let mut crates: BTreeMap<PathBuf, Vec<(&Source, Collector)>> = BTreeMap::new();
    for source in sources {
        if source.path.ends_with("tests.rs") || source.path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let mut collector = Collector::default();
        collector.visit_file(&source.syntax);
        crates.entry(source.krate()).or_default().push((source, collector));
    }
    for files in crates.values() {
        let definitions: Vec<Definition> = files
            .iter()
            .flat_map(|(source, collector)| {
                let define = |(name, fields): &(String, usize)| Definition {
                    path: &source.path,
                    name: name.clone(),
                    fields: *fields,
                };
                collector.structs.iter().map(define)
            })
            .collect();
        let mut methods: BTreeMap<(PathBuf, String), usize> = BTreeMap::new();
        for (source, collector) in files {
            for name in &collector.methods {
                let named = definitions.iter().filter(|definition| definition.name == *name);
                let Some(definition) = named.max_by_key(|definition| nearness(definition.path, &source.path)) else {
                    continue;
                };
                *methods.entry((definition.path.to_owned(), name.clone())).or_default() += 1;
            }
            for (name, lines) in &collector.long {
                let entry = found.entry(format!("function {} {name}", source.path.display())).or_default();
                *entry = (*entry).max(*lines);
            }
        }
        for definition in &definitions {
            if definition.fields > FIELDS_MAX {
                found.insert(format!("fields {} {}", definition.path.display(), definition.name), definition.fields);
            }
        }
        for ((path, name), count) in methods {
            if count > METHODS_MAX {
                found.insert(format!("methods {} {name}", path.display()), count);
            }
        }
    }
}
