//! A fetched configuration: loaded at startup, followed from then on, and cached for the next start.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::{Error, Running, spawn_thread};
use crate::central::cache;
use crate::central::document::Document;
use crate::central::follower::{First, Follower, Resources};
use crate::central::settings::Settings;
use crate::config::Config;
use crate::config::reload::{Handle, Reloader};
use crate::telemetry::metrics::FetchMetrics;

/// The follower of the server, not started yet.
pub(super) struct Central {
    follower: Follower,
    settings: Settings,
    /// The running document, if it was fetched.
    fetched: Option<Document>,
    /// The running document, if it came from the cache.
    cached: Option<Document>,
    /// The server's document, if it was invalid and another is running.
    rejected: Option<Document>,
}

/// Caches applied documents, and passes changed settings of the bootstrap to the follower.
pub(super) struct Keeper {
    settings: watch::Sender<Arc<Settings>>,
    /// The document in the cache, if this process wrote it.
    kept: Option<Document>,
    /// The document used at startup, if it came from the cache.
    cached: Option<Document>,
    metrics: FetchMetrics,
}

/// Loads the bootstrap at `path` together with the server's document, or with the cached one if that fails.
pub(super) fn start(path: &Path, settings: Settings) -> Result<(Config, Reloader, Central), Error> {
    let kept = kept(&settings);
    let follower =
        Follower::new(settings.clone(), kept.clone()).map_err(Error::system("cannot set up TLS"))?;
    let mut central = Central { follower, settings, fetched: None, cached: kept.clone(), rejected: None };
    let first = runtime()?.block_on(central.follower.first());
    let url = central.settings.url.to_string();
    let started = match (first, kept) {
        (Ok(First::Document(document)), kept) => return central.start_with(path, document, kept),
        (Ok(First::Kept), Some(kept)) => Reloader::start_central(path, kept),
        (Err(failure), Some(kept)) => {
            tracing::warn!(
                url,
                error = %failure,
                "cannot fetch the configuration, starting with the cached one"
            );
            Reloader::start_central(path, kept)
        }
        (Err(failure), None) => {
            let doing = format!("cannot fetch the configuration from {url}, and none is cached");
            return Err(Error::System(doing, io::Error::other(failure)));
        }
        (Ok(First::Kept), None) => {
            let error = io::Error::other("304 response to an unconditional request");
            return Err(Error::System(format!("cannot fetch the configuration from {url}"), error));
        }
    };
    let (config, reloader) = started.map_err(Error::Configuration)?;
    Ok((config, reloader, central))
}

impl Central {
    fn start_with(
        mut self,
        path: &Path,
        document: Document,
        kept: Option<Document>,
    ) -> Result<(Config, Reloader, Self), Error> {
        let problems = match Reloader::start_central(path, document.clone()) {
            Ok((config, reloader)) => {
                (self.fetched, self.cached) = (Some(document), None);
                return Ok((config, reloader, self));
            }
            Err(problems) => problems,
        };
        let Some(kept) = kept else { return Err(Error::Configuration(problems)) };
        let Ok((config, reloader)) = Reloader::start_central(path, kept.clone()) else {
            return Err(Error::Configuration(problems));
        };
        tracing::warn!(
            url = %document.url,
            "the fetched configuration is invalid, starting with the cached one"
        );
        self.follower.start_with(kept);
        self.rejected = Some(document);
        Ok((config, reloader, self))
    }

    /// Starts the follower, on a thread of its own for the lifetime of the process.
    pub(super) fn follow(self, running: &Running) -> Result<Keeper, Error> {
        let Self { follower, settings, fetched, cached, rejected } = self;
        let metrics = running.shared.metrics.fetches();
        let kept = fetched.filter(|document| keep(&settings, document, &metrics));
        // Delivers the invalid document, so that its rejection appears in the status.
        rejected.into_iter().for_each(|document| running.reload.deliver(document));
        let (sender, receiver) = watch::channel(Arc::new(settings));
        let resources = Resources {
            settings: receiver,
            hurry: running.reload.hurry(),
            metrics: metrics.clone(),
            clock: Arc::clone(&running.shared.clock),
        };
        let (reload, runtime): (Handle, Runtime) = (running.reload.clone(), runtime()?);
        let follow = move || runtime.block_on(follower.run(resources, |document| reload.deliver(document)));
        spawn_thread("config", follow)?;
        Ok(Keeper { settings: sender, kept, cached, metrics })
    }
}

impl Keeper {
    /// Records that a configuration with this document has been applied.
    pub(super) fn applied(&mut self, settings: Settings, document: &Document) {
        if self.cached.as_ref() != Some(document) {
            self.metrics.from_cache(false);
        }
        let differs = **self.settings.borrow() != settings;
        if differs || self.kept.as_ref() != Some(document) {
            self.kept = keep(&settings, document, &self.metrics).then(|| document.clone());
        }
        if differs {
            self.settings.send_replace(Arc::new(settings));
        }
    }
}

fn runtime() -> Result<Runtime, Error> {
    Builder::new_current_thread().enable_all().build().map_err(Error::system("cannot start a runtime"))
}

/// Loads the document cached by an earlier run.
fn kept(settings: &Settings) -> Option<Document> {
    let file = settings.cache.as_deref()?;
    cache::load(file, &settings.url).unwrap_or_else(|problem| {
        tracing::warn!(file = %file.display(), problem, "the cached configuration is not used");
        None
    })
}

/// Caches the document; returns whether that succeeded or was not needed.
fn keep(settings: &Settings, document: &Document, metrics: &FetchMetrics) -> bool {
    let Some(file) = &settings.cache else { return true };
    let Err(error) = cache::store(file, &settings.url, document) else { return true };
    metrics.cache_failed();
    let file = file.display();
    tracing::warn!(
        %file,
        %error,
        "cannot cache the configuration: the next start fails if the server is unreachable"
    );
    false
}
