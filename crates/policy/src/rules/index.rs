//! Index of rules: finds the rules that may apply to a request without testing the others.
//!
//! Rules are indexed by host, then by path, then by header, descriptor and method. Exact values are in hash maps, path
//! segments in a trie, and regexes in sets. Rules that fit none of these are always candidates. The index only
//! narrows the choice: it returns a superset of the matching rules, which the matchers then verify. The result is the
//! same as testing every rule in file order. The work per request is bounded by the rules, not by the length or depth
//! of the request's path or host.

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

/// Position of a rule in the file, in 32 bits to save space.
pub(super) type RuleId = u32;

/// Positions of rules that may apply, ascending and without duplicates.
pub(super) type Candidates = SmallVec<[RuleId; 16]>;

/// Maximum number of hosts times paths of a rule that is indexed by host. A rule with more is indexed by its paths
/// alone, to bound the size of the index.
const MAX_HOST_PATH_PAIRS: usize = 4096;

/// Index of all rules of a configuration.
#[derive(Debug, Default)]
pub(super) struct CandidateIndex {
    /// Rules for any host.
    any: Paths,
    exact: HashMap<Box<str>, Paths>,
    /// Rules by host suffix, which starts with a dot.
    suffixes: HashMap<Box<str>, Paths>,
    regexes: Regexes<Paths>,
    bounds: Bounds,
}

/// Bounds beyond which a host cannot match: maximum lengths, and the maximum number of dots.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    exact: usize,
    suffix: usize,
    suffix_dots: usize,
}

impl CandidateIndex {
    /// Indexes those of `rules` for which `meant` holds, by their positions in `rules`.
    pub(super) fn new(rules: &[Rule], meant: impl Fn(&Rule) -> bool) -> Self {
        let mut index = Self::default();
        for (id, rule) in (0..).zip(rules).filter(|(_, rule)| meant(rule)) {
            index.insert(id, &rule.matcher);
        }
        index.regexes.seal();
        index.each_paths(|paths| paths.seal(rules));
        index
    }

    /// Returns every rule that may apply to `request`, and few others.
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

    fn insert(&mut self, id: RuleId, matcher: &Matcher) {
        let places = matcher.hosts.len().saturating_mul(matcher.paths.len().max(1));
        if matcher.hosts.is_empty() || places > MAX_HOST_PATH_PAIRS {
            return self.any.insert(id, matcher);
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
            paths.insert(id, matcher);
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
