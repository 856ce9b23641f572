//! Envoy's rate limit service (RLS), compatible with envoyproxy/ratelimit, the reference implementation.
//!
//! Responses are those of the reference, including the texts of errors. `docs/design/015-envoy-rate-limit-service.md`
//! lists the differences and their reasons. The modules from `document` to `service` decide; they perform no I/O, read
//! no clock, and record no metrics. The `desk` connects them with the network (`server`, `doors`) and with the source
//! of the rules (`source`). Rules of Weir's own configuration that have a domain apply, too (`native`).

pub mod answer;
pub mod desk;
pub mod document;
pub mod doors;
pub mod json;
pub mod options;
pub mod quota;
pub mod request;
pub mod rules;
pub mod server;
pub mod service;
pub mod settings;
pub mod sharing;
pub mod source;
pub mod stats;
pub mod unit;
pub mod windows;

mod matching;
mod native;
