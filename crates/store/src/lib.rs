//! Limits that instances share through Redis or Valkey.
//!
//! The store counts in a script that it runs ([`protocol::SCRIPT`]). Instances lease units from it in the background
//! and use them from memory. [`scheduler::LeaseScheduler`] schedules the queries; it performs no I/O and
//! reads no clock, so simulations run the same code. [`handle::StoreHandle`] is the workers' interface.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod call_latency;
pub mod deferred;
mod feedback;
pub mod handle;
pub mod lease_wait;
pub mod parts;
pub mod protocol;
pub mod redis;
pub mod regions;
pub mod remote;
pub mod scheduler;
pub mod settings;
pub mod state_file;
pub mod task;
