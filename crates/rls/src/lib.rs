//! Envoy's rate limit service (RLS), compatible with envoyproxy/ratelimit, the reference implementation.
//!
//! Responses are those of the reference, including the texts of errors. `docs/design/015-envoy-rate-limit-service.md`
//! lists the differences and their reasons. The modules from `document` to `decider` decide; they perform no
//! I/O, read no clock, and record no metrics. The `handler` connects them with the network (`server`,
//! `http_endpoints`) and with the source of the rules (`source`). Rules of Weir's own configuration that have
//! a domain apply, too (`native`).
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod call_log;
pub mod decider;
pub mod document;
pub mod handler;
pub mod http_endpoints;
pub mod json;
pub mod options;
pub mod quota;
pub mod request;
pub mod response;
pub mod rules;
pub mod server;
pub mod settings;
pub mod shared_limits;
pub mod source;
pub mod stats;
pub mod unit;
pub mod unit_limits;

mod descriptor_match;
mod key_sketches;
mod native;
