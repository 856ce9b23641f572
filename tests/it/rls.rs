//! Envoy's rate limit service, called as Envoy calls it.

mod bounds;
mod desk;
mod doors;
mod envoy;
mod health;
mod modes;
mod native;
mod quota;
mod reload;
mod scenarios;
mod sharing;
mod streams;
mod xds;

use std::path::Path;

use desk::Client;
pub(crate) use desk::{Code, descriptor};

use crate::support::Weir;

/// Name and text of a file of rules.
pub(crate) type File<'a> = (&'a str, &'a str);

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
pub(crate) struct Service {
    pub(crate) weir: Weir,
    pub(crate) client: Client,
    directory: tempfile::TempDir,
}

impl Service {
    pub(crate) fn start(files: &[File<'_>]) -> Self {
        Self::with(files, "")
    }

    /// Starts the service with further settings of `rls`, indented by two.
    pub(crate) fn with(files: &[File<'_>], rest: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let weir = Weir::start(&config(directory.path(), rest));
        let client = Client::connect(weir.door("grpc"));
        Self { weir, client, directory }
    }

    /// Returns the directory of the rules.
    pub(crate) fn rules(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a counter of `/stats`; 0 if it does not exist.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = crate::support::get(self.weir.door("debug"), "/stats").body.text();
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |count| count.parse().unwrap())
    }
}
