//! What these tests have in common with those of the program.

#[path = "../it/support/wait.rs"]
pub(crate) mod wait;
