//! Envoy's rate limit service, asked as Envoy asks it.

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

/// A file of rules.
pub(crate) type File<'a> = (&'a str, &'a str);

/// A configuration with nothing but the service, whose rules are in `directory`.
pub(crate) fn config(directory: &Path, rest: &str) -> String {
    format!(
        "admin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nrls:\n  address: 127.0.0.1:0\n  http: 127.0.0.1:0\n  \
         debug: 127.0.0.1:0\n  config: {{ directory: {} }}\n{rest}",
        directory.display()
    )
}

/// The service with rules in a directory of its own.
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

    /// The same with more to say under `rls`, indented by two.
    pub(crate) fn with(files: &[File<'_>], rest: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let weir = Weir::start(&config(directory.path(), rest));
        let client = Client::connect(weir.door("grpc"));
        Self { weir, client, directory }
    }

    /// Where the rules are.
    pub(crate) fn rules(&self) -> &Path {
        self.directory.path()
    }

    /// A counter of `/stats`; 0 where there is none.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = crate::support::get(self.weir.door("debug"), "/stats").body.text();
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |count| count.parse().unwrap())
    }
}
