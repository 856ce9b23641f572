//! Adds Weir as a native sidecar to Kubernetes manifests, and removes it again.
//!
//! Text in, text out: bytes that are not part of the change stay as they are, with their comments, order and layout. Each changed
//! object gets an annotation with what was added and what was there before, by which [`uninject`] restores the text. A second
//! injection first undoes the one before, so with the same options it changes nothing.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod application_port;
mod edit;
mod inject;
mod manifest;
mod obstacle;
mod output;
mod plan;
mod pod;
mod port_change;
mod port_edit;
mod problem;
mod record;
mod selector;
mod service;
mod sidecar;
mod sidecar_config;
mod tree;
mod undo;

pub use self::inject::{inject, uninject};
pub use self::manifest::ManifestSource;
pub use self::problem::InjectProblem;
pub use self::sidecar_config::ConfigSource;

/// Options of an injection.
#[derive(Clone, Debug, Default)]
pub struct InjectOptions {
    /// Configuration of the sidecar; `None` for the default limit.
    pub config: Option<ConfigSource>,
    /// Port of the application; `None` to find it.
    pub port: Option<u16>,
    /// Image of the sidecar; `None` for `weir` with the version of this crate.
    pub image: Option<String>,
    /// Whether rules of the pod's network redirect connections to the sidecar.
    pub is_redirect: bool,
}

/// The outcome of an injection or of its removal.
#[derive(Clone, Debug, Default)]
pub struct Injection {
    /// The manifests, in the order of the input.
    pub files: Vec<ManifestSource>,
    /// Objects that have the sidecar now, or no longer.
    pub titles: Vec<String>,
    /// What the user should know.
    pub notes: Vec<String>,
}
