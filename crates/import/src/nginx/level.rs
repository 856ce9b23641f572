//! The limits and access rules in force at a level of the configuration: `http`, a server or a location.
//!
//! A list such as `limit_req` is inherited as a whole, and only by levels without one of their own.

use super::super::network::parse_network;
use super::super::remark::{Effect, Remark};
use super::other_directive::other_directive;
use super::syntax::{Directive, Place};

/// A limit as it is used at a level.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LimitUse {
    pub(super) zone: String,
    pub(super) amount: Amount,
    /// The status of rejected requests.
    pub(super) status: u16,
    pub(super) is_dry_run: bool,
}

/// What a limit admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Amount {
    /// `limit_req`
    Requests {
        /// The number of requests above the rate that are admitted.
        burst: u32,
        /// The number of those that are not delayed.
        undelayed: u32,
    },
    /// `limit_conn`
    Connections(u32),
}

/// `allow` or `deny`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AccessRule {
    pub(super) is_allowed: bool,
    /// `None` for all addresses.
    pub(super) network: Option<String>,
}

/// A use of a zone, before its status is known.
#[derive(Clone, Debug)]
struct ZoneUse {
    zone: String,
    amount: Amount,
    place: Place,
}

/// What is in force at a level.
#[derive(Clone, Debug)]
pub(super) struct Level {
    requests: Vec<ZoneUse>,
    connections: Vec<ZoneUse>,
    access: Vec<AccessRule>,
    access_places: Vec<Place>,
    request_status: u16,
    connection_status: u16,
    is_request_dry_run: bool,
    is_connection_dry_run: bool,
    is_satisfy_any: bool,
    /// Whether a `return` ends all requests of the level, before any limit.
    pub(super) is_return: bool,
}

impl Default for Level {
    fn default() -> Self {
        Self {
            requests: Vec::new(),
            connections: Vec::new(),
            access: Vec::new(),
            access_places: Vec::new(),
            request_status: 503,
            connection_status: 503,
            is_request_dry_run: false,
            is_connection_dry_run: false,
            is_satisfy_any: false,
            is_return: false,
        }
    }
}

impl Level {
    /// Returns the level of these directives below this one. Adds a note for each that has no equivalent.
    pub(super) fn with(&self, directives: &[Directive], notes: &mut Vec<Remark>) -> Self {
        let mut level = self.clone();
        let (mut requests, mut connections) = (Vec::new(), Vec::new());
        let (mut access, mut access_places) = (Vec::new(), Vec::new());
        for directive in directives {
            let added = match directive.name.as_str() {
                "limit_req" => parse_limit_req(directive).map(|one| requests.push(one)),
                "limit_conn" => parse_limit_conn(directive).map(|one| connections.push(one)),
                "allow" | "deny" => parse_access(directive).map(|one| {
                    access.push(one);
                    access_places.push(directive.place.clone());
                }),
                name => level.set_flag(name, directive),
            };
            if let Err(Remark { effect, text }) = added {
                notes.push(Remark::new(effect, format!("{}: {text}", directive.place)));
            }
        }
        for (own, inherited) in [(requests, &mut level.requests), (connections, &mut level.connections)] {
            if !own.is_empty() {
                *inherited = own;
            }
        }
        if !access.is_empty() {
            level.access = access;
            level.access_places = access_places;
        }
        level
    }

    /// Adds what is in force where the requests of this level are redirected inside of nginx: a limit counts a request
    /// once, so those of the target apply if this level has none of their kind. Returns whether anything is added.
    pub(super) fn adopt(&mut self, target: &Self) -> bool {
        if target.is_return || self.is_return {
            return false;
        }
        let (had_requests, had_connections) = (!self.requests.is_empty(), !self.connections.is_empty());
        if !had_requests {
            self.requests.clone_from(&target.requests);
            self.request_status = target.request_status;
            self.is_request_dry_run = target.is_request_dry_run;
        }
        if !had_connections {
            self.connections.clone_from(&target.connections);
            self.connection_status = target.connection_status;
            self.is_connection_dry_run = target.is_connection_dry_run;
        }
        let has_own_access = !self.access.is_empty() || target.access().is_empty();
        if !has_own_access {
            self.access.clone_from(&target.access);
            self.access_places.clone_from(&target.access_places);
        }
        !has_own_access
            || !had_requests && !self.requests.is_empty()
            || !had_connections && !self.connections.is_empty()
    }

