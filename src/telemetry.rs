//! What operators see of a running process.

pub mod access_log;
