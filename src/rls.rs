//! Envoy's rate limit service, without the network: the documents of envoyproxy/ratelimit, which limit a
//! descriptor meets, what is counted, and the answer as plain data.
//!
//! Rules of Weir's own configuration that name the domain have their say too (`native`). Whatever the reference answers to a request, this answers, down to the words of its errors; where it differs,
//! `docs/design/015-envoy-rate-limit-service.md` says why. What it is not: it opens no socket, reads no
//! file, clock or environment, and counts no metric; what there is to count comes with each answer.

pub mod answer;
pub mod document;
pub mod request;
pub mod rules;
pub mod service;
pub mod settings;
pub mod stats;
pub mod unit;
pub mod windows;

mod headers;
mod matching;
mod metadata;
mod native;
mod yaml;
