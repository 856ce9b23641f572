//! Which rules may apply to a request, found without looking at the others.
//!
//! Rules are filed by host, then by path, then by header, descriptor and method: by exact values in hash maps, by segments
//! of paths in a trie, by regexes in sets. Whatever cannot be filed by one of these is looked at always. The
//! index only narrows: what it finds is a superset of what matches, and the rule's matcher has the last word,
//! so the outcome is that of asking every rule in file order. Every walk is bounded by what the rules say, not
//! by how long or deep a client makes its path or host.

mod leaf;
mod paths;
mod regexes;

use foldhash::HashMap;
use smallvec::SmallVec;

use self::paths::Paths;
use self::regexes::Regexes;
use super::matcher::Matcher;
use super::pattern::HostPattern;
use super::rule::Rule;
use crate::identify::Attributes;

/// A rule's position in the file, as small as it can be.
pub(super) type Id = u32;

/// Rules that may apply, ascending, each once.
pub(super) type Candidates = SmallVec<[Id; 16]>;

/// A rule of so many hosts times paths is filed by its paths alone: an index is not to outgrow its rules.
const MOST_PLACES: usize = 4096;

/// All rules of a configuration, filed.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Rules for any host.
    any: Paths,
    exact: HashMap<Box<str>, Paths>,
    /// By what hosts end with, a dot first.
    suffixes: HashMap<Box<str>, Paths>,
    regexes: Regexes<Paths>,
    bounds: Bounds,
}

/// What is longer than every pattern, or has more dots, need not be looked up.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    exact: usize,
    suffix: usize,
    suffix_dots: usize,
}

impl Index {
    /// Files those of `rules` that are `meant`; they are named by their positions from now on.
    pub(super) fn new(rules: &[Rule], meant: impl Fn(&Rule) -> bool) -> Self {
        let mut index = Self::default();
        for (id, rule) in (0..).zip(rules).filter(|(_, rule)| meant(rule)) {
            index.file(id, &rule.matcher);
        }
        index.regexes.seal();
        index.each_paths(|paths| paths.seal(rules));
        index
    }

    /// Every rule that may apply to `request`, and few that do not.
    pub(super) fn candidates(&self, request: &Attributes<'_>) -> Candidates {
        let mut found = Candidates::new();
        self.any.find(request, &mut found);
        if self.looks_at_hosts() {
            self.find_by_host(request, &mut found);
        }
        if !found.is_sorted_by(|one, next| one < next) {
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    fn looks_at_hosts(&self) -> bool {
        !(self.exact.is_empty() && self.suffixes.is_empty() && self.regexes.is_empty())
    }

    fn find_by_host(&self, request: &Attributes<'_>, found: &mut Candidates) {
        let host = request.host.as_str();
        if host.len() <= self.bounds.exact
            && let Some(paths) = self.exact.get(host)
        {
            paths.find(request, found);
        }
        let tail = host.len().saturating_sub(self.bounds.suffix);
        for (at, _) in
            host.rmatch_indices('.').take(self.bounds.suffix_dots).take_while(|(at, _)| *at >= tail)
        {
            if let Some(paths) = self.suffixes.get(&host[at..]) {
                paths.find(request, found);
            }
        }
        self.regexes.each_match(host, |paths| paths.find(request, found));
    }

    fn file(&mut self, id: Id, matcher: &Matcher) {
        let places = matcher.hosts.len().saturating_mul(matcher.paths.len().max(1));
        if matcher.hosts.is_empty() || places > MOST_PLACES {
            return self.any.file(id, matcher);
        }
        for host in &matcher.hosts {
            let paths = match host {
                HostPattern::Exact(host) => {
                    self.bounds.exact = self.bounds.exact.max(host.len());
                    self.exact.entry(host.clone()).or_default()
                }
                HostPattern::Suffix(suffix) => {
                    self.bounds.suffix = self.bounds.suffix.max(suffix.len());
                    let dots = suffix.bytes().filter(|byte| *byte == b'.').count();
                    self.bounds.suffix_dots = self.bounds.suffix_dots.max(dots);
                    self.suffixes.entry(suffix.clone()).or_default()
                }
                HostPattern::Regex(regex) => self.regexes.entry(regex),
            };
            paths.file(id, matcher);
        }
    }

    fn each_paths(&mut self, mut act: impl FnMut(&mut Paths)) {
        act(&mut self.any);
        self.exact.values_mut().for_each(&mut act);
        self.suffixes.values_mut().for_each(&mut act);
        self.regexes.values_mut().for_each(act);
    }
}

#[cfg(test)]
mod tests;
