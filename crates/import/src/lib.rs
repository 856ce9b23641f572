//! Import of other rate limiters' configurations as rules.
//!
//! Input and output are text: a list of `rules:` that `weir check` accepts, for pasting into a configuration.
//!
//! Nothing is dropped silently. An importer reads a tree of values with positions (`tree` for YAML and JSON), marks in a
//! `ledger` what the rules express, and gives reasons for the rest; the ledger turns every other value into a remark. What
//! changes which requests are admitted is a warning, too (`remark`). `output` checks the rules as a configuration. A test
//! deletes and changes each leaf of the samples in `tests/rls/imports` and expects other rules or comments, so a new
//! importer needs its samples there, and its fields as a `Message`. An [`Importer`] in [`IMPORTERS`] is all that the
//! command line needs to know.
//!
//! Policies of Kubernetes share four modules: `kubernetes` reads objects, `gateway_api` finds the requests of a policy,
//! `selection` combines conditions, and `limit_draft` writes a rule for each alternative.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod envoy_gateway;
pub mod envoy_ratelimit;
pub mod ingress_nginx;
pub mod kuadrant;
pub mod linkerd;
pub mod local_ratelimit;
pub mod nginx;
pub mod traefik;

mod duration;
mod expression;
mod gateway_api;
mod importer;
mod kubernetes;
mod ledger;
mod limit_draft;
mod meet;
mod network;
mod output;
mod pattern;
mod remark;
mod rule_text;
mod scope;
mod selection;
mod token_bucket;
mod tree;

use std::fmt;

pub use self::importer::{Conversion, ImportOption, ImportSource, Importer};
pub use self::output::Imported;

/// All formats, in the order of the help.
pub static IMPORTERS: &[&Importer] = &[
    &envoy_ratelimit::IMPORTER,
    &local_ratelimit::IMPORTER,
    &nginx::IMPORTER,
    &ingress_nginx::IMPORTER,
    &envoy_gateway::IMPORTER,
    &linkerd::IMPORTER,
    &kuadrant::IMPORTER,
    &traefik::IMPORTER,
];

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
