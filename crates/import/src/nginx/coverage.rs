//! The requests of some locations of some servers, as scopes of rules.

use super::super::remark::{Effect, Remark};
use super::super::scope::{MatchField, Scope, ScopeCondition};
use super::http_config::HttpConfig;
use super::server::Server;

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
    pub(super) notes: Vec<Remark>,
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
                let new = PlacedScope { server: Some(*index), scope, notes: notes.clone() };
                match is_per_server {
                    true => placed.push(new),
                    false => add_joined(&mut placed, new),
                }
            }
        }
    }
    placed
}

/// Adds a scope, joined with those that it has requests in common with: each request is charged once.
fn add_joined(placed: &mut Vec<PlacedScope>, mut new: PlacedScope) {
    let mut index = 0;
    while let Some(one) = placed.get(index) {
        match (one.notes == new.notes).then(|| union(&one.scope, &new.scope)).flatten() {
            Some(scope) => {
                new = PlacedScope { scope, ..placed.remove(index) };
                index = 0;
            }
            None => index += 1,
        }
    }
    placed.push(new);
}

/// Returns the requests in either scope, if one scope can have them.
fn union(one: &Scope, other: &Scope) -> Option<Scope> {
    if one.includes(other) {
        return Some(one.clone());
    }
    if other.includes(one) {
        return Some(other.clone());
    }
    let mut joined = one.clone();
    join_hosts(&mut joined, other).or_else(|| join_host_exceptions(&mut joined, other))?;
    Some(joined)
}

fn notes_of(server: &Server, cells: &[usize]) -> Vec<Remark> {
    let note =
        "below a prefix with `^~` and a longer one without, a regex of the server also applies in nginx";
    let is_inexact = server.has_hidden_regex(|cell| cells.contains(&cell));
    is_inexact.then(|| Remark::new(Effect::Differs, note)).into_iter().collect()
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

/// Adds the requests of `scope` to those of `other` if both are for all hosts with exceptions, and nothing else differs.
/// Default servers of two addresses have such scopes.
fn join_host_exceptions(other: &mut Scope, scope: &Scope) -> Option<()> {
    let is_of_host =
        |exception: &[ScopeCondition]| matches!(exception, [ScopeCondition { field: MatchField::Host, .. }]);
    let rest = |scope: &Scope| -> Vec<Vec<ScopeCondition>> {
        scope.exceptions.iter().filter(|one| !is_of_host(one)).cloned().collect()
    };
    let has_hosts = other.conditions.iter().any(|condition| condition.field == MatchField::Host);
    if has_hosts || other.conditions != scope.conditions || rest(other) != rest(scope) {
        return None;
    }
    let excepted = |scope: &Scope| -> Vec<String> {
        let conditions = scope.exceptions.iter().filter(|one| is_of_host(one)).flatten();
        conditions.flat_map(|condition| condition.patterns.iter().cloned()).collect()
    };
    let (mut both, theirs) = (excepted(other), excepted(scope));
    both.retain(|pattern| theirs.contains(pattern));
    other.exceptions = rest(other);
    other.except(MatchField::Host, both);
    Some(())
}
