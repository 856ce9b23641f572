//! The requests of some locations of some servers, as scopes of rules.

use super::cell::{HttpConfig, Server};
use super::scope::{MatchField, Scope, ScopeCondition};

/// The locations of a server in which something is in force.
pub(super) struct CellUses {
    /// Its index in the configuration.
    pub(super) server: usize,
    /// Their indices in the server.
    pub(super) cells: Vec<usize>,
}

/// A part of the requests.
#[derive(Clone, Debug)]
pub(super) struct PlacedScope {
    /// The server; `None` for all of them.
    pub(super) server: Option<usize>,
    pub(super) scope: Scope,
    /// Differences to nginx.
    pub(super) notes: Vec<String>,
}

/// Returns the requests of these locations as scopes without a request in common. With `is_per_server`, each is a
/// part of one server.
pub(super) fn placed_scopes(
    config: &HttpConfig<'_>,
    uses: &[CellUses],
    is_per_server: bool,
) -> Vec<PlacedScope> {
    let has_all_cells = |one: &CellUses| {
        config.servers.get(one.server).is_some_and(|server| server.cells.len() == one.cells.len())
    };
    let is_everywhere = uses.len() == config.servers.len() && uses.iter().all(has_all_cells);
    if is_everywhere && (!is_per_server || config.servers.len() == 1) {
        return vec![PlacedScope { server: None, scope: Scope::default(), notes: Vec::new() }];
    }
    let mut placed: Vec<PlacedScope> = Vec::new();
    for CellUses { server: index, cells } in uses {
        let Some(server) = config.servers.get(*index) else { continue };
        let (paths, notes) = (server.path_scopes(|cell| cells.contains(&cell)), notes_of(server, cells));
        for hosts in config.host_scopes(*index) {
            // Hosts and paths are different attributes.
            for scope in paths.iter().filter_map(|paths| hosts.intersection(paths)) {
                let joins = |one: &mut PlacedScope| {
                    !is_per_server && one.notes == notes && join_hosts(&mut one.scope, &scope).is_some()
                };
                if !placed.iter_mut().any(joins) {
                    placed.push(PlacedScope { server: Some(*index), scope, notes: notes.clone() });
                }
            }
        }
    }
    placed
}

fn notes_of(server: &Server, cells: &[usize]) -> Vec<String> {
    let note =
        "below a prefix with `^~` and a longer one without, a regex of the server also applies in nginx";
    let is_inexact = server.has_hidden_regex(|cell| cells.contains(&cell));
    is_inexact.then(|| note.to_owned()).into_iter().collect()
}

/// Adds the hosts of `scope` to those of `other` if nothing else differs.
fn join_hosts(other: &mut Scope, scope: &Scope) -> Option<()> {
    let is_host = |condition: &ScopeCondition| condition.field == MatchField::Host;
    let rest = |scope: &Scope| -> Vec<ScopeCondition> {
        scope.conditions.iter().filter(|condition| !is_host(condition)).cloned().collect()
    };
    let has_host_exception = |scope: &Scope| scope.exceptions.iter().flatten().any(is_host);
    if rest(other) != rest(scope)
        || other.exceptions != scope.exceptions
        || has_host_exception(other)
        || has_host_exception(scope)
    {
        return None;
    }
    let added = scope.conditions.iter().find(|condition| is_host(condition))?;
    let hosts = other.conditions.iter_mut().find(|condition| is_host(condition))?;
    for pattern in &added.patterns {
        if !hosts.patterns.contains(pattern) {
            hosts.patterns.push(pattern.clone());
        }
    }
    Some(())
}
