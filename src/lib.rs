//! Weir, a rate-limiting reverse proxy that runs as a sidecar of one service.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod admin;
pub mod admin_client;
pub mod alerts;
pub mod app;
mod atomic_file;
pub mod central;
pub mod cli;
pub mod clock;
pub mod config;
pub mod deferred;
pub mod drain;
pub mod engine;
pub mod explain;
pub mod explain_command;
pub mod forward_proxy;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod headers;
pub mod http1;
pub mod http2;
pub mod http_server;
pub mod identify;
pub mod import;
pub mod jitter;
pub mod limiter;
pub mod limits;
pub mod listener;
pub mod observe;
pub mod overload;
pub mod proxy;
pub mod remote;
pub mod replay;
pub mod response;
pub mod rls;
pub mod rules;
pub mod state_file;
pub mod store;
pub mod telemetry;
pub mod throttle;
pub mod tls;
pub mod top;
pub mod transport;
pub mod upstream;
pub mod watch;
pub mod worker;
mod yaml;
