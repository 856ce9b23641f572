//! Configuration from a central server: fetched over HTTP with long polling, and cached on disk for when the
//! server is unavailable.
//!
//! Interpreting a document is up to `config`, and applying it to `app`. [`follower`] sends the requests and
//! schedules them, `client` performs a single exchange, [`cache`] stores the last good document.

pub mod cache;
pub mod document;
pub mod follower;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod settings;

mod client;
mod envelope;
mod poll_interval;
