//! Weir, a rate-limiting reverse proxy that runs as a sidecar of one service.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod admin;
pub mod admin_client;
pub mod app;
pub mod cli;
pub mod explain_command;
pub mod inject_command;
pub mod kubectl;
pub mod proxy;
pub mod suggest_command;
pub mod top;
