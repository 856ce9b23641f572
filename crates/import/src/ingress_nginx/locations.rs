//! The requests of an Ingress: hosts and paths as the controller writes them into nginx's configuration.
//!
//! A location belongs to one Ingress. Exact paths take precedence, then the longest prefix; if one Ingress of a host uses
//! regexes, all its paths are regexes without regard to case, the longest first. A host has the paths of all Ingresses.

use super::super::gateway_api::matches::exact_path;
use super::super::ledger::Ledger;
use super::super::pattern::{is_literal_path, parse_regex};
use super::super::remark::{Effect, brief};
use super::super::scope::MatchField;
use super::super::selection::RequestSet;
use super::super::tree::{field_text, get, items};
use super::{Ingress, IngressAges};
use weir_yaml::Node;

/// How nginx compares the path of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LocationKind {
    /// The text may be followed by any.
    Text,
    /// A prefix that ends with a segment.
    Segment,
    Exact,
}

/// A path of a host.
#[derive(Clone, Debug)]
struct IngressLocation<'n> {
    /// The index of its Ingress.
    ingress: usize,
    /// Empty for requests of no other host.
    host: String,
    path: String,
    kind: LocationKind,
    /// `pathType`
    kind_node: Option<&'n Node>,
    /// Whether all paths of the host are regexes.
    is_regex: bool,
}

/// The paths of all hosts.
#[derive(Debug, Default)]
pub(super) struct IngressLocations<'n> {
    all: Vec<IngressLocation<'n>>,
    /// Other names of hosts: the host, and the name.
    aliases: Vec<(String, String)>,
    /// Of the Ingresses, for remarks.
    titles: Vec<String>,
}

