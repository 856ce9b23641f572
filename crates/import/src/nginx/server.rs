//! A server with its locations: what is in force in each, and which requests it serves.

use super::super::scope::{MatchField, Scope};
use super::host::ServerName;
use super::level::Level;
use super::listen::Listen;
use super::location::LocationPattern;
use super::precedence::exceptions;
use super::syntax::Place;
use super::try_files::TryFiles;

/// A location of a server, or the server itself for requests that no location matches.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) pattern: LocationPattern,
    pub(super) level: Level,
    /// Where it sends requests that are not for a file.
    pub(super) redirect: Option<TryFiles>,
}

#[derive(Debug)]
pub(super) struct Server {
    /// With `Default` if it is the default server of one of its addresses.
    pub(super) names: Vec<ServerName>,
    pub(super) listens: Vec<Listen>,
    pub(super) cells: Vec<Cell>,
    pub(super) place: Place,
}

impl Server {
    /// Whether it redirects all requests, apart from locations without limits.
    pub(super) fn only_returns(&self) -> bool {
        let returns_root = |cell: &Cell| cell.pattern.is_root() && cell.level.is_return;
        self.cells.iter().any(returns_root) && !self.has_limits()
    }

    /// Whether requests are limited or denied in one of its locations.
    pub(super) fn has_limits(&self) -> bool {
        self.cells.iter().any(|cell| !cell.level.limits().is_empty() || !cell.level.access().is_empty())
    }

    /// Whether it is the default server of one of its addresses.
    pub(super) fn is_default(&self) -> bool {
        self.names.iter().any(|name| matches!(name, ServerName::Default))
    }

    /// Whether a connection may reach either server.
    pub(super) fn shares_address(&self, other: &Self) -> bool {
        self.listens.iter().any(|listen| other.listens_on(&listen.address))
    }

    pub(super) fn listens_only_where(&self, other: &Self) -> bool {
        self.listens.iter().all(|listen| other.listens_on(&listen.address))
    }

    pub(super) fn listens_on(&self, address: &str) -> bool {
        self.listens.iter().any(|listen| listen.address == address)
    }

    /// Returns the requests of these cells as one or several scopes without a request in common, and notes on
    /// requests that are wrongly in them or not.
    pub(super) fn path_scopes(&self, is_ours: impl Fn(usize) -> bool) -> Vec<Scope> {
        let (ours, others): (Vec<_>, Vec<_>) =
            self.cells.iter().enumerate().partition(|(index, _)| is_ours(*index));
        let patterns =
            |cells: Vec<(usize, &'_ Cell)>| cells.into_iter().map(|(index, _)| index).collect::<Vec<_>>();
        let (ours, others) = (patterns(ours), patterns(others));
        let pattern = |index: &usize| &self.cells[*index].pattern;
        let all_ours: Vec<_> = ours.iter().map(pattern).collect();
        if let Some(excepted) = exceptions(&all_ours, &others.iter().map(pattern).collect::<Vec<_>>()) {
            return vec![path_scope(&all_ours, &excepted)];
        }
        // One scope for each location, without those that take precedence: exact, but more rules.
        let single = |index: &usize| {
            let rest: Vec<_> = (0..self.cells.len()).filter(|other| other != index).collect();
            let rest: Vec<_> = rest.iter().map(pattern).collect();
            let ours = pattern(index);
            // One pattern cannot precede another that precedes it.
            path_scope(&[ours], &exceptions(&[ours], &rest).unwrap_or_default())
        };
        ours.iter().map(single).collect()
    }

    /// Whether `^~` hides a regex of these cells below another prefix, which rules cannot express.
    pub(super) fn has_hidden_regex(&self, is_ours: impl Fn(usize) -> bool) -> bool {
        let mut cells = self.cells.iter().enumerate();
        let has_regex = cells
            .any(|(index, cell)| is_ours(index) && matches!(cell.pattern, LocationPattern::Regex { .. }));
        let hides =
            |one: &Cell| self.cells.iter().any(|other| one.pattern.hides_regexes_from(&other.pattern));
        has_regex && self.cells.iter().any(hides)
    }
}

fn path_scope(ours: &[&LocationPattern], excepted: &[&LocationPattern]) -> Scope {
    let texts = |patterns: &[&LocationPattern]| -> Vec<String> {
        patterns.iter().filter_map(|pattern| pattern.to_rule_pattern()).collect()
    };
    let mut scope = Scope::default();
    if !ours.iter().any(|pattern| pattern.is_root()) {
        scope.require(MatchField::Path, texts(ours));
    }
    scope.except(MatchField::Path, texts(excepted));
    scope
}