    /// Returns where the access rules stand.
    pub(super) fn access_places(&self) -> &[Place] {
        &self.access_places
    }

    fn set_flag(&mut self, name: &str, directive: &Directive) -> Result<(), Remark> {
        let status = || directive.argument(0).parse().ok().filter(|status| (400..600).contains(status));
        let invalid = || {
            let text = format!("`{name} {}` is not a status from 400 to 599", directive.argument(0));
            Remark::new(Effect::None, text)
        };
        let is_on = directive.argument(0) == "on";
        match name {
            "limit_req_status" => self.request_status = status().ok_or_else(invalid)?,
            "limit_conn_status" => self.connection_status = status().ok_or_else(invalid)?,
            "limit_req_dry_run" => self.is_request_dry_run = is_on,
            "limit_conn_dry_run" => self.is_connection_dry_run = is_on,
            "satisfy" => self.is_satisfy_any = directive.argument(0) == "any",
            "return" => self.is_return = true,
            "if" if directive.children().iter().any(|inner| inner.name == "return") => {
                let text = "`if` with `return` is not converted: limits also count these requests";
                return Err(Remark::new(Effect::Tighter, text));
            }
            name => return other_directive(name, directive).map_or(Ok(()), Err),
        }
        Ok(())
    }

    /// Returns the limits in force, with the places that define them.
    pub(super) fn limits(&self) -> Vec<(LimitUse, Place)> {
        if self.is_return {
            return Vec::new();
        }
        let limit = |one: &ZoneUse, status: u16, is_dry_run: bool| {
            let limit = LimitUse { zone: one.zone.clone(), amount: one.amount, status, is_dry_run };
            (limit, one.place.clone())
        };
        let requests =
            self.requests.iter().map(|one| limit(one, self.request_status, self.is_request_dry_run));
        let connections = &self.connections;
        let connections =
            connections.iter().map(|one| limit(one, self.connection_status, self.is_connection_dry_run));
        requests.chain(connections).collect()
    }

    /// Returns `allow` and `deny` in force; none if `satisfy any` lets a password replace them.
    pub(super) fn access(&self) -> &[AccessRule] {
        if self.is_return || self.is_satisfy_any { &[] } else { &self.access }
    }

    /// Whether access rules are given up because of `satisfy any`.
    pub(super) fn has_unused_access(&self) -> bool {
        self.is_satisfy_any && !self.access.is_empty()
    }
}

fn parse_limit_req(directive: &Directive) -> Result<ZoneUse, Remark> {
    let (mut zone, mut burst, mut undelayed, mut is_undelayed) = (None, 0, 0, false);
    for word in &directive.arguments {
        // One more than a burst is the number of requests that a rule admits at once.
        let number = |text: &str| {
            text.parse()
                .ok()
                .filter(|number| *number < u32::MAX)
                .ok_or_else(|| lost(format!("invalid `{word}`")))
        };
        match word.split_once('=') {
            Some(("zone", name)) => zone = Some(name.to_owned()),
            Some(("burst", text)) => burst = number(text)?,
            Some(("delay", text)) => undelayed = number(text)?,
            None if word == "nodelay" => is_undelayed = true,
            _ => return Err(lost(format!("unknown parameter `{word}` of `limit_req`"))),
        }
    }
    let undelayed = if is_undelayed { burst } else { burst.min(undelayed) };
    let zone = zone.ok_or_else(|| lost("`limit_req` without `zone=`"))?;
    Ok(ZoneUse { zone, amount: Amount::Requests { burst, undelayed }, place: directive.place.clone() })
}

