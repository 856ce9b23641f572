//! Groups of rules of which a request needs room in one (`any_of`).
//!
//! A request is charged to the first rule of the group that has room. Which rules of a group are alternatives of each
//! other depends on the request: those that apply to it.

use smallvec::SmallVec;

use super::group_place::GroupPlace;
use super::planned_checks;
use super::rule::Rule;
use super::selection::SelectedCheck;
use super::{RuleIndex, RuleSet};
use weir_limiter::check_options::{AlternativePlace, CheckOptions, WithoutRoom};

/// The place of each rule in a group, by rule. Empty if there are no groups.
#[derive(Debug)]
pub(super) struct RuleGroups(Box<[Option<GroupPlace>]>);

impl RuleGroups {
    pub(super) fn new(rules: &[Rule]) -> Self {
        let place = |rule: &Rule| rule.action.limiting()?.group_place;
        match rules.iter().any(|rule| place(rule).is_some()) {
            true => Self(rules.iter().map(place).collect()),
            false => Self(Box::default()),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, rule: RuleIndex) -> Option<GroupPlace> {
        self.0.get(rule.0).copied().flatten()
    }

    /// Makes the rules of each group alternatives of each other, if several of them apply to the request.
    #[inline(never)]
    pub(super) fn mark_alternatives(&self, selected: &mut [SelectedCheck]) {
        // By group, a bit for each rule that applies.
        let mut applying = SmallVec::<[u8; 8]>::new();
        let places = |selected: &[SelectedCheck], at: usize| self.place(selected[at].rule);
        for at in 0..selected.len() {
            let Some(GroupPlace { group, position }) = places(selected, at) else { continue };
            let group = usize::from(group);
            if applying.len() <= group {
                applying.resize(group + 1, 0);
            }
            applying[group] |= 1 << position;
        }
        for at in 0..selected.len() {
            let Some(GroupPlace { group, position }) = places(selected, at) else { continue };
            let rules = applying[usize::from(group)];
            if rules.count_ones() < 2 {
                continue;
            }
            // Elements of a batch to which different rules apply have different sets.
            let alternative = AlternativePlace { set: u16::from_be_bytes([group, rules]), rank: position };
            let SelectedCheck { rule, check, .. } = &mut selected[at];
            let options = check.options.unwrap_or_else(|| planned_checks::default_options(rule.0));
            let without_room = WithoutRoom::TryNext(alternative);
            check.options = Some(CheckOptions { without_room, ..options });
        }
    }
}

impl RuleSet {
    /// Whether any rules are a group of which a request needs one.
    pub const fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns the place of a rule in a group; `None` if it is in none.
    pub fn group_place(&self, rule: RuleIndex) -> Option<GroupPlace> {
        self.groups.place(rule)
    }

    /// Yields the rules of a group, in its order.
    pub fn rules_of_group(&self, group: u8) -> impl Iterator<Item = &Rule> {
        let in_group =
            |index: &usize| self.group_place(RuleIndex(*index)).filter(|place| place.group == group);
        let mut rules: Vec<_> =
            (0..self.rules.len()).filter_map(|index| Some((in_group(&index)?.position, index))).collect();
        rules.sort_unstable();
        rules.into_iter().filter_map(|(_, index)| self.rules.get(index))
    }
}
