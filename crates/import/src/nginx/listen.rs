//! The addresses of servers, and the default server of each.
//!
//! nginx chooses a server by the address of the connection first, then by the host. Rules do not know the address, so
//! rules of servers at different addresses may apply to the same request. Each server with such a request gets a
//! comment.

use std::collections::HashSet;

use super::super::remark::{Effect, Remark};
use super::cell::{HttpConfig, Server};
use super::host::ServerName;
use super::level::{AccessRule, LimitUse};
use super::precedence::Competing;

/// The port of a `listen` without one.
const DEFAULT_PORT: &str = "80";

/// An address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listen {
    /// `address:port`, with `*` for all addresses, or `unix:path`.
    pub(super) address: String,
    /// Whether its server gets the requests for hosts that no server of the address has.
    is_default: bool,
}

impl Listen {
    /// Reads the parameters of `listen`; without any, the address that nginx uses.
    pub(super) fn parse(arguments: &[String]) -> Self {
        let text = arguments.first().map_or(DEFAULT_PORT, String::as_str);
        let is_port = text.bytes().all(|byte| byte.is_ascii_digit());
        // The colons of an IPv6 address are in brackets.
        let has_port = text.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        let address = match (is_port, has_port) {
            (true, _) => format!("*:{text}"),
            (false, true) => text.to_ascii_lowercase(),
            (false, false) => format!("{}:{DEFAULT_PORT}", text.to_ascii_lowercase()),
        };
        let is_default =
            arguments.iter().skip(1).any(|word| matches!(word.as_str(), "default_server" | "default"));
        Self { address, is_default }
    }
}

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

/// Adds a note for each server with requests that get other limits than in nginx.
pub(super) fn note_inexact_servers(config: &mut HttpConfig<'_>) {
    let servers = &config.servers;
    let addresses = |server: &Server| -> HashSet<String> {
        server.listens.iter().map(|listen| listen.address.clone()).collect()
    };
    let Some((first, others)) = servers.split_first() else { return };
    let expected = addresses(first);
    let has_one_default = servers.iter().filter(|server| server.is_default()).count() <= 1;
    if has_one_default && others.iter().all(|server| addresses(server) == expected) {
        return;
    }
    let has_counters_by_server = config.zones.iter().any(|zone| zone.is_per_server());
    let comparison = AddressComparison { servers, has_counters_by_server };
    let notes: Vec<String> = (0..servers.len()).filter_map(|index| comparison.note(index)).collect();
    config.notes.extend(notes.into_iter().map(|text| Remark::new(Effect::Differs, text)));
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
    let limits = |one: &super::cell::Cell| -> Vec<LimitUse> {
        one.level.limits().into_iter().map(|(limit, _)| limit).collect()
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_listen_parameters_become_addresses() {
        for (text, expected) in [
            ("8080", "*:8080"),
            ("*:80", "*:80"),
            ("127.0.0.1", "127.0.0.1:80"),
            ("LocalHost:8080", "localhost:8080"),
            ("[::]:443", "[::]:443"),
            ("[::1]", "[::1]:80"),
            ("unix:/run/a", "unix:/run/a"),
        ] {
            assert_eq!(Listen::parse(&[text.to_owned()]).address, expected, "{text}");
        }
        assert_eq!(Listen::parse(&[]).address, "*:80");
        let words = ["80", "ssl", "default_server"].map(ToOwned::to_owned);
        assert!(Listen::parse(&words).is_default);
    }
}
