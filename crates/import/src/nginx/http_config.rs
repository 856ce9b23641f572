//! The servers and locations of a configuration: for each, what is in force there and which requests it serves.

use super::super::remark::{Effect, Remark};
use super::super::scope::{MatchField, Scope};
use super::addresses::{inexact_servers, set_default_servers};
use super::host::ServerName;
use super::level::{Level, has_limits};
use super::listen::Listen;
use super::location::{LocationError, LocationPattern};
use super::precedence::exceptions;
use super::redirect;
use super::selection::Selections;
use super::server::{Cell, Server};
use super::syntax::{Directive, Place};
use super::try_files::TryFiles;
use super::zone::NginxZone;

/// Maximum number of servers, and of locations of a server, because each is compared with each.
const MAX_SERVERS: usize = 500;
const MAX_LOCATIONS: usize = 500;

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
        let has_counters_by_server = config.zones.iter().any(NginxZone::is_per_server);
        config.notes.extend(inexact_servers(&config.servers, has_counters_by_server));
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
        // A server-level `return` answers every request; its locations never apply.
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

fn host_scope(ours: &[&ServerName], excepted: &[&ServerName]) -> Scope {
    let texts = |names: &[&ServerName]| names.iter().filter_map(|name| name.to_rule_pattern()).collect();
    let mut scope = Scope::default();
    if !ours.iter().any(|name| matches!(name, ServerName::Default)) {
        scope.require(MatchField::Host, texts(ours));
    }
    scope.except(MatchField::Host, texts(excepted));
    scope
}