impl<'n> IngressLocations<'n> {
    pub(super) fn read(ingresses: &[Ingress<'n>], ledger: &Ledger) -> Self {
        let titles = ingresses.iter().map(|ingress| ingress.manifest.title()).collect();
        let mut locations = Self { titles, ..Self::default() };
        for (index, ingress) in ingresses.iter().enumerate().filter(|(_, one)| !one.is_canary()) {
            let Some(spec) = ingress.manifest.spec() else { continue };
            let rules = items(get(spec, "rules"));
            if rules.is_empty() && get(spec, "defaultBackend").is_some() {
                locations.add(index, "", "/", LocationKind::Text, None);
            }
            for rule in rules {
                locations.add_rule(index, rule, ingress, ledger);
            }
            let default = get(spec, "defaultBackend").filter(|_| !rules.is_empty());
            if let Some(default) = default.filter(|_| ingress.annotations.has_limits()) {
                let reason = "other paths of these hosts have the limits, too, and are in no rule";
                ledger.lose(default, Effect::Looser, reason);
            }
        }
        locations.set_regexes(ingresses);
        for location in locations.all.iter().filter(|one| !one.depends_on_kind()) {
            let reason = "how the path is compared, which changes nothing here";
            location.kind_node.into_iter().for_each(|kind| ledger.lose(kind, Effect::None, reason));
        }
        locations
    }

    fn add_rule(&mut self, index: usize, rule: &'n Node, ingress: &Ingress<'n>, ledger: &Ledger) {
        let host = field_text(rule, "host").unwrap_or_default().to_ascii_lowercase();
        let is_limited = ingress.annotations.has_limits();
        let mark = |value: &Node| match is_limited {
            true => ledger.use_all(value),
            false => ledger.lose(value, Effect::None, "such requests have no limit of this Ingress"),
        };
        let paths = items(get(rule, "http").and_then(|http| get(http, "paths")));
        get(rule, "host").filter(|_| !paths.is_empty()).into_iter().for_each(mark);
        for path in paths {
            let text = field_text(path, "path").filter(|text| !text.is_empty()).unwrap_or("/");
            let kind = match field_text(path, "pathType") {
                Some("Exact") => LocationKind::Exact,
                Some("Prefix") => LocationKind::Segment,
                _ => LocationKind::Text,
            };
            ["path", "pathType"].into_iter().filter_map(|name| get(path, name)).for_each(mark);
            self.add(index, &host, text, kind, get(path, "pathType"));
        }
        for alias in ingress.annotations.text("server-alias").unwrap_or_default().split(',') {
            let alias = alias.trim().to_ascii_lowercase();
            let is_known =
                self.all.iter().map(|one| &one.host).chain(self.aliases.iter().map(|(_, name)| name));
            if !alias.is_empty() && !host.is_empty() && !is_known.into_iter().any(|known| *known == alias) {
                self.aliases.push((host.clone(), alias));
            }
        }
    }

    fn add(
        &mut self,
        ingress: usize,
        host: &str,
        path: &str,
        kind: LocationKind,
        kind_node: Option<&'n Node>,
    ) {
        let (host, path) = (host.to_owned(), path.to_owned());
        self.all.push(IngressLocation { ingress, host, path, kind, kind_node, is_regex: false });
    }

    fn set_regexes(&mut self, ingresses: &[Ingress<'_>]) {
        let uses_regex = |location: &IngressLocation<'_>| {
            let annotations = &ingresses[location.ingress].annotations;
            let target = annotations.text("rewrite-target").unwrap_or_default();
            annotations.is_true("use-regex") || (!target.is_empty() && target != location.path)
        };
        let hosts: Vec<String> =
            self.all.iter().filter(|one| uses_regex(one)).map(|one| one.host.clone()).collect();
        self.all.iter_mut().for_each(|one| one.is_regex = hosts.contains(&one.host));
    }

    /// Returns the requests of an Ingress.
    pub(super) fn requests(&self, ingress: usize, ages: &IngressAges) -> RequestSet {
        let mut hosts: Vec<&str> = Vec::new();
        for location in self.all.iter().filter(|one| one.ingress == ingress) {
            if !hosts.contains(&location.host.as_str()) {
                hosts.push(&location.host);
            }
        }
        let of_host = |host: &&str| self.host_selection(host).and(&self.paths(ingress, host, ages));
        hosts.iter().map(of_host).fold(RequestSet::default(), |all, one| all.or(&one))
    }

    /// Returns the requests of a host.
    fn host_selection(&self, host: &str) -> RequestSet {
        let names = |host: &str| {
            let aliases =
                self.aliases.iter().filter(|(known, _)| known == host).map(|(_, alias)| alias.clone());
            std::iter::once(host.to_owned()).chain(aliases).collect::<Vec<_>>()
        };
        let own = match host.is_empty() {
            true => RequestSet::all(),
            false => RequestSet::matching(MatchField::Host, names(host)),
        };
        // Of names that match, an exact one takes precedence, then the longest wildcard.
        let is_closer = |other: &&str| {
            let is_wider = host.starts_with('*') && (!other.starts_with('*') || other.len() > host.len());
            !other.is_empty() && *other != host && (host.is_empty() || is_wider)
        };
        let mut others: Vec<&str> = self.all.iter().map(|one| one.host.as_str()).filter(is_closer).collect();
        others.sort_unstable();
        others.dedup();
        let others: Vec<String> = others.into_iter().flat_map(names).collect();
        match others.is_empty() {
            true => own,
            false => own.without(&RequestSet::matching(MatchField::Host, others)),
        }
    }

    /// Returns the requests of the paths that an Ingress has on a host.
    fn paths(&self, ingress: usize, host: &str, ages: &IngressAges) -> RequestSet {
        let of_host: Vec<&IngressLocation<'n>> = self.all.iter().filter(|one| one.host == host).collect();
        let mut paths = RequestSet::default();
        for own in of_host.iter().filter(|one| one.ingress == ingress) {
            let others = of_host.iter().filter(|one| one.ingress != ingress && one.precedes(own, ages));
            let rest = others.fold(own.selection(), |rest, other| self.except(&rest, own, other, ages));
            paths = paths.or(&rest);
        }
        paths
    }

    /// Returns the requests without those of a location that takes precedence. Says so if that is only a guess.
    fn except(
        &self,
        requests: &RequestSet,
        own: &IngressLocation<'n>,
        other: &IngressLocation<'n>,
        ages: &IngressAges,
    ) -> RequestSet {
        let title = &self.titles[other.ingress];
        let mut rest = requests.without(&other.selection());
        if own.has_place_of(other) && !ages.are_known(own.ingress, other.ingress) {
            let text = format!(
                "{title} has the path {}, too: the older one has its requests, and their `creationTimestamp` does not tell",
                brief(&own.path)
            );
            rest.add(Effect::Looser, text);
        }
        rest
    }
}

impl IngressLocation<'_> {
    /// Whether nginx looks at this location first. Of two with the same path, the older Ingress has it.
    fn precedes(&self, other: &Self, ages: &IngressAges) -> bool {
        let length = |one: &Self| {
            (one.kind == LocationKind::Exact && !one.is_regex, one.path.trim_end_matches('/').len())
        };
        let age = |one: &Self| ages.order[one.ingress];
        match (length(self), length(other)) {
            _ if self.has_place_of(other) => age(self) < age(other),
            (own, theirs) if own != theirs => own > theirs,
            _ => (self.kind, &self.path, age(other)) > (other.kind, &other.path, age(self)),
        }
    }

    /// Whether both are one location of nginx, which only one Ingress has.
    fn has_place_of(&self, other: &Self) -> bool {
        self.path == other.path && (self.kind == other.kind || self.is_regex)
    }

    /// Whether another `pathType` would have other requests.
    fn depends_on_kind(&self) -> bool {
        !self.is_regex
            && match self.kind {
                LocationKind::Exact => true,
                LocationKind::Segment => self.path != "/",
                LocationKind::Text => false,
            }
    }

    fn selection(&self) -> RequestSet {
        let Self { path, kind, is_regex, .. } = self;
        if path == "/" && (*is_regex || *kind != LocationKind::Exact) {
            return RequestSet::all();
        }
        if *is_regex {
            let regex = format!("^{path}");
            return match parse_regex(&regex, true) {
                Some(_) => RequestSet::matching(MatchField::Path, vec![format!("~(?i){regex}")]),
                None => RequestSet::unknown(format!("the regex of a path is not supported: {}", brief(path))),
            };
        }
        let prefix = |text: &str| match text.strip_suffix('/').is_some_and(is_literal_path) {
            true => format!("{text}*"),
            false => format!("~^{}", regex::escape(text)),
        };
        let patterns = match kind {
            LocationKind::Exact => vec![exact_path(path)],
            LocationKind::Segment if path.ends_with('/') => vec![prefix(path)],
            LocationKind::Segment => vec![exact_path(path), prefix(&format!("{path}/"))],
            LocationKind::Text => vec![prefix(path)],
        };
        RequestSet::matching(MatchField::Path, patterns)
    }
}
