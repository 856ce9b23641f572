//! Columns of the tables: which of them are shown, and how wide they are.
//!
//! On a narrow terminal, names and limits shrink first. Then columns are left out, and rejections never are.

use super::terms;
use crate::top::line::width;
use crate::top::snapshot::{ReceivedKey, ReceivedRule};
use crate::top::view::TopView;

/// Bounds of the columns with the names and limits of rules.
pub(super) const MIN_NAME: usize = 8;
pub(super) const MAX_NAME: usize = 32;
const MIN_LIMITS: usize = 5;
const MAX_LIMITS: usize = 26;
/// Width from which a name is cut before a limit is.
const READABLE_NAME: usize = 14;

/// Width of a column with numbers.
pub(super) const NUMBER: usize = 10;

/// Maximum width of the small plots, and the width of the terminal from which there are some.
const MAX_PLOT: usize = 30;
const MIN_COLUMNS_FOR_PLOT: usize = 100;

/// A column with numbers of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleNumber {
    Allowed,
    Delayed,
    Shadow,
    Rejected,
    Tokens,
    Keys,
}

impl RuleNumber {
    const ALL: [Self; 6] =
        [Self::Allowed, Self::Delayed, Self::Shadow, Self::Rejected, Self::Tokens, Self::Keys];

    /// Columns that a narrow terminal leaves out, in this order.
    const OPTIONAL: [Self; 5] = [Self::Keys, Self::Tokens, Self::Shadow, Self::Delayed, Self::Allowed];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Allowed => "ALLOWED/s",
            Self::Delayed => "DELAYED/s",
            Self::Shadow => "SHADOW/s",
            Self::Rejected => "REJECTED/s",
            Self::Tokens => "TOKENS/s",
            Self::Keys => "KEYS",
        }
    }

    pub(super) const fn width(self) -> usize {
        match self {
            Self::Rejected => NUMBER + 1,
            Self::Keys => NUMBER - 2,
            Self::Allowed | Self::Delayed | Self::Shadow | Self::Tokens => NUMBER,
        }
    }

    /// Whether a rule has ever had such a decision, or counts tokens. Delays and shadow mode are not in use everywhere.
    fn is_used(self, rule: &ReceivedRule) -> bool {
        match self {
            Self::Delayed => rule.decisions.delayed > 0,
            Self::Shadow => rule.decisions.shadow > 0,
            Self::Tokens => rule.charged_tokens().is_some(),
            Self::Allowed | Self::Rejected | Self::Keys => true,
        }
    }
}

/// Columns of the table of rules.
pub(super) struct RuleLayout {
    pub(super) name: usize,
    /// 0 without such a column.
    pub(super) limits: usize,
    pub(super) numbers: Vec<RuleNumber>,
    /// 0 without such a column.
    pub(super) plot: usize,
}

impl RuleLayout {
    pub(super) fn new(view: &TopView, rules: &[&ReceivedRule], columns: usize) -> Self {
        let all = view.snapshot.iter().flat_map(|snapshot| &snapshot.rules);
        let is_used = |number: &RuleNumber| all.clone().any(|rule| number.is_used(rule));
        let has_keys = rules.iter().any(|rule| rule.keys.is_some());
        let is_shown = |number: &RuleNumber| is_used(number) && (*number != RuleNumber::Keys || has_keys);
        let mut numbers: Vec<RuleNumber> = RuleNumber::ALL.into_iter().filter(is_shown).collect();
        if numbers.is_empty() {
            numbers.push(RuleNumber::Rejected);
        }
        let left = |numbers: &[RuleNumber]| {
            columns.saturating_sub(numbers.iter().map(|number| number.width()).sum())
        };
        let mut optional = RuleNumber::OPTIONAL.into_iter();
        while left(&numbers) < MIN_NAME + 2 + MIN_LIMITS
            && let Some(dropped) = optional.next()
        {
            numbers.retain(|number| *number != dropped);
        }
        let free = left(&numbers);
        let widest = rules.iter().map(|rule| width(&rule.name)).max().unwrap_or(0).clamp(MIN_NAME, MAX_NAME);
        let wanted = rules.iter().map(|rule| width(&terms(rule))).max().unwrap_or(0);
        let wanted = wanted.clamp(MIN_LIMITS, MAX_LIMITS);
        let has_limits = free >= MIN_NAME + 2 + MIN_LIMITS;
        let name = match has_limits {
            true => widest.min(free.saturating_sub(2 + wanted).max(READABLE_NAME.min(free - 2 - MIN_LIMITS))),
            false => widest.min(free.max(1)),
        };
        let limits = if has_limits { wanted.min(free - 2 - name) } else { 0 };
        let rest = free.saturating_sub(name + 2 + limits);
        let has_samples = view.samples.values().any(|samples| samples.len() > 1);
        let has_plot = columns >= MIN_COLUMNS_FOR_PLOT && rest > 8 && has_samples;
        Self { name, limits, numbers, plot: if has_plot { (rest - 2).min(MAX_PLOT) } else { 0 } }
    }
}

/// A column with numbers of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyNumber {
    Admitted,
    Delayed,
    Shadow,
    Rejected,
}

impl KeyNumber {
    pub(super) const ALL: [Self; 4] = [Self::Admitted, Self::Delayed, Self::Shadow, Self::Rejected];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Admitted => "ADMITTED",
            Self::Delayed => "DELAYED",
            Self::Shadow => "SHADOW",
            Self::Rejected => "REJECTED",
        }
    }

    pub(super) const fn of(self, key: &ReceivedKey) -> u64 {
        match self {
            Self::Admitted => key.admitted,
            Self::Delayed => key.delayed,
            Self::Shadow => key.shadow,
            Self::Rejected => key.rejected,
        }
    }

    pub(super) const fn is_always_shown(self) -> bool {
        matches!(self, Self::Admitted | Self::Rejected)
    }
}