/// Says that a limit is not converted.
fn lost(text: impl Into<String>) -> Remark {
    Remark::new(Effect::Looser, text)
}

fn parse_limit_conn(directive: &Directive) -> Result<ZoneUse, Remark> {
    let [zone, count] = directive.arguments.as_slice() else {
        return Err(lost("`limit_conn` needs a zone and a number"));
    };
    let count = count
        .parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| lost(format!("invalid number `{count}`")))?;
    Ok(ZoneUse { zone: zone.clone(), amount: Amount::Connections(count), place: directive.place.clone() })
}

fn parse_access(directive: &Directive) -> Result<AccessRule, Remark> {
    let network = match directive.argument(0) {
        "all" => None,
        "unix:" => {
            return Err(Remark::new(Effect::None, format!("`{} unix:` is not converted", directive.name)));
        }
        text => match parse_network(text) {
            Some((address, length)) => Some(format!("{address}/{length}")),
            None => {
                return Err(Remark::new(
                    Effect::Differs,
                    format!("`{} {text}` is not converted", directive.name),
                ));
            }
        },
    };
    Ok(AccessRule { is_allowed: directive.name == "allow", network })
}

/// Whether a directive limits requests, or has one that does at any depth.
pub(super) fn has_limits(directive: &Directive) -> bool {
    ["limit_req", "limit_conn", "allow", "deny"].contains(&directive.name.as_str())
        || directive.children().iter().any(has_limits)
}

#[cfg(test)]
mod tests {
    use super::super::syntax;
    use super::*;

    fn level(parent: &Level, text: &str) -> (Level, Vec<Remark>) {
        let file = syntax::parse("f", text, &|_| Vec::new()).unwrap();
        let mut notes = Vec::new();
        (parent.with(&file.directives, &mut notes), notes)
    }

    fn amounts(level: &Level) -> Vec<Amount> {
        level.limits().into_iter().map(|(limit, _)| limit.amount).collect()
    }

    #[test]
    fn nginx_burst_delay_and_nodelay_are_read() {
        for (text, burst, undelayed) in [
            ("limit_req zone=a;", 0, 0),
            ("limit_req zone=a burst=5;", 5, 0),
            ("limit_req zone=a burst=5 nodelay;", 5, 5),
            ("limit_req zone=a burst=5 delay=3;", 5, 3),
            ("limit_req delay=9 burst=5 zone=a;", 5, 5),
        ] {
            let (found, notes) = level(&Level::default(), text);
            assert_eq!(
                (amounts(&found), notes.len()),
                (vec![Amount::Requests { burst, undelayed }], 0),
                "{text}"
            );
        }
    }

    #[test]
    fn nginx_lists_are_inherited_as_a_whole() {
        let (outer, _) = level(
            &Level::default(),
            "limit_req zone=a; limit_req zone=b; limit_conn c 3; deny all; limit_req_status 429;",
        );
        let (same, _) = level(&outer, "limit_conn_status 444;");
        assert_eq!((amounts(&same).len(), same.access().len()), (3, 1));
        assert_eq!(same.limits().iter().map(|(limit, _)| limit.status).collect::<Vec<_>>(), [429, 429, 444]);
        let (own, _) = level(&outer, "limit_req zone=d; allow all;");
        assert_eq!((amounts(&own).len(), own.access()[0].is_allowed), (2, true));
        let (ended, _) = level(&outer, "return 200;");
        assert_eq!((ended.limits().len(), ended.access().len()), (0, 0), "a `return` comes first");
    }

    #[test]
    fn directives_without_an_equivalent_are_noted_with_their_line() {
        let text =
            "limit_rate 10k;\nlimit_req burst=1;\nlimit_conn a 0;\nallow unix:;\nif ($a) { return 403; }";
        let (_, notes) = level(&Level::default(), text);
        let lines: Vec<_> = notes.iter().filter_map(|note| note.text.split(' ').next()).collect();
        assert_eq!(lines, ["f:1:", "f:2:", "f:3:", "f:4:", "f:5:"]);
    }
}
