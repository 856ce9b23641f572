//! The servers and locations of a configuration: for each, what is in force there and which requests it serves.

use super::super::remark::{Effect, Remark};
use super::super::scope::{MatchField, Scope};
use super::host::ServerName;
use super::level::Level;
use super::listen::{Listen, note_inexact_servers, set_default_servers};
use super::location::{LocationError, LocationPattern};
use super::precedence::exceptions;
use super::redirect::{self, TryFiles};
use super::selection::Selections;
use super::syntax::{Directive, Place};
use super::zone::NginxZone;

/// Maximum number of servers, and of locations of a server, because each is compared with each.
const MAX_SERVERS: usize = 500;
const MAX_LOCATIONS: usize = 500;

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

/// A configuration, as far as limits are concerned.
#[derive(Debug, Default)]
pub(super) struct HttpConfig<'d> {
    pub(super) zones: Vec<NginxZone>,
    pub(super) selections: Selections<'d>,
    pub(super) servers: Vec<Server>,
    /// What is not converted.
    pub(super) notes: Vec<Remark>,
}

impl<'d> HttpConfig<'d> {
    /// Reads the directives of a file: a main file with `http`, or a part of one.
    pub(super) fn new(directives: &'d [Directive]) -> Self {
        let mut config = Self::default();
        let mut http: Vec<&'d Directive> = Vec::new();
        for directive in directives {
            match directive.name.as_str() {
                "http" => http.extend(directive.children()),
                _ => http.push(directive),
            }
        }
        for directive in &http {
            match directive.name.as_str() {
                "limit_req_zone" | "limit_conn_zone" => config.add_zone(directive),
                "map" | "geo" => config.selections.add(directive),
                "stream" if has_limits(directive) => {
                    config.notes.push(Remark::new(
                        Effect::Looser,
                        format!("{}: limits of `stream` are not converted", directive.place),
                    ));
                }
                _ => {}
            }
        }
        config.add_servers(&http);
        config.drop_servers_that_only_return();
        set_default_servers(&mut config.servers);
        config.drop_conflicting_names();
        note_inexact_servers(&mut config);
        config
    }

    fn add_zone(&mut self, directive: &Directive) {
        match NginxZone::parse(directive) {
            Ok(zone) => self.zones.push(zone),
            Err(reason) => {
                self.notes.push(Remark::new(Effect::Looser, format!("{}: {reason}", directive.place)))
            }
        }
    }

