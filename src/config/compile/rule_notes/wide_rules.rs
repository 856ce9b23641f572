//! Rules with few conditions, with which all others are compared.

use std::collections::HashMap;

use super::RuleEntry;
use crate::rules::matcher::Matcher;

/// Maximum number of rules that every other rule is compared with. A file may contain ten thousand rules.
const MAX_WIDE_RULES: usize = 100;

/// Rules with the fewest conditions, in ascending order of their number.
#[derive(Default)]
pub(super) struct WideRules<'e, 'r> {
    rules: Vec<&'e RuleEntry<'r>>,
    /// Indices of rules of which every path begins with a certain segment, by these segments.
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
                        wide.by_first_segment.entry(segment).or_default().push(index);
                    }
                }
                _ => wide.others.push(index),
            }
        }
        wide
    }

    /// Returns every rule that may apply to all requests of `matcher`, and others.
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
