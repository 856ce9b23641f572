//! Clients of other rate limit services, with bounded waiting times.

pub mod channel;
pub mod service;

mod wire;
