//! Import cycles inside one crate: files that import each other, directly or through others.
//!
//! Imports of a file by the files below it in the module tree do not count, because every file may use its parents.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;

/// Imported files of each file. Files are identified by their module paths.
type Imports = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// Files of one import cycle, sorted.
type ImportCycle = Vec<Vec<String>>;

/// Returns the import cycles of all crates.
pub(super) fn cycles_of(sources: &[Source]) -> Vec<ImportCycle> {
    cycles(&imports(sources))
}

fn imports(sources: &[Source]) -> Imports {
    let files: BTreeSet<Vec<String>> = sources.iter().map(Source::modules).collect();
    let mut imports = Imports::new();
    for source in sources {
        let from = source.modules();
        let paths = source.absolute_paths();
        let modules = paths.iter().filter(|path| files.contains(*path));
        let through_modules: Vec<Vec<String>> = modules
            .flat_map(|module| {
                let paths = source.paths_from(module.last().map_or("", String::as_str)).into_iter();
                paths.map(|path| module.iter().cloned().chain(path.into_iter().skip(1)).collect())
            })
            .collect();
        let all = paths.iter().chain(&through_modules);
        let imported =
            all.filter_map(|path| file_of(path, &files)).filter(|to| is_relevant(&from, to)).collect();
        imports.insert(from, imported);
    }
    imports
}

/// Returns the file that has the item at `path`: the longest prefix of the path that is a file.
fn file_of(path: &[String], files: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    let mut beginnings = (1..=path.len()).rev().map(|length| &path[..length]);
    beginnings.find(|beginning| files.contains(*beginning)).map(<[String]>::to_vec)
}

/// Whether an import counts: the imported file is no parent of the other.
fn is_relevant(from: &[String], to: &[String]) -> bool {
    !from.starts_with(to)
}

/// Returns the strongly connected components with more than one file.
fn cycles(imports: &Imports) -> Vec<ImportCycle> {
    let reached: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> =
        imports.keys().map(|file| (file, reachable(file, imports))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (file, others) in &reached {
        if seen.contains(file) || !others.contains(file) {
            continue;
        }
        let circle: Vec<&Vec<String>> =
            others.iter().copied().filter(|other| reached[other].contains(file)).collect();
        seen.extend(circle.iter().copied());
        circles.push(circle.into_iter().cloned().collect());
    }
    circles
}

/// Returns every file that `start` imports, directly or through others.
fn reachable<'a>(start: &Vec<String>, imports: &'a Imports) -> BTreeSet<&'a Vec<String>> {
    let mut reached = BTreeSet::new();
    let mut pending: Vec<&Vec<String>> = imports[start].iter().collect();
    while let Some(file) = pending.pop() {
        if reached.insert(file) {
            pending.extend(&imports[file]);
        }
    }
    reached
}

mod tests {
    //! The search itself: it must find circles, and no others.

    use super::*;

    fn largest_cycle(files: &[(&str, &str)]) -> Option<Vec<String>> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let cycle = cycles_of(&sources).into_iter().max_by_key(Vec::len)?;
        Some(cycle.iter().map(|path| path.join("::")).collect())
    }

    #[test]
    fn import_cycles_are_found_for_any_length_and_syntax() {
        let circle = largest_cycle(&[
            ("src/a.rs", "mod b; mod c; mod d; mod e;"),
            ("src/a/b.rs", "use super::c::{self, X};"),
            ("src/a/c.rs", "fn f() { crate::a::d::g() }"),
            ("src/a/d.rs", "use super::e; fn f() { e::inner::g() }"),
            ("src/a/e.rs", "mod inner; use super::b;"),
            ("src/a/e/inner.rs", "use super::super::b::Y;"),
        ]);
        assert_eq!(
            circle.unwrap(),
            ["weir::a::b", "weir::a::c", "weir::a::d", "weir::a::e", "weir::a::e::inner"]
        );
    }

    #[test]
    fn imports_of_parents_form_no_cycle_and_those_of_other_modules_do() {
        let parent =
            [("src/a.rs", "mod b; use self::b::X;"), ("src/a/b.rs", "use super::Y; use crate::c::Z;")];
        assert_eq!(largest_cycle(&parent), None);
        let [a, b] = parent;
        let both = largest_cycle(&[a, b, ("src/c.rs", "use crate::a::b::X;")]);
        assert_eq!(both.unwrap(), ["weir::a::b", "weir::c"]);
    }
}
