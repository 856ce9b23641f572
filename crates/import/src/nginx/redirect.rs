//! Requests that nginx serves in another location than the one that matches their path: `try_files`, `error_page` and
//! `rewrite`, also to a named location.
//!
//! nginx counts a request by the limits of the first location on its way that has any. So a location without limits
//! gets those of the location that its `try_files` ends in.

use std::collections::BTreeMap;

use super::super::remark::{Effect, Remark};
use super::level::{Level, has_limits};
use super::server::Server;
use super::syntax::Directive;
use super::try_files::TryFiles;

/// Gives the locations of a server the limits of those that they redirect to. `directives` are those of the server.
pub(super) fn follow(directives: &[Directive], level: &Level, server: &mut Server, notes: &mut Vec<Remark>) {
    let locations = || directives.iter().filter(|one| one.name == "location");
    let mut named: BTreeMap<&str, (Level, &Directive, bool)> = BTreeMap::new();
    for location in locations().filter(|one| one.argument(0).starts_with('@')) {
        named.insert(location.argument(0), (level.with(location.children(), notes), location, false));
    }
    let of_server = TryFiles::from_directives(directives);
    for index in 0..server.cells.len() {
        let redirect = server.cells[index].redirect.clone().or_else(|| of_server.clone());
        let Some(TryFiles { target, place }) = redirect else { continue };
        let path = target.split('?').next().unwrap_or_default();
        let found = match named.get_mut(path) {
            Some((level, _, is_used)) => {
                *is_used = true;
                Some(level.clone())
            }
            None if path.contains('$') => None,
            None => best_cell(server, path)
                .filter(|best| *best != index)
                .map(|best| server.cells[best].level.clone()),
        };
        let Some(target_level) = found else { continue };
        if server.cells[index].level.adopt(&target_level) {
            let text = format!(
                "{place}: the limits of `{target}` also count requests for files, which nginx serves without"
            );
            notes.push(Remark::new(Effect::Tighter, text));
        }
    }
    for (name, (_, location, is_used)) in &named {
        if has_limits(location) && !is_used {
            let text = format!(
                "{}: limits of `location {name}` are not converted: no `try_files` ends in it",
                location.place
            );
            notes.push(Remark::new(Effect::Looser, text));
        }
    }
    note_others(directives, server, notes);
}

/// Returns the index of the location for a path.
fn best_cell(server: &Server, path: &str) -> Option<usize> {
    let ranked = server.cells.iter().enumerate();
    let ranked = ranked.filter_map(|(index, cell)| Some((cell.pattern.rank_for(path)?, index)));
    ranked.min().map(|(_, index)| index)
}

/// Says of other redirects that they are not followed, if the server has limits.
fn note_others(directives: &[Directive], server: &Server, notes: &mut Vec<Remark>) {
    if !server.has_limits() {
        return;
    }
    for directive in directives {
        let is_redirect = match directive.name.as_str() {
            "rewrite" => {
                !directive.arguments.iter().any(|word| matches!(word.as_str(), "redirect" | "permanent"))
            }
            "error_page" => directive.arguments.last().is_some_and(|target| target.starts_with('@')),
            _ => false,
        };
        if is_redirect {
            let text = format!(
                "{}: `{}` is not followed: its requests have the limits of the location of their own path",
                directive.place, directive.name
            );
            notes.push(Remark::new(Effect::Differs, text));
        }
        note_others(directive.children(), server, notes);
    }
}
