//! Limits that are kept elsewhere: asked for over the network, within a time that the request can spare.

pub mod channel;
pub mod service;

mod wire;
