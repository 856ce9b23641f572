//! What a configuration says about requests: whose they are, which rules apply, and what a rejected request gets.
//!
//! Everything here is a function of its arguments: no I/O, no clock, no threads.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod decision;
pub mod engine;
pub mod identify;
pub mod response;
pub mod rules;
pub mod throttle;
