//! Weir, a rate-limiting reverse proxy that stands beside one service.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod identify;
pub mod limiter;
pub mod rules;
