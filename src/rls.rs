//! Envoy's rate limit service: the documents of envoyproxy/ratelimit, which limit a descriptor meets, what is counted,
//! and the ports where that is asked.
//!
//! Whatever the reference answers to a request, this answers, down to the words of its errors; where it differs,
//! `docs/design/015-envoy-rate-limit-service.md` says why. What decides is pure, from `document` to `service`: it
//! opens no socket, reads no file, clock or environment, and counts no metric. At the `desk` it meets the network
//! (`server`, `doors`), and the files that rules come from (`source`). Rules of Weir's own configuration that name a domain
//! have their say in it too (`native`).

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
