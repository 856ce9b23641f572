//! Rules with few conditions, with which all others are compared.

use std::collections::HashMap;

use super::RuleEntry;
use weir_policy::rules::matcher::Matcher;

/// Maximum number of rules that every other rule is compared with. A file may contain ten thousand rules.
const MAX_WIDE_RULES: usize = 100;

/// Rules with the fewest conditions; those with fewer come first.
#[derive(Default)]
pub(super) struct WideRules<'e, 'r> {
    rules: Vec<&'e RuleEntry<'r>>,
    /// Indices of the rules of which each path begins with a literal segment, by these segments.
    by_first_segment: HashMap<&'r str, Vec<usize>>,
    /// Indices of all other rules.
    others: Vec<usize>,
}

impl<'e, 'r> WideRules<'e, 'r> {
    /// Creates the set of rules that `is_candidate` selects; if there are many, of those with the fewest conditions.
    pub(super) fn select(
        entries: &'e [RuleEntry<'r>],
        is_candidate: impl Fn(&RuleEntry<'r>) -> bool,
    ) -> Self {
        let mut rules: Vec<_> = entries.iter().filter(|entry| is_candidate(entry)).collect();
        rules.sort_by_key(|entry| condition_count(&entry.rule.matcher));
        rules.truncate(MAX_WIDE_RULES);
        let mut wide = Self { rules, ..Self::default() };
        for (index, entry) in wide.rules.iter().enumerate() {
            let paths = &entry.rule.matcher.paths;
            let segments: Option<Vec<_>> = paths.iter().map(|path| path.first_segment()).collect();
            match segments {
                Some(segments) if !segments.is_empty() => {
                    for segment in segments {
                        let same = wide.by_first_segment.entry(segment).or_default();
                        if same.last() != Some(&index) {
                            same.push(index);
                        }
                    }
                }
                _ => wide.others.push(index),
            }
        }
        wide
    }

    /// Returns a superset of the rules that apply to all requests of `matcher`, each once and in their order.
    pub(super) fn candidates(&self, matcher: &Matcher) -> impl Iterator<Item = &'e RuleEntry<'r>> {
        let segment = matcher.paths.first().and_then(|path| path.first_segment());
        let same = segment.and_then(|segment| self.by_first_segment.get(segment));
        let mut same = same.into_iter().flatten().peekable();
        let mut others = self.others.iter().peekable();
        let in_order = std::iter::from_fn(move || match (same.peek(), others.peek()) {
            (Some(one), Some(other)) if other < one => others.next(),
            (Some(_), _) => same.next(),
            (None, _) => others.next(),
        });
        in_order.map(|index| self.rules[*index])
    }
}

fn condition_count(matcher: &Matcher) -> usize {
    let Matcher { paths, methods, hosts, client_ip, schedule, conditions, entries } = matcher;
    let given = [
        !paths.is_empty(),
        !methods.is_empty(),
        !hosts.is_empty(),
        client_ip.is_some(),
        schedule.is_some(),
        entries.is_some(),
    ];
    given.into_iter().filter(|given| *given).count() + conditions.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::raw;
    use weir_policy::rules::pattern::PathPattern;
    use weir_policy::rules::rule::{Action, Rule};

    const PATTERNS: [&str; 10] =
        ["/", "/*", "/a", "/a/*", "/a/{x}", "/b/c", "/b/*", "/{x}", "/{x}/*", "~^/a"];

    fn rules() -> impl Strategy<Value = Vec<Rule>> {
        let paths = prop::collection::vec(prop::sample::select(&PATTERNS[..]), 0..4);
        let rule = (paths, any::<bool>()).prop_map(|(paths, has_method)| {
            let paths = paths.into_iter().map(|text| PathPattern::parse(text).unwrap()).collect();
            let methods = if has_method { [http::Method::GET].into() } else { Box::default() };
            let matcher = Matcher { paths, methods, ..Matcher::default() };
            Rule { name: "r".into(), matcher, action: Action::Deny, ..Rule::default() }
        });
        prop::collection::vec(rule, 0..12)
    }

    proptest! {
        #[test]
        fn candidates_are_those_that_a_scan_of_all_rules_finds(rules in rules()) {
            let raw: raw::Rule = serde_yaml::from_str("{}").unwrap();
            let entries: Vec<_> = rules.iter().map(|rule| RuleEntry { raw: &raw, rule, index: None }).collect();
            let wide = WideRules::select(&entries, |_| true);
            for matcher in rules.iter().map(|rule| &rule.matcher) {
                let is_wider = |entry: &&RuleEntry<'_>| matcher.is_within(&entry.rule.matcher);
                let names = |entry: &RuleEntry<'_>| std::ptr::from_ref(entry.rule);
                let found: Vec<_> = wide.candidates(matcher).filter(is_wider).map(names).collect();
                let expected: Vec<_> = wide.rules.iter().copied().filter(is_wider).map(names).collect();
                prop_assert_eq!(found, expected, "{:?}", matcher);
            }
        }
    }
}
