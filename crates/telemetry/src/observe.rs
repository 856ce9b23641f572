//! What operators see of single decisions: the heaviest keys of each rule, and a trace of decisions in the log.
//!
//! Everything here is bounded and counts in memory of each worker. A request pays for one uncontended lock and one
//! look-up per rule with a key. Readable keys are built only when a key becomes one of the heaviest, or for a log that
//! is enabled.

pub mod decision_trace;
pub mod demand;
mod key_budget;
pub mod key_sketch;
pub mod key_writer;
pub mod top_keys;
