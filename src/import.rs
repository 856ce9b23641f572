//! Import of other rate limiters' configurations as rules.
//!
//! Input and output are text: a list of `rules:` that `weir check` accepts, for pasting into a configuration.
//! Nothing is dropped silently: what cannot be expressed becomes a comment above the rule that it concerns.

pub mod envoy_ratelimit;
pub mod local_ratelimit;
pub mod nginx;

mod actions;
mod match_fields;
mod rule_text;
mod token_bucket;
mod tree;

use std::fmt;

/// Why a file cannot be imported, e.g. `limits.yaml:3:5: descriptor has empty key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError {
    /// The file, as it was named.
    pub file: String,
    /// Line and column, from 1; `None` for the file as a whole.
    pub position: Option<(usize, usize)>,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some((line, column)) = self.position {
            write!(f, "{line}:{column}:")?;
        }
        // The reference reports several type errors on separate lines; a problem is printed on one.
        write!(f, " {}", self.message.replace('\n', " "))
    }
}
