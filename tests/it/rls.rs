//! Envoy's rate limit service, called as Envoy calls it.

mod authority;
mod client;
mod document_limits;
mod endpoints;
mod envoy;
mod framing;
mod health;
mod modes;
mod native;
mod quota;
mod quota_streams;
mod reload;
mod request_limits;
mod scenarios;
mod sharing;
mod variables;
mod xds;

use std::path::Path;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use client::RlsClient;
pub(crate) use client::{Code, descriptor};

use crate::support::Weir;

/// Name and text of a file of rules.
pub(crate) type RuleFile<'a> = (&'a str, &'a str);

/// Returns a configuration with only the service, whose rules are in `directory`.
pub(crate) fn config(directory: &Path, rest: &str) -> String {
    format!(
        "admin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nrls:\n  address: 127.0.0.1:0\n  http: 127.0.0.1:0\n  \
         debug: 127.0.0.1:0\n  config: {{ directory: {} }}\n{rest}",
        directory.display()
    )
}

/// The service, with its rules in a directory of its own.
#[derive(Debug)]
pub(crate) struct RlsService {
    pub(crate) weir: Weir,
    pub(crate) client: RlsClient,
    directory: tempfile::TempDir,
}

impl RlsService {
    pub(crate) fn start(files: &[RuleFile<'_>]) -> Self {
        Self::start_with(files, "")
    }

    /// Starts the service with further settings of `rls`, indented by two.
    pub(crate) fn start_with(files: &[RuleFile<'_>], rest: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let weir = Weir::start(&config(directory.path(), rest));
        let client = RlsClient::connect(weir.rls_address("grpc"));
        Self { weir, client, directory }
    }

    /// Returns the directory of the rules.
    pub(crate) fn rules_directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a counter of `/stats`; 0 if it does not exist.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = crate::support::get(self.weir.rls_address("debug"), "/stats").body.text();
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |count| count.parse().unwrap())
    }
}
