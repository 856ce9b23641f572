//! Helpers shared with the integration tests of the program.

#[path = "../it/support/wait.rs"]
pub(crate) mod wait;
