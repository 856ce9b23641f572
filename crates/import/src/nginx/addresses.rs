//! The addresses of servers, and the default server of each.
//!
//! nginx chooses a server by the address of the connection first, then by the host. Rules do not know the address, so
//! rules of servers at different addresses may apply to the same request. Each server with such a request gets a
//! comment.

use std::collections::HashSet;

use super::super::remark::{Effect, Remark};
use super::host::ServerName;
use super::level::{AccessRule, LimitUse};
use super::listen::Listen;
use super::precedence::Competing;
use super::server::{Cell, Server};

/// Makes one server the default of each address: the one that says so, else the first.
pub(super) fn set_default_servers(servers: &mut [Server]) {
    let all = || servers.iter().flat_map(|server| &server.listens);
    let mut has_default: HashSet<String> =
        all().filter(|listen| listen.is_default).map(|listen| listen.address.clone()).collect();
    for server in servers {
        for listen in &mut server.listens {
            listen.is_default |= has_default.insert(listen.address.clone());
        }
        if server.listens.iter().any(|listen| listen.is_default) {
            server.names.push(ServerName::Default);
        }
    }
}

/// Returns a note for each server with requests that get other limits than in nginx. `has_counters_by_server` states
/// whether the key of a zone contains the server's name.
pub(super) fn inexact_servers(servers: &[Server], has_counters_by_server: bool) -> Vec<Remark> {
    let addresses = |server: &Server| -> HashSet<String> {
        server.listens.iter().map(|listen| listen.address.clone()).collect()
    };
    let Some((first, others)) = servers.split_first() else { return Vec::new() };
    let expected = addresses(first);
    let has_one_default = servers.iter().filter(|server| server.is_default()).count() <= 1;
    if has_one_default && others.iter().all(|server| addresses(server) == expected) {
        return Vec::new();
    }
    let comparison = AddressComparison { servers, has_counters_by_server };
    let notes = (0..servers.len()).filter_map(|index| comparison.note(index));
    notes.map(|text| Remark::new(Effect::Differs, text)).collect()
}

/// What is in force in the locations of a server.
type ServerLimits = Vec<(Option<String>, Vec<LimitUse>, Vec<AccessRule>)>;

/// The servers, for a comparison of the rules that apply with the server that nginx chooses.
struct AddressComparison<'s> {
    servers: &'s [Server],
    /// Whether equal limits of two servers have counters of their own.
    has_counters_by_server: bool,
}

impl AddressComparison<'_> {
    /// Returns the first difference between nginx and the rules for requests of the server with this index.
    fn note(&self, index: usize) -> Option<String> {
        let server = self.servers.get(index)?;
        for listen in &server.listens {
            for name in self.names_at(server, listen) {
                let applying = self.applying(name);
                let Some(other) = applying.iter().find(|other| self.differs(index, **other)) else {
                    if !applying.contains(&index) && server.has_limits() {
                        return Some(note_text(server, listen, name, "do not get its limits"));
                    }
                    continue;
                };
                let place = &self.servers.get(*other)?.place;
                let what = match applying.contains(&index) || !server.has_limits() {
                    true => format!("also get the limits of the server in {place}"),
                    false => format!("get the limits of the server in {place} instead"),
                };
                return Some(note_text(server, listen, name, &what));
            }
        }
        None
    }

    /// Returns the names of all servers for which this one gets the requests at an address.
    fn names_at(&self, server: &Server, listen: &Listen) -> Vec<&ServerName> {
        let all = self.servers.iter().flat_map(|one| &one.names);
        all.filter(|name| {
            let own = best_rank(server, name, Some(listen));
            let others = self.servers.iter().filter(|other| !std::ptr::eq(*other, server));
            let mut others = others.filter_map(|other| {
                let at = other.listens.iter().find(|one| one.address == listen.address)?;
                best_rank(other, name, Some(at))
            });
            own.is_some_and(|own| others.all(|other| own < other))
        })
        .collect()
    }

    /// Returns the servers whose rules apply to a host of this name.
    fn applying(&self, name: &ServerName) -> Vec<usize> {
        let ranks: Vec<_> = self.servers.iter().map(|server| best_rank(server, name, None)).collect();
        let is_preceded = |server: &Server, rank| {
            let mut others = self.servers.iter().zip(&ranks);
            others.any(|(other, theirs)| {
                theirs.is_some_and(|theirs| theirs < rank) && server.shares_address(other)
            })
        };
        let mut applying = Vec::new();
        for (index, (server, rank)) in self.servers.iter().zip(&ranks).enumerate() {
            if rank.is_some_and(|rank| !is_preceded(server, rank)) {
                applying.push(index);
            }
        }
        applying
    }

    /// Whether the rules of `other` change anything for a request of the server.
    fn differs(&self, index: usize, other: usize) -> bool {
        let (Some(server), Some(one)) = (self.servers.get(index), self.servers.get(other)) else {
            return false;
        };
        index != other
            && one.has_limits()
            && (self.has_counters_by_server || limits_of(server) != limits_of(one))
    }
}

/// Returns the rank of the server's first name that has all hosts of `wanted`; with an address, the server is the
/// default only where it is that.
fn best_rank(server: &Server, wanted: &ServerName, listen: Option<&Listen>) -> Option<(u8, usize)> {
    let is_possible = |name: &&ServerName| match name {
        ServerName::Default => listen.is_none_or(|listen| listen.is_default),
        _ => true,
    };
    let has_all =
        |name: &&ServerName| name.to_rule_pattern() == wanted.to_rule_pattern() || wanted.precedes(*name);
    server.names.iter().filter(is_possible).filter(has_all).map(ServerName::rank).min()
}

fn limits_of(server: &Server) -> ServerLimits {
    let limits =
        |one: &Cell| -> Vec<LimitUse> { one.level.limits().into_iter().map(|(limit, _)| limit).collect() };
    let cells = server.cells.iter();
    cells.map(|one| (one.pattern.to_rule_pattern(), limits(one), one.level.access().to_vec())).collect()
}

fn note_text(server: &Server, listen: &Listen, name: &ServerName, what: &str) -> String {
    let hosts = name.to_rule_pattern().map_or_else(|| "other hosts".to_owned(), |name| format!("`{name}`"));
    format!(
        "{}: rules do not tell addresses apart: requests for {hosts} to `{}` {what}",
        server.place, listen.address
    )
}
