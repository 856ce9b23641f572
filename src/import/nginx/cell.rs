//! The servers and locations of a configuration: for each, what is in force there and which requests it serves.

use super::host::ServerName;
use super::level::Level;
use super::location::{LocationError, LocationPattern};
use super::precedence::exceptions;
use super::scope::{MatchField, Scope};
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
}

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    names: Vec<ServerName>,
    ports: Vec<String>,
    is_default: bool,
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
    pub(super) notes: Vec<String>,
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
                    config.notes.push(format!("{}: limits of `stream` are not converted", directive.place));
                }
                _ => {}
            }
        }
        config.add_servers(&http);
        config.drop_servers_that_only_return();
        config.choose_default_server();
        config.note_same_names();
        config
    }

    fn add_zone(&mut self, directive: &Directive) {
        match NginxZone::parse(directive) {
            Ok(zone) => self.zones.push(zone),
            Err(reason) => self.notes.push(format!("{}: {reason}", directive.place)),
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
            self.notes
                .push(format!("only the first {MAX_SERVERS} of {} servers are converted", servers.len()));
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
        let mut server =
            Server { names: Vec::new(), ports: Vec::new(), is_default: false, cells: Vec::new(), place };
        for directive in directives {
            match directive.name.as_str() {
                "server_name" => self.add_names(directive, &mut server),
                "listen" => {
                    server
                        .ports
                        .push(directive.argument(0).rsplit(':').next().unwrap_or_default().to_owned());
                    let words = ["default_server", "default"];
                    server.is_default |=
                        directive.arguments.iter().any(|word| words.contains(&word.as_str()));
                }
                "location" => self.add_location(directive, &level, &mut server),
                _ => {}
            }
        }
        if server.ports.is_empty() {
            server.ports.push("80".to_owned());
        }
        if !server.cells.iter().any(|cell| cell.pattern.is_root()) {
            server.cells.push(Cell { pattern: LocationPattern::root(), level });
        }
        server
    }

    fn add_names(&mut self, directive: &Directive, server: &mut Server) {
        for text in &directive.arguments {
            let order = self.servers.len() * MAX_LOCATIONS + server.names.len();
            match ServerName::parse(text, order) {
                Some(names) => server.names.extend(names),
                None => {
                    let place = &directive.place;
                    self.notes
                        .push(format!("{place}: rules do not support the regex `{text}`: name left out"));
                }
            }
        }
    }

    fn add_location(&mut self, directive: &Directive, outer: &Level, server: &mut Server) {
        let place = &directive.place;
        if server.cells.len() >= MAX_LOCATIONS {
            self.notes.push(format!("{place}: more than {MAX_LOCATIONS} locations: not converted"));
            return;
        }
        // A `return` of the server ends all its requests, whatever its locations have.
        let level = outer.with(directive.children(), &mut self.notes);
        for inner in directive.children().iter().filter(|inner| inner.name == "location") {
            if has_limits(inner) || inner.children().iter().any(|one| one.name == "return") {
                self.notes.push(format!(
                    "{}: a location in a location is not converted: its requests get the limits of the outer one",
                    inner.place
                ));
            }
        }
        match LocationPattern::parse(&directive.arguments, server.cells.len()) {
            Ok(pattern) => server.cells.push(Cell { pattern, level }),
            Err(LocationError::Regex) => self.notes.push(format!(
                "{place}: rules do not support the regex `{}`: its requests get the limits of other locations",
                directive.argument(directive.arguments.len().saturating_sub(1))
            )),
            Err(LocationError::Named) if has_limits(directive) => {
                self.notes.push(format!("{place}: limits of a named location are not converted"));
            }
            Err(LocationError::Named | LocationError::Missing) => {}
        }
    }

    /// Drops servers that only redirect, unless they share a port with another server: their requests do not
    /// reach the others.
    fn drop_servers_that_only_return(&mut self) {
        let only_returns = |server: &Server| server.cells.iter().all(|cell| cell.level.is_return);
        let serving: Vec<String> =
            self.servers.iter().filter(|one| !only_returns(one)).flat_map(|one| one.ports.clone()).collect();
        if !serving.is_empty() {
            self.servers
                .retain(|one| !only_returns(one) || one.ports.iter().any(|port| serving.contains(port)));
        }
    }

    fn choose_default_server(&mut self) {
        if !self.servers.iter().any(|server| server.is_default)
            && let Some(first) = self.servers.first_mut()
        {
            first.is_default = true;
        }
        let mut default = None;
        for server in self.servers.iter_mut().filter(|server| server.is_default) {
            server.names.push(ServerName::Default);
            if let Some(place) = default.replace(server.place.clone()) {
                self.notes.push(format!(
                    "{}: a default server beside the one in {place}: rules do not tell ports apart, both apply",
                    server.place
                ));
            }
        }
    }

    fn note_same_names(&mut self) {
        let text = |server: &Server| -> Vec<String> {
            server.names.iter().filter_map(ServerName::to_rule_pattern).collect()
        };
        for (index, server) in self.servers.iter().enumerate() {
            let names = text(server);
            let is_same = |other: &&Server| text(other).iter().any(|name| names.contains(name));
            if let Some(other) = self.servers[..index].iter().find(is_same) {
                self.notes.push(format!(
                    "{}: the server has a name of the one in {}: rules do not tell ports apart, both apply",
                    server.place, other.place
                ));
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
        let (ours, others) = (names(&|one| one == index), names(&|one| one != index));
        if ours.is_empty() {
            return Vec::new();
        }
        if let Some(excepted) = exceptions(&ours, &others) {
            return vec![host_scope(&ours, &excepted)];
        }
        // A name of another server is between two of this one: one scope for each name is exact.
        let single = |one: &&ServerName| {
            let rest: Vec<_> =
                names(&|_| true).into_iter().filter(|other| !std::ptr::eq(*other, *one)).collect();
            // One pattern cannot precede another that precedes it.
            host_scope(&[*one], &exceptions(&[*one], &rest).unwrap_or_default())
        };
        ours.iter().map(single).collect()
    }
}

impl Server {
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
