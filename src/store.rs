//! Limits that instances share through Redis or Valkey.
//!
//! The store counts, in a script that it runs ([`protocol::SCRIPT`]); instances claim units of it in the background and
//! spend them from memory. [`desk::Desk`] decides what is asked when; it knows no network and no clock, so a simulation
//! runs it as the program does. [`handle::Handle`] is what workers have of it.

pub mod desk;
pub mod handle;
pub mod protocol;
pub mod redis;
pub mod settings;
pub mod supply;
pub mod task;