    fn add_servers(&mut self, http: &[&'d Directive]) {
        let outside: Vec<Directive> = http
            .iter()
            .filter(|one| one.block.is_none() || one.name == "if")
            .map(|one| (*one).clone())
            .collect();
        let level = Level::default().with(&outside, &mut self.notes);
        let servers: Vec<&&Directive> = http.iter().filter(|one| one.name == "server").collect();
        if servers.len() > MAX_SERVERS {
            self.notes.push(Remark::new(
                Effect::Looser,
                format!("only the first {MAX_SERVERS} of {} servers are converted", servers.len()),
            ));
        }
        for directive in servers.iter().take(MAX_SERVERS) {
            let server = self.read_server(directive.children(), &level, directive.place.clone());
            self.servers.push(server);
        }
        if servers.is_empty()
            && let Some(first) = http.first()
        {
            // A part of a configuration: the locations of a server that is elsewhere.
            let all: Vec<Directive> =
                http.iter().filter(|one| one.name == "location").map(|one| (*one).clone()).collect();
            let server = self.read_server(&all, &level, first.place.clone());
            self.servers.push(server);
        }
    }

    fn read_server(&mut self, directives: &[Directive], outer: &Level, place: Place) -> Server {
        let level = outer.with(directives, &mut self.notes);
        let mut server = Server { names: Vec::new(), listens: Vec::new(), cells: Vec::new(), place };
        for directive in directives {
            match directive.name.as_str() {
                "server_name" => self.add_names(directive, &mut server),
                "listen" => server.listens.push(Listen::parse(&directive.arguments)),
                "location" => self.add_location(directive, &level, &mut server),
                _ => {}
            }
        }
        if server.listens.is_empty() {
            server.listens.push(Listen::parse(&[]));
        }
        if !server.cells.iter().any(|cell| cell.pattern.is_root()) {
            let redirect = TryFiles::from_directives(directives);
            server.cells.push(Cell { pattern: LocationPattern::root(), level: level.clone(), redirect });
        }
        redirect::follow(directives, &level, &mut server, &mut self.notes);
        server
    }

    fn add_names(&mut self, directive: &Directive, server: &mut Server) {
        for text in &directive.arguments {
            let order = self.servers.len() * MAX_LOCATIONS + server.names.len();
            match ServerName::parse(text, order) {
                Some(names) => server.names.extend(names),
                None => {
                    let place = &directive.place;
                    self.notes.push(Remark::new(
                        Effect::Differs,
                        format!("{place}: rules do not support the regex `{text}`: name left out"),
                    ));
                }
            }
        }
    }

    fn add_location(&mut self, directive: &Directive, outer: &Level, server: &mut Server) {
        let place = &directive.place;
        if server.cells.len() >= MAX_LOCATIONS {
            self.notes.push(Remark::new(
                Effect::Looser,
                format!("{place}: more than {MAX_LOCATIONS} locations: not converted"),
            ));
            return;
        }
        // A `return` of the server ends all its requests, whatever its locations have.
        let level = outer.with(directive.children(), &mut self.notes);
        for inner in directive.children().iter().filter(|inner| inner.name == "location") {
            if has_limits(inner) || inner.children().iter().any(|one| one.name == "return") {
                self.notes.push(Remark::new(Effect::Differs, format!(
                    "{}: a location in a location is not converted: its requests get the limits of the outer one",
                    inner.place
                )));
            }
        }
        match LocationPattern::parse(&directive.arguments, server.cells.len()) {
            Ok(pattern) => {
                let redirect = TryFiles::from_directives(directive.children());
                server.cells.push(Cell { pattern, level, redirect });
            }
            Err(LocationError::Regex) => self.notes.push(Remark::new(Effect::Differs, format!(
                "{place}: rules do not support the regex `{}`: its requests get the limits of other locations",
                directive.argument(directive.arguments.len().saturating_sub(1))
            ))),
            Err(LocationError::Named | LocationError::Missing) => {}
        }
    }

    /// Drops servers without limits that only redirect, unless they share an address with another server: their
    /// requests do not reach the others.
    fn drop_servers_that_only_return(&mut self) {
        let serving: Vec<&Server> = self.servers.iter().filter(|one| !one.only_returns()).collect();
        let is_beside_another = |one: &Server| serving.iter().any(|other| one.shares_address(other));
        let is_dropped = |one: &Server| !serving.is_empty() && one.only_returns() && !is_beside_another(one);
        let dropped: Vec<bool> = self.servers.iter().map(is_dropped).collect();
        let mut dropped = dropped.into_iter();
        let notes = &mut self.notes;
        self.servers.retain(|server| {
            let is_dropped = dropped.next().unwrap_or_default();
            if is_dropped && !server.cells.iter().all(|cell| cell.level.is_return) {
                notes.push(Remark::new(Effect::None, format!(
                    "{}: the server has no limits and redirects, except for some locations: not converted",
                    server.place
                )));
            }
            !is_dropped
        });
    }

    /// Removes names that nginx ignores, because an earlier server of the same addresses has them.
    fn drop_conflicting_names(&mut self) {
        for index in 1..self.servers.len() {
            let (earlier, later) = self.servers.split_at_mut(index);
            let Some(server) = later.first_mut() else { continue };
            let names = std::mem::take(&mut server.names);
            for name in names {
                let pattern = name.to_rule_pattern();
                let has_it = |other: &&Server| {
                    pattern.is_some()
                        && server.listens_only_where(other)
                        && other.names.iter().any(|one| one.to_rule_pattern() == pattern)
                };
                match (earlier.iter().find(has_it), &pattern) {
                    (Some(other), Some(pattern)) => self.notes.push(Remark::new(
                        Effect::None,
                        format!(
                            "{}: nginx ignores the name `{pattern}`, which the server in {} has",
                            server.place, other.place
                        ),
                    )),
                    _ => server.names.push(name),
                }
            }
        }
    }

    /// Returns the hosts of a server as one or several scopes without a request in common; none if the server
    /// gets no request.
    pub(super) fn host_scopes(&self, index: usize) -> Vec<Scope> {
        let names = |is_wanted: &dyn Fn(usize) -> bool| -> Vec<&ServerName> {
            let servers = self.servers.iter().enumerate().filter(|(index, _)| is_wanted(*index));
            servers.flat_map(|(_, server)| &server.names).collect()
        };
        // nginx chooses between servers of the same address only.
        let is_beside = |one: usize| match (self.servers.get(index), self.servers.get(one)) {
            (Some(server), Some(other)) => server.shares_address(other),
            _ => false,
        };
        let (ours, others) = (names(&|one| one == index), names(&|one| one != index && is_beside(one)));
        if ours.is_empty() {
            return Vec::new();
        }
        if let Some(excepted) = exceptions(&ours, &others) {
            return vec![host_scope(&ours, &excepted)];
        }
        // A name of another server is between two of this one: one scope for each name is exact.
        let single = |one: &&ServerName| {
            let rest: Vec<_> =
                names(&is_beside).into_iter().filter(|other| !std::ptr::eq(*other, *one)).collect();
            // One pattern cannot precede another that precedes it.
            host_scope(&[*one], &exceptions(&[*one], &rest).unwrap_or_default())
        };
        ours.iter().map(single).collect()
    }
}

impl Server {
    /// Whether it redirects all requests, apart from locations without limits.
    fn only_returns(&self) -> bool {
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

    fn listens_only_where(&self, other: &Self) -> bool {
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

fn host_scope(ours: &[&ServerName], excepted: &[&ServerName]) -> Scope {
    let texts = |names: &[&ServerName]| names.iter().filter_map(|name| name.to_rule_pattern()).collect();
    let mut scope = Scope::default();
    if !ours.iter().any(|name| matches!(name, ServerName::Default)) {
        scope.require(MatchField::Host, texts(ours));
    }
    scope.except(MatchField::Host, texts(excepted));
    scope
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

/// Whether a directive limits requests, or has one that does at any depth.
pub(super) fn has_limits(directive: &Directive) -> bool {
    ["limit_req", "limit_conn", "allow", "deny"].contains(&directive.name.as_str())
        || directive.children().iter().any(has_limits)
}
